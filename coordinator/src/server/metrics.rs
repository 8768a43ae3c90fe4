//! Counts and times of this process in the Prometheus text format. Names begin with `hopbine_`.

use super::grpc::methods::METHODS;
use super::routes::ROUTES;
use crate::reply::{StatsReply, Timings};
use hopbine_proto::call::{ShardStats, Work};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets, seconds: 1-2.5-5 steps around what a call takes.
const BOUNDS: [f64; 16] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];

#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

impl Histogram {
    fn observe(&self, seconds: f64) {
        let bucket = BOUNDS.partition_point(|bound| *bound < seconds);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add((seconds * 1e6) as u64, Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, label: &str, value: &str) {
        let mut total = 0;
        for (place, bucket) in self.buckets.iter().enumerate() {
            total += bucket.load(Ordering::Relaxed);
            let bound = BOUNDS.get(place).map_or("+Inf".to_owned(), f64::to_string);
            line(out, &format!("{name}_bucket"), &[(label, value), ("le", &bound)], total);
        }
        let seconds = self.micros.load(Ordering::Relaxed) as f64 / 1e6;
        line(out, &format!("{name}_sum"), &[(label, value)], seconds);
        line(out, &format!("{name}_count"), &[(label, value)], total);
    }
}

/// Stages of a retrieval.
const STAGES: [&str; 5] = ["plan", "seeds", "hop", "fetch", "merge"];
/// What shards report of their work.
const WORK: [&str; 6] =
    ["runs", "runs_read", "blocks_read", "block_bytes", "codes_scored", "vectors_scored"];

/// What is under way at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderWay {
    /// Requests being answered.
    pub requests: usize,
    /// Bytes of their bodies.
    pub body_bytes: usize,
    /// Bytes that they take once they are read.
    pub request_bytes: usize,
    /// Bytes of replies, from the first row read to the last byte sent.
    pub reply_bytes: usize,
}

/// Latency of the answers of one route or method, and how many there were by code.
type Answers = (Histogram, Mutex<BTreeMap<&'static str, u64>>);

/// What this process counted since its start.
#[derive(Debug)]
pub struct Metrics {
    /// By place in `ROUTES`; the last one is for paths that are no endpoint.
    routes: Vec<Answers>,
    /// By place in `METHODS`.
    methods: Vec<Answers>,
    stages: [Histogram; STAGES.len()],
    work: [AtomicU64; WORK.len()],
    partial: AtomicU64,
    panics: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            routes: (0..=ROUTES.len()).map(|_| Default::default()).collect(),
            methods: METHODS.iter().map(|_| Default::default()).collect(),
            stages: Default::default(),
            work: Default::default(),
            partial: AtomicU64::new(0),
            panics: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    /// One request of the route at this place answered with `code` (`ok`, or a problem's code).
    pub fn request(&self, route: Option<usize>, code: &'static str, took: Duration) {
        count(&self.routes[route.unwrap_or(ROUTES.len())], code, took);
    }

    /// One call of the method at this place in `METHODS`; a stream counts once it has begun to
    /// answer.
    pub fn call(&self, place: usize, code: &'static str, took: Duration) {
        count(&self.methods[place], code, took);
    }

    /// One retrieval's account.
    pub fn retrieval(&self, timings: &Timings, work: &Work, partial: bool) {
        let [plan, seeds, hop, fetch, merge] = &self.stages;
        plan.observe(timings.plan_ms / 1e3);
        seeds.observe(timings.seeds_ms / 1e3);
        timings.hops_ms.iter().for_each(|ms| hop.observe(ms / 1e3));
        fetch.observe(timings.fetch_ms / 1e3);
        merge.observe(timings.merge_ms / 1e3);
        let counts = [
            work.runs,
            work.runs_read,
            work.blocks_read,
            work.block_bytes,
            work.codes_scored,
            work.vectors_scored,
        ];
        for (counter, count) in self.work.iter().zip(counts) {
            counter.fetch_add(count, Ordering::Relaxed);
        }
        self.partial.fetch_add(partial.into(), Ordering::Relaxed);
    }

    /// One request that ended in a panic.
    pub fn panic(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// The whole text: these counts, what is under way, and the sizes of the graphs.
    pub fn text(&self, now: UnderWay, graphs: &[StatsReply]) -> String {
        let mut out = String::with_capacity(16 * 1024);
        self.write_requests(&mut out);
        self.write_calls(&mut out);
        self.write_retrievals(&mut out);
        head(&mut out, "hopbine_http_requests_in_flight", "gauge", "Requests being answered.");
        line(&mut out, "hopbine_http_requests_in_flight", &[], now.requests);
        head(&mut out, "hopbine_http_body_bytes", "gauge", "Bytes of request bodies held.");
        line(&mut out, "hopbine_http_body_bytes", &[], now.body_bytes);
        head(&mut out, "hopbine_request_bytes", "gauge", "Bytes of requests, once read.");
        line(&mut out, "hopbine_request_bytes", &[], now.request_bytes);
        head(&mut out, "hopbine_reply_bytes", "gauge", "Bytes of replies held.");
        line(&mut out, "hopbine_reply_bytes", &[], now.reply_bytes);
        write_shards(&mut out, graphs);
        out
    }

    fn write_requests(&self, out: &mut String) {
        let names = ROUTES.iter().map(|route| (route.name, route.method));
        let names: Vec<_> = names.chain([("other", "*")]).collect();
        let requests = "hopbine_http_requests_total";
        head(out, requests, "counter", "Requests answered, by route and code.");
        for ((name, method), (_, codes)) in names.iter().zip(&self.routes) {
            let codes = codes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            for (code, count) in codes.iter() {
                let labels = [("route", *name), ("method", *method), ("code", *code)];
                line(out, requests, &labels, count);
            }
        }
        let latency = "hopbine_http_request_seconds";
        head(out, latency, "histogram", "Time from a request's head to its reply, seconds.");
        for ((name, _), (histogram, codes)) in names.iter().zip(&self.routes) {
            let used = !codes.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).is_empty();
            if used {
                histogram.write(out, latency, "route", name);
            }
        }
        head(out, "hopbine_http_panics_total", "counter", "Requests that ended in a panic.");
        line(out, "hopbine_http_panics_total", &[], self.panics.load(Ordering::Relaxed));
    }

    fn write_calls(&self, out: &mut String) {
        let calls = "hopbine_grpc_requests_total";
        head(out, calls, "counter", "Calls answered, by method and code.");
        for (method, (_, codes)) in METHODS.iter().zip(&self.methods) {
            let codes = codes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            for (code, count) in codes.iter() {
                line(out, calls, &[("method", *method), ("code", *code)], count);
            }
        }
        let latency = "hopbine_grpc_request_seconds";
        head(out, latency, "histogram", "Time from a call's head to that of its reply, seconds.");
        for (method, (histogram, codes)) in METHODS.iter().zip(&self.methods) {
            let used = !codes.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).is_empty();
            if used {
                histogram.write(out, latency, "method", method);
            }
        }
    }

    fn write_retrievals(&self, out: &mut String) {
        let stage = "hopbine_retrieval_stage_seconds";
        head(out, stage, "histogram", "Wall time of a retrieval's stages, seconds.");
        for (name, histogram) in STAGES.iter().zip(&self.stages) {
            histogram.write(out, stage, "stage", name);
        }
        for (name, counter) in WORK.iter().zip(&self.work) {
            let metric = format!("hopbine_work_{name}_total");
            head(out, &metric, "counter", "Work of retrievals, summed over shards.");
            line(out, &metric, &[], counter.load(Ordering::Relaxed));
        }
        let partial = "hopbine_retrieval_partial_total";
        head(out, partial, "counter", "Answers marked partial.");
        line(out, partial, &[], self.partial.load(Ordering::Relaxed));
    }
}

fn count((latency, codes): &Answers, code: &'static str, took: Duration) {
    latency.observe(took.as_secs_f64());
    let mut codes = codes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    *codes.entry(code).or_default() += 1;
}

/// One gauge of a shard: its name, its meaning, its value.
type Gauge = (&'static str, &'static str, fn(&ShardStats) -> u64);

const GAUGES: [Gauge; 8] = [
    ("facts", "Live facts.", |shard| shard.facts),
    ("vectors", "Live facts with an embedding.", |shard| shard.vectors),
    ("dead_rows", "Rows of segments that are dead.", |shard| shard.dead_rows),
    ("memtable_bytes", "Bytes of memtables.", |shard| shard.memtable_bytes),
    ("disk_bytes", "Bytes of segment files.", |shard| shard.disk_bytes),
    ("segments", "Segments.", |shard| shard.segments.len() as u64),
    ("applied_index", "Applied log index.", |shard| shard.index.0),
    ("alarms", "Segments with an alarm.", |shard| {
        shard.segments.iter().filter(|segment| segment.alarm.is_some()).count() as u64
    }),
];

fn write_shards(out: &mut String, graphs: &[StatsReply]) {
    head(out, "hopbine_graphs", "gauge", "Graphs.");
    line(out, "hopbine_graphs", &[], graphs.len());
    for (name, help, value) in GAUGES {
        let metric = format!("hopbine_shard_{name}");
        head(out, &metric, "gauge", help);
        for graph in graphs {
            for (descriptor, shard) in &graph.shards {
                let id = descriptor.id.to_string();
                let labels = [("graph", graph.graph.name.as_str()), ("shard", &id)];
                line(out, &metric, &labels, value(shard));
            }
        }
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(out: &mut String, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
    out.push_str(name);
    for (place, (label, text)) in labels.iter().enumerate() {
        let open = if place == 0 { '{' } else { ',' };
        let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(out, "{open}{label}=\"{text}\"");
    }
    let close = if labels.is_empty() { "" } else { "}" };
    let _ = writeln!(out, "{close} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_appear_under_their_labels_and_buckets_add_up() {
        let metrics = Metrics::default();
        metrics.request(Some(0), "ok", Duration::from_micros(300));
        metrics.request(Some(0), "ok", Duration::from_secs(60));
        metrics.request(None, "invalid_request", Duration::ZERO);
        metrics.call(0, "ok", Duration::from_micros(300));
        let work = Work { blocks_read: 7, ..Work::default() };
        metrics.retrieval(&Timings { hops_ms: vec![1.0, 2.0], ..Timings::default() }, &work, true);
        let now = UnderWay { requests: 3, body_bytes: 9, request_bytes: 18, reply_bytes: 27 };
        let text = metrics.text(now, &[]);
        for expected in [
            "hopbine_http_requests_total{route=\"list_graphs\",method=\"GET\",code=\"ok\"} 2",
            "hopbine_http_requests_total{route=\"other\",method=\"*\",code=\"invalid_request\"} 1",
            "hopbine_grpc_requests_total{method=\"GraphService/List\",code=\"ok\"} 1",
            "hopbine_grpc_request_seconds_count{method=\"GraphService/List\"} 1",
            "hopbine_http_request_seconds_bucket{route=\"list_graphs\",le=\"0.00025\"} 0",
            "hopbine_http_request_seconds_bucket{route=\"list_graphs\",le=\"0.0005\"} 1",
            "hopbine_http_request_seconds_bucket{route=\"list_graphs\",le=\"+Inf\"} 2",
            "hopbine_http_request_seconds_sum{route=\"list_graphs\"} 60.0003",
            "hopbine_retrieval_stage_seconds_count{stage=\"hop\"} 2",
            "hopbine_work_blocks_read_total 7",
            "hopbine_retrieval_partial_total 1",
            "hopbine_http_requests_in_flight 3",
            "hopbine_request_bytes 18",
            "hopbine_reply_bytes 27",
        ] {
            assert!(text.lines().any(|line| line == expected), "{expected} in\n{text}");
        }
    }
}
