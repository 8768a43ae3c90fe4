//! A group's log as openraft asks for it, over the group's handle on the shared log.

use super::entry::{body_bytes, decode, encode};
use crate::command::LogPosition;
use crate::config::{LogId, RaftEntry, TypeConfig, Vote, log_id_of, position_of};
use crate::error::LogError;
use crate::log::GroupLog;
use crate::log::index::VoteRecord;
use crate::machine::Machine;
use futures::channel::oneshot;
use futures::stream::{self, Stream};
use hopbine_proto::ReplicaId;
use hopbine_proto::driver::apart;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{EntryPayload, OptionalSend, RaftLogReader};
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds, RangeInclusive};
use std::sync::Arc;

/// Bytes of entries handed to apply or replication at once.
const READ_BYTES: usize = 4 * 1024 * 1024;
/// What is larger than this is not urgent: the reserve is for votes and for drops.
const URGENT_BYTES_MAX: usize = 2 * 1024 * 1024;

/// One group's log.
#[derive(Clone)]
pub struct GroupStore {
    log: Arc<GroupLog>,
    uses_reserve: bool,
}

fn io_error(error: LogError) -> io::Error {
    match error {
        LogError::Full => io::Error::new(io::ErrorKind::StorageFull, error),
        other => io::Error::other(other),
    }
}

fn damaged(error: crate::error::Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// A range of openraft's indexes, which start at 0, as a range of ours, which start at 1.
fn our_range(range: &impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    start.saturating_add(1)..end.saturating_add(1)
}

impl GroupStore {
    /// The store over a group's log.
    pub fn new(log: Arc<GroupLog>) -> Self {
        Self { log, uses_reserve: false }
    }

    /// The same for a machine whose commands are urgent: see `Machine::uses_reserve`.
    pub fn of_machine(log: Arc<GroupLog>, machine: &dyn Machine) -> Self {
        Self { log, uses_reserve: machine.uses_reserve() }
    }

    /// The entries of a range of our indexes, until `bytes_max` is passed.
    async fn read(&self, range: Range<u64>, bytes_max: usize) -> io::Result<Vec<RaftEntry>> {
        let raw = if self.log.reads_disk(range.clone()) {
            let log = self.log.clone();
            let read = tokio::task::spawn_blocking(move || log.read(range, bytes_max));
            read.await.map_err(io::Error::other)?
        } else {
            self.log.read(range, bytes_max)
        };
        let entries = raw.map_err(io_error)?.into_iter();
        entries.map(|(position, bytes)| decode(position, &bytes).map_err(damaged)).collect()
    }

    /// Submits something and returns once it is durable.
    async fn durable(
        &self,
        submit: impl FnOnce(&Arc<GroupLog>, crate::log::driver::Done),
    ) -> io::Result<()> {
        let (sender, receiver) = oneshot::channel();
        let done = move |result| {
            // The receiver is gone when its raft was shut down meanwhile.
            let _ = sender.send(result);
        };
        submit(&self.log, Box::new(done));
        match receiver.await {
            Ok(result) => result.map_err(io_error),
            Err(_) => Err(io::Error::other("the log thread is gone")),
        }
    }
}

impl RaftLogReader<TypeConfig> for GroupStore {
    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<RaftEntry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        // In pieces: what is to be applied after a restart may be far larger than the memory.
        let pieces =
            stream::unfold((self.clone(), our_range(&range)), |(store, rest)| async move {
                if rest.is_empty() {
                    return None;
                }
                let piece = store.read(rest.clone(), READ_BYTES).await;
                let next = match &piece {
                    Ok(entries) => match entries.last() {
                        Some(last) => position_of(&last.log_id).index.0 + 1..rest.end,
                        None => rest.end..rest.end,
                    },
                    Err(_) => rest.end..rest.end,
                };
                let items: Vec<Result<RaftEntry, io::Error>> = match piece {
                    Ok(entries) => entries.into_iter().map(Ok).collect(),
                    Err(error) => vec![Err(error)],
                };
                Some((stream::iter(items), (store, next)))
            });
        futures::StreamExt::flatten(pieces)
    }

    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<RaftEntry>, io::Error>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        self.read(our_range(&range), usize::MAX).await
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        let vote = self.log.vote();
        Ok(vote.map(|vote| {
            let mut read = Vote::new(vote.term, vote.candidate.0);
            read.committed = vote.committed;
            read
        }))
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<RaftEntry>, io::Error> {
        self.read(our_range(&(start..end)), READ_BYTES).await
    }

    /// The last log id of each leader, from memory. (The trait's text speaks of the first; its own
    /// suite and its default want the last.)
    async fn get_key_log_ids(
        &mut self,
        range: RangeInclusive<LogId>,
    ) -> Result<Vec<LogId>, io::Error> {
        let (first, last) = (position_of(range.start()), position_of(range.end()));
        let lasts = self.log.last_of_terms(first.index.0..=last.index.0);
        Ok(lasts.into_iter().filter_map(log_id_of).collect())
    }
}

impl RaftLogStorage<TypeConfig> for GroupStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        Ok(LogState {
            last_purged_log_id: log_id_of(self.log.purged()),
            last_log_id: log_id_of(self.log.last()),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let record = VoteRecord {
            term: vote.leader_id.term,
            candidate: ReplicaId(vote.leader_id.voted_for),
            committed: vote.committed,
        };
        self.durable(|log, done| log.save_vote(record, done)).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        if let Some(committed) = committed {
            self.log.save_committed(position_of(&committed));
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(log_id_of(self.log.committed()))
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: IOFlushed<TypeConfig>,
    ) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let (mut urgent, mut bytes) = (true, 0);
        let entries: Vec<RaftEntry> = entries.into_iter().collect();
        for entry in &entries {
            // Members and a leader's first entry: without them a group does not even start, and a
            // node that starts on a full disk could not be told to drop anything.
            urgent &= self.uses_reserve || !matches!(entry.payload, EntryPayload::Normal(_));
            bytes += body_bytes(entry);
        }
        let encoded: Vec<_> = apart(bytes, move || entries.iter().map(encode).collect()).await;
        urgent &= encoded.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() <= URGENT_BYTES_MAX;
        let done = |result: Result<(), LogError>| callback.io_completed(result.map_err(io_error));
        match urgent {
            true => self.log.append_urgent(encoded, Box::new(done)),
            false => self.log.append(encoded, Box::new(done)),
        }
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        let last = last.map_or(LogPosition::NONE, |last| position_of(&last));
        self.durable(|log, done| log.truncate(last, done)).await
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        self.durable(|log, done| log.purge(position_of(&upto), done)).await
    }
}
