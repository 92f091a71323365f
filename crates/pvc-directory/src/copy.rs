//! Copying images without their holes.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::unistd::{Whence, lseek};
use pvc_ports::Course;

/// Number of bytes that are read at once.
const CHUNK: usize = 1 << 20;

/// Runs of zeros of this length become holes.
const BLOCK: usize = 64 << 10;

nix::ioctl_write_int!(ficlone, 0x94, 9);

/// A copy in progress, which may be told to stop.
pub(crate) struct Copying {
    stop: Arc<AtomicBool>,
    course: Course,
}

impl Copying {
    pub fn new(stop: Arc<AtomicBool>, course: Course) -> Self {
        Copying { stop, course }
    }

    /// Lets `to` share the contents of `from` as they are at this moment. `false` if the file
    /// system cannot do that; then nothing was changed.
    ///
    /// # Errors
    /// If it can, and has no room for what it would have to note.
    pub fn reflink(&self, from: &File, to: &File) -> io::Result<bool> {
        let source = u64::try_from(from.as_raw_fd())
            .expect("an open file has a descriptor that is not negative");
        // SAFETY: both descriptors are open for the duration of the call, and the ioctl takes the
        // source's number as its argument; no memory is handed over.
        match unsafe { ficlone(to.as_raw_fd(), source) } {
            Ok(_) => Ok(true),
            Err(error @ (Errno::ENOSPC | Errno::EDQUOT)) => Err(error.into()),
            Err(_) => Ok(false),
        }
    }

    /// Takes notice that what lies before `at` is copied.
    fn reach(&self, at: u64) {
        self.course.reach(at);
    }

    /// Fails if the copy is to stop.
    pub fn check(&self) -> io::Result<()> {
        if self.stop.load(Ordering::Relaxed) || self.course.is_stopped() {
            return Err(io::Error::new(
                io::ErrorKind::Interrupted,
                "nobody waits for the copy any longer",
            ));
        }
        Ok(())
    }
}

/// Makes the empty file `to` equal to `from`: as a reflink where the file system can, else as a
/// copy in which runs of zeros take no room. `to` is on disk when this returns.
pub(crate) fn copy_contents(from: &File, to: &File, copying: &Copying) -> io::Result<()> {
    if !copying.reflink(from, to)? {
        let length = from.metadata()?.len();
        to.set_len(length)?;
        let mut at = 0;
        while let Some((start, end)) = next_data(from, at, length)? {
            copy_range(from, to, start, end, copying)?;
            at = end;
        }
        copying.reach(length);
    }
    to.sync_all()
}

/// The next range that is not a hole, from `at` on.
pub(crate) fn next_data(file: &File, at: u64, length: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= length {
        return Ok(None);
    }
    let from = i64::try_from(at).map_err(io::Error::other)?;
    let start = match lseek(file, from, Whence::SeekData) {
        Ok(start) => start,
        Err(Errno::ENXIO) => return Ok(None),
        // Some file systems know no holes: all is data.
        Err(Errno::EINVAL | Errno::EOPNOTSUPP) => return Ok(Some((at, length))),
        Err(error) => return Err(error.into()),
    };
    let end = lseek(file, start, Whence::SeekHole)?;
    Ok(Some((start.unsigned_abs(), end.unsigned_abs().min(length))))
}

fn copy_range(from: &File, to: &File, start: u64, end: u64, copying: &Copying) -> io::Result<()> {
    let mut buffer = vec![0_u8; CHUNK];
    let mut at = start;
    while at < end {
        copying.check()?;
        copying.reach(at);
        let want = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
        let got = from.read_at(&mut buffer[..want], at)?;
        if got == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the source became shorter during the copy",
            ));
        }
        let mut block_at = at;
        for block in buffer[..got].chunks(BLOCK) {
            if block.iter().any(|byte| *byte != 0) {
                to.write_all_at(block, block_at)?;
            }
            block_at += block.len() as u64;
        }
        at += got as u64;
    }
    Ok(())
}

/// Writes `bytes` over what is at `at`. Long zeros become holes, where the file system can.
pub(crate) fn write_without_holes(to: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    let mut block_at = at;
    for block in bytes.chunks(BLOCK) {
        let is_zero = block.iter().all(|byte| *byte == 0);
        if !is_zero || !punch(to, block_at, block.len()) {
            to.write_all_at(block, block_at)?;
        }
        block_at += block.len() as u64;
    }
    Ok(())
}

/// Makes a range of the file zeros that take no room. `false` if the file system cannot do that.
fn punch(file: &File, at: u64, length: usize) -> bool {
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    match (i64::try_from(at), i64::try_from(length)) {
        (Ok(at), Ok(length)) => fallocate(file, flags, at, length).is_ok(),
        _ => false,
    }
}
