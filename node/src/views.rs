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
    pins: Mutex<Pins>,
}

#[derive(Default)]
struct Pins {
    by_request: BTreeMap<(RequestId, ShardId), Pin>,
    /// How many of them each shard has.
    of_shard: BTreeMap<ShardId, usize>,
}

impl Pins {
    fn remove(&mut self, key: (RequestId, ShardId)) -> Option<Pin> {
        let pin = self.by_request.remove(&key)?;
        if let Some(count) = self.of_shard.get_mut(&key.1) {
            *count -= 1;
            if *count == 0 {
                self.of_shard.remove(&key.1);
            }
        }
        Some(pin)
    }

    /// Takes out what nobody released in time.
    fn expired(&mut self, now: Duration) -> Vec<Pin> {
        let expired = self.by_request.iter().filter(|(_, pin)| pin.deadline <= now);
        let keys: Vec<_> = expired.map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    fn is_full(&self, shard: ShardId) -> bool {
        self.of_shard.get(&shard).is_some_and(|count| *count >= PINNED_VIEWS_MAX)
    }
}

struct Pin {
    view: View,
    deadline: Duration,
}

impl Views {
    /// The view that `request` pinned on `shard`.
    pub fn get(&self, request: RequestId, shard: ShardId) -> Option<View> {
        self.lock().by_request.get(&(request, shard)).map(|pin| pin.view.clone())
    }

    /// Keeps `view` until `release` or `deadline`; when another read of the same request was
    /// quicker, that one's view is returned. `overloaded` when the shard has too many pinned.
    pub fn pin(
        &self,
        request: RequestId,
        shard: ShardId,
        view: View,
        deadline: Duration,
        now: Duration,
    ) -> Result<View, Problem> {
        let mut pins = self.lock();
        if let Some(pin) = pins.by_request.get(&(request, shard)) {
            return Ok(pin.view.clone());
        }
        let dropped = if pins.is_full(shard) { pins.expired(now) } else { Vec::new() };
        let full = pins.is_full(shard);
        if !full {
            pins.by_request.insert((request, shard), Pin { view: view.clone(), deadline });
            *pins.of_shard.entry(shard).or_default() += 1;
        }
        // Dropping a view may close files: not under the lock.
        drop(pins);
        drop(dropped);
        if full {
            let detail =
                format!("shard {shard} has {PINNED_VIEWS_MAX} views pinned, the most allowed");
            return Err(Problem::new(Code::Overloaded, detail).retry_after_ms(100));
        }
        Ok(view)
    }

    /// Lets go of all that `request` pinned.
    pub fn release(&self, request: RequestId) {
        let mut pins = self.lock();
        let of_request = (request, ShardId(0))..=(request, ShardId(u64::MAX));
        let keys: Vec<_> = pins.by_request.range(of_request).map(|(key, _)| *key).collect();
        let dropped: Vec<_> = keys.into_iter().filter_map(|key| pins.remove(key)).collect();
        // Dropping a view may close files: not under the lock.
        drop(pins);
        drop(dropped);
    }

    /// Lets go of what nobody released in time.
    pub fn drop_expired(&self, now: Duration) {
        let dropped = self.lock().expired(now);
        drop(dropped);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pins> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::graph::{GraphConfig, IdKind};
    use hopbine_proto::sim_disk::SimDisk;
    use hopbine_proto::{EntityRange, Epoch};
    use hopbine_shard_store::{Shard, ShardConfig};
    use std::sync::Arc;

    #[test]
    fn each_shard_has_its_own_bound_and_what_is_let_go_makes_room() {
        let graph = GraphConfig::new(2, IdKind::U64);
        let config = ShardConfig::of_graph(ShardId(1), EntityRange::ALL, Epoch(1), &graph);
        let shard = Shard::create(Arc::new(SimDisk::new()), "/s/1", config).expect("created");
        let (views, soon, later) =
            (Views::default(), Duration::from_secs(1), Duration::from_secs(10));
        let pin = |request: u128, id, now| {
            let deadline = if request == 0 { soon } else { later };
            views.pin(RequestId(request), ShardId(id), shard.view(), deadline, now)
        };
        for request in 0..PINNED_VIEWS_MAX as u128 {
            for id in 0..3 {
                assert!(pin(request, id, Duration::ZERO).is_ok(), "{request} on shard {id}");
            }
        }
        let refused = pin(u128::MAX, 1, Duration::ZERO).err().map(|problem| problem.code);
        assert_eq!(refused, Some(Code::Overloaded));
        assert!(pin(5, 1, Duration::ZERO).is_ok(), "pinned before");
        assert!(pin(u128::MAX, 1, Duration::from_secs(2)).is_ok(), "one has expired");
        assert!(pin(u128::MAX - 1, 1, Duration::from_secs(2)).is_err());
        views.release(RequestId(7));
        assert!(views.get(RequestId(7), ShardId(1)).is_none());
        assert!(pin(u128::MAX - 1, 1, Duration::from_secs(2)).is_ok());
    }
}
