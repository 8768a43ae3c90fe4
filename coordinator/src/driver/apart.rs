//! Work that takes longer than an async thread may be held leaves it: what is read, checked, sorted
//! and written of large requests and replies.

use hopbine_proto::driver;
use std::num::NonZero;
use std::ops::Deref;
use std::sync::LazyLock;
use std::thread::available_parallelism;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

/// Work on more bytes than this waits for its turn: more of it at once than there are processors
/// would only keep everything else waiting.
const LARGE_BYTES: usize = 1 << 20;
static LARGE_AT_ONCE: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(2 * available_parallelism().map_or(1, NonZero::get)));

/// Does `work` here, or on a thread for blocking work when it is about more than a few `bytes`.
pub async fn apart<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    // Nobody closes it.
    let _turn = if bytes > LARGE_BYTES { LARGE_AT_ONCE.acquire().await.ok() } else { None };
    driver::apart(bytes, work).await
}

/// Does `work` here; when it is about more than a few `bytes`, others leave this thread before. For
/// work that borrows what it is about. A runtime of one thread cannot do that: there it waits.
pub fn in_place<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let large = bytes > driver::INLINE_BYTES_MAX;
    match Handle::try_current() {
        Ok(runtime) if large && runtime.runtime_flavor() == RuntimeFlavor::MultiThread => {
            tokio::task::block_in_place(work)
        }
        _ => work(),
    }
}

/// A value of so many bytes. A large one is taken apart off the async threads, too, whenever it is
/// let go of.
#[derive(Debug)]
pub struct Bulk<T: Send + 'static> {
    value: Option<T>,
    bytes: usize,
}

impl<T: Send + 'static> Bulk<T> {
    /// `value`, which takes about `bytes`.
    pub fn new(value: T, bytes: usize) -> Self {
        Self { value: Some(value), bytes }
    }

    /// The value, for who knows what to do with it.
    pub fn into_inner(mut self) -> T {
        self.value.take().expect("it is taken once")
    }
}

impl<T: Send + 'static> Deref for Bulk<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("it is taken with the whole")
    }
}

impl<T: Send + 'static> Drop for Bulk<T> {
    fn drop(&mut self) {
        let value = self.value.take();
        if value.is_some()
            && self.bytes > driver::INLINE_BYTES_MAX
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn_blocking(move || drop(value));
        }
    }
}
