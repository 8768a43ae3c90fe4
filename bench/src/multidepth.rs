//! `multidepth`: every depth in one store, then the same chains in segments, each a graph of its
//! own with all facts of its persons, of which a route asks some or all.
//!
//! | route     | asks                                                                           |
//! |-----------|--------------------------------------------------------------------------------|
//! | `all`     | every segment                                                                  |
//! | `exact`   | the one that holds the person                                                  |
//! | `bounded` | that one and its neighbours, `fan_out` in all: first to the right, then to the |
//! |           | left                                                                           |
//!
//! Segments are asked at the same time; their results are merged by `(score, key)`.

use crate::BenchError;
use crate::cases::{self, Baseline, Case, Executor, Form, Outcome, Tally, difference};
use crate::heap::Heap;
use crate::measure::{Recorder, process_cpu};
use crate::report::{CaseLine, Line};
use crate::run::{Run, Setting};
use crate::target::{AnswerRow, Built, Host};
use crate::workload::multidepth::Layout;
use crate::workload::{Point, Query, SeedOn};
use futures::future::try_join_all;
use hopbine_proto::{Fact, FactKey};
use std::ops::Range;
use std::time::Instant;

/// Which segments are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    All,
    Exact,
    Bounded,
}

impl Route {
    const EVERY: [Self; 3] = [Self::All, Self::Exact, Self::Bounded];

    fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Exact => "exact",
            Self::Bounded => "bounded",
        }
    }

    /// The segments asked about a person whom `owner` holds.
    fn segments(self, owner: usize, layout: Layout) -> Range<usize> {
        let count = layout.segments as usize;
        match self {
            Self::All => 0..count,
            Self::Exact => owner..owner + 1,
            Self::Bounded => {
                let asked = (layout.fan_out as usize).clamp(1, count);
                let end = (owner + asked).min(count);
                end - asked..end
            }
        }
    }
}

/// One row of the segmented form.
struct Row<'a> {
    name: String,
    case: Case,
    route: Route,
    queries: &'a [Query],
}

/// Measures every case that was asked for, depth by depth, then the rows of the segmented form,
/// which is only built for them.
pub(crate) async fn measure(
    run: &mut Run<'_>,
    host: &dyn Host,
    setting: &Setting<'_>,
    layout: Layout,
) -> Result<(), BenchError> {
    let spec = run.spec;
    let wanted = |name: &str| spec.case.as_deref().is_none_or(|asked| asked == name);
    let (mut names, mut depths, mut routed) = (Vec::new(), Vec::new(), Vec::new());
    for queries in setting.queries.chunk_by(|a, b| a.hops.len() == b.hops.len()) {
        let list = cases::multidepth(queries[0].hops.len());
        names.extend(list.iter().map(|case| case.name.to_owned()));
        routed.extend(rows(&list, queries, layout));
        depths.push((queries, list));
    }
    names.dedup();
    names.extend(routed.iter().map(|row| row.name.clone()));
    if !names.iter().any(|name| wanted(name)) {
        let asked = spec.case.as_deref().unwrap_or_default();
        let detail = format!("no case {asked:?}; there are {}", names.join(", "));
        return Err(BenchError::Spec { detail });
    }
    for (queries, list) in depths {
        if list.iter().any(|case| wanted(case.name)) {
            run.cases(&Setting { queries, ..*setting }, list).await?;
        }
    }
    routed.retain(|row| wanted(&row.name));
    if routed.is_empty() {
        return Ok(());
    }
    let parts = Parts::build(run, host, setting, layout).await?;
    for row in routed {
        let line = parts.measure(run, setting, &row).await?;
        run.emit(Line::Case(Box::new(line)));
    }
    Ok(())
}

/// The one call of one depth by every route; none without segments.
fn rows<'a>(list: &[Case], queries: &'a [Query], layout: Layout) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for case in list.iter().filter(|case| layout.segments > 0 && case.form == Form::OneCall) {
        for route in Route::EVERY {
            let name = format!("{}_{}", case.name, route.name());
            rows.push(Row { name, case: case.clone(), route, queries });
        }
    }
    rows
}

/// The segmented form.
struct Parts {
    layout: Layout,
    built: Vec<Built>,
    baselines: Vec<Baseline>,
}

impl Parts {
    async fn build(
        run: &mut Run<'_>,
        host: &dyn Host,
        setting: &Setting<'_>,
        layout: Layout,
    ) -> Result<Self, BenchError> {
        let mut facts: Vec<Vec<Fact>> = vec![Vec::new(); layout.segments as usize];
        for fact in &run.workload.facts {
            let part = layout.size.segment_of(fact.key.entity, layout.segments);
            facts[part].push(fact.clone());
        }
        let since = (Instant::now(), process_cpu());
        let config = run.config(&setting.point, setting.build_seed);
        let mut built = Vec::new();
        for (part, facts) in facts.iter().enumerate() {
            // The first one ends the store that was measured before.
            let graph = match part {
                0 => host.build(config.clone(), facts).await?,
                _ => host.build_beside(config.clone(), facts).await?,
            };
            built.push(graph);
        }
        run.built("build_segmented", (&setting.point, setting.build_seed), since, &built)?;
        let seed_on = run.workload.seed_on;
        let baseline = |facts: &Vec<Fact>| Baseline::new(Heap::new(facts, 1), seed_on);
        let baselines = facts.iter().map(baseline).collect();
        Ok(Self { layout, built, baselines })
    }

    /// The segments that `row` asks about `query`.
    fn route(&self, row: &Row<'_>, query: &Query) -> Range<usize> {
        let owner = self.layout.size.segment_of(query.entity, self.layout.segments);
        row.route.segments(owner, self.layout)
    }

    /// Gate, quality and time of one row.
    async fn measure(
        &self,
        run: &Run<'_>,
        setting: &Setting<'_>,
        row: &Row<'_>,
    ) -> Result<CaseLine, BenchError> {
        let (point, seed_on) = (&setting.point, run.workload.seed_on);
        let executors: Vec<Executor<'_>> =
            self.built.iter().map(|built| executor(built, seed_on, setting)).collect();
        let mut tally = Tally::default();
        for (at, query) in row.queries.iter().enumerate() {
            let (mut expected, mut ideal) = (Vec::new(), Vec::new());
            for part in self.route(row, query) {
                let baseline = &self.baselines[part];
                let found = executors[part].seeds(&row.case, query, point).await?;
                let found: Vec<FactKey> = found.rows.iter().map(|seed| seed.key).collect();
                let exact = baseline.seeds(query, point.ann_k);
                expected.extend(baseline.expected(&row.case, query, point, &found));
                ideal.extend(baseline.expected(&row.case, query, point, &exact));
            }
            let rows = self.ask(&executors, row, query, point).await?.rows;
            if let Some(detail) = difference(&best(expected, point), &rows) {
                return Err(BenchError::Gate { case: row.name.clone(), query: at, detail });
            }
            tally.add(query, &rows, &best(ideal, point));
        }
        let mut recorder = Recorder::default();
        for _ in 0..run.spec.runs() {
            let cpu = process_cpu();
            for query in row.queries {
                let started = Instant::now();
                let outcome = self.ask(&executors, row, query, point).await?;
                recorder.add(started.elapsed(), &outcome.stages, &outcome.work);
            }
            recorder.add_cpu(process_cpu() - cpu);
        }
        let mut line = run.line(setting, &row.case, &recorder, tally.quality(), row.queries.len());
        let one_store = run.p50_ms(row.case.name, setting.build_seed);
        line.times_one_store = one_store.map(|ms| ms / line.latency.p50_ms);
        line.params.shards = self.layout.segments;
        line.case.clone_from(&row.name);
        Ok(line)
    }

    /// Asks the segments of the route at the same time and merges their results. A stage takes as
    /// long as in the slowest of them.
    async fn ask(
        &self,
        executors: &[Executor<'_>],
        row: &Row<'_>,
        query: &Query,
        point: &Point,
    ) -> Result<Outcome, BenchError> {
        let asked = &executors[self.route(row, query)];
        let answers = asked.iter().map(|executor| executor.run(&row.case, query, point, &[]));
        let mut whole = Outcome::default();
        for answer in try_join_all(answers).await? {
            whole.rows.extend(answer.rows);
            whole.work.add(&answer.work);
            for (stage, ms) in answer.stages {
                match whole.stages.iter_mut().find(|(known, _)| *known == stage) {
                    Some((_, most)) => *most = most.max(ms),
                    None => whole.stages.push((stage, ms)),
                }
            }
        }
        whole.rows = best(whole.rows, point);
        Ok(whole)
    }
}

fn executor<'a>(built: &'a Built, seed_on: SeedOn, setting: &Setting<'_>) -> Executor<'a> {
    Executor::new(&*built.target, seed_on, setting.mode)
}

/// The best rows of all segments.
fn best(mut rows: Vec<AnswerRow>, point: &Point) -> Vec<AnswerRow> {
    let score = |row: &AnswerRow| row.score.unwrap_or_default();
    rows.sort_by(|a, b| hopbine_proto::score::rank((score(a), a.key), (score(b), b.key)));
    rows.truncate(point.top_k as usize);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::multidepth::Size;

    #[test]
    fn a_bounded_route_fills_up_to_the_right_and_then_to_the_left() {
        let size = Size { pairs: 80, depth: 1, dim: 2 };
        let asked = |route: Route, owner, fan_out| {
            let layout = Layout { size, segments: 8, fan_out };
            route.segments(owner, layout)
        };
        assert_eq!(asked(Route::All, 3, 2), 0..8);
        assert_eq!(asked(Route::Exact, 7, 2), 7..8);
        assert_eq!(asked(Route::Bounded, 2, 3), 2..5);
        assert_eq!(asked(Route::Bounded, 6, 3), 5..8);
        assert_eq!(asked(Route::Bounded, 7, 1), 7..8);
        assert_eq!(asked(Route::Bounded, 4, 20), 0..8);
    }

    #[test]
    fn the_best_rows_of_all_segments_come_by_score_and_then_by_key() {
        let row = |target, score| {
            let key = FactKey::new(1, 1, target);
            AnswerRow { key, score: Some(score), vector: None, payload: None, path: Vec::new() }
        };
        let point = Point { ann_k: 4, top_k: 3, m: 4, ef_construction: 8, ef_search: 8 };
        let found = best(vec![row(9, 0.5), row(1, 0.75), row(3, 0.5), row(2, 0.25)], &point);
        let targets: Vec<u64> = found.iter().map(|row| row.key.target.0).collect();
        assert_eq!(targets, [2, 3, 9]);
    }
}
