//! Files of this machine, in bounded pieces.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;

/// Kind of file that a name in a directory stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    File,
    Directory,
    SymbolicLink,
    /// A FIFO, a socket or a device.
    Special,
}

impl FileKind {
    fn in_words(self) -> &'static str {
        match self {
            FileKind::File => "file",
            FileKind::Directory => "directory",
            FileKind::SymbolicLink => "symbolic link",
            FileKind::Special => "FIFO, a socket or a device",
        }
    }
}

/// Attributes of a file in its file system. If all of them are as before, so are its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileInfo {
    pub kind: FileKind,
    pub length_bytes: u64,
    /// The permission bits: `0o600`.
    pub mode: u32,
    /// Time of the last change of its contents, since the epoch by this machine's clock.
    pub modified: Duration,
    /// No two files that exist at once on a file system have the same.
    pub inode: u64,
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    pub name: OsString,
    pub kind: FileKind,
}

/// Permissions and owner of a file that is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileAccess {
    /// The permission bits: `0o600`. The umask takes none of them away.
    pub mode: u32,
    /// `None`: the daemon's own user.
    pub owner: Option<FileOwner>,
}

/// A user and a group by name, both of which must exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOwner {
    pub user: String,
    pub group: String,
}

impl FileAccess {
    /// Everybody may read it.
    pub const PUBLIC: FileAccess = FileAccess { mode: 0o644, owner: None };
    /// Only the daemon may read it.
    pub const PRIVATE: FileAccess = FileAccess { mode: 0o600, owner: None };
    /// For a directory: everybody may look into it.
    pub const PUBLIC_DIRECTORY: FileAccess = FileAccess { mode: 0o755, owner: None };
}

/// Space of the file system that a path lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSpace {
    pub total_bytes: u64,
    /// Space that an ordinary user can still write.
    pub available_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("`{}` is not an absolute path to something by its name", path.display())]
    BadPath { path: PathBuf },
    #[error("`{}` does not exist", path.display())]
    Missing { path: PathBuf },
    #[error("`{}` is a {} and not a file", path.display(), kind.in_words())]
    NotAFile { path: PathBuf, kind: FileKind },
    #[error("`{}` is a {} and not a directory", path.display(), kind.in_words())]
    NotADirectory { path: PathBuf, kind: FileKind },
    #[error("the directory `{}` is not empty", path.display())]
    NotEmpty { path: PathBuf },
    #[error("the file `{}` has more than {most_bytes} bytes", path.display())]
    TooLarge { path: PathBuf, most_bytes: u64 },
    #[error("the directory `{}` has more than {most} entries", path.display())]
    TooMany { path: PathBuf, most: usize },
    #[error("there is no space left for `{}`", path.display())]
    NoSpace { path: PathBuf },
    #[error("this machine has no user `{user}` with a group `{group}`")]
    NoOwner { user: String, group: String },
    #[error("`{}` could not be {done}", path.display())]
    Failed {
        /// `read`, `written` …
        done: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// The path in the form that adapters use: without doubled slashes and without one at its end, with
/// which a link would be followed. It must be absolute, without `..`, and end in a name.
///
/// # Errors
/// [`FilesError::BadPath`].
pub fn file_path(path: &Path) -> Result<PathBuf, FilesError> {
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    let is_good = path.is_absolute() && path.components().all(is_plain);
    match is_good && path.file_name().is_some() {
        true => Ok(path.components().collect()),
        false => Err(FilesError::BadPath { path: path.to_owned() }),
    }
}

/// Files of this machine.
///
/// Paths are absolute. No call but [`follow`](Files::follow) follows a symbolic link that a path
/// ends in, none reads or writes anything but files, and none waits for what is no file: a FIFO is
/// refused. Directories above may be links. Whatever is read or listed has a bound that the caller
/// sets.
///
/// # Cancellation
/// What has begun is finished, also when the future is dropped.
#[async_trait]
pub trait Files: Send + Sync {
    /// Returns the attributes of the file at `path`; `None` if nothing is there.
    async fn look(&self, path: &Path) -> Result<Option<FileInfo>, FilesError>;

    /// Returns the path that `path` leads to when every symbolic link is followed, also the one
    /// that it may end in: for files that operators link elsewhere by custom. By the time that path
    /// is used, another file may be there.
    ///
    /// # Errors
    /// [`Missing`](FilesError::Missing) if nothing is there, or where a link leads.
    async fn follow(&self, path: &Path) -> Result<PathBuf, FilesError>;

    /// The whole file. Its bytes are those of one file, also while somebody
    /// [replaces](Files::replace) it; of one that is written in place they may be of several
    /// moments.
    ///
    /// # Errors
    /// [`TooLarge`](FilesError::TooLarge) if it has more than `most_bytes`, or grows beyond them
    /// while it is read.
    async fn read(&self, path: &Path, most_bytes: u64) -> Result<Vec<u8>, FilesError>;

    /// The last `most_bytes` bytes of the file, and what it was when they were read.
    async fn read_end(
        &self,
        path: &Path,
        most_bytes: u64,
    ) -> Result<(FileInfo, Vec<u8>), FilesError>;

    /// Makes the file, or puts another in its place, with these contents and this access.
    ///
    /// Whoever opens it finds the old contents or the new ones, whole, also after a crash of the
    /// machine; when the call has returned, the new ones. On any error the old ones are there.
    async fn replace(
        &self,
        path: &Path,
        contents: &[u8],
        access: &FileAccess,
    ) -> Result<(), FilesError>;

    /// Adds `bytes` at the end of the file in one write, and makes the file with `access` if it
    /// does not exist. The last bytes may be lost when the machine crashes.
    ///
    /// # Errors
    /// [`TooLarge`](FilesError::TooLarge) if it would have more than `most_bytes` then; nothing is
    /// added.
    async fn append(
        &self,
        path: &Path,
        bytes: &[u8],
        access: &FileAccess,
        most_bytes: u64,
    ) -> Result<(), FilesError>;

    /// Cuts the file in place to its last `most_bytes` bytes, and what is appended meanwhile.
    /// Whoever has it open for appending goes on behind them; what is written in the very moment of
    /// the cut may be missing. After an error they are still there, and some of them may be there
    /// twice.
    async fn keep_end(&self, path: &Path, most_bytes: u64) -> Result<(), FilesError>;

    /// Returns the entries of the directory, by name, without `.` and `..`.
    ///
    /// # Errors
    /// [`TooMany`](FilesError::TooMany) if there are more than `most` entries.
    async fn list(&self, path: &Path, most: usize) -> Result<Vec<DirectoryEntry>, FilesError>;

    /// Makes the directory with this access, and those above it that are missing, which everybody
    /// may look into. One that is there stays as it is.
    async fn create_directory(&self, path: &Path, access: &FileAccess) -> Result<(), FilesError>;

    /// Removes a file, an empty directory, or a symbolic link itself. What is not there is removed.
    async fn remove(&self, path: &Path) -> Result<(), FilesError>;

    /// Returns the space of the file system that `path`, which must exist, lies on.
    async fn space(&self, path: &Path) -> Result<FileSpace, FilesError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_absolute_and_end_in_a_name() {
        for (good, used) in
            [("/etc/pvc.conf", "/etc/pvc.conf"), ("/a//b", "/a/b"), ("/a/b/", "/a/b")]
        {
            assert_eq!(file_path(Path::new(good)).unwrap().as_os_str(), used, "{good}");
        }
        for bad in ["", "/", "a", "./a", "/a/..", "/a/../b"] {
            let error = file_path(Path::new(bad)).unwrap_err();
            assert!(matches!(error, FilesError::BadPath { .. }), "{bad}: {error}");
        }
    }
}
