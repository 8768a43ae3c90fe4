//! Why a two-hop question is missed: was its person among the seeds, was its city reached, and
//! where did it rank?

use crate::cases::Baseline;
use crate::measure::{mean, percentile};
use crate::workload::{Point, Query};
use hopbine_proto::FactKey;
use hopbine_proto::score::ScoreMode;
use hopbine_shard_store::kernel::ExactQuery;
use serde::Serialize;

/// Shares and ranks over the questions of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Diagnostics {
    /// Share of questions whose person is among the seeds, in percent.
    pub seed_person_pct: f64,
    /// Share whose answer is among the expanded facts, in percent.
    pub expanded_city_pct: f64,
    /// Mean rank of the person among the distinct seeds, from 1, where present; `ann_k + 1` when
    /// it never is.
    pub avg_person_rank: f64,
    /// Mean rank of the answer among all expanded facts by `(own distance, target)`, from 1,
    /// where present.
    pub city_rank_avg: f64,
    /// Its median.
    pub city_rank_p50: u64,
    /// 95 of 100 are at most this.
    pub city_rank_p95: u64,
    /// The largest.
    pub city_rank_max: u64,
}

/// Looks at each question with its seeds. Questions without an answer do not count.
pub fn diagnose(
    baseline: &Baseline,
    queries: &[Query],
    seeds: &[Vec<FactKey>],
    point: &Point,
) -> Diagnostics {
    let (mut person_ranks, mut city_ranks, mut questions) = (Vec::new(), Vec::new(), 0);
    for (query, seeds) in queries.iter().zip(seeds) {
        let Some(answer) = query.answer else { continue };
        questions += 1;
        let starts = baseline.starts(seeds);
        person_ranks.extend(starts.iter().position(|id| *id == query.entity).map(|at| at + 1));
        let exact = ExactQuery::new(&query.vector);
        let mut expanded = baseline.heap().rank(&starts, &query.hops, &exact, ScoreMode::Endpoint);
        expanded.sort_by(|a, b| {
            a.score.total_cmp(&b.score).then_with(|| a.key.target.cmp(&b.key.target))
        });
        let at = expanded.iter().position(|fact| fact.key.target == answer);
        city_ranks.extend(at.map(|at| at as u64 + 1));
    }
    city_ranks.sort_unstable();
    let percent = |count: usize| 100.0 * count as f64 / f64::from(questions.max(1));
    let as_f64: Vec<f64> = city_ranks.iter().map(|rank| *rank as f64).collect();
    let ranks: Vec<f64> = person_ranks.iter().map(|rank| *rank as f64).collect();
    let city_rank = |p| percentile(&city_ranks, p).unwrap_or_default();
    Diagnostics {
        seed_person_pct: percent(person_ranks.len()),
        expanded_city_pct: percent(city_ranks.len()),
        avg_person_rank: if ranks.is_empty() { f64::from(point.ann_k) + 1.0 } else { mean(&ranks) },
        city_rank_avg: mean(&as_f64),
        city_rank_p50: city_rank(50),
        city_rank_p95: city_rank(95),
        city_rank_max: city_rank(100),
    }
}
