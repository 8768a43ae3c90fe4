//! `hopbine serve`: one process that answers HTTP and gRPC over a data folder until it is told to
//! stop.

use crate::failure::Failure;
use crate::local::{self, Local};
use crate::output;
use crate::settings::Settings;
use clap::Args;
use hopbine_coordinator::server::{self, Check, Health, HttpConfig, Listeners, Surface};
use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};
use tracing::level_filters::LevelFilter;
use tracing::{error, info, warn};
use tracing_subscriber::EnvFilter;

/// Connections that may wait to be accepted; the system's own bound may be lower.
const BACKLOG: u32 = 1_024;

/// Flags of the verb.
#[derive(Args, Debug)]
pub struct Serve {
    /// Address to listen on; port 0 takes a free one [default: 127.0.0.1:7640]
    #[arg(long, value_name = "ADDR")]
    pub http: Option<String>,
    /// Address for gRPC; port 0 takes a free one, "off" listens on none [default: 127.0.0.1:7641]
    #[arg(long, value_name = "ADDR")]
    pub grpc: Option<String>,
    /// Listen beyond this machine although no keys are checked
    #[arg(long)]
    pub insecure: bool,
    /// Address for other nodes: not in this version, said at the start
    #[arg(long, value_name = "ADDR", hide = true)]
    peer: Option<String>,
}

/// Opens the data folder, says where it serves, and serves until SIGTERM or Ctrl-C.
pub async fn run(settings: &Settings, args: &Serve) -> Result<(), Failure> {
    let http = http_address(settings).await?;
    let grpc = grpc_address(settings).await?;
    if let Some(given) = &args.peer {
        warn!(flag = "--peer", address = given, "not in this version: nothing listens there");
    }
    let stop = stop_signal()?;
    // An address that is taken is refused before a data folder is made for it. Only listening
    // tells: several may be bound to one address as long as none of them listens. Who connects
    // before all is ready waits.
    let (http, bound) = listen("http", http)?;
    let (grpc, grpc_bound) = grpc.map(|address| listen("grpc", address)).transpose()?.unzip();
    let (local, engine) = local::open(&settings.data, &settings.node).await?;
    let url = format!("http://{}", reachable(bound));
    let grpc_address = grpc_bound.map(|bound| reachable(bound).to_string());
    local.0.announce(&url)?;
    say(&url, grpc_address.as_deref(), settings)?;
    let data = settings.data.display();
    info!(node = %local.0.id(), %url, grpc = grpc_address, %data, "ready");
    let health = Arc::new(NodeHealth { local: local.clone(), since: Mutex::default() });
    let surface = Surface::new(engine, health, HttpConfig::default());
    let serving = server::serve_all(Listeners { http, grpc }, surface, stop);
    unless_failed(serving, local.0.until_failed()).await?;
    local.0.shutdown().await?;
    info!(node = %local.0.id(), "stopped");
    Ok(())
}

/// A listener at `address`, and where it is when any port would do.
fn listen(key: &str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let listener = listener_at(address).map_err(|error| taken(key, address, &error))?;
    let bound = listener.local_addr().unwrap_or(address);
    Ok((listener, bound))
}

fn taken(key: &str, address: SocketAddr, error: &io::Error) -> Failure {
    let hint = match (key, error.kind()) {
        ("grpc", io::ErrorKind::AddrInUse) => {
            "\n  hint: another address with --grpc ADDR, or none with --grpc off"
        }
        _ => "",
    };
    Failure::Failed(format!("listen on {address}: {error}{hint}"))
}

fn listener_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Connections of a server that has just ended do not keep the next one from its address.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Which log lines are written. `log` has the last word also on the consensus library, when it
/// names it.
pub fn log_filter(settings: &Settings) -> Result<EnvFilter, Failure> {
    let log = &settings.log;
    let fewer = log.parse::<LevelFilter>().is_ok_and(|level| level <= LevelFilter::ERROR);
    // The consensus library tells its whole state, entries included, below warnings. Its warnings
    // are messages that it ignores as it should: every new group may give one, as the first entry
    // of a group is written before its first vote and reported as durable after it ("Leader vote
    // changed ... when (LocalIO Notification)"). What a human must look at are its errors.
    let quiet = if fewer || log.contains("openraft") { "" } else { ",openraft=error" };
    EnvFilter::try_new(format!("{log}{quiet}"))
        .map_err(|error| Failure::Usage(format!("log {log:?}: {error}")))
}

/// Starts the log on standard error: JSON lines off a terminal, for machines to read.
pub fn log(settings: &Settings) -> Result<(), Failure> {
    let filter = log_filter(settings)?;
    // A log that nobody can read any more is no reason to stop serving: a failure to write it
    // would be told with `eprintln!`, which panics where standard error is gone.
    let lines = tracing_subscriber::fmt().log_internal_errors(false);
    let lines = lines.with_env_filter(filter).with_writer(io::stderr);
    if io::stderr().is_terminal() {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        lines.with_ansi(!plain).init();
    } else {
        lines.json().flatten_event(true).init();
    }
    Ok(())
}

/// The address of the HTTP surface. Fails when it is none, or is beyond this machine without a
/// word.
pub async fn http_address(settings: &Settings) -> Result<SocketAddr, Failure> {
    address("http", &settings.http, "7640", settings.insecure).await
}

/// The same of the gRPC surface, unless it is off.
pub async fn grpc_address(settings: &Settings) -> Result<Option<SocketAddr>, Failure> {
    if settings.grpc == "off" {
        return Ok(None);
    }
    address("grpc", &settings.grpc, "7641", settings.insecure).await.map(Some)
}

async fn address(
    key: &str,
    text: &str,
    usual_port: &str,
    insecure: bool,
) -> Result<SocketAddr, Failure> {
    let found = tokio::net::lookup_host(text).await;
    let mut found = found.map_err(|error| {
        // A port alone is a wish for this machine.
        let port = if text.parse::<u16>().is_ok() { text } else { usual_port };
        let example = format!("expected HOST:PORT, such as 127.0.0.1:{port}");
        Failure::Usage(format!("{key} {text:?}: {error}\n  hint: {example}"))
    })?;
    let address = found.next();
    let address = address.ok_or_else(|| Failure::Usage(format!("{key} {text:?}: no address")))?;
    if !address.ip().is_loopback() && !insecure {
        let text = format!(
            "{address} is reachable from other machines and this version checks no keys\n  \
             hint: listen on 127.0.0.1, or say --insecure"
        );
        return Err(Failure::Usage(text));
    }
    Ok(address)
}

/// Listening everywhere includes this machine: an address that a client can be given.
fn reachable(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}

/// The one line on standard output: scripts read the address from it.
fn say(url: &str, grpc: Option<&str>, settings: &Settings) -> Result<(), Failure> {
    let (dir, pid) = (settings.data.display(), std::process::id());
    let grpc = grpc.map(|address| format!(", gRPC at {address}")).unwrap_or_default();
    match output::write_lines([format!("serving {dir} at {url} (pid {pid}){grpc}")]) {
        // Whoever does not read the line can still use the server.
        Err(Failure::ClosedOutput) => Ok(()),
        written => written,
    }
}

/// Ends at SIGTERM or Ctrl-C. The handlers stand when this returns.
fn stop_signal() -> Result<impl Future<Output = ()> + Send + 'static, Failure> {
    let failed = |error: io::Error| Failure::Failed(format!("signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => info!("SIGTERM: finishing requests"),
            _ = interrupt.recv() => info!("interrupted: finishing requests"),
        }
    })
}

/// Runs `serving` to its end, or breaks it off once the node must not go on: whatever was not
/// synced by then may be lost, and only a new start can tell what was.
async fn unless_failed(
    serving: impl Future<Output = ()>,
    failed: impl Future<Output = String>,
) -> Result<(), Failure> {
    tokio::select! {
        () = serving => Ok(()),
        reason = failed => {
            error!(%reason, "ending at once: the disk cannot be trusted any more");
            Err(Failure::Failed(format!("the node cannot go on: {reason}")))
        }
    }
}

/// What the node says of itself, with the time since when.
struct NodeHealth {
    local: Local,
    since: Mutex<BTreeMap<&'static str, Instant>>,
}

impl Health for NodeHealth {
    fn checks(&self) -> Vec<Check> {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let check = |check: hopbine_node::Check| match check.failed {
            None => {
                since.remove(check.name);
                Check::ok(check.name)
            }
            Some(reason) => {
                let began = since.entry(check.name).or_insert_with(Instant::now);
                Check::failed(check.name, reason, began.elapsed())
            }
        };
        self.local.0.health().into_iter().map(check).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(http: &str, insecure: bool) -> Settings {
        Settings { http: http.to_owned(), insecure, ..Settings::default() }
    }

    #[tokio::test]
    async fn an_address_beyond_this_machine_needs_a_word() {
        let at = async |http, insecure| http_address(&settings(http, insecure)).await;
        assert!(at("127.0.0.1:0", false).await.is_ok());
        assert!(at("[::1]:0", false).await.is_ok());
        let refused = at("0.0.0.0:7640", false).await.expect_err("refused");
        assert!(refused.to_string().contains("--insecure"), "{refused}");
        assert!(at("0.0.0.0:7640", true).await.is_ok());
        assert_eq!(at("nonsense", true).await.expect_err("none").exit_code(), 2);
        let port = at("7750", false).await.expect_err("no host").to_string();
        assert!(port.contains("such as 127.0.0.1:7750"), "{port}");
        let grpc = async |grpc: &str| {
            let settings = Settings { grpc: grpc.to_owned(), ..Settings::default() };
            grpc_address(&settings).await
        };
        assert_eq!(grpc("off").await.expect("none is wanted"), None);
        assert!(grpc("127.0.0.1:0").await.is_ok_and(|address| address.is_some()));
        let refused = grpc("0.0.0.0:7641").await.expect_err("refused");
        assert!(refused.to_string().contains("--insecure"), "{refused}");
    }

    #[tokio::test]
    async fn a_node_that_cannot_go_on_ends_the_process() {
        let reason = async || "sync failed".to_owned();
        let broken = unless_failed(std::future::pending(), reason()).await.expect_err("ended");
        assert_eq!(broken.exit_code(), 1);
        assert!(broken.to_string().contains("sync failed"), "{broken}");
        assert!(unless_failed(async {}, std::future::pending()).await.is_ok());
    }

    #[test]
    fn the_consensus_library_is_quieter_than_the_rest_unless_named() {
        let filter = |log: &str| {
            let settings = Settings { log: log.to_owned(), ..Settings::default() };
            log_filter(&settings).expect("a filter").to_string()
        };
        assert!(filter("info").contains("openraft=error"), "{}", filter("info"));
        assert!(filter("debug,hyper=warn").contains("openraft=error"));
        for log in ["off", "error", "info,openraft=debug"] {
            assert!(!filter(log).contains("openraft=error"), "{log}: {}", filter(log));
        }
    }

    #[test]
    fn the_announced_address_can_be_connected_to() {
        let at = |text: &str| reachable(text.parse().expect("an address")).to_string();
        assert_eq!(at("0.0.0.0:7640"), "127.0.0.1:7640");
        assert_eq!(at("[::]:7640"), "[::1]:7640");
        assert_eq!(at("10.0.0.1:7640"), "10.0.0.1:7640");
    }
}
