//! Whether a node may take traffic, check by check.

use super::node::Node;
use std::sync::atomic::Ordering;

/// One line of `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// Why it failed, when it did.
    pub failed: Option<String>,
}

impl Node {
    /// All checks, always in the same order. Cheap: nothing is read from disk.
    pub fn health(&self) -> Vec<Check> {
        let stopping = self.stopping.load(Ordering::SeqCst);
        let mut shards: Vec<String> =
            self.all_hosted().iter().filter_map(|hosted| hosted.damaged.get().cloned()).collect();
        shards.extend(self.unmade());
        let shards = (!shards.is_empty()).then(|| shards.join("; "));
        let full = (self.upkeep.disk_full() || self.groups.space_pressure())
            .then(|| "no space for new data".to_owned());
        vec![
            Check { name: "running", failed: stopping.then(|| "shutting down".to_owned()) },
            Check { name: "log", failed: self.failure() },
            Check { name: "disk", failed: full },
            Check { name: "shards", failed: shards },
        ]
    }

    /// Why the process must stop serving, when it must: after a failed sync nothing about unsynced
    /// bytes may be assumed.
    pub fn failure(&self) -> Option<String> {
        self.upkeep.failure().or_else(|| self.groups.failed().map(|error| error.to_string()))
    }

    /// Resolves once `failure` has a reason. The process should then end at once; its next start
    /// recovers from what was synced.
    pub async fn until_failed(&self) -> String {
        tokio::select! {
            reason = self.upkeep.failed() => reason,
            error = self.groups.until_failed() => error.to_string(),
        }
    }
}
