//! Kernels for processors with AVX-512 F, BW and VNNI.
//!
//! Exact sums keep the 16 lanes in two registers of eight f64. Code sums use `vpdpbusd`, which
//! multiplies unsigned by signed bytes: the codes' offset of 128 is taken off at the end.

use super::table::{Kernels, SIGN_GROUP, SIGN_PLANES, SignPlanes, SignedCodes};
use std::arch::x86_64::*;

/// The set, if this processor has all of its instructions.
pub(super) fn available() -> Option<Kernels> {
    let has = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni");
    // The first processors with the others lack this one.
    let counts_bits = is_x86_feature_detected!("avx512vpopcntdq");
    has.then_some(Kernels {
        name: "avx512",
        dot,
        squared_difference,
        squared_norm,
        code_dots,
        code_dots_at,
        nibble_dots,
        nibble_dots_at,
        sign_sums: if counts_bits { sign_sums } else { super::avx2::sign_sums },
    })
}

fn sign_sums(planes: &SignPlanes, words: &[u64], out: &mut [u32]) {
    let of_group = words.chunks_exact(SIGN_GROUP * planes.words());
    for (group, out) in of_group.zip(out.chunks_exact_mut(SIGN_GROUP)) {
        // SAFETY: `available` saw the instructions before it gave this function away; a group has
        // eight words per word of planes, and `out` has a place for each of its eight rows.
        unsafe { group_sums(planes.planes(), group, out) }
    }
}

/// # Safety
/// Needs AVX-512 F and VPOPCNTDQ; `group` holds eight words for each of `planes`, `out` eight
/// places.
#[target_feature(enable = "avx512f,avx512vpopcntdq")]
unsafe fn group_sums(planes: &[[u64; SIGN_PLANES]], group: &[u64], out: &mut [u32]) {
    let mut sums = [_mm512_setzero_si512(); SIGN_PLANES];
    for (place, planes) in planes.iter().enumerate() {
        // SAFETY: eight words of `group` belong to this word of planes.
        let signs = unsafe { _mm512_loadu_si512(group.as_ptr().add(place * SIGN_GROUP).cast()) };
        for (sum, bits) in sums.iter_mut().zip(planes) {
            let met = _mm512_and_si512(signs, _mm512_set1_epi64(*bits as i64));
            *sum = _mm512_add_epi64(*sum, _mm512_popcnt_epi64(met));
        }
    }
    let [ones, twos, fours, eights] = sums;
    let low = _mm512_add_epi64(ones, _mm512_slli_epi64::<1>(twos));
    let high = _mm512_add_epi64(fours, _mm512_slli_epi64::<1>(eights));
    let all = _mm512_cvtepi64_epi32(_mm512_add_epi64(low, _mm512_slli_epi64::<2>(high)));
    // SAFETY: `out` has eight places.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), all) }
}

fn dot(query: &[f64], row: &[f32]) -> f64 {
    // SAFETY: this set is only handed out by `available`, which saw the instructions; `query` is
    // padded to whole lanes and at least as long as `row` (checked by `Kernels::dot`).
    unsafe { dot_avx512(query, row) }
}

fn squared_difference(query: &[f64], row: &[f32]) -> f64 {
    // SAFETY: see `dot`.
    unsafe { squared_difference_avx512(query, row) }
}

fn squared_norm(row: &[f32]) -> f64 {
    // SAFETY: see `dot`; reads `row` only.
    unsafe { squared_norm_avx512(row) }
}

fn code_dots(query: &SignedCodes, codes: &[u8], out: &mut [i32]) {
    // SAFETY: see `dot` for the instructions; `Kernels::code_dots` checked that `codes` holds
    // `out.len()` rows as long as `query`, a multiple of 64.
    unsafe { dots_in_order::<false>(query, codes, out) }
}

fn nibble_dots(query: &SignedCodes, levels: &[u8], out: &mut [i32]) {
    // SAFETY: see `dot` for the instructions; `Kernels::nibble_dots` checked that `levels` holds
    // `out.len()` rows of half as many bytes as `query` has numbers, a multiple of 128.
    unsafe { dots_in_order::<true>(query, levels, out) }
}

fn code_dots_at(query: &SignedCodes, codes: &[u8], rows: &[u32], out: &mut [i32]) {
    // SAFETY: see `dot` for the instructions; `Kernels::code_dots_at` checked every row.
    unsafe { dots_at::<false>(query, codes, rows, out) }
}

fn nibble_dots_at(query: &SignedCodes, levels: &[u8], rows: &[u32], out: &mut [i32]) {
    // SAFETY: see `dot` for the instructions; `Kernels::nibble_dots_at` checked every row.
    unsafe { dots_at::<true>(query, levels, rows, out) }
}

/// The lanes of elements `start..start + 16` of `row` in f64, zeros after its end.
///
/// # Safety
/// Needs AVX-512 F; `start` must be below `row.len()`.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn load16(row: &[f32], start: usize) -> (__m512d, __m512d) {
    let left = row.len() - start;
    if left >= 16 {
        // SAFETY: 16 values follow `start`.
        return unsafe {
            let from = row.as_ptr().add(start);
            (_mm512_cvtps_pd(_mm256_loadu_ps(from)), _mm512_cvtps_pd(_mm256_loadu_ps(from.add(8))))
        };
    }
    // SAFETY: masked-out elements are not read, the others lie inside `row`.
    let values = unsafe { _mm512_maskz_loadu_ps((1 << left) - 1, row.as_ptr().add(start)) };
    let low = _mm512_castps512_ps256(values);
    let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(values)));
    (_mm512_cvtps_pd(low), _mm512_cvtps_pd(high))
}

/// # Safety
/// Needs AVX-512 F; `query` is padded to whole lanes and not shorter than `row`.
#[target_feature(enable = "avx512f")]
unsafe fn dot_avx512(query: &[f64], row: &[f32]) -> f64 {
    let (mut low, mut high) = (_mm512_setzero_pd(), _mm512_setzero_pd());
    for start in (0..row.len()).step_by(16) {
        // SAFETY: `start` is below the row's length, and the padded query has 16 values there.
        unsafe {
            let (a, b) = load16(row, start);
            low = _mm512_fmadd_pd(_mm512_loadu_pd(query.as_ptr().add(start)), a, low);
            high = _mm512_fmadd_pd(_mm512_loadu_pd(query.as_ptr().add(start + 8)), b, high);
        }
    }
    reduce(low, high)
}

/// # Safety
/// Needs AVX-512 F; `query` is padded to whole lanes and not shorter than `row`.
#[target_feature(enable = "avx512f")]
unsafe fn squared_difference_avx512(query: &[f64], row: &[f32]) -> f64 {
    let (mut low, mut high) = (_mm512_setzero_pd(), _mm512_setzero_pd());
    for start in (0..row.len()).step_by(16) {
        // SAFETY: `start` is below the row's length, and the padded query has 16 values there.
        let (a, b) = unsafe {
            let (a, b) = load16(row, start);
            (
                _mm512_sub_pd(_mm512_loadu_pd(query.as_ptr().add(start)), a),
                _mm512_sub_pd(_mm512_loadu_pd(query.as_ptr().add(start + 8)), b),
            )
        };
        low = _mm512_add_pd(low, _mm512_mul_pd(a, a));
        high = _mm512_add_pd(high, _mm512_mul_pd(b, b));
    }
    reduce(low, high)
}

/// # Safety
/// Needs AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn squared_norm_avx512(row: &[f32]) -> f64 {
    let (mut low, mut high) = (_mm512_setzero_pd(), _mm512_setzero_pd());
    for start in (0..row.len()).step_by(16) {
        // SAFETY: `start` is below the row's length.
        let (a, b) = unsafe { load16(row, start) };
        low = _mm512_fmadd_pd(a, a, low);
        high = _mm512_fmadd_pd(b, b, high);
    }
    reduce(low, high)
}

/// Lane `l` takes lane `l + 8`, then `l + 4`, `l + 2`, `l + 1`.
#[target_feature(enable = "avx512f")]
#[inline]
fn reduce(low: __m512d, high: __m512d) -> f64 {
    let eight = _mm512_add_pd(low, high);
    let four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd::<1>(eight));
    let two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd::<1>(four));
    _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)))
}

/// Rows of a list that are fetched before their turn.
const AHEAD_ROWS: usize = 8;
/// How far each stream of a scan fetches ahead.
const AHEAD_BYTES: usize = 4 * 384;

/// Rows of 4-bit levels or of 8-bit codes.
///
/// # Safety
/// Needs AVX-512 F and VNNI; `codes` holds `out.len()` rows, of as many bytes as `query` has
/// numbers or, of levels, of half as many.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn dots_in_order<const LEVELS: bool>(query: &SignedCodes, codes: &[u8], out: &mut [i32]) {
    let stride = if LEVELS { query.stride() / 2 } else { query.stride() };
    let base = codes.as_ptr();
    // SAFETY: the caller gives places of whole rows.
    let dots_of = |places| unsafe {
        let mut dots = [0; 4];
        let sums = if LEVELS { levels4(query, places) } else { codes4(query, places) };
        _mm_storeu_si128(dots.as_mut_ptr().cast(), sums);
        dots
    };
    // Four streams through the rows instead of one: the processor fetches ahead within a page of
    // memory only, and a page holds but ten rows of 384. Twice as fast from the third-level cache.
    let quarter = out.len() / 4;
    let step = quarter * stride;
    for row in 0..quarter {
        let start = base.wrapping_add(row * stride);
        let places = [0, 1, 2, 3].map(|stream| start.wrapping_add(stream * step));
        for place in places {
            let ahead = place.wrapping_add(AHEAD_BYTES);
            for line in (0..stride).step_by(64) {
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line).cast());
            }
        }
        // Row `row` of each quarter lies inside `codes`, which holds `out.len()` rows.
        for (stream, dot) in dots_of(places).into_iter().enumerate() {
            out[stream * quarter + row] = dot;
        }
    }
    for (row, out) in out.iter_mut().enumerate().skip(4 * quarter) {
        [*out, ..] = dots_of([base.wrapping_add(row * stride); 4]);
    }
}

/// Rows of a list, of 4-bit levels or of 8-bit codes.
///
/// # Safety
/// Needs AVX-512 F and VNNI; every one of `rows` lies inside `codes`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn dots_at<const LEVELS: bool>(
    query: &SignedCodes,
    codes: &[u8],
    rows: &[u32],
    out: &mut [i32],
) {
    let stride = if LEVELS { query.stride() / 2 } else { query.stride() };
    let base = codes.as_ptr();
    // SAFETY: the caller checked that every row lies inside `codes`.
    let place = |row: u32| unsafe { base.add(row as usize * stride) };
    // SAFETY: these are places of whole rows.
    let dots_of =
        |places| unsafe { if LEVELS { levels4(query, places) } else { codes4(query, places) } };
    let mut i = 0;
    while i + 4 <= rows.len() {
        for later in rows.iter().skip(i + AHEAD_ROWS).take(4) {
            let start = base.wrapping_add(*later as usize * stride);
            for line in (0..stride).step_by(64) {
                _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast());
            }
        }
        let places = [place(rows[i]), place(rows[i + 1]), place(rows[i + 2]), place(rows[i + 3])];
        // SAFETY: `out` is as long as `rows`.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().add(i).cast(), dots_of(places)) }
        i += 4;
    }
    while i < rows.len() {
        out[i] = _mm_cvtsi128_si32(dots_of([place(rows[i]); 4]));
        i += 1;
    }
}

/// Sums of `query * (code - 128)`.
///
/// # Safety
/// Needs AVX-512 F and VNNI; each place is followed by as many bytes as `query` has numbers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
unsafe fn codes4(query: &SignedCodes, rows: [*const u8; 4]) -> __m128i {
    let (high, low) = (query.high(), query.low());
    // What the codes' offset of 128 adds to every sum.
    let offset = _mm_set1_epi32(128 * query.sum());
    let zero = _mm512_setzero_si512();
    let (mut sums, mut lows) = ([zero; 4], [zero; 4]);
    if low.is_empty() {
        for start in (0..high.len()).step_by(64) {
            // SAFETY: `start + 64` is at most the length of the query and of every row.
            unsafe {
                let q = _mm512_loadu_si512(high.as_ptr().add(start).cast());
                for (sum, row) in sums.iter_mut().zip(rows) {
                    *sum = _mm512_dpbusd_epi32(*sum, _mm512_loadu_si512(row.add(start).cast()), q);
                }
            }
        }
        return _mm_sub_epi32(reduce4(sums), offset);
    }
    for start in (0..high.len()).step_by(64) {
        // SAFETY: as above; `low` is as long as `high`.
        unsafe {
            let h = _mm512_loadu_si512(high.as_ptr().add(start).cast());
            let l = _mm512_loadu_si512(low.as_ptr().add(start).cast());
            for ((sum, low), row) in sums.iter_mut().zip(&mut lows).zip(rows) {
                let codes = _mm512_loadu_si512(row.add(start).cast());
                *sum = _mm512_dpbusd_epi32(*sum, codes, h);
                *low = _mm512_dpbusd_epi32(*low, codes, l);
            }
        }
    }
    for (sum, low) in sums.iter_mut().zip(lows) {
        *sum = _mm512_add_epi32(_mm512_slli_epi32::<4>(*sum), low);
    }
    _mm_sub_epi32(reduce4(sums), offset)
}

/// The sums of four registers of sixteen i32, in one register.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn reduce4([a, b, c, d]: [__m512i; 4]) -> __m128i {
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    let all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    let half = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64::<1>(all));
    _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half))
}

/// Sums of `query * (2 level - 15)`.
///
/// # Safety
/// Needs AVX-512 F and VNNI; each place is followed by half as many bytes as `query` has numbers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
unsafe fn levels4(query: &SignedCodes, rows: [*const u8; 4]) -> __m128i {
    let (numbers, mask) = (query.high(), _mm512_set1_epi8(15));
    let mut sums = [_mm512_setzero_si512(); 4];
    for start in (0..numbers.len()).step_by(128) {
        // SAFETY: `start + 128` is at most the query's length, half of it that of every row.
        unsafe {
            let low = _mm512_loadu_si512(numbers.as_ptr().add(start).cast());
            let high = _mm512_loadu_si512(numbers.as_ptr().add(start + 64).cast());
            for (sum, row) in sums.iter_mut().zip(rows) {
                let levels = _mm512_loadu_si512(row.add(start / 2).cast());
                let upper = _mm512_and_si512(_mm512_srli_epi16::<4>(levels), mask);
                *sum = _mm512_dpbusd_epi32(*sum, _mm512_and_si512(levels, mask), low);
                *sum = _mm512_dpbusd_epi32(*sum, upper, high);
            }
        }
    }
    let offset = _mm_set1_epi32(15 * query.sum());
    _mm_sub_epi32(_mm_slli_epi32::<1>(reduce4(sums)), offset)
}
