//! What to measure: the options of the command, with the defaults of each workload.

use crate::BenchError;
use crate::workload::synthetic::Size;
use crate::workload::{Embed, Point, Workload, butler_gate, clustered, multihop, synthetic};
use hopbine_coordinator::embed::{Lexical, Tokenizer};
use hopbine_proto::call::SeedMode;
use std::collections::BTreeMap;

/// Which data and questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadSpec {
    /// Pure expansion over a regular graph.
    Synthetic(Size),
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
        Ok(())
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
            WorkloadSpec::Synthetic(size) => {
                if size.entities == 0 || size.degree == 0 {
                    let detail = "entities and degree begin at 1".to_owned();
                    return Err(BenchError::Spec { detail });
                }
                synthetic::generate(size, queries(16) as usize)
            }
            WorkloadSpec::Multihop { chains } => multihop::generate(chains, queries(64), embed)?,
            WorkloadSpec::ButlerGate => butler_gate::generate(embed)?,
            WorkloadSpec::Filters { rows, dim } => {
                if rows < 1_000 || !(1..=4_096).contains(&dim) {
                    let detail = "filters take at least 1000 rows of 1 to 4096 components";
                    return Err(BenchError::Spec { detail: detail.to_owned() });
                }
                clustered::generate(rows, dim as usize, (rows / 200).max(1), queries(200))
            }
        };
        workload.queries.truncate(queries(u32::MAX) as usize);
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
            WorkloadSpec::Multihop { chains } => BTreeMap::from([("chains", chains.into())]),
            WorkloadSpec::ButlerGate => BTreeMap::new(),
            WorkloadSpec::Filters { rows, dim } => {
                BTreeMap::from([("rows", rows.into()), ("dim", dim.into())])
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
