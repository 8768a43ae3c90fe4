//! Views pinned per request and shard, so that all reads of one request see one state.

use hopbine_proto::limits::PINNED_VIEWS_MAX;
use hopbine_proto::status::{Code, Problem};
use hopbine_proto::{RequestId, ShardId};
use hopbine_shard_store::View;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The pins of one node.
#[derive(Default)]
pub struct Views {
    pins: Mutex<BTreeMap<(RequestId, ShardId), Pin>>,
}

struct Pin {
    view: View,
    deadline: Duration,
}

impl Views {
    /// The view that `request` pinned on `shard`.
    pub fn get(&self, request: RequestId, shard: ShardId) -> Option<View> {
        self.lock().get(&(request, shard)).map(|pin| pin.view.clone())
    }

    /// Keeps `view` until `release` or `deadline`; when another read of the same request was
    /// quicker, that one's view is returned. `overloaded` when too many are pinned.
    pub fn pin(
        &self,
        request: RequestId,
        shard: ShardId,
        view: View,
        deadline: Duration,
        now: Duration,
    ) -> Result<View, Problem> {
        let mut pins = self.lock();
        if let Some(pin) = pins.get(&(request, shard)) {
            return Ok(pin.view.clone());
        }
        if pins.len() >= PINNED_VIEWS_MAX {
            pins.retain(|_, pin| pin.deadline > now);
        }
        if pins.len() >= PINNED_VIEWS_MAX {
            let detail = format!("{PINNED_VIEWS_MAX} views are pinned, the most allowed");
            return Err(Problem::new(Code::Overloaded, detail).retry_after_ms(100));
        }
        pins.insert((request, shard), Pin { view: view.clone(), deadline });
        Ok(view)
    }

    /// Lets go of all that `request` pinned.
    pub fn release(&self, request: RequestId) {
        let mut pins = self.lock();
        let of_request = (request, ShardId(0))..=(request, ShardId(u64::MAX));
        let keys: Vec<_> = pins.range(of_request).map(|(key, _)| *key).collect();
        let dropped: Vec<_> = keys.iter().filter_map(|key| pins.remove(key)).collect();
        // Dropping a view may close files: not under the lock.
        drop(pins);
        drop(dropped);
    }

    /// Lets go of what nobody released in time.
    pub fn drop_expired(&self, now: Duration) {
        let mut pins = self.lock();
        let expired: Vec<_> =
            pins.iter().filter(|(_, pin)| pin.deadline <= now).map(|(key, _)| *key).collect();
        let dropped: Vec<_> = expired.iter().filter_map(|key| pins.remove(key)).collect();
        drop(pins);
        drop(dropped);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<(RequestId, ShardId), Pin>> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
