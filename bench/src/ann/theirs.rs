//! The hnsw_rs crate with its own search, over f32 vectors of length 1 and simsimd's products.

use super::data::Rows;
use crate::measure::thread_cpu;
use hnsw_rs::anndists::dist::distances::Distance;
use hnsw_rs::hnsw::Hnsw;
use hopbine_proto::graph::IndexConfig;
use simsimd::SpatialSimilarity;

/// Layers that the crate has room for.
const LAYERS: usize = 16;
/// A neighbour is a pointer to a counted pair of a pointer and a distance.
const LINK_BYTES: usize = 8 + 16 + 16;
/// Of a point: 16 lists, its numbers, and what counts and locks them.
const POINT_BYTES: usize = LAYERS * 24 + 100;

/// Cosine distance of vectors of length 1. The crate panics on negative and NaN distances.
#[derive(Clone, Copy, Debug)]
struct UnitCosine;

impl Distance<f32> for UnitCosine {
    fn eval(&self, a: &[f32], b: &[f32]) -> f32 {
        f32::dot(a, b).map_or(f32::MAX, |dot| (1.0 - dot).max(0.0) as f32)
    }
}

/// An index of the crate.
pub struct Theirs {
    index: Hnsw<'static, f32, UnitCosine>,
    build_cpu_s: f64,
    bytes_per_row: f64,
}

impl Theirs {
    /// Inserts all rows, one after the other.
    pub fn build(rows: &Rows, config: &IndexConfig) -> Self {
        let vector = |row| unit(rows.row(row).values);
        let vectors: Vec<Vec<f32>> = (0..rows.count()).map(vector).collect();
        let (m, efc) = (config.m as usize, config.ef_construction as usize);
        let started = thread_cpu();
        let mut index = Hnsw::new(m, vectors.len(), LAYERS, efc, UnitCosine);
        for (row, vector) in vectors.iter().enumerate() {
            index.insert((vector.as_slice(), row));
        }
        index.set_searching_mode(true);
        let build_cpu_s = (thread_cpu() - started).as_secs_f64();
        let bytes = links(&index) * LINK_BYTES / vectors.len().max(1) + POINT_BYTES;
        let bytes_per_row = (bytes + rows.dim() * size_of::<f32>()) as f64;
        Self { index, build_cpu_s, bytes_per_row }
    }

    /// The `k` rows that the crate finds nearest to `vector` with beam `ef`.
    pub fn search(&self, ef: u32, vector: &[f32], k: u32) -> Vec<u32> {
        let found = self.index.search(&unit(vector), k as usize, ef as usize);
        found.into_iter().map(|near| near.d_id as u32).collect()
    }

    /// Seconds of processor time that the build took.
    pub fn build_cpu_s(&self) -> f64 {
        self.build_cpu_s
    }

    /// Bytes a row, at least.
    pub fn bytes_per_row(&self) -> f64 {
        self.bytes_per_row
    }
}

/// Neighbours in all lists of all points.
fn links(index: &Hnsw<'static, f32, UnitCosine>) -> usize {
    let points = index.get_point_indexation();
    let mut links = 0;
    for layer in 0..LAYERS {
        for point in points.get_layer_iterator(layer) {
            links += point.get_neighborhood_id().iter().map(Vec::len).sum::<usize>();
        }
    }
    links
}

fn unit(vector: &[f32]) -> Vec<f32> {
    let norm = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    vector.iter().map(|x| (f64::from(*x) / norm) as f32).collect()
}
