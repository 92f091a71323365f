//! A file on its way: how much of it, how fast, for how long yet; and its checksum.

use std::io::{self, IsTerminal, Read};
use std::time::{Duration, Instant};

use pvc_model::size::format_size;
use pvc_model::transfer::{Speed, Transferred};
use sha2::{Digest, Sha256};

use crate::context::Pvc;

/// Time between two lines of progress.
const EVERY: Duration = Duration::from_secs(1);

/// Amount of a file that has gone, as a line that is written over every second.
struct Meter {
    all: Option<u64>,
    speed: Speed,
    /// Time at which it was shown last, if it stands there; times count from the beginning.
    shown: Option<Duration>,
}

impl Meter {
    fn of(all: Option<u64>) -> Self {
        Meter { all, speed: Speed::from(Duration::ZERO), shown: None }
    }

    /// The line for so many bytes at `now`, if it is time for another.
    fn line(&mut self, now: Duration, bytes: u64) -> Option<String> {
        if self.shown.is_some_and(|shown| now.saturating_sub(shown) < EVERY) {
            return None;
        }
        self.shown = Some(now);
        // How fast the first bytes went into some buffer says nothing of the rest.
        if now >= EVERY {
            self.speed.look(now, bytes);
        }
        let bytes_per_second = self.speed.bytes_per_second();
        let gone = Transferred { bytes, of: self.all, bytes_per_second };
        Some(format!("\r{gone}\x1b[K"))
    }

    /// The text that clears the line, if one is there.
    fn cleared(&mut self) -> Option<&'static str> {
        self.shown.take().map(|_| "\r\x1b[K")
    }
}

/// Progress of a file, on a terminal.
pub struct Progress<'a> {
    pvc: &'a Pvc,
    meter: Meter,
    is_shown: bool,
    begun: Instant,
    /// Words about what the other side does when all is there, until they are said.
    then: Option<&'static str>,
    /// Whether they stand at the end of a line that goes on.
    is_open: bool,
}

impl<'a> Progress<'a> {
    pub fn new(pvc: &'a Pvc, all: Option<u64>) -> Self {
        Progress {
            pvc,
            meter: Meter::of(all),
            is_shown: io::stderr().is_terminal(),
            begun: Instant::now(),
            then: None,
            is_open: false,
        }
    }

    /// Says, as PVC 1.0.3's client does, that something is sent, and at its end that the other side
    /// is at it.
    pub fn begin_upload(&mut self) {
        let total = |all| format!(" (total size {})", format_size(all));
        let total = self.meter.all.map_or_else(String::new, total);
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
        if self.is_shown
            && let Some(line) = self.meter.line(self.begun.elapsed(), bytes)
        {
            self.pvc.progress(&line);
        }
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
        if let Some(clear) = self.meter.cleared() {
            self.pvc.progress(clear);
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

/// A file that is read: counted, summed and shown.
pub struct Watched<'a, R> {
    from: R,
    pub progress: Progress<'a>,
    /// Made only for who asks: without help of the processor it takes longer than the rest.
    sha256: Option<Sha256>,
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
        let crc32 = crc32fast::Hasher::new();
        Watched { from, progress, sha256: None, crc32, bytes: 0, failed: None, size }
    }

    /// The same, of which a SHA-256 checksum is made as well.
    #[must_use]
    pub fn with_sha256(self) -> Self {
        Watched { sha256: Some(Sha256::new()), ..self }
    }

    /// SHA-256 checksum of what was read, in hexadecimal digits; empty if none is made.
    pub fn sha256(&self) -> String {
        let made = self.sha256.iter().flat_map(|sha256| sha256.clone().finalize());
        made.map(|byte| format!("{byte:02x}")).collect()
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
                if let Some(sha256) = &mut self.sha256 {
                    sha256.update(&into[..read]);
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_line_a_second_says_how_much_how_fast_and_for_how_long_yet() {
        let mut meter = Meter::of(Some(1000));
        let first = meter.line(at(1), 90);
        assert_eq!(first.as_deref(), Some("\r90B of 1000B (9 %)\x1b[K"), "nobody knows how fast");
        assert_eq!(meter.line(at(1000), 95), None, "the line would flicker");
        let second = meter.line(at(1001), 100);
        assert_eq!(
            second.as_deref(),
            Some("\r100B of 1000B (10 %), 99B/s, 10 s left\x1b[K"),
            "it is written over the first"
        );
        let of_unknown = Meter::of(None).line(at(2000), 100);
        assert_eq!(of_unknown.as_deref(), Some("\r100B, 50B/s\x1b[K"));
    }

    #[test]
    fn a_line_is_cleared_once_and_may_come_again_at_once() {
        let mut meter = Meter::of(None);
        assert_eq!(meter.cleared(), None);
        meter.line(at(1000), 1);
        assert_eq!(meter.cleared(), Some("\r\x1b[K"));
        assert_eq!(meter.cleared(), None);
        assert!(meter.line(at(1001), 1).is_some());
    }
}
