//! What a caller asks of one run of rows.

use crate::codes::Query;
use hopbine_proto::call::SeedMode;

/// One stored vector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VectorRow<'a> {
    /// The f32 components as written.
    pub values: &'a [f32],
    /// Their norm, kept from [`crate::kernel::norm`].
    pub norm: f64,
}

/// Where exact distances come from: the f32 rows of a segment or a memtable.
pub trait VectorSource {
    /// What reading a row can fail with, a failed checksum for instance; ends the search.
    type Error;

    /// The vector of `row`, or `None` for a row without one.
    fn vector(&self, row: u32) -> Result<Option<VectorRow<'_>>, Self::Error>;

    /// The vector of `row` will be asked for soon: whoever can brings it nearer meanwhile.
    fn expect(&self, _row: u32) {}
}

/// Rows that may be returned, before dead rows and the predicate are taken off.
#[derive(Clone, Copy, Debug, Default)]
pub enum RowSet<'a> {
    /// Every row of the run.
    #[default]
    All,
    /// These, ascending and distinct.
    Sorted(&'a [u32]),
}

/// A test of one row that can fail, such as a payload condition.
pub type RowTest<'a, E> = &'a dyn Fn(u32) -> Result<bool, E>;

/// Which rows may be returned. A row must pass all three parts.
pub struct RowFilter<'a, E> {
    /// A set known in advance, from a relation index for instance.
    pub rows: RowSet<'a>,
    /// Whether a row is dead (replaced, deleted or a tombstone); `None`: none is.
    pub dead: Option<&'a dyn Fn(u32) -> bool>,
    /// How many rows of the run are dead: widens a graph walk's beam.
    pub dead_rows: u32,
    /// A dear test of unknown selectivity; asked of as few rows as possible.
    pub predicate: Option<RowTest<'a, E>>,
}

impl<E> RowFilter<'_, E> {
    /// Lets every row pass.
    pub fn none() -> Self {
        Self { rows: RowSet::All, dead: None, dead_rows: 0, predicate: None }
    }

    /// Whether `row` is dead.
    #[inline]
    pub fn is_dead(&self, row: u32) -> bool {
        self.dead.is_some_and(|dead| dead(row))
    }

    /// Whether `row` passes the predicate.
    pub fn passes(&self, row: u32) -> Result<bool, E> {
        self.predicate.map_or(Ok(true), |test| test(row))
    }
}

/// One search of one run.
pub struct RunAsk<'a, E> {
    /// The question, prepared once per request.
    pub query: &'a Query,
    /// Rows wanted; fewer come back only when fewer pass and have a vector.
    pub k: usize,
    /// How to search.
    pub mode: SeedMode,
    /// What may be returned.
    pub filter: RowFilter<'a, E>,
}
