//! Reading a group's commands from the log of a folder that nobody has open.

use super::entry;
use crate::command::{Command, LogPosition};
use crate::error::LogError;
use crate::log::disk::{LogDir, Verify};
use crate::log::record::{self, HEAD_BYTES};
use crate::log::recovery::groups_of;
use bytes::Bytes;
use hopbine_proto::GroupId;
use hopbine_proto::disk::Disk;
use openraft::EntryPayload;
use std::path::Path;
use std::sync::Arc;

/// The commands of `group` that the log in `dir` still holds, in order; changes nothing. With one
/// voter these are what the next start applies. Fails where the log cannot be trusted.
pub fn commands_of(
    disk: Arc<dyn Disk>,
    dir: &Path,
    group: GroupId,
) -> Result<Vec<(LogPosition, Command)>, LogError> {
    let log = LogDir::existing(disk, dir);
    let recovered = log.recover(Verify::Records)?;
    let groups = groups_of(&log, &recovered.segments)?;
    let Some(index) = groups.get(&group) else { return Ok(Vec::new()) };
    let mut commands = Vec::new();
    for (at, slot) in index.range(..) {
        let Some(place) = slot.place else { continue };
        let number = place.spot.segment;
        let damaged =
            |what| LogError::Damaged { file: log.path(number), offset: place.spot.offset, what };
        let segment = recovered.segments.iter().find(|segment| segment.number == number);
        let segment = segment.ok_or_else(|| damaged("an entry of a segment that is gone"))?;
        let mut bytes = vec![0; HEAD_BYTES + place.len as usize];
        segment
            .file
            .read_at(place.spot.offset, &mut bytes)
            .map_err(|_| damaged("an entry cannot be read"))?;
        let (_, payload) = record::decode(&bytes, place.spot)
            .ok_or_else(|| damaged("an entry that reads otherwise than before"))?;
        let position = LogPosition::new(slot.term, at);
        let entry = entry::decode(position, &Bytes::copy_from_slice(payload))
            .map_err(|_| damaged("an entry that is none"))?;
        if let EntryPayload::Normal(command) = entry.payload {
            commands.push((position, command));
        }
    }
    Ok(commands)
}
