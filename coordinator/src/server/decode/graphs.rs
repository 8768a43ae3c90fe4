//! Bodies of the calls that manage graphs.

use super::values::{ef_search, entity, invalid, names, required, size, word};
use crate::request::EntityRef;
use crate::server::json::{Cursor, Kind, Read};
use hopbine_proto::graph::{
    BuilderKind, Embedder, GraphConfig, GraphPatch, IdKind, IndexConfig, ShardsConfig, VectorConfig,
};
use hopbine_proto::score::Metric;

/// Fields of a configuration.
pub const CONFIG: &[&str] =
    &["vector", "ids", "index", "shards", "payload_index", "embedder", "payload_bytes_max"];
/// Fields of `vector`.
pub const VECTOR: &[&str] = &["dim", "metric", "required"];
/// Fields of `index`.
pub const INDEX: &[&str] =
    &["m", "ef_construction", "ef_search", "recall_target", "builder", "build_seed"];
/// Fields of `shards`.
pub const SHARDS: &[&str] = &["initial", "boundaries", "replicas", "split_at"];
/// Fields of a change.
pub const PATCH: &[&str] = &["index", "shards", "payload_bytes_max"];
/// Fields of `index` in a change.
pub const PATCH_INDEX: &[&str] = &["ef_search", "recall_target"];
/// Fields of `shards` in a change.
pub const PATCH_SHARDS: &[&str] = &["split_at"];

fn whole_u32(cursor: &mut Cursor<'_>) -> Read<u32> {
    Ok(cursor.whole(u32::MAX.into())? as u32)
}

/// `PUT /v1/graphs/{g}`
pub fn config(cursor: &mut Cursor<'_>) -> Read<GraphConfig> {
    let mut space = None;
    let mut config = GraphConfig::new(0, IdKind::Names);
    cursor.object(CONFIG, |name, cursor| {
        match name {
            "vector" => space = Some(vector(cursor)?),
            "ids" => {
                let kind = word(cursor, &["names", "u64"])?;
                config.ids = if kind == "names" { IdKind::Names } else { IdKind::U64 };
            }
            "index" => config.index = index(cursor)?,
            "shards" => config.shards = shards(cursor)?,
            "payload_index" => config.payload_index = names(cursor)?,
            "embedder" => config.embedder = embedder(cursor)?,
            _ => config.payload_bytes_max = size(cursor, u32::MAX.into())? as u32,
        }
        Ok(())
    })?;
    config.vector = required(space, "vector")?;
    Ok(config)
}

fn vector(cursor: &mut Cursor<'_>) -> Read<VectorConfig> {
    let (mut dim, mut metric, mut needed) = (None, Metric::default(), false);
    cursor.object(VECTOR, |name, cursor| {
        match name {
            "dim" => dim = Some(whole_u32(cursor)?),
            "metric" => {
                metric = match word(cursor, &["cosine", "l2", "dot"])? {
                    "cosine" => Metric::Cosine,
                    "l2" => Metric::L2,
                    _ => Metric::Dot,
                }
            }
            _ => needed = cursor.boolean()?,
        }
        Ok(())
    })?;
    Ok(VectorConfig { dim: required(dim, "dim")?, metric, required: needed })
}

fn index(cursor: &mut Cursor<'_>) -> Read<IndexConfig> {
    let mut index = IndexConfig::default();
    cursor.object(INDEX, |name, cursor| {
        match name {
            "m" => index.m = whole_u32(cursor)?,
            "ef_construction" => index.ef_construction = whole_u32(cursor)?,
            "ef_search" => index.ef_search = ef_search(cursor)?,
            "recall_target" => index.recall_target = cursor.float()?,
            "builder" => {
                let builder = word(cursor, &["native", "hnsw_rs"])?;
                index.builder =
                    if builder == "native" { BuilderKind::Native } else { BuilderKind::HnswRs };
            }
            _ => index.build_seed = cursor.whole(u64::MAX)?,
        }
        Ok(())
    })?;
    Ok(index)
}

fn shards(cursor: &mut Cursor<'_>) -> Read<ShardsConfig> {
    let mut shards = ShardsConfig::default();
    cursor.object(SHARDS, |name, cursor| {
        match name {
            "initial" => shards.initial = whole_u32(cursor)?,
            "boundaries" => shards.boundaries = cursor.list(usize::MAX, boundary)?,
            "replicas" => shards.replicas = whole_u32(cursor)?,
            _ => shards.split_at_bytes = size(cursor, u64::MAX)?,
        }
        Ok(())
    })?;
    Ok(shards)
}

/// A number, or a decimal string.
fn boundary(cursor: &mut Cursor<'_>) -> Read<u64> {
    // A configuration is held twice.
    cursor.room.take(size_of::<u64>())?;
    if cursor.kind() == Kind::Number {
        return cursor.whole(u64::MAX);
    }
    match entity(cursor)? {
        EntityRef::Number(number) => Ok(number),
        EntityRef::Name(text) => text.parse().map_err(|_| invalid(format!("{text:?} is no u64"))),
    }
}

fn embedder(cursor: &mut Cursor<'_>) -> Read<Embedder> {
    if cursor.kind() == Kind::Text {
        return Ok(match word(cursor, &["lexical", "lexical-code"])? {
            "lexical" => Embedder::Lexical,
            _ => Embedder::LexicalCode,
        });
    }
    let mut url = None;
    cursor.object(&["http"], |_, cursor| {
        url = Some(cursor.owned()?);
        Ok(())
    })?;
    Ok(Embedder::Http(required(url, "http")?))
}

/// `PATCH /v1/graphs/{g}`
pub fn patch(cursor: &mut Cursor<'_>) -> Read<GraphPatch> {
    let mut patch = GraphPatch::default();
    cursor.object(PATCH, |name, cursor| match name {
        "index" => cursor.object(PATCH_INDEX, |name, cursor| {
            match name {
                "ef_search" => patch.ef_search = Some(ef_search(cursor)?),
                _ => patch.recall_target = Some(cursor.float()?),
            }
            Ok(())
        }),
        "shards" => cursor.object(PATCH_SHARDS, |_, cursor| {
            patch.split_at_bytes = Some(size(cursor, u64::MAX)?);
            Ok(())
        }),
        _ => {
            patch.payload_bytes_max = Some(size(cursor, u32::MAX.into())? as u32);
            Ok(())
        }
    })?;
    if patch == GraphPatch::default() {
        return Err(invalid("the change is empty"));
    }
    Ok(patch)
}
