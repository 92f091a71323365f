use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use async_trait::async_trait;
use pvc_ports::{
    Clock as _, DirectoryEntry, FileAccess, FileInfo, FileKind, FileSpace, Files, FilesError,
    file_path,
};

use crate::TokioClock;

enum Node {
    /// With zeros behind its bytes, up to this length in all.
    File {
        bytes: Vec<u8>,
        length_bytes: u64,
    },
    Directory,
    Link(PathBuf),
    Fifo,
}

struct Entry {
    node: Node,
    info: FileInfo,
}

type Refuses = Box<dyn Fn(&Path) -> bool + Send + Sync>;

struct Inner {
    entries: BTreeMap<PathBuf, Entry>,
    users: BTreeSet<String>,
    next_inode: u64,
    clock: TokioClock,
    full: bool,
    refuses: Refuses,
    hangs: Refuses,
}

/// The files of a machine, in memory: what a disk keeps when a program ends.
pub struct MemoryFiles {
    inner: Mutex<Inner>,
}

/// Size of the disk. No test writes so much.
const DISK_BYTES: u64 = 1 << 40;

/// Number of links that a path may lead through, as Linux has it.
const MOST_LINKS: u32 = 40;

impl MemoryFiles {
    /// A machine with nothing but its root, and with no user but `root`.
    pub fn new() -> Self {
        MemoryFiles {
            inner: Mutex::new(Inner {
                entries: BTreeMap::new(),
                users: ["root".to_owned()].into(),
                next_inode: 2,
                clock: TokioClock::new(),
                full: false,
                refuses: Box::new(|_| false),
                hangs: Box::new(|_| false),
            }),
        }
    }

    /// Makes a user with a group of the same name.
    pub fn insert_user(&self, name: &str) {
        self.inner().users.insert(name.to_owned());
    }

    /// Makes a file as another program does, and the directories above it.
    pub fn insert(&self, path: &Path, bytes: &[u8]) {
        self.plant(path, Node::file(bytes));
    }

    /// Makes a file of so many zeros.
    pub fn insert_sparse(&self, path: &Path, length_bytes: u64) {
        self.plant(path, Node::File { bytes: Vec::new(), length_bytes });
    }

    pub fn insert_link(&self, path: &Path, to: &Path) {
        self.plant(path, Node::Link(to.to_owned()));
    }

    pub fn insert_fifo(&self, path: &Path) {
        self.plant(path, Node::Fifo);
    }

    /// The contents of a file, if it is there.
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        match &self.inner().entries.get(path)?.node {
            Node::File { bytes, .. } => Some(bytes.clone()),
            _ => None,
        }
    }

    /// While set, nothing more can be written to the disk.
    pub fn set_full(&self, full: bool) {
        self.inner().full = full;
    }

    /// From now on every call on a path that `refuses` says so of fails.
    pub fn set_refusing(&self, refuses: impl Fn(&Path) -> bool + Send + Sync + 'static) {
        self.inner().refuses = Box::new(refuses);
    }

    /// From now on following a path that `hangs` says so of has no end.
    pub fn set_hanging(&self, hangs: impl Fn(&Path) -> bool + Send + Sync + 'static) {
        self.inner().hangs = Box::new(hangs);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no test panics while holding it")
    }

    fn plant(&self, path: &Path, node: Node) {
        let mut inner = self.inner();
        inner.directories_above(path);
        inner.put(path, node, 0o644);
    }

    /// Lets `act` work on the path, with the links above it followed.
    fn at<T>(
        &self,
        path: &Path,
        act: impl FnOnce(&mut Inner, &Path) -> Result<T, FilesError>,
    ) -> Result<T, FilesError> {
        let path = file_path(path)?;
        let mut inner = self.inner();
        if (inner.refuses)(&path) {
            let source = io::Error::other("somebody pulled the disk out");
            return Err(FilesError::Failed { done: "used", path, source });
        }
        let real = inner.resolved(&path)?;
        act(&mut inner, &real).map_err(|error| named(error, &path))
    }
}

impl Default for MemoryFiles {
    fn default() -> Self {
        Self::new()
    }
}

/// The error with the path that was asked for, not the one that links led to.
fn named(mut error: FilesError, asked: &Path) -> FilesError {
    match &mut error {
        FilesError::Missing { path }
        | FilesError::NotAFile { path, .. }
        | FilesError::NotADirectory { path, .. }
        | FilesError::NotEmpty { path }
        | FilesError::TooLarge { path, .. }
        | FilesError::TooMany { path, .. }
        | FilesError::NoSpace { path } => *path = asked.to_owned(),
        FilesError::BadPath { .. } | FilesError::NoOwner { .. } | FilesError::Failed { .. } => {}
    }
    error
}

impl Node {
    fn file(bytes: &[u8]) -> Node {
        Node::File { bytes: bytes.to_owned(), length_bytes: bytes.len() as u64 }
    }

    fn kind(&self) -> FileKind {
        match self {
            Node::File { .. } => FileKind::File,
            Node::Directory => FileKind::Directory,
            Node::Link(_) => FileKind::SymbolicLink,
            Node::Fifo => FileKind::Special,
        }
    }
}

fn missing(path: &Path) -> FilesError {
    FilesError::Missing { path: path.to_owned() }
}

impl Inner {
    /// The path without links above its end.
    fn resolved(&self, path: &Path) -> Result<PathBuf, FilesError> {
        let (mut path, mut links) = (path.to_owned(), 0);
        'again: loop {
            let parts: Vec<Component<'_>> = path.components().collect();
            for end in 1..parts.len() {
                let above: PathBuf = parts[..end].iter().collect();
                if let Some(Entry { node: Node::Link(to), .. }) = self.entries.get(&above) {
                    links += 1;
                    if links > MOST_LINKS {
                        let source = io::Error::other("too many links");
                        return Err(FilesError::Failed { done: "followed", path, source });
                    }
                    let rest: PathBuf = parts[end..].iter().collect();
                    path = to.join(rest);
                    continue 'again;
                }
            }
            return Ok(path);
        }
    }

    /// The path of what is there, with links at its end followed as well.
    fn followed(&self, path: &Path) -> Result<PathBuf, FilesError> {
        let mut path = path.to_owned();
        for _ in 0..MOST_LINKS {
            path = self.resolved(&path)?;
            match self.entries.get(&path).map(|entry| &entry.node) {
                None => return Err(missing(&path)),
                Some(Node::Link(to)) => path = path.parent().unwrap_or(Path::new("/")).join(to),
                Some(_) => return Ok(path),
            }
        }
        let source = io::Error::other("too many links");
        Err(FilesError::Failed { done: "followed", path, source })
    }

    fn put(&mut self, path: &Path, node: Node, mode: u32) {
        let length_bytes = match &node {
            Node::File { length_bytes, .. } => *length_bytes,
            _ => 0,
        };
        self.next_inode += 1;
        let (kind, modified, inode) = (node.kind(), self.clock.wall(), self.next_inode);
        let info = FileInfo { kind, length_bytes, mode, modified, inode };
        self.entries.insert(path.to_owned(), Entry { node, info });
    }

    fn directories_above(&mut self, path: &Path) {
        let above: Vec<PathBuf> = path.ancestors().skip(1).map(Path::to_owned).collect();
        for directory in above.into_iter().rev().filter(|above| above.file_name().is_some()) {
            if !self.entries.contains_key(&directory) {
                self.put(&directory, Node::Directory, 0o755);
            }
        }
    }

    fn must_have_directory_above(&self, path: &Path) -> Result<(), FilesError> {
        let above = path.parent().unwrap_or(path);
        match self.entries.get(above).map(|entry| &entry.node) {
            Some(Node::Directory) => Ok(()),
            None if above.file_name().is_none() => Ok(()),
            _ => Err(missing(path)),
        }
    }

    fn must_have_owner(&self, access: &FileAccess) -> Result<(), FilesError> {
        match &access.owner {
            Some(owner)
                if !self.users.contains(&owner.user) || !self.users.contains(&owner.group) =>
            {
                let (user, group) = (owner.user.clone(), owner.group.clone());
                Err(FilesError::NoOwner { user, group })
            }
            _ => Ok(()),
        }
    }

    fn must_have_room(&self, path: &Path) -> Result<(), FilesError> {
        match self.full {
            true => Err(FilesError::NoSpace { path: path.to_owned() }),
            false => Ok(()),
        }
    }

    /// The file at the path, if anything is there.
    fn file(&mut self, path: &Path) -> Result<Option<(&mut Vec<u8>, &mut FileInfo)>, FilesError> {
        match self.entries.get_mut(path) {
            None => Ok(None),
            Some(Entry { node: Node::File { bytes, .. }, info }) => Ok(Some((bytes, info))),
            Some(Entry { node, .. }) => {
                Err(FilesError::NotAFile { path: path.to_owned(), kind: node.kind() })
            }
        }
    }

    fn existing_file(&mut self, path: &Path) -> Result<(&mut Vec<u8>, &mut FileInfo), FilesError> {
        self.file(path)?.ok_or_else(|| missing(path))
    }

    fn must_be_directory(&self, path: &Path) -> Result<(), FilesError> {
        match self.entries.get(path).map(|entry| &entry.node) {
            None => Err(missing(path)),
            Some(Node::Directory) => Ok(()),
            Some(other) => {
                Err(FilesError::NotADirectory { path: path.to_owned(), kind: other.kind() })
            }
        }
    }

    /// The bytes of a file from an offset on, its zeros among them.
    fn read_from(&mut self, path: &Path, from: u64) -> Result<Vec<u8>, FilesError> {
        let (bytes, info) = self.existing_file(path)?;
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let length = usize::try_from(info.length_bytes).unwrap_or(usize::MAX);
        let mut read = bytes.get(from..).unwrap_or_default().to_owned();
        read.resize(length.saturating_sub(from), 0);
        Ok(read)
    }

    fn set_contents(&mut self, path: &Path, contents: Vec<u8>) {
        let now = self.clock.wall();
        if let Some(Entry { node, info }) = self.entries.get_mut(path) {
            (info.length_bytes, info.modified) = (contents.len() as u64, now);
            *node = Node::file(&contents);
        }
    }
}

#[async_trait]
impl Files for MemoryFiles {
    async fn look(&self, path: &Path) -> Result<Option<FileInfo>, FilesError> {
        self.at(path, |inner, path| Ok(inner.entries.get(path).map(|entry| entry.info.clone())))
    }

    async fn follow(&self, path: &Path) -> Result<PathBuf, FilesError> {
        let hangs = (self.inner().hangs)(path);
        if hangs {
            std::future::pending::<()>().await;
        }
        self.at(path, |inner, path| inner.followed(path))
    }

    async fn read(&self, path: &Path, most_bytes: u64) -> Result<Vec<u8>, FilesError> {
        self.at(path, |inner, path| {
            if inner.existing_file(path)?.1.length_bytes > most_bytes {
                return Err(FilesError::TooLarge { path: path.to_owned(), most_bytes });
            }
            inner.read_from(path, 0)
        })
    }

    async fn read_end(
        &self,
        path: &Path,
        most_bytes: u64,
    ) -> Result<(FileInfo, Vec<u8>), FilesError> {
        self.at(path, |inner, path| {
            let info = inner.existing_file(path)?.1.clone();
            let end = inner.read_from(path, info.length_bytes.saturating_sub(most_bytes))?;
            Ok((info, end))
        })
    }

    async fn replace(
        &self,
        path: &Path,
        contents: &[u8],
        access: &FileAccess,
    ) -> Result<(), FilesError> {
        self.at(path, |inner, path| {
            inner.file(path)?;
            inner.must_have_owner(access)?;
            inner.must_have_directory_above(path)?;
            inner.must_have_room(path)?;
            inner.put(path, Node::file(contents), access.mode);
            Ok(())
        })
    }

    async fn append(
        &self,
        path: &Path,
        bytes: &[u8],
        access: &FileAccess,
        most_bytes: u64,
    ) -> Result<(), FilesError> {
        self.at(path, |inner, path| {
            let had = inner.file(path)?.map_or(0, |(_, info)| info.length_bytes);
            if had.saturating_add(bytes.len() as u64) > most_bytes {
                return Err(FilesError::TooLarge { path: path.to_owned(), most_bytes });
            }
            inner.must_have_owner(access)?;
            inner.must_have_directory_above(path)?;
            inner.must_have_room(path)?;
            if !inner.entries.contains_key(path) {
                inner.put(path, Node::file(&[]), access.mode);
            }
            let mut contents = inner.read_from(path, 0)?;
            contents.extend_from_slice(bytes);
            inner.set_contents(path, contents);
            Ok(())
        })
    }

    async fn keep_end(&self, path: &Path, most_bytes: u64) -> Result<(), FilesError> {
        self.at(path, |inner, path| {
            let length_bytes = inner.existing_file(path)?.1.length_bytes;
            if length_bytes > most_bytes {
                let end = inner.read_from(path, length_bytes - most_bytes)?;
                inner.set_contents(path, end);
            }
            Ok(())
        })
    }

    async fn list(&self, path: &Path, most: usize) -> Result<Vec<DirectoryEntry>, FilesError> {
        self.at(path, |inner, path| {
            inner.must_be_directory(path)?;
            let inside = inner.entries.iter().filter(|(other, _)| other.parent() == Some(path));
            let entries: Vec<DirectoryEntry> = inside
                .filter_map(|(other, entry)| {
                    let name = other.file_name()?.to_owned();
                    Some(DirectoryEntry { name, kind: entry.node.kind() })
                })
                .collect();
            match entries.len() > most {
                true => Err(FilesError::TooMany { path: path.to_owned(), most }),
                false => Ok(entries),
            }
        })
    }

    async fn create_directory(&self, path: &Path, access: &FileAccess) -> Result<(), FilesError> {
        self.at(path, |inner, path| {
            if inner.entries.contains_key(path) {
                return inner.must_be_directory(path);
            }
            inner.must_have_owner(access)?;
            inner.must_have_room(path)?;
            inner.directories_above(path);
            inner.put(path, Node::Directory, access.mode);
            Ok(())
        })
    }

    async fn remove(&self, path: &Path) -> Result<(), FilesError> {
        self.at(path, |inner, path| {
            if inner.entries.keys().any(|other| other.parent() == Some(path)) {
                return Err(FilesError::NotEmpty { path: path.to_owned() });
            }
            inner.entries.remove(path);
            Ok(())
        })
    }

    async fn space(&self, path: &Path) -> Result<FileSpace, FilesError> {
        self.at(path, |inner, path| {
            if !inner.entries.contains_key(path) {
                return Err(missing(path));
            }
            let available_bytes = if inner.full { 0 } else { DISK_BYTES };
            Ok(FileSpace { total_bytes: DISK_BYTES, available_bytes })
        })
    }
}
