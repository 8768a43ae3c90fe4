//! Writes at the door: facts and keys become operations in key order, checked as a whole.

use super::vector;
use crate::names::{self, invalid, problem_at};
use crate::request::{EntityRef, FactInput, KeyRef, RelationRef};
use hopbine_proto::call::WriteOp;
use hopbine_proto::graph::{GraphInfo, IdKind};
use hopbine_proto::score::Metric;
use hopbine_proto::status::{Code, Problem};
use hopbine_proto::{EntityId, Fact, FactKey, Names, RelationId, limits};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Bytes that a fact costs besides its parts: key, lengths, bookkeeping.
const FACT_BYTES: usize = 64;

/// Where the two lists of a write stand in the request.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// The list of facts.
    pub upsert: &'static str,
    /// The list of keys.
    pub delete: &'static str,
}

/// A checked batch.
#[derive(Debug, Default)]
pub struct Batch {
    /// No key twice, ascending by key.
    pub ops: Vec<WriteOp>,
    /// Relation names that the graph does not know yet, sorted.
    pub new_relations: Vec<String>,
    /// The keys to delete in request order; `None`: no fact can have the key.
    pub deletes: Vec<Option<FactKey>>,
}

/// Checks a batch whole: ids, vectors, payloads, sizes, keys given twice, two names of one id.
pub fn batch(
    graph: &GraphInfo,
    upserts: Vec<FactInput>,
    deletes: &[KeyRef],
    places: Places,
) -> Result<Batch, Problem> {
    if upserts.is_empty() && deletes.is_empty() {
        let place = if places.upsert.is_empty() { places.delete } else { places.upsert };
        return Err(invalid(place, "the batch is empty"));
    }
    if deletes.len() > limits::KEYS_MAX {
        let detail = format!("at most {} keys, not {}", limits::KEYS_MAX, deletes.len());
        return Err(invalid(places.delete, detail));
    }
    refuse_colliding_names(graph, &upserts, deletes, places)?;
    let mut relations = Relations { graph, new: HashMap::new(), known_ids: None };
    let mut placed = Vec::with_capacity(upserts.len() + deletes.len());
    let mut bytes = 0;
    for (i, input) in upserts.into_iter().enumerate() {
        let place = || format!("{}/{i}", places.upsert);
        let relation = input.key.relation.clone();
        let fact = fact(graph, input, place)?;
        relations.note(&relation, place)?;
        bytes += fact_bytes(&fact);
        placed.push((WriteOp::Upsert(fact), true, i));
    }
    if bytes > limits::WRITE_BYTES_MAX {
        let detail = format!("a batch has at most {} bytes, not {bytes}", limits::WRITE_BYTES_MAX);
        return Err(problem_at(Code::PayloadTooLarge, places.upsert, detail));
    }
    let mut keys = Vec::with_capacity(deletes.len());
    for (i, key) in deletes.iter().enumerate() {
        let id = names::any_fact_key(graph, key, || format!("{}/{i}", places.delete))?;
        let key = relations.is_own(&key.relation, id.relation).then_some(id);
        placed.extend(key.map(|key| (WriteOp::Delete(key), false, i)));
        keys.push(key);
    }
    let ops = in_key_order(placed, places)?;
    Ok(Batch { ops, new_relations: relations.into_names(), deletes: keys })
}

/// Sorts by key; a key given twice is refused where it comes the second time.
fn in_key_order(
    mut placed: Vec<(WriteOp, bool, usize)>,
    places: Places,
) -> Result<Vec<WriteOp>, Problem> {
    // Upserts before deletes and both in request order, so the second of a pair is found.
    placed.sort_by_key(|(op, ..)| op.first_key());
    for pair in placed.windows(2) {
        if pair[0].0.first_key() == pair[1].0.first_key() {
            let (_, upsert, i) = &pair[1];
            let list = if *upsert { places.upsert } else { places.delete };
            return Err(invalid(format!("{list}/{i}"), "this key is twice in the batch"));
        }
    }
    Ok(placed.into_iter().map(|(op, ..)| op).collect())
}

fn fact(graph: &GraphInfo, input: FactInput, place: impl Fn() -> String) -> Result<Fact, Problem> {
    let kind = graph.config.ids;
    let FactInput { key, embedding, payload } = input;
    let id = FactKey {
        entity: names::entity_id(kind, &key.entity, || place() + "/entity")?,
        relation: names::new_relation_id(kind, &key.relation, || place() + "/relation")?,
        target: names::entity_id(kind, &key.target, || place() + "/target")?,
    };
    let names = match (key.entity, key.target) {
        (EntityRef::Name(entity), EntityRef::Name(target)) => Some(Names { entity, target }),
        _ => None,
    };
    embedding_fits(graph, embedding.as_deref(), || place() + "/embedding")?;
    let payload = match payload {
        None => None,
        Some(raw) => Some(payload_text(graph, raw.get(), || place() + "/payload")?),
    };
    Ok(Fact { key: id, names, embedding, payload })
}

fn embedding_fits(
    graph: &GraphInfo,
    embedding: Option<&[f32]>,
    place: impl Fn() -> String,
) -> Result<(), Problem> {
    let space = &graph.config.vector;
    match embedding {
        Some(embedding) => vector(embedding, space.dim, space.metric, place),
        None if space.required => {
            Err(invalid(place(), "this graph requires an embedding in every fact"))
        }
        None if space.metric != Metric::Cosine => {
            let detail = "only under cosine has a fact without embedding a distance";
            Err(invalid(place(), detail))
        }
        None => Ok(()),
    }
}

fn payload_text(
    graph: &GraphInfo,
    text: &str,
    place: impl Fn() -> String,
) -> Result<Arc<str>, Problem> {
    let max = graph.config.payload_bytes_max as usize;
    if text.len() > max {
        let detail = format!("a payload has at most {max} bytes, not {}", text.len());
        return Err(problem_at(Code::PayloadTooLarge, place(), detail));
    }
    match serde_json::from_str::<Readable>(text) {
        Ok(_) => Ok(text.into()),
        Err(error) => Err(invalid(place(), format!("cannot be read back: {error}"))),
    }
}

fn fact_bytes(fact: &Fact) -> usize {
    let names = fact.names.as_ref().map_or(0, |names| names.entity.len() + names.target.len());
    let embedding = fact.embedding.as_ref().map_or(0, |embedding| embedding.len() * 4);
    let payload = fact.payload.as_ref().map_or(0, |payload| payload.len());
    FACT_BYTES + names + embedding + payload
}

/// Names of relations that a batch needs and the graph lacks.
struct Relations<'a> {
    graph: &'a GraphInfo,
    new: HashMap<RelationId, Arc<str>>,
    /// Ids of the graph's relations, once a name that it lacks has been met.
    known_ids: Option<HashSet<RelationId>>,
}

impl Relations<'_> {
    /// Whether `id` stands for this relation and for none of another name. That the graph lacks
    /// the name does not matter: a key to delete stays part of its batch, whether or not the same
    /// batch, or an earlier try of it, brings the relation.
    fn is_own(&mut self, relation: &RelationRef, id: RelationId) -> bool {
        let RelationRef::Name(name) = relation else { return true };
        if self.graph.relations.contains_key(&**name) {
            return true;
        }
        let graph = self.graph;
        let ids = || graph.relations.values().copied().collect();
        let taken = self.known_ids.get_or_insert_with(ids).contains(&id);
        !taken && self.new.get(&id).is_none_or(|new| new == name)
    }

    fn note(&mut self, relation: &RelationRef, place: impl Fn() -> String) -> Result<(), Problem> {
        let RelationRef::Name(name) = relation else { return Ok(()) };
        if self.graph.relations.contains_key(&**name) {
            return Ok(());
        }
        let place = || place() + "/relation";
        let id = names::new_relation_id(self.graph.config.ids, relation, place)?;
        match self.new.entry(id) {
            Entry::Occupied(known) if known.get() != name => {
                Err(collision(place(), &format!("relations {:?} and {name:?}", known.get())))
            }
            Entry::Occupied(_) => Ok(()),
            Entry::Vacant(free) => {
                free.insert(name.clone());
                Ok(())
            }
        }
    }

    fn into_names(self) -> Vec<String> {
        let mut names: Vec<String> = self.new.into_values().map(|name| name.to_string()).collect();
        names.sort_unstable();
        names
    }
}

fn collision(place: String, who: &str) -> Problem {
    problem_at(Code::NameCollision, place, format!("{who} have the same id"))
        .hint("rename one of them")
}

fn refuse_colliding_names(
    graph: &GraphInfo,
    upserts: &[FactInput],
    deletes: &[KeyRef],
    places: Places,
) -> Result<(), Problem> {
    if graph.config.ids != IdKind::Names {
        return Ok(());
    }
    let mut known: HashMap<EntityId, &str> = HashMap::with_capacity(2 * upserts.len());
    let upserted = upserts.iter().map(|input| &input.key).enumerate();
    let deleted = deletes.iter().enumerate();
    let keys = upserted.map(|(i, key)| (places.upsert, i, key));
    for (list, i, key) in keys.chain(deleted.map(|(i, key)| (places.delete, i, key))) {
        for (column, entity) in [("entity", &key.entity), ("target", &key.target)] {
            let EntityRef::Name(name) = entity else { continue };
            let first = *known.entry(hopbine_proto::name_id(name)).or_insert(name);
            if first != &**name {
                let place = format!("{list}/{i}/{column}");
                return Err(collision(place, &format!("{first:?} and {name:?}")));
            }
        }
    }
    Ok(())
}

/// Any JSON that a filter can read later: numbers within range, nesting within the parser's depth.
/// Nothing is kept.
struct Readable;

impl<'de> Deserialize<'de> for Readable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReadableVisitor)
    }
}

struct ReadableVisitor;

impl<'de> Visitor<'de> for ReadableVisitor {
    type Value = Readable;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Readable, E> {
        Ok(Readable)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Readable, E> {
        Ok(Readable)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Readable, E> {
        Ok(Readable)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Readable, E> {
        Ok(Readable)
    }

    fn visit_str<E>(self, _: &str) -> Result<Readable, E> {
        Ok(Readable)
    }

    fn visit_unit<E>(self) -> Result<Readable, E> {
        Ok(Readable)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Readable, A::Error> {
        while list.next_element::<Readable>()?.is_some() {}
        Ok(Readable)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Readable, A::Error> {
        while fields.next_entry::<Readable, Readable>()?.is_some() {}
        Ok(Readable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::GraphId;
    use hopbine_proto::graph::GraphConfig;
    use proptest::prelude::*;
    use serde_json::value::RawValue;
    use std::collections::BTreeMap;

    const PLACES: Places = Places { upsert: "/upsert", delete: "/delete" };

    fn graph(kind: IdKind) -> GraphInfo {
        GraphInfo {
            id: GraphId(1),
            name: "g".into(),
            config: GraphConfig::new(2, kind),
            version: 1,
            relations: BTreeMap::new(),
            shards: Vec::new(),
        }
    }

    fn key(entity: u64, relation: u64, target: u64) -> KeyRef {
        KeyRef {
            entity: EntityRef::Number(entity),
            relation: RelationRef::Number(relation),
            target: EntityRef::Number(target),
        }
    }

    fn named(entity: &str, relation: &str, target: &str) -> KeyRef {
        KeyRef {
            entity: EntityRef::Name(entity.into()),
            relation: RelationRef::Name(relation.into()),
            target: EntityRef::Name(target.into()),
        }
    }

    fn input(key: KeyRef, embedding: Option<&[f32]>, payload: Option<&str>) -> FactInput {
        let raw = |text: &str| RawValue::from_string(text.into()).expect("raw JSON");
        FactInput { key, embedding: embedding.map(Into::into), payload: payload.map(raw) }
    }

    fn refusal(graph: &GraphInfo, upserts: Vec<FactInput>, deletes: &[KeyRef]) -> (Code, String) {
        let problem = batch(graph, upserts, deletes, PLACES).expect_err("a bad batch");
        (problem.code, problem.errors[0].pointer.clone())
    }

    #[test]
    fn every_bad_row_names_itself() {
        let graph = graph(IdKind::U64);
        let good = || input(key(1, 1, 1), Some(&[1.0, 0.0]), None);
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        let long = format!("\"{}\"", "x".repeat(limits::PAYLOAD_BYTES_MAX));
        for (bad, code, place) in [
            (input(named("a", "b", "c"), None, None), Code::InvalidRequest, "/entity"),
            (input(key(1, 1 << 40, 1), None, None), Code::InvalidRequest, "/relation"),
            (input(key(2, 1, 1), Some(&[1.0]), None), Code::DimensionMismatch, "/embedding"),
            (input(key(2, 1, 1), Some(&[1.0, f32::NAN]), None), Code::NotFinite, "/embedding/1"),
            (input(key(2, 1, 1), Some(&[0.0, -0.0]), None), Code::NotFinite, "/embedding"),
            (input(key(2, 1, 1), None, Some("1e999")), Code::InvalidRequest, "/payload"),
            (input(key(2, 1, 1), None, Some(&deep)), Code::InvalidRequest, "/payload"),
            (input(key(2, 1, 1), None, Some(&long)), Code::PayloadTooLarge, "/payload"),
            (input(key(1, 1, 1), None, None), Code::InvalidRequest, ""),
        ] {
            let shown = format!("{bad:?}");
            let found = refusal(&graph, vec![good(), bad], &[]);
            assert_eq!(found, (code, format!("/upsert/1{place}")), "{shown}");
        }
        assert_eq!(refusal(&graph, vec![], &[]), (Code::InvalidRequest, "/upsert".into()));
        let twice = refusal(&graph, vec![good()], &[key(1, 1, 1)]);
        assert_eq!(twice, (Code::InvalidRequest, "/delete/0".into()));
    }

    #[test]
    fn a_fact_without_embedding_needs_a_metric_that_bears_it() {
        let mut graph = graph(IdKind::U64);
        let bare = || vec![input(key(1, 1, 1), None, None)];
        assert!(batch(&graph, bare(), &[], PLACES).is_ok());
        graph.config.vector.required = true;
        let place = "/upsert/0/embedding".to_owned();
        assert_eq!(refusal(&graph, bare(), &[]), (Code::InvalidRequest, place.clone()));
        graph.config.vector.required = false;
        graph.config.vector.metric = Metric::L2;
        assert_eq!(refusal(&graph, bare(), &[]), (Code::InvalidRequest, place));
        // Under L2 and dot a zero vector is as good as any other.
        assert!(
            batch(&graph, vec![input(key(1, 1, 1), Some(&[0.0, 0.0]), None)], &[], PLACES).is_ok()
        );
    }

    #[test]
    fn a_batch_that_is_too_large_is_refused_whole() {
        let mut graph = graph(IdKind::U64);
        graph.config.payload_bytes_max = 2 << 20;
        let large = format!("\"{}\"", "x".repeat(1 << 20));
        let facts = (0..64).map(|i| input(key(i, 1, 1), None, Some(&large))).collect();
        assert_eq!(refusal(&graph, facts, &[]).0, Code::PayloadTooLarge);
    }

    #[test]
    fn a_batch_is_the_same_before_and_after_its_relations_are_registered() {
        let mut graph = graph(IdKind::Names);
        let upserts = || vec![input(named("a", "new", "b"), None, None)];
        let deletes = [named("c", "new", "d"), named("c", "never", "d")];
        let before = batch(&graph, upserts(), &deletes, PLACES).expect("good");
        graph.relations.insert("new".into(), hopbine_proto::relation_name_id("new"));
        let after = batch(&graph, upserts(), &deletes, PLACES).expect("good");
        assert_eq!((before.ops, before.deletes), (after.ops, after.deletes));
    }

    #[test]
    fn a_key_twice_is_refused_though_its_relation_is_new() {
        let graph = graph(IdKind::Names);
        let key = || named("a", "new", "b");
        let twice = refusal(&graph, vec![input(key(), None, None)], &[key()]);
        assert_eq!(twice, (Code::InvalidRequest, "/delete/0".to_owned()));
        let twice = refusal(&graph, Vec::new(), &[key(), key()]);
        assert_eq!(twice, (Code::InvalidRequest, "/delete/1".to_owned()));
    }

    #[test]
    fn names_become_ids_and_new_relations_are_told() {
        let graph = graph(IdKind::Names);
        let facts = vec![
            input(named("a", "knows", "b"), None, Some("{\"x\": 1}")),
            input(named("a", "likes", "b"), None, None),
        ];
        let batch = batch(&graph, facts, &[named("a", "gone", "b")], PLACES).expect("good");
        assert_eq!(batch.new_relations, ["knows", "likes"]);
        assert_eq!(batch.ops.len(), 3);
        let deleted = batch.ops.iter().find(|op| matches!(op, WriteOp::Delete(_)));
        assert_eq!(batch.deletes, [deleted.map(WriteOp::first_key)]);
        let number = vec![input(key(1, 1, 1), None, None)];
        assert_eq!(refusal(&graph, number, &[]).1, "/upsert/0/entity");
        let star = vec![input(named("*", "*", "*"), None, None)];
        assert_eq!(refusal(&graph, star, &[]).1, "/upsert/0/relation");
    }

    #[test]
    fn two_relations_of_one_id_are_a_collision() {
        // Names "r<i>" are tried until two share the 32-bit hash: about 80,000 are enough.
        let mut seen: HashMap<RelationId, String> = HashMap::new();
        let (first, second) = (0..)
            .find_map(|i| {
                let name = format!("r{i}");
                let id = hopbine_proto::relation_name_id(&name);
                seen.insert(id, name.clone()).map(|before| (before, name))
            })
            .expect("two names of one id");
        let facts = [first, second].map(|name| input(named("a", &name, "b"), None, None));
        let found = refusal(&graph(IdKind::Names), facts.into(), &[]);
        assert_eq!(found, (Code::NameCollision, "/upsert/1/relation".into()));
    }

    proptest! {
        #[test]
        fn a_good_batch_comes_out_in_key_order_with_every_fact(
            keys in proptest::collection::btree_set((0u64..5, 0u64..3, 0u64..5), 1..20),
            turn in 0usize..20,
        ) {
            let mut keys: Vec<_> = keys.into_iter().collect();
            let sorted: Vec<FactKey> =
                keys.iter().map(|(e, r, t)| FactKey::new(*e, *r as u32, *t)).collect();
            let middle = turn % keys.len();
            keys.rotate_left(middle);
            let upserts = keys.iter().map(|(e, r, t)| input(key(*e, *r, *t), None, None)).collect();
            let batch = batch(&graph(IdKind::U64), upserts, &[], PLACES).expect("good");
            let found: Vec<FactKey> = batch.ops.iter().map(WriteOp::first_key).collect();
            prop_assert_eq!(found, sorted);
        }
    }
}
