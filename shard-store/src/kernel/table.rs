//! The set of kernels that one process uses, chosen once by what its processor can do.

use super::exact::ExactQuery;
use super::scalar;
use std::sync::OnceLock;

/// One implementation of every kernel. All implementations give equal bits.
#[derive(Clone, Copy)]
pub struct Kernels {
    /// `avx512`, `avx2` or `scalar`.
    pub name: &'static str,
    pub(super) dot: fn(&[f64], &[f32]) -> f64,
    pub(super) squared_difference: fn(&[f64], &[f32]) -> f64,
    pub(super) squared_norm: fn(&[f32]) -> f64,
    pub(super) code_dots: fn(&[i8], &[u8], &mut [i32]),
    pub(super) code_dots_at: fn(&[i8], &[u8], &[u32], &mut [i32]),
}

impl Kernels {
    /// The fastest set that this processor has.
    pub fn chosen() -> &'static Self {
        static CHOSEN: OnceLock<Kernels> = OnceLock::new();
        CHOSEN.get_or_init(|| Self::all_available()[0])
    }

    /// Every set that this processor can run, fastest first; the scalar set is always the last.
    pub fn all_available() -> Vec<Self> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(super::avx512::available());
            all.extend(super::avx2::available());
        }
        all.push(scalar::KERNELS);
        all
    }

    /// Dot product in f64, 16 lanes.
    pub fn dot(&self, query: &ExactQuery, row: &[f32]) -> f64 {
        assert_eq!(row.len(), query.dim(), "vectors of different dimension");
        (self.dot)(&query.values, row)
    }

    /// Squared Euclidean distance in f64, 16 lanes.
    pub fn squared_difference(&self, query: &ExactQuery, row: &[f32]) -> f64 {
        assert_eq!(row.len(), query.dim(), "vectors of different dimension");
        (self.squared_difference)(&query.values, row)
    }

    /// Dot product of `row` with itself in f64, 16 lanes.
    pub fn squared_norm(&self, row: &[f32]) -> f64 {
        (self.squared_norm)(row)
    }

    /// For each of the rows that lie one after the other in `codes`, the sum of
    /// `query * (code - 128)`. A row is as long as `query`, a multiple of 64; `query` must not
    /// hold -128. Exact: at most 4,096 products below 2^14 each.
    pub fn code_dots(&self, query: &[i8], codes: &[u8], out: &mut [i32]) {
        check_codes(query);
        assert_eq!(codes.len(), out.len() * query.len(), "codes are not whole rows");
        (self.code_dots)(query, codes, out);
    }

    /// The same for the given rows of `codes`, in any order. Panics when a row is out of bounds.
    pub fn code_dots_at(&self, query: &[i8], codes: &[u8], rows: &[u32], out: &mut [i32]) {
        check_codes(query);
        assert_eq!(rows.len(), out.len(), "one result per row");
        let count = codes.len() / query.len();
        assert!(rows.iter().all(|row| (*row as usize) < count), "row out of bounds");
        (self.code_dots_at)(query, codes, rows, out);
    }
}

/// Code rows are whole cache lines of at most 4,096 codes, so that sums fit an i32.
fn check_codes(query: &[i8]) {
    let len = query.len();
    assert!(len > 0 && len.is_multiple_of(64) && len <= 4096, "a code row of {len} bytes");
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernels({})", self.name)
    }
}

/// Asks the processor to load the cache line at `offset` of `bytes`; no effect on the result.
#[inline]
pub fn prefetch(bytes: &[u8], offset: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults, whatever the address; SSE is part of x86_64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(offset).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, offset);
}
