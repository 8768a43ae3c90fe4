//! A `Machine` as openraft's state machine: entries in order, off the async threads when long.

use super::entry::{body_bytes, decode_membership, encode_membership};
use crate::command::{LogPosition, Outcome};
use crate::config::{LogId, Membership, RaftEntry, TypeConfig, log_id_of, position_of};
use crate::machine::{Checkpoint, Entry, Machine};
use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine, Snapshot, SnapshotMeta};
use openraft::{EmptyNode, EntryPayload, OptionalSend, RaftSnapshotBuilder};
use std::io;
use std::sync::Arc;
use tokio::sync::watch;

/// Entries applied between two looks at the stream.
const CHUNK_ENTRIES: usize = 1_024;
/// Bytes of commands applied between two looks at the stream.
const CHUNK_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of commands up to which applying them is not worth another thread.
const INLINE_BYTES: usize = 4 * 1024;

type Meta = SnapshotMeta<crate::config::LeaderTerm, u64, EmptyNode>;
type MachineSnapshot = Snapshot<crate::config::LeaderTerm, u64, EmptyNode, ()>;

/// Drives one machine. Keeps what openraft asks again and again: last applied entry and members.
pub struct Applier {
    machine: Arc<dyn Machine>,
    applied: Option<LogId>,
    membership: Membership,
    progress: watch::Sender<LogPosition>,
}

impl Applier {
    /// A driver that goes on from what the machine recovered to.
    pub fn new(machine: Arc<dyn Machine>) -> Result<Self, io::Error> {
        let Checkpoint { at, membership } = machine.recovered();
        let membership = decode_membership(&membership).map_err(io::Error::other)?;
        let progress = watch::Sender::new(at);
        Ok(Self { machine, applied: log_id_of(at), membership, progress })
    }

    /// The last position applied, as it changes.
    pub fn progress(&self) -> watch::Receiver<LogPosition> {
        self.progress.subscribe()
    }

    async fn apply_chunk(&mut self, chunk: Vec<EntryResponder<TypeConfig>>) -> io::Result<()> {
        let Some((last, _)) = chunk.last() else { return Ok(()) };
        let last = last.log_id;
        let bytes: usize = chunk.iter().map(|(entry, _)| body_bytes(entry)).sum();
        let is_long = |entry: &RaftEntry| match &entry.payload {
            EntryPayload::Normal(command) => self.machine.is_long(command),
            EntryPayload::Blank | EntryPayload::Membership(_) => false,
        };
        let long = bytes > INLINE_BYTES || chunk.iter().any(|(entry, _)| is_long(entry));
        let members = if long {
            let (machine, progress) = (self.machine.clone(), self.progress.clone());
            let apply = move || apply_all(&*machine, &progress, chunk);
            tokio::task::spawn_blocking(apply).await.map_err(io::Error::other)??
        } else {
            apply_all(&*self.machine, &self.progress, chunk)?
        };
        self.applied = Some(last);
        if let Some(members) = members {
            self.membership = members;
        }
        Ok(())
    }
}

/// Applies a chunk and answers each proposer; returns the last members among the entries.
fn apply_all(
    machine: &dyn Machine,
    progress: &watch::Sender<LogPosition>,
    chunk: Vec<EntryResponder<TypeConfig>>,
) -> io::Result<Option<Membership>> {
    let mut members = None;
    for (entry, responder) in chunk {
        let at = position_of(&entry.log_id);
        let reply = match &entry.payload {
            EntryPayload::Blank => machine.apply(at, Entry::Blank),
            EntryPayload::Normal(command) => machine.apply(at, Entry::Command(command)),
            EntryPayload::Membership(new) => {
                let stored = Membership::new(Some(entry.log_id), new.clone());
                let bytes: Bytes = encode_membership(&stored);
                members = Some(stored);
                machine.apply(at, Entry::Membership(&bytes))
            }
        };
        let reply = reply.map_err(io::Error::other)?;
        progress.send_replace(at);
        if let Some(responder) = responder {
            responder.send(Outcome(reply));
        }
    }
    Ok(members)
}

/// Asks for the machine's durable point, off the async threads: the machine may be moving it, which
/// takes as long as the disk does.
async fn checkpoint_of(machine: &Arc<dyn Machine>) -> io::Result<Option<Checkpoint>> {
    let machine = machine.clone();
    tokio::task::spawn_blocking(move || machine.checkpoint()).await.map_err(io::Error::other)
}

/// Describes the machine's durable point as openraft's snapshot. It carries no data yet: a group
/// of one voter has nobody to send it to.
async fn snapshot_of(machine: &Arc<dyn Machine>) -> io::Result<Option<MachineSnapshot>> {
    let Some(Checkpoint { at, membership }) = checkpoint_of(machine).await? else {
        return Ok(None);
    };
    let last_membership = decode_membership(&membership).map_err(io::Error::other)?;
    let meta = Meta { last_log_id: log_id_of(at), last_membership };
    Ok(meta.last_log_id.is_some().then_some(Snapshot { meta, snapshot: () }))
}

/// Builds a snapshot: reads where the machine's durable point is.
pub struct CheckpointReader {
    machine: Arc<dyn Machine>,
}

impl RaftSnapshotBuilder<TypeConfig> for CheckpointReader {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> Result<MachineSnapshot, io::Error> {
        let none = || Snapshot { meta: Meta::default(), snapshot: () };
        Ok(snapshot_of(&self.machine).await?.unwrap_or_else(none))
    }
}

impl RaftStateMachine<TypeConfig> for Applier {
    type SnapshotData = ();
    type SnapshotBuilder = CheckpointReader;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, Membership), io::Error> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let (mut chunk, mut bytes) = (Vec::new(), 0);
        while let Some(item) = entries.try_next().await? {
            bytes += body_bytes(&item.0);
            chunk.push(item);
            if chunk.len() >= CHUNK_ENTRIES || bytes >= CHUNK_BYTES {
                bytes = 0;
                self.apply_chunk(std::mem::take(&mut chunk)).await?;
            }
        }
        self.apply_chunk(chunk).await
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<CheckpointReader> {
        let builder = self.get_snapshot_builder().await;
        let there = force || matches!(checkpoint_of(&self.machine).await, Ok(Some(_)));
        there.then_some(builder)
    }

    async fn get_snapshot_builder(&mut self) -> CheckpointReader {
        CheckpointReader { machine: self.machine.clone() }
    }

    async fn install_snapshot(&mut self, _meta: &Meta, _data: ()) -> Result<(), io::Error> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "snapshots are not received yet"))
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<MachineSnapshot>, io::Error> {
        snapshot_of(&self.machine).await
    }
}
