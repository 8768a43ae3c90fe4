//! Checks a whole segment: every checksum again, then that the contents agree with each other.

use super::block::{BLOCK_ROWS, BlockRow};
use super::format::{FOOTER_BYTES, Section};
use super::payload::{count_of, text_of};
use super::reader::Segment;
use super::zone::Zone;
use crate::error::StoreError;
use crate::graph::VectorSource;
use crate::kernel::norm;
use hopbine_proto::disk::FileBytes;
use hopbine_proto::{FactKey, LogIndex, name_id};
use std::collections::BTreeMap;

impl Segment {
    /// Reads everything: each page against its checksum, key order, counts, zone map against
    /// blocks, relation index, names, payloads, norms and the index. Fails with the first
    /// contradiction. Cost: one pass over the file; `pause` is called between pieces of about a
    /// mebibyte with their size in bytes, and ends the scrub when it returns `false`.
    pub fn verify_all(&self, pause: &mut dyn FnMut(usize) -> bool) -> Result<(), StoreError> {
        self.verify_frame()?;
        for page in 0..self.layout.pages.count() {
            self.layout.pages.check(page)?;
            let pages_per_piece = 1024 * 1024 / super::PAGE_BYTES;
            if page % pages_per_piece == 0 && !pause(pages_per_piece * super::PAGE_BYTES) {
                return Err(StoreError::Stopped);
            }
        }
        self.verify_facts()?;
        self.verify_names()?;
        self.verify_payloads()?;
        self.verify_vectors()?;
        self.index().map(|_| ())
    }

    /// Header, checksums and footer as they are now; open has kept copies of them.
    fn verify_frame(&self) -> Result<(), StoreError> {
        let bytes: FileBytes = self.layout.pages.file().clone();
        let now = super::format::Layout::open(bytes, self.meta.id)?;
        if now.content_hash != self.layout.content_hash {
            let offset = (self.layout.pages.file().len() - FOOTER_BYTES) as u64;
            let (segment, section) = (self.meta.id, "footer");
            let what = "changed since it was opened";
            return Err(StoreError::Damaged { segment, section, offset, what });
        }
        Ok(())
    }

    fn verify_facts(&self) -> Result<(), StoreError> {
        let mut previous: Option<FactKey> = None;
        let mut versions: Option<(LogIndex, LogIndex)> = None;
        let mut relations = BTreeMap::<_, Vec<u32>>::new();
        for (number, zone) in self.zones.iter().enumerate() {
            let block = self.block(number)?;
            let mut rows = Vec::with_capacity(BLOCK_ROWS);
            block.for_each_key(0..zone.rows as usize, |key| {
                rows.push(BlockRow { key, version: block.version(rows.len()) });
            });
            if Zone::of(&rows, zone.offset, zone.bytes) != *zone {
                return Err(self.damaged(Section::Zones, "a zone differs from its block"));
            }
            for (inside, row) in rows.iter().enumerate() {
                if previous.is_some_and(|previous| previous >= row.key) {
                    return Err(self.damaged(Section::Facts, "keys are not ascending"));
                }
                previous = Some(row.key);
                let (min, max) = versions.unwrap_or((row.version, row.version));
                versions = Some((min.min(row.version), max.max(row.version)));
                let number = (number * BLOCK_ROWS + inside) as u32;
                if !self.is_tombstone(number) {
                    relations.entry(row.key.relation).or_default().push(number);
                } else if self.has_vector(number) || self.has_payload(number) {
                    return Err(self.damaged(Section::Flags, "a tombstone carries something"));
                }
            }
        }
        let counts = self.layout.counts;
        if versions.unwrap_or_default() != (counts.min_version, counts.max_version)
            || versions.unwrap_or_default() != (self.meta.min_version, self.meta.max_version)
        {
            return Err(self.damaged(Section::Facts, "versions differ from the footer"));
        }
        let ends = (self.zones.first().map(|z| z.first), self.zones.last().map(|z| z.last));
        if ends != (self.meta.min_key, self.meta.max_key) {
            return Err(self.damaged(Section::Zones, "keys differ from the manifest"));
        }
        if relations.len() != self.relations().count() {
            return Err(self.damaged(Section::Relations, "relations differ from the facts"));
        }
        for (relation, rows) in relations {
            if self.relation_rows(relation)? != rows {
                return Err(self.damaged(Section::RelationRows, "rows differ from the facts"));
            }
        }
        Ok(())
    }

    fn verify_names(&self) -> Result<(), StoreError> {
        let pages = &self.layout.pages;
        let mut previous = None;
        for number in 0..self.names.count() {
            let id = self.names.id(pages, number)?;
            if previous.is_some_and(|previous| previous >= id) {
                return Err(self.damaged(Section::NameIds, "ids are not ascending"));
            }
            previous = Some(id);
            if name_id(self.names.text(pages, number)?) != id {
                return Err(self.damaged(Section::NameBytes, "a name is not that of its id"));
            }
        }
        if self.names.count() == 0 {
            return Ok(());
        }
        for row in (0..self.rows()).filter(|row| !self.is_tombstone(*row)) {
            if self.names(row)?.is_none() {
                return Err(self.damaged(Section::NameIds, "a fact has no name"));
            }
        }
        Ok(())
    }

    fn verify_payloads(&self) -> Result<(), StoreError> {
        for number in 0..self.payloads.blocks() {
            let block = self.payload_block(number)?;
            let texts = self.payloads.texts_in(number, self.layout.counts.payloads);
            let sound =
                count_of(&block) == texts && (0..texts).all(|text| text_of(&block, text).is_some());
            if !sound {
                return Err(self.damaged(Section::Payloads, "a block contradicts its index"));
            }
        }
        Ok(())
    }

    fn verify_vectors(&self) -> Result<(), StoreError> {
        for row in self.flags.vectors.rows() {
            let Some(vector) = VectorSource::vector(self, row)? else { continue };
            if norm(vector.values).to_bits() != vector.norm.to_bits() {
                return Err(self.damaged(Section::Norms, "a norm is not that of its vector"));
            }
        }
        Ok(())
    }
}
