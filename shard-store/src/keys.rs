//! A hop that asks for keys alone: they go from the blocks into the answer, with no row looked at.

use crate::error::StoreError;
use crate::expand::STOP_ROWS;
use crate::run::Run;
use crate::segment::{Segment, Touched};
use crate::state::State;
use crate::view::Stop;
use hopbine_proto::call::{HopCounts, HopOutput, HopReply, HopRequest, Work};
use hopbine_proto::{FactKey, KeyRange};

/// Keys that the first allocation makes room for, unless the answer may not have as many.
const RESERVE_MAX: usize = 256;

/// One run that holds rows, and how far it was read.
struct Source<'s> {
    run: &'s Run,
    segment: &'s Segment,
    from: usize,
    touched: Touched,
    read: bool,
}

/// The answer to `request` over the ranges of its entities, one each, where no row has to be
/// looked at: no question, no filter, no bound that binds, and no entity in several segments.
/// `None`: the hop has to be walked row by row.
pub(crate) fn keys_alone(
    state: &State,
    request: &HopRequest,
    ranges: &[KeyRange],
    stop: Stop<'_>,
) -> Result<Option<HopReply>, StoreError> {
    let HopOutput::Keys { limit, after: None } = request.output else { return Ok(None) };
    if request.query.is_some() || request.filter.is_some() || !request.return_to_start {
        return Ok(None);
    }
    let mut sources = Vec::new();
    for run in state.runs.iter().filter(|run| run.visible > 0) {
        let Some(file) = run.segment() else { return Ok(None) };
        let (segment, touched) = (&file.segment, Touched::default());
        sources.push(Source { run, segment, from: 0, touched, read: false });
    }
    // One short of the limit: the key that reaches it ends the hop.
    let most = u64::from(limit.saturating_sub(1)).min(request.limit_rows) as usize;
    let most_of_entity = (request.limit_per_entity as usize).min(STOP_ROWS as usize);
    let mut keys = Vec::with_capacity(most.min(RESERVE_MAX));
    let mut looked = 0;
    for range in ranges {
        let before = keys.len();
        for source in &mut sources {
            let of_others = keys.len();
            let whole = source.append(range, most_of_entity, &mut keys)?;
            let alone = of_others == before || keys.len() == of_others;
            if !whole || !alone {
                return Ok(None);
            }
        }
        if keys.len() - before > most_of_entity || keys.len() > most {
            return Ok(None);
        }
        if (keys.len() - looked) as u64 >= STOP_ROWS {
            looked = keys.len();
            if stop() {
                return Err(StoreError::Stopped);
            }
        }
    }
    Ok(Some(reply(state, ranges.len(), &sources, keys)))
}

impl Source<'_> {
    /// Appends the live keys of a range; `false` when it has too many rows.
    fn append(
        &mut self,
        range: &KeyRange,
        most: usize,
        keys: &mut Vec<FactKey>,
    ) -> Result<bool, StoreError> {
        let (run, before) = (self.run, keys.len());
        let any_dead = run.dead.count() > 0;
        let touched = &mut self.touched;
        let whole = self.segment.keys_in(range, &mut self.from, most, touched, |row, key| {
            if !any_dead || !run.dead.is_dead(row) {
                keys.push(key);
            }
        })?;
        self.read |= keys.len() > before;
        Ok(whole)
    }
}

fn reply(state: &State, frontier: usize, sources: &[Source<'_>], keys: Vec<FactKey>) -> HopReply {
    let mut work = Work { runs: state.runs.len() as u64, ..Work::default() };
    for source in sources {
        work.runs_read += u64::from(source.read);
        work.blocks_read += source.touched.blocks();
        work.block_bytes += source.touched.bytes();
    }
    let found = keys.len() as u64;
    let counts =
        HopCounts { frontier: frontier as u64, read: found, kept: found, ..HopCounts::default() };
    HopReply { keys, counts, work, index: state.index, ..HopReply::default() }
}
