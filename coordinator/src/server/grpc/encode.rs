//! Replies into messages.

use crate::reply::{
    Coverage, EntityReply, FactOut, FactVersion, GetReply, HopCoverage, PathStep, RelationOut,
    RerankReply, ResultOut, RetrievalReply, ScanReply, StatsReply, WriteReply,
};
use crate::request::{EntityRef, KeyRef, RelationRef};
use crate::server::encode::graphs::index_coverage;
use crate::server::encode::retrieval::Shape;
use hopbine_proto::call::{SegmentStats, ShardStats};
use hopbine_proto::convert::{embedding_bytes, v1};
use hopbine_proto::graph::{BuilderKind, EfSearch, Embedder, GraphConfig, GraphInfo, IdKind};
use hopbine_proto::score::Metric;
use hopbine_proto::shard_map::ShardDescriptor;
use hopbine_proto::status::Problem;

fn id(id: v1::id::Id) -> v1::Id {
    v1::Id { id: Some(id) }
}

/// An entity or target.
pub fn entity(entity: &EntityRef) -> v1::Id {
    id(match entity {
        EntityRef::Name(name) => v1::id::Id::Name(name.to_string()),
        EntityRef::Number(number) => v1::id::Id::Number(*number),
    })
}

/// A relation.
pub fn relation(relation: &RelationRef) -> v1::Id {
    id(match relation {
        RelationRef::Name(name) => v1::id::Id::Name(name.to_string()),
        RelationRef::Number(number) => v1::id::Id::Number(*number),
    })
}

/// The key of a fact.
pub fn key(key: &KeyRef) -> v1::FactKey {
    v1::FactKey {
        entity: Some(entity(&key.entity)),
        relation: Some(relation(&key.relation)),
        target: Some(entity(&key.target)),
    }
}

fn version(version: &FactVersion) -> v1::Version {
    v1::Version { shard: version.shard.0, epoch: version.epoch.0, index: version.index.0 }
}

/// A fact with the parts that were asked for.
pub fn fact(fact: &FactOut) -> v1::Fact {
    v1::Fact {
        entity: Some(entity(&fact.key.entity)),
        relation: Some(relation(&fact.key.relation)),
        target: Some(entity(&fact.key.target)),
        embedding: fact.embedding.as_deref().map(|embedding| embedding_bytes(embedding).into()),
        payload: fact.payload.as_deref().map(str::to_owned),
        version: fact.version.as_ref().map(version),
    }
}

/// A write's counts, and its versions when they were asked for.
pub fn write(reply: &WriteReply, versions: bool, token: String) -> v1::WriteReply {
    let replaced = |(changed, old): &(KeyRef, FactVersion)| v1::ReplacedVersion {
        key: Some(key(changed)),
        version: Some(version(old)),
    };
    let mut message = v1::WriteReply {
        upserted: reply.upserted,
        replaced: reply.replaced,
        deleted: reply.deleted,
        not_found: reply.not_found,
        versions: Vec::new(),
        replaced_versions: Vec::new(),
        consistency_token: token,
    };
    if versions {
        message.versions = reply.versions.iter().map(version).collect();
        message.replaced_versions = reply.replaced_versions.iter().map(replaced).collect();
    }
    message
}

/// The reply of `Get`.
pub fn get(reply: &GetReply) -> v1::GetReply {
    v1::GetReply {
        facts: reply.facts.iter().map(fact).collect(),
        not_found: reply.not_found.iter().map(key).collect(),
        consistency_token: reply.consistency_token.clone(),
    }
}

/// A page of `Scan` as messages of at most `most` bytes each, if no fact of its own is larger.
pub fn scan(reply: &ScanReply, most: usize) -> Vec<v1::ScanReply> {
    let token = &reply.consistency_token;
    let (mut messages, mut facts, mut bytes) = (Vec::new(), Vec::new(), 0);
    // Of each fact the tag and the length count, of the message its tokens.
    let room = most.saturating_sub(token.len() + 1_024);
    for shown in &reply.facts {
        let shown = fact(shown);
        let size = prost::Message::encoded_len(&shown) + 8;
        if bytes + size > room && !facts.is_empty() {
            messages.push(page(std::mem::take(&mut facts), None, token));
            bytes = 0;
        }
        bytes += size;
        facts.push(shown);
    }
    messages.push(page(facts, reply.next_page_token.clone(), token));
    messages
}

fn page(facts: Vec<v1::Fact>, next_page_token: Option<String>, token: &str) -> v1::ScanReply {
    v1::ScanReply { facts, next_page_token, consistency_token: token.to_owned() }
}

/// The reply of a retrieval.
pub fn answer(reply: &RetrievalReply, shape: Shape) -> v1::RetrievalReply {
    v1::RetrievalReply {
        results: reply.results.iter().map(|result| one(result, shape)).collect(),
        partial: reply.partial,
        coverage: Some(coverage(&reply.coverage, shape)),
        next_page_token: reply.next_page_token.clone(),
        consistency_token: reply.consistency_token.clone(),
    }
}

fn one(result: &ResultOut, shape: Shape) -> v1::Result {
    let path = if shape.path { result.path.as_slice() } else { &[] };
    v1::Result {
        distance: result.distance,
        fact: Some(fact(&result.fact)),
        path: path.iter().map(step).collect(),
    }
}

fn step(step: &PathStep) -> v1::PathStep {
    v1::PathStep { fact: Some(fact(&step.fact)), distance: step.distance }
}

fn coverage(coverage: &Coverage, shape: Shape) -> v1::Coverage {
    v1::Coverage {
        shards: coverage.shards,
        answered: coverage.answered,
        missing: coverage.missing.iter().map(|shard| shard.0).collect(),
        hops: coverage.hops.iter().map(|line| hop(line, shape)).collect(),
    }
}

fn hop(line: &HopCoverage, shape: Shape) -> v1::HopCoverage {
    let indexes = if shape.indexes { line.indexes.as_slice() } else { &[] };
    let indexes = indexes.iter();
    v1::HopCoverage {
        hop: line.hop,
        frontier: line.frontier,
        read: line.read,
        kept: line.kept,
        cut: line.cut,
        why: line.why.clone(),
        indexes: indexes
            .map(|(shard, index)| v1::ShardIndex { shard: shard.0, index: index.0 })
            .collect(),
    }
}

/// The reply of `Rerank`.
pub fn rerank(reply: &RerankReply) -> v1::RerankReply {
    let line = |line: &crate::reply::RerankResult| v1::RerankResult {
        index: line.index,
        distance: line.distance,
    };
    v1::RerankReply {
        results: reply.results.iter().map(line).collect(),
        consistency_token: reply.consistency_token.clone(),
    }
}

/// What is wrong with one request of a batch.
pub fn problem(problem: &Problem) -> v1::Problem {
    let errors = problem.errors.iter();
    v1::Problem {
        code: problem.code.to_string(),
        detail: problem.detail.clone(),
        retryable: problem.code.retryable(),
        hint: problem.hint.clone(),
        errors: errors
            .map(|fault| v1::Fault { pointer: fault.pointer.clone(), detail: fault.detail.clone() })
            .collect(),
    }
}

/// A graph.
pub fn graph(graph: &GraphInfo) -> v1::Graph {
    v1::Graph {
        name: graph.name.clone(),
        id: graph.id.0,
        version: graph.version,
        config: Some(config(&graph.config)),
    }
}

fn config(config: &GraphConfig) -> v1::GraphConfig {
    let metric = match config.vector.metric {
        Metric::Cosine => v1::Metric::Cosine,
        Metric::L2 => v1::Metric::L2,
        Metric::Dot => v1::Metric::Dot,
    };
    let ids = match config.ids {
        IdKind::Names => v1::IdKind::Names,
        IdKind::U64 => v1::IdKind::U64,
    };
    let (vector, index, shards) = (&config.vector, &config.index, &config.shards);
    v1::GraphConfig {
        vector: Some(v1::VectorConfig {
            dim: vector.dim,
            metric: metric.into(),
            required: vector.required,
        }),
        ids: ids.into(),
        index: Some(v1::IndexConfig {
            m: Some(index.m),
            ef_construction: Some(index.ef_construction),
            ef_search: match index.ef_search {
                EfSearch::Auto => None,
                EfSearch::Fixed(beam) => Some(beam),
            },
            recall_target: Some(index.recall_target),
            builder: match index.builder {
                BuilderKind::Native => v1::Builder::Native.into(),
                BuilderKind::HnswRs => v1::Builder::HnswRs.into(),
            },
            build_seed: Some(index.build_seed),
        }),
        shards: Some(v1::ShardsConfig {
            initial: Some(shards.initial),
            boundaries: shards.boundaries.clone(),
            replicas: Some(shards.replicas),
            split_at_bytes: Some(shards.split_at_bytes),
        }),
        payload_index: config.payload_index.clone(),
        embedder: match &config.embedder {
            Embedder::None => None,
            Embedder::Lexical => Some("lexical".to_owned()),
            Embedder::LexicalCode => Some("lexical-code".to_owned()),
            Embedder::Http(url) => Some(url.clone()),
        },
        payload_bytes_max: Some(config.payload_bytes_max),
    }
}

fn sizes(stats: &ShardStats) -> v1::Sizes {
    v1::Sizes {
        facts: stats.facts,
        vectors: stats.vectors,
        dead_rows: stats.dead_rows,
        memtable_facts: stats.memtable_facts,
        memtable_bytes: stats.memtable_bytes,
        disk_bytes: stats.disk_bytes,
        frozen_memtables: stats.frozen_memtables,
        compaction_due: stats.compaction_due,
        index_coverage: index_coverage(stats),
    }
}

fn segment(segment: &SegmentStats) -> v1::Segment {
    v1::Segment {
        id: segment.id,
        rows: segment.rows,
        dead: segment.dead,
        bytes: segment.bytes,
        way: segment.way.clone(),
        recall: segment.recall,
        alarm: segment.alarm.clone(),
    }
}

fn shard((descriptor, stats): &(ShardDescriptor, ShardStats)) -> v1::ShardStats {
    v1::ShardStats {
        shard: descriptor.id.0,
        epoch: descriptor.epoch.0,
        start: descriptor.range.start.0,
        end: descriptor.range.end.map(|end| end.0),
        index: stats.index.0,
        sizes: Some(sizes(stats)),
        segments: stats.segments.iter().map(segment).collect(),
    }
}

/// The reply of `Stats`.
pub fn stats(reply: &StatsReply) -> v1::StatsReply {
    v1::StatsReply {
        graph: reply.graph.name.clone(),
        total: Some(sizes(&reply.total)),
        shards: reply.shards.iter().map(shard).collect(),
    }
}

/// The reply of `Relations`.
pub fn relations(list: &[RelationOut]) -> v1::RelationsReply {
    let line = |line: &RelationOut| v1::Relation {
        relation: Some(relation(&line.relation)),
        id: line.id.0,
        facts: line.facts,
    };
    v1::RelationsReply { relations: list.iter().map(line).collect() }
}

/// The reply of `Entity`.
pub fn entity_reply(reply: &EntityReply) -> v1::EntityReply {
    let degrees = reply.degrees.iter();
    v1::EntityReply {
        entity: Some(entity(&reply.entity)),
        degrees: degrees
            .map(|(kind, facts)| v1::Degree { relation: Some(relation(kind)), facts: *facts })
            .collect(),
        facts: reply.facts.iter().map(fact).collect(),
        consistency_token: reply.consistency_token.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::FactKey;
    use proptest::prelude::*;
    use prost::Message;

    fn shown(number: u64, payload: usize) -> FactOut {
        let entity = EntityRef::Number(number);
        FactOut {
            id: FactKey::new(number, 1, number),
            key: KeyRef {
                entity: entity.clone(),
                relation: RelationRef::Number(1),
                target: entity,
            },
            embedding: None,
            payload: Some("x".repeat(payload).into()),
            version: None,
        }
    }

    proptest! {
        #[test]
        fn a_page_is_cut_into_messages_that_fit_and_loses_nothing(
            payloads in proptest::collection::vec(0usize..3_000, 0..40),
            most in 1_100usize..9_000,
        ) {
            let facts = payloads.iter().zip(0..).map(|(bytes, number)| shown(number, *bytes));
            let reply = ScanReply {
                facts: facts.collect(),
                next_page_token: Some("next".into()),
                consistency_token: "token".into(),
                held: None,
            };
            let messages = scan(&reply, most);
            let numbers: Vec<_> = messages.iter().flat_map(|message| &message.facts).collect();
            let whole: Vec<_> = reply.facts.iter().map(fact).collect();
            prop_assert_eq!(numbers, whole.iter().collect::<Vec<_>>());
            for (place, message) in messages.iter().enumerate() {
                let last = place + 1 == messages.len();
                prop_assert_eq!(message.next_page_token.is_some(), last);
                prop_assert!(message.encoded_len() <= most || message.facts.len() == 1);
            }
        }
    }
}
