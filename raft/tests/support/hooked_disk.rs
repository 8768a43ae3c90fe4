//! A file system with a say in every sync of a file: to let it take its time, so that appends
//! gather behind it whatever the machine's own disk is like, or to let it fail.
#![allow(dead_code)] // each test binary uses its own part

use hopbine_proto::disk::{Disk, DiskFile, FileBytes, OsDisk};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Whose sync it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Of a file made by this process and never synced so far.
    NewFile,
    OldFile,
}

type Hook = Arc<dyn Fn(Of) -> io::Result<()> + Send + Sync>;

/// `disk`, with `before_sync` called ahead of every sync of a file, which fails when that does.
pub struct HookedDisk {
    disk: Arc<dyn Disk>,
    before_sync: Hook,
}

impl HookedDisk {
    pub fn new(
        disk: impl Disk + 'static,
        before_sync: impl Fn(Of) -> io::Result<()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { disk: Arc::new(disk), before_sync: Arc::new(before_sync) })
    }

    /// `OsDisk`, with this pause in every sync of a file.
    pub fn slow(pause: Duration) -> Arc<Self> {
        Self::new(OsDisk, move |_| {
            std::thread::sleep(pause);
            Ok(())
        })
    }

    fn file(&self, file: Box<dyn DiskFile>, of: Of) -> Box<dyn DiskFile> {
        let of = Mutex::new(of);
        Box::new(HookedFile { file, of, before_sync: self.before_sync.clone() })
    }
}

struct HookedFile {
    file: Box<dyn DiskFile>,
    of: Mutex<Of>,
    before_sync: Hook,
}

impl DiskFile for HookedFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, buffer)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.file.allocate(len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut of = self.of.lock().expect("not poisoned");
        (self.before_sync)(*of)?;
        *of = Of::OldFile;
        self.file.sync_data()
    }
}

impl Disk for HookedDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.file(self.disk.create(path)?, Of::NewFile))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.file(self.disk.open(path)?, Of::OldFile))
    }

    fn map(&self, path: &Path) -> io::Result<FileBytes> {
        self.disk.map(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.disk.read(path)
    }

    fn len(&self, path: &Path) -> io::Result<Option<u64>> {
        self.disk.len(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir(dir)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.remove_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.hard_link(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
}
