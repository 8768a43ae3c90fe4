//! How fast a large batch of facts is read: `cargo run --release --example parse_speed`.
//!
//! Three ways to print a component: seven digits, the shortest form of an f32, and the 17 digits
//! of that f32 as an f64.

use hopbine_coordinator::server::decode::facts::{upsert, upsert_lines};
use hopbine_coordinator::server::json::read;
use hopbine_proto::graph::IdKind;
use std::fmt::Write;
use std::time::Instant;

const DIM: usize = 384;
const BYTES: usize = 64 << 20;
const RUNS: usize = 5;

/// One way to print a component.
type Print = fn(f32) -> String;

fn component(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) / 8.0
}

fn fact(number: usize, print: Print, state: &mut u64) -> String {
    let components: Vec<_> = (0..DIM).map(|_| print(component(state))).collect();
    let components = components.join(", ");
    let mut fact = String::new();
    let _ = write!(
        fact,
        "{{\"entity\": \"entity {number}\", \"relation\": \"knows\", \"target\": \"entity {}\", \
         \"embedding\": [{components}], \"payload\": {{\"text\": \"a sentence of some words\"}}}}",
        number + 1
    );
    fact
}

fn measure(name: &str, bytes: usize, mut parse: impl FnMut() -> usize) {
    let best = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            assert!(parse() > 0);
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    println!("{name}: {bytes} bytes, best of {RUNS}: {:.0} MB/s", bytes as f64 / best / 1e6);
}

fn main() {
    let forms: [(&str, Print); 3] = [
        ("7 digits", |value| format!("{value:.7}")),
        ("shortest f32", |value| format!("{value}")),
        ("as f64", |value| format!("{}", f64::from(value))),
    ];
    for (name, print) in forms {
        let mut state = 7;
        let mut rows = Vec::new();
        let mut bytes = 0;
        while bytes < BYTES {
            rows.push(fact(rows.len(), print, &mut state));
            bytes += rows.last().map_or(0, String::len) + 2;
        }
        let body = format!("{{\"facts\": [{}]}}", rows.join(", "));
        measure(&format!("JSON, {name}"), body.len(), || {
            read(body.as_bytes(), upsert).expect("a batch").0.len()
        });
        let lines = rows.join("\n");
        measure(&format!("NDJSON, {name}"), lines.len(), || {
            upsert_lines(lines.as_bytes(), IdKind::Names).expect("a batch").len()
        });
    }
}
