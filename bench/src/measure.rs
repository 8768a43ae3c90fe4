//! Latencies, processor time and work of one case; figures over repeated builds.

use crate::target::Stage;
use hopbine_proto::call::Work;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Percentile `p` of sorted values: value number `ceil(p n / 100)`. `None` without values.
pub fn percentile<T: Copy>(sorted: &[T], p: u32) -> Option<T> {
    let rank = (sorted.len() * p as usize).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// Mean; 0 without values.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// Median: the mean of the two middle values where their number is even.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Wall times of one case, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Median.
    pub p50_ms: f64,
    /// 95 of 100 are at most this.
    pub p95_ms: f64,
    /// 99 of 100 are at most this.
    pub p99_ms: f64,
    /// Mean.
    pub avg_ms: f64,
}

/// Collects what the passes over a case saw.
#[derive(Default)]
pub struct Recorder {
    latencies_ms: Vec<f64>,
    stages_ms: BTreeMap<String, f64>,
    work: Work,
    cpu: Duration,
}

impl Recorder {
    /// Notes one answer.
    pub fn add(&mut self, wall: Duration, stages: &[(Stage, f64)], work: &Work) {
        self.latencies_ms.push(wall.as_secs_f64() * 1e3);
        for (stage, ms) in stages {
            *self.stages_ms.entry(stage.to_string()).or_default() += ms;
        }
        // Ways are kept once each: thousands of answers repeat the same few.
        let counts = Work { ways: Vec::new(), ..work.clone() };
        self.work.add(&counts);
        for way in &work.ways {
            if !self.work.ways.contains(way) {
                self.work.ways.push(way.clone());
            }
        }
    }

    /// Notes the processor time of a whole pass.
    pub fn add_cpu(&mut self, cpu: Duration) {
        self.cpu += cpu;
    }

    /// Percentiles of all answers.
    pub fn latency(&self) -> Latency {
        let mut sorted = self.latencies_ms.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |p| percentile(&sorted, p).unwrap_or_default();
        Latency { p50_ms: median(&sorted), p95_ms: at(95), p99_ms: at(99), avg_ms: mean(&sorted) }
    }

    /// Mean per answer of everything counted.
    pub fn per_answer(&self) -> PerAnswer {
        let n = self.latencies_ms.len().max(1) as f64;
        PerAnswer {
            cpu_ms: self.cpu.as_secs_f64() * 1e3 / n,
            blocks_read: self.work.blocks_read as f64 / n,
            block_bytes: self.work.block_bytes as f64 / n,
            codes_scored: self.work.codes_scored as f64 / n,
            vectors_scored: self.work.vectors_scored as f64 / n,
            ways: self.work.ways.clone(),
            stages_ms: self.stages_ms.iter().map(|(s, ms)| (s.clone(), ms / n)).collect(),
        }
    }
}

/// Means over the answers of one case.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PerAnswer {
    /// Processor time of the whole process, all threads, milliseconds.
    pub cpu_ms: f64,
    /// Distinct fact blocks.
    pub blocks_read: f64,
    /// Bytes of them.
    pub block_bytes: f64,
    /// Approximate distances.
    pub codes_scored: f64,
    /// Exact distances.
    pub vectors_scored: f64,
    /// Every way taken through a run, once.
    pub ways: Vec<String>,
    /// Milliseconds by stage.
    pub stages_ms: BTreeMap<String, f64>,
}

/// Processor time of this process so far, all threads.
pub fn process_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Processor time of the calling thread so far: other work of the process does not count.
pub fn thread_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Largest resident memory of this process so far, in bytes; `None` where the system does not
/// say.
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// One metric over repeated builds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle build.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// The average.
    pub mean: f64,
}

impl Spread {
    /// `None` without values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let min = values.iter().copied().min_by(f64::total_cmp)?;
        let max = values.iter().copied().max_by(f64::total_cmp)?;
        Some(Self { median: median(values), min, max, mean: mean(values) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_percentile_is_a_value_that_was_seen() {
        let values: Vec<u32> = (1..=64).collect();
        assert_eq!(percentile(&values, 50), Some(32));
        assert_eq!(percentile(&values, 95), Some(61));
        assert_eq!(percentile(&values, 99), Some(64));
        assert_eq!(percentile(&[7], 1), Some(7));
        assert_eq!(percentile::<u32>(&[], 50), None);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[9.0, 1.0, 5.0]), 5.0);
        let spread = Spread::of(&[0.3, 0.1, 0.2]).expect("three values");
        assert_eq!((spread.min, spread.median, spread.max), (0.1, 0.2, 0.3));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn a_recorder_gives_means_per_answer() {
        let mut recorder = Recorder::default();
        let work = Work { blocks_read: 3, block_bytes: 300, ..Work::default() };
        let scan = Work { ways: vec!["scan".into()], ..work.clone() };
        let stages = [(Stage::named("seeds"), 2.0)];
        recorder.add(Duration::from_millis(4), &stages, &work);
        recorder.add(Duration::from_millis(2), &stages, &scan);
        recorder.add(Duration::from_millis(6), &[], &scan);
        recorder.add_cpu(Duration::from_millis(30));
        let (latency, per) = (recorder.latency(), recorder.per_answer());
        assert_eq!((latency.p50_ms, latency.p95_ms, latency.avg_ms), (4.0, 6.0, 4.0));
        assert_eq!((per.cpu_ms, per.blocks_read, per.block_bytes), (10.0, 3.0, 300.0));
        assert_eq!(per.ways, ["scan"]);
        assert_eq!(per.stages_ms["seeds"], 4.0 / 3.0);
    }

    #[test]
    fn processor_time_grows_with_work() {
        let (before, of_thread) = (process_cpu(), thread_cpu());
        let mut sum = 0_u64;
        for i in 0..1_000_000 {
            sum = std::hint::black_box(sum + i);
        }
        assert!(process_cpu() - before >= Duration::from_micros(100), "a million additions");
        assert!(thread_cpu() - of_thread >= Duration::from_micros(100), "on this thread");
    }

    proptest! {
        #[test]
        fn a_percentile_leaves_at_most_its_share_above(
            mut values in prop::collection::vec(0_u32..1_000, 1..200), p in 1_u32..=100,
        ) {
            values.sort_unstable();
            let at = percentile(&values, p).expect("there are values");
            let upto = values.iter().filter(|&&value| value <= at).count();
            let below = values.iter().filter(|&&value| value < at).count();
            prop_assert!(upto * 100 >= values.len() * p as usize);
            prop_assert!(below * 100 < values.len() * p as usize);
        }
    }
}
