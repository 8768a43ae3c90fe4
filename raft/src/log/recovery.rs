//! From the records of all segments to what each group holds: pure replay.

use super::disk::{LogDir, Segment};
use super::index::GroupIndex;
use super::record::Kind;
use crate::error::LogError;
use hopbine_proto::GroupId;
use std::collections::BTreeMap;

/// Replays all records. Groups that were removed are left out. A group with a hole is damage: an
/// entry that was acknowledged is gone.
pub fn groups_of(
    log: &LogDir,
    segments: &[Segment],
) -> Result<BTreeMap<GroupId, GroupIndex>, LogError> {
    let mut groups: BTreeMap<GroupId, GroupIndex> = BTreeMap::new();
    for segment in segments {
        for listed in &segment.listing.records {
            if !listed.head.is_possible() {
                return Err(LogError::Damaged {
                    file: log.path(segment.number),
                    offset: listed.offset,
                    what: "a number that no log reaches",
                });
            }
            if listed.head.kind == Kind::Batch {
                continue;
            }
            let group = groups.entry(listed.head.group).or_default();
            group.replay(segment.number, listed);
        }
    }
    groups.retain(|_, group| !group.is_removed());
    if groups.values().all(GroupIndex::is_whole) {
        return Ok(groups);
    }
    let first = segments.first().map_or(0, |segment| segment.number);
    Err(LogError::Damaged {
        file: log.path(first),
        offset: 0,
        what: "a group's entries have a hole",
    })
}
