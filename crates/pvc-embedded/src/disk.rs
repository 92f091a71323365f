//! The tree's persistent nodes in a redb file.
//!
//! One [`Change`] is one transaction of the file, on disk when [`Disk::write`] returns. A failed
//! write leaves redb unusable until the file is opened again, which is done before the next write.

#![allow(clippy::disallowed_methods, reason = "an adapter: the tree's own file")]

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use pvc_ports::Op;
use redb::backends::FileBackend;
use redb::{
    BackendError, Builder, Database, ReadableDatabase, ReadableTable, StorageBackend,
    TableDefinition,
};

use crate::dumps::Dumps;
use crate::state::{Change, Node, TreeState, Work};

const FILE: &str = "tree.redb";
const NEW_FILE: &str = "tree.redb.new";
const NODES: TableDefinition<&str, &[u8]> = TableDefinition::new("nodes");
const META: TableDefinition<&str, i64> = TableDefinition::new("meta");

/// The layout of the two tables. Raised when a legacy program could not read what a newer one
/// wrote.
const FORMAT: i64 = 1;

/// All nodes are in memory anyway: redb need not keep them a second time. Writing is not faster
/// with more.
const CACHE_BYTES: usize = 1 << 20;

/// Reason for which the file could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Corrupt(String),
    #[error("its format is {found}, and this program knows {FORMAT} only")]
    Format { found: i64 },
}

/// Result of a write that did not simply succeed.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// The disk has no room; nothing was written.
    Full,
    /// Nothing was written.
    Failed(io::Error),
    /// The write may be on disk or not, and the file cannot be opened to find out.
    Unknown,
}

pub(crate) struct Disk {
    path: PathBuf,
    database: Option<Database>,
    /// A sync failed, so what the kernel shows of the file may never have reached the disk. Only a
    /// new process, after somebody looked at the disk, may trust it again.
    sync_failed: Arc<AtomicBool>,
}

impl Disk {
    /// Opens the tree kept in `dir`, or begins one there. The caller holds the lock of the
    /// directory.
    pub(crate) fn open(dir: &Path) -> Result<(Disk, TreeState), DiskError> {
        let path = dir.join(FILE);
        if !path.try_exists()? {
            if !Dumps::of(dir).list()?.is_empty() {
                return Err(DiskError::Corrupt(
                    "it is missing, and dumps of it are there".to_owned(),
                ));
            }
            begin(dir, None)?;
        }
        let mut disk = Disk { path, database: None, sync_failed: Arc::default() };
        let mut database = disk.open_file()?;
        let read = whole(|| read_all(&mut database, &disk.path)).flatten();
        let (epoch, nodes) = match read {
            Ok(read) => read,
            Err(error) => {
                // To close it, redb reads it once more.
                let _ = whole(|| drop(database));
                return Err(error);
            }
        };
        let state = TreeState::restore(epoch, nodes)
            .map_err(|orphan| DiskError::Corrupt(format!("the parent of `{orphan}` is missing")))?;
        disk.database = Some(database);
        Ok((disk, state))
    }

    /// Makes `change` durable, all of it or nothing.
    pub(crate) fn write(&mut self, change: &Change) -> Result<(), WriteError> {
        if change.durable().next().is_none() {
            return Ok(());
        }
        self.reopen().map_err(|error| refused(into_io(error)))?;
        let Some(database) = &self.database else {
            return Err(WriteError::Failed(io::Error::other("the file is closed")));
        };
        let transaction = match fill(database, change) {
            Ok(transaction) => transaction,
            Err(error) => {
                self.database = None;
                return Err(refused(plain(error)));
            }
        };
        let Err(error) = transaction.commit() else { return Ok(()) };
        self.database = None;
        self.settle(change.zxid(), plain(error.into()))
    }

    /// Finds out, after a commit that failed half way, whether the file has it.
    fn settle(&mut self, zxid: i64, error: io::Error) -> Result<(), WriteError> {
        if self.reopen().is_err() {
            return Err(WriteError::Unknown);
        }
        let stored = self.database.as_ref().map(|database| read_meta(database, "zxid"));
        match stored {
            Some(Ok(stored)) if stored >= zxid => Ok(()),
            Some(Ok(_)) => Err(refused(error)),
            Some(Err(_)) | None => Err(WriteError::Unknown),
        }
    }

    /// The zxid of the newest change on disk, once that can be read.
    pub(crate) fn stored_zxid(&mut self) -> Option<i64> {
        self.reopen().ok()?;
        read_meta(self.database.as_ref()?, "zxid").ok()
    }

    fn reopen(&mut self) -> Result<(), DiskError> {
        if self.sync_failed.load(Ordering::Acquire) {
            return Err(io::Error::other("an earlier write did not reach the disk").into());
        }
        if self.database.is_none() {
            self.database = Some(self.open_file()?);
        }
        Ok(())
    }

    fn open_file(&self) -> Result<Database, DiskError> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        if file.metadata()?.len() == 0 {
            return Err(DiskError::Corrupt("it is empty".to_owned()));
        }
        open_database(file, self.sync_failed.clone())
    }
}

/// Puts a tree of `nodes`, parents first, in the place of the one kept in `dir`, at once or not at
/// all. What was there stays under another name, which is returned.
pub(crate) fn replace(dir: &Path, nodes: Vec<Op>) -> Result<Option<PathBuf>, DiskError> {
    let mut tree = TreeState::new(1);
    let session = tree.open_session();
    let mut draft = tree.draft();
    draft
        .apply(&Work::Multi { session, ops: nodes })
        .map_err(|error| DiskError::Io(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
    let content = draft.finish();
    // A second name first: from the one to the other there is no moment without a tree.
    let aside = put_aside(dir)?;
    begin(dir, Some(&content))?;
    Ok(aside)
}

/// Gives the file of the tree a second name that was free.
fn put_aside(dir: &Path) -> io::Result<Option<PathBuf>> {
    let mut number = 1_u64;
    loop {
        let aside = dir.join(format!("{FILE}.damaged-{number}"));
        match std::fs::hard_link(dir.join(FILE), &aside) {
            Ok(()) => return Ok(Some(aside)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// A file with the root alone, or with `content`, complete before it gets its name, so that a crash
/// leaves no half one.
fn begin(dir: &Path, content: Option<&Change>) -> Result<(), DiskError> {
    let new = dir.join(NEW_FILE);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let database = open_database(options.open(&new)?, Arc::default())?;
    first_content(&database).map_err(damage)?;
    if let Some(content) = content {
        let filled = fill(&database, content).map_err(damage)?;
        filled.commit().map_err(|error| damage(error.into()))?;
    }
    drop(database);
    std::fs::rename(&new, dir.join(FILE))?;
    File::open(dir)?.sync_all()?;
    Ok(())
}

fn first_content(database: &Database) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(NODES)?.insert("/", encode(&Node::default()).as_slice())?;
    {
        let mut meta = transaction.open_table(META)?;
        meta.insert("format", FORMAT)?;
        meta.insert("zxid", 0)?;
    }
    Ok(transaction.commit()?)
}

fn open_database(file: File, sync_failed: Arc<AtomicBool>) -> Result<Database, DiskError> {
    let inner = FileBackend::new(file.try_clone()?).map_err(|error| damage(error.into()))?;
    let backend = Backend { inner, file, sync_failed };
    let open = || Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend);
    whole(open)?.map_err(|error| damage(error.into()))
}

/// redb answers some kinds of damage with a panic; here they are errors like the others.
fn whole<T>(look: impl FnOnce() -> T) -> Result<T, DiskError> {
    let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(look));
    looked.map_err(|_| DiskError::Corrupt("its structure makes no sense".to_owned()))
}

/// The number of the life that begins, and every node.
fn read_all(database: &mut Database, path: &Path) -> Result<(i32, Vec<(String, Node)>), DiskError> {
    if !database.check_integrity().map_err(|error| damage(error.into()))? {
        tracing::error!(file = %path.display(), "the tree's file was damaged and has been \
                                                 repaired; the newest change may be missing");
    }
    Ok((next_epoch(database)?, read_nodes(database)?))
}

fn fill(database: &Database, change: &Change) -> Result<redb::WriteTransaction, redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut nodes = transaction.open_table(NODES)?;
        for (path, node) in change.durable() {
            match node {
                Some(node) => nodes.insert(path, encode(node).as_slice())?,
                None => nodes.remove(path)?,
            };
        }
    }
    transaction.open_table(META)?.insert("zxid", change.zxid())?;
    Ok(transaction)
}

/// The number of this life of the tree: one more than that of the newest change on disk. Taken
/// without a write, so that a tree on a full disk opens. A life in which nothing durable happened
/// leaves no trace, and its number is given out again.
fn next_epoch(database: &Database) -> Result<i32, DiskError> {
    let format = read_meta(database, "format").map_err(damage)?;
    if format != FORMAT {
        return Err(DiskError::Format { found: format });
    }
    let last = read_meta(database, "zxid").map_err(damage)? >> 32;
    i32::try_from(last + 1)
        .map_err(|_| DiskError::Corrupt(format!("its epoch {last} is impossible")))
}

fn read_meta(database: &Database, key: &str) -> Result<i64, redb::Error> {
    let table = database.begin_read()?.open_table(META)?;
    let value = table.get(key)?.map(|value| value.value());
    value.ok_or_else(|| redb::Error::Corrupted(format!("`{key}` is missing")))
}

fn read_nodes(database: &Database) -> Result<Vec<(String, Node)>, DiskError> {
    let read = || -> Result<_, redb::Error> {
        let table = database.begin_read()?.open_table(NODES)?;
        let mut nodes = Vec::new();
        for row in table.iter()? {
            let (path, value) = row?;
            let node = decode(value.value());
            let node = node.ok_or_else(|| {
                redb::Error::Corrupted(format!("the record of `{}` is too short", path.value()))
            })?;
            nodes.push((path.value().to_owned(), node));
        }
        Ok(nodes)
    };
    read().map_err(damage)
}

/// The counters that must outlive the process, then the data.
fn encode(node: &Node) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32 + node.data.len());
    bytes.extend_from_slice(&node.version.to_le_bytes());
    bytes.extend_from_slice(&node.created.to_le_bytes());
    bytes.extend_from_slice(&node.czxid.to_le_bytes());
    bytes.extend_from_slice(&node.mzxid.to_le_bytes());
    bytes.extend_from_slice(&node.pzxid.to_le_bytes());
    bytes.extend_from_slice(&node.data);
    bytes
}

fn decode(bytes: &[u8]) -> Option<Node> {
    let (version, bytes) = bytes.split_first_chunk()?;
    let (created, bytes) = bytes.split_first_chunk()?;
    let (czxid, bytes) = bytes.split_first_chunk()?;
    let (mzxid, bytes) = bytes.split_first_chunk()?;
    let (pzxid, data) = bytes.split_first_chunk()?;
    Some(Node {
        data: Bytes::copy_from_slice(data),
        version: i32::from_le_bytes(*version),
        created: i32::from_le_bytes(*created),
        czxid: i64::from_le_bytes(*czxid),
        mzxid: i64::from_le_bytes(*mzxid),
        pzxid: i64::from_le_bytes(*pzxid),
        owner: 0,
        num_children: 0,
    })
}

fn plain(error: redb::Error) -> io::Error {
    match error {
        redb::Error::Io(error) => error,
        other => io::Error::other(other),
    }
}

/// An error while the file is read: of the system, or of what it holds.
fn damage(error: redb::Error) -> DiskError {
    match error {
        redb::Error::Io(error) if error.kind() != io::ErrorKind::InvalidData => {
            DiskError::Io(error)
        }
        redb::Error::Io(_) => DiskError::Corrupt("it is not a tree".to_owned()),
        redb::Error::Corrupted(what) => DiskError::Corrupt(what),
        other => DiskError::Corrupt(other.to_string()),
    }
}

fn into_io(error: DiskError) -> io::Error {
    match error {
        DiskError::Io(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

fn refused(error: io::Error) -> WriteError {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => WriteError::Full,
        _ => WriteError::Failed(error),
    }
}

/// The file as redb sees it.
///
/// Differs from redb's own in two ways. Growing takes the blocks from the file system at once, so
/// that a full disk is found while a transaction is being prepared and never in the middle of its
/// commit. A failed sync is remembered.
#[derive(Debug)]
struct Backend {
    inner: FileBackend,
    file: File,
    sync_failed: Arc<AtomicBool>,
}

impl Backend {
    fn grow(&self, from: u64, to: u64) -> io::Result<()> {
        use nix::fcntl::{FallocateFlags, fallocate};
        let too_large = |_| io::Error::from(io::ErrorKind::FileTooLarge);
        let offset = i64::try_from(from).map_err(too_large)?;
        let length = i64::try_from(to - from).map_err(too_large)?;
        match fallocate(&self.file, FallocateFlags::empty(), offset, length) {
            Ok(()) => Ok(()),
            // This file system cannot reserve; a full disk will show when the blocks are written.
            Err(nix::Error::EOPNOTSUPP | nix::Error::ENOSYS) => self.inner.set_len(to),
            Err(error) => {
                self.inner.set_len(from)?; // a reservation may have been made in part
                Err(error.into())
            }
        }
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let now = self.inner.len()?;
        if len > now { self.grow(now, len) } else { self.inner.set_len(len) }
    }

    fn sync_data(&self) -> io::Result<()> {
        let synced = self.inner.sync_data();
        if synced.is_err() {
            self.sync_failed.store(true, Ordering::Release);
        }
        synced
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }
}
