//! Distances that a view's search for seeds has computed: the first hop from the seeds' entities
//! meets the same facts again, and asks with the same question.

use std::sync::Arc;

/// More seeds than this are not remembered: 64 KiB a view.
const KNOWN_MAX: usize = 4096;

/// Exact distances of some rows of one view to one question.
pub(crate) struct Known {
    query: Arc<[f32]>,
    /// `(place of the run, row, distance)`, ascending.
    rows: Vec<(u32, u32, f64)>,
}

impl Known {
    /// What a search for seeds found, run by run: `(place of the run, distances and rows)`.
    pub fn of_seeds(query: &Arc<[f32]>, found: &[(usize, Vec<(f64, u32)>)]) -> Option<Self> {
        let count: usize = found.iter().map(|(_, best)| best.len()).sum();
        if count > KNOWN_MAX {
            return None;
        }
        let mut rows = Vec::with_capacity(count);
        for (place, best) in found {
            rows.extend(best.iter().map(|(distance, row)| (*place as u32, *row, *distance)));
        }
        rows.sort_unstable_by_key(|(place, row, _)| (*place, *row));
        Some(Self { query: Arc::clone(query), rows })
    }

    /// The same when it is about `query`.
    pub fn about(&self, query: &Arc<[f32]>) -> Option<&Self> {
        let same = Arc::ptr_eq(&self.query, query)
            || self.query.iter().map(|x| x.to_bits()).eq(query.iter().map(|x| x.to_bits()));
        same.then_some(self)
    }

    /// The distance of a row of the run at `place`, if it is known.
    #[inline]
    pub fn distance(&self, place: u32, row: u32) -> Option<f64> {
        let (first, last) = (self.rows.first()?, self.rows.last()?);
        if (place, row) < (first.0, first.1) || (last.0, last.1) < (place, row) {
            return None;
        }
        let at = self.rows.binary_search_by_key(&(place, row), |(place, row, _)| (*place, *row));
        at.ok().map(|at| self.rows[at].2)
    }
}
