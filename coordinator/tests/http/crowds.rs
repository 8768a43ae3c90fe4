//! More connections than there are places: the idle ones make room, health is answered.

use super::api::Api;
use super::fake::Interruption;
use super::life::{COUNT, GRAPH, Server, receive, send, server};
use futures::FutureExt;
use hopbine_coordinator::server::{HttpConfig, Listeners, serve_all};
use hopbine_proto::convert::v1;
use hopbine_proto::convert::v1::fact_service_client::FactServiceClient;
use hopbine_proto::convert::v1::upsert_stream_request::Message as Step;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};

/// Far more than an answer takes, far less than an idle connection has.
const SOON: Duration = Duration::from_secs(1);

async fn crowded(connections_max: usize) -> Server {
    let server = server(HttpConfig { connections_max, ..HttpConfig::default() }).await;
    let mut stream = server.connect().await;
    send(&mut stream, "PUT /v1/graphs/g", GRAPH).await;
    receive(&mut stream).await;
    server
}

/// A connection whose request waits for its shard for as long.
async fn busy(server: &Server, wait: &str) -> TcpStream {
    let mut stream = server.connect().await;
    server.world.interrupt(server.world.shards("g")[0].id, Interruption::Hang);
    let calls = server.world.calls().len();
    send(&mut stream, COUNT, &format!(r#"{{"timeout": "{wait}"}}"#)).await;
    while server.world.calls().len() == calls {
        tokio::task::yield_now().await;
    }
    stream
}

/// Whether the server has not ended the connection.
fn is_open(stream: &mut TcpStream) -> bool {
    stream.read(&mut [0; 1_024]).now_or_never().is_none()
}

async fn livez(server: &Server) -> String {
    let asked = async {
        let mut stream = server.connect().await;
        send(&mut stream, "GET /livez", "").await;
        let (head, body) = receive(&mut stream).await;
        assert_eq!(body, "ok\n", "{head}");
        head
    };
    timeout(SOON, asked).await.expect("soon")
}

/// Sends a head letter by letter that never ends.
fn trickling(mut stream: TcpStream) -> JoinHandle<()> {
    tokio::spawn(async move {
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: ").await.ok();
        while stream.write_all(b"x").await.is_ok() {
            sleep(Duration::from_millis(5)).await;
        }
    })
}

#[tokio::test]
async fn idle_connections_and_slow_heads_make_room_for_new_ones() {
    const PLACES: usize = 8;
    let server = crowded(PLACES).await;
    let mut busy = busy(&server, "1500ms").await;
    let (mut idle, mut slow) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        for _ in 0..4 {
            slow.push(trickling(server.connect().await));
            let mut stream = server.connect().await;
            send(&mut stream, "GET /livez", "").await;
            timeout(SOON, receive(&mut stream)).await.expect("soon");
            idle.push(stream);
            idle.push(server.connect().await);
        }
        livez(&server).await;
    }
    livez(&server).await;
    // Those that had to end hear of it soon.
    let bounded = async {
        loop {
            let slow = slow.iter().filter(|task| !task.is_finished()).count();
            let open = idle.iter_mut().filter_map(|stream| is_open(stream).then_some(())).count();
            if slow + open < PLACES {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, bounded).await.expect("as many as there are places");
    assert!(is_open(idle.last_mut().expect("one")), "it has not been idle for long");
    let (head, body) = receive(&mut busy).await;
    assert!(head.starts_with("HTTP/1.1 504") && body.contains("deadline_exceeded"), "{head}");
    send(&mut busy, "GET /livez", "").await;
    assert_eq!(receive(&mut busy).await.1, "ok\n", "the connection goes on");
}

#[tokio::test]
async fn while_every_connection_is_busy_health_is_answered_and_the_rest_asked_to_come_back() {
    let server = crowded(2).await;
    let (mut one, mut two) = (busy(&server, "1s").await, busy(&server, "1s").await);
    for _ in 0..100 {
        let head = livez(&server).await;
        assert!(head.contains("connection: close"), "{head}");
    }
    let mut third = server.connect().await;
    send(&mut third, COUNT, "{}").await;
    let (head, body) = receive(&mut third).await;
    assert!(head.starts_with("HTTP/1.1 429") && body.contains("overloaded"), "{head} {body}");
    assert!(head.contains("retry-after: 1") && head.contains("connection: close"), "{head}");
    for busy in [&mut one, &mut two] {
        assert!(receive(busy).await.0.starts_with("HTTP/1.1 504"));
    }
    let mut fourth = server.connect().await;
    send(&mut fourth, COUNT, "{}").await;
    assert_eq!(receive(&mut fourth).await.1, r#"{"count":0}"#);
}

#[tokio::test]
async fn a_reply_that_waits_for_its_reader_is_not_cut_short_for_a_new_connection() {
    let server = crowded(2).await;
    let mut stream = server.connect().await;
    let graph = r#"{"vector": {"dim": 2}, "ids": "u64", "payload_bytes_max": 16777216}"#;
    send(&mut stream, "PUT /v1/graphs/h", graph).await;
    receive(&mut stream).await;
    // Far more than the sockets between server and client take up.
    let (key, payload) = (r#""entity": 1, "relation": 1, "target": 1"#, "x".repeat(15 << 20));
    let facts = format!(r#"{{"facts": [{{{key}, "payload": "{payload}"}}]}}"#);
    send(&mut stream, "PUT /v1/graphs/h/facts", &facts).await;
    receive(&mut stream).await;
    send(&mut stream, "POST /v1/graphs/h/facts/get", &format!(r#"{{"keys": [{{{key}}}]}}"#)).await;
    let mut begun = [0; 64];
    stream.read_exact(&mut begun).await.expect("the reply begins");
    assert!(begun.starts_with(b"HTTP/1.1 200"));
    for _ in 0..5 {
        livez(&server).await;
        drop(trickling(server.connect().await));
    }
    let mut rest = vec![0; payload.len()];
    stream.read_exact(&mut rest).await.expect("and comes to its end");
}

/// A surface over gRPC, and where it is.
async fn over_grpc(connections_max: usize) -> SocketAddr {
    let api = Api::with(HttpConfig { connections_max, ..HttpConfig::default() });
    api.done("PUT /v1/graphs/numbers", GRAPH).await;
    let bind = || TcpListener::bind("127.0.0.1:0");
    let (http, grpc) = (bind().await.expect("a port"), bind().await.expect("a port"));
    let address = grpc.local_addr().expect("an address");
    let listeners = Listeners { http, grpc: Some(grpc) };
    tokio::spawn(serve_all(listeners, api.surface.clone(), std::future::pending()));
    address
}

async fn client(address: SocketAddr) -> FactServiceClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    FactServiceClient::new(endpoint.connect().await.expect("a connection"))
}

#[tokio::test]
async fn over_http2_a_connection_without_a_call_makes_room_and_one_with_a_call_does_not() {
    let address = over_grpc(2).await;
    let mut loader = client(address).await;
    let (send, mut messages) = tokio::sync::mpsc::channel(1);
    let messages = futures::stream::poll_fn(move |context| messages.poll_recv(context));
    let stream =
        v1::OpenStream { graph: "numbers".into(), stream: "load".into(), ..Default::default() };
    let message = |message| v1::UpsertStreamRequest { message: Some(message) };
    send.send(message(Step::Open(stream))).await.expect("room");
    let mut acks = loader.upsert_stream(messages).await.expect("open").into_inner();
    let count = || v1::CountRequest { graph: "numbers".into(), ..Default::default() };
    let mut silent = Vec::new();
    for _ in 0..10 {
        for _ in 0..3 {
            silent.push(TcpStream::connect(address).await.expect("a connection"));
        }
        let mut other = timeout(SOON, client(address)).await.expect("soon");
        let reply = timeout(SOON, other.count(count())).await.expect("soon");
        assert_eq!(reply.expect("a count").into_inner().count, 0);
    }
    let bounded = async {
        // What the server says first is read, then the end.
        while silent.iter_mut().filter_map(|stream| lasts(stream).then_some(())).count() > 2 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, bounded).await.expect("as many as there are places");
    let chunk = v1::Chunk { sequence: 1, facts: vec![fact()] };
    send.send(message(Step::Chunk(chunk))).await.expect("room");
    assert_eq!(acks.message().await.expect("a reply").expect("an ack").sequence, 1);
}

/// Whether the server has not ended the connection, whatever it has said.
fn lasts(stream: &mut TcpStream) -> bool {
    loop {
        match stream.read(&mut [0; 1_024]).now_or_never() {
            None => return true,
            Some(Ok(1..)) => {}
            Some(_) => return false,
        }
    }
}

fn fact() -> v1::Fact {
    let number = || Some(v1::Id { id: Some(v1::id::Id::Number(1)) });
    v1::Fact { entity: number(), relation: number(), target: number(), ..Default::default() }
}
