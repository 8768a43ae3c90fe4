//! What the tests of the real binary share: running it, serving with it, plain HTTP to it.

#![allow(dead_code, reason = "every test binary uses its own part")]

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The binary, away from the settings of whoever runs the tests.
pub fn hopbine(args: &[&str]) -> Command {
    clean(env!("CARGO_BIN_EXE_hopbine"), args)
}

/// A script of bash, in which `"$@"` is the binary with `args`.
pub fn in_bash(script: &str, args: &[&str]) -> Command {
    let begin = ["-c", script, "bash", env!("CARGO_BIN_EXE_hopbine")];
    clean("bash", &[&begin[..], args].concat())
}

fn clean(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HOPBINE_") {
            command.env_remove(name);
        }
    }
    // Tests run side by side: none may take the usual port.
    command.env("HOPBINE_GRPC", "127.0.0.1:0");
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs the binary to its end.
pub fn run(args: &[&str]) -> Output {
    hopbine(args).output().expect("the binary starts")
}

/// Runs the binary with something on standard input.
pub fn run_with(args: &[&str], input: &str) -> Output {
    let mut command = hopbine(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_owned();
    let writer = std::thread::spawn(move || {
        // A verb that fails early closes its input: that is not what is tested here.
        let _ = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("the writer ends");
    output
}

/// Standard output of a run that must succeed.
pub fn good(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", errors(output));
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Standard error of a run.
pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Standard error of a run that must end with `code`.
pub fn bad(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}", errors(output));
    errors(output)
}

/// A real server process; killed when dropped.
pub struct Server {
    child: Child,
    /// Reads what it logs, to its end.
    log: Option<JoinHandle<String>>,
    /// `http://host:port`.
    pub url: String,
    /// `host:port` of the gRPC surface.
    pub grpc: Option<String>,
}

impl Server {
    /// Starts `serve` over `dir` on a free port and waits for its address line.
    pub fn start(dir: &Path, more: &[&str]) -> Self {
        Self::start_at(dir, "127.0.0.1:0", more)
    }

    /// The same at a given address.
    pub fn start_at(dir: &Path, address: &str, more: &[&str]) -> Self {
        let dir = dir.to_str().expect("text");
        let mut command = hopbine(&["serve", "--data", dir, "--http", address]);
        command.args(more);
        Self::started(command)
    }

    /// The same by a command of one's own.
    pub fn started(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let mut log = child.stderr.take().expect("piped");
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            // The log is only for the message of a failure.
            let _ = log.read_to_string(&mut text);
            text
        });
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        stdout.read_line(&mut line).expect("readable");
        match line.split_whitespace().find(|word| word.starts_with("http://")) {
            Some(url) => {
                let grpc = line.trim_end().split_once("gRPC at ").map(|(_, at)| at.to_owned());
                Self { url: url.to_owned(), grpc, child, log: Some(reader) }
            }
            None => {
                let status = child.wait().expect("it ends");
                panic!("no address, {status}: {}", reader.join().expect("text"));
            }
        }
    }

    /// Starts `serve` over `dir` and kills it `after` that, ready or not.
    pub fn kill_at_start(dir: &Path, after: Duration) {
        let dir = dir.to_str().expect("text");
        let mut command = hopbine(&["serve", "--data", dir, "--http", "127.0.0.1:0"]);
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
        std::thread::sleep(after);
        child.kill().expect("it was running");
        child.wait().expect("it ends");
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, now.
    pub fn kill(mut self) {
        self.child.kill().expect("it was running");
        self.child.wait().expect("it ends");
    }

    /// SIGTERM; the exit code.
    pub fn terminate(mut self) -> Option<i32> {
        let sent = Command::new("kill").arg(self.child.id().to_string()).status();
        assert!(sent.expect("kill is there").success());
        self.child.wait().expect("it ends").code()
    }

    /// Waits for it to end by itself: the exit code and what it logged.
    pub fn end(mut self) -> (Option<i32>, String) {
        let until = Instant::now() + Duration::from_secs(30);
        let status = loop {
            match self.child.try_wait().expect("it can be asked") {
                Some(status) => break status,
                None => assert!(Instant::now() < until, "it does not end"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let log = self.log.take().expect("read once");
        (status.code(), log.join().expect("text"))
    }

    /// One request on a connection of its own.
    pub fn http(&self, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
        http(&self.url, method, path, &[], body)
    }

    /// A request that must succeed.
    pub fn json(&self, method: &str, path: &str, body: &Value) -> Value {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let (status, reply) = self.http(method, path, &text).expect("an answer");
        assert!((200..300).contains(&status), "{method} {path}: {status} {reply}");
        serde_json::from_str(&reply).unwrap_or(Value::Null)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One HTTP/1.1 request on a connection of its own: status and body.
pub fn http(
    url: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> std::io::Result<(u16, String)> {
    let address = url.strip_prefix("http://").expect("plain HTTP");
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    if !body.is_empty() {
        head.push_str(&format!(
            "content-type: application/json\r\ncontent-length: {}\r\n",
            body.len()
        ));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    let cut = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    let (head, body) = reply.split_once("\r\n\r\n").ok_or_else(cut)?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(cut)?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    match length {
        Some(length) if body.len() < length => Err(cut()),
        _ => Ok((status, body.to_owned())),
    }
}

/// Chance with a seed: splitmix64.
pub struct Chance(pub u64);

impl Chance {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
