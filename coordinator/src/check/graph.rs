//! The configuration of a graph at the door.

use super::count;
use crate::client::GraphPatch;
use crate::names::invalid;
use hopbine_proto::graph::{EfSearch, Embedder, GraphConfig, IdKind, IndexConfig};
use hopbine_proto::limits;
use hopbine_proto::status::Problem;

/// Bytes of a graph's name.
const NAME_MAX: usize = 128;
/// Declared payload indexes of one graph.
const PAYLOAD_INDEXES_MAX: usize = 32;
/// Smallest `split_at`: below it a shard would be mostly bookkeeping.
const SPLIT_AT_MIN: u64 = 1 << 20;
/// Largest payload that a graph may allow: a batch must hold a few of them.
const PAYLOAD_BYTES_LARGEST: u64 = 16 << 20;

/// Checks the name of a graph: it stands in URLs and folders.
pub fn name(name: &str) -> Result<(), Problem> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts_well && name.len() <= NAME_MAX && name.chars().all(allowed) {
        return Ok(());
    }
    let detail = format!(
        "a graph's name is 1 to {NAME_MAX} letters, digits, '_', '-' or '.', the first of them a \
         letter or digit"
    );
    Err(Problem::new(hopbine_proto::status::Code::InvalidRequest, detail))
}

/// Checks what a graph is to be.
pub fn config(config: &GraphConfig) -> Result<(), Problem> {
    count(config.vector.dim.into(), limits::DIM_MAX as u64, "/vector/dim")?;
    index(&config.index)?;
    shards(config)?;
    if config.payload_index.len() > PAYLOAD_INDEXES_MAX {
        return Err(invalid("/payload_index", format!("at most {PAYLOAD_INDEXES_MAX} fields")));
    }
    for (i, field) in config.payload_index.iter().enumerate() {
        let place = format!("/payload_index/{i}");
        if field.split('.').any(str::is_empty) {
            return Err(invalid(place, "a field is names joined by dots, none of them empty"));
        }
        if field.len() > limits::NAME_BYTES_MAX {
            let detail = format!("a field has at most {} bytes", limits::NAME_BYTES_MAX);
            return Err(invalid(place, detail));
        }
        if config.payload_index[..i].contains(field) {
            return Err(invalid(place, "this field is given twice"));
        }
    }
    if let Embedder::Http(_) = config.embedder {
        return Err(invalid("/embedder", "only the built-in embedders are there yet"));
    }
    count(config.payload_bytes_max.into(), PAYLOAD_BYTES_LARGEST, "/payload_bytes_max")?;
    Ok(())
}

/// Checks what a patch is to change.
pub fn patch(patch: &GraphPatch) -> Result<(), Problem> {
    if let Some(ef_search) = patch.ef_search {
        beam(ef_search)?;
    }
    if let Some(recall) = patch.recall_target {
        recall_target(recall)?;
    }
    if let Some(bytes) = patch.split_at_bytes {
        split_at(bytes)?;
    }
    if let Some(bytes) = patch.payload_bytes_max {
        count(bytes.into(), PAYLOAD_BYTES_LARGEST, "/payload_bytes_max")?;
    }
    Ok(())
}

fn index(index: &IndexConfig) -> Result<(), Problem> {
    within(index.m, 4, 128, "/index/m")?;
    within(index.ef_construction, 8, 4_096, "/index/ef_construction")?;
    beam(index.ef_search)?;
    recall_target(index.recall_target)
}

fn within(value: u32, min: u32, max: u32, pointer: &str) -> Result<(), Problem> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(invalid(pointer, format!("must be {min} to {max}, not {value}")))
}

fn beam(ef_search: EfSearch) -> Result<(), Problem> {
    match ef_search {
        EfSearch::Auto => Ok(()),
        EfSearch::Fixed(ef) => within(ef, 1, limits::EF_MAX, "/index/ef_search"),
    }
}

fn recall_target(recall: f64) -> Result<(), Problem> {
    if (0.5..=1.0).contains(&recall) {
        return Ok(());
    }
    Err(invalid("/index/recall_target", format!("must be 0.5 to 1, not {recall}")))
}

fn split_at(bytes: u64) -> Result<(), Problem> {
    if bytes >= SPLIT_AT_MIN {
        return Ok(());
    }
    Err(invalid("/shards/split_at", format!("must be at least {SPLIT_AT_MIN} bytes, not {bytes}")))
}

fn shards(config: &GraphConfig) -> Result<(), Problem> {
    let shards = &config.shards;
    let most = u64::from(limits::SHARDS_PER_GRAPH_MAX);
    count(shards.initial.into(), most, "/shards/initial")?;
    count(shards.replicas.into(), u64::from(u32::MAX), "/shards/replicas")?;
    split_at(shards.split_at_bytes)?;
    let place = "/shards/boundaries";
    match config.ids {
        IdKind::Names if !shards.boundaries.is_empty() => {
            let detail = "a graph of names is cut evenly by initial";
            return Err(invalid(place, detail));
        }
        IdKind::U64 if shards.initial > 1 && shards.boundaries.is_empty() => {
            let detail = "a graph of numbers needs boundaries to begin with several shards";
            return Err(invalid("/shards/initial", detail));
        }
        _ => {}
    }
    if shards.boundaries.len() as u64 >= most {
        return Err(invalid(place, format!("at most {most} shards")));
    }
    if shards.initial > 1
        && shards.initial as usize != shards.boundaries.len() + 1
        && config.ids == IdKind::U64
    {
        let detail = format!(
            "{} boundaries make {} shards",
            shards.boundaries.len(),
            shards.boundaries.len() + 1
        );
        return Err(invalid("/shards/initial", detail));
    }
    let mut before = 0;
    for (i, boundary) in shards.boundaries.iter().enumerate() {
        if *boundary <= before {
            let detail = "boundaries ascend, from 1 on: the first shard begins at 0 by itself";
            return Err(invalid(format!("{place}/{i}"), detail));
        }
        before = *boundary;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut GraphConfig)) -> String {
        let mut graph = GraphConfig::new(8, IdKind::U64);
        config(&graph).expect("the defaults are fine");
        change(&mut graph);
        config(&graph).expect_err("a bad configuration").errors[0].pointer.clone()
    }

    #[test]
    fn every_bad_setting_names_itself() {
        assert_eq!(refused(|g| g.vector.dim = 0), "/vector/dim");
        assert_eq!(refused(|g| g.vector.dim = 4097), "/vector/dim");
        assert_eq!(refused(|g| g.index.m = 3), "/index/m");
        assert_eq!(refused(|g| g.index.ef_construction = 5000), "/index/ef_construction");
        assert_eq!(refused(|g| g.index.ef_search = EfSearch::Fixed(0)), "/index/ef_search");
        assert_eq!(refused(|g| g.index.recall_target = f64::NAN), "/index/recall_target");
        assert_eq!(refused(|g| g.shards.initial = 2), "/shards/initial");
        assert_eq!(refused(|g| g.shards.initial = 0), "/shards/initial");
        assert_eq!(refused(|g| g.shards.replicas = 0), "/shards/replicas");
        assert_eq!(refused(|g| g.shards.split_at_bytes = 1), "/shards/split_at");
        assert_eq!(refused(|g| g.shards.boundaries = vec![0]), "/shards/boundaries/0");
        assert_eq!(refused(|g| g.shards.boundaries = vec![2, 2]), "/shards/boundaries/1");
        assert_eq!(refused(|g| g.payload_index = vec!["a..b".into()]), "/payload_index/0");
        assert_eq!(refused(|g| g.payload_index = vec!["a".into(); 2]), "/payload_index/1");
        assert_eq!(refused(|g| g.embedder = Embedder::Http("x".into())), "/embedder");
        assert_eq!(refused(|g| g.payload_bytes_max = 0), "/payload_bytes_max");
        let named = |g: &mut GraphConfig| {
            g.ids = IdKind::Names;
            g.shards.boundaries = vec![5];
        };
        assert_eq!(refused(named), "/shards/boundaries");
    }

    #[test]
    fn names_of_graphs_fit_urls_and_folders() {
        for good in ["papers", "a.b-c_9", "7"] {
            assert!(name(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "-a", "ä", &"x".repeat(129)] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
