//! Graphs: configurations, sizes, relations.

use super::Json;
use super::facts::relation;
use crate::reply::{RelationOut, StatsReply};
use hopbine_proto::call::{SegmentStats, ShardStats};
use hopbine_proto::graph::{
    BuilderKind, EfSearch, Embedder, GraphConfig, GraphInfo, IdKind, IndexConfig, ShardsConfig,
};
use hopbine_proto::shard_map::ShardDescriptor;
use hopbine_proto::status::Fault;
use serde_json::Value;

/// Bytes of a graph's field names, numbers and words, and of one boundary.
const GRAPH_BYTES: usize = 1_024;
const BOUNDARY_BYTES: usize = 24;
/// Letters of one setting's value in a message.
const VALUE_CHARS_MAX: usize = 80;

/// Writes a graph: its name, its versions, and a configuration that creates the same again.
pub fn graph(json: &mut Json, graph: &GraphInfo) {
    json.object(|json| {
        json.field("name", &graph.name);
        json.field("id", &graph.id);
        json.field("version", &graph.version);
        config(json.name("config"), &graph.config);
    });
}

/// About how many bytes a graph takes as text.
pub fn graph_bytes(graph: &GraphInfo) -> usize {
    let config = &graph.config;
    let fields = config.payload_index.iter().map(|field| field.len() + 3).sum::<usize>();
    GRAPH_BYTES + config.shards.boundaries.len() * BOUNDARY_BYTES + fields
}

fn config(json: &mut Json, config: &GraphConfig) {
    json.object(|json| {
        json.field("vector", &config.vector);
        json.field(
            "ids",
            match config.ids {
                IdKind::Names => "names",
                IdKind::U64 => "u64",
            },
        );
        index(json.name("index"), &config.index);
        shards(json.name("shards"), &config.shards);
        json.field("payload_index", &config.payload_index);
        match &config.embedder {
            Embedder::None => json.field("embedder", &None::<()>),
            Embedder::Lexical => json.field("embedder", "lexical"),
            Embedder::LexicalCode => json.field("embedder", "lexical-code"),
            Embedder::Http(url) => {
                json.name("embedder").object(|json| json.field("http", url));
            }
        }
        json.field("payload_bytes_max", &config.payload_bytes_max);
    });
}

/// The settings in which a graph differs from what a request wants it to be, each at its place in
/// the request's body.
pub fn differences(known: &GraphConfig, wanted: &GraphConfig) -> Vec<Fault> {
    let tree = |one: &GraphConfig| -> Value {
        let mut json = Json::default();
        config(&mut json, one);
        serde_json::from_slice(&json.into_bytes()).expect("what is written here is JSON")
    };
    let mut faults = Vec::new();
    differ(String::new(), &tree(known), &tree(wanted), &mut faults);
    faults
}

fn differ(pointer: String, known: &Value, wanted: &Value, faults: &mut Vec<Fault>) {
    match (known, wanted) {
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => {
            for (name, value) in a {
                differ(format!("{pointer}/{name}"), value, &b[name], faults);
            }
        }
        _ if known == wanted => {}
        _ => {
            let (known, wanted) = (brief(known), brief(wanted));
            let detail = format!("the graph has {known}, the request {wanted}");
            faults.push(Fault { pointer, detail });
        }
    }
}

/// A value as JSON, as far as a message may be long.
fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn index(json: &mut Json, index: &IndexConfig) {
    json.object(|json| {
        json.field("m", &index.m);
        json.field("ef_construction", &index.ef_construction);
        match index.ef_search {
            EfSearch::Auto => json.field("ef_search", "auto"),
            EfSearch::Fixed(beam) => json.field("ef_search", &beam),
        }
        json.field("recall_target", &index.recall_target);
        json.field(
            "builder",
            match index.builder {
                BuilderKind::Native => "native",
                BuilderKind::HnswRs => "hnsw_rs",
            },
        );
        json.field("build_seed", &index.build_seed);
    });
}

fn shards(json: &mut Json, shards: &ShardsConfig) {
    json.object(|json| {
        json.field("initial", &shards.initial);
        json.name("boundaries").array(&shards.boundaries, |json, start| json.id(*start));
        json.field("replicas", &shards.replicas);
        json.field("split_at", &size(shards.split_at_bytes));
    });
}

/// A size in its largest whole unit.
fn size(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let whole = units.iter().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    whole.map_or(format!("{bytes}B"), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

/// The reply of `relations`.
pub fn relations(list: &[RelationOut]) -> Json {
    let mut json = Json::with_capacity(list.iter().map(RelationOut::text_bytes).sum());
    json.object(|json| {
        json.name("relations").array(list, |json, line| {
            json.object(|json| {
                relation(json.name("relation"), &line.relation);
                json.field("id", &line.id);
                json.field("facts", &line.facts);
            });
        });
    });
    json
}

/// The reply of `stats`.
pub fn stats(reply: &StatsReply) -> Json {
    let mut json = Json::default();
    json.object(|json| {
        json.field("graph", &reply.graph.name);
        sizes(json, &reply.total);
        let segments = reply.shards.iter().map(|(_, shard)| shard.segments.len()).sum::<usize>();
        json.field("segments", &segments);
        json.name("shards").array(&reply.shards, |json, (descriptor, shard)| {
            one_shard(json, descriptor, shard);
        });
    });
    json
}

fn sizes(json: &mut Json, stats: &ShardStats) {
    json.field("facts", &stats.facts);
    json.field("vectors", &stats.vectors);
    json.field("dead_rows", &stats.dead_rows);
    json.field("memtable_facts", &stats.memtable_facts);
    json.field("memtable_bytes", &stats.memtable_bytes);
    json.field("disk_bytes", &stats.disk_bytes);
    json.field("frozen_memtables", &stats.frozen_memtables);
    json.field("compaction_due", &stats.compaction_due);
    json.field("index_coverage", &index_coverage(stats));
}

/// Share of the facts that lie in sealed segments; the rest is scanned exactly. 1 when empty.
pub fn index_coverage(stats: &ShardStats) -> f64 {
    let tail = stats.memtable_facts.min(stats.facts);
    if stats.facts == 0 { 1.0 } else { 1.0 - tail as f64 / stats.facts as f64 }
}

fn one_shard(json: &mut Json, descriptor: &ShardDescriptor, stats: &ShardStats) {
    json.object(|json| {
        json.field("shard", &descriptor.id);
        json.field("epoch", &descriptor.epoch);
        json.name("start").id(descriptor.range.start.0);
        match descriptor.range.end {
            Some(end) => json.name("end").id(end.0),
            None => json.field("end", &None::<()>),
        }
        json.field("index", &stats.index);
        sizes(json, stats);
        json.name("segments").array(&stats.segments, segment);
    });
}

fn segment(json: &mut Json, segment: &SegmentStats) {
    json.object(|json| {
        json.field("id", &segment.id);
        json.field("rows", &segment.rows);
        json.field("dead", &segment.dead);
        json.field("bytes", &segment.bytes);
        json.field("way", &segment.way);
        json.field("recall", &segment.recall);
        json.field("alarm", &segment.alarm);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::decode;
    use crate::server::json::read;
    use hopbine_proto::score::Metric;
    use proptest::prelude::*;

    fn any_config() -> impl Strategy<Value = GraphConfig> {
        let ef = prop_oneof![Just(EfSearch::Auto), (1u32..65_536).prop_map(EfSearch::Fixed)];
        let embedder = prop_oneof![
            Just(Embedder::None),
            Just(Embedder::Lexical),
            Just(Embedder::LexicalCode),
            "\\PC{0,9}".prop_map(Embedder::Http),
        ];
        let metric = prop_oneof![Just(Metric::Cosine), Just(Metric::L2), Just(Metric::Dot)];
        let cuts = proptest::collection::vec(any::<u64>(), 0..4);
        let keys = proptest::collection::btree_set("\\PC{0,5}", 0..3);
        (ef, embedder, metric, cuts, keys, any::<u64>(), any::<u32>(), 0.0f64..1.0).prop_map(
            |(ef, embedder, metric, boundaries, keys, wide, narrow, target)| {
                let ids = if wide % 2 == 0 { IdKind::Names } else { IdKind::U64 };
                let mut config = GraphConfig::new(narrow, ids);
                config.vector.metric = metric;
                config.vector.required = wide % 3 == 0;
                config.index.ef_search = ef;
                config.index.recall_target = target;
                config.index.build_seed = wide;
                if wide % 5 == 0 {
                    config.index.builder = BuilderKind::HnswRs;
                }
                config.shards.boundaries = boundaries;
                config.shards.split_at_bytes = wide >> (narrow % 64);
                config.payload_index = keys.into_iter().collect();
                config.embedder = embedder;
                config.payload_bytes_max = narrow;
                config
            },
        )
    }

    proptest! {
        #[test]
        fn a_shown_configuration_creates_the_same_graph(wanted in any_config()) {
            let mut json = Json::default();
            config(&mut json, &wanted);
            let back = read(&json.into_bytes(), decode::graphs::config);
            prop_assert_eq!(back.expect("a configuration"), wanted);
        }
    }

    #[test]
    fn settings_that_differ_are_named_with_both_values() {
        let known = GraphConfig::new(2, IdKind::U64);
        assert_eq!(differences(&known, &known), []);
        let mut wanted = GraphConfig::new(3, IdKind::U64);
        wanted.embedder = Embedder::Lexical;
        wanted.shards.boundaries = (1..99).collect();
        let found = differences(&known, &wanted);
        let pointers: Vec<_> = found.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(pointers, ["/embedder", "/shards/boundaries", "/vector/dim"]);
        assert_eq!(found[0].detail, "the graph has null, the request \"lexical\"");
        assert!(found[1].detail.ends_with("..."), "{}", found[1].detail);
        assert_eq!(found[2].detail, "the graph has 2, the request 3");
    }

    #[test]
    fn sizes_are_shown_in_their_largest_whole_unit() {
        for (bytes, text) in [(0, "0B"), (1_000, "1000B"), (512 << 20, "512MiB"), (1 << 40, "1TiB")]
        {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn index_coverage_is_the_share_of_sealed_facts() {
        let stats = ShardStats { facts: 4, memtable_facts: 1, ..ShardStats::default() };
        assert_eq!(index_coverage(&stats), 0.75);
        assert_eq!(index_coverage(&ShardStats::default()), 1.0);
    }
}
