//! Sizes of the graphs for `/metrics`, which passes no gate: read from the shards once for all who
//! ask within a second.

use crate::driver::Engine;
use crate::reply::StatsReply;
use crate::request::CallOptions;
use futures::future::join_all;
use hopbine_proto::call::Freshness;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long `/metrics` waits for the sizes of the graphs.
const STATS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long sizes are shown before they are read again; scrapers come every few seconds.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// The sizes last read. One caller reads them, the others wait for what it finds.
#[derive(Debug, Default)]
pub struct Sizes {
    last: Mutex<Option<(Instant, Arc<[StatsReply]>)>>,
}

impl Sizes {
    /// Sizes of the graphs whose shards answer in time, at most a second old.
    pub async fn of(&self, engine: &Engine) -> Arc<[StatsReply]> {
        let mut last = self.last.lock().await;
        if let Some((since, sizes)) = &*last
            && since.elapsed() < FRESH_FOR
        {
            return sizes.clone();
        }
        let sizes: Arc<[StatsReply]> = read(engine).await.into();
        *last = Some((Instant::now(), sizes.clone()));
        sizes
    }
}

async fn read(engine: &Engine) -> Vec<StatsReply> {
    let options = CallOptions {
        consistency: Freshness::Eventual,
        timeout: STATS_TIMEOUT,
        allow_partial: true,
        ..CallOptions::default()
    };
    let graphs = engine.graphs();
    let stats = graphs.iter().map(|graph| engine.stats(&graph.name, &options));
    join_all(stats).await.into_iter().filter_map(Result::ok).collect()
}
