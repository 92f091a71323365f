//! A file on its way: how much of it, how fast, for how long yet; and its checksum.

use std::io::{self, IsTerminal, Read};
use std::time::{Duration, Instant};

use pvc_model::size::format_size;
use pvc_model::transfer::{Speed, Transferred};
use sha2::{Digest, Sha256};

use crate::context::Pvc;

/// Time between two lines of progress.
const EVERY: Duration = Duration::from_secs(1);

/// Progress of a file, on a terminal.
pub struct Progress<'a> {
    pvc: &'a Pvc,
    all: Option<u64>,
    is_shown: bool,
    begun: Instant,
    speed: Speed,
    shown: Option<Instant>,
    /// Words about what the other side does when all is there, until they are said.
    then: Option<&'static str>,
    /// Whether they stand at the end of a line that goes on.
    is_open: bool,
}

impl<'a> Progress<'a> {
    pub fn new(pvc: &'a Pvc, all: Option<u64>) -> Self {
        let (shown, then) = (None, None);
        Progress {
            pvc,
            all,
            is_shown: io::stderr().is_terminal(),
            begun: Instant::now(),
            speed: Speed::from(Duration::ZERO),
            shown,
            then,
            is_open: false,
        }
    }

    /// Says, as PVC 1.0.3's client does, that something is sent, and at its end that the other side
    /// is at it.
    pub fn begin_upload(&mut self) {
        let total = |all| format!(" (total size {})", format_size(all));
        let total = self.all.map_or_else(String::new, total);
        self.say(&format!("Uploading file{total}...\n"));
        self.then = Some("Parsing file on remote side... ");
    }

    /// Says what is waited for, until this [ends](Self::end).
    pub fn begin_waiting(&mut self, words: &str) {
        self.say(&format!("{words}... "));
        self.is_open = true;
    }

    fn say(&self, text: &str) {
        if self.is_shown {
            self.pvc.progress(text);
        }
    }

    fn at(&mut self, bytes: u64) {
        if !self.is_shown || self.shown.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.shown = Some(Instant::now());
        self.speed.look(self.begun.elapsed(), bytes);
        let bytes_per_second = self.speed.bytes_per_second();
        let gone = Transferred { bytes, of: self.all, bytes_per_second };
        self.pvc.progress(&format!("\r{gone}\x1b[K"));
    }

    /// All is there.
    fn turn(&mut self) {
        if let Some(words) = self.then.take() {
            self.clear();
            self.say(words);
            self.is_open = true;
        }
    }

    fn clear(&mut self) {
        if self.shown.take().is_some() {
            self.pvc.progress("\r\x1b[K");
        }
    }

    /// Ends the line, or clears it.
    pub fn end(&mut self, went_well: bool) {
        self.clear();
        if std::mem::take(&mut self.is_open) {
            self.say(if went_well { "done.\n" } else { "\n" });
        }
    }
}

/// A file that is read: counted, hashed and shown.
pub struct Watched<'a, R> {
    from: R,
    pub progress: Progress<'a>,
    sha256: Sha256,
    crc32: crc32fast::Hasher,
    pub bytes: u64,
    /// A failure to read, which is not one of the connection.
    pub failed: Option<io::Error>,
    /// Size that the file is known to have.
    size: Option<u64>,
}

impl<'a, R: Read> Watched<'a, R> {
    pub fn new(from: R, size: Option<u64>, pvc: &'a Pvc) -> Self {
        let progress = Progress::new(pvc, size);
        let (sha256, crc32) = (Sha256::new(), crc32fast::Hasher::new());
        Watched { from, progress, sha256, crc32, bytes: 0, failed: None, size }
    }

    /// SHA-256 checksum of what was read, in hexadecimal digits.
    pub fn sha256(&self) -> String {
        self.sha256.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// CRC-32 checksum of what was read, in hexadecimal digits.
    pub fn crc32(&self) -> String {
        format!("{:08x}", self.crc32.clone().finalize())
    }

    fn next(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        let bytes = self.bytes + read as u64;
        match self.size {
            Some(size) if bytes > size => {
                Err(io::Error::other(format!("it goes on after {size} bytes, which are all")))
            }
            Some(size) if read == 0 && bytes < size && !into.is_empty() => {
                Err(io::Error::other(format!("it ends after {bytes} of {size} bytes")))
            }
            _ => Ok(read),
        }
    }
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.next(into) {
            Ok(read) => {
                self.bytes += read as u64;
                self.sha256.update(&into[..read]);
                self.crc32.update(&into[..read]);
                match read == 0 && !into.is_empty() {
                    true => self.progress.turn(),
                    false => self.progress.at(self.bytes),
                }
                Ok(read)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                let copy = io::Error::new(error.kind(), error.to_string());
                self.failed = Some(error);
                Err(copy)
            }
        }
    }
}
