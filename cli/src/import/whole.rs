//! Up to which line everything is loaded, while batches land in any order.

use std::collections::BTreeMap;

/// What has landed of a numbered stream of batches.
#[derive(Debug, Default)]
pub struct Whole {
    /// Every line up to here is loaded; 0 for none.
    pub to_line: u64,
    /// The batch that must land next.
    next: u64,
    /// Last lines of batches that landed before an earlier one.
    ahead: BTreeMap<u64, u64>,
}

impl Whole {
    /// Notes that batch `number`, counted from 0, landed; its last line is `last_line`.
    pub fn landed(&mut self, number: u64, last_line: u64) {
        self.ahead.insert(number, last_line);
        while let Some(line) = self.ahead.remove(&self.next) {
            self.to_line = line;
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_landed_early_counts_once_those_before_it_have() {
        let mut whole = Whole::default();
        whole.landed(1, 4);
        assert_eq!(whole.to_line, 0);
        whole.landed(0, 2);
        assert_eq!(whole.to_line, 4);
        whole.landed(3, 9);
        assert_eq!(whole.to_line, 4);
    }
}
