//! What to measure: the options of the command, with the defaults of each workload.

use crate::BenchError;
use crate::ann;
use crate::workload::synthetic::Size;
use crate::workload::{
    Embed, Point, Workload, butler_gate, clustered, gutenberg, multidepth, multihop, synthetic,
};
use hopbine_coordinator::embed::{Lexical, Tokenizer};
use hopbine_proto::call::SeedMode;
use hopbine_proto::limits;
use std::collections::BTreeMap;

/// Which data and questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadSpec {
    /// Pure expansion over a regular graph.
    Synthetic(Size),
    /// Paragraphs of real books.
    Gutenberg(gutenberg::Size),
    /// Chains asked along one to five hops, in one store and in segments.
    Multidepth(multidepth::Layout),
    /// Person, parent, city.
    Multihop {
        /// Chains of two facts.
        chains: u32,
    },
    /// Seven facts, two questions.
    ButlerGate,
    /// Search under filters by relation, over clusters.
    Filters {
        /// Facts.
        rows: u32,
        /// Components.
        dim: u32,
    },
    /// The engines of approximate search beside each other, without a graph around them.
    Ann(ann::Size),
}

/// How seeds are searched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IndexChoice {
    /// As each segment recorded at seal.
    #[default]
    Auto,
    /// By graph walk.
    Graph,
    /// By 8-bit scan.
    Scan,
}

/// One run of the benchmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BenchSpec {
    /// Which data and questions.
    pub workload: WorkloadSpec,
    /// Only the case of this name.
    pub case: Option<String>,
    /// Shards, cut at quantiles of the entity ids.
    pub shards: u32,
    /// Seeds by full scan in every row.
    pub exact_seeds: bool,
    /// How seeds are searched otherwise.
    pub index: IndexChoice,
    /// Beam; forces the graph.
    pub ef: Option<u32>,
    /// Seed facts; `None`: the workload's own number.
    pub ann_k: Option<u32>,
    /// Input of the index builder; repeated builds take this and the following numbers.
    pub build_seed: u64,
    /// Full builds, each measured.
    pub builds: u32,
    /// Passes over the questions; `None`: the workload's own number.
    pub runs: Option<u32>,
    /// Questions; `None`: the workload's own number.
    pub queries: Option<u32>,
    /// Measure the grid of index and search settings instead of one point (multihop only).
    pub sweep: bool,
}

impl BenchSpec {
    /// The defaults for a workload.
    pub fn new(workload: WorkloadSpec) -> Self {
        Self {
            workload,
            case: None,
            shards: 1,
            exact_seeds: false,
            index: IndexChoice::Auto,
            ef: None,
            ann_k: None,
            build_seed: 0,
            builds: 1,
            runs: None,
            queries: None,
            sweep: false,
        }
    }

    /// Refuses options that contradict each other or have no meaning.
    pub fn validate(&self) -> Result<(), BenchError> {
        let refuse = |detail: &str| Err(BenchError::Spec { detail: detail.to_owned() });
        if self.shards == 0 || self.builds == 0 {
            return refuse("shards and builds begin at 1");
        }
        if self.runs == Some(0) || self.queries == Some(0) {
            return refuse("runs and queries begin at 1");
        }
        if self.ef == Some(0) || self.ann_k == Some(0) {
            return refuse("beams and seed facts begin at 1");
        }
        if self.sweep && self.ann_k.is_some() {
            return refuse("a sweep sets the seed facts itself");
        }
        if self.ef.is_some() && self.index == IndexChoice::Scan {
            return refuse("a beam forces the graph, so it cannot go with a scan");
        }
        if self.exact_seeds && (self.ef.is_some() || self.index != IndexChoice::Auto) {
            return refuse(
                "exact seeds use no index, so neither an index nor a beam goes with them",
            );
        }
        if self.sweep && !matches!(self.workload, WorkloadSpec::Multihop { .. }) {
            return refuse("only multihop has a sweep");
        }
        if self.sweep && (self.exact_seeds || self.ef.is_some()) {
            return refuse("a sweep sets the beams itself");
        }
        self.validate_workload()
    }

    /// Refuses sizes that a workload cannot have.
    fn validate_workload(&self) -> Result<(), BenchError> {
        let refuse = |detail: &str| Err(BenchError::Spec { detail: detail.to_owned() });
        let dims = 1..=limits::DIM_MAX as u32;
        match self.workload {
            WorkloadSpec::Synthetic(size) if size.entities == 0 || size.degree == 0 => {
                refuse("entities and degree begin at 1")
            }
            WorkloadSpec::Gutenberg(size) => {
                let inside = (1..=gutenberg::BOOKS_MAX).contains(&size.books)
                    && (2..=gutenberg::PARAGRAPHS_MAX).contains(&size.paragraphs)
                    && dims.contains(&size.dim);
                if inside {
                    return Ok(());
                }
                refuse("the corpus has 1 to 128 books of 2 to 256 paragraphs, in 1 to 4096 dims")
            }
            WorkloadSpec::Multidepth(layout) => {
                let multidepth::Layout { size, segments, fan_out } = layout;
                if !(1..=multidepth::DEPTH_MAX).contains(&size.depth) || !dims.contains(&size.dim) {
                    return refuse("multidepth takes 1 to 5 hops and 1 to 4096 components");
                }
                if segments == 1 || segments > 64 || segments > size.pairs || fan_out == 0 {
                    return refuse(
                        "2 to 64 segments, no more than pairs, or 0 for none; \
                         a fan-out begins at 1",
                    );
                }
                Ok(())
            }
            WorkloadSpec::Filters { rows, dim } if rows < 1_000 || !dims.contains(&dim) => {
                refuse("filters take at least 1000 rows of 1 to 4096 components")
            }
            WorkloadSpec::Ann(size) => {
                if size.rows < ann::ROWS_MIN || !dims.contains(&size.dim) {
                    return refuse("ann takes at least 10000 rows of 1 to 4096 components");
                }
                if self.shards > 1 || self.exact_seeds || self.index != IndexChoice::Auto {
                    return refuse("ann has no shards and compares every index with exact search");
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Passes over the questions.
    pub fn runs(&self) -> u32 {
        let default = if self.workload == WorkloadSpec::ButlerGate { 5 } else { 3 };
        self.runs.unwrap_or(default)
    }

    /// How seeds are searched at `point`.
    pub fn seed_mode(&self, point: &Point) -> SeedMode {
        match (self.exact_seeds, self.ef, self.index) {
            (true, ..) => SeedMode::Exact,
            (_, Some(ef), _) => SeedMode::Graph { ef },
            (.., IndexChoice::Graph) => SeedMode::Graph { ef: point.ef_search },
            (.., IndexChoice::Scan) => SeedMode::Scan,
            (.., IndexChoice::Auto) => SeedMode::Auto,
        }
    }

    /// Makes the data and the questions.
    pub fn generate(&self) -> Result<Workload, BenchError> {
        let lexical = Lexical::new(Tokenizer::Generic, multihop::DIM);
        let embed: Embed = &|text| lexical.embed(text);
        let queries = |default| self.queries.unwrap_or(default);
        let mut workload = match self.workload {
            WorkloadSpec::Synthetic(size) => synthetic::generate(size, queries(16) as usize),
            WorkloadSpec::Gutenberg(size) => {
                let lexical = Lexical::new(Tokenizer::Plain, size.dim as usize);
                gutenberg::generate(size, queries(16), &|text| lexical.embed(text))?
            }
            WorkloadSpec::Multidepth(layout) => multidepth::generate(layout.size, queries(32))?,
            WorkloadSpec::Multihop { chains } => multihop::generate(chains, queries(64), embed)?,
            WorkloadSpec::ButlerGate => {
                let mut gate = butler_gate::generate(embed)?;
                gate.queries.truncate(queries(u32::MAX) as usize);
                gate
            }
            WorkloadSpec::Filters { rows, dim } => {
                clustered::generate(rows, dim as usize, (rows / 200).max(1), queries(200))
            }
            WorkloadSpec::Ann(_) => {
                let detail = "ann draws its vectors itself and has no questions with hops";
                return Err(BenchError::Spec { detail: detail.to_owned() });
            }
        };
        workload.point.ann_k = self.ann_k.unwrap_or(workload.point.ann_k);
        Ok(workload)
    }

    /// The workload's own parameters, for the report.
    pub fn parameters(&self) -> BTreeMap<&'static str, u64> {
        match self.workload {
            WorkloadSpec::Synthetic(size) => BTreeMap::from([
                ("entities", size.entities.into()),
                ("degree", size.degree.into()),
                ("payload_bytes", size.payload_bytes as u64),
            ]),
            WorkloadSpec::Gutenberg(size) => BTreeMap::from([
                ("books", size.books.into()),
                ("paragraphs", size.paragraphs.into()),
                ("dim", size.dim.into()),
            ]),
            WorkloadSpec::Multidepth(layout) => BTreeMap::from([
                ("pairs", layout.size.pairs.into()),
                ("depth", layout.size.depth.into()),
                ("dim", layout.size.dim.into()),
                ("segments", layout.segments.into()),
                ("fan_out", layout.fan_out.into()),
            ]),
            WorkloadSpec::Multihop { chains } => BTreeMap::from([("chains", chains.into())]),
            WorkloadSpec::ButlerGate => BTreeMap::new(),
            WorkloadSpec::Filters { rows, dim } => {
                BTreeMap::from([("rows", rows.into()), ("dim", dim.into())])
            }
            WorkloadSpec::Ann(size) => {
                BTreeMap::from([("rows", size.rows.into()), ("dim", size.dim.into())])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> BenchSpec {
        BenchSpec::new(WorkloadSpec::Multihop { chains: 300 })
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        assert!(spec().validate().is_ok());
        for wrong in [
            BenchSpec { shards: 0, ..spec() },
            BenchSpec { builds: 0, ..spec() },
            BenchSpec { runs: Some(0), ..spec() },
            BenchSpec { queries: Some(0), ..spec() },
            BenchSpec { ef: Some(0), ..spec() },
            BenchSpec { ann_k: Some(0), ..spec() },
            BenchSpec { ann_k: Some(8), sweep: true, ..spec() },
            BenchSpec { ef: Some(64), index: IndexChoice::Scan, ..spec() },
            BenchSpec { ef: Some(64), exact_seeds: true, ..spec() },
            BenchSpec { index: IndexChoice::Graph, exact_seeds: true, ..spec() },
            BenchSpec { sweep: true, exact_seeds: true, ..spec() },
            BenchSpec { sweep: true, ..BenchSpec::new(WorkloadSpec::ButlerGate) },
        ] {
            assert!(wrong.validate().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn sizes_that_a_workload_cannot_have_are_refused() {
        let books = gutenberg::Size { books: 64, paragraphs: 128, dim: 32 };
        let size = multidepth::Size { pairs: 5_000, depth: 5, dim: 384 };
        let layout = multidepth::Layout { size, segments: 8, fan_out: 2 };
        let rows = ann::Size { rows: 10_000, dim: 384 };
        let valid = |workload| BenchSpec::new(workload).validate().is_ok();
        assert!(valid(WorkloadSpec::Gutenberg(books)) && valid(WorkloadSpec::Ann(rows)));
        assert!(valid(WorkloadSpec::Multidepth(layout)));
        assert!(valid(WorkloadSpec::Multidepth(multidepth::Layout { segments: 0, ..layout })));
        let deep = multidepth::Size { depth: 6, ..size };
        for wrong in [
            WorkloadSpec::Gutenberg(gutenberg::Size { books: 129, ..books }),
            WorkloadSpec::Gutenberg(gutenberg::Size { paragraphs: 257, ..books }),
            WorkloadSpec::Gutenberg(gutenberg::Size { dim: 0, ..books }),
            WorkloadSpec::Multidepth(multidepth::Layout { size: deep, ..layout }),
            WorkloadSpec::Multidepth(multidepth::Layout { segments: 1, ..layout }),
            WorkloadSpec::Multidepth(multidepth::Layout { fan_out: 0, ..layout }),
            WorkloadSpec::Ann(ann::Size { rows: 9_999, ..rows }),
            WorkloadSpec::Ann(ann::Size { dim: 4_097, ..rows }),
            WorkloadSpec::Synthetic(Size { entities: 0, degree: 1, payload_bytes: 0 }),
            WorkloadSpec::Filters { rows: 999, dim: 1 },
        ] {
            assert!(!valid(wrong), "{wrong:?}");
        }
        let sharded = BenchSpec { shards: 2, ..BenchSpec::new(WorkloadSpec::Ann(rows)) };
        assert!(sharded.validate().is_err());
    }

    #[test]
    fn a_beam_forces_the_graph() {
        let workload = spec().generate().expect("300 chains are enough for 64 questions");
        let point = workload.point;
        assert_eq!(spec().seed_mode(&point), SeedMode::Auto);
        let forced = BenchSpec { ef: Some(512), ..spec() };
        assert_eq!(forced.seed_mode(&point), SeedMode::Graph { ef: 512 });
        let graph = BenchSpec { index: IndexChoice::Graph, ..spec() };
        assert_eq!(graph.seed_mode(&point), SeedMode::Graph { ef: 128 });
        let exact = BenchSpec { exact_seeds: true, ..spec() };
        assert_eq!(exact.seed_mode(&point), SeedMode::Exact);
    }

    #[test]
    fn too_few_chains_for_the_questions_are_refused_by_number() {
        let small = BenchSpec::new(WorkloadSpec::Multihop { chains: 277 });
        let message = small.generate().err().expect("refused").to_string();
        let few = "277 chains are too few to draw 64 distinct questions from: ";
        assert_eq!(message, format!("{few}take 278 at least, or fewer questions"));
        let least = BenchSpec::new(WorkloadSpec::Multihop { chains: 278 });
        assert!(least.generate().is_ok());
    }
}
