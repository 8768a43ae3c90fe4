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
    pub(super) code_dots: fn(&SignedCodes, &[u8], &mut [i32]),
    pub(super) code_dots_at: fn(&SignedCodes, &[u8], &[u32], &mut [i32]),
    pub(super) nibble_dots: fn(&SignedCodes, &[u8], &mut [i32]),
    pub(super) nibble_dots_at: fn(&SignedCodes, &[u8], &[u32], &mut [i32]),
    pub(super) sign_sums: fn(&SignPlanes, &[u64], &mut [u32]),
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
    /// `query * (code - 128)`. Exact: at most 4,096 products below 2^19 each, so below 2^31.
    pub fn code_dots(&self, query: &SignedCodes, codes: &[u8], out: &mut [i32]) {
        assert_eq!(codes.len(), out.len() * query.stride(), "codes are not whole rows");
        (self.code_dots)(query, codes, out);
    }

    /// The same for the given rows of `codes`, in any order. Panics when a row is out of bounds.
    pub fn code_dots_at(&self, query: &SignedCodes, codes: &[u8], rows: &[u32], out: &mut [i32]) {
        assert_eq!(rows.len(), out.len(), "one result per row");
        let count = codes.len() / query.stride();
        assert!(rows.iter().all(|row| (*row as usize) < count), "row out of bounds");
        (self.code_dots_at)(query, codes, rows, out);
    }

    /// For each of the rows of 4-bit levels (see `nibbles.rs`) the sum of `query * (2 level - 15)`,
    /// of the query's numbers of eight bits. `query` has twice as many numbers as a row has
    /// bytes, a multiple of 128.
    pub fn nibble_dots(&self, query: &SignedCodes, levels: &[u8], out: &mut [i32]) {
        assert!(query.stride().is_multiple_of(128), "numbers are not whole lines of levels");
        assert_eq!(levels.len(), out.len() * query.stride() / 2, "levels are not whole rows");
        (self.nibble_dots)(query, levels, out);
    }

    /// The same for the given rows of `levels`, in any order. Panics when a row is out of bounds.
    pub fn nibble_dots_at(
        &self,
        query: &SignedCodes,
        levels: &[u8],
        rows: &[u32],
        out: &mut [i32],
    ) {
        assert!(query.stride().is_multiple_of(128), "numbers are not whole lines of levels");
        assert_eq!(rows.len(), out.len(), "one result per row");
        let count = levels.len() / (query.stride() / 2);
        assert!(rows.iter().all(|row| (*row as usize) < count), "row out of bounds");
        (self.nibble_dots_at)(query, levels, rows, out);
    }

    /// For each row the sum of the levels of `planes` at its set bits. `words` holds groups of
    /// `SIGN_GROUP` rows: of each the first words of all rows, then the second words, and so on.
    pub fn sign_sums(&self, planes: &SignPlanes, words: &[u64], out: &mut [u32]) {
        assert_eq!(words.len(), out.len() * planes.words(), "signs are not whole rows");
        assert!(out.len().is_multiple_of(SIGN_GROUP), "rows are not whole groups");
        (self.sign_sums)(planes, words, out);
    }
}

/// Rows whose signs lie together: as many as a wide register holds words.
pub const SIGN_GROUP: usize = 8;
/// Bits of a level.
pub const SIGN_PLANES: usize = 4;

/// Levels 0 to 15, one per component, as bit planes: of each word of 64 components the lowest bits,
/// then the next, and so on.
#[derive(Clone, Debug)]
pub struct SignPlanes {
    words: Vec<[u64; SIGN_PLANES]>,
}

impl SignPlanes {
    /// Levels 0 for `words` words of 64 components: 1 to 64 words, so that sums fit.
    pub fn zeros(words: usize) -> Self {
        assert!((1..=64).contains(&words), "{words} words of signs");
        Self { words: vec![[0; SIGN_PLANES]; words] }
    }

    /// Sets one bit of the level of a component.
    pub fn set(&mut self, plane: usize, component: usize, bit: bool) {
        self.words[component / 64][plane] |= u64::from(bit) << (component % 64);
    }

    /// Words of 64 components.
    pub fn words(&self) -> usize {
        self.words.len()
    }

    /// The planes of each word.
    pub(super) fn planes(&self) -> &[[u64; SIGN_PLANES]] {
        &self.words
    }
}

/// The signed side of a code dot product: whole cache lines of numbers of 8 or 12 bits.
///
/// A number of 12 bits is `16 * high + low`: a query rounded to it errs sixteen times less than one
/// rounded to 8 bits, and a scan costs no more, since it waits for the memory of the rows.
#[derive(Clone, Debug)]
pub struct SignedCodes {
    high: Vec<i8>,
    /// As long as `high`, or empty for numbers of 8 bits.
    low: Vec<i8>,
    sum: i32,
}

/// Largest size of a number of 12 bits: `16 * 127`.
pub const FINE_MAX: i16 = 2032;

impl SignedCodes {
    /// Codes 0 of 8 bits for rows of `stride` bytes: a multiple of 64, at most 4,096, so that sums
    /// fit.
    pub fn zeros(stride: usize) -> Self {
        let fits = stride > 0 && stride.is_multiple_of(64) && stride <= 4096;
        assert!(fits, "a code row of {stride} bytes");
        Self { high: vec![0; stride], low: Vec::new(), sum: 0 }
    }

    /// Numbers of 12 bits, each from `-FINE_MAX` to `FINE_MAX`, padded with 0 to whole cache lines:
    /// 1 to 4,096 numbers, so that sums fit.
    pub fn fine(numbers: &[i16]) -> Self {
        let mut codes = Self::zeros(numbers.len().next_multiple_of(64));
        codes.low = codes.high.clone();
        for (at, number) in numbers.iter().enumerate() {
            assert!((-FINE_MAX..=FINE_MAX).contains(number), "{number} needs more than 12 bits");
            let high = (number + 8) >> 4;
            codes.high[at] = high as i8;
            codes.low[at] = (number - 16 * high) as i8;
            codes.sum += i32::from(*number);
        }
        codes
    }

    /// Numbers of 8 bits: a multiple of 64 of them, at most 4,096, so that sums fit.
    pub fn coarse(numbers: &[i8]) -> Self {
        let mut codes = Self::zeros(numbers.len());
        codes.high.copy_from_slice(numbers);
        codes.sum = numbers.iter().map(|number| i32::from(*number)).sum();
        codes
    }

    /// Takes the signed values of a row of 8-bit codes, none of which is 0 (that would be -128).
    pub fn set(&mut self, row: &[u8]) {
        assert_eq!(row.len(), self.high.len(), "a row of another stride");
        let mut sum = 0;
        for (signed, code) in self.high.iter_mut().zip(row) {
            *signed = (*code ^ 128) as i8;
            sum += i32::from(*code);
        }
        self.low.clear();
        self.sum = sum - 128 * row.len() as i32;
    }

    /// The numbers of 8 bits, or the higher eight bits of those of 12.
    pub(super) fn high(&self) -> &[i8] {
        &self.high
    }

    /// The lower four bits, -8 to 7, of numbers of 12 bits; empty for those of 8.
    pub(super) fn low(&self) -> &[i8] {
        &self.low
    }

    /// Bytes of a row.
    pub fn stride(&self) -> usize {
        self.high.len()
    }

    /// Sum of the numbers.
    pub fn sum(&self) -> i32 {
        self.sum
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernels({})", self.name)
    }
}

/// Asks the processor to load the cache line of `place`; no effect on any result.
#[inline]
pub fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch of any address is harmless; SSE is part of x86_64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::exact::norm;
    use hopbine_proto::Metric;
    use proptest::prelude::*;

    fn any_value() -> impl Strategy<Value = f32> {
        prop_oneof![
            4 => -1.0f32..1.0,
            1 => any::<f32>().prop_filter("finite", |value| value.is_finite()),
            1 => prop_oneof![
                Just(0.0), Just(-0.0), Just(f32::MIN_POSITIVE / 3.0), Just(f32::MAX),
                Just(f32::MIN), Just(-1e-45),
            ],
        ]
    }

    fn pair() -> impl Strategy<Value = (Vec<f32>, Vec<f32>)> {
        let dim = prop_oneof![4 => 1usize..70, 1 => 70usize..600, 1 => Just(4096), 1 => Just(4095)];
        dim.prop_flat_map(|dim| {
            (prop::collection::vec(any_value(), dim), prop::collection::vec(any_value(), dim))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn all_kernels_give_the_same_exact_bits((a, b) in pair()) {
            let query = ExactQuery::new(&a);
            let plain = &scalar::KERNELS;
            for kernels in Kernels::all_available() {
                for metric in [Metric::Cosine, Metric::L2, Metric::Dot] {
                    let distance = query.distance(&kernels, metric, &b, norm(&b));
                    let expected = query.distance(plain, metric, &b, norm(&b));
                    prop_assert_eq!(distance.to_bits(), expected.to_bits(), "{}", kernels.name);
                    prop_assert!(distance.is_finite());
                }
                let bits = kernels.squared_norm(&b).to_bits();
                prop_assert_eq!(bits, plain.squared_norm(&b).to_bits());
            }
        }

        #[test]
        fn all_kernels_give_the_same_code_dots(
            lines in 1usize..=64,
            rows in 1usize..13,
            seed in any::<u64>(),
        ) {
            let stride = 64 * lines;
            let mut state = seed | 1;
            let mut code = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                match state >> 60 {
                    0 => 1,
                    1 => 255,
                    _ => ((state >> 40) as u8).max(1),
                }
            };
            let row: Vec<u8> = (0..stride).map(|_| code()).collect();
            let codes: Vec<u8> = (0..stride * rows).map(|_| code()).collect();
            let mut coarse = SignedCodes::zeros(stride);
            coarse.set(&row);
            let numbers: Vec<i16> = row.iter().map(|code| {
                let signed = i16::from(*code) - 128;
                if signed.abs() == 127 { 16 * signed } else { 16 * signed - i16::from(code % 16) }
            }).collect();
            let of_row = row.iter().map(|code| i64::from(*code) - 128).collect();
            let of_numbers = numbers.iter().map(|number| i64::from(*number)).collect();
            let queries: [(SignedCodes, Vec<i64>); 2] =
                [(coarse, of_row), (SignedCodes::fine(&numbers), of_numbers)];
            let order: Vec<u32> = (0..rows as u32).rev().chain(0..rows as u32).collect();
            for (query, numbers) in &queries {
                let plain = |at: usize| -> i64 {
                    let other = &codes[at * stride..(at + 1) * stride];
                    numbers.iter().zip(other).map(|(a, b)| a * (i64::from(*b) - 128)).sum()
                };
                for kernels in Kernels::all_available() {
                    let mut dots = vec![0; rows];
                    kernels.code_dots(query, &codes, &mut dots);
                    for (at, dot) in dots.iter().enumerate() {
                        prop_assert_eq!(i64::from(*dot), plain(at), "{}", kernels.name);
                    }
                    let mut dots = vec![0; order.len()];
                    kernels.code_dots_at(query, &codes, &order, &mut dots);
                    for (at, dot) in order.iter().zip(dots) {
                        prop_assert_eq!(i64::from(dot), plain(*at as usize), "{}", kernels.name);
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn all_kernels_give_the_same_nibble_dots(
            lines in 1usize..=32, rows in 1usize..13, seed in any::<u64>(), dense in any::<bool>(),
        ) {
            let mut state = seed | 1;
            let mut byte = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                if dense { u8::MAX } else { (state >> 40) as u8 }
            };
            let numbers: Vec<i8> = (0..128 * lines).map(|_| (byte() as i8).max(-127)).collect();
            let query = SignedCodes::coarse(&numbers);
            let levels: Vec<u8> = (0..64 * lines * rows).map(|_| byte()).collect();
            let plain = |row: usize| -> i32 {
                (0..128 * lines).map(|i| {
                    let byte = levels[64 * (lines * row + i / 128) + i % 64];
                    let level = if i % 128 < 64 { byte & 15 } else { byte >> 4 };
                    i32::from(numbers[i]) * (2 * i32::from(level) - 15)
                }).sum()
            };
            let expected: Vec<i32> = (0..rows).map(plain).collect();
            for kernels in Kernels::all_available() {
                let mut dots = vec![0; rows];
                kernels.nibble_dots(&query, &levels, &mut dots);
                prop_assert_eq!(&dots, &expected, "{}", kernels.name);
                let order: Vec<u32> = (0..rows as u32).rev().chain(0..rows as u32).collect();
                let mut dots = vec![0; order.len()];
                kernels.nibble_dots_at(&query, &levels, &order, &mut dots);
                let of = |row: &u32| expected[*row as usize];
                prop_assert_eq!(dots, order.iter().map(of).collect::<Vec<_>>(), "{}", kernels.name);
            }
        }
    }

    proptest! {
        #[test]
        fn all_kernels_give_the_same_sign_sums(
            words in 1usize..=64, groups in 1usize..5, seed in any::<u64>(), dense in any::<bool>(),
        ) {
            let mut state = seed | 1;
            let mut word = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                if dense { u64::MAX } else { state ^ state >> 29 }
            };
            let mut planes = SignPlanes::zeros(words);
            for component in 0..words * 64 {
                let level = word();
                (0..SIGN_PLANES).for_each(|p| planes.set(p, component, level >> (p + 7) & 1 == 1));
            }
            let signs: Vec<u64> = (0..groups * SIGN_GROUP * words).map(|_| word()).collect();
            let plain = |row: usize| -> u32 {
                let (group, lane) = (row / SIGN_GROUP, row % SIGN_GROUP);
                (0..words * 64).map(|i| {
                    let bits = signs[(group * words + i / 64) * SIGN_GROUP + lane];
                    let level: u32 = (0..SIGN_PLANES)
                        .map(|p| ((planes.planes()[i / 64][p] >> (i % 64) & 1) as u32) << p)
                        .sum();
                    if bits >> (i % 64) & 1 == 1 { level } else { 0 }
                }).sum()
            };
            let expected: Vec<u32> = (0..groups * SIGN_GROUP).map(plain).collect();
            for kernels in Kernels::all_available() {
                let mut sums = vec![0; groups * SIGN_GROUP];
                kernels.sign_sums(&planes, &signs, &mut sums);
                prop_assert_eq!(&sums, &expected, "{}", kernels.name);
            }
        }
    }

    #[test]
    fn the_exact_distance_is_the_documented_sum() {
        // 17 components: the last one is added in lane 0 again.
        let a: Vec<f32> = (0..17).map(|i| i as f32 + 0.5).collect();
        let b: Vec<f32> = (0..17).map(|i| 1.0 / (i as f32 + 3.0)).collect();
        let product = |i: usize| f64::from(a[i]) * f64::from(b[i]);
        let mut lanes: Vec<f64> = (0..16).map(product).collect();
        lanes[0] += product(16);
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                lanes[lane] += lanes[lane + half];
            }
        }
        let query = ExactQuery::new(&a);
        for kernels in Kernels::all_available() {
            let distance = query.distance(&kernels, Metric::Dot, &b, norm(&b));
            assert_eq!(distance.to_bits(), (-lanes[0]).to_bits(), "{}", kernels.name);
        }
    }

    #[test]
    fn a_zero_vector_is_at_cosine_distance_one_and_nan_comes_last() {
        let kernels = Kernels::chosen();
        let query = ExactQuery::new(&[1.0, 2.0]);
        assert_eq!(query.distance(kernels, Metric::Cosine, &[0.0, 0.0], 0.0), 1.0);
        let nan = query.distance(kernels, Metric::Dot, &[f32::NAN, 0.0], f64::NAN);
        assert!(nan.total_cmp(&f64::INFINITY).is_gt());
    }
}
