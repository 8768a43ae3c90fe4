//! Plain reads of a state: facts by key, ranges in order, counts, one entity.

use crate::codes::Query;
use crate::error::StoreError;
use crate::expand::{STOP_ROWS, distance_of};
use crate::merge::{LiveRow, Located};
use crate::predicate::RowPredicate;
use crate::segment::Touched;
use crate::shard::ShardConfig;
use crate::state::State;
use crate::view::Stop;
use hopbine_proto::call::{
    CountReply, EntityReply, FetchReply, FetchRequest, Row, ScanReply, ScanRequest, With, Work,
};
use hopbine_proto::filter::Filter;
use hopbine_proto::limits::{PAGE_BYTES_MAX, REPLY_BYTES_MAX};
use hopbine_proto::{EntityId, Fact, KeyRange, RelationId};
use std::ops::ControlFlow;

/// Bytes of rows between two looks at `stop`: some milliseconds.
const STOP_BYTES: usize = 1 << 20;

/// Facts by key, in the order asked.
pub(crate) fn fetch(
    state: &State,
    config: &ShardConfig,
    request: &FetchRequest,
    stop: Stop<'_>,
) -> Result<FetchReply, StoreError> {
    let query = request.query.as_ref().map(|query| Query::new(config.metric, query));
    let mut touched = vec![Touched::default(); state.runs.len()];
    let mut work = Work { runs: state.runs.len() as u64, ..Work::default() };
    work.runs_read = work.runs;
    let mut rows = Vec::with_capacity(request.keys.len());
    let mut bytes = 0;
    let mut look_again = 0;
    for (number, key) in request.keys.iter().enumerate() {
        if (number as u64).is_multiple_of(STOP_ROWS) || bytes >= look_again {
            look_again = bytes + STOP_BYTES;
            if stop() {
                return Err(StoreError::Stopped);
            }
        }
        rows.push(match state.find_live_touching(*key, &mut touched)? {
            None => None,
            Some((run, row)) => {
                let live = LiveRow { run: &state.runs[run], place: run as u32, row, key: *key };
                let mut read = read_row(&live, request.with)?;
                bytes += bytes_of(&read);
                if bytes > REPLY_BYTES_MAX {
                    return Err(StoreError::TooLarge { bytes_max: REPLY_BYTES_MAX });
                }
                if let Some(query) = &query {
                    read.distance = Some(distance_of(query, &live)?);
                    work.vectors_scored += 1;
                }
                Some(read)
            }
        });
    }
    work.blocks_read = touched.iter().map(Touched::blocks).sum();
    work.block_bytes = touched.iter().map(Touched::bytes).sum();
    Ok(FetchReply { rows, work, index: state.index })
}

fn read_row(live: &LiveRow<'_>, with: With) -> Result<Row, StoreError> {
    let (run, row) = (live.run, live.row);
    let embedding =
        if with.vector { run.vector(row)?.map(|vector| vector.values.into()) } else { None };
    let payload = if with.payload { run.payload(row)? } else { None };
    let fact = Fact { key: live.key, names: run.names(row)?, embedding, payload };
    Ok(Row { fact, version: run.version(row)?, distance: None })
}

/// Bytes of the parts of a row that differ in size.
fn bytes_of(row: &Row) -> usize {
    let vector = row.fact.embedding.as_ref().map_or(0, |values| values.len() * 4);
    let names = row.fact.names.as_ref().map_or(0, |n| n.entity.len() + n.target.len());
    vector + names + row.fact.payload.as_ref().map_or(0, |text| text.len())
}

/// Facts of a range in key order; fewer than the limit when their parts take
/// [`PAGE_BYTES_MAX`] bytes.
pub(crate) fn scan(
    state: &State,
    request: &ScanRequest,
    stop: Stop<'_>,
) -> Result<ScanReply, StoreError> {
    let mut reply = ScanReply { index: state.index, ..ScanReply::default() };
    let filter = request.filter.as_deref();
    let mut bytes = 0;
    each_match(state, &request.range, filter, stop, &mut |live| {
        if reply.rows.len() >= request.limit as usize || bytes > PAGE_BYTES_MAX {
            reply.more = true;
            return Ok(ControlFlow::Break(()));
        }
        let row = read_row(&live, request.with)?;
        bytes += bytes_of(&row);
        reply.rows.push(row);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(reply)
}

/// Live facts of a range that pass a filter.
pub(crate) fn count(
    state: &State,
    range: &KeyRange,
    filter: Option<&Filter>,
    stop: Stop<'_>,
) -> Result<CountReply, StoreError> {
    let mut count = 0;
    if filter.is_some() {
        each_match(state, range, filter, stop, &mut |_| {
            count += 1;
            Ok(ControlFlow::Continue(()))
        })?;
    } else {
        for run in &state.runs {
            let rows = run.rows(std::slice::from_ref(range), &mut Touched::default())?;
            count += rows.live(0, run);
        }
    }
    Ok(CountReply { count, index: state.index })
}

/// Name and degrees of one entity.
pub(crate) fn entity(
    state: &State,
    entity: EntityId,
    stop: Stop<'_>,
) -> Result<EntityReply, StoreError> {
    let mut degrees: Vec<(RelationId, u64)> = Vec::new();
    each_match(state, &KeyRange::entity(entity), None, stop, &mut |live| {
        match degrees.last_mut() {
            Some((relation, degree)) if *relation == live.key.relation => *degree += 1,
            _ => degrees.push((live.key.relation, 1)),
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(EntityReply { name: state.entity_name(entity)?, degrees, index: state.index })
}

/// Visits the live rows of `range` that pass `filter`, in key order, until `visit` breaks.
fn each_match(
    state: &State,
    range: &KeyRange,
    filter: Option<&Filter>,
    stop: Stop<'_>,
    visit: &mut dyn FnMut(LiveRow<'_>) -> Result<ControlFlow<()>, StoreError>,
) -> Result<(), StoreError> {
    let predicate = filter.map(RowPredicate::new);
    let mut located = Located::new(state, std::slice::from_ref(range), &mut Work::default())?;
    let mut seen = 0u64;
    let flow = located.visit(0, &mut |live| {
        seen += 1;
        if seen.is_multiple_of(STOP_ROWS) && stop() {
            return Err(StoreError::Stopped);
        }
        let passes = match &predicate {
            Some(predicate) => predicate.holds(live.run, live.row, live.key.relation)?,
            None => true,
        };
        if passes { visit(live) } else { Ok(ControlFlow::Continue(())) }
    })?;
    // Stopping early is what `visit` asked for.
    let (ControlFlow::Continue(()) | ControlFlow::Break(())) = flow;
    Ok(())
}
