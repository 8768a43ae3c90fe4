//! The shared log and its disk space: what keeps a segment, and what happens when the disk is full.

#[path = "support/hooked_disk.rs"]
mod hooked_disk;
#[path = "support/log.rs"]
mod support;

use hooked_disk::{HookedDisk, Of};
use hopbine_proto::GroupId;
use hopbine_proto::sim_disk::{SimDisk, Tear};
use hopbine_raft::log::{GroupLog, SharedLog};
use hopbine_raft::{LogError, LogPosition, check_log};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::{DIR, Held, Told, append, durable, open, open_on, purge_all_but, vote};

const SEGMENT: u64 = 4_096;
/// Bytes of an entry, of which five fill a segment.
const ENTRY: usize = 700;

#[test]
fn busy_and_idle_groups_give_space_back_while_the_load_lasts() {
    let slow = HookedDisk::new(SimDisk::new(), |_| {
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    });
    let log = open_on(slow, 16 << 10).expect("opened");
    let (busy, idle) = (log.group(GroupId(1)), log.group(GroupId(2)));
    durable(&vote(&busy, 1));
    durable(&vote(&idle, 1));
    durable(&append(&idle, 1, 10));
    let (mut waiting, mut most) = (VecDeque::new(), 0);
    for number in 1..=2_000u64 {
        waiting.push_back(append(&busy, 1, ENTRY));
        // Eight are always under way: the group is never settled.
        if waiting.len() > 8 {
            durable(&waiting.pop_front().expect("one"));
            if number % 20 == 0 && number > 40 {
                drop(purge_all_but(&busy, 28));
            }
        }
        most = most.max(log.stats().segments);
    }
    assert!(most < 8, "{most} segments for what one and a half hold");
    let held = [&busy, &idle].map(|group| Held::read(group).expect("readable"));
    assert!(held.iter().all(|held| held.vote.is_some()));
}

/// Appends until the disk is full, and then some that must wait.
fn fill(log: &SharedLog, group: &Arc<GroupLog>, more: usize) -> Vec<Told> {
    let (mut waiting, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(20));
    while !log.space_pressure() {
        waiting.push(append(group, 1, ENTRY));
        std::thread::yield_now();
        assert!(Instant::now() < deadline, "the disk is never full");
    }
    waiting.extend((0..more).map(|_| append(group, 1, ENTRY)));
    waiting
}

/// Appends one small entry that may use the reserve.
fn append_urgent(group: &Arc<GroupLog>, term: u64) -> Told {
    let (done, told) = support::told();
    let at = LogPosition::new(term, group.last().index.0 + 1);
    group.append_urgent(vec![(at, vec![2; 10].into())], done);
    told
}

fn still_waits(told: &Told) {
    assert!(told.recv_timeout(Duration::from_millis(300)).is_err(), "there was space");
}

fn reopened_holds(disk: &SimDisk, held: &Held) {
    disk.set_capacity(None);
    let log = open(disk, SEGMENT).expect("opened");
    assert_eq!(&Held::read(&log.group(GroupId(1))).expect("readable"), held);
}

#[test]
fn a_full_disk_makes_entries_wait_and_a_purge_lets_them_through() {
    for with_vote in [false, true] {
        let disk = SimDisk::new();
        let log = open(&disk, SEGMENT).expect("opened");
        let (group, idle) = (log.group(GroupId(1)), log.group(GroupId(2)));
        if with_vote {
            durable(&vote(&group, 1));
            durable(&vote(&idle, 1));
        }
        disk.set_capacity(Some(4 * SEGMENT));
        // More than all segments hold: the purge must free them again and again.
        let waiting = fill(&log, &group, 100);
        still_waits(waiting.last().expect("appended"));
        assert_eq!(log.failed(), None);
        durable(&purge_all_but(&group, 10));
        waiting.iter().for_each(durable);
        let held = Held::read(&group).expect("readable");
        drop((log, group, idle));
        reopened_holds(&disk, &held);
    }
}

#[test]
fn a_log_that_was_full_when_it_was_closed_is_purged_after_a_restart() {
    let disk = SimDisk::new();
    let log = open(&disk, SEGMENT).expect("opened");
    let (group, idle) = (log.group(GroupId(1)), log.group(GroupId(2)));
    durable(&vote(&group, 1));
    durable(&vote(&idle, 1));
    disk.set_capacity(Some(4 * SEGMENT));
    let waiting = fill(&log, &group, 10);
    still_waits(waiting.last().expect("appended"));
    drop((log, group, idle));
    assert!(waiting.iter().any(|told| told.recv().expect("told") == Err(LogError::Full)));

    let log = open(&disk, SEGMENT).expect("opened");
    let group = log.group(GroupId(1));
    // As raft does: a vote, then an entry, which waits.
    durable(&vote(&group, 2));
    let waiting = fill(&log, &group, 30);
    still_waits(waiting.last().expect("appended"));
    durable(&purge_all_but(&group, 8));
    waiting.iter().for_each(durable);
    let held = Held::read(&group).expect("readable");
    assert_eq!(held.vote.map(|vote| vote.term), Some(2));
    drop((log, group));
    reopened_holds(&disk, &held);
}

#[test]
fn votes_leave_room_for_the_purge_that_lets_a_full_log_go_on() {
    let disk = SimDisk::new();
    let log = open(&disk, SEGMENT).expect("opened");
    let (group, voter) = (log.group(GroupId(1)), log.group(GroupId(2)));
    durable(&vote(&group, 1));
    disk.set_capacity(Some(4 * SEGMENT));
    let waiting = fill(&log, &group, 10);
    still_waits(waiting.last().expect("appended"));
    let mut votes = vec![];
    for term in 1..100 {
        votes.push(vote(&voter, term));
        if votes[votes.len() - 1].recv_timeout(Duration::from_millis(200)).is_err() {
            break;
        }
    }
    assert!((3..99).contains(&votes.len()), "{} votes used the reserve up", votes.len());
    durable(&purge_all_but(&group, 10));
    waiting.iter().for_each(durable);
    durable(&votes.pop().expect("the last vote"));
}

#[test]
fn on_a_full_disk_urgent_entries_overtake_other_groups_but_none_of_their_own() {
    // The reserve is 4 KiB, half of it for them.
    let (disk, segment) = (SimDisk::new(), 4 * SEGMENT);
    let log = open(&disk, segment).expect("opened");
    let (busy, urgent) = (log.group(GroupId(1)), log.group(GroupId(2)));
    durable(&vote(&busy, 1));
    durable(&vote(&urgent, 1));
    disk.set_capacity(Some(4 * segment));
    let waiting = fill(&log, &busy, 40);
    still_waits(waiting.last().expect("appended"));
    durable(&append_urgent(&urgent, 1));
    durable(&append_urgent(&urgent, 1));
    let behind = [append(&urgent, 1, ENTRY), append_urgent(&urgent, 1)];
    still_waits(&behind[1]);
    assert_eq!(log.failed(), None);
    drop((log, busy, urgent));
    for told in behind {
        assert_eq!(told.recv().expect("told"), Err(LogError::Full));
    }

    let log = open(&disk, segment).expect("opened");
    let (busy, urgent) = (log.group(GroupId(1)), log.group(GroupId(2)));
    assert_eq!(urgent.last(), LogPosition::new(1, 2));
    durable(&vote(&urgent, 2));
    let waiting = fill(&log, &busy, 40);
    still_waits(waiting.last().expect("appended"));
    durable(&append_urgent(&urgent, 2));
    let (done, told) = support::told();
    busy.remove(done);
    durable(&told);
    durable(&append(&urgent, 2, ENTRY));
    let entries = Held::read(&urgent).expect("readable").entries;
    let entries: Vec<_> = entries.into_iter().map(|(at, (term, _))| (at, term)).collect();
    assert_eq!(entries, [(1, 1), (2, 1), (3, 2), (4, 2)]);
}

#[test]
fn on_a_full_disk_a_truncation_or_removal_frees_what_waiting_entries_need() {
    for removed in [false, true] {
        let disk = SimDisk::new();
        let log = open(&disk, SEGMENT).expect("opened");
        let (ended, other) = (log.group(GroupId(1)), log.group(GroupId(2)));
        durable(&vote(&ended, 1));
        disk.set_capacity(Some(4 * SEGMENT));
        let mut waiting = fill(&log, &ended, 10);
        waiting.push(vote(&ended, 2));
        waiting.push(append(&other, 1, ENTRY));
        still_waits(waiting.last().expect("appended"));
        let (done, told) = support::told();
        match removed {
            true => ended.remove(done),
            false => ended.truncate(LogPosition::NONE, done),
        }
        durable(&told);
        waiting.iter().for_each(durable);
        waiting = (0..10).map(|_| append(&other, 1, ENTRY)).collect();
        waiting.iter().for_each(durable);
        drop((log, ended, other));
        disk.set_capacity(None);
        let log = open(&disk, SEGMENT).expect("opened");
        let ended = Held::read(&log.group(GroupId(1))).expect("readable");
        assert_eq!((ended.entries.len(), ended.purged), (0, LogPosition::NONE));
        assert_eq!(ended.vote.map(|vote| vote.term), (!removed).then_some(2));
        let other = Held::read(&log.group(GroupId(2))).expect("readable");
        assert_eq!(other.entries.len(), 11);
    }
}

#[test]
fn on_a_full_disk_the_groups_that_keep_the_oldest_segment_are_named() {
    let disk = SimDisk::new();
    let log = open(&disk, SEGMENT).expect("opened");
    let (group, pins) = (log.group(GroupId(1)), log.group(GroupId(2)));
    // Too much to be written again: only its own purge frees it.
    durable(&append(&pins, 1, 2_000));
    durable(&purge_all_but(&pins, 0));
    durable(&append(&pins, 1, 1_500));
    assert_eq!(log.pinning(1 << 20), []);
    disk.set_capacity(Some(4 * SEGMENT));
    let waiting = fill(&log, &group, 10);
    durable(&purge_all_but(&group, 10));
    still_waits(waiting.last().expect("appended"));
    assert_eq!(log.pinning(1 << 20), [GroupId(2)]);
    durable(&purge_all_but(&pins, 0));
    waiting.iter().for_each(durable);
}

#[test]
fn a_first_entry_larger_than_a_segment_can_be_read_after_a_restart() {
    for bytes in [SEGMENT * 7 / 8, SEGMENT, SEGMENT * 3] {
        let disk = SimDisk::new();
        let log = open(&disk, SEGMENT).expect("opened");
        let group = log.group(GroupId(1));
        for told in [append(&group, 1, bytes as usize), append(&group, 1, bytes as usize)] {
            durable(&told);
        }
        let held = Held::read(&group).expect("readable");
        drop((log, group));
        check_log(Arc::new(disk.clone()), Path::new(DIR)).expect("no damage");
        reopened_holds(&disk, &held);
    }
}

#[test]
fn a_lack_of_space_that_only_the_sync_of_a_new_segment_tells_is_waited_out() {
    for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
        let (sim, full) = (SimDisk::new(), Arc::new(AtomicBool::new(false)));
        let told = full.clone();
        let disk = HookedDisk::new(sim.clone(), move |of| {
            match of == Of::NewFile && told.load(Ordering::Relaxed) {
                true => Err(kind.into()),
                false => Ok(()),
            }
        });
        let log = open_on(disk, SEGMENT).expect("opened");
        let group = log.group(GroupId(1));
        full.store(true, Ordering::Relaxed);
        let waiting = fill(&log, &group, 10);
        still_waits(waiting.last().expect("appended"));
        assert_eq!(log.failed(), None);
        full.store(false, Ordering::Relaxed);
        waiting.iter().for_each(durable);
        let held = Held::read(&group).expect("readable");
        drop((log, group));
        reopened_holds(&sim, &held);
    }
}

/// What is acknowledged of group 1 (vote, last purge, last entry), that group 2 is set up, and its
/// urgent entries.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    vote: u64,
    purged: u64,
    last: u64,
    idle: bool,
    urgent: usize,
}

impl Known {
    /// Votes, fills the disk, submits more entries, a newer vote behind them and an urgent entry of
    /// the other group, purges what is durable, waits for the rest. Stops where the disk fails.
    fn act(&mut self, disk: &SimDisk) -> Option<()> {
        let log = open(disk, SEGMENT).ok()?;
        let (group, idle) = (log.group(GroupId(1)), log.group(GroupId(2)));
        let settle = |told: Told| told.recv().expect("told").ok();
        settle(vote(&group, 1))?;
        self.vote = 1;
        settle(vote(&idle, 7))?;
        settle(append(&idle, 1, 10))?;
        self.idle = true;
        disk.set_capacity(Some(4 * SEGMENT));
        while log.failed().is_none() && !log.space_pressure() {
            settle(append(&group, 1, ENTRY))?;
            self.last += 1;
        }
        let mut waiting: VecDeque<Told> = (0..8).map(|_| append(&group, 1, ENTRY)).collect();
        let newer = vote(&group, 2);
        // Those that were written; the others wait for the purge.
        while let Ok(told) = waiting.front()?.recv_timeout(Duration::from_millis(20)) {
            told.ok()?;
            self.last += 1;
            waiting.pop_front();
        }
        settle(append_urgent(&idle, 1))?;
        self.urgent = 1;
        let (done, told) = support::told();
        group.purge(LogPosition::new(1, self.last), done);
        settle(told)?;
        self.purged = self.last;
        for told in waiting {
            settle(told)?;
            self.last += 1;
        }
        settle(newer)?;
        self.vote = 2;
        log.close();
        log.failed().is_none().then_some(())
    }

    fn check(&self, group: &Held, idle: &Held) {
        let term = |held: &Held| held.vote.map_or(0, |vote| vote.term);
        assert!(term(group) >= self.vote, "{self:?}: {group:?}");
        assert!(group.purged.index.0 >= self.purged, "{self:?}: {group:?}");
        for index in group.purged.index.0 + 1..=self.last {
            assert!(group.entries.contains_key(&index), "{index} of {self:?}: {group:?}");
        }
        let whole = term(idle) == 7 && idle.entries.len() > self.urgent;
        assert!(!self.idle || whole, "{self:?}: {idle:?}");
    }
}

#[test]
fn a_power_loss_at_any_sync_point_on_a_full_disk_loses_nothing_and_the_log_goes_on() {
    let disk = SimDisk::new();
    Known::default().act(&disk).expect("nothing fails");
    let points = disk.sync_points();
    assert!(points > 30, "{points} sync points");
    // How writes gather into batches varies, and with it the number of sync points.
    for point in 0..points + 10 {
        let tear = [Tear::Lost, Tear::HalfOfFirst, Tear::Kept][point as usize % 3];
        let (disk, mut known) = (SimDisk::new(), Known::default());
        disk.fail_from(point);
        let finished = known.act(&disk).is_some();
        assert!(!finished || disk.sync_points() <= point, "went on after {point}");
        disk.crash(tear);
        disk.set_capacity(Some(4 * SEGMENT));
        let log = open(&disk, SEGMENT).expect("opened");
        let (group, idle) = (log.group(GroupId(1)), log.group(GroupId(2)));
        let held = Held::read(&group).expect("readable");
        known.check(&held, &Held::read(&idle).expect("readable"));
        durable(&vote(&group, 3));
        if !held.entries.is_empty() {
            durable(&purge_all_but(&group, 0));
        }
        let waiting: Vec<_> = (0..8).map(|_| append(&group, 3, ENTRY)).collect();
        waiting.iter().for_each(durable);
        let held = Held::read(&group).expect("readable");
        drop((log, group, idle));
        reopened_holds(&disk, &held);
    }
}
