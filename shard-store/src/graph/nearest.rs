//! The best k by `(exact distance, tie)`.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Something at an exact distance; ordered by distance, then by itself.
#[derive(Clone, Copy, Debug)]
struct Ranked<T> {
    distance: f64,
    item: T,
}

impl<T: Ord> PartialEq for Ranked<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T: Ord> Eq for Ranked<T> {}

impl<T: Ord> Ord for Ranked<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.distance.total_cmp(&other.distance).then_with(|| self.item.cmp(&other.item))
    }
}

impl<T: Ord> PartialOrd for Ranked<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Keeps the best `k` of what it is shown. In a segment the items are rows, whose order is key
/// order; in a memtable they are `(key, row)`.
pub struct Nearest<T> {
    k: usize,
    heap: BinaryHeap<Ranked<T>>,
}

impl<T: Ord + Copy> Nearest<T> {
    /// Keeps nothing yet.
    pub fn new(k: usize) -> Self {
        Self { k, heap: BinaryHeap::new() }
    }

    /// Whether `(distance, item)` would be kept.
    #[inline]
    pub fn wants(&self, distance: f64, item: T) -> bool {
        if self.heap.len() < self.k {
            return true;
        }
        self.heap.peek().is_some_and(|worst| Ranked { distance, item } < *worst)
    }

    /// Keeps `(distance, item)` if it is among the best `k` so far.
    #[inline]
    pub fn push(&mut self, distance: f64, item: T) {
        if self.wants(distance, item) {
            if self.heap.len() == self.k {
                self.heap.pop();
            }
            self.heap.push(Ranked { distance, item });
        }
    }

    /// Distance of the worst kept once there are `k`; before that there is no limit.
    #[inline]
    pub fn limit(&self) -> Option<f64> {
        if self.heap.len() < self.k { None } else { self.heap.peek().map(|worst| worst.distance) }
    }

    /// Best first.
    pub fn into_sorted(self) -> Vec<(f64, T)> {
        let sorted = self.heap.into_sorted_vec();
        sorted.into_iter().map(|ranked| (ranked.distance, ranked.item)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_keeps_what_sorting_would_keep(
            shown in prop::collection::vec((0u8..5, any::<u8>()), 0..60), k in 0usize..20,
        ) {
            let mut nearest = Nearest::new(k);
            let mut plain: Vec<(u8, u8)> = shown.clone();
            for (distance, item) in shown {
                nearest.push(f64::from(distance), item);
            }
            plain.sort_unstable();
            prop_assert_eq!(nearest.limit().is_some(), plain.len() >= k && k > 0);
            plain.truncate(k);
            let plain: Vec<(f64, u8)> = plain.iter().map(|(d, i)| (f64::from(*d), *i)).collect();
            prop_assert_eq!(nearest.into_sorted(), plain);
        }
    }
}
