//! Messages into requests. Faults carry the JSON pointer that they would have over HTTP.

use super::call::unknown_word;
use crate::request::{
    CountRequest, DeleteRequest, EntityRef, ExpandRequest, FactInput, GetRequest, GraphRagRequest,
    HopRelations, KeyRef, PrefixRef, Query, RelationRef, RerankRequest, ScanRequest, SearchRequest,
    SeedOn, WithParts,
};
use crate::server::decode::values::{invalid, required};
use crate::server::decode::{facts::payload_text, values};
use crate::server::json::{Read, Refusal, Room, read_within};
use hopbine_proto::convert::{self, v1};
use hopbine_proto::graph::{EfSearch, IdKind};
use hopbine_proto::limits;
use hopbine_proto::score::ScoreMode;
use serde_json::Value;
use std::sync::Arc;

/// What a fact or a key comes to in memory besides its texts and its vector, in all its forms: as
/// over HTTP, and as its message besides.
pub const ROW_BYTES: usize = 640;

/// Where and how a request is read.
pub struct Reader<'a> {
    /// What it takes.
    pub room: &'a mut Room,
    /// How its graph writes ids.
    pub ids: IdKind,
}

fn in_list<T, U>(
    name: &str,
    most: usize,
    list: Vec<T>,
    mut each: impl FnMut(T) -> Read<U>,
) -> Read<Vec<U>> {
    if list.len() > most {
        return Err(invalid(format!("at most {most} elements, not {}", list.len())).within(name));
    }
    let within = |(place, item)| each(item).map_err(|fault: Refusal| fault.within(place));
    let read: Read<Vec<U>> = list.into_iter().enumerate().map(within).collect();
    read.map_err(|fault| fault.within(name))
}

/// An entity or target.
pub fn entity(id: v1::Id) -> Read<EntityRef> {
    match id.id {
        Some(v1::id::Id::Name(name)) => Ok(EntityRef::Name(name.into())),
        Some(v1::id::Id::Number(number)) => Ok(EntityRef::Number(number)),
        None => Err(invalid("the id is empty")),
    }
}

/// A relation.
pub fn relation(id: v1::Id) -> Read<RelationRef> {
    match id.id {
        Some(v1::id::Id::Name(name)) => Ok(RelationRef::Name(name.into())),
        Some(v1::id::Id::Number(number)) => Ok(RelationRef::Number(number)),
        None => Err(invalid("the id is empty")),
    }
}

fn field<T>(id: Option<v1::Id>, name: &str, read: impl FnOnce(v1::Id) -> Read<T>) -> Read<T> {
    required(id, name).and_then(|id| read(id).map_err(|fault| fault.within(name)))
}

fn key(key: v1::FactKey) -> Read<KeyRef> {
    Ok(KeyRef {
        entity: field(key.entity, "entity", entity)?,
        relation: field(key.relation, "relation", relation)?,
        target: field(key.target, "target", entity)?,
    })
}

fn relations(list: Vec<v1::Id>) -> Read<Vec<RelationRef>> {
    in_list("relations", limits::RELATIONS_MAX, list, relation)
}

fn path(list: Vec<v1::Hop>) -> Read<Vec<HopRelations>> {
    in_list("relation_path", limits::HOPS_MAX, list, |hop| match hop.relations.as_slice() {
        [] => Ok(HopRelations::Any),
        [one] if is_any(one) => Ok(HopRelations::Any),
        _ => relations(hop.relations).map(HopRelations::Of),
    })
}

/// Whether an id is `*`, which is no name.
fn is_any(id: &v1::Id) -> bool {
    matches!(&id.id, Some(v1::id::Id::Name(name)) if name == "*")
}

fn embedding(bytes: &[u8]) -> Read<Arc<[f32]>> {
    let read = convert::embedding(bytes).map_err(|problem| invalid(problem.detail));
    Ok(read.map_err(|fault| fault.within("embedding"))?.into())
}

/// Parts of facts, `payload` alone where nothing is said.
fn parts(parts: Option<v1::Parts>) -> WithParts {
    parts.map_or(WithParts::PAYLOAD, |parts| WithParts {
        payload: parts.payload,
        vector: parts.vector,
        path_payloads: parts.path_payloads,
        version: parts.version,
    })
}

/// The same where there are no paths.
fn fact_parts(given: Option<v1::Parts>) -> Read<WithParts> {
    let parts = parts(given);
    if parts.path_payloads {
        return Err(invalid("there are no paths here").within("path_payloads").within("parts"));
    }
    Ok(parts)
}

fn score_mode(mode: i32) -> Read<ScoreMode> {
    match mode {
        0 | 1 => Ok(ScoreMode::Path),
        2 => Ok(ScoreMode::Endpoint),
        other => Err(unknown_word("score_mode", other)),
    }
}

/// A search beam; 0 stands for the automatic choice.
pub fn ef_search(beam: Option<u32>) -> Option<EfSearch> {
    beam.map(|beam| if beam == 0 { EfSearch::Auto } else { EfSearch::Fixed(beam) })
}

fn weights(weights: Vec<f64>) -> Option<Vec<f64>> {
    (!weights.is_empty()).then_some(weights)
}

fn query(query: Option<v1::Query>, entities: bool) -> Read<Query> {
    let given = required(query, "query")?;
    let read = || {
        if let Some(text) = &given.text
            && text.len() > limits::QUERY_TEXT_BYTES_MAX
        {
            let most = limits::QUERY_TEXT_BYTES_MAX;
            return Err(invalid(format!("the text is longer than {most} bytes")).within("text"));
        }
        if !entities && !given.entities.is_empty() {
            return Err(invalid("known entities start graph_rag alone").within("entities"));
        }
        let embedding = given.embedding.map(|bytes| embedding(&bytes)).transpose()?;
        let entities = in_list("entities", limits::FROM_MAX, given.entities, entity)?;
        Ok(Query { embedding, text: given.text, entities })
    };
    read().map_err(|fault: Refusal| fault.within("query"))
}

impl Reader<'_> {
    fn fact(&mut self, fact: v1::Fact) -> Read<FactInput> {
        let payload = fact.payload.map(|text| {
            let read = read_within(self.room, text.as_bytes(), self.ids, payload_text);
            read.map_err(|fault| fault.within("payload"))
        });
        Ok(FactInput {
            key: KeyRef {
                entity: field(fact.entity, "entity", entity)?,
                relation: field(fact.relation, "relation", relation)?,
                target: field(fact.target, "target", entity)?,
            },
            embedding: fact.embedding.map(|bytes| embedding(&bytes)).transpose()?,
            payload: payload.transpose()?.flatten(),
        })
    }

    /// The facts of the list `name`.
    pub fn facts(&mut self, name: &str, facts: Vec<v1::Fact>) -> Read<Vec<FactInput>> {
        in_list(name, usize::MAX, facts, |fact| self.fact(fact))
    }

    /// The keys of the list `name`.
    pub fn keys(&mut self, name: &str, keys: Vec<v1::FactKey>) -> Read<Vec<KeyRef>> {
        in_list(name, limits::KEYS_MAX, keys, key)
    }

    fn prefix(&mut self, prefix: Option<v1::Prefix>) -> Read<Option<PrefixRef>> {
        let Some(prefix) = prefix else { return Ok(None) };
        let read = || {
            let relation = prefix.relation.map(|id| field(Some(id), "relation", relation));
            let entity = field(prefix.entity, "entity", entity)?;
            Ok(PrefixRef { entity, relation: relation.transpose()? })
        };
        read().map(Some).map_err(|fault: Refusal| fault.within("prefix"))
    }

    fn filter(&mut self, text: Option<String>) -> Read<Option<Value>> {
        let Some(text) = text else { return Ok(None) };
        let read = read_within(self.room, text.as_bytes(), self.ids, values::filter);
        read.map(Some).map_err(|fault| fault.within("filter"))
    }

    /// `Get`
    pub fn get(&mut self, request: v1::GetRequest) -> Read<GetRequest> {
        let with = fact_parts(request.parts)?;
        Ok(GetRequest { keys: self.keys("keys", request.keys)?, with })
    }

    /// `Delete`
    pub fn delete(
        &mut self,
        keys: Vec<v1::FactKey>,
        prefix: Option<v1::Prefix>,
    ) -> Read<DeleteRequest> {
        let prefix = self.prefix(prefix)?;
        match (keys.is_empty(), prefix) {
            (false, None) => Ok(DeleteRequest::Keys(self.keys("keys", keys)?)),
            (true, Some(prefix)) => Ok(DeleteRequest::Prefix(prefix)),
            (true, None) => Err(invalid("keys or prefix is missing")),
            (false, Some(_)) => Err(invalid("keys and prefix exclude each other").within("prefix")),
        }
    }

    /// `Scan`
    pub fn scan(&mut self, request: v1::ScanRequest) -> Read<ScanRequest> {
        Ok(ScanRequest {
            prefix: self.prefix(request.prefix)?,
            filter: self.filter(request.filter)?,
            page_size: request.page_size,
            page_token: request.page_token,
            with: fact_parts(request.parts)?,
        })
    }

    /// `Count`
    pub fn count(
        &mut self,
        prefix: Option<v1::Prefix>,
        filter: Option<String>,
    ) -> Read<CountRequest> {
        Ok(CountRequest { prefix: self.prefix(prefix)?, filter: self.filter(filter)? })
    }

    /// `GraphRag`
    pub fn graph_rag(&mut self, request: v1::GraphRagRequest) -> Read<GraphRagRequest> {
        let default = GraphRagRequest::default();
        let seed_relations = request
            .seed_relations
            .map(|list| in_list("seed_relations", limits::RELATIONS_MAX, list.relations, relation));
        Ok(GraphRagRequest {
            query: query(request.query, true)?,
            relation_path: path(request.relation_path)?,
            seed_on: match request.seed_on {
                0 | 1 => SeedOn::Entity,
                2 => SeedOn::Target,
                other => return Err(unknown_word("seed_on", other)),
            },
            seed_relations: seed_relations.transpose()?,
            ann_k: request.ann_k.unwrap_or(default.ann_k),
            ef_search: ef_search(request.ef_search),
            exact_seeds: request.exact_seeds,
            seed_mode: None,
            top_k: request.top_k.unwrap_or(default.top_k),
            score_mode: score_mode(request.score_mode)?,
            hop_weights: weights(request.hop_weights),
            seed_weight: request.seed_weight.unwrap_or(default.seed_weight),
            limit_per_entity: request.limit_per_entity.unwrap_or(default.limit_per_entity),
            beam: request.beam.unwrap_or(default.beam),
            limit_rows: request.limit_rows.unwrap_or(default.limit_rows),
            return_to_start: request.return_to_start,
            filter: self.filter(request.filter)?,
            with: parts(request.parts),
        })
    }

    /// `Search`
    pub fn search(&mut self, request: v1::SearchRequest) -> Read<SearchRequest> {
        let kinds = request.relations.map(|list| relations(list.relations));
        Ok(SearchRequest {
            query: query(request.query, false)?,
            k: request.k.unwrap_or(SearchRequest::default().k),
            ef_search: ef_search(request.ef_search),
            exact: request.exact,
            seed_mode: None,
            filter: self.filter(request.filter)?,
            relations: kinds.transpose()?,
            with: parts(request.parts),
        })
    }

    /// `Expand`
    pub fn expand(&mut self, request: v1::ExpandRequest) -> Read<ExpandRequest> {
        let default = ExpandRequest::default();
        let question = request.query.map(|given| query(Some(given), false));
        Ok(ExpandRequest {
            from: in_list("from", limits::FROM_MAX, request.from, entity)?,
            relation_path: path(request.relation_path)?,
            query: question.transpose()?,
            top_k: request.top_k,
            score_mode: score_mode(request.score_mode)?,
            hop_weights: weights(request.hop_weights),
            page_size: request.page_size,
            page_token: request.page_token,
            limit_rows: request.limit_rows.unwrap_or(default.limit_rows),
            limit_per_entity: request.limit_per_entity.unwrap_or(default.limit_per_entity),
            beam: request.beam.unwrap_or(default.beam),
            return_to_start: request.return_to_start,
            filter: self.filter(request.filter)?,
            with: parts(request.parts),
        })
    }

    /// `Rerank`
    pub fn rerank(&mut self, request: v1::RerankRequest) -> Read<RerankRequest> {
        let one = |path: v1::Path| {
            let most = limits::HOPS_MAX;
            if path.facts.len() > most {
                return Err(invalid(format!("at most {most} facts, not {}", path.facts.len())));
            }
            let within = |(place, fact)| key(fact).map_err(|fault: Refusal| fault.within(place));
            path.facts.into_iter().enumerate().map(within).collect::<Read<Vec<_>>>()
        };
        Ok(RerankRequest {
            query: query(request.query, false)?,
            paths: in_list("paths", limits::KEYS_MAX, request.paths, one)?,
            score_mode: score_mode(request.score_mode)?,
            top_k: request.top_k.unwrap_or(10),
        })
    }
}
