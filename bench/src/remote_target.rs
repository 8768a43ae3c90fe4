//! A server behind HTTP as what is measured: the same three calls as JSON. Times are what a client
//! sees; work and stages stay with the server.

use crate::BenchError;
use crate::target::{
    Answer, AnswerRow, Built, ExpandAsk, Host, Pending, RagAsk, Rank, SeedsAsk, Target,
};
use crate::workload::SeedOn;
use hopbine_proto::call::{Relations, SeedMode};
use hopbine_proto::graph::GraphConfig;
use hopbine_proto::score::ScoreMode;
use hopbine_proto::{Fact, FactKey, limits};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Facts of one write while loading: at 384 components about 10 MiB of JSON.
const LOAD_BATCH: usize = 2_000;
/// Pause between two looks at what a server has left to flush and merge, and looks in an hour.
const SETTLE_PAUSE: Duration = Duration::from_millis(100);
const SETTLE_LOOKS: u32 = 36_000;

/// Sends one request and gives back the body of a good answer. Whoever implements it turns every
/// other answer into an error.
pub trait Http: Send + Sync {
    /// `path` begins with `/`; an empty `body` is none, any other is JSON.
    fn send(&self, method: &'static str, path: String, body: Vec<u8>) -> Pending<'_, Vec<u8>>;
}

/// Builds graphs in a server, under names of their own.
pub struct RemoteHost {
    http: Arc<dyn Http>,
    made: Mutex<Vec<String>>,
}

impl RemoteHost {
    /// Builds through `http`.
    pub fn new(http: Arc<dyn Http>) -> Self {
        Self { http, made: Mutex::default() }
    }

    /// Drops the graphs that are left in the server.
    pub async fn clean(&self) -> Result<(), BenchError> {
        let made = std::mem::take(&mut *self.made());
        let mut dropped = Ok(());
        for graph in made {
            let path = format!("/v1/graphs/{graph}?confirm={graph}");
            let one = self.http.send("DELETE", path, Vec::new()).await;
            dropped = dropped.and(one.map(|_| ()));
        }
        dropped
    }

    fn made(&self) -> MutexGuard<'_, Vec<String>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn load(&self, config: GraphConfig, facts: &[Fact]) -> Result<Built, BenchError> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let graph = format!("bench-{}", since.as_nanos());
        let path = format!("/v1/graphs/{graph}");
        self.http.send("PUT", path.clone(), graph_json(&config).to_string().into()).await?;
        self.made().push(graph.clone());
        let batches = facts.len().div_ceil(LOAD_BATCH);
        for (at, batch) in facts.chunks(LOAD_BATCH).enumerate() {
            let wait = if at + 1 == batches { "indexed" } else { "committed" };
            let facts = batch.iter().map(fact_json).collect::<Result<Vec<_>, _>>()?;
            let body = json!({ "facts": facts, "timeout": "600s" });
            let path = format!("{path}/facts?wait={wait}");
            self.http.send("PUT", path, body.to_string().into()).await?;
        }
        let stats = self.settled(&path).await?;
        let ways = stats.shards.iter().flat_map(|shard| &shard.segments);
        Ok(Built {
            target: Box::new(RemoteTarget { http: self.http.clone(), graph }),
            shard_facts: stats.shards.iter().map(|shard| shard.facts).collect(),
            memtable_facts: stats.memtable_facts,
            disk_bytes: Some(stats.disk_bytes),
            ways: ways.map(SegmentStats::way).collect(),
        })
    }

    /// What the graph says of itself once no shard has a flush or a merge left.
    async fn settled(&self, path: &str) -> Result<Stats, BenchError> {
        for _ in 0..SETTLE_LOOKS {
            let stats = self.http.send("GET", format!("{path}/stats"), Vec::new()).await?;
            let stats: Stats = parse("stats", &stats)?;
            if stats.frozen_memtables == 0 && !stats.compaction_due {
                return Ok(stats);
            }
            tokio::time::sleep(SETTLE_PAUSE).await;
        }
        let detail = "flushes and merges have not come to an end in an hour".to_owned();
        Err(BenchError::Failed { call: "stats", detail })
    }
}

impl Host for RemoteHost {
    fn build<'a>(&'a self, config: GraphConfig, facts: &'a [Fact]) -> Pending<'a, Built> {
        Box::pin(async move {
            self.clean().await?;
            self.load(config, facts).await
        })
    }

    fn build_beside<'a>(&'a self, config: GraphConfig, facts: &'a [Fact]) -> Pending<'a, Built> {
        Box::pin(self.load(config, facts))
    }
}

#[derive(Deserialize)]
struct Stats {
    memtable_facts: u64,
    disk_bytes: u64,
    frozen_memtables: u64,
    compaction_due: bool,
    shards: Vec<ShardStats>,
}

#[derive(Deserialize)]
struct ShardStats {
    facts: u64,
    segments: Vec<SegmentStats>,
}

#[derive(Deserialize)]
struct SegmentStats {
    way: String,
    recall: Option<f64>,
}

impl SegmentStats {
    fn way(&self) -> String {
        match self.recall {
            Some(recall) => format!("{} (recall@64 {recall:.4})", self.way),
            None => self.way.clone(),
        }
    }
}

#[derive(Deserialize)]
struct Reply {
    results: Vec<ReplyRow>,
    partial: bool,
    next_page_token: Option<String>,
}

#[derive(Deserialize)]
struct ReplyRow {
    /// As text: the reader of JSON numbers may be off by the last bit, which digests would show.
    distance: Option<Box<RawValue>>,
    fact: ReplyFact,
    #[serde(default)]
    path: Vec<ReplyKey>,
}

#[derive(Deserialize)]
struct ReplyFact {
    entity: u64,
    relation: u32,
    target: u64,
    embedding: Option<Arc<[f32]>>,
    /// Byte for byte as stored.
    payload: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct ReplyKey {
    entity: u64,
    relation: u32,
    target: u64,
}

impl ReplyRow {
    fn answer(self, call: &'static str) -> Result<AnswerRow, BenchError> {
        let score = self.distance.map(|text| text.get().parse::<f64>()).transpose();
        let score = score.map_err(|error| BenchError::Failed {
            call,
            detail: format!("a distance of the reply: {error}"),
        })?;
        let ReplyFact { entity, relation, target, embedding, payload } = self.fact;
        Ok(AnswerRow {
            key: FactKey::new(entity, relation, target),
            score,
            vector: embedding,
            payload: payload.map(|payload| payload.get().into()),
            path: self.path.iter().map(ReplyKey::key).collect(),
        })
    }
}

impl ReplyKey {
    fn key(&self) -> FactKey {
        FactKey::new(self.entity, self.relation, self.target)
    }
}

fn parse<'a, T: Deserialize<'a>>(call: &'static str, body: &'a [u8]) -> Result<T, BenchError> {
    serde_json::from_slice(body).map_err(|error| BenchError::Failed {
        call,
        detail: format!("reply is not what the contract says: {error}"),
    })
}

fn graph_json(config: &GraphConfig) -> Value {
    json!({
        "vector": { "dim": config.vector.dim, "metric": "cosine" },
        "ids": "u64",
        "index": {
            "m": config.index.m,
            "ef_construction": config.index.ef_construction,
            "build_seed": config.index.build_seed,
        },
        "shards": { "boundaries": config.shards.boundaries },
    })
}

fn fact_json(fact: &Fact) -> Result<Value, BenchError> {
    let mut json = json!({
        "entity": fact.key.entity,
        "relation": fact.key.relation,
        "target": fact.key.target,
    });
    if let Some(embedding) = &fact.embedding {
        json["embedding"] = json!(&embedding[..]);
    }
    if let Some(payload) = &fact.payload {
        json["payload"] = parse("upsert", payload.as_bytes())?;
    }
    Ok(json)
}

fn hop_json(relations: &Relations) -> Value {
    match relations {
        Relations::Any => json!("*"),
        Relations::Of(ids) => json!(ids),
    }
}

fn score_json(score: ScoreMode) -> &'static str {
    match score {
        ScoreMode::Path => "path",
        ScoreMode::Endpoint => "endpoint",
    }
}

/// Adds the fields that make a server search by `mode`; `exact` is the call's name for exact.
fn set_mode(body: &mut Value, mode: SeedMode, exact: &str) -> Result<(), BenchError> {
    match mode {
        SeedMode::Auto => {}
        SeedMode::Graph { ef } => body["ef_search"] = json!(ef),
        SeedMode::Exact => body[exact] = json!(true),
        SeedMode::Scan => {
            let detail = "a scan cannot be forced over HTTP".to_owned();
            return Err(BenchError::Spec { detail });
        }
    }
    Ok(())
}

/// One graph of a server.
struct RemoteTarget {
    http: Arc<dyn Http>,
    graph: String,
}

impl RemoteTarget {
    async fn ask(&self, call: &'static str, body: Value) -> Result<Answer, BenchError> {
        let path = format!("/v1/graphs/{}/{call}", self.graph);
        let reply = self.http.send("POST", path, body.to_string().into()).await?;
        let reply: Reply = parse(call, &reply)?;
        if reply.partial || reply.next_page_token.is_some() {
            let detail = "the answer was cut, so its time means nothing".to_owned();
            return Err(BenchError::Failed { call, detail });
        }
        let rows = reply.results.into_iter().map(|row| row.answer(call));
        Ok(Answer { rows: rows.collect::<Result<_, _>>()?, ..Answer::default() })
    }
}

impl Target for RemoteTarget {
    fn seeds(&self, ask: SeedsAsk) -> Pending<'_, Answer> {
        Box::pin(async move {
            let mut body = json!({
                "query": { "embedding": &ask.vector[..] }, "k": ask.k, "with": [],
            });
            if let Relations::Of(ids) = &ask.relations {
                body["relations"] = json!(ids);
            }
            set_mode(&mut body, ask.mode, "exact")?;
            self.ask("search", body).await
        })
    }

    fn expand(&self, ask: ExpandAsk) -> Pending<'_, Answer> {
        Box::pin(async move {
            let hops: Vec<Value> = ask.hops.iter().map(hop_json).collect();
            let mut body = json!({
                "from": ask.from, "relation_path": hops, "return_to_start": true,
            });
            let keys_alone = ask.rank.is_none() && !ask.vectors;
            let mut with = if ask.vectors { vec!["vector"] } else { Vec::new() };
            match ask.rank {
                None => body["page_size"] = json!(limits::PAGE_SIZE_MAX),
                Some(Rank { vector, top_k, score }) => {
                    body["query"] = json!({ "embedding": &vector[..] });
                    body["top_k"] = json!(top_k);
                    body["score_mode"] = json!(score_json(score));
                    with.push("payload");
                }
            }
            body["with"] = json!(with);
            let mut answer = self.ask("expand", body).await?;
            if keys_alone {
                // The reply has paths all the same; in process nobody would have made them.
                answer.rows.iter_mut().for_each(|row| row.path.clear());
            }
            Ok(answer)
        })
    }

    fn graph_rag(&self, ask: RagAsk) -> Pending<'_, Answer> {
        Box::pin(async move {
            let hops: Vec<Value> = ask.hops.iter().map(hop_json).collect();
            let seed_on = match ask.seed_on {
                SeedOn::Entity => "entity",
                SeedOn::Target => "target",
            };
            let mut body = json!({
                "query": { "embedding": &ask.rank.vector[..] },
                "relation_path": hops,
                "seed_on": seed_on,
                "ann_k": ask.ann_k,
                "top_k": ask.rank.top_k,
                "score_mode": score_json(ask.rank.score),
                "seed_weight": 0.0,
                "return_to_start": true,
            });
            set_mode(&mut body, ask.mode, "exact_seeds")?;
            self.ask("graph_rag", body).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;
    use hopbine_proto::graph::IdKind;
    use hopbine_proto::{EntityId, RelationId};

    /// Answers with the given bodies in turn and keeps what was asked.
    #[derive(Default)]
    struct Script {
        replies: Mutex<Vec<&'static str>>,
        asked: Mutex<Vec<(&'static str, String, Value)>>,
    }

    impl Http for Script {
        fn send(&self, method: &'static str, path: String, body: Vec<u8>) -> Pending<'_, Vec<u8>> {
            let body = serde_json::from_slice(&body).unwrap_or_default();
            self.asked.lock().expect("no panic").push((method, path, body));
            let reply = self.replies.lock().expect("no panic").remove(0);
            Box::pin(async move { Ok(reply.as_bytes().to_vec()) })
        }
    }

    fn script(replies: &[&'static str]) -> Arc<Script> {
        Arc::new(Script { replies: Mutex::new(replies.to_vec()), ..Script::default() })
    }

    fn rank() -> Rank {
        Rank { vector: [0.5_f32, 1.0].into(), top_k: 3, score: ScoreMode::Path }
    }

    fn rag(mode: SeedMode) -> RagAsk {
        let hops = vec![Relations::Of(vec![RelationId(1)]), Relations::Any];
        RagAsk { rank: rank(), ann_k: 64, mode, seed_on: SeedOn::Entity, hops }
    }

    #[test]
    fn one_call_is_asked_by_the_classic_contract_and_read_with_its_path() {
        let http = script(&[r#"{"results": [{"distance": 0.12499999999999999,
            "fact": {"entity": 7, "relation": 2, "target": 9, "payload": {"text": "b"}},
            "path": [{"entity": 1, "relation": 1, "target": 7, "distance": 0.5},
                     {"entity": 7, "relation": 2, "target": 9, "distance": 0.25}]}],
            "partial": false, "coverage": {}, "consistency_token": "t"}"#]);
        let target = RemoteTarget { http: http.clone(), graph: "g".into() };
        let answer = block_on(target.graph_rag(rag(SeedMode::Graph { ef: 128 }))).expect("reply");
        let row = AnswerRow {
            key: FactKey::new(7, 2, 9),
            score: Some(0.125_f64.next_down()),
            vector: None,
            payload: Some(r#"{"text": "b"}"#.into()),
            path: vec![FactKey::new(1, 1, 7), FactKey::new(7, 2, 9)],
        };
        assert_eq!(answer.rows, [row]);
        let asked = http.asked.lock().expect("no panic");
        let (method, path, body) = &asked[0];
        assert_eq!((*method, path.as_str()), ("POST", "/v1/graphs/g/graph_rag"));
        assert_eq!(body["relation_path"], json!([[1], "*"]));
        assert_eq!((&body["ef_search"], &body["seed_weight"]), (&json!(128), &json!(0.0)));
        assert_eq!(body["return_to_start"], json!(true));
        assert!(body.get("exact_seeds").is_none());
    }

    #[test]
    fn a_cut_answer_and_a_forced_scan_are_errors() {
        let http = script(&[
            r#"{"results": [], "partial": true}"#,
            r#"{"results": [], "partial": false, "next_page_token": "more"}"#,
        ]);
        let target = RemoteTarget { http, graph: "g".into() };
        let seeds = SeedsAsk {
            vector: [1.0].into(),
            k: 1,
            relations: Relations::Any,
            mode: SeedMode::Auto,
        };
        assert!(block_on(target.seeds(seeds)).is_err());
        let from = vec![EntityId(1)];
        let expand = ExpandAsk { from, hops: vec![Relations::Any], rank: None, vectors: false };
        assert!(block_on(target.expand(expand)).is_err());
        let error = block_on(target.graph_rag(rag(SeedMode::Scan))).expect_err("no scan");
        assert!(matches!(error, BenchError::Spec { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_build_looks_until_no_flush_and_no_merge_is_left() {
        let looks = [(1, "false"), (0, "true"), (0, "false")].map(|(frozen, due)| {
            let text = format!(
                r#"{{"memtable_facts": 0, "disk_bytes": 9, "frozen_memtables": {frozen},
                "compaction_due": {due}, "shards": []}}"#
            );
            &*text.leak()
        });
        let http = script(&looks);
        RemoteHost::new(http.clone()).settled("/v1/graphs/g").await.expect("settled");
        assert!(http.replies.lock().expect("no panic").is_empty());
    }

    #[test]
    fn a_build_beside_another_leaves_it_and_both_are_dropped_in_the_end() {
        let stats = r#"{"memtable_facts": 0, "disk_bytes": 0,
            "frozen_memtables": 0, "compaction_due": false, "shards": []}"#;
        let http = script(&["{}", stats, "{}", stats, "{}", "{}"]);
        let host = RemoteHost::new(http.clone());
        block_on(host.build(GraphConfig::new(2, IdKind::U64), &[])).expect("built");
        block_on(host.build_beside(GraphConfig::new(2, IdKind::U64), &[])).expect("built");
        block_on(host.clean()).expect("dropped");
        let asked = http.asked.lock().expect("no panic");
        let methods: Vec<&str> = asked.iter().map(|(method, ..)| *method).collect();
        assert_eq!(methods, ["PUT", "GET", "PUT", "GET", "DELETE", "DELETE"]);
    }

    #[test]
    fn a_build_creates_loads_and_looks_and_the_next_one_drops_it_first() {
        let stats = r#"{"memtable_facts": 0, "disk_bytes": 99,
            "frozen_memtables": 0, "compaction_due": false,
            "shards": [{"facts": 1, "segments": [{"way": "scan", "recall": null}]}]}"#;
        let http = script(&["{}", "{}", stats, "{}", "{}", "{}", stats, "{}"]);
        let host = RemoteHost::new(http.clone());
        let fact = Fact {
            key: FactKey::new(1, 2, 3),
            names: None,
            embedding: Some([0.25_f32, -1.0].into()),
            payload: Some(r#"{"text":"a"}"#.into()),
        };
        for _ in 0..2 {
            let config = GraphConfig::new(2, IdKind::U64);
            let built = block_on(host.build(config, std::slice::from_ref(&fact))).expect("built");
            assert_eq!((built.shard_facts, built.ways), (vec![1], vec!["scan".to_owned()]));
        }
        block_on(host.clean()).expect("dropped");
        let asked = http.asked.lock().expect("no panic");
        let methods: Vec<&str> = asked.iter().map(|(method, ..)| *method).collect();
        assert_eq!(methods, ["PUT", "PUT", "GET", "DELETE", "PUT", "PUT", "GET", "DELETE"]);
        let (_, path, body) = &asked[1];
        assert!(path.ends_with("/facts?wait=indexed"), "{path}");
        assert_eq!(body["facts"][0]["embedding"], json!([0.25, -1.0]));
        assert_eq!(body["facts"][0]["payload"], json!({ "text": "a" }));
        assert!(asked[3].1.starts_with(&format!("{}?confirm=", asked[0].1)));
    }
}
