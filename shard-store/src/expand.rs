//! Reading the facts of one hop: from frontier entities to key ranges, to rows, to distances.

use crate::codes::Query;
use crate::error::StoreError;
use crate::hop::{Found, HopCollector};
use crate::keys::keys_alone;
use crate::known::Known;
use crate::merge::{LiveRow, Located};
use crate::predicate::RowPredicate;
use crate::shard::ShardConfig;
use crate::state::State;
use crate::view::Stop;
use hopbine_proto::KeyRange;
use hopbine_proto::call::{FrontierEntity, HopOutput, HopReply, HopRequest, Relations, Work};
use hopbine_proto::score::DISTANCE_WITHOUT_EMBEDDING;
use std::ops::ControlFlow;

/// Up to so many relations each get a key range of their own; with more, all facts of the entity
/// are read and tested.
const RELATION_RANGES_MAX: usize = 16;
/// How many entities before its own an entity's vectors are brought nearer.
const ENTITIES_AHEAD: usize = 3;
/// Rows between two looks at `stop`.
pub(crate) const STOP_ROWS: u64 = 1024;

/// The exact distance of a row: that of a fact without embedding when it has none.
pub(crate) fn distance_of(query: &Query, row: &LiveRow<'_>) -> Result<f64, StoreError> {
    Ok(match row.run.vector(row.row)? {
        Some(vector) => query.distance(vector.values, vector.norm),
        None => DISTANCE_WITHOUT_EMBEDDING,
    })
}

/// One hop over `request.frontier`. Distances that are `known` need not be computed again.
pub(crate) fn hop(
    state: &State,
    config: &ShardConfig,
    known: Option<&Known>,
    request: &HopRequest,
    stop: Stop<'_>,
) -> Result<HopReply, StoreError> {
    let mut work = Work::default();
    let frontier = wanted(request);
    let (ranges, per_entity) = ranges(frontier, &request.relations);
    let test_relation =
        matches!(&request.relations, Relations::Of(list) if list.len() > RELATION_RANGES_MAX);
    if per_entity == 1
        && !test_relation
        && let Some(reply) = keys_alone(state, request, &ranges, stop)?
    {
        return Ok(reply);
    }
    let mut located = Located::new(state, &ranges, &mut work)?;
    let known = request.query.as_ref().and_then(|query| known?.about(query));
    let mut reader = Reader {
        request,
        known,
        query: request.query.as_ref().map(|query| Query::new(config.metric, query)),
        predicate: request.filter.as_deref().map(RowPredicate::new),
        test_relation,
        collector: HopCollector::new(request, located.rows_max_of_all()),
        seen: 0,
        vectors_scored: 0,
        stop,
    };
    for (number, entity) in frontier.iter().enumerate() {
        let of_entity = number * per_entity..(number + 1) * per_entity;
        let rows_max = of_entity.clone().map(|range| located.rows_max(range)).sum();
        reader.collector.begin(entity, rows_max);
        if reader.query.is_some() {
            located.expect_vectors((number + ENTITIES_AHEAD) * per_entity, known);
        }
        let mut flow = ControlFlow::Continue(());
        for range in of_entity {
            flow = located.visit(range, &mut |row| reader.row(&row))?;
            if flow.is_break() {
                break;
            }
        }
        // Facts read before the limit still count, those that wait in the entity's limit too.
        if reader.collector.end().is_break() || flow.is_break() {
            break;
        }
    }
    work.vectors_scored += reader.vectors_scored;
    let Found { targets, facts, keys, counts, hub } = reader.collector.finish();
    Ok(HopReply { targets, facts, keys, counts, hub, work, index: state.index })
}

/// Frontier entities that can still matter: a page starts at the entity where the last one ended.
fn wanted(request: &HopRequest) -> &[FrontierEntity] {
    match request.output {
        HopOutput::Page { after: Some(after), .. } | HopOutput::Keys { after: Some(after), .. } => {
            let done = request.frontier.partition_point(|known| known.entity < after.entity);
            &request.frontier[done..]
        }
        _ => &request.frontier,
    }
}

/// Key ranges of the frontier, the same number for each entity, and that number.
fn ranges(frontier: &[FrontierEntity], relations: &Relations) -> (Vec<KeyRange>, usize) {
    match relations {
        Relations::Of(list) if list.len() <= RELATION_RANGES_MAX => {
            let mut ranges = Vec::with_capacity(frontier.len() * list.len());
            for FrontierEntity { entity, .. } in frontier {
                ranges.extend(list.iter().map(|r| KeyRange::entity_relation(*entity, *r)));
            }
            (ranges, list.len())
        }
        _ => (frontier.iter().map(|known| KeyRange::entity(known.entity)).collect(), 1),
    }
}

struct Reader<'r> {
    request: &'r HopRequest,
    query: Option<Query>,
    known: Option<&'r Known>,
    predicate: Option<RowPredicate<'r>>,
    test_relation: bool,
    collector: HopCollector<'r>,
    seen: u64,
    vectors_scored: u64,
    stop: Stop<'r>,
}

impl Reader<'_> {
    /// Takes one live row. `Break`: no further row is wanted.
    fn row(&mut self, row: &LiveRow<'_>) -> Result<ControlFlow<()>, StoreError> {
        self.seen += 1;
        if self.seen.is_multiple_of(STOP_ROWS) && (self.stop)() {
            return Err(StoreError::Stopped);
        }
        if self.test_relation && !self.request.relations.contains(row.key.relation) {
            return Ok(ControlFlow::Continue(()));
        }
        if self.collector.counts.read == self.request.limit_rows {
            self.collector.counts.truncated = true;
            return Ok(ControlFlow::Break(()));
        }
        self.collector.counts.read += 1;
        if let Some(predicate) = &self.predicate
            && !predicate.holds(row.run, row.row, row.key.relation)?
        {
            self.collector.counts.cut_filter += 1;
            return Ok(ControlFlow::Continue(()));
        }
        let distance = match &self.query {
            Some(query) => {
                let known = self.known.and_then(|known| known.distance(row.place, row.row));
                Some(match known {
                    Some(distance) => distance,
                    None => {
                        self.vectors_scored += 1;
                        distance_of(query, row)?
                    }
                })
            }
            None => None,
        };
        Ok(self.collector.fact(row.key, distance))
    }
}
