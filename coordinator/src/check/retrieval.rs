//! Questions at the door: from `graph_rag`, `search`, `expand` and `rerank` to a [`Plan`].

use super::{count, count_u32, filter, vector};
use crate::embed::{Lexical, Tokenizer};
use crate::names::{self, invalid};
use crate::request::{
    EntityRef, ExpandRequest, GraphRagRequest, HopRelations, Query, RelationRef, SearchRequest,
};
use crate::retrieval::{Hop, Output, Plan, Starts};
use hopbine_proto::call::{Relations, SeedMode, SeedRequest};
use hopbine_proto::graph::{EfSearch, Embedder, GraphInfo};
use hopbine_proto::status::Problem;
use hopbine_proto::{EntityId, limits};
use std::sync::Arc;

/// Ways kept per retrieval over all its hops: at 80 bytes each, 160 MB at most.
const WAYS_MAX: u64 = 2_000_000;

/// Turns words into vectors for the graph at hand.
pub type Embed<'a> = &'a dyn Fn(&GraphInfo, Tokenizer, &str) -> Vec<f32>;

/// Embeds without remembering anything between calls.
pub fn embed_afresh(graph: &GraphInfo, tokenizer: Tokenizer, text: &str) -> Vec<f32> {
    Lexical::new(tokenizer, graph.config.vector.dim as usize).embed(text)
}

/// The plan of a `graph_rag` request.
pub fn graph_rag(
    graph: &GraphInfo,
    request: &GraphRagRequest,
    embed: Embed<'_>,
    allow_partial: bool,
) -> Result<Plan, Problem> {
    let query = question(graph, &request.query, embed)?;
    let filter = optional_filter(graph, request.filter.as_ref())?;
    let hops = hops(graph, &request.relation_path, request.hop_weights.as_deref())?;
    let ann_k = count_u32(request.ann_k, limits::TOP_K_MAX, "/ann_k")?;
    let top_k = count_u32(request.top_k, limits::TOP_K_MAX, "/top_k")?;
    if !is_weight(request.seed_weight) {
        return Err(invalid("/seed_weight", no_weight()));
    }
    let seed_relations = relations(graph, request.seed_relations.as_deref(), "/seed_relations")?;
    let fixed = seed_mode(graph, request.ef_search, request.exact_seeds)?;
    let starts = if !request.query.entities.is_empty() {
        if hops.is_empty() {
            let detail = "known starting points need at least one hop";
            return Err(invalid("/relation_path", detail));
        }
        Starts::Entities(entities(graph, &request.query.entities, "/query/entities")?)
    } else {
        let Some(query) = query.clone() else { return Err(no_question()) };
        let mode = request.seed_mode.unwrap_or(fixed);
        let relations = seed_relations;
        let ask = SeedRequest { query, k: ann_k, relations, filter: filter.clone(), mode };
        Starts::Seeds { ask: Arc::new(ask), on: request.seed_on, weight: request.seed_weight }
    };
    let output = match query {
        Some(_) => Output::Top { top_k, score: request.score_mode },
        None => Output::Page { limit: top_k, after: None },
    };
    bounded(Plan {
        query,
        starts,
        hops,
        filter,
        limit_per_entity: limit_per_entity(request.limit_per_entity)?,
        beam: count_u32(request.beam, limits::BEAM_MAX, "/beam")?,
        limit_rows: count(request.limit_rows, limits::LIMIT_ROWS_MAX, "/limit_rows")?,
        return_to_start: request.return_to_start,
        output,
        with: request.with,
        allow_partial,
    })
}

/// The plan of a `search` request: seeds without hops.
pub fn search(
    graph: &GraphInfo,
    request: &SearchRequest,
    embed: Embed<'_>,
    allow_partial: bool,
) -> Result<Plan, Problem> {
    let query = vector_question(graph, &request.query, embed)?;
    let k = count_u32(request.k, limits::TOP_K_MAX, "/k")?;
    let fixed = seed_mode(graph, request.ef_search, request.exact)?;
    let ask = SeedRequest {
        query: query.clone(),
        k,
        relations: relations(graph, request.relations.as_deref(), "/relations")?,
        filter: optional_filter(graph, request.filter.as_ref())?,
        mode: request.seed_mode.unwrap_or(fixed),
    };
    Ok(Plan {
        query: Some(query),
        filter: ask.filter.clone(),
        starts: Starts::Seeds { ask: Arc::new(ask), on: Default::default(), weight: 1.0 },
        hops: Vec::new(),
        limit_per_entity: limits::LIMIT_PER_ENTITY_DEFAULT,
        beam: limits::BEAM_DEFAULT,
        limit_rows: limits::LIMIT_ROWS_DEFAULT,
        return_to_start: false,
        output: Output::Top { top_k: k, score: Default::default() },
        with: request.with,
        allow_partial,
    })
}

/// The plan of an `expand` request; `after` is the last key of the page before.
pub fn expand(
    graph: &GraphInfo,
    request: &ExpandRequest,
    after: Option<hopbine_proto::FactKey>,
    embed: Embed<'_>,
    allow_partial: bool,
) -> Result<Plan, Problem> {
    if request.from.is_empty() {
        return Err(invalid("/from", "needs at least one entity"));
    }
    let starts = Starts::Entities(entities(graph, &request.from, "/from")?);
    let hops = hops(graph, &request.relation_path, request.hop_weights.as_deref())?;
    if hops.is_empty() {
        return Err(invalid("/relation_path", "needs at least one hop"));
    }
    let query = match &request.query {
        None => None,
        Some(query) => Some(vector_question(graph, query, embed)?),
    };
    let top_k = request.top_k.map(|k| count_u32(k, limits::TOP_K_MAX, "/top_k")).transpose()?;
    let page =
        request.page_size.map(|n| count_u32(n, limits::PAGE_SIZE_MAX, "/page_size")).transpose()?;
    let output = match query {
        Some(_) if page.is_some() || request.page_token.is_some() => {
            let place = if page.is_some() { "/page_size" } else { "/page_token" };
            return Err(invalid(place, "an answer with a question is one page, cut by top_k"));
        }
        Some(_) => Output::Top { top_k: top_k.unwrap_or(10), score: request.score_mode },
        None => Output::Page { limit: page.or(top_k).unwrap_or(limits::PAGE_SIZE_DEFAULT), after },
    };
    bounded(Plan {
        query,
        starts,
        hops,
        filter: optional_filter(graph, request.filter.as_ref())?,
        limit_per_entity: limit_per_entity(request.limit_per_entity)?,
        beam: count_u32(request.beam, limits::BEAM_MAX, "/beam")?,
        limit_rows: count(request.limit_rows, limits::LIMIT_ROWS_MAX, "/limit_rows")?,
        return_to_start: request.return_to_start,
        output,
        with: request.with,
        allow_partial,
    })
}

/// The vector of a question that must have one and may not name entities.
pub fn vector_question(
    graph: &GraphInfo,
    query: &Query,
    embed: Embed<'_>,
) -> Result<Arc<[f32]>, Problem> {
    if !query.entities.is_empty() {
        return Err(invalid("/query/entities", "this call takes no starting points here"));
    }
    question(graph, query, embed)?.ok_or_else(no_question)
}

fn no_question() -> Problem {
    invalid("/query", "needs an embedding or a text")
}

/// The question's vector: as given, or made from its text, or none.
fn question(
    graph: &GraphInfo,
    query: &Query,
    embed: Embed<'_>,
) -> Result<Option<Arc<[f32]>>, Problem> {
    let space = &graph.config.vector;
    if let Some(text) = &query.text
        && text.len() > limits::QUERY_TEXT_BYTES_MAX
    {
        let detail = format!("a text has at most {} bytes", limits::QUERY_TEXT_BYTES_MAX);
        return Err(invalid("/query/text", detail));
    }
    if let Some(given) = &query.embedding {
        vector(given, space.dim, space.metric, || "/query/embedding".into())?;
        return Ok(Some(given.clone()));
    }
    let Some(text) = &query.text else { return Ok(None) };
    let Some(tokenizer) = Tokenizer::of(&graph.config.embedder) else {
        let detail = match graph.config.embedder {
            Embedder::Http(_) => "this graph's embedder is not built in; give the embedding",
            _ => "this graph has no embedder; give the embedding",
        };
        return Err(invalid("/query/text", detail));
    };
    if text.trim().is_empty() {
        return Err(invalid("/query/text", "the text is empty"));
    }
    let made = embed(graph, tokenizer, text);
    if made.iter().all(|x| *x == 0.0) {
        let detail = "the text embeds to the zero vector: it has only stop words";
        return Err(invalid("/query/text", detail));
    }
    Ok(Some(made.into()))
}

fn optional_filter(
    graph: &GraphInfo,
    value: Option<&serde_json::Value>,
) -> Result<Option<Arc<hopbine_proto::filter::Filter>>, Problem> {
    value.map_or(Ok(None), |value| filter::filter(graph, value, "/filter"))
}

fn relations(
    graph: &GraphInfo,
    list: Option<&[RelationRef]>,
    pointer: &str,
) -> Result<Relations, Problem> {
    match list {
        None => Ok(Relations::Any),
        Some([]) => Err(invalid(pointer, "needs at least one relation")),
        Some(list) => Ok(Relations::Of(names::relation_ids(graph, list, pointer)?)),
    }
}

fn hops(
    graph: &GraphInfo,
    path: &[HopRelations],
    weights: Option<&[f64]>,
) -> Result<Vec<Hop>, Problem> {
    if path.len() > limits::HOPS_MAX {
        let detail = format!("at most {} hops, not {}", limits::HOPS_MAX, path.len());
        return Err(invalid("/relation_path", detail));
    }
    if let Some(weights) = weights {
        if weights.len() != path.len() {
            let detail = format!("needs one weight per hop: {}, not {}", path.len(), weights.len());
            return Err(invalid("/hop_weights", detail));
        }
        if let Some(place) = weights.iter().position(|weight| !is_weight(*weight)) {
            return Err(invalid(format!("/hop_weights/{place}"), no_weight()));
        }
    }
    let mut hops = Vec::with_capacity(path.len());
    for (i, element) in path.iter().enumerate() {
        let place = format!("/relation_path/{i}");
        let relations = match element {
            HopRelations::Any => Relations::Any,
            // Users write one relation without a list around it.
            HopRelations::Of(list) if list.len() == 1 => {
                Relations::Of(vec![names::relation_id(graph, &list[0], || place)?])
            }
            HopRelations::Of(list) => relations(graph, Some(list), &place)?,
        };
        hops.push(Hop { relations, weight: weights.map_or(1.0, |weights| weights[i]) });
    }
    Ok(hops)
}

fn is_weight(weight: f64) -> bool {
    weight.abs() <= limits::WEIGHT_MAX
}

fn no_weight() -> String {
    format!("must be a number of size {:e} at most", limits::WEIGHT_MAX)
}

fn entities(
    graph: &GraphInfo,
    list: &[EntityRef],
    pointer: &str,
) -> Result<Vec<EntityId>, Problem> {
    if list.len() > limits::FROM_MAX {
        let detail = format!("at most {} entities, not {}", limits::FROM_MAX, list.len());
        return Err(invalid(pointer, detail));
    }
    let mut ids = Vec::with_capacity(list.len());
    for (i, entity) in list.iter().enumerate() {
        ids.push(names::entity_id(graph.config.ids, entity, || format!("{pointer}/{i}"))?);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

fn seed_mode(
    graph: &GraphInfo,
    ef_search: Option<EfSearch>,
    exact: bool,
) -> Result<SeedMode, Problem> {
    if let Some(EfSearch::Fixed(ef)) = ef_search {
        count(ef.into(), limits::EF_MAX.into(), "/ef_search")?;
    }
    Ok(match ef_search.unwrap_or(graph.config.index.ef_search) {
        _ if exact => SeedMode::Exact,
        EfSearch::Auto => SeedMode::Auto,
        EfSearch::Fixed(ef) => SeedMode::Graph { ef },
    })
}

fn limit_per_entity(value: u64) -> Result<u32, Problem> {
    count_u32(value, u32::MAX, "/limit_per_entity")
}

/// Refuses a plan whose kept ways could outgrow their bound.
fn bounded(plan: Plan) -> Result<Plan, Problem> {
    if plan.ways() > WAYS_MAX {
        let most = WAYS_MAX / (plan.ways() / u64::from(plan.beam));
        let detail = format!("at most {most} with {} hops", plan.hops.len());
        return Err(invalid("/beam", detail));
    }
    Ok(plan)
}
