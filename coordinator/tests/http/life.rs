//! Real connections: keep-alive, slow clients, and the orderly end.

use super::fake::{Interruption, World};
use hopbine_coordinator::server::{AlwaysReady, HttpConfig, Surface, serve};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub struct Server {
    pub world: Arc<World>,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    ended: JoinHandle<()>,
}

pub async fn server(config: HttpConfig) -> Server {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let surface = Surface::new(world.engine(), Arc::new(AlwaysReady), config);
    let (stop, stopped) = oneshot::channel::<()>();
    let ended = tokio::spawn(serve(listener, surface, async {
        stopped.await.ok();
    }));
    Server { world, address, stop: Some(stop), ended }
}

impl Server {
    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("a connection")
    }
}

pub async fn send(stream: &mut TcpStream, head: &str, body: &str) {
    let length = body.len();
    let text = format!("{head} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await.expect("sent");
}

/// One whole response: its head and its body.
pub async fn receive(stream: &mut TcpStream) -> (String, String) {
    let mut bytes = Vec::new();
    loop {
        let read = stream.read_buf(&mut bytes).await.expect("a response");
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.expect("a length").parse().expect("a number");
            if body.len() >= length {
                return (head.to_owned(), body.to_owned());
            }
        }
        assert!(read > 0, "the connection ended within a response: {text}");
    }
}

pub const GRAPH: &str = r#"{"vector": {"dim": 2}, "ids": "u64"}"#;
pub const COUNT: &str = "POST /v1/graphs/g/facts/count";

#[tokio::test]
async fn one_connection_carries_many_requests() {
    let server = server(HttpConfig::default()).await;
    let mut stream = server.connect().await;
    send(&mut stream, "PUT /v1/graphs/g", GRAPH).await;
    assert!(receive(&mut stream).await.0.starts_with("HTTP/1.1 201"));
    send(&mut stream, COUNT, "{}").await;
    assert_eq!(receive(&mut stream).await.1, r#"{"count":0}"#);
    let unmodified = "GET /v1/graphs/g HTTP/1.1\r\nhost: x\r\nif-none-match: *\r\n\r\n";
    for method in ["GET", "HEAD"] {
        stream.write_all(unmodified.replace("GET", method).as_bytes()).await.expect("sent");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            assert!(stream.read_buf(&mut head).await.expect("a response") > 0);
        }
        let head = String::from_utf8(head).expect("UTF-8");
        assert!(head.starts_with("HTTP/1.1 304") && head.contains("\r\netag: "), "{head}");
        assert!(!head.contains("content-length") && !head.contains("transfer-encoding"), "{head}");
    }
    send(&mut stream, COUNT, "{").await;
    let (head, body) = receive(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 400") && body.contains("invalid_request"), "{head} {body}");
    send(&mut stream, "GET /livez", "").await;
    assert_eq!(receive(&mut stream).await.1, "ok\n");
}

#[tokio::test]
async fn a_head_request_gets_the_head_alone() {
    let server = server(HttpConfig::default()).await;
    let mut stream = server.connect().await;
    let text = "HEAD /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(text.as_bytes()).await.expect("sent");
    let mut all = String::new();
    stream.read_to_string(&mut all).await.expect("a response");
    let (head, body) = all.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200") && body.is_empty(), "{all}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    assert!(length.is_some_and(|length| length != "0"), "{head}");
}

#[tokio::test]
async fn an_answer_to_a_body_that_was_not_read_ends_the_connection_and_says_so() {
    let server = server(HttpConfig::default()).await;
    let mut stream = server.connect().await;
    send(&mut stream, "PUT /v1/graphs/g", GRAPH).await;
    assert!(!receive(&mut stream).await.0.contains("connection: close"));
    for (start, status) in [
        (COUNT, "415"),
        ("POST /v1/nothing", "404"),
        ("POST /v1/graphs/g", "405"),
        ("GET /v1/graphs/g", "200"),
    ] {
        let head = "host: x\r\ncontent-type: text/csv\r\ncontent-length: 9";
        let text = format!("{start} HTTP/1.1\r\n{head}\r\n\r\n");
        let mut silent = server.connect().await;
        silent.write_all(text.as_bytes()).await.expect("sent");
        let (head, _) = receive(&mut silent).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
        assert!(head.contains("connection: close"), "{head}");
        // A short one that comes is read, and the next request is answered.
        stream.write_all(format!("{text}123456789").as_bytes()).await.expect("sent");
        let (head, _) = receive(&mut stream).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
        assert!(!head.contains("connection: close"), "{head}");
    }
    send(&mut stream, "GET /livez", "").await;
    assert_eq!(receive(&mut stream).await.1, "ok\n");
}

#[tokio::test]
async fn a_client_of_http2_is_told_that_its_request_is_not_understood() {
    let server = server(HttpConfig::default()).await;
    let mut stream = server.connect().await;
    let settings = [0u8, 0, 0, 4, 0, 0, 0, 0, 0];
    let opening = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings].concat();
    stream.write_all(&opening).await.expect("sent");
    let mut all = String::new();
    stream.read_to_string(&mut all).await.expect("the server ends the connection");
    assert!(all.starts_with("HTTP/1.1 400"), "{all:?}");
}

#[tokio::test]
async fn a_head_that_http_does_not_allow_is_refused_and_the_next_request_answered() {
    let server = server(HttpConfig::default()).await;
    for (start, headers, status, words) in [
        ("GET /livez HTTP/1.1", "", "400", "one Host header, not 0"),
        ("GET /livez HTTP/1.1", "host: a\r\nhost: a\r\n", "400", "one Host header, not 2"),
        ("GET /v1/graphs HTTP/1.1", "x-request-id: r\r\n", "400", "one Host header, not 0"),
        ("GET http://a/livez HTTP/1.1", "", "400", "one Host header, not 0"),
        ("GET /livez HTTP/1.1", "host:\r\n", "200", "ok"),
        ("GET /livez HTTP/1.0", "connection: keep-alive\r\n", "200", "ok"),
        ("GET /livez HTTP/1.0", "host: a\r\nhost: b\r\n", "400", "one Host header, not 2"),
        ("GET /livez HTTP/1.1", "host: a\r\nexpect: 100-Continue\r\n", "200", "ok"),
        ("GET /livez HTTP/1.1", "host: a\r\nexpect: foo\r\n", "417", "Expect: foo"),
        (
            "GET /v1/graphs HTTP/1.1",
            "host: a\r\nexpect: 100-continue, foo\r\n",
            "417",
            "100-continue is understood",
        ),
    ] {
        let mut stream = server.connect().await;
        let text = format!("{start}\r\n{headers}\r\n");
        stream.write_all(text.as_bytes()).await.expect("sent");
        let (head, body) = receive(&mut stream).await;
        let told = head.split_once(' ').expect("a status").1;
        assert!(told.starts_with(status) && body.contains(words), "{text}{head}\r\n{body}");
        if status != "200" {
            assert!(head.contains("content-type: application/problem+json"), "{head}");
            assert!(body.contains(r#""code":"invalid_request""#), "{body}");
            assert!(body.contains(&format!(r#""status":{status},"#)), "{body}");
        }
        if !start.ends_with("1.0") {
            send(&mut stream, "GET /livez", "").await;
            assert_eq!(receive(&mut stream).await.1, "ok\n", "{text}");
        }
    }
    // A body that waits for its turn does not come: the connection ends with the refusal.
    let mut stream = server.connect().await;
    let head = "host: a\r\nexpect: foo\r\ncontent-length: 9";
    let text = format!("{COUNT} HTTP/1.1\r\n{head}\r\n\r\n");
    stream.write_all(text.as_bytes()).await.expect("sent");
    let (head, _) = receive(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 417") && head.contains("connection: close"), "{head}");
}

#[tokio::test]
async fn a_slow_client_is_cut_off() {
    let short = Duration::from_millis(100);
    let config = HttpConfig { head_timeout: short, body_timeout: short, ..HttpConfig::default() };
    let server = server(config).await;
    let mut head = server.connect().await;
    head.write_all(b"GET /livez HTTP/1.1\r\nhost:").await.expect("sent");
    let mut rest = Vec::new();
    head.read_to_end(&mut rest).await.expect("the server ends the connection");
    let mut body = server.connect().await;
    send(&mut body, "PUT /v1/graphs/g", GRAPH).await;
    receive(&mut body).await;
    let text = format!("{COUNT} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{{");
    body.write_all(text.as_bytes()).await.expect("sent");
    let (head, text) = receive(&mut body).await;
    assert!(
        head.starts_with("HTTP/1.1 504") && text.contains("deadline_exceeded"),
        "{head} {text}"
    );
}

#[tokio::test]
async fn a_body_on_its_way_takes_nobodys_place() {
    let server = server(HttpConfig { requests_max: 1, ..HttpConfig::default() }).await;
    let mut slow = server.connect().await;
    let text = format!("{COUNT} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{{");
    slow.write_all(text.as_bytes()).await.expect("sent");
    // The server has begun to read the body before the next request comes.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut quick = server.connect().await;
    send(&mut quick, "PUT /v1/graphs/g", GRAPH).await;
    let (head, body) = receive(&mut quick).await;
    assert!(head.starts_with("HTTP/1.1 201"), "{head} {body}");
    slow.write_all(b"}").await.expect("sent");
    assert_eq!(receive(&mut slow).await.1, r#"{"count":0}"#);
}

#[tokio::test]
async fn a_client_that_does_not_read_its_reply_is_cut_off() {
    let write_timeout = Duration::from_millis(200);
    let server = server(HttpConfig { write_timeout, ..HttpConfig::default() }).await;
    let mut stream = server.connect().await;
    let graph = r#"{"vector": {"dim": 2}, "ids": "u64", "payload_bytes_max": 16777216}"#;
    send(&mut stream, "PUT /v1/graphs/g", graph).await;
    receive(&mut stream).await;
    // Far more than the sockets between server and client take up.
    let (key, payload) = (r#""entity": 1, "relation": 1, "target": 1"#, "x".repeat(15 << 20));
    let facts = format!(r#"{{"facts": [{{{key}, "payload": "{payload}"}}]}}"#);
    send(&mut stream, "PUT /v1/graphs/g/facts", &facts).await;
    let (head, body) = receive(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head} {body}");
    let get = format!(r#"{{"keys": [{{{key}}}]}}"#);
    send(&mut stream, "POST /v1/graphs/g/facts/get", &get).await;
    tokio::time::sleep(write_timeout * 10).await;
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.ok();
    assert!(rest.starts_with(b"HTTP/1.1 200") && rest.len() < payload.len(), "{}", rest.len());
}

#[tokio::test]
async fn a_connection_that_never_asks_does_not_hold_a_shutdown_up() {
    let mut server = server(HttpConfig::default()).await;
    let mut silent = server.connect().await;
    silent.write_all(b"GET /livez HTT").await.expect("sent");
    // The server has begun to read the head before it is told to stop.
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.stop.take().expect("running").send(()).expect("heard");
    let ended = tokio::time::timeout(Duration::from_secs(10), &mut server.ended).await;
    ended.expect("within seconds").expect("in order");
}

#[tokio::test]
async fn a_shutdown_finishes_what_began_and_refuses_what_comes() {
    let unready_for = Duration::from_millis(50);
    let mut server = server(HttpConfig { unready_for, ..HttpConfig::default() }).await;
    let (mut busy, mut idle) = (server.connect().await, server.connect().await);
    send(&mut busy, "PUT /v1/graphs/g", GRAPH).await;
    receive(&mut busy).await;
    send(&mut idle, COUNT, "{}").await;
    receive(&mut idle).await;
    // The busy request waits for its shard until its own deadline; the shutdown falls within.
    server.world.interrupt(server.world.shards("g")[0].id, Interruption::Hang);
    let calls = server.world.calls().len();
    send(&mut busy, COUNT, r#"{"timeout": "1s"}"#).await;
    while server.world.calls().len() == calls {
        tokio::task::yield_now().await;
    }
    server.stop.take().expect("not stopped yet").send(()).expect("the server runs");
    loop {
        let mut ready = server.connect().await;
        send(&mut ready, "GET /readyz", "").await;
        if receive(&mut ready).await.1.contains("[-]shutdown failed") {
            break;
        }
    }
    send(&mut idle, COUNT, "{}").await;
    let (head, body) = receive(&mut idle).await;
    assert!(head.starts_with("HTTP/1.1 503") && body.contains("shutting_down"), "{head} {body}");
    assert!(head.contains("connection: close") && head.contains("retry-after: 1"), "{head}");
    let (head, body) = receive(&mut busy).await;
    assert!(
        head.starts_with("HTTP/1.1 504") && body.contains("deadline_exceeded"),
        "{head} {body}"
    );
    server.ended.await.expect("the server ends");
    assert!(TcpStream::connect(server.address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn a_request_whose_client_left_lets_go_of_its_views() {
    let server = server(HttpConfig::default()).await;
    let mut stream = server.connect().await;
    send(&mut stream, "PUT /v1/graphs/g", GRAPH).await;
    receive(&mut stream).await;
    server.world.interrupt(server.world.shards("g")[0].id, Interruption::Hang);
    send(&mut stream, COUNT, r#"{"timeout": "60s"}"#).await;
    while server.world.unreleased() == 0 {
        tokio::task::yield_now().await;
    }
    drop(stream);
    let released = async {
        while server.world.unreleased() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), released).await.expect("released");
}
