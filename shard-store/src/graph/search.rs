//! Searching one sealed segment: which way to take, and taking it.

use super::ask::{RowSet, RunAsk, VectorSource};
use super::index::SegmentIndex;
use super::nearest::Nearest;
use hopbine_proto::call::Work;

/// Memory that one search after the other uses; hold one per thread, or a pool.
#[derive(Debug, Default)]
pub struct Scratch {}

/// The best `k` rows of a sealed segment by `(exact distance, row)` that pass the filter, best
/// first. Fewer only when fewer rows with a vector pass. Adds to `work` what it took, with one
/// entry of `ways`. Fails only with what `vectors` or the predicate fails with.
pub fn search_segment<V: VectorSource + ?Sized>(
    index: &SegmentIndex,
    vectors: &V,
    ask: &RunAsk<'_, V::Error>,
    _scratch: &mut Scratch,
    work: &mut Work,
) -> Result<Vec<(f64, u32)>, V::Error> {
    work.ways.push("exact".to_owned());
    scan_exact(vectors, ask, index.meta().rows, |row| row, work)
}

/// Computes every exact distance of rows `0..rows`; `item` says how equal distances are ordered.
pub(super) fn scan_exact<V: VectorSource + ?Sized, T: Ord + Copy>(
    vectors: &V,
    ask: &RunAsk<'_, V::Error>,
    rows: u32,
    item: impl Fn(u32) -> T,
    work: &mut Work,
) -> Result<Vec<(f64, T)>, V::Error> {
    let mut nearest = Nearest::new(ask.k);
    let mut visit = |row: u32| -> Result<(), V::Error> {
        let Some(vector) = vectors.vector(row)? else { return Ok(()) };
        let distance = ask.query.distance(vector.values, vector.norm);
        work.vectors_scored += 1;
        if nearest.wants(distance, item(row)) && ask.filter.admits(row)? {
            nearest.push(distance, item(row));
        }
        Ok(())
    };
    match ask.filter.rows {
        RowSet::All => (0..rows).try_for_each(&mut visit)?,
        RowSet::Sorted(set) => {
            set.iter().take_while(|row| **row < rows).try_for_each(|row| visit(*row))?;
        }
    }
    Ok(nearest.into_sorted())
}
