//! What a person can act on: each with a code for programs, what was found, and what to do.

use super::Sizes;
use super::account::Warning;
use super::analyzed::Done;
use crate::request::{EntityRef, RelationRef};
use crate::retrieval::answer::Namer;
use crate::retrieval::trace::Trace;
use crate::retrieval::{Plan, Starts};
use hopbine_proto::RelationId;
use hopbine_proto::call::{Relations, ShardStats};
use hopbine_proto::filter::{Condition, Filter};
use hopbine_proto::graph::GraphInfo;
use std::collections::BTreeSet;

/// A tail of fewer rows, and of a smaller share of all, costs too little to mention.
const TAIL_ROWS: u64 = 10_000;
const TAIL_SHARE: f64 = 0.05;
/// Seeds below which their number of starts says nothing.
const SEEDS_MIN: u64 = 4;
/// Segments and keys named in one warning.
const NAMED_MAX: usize = 5;

/// An entity that a hop has cut.
#[derive(Clone, Debug, PartialEq)]
pub struct HubOut {
    /// The hop, from 1.
    pub hop: usize,
    /// As users write it; `None` when its name did not come.
    pub entity: Option<EntityRef>,
    /// Its facts that pass relations and filter.
    pub facts: u64,
    /// All its facts, when they were counted.
    pub degree: Option<u64>,
}

/// Warnings of a retrieval that was answered.
pub fn of_done(done: &Done<'_>) -> Vec<Warning> {
    let (tail, rows) = scanned(done.trace);
    let mut warnings: Vec<Warning> = unindexed_tail(tail, rows).into_iter().collect();
    warnings.extend(of_shape(done.plan, done.graph, done.sizes));
    warnings.extend(few_starts(done));
    let limit = done.plan.limit_per_entity;
    warnings.extend(done.hubs.iter().map(|found| hub(found, limit)));
    for line in &done.coverage.hops {
        if line.counts.cut_beam > 0 {
            let (cut, beam) = (line.counts.cut_beam, done.plan.beam);
            warnings.push(Warning {
                code: "beam",
                message: format!("hop {} cut {cut} targets beyond a beam of {beam}", line.hop),
                hint: "raise beam, or narrow the hop by relation or filter".to_owned(),
            });
        }
        if line.counts.truncated {
            warnings.push(Warning {
                code: "limit_rows",
                message: format!("hop {} stopped at limit_rows: {} read", line.hop, line.read),
                hint: "raise limit_rows, or narrow the hops before it".to_owned(),
            });
        }
    }
    warnings
}

/// Warnings of a retrieval that was not carried out.
pub fn of_plan(plan: &Plan, graph: &GraphInfo, sizes: &Sizes) -> Vec<Warning> {
    let of_all = |count: fn(&ShardStats) -> u64| sizes.values().map(count).sum::<u64>();
    let tail = match plan.starts {
        Starts::Seeds { .. } => of_all(|stats| stats.memtable_facts),
        Starts::Entities(_) => 0,
    };
    let mut warnings: Vec<Warning> =
        unindexed_tail(tail, of_all(|stats| stats.facts)).into_iter().collect();
    warnings.extend(of_shape(plan, graph, sizes));
    warnings
}

/// What can be known from the request and the sizes alone.
fn of_shape(plan: &Plan, graph: &GraphInfo, sizes: &Sizes) -> Vec<Warning> {
    let mut warnings = Vec::new();
    if matches!(plan.starts, Starts::Seeds { .. }) {
        warnings.extend(low_recall(graph, sizes));
    }
    warnings.extend(plan.filter.as_deref().and_then(filter_by_row));
    warnings.extend(empty_relations(plan, graph, sizes));
    warnings
}

/// Rows of memtables that were searched, and rows of all that was.
fn scanned(trace: &Trace) -> (u64, u64) {
    let runs = trace.lines.iter().flat_map(|line| &line.runs);
    runs.filter(|run| run.way.is_some()).fold((0, 0), |(tail, all), run| {
        let of_tail = if run.segment.is_none() { run.rows } else { 0 };
        (tail + of_tail, all + run.rows)
    })
}

fn unindexed_tail(tail: u64, rows: u64) -> Option<Warning> {
    let share = tail as f64 / rows.max(1) as f64;
    (tail > 0 && (tail >= TAIL_ROWS || share >= TAIL_SHARE)).then(|| Warning {
        code: "unindexed_tail",
        message: format!(
            "{tail} rows, {:.1} % of all that is searched, are not sealed yet and are scanned",
            share * 100.0
        ),
        hint: "write the last batch with wait=indexed: it seals what was written".to_owned(),
    })
}

/// Segments whose measured recall is below the target, or that say what is wrong with them.
fn low_recall(graph: &GraphInfo, sizes: &Sizes) -> Option<Warning> {
    let target = graph.config.index.recall_target;
    let mut found = Vec::new();
    for (shard, stats) in sizes {
        for segment in &stats.segments {
            let low = segment.recall.filter(|recall| *recall < target);
            let why = match (&segment.alarm, low) {
                (Some(alarm), _) => alarm.clone(),
                (None, Some(recall)) => format!("recall {recall:.3} of {target}"),
                (None, None) => continue,
            };
            found.push(format!("segment {} of shard {shard}: {why}", segment.id));
        }
    }
    (!found.is_empty()).then(|| Warning {
        code: "low_recall",
        message: shortened(&found),
        hint: "exact_seeds finds the exact seeds; a larger ef_search finds more of them".to_owned(),
    })
}

/// A filter on payload fields is tested on every row that is read.
fn filter_by_row(filter: &Filter) -> Option<Warning> {
    let mut keys = BTreeSet::new();
    gather_keys(filter, &mut keys);
    let keys: Vec<String> = keys.into_iter().collect();
    (!keys.is_empty()).then(|| Warning {
        code: "filter_by_row",
        message: format!("the filter is tested row by row on {}", shortened(&keys)),
        hint: "no index serves payload fields in this version; a relation beside them rules out \
               rows without a look at their payloads"
            .to_owned(),
    })
}

fn gather_keys(filter: &Filter, keys: &mut BTreeSet<String>) {
    let Filter { must, should, must_not } = filter;
    for condition in must.iter().chain(should).chain(must_not) {
        match condition {
            Condition::Match { path, .. }
            | Condition::Range { path, .. }
            | Condition::Exists { path, .. } => {
                keys.insert(path.join("."));
            }
            Condition::Relation(_) => {}
            Condition::Nested(inner) => gather_keys(inner, keys),
        }
    }
}

/// Relations of the path that no fact has. Silent when a shard did not say what it holds.
fn empty_relations(plan: &Plan, graph: &GraphInfo, sizes: &Sizes) -> Vec<Warning> {
    if sizes.len() < graph.shards.len() {
        return Vec::new();
    }
    let holds = |relation: RelationId| {
        let mut all = sizes.values().flat_map(|stats| &stats.relations);
        all.any(|(known, facts)| *known == relation && *facts > 0)
    };
    let mut namer = None;
    let mut warnings = Vec::new();
    for (number, hop) in plan.hops.iter().enumerate() {
        let Relations::Of(list) = &hop.relations else { continue };
        for relation in list.iter().filter(|relation| !holds(**relation)) {
            let name = namer.get_or_insert_with(|| Namer::new(graph)).relation(*relation);
            warnings.push(Warning {
                code: "empty_relation",
                message: format!("no fact has the relation {} of hop {}", shown(&name), number + 1),
                hint: "GET /v1/graphs/{graph}/relations lists those in use".to_owned(),
            });
        }
    }
    warnings
}

fn shown(relation: &RelationRef) -> String {
    match relation {
        RelationRef::Name(name) => format!("{name:?}"),
        RelationRef::Number(number) => number.to_string(),
    }
}

/// As many seeds as were asked for, that begin at few entities.
fn few_starts(done: &Done<'_>) -> Option<Warning> {
    let Starts::Seeds { ask, .. } = &done.plan.starts else { return None };
    let starts = done.coverage.hops.first()?.frontier;
    let (seeds, whole) = (done.seeds, done.coverage.missing.is_empty());
    let few = whole && seeds == u64::from(ask.k) && seeds >= SEEDS_MIN && starts * 2 <= seeds;
    few.then(|| Warning {
        code: "few_starts",
        message: format!("{seeds} seeds found; distinct starts among them: {starts}"),
        hint: "raise ann_k, or let seed_relations or a filter spread the seeds".to_owned(),
    })
}

fn hub(found: &HubOut, limit: u32) -> Warning {
    let entity = match &found.entity {
        Some(EntityRef::Name(name)) => format!("{name:?}"),
        Some(EntityRef::Number(number)) => number.to_string(),
        None => "an entity".to_owned(),
    };
    let (hop, facts) = (found.hop, found.facts);
    let degree = found.degree.map_or(String::new(), |degree| format!(" of its {degree} facts"));
    Warning {
        code: "hub",
        message: format!(
            "{facts}{degree} leave {entity} in hop {hop}; limit_per_entity is {limit}"
        ),
        hint: "raise limit_per_entity, or name the relations of the hop".to_owned(),
    }
}

/// The first of a list, and how many more there are.
fn shortened(list: &[String]) -> String {
    let first = list[..list.len().min(NAMED_MAX)].join(", ");
    match list.len().saturating_sub(NAMED_MAX) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_mentioned_once_it_costs_something() {
        assert_eq!(unindexed_tail(0, 0), None);
        assert_eq!(unindexed_tail(10, 1_000), None);
        assert_eq!(unindexed_tail(50, 1_000).map(|warning| warning.code), Some("unindexed_tail"));
        let many = unindexed_tail(TAIL_ROWS, 1_000_000).expect("many rows");
        assert!(many.message.starts_with("10000 rows, 1.0 % of all"), "{}", many.message);
    }

    #[test]
    fn a_filter_is_mentioned_by_its_payload_keys() {
        let exists = |path: &[&str]| Condition::Exists {
            path: path.iter().map(|step| (*step).to_owned()).collect(),
            exists: true,
        };
        let inner = Filter { should: vec![exists(&["b"])], ..Filter::default() };
        let filter = Filter {
            must: vec![Condition::Relation(vec![RelationId(1)]), Condition::Nested(inner)],
            must_not: vec![exists(&["a", "c"])],
            ..Filter::default()
        };
        let warning = filter_by_row(&filter).expect("two keys");
        assert_eq!(warning.message, "the filter is tested row by row on a.c, b");
        let relations =
            Filter { must: vec![Condition::Relation(vec![RelationId(1)])], ..Filter::default() };
        assert_eq!(filter_by_row(&relations), None);
    }

    #[test]
    fn a_hub_is_told_with_its_degree() {
        let mut found =
            HubOut { hop: 2, entity: Some(EntityRef::Number(7)), facts: 30, degree: Some(40) };
        let message = |found: &HubOut| hub(found, 20).message;
        let told = "30 of its 40 facts leave 7 in hop 2; limit_per_entity is 20";
        assert_eq!(message(&found), told);
        (found.entity, found.degree) = (None, None);
        let told = "30 leave an entity in hop 2; limit_per_entity is 20";
        assert_eq!(message(&found), told);
    }
}
