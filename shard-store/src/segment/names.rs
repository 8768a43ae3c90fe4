//! The dictionary of a segment's names: every name once, found by its id.
//!
//! | section      | content                                                                  |
//! |--------------|--------------------------------------------------------------------------|
//! | name ids     | eight bytes a name, ascending                                            |
//! | name lengths | for every 16 names 40 bytes: where the first starts, 16 lengths of two    |
//! | name bytes   | UTF-8, one after the other, in order of the ids                          |
//!
//! Rows hold no reference: the id of an entity or target is the hash of its name, so its place
//! follows from the key. Two names of one id cannot both be kept; the first one met is.

use super::format::{Section, SectionTable, u64_at};
use super::pages::Pages;
use crate::error::StoreError;
use hopbine_proto::{EntityId, Names};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

const GROUP: usize = 16;
const GROUP_BYTES: usize = 8 + GROUP * 2;

/// Where the dictionary of a segment is.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameDictionary {
    ids: usize,
    count: usize,
    lengths: usize,
    bytes: usize,
    bytes_end: usize,
}

impl NameDictionary {
    /// Finds the sections; `None` when their sizes contradict each other.
    pub(crate) fn find(sections: &SectionTable) -> Option<Self> {
        let ids = sections.get(Section::NameIds);
        let lengths = sections.get(Section::NameLengths);
        let bytes = sections.get(Section::NameBytes);
        let count = ids.len() / 8;
        let fits = ids.len().is_multiple_of(8)
            && lengths.len() == count.div_ceil(GROUP).checked_mul(GROUP_BYTES)?;
        let (bytes, bytes_end) = (bytes.start, bytes.end);
        fits.then_some(Self { ids: ids.start, count, lengths: lengths.start, bytes, bytes_end })
    }

    /// Number of names.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Id number `number` in ascending order.
    pub(crate) fn id(&self, pages: &Pages, number: usize) -> Result<EntityId, StoreError> {
        let at = self.ids + number * 8;
        Ok(EntityId(u64_at(pages.slice(at..at + 8)?, 0)))
    }

    /// Name number `number` in order of the ids.
    pub(crate) fn text<'a>(&self, pages: &'a Pages, number: usize) -> Result<&'a str, StoreError> {
        let damaged = |what| StoreError::Damaged {
            segment: pages.segment(),
            section: Section::NameLengths.name(),
            offset: self.lengths as u64,
            what,
        };
        let at = self.lengths + number / GROUP * GROUP_BYTES;
        let group = pages.slice(at..at + GROUP_BYTES)?;
        let length = |place: usize| {
            usize::from(u16::from_le_bytes([group[8 + place * 2], group[9 + place * 2]]))
        };
        let before: usize = (0..number % GROUP).map(length).sum();
        let start = usize::try_from(u64_at(group, 0)).ok();
        let start = start.and_then(|start| start.checked_add(self.bytes)?.checked_add(before));
        let end = start.and_then(|start| start.checked_add(length(number % GROUP)));
        match (start, end) {
            (Some(start), Some(end)) if end <= self.bytes_end => {
                let text = std::str::from_utf8(pages.slice(start..end)?);
                text.map_err(|_| damaged("a name is not UTF-8"))
            }
            _ => Err(damaged("a name lies outside of its section")),
        }
    }

    /// The name behind an id, or `None` when the segment does not know it.
    pub(crate) fn name(&self, pages: &Pages, id: EntityId) -> Result<Option<Arc<str>>, StoreError> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.id(pages, middle)? < id {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        if low == self.count || self.id(pages, low)? != id {
            return Ok(None);
        }
        Ok(Some(self.text(pages, low)?.into()))
    }
}

/// Collects the names of rows that come in any order. Holds every distinct name in memory.
#[derive(Default)]
pub(crate) struct NamesBuilder {
    names: BTreeMap<EntityId, Arc<str>>,
    /// Names dropped because another one of the same id was met before.
    pub(crate) collisions: u32,
}

/// The three sections.
pub(crate) struct EncodedNames {
    pub ids: Vec<u8>,
    pub lengths: Vec<u8>,
    pub bytes: Vec<u8>,
}

impl NamesBuilder {
    pub(crate) fn push(&mut self, entity: EntityId, target: EntityId, names: &Names) {
        for (id, name) in [(entity, &names.entity), (target, &names.target)] {
            match self.names.entry(id) {
                Entry::Vacant(free) => {
                    free.insert(name.clone());
                }
                Entry::Occupied(known) if known.get() != name => {
                    tracing::error!(%id, kept = %known.get(), dropped = %name, "name collision");
                    self.collisions += 1;
                }
                Entry::Occupied(_) => {}
            }
        }
    }

    pub(crate) fn encode(&self) -> EncodedNames {
        let mut encoded = EncodedNames { ids: Vec::new(), lengths: Vec::new(), bytes: Vec::new() };
        for (number, (id, name)) in self.names.iter().enumerate() {
            if number.is_multiple_of(GROUP) {
                encoded.lengths.resize(number / GROUP * GROUP_BYTES, 0);
                encoded.lengths.extend_from_slice(&(encoded.bytes.len() as u64).to_le_bytes());
            }
            let length = u16::try_from(name.len()).expect("names are bounded at the door");
            encoded.ids.extend_from_slice(&id.0.to_le_bytes());
            encoded.lengths.extend_from_slice(&length.to_le_bytes());
            encoded.bytes.extend_from_slice(name.as_bytes());
        }
        encoded.lengths.resize(self.names.len().div_ceil(GROUP) * GROUP_BYTES, 0);
        encoded
    }
}
