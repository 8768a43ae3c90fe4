//! Queries that took long, or that had no answer in time: the last ones, bounded in number and in
//! bytes. They live in memory; a restart forgets them.

use crate::reply::Timings;
use hopbine_proto::limits::{SLOW_QUERIES_BYTES_MAX, SLOW_QUERIES_MAX};
use hopbine_proto::status::Code;
use serde::{Serialize, Serializer};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// One slow query. It names no payload and no vector.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlowQuery {
    /// When it ended, milliseconds since the Unix epoch.
    #[serde(serialize_with = "as_timestamp")]
    pub at: u64,
    /// The graph asked.
    pub graph: String,
    /// The call: `graph_rag`, `search`, `expand` or `rerank`.
    pub endpoint: &'static str,
    /// The caller's name for the request.
    pub request_id: Option<Arc<str>>,
    /// Wall time of the whole call.
    pub ms: f64,
    /// Wall time of the stages that ended; each includes its merging.
    pub stages: Vec<SlowStage>,
    /// Whether the answer was a partial one.
    pub partial: bool,
    /// Why there was no answer.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_code")]
    pub code: Option<Code>,
}

/// One stage of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlowStage {
    /// Its name, as an explanation has it.
    pub stage: String,
    /// Wall time.
    pub ms: f64,
}

/// The last slow queries.
#[derive(Debug, Default)]
pub struct SlowQueries {
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    /// Oldest first.
    queries: VecDeque<SlowQuery>,
    bytes: usize,
}

impl SlowQuery {
    /// About how many bytes it takes, in memory and as text alike.
    pub fn bytes(&self) -> usize {
        let stages: usize =
            self.stages.iter().map(|one| size_of::<SlowStage>() + one.stage.len()).sum();
        let request_id = self.request_id.as_ref().map_or(0, |id| id.len());
        size_of::<Self>() + self.graph.len() + request_id + stages
    }
}

impl SlowStage {
    /// The stages that took some time.
    pub fn of(timings: &Timings) -> Vec<Self> {
        let route = ("route".to_owned(), timings.plan_ms - timings.embed_ms);
        let mut stages = vec![route, ("embed".to_owned(), timings.embed_ms)];
        stages.push(("ann".to_owned(), timings.seeds_ms));
        let hops = timings.hops_ms.iter().zip(1..);
        stages.extend(hops.map(|(ms, hop): (&f64, usize)| (format!("expand:{hop}"), *ms)));
        stages.push(("payload".to_owned(), timings.fetch_ms));
        let spent = stages.into_iter().filter(|(_, ms)| *ms > 0.0);
        spent.map(|(stage, ms)| Self { stage, ms }).collect()
    }
}

impl SlowQueries {
    /// Remembers one more; the oldest make room for it.
    pub fn push(&self, query: SlowQuery) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.bytes += query.bytes();
        ring.queries.push_back(query);
        while ring.queries.len() > SLOW_QUERIES_MAX || ring.bytes > SLOW_QUERIES_BYTES_MAX {
            let Some(oldest) = ring.queries.pop_front() else { break };
            ring.bytes -= oldest.bytes();
        }
    }

    /// All that are remembered, newest first.
    pub fn newest_first(&self) -> Vec<SlowQuery> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.queries.iter().rev().cloned().collect()
    }
}

fn as_timestamp<S: Serializer>(ms: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&timestamp(*ms))
}

fn as_code<S: Serializer>(code: &Option<Code>, serializer: S) -> Result<S::Ok, S::Error> {
    code.map(Code::as_str).serialize(serializer)
}

/// The moment `ms` milliseconds after the Unix epoch, as RFC 3339 writes it.
fn timestamp(ms: u64) -> String {
    // Counted from 1 March of the year 0, so that a leap day is the last of its year.
    let days = ms / 86_400_000 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let years = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * years + years / 4 - years / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + years + u64::from(month <= 2);
    let (seconds, ms) = (ms / 1_000, ms % 1_000);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(number: u64, graph: &str) -> SlowQuery {
        SlowQuery {
            at: number,
            graph: graph.to_owned(),
            endpoint: "search",
            request_id: Some("mine".into()),
            ms: 700.5,
            stages: vec![SlowStage { stage: "ann".to_owned(), ms: 700.0 }],
            partial: false,
            code: None,
        }
    }

    #[test]
    fn the_last_ones_are_kept_newest_first_and_bounded_in_number_and_bytes() {
        let slow = SlowQueries::default();
        let kept = SLOW_QUERIES_MAX as u64;
        (0..kept + 10).for_each(|number| slow.push(query(number, "g")));
        let list = slow.newest_first();
        assert_eq!((list.len(), list[0].at), (SLOW_QUERIES_MAX, kept + 9));
        assert_eq!(list.last().map(|oldest| oldest.at), Some(10));
        let long = "x".repeat(SLOW_QUERIES_BYTES_MAX / 10);
        (0..50).for_each(|number| slow.push(query(number, &long)));
        let list = slow.newest_first();
        assert!((5..10).contains(&list.len()), "{}", list.len());
        assert!(list.iter().map(SlowQuery::bytes).sum::<usize>() <= SLOW_QUERIES_BYTES_MAX);
    }

    #[test]
    fn a_query_is_written_with_its_moment_and_its_code() {
        let mut late = query(1_700_000_000_123, "g");
        let text = |query: &SlowQuery| serde_json::to_string(query).expect("plain values");
        let expected = concat!(
            r#"{"at":"2023-11-14T22:13:20.123Z","graph":"g","endpoint":"search","#,
            r#""request_id":"mine","ms":700.5,"stages":[{"stage":"ann","ms":700.0}],"#,
            r#""partial":false}"#,
        );
        assert_eq!(text(&late), expected);
        late.code = Some(Code::DeadlineExceeded);
        assert!(text(&late).ends_with(r#""partial":false,"code":"deadline_exceeded"}"#));
    }

    #[test]
    fn moments_are_written_as_the_calendar_has_them() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(timestamp(ms), text);
        }
    }
}
