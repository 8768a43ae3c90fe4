//! Bodies of the retrieval calls.

use super::values::{
    CALL, CallFields, PARTS, QUERY, QUERY_WITHOUT_ENTITIES, ef_search, entity, filter, invalid,
    key, path, query, relations, required, score_mode, with, word,
};
use crate::request::{
    ExpandRequest, Explain, GraphRagRequest, RerankRequest, SearchRequest, SeedOn,
};
use crate::server::json::{Cursor, Kind, Read, read_within};
use hopbine_proto::limits;
use hopbine_proto::score::ScoreMode;
use hopbine_proto::status::{Code, Problem};

/// Fields of `graph_rag`.
pub const GRAPH_RAG: &[&str] = &[
    "query",
    "seeds",
    "relation_path",
    "seed_on",
    "seed_relations",
    "ann_k",
    "ef_search",
    "exact_seeds",
    "top_k",
    "score_mode",
    "hop_weights",
    "seed_weight",
    "limit_per_entity",
    "beam",
    "limit_rows",
    "return_to_start",
    "filter",
    "with",
    "explain",
    "allow_partial",
    CALL[0],
    CALL[1],
    CALL[2],
];
/// Fields of `seeds`.
pub const SEEDS: &[&str] = &["ann", "names", "lexical"];
/// Fields of `graph_rag/batch`.
pub const BATCH: &[&str] = &["requests", "allow_partial", CALL[0], CALL[1], CALL[2]];
/// Fields of `search`.
pub const SEARCH: &[&str] = &[
    "query",
    "k",
    "ef_search",
    "exact",
    "filter",
    "relations",
    "with",
    "explain",
    "allow_partial",
    CALL[0],
    CALL[1],
    CALL[2],
];
/// Fields of `expand`.
pub const EXPAND: &[&str] = &[
    "from",
    "relation_path",
    "query",
    "top_k",
    "score_mode",
    "hop_weights",
    "page_size",
    "page_token",
    "limit_rows",
    "limit_per_entity",
    "beam",
    "return_to_start",
    "filter",
    "with",
    "explain",
    "allow_partial",
    CALL[0],
    CALL[1],
    CALL[2],
];
/// Fields of `rerank`.
pub const RERANK: &[&str] =
    &["query", "paths", "score_mode", "top_k", "explain", CALL[0], CALL[1], CALL[2]];
/// Fields of `explain`.
pub const EXPLAIN: &[&str] =
    &["request", "endpoint", "mode", "allow_partial", CALL[0], CALL[1], CALL[2]];
/// Calls that explain themselves.
pub const ENDPOINTS: &[&str] = &["graph_rag", "search", "expand", "rerank"];

fn weights(cursor: &mut Cursor<'_>) -> Read<Vec<f64>> {
    cursor.list(limits::HOPS_MAX, Cursor::float)
}

/// `POST .../graph_rag`
pub fn graph_rag(cursor: &mut Cursor<'_>) -> Read<(GraphRagRequest, CallFields)> {
    let (mut request, mut call) = (GraphRagRequest::default(), CallFields::default());
    let (mut asked, mut ann_k, mut seeds_k) = (None, None, None);
    cursor.object(GRAPH_RAG, |name, cursor| {
        match name {
            "query" => asked = Some(query(cursor, QUERY)?),
            "seeds" => seeds_k = seeds(cursor)?,
            "relation_path" => request.relation_path = path(cursor)?,
            "seed_on" => {
                let column = word(cursor, &["entity", "target"])?;
                request.seed_on = if column == "entity" { SeedOn::Entity } else { SeedOn::Target };
            }
            "seed_relations" => request.seed_relations = Some(relations(cursor)?),
            "ann_k" => ann_k = Some(cursor.whole(u64::MAX)?),
            "ef_search" => request.ef_search = Some(ef_search(cursor)?),
            "exact_seeds" => request.exact_seeds = cursor.boolean()?,
            "top_k" => request.top_k = cursor.whole(u64::MAX)?,
            "score_mode" => request.score_mode = score_mode(cursor)?,
            "hop_weights" => request.hop_weights = Some(weights(cursor)?),
            "seed_weight" => request.seed_weight = cursor.float()?,
            "limit_per_entity" => request.limit_per_entity = cursor.whole(u64::MAX)?,
            "beam" => request.beam = cursor.whole(u64::MAX)?,
            "limit_rows" => request.limit_rows = cursor.whole(u64::MAX)?,
            "return_to_start" => request.return_to_start = cursor.boolean()?,
            "filter" => request.filter = Some(filter(cursor)?),
            "with" => request.with = with(cursor, PARTS)?,
            _ => call.read(name, cursor)?,
        }
        Ok(())
    })?;
    request.query = required(asked, "query")?;
    if let (Some(a), Some(b)) = (ann_k, seeds_k)
        && a != b
    {
        let both = invalid(format!("ann_k is {a}, seeds.ann.k is {b}")).hint("give one of them");
        return Err(both.within("ann_k"));
    }
    request.ann_k = ann_k.or(seeds_k).unwrap_or(request.ann_k);
    Ok((request, call))
}

/// `"auto"` or `{"ann": {"k"}, ...}`; the number of seeds when it is given.
fn seeds(cursor: &mut Cursor<'_>) -> Read<Option<u64>> {
    if cursor.kind() == Kind::Text {
        return word(cursor, &["auto"]).map(|_| None);
    }
    let (mut k, mut ann) = (None, false);
    cursor.object(SEEDS, |name, cursor| match name {
        "ann" => {
            ann = true;
            cursor.object(&["k"], |_, cursor| {
                k = Some(cursor.whole(u64::MAX)?);
                Ok(())
            })
        }
        "names" if !cursor.boolean()? => Ok(()),
        _ => Err(invalid(format!("this version has no {name} seeds")).hint("use \"ann\"")),
    })?;
    if ann { Ok(k) } else { Err(invalid("seeds name no source").hint("use \"ann\"")) }
}

/// One request of a batch: good or bad by itself.
pub type BatchItem = Result<(GraphRagRequest, CallFields), Problem>;

/// `POST .../graph_rag/batch`. A request that cannot be read spoils no other one; one that finds no
/// memory ends the batch.
pub fn batch(cursor: &mut Cursor<'_>) -> Read<(Vec<BatchItem>, CallFields)> {
    let (mut requests, mut call) = (None, CallFields::default());
    cursor.object(BATCH, |name, cursor| {
        match name {
            "requests" => {
                let ids = cursor.ids();
                let each = |cursor: &mut Cursor<'_>| {
                    let text = cursor.raw()?.as_bytes();
                    let item = read_within(&mut cursor.room, text, ids, graph_rag);
                    match item.map_err(Problem::from) {
                        Err(problem) if problem.code == Code::MemoryLimit => Err(problem.into()),
                        item => Ok(item),
                    }
                };
                requests = Some(cursor.list(limits::BATCH_REQUESTS_MAX, each)?);
            }
            _ => call.read(name, cursor)?,
        }
        Ok(())
    })?;
    let requests = required(requests, "requests")?;
    if requests.is_empty() {
        return Err(invalid("the batch is empty").within("requests"));
    }
    Ok((requests, call))
}

/// `POST .../search`
pub fn search(cursor: &mut Cursor<'_>) -> Read<(SearchRequest, CallFields)> {
    let (mut request, mut call) = (SearchRequest::default(), CallFields::default());
    let mut asked = None;
    cursor.object(SEARCH, |name, cursor| {
        match name {
            "query" => asked = Some(query(cursor, QUERY_WITHOUT_ENTITIES)?),
            "k" => request.k = cursor.whole(u64::MAX)?,
            "ef_search" => request.ef_search = Some(ef_search(cursor)?),
            "exact" => request.exact = cursor.boolean()?,
            "filter" => request.filter = Some(filter(cursor)?),
            "relations" => request.relations = Some(relations(cursor)?),
            "with" => request.with = with(cursor, PARTS)?,
            _ => call.read(name, cursor)?,
        }
        Ok(())
    })?;
    request.query = required(asked, "query")?;
    Ok((request, call))
}

/// `POST .../expand`
pub fn expand(cursor: &mut Cursor<'_>) -> Read<(ExpandRequest, CallFields)> {
    let (mut request, mut call) = (ExpandRequest::default(), CallFields::default());
    let (mut from, mut hops) = (None, None);
    cursor.object(EXPAND, |name, cursor| {
        match name {
            "from" => from = Some(cursor.list(limits::FROM_MAX, entity)?),
            "relation_path" => hops = Some(path(cursor)?),
            "query" => request.query = Some(query(cursor, QUERY_WITHOUT_ENTITIES)?),
            "top_k" => request.top_k = Some(cursor.whole(u64::MAX)?),
            "score_mode" => request.score_mode = score_mode(cursor)?,
            "hop_weights" => request.hop_weights = Some(weights(cursor)?),
            "page_size" => request.page_size = Some(cursor.whole(u64::MAX)?),
            "page_token" => request.page_token = Some(cursor.owned()?),
            "limit_rows" => request.limit_rows = cursor.whole(u64::MAX)?,
            "limit_per_entity" => request.limit_per_entity = cursor.whole(u64::MAX)?,
            "beam" => request.beam = cursor.whole(u64::MAX)?,
            "return_to_start" => request.return_to_start = cursor.boolean()?,
            "filter" => request.filter = Some(filter(cursor)?),
            "with" => request.with = with(cursor, PARTS)?,
            _ => call.read(name, cursor)?,
        }
        Ok(())
    })?;
    request.from = required(from, "from")?;
    request.relation_path = required(hops, "relation_path")?;
    Ok((request, call))
}

/// `POST .../rerank`
pub fn rerank(cursor: &mut Cursor<'_>) -> Read<(RerankRequest, CallFields)> {
    let (mut asked, mut paths, mut call) = (None, None, CallFields::default());
    let (mut mode, mut top_k) = (ScoreMode::Path, 10);
    cursor.object(RERANK, |name, cursor| {
        match name {
            "query" => asked = Some(query(cursor, QUERY_WITHOUT_ENTITIES)?),
            "paths" => {
                let one = |cursor: &mut Cursor<'_>| cursor.list(limits::HOPS_MAX, key);
                paths = Some(cursor.list(limits::KEYS_MAX, one)?);
            }
            "score_mode" => mode = score_mode(cursor)?,
            "top_k" => top_k = cursor.whole(u64::MAX)?,
            _ => call.read(name, cursor)?,
        }
        Ok(())
    })?;
    let query = required(asked, "query")?;
    let paths = required(paths, "paths")?;
    Ok((RerankRequest { query, paths, score_mode: mode, top_k }, call))
}

/// A request to be explained.
#[derive(Clone, Debug, PartialEq)]
pub enum Explained {
    /// `graph_rag`
    GraphRag(GraphRagRequest),
    /// `search`
    Search(SearchRequest),
    /// `expand`
    Expand(ExpandRequest),
    /// `rerank`
    Rerank(RerankRequest),
}

/// `POST .../explain`. What the request itself says of `explain` gives way to `mode`.
pub fn explain(cursor: &mut Cursor<'_>) -> Read<(Explained, CallFields)> {
    let (mut text, mut endpoint, mut mode) = (None, None, Explain::Plan);
    let mut outer = CallFields::default();
    cursor.object(EXPLAIN, |name, cursor| {
        match name {
            "request" => text = Some(cursor.raw()?),
            "endpoint" => endpoint = Some(word(cursor, ENDPOINTS)?),
            "mode" => {
                let is_plan = word(cursor, &["plan", "analyze"])? == "plan";
                mode = if is_plan { Explain::Plan } else { Explain::Analyze };
            }
            _ => outer.read(name, cursor)?,
        }
        Ok(())
    })?;
    let (text, ids) = (required(text, "request")?.as_bytes(), cursor.ids());
    let endpoint = required(endpoint, "endpoint")?;
    let read = |cursor: &mut Cursor<'_>| match endpoint {
        "graph_rag" => graph_rag(cursor).map(|(asked, call)| (Explained::GraphRag(asked), call)),
        "search" => search(cursor).map(|(asked, call)| (Explained::Search(asked), call)),
        "expand" => expand(cursor).map(|(asked, call)| (Explained::Expand(asked), call)),
        _ => rerank(cursor).map(|(asked, call)| (Explained::Rerank(asked), call)),
    };
    let asked = read_within(&mut cursor.room, text, ids, read);
    let (request, inner) = asked.map_err(|refusal| refusal.within("request"))?;
    Ok((request, CallFields { explain: Some(mode), ..inner.or(outer) }))
}
