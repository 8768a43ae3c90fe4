//! Seeds: the facts of all runs of a view that are nearest to a query.

use crate::codes::Query;
use crate::error::StoreError;
use crate::expand::STOP_ROWS;
use crate::graph::{
    RowFilter, RowSet, RunAsk, Scratch, VectorRow, VectorSource, search_segment, search_tail,
};
use crate::known::Known;
use crate::memtable::{Memtable, TAIL_ROWS};
use crate::predicate::{RowPredicate, relation_wanted};
use crate::run::{Data, Run, SegmentFile};
use crate::shard::Reading;
use crate::state::State;
use crate::view::Stop;
use hopbine_proto::RelationId;
use hopbine_proto::call::{Relations, RunWork, Seed, SeedReply, SeedRequest, Work};
use hopbine_proto::score::rank;
use std::cell::Cell;
use std::sync::OnceLock;

/// What one search asks of every run.
struct Search<'r> {
    request: &'r SeedRequest,
    query: Query,
    predicate: Option<RowPredicate<'r>>,
    stop: Stop<'r>,
    rows_read: Cell<u64>,
}

/// The vectors of one run; looks at `stop` now and then.
struct Vectors<'s, 'r> {
    run: &'s Run,
    search: &'s Search<'r>,
}

impl VectorSource for Vectors<'_, '_> {
    type Error = StoreError;

    fn vector(&self, row: u32) -> Result<Option<VectorRow<'_>>, StoreError> {
        self.search.look_at_stop()?;
        self.run.vector(row)
    }

    fn expect(&self, row: u32) {
        self.run.expect_vector(row);
    }
}

/// The best `k` live facts that pass relations and filter, by `(distance, key)`.
pub(crate) fn seeds(
    state: &State,
    reading: &Reading,
    known: &OnceLock<Known>,
    request: &SeedRequest,
    stop: Stop<'_>,
) -> Result<SeedReply, StoreError> {
    let search = Search {
        request,
        query: Query::new(reading.config.metric, &request.query),
        predicate: request.filter.as_deref().map(RowPredicate::new),
        stop,
        rows_read: Cell::new(0),
    };
    let mut work = Work { runs: state.runs.len() as u64, ..Work::default() };
    let (mut seeds, mut found) = (Vec::new(), Vec::new());
    let mut runs = Vec::with_capacity(state.runs.len());
    let mut scratch = reading.take_scratch();
    for (place, run) in state.runs.iter().enumerate().filter(|(_, run)| run.live() > 0) {
        if stop() {
            return Err(StoreError::Stopped);
        }
        let before = Before::of(&mut work);
        let best = match &run.data {
            Data::Memtable(memtable) => search.tail(run, memtable, &mut scratch, &mut work)?,
            Data::Segment(file) => search.segment(run, file, &mut scratch, &mut work)?,
        };
        runs.push(before.until(&mut work, run));
        for (distance, row) in &best {
            seeds.push(Seed { distance: *distance, key: run.key(*row)? });
        }
        found.push((place, best));
    }
    reading.give_scratch(scratch);
    if known.get().is_none()
        && let Some(of_seeds) = Known::of_seeds(&request.query, &found)
    {
        // Another search of this view may have been quicker: either will do.
        let _ = known.set(of_seeds);
    }
    seeds.sort_unstable_by(|a, b| rank((a.distance, a.key), (b.distance, b.key)));
    seeds.truncate(request.k as usize);
    Ok(SeedReply { seeds, work, runs, index: state.index })
}

/// The counts of a search before it comes to a run.
struct Before {
    codes_scored: u64,
    vectors_scored: u64,
    ways: usize,
    ef: u64,
}

impl Before {
    fn of(work: &mut Work) -> Self {
        Self {
            codes_scored: work.codes_scored,
            vectors_scored: work.vectors_scored,
            ways: work.ways.len(),
            // A largest value is told apart by beginning anew.
            ef: std::mem::take(&mut work.ef),
        }
    }

    /// What `run` added to `work` since.
    fn until(self, work: &mut Work, run: &Run) -> RunWork {
        let ef = work.ef;
        work.ef = ef.max(self.ef);
        RunWork {
            segment: run.segment().map(|file| file.segment.meta().id),
            rows: u64::from(run.live()),
            way: work.ways.get(self.ways).cloned(),
            ef,
            codes_scored: work.codes_scored - self.codes_scored,
            vectors_scored: work.vectors_scored - self.vectors_scored,
        }
    }
}

impl<'r> Search<'r> {
    fn look_at_stop(&self) -> Result<(), StoreError> {
        self.rows_read.set(self.rows_read.get() + 1);
        if self.rows_read.get().is_multiple_of(STOP_ROWS) && (self.stop)() {
            return Err(StoreError::Stopped);
        }
        Ok(())
    }

    fn wants_relation(&self, relation: RelationId) -> bool {
        relation_wanted(&self.request.relations, self.predicate.as_ref(), relation)
    }

    /// Whether every relation may pass, as far as can be known without looking.
    fn wants_every_relation(&self) -> bool {
        self.request.relations == Relations::Any && self.predicate.is_none()
    }

    /// The test that is left once a row's relation is wanted.
    fn row_test(&self) -> Option<&RowPredicate<'r>> {
        self.predicate.as_ref().filter(|predicate| !predicate.decided_by_relation())
    }

    fn segment(
        &self,
        run: &Run,
        file: &SegmentFile,
        scratch: &mut Scratch,
        work: &mut Work,
    ) -> Result<Vec<(f64, u32)>, StoreError> {
        let segment = &file.segment;
        let mut union = Vec::new();
        let set = if self.wants_every_relation() {
            RowSet::All
        } else {
            let wanted: Vec<RelationId> = segment
                .relations()
                .map(|(relation, _)| relation)
                .filter(|relation| self.wants_relation(*relation))
                .collect();
            if wanted.is_empty() {
                return Ok(Vec::new());
            }
            if wanted.len() == segment.relations().count() {
                RowSet::All
            } else if let [relation] = wanted[..] {
                RowSet::Sorted(segment.relation_rows(relation)?)
            } else {
                for relation in wanted {
                    union.extend_from_slice(segment.relation_rows(relation)?);
                }
                union.sort_unstable();
                RowSet::Sorted(&union)
            }
        };
        work.runs_read += 1;
        let vectors = Vectors { run, search: self };
        self.ask(run, set, |ask| search_segment(segment.index()?, &vectors, ask, scratch, work))
    }

    fn tail(
        &self,
        run: &Run,
        memtable: &Memtable,
        scratch: &mut Scratch,
        work: &mut Work,
    ) -> Result<Vec<(f64, u32)>, StoreError> {
        let mut wanted = Vec::new();
        let set = if self.wants_every_relation() {
            RowSet::All
        } else {
            let of_relation = |row: &u32| self.wants_relation(memtable.row(*row).key.relation);
            wanted.extend((0..run.visible).filter(of_relation));
            RowSet::Sorted(&wanted)
        };
        work.runs_read += 1;
        let coded = memtable.tail(run.visible);
        let chunks: Vec<_> = coded.iter().map(|chunk| &**chunk).collect();
        let covered = chunks.len() as u32 * TAIL_ROWS;
        let vectors = Vectors { run, search: self };
        let key = |row: u32| memtable.row(row).key;
        let mut best = self.ask(run, set, |ask| {
            search_tail(&chunks, covered, &key, &vectors, ask, scratch, work)
        })?;
        for row in covered..run.visible {
            if run.dead.is_dead(row) || !self.wants_relation(memtable.row(row).key.relation) {
                continue;
            }
            let Some(vector) = vectors.vector(row)? else {
                continue;
            };
            if let Some(test) = self.row_test()
                && !test.holds(run, row, memtable.row(row).key.relation)?
            {
                continue;
            }
            work.vectors_scored += 1;
            best.push((self.query.distance(vector.values, vector.norm), row));
        }
        best.sort_unstable_by(|a, b| rank((a.0, key(a.1)), (b.0, key(b.1))));
        best.truncate(self.request.k as usize);
        Ok(best)
    }

    /// Puts the question for one run together and hands it to `search`.
    fn ask(
        &self,
        run: &Run,
        rows: RowSet<'_>,
        search: impl FnOnce(&RunAsk<'_, StoreError>) -> Result<Vec<(f64, u32)>, StoreError>,
    ) -> Result<Vec<(f64, u32)>, StoreError> {
        let dead = |row: u32| run.dead.is_dead(row);
        let test = |row: u32| match self.row_test() {
            Some(test) => {
                self.look_at_stop()?;
                test.holds(run, row, run.key(row)?.relation)
            }
            None => Ok(true),
        };
        let filter = RowFilter {
            rows,
            dead: (run.dead.count() > 0).then_some(&dead as &dyn Fn(u32) -> bool),
            dead_rows: run.dead.count(),
            predicate: self.row_test().map(|_| &test as &dyn Fn(u32) -> Result<bool, StoreError>),
        };
        let (query, k, mode) = (&self.query, self.request.k as usize, self.request.mode);
        search(&RunAsk { query, k, mode, filter })
    }
}
