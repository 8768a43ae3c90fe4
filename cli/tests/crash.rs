//! A server killed with SIGKILL at a random moment under load keeps every acknowledged write,
//! brings no deleted fact back, and holds no shard's part of a batch half.
//!
//! Clients write batches over several shards, each in entities of its own. After the restart, the
//! part of a batch that lies in one shard must be there whole or not at all; whole when the batch
//! was acknowledged. Then the unacknowledged batch is sent again under its idempotency key and
//! must be there once. `HOPBINE_CRASH_ROUNDS` sets the number of kills.

mod common;

use common::{Chance, Server, http};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

const CLIENTS: u64 = 4;
const ENTITIES: u64 = 30;
const TARGETS: u64 = 12;
const DIM: usize = 8;
/// Where shards begin; entities are spread over the whole range.
const BOUNDARIES: [u64; 2] = [1_000, 2_000];
const ROUNDS_SHORT: u64 = 8;

/// Which operation wrote the fact of a key.
type Facts = BTreeMap<(u64, u64), u64>;

/// One batch: upserted and deleted keys of one operation.
#[derive(Clone, Debug)]
struct Batch {
    number: u64,
    upsert: BTreeSet<(u64, u64)>,
    delete: BTreeSet<(u64, u64)>,
}

/// One client's knowledge.
struct Client {
    id: u64,
    chance: Chance,
    next: u64,
    acknowledged: Facts,
    pending: Option<Batch>,
}

impl Client {
    fn entity(&self, n: u64) -> u64 {
        // Neighbouring numbers of one client fall into different shards.
        (n % 3) * 1_000 + n * CLIENTS + self.id
    }

    fn batch(&mut self) -> Batch {
        let number = self.next;
        self.next += 1;
        let (mut upsert, mut delete) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..1 + self.chance.below(24) {
            let (from, target) = (self.chance.below(ENTITIES), self.chance.below(TARGETS));
            let key = (self.entity(from), target);
            let gone = self.chance.below(3) == 0;
            if gone && !upsert.contains(&key) {
                delete.insert(key);
            } else if !delete.contains(&key) {
                upsert.insert(key);
            }
        }
        Batch { number, upsert, delete }
    }

    fn send(&self, url: &str, batch: &Batch) -> std::io::Result<(u16, String)> {
        let upsert: Vec<Value> =
            batch.upsert.iter().map(|key| fact(self.id, *key, batch.number)).collect();
        let delete: Vec<Value> = batch.delete.iter().map(|key| self.key(*key)).collect();
        let body = json!({"upsert": upsert, "delete": delete}).to_string();
        let name = format!("client-{}-{}", self.id, batch.number);
        http(url, "POST", "/v1/graphs/g/facts/write", &[("idempotency-key", &name)], &body)
    }

    fn key(&self, (entity, target): (u64, u64)) -> Value {
        json!({"entity": entity, "relation": 1, "target": self.entity(target)})
    }

    fn write_until(&mut self, url: &str, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let batch = self.batch();
            if batch.upsert.is_empty() && batch.delete.is_empty() {
                continue;
            }
            self.pending = Some(batch.clone());
            match self.send(url, &batch) {
                Ok((200, _)) => {
                    batch.apply(&mut self.acknowledged, |_| true);
                    self.pending = None;
                }
                // Refusals that may pass leave the fate open; anything else is a bug.
                Ok((429 | 503 | 504, _)) => return,
                Ok((status, reply)) => panic!("client {}: {status} {reply}", self.id),
                Err(_) => return,
            }
        }
    }

    /// Compares what the server has with what this client knows, adopts the parts of the pending
    /// batch that were applied, sends it again and compares once more.
    fn check(&mut self, server: &Server) {
        let found = self.stored(server);
        let mut known = self.acknowledged.clone();
        if let Some(batch) = self.pending.clone() {
            for shard in 0..3 {
                let within = |entity: u64| shard_of(entity) == shard;
                let part = |facts: &Facts| -> Facts {
                    facts.iter().filter(|((e, _), _)| within(*e)).map(|(k, v)| (*k, *v)).collect()
                };
                let mut applied = known.clone();
                batch.apply(&mut applied, within);
                let (old, new, now) = (part(&known), part(&applied), part(&found));
                assert!(
                    now == old || now == new,
                    "client {} shard {shard}: {batch:?} is half there: {now:?}, was {old:?}",
                    self.id
                );
                if now == new {
                    known = applied;
                }
            }
        }
        assert_eq!(found, known, "client {}: acknowledged facts differ", self.id);
        if let Some(batch) = self.pending.take() {
            let (status, reply) = self.send(&server.url, &batch).expect("an answer");
            assert_eq!(status, 200, "the same batch again: {reply}");
            batch.apply(&mut known, |_| true);
            assert_eq!(self.stored(server), known, "client {}: after the same again", self.id);
        }
        self.acknowledged = known;
    }

    /// This client's facts as the server has them.
    fn stored(&self, server: &Server) -> Facts {
        let mut found = Facts::new();
        for n in 0..ENTITIES {
            let entity = self.entity(n);
            let ask = json!({"prefix": {"entity": entity}, "page_size": 1000, "timeout": "10s"});
            let page = server.json("POST", "/v1/graphs/g/facts/scan", &ask);
            for fact in page["facts"].as_array().expect("a list") {
                let target = fact["target"].as_u64().expect("a number");
                let target = (0..TARGETS).find(|t| self.entity(*t) == target).expect("ours");
                let number = fact["payload"]["number"].as_u64().expect("ours");
                assert_eq!(fact["payload"]["client"], self.id, "{fact}");
                found.insert((entity, target), number);
            }
        }
        found
    }

    /// Retrieval over what is there equals sorting it by hand.
    fn ask(&mut self, server: &Server, everything: &[(f64, Value)], query: &[f64]) {
        let ask = json!({"query": {"embedding": query}, "k": 20, "exact": true, "timeout": "10s"});
        let reply = server.json("POST", "/v1/graphs/g/search", &ask);
        let got: Vec<f64> = reply["results"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|result| result["distance"].as_f64().expect("a distance"))
            .collect();
        assert_eq!(got.len(), everything.len().min(20));
        for (distance, (wanted, key)) in got.iter().zip(everything) {
            assert!((distance - wanted).abs() < 1e-9, "{key}: {distance} for {wanted}");
        }
        let from = self.chance.below(ENTITIES);
        let entity = self.entity(from);
        let ask = json!({"from": [entity], "relation_path": [1, 1], "return_to_start": true,
                         "timeout": "10s"});
        let reply = server.json("POST", "/v1/graphs/g/expand", &ask);
        let firsts: BTreeSet<u64> = self
            .acknowledged
            .keys()
            .filter(|(from, _)| *from == entity)
            .map(|(_, target)| self.entity(*target))
            .collect();
        let wanted: BTreeSet<(u64, u64)> = self
            .acknowledged
            .keys()
            .filter(|(from, _)| firsts.contains(from))
            .map(|(from, target)| (*from, self.entity(*target)))
            .collect();
        let number = |value: &Value| value.as_u64().expect("a number");
        let got: BTreeSet<(u64, u64)> = reply["results"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|result| (number(&result["fact"]["entity"]), number(&result["fact"]["target"])))
            .collect();
        assert_eq!(got, wanted, "two hops from {entity}");
    }
}

impl Batch {
    fn apply(&self, facts: &mut Facts, within: impl Fn(u64) -> bool) {
        for key in self.upsert.iter().filter(|(entity, _)| within(*entity)) {
            facts.insert(*key, self.number);
        }
        for key in self.delete.iter().filter(|(entity, _)| within(*entity)) {
            facts.remove(key);
        }
    }
}

fn shard_of(entity: u64) -> usize {
    BOUNDARIES.iter().filter(|start| **start <= entity).count()
}

fn vector(client: u64, (entity, target): (u64, u64), number: u64) -> Vec<f64> {
    let mut chance = Chance(client ^ (entity << 20) ^ (target << 40) ^ number);
    // Quarters are exact in f32.
    (0..DIM).map(|_| chance.below(64) as f64 / 4.0 + 0.25).collect()
}

fn fact(client: u64, (entity, target): (u64, u64), number: u64) -> Value {
    let id = (target % 3) * 1_000 + target * CLIENTS + client;
    json!({"entity": entity, "relation": 1, "target": id,
           "embedding": vector(client, (entity, target), number),
           "payload": {"client": client, "number": number, "filler": "x".repeat(200)}})
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    1.0 - dot(a, b) / (dot(a, a).sqrt() * dot(b, b).sqrt())
}

fn serve(dir: &Path) -> Server {
    // Small memtables and log files, so that kills meet flushes, compactions and purges.
    let memtable = "node.memtable_bytes_max=131072";
    let server = Server::start(dir, &["--set", memtable, "--set", "node.log_segment_bytes=131072"]);
    let graph = json!({"vector": {"dim": DIM}, "ids": "u64", "shards": {"boundaries": BOUNDARIES}});
    server.json("PUT", "/v1/graphs/g", &graph);
    server
}

#[test]
fn a_killed_server_keeps_its_word() {
    let rounds = std::env::var("HOPBINE_CRASH_ROUNDS").ok().and_then(|text| text.parse().ok());
    let rounds: u64 = rounds.unwrap_or(ROUNDS_SHORT);
    let seed = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64;
    let mut chance = Chance(seed);
    let dir = tempfile::tempdir().expect("a folder");
    let client = |id| Client {
        id,
        chance: Chance(seed ^ id),
        next: 0,
        acknowledged: Facts::new(),
        pending: None,
    };
    let mut clients: Vec<Client> = (0..CLIENTS).map(client).collect();
    let mut writes = 0;
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        if chance.below(4) == 0 {
            Server::kill_at_start(dir.path(), Duration::from_micros(chance.below(60_000)));
        }
        let began = Instant::now();
        let server = serve(dir.path());
        slowest = slowest.max(began.elapsed());
        for client in &mut clients {
            client.check(&server);
        }
        ask_all(&server, &mut clients, &mut chance);
        let stop = Arc::new(AtomicBool::new(false));
        let before: u64 = clients.iter().map(|client| client.next).sum();
        std::thread::scope(|scope| {
            for client in &mut clients {
                let (url, stop) = (server.url.clone(), Arc::clone(&stop));
                scope.spawn(move || client.write_until(&url, &stop));
            }
            std::thread::sleep(Duration::from_micros(chance.below(400_000)));
            server.kill();
            stop.store(true, Ordering::Relaxed);
        });
        writes += clients.iter().map(|client| client.next).sum::<u64>() - before;
        if round % 25 == 24 {
            println!("round {}: {writes} batches, slowest start {slowest:?}", round + 1);
        }
    }
    let server = serve(dir.path());
    for client in &mut clients {
        client.check(&server);
    }
    ask_all(&server, &mut clients, &mut chance);
    println!("{rounds} kills, {writes} batches, slowest start {slowest:?}");
    assert!(writes > rounds, "the clients wrote: {writes} batches in {rounds} rounds");
    assert_eq!(server.terminate(), Some(0));
    let check = common::run(&["check", "--data", dir.path().to_str().expect("text")]);
    common::good(&check);
}

fn ask_all(server: &Server, clients: &mut [Client], chance: &mut Chance) {
    let query: Vec<f64> = (0..DIM).map(|_| chance.below(64) as f64 / 4.0 + 0.25).collect();
    let mut everything = Vec::new();
    for client in clients.iter() {
        for (key, number) in &client.acknowledged {
            let distance = cosine(&query, &vector(client.id, *key, *number));
            everything.push((distance, client.key(*key)));
        }
    }
    everything.sort_by(|a, b| a.0.total_cmp(&b.0));
    let count = server.json("POST", "/v1/graphs/g/facts/count", &json!({"timeout": "10s"}));
    assert_eq!(count["count"], everything.len(), "facts in all");
    for client in clients {
        client.ask(server, &everything, &query);
    }
}
