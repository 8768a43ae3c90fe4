//! The smallest items of a stream, in bounded memory.

use std::cmp::Ordering;

/// Keeps the `keep` smallest of all pushed items by a total order. Holds at most twice as many,
/// or 64 more; a push costs O(1) on average.
pub(crate) struct Smallest<T> {
    items: Vec<T>,
    keep: usize,
    compare: fn(&T, &T) -> Ordering,
    /// Whether `items` was cut: then its last item is the largest that can still be kept.
    cut: bool,
    pushed: u64,
}

impl<T> Smallest<T> {
    /// An empty collection by the total order `compare`.
    pub fn new(keep: usize, compare: fn(&T, &T) -> Ordering) -> Self {
        Self { items: Vec::new(), keep, compare, cut: false, pushed: 0 }
    }

    /// Offers an item.
    pub fn push(&mut self, item: T) {
        self.pushed += 1;
        if self.keep == 0 {
            return;
        }
        let bound = self.cut.then(|| &self.items[self.keep - 1]);
        if bound.is_some_and(|bound| (self.compare)(&item, bound).is_ge()) {
            return;
        }
        self.items.push(item);
        if self.items.len() >= self.keep.saturating_mul(2).max(self.keep.saturating_add(64)) {
            self.items.select_nth_unstable_by(self.keep - 1, self.compare);
            self.items.truncate(self.keep);
            self.cut = true;
        }
    }

    /// Items offered so far.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// The kept items, ascending.
    pub fn into_sorted(mut self) -> Vec<T> {
        self.items.sort_unstable_by(self.compare);
        self.items.truncate(self.keep);
        self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_keeps_what_sorting_and_cutting_keeps(
            items in proptest::collection::vec(0u32..500, 0..400),
            keep in 0usize..90,
        ) {
            let mut smallest = Smallest::new(keep, u32::cmp);
            for item in &items {
                smallest.push(*item);
            }
            prop_assert_eq!(smallest.pushed() as usize, items.len());
            let mut sorted = items;
            sorted.sort_unstable();
            sorted.truncate(keep);
            prop_assert_eq!(smallest.into_sorted(), sorted);
        }
    }
}
