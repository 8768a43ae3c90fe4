//! Request bodies of any bytes: read into their typed requests and checked without a panic.
//!
//! The first byte chooses the endpoint, `a` to `p` in a graph of names, `A` to `P` in a graph of
//! numbers; the rest is the body. A body that is taken must be JSON to a strict parser too.
#![no_main]

use hopbine_coordinator::check;
use hopbine_coordinator::check::facts::Places;
use hopbine_coordinator::check::retrieval::embed_afresh;
use hopbine_coordinator::request::{CallOptions, EntityRef, FactInput, KeyRef};
use hopbine_coordinator::server::decode::values::{CallFields, entity_text, parse_duration};
use hopbine_coordinator::server::decode::{facts, graphs, retrieval};
use hopbine_coordinator::server::json::{Cursor, Read, read_ids};
use hopbine_coordinator::token;
use hopbine_proto::graph::{Embedder, GraphConfig, GraphInfo, IdKind};
use hopbine_proto::shard_map::{ShardDescriptor, ranges};
use hopbine_proto::status::Problem;
use hopbine_proto::{Epoch, FactKey, GraphId, NodeId, RelationId, ReplicaId, ShardId};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use std::sync::LazyLock;

/// A graph of names and one of numbers, each with two shards.
static GRAPHS: LazyLock<[GraphInfo; 2]> =
    LazyLock::new(|| [graph(IdKind::Names), graph(IdKind::U64)]);

fn graph(ids: IdKind) -> GraphInfo {
    let shards = (1..).zip(ranges(&[100])).map(|(id, range)| ShardDescriptor {
        id: ShardId(id),
        range,
        epoch: Epoch(1),
        replicas: vec![(ReplicaId(1), NodeId(1))],
    });
    let relations = match ids {
        IdKind::Names => vec!["discovered", "named_after", "kind_of"],
        IdKind::U64 => vec![],
    };
    let relations = (0..).zip(relations).map(|(id, name)| (name.to_owned(), RelationId(id)));
    let config = GraphConfig { embedder: Embedder::Lexical, ..GraphConfig::new(2, ids) };
    GraphInfo {
        id: GraphId(1),
        name: "people".into(),
        config,
        version: 1,
        relations: relations.collect(),
        shards: shards.collect(),
    }
}

/// What a body is read for.
struct Door<'a> {
    graph: &'a GraphInfo,
    body: &'a [u8],
}

impl<'a> Door<'a> {
    /// Reads the body; one that is taken is JSON, one that is not says where the fault is.
    fn read<T>(&self, shape: impl FnOnce(&mut Cursor<'a>) -> Read<T>) -> Option<T> {
        match read_ids(self.body, self.graph.config.ids, shape) {
            Ok(value) => {
                serde_json::from_slice::<Value>(self.body).expect("what we take is JSON");
                Some(value)
            }
            Err(refusal) => {
                refused(Problem::from(refusal));
                None
            }
        }
    }

    fn batch(&self, upserts: Vec<FactInput>, deletes: &[KeyRef]) {
        let places = Places { upsert: "/facts", delete: "/keys" };
        match check::facts::batch(self.graph, upserts, deletes, places) {
            Ok(batch) => assert_eq!(batch.deletes.len(), deletes.len()),
            Err(problem) => refused(problem),
        }
    }

    fn filter(&self, filter: Option<&Value>) {
        if let Some(filter) = filter {
            checked(check::filter::filter(self.graph, filter, "/filter"));
        }
    }

    fn graph_rag(&self, request: &hopbine_coordinator::request::GraphRagRequest) {
        checked(check::retrieval::graph_rag(self.graph, request, &embed_afresh, false));
    }

    /// The page of a token; one that is taken is written like this again.
    fn page(&self, text: Option<&str>) -> Option<FactKey> {
        let text = text?;
        let key = checked(token::read_page_token(1, self.graph, 7, text))?;
        assert_eq!(token::page_token(1, self.graph, 7, key), text);
        Some(key)
    }
}

fn refused(problem: Problem) {
    assert!(!problem.detail.is_empty());
    for fault in &problem.errors {
        assert!(fault.pointer.is_empty() || fault.pointer.starts_with('/'), "{}", fault.pointer);
    }
}

fn checked<T>(result: Result<T, Problem>) -> Option<T> {
    result.map_err(refused).ok()
}

fn options(fields: CallFields, token: Option<String>) -> Option<CallOptions> {
    let options = checked(fields.options(token).map_err(Problem::from))?;
    checked(check::timeout(options.timeout));
    Some(options)
}

fn facts_body(door: &Door<'_>, endpoint: u8) -> Option<()> {
    match endpoint {
        b'a' => {
            let (upserts, fields) = door.read(facts::upsert)?;
            options(fields.call, None);
            door.batch(upserts, &[]);
        }
        b'b' => {
            let lines = facts::upsert_lines(door.body, door.graph.config.ids);
            let upserts = checked(lines.map_err(Problem::from))?;
            for line in door.body.split(|byte| *byte == b'\n') {
                let blank = line.iter().all(u8::is_ascii_whitespace);
                let json = serde_json::from_slice::<Value>(line);
                assert!(blank || json.is_ok(), "what we take is JSON");
            }
            door.batch(upserts, &[]);
        }
        b'c' => {
            let (request, fields) = door.read(facts::write)?;
            options(fields.call, None);
            door.batch(request.upsert, &request.delete);
        }
        b'd' => drop(door.read(facts::delete)?),
        b'e' => {
            let (request, fields) = door.read(facts::get)?;
            options(fields, None);
            door.batch(Vec::new(), &request.keys);
        }
        b'f' => {
            let (request, fields) = door.read(facts::scan)?;
            options(fields, None);
            door.filter(request.filter.as_ref());
            door.page(request.page_token.as_deref());
        }
        _ => {
            let (request, fields) = door.read(facts::count)?;
            options(fields, None);
            door.filter(request.filter.as_ref());
        }
    }
    Some(())
}

fn question(door: &Door<'_>, endpoint: u8) -> Option<()> {
    let (graph, embed) = (door.graph, &embed_afresh);
    match endpoint {
        b'h' => {
            let (request, fields) = door.read(retrieval::graph_rag)?;
            options(fields, None);
            door.graph_rag(&request);
        }
        b'i' => {
            let (requests, fields) = door.read(retrieval::batch)?;
            options(fields, None);
            for request in requests {
                if let Some((request, fields)) = checked(request.map_err(Problem::from)) {
                    options(fields, None);
                    door.graph_rag(&request);
                }
            }
        }
        b'j' => {
            let (request, fields) = door.read(retrieval::search)?;
            options(fields, None);
            checked(check::retrieval::search(graph, &request, embed, true));
        }
        b'k' => {
            let (request, fields) = door.read(retrieval::expand)?;
            options(fields, None);
            let after = door.page(request.page_token.as_deref());
            checked(check::retrieval::expand(graph, &request, after, embed, true));
        }
        _ => {
            let (request, fields) = door.read(retrieval::rerank)?;
            options(fields, None);
            checked(check::retrieval::vector_question(graph, &request.query, embed));
        }
    }
    Some(())
}

fn other(door: &Door<'_>, endpoint: u8) -> Option<()> {
    match endpoint {
        b'm' => {
            let config = door.read(graphs::config)?;
            checked(check::graph::config(&config));
        }
        b'n' => {
            let patch = door.read(graphs::patch)?;
            checked(check::graph::patch(&patch));
        }
        _ => {
            let text = std::str::from_utf8(door.body).ok()?;
            let (name, value) = text.split_once('=').unwrap_or(("timeout", text));
            checked(CallFields::default().parse(name, value).map_err(Problem::from));
            checked(parse_duration(text).map_err(Problem::from));
            checked(check::graph::name(text));
            checked(token::read_consistency_token(1, door.graph, text));
            if let EntityRef::Number(id) = entity_text(text, door.graph.config.ids) {
                assert_eq!(text.parse(), Ok(id));
            }
        }
    }
    Some(())
}

fuzz_target!(|data: &[u8]| {
    let Some((first, body)) = data.split_first() else { return };
    let graph = &GRAPHS[usize::from(first.is_ascii_uppercase())];
    let door = Door { graph, body };
    let endpoint = first.to_ascii_lowercase();
    let _ = match endpoint {
        b'a'..=b'g' => facts_body(&door, endpoint),
        b'h'..=b'l' => question(&door, endpoint),
        _ => other(&door, endpoint),
    };
});
