//! The graph on disk: flat `u32` words, little-endian, read in place.
//!
//! | part    | words                  | content                                                |
//! |---------|------------------------|--------------------------------------------------------|
//! | header  | 16                     | magic, version, nodes, entry node, upper levels, base  |
//! |         |                        | edges, m, words in all, zeros                          |
//! | levels  | 16 × upper levels      | per upper level, lowest first: nodes, edges, first     |
//! |         |                        | word of the level, zeros                               |
//! | offsets | nodes + 1, up to 16s   | where each node's base neighbours start, from 0        |
//! | base    | base edges, up to 16s  | neighbours of each node on the base layer              |
//! | level   | one after the other,   | ids (node numbers, ascending), down (each node's place |
//! |         | each up to 16s         | on the level below; on the lowest its node number),    |
//! |         |                        | offsets (nodes + 1), neighbours (places on this level) |
//!
//! The entry is a node of the highest level; without upper levels it is a base node. Every part
//! starts at a multiple of 64 bytes. `check` reads every word once, so that a walk may trust them.

use crate::kernel::cast;

const MAGIC: u32 = u32::from_le_bytes(*b"HBgr");
const VERSION: u32 = 1;
const LINE: usize = 16;
/// Bound of a walk's descent; with m = 4 this is room for 4^15 nodes.
pub const LEVELS_MAX: usize = 16;

/// One layer above the base while a graph is put together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpperLevel {
    /// Node numbers on this level, ascending.
    pub ids: Vec<u32>,
    /// Neighbours of each of them, as node numbers of this level.
    pub links: Vec<Vec<u32>>,
}

/// A whole graph before it is laid out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// Where a walk begins: a node of the highest level.
    pub entry: u32,
    /// Neighbours per node on upper levels.
    pub m: u32,
    /// Neighbours of each node on the base layer.
    pub base: Vec<Vec<u32>>,
    /// Lowest first.
    pub upper: Vec<UpperLevel>,
}

impl Links {
    /// Lays the graph out. Panics when there are 2^32 words or more, or a link names a node that
    /// is not on its level: our own mistake.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut words = vec![0u32; LINE * (1 + self.upper.len())];
        push_offsets(&mut words, &self.base);
        pad(&mut words);
        self.base.iter().for_each(|links| words.extend(links));
        pad(&mut words);
        for (index, level) in self.upper.iter().enumerate() {
            let first = words.len();
            let place = |ids: &[u32], node: &u32| {
                ids.binary_search(node).expect("a link stays on its level") as u32
            };
            words.extend(&level.ids);
            match index.checked_sub(1) {
                None => words.extend(&level.ids),
                Some(below) => {
                    let below = &self.upper[below].ids;
                    words.extend(level.ids.iter().map(|node| place(below, node)));
                }
            }
            push_offsets(&mut words, &level.links);
            let links = level.links.iter().flatten();
            words.extend(links.map(|node| place(&level.ids, node)));
            pad(&mut words);
            let edges = level.links.iter().map(Vec::len).sum();
            let record = [level.ids.len(), edges, first].map(word);
            words[LINE * (1 + index)..][..3].copy_from_slice(&record);
        }
        let base_edges = word(self.base.iter().map(Vec::len).sum());
        let (nodes, levels) = (word(self.base.len()), word(self.upper.len()));
        let total = word(words.len());
        let header = [MAGIC, VERSION, nodes, self.entry, levels, base_edges, self.m, total];
        words[..8].copy_from_slice(&header);
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

fn word(number: usize) -> u32 {
    u32::try_from(number).expect("a segment's graph is below 2^32 words")
}

fn pad(words: &mut Vec<u32>) {
    words.resize(words.len().next_multiple_of(LINE), 0);
}

fn push_offsets(words: &mut Vec<u32>, links: &[Vec<u32>]) {
    let mut offset = 0;
    words.push(0);
    for list in links {
        offset += list.len();
        words.push(word(offset));
    }
}

/// Neighbour lists, one after the other.
#[derive(Clone, Copy, Debug)]
struct Lists<'a> {
    offsets: &'a [u32],
    links: &'a [u32],
}

impl<'a> Lists<'a> {
    #[inline]
    fn of(&self, place: u32) -> &'a [u32] {
        let start = self.offsets[place as usize] as usize;
        let end = self.offsets[place as usize + 1] as usize;
        &self.links[start..end]
    }

    /// Whether the offsets ascend from 0 to the end and every link is below `places`.
    fn is_sound(&self, places: u32) -> bool {
        self.offsets.first() == Some(&0)
            && self.offsets.last().is_some_and(|end| *end as usize == self.links.len())
            && self.offsets.is_sorted()
            && self.links.iter().all(|link| *link < places)
    }
}

/// One upper level, read in place.
#[derive(Clone, Copy, Debug)]
pub struct Level<'a> {
    /// Node numbers, ascending.
    pub ids: &'a [u32],
    /// Place of each node on the level below, or its number when that is the base.
    pub down: &'a [u32],
    lists: Lists<'a>,
}

impl<'a> Level<'a> {
    /// Neighbours of the node at `place`, as places.
    pub fn neighbours(&self, place: u32) -> &'a [u32] {
        self.lists.of(place)
    }
}

/// A graph read in place.
#[derive(Clone, Copy, Debug)]
pub struct GraphView<'a> {
    words: &'a [u32],
    base: Lists<'a>,
    entry: u32,
    levels: usize,
}

impl<'a> GraphView<'a> {
    /// Reads the header and finds the parts; `None` when they do not fit into `bytes`.
    /// Trusts what only [`GraphView::check`] looks at.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let words = cast::u32s(bytes)?;
        let &[magic, version, nodes, entry, levels, base_edges, _, total] = words.first_chunk()?;
        let (nodes, levels) = (nodes as usize, levels as usize);
        let known = magic == MAGIC && version == VERSION && total as usize == words.len();
        if !known || levels > LEVELS_MAX {
            return None;
        }
        let first = LINE * (1 + levels);
        let (offsets, next) = part(words, first, nodes + 1)?;
        let (links, _) = part(words, next, base_edges as usize)?;
        Some(Self { words, base: Lists { offsets, links }, entry, levels })
    }

    /// Reads the graph and checks every offset, every neighbour and every number used as a place.
    /// The error says what is wrong.
    pub fn check(bytes: &'a [u8], nodes: u32) -> Result<Self, &'static str> {
        let graph = Self::read(bytes).ok_or("graph header or length is wrong")?;
        if nodes == 0 || graph.nodes() != nodes || graph.entry >= nodes {
            return Err("graph of another number of nodes");
        }
        if !graph.base.is_sound(nodes) {
            return Err("a base neighbour list is wrong");
        }
        let mut below: Option<Level<'a>> = None;
        for index in 0..graph.levels {
            let level = graph.try_level(index).ok_or("an upper level does not fit")?;
            let places = level.ids.len() as u32;
            let ascending = level.ids.is_sorted_by(|a, b| a < b);
            if places == 0 || !ascending || level.ids.last().is_none_or(|last| *last >= nodes) {
                return Err("ids of an upper level are wrong");
            }
            let node_below = |down: u32| match below {
                None => Some(down),
                Some(below) => below.ids.get(down as usize).copied(),
            };
            let agree = level.ids.iter().zip(level.down).all(|(n, d)| node_below(*d) == Some(*n));
            if !agree || !level.lists.is_sound(places) {
                return Err("links of an upper level are wrong");
            }
            below = Some(level);
        }
        if below.is_some_and(|top| top.ids.binary_search(&graph.entry).is_err()) {
            return Err("the entry is not on the highest level");
        }
        Ok(graph)
    }

    fn try_level(&self, index: usize) -> Option<Level<'a>> {
        let record = self.words.get(LINE * (1 + index)..)?.first_chunk::<3>()?;
        let [nodes, edges, first] = record.map(|word| word as usize);
        let rest = self.words.get(first..)?;
        let (ids, rest) = rest.split_at_checked(nodes)?;
        let (down, rest) = rest.split_at_checked(nodes)?;
        let (offsets, rest) = rest.split_at_checked(nodes + 1)?;
        let links = rest.get(..edges)?;
        Some(Level { ids, down, lists: Lists { offsets, links } })
    }

    /// Number of nodes.
    pub fn nodes(&self) -> u32 {
        self.base.offsets.len() as u32 - 1
    }

    /// Upper levels, numbered from the lowest.
    pub fn levels(&self) -> usize {
        self.levels
    }

    /// One upper level.
    pub fn level(&self, index: usize) -> Level<'a> {
        self.try_level(index).expect("check read this level")
    }

    /// Node where a walk begins.
    pub fn entry(&self) -> u32 {
        self.entry
    }

    /// Neighbours of `node` on the base layer.
    #[inline]
    pub fn neighbours(&self, node: u32) -> &'a [u32] {
        self.base.of(node)
    }

    /// Asks the processor to load the neighbour list of `node`.
    #[inline]
    pub fn prefetch(&self, node: u32) {
        self.neighbours(node).chunks(16).for_each(|line| crate::kernel::prefetch(&line[0]));
    }
}

/// `count` words from `start`, and where the next part starts.
fn part(words: &[u32], start: usize, count: usize) -> Option<(&[u32], usize)> {
    let part = words.get(start..start.checked_add(count)?)?;
    Some((part, (start + count).next_multiple_of(LINE)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::disk::FileBytes;
    use proptest::prelude::*;

    fn small() -> Links {
        let ring = |n: u32| (0..n).map(|i| vec![(i + 1) % n, (i + n - 1) % n]).collect();
        Links {
            entry: 20,
            m: 4,
            base: ring(30),
            upper: vec![
                UpperLevel { ids: vec![3, 20, 25], links: vec![vec![20], vec![3, 25], vec![20]] },
                UpperLevel { ids: vec![20], links: vec![vec![]] },
            ],
        }
    }

    #[test]
    fn a_graph_reads_back_as_it_was_written() {
        let links = small();
        let bytes = FileBytes::copied_from(&links.to_bytes());
        let graph = GraphView::check(&bytes, 30).unwrap();
        assert_eq!((graph.nodes(), graph.entry(), graph.levels()), (30, 20, 2));
        for node in 0..30 {
            assert_eq!(graph.neighbours(node), links.base[node as usize]);
        }
        let low = graph.level(0);
        assert_eq!((low.ids, low.down), (&[3, 20, 25][..], &[3, 20, 25][..]));
        assert_eq!(low.neighbours(1), &[0, 2]);
        assert_eq!((graph.level(1).ids, graph.level(1).down), (&[20][..], &[1][..]));
        assert!(GraphView::check(&bytes, 31).is_err());
    }

    #[test]
    fn a_graph_with_any_bit_flipped_is_refused_or_safe_to_walk() {
        let bytes = small().to_bytes();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let damaged = FileBytes::copied_from(&damaged);
            if let Ok(graph) = GraphView::check(&damaged, 30) {
                walk_everywhere(&graph);
            }
        }
        for len in 0..bytes.len() {
            let cut = FileBytes::copied_from(&bytes[..len]);
            assert!(GraphView::check(&cut, 30).is_err(), "cut to {len} bytes");
        }
    }

    fn walk_everywhere(graph: &GraphView<'_>) {
        for node in 0..graph.nodes() {
            assert!(graph.neighbours(node).iter().all(|link| *link < graph.nodes()));
        }
        for index in 0..graph.levels() {
            let level = graph.level(index);
            for place in 0..level.ids.len() as u32 {
                let links = level.neighbours(place);
                assert!(links.iter().all(|link| (*link as usize) < level.ids.len()));
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(
            mut words in prop::collection::vec(prop_oneof![0u32..40, any::<u32>()], 0..200),
            with_header in any::<bool>(),
        ) {
            if with_header && words.len() >= 8 {
                (words[0], words[1], words[7]) = (MAGIC, VERSION, words.len() as u32);
            }
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let bytes = FileBytes::copied_from(&bytes);
            if let Ok(graph) = GraphView::check(&bytes, words.get(2).copied().unwrap_or(0)) {
                walk_everywhere(&graph);
            }
        }
    }
}
