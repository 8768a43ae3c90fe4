//! From what users write to ids: names are hashed, numbers are taken, unknown relations refused.

use crate::request::{EntityRef, KeyRef, PrefixRef, RelationRef};
use hopbine_proto::graph::{GraphInfo, IdKind};
use hopbine_proto::limits;
use hopbine_proto::status::{Code, Problem};
use hopbine_proto::{EntityId, FactKey, KeyRange, RelationId, name_id, relation_name_id};

/// What may stand for an entity or target in a `u64` graph.
pub const ENTITY_NUMBERS: &str =
    "ids of this graph are whole numbers from 0 to 18446744073709551615";
/// What may stand for a relation there.
pub const RELATION_NUMBERS: &str = "relations of this graph are whole numbers from 0 to 4294967295";
/// What may stand for an entity or target in a `names` graph.
pub const ENTITY_NAMES: &str = "this graph has names as ids, not numbers";
/// What may stand for a relation there.
pub const RELATION_NAMES: &str = "this graph has names as relations, not numbers";
/// Names shown in the hint for an unknown relation.
const NEAR_NAMES_MAX: usize = 3;
/// Steps of comparing letters for one hint: about half a millisecond.
const NEAR_NAMES_STEPS_MAX: usize = 250_000;

/// A problem at one place of the request.
pub fn problem_at(code: Code, pointer: impl Into<String>, detail: impl Into<String>) -> Problem {
    let detail = detail.into();
    Problem::new(code, detail.clone()).at(pointer, detail)
}

/// An `invalid_request` at one place of the request.
pub fn invalid(pointer: impl Into<String>, detail: impl Into<String>) -> Problem {
    problem_at(Code::InvalidRequest, pointer, detail)
}

/// The id of an entity or target; `at` is its place in the request.
pub fn entity_id(
    kind: IdKind,
    entity: &EntityRef,
    at: impl FnOnce() -> String,
) -> Result<EntityId, Problem> {
    match (kind, entity) {
        (IdKind::U64, EntityRef::Number(number)) => Ok(EntityId(*number)),
        (IdKind::U64, EntityRef::Name(_)) => Err(invalid(at(), ENTITY_NUMBERS)),
        (IdKind::Names, EntityRef::Number(_)) => Err(invalid(at(), ENTITY_NAMES)),
        (IdKind::Names, EntityRef::Name(name)) => match name_fault(name) {
            None => Ok(name_id(name)),
            Some(fault) => Err(invalid(at(), fault)),
        },
    }
}

/// The id that a relation has or would have once registered; `at` is its place in the request.
pub fn new_relation_id(
    kind: IdKind,
    relation: &RelationRef,
    at: impl FnOnce() -> String,
) -> Result<RelationId, Problem> {
    match (kind, relation) {
        (IdKind::U64, RelationRef::Number(number)) => match u32::try_from(*number) {
            Ok(number) => Ok(RelationId(number)),
            Err(_) => Err(invalid(at(), RELATION_NUMBERS)),
        },
        (IdKind::U64, RelationRef::Name(_)) => Err(invalid(at(), RELATION_NUMBERS)),
        (IdKind::Names, RelationRef::Number(_)) => Err(invalid(at(), RELATION_NAMES)),
        (IdKind::Names, RelationRef::Name(name)) if &**name == "*" => {
            Err(invalid(at(), "* stands for every relation and is no name"))
        }
        (IdKind::Names, RelationRef::Name(name)) => match name_fault(name) {
            None => Ok(relation_name_id(name)),
            Some(fault) => Err(invalid(at(), fault)),
        },
    }
}

/// The id of a relation that the graph knows. In a `u64` graph every number is known.
pub fn relation_id(
    graph: &GraphInfo,
    relation: &RelationRef,
    at: impl FnOnce() -> String,
) -> Result<RelationId, Problem> {
    match relation {
        RelationRef::Name(name) if graph.config.ids == IdKind::Names => {
            match graph.relations.get(&**name) {
                Some(id) => Ok(*id),
                None if &**name == "*" || name_fault(name).is_some() => {
                    new_relation_id(graph.config.ids, relation, at)
                }
                None => Err(unknown_relation(graph, name, at())),
            }
        }
        _ => new_relation_id(graph.config.ids, relation, at),
    }
}

/// Relations of a list: sorted, distinct. `pointer` is the place of the list.
pub fn relation_ids(
    graph: &GraphInfo,
    relations: &[RelationRef],
    pointer: &str,
) -> Result<Vec<RelationId>, Problem> {
    let mut ids = Vec::with_capacity(relations.len());
    for (i, relation) in relations.iter().enumerate() {
        ids.push(relation_id(graph, relation, || format!("{pointer}/{i}"))?);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// The key behind what a user wrote, whether or not its relation was ever registered. `pointer` is
/// the place of the key.
pub fn any_fact_key(
    graph: &GraphInfo,
    key: &KeyRef,
    pointer: impl Fn() -> String,
) -> Result<FactKey, Problem> {
    let kind = graph.config.ids;
    Ok(FactKey {
        entity: entity_id(kind, &key.entity, || pointer() + "/entity")?,
        relation: new_relation_id(kind, &key.relation, || pointer() + "/relation")?,
        target: entity_id(kind, &key.target, || pointer() + "/target")?,
    })
}

/// The key behind what a user wrote, or `None` when no fact can have it, because its relation was
/// never registered. `pointer` is the place of the key.
pub fn fact_key(
    graph: &GraphInfo,
    key: &KeyRef,
    pointer: impl Fn() -> String,
) -> Result<Option<FactKey>, Problem> {
    let id = any_fact_key(graph, key, pointer)?;
    let known = match &key.relation {
        RelationRef::Name(name) => graph.relations.contains_key(&**name),
        RelationRef::Number(_) => true,
    };
    Ok(known.then_some(id))
}

/// Entity and relation of a prefix, and the keys below it.
pub fn prefix_range(
    graph: &GraphInfo,
    prefix: &PrefixRef,
    pointer: &str,
) -> Result<(EntityId, Option<RelationId>, KeyRange), Problem> {
    let entity = entity_id(graph.config.ids, &prefix.entity, || format!("{pointer}/entity"))?;
    let Some(relation) = &prefix.relation else {
        return Ok((entity, None, KeyRange::entity(entity)));
    };
    let relation = relation_id(graph, relation, || format!("{pointer}/relation"))?;
    Ok((entity, Some(relation), KeyRange::entity_relation(entity, relation)))
}

fn name_fault(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("a name is not empty".into());
    }
    let too_long = name.len() > limits::NAME_BYTES_MAX;
    too_long
        .then(|| format!("a name has at most {} bytes, not {}", limits::NAME_BYTES_MAX, name.len()))
}

fn unknown_relation(graph: &GraphInfo, name: &str, pointer: String) -> Problem {
    let problem = problem_at(
        Code::RelationNotFound,
        pointer,
        format!("graph {} has no relation {name:?}", graph.name),
    );
    let near = near_names(graph.relations.keys().map(String::as_str), name);
    if near.is_empty() {
        let hint = format!(
            "GET /v1/graphs/{0}/relations, or hopbine graph show {0} --relations, lists them",
            graph.name
        );
        return problem.hint(hint);
    }
    let near: Vec<String> = near.iter().map(|name| format!("{name:?}")).collect();
    problem.hint(format!("did you mean {}?", near.join(" or ")))
}

/// Up to three of `known` that are near to `name`, nearest first, then by name. With many or long
/// names only the first ones are looked at: a hint is worth half a millisecond.
pub fn near_names<'a>(known: impl Iterator<Item = &'a str>, name: &str) -> Vec<&'a str> {
    let wanted = name.to_lowercase();
    let mut steps = 0;
    let mut near: Vec<(usize, &str)> = known
        .filter(|candidate| candidate.len().abs_diff(name.len()) <= 1 + candidate.len() / 3)
        .take_while(|candidate| {
            steps += (candidate.len() + 1) * (wanted.len() + 1);
            steps <= NEAR_NAMES_STEPS_MAX
        })
        .map(|candidate| (edits(&candidate.to_lowercase(), &wanted), candidate))
        .filter(|(edits, candidate)| *edits <= 1 + candidate.chars().count() / 3)
        .collect();
    near.sort_unstable();
    near.truncate(NEAR_NAMES_MAX);
    near.into_iter().map(|(_, candidate)| candidate).collect()
}

/// Insertions, deletions and replacements that turn `a` into `b` (Levenshtein distance).
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::GraphId;
    use hopbine_proto::graph::GraphConfig;

    fn graph(kind: IdKind) -> GraphInfo {
        let names: &[&str] =
            if kind == IdKind::Names { &["discovered", "named_after"] } else { &[] };
        GraphInfo {
            id: GraphId(1),
            name: "g".into(),
            config: GraphConfig::new(4, kind),
            version: 1,
            relations: names.iter().map(|n| ((*n).to_owned(), relation_name_id(n))).collect(),
            shards: Vec::new(),
        }
    }

    fn name(text: &str) -> RelationRef {
        RelationRef::Name(text.into())
    }

    fn pointer() -> String {
        "/p".into()
    }

    #[test]
    fn near_names_are_looked_for_in_the_first_of_very_many() {
        let looked = std::cell::Cell::new(0);
        let long = "x".repeat(240);
        let names: Vec<String> = (0..20_000).map(|i| format!("{long}{i:05}")).collect();
        let known = names.iter().map(|name| {
            looked.set(looked.get() + 1);
            name.as_str()
        });
        assert_eq!(near_names(known, &format!("{long}0000")).len(), 3);
        assert!(looked.get() < 100, "{} names were compared", looked.get());
    }

    #[test]
    fn an_unknown_relation_is_refused_with_near_names() {
        let graph = graph(IdKind::Names);
        let problem = relation_id(&graph, &name("discoverd"), pointer).unwrap_err();
        assert_eq!(problem.code, Code::RelationNotFound);
        assert_eq!(problem.hint.as_deref(), Some("did you mean \"discovered\"?"));
        assert_eq!(problem.errors[0].pointer, "/p");
        let problem = relation_id(&graph, &name("xyz"), pointer).unwrap_err();
        assert!(problem.hint.expect("a hint").ends_with("lists them"));
    }

    #[test]
    fn the_wrong_kind_of_id_is_refused() {
        let number = EntityRef::Number(1);
        let text = EntityRef::Name("a".into());
        assert!(entity_id(IdKind::Names, &number, pointer).is_err());
        assert!(entity_id(IdKind::U64, &text, pointer).is_err());
        assert!(entity_id(IdKind::Names, &EntityRef::Name("".into()), pointer).is_err());
        let long = "x".repeat(limits::NAME_BYTES_MAX + 1);
        assert!(entity_id(IdKind::Names, &EntityRef::Name(long.into()), pointer).is_err());
        assert!(relation_id(&graph(IdKind::U64), &name("a"), pointer).is_err());
        let names = graph(IdKind::Names);
        assert!(relation_id(&names, &RelationRef::Number(1), pointer).is_err());
        let star = relation_id(&names, &name("*"), pointer).unwrap_err();
        assert_eq!(star.code, Code::InvalidRequest);
    }

    #[test]
    fn relation_numbers_end_at_32_bits() {
        let graph = graph(IdKind::U64);
        let id = |n| relation_id(&graph, &RelationRef::Number(n), pointer);
        assert_eq!(id(u64::from(u32::MAX)).expect("fits"), RelationId(u32::MAX));
        assert_eq!(id(1 << 32).unwrap_err().code, Code::InvalidRequest);
    }

    #[test]
    fn edits_are_counted() {
        for (a, b, distance) in
            [("", "", 0), ("a", "", 1), ("abc", "acb", 2), ("kitten", "sitting", 3)]
        {
            assert_eq!(edits(a, b), distance, "{a} {b}");
        }
    }
}
