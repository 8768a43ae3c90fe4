//! The shared log under power loss, kills, bad syncs and flipped bits.

#[path = "support/log.rs"]
mod support;

use hopbine_proto::GroupId;
use hopbine_proto::disk::Disk;
use hopbine_proto::sim_disk::{SimDisk, Tear};
use hopbine_raft::log::SharedLog;
use hopbine_raft::log::record::{self, Head, Kind, Spot};
use hopbine_raft::log::segment::{self, HEADER_BYTES, TRAILER_BYTES};
use hopbine_raft::{LogError, LogPosition, check_log};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use support::{DIR, Held, Later, Op, Story, Waiting, append, open, open_with};

const SEGMENT: u64 = 4_096;

/// What happens in one run: rounds of changes that are submitted together.
type Script = Vec<Vec<(u64, Op)>>;

#[derive(Default)]
struct World {
    stories: BTreeMap<u64, Story>,
}

impl World {
    /// Submits a round of changes.
    fn submit(&mut self, log: &SharedLog, round: &[(u64, Op)]) -> Vec<(u64, Waiting)> {
        let mut waiting = Vec::new();
        for (group, op) in round {
            let story = self.stories.entry(*group).or_default();
            waiting.push((*group, story.submit(log, GroupId(*group), op)));
        }
        waiting
    }

    /// Waits for a round; `false` when the disk failed under it.
    fn settle(&mut self, waiting: Vec<(u64, Waiting)>) -> bool {
        let mut alive = true;
        for (group, receiver) in waiting {
            let story = self.stories.get_mut(&group).expect("just submitted to");
            alive &= story.settle(receiver);
        }
        alive
    }

    fn reopened(&mut self, log: &SharedLog) {
        for (group, story) in &mut self.stories {
            story.reopened(&log.group(GroupId(*group)));
        }
    }
}

/// Votes, appends, truncations and purges of three groups; group 3 is nearly idle, so its records
/// must be written again for old segments to go; group 4 is removed and made anew.
fn script() -> Script {
    let append = |term, count, bytes| Op::Append { term, count, bytes };
    let mut script: Script = vec![
        vec![
            (1, Op::Vote { term: 1, committed: false }),
            (3, Op::Vote { term: 5, committed: true }),
        ],
        vec![(3, append(5, 2, 30)), (1, append(1, 3, 100)), (2, append(1, 1, 10)), (3, Op::Commit)],
        vec![(4, append(1, 2, 50)), (4, Op::Vote { term: 2, committed: true })],
    ];
    for round in 0..8u64 {
        let term = 2 + round;
        script.push(vec![
            (1, Op::Vote { term, committed: round % 2 == 0 }),
            (1, append(term, 3, 250)),
            (2, append(term, 2, 200)),
            (1, Op::Commit),
        ]);
        script.push(vec![(1, Op::Truncate { count: 1 }), (1, append(term, 2, 20))]);
        script.push(vec![(1, Op::Purge { count: 4 }), (2, Op::Purge { count: 2 })]);
    }
    script.insert(9, vec![(4, Op::Remove)]);
    script.insert(16, vec![(4, append(9, 1, 10))]);
    script
}

fn run(disk: &SimDisk, world: &mut World, script: &[Vec<(u64, Op)>]) -> Result<(), LogError> {
    let log = open(disk, SEGMENT)?;
    world.reopened(&log);
    for round in script {
        let waiting = world.submit(&log, round);
        if !world.settle(waiting) {
            return Err(log.failed().expect("a refused change has a reason"));
        }
    }
    log.close();
    log.failed().map_or(Ok(()), Err)
}

#[test]
fn what_is_acknowledged_survives_a_power_loss_at_every_sync_point() {
    let script = script();
    let half = script.len() / 2;
    let whole = |disk: &SimDisk, world: &mut World| {
        run(disk, world, &script[..half])?;
        run(disk, world, &script[half..])
    };
    let cuts = cut_everywhere(0, whole, |disk| written_again(disk, GroupId(3)).is_some());
    assert!(cuts.points > 50 && cuts.moved > 0, "{cuts:?}");
}

#[test]
fn who_still_holds_a_removed_group_writes_nothing_behind_its_end() {
    let disk = SimDisk::new();
    let log = open(&disk, SEGMENT).expect("opened");
    let group = log.group(GroupId(1));
    (0..3).for_each(|_| support::durable(&append(&group, 1, 10)));
    let (done, removed) = support::told();
    group.remove(done);
    let (done, late) = support::told();
    group.append(vec![(LogPosition::new(1, 4), vec![1; 10].into())], done);
    assert!(late.recv().expect("told").is_err());
    assert!(support::vote(&group, 2).recv().expect("told").is_err());
    support::durable(&removed);
    assert_eq!(log.failed(), None);
    support::durable(&append(&log.group(GroupId(1)), 7, 10));
    drop((log, group));
    let log = open(&disk, SEGMENT).expect("opened");
    assert_eq!(log.group(GroupId(1)).last(), LogPosition::new(7, 1));
}

/// What was cut.
#[derive(Debug)]
struct Cuts {
    /// Sync points of a run that nothing happens to.
    points: u64,
    /// Runs that had moved what the caller asked for when they were cut.
    moved: u64,
}

/// Runs `whole` with the power lost at each of its sync points, and at `more` beyond those that a
/// first run had. `moved` looks at a disk as the power goes.
fn cut_everywhere(
    more: u64,
    whole: impl Fn(&SimDisk, &mut World) -> Result<(), LogError>,
    moved: impl Fn(&SimDisk) -> bool,
) -> Cuts {
    let disk = SimDisk::new();
    whole(&disk, &mut World::default()).expect("nothing fails");
    let mut cuts = Cuts { points: disk.sync_points(), moved: 0 };
    for point in 0..=cuts.points + more {
        for tear in [Tear::Lost, Tear::HalfOfFirst, Tear::Kept] {
            let (disk, mut world) = (SimDisk::new(), World::default());
            disk.fail_from(point);
            let result = whole(&disk, &mut world);
            assert!(result.is_err() || disk.sync_points() <= point, "went on after {point}");
            cuts.moved += u64::from(result.is_err() && moved(&disk));
            disk.crash(tear);
            // Reading alone changes nothing and finds nothing wrong.
            if disk.list(Path::new(DIR)).is_ok() {
                check_log(Arc::new(disk.clone()), Path::new(DIR)).expect("no damage");
            }
            run(&disk, &mut world, &script()[..4]).expect("usable after the crash");
            run(&disk, &mut world, &[]).expect("and after another start");
        }
    }
    cuts
}

/// Changes of three groups that vote first and are then never idle.
fn busy_round() -> Vec<(u64, Op)> {
    let append = |term, count, bytes| Op::Append { term, count, bytes };
    let mut round = vec![
        (1, Op::Vote { term: 1, committed: true }),
        (2, Op::Vote { term: 3, committed: false }),
        (3, Op::Vote { term: 5, committed: true }),
        (3, append(5, 2, 30)),
        (3, Op::Commit),
    ];
    for term in 5..20 {
        round.extend([
            (1, append(term, 3, 250)),
            (2, append(term, 2, 200)),
            (1, Op::Commit),
            (1, Op::Truncate { count: 1 }),
            (1, append(term, 2, 20)),
            (3, append(term, 1, 10)),
            (1, Op::Purge { count: 4 }),
            (2, Op::Purge { count: 2 }),
        ]);
    }
    round.extend([(2, Op::Vote { term: 40, committed: true }), (1, append(40, 4, 700))]);
    round
}

/// The records of a group, each with its segment, and among them the first place where a vote that
/// was cast in the first segment is written again.
fn written_again(disk: &SimDisk, group: GroupId) -> Option<(Vec<(u64, Head)>, usize)> {
    let mut heads = Vec::new();
    for path in disk.files() {
        let bytes = disk.read(&path).expect("read");
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
        let number: u64 = name.parse().expect("a number");
        let (listing, _) = segment::scan(&bytes, number);
        let of_group = listing.records.iter().map(|listed| listed.head);
        heads.extend(of_group.filter(|head| head.group == group).map(|head| (number, head)));
    }
    let again = |(number, head): &(u64, Head)| *number > 1 && head.kind == Kind::VoteCommitted;
    let place = heads.iter().position(again)?;
    Some((heads, place))
}

/// Whether a vote is written again in front of entries that its group appended later.
fn moved_under_way(disk: &SimDisk, group: GroupId) -> bool {
    written_again(disk, group).is_some_and(|(heads, place)| {
        heads[place..].iter().any(|(_, head)| head.kind == Kind::Entry)
    })
}

/// Runs a round whose changes are all submitted before the log thread takes the first of them.
fn run_gathered(disk: &SimDisk, world: &mut World, round: &[(u64, Op)]) -> Result<(), LogError> {
    let thread = Later::default();
    let log = open_with(Arc::new(disk.clone()), &thread, SEGMENT)?;
    let starter = thread.starter();
    world.reopened(&log);
    let waiting = world.submit(&log, round);
    drop(starter);
    if !world.settle(waiting) {
        return Err(log.failed().expect("a refused change has a reason"));
    }
    log.close();
    log.failed().map_or(Ok(()), Err)
}

#[test]
fn what_is_acknowledged_survives_a_power_loss_while_busy_groups_give_space_back() {
    let round = busy_round();
    let moved = |disk: &SimDisk| [1, 3].iter().any(|group| moved_under_way(disk, GroupId(*group)));
    // The same batches in every run, so what the first one moves is moved in those that are cut.
    for lives in [1, 2, 3] {
        let whole = |disk: &SimDisk, world: &mut World| {
            let mut parts = round.chunks(round.len().div_ceil(lives));
            parts.try_for_each(|part| run_gathered(disk, world, part))
        };
        let cuts = cut_everywhere(0, whole, moved);
        assert!(cuts.moved > 0, "{lives} lives: {cuts:?}");
    }
    // As the log thread comes upon the changes: the batches vary, and with them the sync points.
    let script = vec![round];
    let cuts = cut_everywhere(5, |disk, world| run(disk, world, &script), moved);
    assert!(cuts.points > 20, "{cuts:?}");
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (1u64..9, any::<bool>()).prop_map(|(term, committed)| Op::Vote { term, committed }),
        (1u64..9, 1u64..5, 0usize..600).prop_map(|(term, count, bytes)| Op::Append {
            term,
            count,
            bytes
        }),
        (1u64..9, 1u64..5, 0usize..600).prop_map(|(term, count, bytes)| Op::Append {
            term,
            count,
            bytes
        }),
        (0u64..4).prop_map(|count| Op::Truncate { count }),
        (0u64..9).prop_map(|count| Op::Purge { count }),
        Just(Op::Commit),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Random changes of four groups, random crashes: kills (the page cache survives) and losses.
    #[test]
    fn random_changes_survive_random_crashes(
        lives in proptest::collection::vec(
            (proptest::collection::vec(
                proptest::collection::vec((1u64..5, any_op()), 1..5), 0..25), 0u64..60, 0usize..4),
            1..5),
    ) {
        let (mut disk, mut world) = (SimDisk::new(), World::default());
        for (script, fail_after, end) in &lives {
            if *end < 3 {
                disk.fail_from(disk.sync_points() + fail_after);
            }
            let _ = run(&disk, &mut world, script);
            match end {
                0 => disk.crash(Tear::Lost),
                1 => disk.crash(Tear::HalfOfFirst),
                2 => disk.crash(Tear::Kept),
                _ => disk = disk.fork(),
            }
        }
        run(&disk, &mut world, &[]).expect("usable after the last crash");
    }
}

/// A log of several sealed segments and an open one.
fn long_log() -> (SimDisk, World) {
    let (disk, mut world) = (SimDisk::new(), World::default());
    let append = |term| Op::Append { term, count: 2, bytes: 300 };
    let script: Script = (1..9)
        .map(|term| {
            vec![(1, Op::Vote { term, committed: true }), (1, append(term)), (2, append(1))]
        })
        .collect();
    run(&disk, &mut world, &script).expect("nothing fails");
    (disk, world)
}

fn read_all(disk: &SimDisk) -> Result<Vec<Held>, LogError> {
    let log = open(disk, SEGMENT)?;
    [1, 2].map(|group| Held::read(&log.group(GroupId(group)))).into_iter().collect()
}

#[test]
fn every_flipped_byte_is_detected_or_harmless() {
    let (disk, _) = long_log();
    let files: Vec<_> = disk.files();
    assert!(files.len() >= 4, "{files:?}");
    let good = read_all(&disk.fork()).expect("readable");
    let (mut detected, mut harmless, mut cut) = (0, 0, 0);
    for path in &files {
        let len = disk.read(path).expect("read").len();
        for at in (0..len).step_by(3) {
            let flipped = disk.fork();
            flipped.tamper(path, |bytes| bytes[at] ^= 0x40);
            let checked = check_log(Arc::new(flipped.fork()), Path::new(DIR));
            match read_all(&flipped) {
                Err(LogError::Damaged { .. }) => {
                    assert!(checked.is_err(), "the check overlooks {path:?} {at}");
                    detected += 1;
                }
                Err(other) => panic!("{other:?} for {path:?} {at}"),
                Ok(read) if read == good => harmless += 1,
                Ok(read) => {
                    // The very last write can not be told from a torn one.
                    let torn = checked.expect("no damage").torn.expect("a torn write");
                    assert!(path == &torn.0 && torn.1 <= at as u64, "{path:?} {at}: {read:?}");
                    let short = |(read, good): (&Held, &Held)| {
                        good.entries.iter().take(read.entries.len()).eq(read.entries.iter())
                    };
                    assert!(read.iter().zip(&good).all(short));
                    cut += 1;
                }
            }
        }
    }
    println!("{detected} flips detected, {harmless} harmless, {cut} cut off as torn");
    assert!(detected > 1_000 && cut < detected);
}

#[test]
fn a_torn_first_write_to_a_segment_is_cut_and_told() {
    let (disk, _) = long_log();
    let good = read_all(&disk.fork()).expect("readable");
    let made_ahead = disk.files().pop().expect("files");
    disk.tamper(&made_ahead, |bytes| bytes[HEADER_BYTES as usize + 8] = 1);
    let checked = check_log(Arc::new(disk.clone()), Path::new(DIR)).expect("no damage");
    assert_eq!(checked.torn, Some((made_ahead, HEADER_BYTES)));
    assert_eq!(read_all(&disk).expect("readable"), good);
    let again = check_log(Arc::new(disk.clone()), Path::new(DIR)).expect("no damage");
    assert_eq!(again.torn, None);
}

#[test]
fn a_missing_or_shortened_segment_is_refused_by_name() {
    let (disk, _) = long_log();
    let files = disk.files();
    let middle = files[1].clone();
    let missing = disk.fork();
    missing.remove(&middle).expect("removed");
    let refused = read_all(&missing).expect_err("a segment is missing");
    assert!(matches!(&refused, LogError::Damaged { file, .. } if *file == middle), "{refused}");
    for keep in [0, 10, 64, 500, 2_000] {
        let short = disk.fork();
        short.tamper(&middle, |bytes| bytes.truncate(keep));
        let refused = read_all(&short).expect_err("a segment is short");
        assert!(matches!(&refused, LogError::Damaged { file, .. } if *file == middle), "{refused}");
        assert!(check_log(Arc::new(short), Path::new(DIR)).is_err());
    }
}

#[test]
fn a_segment_in_the_place_of_another_is_refused_by_opening_and_by_the_check() {
    let (disk, _) = long_log();
    let files = disk.files();
    for from in &files {
        let bytes = disk.read(from).expect("read");
        for to in files.iter().filter(|to| *to != from && bytes.starts_with(b"HopRLog1")) {
            let swapped = disk.fork();
            swapped.tamper(to, |other| other.clone_from(&bytes));
            let checked = check_log(Arc::new(swapped.fork()), Path::new(DIR));
            assert!(matches!(checked, Err(LogError::Damaged { .. })), "{from:?} as {to:?}");
            let refused = read_all(&swapped);
            assert!(matches!(refused, Err(LogError::Damaged { .. })), "{from:?} as {to:?}");
        }
    }
}

#[test]
fn a_full_last_segment_whose_start_is_wiped_is_refused_by_opening_and_by_the_check() {
    let (disk, _) = long_log();
    let sealed = |path: &PathBuf| {
        let bytes = disk.read(path).expect("read");
        let trailer = &bytes[bytes.len() - TRAILER_BYTES as usize..];
        segment::read_trailer(trailer, bytes.len() as u64).is_some()
    };
    let files = disk.files();
    let place = files.iter().rposition(sealed).expect("a full segment");
    let full = &files[place];
    files[place + 1..].iter().for_each(|later| disk.remove(later).expect("removed"));
    let len = disk.read(full).expect("read").len();
    for wiped in [1, 64, 200, len / 2, len - 64] {
        let damaged = disk.fork();
        damaged.tamper(full, |bytes| bytes[..wiped].fill(0));
        let checked = check_log(Arc::new(damaged.fork()), Path::new(DIR));
        assert!(matches!(checked, Err(LogError::Damaged { .. })), "{wiped} of {len} bytes");
        assert!(read_all(&damaged).is_err(), "{wiped} of {len} bytes");
    }
}

#[test]
fn numbers_that_no_log_reaches_are_damage_and_no_overflow() {
    let kinds = (1..=9).filter_map(Kind::from_byte);
    for kind in kinds {
        for (term, index) in [(u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)] {
            let disk = SimDisk::new();
            disk.create_dir(Path::new(DIR)).expect("made");
            let mut bytes = segment::header(1).to_vec();
            let batch = Head { kind: Kind::Batch, group: GroupId(0), term: 1, index: HEADER_BYTES };
            let told = Head { kind, group: GroupId(1), term, index };
            for head in [batch, told] {
                let spot = Spot { segment: 1, offset: bytes.len() as u64 };
                record::encode(spot, &head, b"", &mut bytes);
            }
            let file = disk.create(&Path::new(DIR).join(format!("{:020}.log", 1))).expect("made");
            file.write_at(0, &bytes).expect("written");
            let found = check_log(Arc::new(disk.clone()), Path::new(DIR));
            let candidate = matches!(kind, Kind::Vote | Kind::VoteCommitted) && term == 1;
            assert_eq!(found.is_ok(), candidate, "{told:?}: {found:?}");
            assert_eq!(read_all(&disk).is_ok(), candidate, "{told:?}");
        }
    }
    let disk = SimDisk::new();
    disk.create_dir(Path::new(DIR)).expect("made");
    disk.create(&Path::new(DIR).join(format!("{}.log", u64::MAX))).expect("made");
    assert!(matches!(read_all(&disk), Err(LogError::Damaged { .. })));
}

#[test]
fn a_segment_without_its_footer_is_read_record_by_record() {
    let (disk, _) = long_log();
    let good = read_all(&disk.fork()).expect("readable");
    let files = disk.files();
    for cut in [1, 20, 40] {
        let cut_off = disk.fork();
        cut_off.tamper(&files[1], |bytes| bytes.truncate(bytes.len() - cut));
        assert_eq!(read_all(&cut_off).expect("readable"), good);
    }
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged_any_more() {
    let disk = SimDisk::new();
    let log = open(&disk, SEGMENT).expect("opened");
    let (one, two) = (log.group(GroupId(1)), log.group(GroupId(2)));
    append(&one, 1, 10).recv().expect("told").expect("durable");
    disk.fail_from(disk.sync_points());
    assert!(append(&one, 1, 10).recv().expect("told").is_err());
    assert!(log.failed().is_some());
    // The disk would work again; what the failed sync left is unknown, so nobody may go on.
    disk.fail_from(u64::MAX);
    for group in [one, two] {
        assert!(append(&group, 1, 10).recv().expect("told").is_err());
        let (sender, receiver) = mpsc::channel();
        group.purge(group.last(), Box::new(move |result| sender.send(result).unwrap_or(())));
        assert!(receiver.recv().expect("told").is_err());
    }
}
