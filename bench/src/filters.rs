//! Search under filters by relation that are uncorrelated with the question: recall, number of
//! results, time against the unfiltered search, and the way taken.

use crate::BenchError;
use crate::cases::{From, Store, Tally, difference};
use crate::measure::{Recorder, process_cpu};
use crate::report::{CaseLine, Line};
use crate::run::{Run, Setting};
use crate::target::{AnswerRow, SeedsAsk};
use crate::workload::{Query, clustered};
use hopbine_proto::FactKey;
use hopbine_proto::call::Relations;
use hopbine_shard_store::kernel::ExactQuery;
use std::collections::HashMap;
use std::time::Instant;

/// Measures the unfiltered search and every filter.
///
/// Fails when a row does not pass its filter or has another than its exact distance, and when
/// fewer than `k` rows come although `k` facts match.
pub(crate) async fn measure(run: &mut Run<'_>, setting: &Setting<'_>) -> Result<(), BenchError> {
    let mut filters = vec![("search_unfiltered".to_owned(), Relations::Any)];
    for (percent, relations) in clustered::filters() {
        filters.push((format!("search_relation_{percent}_pct"), relations));
    }
    let mut unfiltered_ms = None;
    for (name, relations) in filters {
        if run.spec.case.as_ref().is_some_and(|asked| *asked != name) {
            continue;
        }
        let mut line = one_filter(run, setting, &name, &relations).await?;
        let first = *unfiltered_ms.get_or_insert(line.latency.p50_ms);
        if relations != Relations::Any {
            line.times_unfiltered = Some(line.latency.p50_ms / first);
        }
        run.emit(Line::Case(Box::new(line)));
    }
    if unfiltered_ms.is_none() {
        let asked = run.spec.case.clone().unwrap_or_default();
        return Err(BenchError::Spec { detail: format!("no case {asked:?}") });
    }
    Ok(())
}

async fn one_filter(
    run: &Run<'_>,
    setting: &Setting<'_>,
    name: &str,
    relations: &Relations,
) -> Result<CaseLine, BenchError> {
    let (queries, k) = (&run.workload.queries, setting.point.ann_k);
    let ask = |query: &Query| SeedsAsk {
        vector: query.vector.clone(),
        k,
        relations: relations.clone(),
        mode: setting.mode,
    };
    let facts = &run.workload.facts;
    let matching = facts.iter().filter(|fact| relations.contains(fact.key.relation)).count();
    let (mut tally, mut rows_min) = (Tally::default(), u64::MAX);
    for (at, query) in queries.iter().enumerate() {
        let rows = setting.built.target.seeds(ask(query)).await?.rows;
        let ideal = exact_rows(run, query, matching, relations);
        if let Some(detail) = unsound(&ideal, &rows, matching.min(k as usize)) {
            return Err(BenchError::Gate { case: name.to_owned(), query: at, detail });
        }
        rows_min = rows_min.min(rows.len() as u64);
        tally.add(query, &rows, &ideal[..ideal.len().min(k as usize)]);
    }
    let mut recorder = Recorder::default();
    for _ in 0..run.spec.runs() {
        let cpu = process_cpu();
        for query in queries {
            let ask = ask(query);
            let started = Instant::now();
            let answer = setting.built.target.seeds(ask).await?;
            recorder.add(started.elapsed(), &answer.stages, &answer.work);
        }
        recorder.add_cpu(process_cpu() - cpu);
    }
    let (per, quality) = (recorder.per_answer(), tally.quality());
    Ok(CaseLine {
        workload: run.workload.name,
        case: name.to_owned(),
        params: run.params(setting, Store::Hopbine, From::Seeds, queries.len()),
        latency: recorder.latency(),
        cpu_ms: per.cpu_ms,
        hit1_pct: None,
        hitk_pct: None,
        recall: quality.recall,
        equal_sets_pct: quality.equal_sets_pct,
        rows: quality.rows,
        rows_min: Some(rows_min),
        blocks_read: per.blocks_read,
        block_bytes: per.block_bytes,
        codes_scored: per.codes_scored,
        vectors_scored: per.vectors_scored,
        times_plain: None,
        cpu_times_plain: None,
        times_unfiltered: None,
        times_one_store: None,
        ways: per.ways,
        stages: per.stages_ms,
        results_sha256: quality.results_sha256,
    })
}

/// Every matching fact with its exact distance, nearest first.
fn exact_rows(
    run: &Run<'_>,
    query: &Query,
    matching: usize,
    relations: &Relations,
) -> Vec<AnswerRow> {
    let exact = ExactQuery::new(&query.vector);
    let seeds = run.baseline.heap().seeds(&exact, matching, relations);
    let row = |seed: crate::heap::Scored| AnswerRow {
        key: seed.key,
        score: Some(seed.score),
        vector: None,
        payload: None,
        path: Vec::new(),
    };
    seeds.into_iter().map(row).collect()
}

/// Why rows cannot be an answer under a filter, given all matching facts.
fn unsound(all: &[AnswerRow], rows: &[AnswerRow], wanted: usize) -> Option<String> {
    if rows.len() != wanted {
        return Some(format!("{} rows although {wanted} exist", rows.len()));
    }
    let known: HashMap<FactKey, &AnswerRow> = all.iter().map(|row| (row.key, row)).collect();
    for row in rows {
        let Some(exact) = known.get(&row.key) else {
            return Some(format!("{:?} does not pass the filter", row.key));
        };
        let same = difference(std::slice::from_ref(*exact), std::slice::from_ref(row));
        if same.is_some() {
            return same;
        }
    }
    None
}
