//! The one rule of checksums: a byte of a segment is used only after the page that holds it has
//! passed its crc32c. Each page is checked once, when first touched, and remembered in a bitmap.

use super::format::{PAGE_BYTES, SectionTable};
use crate::error::StoreError;
use hopbine_proto::SegmentId;
use hopbine_proto::disk::FileBytes;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The checksummed part of a mapped file.
pub(crate) struct Pages {
    bytes: FileBytes,
    /// Where the checksummed part ends.
    end: usize,
    /// One a page; the last page may be shorter.
    crcs: Vec<u32>,
    /// Bit `page` is set once the page has passed.
    passed: Vec<AtomicU64>,
    segment: SegmentId,
    sections: SectionTable,
}

impl Pages {
    /// `crcs` cover the first `end` bytes of the file, `PAGE_BYTES` each but the last.
    pub(crate) fn new(bytes: FileBytes, end: usize, crcs: Vec<u32>, segment: SegmentId) -> Self {
        let passed = (0..crcs.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { bytes, end, crcs, passed, segment, sections: SectionTable::default() }
    }

    /// Lets errors name the section that they hit.
    pub(crate) fn name_sections(&mut self, sections: SectionTable) {
        self.sections = sections;
    }

    /// The file itself, for holders of parts that have passed by `slice`.
    pub(crate) fn file(&self) -> &FileBytes {
        &self.bytes
    }

    /// Which segment this is, for errors.
    pub(crate) fn segment(&self) -> SegmentId {
        self.segment
    }

    /// The bytes of a range, after all its pages have passed their checksums. The range must lie
    /// within the checksummed part.
    #[inline]
    pub(crate) fn slice(&self, range: Range<usize>) -> Result<&[u8], StoreError> {
        if !range.is_empty() {
            let (first, last) = (range.start / PAGE_BYTES, (range.end - 1) / PAGE_BYTES);
            for page in first..=last {
                let word = self.passed[page / 64].load(Ordering::Relaxed);
                if word & (1 << (page % 64)) == 0 {
                    self.check(page)?;
                }
            }
        }
        Ok(&self.bytes[range])
    }

    /// Reads a page again, whatever is remembered of it.
    #[cold]
    pub(crate) fn check(&self, page: usize) -> Result<(), StoreError> {
        let start = page * PAGE_BYTES;
        let end = (start + PAGE_BYTES).min(self.end);
        if crc32c::crc32c(&self.bytes[start..end]) != self.crcs[page] {
            self.passed[page / 64].fetch_and(!(1 << (page % 64)), Ordering::Relaxed);
            return Err(StoreError::Damaged {
                segment: self.segment,
                section: self.sections.name_at(start),
                offset: start as u64,
                what: "checksum of a page differs",
            });
        }
        self.passed[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
        Ok(())
    }

    /// Number of pages.
    pub(crate) fn count(&self) -> usize {
        self.crcs.len()
    }
}
