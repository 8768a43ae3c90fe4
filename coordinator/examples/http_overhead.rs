//! What HTTP adds to a call in process: `cargo run --release --example http_overhead`.
//!
//! One client on one connection asks the same two-hop question with a 384-d vector over a small
//! world in memory, in turns in process and over loopback TCP.

#[path = "../tests/fake/mod.rs"]
mod fake;

use hopbine_coordinator::request::{CallOptions, GraphRagRequest, HopRelations, Query};
use hopbine_coordinator::server::{AlwaysReady, HttpConfig, Surface, serve};
use std::sync::Arc;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const DIM: usize = 384;
const RUNS: usize = 5_000;

fn vector(seed: usize) -> Vec<f32> {
    (0..DIM).map(|place| ((seed * 31 + place * 7) % 101) as f32 / 101.0 - 0.5).collect()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

async fn ask(stream: &mut TcpStream, head: &str, body: &str) -> usize {
    let length = body.len();
    let text = format!("{head} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await.expect("sent");
    let mut bytes = Vec::with_capacity(16 * 1024);
    loop {
        stream.read_buf(&mut bytes).await.expect("a response");
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&bytes[..end]);
        assert!(head.starts_with("HTTP/1.1 2"), "{}", String::from_utf8_lossy(&bytes));
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.expect("a length").parse().expect("a number");
        if bytes.len() >= end + 4 + length {
            return length;
        }
    }
}

#[tokio::main]
async fn main() {
    let world = fake::World::new();
    let engine = world.engine();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let surface = Surface::new(engine.clone(), Arc::new(AlwaysReady), HttpConfig::default());
    tokio::spawn(serve(listener, surface, std::future::pending()));
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.set_nodelay(true).expect("a live connection");

    ask(&mut stream, "PUT /v1/graphs/g", r#"{"vector": {"dim": 384}}"#).await;
    let facts = (0..40).map(|number| {
        serde_json::json!({
            "entity": format!("e{number}"), "relation": "r", "target": format!("e{}", number + 1),
            "embedding": vector(number), "payload": {"text": "a sentence of some words"},
        })
    });
    let facts = serde_json::json!({ "facts": facts.collect::<Vec<_>>() }).to_string();
    ask(&mut stream, "PUT /v1/graphs/g/facts", &facts).await;

    let request = GraphRagRequest {
        query: Query::vector(vector(3)),
        relation_path: vec![HopRelations::Any, HopRelations::Any],
        ann_k: 16,
        ..GraphRagRequest::default()
    };
    let body = serde_json::json!({
        "query": {"embedding": vector(3)}, "relation_path": ["*", "*"], "ann_k": 16,
    });
    let body = body.to_string();
    let (mut inside, mut outside, mut reply) = (Vec::new(), Vec::new(), 0);
    for _ in 0..RUNS {
        let start = Instant::now();
        let answer = engine.graph_rag("g", &request, &CallOptions::default()).await;
        assert!(!answer.expect("an answer").results.is_empty());
        inside.push(start.elapsed().as_secs_f64() * 1e3);
        let start = Instant::now();
        reply = ask(&mut stream, "POST /v1/graphs/g/graph_rag", &body).await;
        outside.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let (inside, outside) = (median(inside), median(outside));
    println!("request {} bytes, reply {reply} bytes, {RUNS} runs, medians:", body.len());
    println!(
        "in process {inside:.3} ms, over HTTP {outside:.3} ms, HTTP adds {:.3} ms",
        outside - inside
    );
}
