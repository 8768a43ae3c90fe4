//! One group of this process: propose, read barrier, positions.

use super::apply::Applier;
use crate::command::{Command, LogPosition};
use crate::config::{RaftConfig, TypeConfig, position_of, replica_of};
use crate::error::RaftError;
use crate::log::{GroupLog, SharedLog};
use bytes::Bytes;
use hopbine_proto::{Clock, GroupId, LogIndex, ReplicaId};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, Fatal, ForwardToLeader, LinearizableReadError};
use openraft::raft::ClientWriteResponse;
use openraft::{Raft, ReadPolicy};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

/// First and longest wait before a request is tried again that nobody took.
const RETRY: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

pub(super) type GroupRaft = Raft<TypeConfig, Applier>;
type WriteError = openraft::errors::RaftError<TypeConfig, ClientWriteError<TypeConfig>>;
type ReadError = openraft::errors::RaftError<TypeConfig, LinearizableReadError<TypeConfig>>;

/// The answer to a proposal: applied here, durable on a quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Where the command stands in the group's log.
    pub index: LogIndex,
    /// What the machine answered.
    pub bytes: Bytes,
}

/// One replica of one group, running.
pub struct Group {
    id: GroupId,
    replica: ReplicaId,
    raft: GroupRaft,
    log: Arc<GroupLog>,
    shared: Arc<SharedLog>,
    clock: Arc<dyn Clock>,
    applied: watch::Receiver<LogPosition>,
    places: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    bytes_max: usize,
    stamp_ms: AtomicU64,
    stopped: AtomicBool,
}

pub(super) struct Parts {
    pub id: GroupId,
    pub replica: ReplicaId,
    pub raft: GroupRaft,
    pub log: Arc<GroupLog>,
    pub shared: Arc<SharedLog>,
    pub clock: Arc<dyn Clock>,
    pub applied: watch::Receiver<LogPosition>,
}

impl Group {
    pub(super) fn new(parts: Parts, config: &RaftConfig) -> Self {
        let Parts { id, replica, raft, log, shared, clock, applied } = parts;
        let bytes_max = config.proposal_bytes_max.min(Semaphore::MAX_PERMITS);
        Self {
            id,
            replica,
            raft,
            log,
            shared,
            clock,
            applied,
            places: Arc::new(Semaphore::new(config.proposals_max)),
            bytes: Arc::new(Semaphore::new(bytes_max)),
            bytes_max,
            stamp_ms: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    /// The group.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// This process's replica of it.
    pub fn replica(&self) -> ReplicaId {
        self.replica
    }

    /// Returns once this replica has applied all that was committed when it started, and, when the
    /// group has one voter, leads. `deadline` is on the process's monotonic clock.
    pub async fn ready(&self, deadline: Duration) -> Result<(), RaftError> {
        if self.is_only_voter().await? {
            return self.read_barrier(deadline).await.map(|_| ());
        }
        let recovered = self.raft.wait_for_recovery(Some(self.remaining(deadline)?)).await;
        recovered.map(|_| ()).map_err(|_| self.stopped_or(RaftError::NoQuorum(self.id)))
    }

    /// Appends `command` to the log and returns the machine's reply once it is durable on a quorum
    /// and applied here. Stamps the command with the time. `deadline` is on the process's
    /// monotonic clock; when it passes under way the fate is `Unknown`.
    pub async fn propose(&self, command: Command, deadline: Duration) -> Result<Reply, RaftError> {
        self.check_proposal(&command)?;
        if self.shared.space_pressure() {
            return Err(RaftError::Full);
        }
        self.append(command, deadline).await
    }

    /// The same for a command that gives space back: taken though there is none. It waits for space
    /// like any entry unless the machine's commands may use the reserve (`Machine::uses_reserve`).
    pub async fn propose_freeing(
        &self,
        command: Command,
        deadline: Duration,
    ) -> Result<Reply, RaftError> {
        self.check_proposal(&command)?;
        self.append(command, deadline).await
    }

    fn check_proposal(&self, command: &Command) -> Result<(), RaftError> {
        match command.fits() {
            true => self.check_running(),
            false => Err(RaftError::TooLarge(command.body.len())),
        }
    }

    async fn append(&self, mut command: Command, deadline: Duration) -> Result<Reply, RaftError> {
        let give_up = Instant::now() + self.remaining(deadline)?;
        let permits = self.enter(command.body.len())?;
        command.at_ms = self.stamp();
        // On its own task: when the caller gives up, the place stays taken while raft is at it.
        let raft = self.raft.clone();
        let work = tokio::spawn(async move {
            let _permits = permits;
            write(&raft, command, give_up).await
        });
        match tokio::time::timeout_at(give_up, work).await {
            Ok(Ok(Ok(written))) => self.reply(written),
            Ok(Ok(Err(error))) => Err(self.write_error(error)),
            Ok(Err(_)) | Err(_) => Err(RaftError::Unknown(self.id)),
        }
    }

    /// Returns once this replica has applied everything that any reply before this call reported:
    /// a read of the machine afterwards is linearizable. Only the leader can tell.
    pub async fn read_barrier(&self, deadline: Duration) -> Result<LogIndex, RaftError> {
        let barrier = async {
            let mut wait = RETRY.0;
            loop {
                match self.raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
                    Ok(read) => return Ok(position_of(read.log_id()).index),
                    Err(error) => match read_error_is_open(&error) {
                        true => {}
                        false => return Err(self.read_error(error)),
                    },
                }
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(RETRY.1);
            }
        };
        let barrier = tokio::time::timeout(self.remaining(deadline)?, barrier).await;
        barrier.unwrap_or_else(|_| Err(self.stopped_or(RaftError::NoQuorum(self.id))))
    }

    /// The last entry applied by this replica's machine.
    pub fn applied(&self) -> LogPosition {
        *self.applied.borrow()
    }

    /// Returns once this replica has applied entry `index`.
    pub async fn wait_applied(&self, index: LogIndex, deadline: Duration) -> Result<(), RaftError> {
        let mut applied = self.applied.clone();
        let reached = applied.wait_for(|applied| applied.index >= index);
        match tokio::time::timeout(self.remaining(deadline)?, reached).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(self.stopped_or(RaftError::Stopped(self.id))),
            Err(_) => Err(RaftError::Late(self.id)),
        }
    }

    /// The replica that leads, as far as this one knows.
    pub fn leader(&self) -> Option<ReplicaId> {
        self.raft.metrics().borrow_watched().current_leader.map(replica_of)
    }

    /// The last entry of the log and the last purged one.
    pub fn log_range(&self) -> (LogPosition, LogPosition) {
        (self.log.purged(), self.log.last())
    }

    /// Lets the log below the machine's durable point go. Call it after the machine has moved that
    /// point. Returns once raft has taken the request; the space is given back in the background.
    pub async fn purge_to_checkpoint(&self) -> Result<(), RaftError> {
        self.raft.trigger().snapshot().await.map_err(|fatal| self.fatal(&fatal))
    }

    /// Stops the replica; what is under way is finished or becomes `Unknown`.
    pub(super) async fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        // A raft that panicked has stopped too.
        let _ = self.raft.shutdown().await;
    }

    pub(super) async fn is_only_voter(&self) -> Result<bool, RaftError> {
        let replica = self.replica;
        let only = only_voter(&self.raft, replica).await;
        only.map_err(|fatal| self.fatal(&fatal))
    }

    fn enter(
        &self,
        bytes: usize,
    ) -> Result<(OwnedSemaphorePermit, OwnedSemaphorePermit), RaftError> {
        let overloaded = |_| RaftError::Overloaded(self.id);
        let place = self.places.clone().try_acquire_owned().map_err(overloaded)?;
        let bytes = bytes.min(self.bytes_max) as u32;
        let bytes = self.bytes.clone().try_acquire_many_owned(bytes).map_err(overloaded)?;
        Ok((place, bytes))
    }

    /// Wall clock in milliseconds that never goes back while this replica runs.
    fn stamp(&self) -> u64 {
        let now = self.clock.wall_ms();
        now.max(self.stamp_ms.fetch_max(now, Ordering::Relaxed))
    }

    fn remaining(&self, deadline: Duration) -> Result<Duration, RaftError> {
        let remaining = deadline.checked_sub(self.clock.monotonic());
        remaining.filter(|left| !left.is_zero()).ok_or(RaftError::Late(self.id))
    }

    fn reply(&self, written: ClientWriteResponse<TypeConfig>) -> Result<Reply, RaftError> {
        let index = position_of(&written.log_id).index;
        Ok(Reply { index, bytes: written.data.0 })
    }

    fn write_error(&self, error: WriteError) -> RaftError {
        match error {
            // The entry may have reached the log before the group stopped or failed.
            WriteError::Fatal(_) => RaftError::Unknown(self.id),
            WriteError::APIError(ClientWriteError::ForwardToLeader(forward)) => {
                self.not_leader(&forward)
            }
            WriteError::APIError(_) => RaftError::Unknown(self.id),
        }
    }

    fn read_error(&self, error: ReadError) -> RaftError {
        match error {
            ReadError::Fatal(fatal) => self.fatal(&fatal),
            ReadError::APIError(LinearizableReadError::ForwardToLeader(forward)) => {
                self.not_leader(&forward)
            }
            ReadError::APIError(LinearizableReadError::QuorumNotEnough(_)) => {
                RaftError::NoQuorum(self.id)
            }
        }
    }

    fn not_leader(&self, forward: &ForwardToLeader<TypeConfig>) -> RaftError {
        RaftError::NotLeader { group: self.id, leader: forward.leader_id.map(replica_of) }
    }

    /// Why it serves no more, if it has stopped or failed.
    pub fn failure(&self) -> Option<RaftError> {
        self.check_running().err()
    }

    /// Refuses before anything is written when the replica was stopped or has failed.
    fn check_running(&self) -> Result<(), RaftError> {
        if self.stopped.load(Ordering::Relaxed) {
            return Err(self.stopped_or(RaftError::Stopped(self.id)));
        }
        let state = self.raft.metrics().borrow_watched().running_state.clone();
        state.map_err(|fatal| self.fatal(&fatal))
    }

    fn stopped_or(&self, error: RaftError) -> RaftError {
        match self.shared.failed() {
            Some(failure) => RaftError::Failed { group: self.id, reason: failure.to_string() },
            None => error,
        }
    }

    fn fatal(&self, fatal: &Fatal<TypeConfig>) -> RaftError {
        match fatal {
            Fatal::Stopped => self.stopped_or(RaftError::Stopped(self.id)),
            Fatal::StorageError(_) | Fatal::Panicked => {
                RaftError::Failed { group: self.id, reason: fatal.to_string() }
            }
        }
    }
}

/// Hands a command to raft, again and again while no leader takes it, until `give_up`.
async fn write(
    raft: &GroupRaft,
    command: Command,
    give_up: Instant,
) -> Result<ClientWriteResponse<TypeConfig>, WriteError> {
    let mut wait = RETRY.0;
    loop {
        match raft.client_write(command.clone()).await {
            Err(error) if leader_is_open(&error) && Instant::now() + wait < give_up => {}
            result => return result,
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RETRY.1);
    }
}

/// Whether `replica` alone makes up the quorum.
pub(super) async fn only_voter(
    raft: &GroupRaft,
    replica: ReplicaId,
) -> Result<bool, Fatal<TypeConfig>> {
    let is_only = move |state: &openraft::RaftState<TypeConfig>| {
        state.membership_state.effective().voter_ids().eq([replica.0])
    };
    raft.with_raft_state(is_only).await
}

/// Whether nobody took the request because no leader is known (yet): worth another try here.
fn leader_is_open(error: &WriteError) -> bool {
    matches!(
        error,
        WriteError::APIError(ClientWriteError::ForwardToLeader(forward))
            if forward.leader_id.is_none()
    )
}

fn read_error_is_open(error: &ReadError) -> bool {
    match error {
        ReadError::APIError(LinearizableReadError::ForwardToLeader(forward)) => {
            forward.leader_id.is_none()
        }
        ReadError::APIError(LinearizableReadError::QuorumNotEnough(_)) => true,
        ReadError::Fatal(_) => false,
    }
}
