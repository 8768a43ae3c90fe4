//! Consistency tokens and page tokens: opaque to users, checked on their way back.
//!
//! | part     | bytes | content                                                        |
//! |----------|-------|----------------------------------------------------------------|
//! | kind     | 1     | 1: consistency, 2: page                                        |
//! | cluster  | 8     | identity of the cluster                                        |
//! | graph    | 8     | incarnation of the graph                                       |
//! | body     |       | kind 1: per shard its id (8) and log index (8), ascending;     |
//! |          |       | kind 2: hash of the request (8), key of the last fact (20)     |
//! | checksum | 4     | low half of the 64-bit xxh3 of all before                      |
//!
//! Integers are little-endian, keys big-endian; the whole is written in URL-safe base64.

use crate::names::invalid;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hopbine_proto::graph::GraphInfo;
use hopbine_proto::limits;
use hopbine_proto::status::{Code, Problem};
use hopbine_proto::{FactKey, LogIndex, ShardId};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

const CONSISTENCY: u8 = 1;
const PAGE: u8 = 2;
const HEAD: usize = 17;
const CHECKSUM: usize = 4;
/// Characters of the longest token of any kind: every shard a graph can have, and their children.
const TEXT_MAX: usize = 64 * 1024;

/// Log index per shard that a read must have applied at least.
pub type Indexes = BTreeMap<ShardId, LogIndex>;

/// Writes a consistency token for `graph`.
pub fn consistency_token(cluster: u64, graph: &GraphInfo, indexes: &Indexes) -> String {
    let mut bytes = head(CONSISTENCY, cluster, graph);
    for (shard, index) in indexes {
        bytes.extend_from_slice(&shard.0.to_le_bytes());
        bytes.extend_from_slice(&index.0.to_le_bytes());
    }
    seal(bytes)
}

/// Reads a consistency token. One of another cluster, graph or incarnation of the graph is
/// `invalid_request`: its log indexes mean nothing here.
pub fn read_consistency_token(
    cluster: u64,
    graph: &GraphInfo,
    text: &str,
) -> Result<Indexes, Problem> {
    let place = "/consistency_token";
    let body = open(CONSISTENCY, cluster, graph, text, place)?;
    let (pairs, rest) = body.as_chunks::<16>();
    if !rest.is_empty() {
        return Err(invalid(place, "the token is not one of ours"));
    }
    Ok(pairs
        .iter()
        .map(|pair| {
            let pair = u128::from_le_bytes(*pair);
            (ShardId(pair as u64), LogIndex((pair >> 64) as u64))
        })
        .collect())
}

/// Writes a page token: the page after `last` of the request whose hash is `request`.
pub fn page_token(cluster: u64, graph: &GraphInfo, request: u64, last: FactKey) -> String {
    let mut bytes = head(PAGE, cluster, graph);
    bytes.extend_from_slice(&request.to_le_bytes());
    bytes.extend_from_slice(&last.to_bytes());
    seal(bytes)
}

/// Reads a page token that was made for the same request.
pub fn read_page_token(
    cluster: u64,
    graph: &GraphInfo,
    request: u64,
    text: &str,
) -> Result<FactKey, Problem> {
    let place = "/page_token";
    let body = open(PAGE, cluster, graph, text, place)?;
    let parts = body.split_first_chunk::<8>();
    let Some((made_for, Ok(key))) = parts.map(|(hash, key)| (hash, key.try_into())) else {
        return Err(invalid(place, "the token is not one of ours"));
    };
    if u64::from_le_bytes(*made_for) != request {
        return Err(invalid(place, "the token belongs to a request with other fields"));
    }
    Ok(FactKey::from_bytes(key))
}

fn head(kind: u8, cluster: u64, graph: &GraphInfo) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&cluster.to_le_bytes());
    bytes.extend_from_slice(&graph.id.0.to_le_bytes());
    bytes
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    (xxh3_64(bytes) as u32).to_le_bytes()
}

fn seal(mut bytes: Vec<u8>) -> String {
    let checksum = checksum(&bytes);
    bytes.extend_from_slice(&checksum);
    URL_SAFE_NO_PAD.encode(bytes)
}

fn open(
    kind: u8,
    cluster: u64,
    graph: &GraphInfo,
    text: &str,
    place: &str,
) -> Result<Vec<u8>, Problem> {
    let foreign = || invalid(place, "the token is not one of ours");
    if text.len() > TEXT_MAX {
        return Err(foreign());
    }
    let mut bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| foreign())?;
    let whole = bytes.len().checked_sub(CHECKSUM).filter(|end| *end >= HEAD).ok_or_else(foreign)?;
    if checksum(&bytes[..whole]) != bytes[whole..] || bytes[0] != kind {
        return Err(foreign());
    }
    let wanted = head(kind, cluster, graph);
    if bytes[1..9] != wanted[1..9] {
        return Err(invalid(place, "the token comes from another cluster"));
    }
    if bytes[9..HEAD] != wanted[9..] {
        let detail = "the token belongs to another graph or to a dropped one";
        let problem = invalid(place, detail);
        return Err(match kind {
            PAGE => Problem { code: Code::PageTokenExpired, ..problem },
            _ => problem,
        });
    }
    bytes.truncate(whole);
    bytes.drain(..HEAD);
    Ok(bytes)
}

// A token for every shard fits the bound: 16 bytes a shard, 4 characters for 3 bytes.
const _: () = assert!((limits::SHARDS_PER_GRAPH_MAX as usize * 16 + 64) * 4 / 3 < TEXT_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::GraphId;
    use hopbine_proto::graph::{GraphConfig, IdKind};
    use proptest::prelude::*;

    fn graph(id: u64) -> GraphInfo {
        GraphInfo {
            id: GraphId(id),
            name: "g".into(),
            config: GraphConfig::new(4, IdKind::U64),
            version: 1,
            relations: BTreeMap::new(),
            shards: Vec::new(),
        }
    }

    #[test]
    fn a_foreign_token_is_refused_with_its_reason() {
        let indexes = Indexes::from([(ShardId(1), LogIndex(7))]);
        let token = consistency_token(5, &graph(1), &indexes);
        let refusal =
            |cluster, id| read_consistency_token(cluster, &graph(id), &token).unwrap_err().detail;
        assert_eq!(refusal(6, 1), "the token comes from another cluster");
        assert_eq!(refusal(5, 2), "the token belongs to another graph or to a dropped one");
        assert!(read_page_token(5, &graph(1), 0, &token).is_err());
        let page = page_token(5, &graph(1), 9, FactKey::MAX);
        assert_eq!(read_page_token(5, &graph(1), 9, &page), Ok(FactKey::MAX));
        let other = read_page_token(5, &graph(1), 8, &page).unwrap_err();
        assert_eq!(other.detail, "the token belongs to a request with other fields");
    }

    proptest! {
        #[test]
        fn tokens_come_back_as_they_were(
            indexes in proptest::collection::btree_map(any::<u64>(), any::<u64>(), 0..9),
        ) {
            let indexes: Indexes =
                indexes.into_iter().map(|(s, i)| (ShardId(s), LogIndex(i))).collect();
            let token = consistency_token(3, &graph(4), &indexes);
            prop_assert_eq!(read_consistency_token(3, &graph(4), &token), Ok(indexes));
        }

        #[test]
        fn no_text_makes_reading_panic(text in ".{0,200}", flip in 0usize..40) {
            prop_assert!(read_consistency_token(3, &graph(4), &text).is_err());
            let token = consistency_token(3, &graph(4), &Indexes::new());
            let mut bytes = token.into_bytes();
            let at = flip % bytes.len();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let text = String::from_utf8(bytes).expect("ascii");
            prop_assert!(read_consistency_token(3, &graph(4), &text).is_err());
        }
    }
}
