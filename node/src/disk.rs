//! The data folder itself: its `FORMAT`, its `LOCK` and the node's id.
//!
//! | file      | content                                                           |
//! |-----------|-------------------------------------------------------------------|
//! | `FORMAT`  | `hopbine data folder`, then a line with the format's number       |
//! | `LOCK`    | held by `flock` while the process lives; pid, then its URL if any |
//! | `node-id` | this node's number, decimal, made at first start; then a line     |
//! |           | `new`, until that start has written into the log                  |

use crate::error::NodeError;
use hopbine_proto::NodeId;
use hopbine_proto::disk::{Disk, OsDisk};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The format that this version writes, and the newest that it reads.
pub const FORMAT: u32 = 1;
const FORMAT_TITLE: &str = "hopbine data folder";

/// How long a holder has to write its name into the lock that it has just taken.
const HOLDER_PAUSE: Duration = Duration::from_millis(20);

/// The lock on a data folder; let go when dropped or when the process ends.
pub struct FolderLock {
    file: File,
    path: PathBuf,
}

/// Takes the lock of `dir`, creating the folder when needed.
/// Fails with `Locked` naming the process that holds it.
pub fn lock(dir: &Path) -> Result<FolderLock, NodeError> {
    make_durable(dir).map_err(NodeError::io(format!("create {}", dir.display())))?;
    let path = dir.join("LOCK");
    let (mut options, looked) = (OpenOptions::new(), refuse_foreign(&OsDisk, dir));
    // Nothing is made in a folder that is not ours. It may look like that while another process
    // makes it, which has made its `LOCK` first.
    options.create(looked.is_ok()).read(true).write(true).truncate(false);
    let file = match (options.open(&path), looked) {
        (Ok(file), _) => file,
        (Err(_), Err(foreign)) => return Err(foreign),
        (Err(error), Ok(())) => {
            return Err(NodeError::io(format!("open {}", path.display()))(error));
        }
    };
    let mut lock = FolderLock { file, path };
    lock.take(dir, File::try_lock)?;
    // Nobody else makes anything now.
    refuse_foreign(&OsDisk, dir)?;
    lock.say(None)?;
    Ok(lock)
}

/// The same for a process that changes nothing, which may be on a file system that cannot be
/// written to. `None`: there nobody has ever locked the folder.
pub fn lock_to_read(dir: &Path) -> Result<Option<FolderLock>, NodeError> {
    match lock(dir) {
        Err(NodeError::Io { source, .. }) if source.kind() == ErrorKind::ReadOnlyFilesystem => {
            lock_as_it_is(dir)
        }
        locked => locked.map(Some),
    }
}

fn lock_as_it_is(dir: &Path) -> Result<Option<FolderLock>, NodeError> {
    let path = dir.join("LOCK");
    let file = match File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(NodeError::io(format!("open {}", path.display())))?,
    };
    let mut lock = FolderLock { file, path };
    // Some file systems lock a file that is open for reading for readers alone.
    lock.take(dir, File::try_lock_shared)?;
    Ok(Some(lock))
}

/// Makes a folder and those above it that are missing; each survives a power loss.
fn make_durable(dir: &Path) -> std::io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    make_durable(parent)?;
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && dir.is_dir() => {}
        made => made?,
    }
    File::open(parent)?.sync_all()
}

/// What a data folder holds beside a few files.
pub const DATA_FOLDERS: [&str; 3] = ["raft", "catalogue", "shards"];

/// A folder without `FORMAT` that holds anything else than a new one may is not ours.
fn refuse_foreign(disk: &dyn Disk, dir: &Path) -> Result<(), NodeError> {
    let known = disk.len(&dir.join("FORMAT")).map_err(NodeError::io("look at FORMAT"))?;
    if known.is_some() {
        return Ok(());
    }
    let names = disk.list(dir).map_err(NodeError::io("list the data folder"))?;
    let ours = |name: &String| name == "LOCK" || name == "FORMAT.tmp";
    let others = || names.iter().filter(|name| !ours(name));
    let data = others().find(|name| DATA_FOLDERS.contains(&&***name));
    match data.or(others().next()) {
        None => Ok(()),
        Some(other) if DATA_FOLDERS.contains(&&**other) => {
            let reason = format!("it is missing, but there is {other}");
            Err(NodeError::Damaged { file: "FORMAT".to_owned(), reason })
        }
        Some(other) => {
            let reason = format!("it holds {other} and no FORMAT");
            Err(NodeError::Foreign { dir: dir.to_owned(), reason })
        }
    }
}

impl FolderLock {
    /// Takes the lock of the folder `dir`.
    fn take(
        &mut self,
        dir: &Path,
        lock: impl Fn(&File) -> Result<(), std::fs::TryLockError>,
    ) -> Result<(), NodeError> {
        match lock(&self.file) {
            Ok(()) => Ok(()),
            Err(std::fs::TryLockError::WouldBlock) => {
                let (pid, url) = self.holder();
                Err(NodeError::Locked { dir: dir.to_owned(), pid, url })
            }
            Err(std::fs::TryLockError::Error(error)) => {
                Err(NodeError::io(format!("lock {}", self.path.display()))(error))
            }
        }
    }

    /// Writes who holds the folder and where it serves, for those who find it locked.
    pub fn say(&mut self, url: Option<&str>) -> Result<(), NodeError> {
        let text = format!("{}\n{}\n", std::process::id(), url.unwrap_or_default());
        let written = (|| {
            // Cut last: a full disk has room for what overwrites.
            self.file.rewind()?;
            self.file.write_all(text.as_bytes())?;
            self.file.set_len(text.len() as u64)
        })();
        written.map_err(NodeError::io(format!("write {}", self.path.display())))
    }

    fn holder(&mut self) -> (u32, Option<String>) {
        // It may have taken the lock in this moment: then the file still names the one before it.
        std::thread::sleep(HOLDER_PAUSE);
        let mut text = String::new();
        // Only for the message: an unreadable file leaves the holder unnamed.
        if self.file.read_to_string(&mut text).is_err() {
            return (0, None);
        }
        let mut lines = text.lines();
        let pid = lines.next().and_then(|line| line.parse().ok()).unwrap_or(0);
        (pid, lines.next().filter(|line| !line.is_empty()).map(str::to_owned))
    }
}

/// Checks `FORMAT`, or writes it into a new folder. A folder that holds anything else but a lock
/// is refused.
pub fn check_format(disk: &dyn Disk, dir: &Path) -> Result<(), NodeError> {
    disk.create_dir(dir).map_err(NodeError::io(format!("create {}", dir.display())))?;
    let path = dir.join("FORMAT");
    let known = disk.len(&path).map_err(NodeError::io("look at FORMAT"))?;
    if known.is_none() {
        refuse_foreign(disk, dir)?;
        let text = format!("{FORMAT_TITLE}\n{FORMAT}\n");
        return disk.replace(&path, text.as_bytes()).map_err(NodeError::io("write FORMAT"));
    }
    let bytes = disk.read(&path).map_err(NodeError::io("read FORMAT"))?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines();
    let title = lines.next();
    let number = lines.next().and_then(|line| line.parse::<u32>().ok());
    match (title, number) {
        (Some(FORMAT_TITLE), Some(found)) if found > FORMAT => {
            Err(NodeError::NewerFormat { dir: dir.to_owned(), found, known: FORMAT })
        }
        (Some(FORMAT_TITLE), Some(_)) if lines.next().is_none() => Ok(()),
        _ => {
            let reason = "it cannot be read".to_owned();
            Err(NodeError::Damaged { file: "FORMAT".to_owned(), reason })
        }
    }
}

/// What `node-id` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// This node's number.
    pub id: NodeId,
    /// Whether its first start got as far as founding a cluster: from then on the log or the
    /// catalogue knows of it, and a folder where neither does has lost them.
    pub founded: bool,
}

/// The second line of `node-id` until the cluster is founded.
const NEW: &str = "new";

/// The node's identity, made from `fresh` in a new folder and kept. A folder that holds anything
/// more than its format has lost its id.
pub fn identity(disk: &dyn Disk, dir: &Path, fresh: u64) -> Result<Identity, NodeError> {
    if let Some(known) = known_identity(disk, dir)? {
        return Ok(known);
    }
    write_node_id(disk, dir, &format!("{fresh}\n{NEW}\n"))?;
    Ok(Identity { id: NodeId(fresh), founded: false })
}

/// Keeps that the node has founded its cluster, which must be durable.
pub fn keep_founded(disk: &dyn Disk, dir: &Path, id: NodeId) -> Result<(), NodeError> {
    write_node_id(disk, dir, &format!("{}\n", id.0))
}

fn write_node_id(disk: &dyn Disk, dir: &Path, text: &str) -> Result<(), NodeError> {
    disk.replace(&dir.join("node-id"), text.as_bytes()).map_err(NodeError::io("write node-id"))
}

/// The node's identity; `None` in a folder that never had one. Changes nothing.
pub fn known_identity(disk: &dyn Disk, dir: &Path) -> Result<Option<Identity>, NodeError> {
    let damaged = |reason: String| NodeError::Damaged { file: "node-id".to_owned(), reason };
    let path = dir.join("node-id");
    if disk.len(&path).map_err(NodeError::io("look at node-id"))?.is_none() {
        let names = disk.list(dir).map_err(NodeError::io("list the data folder"))?;
        let new = |name: &String| name == "LOCK" || name == "FORMAT" || name.ends_with(".tmp");
        return match names.iter().find(|name| !new(name)) {
            None => Ok(None),
            Some(other) => Err(damaged(format!("it is missing beside {other}"))),
        };
    }
    let bytes = disk.read(&path).map_err(NodeError::io("read node-id"))?;
    let text = String::from_utf8_lossy(&bytes);
    let (number, rest) = text.trim().split_once('\n').unwrap_or((text.trim(), ""));
    match (number.trim().parse::<u64>(), rest.trim()) {
        (Ok(id), "") => Ok(Some(Identity { id: NodeId(id), founded: true })),
        (Ok(id), NEW) => Ok(Some(Identity { id: NodeId(id), founded: false })),
        _ => Err(damaged("it holds no number".to_owned())),
    }
}

/// A number that no other start of any process is likely to make; never 0.
pub fn fresh_number() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // std seeds this hasher from the system's random source once per process.
    let hasher = std::collections::hash_map::RandomState::new();
    let mut state = hasher.build_hasher();
    state.write_u128(std::time::UNIX_EPOCH.elapsed().map_or(0, |age| age.as_nanos()));
    state.write_u32(std::process::id());
    state.finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::sim_disk::SimDisk;

    #[test]
    fn a_second_lock_names_the_holder_and_its_url() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut held = lock(dir.path()).expect("free");
        held.say(Some("http://127.0.0.1:7640")).expect("written");
        match lock(dir.path()) {
            Err(NodeError::Locked { pid, url, .. }) => {
                assert_eq!(pid, std::process::id());
                assert_eq!(url.as_deref(), Some("http://127.0.0.1:7640"));
            }
            _ => panic!("the folder is locked"),
        }
        assert!(matches!(lock_as_it_is(dir.path()), Err(NodeError::Locked { .. })));
        drop(held);
        lock(dir.path()).expect("free again");
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_is_locked_as_it_is() {
        let dir = tempfile::tempdir().expect("a folder");
        assert!(lock_as_it_is(dir.path()).expect("nobody's").is_none());
        drop(lock(dir.path()).expect("free"));
        let text = std::fs::read(dir.path().join("LOCK")).expect("read");
        let held = lock_as_it_is(dir.path()).expect("free");
        assert!(held.is_some() && lock(dir.path()).is_err());
        assert_eq!(std::fs::read(dir.path().join("LOCK")).expect("read"), text, "as it was");
    }

    #[test]
    fn a_folder_that_another_process_is_making_is_locked_and_not_foreign() {
        for made in ["node-id", "raft"] {
            let dir = tempfile::tempdir().expect("a folder");
            let held = lock(dir.path()).expect("free");
            // A look for FORMAT that came too early, and a list of files that came late.
            std::fs::create_dir(dir.path().join(made)).expect("made");
            let refused = lock(dir.path()).err().expect("held");
            assert!(matches!(refused, NodeError::Locked { .. }), "{made}: {refused}");
            drop(held);
            let refused = lock(dir.path()).err().expect("there is no FORMAT");
            assert!(!matches!(refused, NodeError::Locked { .. }), "{made}: {refused}");
        }
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("cat.jpg"), "meow").expect("written");
        assert!(matches!(lock(dir.path()), Err(NodeError::Foreign { .. })));
        assert!(!dir.path().join("LOCK").exists(), "nothing is made in a folder of others");
        std::fs::write(dir.path().join("LOCK"), "theirs").expect("written");
        assert!(matches!(lock(dir.path()), Err(NodeError::Foreign { .. })));
        assert_eq!(std::fs::read(dir.path().join("LOCK")).expect("read"), b"theirs");
    }

    #[test]
    fn of_many_first_starts_at_once_one_makes_the_folder() {
        for _ in 0..20 {
            let above = tempfile::tempdir().expect("a folder");
            let dir = above.path().join("new");
            let begin = std::sync::Barrier::new(4);
            let start = |number: u64| {
                begin.wait();
                let held = lock(&dir)?;
                check_format(&OsDisk, &dir)?;
                Ok::<_, NodeError>((held, identity(&OsDisk, &dir, number)?))
            };
            let starts: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (1..5).map(|n| scope.spawn(move || start(n))).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            let (made, refused): (Vec<_>, Vec<_>) = starts.into_iter().partition(Result::is_ok);
            for error in refused.into_iter().filter_map(Result::err) {
                assert!(matches!(error, NodeError::Locked { .. }), "{error}");
            }
            let made: Vec<_> = made.into_iter().filter_map(Result::ok).collect();
            assert_eq!(made.len(), 1);
            let known = known_identity(&OsDisk, &dir).expect("read");
            assert_eq!(known, Some(made[0].1));
        }
    }

    #[test]
    fn formats_are_made_known_and_refused() {
        let disk = SimDisk::new();
        let dir = Path::new("/data");
        check_format(&disk, dir).expect("new folder");
        check_format(&disk, dir).expect("known folder");
        disk.replace(&dir.join("FORMAT"), b"hopbine data folder\n99\n").expect("written");
        assert!(matches!(
            check_format(&disk, dir),
            Err(NodeError::NewerFormat { found: 99, known: FORMAT, .. })
        ));
        let other = Path::new("/photos");
        disk.replace(&other.join("cat.jpg"), b"meow").expect("written");
        assert!(matches!(check_format(&disk, other), Err(NodeError::Foreign { .. })));
    }

    #[test]
    fn the_node_id_is_made_once() {
        let disk = SimDisk::new();
        let dir = Path::new("/data");
        disk.create_dir(dir).expect("made");
        let made = |founded| Identity { id: NodeId(5), founded };
        assert_eq!(identity(&disk, dir, 5).expect("made"), made(false));
        assert_eq!(identity(&disk, dir, 6).expect("kept"), made(false));
        keep_founded(&disk, dir, NodeId(5)).expect("written");
        assert_eq!(identity(&disk, dir, 6).expect("kept"), made(true));
        assert_eq!(disk.read(&dir.join("node-id")).expect("read"), b"5\n");
        let lost = disk.fork();
        lost.create_dir(&dir.join("raft")).expect("made");
        lost.replace(&dir.join("raft").join("1.log"), b"").expect("written");
        lost.remove(&dir.join("node-id")).expect("removed");
        assert!(matches!(identity(&lost, dir, 7), Err(NodeError::Damaged { .. })));
        for text in ["what", "5\nold\n", "new\n", ""] {
            disk.replace(&dir.join("node-id"), text.as_bytes()).expect("written");
            let refused = identity(&disk, dir, 7);
            assert!(matches!(refused, Err(NodeError::Damaged { .. })), "{text:?}: {refused:?}");
        }
    }
}
