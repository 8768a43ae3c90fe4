//! Header, section table and footer of a segment file: who is where. The table of the whole
//! format is in `mod.rs`.

use super::pages::Pages;
use crate::error::StoreError;
use hopbine_proto::disk::FileBytes;
use hopbine_proto::limits::DIM_MAX;
use hopbine_proto::{LogIndex, Metric, SegmentId};
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_128;

/// The only format version that this release reads and writes.
pub const SEGMENT_VERSION: u32 = 1;
/// Bytes under one checksum. Small, since the first touch of a byte reads its whole page, but above
/// the 24 KiB from which crc32c uses the processor's three lanes: 32 KiB pages are checked at 4.4
/// GB/s where 16 KiB pages are at 1.8. The table of checksums is an 8,192th of the file.
pub const PAGE_BYTES: usize = 32 * 1024;
/// Sections start at multiples of this: whole cache lines for the kernels.
pub const ALIGN: usize = 64;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of the footer.
pub const FOOTER_BYTES: usize = 64;

const HEADER_MAGIC: &[u8; 8] = b"HBSEGMT\0";
const FOOTER_MAGIC: &[u8; 8] = b"HBSEGND\0";
const ENTRY_BYTES: usize = 24;

macro_rules! sections {
    ($($(#[$doc:meta])* $name:ident $number:literal $text:literal)*) => {
        /// A part of the file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Section { $($(#[$doc])* $name = $number,)* }

        impl Section {
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name in error messages.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

sections! {
    Vectors 1 "vectors"
    Norms 2 "norms"
    Facts 3 "fact blocks"
    Zones 4 "zone map"
    Flags 5 "row flags"
    Relations 6 "relation table"
    RelationRows 7 "relation rows"
    NameIds 8 "name ids"
    NameLengths 9 "name lengths"
    NameBytes 10 "name bytes"
    Payloads 11 "payload blocks"
    PayloadIndex 12 "payload index"
    Codes 13 "codes"
    Terms 14 "code terms"
    Members 15 "code members"
    Graph 16 "graph"
    IndexRecord 17 "index record"
    Sketch 18 "short codes"
    SketchTerms 19 "short code terms"
}

/// Integers at fixed places of a byte string that is known to be long enough.
#[inline(always)]
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(word)
}

#[inline(always)]
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}

/// What every vector of the segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub dim: u32,
    pub metric: Metric,
}

fn metric_number(metric: Metric) -> u32 {
    match metric {
        Metric::Cosine => 0,
        Metric::L2 => 1,
        Metric::Dot => 2,
    }
}

fn metric_of(number: u32) -> Option<Metric> {
    [Metric::Cosine, Metric::L2, Metric::Dot].into_iter().find(|m| metric_number(*m) == number)
}

impl Header {
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(HEADER_MAGIC);
        bytes[8..12].copy_from_slice(&SEGMENT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.dim.to_le_bytes());
        bytes[16..20].copy_from_slice(&metric_number(self.metric).to_le_bytes());
        bytes[20..24].copy_from_slice(&(PAGE_BYTES as u32).to_le_bytes());
        bytes[24..28].copy_from_slice(&(super::block::BLOCK_ROWS as u32).to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8], segment: SegmentId) -> Result<Self, StoreError> {
        let damaged = |what| StoreError::Damaged { segment, section: "header", offset: 0, what };
        if bytes.len() < HEADER_BYTES + FOOTER_BYTES {
            return Err(damaged("shorter than header and footer"));
        }
        if !bytes.starts_with(HEADER_MAGIC) {
            return Err(damaged("no segment by its first bytes"));
        }
        if crc32c::crc32c(&bytes[..60]) != u32_at(bytes, 60) {
            return Err(damaged("checksum differs"));
        }
        let found = u32_at(bytes, 8);
        if found != SEGMENT_VERSION {
            let (file, known) = ("segment", SEGMENT_VERSION);
            return Err(StoreError::UnknownVersion { file, found, known });
        }
        let metric = metric_of(u32_at(bytes, 16)).ok_or_else(|| damaged("unknown metric"))?;
        if !(1..=DIM_MAX).contains(&(u32_at(bytes, 12) as usize)) {
            return Err(damaged("impossible dimension"));
        }
        let sizes = (u32_at(bytes, 20) as usize, u32_at(bytes, 24) as usize);
        if sizes != (PAGE_BYTES, super::block::BLOCK_ROWS) {
            return Err(damaged("unknown page or block size"));
        }
        Ok(Self { dim: u32_at(bytes, 12), metric })
    }
}

/// What the footer counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub rows: u32,
    pub vectors: u32,
    pub tombstones: u32,
    pub payloads: u32,
    pub min_version: LogIndex,
    pub max_version: LogIndex,
    pub name_collisions: u32,
}

/// Where the sections of a file are, in order of their place.
#[derive(Clone, Debug, Default)]
pub(crate) struct SectionTable {
    places: Vec<(Section, Range<usize>)>,
}

impl SectionTable {
    pub(crate) fn push(&mut self, section: Section, place: Range<usize>) {
        assert!(place.start.is_multiple_of(ALIGN), "{section:?} starts at {}", place.start);
        self.places.push((section, place));
    }

    /// Where a section is; empty when the file has none.
    pub(crate) fn get(&self, section: Section) -> Range<usize> {
        let found = self.places.iter().find(|(known, _)| *known == section);
        found.map_or(0..0, |(_, place)| place.clone())
    }

    /// Number of sections.
    pub(crate) fn count(&self) -> usize {
        self.places.len()
    }

    /// Name and length in bytes of each section, in order of place.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = (&'static str, usize)> + '_ {
        self.places.iter().map(|(section, place)| (section.name(), place.len()))
    }

    /// Name of the part that holds the byte at `offset`.
    pub(crate) fn name_at(&self, offset: usize) -> &'static str {
        if offset < HEADER_BYTES {
            return "header";
        }
        let inside = self.places.iter().find(|(_, place)| place.contains(&offset));
        inside.map_or("padding", |(section, _)| section.name())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.places.len() * ENTRY_BYTES);
        for (section, place) in &self.places {
            bytes.extend_from_slice(&(*section as u32).to_le_bytes());
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(&(place.start as u64).to_le_bytes());
            bytes.extend_from_slice(&(place.len() as u64).to_le_bytes());
        }
        bytes
    }

    /// Sections must lie one after the other inside the first `end` bytes of the file.
    fn decode(bytes: &[u8], end: usize) -> Result<Self, &'static str> {
        let mut table = Self::default();
        let mut free = HEADER_BYTES;
        for entry in bytes.chunks_exact(ENTRY_BYTES) {
            let number = u32_at(entry, 0);
            let known = Section::ALL.iter().find(|section| **section as u32 == number);
            let section = *known.ok_or("unknown section")?;
            let start = usize::try_from(u64_at(entry, 8)).map_err(|_| "section out of file")?;
            let len = usize::try_from(u64_at(entry, 16)).map_err(|_| "section out of file")?;
            let stop = start.checked_add(len).filter(|stop| *stop <= end);
            let stop = stop.ok_or("section out of file")?;
            if start < free || !start.is_multiple_of(ALIGN) || !table.get(section).is_empty() {
                return Err("sections overlap, repeat or are not aligned");
            }
            table.places.push((section, start..stop));
            free = stop;
        }
        Ok(table)
    }
}

/// The end of the file: page checksums and the footer that covers them.
pub(crate) struct Tail {
    pub bytes: Vec<u8>,
    pub content_hash: u128,
}

/// Encodes what follows the last page: one checksum a page, then the footer.
pub(crate) fn encode_tail(end: usize, sections: usize, counts: &Counts, pages: &[u32]) -> Tail {
    let mut bytes: Vec<u8> = pages.iter().flat_map(|crc| crc.to_le_bytes()).collect();
    bytes.extend_from_slice(FOOTER_MAGIC);
    bytes.extend_from_slice(&(end as u64).to_le_bytes());
    for number in [
        sections as u32,
        counts.rows,
        counts.vectors,
        counts.tombstones,
        counts.payloads,
        counts.name_collisions,
    ] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&counts.min_version.0.to_le_bytes());
    bytes.extend_from_slice(&counts.max_version.0.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    let content_hash = xxh3_128(&bytes);
    Tail { bytes, content_hash }
}

/// A mapped file whose header, footer, page checksums and section table have been checked.
pub(crate) struct Layout {
    pub header: Header,
    pub counts: Counts,
    pub sections: SectionTable,
    pub pages: Pages,
    pub content_hash: u128,
}

impl Layout {
    /// Checks the frame of a file. Everything else is checked page by page when first touched.
    pub(crate) fn open(bytes: FileBytes, segment: SegmentId) -> Result<Self, StoreError> {
        let header = Header::decode(&bytes, segment)?;
        let footer_at = bytes.len() - FOOTER_BYTES;
        let damaged = |what| StoreError::Damaged {
            segment,
            section: "footer",
            offset: footer_at as u64,
            what,
        };
        let footer = &bytes[footer_at..];
        if !footer.starts_with(FOOTER_MAGIC) {
            return Err(damaged("cut short, or no segment by its last bytes"));
        }
        let end = usize::try_from(u64_at(footer, 8)).map_err(|_| damaged("pages out of file"))?;
        let page_count = end.div_ceil(PAGE_BYTES);
        let expected = page_count.checked_mul(4).and_then(|table| table.checked_add(end));
        if end < HEADER_BYTES || expected != Some(footer_at) {
            return Err(damaged("length differs"));
        }
        let tail = &bytes[end..];
        if crc32c::crc32c(&tail[..tail.len() - 4]) != u32_at(footer, FOOTER_BYTES - 4) {
            return Err(damaged("checksum differs"));
        }
        let content_hash = xxh3_128(tail);
        let crcs = tail[..page_count * 4].chunks_exact(4).map(|crc| u32_at(crc, 0)).collect();
        let counts = Counts {
            rows: u32_at(footer, 20),
            vectors: u32_at(footer, 24),
            tombstones: u32_at(footer, 28),
            payloads: u32_at(footer, 32),
            name_collisions: u32_at(footer, 36),
            min_version: LogIndex(u64_at(footer, 40)),
            max_version: LogIndex(u64_at(footer, 48)),
        };
        let table_bytes = u32_at(footer, 16) as usize * ENTRY_BYTES;
        let table_at = end.checked_sub(table_bytes).filter(|at| *at >= HEADER_BYTES);
        let table_at = table_at.ok_or_else(|| damaged("section table out of file"))?;
        let mut pages = Pages::new(bytes.clone(), end, crcs, segment);
        let table = pages.slice(table_at..end)?;
        let sections = SectionTable::decode(table, table_at).map_err(damaged)?;
        pages.name_sections(sections.clone());
        Ok(Self { header, counts, sections, pages, content_hash })
    }
}
