//! Dumps of a tree: texts in a directory beside its file, for the day on which that file is
//! damaged.
//!
//! What is in the text is its writer's business. The name of a file says the rest:
//! `tree-SEQUENCE-SECONDS-CHECKSUM.json`. The sequence orders the dumps also when the clock stepped
//! back.

#![allow(clippy::disallowed_methods, reason = "an adapter: the tree's own files")]

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const DIRECTORY: &str = "dumps";
const PART: &str = "dump.part";

/// Time for which a dump is kept.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// The newest are kept whatever their age and size: a machine that was off for a month has not lost
/// them.
const ALWAYS: usize = 2;

/// Number of the newest dumps of which each is kept; of older ones the last of each hour. A daemon
/// that is started over and over writes many, and they must not drive out those from before its
/// trouble.
const EACH: usize = 8;

/// Largest number of dumps that are kept, and largest number of bytes.
const MOST: usize = 200;
const MOST_BYTES: u64 = 512 << 20;

/// The largest dump, so that those always kept fit into what all may take.
const LARGEST: u64 = 256 << 20;

/// Bytes that a dump leaves free on the disk: the tree itself needs room more than its copy.
const LEFT_FREE: u64 = 64 << 20;

/// The dumps of one tree. One process at a time writes them: the one that has the tree.
#[derive(Debug, Clone)]
pub struct Dumps {
    dir: PathBuf,
}

/// A dump, as its name tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump {
    pub path: PathBuf,
    /// Time at which the dump was taken, since 1970 by the clock of that time.
    pub taken: Duration,
    sequence: u64,
    checksum: u64,
    bytes: u64,
}

/// Reason for which a dump is of no use.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    #[error("it cannot be read")]
    Unreadable(#[source] io::Error),
    #[error("it has {bytes} bytes, more than any dump")]
    TooLarge { bytes: u64 },
    #[error("it is damaged: its checksum is another")]
    Damaged,
}

impl Dumps {
    /// The dumps of the tree kept in `dir`.
    pub fn of(dir: &Path) -> Dumps {
        Dumps { dir: dir.join(DIRECTORY) }
    }

    /// Lists the dumps that are there, the newest first.
    pub fn list(&self) -> io::Result<Vec<Dump>> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut dumps = Vec::new();
        for entry in entries {
            let entry = entry?;
            match entry.metadata() {
                // It got its name, or was one too many, since the directory was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                metadata => {
                    let metadata = metadata?;
                    let dump =
                        metadata.is_file().then(|| Dump::parse(entry.path(), metadata.len()));
                    dumps.extend(dump.flatten());
                }
            }
        }
        dumps.sort_by_key(|dump| std::cmp::Reverse((dump.sequence, dump.taken)));
        Ok(dumps)
    }

    /// Keeps `text` as the newest dump, complete before it gets its name, and removes what is
    /// superfluous.
    ///
    /// # Errors
    /// There is no room, also if there would be too little left for the tree, or the disk fails.
    /// What is there of older dumps stays.
    pub fn write(&self, text: &str, now: Duration) -> io::Result<PathBuf> {
        let bytes = text.len() as u64;
        if bytes > LARGEST {
            let why =
                format!("a dump of {bytes} bytes is more than the {LARGEST} that one may have");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let dumps = self.list()?;
        self.require_room(bytes)?;
        let sequence = dumps.first().map_or(1, |newest| newest.sequence.saturating_add(1));
        let (seconds, checksum) = (now.as_secs(), checksum(text));
        let path = self.dir.join(format!("tree-{sequence:08}-{seconds}-{checksum:016x}.json"));
        let part = self.dir.join(PART);
        let written = write_whole(&part, text).and_then(|()| fs::rename(&part, &path));
        if let Err(error) = written {
            let _ = fs::remove_file(&part); // it only takes room
            return Err(error);
        }
        File::open(&self.dir)?.sync_all()?;
        // Only now: until there is a new one, none of the old is too many.
        for dump in superfluous(&dumps, now, bytes) {
            fs::remove_file(&dump.path)?;
        }
        Ok(path)
    }

    fn require_room(&self, bytes: u64) -> io::Result<()> {
        let disk = nix::sys::statvfs::statvfs(&self.dir)?;
        #[allow(clippy::useless_conversion, reason = "their widths differ between platforms")]
        let free =
            u64::from(disk.blocks_available()).saturating_mul(u64::from(disk.fragment_size()));
        if free < bytes + LEFT_FREE {
            let why = format!(
                "{free} bytes are free, and {bytes} and {LEFT_FREE} for the tree are needed"
            );
            return Err(io::Error::new(io::ErrorKind::StorageFull, why));
        }
        Ok(())
    }
}

impl Dump {
    /// `None` if nobody gave `path` its name here.
    fn parse(path: PathBuf, bytes: u64) -> Option<Dump> {
        let name = path.file_name()?.to_str()?.strip_prefix("tree-")?.strip_suffix(".json")?;
        let mut parts = name.split('-');
        let sequence = parts.next()?.parse().ok()?;
        let taken = Duration::from_secs(parts.next()?.parse().ok()?);
        let checksum = u64::from_str_radix(parts.next()?, 16).ok()?;
        parts.next().is_none().then_some(Dump { path, taken, sequence, checksum, bytes })
    }

    /// The text, exactly as it was written.
    pub fn read(&self) -> Result<String, DumpError> {
        let mut text = Vec::new();
        let file = File::open(&self.path).map_err(DumpError::Unreadable)?;
        let read = file.take(LARGEST + 1).read_to_end(&mut text);
        let bytes = read.map_err(DumpError::Unreadable)? as u64;
        if bytes > LARGEST {
            return Err(DumpError::TooLarge { bytes: self.bytes.max(bytes) });
        }
        let text = String::from_utf8(text).map_err(|_| DumpError::Damaged)?;
        if checksum(&text) == self.checksum { Ok(text) } else { Err(DumpError::Damaged) }
    }
}

/// Returns those of `dumps`, the newest first, that go when one of `bytes` more comes.
fn superfluous(dumps: &[Dump], now: Duration, bytes: u64) -> Vec<&Dump> {
    let mut hours = BTreeSet::new();
    let mut total = bytes;
    let goes = |(at, dump): &(usize, &Dump)| {
        total = total.saturating_add(dump.bytes);
        let is_first_of_hour = hours.insert(dump.taken.as_secs() / 3600);
        let is_old = now.saturating_sub(dump.taken) > KEPT;
        let is_one_of_many = *at >= EACH && !is_first_of_hour;
        // With the one that comes there is one more.
        *at + 1 >= ALWAYS && (is_old || is_one_of_many || *at + 1 >= MOST || total > MOST_BYTES)
    };
    dumps.iter().enumerate().filter(goes).map(|(_, dump)| dump).collect()
}

fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// FNV-1a with 64 bits: against disks, not against people. Each step can be undone, so that a
/// single wrong byte is always found.
fn checksum(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;

    fn dump(sequence: u64, taken: u64, bytes: u64) -> Dump {
        Dump {
            path: PathBuf::new(),
            taken: Duration::from_secs(taken),
            sequence,
            checksum: 0,
            bytes,
        }
    }

    /// The sequences that stay when the dumps of `taken`, the newest first, are thinned out.
    fn staying(taken: &[u64], now: u64, bytes: u64) -> Vec<u64> {
        let dumps: Vec<Dump> =
            (0..).zip(taken).map(|(at, taken)| dump(at, *taken, bytes)).collect();
        let gone = superfluous(&dumps, Duration::from_secs(now), bytes);
        dumps.iter().filter(|dump| !gone.contains(dump)).map(|dump| dump.sequence).collect()
    }

    #[test]
    fn a_dump_is_kept_for_a_week() {
        let now = 1_000 * HOUR;
        let hourly: Vec<u64> = (0..400).map(|ago| now - ago * HOUR).collect();
        assert_eq!(staying(&hourly, now, 1), (0..=168).collect::<Vec<_>>());
    }

    #[test]
    fn the_newest_stays_whatever_its_age_and_size() {
        assert_eq!(staying(&[HOUR, 0], 10_000 * HOUR, LARGEST), [0]);
    }

    #[test]
    fn starts_without_end_do_not_drive_out_the_dumps_from_before() {
        let now = 1_000 * HOUR;
        let starts = (0..100).map(|ago| now - 1 - ago);
        let before = (1..=24).map(|ago| now - ago * HOUR - HOUR / 2);
        let staying = staying(&starts.chain(before).collect::<Vec<_>>(), now, 1);
        assert_eq!(staying, (0..8).chain(100..124).collect::<Vec<_>>());
    }

    #[test]
    fn their_number_and_their_bytes_are_bounded() {
        let now = 10_000 * HOUR;
        // A clock that leaps: each in an hour of its own, and none of them old.
        let future: Vec<u64> = (0..500).map(|at| now + at * HOUR).collect();
        assert_eq!(staying(&future, now, 1).len(), MOST - 1);
        assert_eq!(staying(&future, now, MOST_BYTES / 4).len(), 3);
    }

    #[test]
    fn a_name_that_nobody_gave_here_is_no_dump() {
        let named = |name: &str| Dump::parse(PathBuf::from(name), 0).map(|dump| dump.sequence);
        assert_eq!(named("/d/tree-00000007-12-00000000000000ff.json"), Some(7));
        for name in [
            "dump.part",
            "tree-7-12.json",
            "tree-7-12-ff-1.json",
            "tree-x-12-ff.json",
            "tree-7-12-ff",
        ] {
            assert_eq!(named(name), None, "{name}");
        }
    }
}
