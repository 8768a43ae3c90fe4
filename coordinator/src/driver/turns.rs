//! Turns to read rows: until they have come in, no reply holds what a shard reads, so only so much
//! is read at once.

use hopbine_proto::limits::{PAYLOAD_BYTES_MAX, REPLY_BYTES_MAX};
use std::future::Future;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Who may read now.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Of a mebibyte each.
    pieces: Arc<Semaphore>,
    all: u32,
}

/// A turn; over when it is dropped.
pub(crate) type Turn = Option<OwnedSemaphorePermit>;

impl Turns {
    /// Turns to read at most `bytes_max` bytes at once.
    pub fn new(bytes_max: usize) -> Self {
        let all = u32::try_from(bytes_max >> 20).unwrap_or(u32::MAX).clamp(1, TURNS_MAX);
        Self { pieces: Arc::new(Semaphore::new(all as usize)), all }
    }

    /// Waits until rows of at most `bytes` may be read; few do not wait.
    pub fn take(&self, bytes: usize) -> impl Future<Output = Turn> + Send + use<> {
        let wanted = u32::try_from(bytes.min(REPLY_BYTES_MAX) >> 20).unwrap_or(u32::MAX);
        let (pieces, wanted) = (self.pieces.clone(), wanted.min(self.all));
        async move {
            if wanted < WAITING_MIN {
                return None;
            }
            // Nobody closes it.
            pieces.acquire_many_owned(wanted).await.ok()
        }
    }
}

/// Pieces at most.
const TURNS_MAX: u32 = 1 << 20;
/// Reads of fewer mebibytes need no turn: those of all requests served at once are within 1 GiB.
const WAITING_MIN: u32 = 4;

/// Bytes of so many rows, at most.
pub(crate) fn rows_bytes(rows: usize) -> usize {
    rows.saturating_mul(PAYLOAD_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn large_reads_wait_for_their_turn_and_small_ones_do_not() {
        let turns = Turns::new(8 << 20);
        let first = turns.take(rows_bytes(100)).await;
        let second = tokio::time::timeout(Duration::from_millis(20), turns.take(5 << 20)).await;
        assert!(first.is_some() && second.is_err());
        assert!(turns.take(1 << 20).await.is_none(), "small");
        drop(first);
        assert!(turns.take(5 << 20).await.is_some());
    }
}
