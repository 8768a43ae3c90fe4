//! A shared log of any bytes: checked, opened and read without a panic.
//!
//! The first byte chooses what the rest means: bytes for the pure readers; edits of a good log's
//! files (then no entry may be read that was never written); or any records at all in files whose
//! checksums are right (then a log that passes the check must open and read whole).
#![no_main]

use bytes::Bytes;
use hopbine_fuzz::{Input, edit};
use hopbine_proto::disk::Disk;
use hopbine_proto::driver::Threads;
use hopbine_proto::sim_disk::SimDisk;
use hopbine_proto::{GroupId, ReplicaId, Spawn};
use hopbine_raft::log::index::VoteRecord;
use hopbine_raft::log::record::{self, Found, Head, Kind, Spot};
use hopbine_raft::log::segment::{self, Footer, HEADER_BYTES, TRAILER_BYTES};
use hopbine_raft::log::{LogSettings, SharedLog};
use hopbine_raft::{Command, LogError, LogPosition, LogReport, SessionLimits, Sessions, check_log};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, mpsc};

const DIR: &str = "/node/log";
const SEGMENT_BYTES: u64 = 1_024;

/// Group, term, index and payload of an entry.
type Written = (u64, u64, u64, Bytes);

/// Lets the log thread end before it does anything: for logs that are only read.
struct NoThread;

impl Spawn for NoThread {
    fn spawn(&self, _: &'static str, work: Box<dyn FnOnce() + Send>) {
        drop(work);
    }
}

fn open(disk: &SimDisk, spawn: &dyn Spawn) -> Option<SharedLog> {
    let settings = LogSettings { segment_bytes: SEGMENT_BYTES, cache_bytes_max: 500 };
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    only_damage(SharedLog::open(disk, spawn, Path::new(DIR), settings, Box::new(|_| {})))
}

fn check(disk: &SimDisk) -> Option<LogReport> {
    only_damage(check_log(Arc::new(disk.clone()), Path::new(DIR)))
}

fn only_damage<T>(result: Result<T, LogError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(LogError::Damaged { .. }) => None,
        Err(other) => panic!("{other:?} for a damaged log"),
    }
}

/// Everything that the log says; `None` when a read found damage.
fn read_all(log: &SharedLog) -> Option<Vec<Written>> {
    let (mut entries, mut whole) = (Vec::new(), true);
    for id in log.groups() {
        let group = log.group(id);
        let (first, last) = (group.purged().index.0, group.last().index.0);
        assert!(group.committed().index.0 <= last);
        group.vote();
        group.position(last);
        group.last_of_terms(first..=last);
        group.reads_disk(0..u64::MAX);
        match only_damage(group.read(0..u64::MAX, usize::MAX)) {
            None => whole = false,
            Some(read) => {
                let of_group =
                    |(at, bytes): (LogPosition, Bytes)| (id.0, at.term, at.index.0, bytes);
                entries.extend(read.into_iter().map(of_group));
            }
        }
    }
    whole.then_some(entries)
}

/// A log of several segments with votes, truncations, purges and a removed group.
struct Story {
    log: SharedLog,
    written: BTreeSet<Written>,
}

impl Story {
    fn wait(&self, submit: impl FnOnce(Box<dyn FnOnce(Result<(), LogError>) + Send>)) {
        let (sender, receiver) = mpsc::channel();
        submit(Box::new(move |result| sender.send(result).expect("awaited below")));
        receiver.recv().expect("told").expect("durable");
    }

    fn append(&mut self, group: u64, term: u64, bytes: usize) {
        let log = self.log.group(GroupId(group));
        let at = LogPosition::new(term, log.last().index.0 + 1);
        let text = format!("{group} {term} {} ", at.index.0);
        let payload: Bytes = text.bytes().cycle().take(bytes).collect::<Vec<_>>().into();
        self.written.insert((group, term, at.index.0, payload.clone()));
        self.wait(|done| log.append(vec![(at, payload)], done));
    }
}

static GOOD: LazyLock<(SimDisk, BTreeSet<Written>)> = LazyLock::new(|| {
    let disk = SimDisk::new();
    let log = open(&disk, &Threads).expect("a new log");
    let mut story = Story { log, written: BTreeSet::new() };
    for term in 1..9 {
        let one = story.log.group(GroupId(1));
        let vote = VoteRecord { term, candidate: ReplicaId(term % 3), committed: term % 2 == 0 };
        story.wait(|done| one.save_vote(vote, done));
        story.append(1, term, 150);
        story.append(1, term, 40);
        story.append(2, 1, 90);
        one.save_committed(one.last());
        if term % 3 == 0 {
            let last = one.position(one.last().index.0 - 1).expect("an entry");
            story.wait(|done| one.truncate(last, done));
        }
        if term == 4 {
            story.append(3, 1, 10);
            let upto = one.position(3).expect("an entry");
            story.wait(|done| one.purge(upto, done));
        }
        if term == 6 {
            let three = story.log.group(GroupId(3));
            story.wait(|done| three.remove(done));
        }
    }
    story.log.close();
    assert!(disk.files().len() > 2, "{:?}", disk.files());
    let written = std::mem::take(&mut story.written);
    drop(story);
    let read = read_all(&open(&disk.fork(), &NoThread).expect("sound")).expect("sound");
    assert!(read.len() > 10 && read.iter().all(|entry| written.contains(entry)));
    (disk, written)
});

fn edited_log(mut input: Input<'_>) {
    let (good, written) = &*GOOD;
    let disk = good.fork();
    let goes_on = input.byte() % 8 == 0;
    for _ in 0..=input.byte() % 3 {
        let files = disk.files();
        let path = &files[input.below(files.len())];
        let mut part = Input::new(&[]);
        std::mem::swap(&mut part, &mut input);
        match part.byte() {
            0 => disk.remove(path).expect("removed"),
            1 => {
                let other = disk.read(&files[part.below(files.len())]).expect("read");
                disk.tamper(path, |bytes| *bytes = other);
            }
            _ => disk.tamper(path, |bytes| edit(bytes, &mut part)),
        }
        input = part;
        if disk.files().is_empty() {
            return;
        }
    }
    let report = check(&disk);
    let Some(log) = open(&disk.fork(), &NoThread) else {
        assert!(report.is_none(), "the check overlooks what opening finds");
        return;
    };
    let entries = read_all(&log);
    assert!(report.is_none() || entries.is_some(), "the check overlooks what reading finds");
    for entry in entries.iter().flatten() {
        assert!(written.contains(entry), "{entry:?} was never written");
    }
    if goes_on && report.is_some() {
        appended_and_reopened(&disk);
    }
}

/// A log that passed the check takes an entry, which another start still finds.
fn appended_and_reopened(disk: &SimDisk) {
    let log = open(disk, &Threads).expect("checked before");
    let mut story = Story { log, written: BTreeSet::new() };
    story.append(1, 50, 100);
    story.append(2, 50, 100);
    let written = std::mem::take(&mut story.written);
    drop(story);
    let entries = read_all(&open(disk, &NoThread).expect("reopens")).expect("reads");
    assert!(written.iter().all(|entry| entries.contains(entry)), "an acknowledged entry is gone");
}

fn any_head(input: &mut Input<'_>) -> Head {
    let kind = Kind::from_byte(input.byte() % 9 + 1).expect("1 to 9 are kinds");
    let group = GroupId(u64::from(input.byte() % 3));
    Head { kind, group, term: input.number(), index: input.number() }
}

/// A segment of any records whose checksums are right, sealed in one of several ways.
fn any_segment(number: u64, end_before: u64, input: &mut Input<'_>) -> (Vec<u8>, u64) {
    let mut bytes = segment::header(number).to_vec();
    let mut footer = Footer::default();
    let (records, ending) = (input.byte() % 16, input.byte());
    for place in 0..records {
        let head = match place {
            0 if ending & 0x80 == 0 => {
                Head { kind: Kind::Batch, group: GroupId(0), term: number, index: end_before }
            }
            _ => any_head(input),
        };
        let len = if head.kind.has_payload() { usize::from(input.byte() % 64) } else { 0 };
        let spot = Spot { segment: number, offset: bytes.len() as u64 };
        record::encode(spot, &head, &vec![number as u8; len], &mut bytes);
        let told = if ending & 0x40 == 0 { head } else { any_head(input) };
        footer.push(&told, len as u32);
    }
    let end = bytes.len() as u64;
    match ending % 4 {
        0 => bytes.resize(bytes.len() + 200, 0),
        1 => bytes.extend(footer.sealed(end)),
        2 => bytes.extend(footer.sealed(input.number())),
        _ => edit(&mut bytes, input),
    }
    (bytes, end)
}

fn hostile_log(mut input: Input<'_>) {
    let disk = SimDisk::new();
    disk.create_dir(Path::new(DIR)).expect("made");
    let first = input.number().clamp(1, u64::MAX - 4);
    let mut end_before = HEADER_BYTES;
    for number in first..=first + u64::from(input.byte() % 3) {
        let (bytes, end) = any_segment(number, end_before, &mut input);
        end_before = end;
        let path = PathBuf::from(DIR).join(format!("{number:020}.log"));
        let file = disk.create(&path).expect("created");
        file.write_at(0, &bytes).expect("written");
    }
    let report = check(&disk);
    let Some(log) = open(&disk, &NoThread) else {
        assert!(report.is_none(), "the check overlooks what opening finds");
        return;
    };
    let entries = read_all(&log);
    assert!(report.is_none() || entries.is_some(), "the check overlooks what reading finds");
}

fn pure_readers(mut input: Input<'_>) {
    let (offset, near) = (input.number(), input.byte().into());
    let bytes = input.rest();
    for offset in [offset, near] {
        let spot = Spot { segment: 1, offset };
        if let Found::Record { payload, next, .. } = record::read(bytes, spot) {
            assert!(next > offset && payload.len() <= bytes.len());
        }
        let _ = record::decode(bytes, spot);
    }
    let _ = record::synced_later(bytes, Spot { segment: 1, offset: near });
    let (listing, _) = segment::scan(bytes, 1);
    let _ = (listing.end_of_previous(), listing.last_batch());
    let _ = (segment::has_header(bytes, 1), segment::was_used(bytes, 1));
    let trailer_at = bytes.len().saturating_sub(TRAILER_BYTES as usize);
    let _ = segment::read_trailer(&bytes[trailer_at..], bytes.len() as u64);
    // A footer of any bytes under a right checksum.
    let mut sealed = bytes.to_vec();
    let trailer = Footer::default().sealed(offset);
    sealed.extend_from_slice(&trailer[..16]);
    sealed.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    sealed.extend_from_slice(&crc32c::crc32c(bytes).to_le_bytes());
    let crc = crc32c::crc32c(&sealed[bytes.len()..]);
    sealed.extend_from_slice(&crc.to_le_bytes());
    let file_len = offset.saturating_add(sealed.len() as u64);
    if let Some(trailer) = segment::read_trailer(&sealed[bytes.len()..], file_len) {
        let _ = segment::read_footer(bytes, &trailer);
    }
    let bytes = Bytes::copy_from_slice(bytes);
    if let Ok(command) = Command::decode(&bytes) {
        let mut again = Vec::new();
        command.encode_into(&mut again);
        let again = Command::decode(&again.into()).expect("our own bytes");
        assert_eq!(again, command);
        let limits = SessionLimits { records_max: 2, age_ms_max: 10 };
        if let Ok(mut sessions) = Sessions::decode(limits, &bytes) {
            sessions.check(&command);
            sessions.record(&command, &Bytes::new());
        }
    }
    if let Ok(sessions) = Sessions::decode(SessionLimits::default(), &bytes) {
        let again = Sessions::decode(SessionLimits::default(), &sessions.encode());
        assert!(again.is_ok_and(|again| again == sessions));
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    match input.byte() % 3 {
        0 => pure_readers(input),
        1 => edited_log(input),
        _ => hostile_log(input),
    }
});
