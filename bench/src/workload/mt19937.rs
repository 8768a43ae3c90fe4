//! The 32-bit Mersenne Twister that draws cities and questions.
//!
//! Source: M. Matsumoto and T. Nishimura, "Mersenne Twister", ACM TOMACS 8(1), 1998, with the
//! `init_by_array` seeding of their 2002 reference. `below` and `sample` are what the reference
//! workloads used, so that equal seeds give equal data.

use std::collections::HashSet;

const STATE: usize = 624;
const SHIFT: usize = 397;

/// A generator; equal seeds give equal draws on every machine.
pub struct Mt19937 {
    state: [u32; STATE],
    next: usize,
}

impl Mt19937 {
    /// Seeds with the one-word key `[seed]`.
    pub fn new(seed: u32) -> Self {
        let mut state = [0_u32; STATE];
        state[0] = 19_650_218;
        for i in 1..STATE {
            let before = state[i - 1];
            state[i] =
                1_812_433_253_u32.wrapping_mul(before ^ (before >> 30)).wrapping_add(i as u32);
        }
        let mut i = 1;
        for _ in 0..STATE {
            let before = state[i - 1];
            let mixed = (before ^ (before >> 30)).wrapping_mul(1_664_525);
            state[i] = (state[i] ^ mixed).wrapping_add(seed);
            i = step(&mut state, i);
        }
        for _ in 0..STATE - 1 {
            let before = state[i - 1];
            let mixed = (before ^ (before >> 30)).wrapping_mul(1_566_083_941);
            state[i] = (state[i] ^ mixed).wrapping_sub(i as u32);
            i = step(&mut state, i);
        }
        state[0] = 0x8000_0000;
        Self { state, next: STATE }
    }

    /// One 32-bit output.
    pub fn word(&mut self) -> u32 {
        if self.next == STATE {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// The top `k` bits of one output; `1 <= k <= 32`.
    pub fn bits(&mut self, k: u32) -> u32 {
        assert!((1..=32).contains(&k), "{k} bits of a 32-bit word");
        self.word() >> (32 - k)
    }

    /// A number below `n`, by drawing as many bits as `n` has until the value is below it.
    pub fn below(&mut self, n: u32) -> u32 {
        assert!(n > 0, "no number is below 0");
        let k = 32 - n.leading_zeros();
        loop {
            let value = self.bits(k);
            if value < n {
                return value;
            }
        }
    }

    /// A number in `[0, 1)` of 32 bits.
    pub fn unit(&mut self) -> f64 {
        f64::from(self.word()) / 4_294_967_296.0
    }

    /// `count` distinct numbers of `1..=n`, in the order drawn. `None` where this way of drawing
    /// is not the reference's: when `n` is at most `21 + 4^ceil(log4(3 * count))`.
    pub fn sample(&mut self, n: u32, count: u32) -> Option<Vec<u32>> {
        if u64::from(n) <= sample_floor(count) {
            return None;
        }
        let mut taken = HashSet::with_capacity(count as usize);
        let mut drawn = Vec::with_capacity(count as usize);
        while drawn.len() < count as usize {
            let j = self.below(n);
            if taken.insert(j) {
                drawn.push(j + 1);
            }
        }
        Some(drawn)
    }

    fn twist(&mut self) {
        for i in 0..STATE {
            let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % STATE] & 0x7fff_ffff);
            let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + SHIFT) % STATE] ^ (y >> 1) ^ odd;
        }
        self.next = 0;
    }
}

/// The next place of the seeding walk; wraps by carrying the last word to the front.
fn step(state: &mut [u32; STATE], i: usize) -> usize {
    if i + 1 < STATE {
        return i + 1;
    }
    state[0] = state[STATE - 1];
    1
}

/// The largest population that `sample` refuses for `count` draws.
pub fn sample_floor(count: u32) -> u64 {
    let mut power = 1_u64;
    while power < 3 * u64::from(count) {
        power *= 4;
    }
    21 + if count > 5 { power } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_outputs_are_the_reference_ones() {
        // The first outputs of `init_by_array({0x123, 0x234, 0x345, 0x456})` are published; with a
        // one-word key the draws below are those of the workload's definition.
        let mut rng = Mt19937::new(42);
        let cities: Vec<u32> = (0..6).map(|_| rng.below(1_000_000)).collect();
        assert_eq!(cities, [670_487, 116_739, 26_225, 777_572, 288_389, 256_787]);
    }

    #[test]
    fn samples_are_the_reference_ones_and_distinct() {
        let drawn = Mt19937::new(42).sample(5_000, 6).expect("5000 is enough");
        assert_eq!(drawn, [913, 205, 2254, 2007, 1829, 1144]);
        let many = Mt19937::new(7).sample(5_000, 1_000).expect("5000 is enough");
        assert_eq!(many.iter().collect::<HashSet<_>>().len(), 1_000);
        assert!(many.iter().all(|&value| (1..=5_000).contains(&value)));
    }

    #[test]
    fn a_population_too_small_for_this_way_of_drawing_is_refused() {
        assert_eq!((sample_floor(64), sample_floor(1_000)), (277, 4_117));
        assert!(Mt19937::new(1).sample(277, 64).is_none());
        assert!(Mt19937::new(1).sample(278, 64).is_some());
    }
}
