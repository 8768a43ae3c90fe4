//! A file that is written from front to back, with a checksum taken of every page.

use super::format::{ALIGN, PAGE_BYTES};
use crate::error::StoreError;
use hopbine_proto::disk::DiskFile;

/// Bytes gathered before one write: large enough for sequential speed.
const BUFFER_BYTES: usize = 1024 * 1024;

/// Writes at the end of a new file.
pub(crate) struct PagedFile {
    file: Box<dyn DiskFile>,
    buffer: Vec<u8>,
    written: usize,
    crcs: Vec<u32>,
    /// Checksum of the page that is not full yet.
    open_crc: u32,
}

impl PagedFile {
    pub(crate) fn new(file: Box<dyn DiskFile>) -> Self {
        let buffer = Vec::with_capacity(BUFFER_BYTES);
        Self { file, buffer, written: 0, crcs: Vec::new(), open_crc: 0 }
    }

    /// Bytes so far.
    pub(crate) fn position(&self) -> usize {
        self.written + self.buffer.len()
    }

    /// Appends bytes.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            let left_in_page = PAGE_BYTES - self.position() % PAGE_BYTES;
            let (part, rest) = bytes.split_at(left_in_page.min(bytes.len()));
            self.open_crc = crc32c::crc32c_append(self.open_crc, part);
            self.buffer.extend_from_slice(part);
            if part.len() == left_in_page {
                self.crcs.push(self.open_crc);
                self.open_crc = 0;
            }
            if self.buffer.len() >= BUFFER_BYTES {
                self.flush()?;
            }
            bytes = rest;
        }
        Ok(())
    }

    /// Appends zeros up to the place where the next section may start.
    pub(crate) fn align(&mut self) -> Result<(), StoreError> {
        let missing = self.position().next_multiple_of(ALIGN) - self.position();
        self.write(&[0; ALIGN][..missing])
    }

    /// Hands everything so far to the file; not durable yet.
    pub(crate) fn flush(&mut self) -> Result<(), StoreError> {
        if !self.buffer.is_empty() {
            self.file.write_at(self.written as u64, &self.buffer)?;
            self.written += self.buffer.len();
            self.buffer.clear();
        }
        Ok(())
    }

    /// Checksums of all bytes so far, the last page as short as it is.
    pub(crate) fn page_crcs(&self) -> Vec<u32> {
        let mut crcs = self.crcs.clone();
        if !self.position().is_multiple_of(PAGE_BYTES) {
            crcs.push(self.open_crc);
        }
        crcs
    }

    /// Appends what follows the pages and syncs the whole file. Returns its length.
    pub(crate) fn finish(mut self, tail: &[u8]) -> Result<u64, StoreError> {
        self.flush()?;
        self.file.write_at(self.written as u64, tail)?;
        self.file.sync_data().map_err(StoreError::SyncFailed)?;
        Ok((self.written + tail.len()) as u64)
    }
}
