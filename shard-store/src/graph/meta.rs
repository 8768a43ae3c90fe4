//! The small record of a sealed index: sizes, the chosen way and what was measured.

use hopbine_proto::Metric;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How a sealed segment is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// Graph walk over codes with this beam, then exact rerank. The beam is meant for k up to 64
    /// and grows with larger k.
    Graph {
        /// The beam.
        ef: u32,
    },
    /// All codes, then exact rerank of every row that could still win: same answer as `Exact`.
    Scan,
    /// All f32 rows.
    Exact,
    /// All 1-bit codes, then the 8-bit codes of the most promising, then exact rerank. The number
    /// is meant for k up to 64 and grows with larger k.
    Bits {
        /// Rows whose 8-bit codes are looked at.
        rerank: u32,
    },
    /// All 4-bit codes, then finer ones of the promising rows, then exact rerank of every row that
    /// is likely to win still. The number is meant for k up to 64 and grows with larger k.
    Nibbles {
        /// Rows whose finer codes are looked at, at most.
        rerank: u32,
    },
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Graph { ef } => write!(f, "graph ef={ef}"),
            Self::Scan => f.write_str("scan"),
            Self::Exact => f.write_str("exact"),
            Self::Nibbles { rerank } => write!(f, "4-bit scan refine<={rerank}"),
            Self::Bits { rerank } => write!(f, "1-bit scan rerank={rerank}"),
        }
    }
}

/// What must be known to open an index's sections again, and what was found when it was sealed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IndexMeta {
    /// Components of a vector.
    pub dim: u32,
    /// Distance that codes and graph were made for.
    pub metric: Metric,
    /// Rows of the segment, those without vector included.
    pub rows: u32,
    /// Rows with a vector.
    pub vectors: u32,
    /// Distinct vectors: rows of codes and nodes of the graph.
    pub nodes: u32,
    /// One step of the codes.
    pub scale: f32,
    /// Largest error of a row's codes.
    pub error_max: f32,
    /// Largest size term of a row, see `RowTerms`.
    pub size_max: f32,
    /// Chosen at seal: the cheapest way that reached the recall target.
    pub way: Way,
    /// Measured recall@64 of that way; `None` when nothing had to be measured.
    pub recall64: Option<f64>,
    /// Measured recall@10 of that way.
    pub recall10: Option<f64>,
    /// Why a graph that exists is not the chosen way, or what else a person should know.
    pub alarm: Option<String>,
}
