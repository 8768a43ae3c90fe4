//! Sends the batches of a file, several at once, each repeated safely until it is acknowledged.

use super::batches::{BadLine, Batch, Batches, Change};
use super::destination::{Destination, Target};
use super::fault::in_file;
use super::settling::Settling;
use super::whole::Whole;
use crate::failure::{Failure, Refusal, file_failure};
use crate::graph::Options;
use crate::output::{tell, unreadable};
use crate::patience::{CHANGE, Patience};
use crate::progress::{Progress, grouped};
use crate::session::Session;
use crate::transport::{Call, NDJSON, Transport, graph_path};
use clap::{Args, Subcommand};
use hyper::Method;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Batches sent and not yet acknowledged: enough to keep parsing, log and index busy at once.
const IN_FLIGHT: usize = 4;
/// Bytes of a batch at which it is sent whatever its rows: a few hundred milliseconds of work.
const BATCH_BYTES: usize = 8 << 20;
/// How long a batch is repeated after refusals that may pass.
const RETRY_FOR: Duration = Duration::from_secs(120);
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Pause between two looks at what is left to index.
const SETTLE_PAUSE: Duration = Duration::from_millis(100);
/// Time that one request may take when nothing is said: a full memtable makes writers wait for its
/// flush.
const WRITE_TIMEOUT: &str = "60s";

/// What to import.
#[derive(Subcommand, Debug)]
pub enum Import {
    /// JSON lines: one fact a line, as the HTTP interface takes them
    Jsonl(Jsonl),
}

/// Flags of `import jsonl`.
#[derive(Args, Debug)]
pub struct Jsonl {
    /// The file, or - for standard input
    pub(super) file: String,
    /// The graph to load into
    #[arg(long, short)]
    pub(super) graph: String,
    /// Create the graph when it is not there, with this dimension, once its first facts were
    /// understood
    #[arg(long, value_name = "N")]
    pub(super) dim: Option<u32>,
    /// Facts a batch
    #[arg(long, value_name = "N", default_value_t = 1_000,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: u32,
    /// When the import counts as done
    #[arg(long, value_parser = ["committed", "indexed"], default_value = "indexed")]
    wait: String,
    /// Give facts without a vector that of their words in this field of the payload, such as text;
    /// a graph that is there says itself with which embedder and dimension. An empty text has none
    #[arg(long, value_name = "FIELD")]
    pub(super) embed: Option<String>,
    #[command(flatten)]
    pub(super) options: Options,
}

/// What the engine says of one batch.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Counts {
    upserted: u64,
    replaced: u64,
}

/// One import on its way.
struct Loader<'a> {
    session: &'a Session,
    args: &'a Jsonl,
    target: Target,
    /// Makes the idempotency keys of this run its own.
    run: u128,
    sent: u64,
    flying: JoinSet<(u64, Result<Counts, Failure>)>,
    batches: BTreeMap<u64, Arc<Batch>>,
    counts: Counts,
    /// Loaded facts without a vector.
    bare: u64,
    /// Every line up to here is loaded.
    whole: Whole,
    progress: Progress,
    size: Option<u64>,
}

/// Loads the file and says how it went.
pub async fn run(session: &Session, verb: &Import) -> Result<(), Failure> {
    let Import::Jsonl(args) = verb;
    let (stream, size) = open(&args.file)?;
    let destination = Destination::find(session, args).await?;
    let mut batches = cut(stream, args.batch as usize, destination.change(args)?);
    let mut next = batches.recv().await;
    let Some(target) = destination.prepare(session, args, next.as_ref()).await? else {
        return nothing(session, args);
    };
    let run = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |age| age.as_nanos());
    let mut loader = Loader {
        session,
        args,
        target,
        run: run ^ (u128::from(std::process::id()) << 96),
        sent: 0,
        flying: JoinSet::new(),
        batches: BTreeMap::new(),
        counts: Counts::default(),
        bare: 0,
        whole: Whole::default(),
        progress: Progress::start(),
        size,
    };
    // From before the first batch is sent, so that no Ctrl-C falls between two waits.
    let interrupts = signal(SignalKind::interrupt());
    let mut interrupts =
        interrupts.map_err(|error| Failure::Failed(format!("signals: {error}")))?;
    let mut fault = None;
    while let Some(item) = next.take() {
        let step = async {
            let batch = item.map_err(|bad| loader.bad_line(&bad))?;
            next = batches.recv().await;
            loader.send(batch).await
        };
        let stepped = tokio::select! {
            stepped = step => stepped,
            _ = interrupts.recv() => Err(Failure::Interrupted),
        };
        if let Err(error) = stepped {
            fault = Some(error);
            break;
        }
    }
    loader.finish(fault, interrupts).await
}

/// The input and its size in bytes, when it has one.
fn open(name: &str) -> Result<(Box<dyn BufRead + Send>, Option<u64>), Failure> {
    if name == "-" {
        return Ok((Box::new(BufReader::with_capacity(1 << 20, std::io::stdin())), None));
    }
    let file = std::fs::File::open(name).map_err(file_failure(name))?;
    let about = file.metadata().map_err(file_failure(name))?;
    let size = about.is_file().then_some(about.len());
    Ok((Box::new(BufReader::with_capacity(1 << 20, file)), size))
}

/// Reads ahead on a thread of its own.
fn cut(
    stream: Box<dyn BufRead + Send>,
    rows: usize,
    change: Option<Change>,
) -> mpsc::Receiver<Result<Batch, BadLine>> {
    let (sender, receiver) = mpsc::channel(2);
    tokio::task::spawn_blocking(move || {
        for item in Batches::new(stream, rows, BATCH_BYTES).changed(change) {
            if sender.blocking_send(item).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Says that a file without facts made no graph.
fn nothing(session: &Session, args: &Jsonl) -> Result<(), Failure> {
    tell(format!("{} has no facts: no graph {} is created", args.file, args.graph));
    let result = json!({"graph": args.graph, "upserted": 0, "replaced": 0, "without_vector": 0,
                        "seconds": 0.0, "facts_per_s": 0.0});
    session.output.object(result.to_string().as_bytes())
}

impl Loader<'_> {
    fn timeout(&self) -> &str {
        self.session.timeout.as_deref().unwrap_or(WRITE_TIMEOUT)
    }

    /// Sends a batch once there is room for it. A batch that shares a key with one on its way
    /// waits for all of them, so that the later line wins.
    async fn send(&mut self, batch: Batch) -> Result<(), Failure> {
        let shares = |other: &Arc<Batch>| !other.keys.is_disjoint(&batch.keys);
        let alone = self.batches.values().any(shares);
        let room = if alone { 0 } else { IN_FLIGHT - 1 };
        while self.flying.len() > room {
            self.landed().await?;
        }
        let path = graph_path(&self.args.graph, &format!("/facts?timeout={}", self.timeout()));
        let key = format!("import-{:032x}-{}", self.run, self.sent);
        let call = Call {
            content_type: NDJSON,
            headers: vec![("idempotency-key", key)],
            body: batch.body.clone(),
            ..Call::bare(Method::PUT, path)
        };
        let (transport, number) = (Arc::clone(&self.session.transport), self.sent);
        self.batches.insert(number, Arc::new(batch));
        self.sent += 1;
        self.flying.spawn(async move { (number, deliver(&transport, call).await) });
        Ok(())
    }

    /// Waits for one batch to be acknowledged or refused.
    async fn landed(&mut self) -> Result<(), Failure> {
        let (number, result) = match self.flying.join_next().await {
            None => return Ok(()),
            Some(Ok(landed)) => landed,
            Some(Err(error)) => return Err(Failure::Failed(format!("a batch was lost: {error}"))),
        };
        match result {
            Ok(counts) => {
                let batch = self.batches.remove(&number);
                self.counts.upserted += counts.upserted;
                self.counts.replaced += counts.replaced;
                self.bare += batch.as_ref().map_or(0, |batch| batch.bare);
                if let Some((line, _)) = batch.as_ref().and_then(|batch| batch.lines.last()) {
                    self.whole.landed(number, *line);
                }
                self.show(batch.map_or(0, |batch| batch.read));
                Ok(())
            }
            Err(Failure::Refused(refusal)) => Err(self.refused(number, *refusal)),
            Err(other) => Err(other),
        }
    }

    fn show(&mut self, read: u64) {
        let (done, seconds) = (self.counts.upserted, self.progress.elapsed().as_secs_f64());
        let share = self.size.filter(|size| *size > 0).map(|size| read as f64 / size as f64);
        self.progress.tick(share, || {
            let rate = grouped((done as f64 / seconds) as u64);
            format!("{} facts, {rate} facts/s", grouped(done))
        });
    }

    fn refused(&self, number: u64, refusal: Refusal) -> Failure {
        match self.batches.get(&number) {
            Some(batch) => in_file(&self.args.file, batch, refusal),
            None => Failure::Refused(Box::new(refusal)),
        }
    }

    fn bad_line(&self, bad: &BadLine) -> Failure {
        let BadLine { line, column, reason } = bad;
        Failure::Failed(format!("{}:{line}:{column}: {reason}", self.args.file))
    }

    /// Waits until no shard of the graph has anything left to flush, index or merge.
    async fn settled(&mut self) -> Result<(), Failure> {
        let mut settling = Settling::default();
        loop {
            let path = graph_path(&self.args.graph, &format!("/stats?timeout={}", self.timeout()));
            let patience = Patience::Usual(CHANGE);
            let call = Call { patience, ..Call::bare(Method::GET, path) };
            let reply = self.session.send(call).await?;
            let stats = serde_json::from_slice(&reply).map_err(unreadable)?;
            if settling.step(stats, Instant::now())? {
                return Ok(());
            }
            let done = grouped(self.counts.upserted);
            self.progress.tick(None, || format!("{done} facts written, indexing"));
            tokio::time::sleep(SETTLE_PAUSE).await;
        }
    }

    /// Waits for what is on its way, and says what was loaded, also after a fault.
    async fn finish(
        mut self,
        mut fault: Option<Failure>,
        mut interrupts: Signal,
    ) -> Result<(), Failure> {
        while !self.flying.is_empty() {
            let landed = tokio::select! {
                landed = self.landed() => landed,
                // Pressed again, or for the first time when all is sent: waited long enough.
                _ = interrupts.recv() => {
                    self.flying.abort_all();
                    Err(Failure::Interrupted)
                }
            };
            if let Err(error) = landed {
                fault.get_or_insert(error);
            }
        }
        if fault.is_none() && self.args.wait == "indexed" {
            let settled = tokio::select! {
                settled = self.settled() => settled,
                _ = interrupts.recv() => Err(Failure::Interrupted),
            };
            fault = settled.err();
        }
        self.progress.clear();
        let seconds = self.progress.elapsed().as_secs_f64();
        let facts = self.counts.upserted;
        if let Some(fault) = fault {
            let whole = match self.whole.to_line {
                0 => String::new(),
                line => format!(", all of lines 1 to {}", grouped(line)),
            };
            tell(format!("loaded {} facts{whole}; loading again is safe", grouped(facts)));
            return Err(fault);
        }
        let rate = facts as f64 / seconds.max(1e-9);
        let (count, per_second) = (grouped(facts), grouped(rate as u64));
        let state = self.state();
        tell(format!("{count} facts {state} in {seconds:.1} s, {per_second} facts/s"));
        self.tell_of_bare();
        let result = json!({
            "graph": self.args.graph, "upserted": facts, "replaced": self.counts.replaced,
            "without_vector": self.bare, "seconds": (seconds * 1000.0).round() / 1000.0,
            "facts_per_s": rate.round(),
        });
        self.session.output.object(result.to_string().as_bytes())
    }

    /// What holds of the loaded facts now.
    fn state(&self) -> String {
        match (self.args.wait.as_str(), self.bare) {
            ("indexed", 0) => "durable and searchable".to_owned(),
            ("indexed", bare) => {
                let found = self.counts.upserted.saturating_sub(bare);
                format!("durable, {} of them searchable", grouped(found))
            }
            _ => "durable".to_owned(),
        }
    }

    /// Says how many facts have no vector, and what to do about it.
    fn tell_of_bare(&self) {
        let (facts, bare) = (self.counts.upserted, self.bare);
        if bare == 0 {
            return;
        }
        let hint = match (&self.args.embed, self.target.embeds) {
            (Some(field), _) => {
                format!("{field} of their payloads is empty or has only stop words")
            }
            (None, true) => "load the file again with --embed FIELD, such as --embed text: facts \
                             get the vector of their words in this field of the payload"
                .to_owned(),
            (None, false) => {
                "give them an \"embedding\", or load the file into a new graph with --embedder \
                 lexical --embed FIELD: facts get the vector of their words in this field of the \
                 payload"
                    .to_owned()
            }
        };
        // Edges without words may be meant so; a whole file of them is hardly meant so where
        // questions are asked in words.
        let begin = if bare == facts && self.target.embeds { "warning: " } else { "" };
        let (bare, facts) = (grouped(bare), grouped(facts));
        let text = format!("{begin}{bare} of {facts} facts have no vector: only hops find them");
        tell(format!("{text}\n  hint: {hint}"));
    }
}

/// Sends one batch until it is acknowledged. Its idempotency key makes a repetition safe also
/// when the answer to an earlier try was lost.
async fn deliver(transport: &Transport, call: Call) -> Result<Counts, Failure> {
    let began = tokio::time::Instant::now();
    let mut pause = PAUSE_FIRST;
    loop {
        let failure = match transport.send(call.clone()).await {
            Ok(reply) => return serde_json::from_slice(&reply).map_err(unreadable),
            Err(failure) => failure,
        };
        let passing = match &failure {
            Failure::Refused(refusal) => refusal.retryable,
            Failure::Connect { .. } | Failure::Lost { .. } | Failure::Late { .. } => true,
            _ => false,
        };
        if !passing || began.elapsed() + pause > RETRY_FOR {
            return Err(failure);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
