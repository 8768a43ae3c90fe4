//! Which rows share which vector.
//!
//! A *node* is one distinct vector, numbered by its first row. When every row has a vector of its
//! own, node and row numbers are equal and the section is empty. Otherwise it is three `u32`
//! arrays, little-endian:
//!
//! | part    | count     | content                                                      |
//! |---------|-----------|--------------------------------------------------------------|
//! | node of | rows      | node of each row, `u32::MAX` for a row without vector         |
//! | offsets | nodes + 1 | where each node's rows start in the next part, from 0         |
//! | rows    | vectors   | rows of each node, ascending: key order                       |

use super::ask::VectorSource;
use crate::kernel::cast;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use xxhash_rust::xxh3::xxh3_64;

/// Mark of a row without vector.
pub const NO_NODE: u32 = u32::MAX;

/// The map between rows and nodes, read in place.
#[derive(Clone, Copy, Debug)]
pub enum Members<'a> {
    /// Row numbers are node numbers.
    Same {
        /// How many.
        rows: u32,
    },
    /// The three arrays.
    Listed {
        /// Node of each row.
        node_of: &'a [u32],
        /// Start of each node's rows, and the end of the last.
        offsets: &'a [u32],
        /// All nodes' rows.
        rows: &'a [u32],
    },
}

impl<'a> Members<'a> {
    /// Reads a section that was checked by [`Members::open`] before.
    pub(super) fn read(bytes: &'a [u8], rows: u32, nodes: u32) -> Option<Self> {
        if bytes.is_empty() {
            return (rows == nodes).then_some(Self::Same { rows });
        }
        let words = cast::u32s(bytes)?;
        let (node_of, rest) = words.split_at_checked(rows as usize)?;
        let (offsets, rows) = rest.split_at_checked(nodes as usize + 1)?;
        Some(Self::Listed { node_of, offsets, rows })
    }

    /// Reads a section and checks that both directions agree.
    pub(super) fn open(
        bytes: &'a [u8],
        rows: u32,
        vectors: u32,
        nodes: u32,
    ) -> Result<Self, &'static str> {
        let members = Self::read(bytes, rows, nodes).ok_or("row map of another size")?;
        let Self::Listed { node_of, offsets, rows } = members else {
            return if vectors == rows { Ok(members) } else { Err("row map is missing") };
        };
        if rows.len() != vectors as usize || offsets.first() != Some(&0) {
            return Err("row map of another size");
        }
        let mut listed = 0;
        for (node, pair) in offsets.windows(2).enumerate() {
            if pair[0] != listed || pair[1] <= pair[0] || pair[1] as usize > rows.len() {
                return Err("row map offsets do not ascend");
            }
            listed = pair[1];
            let list = &rows[pair[0] as usize..pair[1] as usize];
            let agree = list.iter().all(|row| node_of.get(*row as usize) == Some(&(node as u32)));
            if !agree || !list.is_sorted_by(|a, b| a < b) {
                return Err("row map disagrees with itself");
            }
        }
        let with_vector = node_of.iter().filter(|node| **node != NO_NODE).count();
        if listed as usize != rows.len() || with_vector != rows.len() {
            return Err("row map disagrees with itself");
        }
        Ok(members)
    }

    /// The node of `row`, if it has a vector.
    #[inline]
    pub fn node_of(&self, row: u32) -> Option<u32> {
        match self {
            Self::Same { rows } => (row < *rows).then_some(row),
            Self::Listed { node_of, .. } => {
                node_of.get(row as usize).copied().filter(|node| *node != NO_NODE)
            }
        }
    }

    /// The first row of `node`; all its rows have the same vector.
    #[inline]
    pub fn first_row(&self, node: u32) -> u32 {
        match self {
            Self::Same { .. } => node,
            Self::Listed { offsets, rows, .. } => rows[offsets[node as usize] as usize],
        }
    }

    /// Calls `visit` with the rows of `node`, ascending, until it returns `false`.
    #[inline]
    pub fn each_row<E>(
        &self,
        node: u32,
        mut visit: impl FnMut(u32) -> Result<bool, E>,
    ) -> Result<(), E> {
        match self {
            Self::Same { .. } => visit(node).map(|_| ()),
            Self::Listed { offsets, rows, .. } => {
                let (start, end) = (offsets[node as usize], offsets[node as usize + 1]);
                for row in &rows[start as usize..end as usize] {
                    if !visit(*row)? {
                        break;
                    }
                }
                Ok(())
            }
        }
    }
}

/// Groups of rows with bit-equal vectors, in the order of their first rows.
pub(super) struct Groups {
    /// Rows of each node, ascending.
    pub nodes: Vec<Vec<u32>>,
    /// Rows looked at.
    pub rows: u32,
    /// Rows with a vector.
    pub vectors: u32,
}

impl Groups {
    /// Finds equal vectors among rows `0..rows`.
    pub fn of<V: VectorSource + ?Sized>(rows: u32, source: &V) -> Result<Self, V::Error> {
        let mut nodes: Vec<Vec<u32>> = Vec::new();
        let mut by_hash: HashMap<u64, u32> = HashMap::new();
        let (mut vectors, mut bytes) = (0, Vec::new());
        for row in 0..rows {
            let Some(vector) = source.vector(row)? else { continue };
            vectors += 1;
            bytes.clear();
            bytes.extend(vector.values.iter().flat_map(|value| value.to_le_bytes()));
            let mut hash = xxh3_64(&bytes);
            loop {
                match by_hash.entry(hash) {
                    Entry::Vacant(place) => {
                        place.insert(nodes.len() as u32);
                        nodes.push(vec![row]);
                        break;
                    }
                    Entry::Occupied(place) => {
                        let rows = &mut nodes[*place.get() as usize];
                        if has_values(source, rows[0], vector.values)? {
                            rows.push(row);
                            break;
                        }
                        // Another vector of the same hash: the next hash over is tried.
                        hash = hash.wrapping_add(1);
                    }
                }
            }
        }
        Ok(Self { nodes, rows, vectors })
    }

    /// The section, empty when row and node numbers are equal.
    pub fn to_bytes(&self) -> Vec<u8> {
        if self.nodes.len() == self.rows as usize {
            return Vec::new();
        }
        let mut words = vec![NO_NODE; self.rows as usize];
        for (node, rows) in self.nodes.iter().enumerate() {
            for row in rows {
                words[*row as usize] = node as u32;
            }
        }
        let mut offset = 0;
        words.push(0);
        for rows in &self.nodes {
            offset += rows.len() as u32;
            words.push(offset);
        }
        words.extend(self.nodes.iter().flatten());
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// Whether `row` has exactly these components.
fn has_values<V: VectorSource + ?Sized>(
    source: &V,
    row: u32,
    values: &[f32],
) -> Result<bool, V::Error> {
    let Some(other) = source.vector(row)? else { return Ok(false) };
    Ok(other.values.iter().map(|v| v.to_bits()).eq(values.iter().map(|v| v.to_bits())))
}
