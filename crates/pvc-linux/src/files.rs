use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    fchown,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use nix::libc::{O_DIRECTORY, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK};
use nix::sys::statvfs::statvfs;
use nix::unistd::{Gid, Group, Uid, User};
use pvc_ports::{
    DirectoryEntry, FileAccess, FileInfo, FileKind, FileOwner, FileSpace, Files, FilesError, aside,
    file_path,
};

/// Files of this machine, as its kernel has them.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinuxFiles;

/// Ending of the name of a file until it is whole. Its first character is a dot: programs that read
/// whole directories of configuration leave such names out.
const UNFINISHED: &str = ".pvc-new";

/// Number of bytes of a file that are moved at once.
const PIECE: usize = 64 << 10;

/// Number of entries of a directory that are looked at for what earlier processes left unfinished.
const SWEPT_ENTRIES: usize = 10_000;

/// Translates an error of what was to be `done` with a file.
pub fn failed(done: &'static str, path: &Path) -> impl Fn(io::Error) -> FilesError {
    move |source| {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => FilesError::Missing { path },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                FilesError::NoSpace { path }
            }
            io::ErrorKind::DirectoryNotEmpty => FilesError::NotEmpty { path },
            _ => FilesError::Failed { done, path, source },
        }
    }
}

fn kind(kind: fs::FileType) -> FileKind {
    match (kind.is_file(), kind.is_dir(), kind.is_symlink()) {
        (true, ..) => FileKind::File,
        (_, true, _) => FileKind::Directory,
        (.., true) => FileKind::SymbolicLink,
        _ => FileKind::Special,
    }
}

fn info(found: &Metadata) -> FileInfo {
    let seconds = Duration::from_secs(u64::try_from(found.mtime()).unwrap_or(0));
    let nanos = Duration::from_nanos(u64::try_from(found.mtime_nsec()).unwrap_or(0));
    FileInfo {
        kind: kind(found.file_type()),
        length_bytes: found.len(),
        mode: found.mode() & 0o7777,
        modified: seconds + nanos,
        inode: found.ino(),
    }
}

fn look(path: &Path) -> Result<Option<FileInfo>, FilesError> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(info(&found))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("looked at", path)(error)),
    }
}

fn follow(path: &Path) -> Result<PathBuf, FilesError> {
    fs::canonicalize(path).map_err(failed("followed", path))
}

fn must_be_file(path: &Path, found: &FileInfo) -> Result<(), FilesError> {
    match found.kind {
        FileKind::File => Ok(()),
        kind => Err(FilesError::NotAFile { path: path.to_owned(), kind }),
    }
}

/// Opens a file, and nothing else: what is there is looked at before, because opening a FIFO may
/// wait and opening a device may do something, and afterwards, because it may have been replaced.
pub fn open(
    path: &Path,
    done: &'static str,
    options: &mut OpenOptions,
) -> Result<(File, FileInfo), FilesError> {
    if let Some(found) = look(path)? {
        must_be_file(path, &found)?;
    }
    let file = options
        .custom_flags(O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)
        .open(path)
        .map_err(failed(done, path))?;
    let found = info(&file.metadata().map_err(failed(done, path))?);
    must_be_file(path, &found)?;
    Ok((file, found))
}

fn read(path: &Path, most_bytes: u64) -> Result<Vec<u8>, FilesError> {
    let too_large = || FilesError::TooLarge { path: path.to_owned(), most_bytes };
    let (file, found) = open(path, "read", OpenOptions::new().read(true))?;
    if found.length_bytes > most_bytes {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    let read = file.take(most_bytes.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(failed("read", path))?;
    if bytes.len() as u64 > most_bytes { Err(too_large()) } else { Ok(bytes) }
}

fn read_end(path: &Path, most_bytes: u64) -> Result<(FileInfo, Vec<u8>), FilesError> {
    let (mut file, found) = open(path, "read", OpenOptions::new().read(true))?;
    let from = SeekFrom::Start(found.length_bytes.saturating_sub(most_bytes));
    let mut bytes = Vec::new();
    let mut read = || {
        file.seek(from)?;
        (&mut file).take(most_bytes).read_to_end(&mut bytes)
    };
    read().map_err(failed("read", path))?;
    Ok((found, bytes))
}

/// The numbers of a user and a group.
fn ids(owner: &FileOwner) -> Result<(Uid, Gid), FilesError> {
    let user = User::from_name(&owner.user).ok().flatten();
    let group = Group::from_name(&owner.group).ok().flatten();
    match (user, group) {
        (Some(user), Some(group)) => Ok((user.uid, group.gid)),
        _ => {
            let FileOwner { user, group } = owner.clone();
            Err(FilesError::NoOwner { user, group })
        }
    }
}

/// Gives an open file or directory its owner and its mode, in this order: a change of the owner
/// takes bits away.
fn give_access(file: &File, access: &FileAccess, owner: Option<(Uid, Gid)>) -> io::Result<()> {
    if let Some((user, group)) = owner {
        fchown(file, Some(user.as_raw()), Some(group.as_raw()))?;
    }
    file.set_permissions(Permissions::from_mode(access.mode))
}

/// The directory that a path lies in, and its last name.
fn split(path: &Path) -> Result<(&Path, String), FilesError> {
    let parts = path.parent().zip(path.file_name());
    let (directory, name) = parts.ok_or_else(|| FilesError::BadPath { path: path.to_owned() })?;
    Ok((directory, name.to_string_lossy().into_owned()))
}

fn replace(path: &Path, contents: &[u8], access: &FileAccess) -> Result<(), FilesError> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let (directory, name) = split(path)?;
    if let Some(found) = look(path)? {
        must_be_file(path, &found)?;
    }
    let owner = access.owner.as_ref().map(ids).transpose()?;
    let turn = COUNT.fetch_add(1, Ordering::Relaxed);
    let new = directory.join(format!(".{name}.{}-{turn}{UNFINISHED}", std::process::id()));
    // In a container the process before us may have had our number.
    let _ = fs::remove_file(&new);
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(contents)?;
        give_access(&file, access, owner)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    if let Err(error) = write() {
        // It may not even have been made.
        let _ = fs::remove_file(&new);
        return Err(failed("written", path)(error));
    }
    sync_directory(directory).map_err(failed("written", path))?;
    sweep(directory, &name);
    Ok(())
}

/// Has the names in a directory outlive a crash.
fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Removes what processes that are no more had not finished when they died. What cannot be removed
/// is found by the next one.
fn sweep(directory: &Path, name: &str) {
    let begin = format!(".{name}.");
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.take(SWEPT_ENTRIES).flatten() {
        let left = entry.file_name();
        let process = left.to_str().and_then(|left| {
            let (process, _) =
                left.strip_prefix(&begin)?.strip_suffix(UNFINISHED)?.split_once('-')?;
            process.parse::<u32>().ok()
        });
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn append(
    path: &Path,
    bytes: &[u8],
    access: &FileAccess,
    most_bytes: u64,
) -> Result<(), FilesError> {
    let owner = access.owner.as_ref().map(ids).transpose()?;
    let too_large = || FilesError::TooLarge { path: path.to_owned(), most_bytes };
    let existing = || open(path, "written", OpenOptions::new().append(true));
    let opened = match existing() {
        Err(FilesError::Missing { .. }) if bytes.len() as u64 > most_bytes => {
            return Err(too_large());
        }
        Err(FilesError::Missing { .. }) => match open_new(path, access, owner) {
            // Somebody else was faster: it is theirs.
            Err(error) if is_there(&error) => existing(),
            made => made,
        },
        opened => opened,
    };
    let (mut file, found) = opened?;
    if found.length_bytes.saturating_add(bytes.len() as u64) > most_bytes {
        return Err(too_large());
    }
    file.write_all(bytes).map_err(failed("written", path))
}

/// Makes a file that is not there, and opens it for appending.
fn open_new(
    path: &Path,
    access: &FileAccess,
    owner: Option<(Uid, Gid)>,
) -> Result<(File, FileInfo), FilesError> {
    let mut options = OpenOptions::new();
    options.append(true).create_new(true).mode(0o600);
    let (file, found) = open(path, "written", &mut options)?;
    give_access(&file, access, owner).map_err(failed("written", path))?;
    Ok((file, found))
}

fn is_there(error: &FilesError) -> bool {
    matches!(
        error,
        FilesError::Failed { source, .. } if source.kind() == io::ErrorKind::AlreadyExists
    )
}

fn keep_end(path: &Path, most_bytes: u64) -> Result<(), FilesError> {
    let (file, found) = open(path, "cut", OpenOptions::new().read(true).write(true))?;
    match found.length_bytes.checked_sub(most_bytes) {
        None | Some(0) => Ok(()),
        Some(from) => cut(&file, from).map_err(failed("cut", path)),
    }
}

/// Moves what is in the file behind `from` to its beginning, with what is appended meanwhile, and
/// only then lets go of the rest. An error before that loses nothing of what is moved: it is still
/// there, behind what was moved already. Lost is only what is appended in the moment between the
/// last look and the cut.
fn cut(file: &File, from: u64) -> io::Result<()> {
    let (from, to) = move_rest(file, from, 0)?;
    // The machine may crash, and the new length may be on the disk first. Writing takes its time.
    file.sync_data()?;
    let (_, to) = move_rest(file, from, to)?;
    file.set_len(to)
}

/// Moves what is behind `from` to `to`, and returns where both end. Of a file that grows faster
/// than that it moves as much as there was at its beginning.
fn move_rest(file: &File, mut from: u64, mut to: u64) -> io::Result<(u64, u64)> {
    let (mut piece, end) = (vec![0; PIECE], file.metadata()?.len());
    loop {
        let count = file.read_at(&mut piece, from)?;
        if count == 0 {
            return Ok((from, to));
        }
        file.write_all_at(&piece[..count], to)?;
        from += count as u64;
        to += count as u64;
        if from >= end {
            return Ok((from, to));
        }
    }
}

fn list(path: &Path, most: usize) -> Result<Vec<DirectoryEntry>, FilesError> {
    must_be_directory(path)?;
    let mut entries = Vec::new();
    for entry in fs::read_dir(path).map_err(failed("listed", path))? {
        let entry = entry.map_err(failed("listed", path))?;
        if entries.len() == most {
            return Err(FilesError::TooMany { path: path.to_owned(), most });
        }
        let kind = kind(entry.file_type().map_err(failed("listed", path))?);
        entries.push(DirectoryEntry { name: entry.file_name(), kind });
    }
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(entries)
}

fn must_be_directory(path: &Path) -> Result<(), FilesError> {
    match look(path)? {
        None => Err(FilesError::Missing { path: path.to_owned() }),
        Some(FileInfo { kind: FileKind::Directory, .. }) => Ok(()),
        Some(FileInfo { kind, .. }) => {
            Err(FilesError::NotADirectory { path: path.to_owned(), kind })
        }
    }
}

fn create_directory(path: &Path, access: &FileAccess) -> Result<(), FilesError> {
    if look(path)?.is_some() {
        return must_be_directory(path);
    }
    let owner = access.owner.as_ref().map(ids).transpose()?;
    let make = || -> io::Result<()> {
        if let Some(above) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(above)?;
        }
        match DirBuilder::new().mode(0o700).create(path) {
            // Somebody else was faster: it is theirs.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            made => made?,
        }
        // By its descriptor: somebody else may put a link in its place.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(O_DIRECTORY | O_NOFOLLOW);
        give_access(&options.open(path)?, access, owner)
    };
    make().map_err(failed("made", path))
}

fn remove(path: &Path) -> Result<(), FilesError> {
    let removed = match look(path)? {
        None => return Ok(()),
        Some(FileInfo { kind: FileKind::Directory, .. }) => fs::remove_dir(path),
        Some(_) => fs::remove_file(path),
    };
    match removed.map_err(failed("removed", path)) {
        Err(FilesError::Missing { .. }) => return Ok(()),
        removed => removed?,
    }
    let (directory, _) = split(path)?;
    sync_directory(directory).map_err(failed("removed", path))
}

fn space(path: &Path) -> Result<FileSpace, FilesError> {
    let found = statvfs(path).map_err(|errno| failed("looked at", path)(errno.into()))?;
    Ok(FileSpace {
        total_bytes: found.blocks() * found.fragment_size(),
        available_bytes: found.blocks_available() * found.fragment_size(),
    })
}

#[async_trait]
impl Files for LinuxFiles {
    async fn look(&self, path: &Path) -> Result<Option<FileInfo>, FilesError> {
        let path = file_path(path)?;
        aside(move || look(&path)).await
    }

    async fn follow(&self, path: &Path) -> Result<PathBuf, FilesError> {
        let path = file_path(path)?;
        aside(move || follow(&path)).await
    }

    async fn read(&self, path: &Path, most_bytes: u64) -> Result<Vec<u8>, FilesError> {
        let path = file_path(path)?;
        aside(move || read(&path, most_bytes)).await
    }

    async fn read_end(
        &self,
        path: &Path,
        most_bytes: u64,
    ) -> Result<(FileInfo, Vec<u8>), FilesError> {
        let path = file_path(path)?;
        aside(move || read_end(&path, most_bytes)).await
    }

    async fn replace(
        &self,
        path: &Path,
        contents: &[u8],
        access: &FileAccess,
    ) -> Result<(), FilesError> {
        let (contents, access) = (contents.to_owned(), access.clone());
        let path = file_path(path)?;
        aside(move || replace(&path, &contents, &access)).await
    }

    async fn append(
        &self,
        path: &Path,
        bytes: &[u8],
        access: &FileAccess,
        most_bytes: u64,
    ) -> Result<(), FilesError> {
        let (bytes, access) = (bytes.to_owned(), access.clone());
        let path = file_path(path)?;
        aside(move || append(&path, &bytes, &access, most_bytes)).await
    }

    async fn keep_end(&self, path: &Path, most_bytes: u64) -> Result<(), FilesError> {
        let path = file_path(path)?;
        aside(move || keep_end(&path, most_bytes)).await
    }

    async fn list(&self, path: &Path, most: usize) -> Result<Vec<DirectoryEntry>, FilesError> {
        let path = file_path(path)?;
        aside(move || list(&path, most)).await
    }

    async fn create_directory(&self, path: &Path, access: &FileAccess) -> Result<(), FilesError> {
        let (path, access) = (file_path(path)?, access.clone());
        aside(move || create_directory(&path, &access)).await
    }

    async fn remove(&self, path: &Path) -> Result<(), FilesError> {
        let path = file_path(path)?;
        aside(move || remove(&path)).await
    }

    async fn space(&self, path: &Path) -> Result<FileSpace, FilesError> {
        let path = file_path(path)?;
        aside(move || space(&path)).await
    }
}

#[cfg(test)]
mod tests {
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    fn memory(contents: &[u8]) -> File {
        let file = File::from(memfd_create("log", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        file.write_all_at(contents, 0).unwrap();
        file
    }

    fn contents(file: &File) -> Vec<u8> {
        let mut contents = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut contents, 0).unwrap();
        contents
    }

    #[test]
    fn an_end_of_any_length_is_moved_to_the_beginning() {
        let whole: Vec<u8> = (0_u32..100_000).flat_map(u32::to_be_bytes).collect();
        for from in [1, 7, PIECE, whole.len() / 2, whole.len() - 1, whole.len()] {
            let file = memory(&whole);
            cut(&file, from as u64).unwrap();
            assert!(contents(&file) == whole[from..], "from {from} on");
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_not_cut() {
        let file = memory(b"0123456789");
        // What was written stays, and could be cut: a full disk.
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).unwrap();
        cut(&file, 6).unwrap_err();
        assert_eq!(contents(&file), b"0123456789");
        file.set_len(4).unwrap();
    }

    #[tokio::test]
    async fn many_who_append_to_a_new_file_at_once_lose_nothing() {
        let access = FileAccess::PUBLIC;
        let directory = tempfile::tempdir().unwrap();
        for turn in 0..20 {
            let path = directory.path().join(turn.to_string());
            let append = || LinuxFiles.append(&path, b"line\n", &access, 1000);
            let (one, two, three) = tokio::join!(append(), append(), append());
            one.and(two).and(three).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"line\nline\nline\n");
        }
    }

    #[tokio::test]
    async fn who_appends_goes_on_behind_the_end_that_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web1.log");
        let mut writer = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        writer.write_all(b"0123456789").unwrap();
        LinuxFiles.keep_end(&path, 4).await.unwrap();
        writer.write_all(b"more").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"6789more");
    }

    #[tokio::test]
    async fn what_a_dead_process_has_not_finished_goes_with_the_next_one() {
        let directory = tempfile::tempdir().unwrap();
        let left = |process: u32, turn: u32| {
            let left = directory.path().join(format!(".conf.{process}-{turn}{UNFINISHED}"));
            fs::write(&left, "half").unwrap();
            left
        };
        // The largest number of a process is 2²².
        let dead = left(99_999_999, 0);
        let alive = left(1, 0);
        for turn in 0..10 {
            left(std::process::id(), turn);
        }
        let path = directory.path().join("conf");
        LinuxFiles.replace(&path, b"whole", &FileAccess::PUBLIC).await.unwrap();
        assert!(!dead.exists() && alive.exists(), "another replacement may be in progress");
        assert_eq!(fs::read(&path).unwrap(), b"whole");
    }
}
