//! The seam to the file system: the `Disk` trait and the real one behind it.
//!
//! Whatever is written is promised only after `sync_data` on the file and, for a file that is new,
//! renamed or removed, after `sync_dir` on its folder. A simulated disk may lose all the rest.

use std::io;
use std::path::Path;
use std::sync::Arc;

/// The bytes of one immutable file, aligned to at least 64, alive as long as any clone of them.
/// On the real disk they are mapped: a page is read when first touched.
#[derive(Clone)]
pub struct FileBytes(Arc<dyn AsRef<[u8]> + Send + Sync>);

impl FileBytes {
    /// Wraps an owner of 64-byte-aligned bytes.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        Self(owner)
    }

    /// Copies `bytes` into aligned memory: for tests and for simulated disks.
    pub fn copied_from(bytes: &[u8]) -> Self {
        Self(Arc::new(AlignedBytes::copied_from(bytes)))
    }
}

impl std::ops::Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

/// Owned bytes that start at a multiple of 64.
pub struct AlignedBytes {
    storage: Vec<u8>,
    offset: usize,
    len: usize,
}

impl AlignedBytes {
    /// Copies `bytes` to a 64-byte-aligned place.
    pub fn copied_from(bytes: &[u8]) -> Self {
        let mut storage = vec![0u8; bytes.len() + 63];
        let offset = storage.as_ptr().align_offset(64);
        storage[offset..offset + bytes.len()].copy_from_slice(bytes);
        Self { storage, offset, len: bytes.len() }
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.storage[self.offset..self.offset + self.len]
    }
}

/// One open file. Writes go to given offsets; nothing is promised before `sync_data`.
pub trait DiskFile: Send + Sync {
    /// Writes all of `bytes` at `offset`, growing the file when needed.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Fills `buffer` from `offset`, or fails with `UnexpectedEof`.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
    /// Current length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file holds no byte.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Sets the length; new bytes read as zero and their space is reserved where possible.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Cuts or grows the file to exactly `len`.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Returns once data and length would survive a power loss. After a failure nothing about
    /// the unsynced part may be assumed: the caller must stop using the disk (fail-stop).
    fn sync_data(&self) -> io::Result<()>;
}

/// A file system, as small as store and log need it. All paths are given whole.
pub trait Disk: Send + Sync {
    /// Creates a file that must not exist yet.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Opens an existing file for reading and writing; for reading alone on a file system that
    /// cannot be written to.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Maps a closed, immutable file whole.
    fn map(&self, path: &Path) -> io::Result<FileBytes>;
    /// Reads a file whole into memory.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Length of a file, or `None` when there is no such file.
    fn len(&self, path: &Path) -> io::Result<Option<u64>>;
    /// Names of the entries of a folder, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Creates a folder and its parents; fine when it exists.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Removes a file; fine when there is none.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes a folder and all below it; fine when there is none.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;
    /// Replaces `to` by `from` in one step. Durable after `sync_dir`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives a file a second name. Durable after `sync_dir`.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Returns once the folder's entries would survive a power loss.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Writes `bytes` under `path` so that after a crash either the old file or the whole new one
    /// is there: a temporary file beside it, synced, renamed, folder synced.
    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let temporary = path.with_extension("tmp");
        self.remove(&temporary)?;
        let file = self.create(&temporary)?;
        file.write_at(0, bytes)?;
        file.sync_data()?;
        drop(file);
        self.rename(&temporary, path)?;
        self.sync_dir(path.parent().unwrap_or(Path::new(".")))
    }
}

/// The machine's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsDisk;

struct OsFile(std::fs::File);

impl DiskFile for OsFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&self.0, bytes, offset)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.0, buffer, offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        use rustix::fs::FallocateFlags;
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), 0, len) {
            Err(error) if error == rustix::io::Errno::OPNOTSUPP => self.0.set_len(len),
            other => Ok(other?),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

fn open_options() -> std::fs::OpenOptions {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true);
    options
}

fn fine_when_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

impl Disk for OsDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OsFile(open_options().create_new(true).open(path)?)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = match open_options().open(path) {
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                std::fs::File::open(path)?
            }
            opened => opened?,
        };
        Ok(Box::new(OsFile(file)))
    }

    fn map(&self, path: &Path) -> io::Result<FileBytes> {
        let file = std::fs::File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(FileBytes::copied_from(&[]));
        }
        // SAFETY: a mapping is sound while nobody shortens the file or rewrites what is mapped.
        // Segments alone are mapped: they are only ever appended to, also while one is written,
        // and never shortened; the data folder is held by one process through its LOCK, and a
        // removed file keeps its pages until unmapped.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(FileBytes::new(Arc::new(map)))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn len(&self, path: &Path) -> io::Result<Option<u64>> {
        match std::fs::metadata(path) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        std::fs::create_dir_all(dir)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fine_when_missing(std::fs::remove_file(path))
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        fine_when_missing(std::fs::remove_dir_all(dir))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        std::fs::File::open(dir)?.sync_all()
    }
}
