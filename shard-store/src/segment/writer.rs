//! Writes a segment: rows in key order in, a durable file and its manifest entry out.
//!
//! Vectors go to the file as they come and payloads through a spool file, so memory holds about
//! 20 bytes a row, each distinct name once, and what the seal needs.

use super::block::{BLOCK_ROWS, Block, BlockRow, encode};
use super::file::PagedFile;
use super::flags::{FlagsBuilder, RowFlags};
use super::format::{Counts, HEADER_BYTES, Header, Section, SectionTable, encode_tail};
use super::names::NamesBuilder;
use super::pages::Pages;
use super::payload::PayloadBuilder;
use super::relation::RelationBuilder;
use super::zone::Zone;
use crate::error::StoreError;
use crate::graph::{SealInput, Sealed, VectorRow, VectorSource, seal};
use crate::kernel::{cast, norm};
use crate::manifest::{SegmentMeta, segment_file_name};
use hopbine_proto::disk::Disk;
use hopbine_proto::graph::IndexConfig;
use hopbine_proto::{FactKey, LogIndex, Metric, Names, SegmentId};
use std::path::{Path, PathBuf};

/// Bytes copied at once from the spool file.
const COPY_BYTES: usize = 1024 * 1024;

/// The space that a graph's vectors live in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorSpace {
    /// Components of every embedding.
    pub dim: u32,
    /// Distance.
    pub metric: Metric,
}

/// One row of a segment: a fact, or a tombstone, which has nothing but its key and version.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SegmentRow<'a> {
    /// Above the key of the row before.
    pub key: FactKey,
    /// Log index that wrote it.
    pub version: LogIndex,
    /// Whether the row says that the key is gone.
    pub tombstone: bool,
    /// As many components as the space has dimensions.
    pub embedding: Option<&'a [f32]>,
    /// JSON text.
    pub payload: Option<&'a str>,
    /// Given for every fact of a segment or for none.
    pub names: Option<&'a Names>,
}

/// Writes one segment file. Dropped before `finish`, it removes what it wrote.
pub struct SegmentWriter<'a> {
    disk: &'a dyn Disk,
    dir: PathBuf,
    id: SegmentId,
    space: VectorSpace,
    index: &'a IndexConfig,
    file: Option<PagedFile>,
    norms: Vec<f64>,
    open_block: Vec<BlockRow>,
    facts: Vec<u8>,
    zones: Vec<Zone>,
    flags: FlagsBuilder,
    relations: RelationBuilder,
    names: NamesBuilder,
    named: Option<bool>,
    payloads: Option<PayloadBuilder>,
    counts: Counts,
    last_key: Option<FactKey>,
    finished: bool,
}

impl<'a> SegmentWriter<'a> {
    /// Starts the file of segment `id` in `dir`, in place of any unfinished one of that number.
    pub fn create(
        disk: &'a dyn Disk,
        dir: &Path,
        id: SegmentId,
        space: VectorSpace,
        index: &'a IndexConfig,
    ) -> Result<Self, StoreError> {
        let (path, spool) = (dir.join(segment_file_name(id)), spool_path(dir, id));
        disk.remove(&path)?;
        disk.remove(&spool)?;
        let mut writer = Self {
            disk,
            dir: dir.to_owned(),
            id,
            space,
            index,
            file: None,
            norms: Vec::new(),
            open_block: Vec::with_capacity(BLOCK_ROWS),
            facts: Vec::new(),
            zones: Vec::new(),
            flags: FlagsBuilder::default(),
            relations: RelationBuilder::default(),
            names: NamesBuilder::default(),
            named: None,
            payloads: None,
            counts: Counts::default(),
            last_key: None,
            finished: false,
        };
        let mut file = PagedFile::new(disk.create(&path)?);
        file.write(&Header { dim: space.dim, metric: space.metric }.encode())?;
        writer.file = Some(file);
        writer.payloads = Some(PayloadBuilder::new(disk.create(&spool)?));
        Ok(writer)
    }

    /// Appends a row.
    pub fn push(&mut self, row: &SegmentRow<'_>) -> Result<(), StoreError> {
        let previous = self.last_key;
        assert!(
            previous.is_none_or(|previous| previous < row.key),
            "segment writer got {:?} after {previous:?}: zone maps need key order",
            row.key
        );
        self.last_key = Some(row.key);
        let number = self.counts.rows;
        self.counts.rows = number.checked_add(1).expect("a run has at most 2^32 - 1 rows");
        let (min, max) = (self.counts.min_version, self.counts.max_version);
        self.counts.min_version = if number == 0 { row.version } else { min.min(row.version) };
        self.counts.max_version = max.max(row.version);
        self.open_block.push(BlockRow { key: row.key, version: row.version });
        if self.open_block.len() == BLOCK_ROWS {
            self.close_block();
        }
        let (vector, payload) = (row.embedding.is_some(), row.payload.is_some());
        self.flags.push(row.tombstone, vector, payload);
        if row.tombstone {
            assert!(!vector && !payload && row.names.is_none(), "a tombstone carries nothing");
            self.counts.tombstones += 1;
            return Ok(());
        }
        self.relations.push(row.key.relation, number);
        let named = *self.named.get_or_insert(row.names.is_some());
        assert_eq!(named, row.names.is_some(), "names are given for all facts or for none");
        if let Some(names) = row.names {
            self.names.push(row.key.entity, row.key.target, names);
        }
        if let Some(embedding) = row.embedding {
            self.push_vector(embedding)?;
        }
        if let (Some(text), Some(payloads)) = (row.payload, &mut self.payloads) {
            payloads.push(text)?;
            self.counts.payloads += 1;
        }
        Ok(())
    }

    fn push_vector(&mut self, embedding: &[f32]) -> Result<(), StoreError> {
        assert_eq!(embedding.len(), self.space.dim as usize, "vectors are checked at the door");
        self.norms.push(norm(embedding));
        self.counts.vectors += 1;
        let bytes: Vec<u8> = embedding.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.file.as_mut().map_or(Ok(()), |file| file.write(&bytes))
    }

    fn close_block(&mut self) {
        let block = encode(&self.open_block);
        let (offset, bytes) = (self.facts.len() as u64, block.len() as u32);
        self.zones.push(Zone::of(&self.open_block, offset, bytes));
        self.facts.extend_from_slice(&block);
        self.open_block.clear();
    }

    /// Writes the rest, builds the index, and returns the manifest entry once file and folder are
    /// durable. Deterministic: equal rows and parameters give equal bytes.
    pub fn finish(mut self) -> Result<SegmentMeta, StoreError> {
        if !self.open_block.is_empty() {
            self.close_block();
        }
        self.counts.name_collisions = self.names.collisions;
        let mut file = self.file.take().expect("only finish takes the file");
        let mut sections = SectionTable::default();
        if file.position() > HEADER_BYTES {
            sections.push(Section::Vectors, HEADER_BYTES..file.position());
        }
        self.write_data(&mut file, &mut sections)?;
        file.flush()?;
        let sealed = self.seal(&file, &sections)?;
        let record = postcard::to_stdvec(&sealed.meta).expect("plain values always encode");
        for (section, bytes) in [
            (Section::Codes, &sealed.codes),
            (Section::Terms, &sealed.terms),
            (Section::Members, &sealed.members),
            (Section::Graph, &sealed.graph),
            (Section::Sketch, &sealed.sketch),
            (Section::SketchTerms, &sealed.sketch_terms),
            (Section::IndexRecord, &record),
        ] {
            append(&mut file, &mut sections, section, bytes)?;
        }
        let table = sections.encode();
        file.write(&table)?;
        let end = file.position();
        let tail = encode_tail(end, sections.count(), &self.counts, &file.page_crcs());
        let bytes = file.finish(&tail.bytes)?;
        self.disk.remove(&spool_path(&self.dir, self.id))?;
        self.disk.sync_dir(&self.dir).map_err(StoreError::SyncFailed)?;
        self.finished = true;
        Ok(SegmentMeta {
            id: self.id,
            rows: self.counts.rows,
            vectors: self.counts.vectors,
            tombstones: self.counts.tombstones,
            min_key: self.zones.first().map(|zone| zone.first),
            max_key: self.zones.last().map(|zone| zone.last),
            min_version: self.counts.min_version,
            max_version: self.counts.max_version,
            bytes,
            content_hash: tail.content_hash,
            name_collisions: self.counts.name_collisions,
            way: sealed.meta.way.to_string(),
            recall: sealed.meta.recall64,
            alarm: sealed.meta.alarm,
        })
    }

    /// Everything between the vectors and the index.
    fn write_data(
        &mut self,
        file: &mut PagedFile,
        sections: &mut SectionTable,
    ) -> Result<(), StoreError> {
        let norms: Vec<u8> = self.norms.iter().flat_map(|norm| norm.to_le_bytes()).collect();
        let zones: Vec<u8> = self.zones.iter().flat_map(Zone::encode).collect();
        let (relations, relation_rows) = self.relations.encode();
        let names = self.names.encode();
        for (section, bytes) in [
            (Section::Norms, &norms),
            (Section::Facts, &self.facts),
            (Section::Zones, &zones),
            (Section::Flags, &self.flags.encode()),
            (Section::Relations, &relations),
            (Section::RelationRows, &relation_rows),
            (Section::NameIds, &names.ids),
            (Section::NameLengths, &names.lengths),
            (Section::NameBytes, &names.bytes),
        ] {
            append(file, sections, section, bytes)?;
        }
        let payloads = self.payloads.take().expect("only finish takes the payloads");
        let payloads = payloads.finish()?;
        file.align()?;
        let start = file.position();
        let mut buffer = vec![0; COPY_BYTES];
        let mut copied = 0;
        while copied < payloads.bytes {
            let part = &mut buffer[..COPY_BYTES.min((payloads.bytes - copied) as usize)];
            payloads.spool.read_at(copied, part)?;
            file.write(part)?;
            copied += part.len() as u64;
        }
        if copied > 0 {
            sections.push(Section::Payloads, start..file.position());
        }
        append(file, sections, Section::PayloadIndex, &payloads.index)
    }

    /// Builds the index over the vectors as the file holds them.
    fn seal(&self, file: &PagedFile, sections: &SectionTable) -> Result<Sealed, StoreError> {
        let bytes = self.disk.map(&self.dir.join(segment_file_name(self.id)))?;
        let flags = RowFlags::decode(&self.flags.encode(), self.counts.rows)
            .expect("flags encode and decode alike");
        let written = WrittenVectors {
            pages: Pages::new(bytes, file.position(), file.page_crcs(), self.id),
            start: sections.get(Section::Vectors).start,
            stride: self.space.dim as usize * 4,
            norms: &self.norms,
            flags,
        };
        let key = |row: u32| {
            let (block, row) = (row as usize / BLOCK_ROWS, row as usize % BLOCK_ROWS);
            let zone = &self.zones[block];
            let bytes = &self.facts[zone.offset as usize..][..zone.bytes as usize];
            let block = Block::parse(bytes, zone.rows as usize).expect("blocks encode soundly");
            block.key(row)
        };
        seal(&SealInput {
            metric: self.space.metric,
            dim: self.space.dim as usize,
            rows: self.counts.rows,
            config: self.index,
            vectors: &written,
            key: &key,
        })
    }
}

impl Drop for SegmentWriter<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // Whatever fails to go here is an orphan that the next open removes.
            let _ = self.disk.remove(&self.dir.join(segment_file_name(self.id)));
            let _ = self.disk.remove(&spool_path(&self.dir, self.id));
        }
    }
}

fn spool_path(dir: &Path, id: SegmentId) -> PathBuf {
    dir.join(format!("{:016x}.payload.tmp", id.0))
}

fn append(
    file: &mut PagedFile,
    sections: &mut SectionTable,
    section: Section,
    bytes: &[u8],
) -> Result<(), StoreError> {
    file.align()?;
    let start = file.position();
    file.write(bytes)?;
    if !bytes.is_empty() {
        sections.push(section, start..file.position());
    }
    Ok(())
}

/// The vectors of the unfinished file.
struct WrittenVectors<'a> {
    pages: Pages,
    start: usize,
    stride: usize,
    norms: &'a [f64],
    flags: RowFlags,
}

impl VectorSource for WrittenVectors<'_> {
    type Error = StoreError;

    fn vector(&self, row: u32) -> Result<Option<VectorRow<'_>>, StoreError> {
        let Some(place) = self.flags.vectors.place(row) else { return Ok(None) };
        let at = self.start + place as usize * self.stride;
        let values = cast::f32s(self.pages.slice(at..at + self.stride)?);
        let values = values.expect("the section and each vector start at multiples of four");
        Ok(Some(VectorRow { values, norm: self.norms[place as usize] }))
    }
}
