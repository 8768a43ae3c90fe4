//! The machine's file system with syncs that take their time, so that appends gather behind them
//! whatever the machine's own disk is like.

use hopbine_proto::disk::{Disk, DiskFile, FileBytes, OsDisk};
use std::io;
use std::path::Path;
use std::time::Duration;

/// `OsDisk`, with this pause in every sync of a file.
pub struct SlowDisk(pub Duration);

struct SlowFile(Box<dyn DiskFile>, Duration);

impl DiskFile for SlowFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buffer)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.0.allocate(len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        std::thread::sleep(self.1);
        self.0.sync_data()
    }
}

impl Disk for SlowDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(SlowFile(OsDisk.create(path)?, self.0)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(SlowFile(OsDisk.open(path)?, self.0)))
    }

    fn map(&self, path: &Path) -> io::Result<FileBytes> {
        OsDisk.map(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        OsDisk.read(path)
    }

    fn len(&self, path: &Path) -> io::Result<Option<u64>> {
        OsDisk.len(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        OsDisk.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        OsDisk.create_dir(dir)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        OsDisk.remove(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        OsDisk.remove_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        OsDisk.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        OsDisk.hard_link(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        OsDisk.sync_dir(dir)
    }
}
