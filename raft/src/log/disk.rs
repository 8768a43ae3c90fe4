//! The segment files of the shared log: create, open, recover, seal, remove.
//!
//! A folder holds `00000000000000000001.log` and so on without a gap, removed from the oldest on.
//! At most the last ones are empty (made ahead); the last one with records may end in a torn write,
//! which is cut. Anything else that is not as it was written is `Damaged`.

use super::record::{self, NUMBER_MAX, Spot};
use super::segment::{
    self, Footer, HEADER_BYTES, Listing, Stop, TRAILER_BYTES, has_header, header_of_another,
    was_used,
};
use crate::command::LogPosition;
use crate::error::LogError;
use hopbine_proto::GroupId;
use hopbine_proto::disk::{Disk, DiskFile};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder of one log.
#[derive(Clone)]
pub struct LogDir {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

/// A segment found on disk.
#[derive(Clone)]
pub struct Segment {
    /// Its number; grows by one from segment to segment.
    pub number: u64,
    /// The file.
    pub file: Arc<dyn DiskFile>,
    /// What it holds.
    pub listing: Listing,
    /// Whether footer and trailer are in place.
    pub sealed: bool,
    /// Bytes of the file.
    pub file_len: u64,
}

/// What recovery found.
pub struct Recovered {
    /// Segments with records, oldest first, without a gap in numbers.
    pub segments: Vec<Segment>,
    /// Where a torn write starts: in the last segment, or, when it was the first write to that, in
    /// one of the empty files.
    pub torn: Option<Spot>,
    /// Numbers of the empty files behind them.
    pub empty: Vec<u64>,
}

fn file_name(number: u64) -> String {
    format!("{number:020}.log")
}

/// A failure of the disk, as the log reports it.
pub fn failed(error: &io::Error) -> LogError {
    match is_full(error) {
        true => LogError::Full,
        false => LogError::Failed(error.to_string()),
    }
}

/// Whether the disk lacks space, or lets us have no more of it.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl LogDir {
    /// The log in `dir`, which is created when missing.
    pub fn new(disk: Arc<dyn Disk>, dir: &Path) -> Result<Self, LogError> {
        disk.create_dir(dir).map_err(|error| failed(&error))?;
        if let Some(parent) = dir.parent() {
            disk.sync_dir(parent).map_err(|error| failed(&error))?;
        }
        Ok(Self::existing(disk, dir))
    }

    /// The log in `dir`, which exists.
    pub fn existing(disk: Arc<dyn Disk>, dir: &Path) -> Self {
        Self { disk, dir: dir.to_owned() }
    }

    /// Path of a segment.
    pub fn path(&self, number: u64) -> PathBuf {
        self.dir.join(file_name(number))
    }

    /// Numbers of the segment files, ascending.
    pub fn numbers(&self) -> Result<Vec<u64>, LogError> {
        let names = self.disk.list(&self.dir).map_err(|error| failed(&error))?;
        let numbers = names.iter().filter_map(|name| name.strip_suffix(".log")?.parse().ok());
        let mut numbers: Vec<u64> = numbers.collect();
        numbers.sort_unstable();
        match numbers.last() {
            Some(last) if *last >= NUMBER_MAX => {
                Err(self.damaged(*last, 0, "a number that no log reaches"))
            }
            _ => Ok(numbers),
        }
    }

    /// Makes an empty segment with `len` bytes of space reserved. Durable when it returns. When the
    /// disk is full (see `is_full`), whatever noticed it, nothing is left behind.
    pub fn create(&self, number: u64, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.path(number);
        let file = self.disk.create(&path)?;
        let make = || -> io::Result<()> {
            file.allocate(len)?;
            file.write_at(0, &segment::header(number))?;
            file.sync_data()?;
            self.disk.sync_dir(&self.dir)
        };
        match make() {
            Ok(()) => Ok(file.into()),
            Err(error) if is_full(&error) => {
                drop(file);
                self.remove(number)?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes a segment. Durable when it returns, so that files go in order.
    pub fn remove(&self, number: u64) -> io::Result<()> {
        self.disk.remove(&self.path(number))?;
        self.disk.sync_dir(&self.dir)
    }

    /// Reads what the folder holds, changing nothing. With `verify` every record is read even where
    /// a footer would do.
    pub fn recover(&self, verify: Verify) -> Result<Recovered, LogError> {
        let numbers = self.numbers()?;
        if let Some(gap) = numbers.windows(2).find(|pair| pair[0] + 1 != pair[1]) {
            return Err(self.damaged(gap[0] + 1, 0, "the segment is missing"));
        }
        let mut recovered = Recovered { segments: vec![], torn: None, empty: vec![] };
        // From the newest back: a segment's end is told by the one after it.
        let mut end_told = None;
        for number in numbers.into_iter().rev() {
            let segment = match (recovered.segments.last(), end_told) {
                (None, _) => self.read_last(number, &mut recovered, verify)?,
                (Some(_), Some(end)) => Some(self.read_inner(number, end, verify)?),
                (Some(after), None) => {
                    return Err(self.damaged(after.number, HEADER_BYTES, "no batch record"));
                }
            };
            if let Some(segment) = segment {
                end_told = segment.listing.end_of_previous();
                recovered.segments.push(segment);
            }
        }
        recovered.segments.reverse();
        recovered.empty.reverse();
        Ok(recovered)
    }

    /// Makes the last segment ready to be written to: cuts a torn write off, reserves `len` bytes.
    /// What was read from it is durable when this returns, whether or not it was before.
    pub fn reopen(&self, segment: &mut Segment, torn: bool, len: u64) -> Result<(), LogError> {
        let end = segment.listing.end;
        let reserve = || -> io::Result<u64> {
            let mut file_len = segment.file_len;
            if torn || file_len < len {
                file_len = len.max(end);
                segment.file.set_len(end)?;
                segment.file.allocate(file_len)?;
            }
            segment.file.sync_data()?;
            Ok(file_len)
        };
        segment.file_len = reserve().map_err(|error| failed(&error))?;
        Ok(())
    }

    fn damaged(&self, number: u64, offset: u64, what: &'static str) -> LogError {
        LogError::Damaged { file: self.path(number), offset, what }
    }

    fn open(&self, number: u64) -> Result<(Arc<dyn DiskFile>, u64), LogError> {
        let open = || -> io::Result<(Arc<dyn DiskFile>, u64)> {
            let file: Arc<dyn DiskFile> = self.disk.open(&self.path(number))?.into();
            let len = file.len()?;
            Ok((file, len))
        };
        open().map_err(|error| failed(&error))
    }

    fn read_whole(&self, number: u64) -> Result<Vec<u8>, LogError> {
        self.disk.read(&self.path(number)).map_err(|error| failed(&error))
    }

    /// Reads the newest segments: empty ones are noted, the first with records is returned.
    fn read_last(
        &self,
        number: u64,
        recovered: &mut Recovered,
        verify: Verify,
    ) -> Result<Option<Segment>, LogError> {
        // A trailer in place proves a segment that was full, whatever its header says.
        let sealed = self.read_sealed(number)?;
        if verify == Verify::Footers && sealed.is_some() {
            return Ok(sealed);
        }
        let bytes = self.read_whole(number)?;
        if !has_header(&bytes, number) {
            // Torn while it was made, unless it has been written to or belongs elsewhere.
            if was_used(&bytes, number) || header_of_another(&bytes, number).is_some() {
                return Err(self.damaged(number, 0, "the header is wrong"));
            }
            recovered.empty.push(number);
            return Ok(None);
        }
        let (listing, stop) = segment::scan(&bytes, number);
        if let Some(sealed) = sealed {
            self.check_same(number, &listing, &sealed.listing)?;
            return Ok(Some(sealed));
        }
        let end = Spot { segment: number, offset: listing.end };
        if stop == Stop::Bad {
            recovered.torn = Some(end);
        }
        if stop == Stop::Bad && record::synced_later(&bytes, end) {
            return Err(self.damaged(number, listing.end, "a durable record is damaged"));
        }
        if listing.records.is_empty() {
            recovered.empty.push(number);
            return Ok(None);
        }
        let (file, file_len) = self.open(number)?;
        Ok(Some(Segment { number, file, listing, sealed: false, file_len }))
    }

    /// Reads a segment that has a newer one with records: it must be whole up to `end`.
    fn read_inner(&self, number: u64, end: u64, verify: Verify) -> Result<Segment, LogError> {
        let sealed = self.read_sealed(number)?;
        if let Some(sealed) = &sealed
            && sealed.listing.end != end
        {
            return Err(self.damaged(number, sealed.listing.end, "records are missing"));
        }
        if let Some(sealed) = &sealed
            && verify == Verify::Footers
        {
            return Ok(sealed.clone());
        }
        let mut bytes = self.read_whole(number)?;
        if !has_header(&bytes, number) {
            return Err(self.damaged(number, 0, "the header is wrong"));
        }
        bytes.truncate(usize::try_from(end).unwrap_or(usize::MAX));
        let (listing, _) = segment::scan(&bytes, number);
        if listing.end != end {
            return Err(self.damaged(number, listing.end, "a durable record is damaged"));
        }
        if let Some(sealed) = &sealed {
            self.check_same(number, &listing, &sealed.listing)?;
        }
        let (file, file_len) = self.open(number)?;
        Ok(Segment { number, file, listing, sealed: sealed.is_some(), file_len })
    }

    fn check_same(&self, number: u64, read: &Listing, told: &Listing) -> Result<(), LogError> {
        let same = read.records.iter().zip(&told.records).take_while(|(a, b)| a == b).count();
        if same == told.records.len() && read.end >= told.end {
            return Ok(());
        }
        let offset = told.records.get(same).map_or(told.end, |listed| listed.offset);
        Err(self.damaged(number, offset, "a durable record is damaged"))
    }

    /// Reads header, trailer and footer; `None` when the segment must be read whole.
    fn read_sealed(&self, number: u64) -> Result<Option<Segment>, LogError> {
        let (file, file_len) = self.open(number)?;
        if file_len < HEADER_BYTES + TRAILER_BYTES {
            return Ok(None);
        }
        let part = |offset: u64, len: u64| -> Result<Vec<u8>, LogError> {
            let mut buffer = vec![0; len as usize];
            file.read_at(offset, &mut buffer).map_err(|error| failed(&error))?;
            Ok(buffer)
        };
        let trailer_bytes = part(file_len - TRAILER_BYTES, TRAILER_BYTES)?;
        let Some(trailer) = segment::read_trailer(&trailer_bytes, file_len) else {
            return Ok(None);
        };
        if !has_header(&part(0, HEADER_BYTES)?, number) {
            return Err(self.damaged(number, 0, "the header is wrong"));
        }
        match segment::read_footer(&part(trailer.end, trailer.footer_len)?, &trailer) {
            Err(_) => Ok(None),
            Ok(listing) => Ok(Some(Segment { number, file, listing, sealed: true, file_len })),
        }
    }
}

/// How closely to look while reading a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Trust the footer of a sealed segment; its records are checked when they are read.
    Footers,
    /// Check every record.
    Records,
}

/// Seals a segment whose records end at `end`. Durable when it returns.
pub fn seal(file: &dyn DiskFile, footer: &Footer, end: u64) -> io::Result<u64> {
    let bytes = footer.sealed(end);
    let len = end + bytes.len() as u64;
    file.set_len(len)?;
    file.write_at(end, &bytes)?;
    file.sync_data()?;
    Ok(len)
}

/// What an offline check of a log found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogReport {
    /// Segments that hold records.
    pub segments: usize,
    /// Bytes of those records.
    pub bytes: u64,
    /// Records, batch records included.
    pub records: u64,
    /// Groups that the log still holds, with the last entry purged and the last one there is.
    pub groups: BTreeMap<GroupId, (LogPosition, LogPosition)>,
    /// File and offset of a torn last write: harmless, cut at the next start.
    pub torn: Option<(PathBuf, u64)>,
}

/// Reads every record of the log in `dir` and verifies it, changing nothing. A log that can not be
/// trusted is the error.
pub fn check_log(disk: Arc<dyn Disk>, dir: &Path) -> Result<LogReport, LogError> {
    let log = LogDir::existing(disk, dir);
    let recovered = log.recover(Verify::Records)?;
    let groups = super::recovery::groups_of(&log, &recovered.segments)?;
    let segments = &recovered.segments;
    Ok(LogReport {
        segments: segments.len(),
        bytes: segments.iter().map(|segment| segment.listing.end).sum(),
        records: segments.iter().map(|segment| segment.listing.records.len() as u64).sum(),
        groups: groups.iter().map(|(id, group)| (*id, (group.purged(), group.last()))).collect(),
        torn: recovered.torn.map(|at| (log.path(at.segment), at.offset)),
    })
}
