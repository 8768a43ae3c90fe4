//! A group of one voter from end to end: propose, stop without notice, open again.

mod support;

use hopbine_proto::disk::OsDisk;
use hopbine_proto::{Epoch, GroupId};
use hopbine_raft::{Command, LogPosition, RaftConfig, RaftError};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::Node;

fn small() -> RaftConfig {
    RaftConfig { segment_bytes: 256 * 1024, ..RaftConfig::default() }
}

fn bodies(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("command {number}").into_bytes()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_acknowledged_commands_are_there_after_every_restart() {
    let dir = tempfile::tempdir().expect("folder");
    let mut wanted: Vec<Vec<u8>> = Vec::new();
    for restart in 0..4 {
        let node = Node::open(Arc::new(OsDisk), dir.path(), small()).expect("opened");
        let (group, toy) = node.start(7).await;
        assert_eq!(toy.applied(), wanted);
        for body in bodies(20) {
            node.propose(&group, &body).await.expect("proposed");
            wanted.push(body);
        }
        if restart == 2 {
            toy.flush();
            group.purge_to_checkpoint().await.expect("purged");
        }
        match restart {
            // Without the last words of a shutdown.
            0 => node.groups.stop_group(GroupId(7)).await,
            _ => node.groups.shutdown().await,
        }
        drop(group);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_one_voter_group_leads_without_waiting_for_an_election_time_out() {
    let dir = tempfile::tempdir().expect("folder");
    let far = RaftConfig { election_ms: (60_000, 120_000), heartbeat_ms: 5_000, ..small() };
    for _ in 0..2 {
        let node = Node::open(Arc::new(OsDisk), dir.path(), far.clone()).expect("opened");
        let started = Instant::now();
        let (group, _toy) = node.start(1).await;
        node.propose(&group, b"first").await.expect("proposed");
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        assert_eq!(group.leader(), Some(group.replica()));
        node.groups.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_was_idle_longer_than_its_election_time_out_still_serves() {
    let dir = tempfile::tempdir().expect("folder");
    let quick = RaftConfig { election_ms: (40, 80), heartbeat_ms: 10, ..small() };
    let node = Node::open(Arc::new(OsDisk), dir.path(), quick).expect("opened");
    let (group, _toy) = node.start(1).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    node.propose(&group, b"later").await.expect("proposed");
    group.read_barrier(node.soon()).await.expect("readable");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_barrier_covers_every_reply_before_it() {
    let dir = tempfile::tempdir().expect("folder");
    let node = Node::open(Arc::new(OsDisk), dir.path(), small()).expect("opened");
    let (group, toy) = node.start(1).await;
    for number in 0..50 {
        let index = node.propose(&group, b"x").await.expect("proposed");
        assert!(group.read_barrier(node.soon()).await.expect("readable").0 >= index);
        assert!(group.applied().index.0 >= index);
        assert_eq!(toy.applied().len(), number + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_say_what_to_do_next() {
    let dir = tempfile::tempdir().expect("folder");
    let few = RaftConfig { proposal_bytes_max: 1_000, ..small() };
    let node = Node::open(Arc::new(OsDisk), dir.path(), few).expect("opened");
    let (group, toy) = node.start(3).await;
    let id = group.id();
    let past = group.propose(Command::new(Epoch(1), vec![1]), Duration::ZERO).await;
    assert_eq!(past, Err(RaftError::Late(id)));
    let large = vec![0; hopbine_proto::limits::ENTRY_BYTES_MAX + 1];
    let bytes = large.len();
    let refused = group.propose(Command::new(Epoch(1), large), node.soon()).await;
    assert_eq!(refused, Err(RaftError::TooLarge(bytes)));
    let again = node.groups.start_group(id, group.replica(), toy.clone(), founding()).await;
    assert_eq!(again.err(), Some(RaftError::Running(id)));
    let many = (0..100).map(|_| node.propose(&group, &[7; 400]));
    let results = futures::future::join_all(many).await;
    assert!(results.contains(&Err(RaftError::Overloaded(id))));
    let done = results.iter().filter(|result| result.is_ok()).count();
    assert_eq!(toy.applied().len(), done);
    toy.halt();
    assert_eq!(node.propose(&group, b"x").await, Err(RaftError::Unknown(id)));
    let halted = Instant::now();
    loop {
        assert!(halted.elapsed() < Duration::from_secs(30), "the group never fails");
        // Raft notes a moment later that its machine is gone; until then the fate is unknown.
        match node.propose(&group, b"x").await {
            Err(RaftError::Failed { .. }) => break,
            other => assert_eq!(other, Err(RaftError::Unknown(id))),
        }
    }
    node.groups.stop_group(id).await;
    assert_eq!(node.propose(&group, b"x").await, Err(RaftError::Stopped(id)));
    let read = group.read_barrier(node.soon()).await;
    assert!(matches!(read, Err(RaftError::Failed { .. } | RaftError::Stopped(_))), "{read:?}");
}

fn founding() -> hopbine_raft::Founding {
    hopbine_raft::Founding::OneVoter
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flushed_group_gives_its_log_back_and_a_removed_one_leaves_nothing() {
    let dir = tempfile::tempdir().expect("folder");
    let node = Node::open(Arc::new(OsDisk), dir.path(), small()).expect("opened");
    let (busy, toy) = node.start(1).await;
    let (idle, idle_toy) = node.start(2).await;
    node.propose(&idle, b"rare").await.expect("proposed");
    for _ in 0..30 {
        for _ in 0..4 {
            node.propose(&busy, &[5; 40_000]).await.expect("proposed");
        }
        toy.flush();
        busy.purge_to_checkpoint().await.expect("purged");
    }
    // The idle group's few records were written again, so the old segments could go.
    let stats = node.groups.log_stats();
    assert!(stats.bytes > 15 * small().segment_bytes, "{stats:?}");
    assert!(stats.segments <= 6, "{stats:?}");
    assert_eq!(idle_toy.applied().len(), 1);
    node.groups.remove_group(GroupId(1)).await.expect("removed");
    assert_eq!(node.groups.known(), [GroupId(2)]);
    node.groups.shutdown().await;
    let node = Node::open(Arc::new(OsDisk), dir.path(), small()).expect("opened");
    assert_eq!(node.groups.known(), [GroupId(2)]);
    let (_, idle_toy) = node.start(2).await;
    assert_eq!(idle_toy.applied(), [b"rare".as_slice()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_machine_holds_durably_is_purged_when_its_group_starts_again() {
    let dir = tempfile::tempdir().expect("folder");
    let mut flushed = LogPosition::NONE;
    for restart in 0..3 {
        let node = Node::open(Arc::new(OsDisk), dir.path(), small()).expect("opened");
        let (group, toy) = node.start(1).await;
        let started = Instant::now();
        while group.log_range().0 != flushed {
            assert!(started.elapsed() < Duration::from_secs(30), "start {restart}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(toy.applied().len(), restart);
        node.propose(&group, b"one more").await.expect("proposed");
        // The end comes between the flush and its purge.
        toy.flush();
        flushed = group.applied();
        node.groups.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_lost_what_the_log_gave_up_is_refused() {
    let dir = tempfile::tempdir().expect("folder");
    let node = Node::open(Arc::new(OsDisk), dir.path(), small()).expect("opened");
    let (group, toy) = node.start(1).await;
    node.propose(&group, b"kept in the file").await.expect("proposed");
    toy.flush();
    group.purge_to_checkpoint().await.expect("purged");
    let purged = Instant::now();
    while group.log_range().0.index < group.applied().index {
        assert!(purged.elapsed() < Duration::from_secs(30), "{:?}", group.log_range());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    node.groups.stop_group(group.id()).await;
    std::fs::remove_file(dir.path().join("toy-1")).expect("removed");
    let empty = support::Toy::open(node.disk.clone(), &dir.path().join("toy-1"));
    let refused = node.groups.start_group(group.id(), group.replica(), empty, founding()).await;
    assert!(matches!(refused.err(), Some(RaftError::Lost { .. })));
    let whole = node.groups.start_group(group.id(), group.replica(), toy, founding()).await;
    whole.expect("started").ready(node.soon()).await.expect("ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_groups_share_syncs() {
    // While one sync takes its ten milliseconds, all groups that append wait for the next one.
    let slow = support::hooked_disk::HookedDisk::slow(Duration::from_millis(10));
    let dir = tempfile::tempdir().expect("folder");
    let node = Node::open(slow, dir.path(), RaftConfig::default()).expect("opened");
    let started = futures::future::join_all((0..64).map(|group| node.start(group))).await;
    let before = node.groups.log_stats();
    let each = started.iter().map(|(group, _)| async {
        for body in bodies(20) {
            node.propose(group, &body).await.expect("proposed");
        }
    });
    futures::future::join_all(each).await;
    let after = node.groups.log_stats();
    let (proposals, syncs) = (64 * 20, after.batches - before.batches);
    println!("{proposals} proposals of 64 groups took {syncs} syncs");
    assert!(syncs * 3 < proposals, "{syncs} syncs for {proposals} proposals");
}
