//! The gate before timing: every question of every case must give the rows of the plain
//! evaluation of the same contract with the same seeds, scores equal to six decimals.

use super::{Baseline, Case, Executor, From};
use crate::BenchError;
use crate::target::AnswerRow;
use crate::workload::{Point, Query};
use hopbine_proto::FactKey;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// What the answers of a case are worth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quality {
    /// Share of questions whose first row is the answer, in percent; `None` without answers.
    pub hit1_pct: Option<f64>,
    /// Share whose rows hold the answer, in percent; `None` without answers.
    pub hitk_pct: Option<f64>,
    /// Share of the rows of exact seeds that came, over all questions; 1 where all of them did.
    pub recall: f64,
    /// Share of questions whose rows are, as a set, those of exact seeds, in percent.
    pub equal_sets_pct: f64,
    /// Rows per question.
    pub rows: f64,
    /// SHA-256 over all rows in order: keys, scores to the bit, payloads and paths.
    pub results_sha256: String,
}

/// Runs `case` once for every question and compares. `exact` are the exact seeds of each question.
/// Fails with `Gate` at the first difference.
pub async fn check(
    executor: &Executor<'_>,
    baseline: &Baseline,
    case: &Case,
    queries: &[Query],
    point: &Point,
    exact: &[Vec<FactKey>],
) -> Result<Quality, BenchError> {
    let mut tally = Tally::default();
    for (at, (query, exact)) in queries.iter().zip(exact).enumerate() {
        let seeds: Vec<FactKey> = match case.from {
            From::Entity => Vec::new(),
            From::GivenSeeds => exact.clone(),
            From::Seeds | From::ExactSeeds => {
                let answer = executor.seeds(case, query, point).await?;
                answer.rows.iter().map(|row| row.key).collect()
            }
        };
        let expected = baseline.expected(case, query, point, &seeds);
        let outcome = executor.run(case, query, point, exact).await?;
        if let Some(detail) = difference(&expected, &outcome.rows) {
            return Err(BenchError::Gate { case: case.name.to_owned(), query: at, detail });
        }
        let ideal = baseline.expected(case, query, point, exact);
        tally.add(query, &outcome.rows, &ideal);
    }
    Ok(tally.quality())
}

/// How two lists of rows differ, if they do.
pub fn difference(expected: &[AnswerRow], got: &[AnswerRow]) -> Option<String> {
    if expected.len() != got.len() {
        return Some(format!("{} rows, expected {}", got.len(), expected.len()));
    }
    for (at, (want, have)) in expected.iter().zip(got).enumerate() {
        let rounded = |row: &AnswerRow| row.score.map(|score| (score * 1e6).round());
        if want.key != have.key || rounded(want) != rounded(have) {
            let show = |row: &AnswerRow| format!("{:?} at {:?}", row.key, row.score);
            return Some(format!("row {at} is {}, expected {}", show(have), show(want)));
        }
    }
    None
}

/// Counts over the questions of one case.
#[derive(Default)]
pub struct Tally {
    questions: usize,
    answered: usize,
    first: usize,
    among: usize,
    rows: usize,
    ideal: usize,
    kept: usize,
    equal_sets: usize,
    digest: Sha256,
}

impl Tally {
    /// Counts one question's rows against those of exact seeds.
    pub fn add(&mut self, query: &Query, rows: &[AnswerRow], ideal: &[AnswerRow]) {
        self.questions += 1;
        self.rows += rows.len();
        if let Some(answer) = query.answer {
            self.answered += 1;
            self.first += usize::from(rows.first().is_some_and(|row| row.key.target == answer));
            self.among += usize::from(rows.iter().any(|row| row.key.target == answer));
        }
        let mut keys: Vec<FactKey> = rows.iter().map(|row| row.key).collect();
        keys.sort_unstable();
        self.ideal += ideal.len();
        let kept = ideal.iter().filter(|row| keys.binary_search(&row.key).is_ok()).count();
        self.kept += kept;
        self.equal_sets += usize::from(kept == ideal.len() && kept == rows.len());
        for row in rows {
            self.digest.update(row.key.to_bytes());
            self.digest.update(row.score.map_or([0xff; 8], |score| score.to_bits().to_be_bytes()));
            self.digest.update(row.payload.as_deref().unwrap_or_default());
            for step in &row.path {
                self.digest.update(step.to_bytes());
            }
        }
        self.digest.update([b'\n']);
    }

    /// The shares.
    pub fn quality(self) -> Quality {
        let percent =
            |count: usize| (self.answered > 0).then(|| 100.0 * count as f64 / self.answered as f64);
        let questions = self.questions.max(1) as f64;
        let mut results_sha256 = String::new();
        for byte in self.digest.finalize() {
            // Writing to a string cannot fail.
            let _ = write!(results_sha256, "{byte:02x}");
        }
        Quality {
            hit1_pct: percent(self.first),
            hitk_pct: percent(self.among),
            recall: if self.ideal == 0 { 1.0 } else { self.kept as f64 / self.ideal as f64 },
            equal_sets_pct: 100.0 * self.equal_sets as f64 / questions,
            rows: self.rows as f64 / questions,
            results_sha256,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::EntityId;

    fn row(target: u64, score: f64) -> AnswerRow {
        let key = FactKey::new(1, 1, target);
        AnswerRow { key, score: Some(score), vector: None, payload: None, path: Vec::new() }
    }

    fn query(answer: u64) -> Query {
        Query {
            text: String::new(),
            vector: [1.0].into(),
            entity: EntityId(1),
            hops: Vec::new(),
            answer: Some(EntityId(answer)),
        }
    }

    #[test]
    fn a_difference_is_a_missing_row_another_key_or_another_score() {
        let rows = [row(1, 0.5), row(2, 0.75)];
        assert_eq!(difference(&rows, &[row(1, 0.500_000_1), row(2, 0.75)]), None);
        assert!(difference(&rows, &rows[..1]).is_some());
        assert!(difference(&rows, &[row(1, 0.5), row(3, 0.75)]).is_some());
        assert!(difference(&rows, &[row(1, 0.500_01), row(2, 0.75)]).is_some());
    }

    #[test]
    fn shares_count_first_rows_answers_and_what_exact_seeds_would_give() {
        let mut tally = Tally::default();
        tally.add(&query(1), &[row(1, 0.1), row(2, 0.2)], &[row(1, 0.1), row(2, 0.2)]);
        tally.add(&query(2), &[row(1, 0.1), row(2, 0.2)], &[row(3, 0.1), row(2, 0.2)]);
        tally.add(&query(9), &[row(1, 0.1)], &[]);
        tally.add(&query(9), &[], &[row(1, 0.1)]);
        let quality = tally.quality();
        assert_eq!((quality.hit1_pct, quality.hitk_pct), (Some(25.0), Some(50.0)));
        assert_eq!((quality.recall, quality.rows), (0.6, 1.25));
        // The first question alone: the others have a row too many, another one, or none.
        assert_eq!(quality.equal_sets_pct, 25.0);
    }

    #[test]
    fn a_digest_tells_scores_apart_that_differ_in_one_bit() {
        let digest = |score: f64| {
            let mut tally = Tally::default();
            tally.add(&query(1), &[row(1, score)], &[]);
            tally.quality().results_sha256
        };
        assert_eq!(digest(0.1), digest(0.1));
        assert_ne!(digest(0.1), digest(0.1_f64.next_up()));
    }
}
