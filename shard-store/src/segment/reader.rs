//! Reads a segment through its mapping. Every byte passes its checksum before it is used, so a
//! damaged page becomes `StoreError::Damaged`, never another answer.

use super::block::{BLOCK_ROWS, Block};
use super::flags::RowFlags;
use super::format::{Layout, Section, u64_at};
use super::names::NameDictionary;
use super::payload::{PayloadIndex, text_of};
use super::relation::RelationTable;
use super::writer::VectorSpace;
use super::zone::{self, Zone};
use crate::error::StoreError;
use crate::graph::{IndexMeta, IndexSections, SegmentIndex, VectorRow, VectorSource};
use crate::kernel::{cast, prefetch};
use crate::manifest::SegmentMeta;
use hopbine_proto::disk::{Disk, FileBytes};
use hopbine_proto::{EntityId, FactKey, LogIndex, Names, RelationId};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Cache lines of a vector that are asked for ahead of its use: they keep what a core can wait for
/// at a time busy, and from there on it sees by itself that more follow.
const LINES_AHEAD: usize = 12;

/// One open segment. Rows are numbered from 0 in key order; methods that take a row panic when
/// there is no such row, as that is the caller's mistake. Shared by `Arc`; all methods may run at
/// once from many threads.
pub struct Segment {
    pub(super) meta: SegmentMeta,
    pub(super) layout: Layout,
    pub(super) zones: Vec<Zone>,
    /// Entity of the largest key of each block, close together for the search.
    pub(super) last_entities: Vec<u64>,
    pub(super) flags: RowFlags,
    pub(super) relations: RelationTable,
    pub(super) names: NameDictionary,
    pub(super) payloads: PayloadIndex,
    vectors_at: usize,
    norms_at: usize,
    facts_at: usize,
    relation_rows: OnceLock<()>,
    index: OnceLock<SegmentIndex>,
    /// Held while the index is opened, so that many first readers check it once.
    index_opening: Mutex<()>,
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segment").field("meta", &self.meta).finish_non_exhaustive()
    }
}

impl Segment {
    /// Maps the file that `meta` names in `dir` and checks its frame: header, footer, page
    /// checksums, small sections, and that it is the file which the manifest means.
    pub fn open(
        disk: &dyn Disk,
        dir: &Path,
        meta: &SegmentMeta,
        space: VectorSpace,
    ) -> Result<Self, StoreError> {
        let path = dir.join(meta.file_name());
        if disk.len(&path)?.is_none() {
            let (segment, section) = (meta.id, "file");
            return Err(StoreError::Damaged { segment, section, offset: 0, what: "no such file" });
        }
        Self::open_bytes(disk.map(&path)?, meta, space)
    }

    /// The same over bytes at hand.
    pub fn open_bytes(
        bytes: FileBytes,
        meta: &SegmentMeta,
        space: VectorSpace,
    ) -> Result<Self, StoreError> {
        let segment = meta.id;
        let file_bytes = bytes.len() as u64;
        let layout = Layout::open(bytes, segment)?;
        check_identity(&layout, file_bytes, meta, space)?;
        let place = |section| layout.sections.get(section);
        let wrong = |section: Section, what| StoreError::Damaged {
            segment,
            section: section.name(),
            offset: place(section).start as u64,
            what,
        };
        let counts = layout.counts;
        let vectors = counts.vectors as usize;
        let facts = counts.rows.saturating_sub(counts.tombstones) as usize;
        for (section, bytes) in [
            (Section::Vectors, vectors * space.dim as usize * 4),
            (Section::Norms, vectors * 8),
            (Section::RelationRows, facts * 4),
        ] {
            if place(section).len() != bytes {
                return Err(wrong(section, "length differs from the count"));
            }
        }
        let small = |section| layout.pages.slice(place(section));
        let zones = zone::decode(small(Section::Zones)?, counts.rows, place(Section::Facts).len())
            .map_err(|what| wrong(Section::Zones, what))?;
        let flags = RowFlags::decode(small(Section::Flags)?, counts.rows)
            .filter(|flags| {
                let sets = [&flags.vectors, &flags.tombstones, &flags.payloads];
                sets.map(|set| set.count()) == [counts.vectors, counts.tombstones, counts.payloads]
            })
            .ok_or_else(|| wrong(Section::Flags, "counts differ from the footer"))?;
        let relations = RelationTable::decode(small(Section::Relations)?, facts)
            .ok_or_else(|| wrong(Section::Relations, "entries contradict each other"))?;
        let names = NameDictionary::find(&layout.sections)
            .ok_or_else(|| wrong(Section::NameIds, "lengths contradict each other"))?;
        let blocks = place(Section::Payloads).len();
        let payloads = PayloadIndex::decode(small(Section::PayloadIndex)?, counts.payloads, blocks)
            .ok_or_else(|| wrong(Section::PayloadIndex, "entries contradict each other"))?;
        Ok(Self {
            meta: meta.clone(),
            last_entities: zones.iter().map(|zone| zone.last.entity.0).collect(),
            zones,
            flags,
            relations,
            names,
            payloads,
            vectors_at: place(Section::Vectors).start,
            norms_at: place(Section::Norms).start,
            facts_at: place(Section::Facts).start,
            relation_rows: OnceLock::new(),
            index: OnceLock::new(),
            index_opening: Mutex::new(()),
            layout,
        })
    }

    /// What the manifest says of it.
    pub fn meta(&self) -> &SegmentMeta {
        &self.meta
    }

    /// Rows, tombstones included.
    pub fn rows(&self) -> u32 {
        self.meta.rows
    }

    /// Name and length in bytes of each section of the file, in order of place.
    pub fn sections(&self) -> impl Iterator<Item = (&'static str, usize)> + '_ {
        self.layout.sections.lengths()
    }

    /// What each fact block holds, in key order.
    pub fn zones(&self) -> &[Zone] {
        &self.zones
    }

    pub(super) fn damaged(&self, section: Section, what: &'static str) -> StoreError {
        StoreError::Damaged {
            segment: self.meta.id,
            section: section.name(),
            offset: self.layout.sections.get(section).start as u64,
            what,
        }
    }

    #[inline]
    pub(super) fn block(&self, number: usize) -> Result<Block<'_>, StoreError> {
        let zone = &self.zones[number];
        let at = self.facts_at + zone.offset as usize;
        let bytes = self.layout.pages.slice(at..at + zone.bytes as usize)?;
        Block::parse(bytes, zone.rows as usize)
            .ok_or_else(|| self.damaged(Section::Facts, "a fact block contradicts itself"))
    }

    /// Key of a row.
    #[inline]
    pub fn key(&self, row: u32) -> Result<FactKey, StoreError> {
        Ok(self.block(row as usize / BLOCK_ROWS)?.key(row as usize % BLOCK_ROWS))
    }

    /// Calls `visit` with each row of the range and its key, in order: cheaper than `key` for
    /// each.
    pub fn for_each_key(
        &self,
        rows: Range<u32>,
        mut visit: impl FnMut(u32, FactKey),
    ) -> Result<(), StoreError> {
        let mut row = rows.start;
        while row < rows.end {
            let number = row as usize / BLOCK_ROWS;
            let first = (number * BLOCK_ROWS) as u32;
            let end = rows.end.min(first + self.zones[number].rows);
            assert!(row < end, "row {row} of {}", self.rows());
            let block = self.block(number)?;
            block.for_each_key((row - first) as usize..(end - first) as usize, |key| {
                visit(row, key);
                row += 1;
            });
        }
        Ok(())
    }

    /// Whether the row only says that its key is gone.
    #[inline]
    pub fn is_tombstone(&self, row: u32) -> bool {
        self.flags.tombstones.contains(row)
    }

    /// Rows that are tombstones, ascending.
    pub fn tombstones(&self) -> impl Iterator<Item = u32> + '_ {
        self.flags.tombstones.rows()
    }

    /// Whether the row has an embedding.
    #[inline]
    pub fn has_vector(&self, row: u32) -> bool {
        self.flags.vectors.contains(row)
    }

    /// Whether the row has a payload.
    #[inline]
    pub fn has_payload(&self, row: u32) -> bool {
        self.flags.payloads.contains(row)
    }

    /// The embedding of a row as it was written.
    #[inline]
    pub fn vector(&self, row: u32) -> Result<Option<&[f32]>, StoreError> {
        match self.flags.vectors.place(row) {
            None => Ok(None),
            Some(place) => self.vector_at(place).map(Some),
        }
    }

    #[inline]
    fn vector_at(&self, place: u32) -> Result<&[f32], StoreError> {
        let stride = self.layout.header.dim as usize * 4;
        let at = self.vectors_at + place as usize * stride;
        let bytes = self.layout.pages.slice(at..at + stride)?;
        cast::f32s(bytes).ok_or_else(|| self.damaged(Section::Vectors, "not aligned"))
    }

    #[inline]
    fn norm_at(&self, place: u32) -> Result<f64, StoreError> {
        let at = self.norms_at + place as usize * 8;
        Ok(f64::from_bits(u64_at(self.layout.pages.slice(at..at + 8)?, 0)))
    }

    /// Norm of the row's embedding, or `None` when it has none.
    #[inline]
    pub fn norm(&self, row: u32) -> Result<Option<f64>, StoreError> {
        self.flags.vectors.place(row).map(|place| self.norm_at(place)).transpose()
    }

    /// Log index that wrote a row.
    #[inline]
    pub fn version(&self, row: u32) -> Result<LogIndex, StoreError> {
        Ok(self.block(row as usize / BLOCK_ROWS)?.version(row as usize % BLOCK_ROWS))
    }

    /// Payload of a row. Decompresses one block of about 16 KiB unless it was used lately.
    pub fn payload(&self, row: u32) -> Result<Option<Arc<str>>, StoreError> {
        let Some(place) = self.flags.payloads.place(row) else { return Ok(None) };
        let (number, inside) = self.payloads.find(place);
        let block = match self.payloads.cached(number) {
            Some(block) => block,
            None => {
                let block = self.payload_block(number)?;
                self.payloads.keep(number, block.clone());
                block
            }
        };
        let text = text_of(&block, inside);
        let text = text.ok_or_else(|| self.damaged(Section::Payloads, "a text is not in place"))?;
        Ok(Some(text.into()))
    }

    pub(super) fn payload_block(&self, number: usize) -> Result<Arc<Vec<u8>>, StoreError> {
        let start = self.layout.sections.get(Section::Payloads).start;
        let place = self.payloads.place(number);
        let stored = self.layout.pages.slice(start + place.start..start + place.end)?;
        let block = self.payloads.decompress(number, stored);
        block.ok_or_else(|| self.damaged(Section::Payloads, "a block does not decompress"))
    }

    /// Names of a row's entity and target; `None` for tombstones and in a graph of numbers.
    pub fn names(&self, row: u32) -> Result<Option<Names>, StoreError> {
        if self.names.count() == 0 || self.is_tombstone(row) {
            return Ok(None);
        }
        let key = self.key(row)?;
        let entity = self.name(key.entity)?;
        let target = self.name(key.target)?;
        Ok(entity.zip(target).map(|(entity, target)| Names { entity, target }))
    }

    /// Name of an entity or target of any fact of this segment.
    pub fn name(&self, id: EntityId) -> Result<Option<Arc<str>>, StoreError> {
        self.names.name(&self.layout.pages, id)
    }

    /// Rows along a relation, ascending, tombstones left out. The first call checks the section.
    pub fn relation_rows(&self, relation: RelationId) -> Result<&[u32], StoreError> {
        if self.relation_rows.get().is_none() {
            self.check_relation_rows()?;
            self.relation_rows.get_or_init(|| ());
        }
        let start = self.layout.sections.get(Section::RelationRows).start;
        let places = self.relations.places(relation);
        self.relation_rows_at(start + places.start * 4..start + places.end * 4)
    }

    fn relation_rows_at(&self, bytes: Range<usize>) -> Result<&[u32], StoreError> {
        let rows = cast::u32s(self.layout.pages.slice(bytes)?);
        rows.ok_or_else(|| self.damaged(Section::RelationRows, "not aligned"))
    }

    fn check_relation_rows(&self) -> Result<(), StoreError> {
        let rows = self.relation_rows_at(self.layout.sections.get(Section::RelationRows))?;
        for (relation, _) in self.relations.counts() {
            let list = &rows[self.relations.places(relation)];
            let ascending = list.windows(2).all(|pair| pair[0] < pair[1]);
            if !ascending || list.last().is_some_and(|last| *last >= self.rows()) {
                return Err(self.damaged(Section::RelationRows, "rows are not ascending"));
            }
        }
        Ok(())
    }

    /// Every relation with its number of rows, ascending, tombstones left out.
    pub fn relations(&self) -> impl Iterator<Item = (RelationId, u32)> + '_ {
        self.relations.counts()
    }

    /// The approximate index. The first call checks its sections whole: about 500 bytes a row at
    /// 384 dimensions.
    pub fn index(&self) -> Result<&SegmentIndex, StoreError> {
        if let Some(index) = self.index.get() {
            return Ok(index);
        }
        let _alone = self.index_opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = self.index.get() {
            return Ok(index);
        }
        let index = self.open_index()?;
        Ok(self.index.get_or_init(|| index))
    }

    fn open_index(&self) -> Result<SegmentIndex, StoreError> {
        let section = |section| {
            let place = self.layout.sections.get(section);
            self.layout.pages.slice(place.clone())?;
            let part = crate::graph::Section::new(self.layout.pages.file().clone(), place);
            part.ok_or_else(|| self.damaged(section, "out of file"))
        };
        let record = self.layout.sections.get(Section::IndexRecord);
        let record: IndexMeta = postcard::from_bytes(self.layout.pages.slice(record)?)
            .map_err(|_| self.damaged(Section::IndexRecord, "does not decode"))?;
        let space = (record.dim, record.metric, record.rows, record.vectors);
        let header = self.layout.header;
        if space != (header.dim, header.metric, self.meta.rows, self.meta.vectors) {
            return Err(self.damaged(Section::IndexRecord, "belongs to other vectors"));
        }
        let sections = IndexSections {
            codes: section(Section::Codes)?,
            terms: section(Section::Terms)?,
            members: section(Section::Members)?,
            graph: section(Section::Graph)?,
            sketch: section(Section::Sketch)?,
            sketch_terms: section(Section::SketchTerms)?,
        };
        SegmentIndex::open(record, sections).map_err(|damage| {
            tracing::error!(segment = %self.meta.id, %damage, "index sections contradict");
            self.damaged(Section::Graph, damage.what)
        })
    }
}

/// Whether the file is the one that the manifest means, of the graph's vector space.
fn check_identity(
    layout: &Layout,
    file_bytes: u64,
    meta: &SegmentMeta,
    space: VectorSpace,
) -> Result<(), StoreError> {
    let damaged =
        |section, what| Err(StoreError::Damaged { segment: meta.id, section, offset: 0, what });
    if file_bytes != meta.bytes || layout.content_hash != meta.content_hash {
        return damaged("footer", "not the file that the manifest names");
    }
    if (layout.header.dim, layout.header.metric) != (space.dim, space.metric) {
        return damaged("header", "vectors of another space");
    }
    let counts = layout.counts;
    let known = (meta.rows, meta.vectors, meta.tombstones, meta.name_collisions);
    if (counts.rows, counts.vectors, counts.tombstones, counts.name_collisions) != known {
        return damaged("footer", "counts differ from the manifest");
    }
    Ok(())
}

impl VectorSource for Segment {
    type Error = StoreError;

    /// Asks the processor for the vector's cache lines.
    fn expect(&self, row: u32) {
        let Some(place) = self.flags.vectors.place(row) else { return };
        let stride = self.layout.header.dim as usize * 4;
        let at = self.vectors_at + place as usize * stride;
        let file = self.layout.pages.file();
        prefetch(&file[self.norms_at + place as usize * 8]);
        let lines = file[at..at + stride].chunks(64);
        lines.take(LINES_AHEAD).for_each(|line| prefetch(&line[0]));
    }

    #[inline]
    fn vector(&self, row: u32) -> Result<Option<VectorRow<'_>>, StoreError> {
        let Some(place) = self.flags.vectors.place(row) else { return Ok(None) };
        let (values, norm) = (self.vector_at(place)?, self.norm_at(place)?);
        Ok(Some(VectorRow { values, norm }))
    }
}
