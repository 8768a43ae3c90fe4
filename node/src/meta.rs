//! The catalogue as a raft state machine, group 0, and its file.
//!
//! | part of `catalogue/STATE` | bytes  | content                                   |
//! |---------------------------|--------|-------------------------------------------|
//! | magic                     | 8      | `HOPBCAT1`                                |
//! | checksum                  | 4      | crc32c of the rest, little-endian         |
//! | rest                      | varies | postcard of `Saved`                       |
//!
//! The file is replaced as a whole; what is newer than it lies in the raft log.

use crate::catalogue::{Catalogue, CatalogueCommand, CatalogueReply};
use crate::error::NodeError;
use bytes::Bytes;
use hopbine_proto::disk::Disk;
use hopbine_proto::status::{Code, Problem};
use hopbine_raft::{Checkpoint, Entry, Halt, LogPosition, Machine};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

const MAGIC: &[u8; 8] = b"HOPBCAT1";
/// Commands after which the state is worth saving: replaying this many takes milliseconds.
const COMMANDS_PER_SAVE: u64 = 256;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Saved {
    at: LogPosition,
    membership: Bytes,
    catalogue: Catalogue,
}

/// The machine of the catalogue group.
pub struct Meta {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    state: Mutex<State>,
    /// Held while the file is replaced: an older state must not come after a newer one, and two
    /// may not share the temporary file.
    saving: Mutex<()>,
    current: RwLock<Arc<Catalogue>>,
}

struct State {
    live: Saved,
    durable: Checkpoint,
    unsaved: u64,
}

impl Meta {
    /// Opens the catalogue below `dir`, empty when there is no file yet.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path) -> Result<Self, NodeError> {
        let path = dir.join("catalogue").join("STATE");
        let live = load(disk.as_ref(), &path)?.unwrap_or_default();
        let durable = Checkpoint { at: live.at, membership: live.membership.clone() };
        let current = RwLock::new(Arc::new(live.catalogue.clone()));
        let state = Mutex::new(State { live, durable, unsaved: 0 });
        Ok(Self { disk, path, state, saving: Mutex::default(), current })
    }

    /// The catalogue as of the last applied command.
    pub fn catalogue(&self) -> Arc<Catalogue> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether enough changed since the last save.
    pub fn wants_saving(&self) -> bool {
        self.state().unsaved >= COMMANDS_PER_SAVE
    }

    /// Makes the state durable, so that the log below it may go. Returns whether it changed.
    pub fn save(&self) -> Result<bool, NodeError> {
        let _saving = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let (live, commands) = {
            let state = self.state();
            (state.live.clone(), state.unsaved)
        };
        if live.at == self.state().durable.at {
            return Ok(false);
        }
        let rest = postcard::to_stdvec(&live).expect("plain data always encodes");
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&crc32c::crc32c(&rest).to_le_bytes());
        bytes.extend_from_slice(&rest);
        let parent = self.path.parent().expect("the file lies in the catalogue folder");
        self.disk.create_dir(parent).map_err(NodeError::io("create the catalogue folder"))?;
        self.disk.replace(&self.path, &bytes).map_err(NodeError::io("save the catalogue"))?;
        let above = parent.parent().unwrap_or(Path::new("."));
        self.disk.sync_dir(above).map_err(NodeError::io("save the catalogue folder"))?;
        let mut state = self.state();
        state.durable = Checkpoint { at: live.at, membership: live.membership };
        // Commands may have come while the file was written.
        state.unsaved -= commands;
        Ok(true)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads and checks the file; `None` when there is none.
fn load(disk: &dyn Disk, path: &Path) -> Result<Option<Saved>, NodeError> {
    let damaged = |reason: &str| NodeError::Damaged {
        file: "catalogue/STATE".to_owned(),
        reason: reason.to_owned(),
    };
    if disk.len(path).map_err(NodeError::io("look at the catalogue"))?.is_none() {
        return Ok(None);
    }
    let bytes = disk.read(path).map_err(NodeError::io("read the catalogue"))?;
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| damaged("its magic is wrong"))?;
    let (crc, rest) = rest.split_first_chunk::<4>().ok_or_else(|| damaged("it is cut short"))?;
    if crc32c::crc32c(rest) != u32::from_le_bytes(*crc) {
        return Err(damaged("its checksum is wrong"));
    }
    let saved: Saved =
        postcard::from_bytes(rest).map_err(|_| damaged("its content cannot be read"))?;
    if !saved.catalogue.is_possible() {
        return Err(damaged("it holds a number that no catalogue reaches"));
    }
    Ok(Some(saved))
}

/// Verifies the file below a data folder, for the offline check.
pub fn check_file(
    disk: &dyn Disk,
    dir: &Path,
) -> Result<Option<(LogPosition, Catalogue)>, NodeError> {
    let saved = load(disk, &dir.join("catalogue").join("STATE"))?;
    Ok(saved.map(|saved| (saved.at, saved.catalogue)))
}

/// The body of a command for the catalogue.
pub fn encode(command: &CatalogueCommand) -> Bytes {
    postcard::to_stdvec(command).expect("plain data always encodes").into()
}

impl Machine for Meta {
    fn apply(&self, at: LogPosition, entry: Entry<'_>) -> Result<Bytes, Halt> {
        let mut state = self.state();
        state.live.at = at;
        state.unsaved += 1;
        match entry {
            Entry::Blank => Ok(Bytes::new()),
            Entry::Membership(bytes) => {
                state.live.membership = bytes.clone();
                Ok(Bytes::new())
            }
            Entry::Command(command) => {
                let reply = match postcard::from_bytes(&command.body) {
                    Ok(command) => state.live.catalogue.apply(command),
                    Err(_) => CatalogueReply::Refused(Problem::new(
                        Code::VersionSkew,
                        "the catalogue command cannot be read by this version",
                    )),
                };
                let now = Arc::new(state.live.catalogue.clone());
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = now;
                Ok(postcard::to_stdvec(&reply).expect("plain data always encodes").into())
            }
        }
    }

    /// On a full disk the drop of a graph is how space comes back.
    fn uses_reserve(&self) -> bool {
        true
    }

    fn recovered(&self) -> Checkpoint {
        self.state().durable.clone()
    }

    fn checkpoint(&self) -> Option<Checkpoint> {
        Some(self.state().durable.clone()).filter(|durable| durable.at != LogPosition::NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::disk::{DiskFile, FileBytes};
    use hopbine_proto::graph::{GraphConfig, IdKind};
    use hopbine_proto::sim_disk::SimDisk;
    use hopbine_proto::{Epoch, NodeId};
    use hopbine_raft::Command;
    use std::io;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    /// A disk whose first `replace` says that it begins and waits to go on.
    struct Slow(SimDisk, Mutex<Option<(Sender<()>, Receiver<()>)>>);

    impl Disk for Slow {
        fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
            self.0.create(path)
        }
        fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
            self.0.open(path)
        }
        fn map(&self, path: &Path) -> io::Result<FileBytes> {
            self.0.map(path)
        }
        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            self.0.read(path)
        }
        fn len(&self, path: &Path) -> io::Result<Option<u64>> {
            self.0.len(path)
        }
        fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
            self.0.list(dir)
        }
        fn create_dir(&self, dir: &Path) -> io::Result<()> {
            self.0.create_dir(dir)
        }
        fn remove(&self, path: &Path) -> io::Result<()> {
            self.0.remove(path)
        }
        fn remove_dir(&self, dir: &Path) -> io::Result<()> {
            self.0.remove_dir(dir)
        }
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.0.rename(from, to)
        }
        fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.0.hard_link(from, to)
        }
        fn sync_dir(&self, dir: &Path) -> io::Result<()> {
            self.0.sync_dir(dir)
        }
        fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
            let stop = self.1.lock().expect("no panic").take();
            if let Some((begun, go)) = stop {
                begun.send(()).expect("heard");
                go.recv().expect("told");
            }
            self.0.replace(path, bytes)
        }
    }

    fn create(meta: &Meta, index: u64, name: &str) {
        let command = CatalogueCommand::Create {
            name: name.into(),
            config: GraphConfig::new(4, IdKind::U64),
            node: NodeId(1),
        };
        let command = Command::new(Epoch(0), encode(&command));
        let at = LogPosition::new(1, index);
        meta.apply(at, Entry::Command(&command)).expect("applied");
    }

    #[test]
    fn a_saved_catalogue_is_found_again_and_what_came_later_is_left_to_the_log() {
        let disk = SimDisk::new();
        let dir = Path::new("/data");
        let meta = Meta::open(Arc::new(disk.clone()), dir).expect("opened");
        create(&meta, 1, "first");
        assert!(meta.save().expect("saved"));
        assert!(!meta.save().expect("nothing new"));
        create(&meta, 2, "second");
        let again = Meta::open(Arc::new(disk), dir).expect("opened");
        assert!(again.catalogue().graph("first").is_some());
        assert!(again.catalogue().graph("second").is_none());
        assert_eq!(again.recovered().at, LogPosition::new(1, 1));
    }

    #[test]
    fn a_slow_save_never_takes_a_newer_one_back() {
        let (disk, dir) = (SimDisk::new(), Path::new("/data"));
        let ((begun, has_begun), (go, may_go)) = (channel(), channel());
        let slow = Slow(disk.clone(), Mutex::new(Some((begun, may_go))));
        let meta = Arc::new(Meta::open(Arc::new(slow), dir).expect("opened"));
        let save = || {
            let meta = meta.clone();
            std::thread::spawn(move || meta.save().expect("saved"))
        };
        create(&meta, 1, "first");
        let first = save();
        has_begun.recv().expect("the first save writes");
        create(&meta, 2, "second");
        let second = save();
        // Long enough for a second save that does not wait to be through.
        std::thread::sleep(Duration::from_millis(50));
        go.send(()).expect("the first save waits");
        assert!(first.join().expect("ended") && second.join().expect("ended"));
        let again = Meta::open(Arc::new(disk), dir).expect("opened");
        let last = LogPosition::new(1, 2);
        assert_eq!((again.recovered().at, meta.checkpoint().map(|c| c.at)), (last, Some(last)));
        assert!(again.catalogue().graph("second").is_some());
    }

    #[test]
    fn every_flipped_byte_of_the_file_is_noticed() {
        let disk = SimDisk::new();
        let dir = Path::new("/data");
        let meta = Meta::open(Arc::new(disk.clone()), dir).expect("opened");
        create(&meta, 1, "graph");
        meta.save().expect("saved");
        let path = dir.join("catalogue").join("STATE");
        let len = disk.read(&path).expect("read").len();
        for at in 0..len {
            let broken = disk.fork();
            broken.tamper(&path, |bytes| bytes[at] ^= 0x40);
            let opened = Meta::open(Arc::new(broken), dir);
            assert!(matches!(opened, Err(NodeError::Damaged { .. })), "byte {at}");
        }
        for len in 0..len {
            let cut = disk.fork();
            cut.tamper(&path, |bytes| bytes.truncate(len));
            assert!(Meta::open(Arc::new(cut), dir).is_err(), "cut to {len}");
        }
    }
}
