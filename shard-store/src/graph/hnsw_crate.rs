//! The hnsw_rs crate as a builder: a cross-check of our own. It only ever builds in memory, one
//! node after the other; its graph is frozen into our layout and never serves.
//!
//! It panics on negative or NaN distances and ends the process on more than 256 links, so its
//! input is guarded: links are bounded and distances clamped. It sees the same codes as our own
//! builder, as f32. Its levels come from a fixed seed of its own.

use super::build::{BuildInput, GraphBuilder};
use super::index::NodeCodes;
use super::layout::{LEVELS_MAX, Links, UpperLevel};
use hnsw_rs::anndists::dist::distances::Distance;
use hnsw_rs::hnsw::Hnsw;
use hopbine_proto::Metric;
use simsimd::SpatialSimilarity;

/// Links per node that the crate takes.
const M_MAX: u32 = 256;

/// The hnsw_rs builder.
#[derive(Clone, Copy, Debug, Default)]
pub struct HnswCrateBuilder;

/// Distances that the crate accepts: never negative, never NaN.
#[derive(Clone, Copy, Debug)]
pub struct Clamped {
    metric: Metric,
    /// Not below any dot product of two vectors.
    dot_max: f64,
}

impl Distance<f32> for Clamped {
    fn eval(&self, a: &[f32], b: &[f32]) -> f32 {
        let distance = match self.metric {
            Metric::L2 => f32::sqeuclidean(a, b),
            Metric::Cosine | Metric::Dot => f32::dot(a, b).map(|dot| self.dot_max - dot),
        };
        let distance = distance.unwrap_or(f64::INFINITY);
        if distance.is_nan() { f32::MAX } else { distance.clamp(0.0, f64::from(f32::MAX)) as f32 }
    }
}

/// Vectors as the crate takes them: the signed codes, whole numbers up to 127.
fn vectors(codes: NodeCodes<'_>) -> Vec<Vec<f32>> {
    let value = |code: &u8| f32::from(*code) - 128.0;
    (0..codes.len()).map(|node| codes.row(node).iter().map(value).collect()).collect()
}

/// An index of the crate over all nodes, for building and for comparing its own search.
pub fn index_of(input: &BuildInput<'_>) -> Result<Hnsw<'static, f32, Clamped>, String> {
    let config = input.config;
    if config.m > M_MAX {
        return Err(format!("hnsw_rs takes at most {M_MAX} links, not {}", config.m));
    }
    let vectors = vectors(input.codes);
    let square = |row: &Vec<f32>| row.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>();
    let dot_max = vectors.iter().map(square).fold(0.0, f64::max);
    let distance = Clamped { metric: input.metric, dot_max };
    let (m, efc) = (config.m as usize, config.ef_construction as usize);
    let index = Hnsw::new(m, vectors.len(), LEVELS_MAX, efc, distance);
    for (node, vector) in vectors.iter().enumerate() {
        index.insert((vector, node));
    }
    Ok(index)
}

impl GraphBuilder for HnswCrateBuilder {
    fn build(&self, input: &BuildInput<'_>) -> Result<Links, String> {
        let index = index_of(input)?;
        let points = index.get_point_indexation();
        let nodes = input.codes.len() as usize;
        // Per layer and node, its links; `None` where the node is not on the layer.
        let mut layers: Vec<Vec<Option<Vec<u32>>>> = vec![vec![None; nodes]; LEVELS_MAX];
        for own_level in 0..LEVELS_MAX {
            for point in points.get_layer_iterator(own_level) {
                let node = point.get_origin_id();
                let by_layer = point.get_neighborhood_id();
                for (layer, links) in by_layer.iter().take(own_level + 1).enumerate() {
                    let links = links.iter().map(|link| link.get_origin_id() as u32).collect();
                    layers[layer][node] = Some(links);
                }
            }
        }
        freeze(layers, input.config.m)
    }
}

/// Brings the crate's layers into our form: links only to nodes of the same layer, no empty
/// levels, an entry on the highest.
fn freeze(layers: Vec<Vec<Option<Vec<u32>>>>, m: u32) -> Result<Links, String> {
    let mut entry = 0;
    let (mut base, mut upper) = (Vec::new(), Vec::new());
    for (layer, lists) in layers.into_iter().enumerate() {
        let present: Vec<bool> = lists.iter().map(Option::is_some).collect();
        let keep = |link: &u32| present.get(*link as usize) == Some(&true);
        if layer == 0 {
            if !present.iter().all(|present| *present) {
                return Err("hnsw_rs lost a node".to_owned());
            }
            base = lists.into_iter().flatten().collect();
            continue;
        }
        let mut level = UpperLevel::default();
        for (node, links) in lists.into_iter().enumerate() {
            let Some(mut links) = links else { continue };
            links.retain(keep);
            level.ids.push(node as u32);
            level.links.push(links);
        }
        let Some(first) = level.ids.first() else { break };
        entry = *first;
        upper.push(level);
    }
    Ok(Links { entry, m, base, upper })
}
