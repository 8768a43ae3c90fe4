//! The index of a sealed segment, as the engine makes it, and what each part of it takes to build.

use super::data::Rows;
use crate::BenchError;
use crate::measure::thread_cpu;
use hopbine_proto::Metric;
use hopbine_proto::call::{SeedMode, Work};
use hopbine_proto::graph::IndexConfig;
use hopbine_shard_store::codes::{Query, encode_row, factor};
use hopbine_shard_store::graph::build::{BuildInput, GraphBuilder, NativeBuilder, level_of};
use hopbine_shard_store::graph::{
    IndexSections, RowFilter, RunAsk, Scratch, SealInput, Sealed, Section, SegmentIndex, Way, seal,
    search_segment,
};
use hopbine_shard_store::signs::SignEncoder;
use std::hint::black_box;

/// Beams that are tried at most: far beyond what pays.
const BEAM_MAX: u32 = 4_096;
/// A recorded number of rows or beam is meant for so many answers and grows with more.
const MEASURED_K: u32 = 64;
/// A walk that would see a node in so many is left to a scan.
const WALK_SHARE: u32 = 4;

/// A sealed index over rows, and once more with 1-bit codes in the place of what seal chose.
pub struct Native<'a> {
    rows: &'a Rows,
    sealed: Sealed,
    index: SegmentIndex,
    signs: (Vec<u8>, Vec<u8>),
    cpu: Cpu,
    scratch: Scratch,
    scans: u64,
}

/// Processor time, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    codes: f64,
    links: f64,
    signs: f64,
    seal: f64,
}

/// A way through the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// By graph.
    Graph,
    /// By 8-bit codes.
    Scan,
    /// By 1-bit codes.
    Scan1,
    /// As seal chose.
    Auto,
}

impl<'a> Native<'a> {
    /// Seals `rows`, then makes each part again to see what it takes. Fails when the rows have too
    /// few distinct vectors for a graph.
    pub fn build(rows: &'a Rows, config: &IndexConfig) -> Result<Self, BenchError> {
        let key = |row| rows.key(row);
        let input = SealInput {
            metric: Metric::Cosine,
            dim: rows.dim(),
            rows: rows.count(),
            config,
            vectors: rows,
            key: &key,
        };
        let started = thread_cpu();
        let Ok(sealed) = seal(&input);
        let sealing = (thread_cpu() - started).as_secs_f64();
        let index = opened(&sealed)?;
        if index.graph().is_none() {
            return Err(failed("too few distinct vectors for a graph".to_owned()));
        }
        let mut native = Self {
            rows,
            sealed,
            index,
            signs: (Vec::new(), Vec::new()),
            cpu: Cpu { seal: sealing, ..Cpu::default() },
            scratch: Scratch::default(),
            scans: 0,
        };
        native.make_codes();
        native.make_links(config)?;
        native.make_signs();
        Ok(native)
    }

    fn make_codes(&mut self) {
        let started = thread_cpu();
        let mut codes = Vec::with_capacity(self.sealed.codes.len());
        for row in self.nodes() {
            let vector = self.rows.row(row);
            let scale = self.sealed.meta.scale;
            black_box(encode_row(Metric::Cosine, vector.values, vector.norm, scale, &mut codes));
        }
        black_box(&codes);
        self.cpu.codes = (thread_cpu() - started).as_secs_f64();
    }

    fn make_links(&mut self, config: &IndexConfig) -> Result<(), BenchError> {
        let level = |row| level_of(self.rows.key(row), config.build_seed, config.m);
        let levels: Vec<u8> = self.nodes().into_iter().map(level).collect();
        let codes = self.index.codes();
        let input = BuildInput { codes, metric: Metric::Cosine, config, levels: &levels };
        let started = thread_cpu();
        black_box(NativeBuilder.build(&input).map_err(failed)?);
        self.cpu.links = (thread_cpu() - started).as_secs_f64();
        Ok(())
    }

    fn make_signs(&mut self) {
        let started = thread_cpu();
        let nodes = self.nodes();
        let mut mean = vec![0.0_f64; self.rows.dim()];
        for row in &nodes {
            let vector = self.rows.row(*row);
            let share = factor(Metric::Cosine, vector.norm) / nodes.len() as f64;
            mean.iter_mut().zip(vector.values).for_each(|(m, x)| *m += share * f64::from(*x));
        }
        let centre = mean.into_iter().map(|mean| mean as f32).collect();
        let mut encoder = SignEncoder::new(Metric::Cosine, centre);
        for row in nodes {
            let vector = self.rows.row(row);
            encoder.push(vector.values, vector.norm);
        }
        self.signs = encoder.finish();
        self.cpu.signs = (thread_cpu() - started).as_secs_f64();
    }

    /// The first row of each distinct vector.
    fn nodes(&self) -> Vec<u32> {
        let members = self.index.members();
        (0..self.sealed.meta.nodes).map(|node| members.first_row(node)).collect()
    }

    /// Looks at 1-bit codes from now on, and again at `rerank` rows, where seal's way is asked for.
    /// `None` when that is so many that the engine would rather scan all 8-bit codes.
    pub fn with_bits(&self, rerank: u32, k: u32) -> Result<Option<Self>, BenchError> {
        let wanted = u64::from(rerank) * u64::from(k.max(MEASURED_K)) / u64::from(MEASURED_K);
        if wanted * 2 >= u64::from(self.sealed.meta.nodes) {
            return Ok(None);
        }
        let mut sealed = self.sealed.clone();
        (sealed.sketch, sealed.sketch_terms) = self.signs.clone();
        sealed.meta.way = Way::Bits { rerank };
        let index = opened(&sealed)?;
        let (rows, cpu, scratch) = (self.rows, self.cpu, Scratch::default());
        let signs = (Vec::new(), Vec::new());
        Ok(Some(Self { rows, sealed, index, signs, cpu, scratch, scans: 0 }))
    }

    /// The widest beam that is walked rather than answered by a scan.
    pub fn beam_max(&self, k: u32) -> u32 {
        let nodes = u64::from(self.sealed.meta.nodes);
        let grown = u64::from(WALK_SHARE) * u64::from(k.max(MEASURED_K));
        let widest = (nodes * u64::from(MEASURED_K)).div_ceil(grown).saturating_sub(1);
        widest.min(u64::from(BEAM_MAX)) as u32
    }

    /// The `k` rows nearest to `vector` as `engine` finds them; `ef` is the beam of a graph.
    pub fn search(&mut self, engine: Engine, ef: u32, vector: &[f32], k: u32) -> Vec<u32> {
        let query = Query::new(Metric::Cosine, vector);
        let mode = match engine {
            Engine::Graph => SeedMode::Graph { ef },
            Engine::Scan => SeedMode::Scan,
            Engine::Scan1 | Engine::Auto => SeedMode::Auto,
        };
        let ask = RunAsk { query: &query, k: k as usize, mode, filter: RowFilter::none() };
        let mut work = Work::default();
        let Ok(found) = search_segment(&self.index, self.rows, &ask, &mut self.scratch, &mut work);
        let scanned = work.ways.iter().any(|way| way == "scan");
        self.scans += u64::from(engine != Engine::Scan && scanned);
        found.into_iter().map(|(_, row)| row).collect()
    }

    /// Takes the number of questions that a scan answered instead of what was asked for.
    pub fn take_scans(&mut self) -> u64 {
        std::mem::take(&mut self.scans)
    }

    /// What seal chose.
    pub fn way(&self) -> Way {
        self.sealed.meta.way
    }

    /// Seconds of processor time to build what `engine` reads.
    pub fn build_cpu_s(&self, engine: Engine) -> f64 {
        let Cpu { codes, links, signs, seal } = self.cpu;
        match engine {
            Engine::Graph => codes + links,
            Engine::Scan => codes,
            Engine::Scan1 => codes + signs,
            Engine::Auto => seal,
        }
    }

    /// Bytes a row of what `engine` reads; of `Auto` all that a segment keeps.
    pub fn bytes_per_row(&self, engine: Engine) -> f64 {
        let sealed = &self.sealed;
        let codes = sealed.codes.len() + sealed.terms.len() + sealed.members.len();
        let sketch = sealed.sketch.len() + sealed.sketch_terms.len();
        let index = match engine {
            Engine::Graph => codes + sealed.graph.len(),
            Engine::Scan => codes,
            Engine::Scan1 => codes + sketch,
            Engine::Auto => codes + sketch + sealed.graph.len(),
        };
        index as f64 / f64::from(self.rows.count().max(1)) + self.rows.bytes_per_row() as f64
    }
}

impl Engine {
    /// As in the reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Graph => "graph",
            Self::Scan => "scan",
            Self::Scan1 => "scan1",
            Self::Auto => "auto",
        }
    }
}

fn opened(sealed: &Sealed) -> Result<SegmentIndex, BenchError> {
    let sections = IndexSections {
        codes: Section::copied_from(&sealed.codes),
        terms: Section::copied_from(&sealed.terms),
        members: Section::copied_from(&sealed.members),
        graph: Section::copied_from(&sealed.graph),
        sketch: Section::copied_from(&sealed.sketch),
        sketch_terms: Section::copied_from(&sealed.sketch_terms),
    };
    let opened = SegmentIndex::open(sealed.meta.clone(), sections);
    opened.map_err(|damage| failed(damage.to_string()))
}

fn failed(detail: String) -> BenchError {
    BenchError::Failed { call: "seal", detail }
}
