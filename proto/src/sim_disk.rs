//! A disk in memory that loses what was not synced, and can fail, fill up and tear.
//!
//! It keeps two states. The *visible* one is what a running process sees. The *durable* one is
//! what a power loss leaves: file contents as of their last `sync_data`, folder entries as of
//! their last `sync_dir`. `crash` makes the visible state the durable one. Every call that can
//! change the durable state is a *sync point*; a test enumerates them with `fail_from`.

use crate::disk::{Disk, DiskFile, FileBytes};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// What happens to the write in flight when the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tear {
    /// All data written since the last sync is gone.
    Lost,
    /// Of each file's first write since its last sync, the first half is kept.
    HalfOfFirst,
    /// All of it happens to have reached the disk, though no sync returned.
    Kept,
}

#[derive(Clone, Debug, Default)]
struct Node {
    visible: Vec<u8>,
    durable: Vec<u8>,
    /// Writes since the last sync: offset and bytes.
    pending: Vec<(u64, Vec<u8>)>,
}

type File = Arc<Mutex<Node>>;

#[derive(Default)]
struct State {
    visible: BTreeMap<PathBuf, File>,
    durable: BTreeMap<PathBuf, File>,
    dirs: std::collections::BTreeSet<PathBuf>,
    sync_points: u64,
    fail_from: Option<u64>,
    capacity: Option<u64>,
    write_error: Option<ErrorKind>,
}

/// A simulated disk; clones share their state.
#[derive(Clone, Default)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn missing(path: &Path) -> io::Error {
    io::Error::new(ErrorKind::NotFound, format!("no file {}", path.display()))
}

impl SimDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sync points passed so far.
    pub fn sync_points(&self) -> u64 {
        lock(&self.state).sync_points
    }

    /// From sync point number `point` on (counted from 0 over the disk's life) every sync, rename
    /// and write fails: the process must stop, and the test then calls `crash`.
    pub fn fail_from(&self, point: u64) {
        lock(&self.state).fail_from = Some(point);
    }

    /// Writes fail with `StorageFull` once all files together exceed `bytes`.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        lock(&self.state).capacity = bytes;
    }

    /// Every write fails with this kind until it is set to `None`.
    pub fn set_write_error(&self, kind: Option<ErrorKind>) {
        lock(&self.state).write_error = kind;
    }

    /// The power goes: what was not synced is treated by `tear`; faults are lifted.
    pub fn crash(&self, tear: Tear) {
        let mut state = lock(&self.state);
        let durable = state.durable.clone();
        for file in durable.values() {
            let mut node = lock(file);
            match tear {
                Tear::Lost => node.visible = node.durable.clone(),
                Tear::HalfOfFirst => {
                    let mut bytes = node.durable.clone();
                    if let Some((offset, written)) = node.pending.first() {
                        let half = &written[..written.len() / 2];
                        put(&mut bytes, *offset, half);
                    }
                    node.visible = bytes;
                }
                Tear::Kept => {}
            }
            node.durable = node.visible.clone();
            node.pending.clear();
        }
        state.visible = durable;
        state.fail_from = None;
        state.write_error = None;
        state.capacity = None;
    }

    /// A copy of the disk that shares nothing with this one.
    pub fn fork(&self) -> Self {
        let state = lock(&self.state);
        let mut copies: BTreeMap<*const Mutex<Node>, File> = BTreeMap::new();
        let mut copy = |files: &BTreeMap<PathBuf, File>| -> BTreeMap<PathBuf, File> {
            let copied = files.iter().map(|(path, file)| {
                let copy = copies
                    .entry(Arc::as_ptr(file))
                    .or_insert_with(|| Arc::new(Mutex::new(lock(file).clone())));
                (path.clone(), copy.clone())
            });
            copied.collect()
        };
        let (visible, durable) = (copy(&state.visible), copy(&state.durable));
        let forked = State {
            visible,
            durable,
            dirs: state.dirs.clone(),
            sync_points: state.sync_points,
            fail_from: None,
            capacity: None,
            write_error: None,
        };
        Self { state: Arc::new(Mutex::new(forked)) }
    }

    /// Changes a file's bytes behind everybody's back: bit flips and truncations.
    pub fn tamper(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let file = lock(&self.state).visible.get(path).cloned().expect("the file exists");
        let mut node = lock(&file);
        change(&mut node.visible);
        node.durable = node.visible.clone();
    }

    /// Paths of all visible files.
    pub fn files(&self) -> Vec<PathBuf> {
        lock(&self.state).visible.keys().cloned().collect()
    }

    fn file(&self, path: &Path) -> io::Result<File> {
        lock(&self.state).visible.get(path).cloned().ok_or_else(|| missing(path))
    }
}

impl State {
    fn sync_point(&mut self) -> io::Result<()> {
        let point = self.sync_points;
        self.sync_points += 1;
        self.check_alive_at(point)
    }

    fn check_alive_at(&self, point: u64) -> io::Result<()> {
        if self.fail_from.is_some_and(|from| point >= from) {
            return Err(io::Error::other("the simulated power is gone"));
        }
        Ok(())
    }

    fn check_write(&self) -> io::Result<()> {
        self.check_alive_at(self.sync_points)?;
        match self.write_error {
            Some(kind) => Err(io::Error::new(kind, "injected write error")),
            None => Ok(()),
        }
    }

    fn used(&self) -> u64 {
        self.visible.values().map(|file| lock(file).visible.len() as u64).sum()
    }
}

fn put(bytes: &mut Vec<u8>, offset: u64, written: &[u8]) {
    let end = offset as usize + written.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset as usize..end].copy_from_slice(written);
}

struct SimFile {
    state: Arc<Mutex<State>>,
    file: File,
}

impl DiskFile for SimFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let state = lock(&self.state);
        state.check_write()?;
        if let Some(capacity) = state.capacity {
            let len = lock(&self.file).visible.len() as u64;
            let growth = (offset + bytes.len() as u64).saturating_sub(len);
            if state.used() + growth > capacity {
                return Err(ErrorKind::StorageFull.into());
            }
        }
        let mut node = lock(&self.file);
        put(&mut node.visible, offset, bytes);
        node.pending.push((offset, bytes.to_vec()));
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let node = lock(&self.file);
        let start = offset as usize;
        let bytes = node.visible.get(start..start + buffer.len());
        buffer.copy_from_slice(bytes.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.file).visible.len() as u64)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        if self.len()? < len {
            self.set_len(len)?;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let state = lock(&self.state);
        state.check_write()?;
        let old = lock(&self.file).visible.len() as u64;
        if state.capacity.is_some_and(|max| state.used() + len.saturating_sub(old) > max) {
            return Err(ErrorKind::StorageFull.into());
        }
        lock(&self.file).visible.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        lock(&self.state).sync_point()?;
        let mut node = lock(&self.file);
        node.durable = node.visible.clone();
        node.pending.clear();
        Ok(())
    }
}

impl Disk for SimDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut state = lock(&self.state);
        state.check_write()?;
        if state.visible.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let file = File::default();
        state.visible.insert(path.to_owned(), file.clone());
        Ok(Box::new(SimFile { state: self.state.clone(), file }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = self.file(path)?;
        Ok(Box::new(SimFile { state: self.state.clone(), file }))
    }

    fn map(&self, path: &Path) -> io::Result<FileBytes> {
        let file = self.file(path)?;
        let bytes = FileBytes::copied_from(&lock(&file).visible);
        Ok(bytes)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.file(path)?;
        let bytes = lock(&file).visible.clone();
        Ok(bytes)
    }

    fn len(&self, path: &Path) -> io::Result<Option<u64>> {
        Ok(self.file(path).ok().map(|file| lock(&file).visible.len() as u64))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = lock(&self.state);
        let all = state.visible.keys().chain(&state.dirs);
        let below = all.filter_map(|path| path.strip_prefix(dir).ok());
        let first = below.filter_map(|rest| rest.components().next());
        let mut names: Vec<String> =
            first.map(|name| name.as_os_str().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() && !state.dirs.contains(dir) {
            return Err(missing(dir));
        }
        Ok(names)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.check_write()?;
        state.dirs.extend(dir.ancestors().map(Path::to_owned));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.check_write()?;
        state.visible.remove(path);
        Ok(())
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.check_write()?;
        state.visible.retain(|path, _| !path.starts_with(dir));
        state.dirs.retain(|path| !path.starts_with(dir));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.check_write()?;
        let file = state.visible.remove(from).ok_or_else(|| missing(from))?;
        state.visible.insert(to.to_owned(), file);
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.check_write()?;
        let file = state.visible.get(from).cloned().ok_or_else(|| missing(from))?;
        state.visible.insert(to.to_owned(), file);
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.sync_point()?;
        let inside = |path: &Path| path.parent() == Some(dir);
        state.durable.retain(|path, _| !inside(path));
        let entries: Vec<_> = state
            .visible
            .iter()
            .filter(|(path, _)| inside(path))
            .map(|(path, file)| (path.clone(), file.clone()))
            .collect();
        state.durable.extend(entries);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(disk: &SimDisk, name: &str, bytes: &[u8]) -> Box<dyn DiskFile> {
        let file = disk.create(Path::new(name)).expect("created");
        file.write_at(0, bytes).expect("written");
        file
    }

    #[test]
    fn a_file_survives_only_with_its_data_and_its_folder_synced() {
        let disk = SimDisk::new();
        written(&disk, "/a/neither", b"xx");
        written(&disk, "/a/data-only", b"xx").sync_data().expect("synced");
        let both = written(&disk, "/a/both", b"xx");
        both.sync_data().expect("synced");
        disk.remove(Path::new("/a/data-only")).expect("removed");
        disk.sync_dir(Path::new("/a")).expect("synced");
        written(&disk, "/a/late", b"xx").sync_data().expect("synced");
        both.write_at(2, b"yyyy").expect("written");
        let torn = disk.fork();
        disk.crash(Tear::Lost);
        assert_eq!(disk.files(), [Path::new("/a/both"), Path::new("/a/neither")]);
        assert_eq!(disk.read(Path::new("/a/both")).expect("read"), b"xx");
        assert_eq!(disk.read(Path::new("/a/neither")).expect("read"), b"");
        torn.crash(Tear::HalfOfFirst);
        assert_eq!(torn.read(Path::new("/a/both")).expect("read"), b"xxyy");
    }

    #[test]
    fn after_the_failing_sync_point_nothing_more_is_written() {
        let disk = SimDisk::new();
        let file = written(&disk, "/f", b"a");
        disk.fail_from(disk.sync_points());
        assert!(file.sync_data().is_err());
        assert!(file.write_at(0, b"b").is_err());
        assert!(disk.rename(Path::new("/f"), Path::new("/g")).is_err());
    }

    #[test]
    fn replace_leaves_the_old_or_the_new_file_at_every_crash() {
        let path = Path::new("/d/file");
        for point in 0.. {
            let disk = SimDisk::new();
            disk.replace(path, b"old").expect("replaced");
            let before = disk.sync_points();
            disk.fail_from(before + point);
            let result = disk.replace(path, b"newer");
            disk.crash(Tear::HalfOfFirst);
            let left = disk.read(path).expect("one of the two is there");
            match result {
                Ok(()) => {
                    assert_eq!(left, b"newer");
                    return;
                }
                Err(_) => assert!(left == b"old" || left == b"newer"),
            }
        }
    }
}
