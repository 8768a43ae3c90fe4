//! Payload blocks: JSON texts in row order, compressed together.
//!
//! A block before compression: number of texts 4, end of each text 4, then the texts. It is closed
//! at 16 KiB, so that one text costs one short decompression; a larger text has its own block.
//! It is stored as an lz4 block, or as it is when that is not smaller.
//!
//! The payload index has 24 bytes a block: place of its first text among all texts 4, bytes before
//! compression 4, bytes stored 4, zero 4, offset from the start of the payload blocks 8.

use super::format::{u32_at, u64_at};
use crate::error::StoreError;
use hopbine_proto::disk::DiskFile;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of texts after which a block is closed.
const BLOCK_TARGET_BYTES: usize = 16 * 1024;
/// Bytes of decompressed blocks kept per segment; the newest stays whatever its size.
const CACHE_BYTES_MAX: usize = 1024 * 1024;
/// An lz4 block cannot grow more than this when decompressed.
const LZ4_RATIO_MAX: usize = 256;
const ENTRY_BYTES: usize = 24;

/// Where one block is.
#[derive(Clone, Copy, Debug)]
struct Entry {
    first: u32,
    raw: u32,
    stored: u32,
    offset: u64,
}

/// Where the payload blocks of a segment are.
#[derive(Debug, Default)]
pub(crate) struct PayloadIndex {
    entries: Vec<Entry>,
    cache: Mutex<VecDeque<(usize, Arc<Vec<u8>>)>>,
}

impl PayloadIndex {
    /// Decodes the index of a segment with `texts` payloads in `blocks` bytes of payload blocks.
    pub(crate) fn decode(bytes: &[u8], texts: u32, blocks: usize) -> Option<Self> {
        if !bytes.len().is_multiple_of(ENTRY_BYTES) || (texts == 0) != bytes.is_empty() {
            return None;
        }
        let mut entries: Vec<Entry> = Vec::with_capacity(bytes.len() / ENTRY_BYTES);
        let mut end = 0u64;
        for entry in bytes.chunks_exact(ENTRY_BYTES) {
            let entry = Entry {
                first: u32_at(entry, 0),
                raw: u32_at(entry, 4),
                stored: u32_at(entry, 8),
                offset: u64_at(entry, 16),
            };
            let in_order = match entries.last() {
                None => entry.first == 0,
                Some(last) => last.first < entry.first,
            };
            let possible =
                entry.raw as usize <= (entry.stored as usize).checked_mul(LZ4_RATIO_MAX)?;
            if !in_order || entry.first >= texts || entry.offset != end || !possible {
                return None;
            }
            end += u64::from(entry.stored);
            entries.push(entry);
        }
        let cache = Mutex::default();
        (end == blocks as u64).then_some(Self { entries, cache })
    }

    /// Number of blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.entries.len()
    }

    /// The block that holds text number `place` and the text's number inside.
    pub(crate) fn find(&self, place: u32) -> (usize, usize) {
        let block = self.entries.partition_point(|entry| entry.first <= place) - 1;
        (block, (place - self.entries[block].first) as usize)
    }

    /// Texts of a block when there are `texts` in all.
    pub(crate) fn texts_in(&self, block: usize, texts: u32) -> usize {
        let next = self.entries.get(block + 1).map_or(texts, |entry| entry.first);
        (next - self.entries[block].first) as usize
    }

    /// Bytes of a block, from the start of the payload blocks.
    pub(crate) fn place(&self, block: usize) -> Range<usize> {
        let entry = self.entries[block];
        entry.offset as usize..entry.offset as usize + entry.stored as usize
    }

    /// A block kept from an earlier call.
    pub(crate) fn cached(&self, block: usize) -> Option<Arc<Vec<u8>>> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.iter().find(|(known, _)| *known == block).map(|(_, bytes)| bytes.clone())
    }

    /// Decompresses a block from its stored bytes; `None` when they are no such block.
    pub(crate) fn decompress(&self, block: usize, stored: &[u8]) -> Option<Arc<Vec<u8>>> {
        let raw_bytes = self.entries[block].raw as usize;
        let raw = if raw_bytes == stored.len() {
            stored.to_vec()
        } else {
            lz4_flex::block::decompress(stored, raw_bytes).ok()?
        };
        (raw.len() == raw_bytes && raw_bytes >= 4).then(|| Arc::new(raw))
    }

    /// Keeps a decompressed block for later calls, and drops the oldest ones beyond the bound.
    pub(crate) fn keep(&self, block: usize, bytes: Arc<Vec<u8>>) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.push_back((block, bytes));
        let mut total: usize = cache.iter().map(|(_, bytes)| bytes.len()).sum();
        while total > CACHE_BYTES_MAX && cache.len() > 1 {
            total -= cache.pop_front().map_or(0, |(_, bytes)| bytes.len());
        }
    }
}

/// Text number `number` of a decompressed block; `None` when the block contradicts itself.
pub(crate) fn text_of(block: &[u8], number: usize) -> Option<&str> {
    let count = u32_at(block, 0) as usize;
    let head = count.checked_mul(4)?.checked_add(4)?;
    if number >= count || head > block.len() {
        return None;
    }
    let end_of = |number: usize| u32_at(block, 4 + number * 4) as usize;
    let start = if number == 0 { 0 } else { end_of(number - 1) };
    let texts = &block[head..];
    std::str::from_utf8(texts.get(start..end_of(number))?).ok()
}

/// Number of texts that a decompressed block says it holds.
pub(crate) fn count_of(block: &[u8]) -> usize {
    u32_at(block, 0) as usize
}

/// All payload blocks, ready to be copied.
pub(crate) struct SpooledPayloads {
    pub spool: Box<dyn DiskFile>,
    /// Length of the blocks in the spool.
    pub bytes: u64,
    /// The payload index section.
    pub index: Vec<u8>,
}

/// Compresses texts into a spool file, whose bytes are then copied into the segment.
pub(crate) struct PayloadBuilder {
    spool: Box<dyn DiskFile>,
    texts: Vec<u8>,
    ends: Vec<u32>,
    first: u32,
    offset: u64,
    index: Vec<u8>,
}

impl PayloadBuilder {
    pub(crate) fn new(spool: Box<dyn DiskFile>) -> Self {
        let (texts, ends, index) = (Vec::new(), Vec::new(), Vec::new());
        Self { spool, texts, ends, first: 0, offset: 0, index }
    }

    pub(crate) fn push(&mut self, text: &str) -> Result<(), StoreError> {
        let full = self.texts.len() + text.len() > BLOCK_TARGET_BYTES;
        if full && !self.ends.is_empty() {
            self.close()?;
        }
        self.texts.extend_from_slice(text.as_bytes());
        let end = u32::try_from(self.texts.len()).expect("payloads are bounded at the door");
        self.ends.push(end);
        Ok(())
    }

    fn close(&mut self) -> Result<(), StoreError> {
        let mut raw = Vec::with_capacity(4 + self.ends.len() * 4 + self.texts.len());
        raw.extend_from_slice(&(self.ends.len() as u32).to_le_bytes());
        self.ends.iter().for_each(|end| raw.extend_from_slice(&end.to_le_bytes()));
        raw.extend_from_slice(&self.texts);
        let packed = lz4_flex::block::compress(&raw);
        let stored = if packed.len() < raw.len() { &packed } else { &raw };
        self.spool.write_at(self.offset, stored)?;
        for number in [self.first, raw.len() as u32, stored.len() as u32, 0] {
            self.index.extend_from_slice(&number.to_le_bytes());
        }
        self.index.extend_from_slice(&self.offset.to_le_bytes());
        self.offset += stored.len() as u64;
        self.first += self.ends.len() as u32;
        self.texts.clear();
        self.ends.clear();
        Ok(())
    }

    /// Ends the last block.
    pub(crate) fn finish(mut self) -> Result<SpooledPayloads, StoreError> {
        if !self.ends.is_empty() {
            self.close()?;
        }
        Ok(SpooledPayloads { spool: self.spool, bytes: self.offset, index: self.index })
    }
}
