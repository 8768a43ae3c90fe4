//! Kernels for processors with AVX2 and FMA.
//!
//! Exact sums keep the 16 lanes in four registers of four f64. Code sums use `vpmaddubsw` on the
//! codes' absolute values: two products of at most 128 * 127 stay below 2^15, so nothing saturates.

use super::table::{Kernels, SIGN_GROUP, SIGN_PLANES, SignPlanes, SignedCodes};
use std::arch::x86_64::*;

/// The set, if this processor has all of its instructions.
pub(super) fn available() -> Option<Kernels> {
    let has = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    has.then_some(KERNELS)
}

const KERNELS: Kernels = Kernels {
    name: "avx2",
    dot,
    squared_difference,
    squared_norm,
    code_dots,
    code_dots_at,
    nibble_dots,
    nibble_dots_at,
    sign_sums,
};

/// Sums of levels at set bits, eight rows at a time.
pub(super) fn sign_sums(planes: &SignPlanes, words: &[u64], out: &mut [u32]) {
    let of_group = words.chunks_exact(SIGN_GROUP * planes.words());
    for (group, out) in of_group.zip(out.chunks_exact_mut(SIGN_GROUP)) {
        // SAFETY: see `dot` for the instructions; a group has eight words per word of planes, and
        // `out` has a place for each of its eight rows.
        unsafe { group_sums(planes.planes(), group, out) }
    }
}

/// # Safety
/// Needs AVX2; `group` holds eight words for each of `planes`, `out` eight places.
#[target_feature(enable = "avx2")]
unsafe fn group_sums(planes: &[[u64; SIGN_PLANES]], group: &[u64], out: &mut [u32]) {
    // Bits set in each value of four bits.
    let counts =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
    let (low, zero) = (_mm256_set1_epi8(15), _mm256_setzero_si256());
    let mut sums = [zero; 2];
    for (place, planes) in planes.iter().enumerate() {
        for (half, sum) in sums.iter_mut().enumerate() {
            // SAFETY: eight words of `group` belong to this word of planes; half of them are read.
            let signs = unsafe {
                _mm256_loadu_si256(group.as_ptr().add(place * SIGN_GROUP + 4 * half).cast())
            };
            for (plane, bits) in planes.iter().enumerate() {
                let met = _mm256_and_si256(signs, _mm256_set1_epi64x(*bits as i64));
                let lower = _mm256_shuffle_epi8(counts, _mm256_and_si256(met, low));
                let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(met), low);
                let bytes = _mm256_add_epi8(lower, _mm256_shuffle_epi8(counts, upper));
                let words = _mm256_sad_epu8(bytes, zero);
                let by = _mm_cvtsi32_si128(plane as i32);
                *sum = _mm256_add_epi64(*sum, _mm256_sll_epi64(words, by));
            }
        }
    }
    let mut wide = [0u64; SIGN_GROUP];
    // SAFETY: eight words have room for two registers.
    unsafe {
        _mm256_storeu_si256(wide.as_mut_ptr().cast(), sums[0]);
        _mm256_storeu_si256(wide.as_mut_ptr().add(4).cast(), sums[1]);
    }
    for (out, sum) in out.iter_mut().zip(wide) {
        *out = sum as u32;
    }
}

fn dot(query: &[f64], row: &[f32]) -> f64 {
    // SAFETY: this set is only handed out by `available`, which saw the instructions; `query` is
    // padded to whole lanes and at least as long as `row` (checked by `Kernels::dot`).
    unsafe { dot_avx2(query, row) }
}

fn squared_difference(query: &[f64], row: &[f32]) -> f64 {
    // SAFETY: see `dot`.
    unsafe { squared_difference_avx2(query, row) }
}

fn squared_norm(row: &[f32]) -> f64 {
    // SAFETY: see `dot`; reads `row` only.
    unsafe { squared_norm_avx2(row) }
}

fn code_dots(query: &SignedCodes, codes: &[u8], out: &mut [i32]) {
    let stride = query.stride();
    for (row, out) in codes.chunks_exact(stride).zip(out) {
        // SAFETY: see `dot` for the instructions; `row` is as long as `query`.
        *out = unsafe { code_dot(query, row) };
    }
}

fn nibble_dots(query: &SignedCodes, levels: &[u8], out: &mut [i32]) {
    for (row, out) in levels.chunks_exact(query.stride() / 2).zip(out) {
        // SAFETY: see `dot` for the instructions; `row` has half as many bytes as `query` numbers.
        *out = 2 * unsafe { level_dot(query.high(), row) } - 15 * query.sum();
    }
}

fn nibble_dots_at(query: &SignedCodes, levels: &[u8], rows: &[u32], out: &mut [i32]) {
    let stride = query.stride() / 2;
    let row = |row: &u32| &levels[*row as usize * stride..][..stride];
    for (i, out) in out.iter_mut().enumerate() {
        if let Some(next) = rows.get(i + 4) {
            row(next).chunks(64).for_each(|line| super::prefetch(&line[0]));
        }
        // SAFETY: see `dot` for the instructions; a row has half as many bytes as `query` numbers.
        *out = 2 * unsafe { level_dot(query.high(), row(&rows[i])) } - 15 * query.sum();
    }
}

fn code_dots_at(query: &SignedCodes, codes: &[u8], rows: &[u32], out: &mut [i32]) {
    let stride = query.stride();
    for (i, out) in out.iter_mut().enumerate() {
        if let Some(next) = rows.get(i + 4) {
            let start = *next as usize * stride;
            codes[start..start + stride].chunks(64).for_each(|line| super::prefetch(&line[0]));
        }
        let start = rows[i] as usize * stride;
        // SAFETY: see `dot` for the instructions; the row is as long as `query`.
        *out = unsafe { code_dot(query, &codes[start..start + stride]) };
    }
}

/// Elements `start..start + 16` of `row` in f64, zeros after its end.
///
/// # Safety
/// Needs AVX2; `start` must be below `row.len()`.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn load16(row: &[f32], start: usize) -> [__m256d; 4] {
    let mut padded = [0.0f32; 16];
    let from = if row.len() - start >= 16 {
        row[start..].as_ptr()
    } else {
        padded[..row.len() - start].copy_from_slice(&row[start..]);
        padded.as_ptr()
    };
    // SAFETY: 16 values follow `from`, in the row or in `padded`.
    unsafe {
        [
            _mm256_cvtps_pd(_mm_loadu_ps(from)),
            _mm256_cvtps_pd(_mm_loadu_ps(from.add(4))),
            _mm256_cvtps_pd(_mm_loadu_ps(from.add(8))),
            _mm256_cvtps_pd(_mm_loadu_ps(from.add(12))),
        ]
    }
}

/// # Safety
/// Needs AVX2 and FMA; `query` is padded to whole lanes and not shorter than `row`.
#[target_feature(enable = "avx2,fma")]
unsafe fn dot_avx2(query: &[f64], row: &[f32]) -> f64 {
    let mut sums = [_mm256_setzero_pd(); 4];
    for start in (0..row.len()).step_by(16) {
        // SAFETY: `start` is below the row's length, and the padded query has 16 values there.
        unsafe {
            let values = load16(row, start);
            for part in 0..4 {
                let q = _mm256_loadu_pd(query.as_ptr().add(start + 4 * part));
                sums[part] = _mm256_fmadd_pd(q, values[part], sums[part]);
            }
        }
    }
    reduce(sums)
}

/// # Safety
/// Needs AVX2; `query` is padded to whole lanes and not shorter than `row`.
#[target_feature(enable = "avx2")]
unsafe fn squared_difference_avx2(query: &[f64], row: &[f32]) -> f64 {
    let mut sums = [_mm256_setzero_pd(); 4];
    for start in (0..row.len()).step_by(16) {
        // SAFETY: `start` is below the row's length, and the padded query has 16 values there.
        unsafe {
            let values = load16(row, start);
            for part in 0..4 {
                let q = _mm256_loadu_pd(query.as_ptr().add(start + 4 * part));
                let difference = _mm256_sub_pd(q, values[part]);
                sums[part] = _mm256_add_pd(sums[part], _mm256_mul_pd(difference, difference));
            }
        }
    }
    reduce(sums)
}

/// # Safety
/// Needs AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn squared_norm_avx2(row: &[f32]) -> f64 {
    let mut sums = [_mm256_setzero_pd(); 4];
    for start in (0..row.len()).step_by(16) {
        // SAFETY: `start` is below the row's length.
        let values = unsafe { load16(row, start) };
        for part in 0..4 {
            sums[part] = _mm256_fmadd_pd(values[part], values[part], sums[part]);
        }
    }
    reduce(sums)
}

/// Lane `l` takes lane `l + 8`, then `l + 4`, `l + 2`, `l + 1`.
#[target_feature(enable = "avx2")]
#[inline]
fn reduce([a, b, c, d]: [__m256d; 4]) -> f64 {
    let four = _mm256_add_pd(_mm256_add_pd(a, c), _mm256_add_pd(b, d));
    let two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd::<1>(four));
    _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)))
}

/// Sum of `query * (code - 128)`.
///
/// # Safety
/// Needs AVX2; `row` is as long as `query`.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn code_dot(query: &SignedCodes, row: &[u8]) -> i32 {
    // SAFETY: both parts of a query have its length, a multiple of 64, the lower one unless it is
    // empty.
    unsafe {
        match query.low() {
            [] => part_dot(query.high(), row),
            low => 16 * part_dot(query.high(), row) + part_dot(low, row),
        }
    }
}

/// # Safety
/// Needs AVX2; `row` is as long as `part`, a multiple of 64.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn part_dot(part: &[i8], row: &[u8]) -> i32 {
    let (mut sum, offset, ones) =
        (_mm256_setzero_si256(), _mm256_set1_epi8(-128), _mm256_set1_epi16(1));
    for start in (0..part.len()).step_by(32) {
        // SAFETY: `start + 32` is at most the length of both.
        let (q, r) = unsafe {
            (
                _mm256_loadu_si256(part.as_ptr().add(start).cast()),
                _mm256_loadu_si256(row.as_ptr().add(start).cast()),
            )
        };
        let signed = _mm256_xor_si256(r, offset);
        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(q, signed));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
    sum_of_lanes(sum)
}

/// Sum of `number * level`.
///
/// # Safety
/// Needs AVX2; `row` has half as many bytes as `numbers` has elements, a multiple of 64.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn level_dot(numbers: &[i8], row: &[u8]) -> i32 {
    let (mut sum, mask, ones) =
        (_mm256_setzero_si256(), _mm256_set1_epi8(15), _mm256_set1_epi16(1));
    for start in (0..row.len()).step_by(32) {
        // Each line of 64 bytes meets 128 numbers.
        let at = start / 64 * 128 + start % 64;
        // SAFETY: `start + 32` is at most the length of the row, `at + 96` that of the numbers.
        let (levels, low, high) = unsafe {
            (
                _mm256_loadu_si256(row.as_ptr().add(start).cast()),
                _mm256_loadu_si256(numbers.as_ptr().add(at).cast()),
                _mm256_loadu_si256(numbers.as_ptr().add(at + 64).cast()),
            )
        };
        let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(levels), mask);
        let pairs = _mm256_add_epi16(
            _mm256_maddubs_epi16(_mm256_and_si256(levels, mask), low),
            _mm256_maddubs_epi16(upper, high),
        );
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
    sum_of_lanes(sum)
}

#[target_feature(enable = "avx2")]
#[inline]
fn sum_of_lanes(sum: __m256i) -> i32 {
    let four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
    let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b00_00_11_10>(four));
    _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b00_00_00_01>(two)))
}
