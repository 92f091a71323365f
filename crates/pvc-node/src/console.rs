//! The guests' serial consoles, from their log files to the store.
//!
//! One task looks at all files: a watcher is an entry in a map and cannot leak. A file is read only
//! when it has changed and its guest's turn has come, so a guest that prints without end costs one
//! bounded write every two seconds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pvc_model::{Uuid, with_causes};
use pvc_ports::{FileInfo, Files, FilesError};
use pvc_store::Report;
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

/// Time between two looks at the files.
const POLL: Duration = Duration::from_millis(500);

/// The least time between two writes for one guest.
const LEAST: Duration = Duration::from_secs(2);

/// The most that is kept of one console.
const MOST_BYTES: usize = 256 << 10;

/// A file that has grown beyond this is cut to its end: not every machine has somebody who rotates
/// it, and a guest that prints without end must not fill the disk.
const CUT_BEYOND: u64 = 8 << 20;

/// Time that the store may take for the consoles.
const DEADLINE: Duration = Duration::from_secs(15);

struct Watcher {
    path: PathBuf,
    seen: Option<FileInfo>,
    written: Option<String>,
    not_before: Duration,
    /// Whether a failure to read was said already.
    logged: bool,
}

/// Watches until `shutdown`; then every console is brought up to date once more.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut consoles = Consoles { shared: shared.clone(), watchers: BTreeMap::new() };
    while !shutdown.is_cancelled() {
        consoles.follow_guests().await;
        consoles.look(false).await;
        shared.rest(POLL, &shutdown).await;
    }
    consoles.look(true).await;
}

struct Consoles {
    shared: Arc<Shared>,
    watchers: BTreeMap<Uuid, Watcher>,
}

impl Consoles {
    /// Keeps one watcher for each guest whose console is known. The console of a guest that went is
    /// read a last time: the last lines of a guest that died are the interesting ones.
    async fn follow_guests(&mut self) {
        let known = self.shared.guests.borrow().known.clone();
        let gone: Vec<Uuid> =
            self.watchers.keys().filter(|vm| !known.contains_key(vm)).copied().collect();
        for vm in gone {
            if let Some(mut watcher) = self.watchers.remove(&vm) {
                let report = self.text(vm, &mut watcher).await;
                self.write(report.into_iter().collect()).await;
            }
        }
        for (vm, facts) in known {
            let Some(path) = facts.console else { continue };
            if self.watchers.get(&vm).is_none_or(|watcher| watcher.path != path) {
                let not_before = Duration::ZERO;
                let watcher =
                    Watcher { path, seen: None, written: None, not_before, logged: false };
                self.watchers.insert(vm, watcher);
            }
        }
    }

    /// Reads what has changed and whose turn has come, and writes it in one report.
    async fn look(&mut self, everybody: bool) {
        let now = self.shared.now();
        if !self.shared.is_connected() {
            self.cut_long(now).await;
            return;
        }
        let mut reports = Vec::new();
        let mut watchers = std::mem::take(&mut self.watchers);
        for (vm, watcher) in watchers.iter_mut().filter(|(_, w)| everybody || w.not_before <= now) {
            if let Some(report) = self.text(*vm, watcher).await {
                watcher.not_before = now + LEAST;
                reports.push(report);
            }
        }
        self.watchers = watchers;
        if !self.write(reports).await {
            // What did not arrive is read and written again.
            self.watchers
                .values_mut()
                .for_each(|watcher| (watcher.seen, watcher.written) = (None, None));
        }
    }

    /// Cuts the files that have grown too long: guests go on printing while the store is away.
    async fn cut_long(&mut self, now: Duration) {
        let files = self.shared.ports.files.as_ref();
        for (vm, watcher) in self.watchers.iter_mut().filter(|(_, w)| w.not_before <= now) {
            // What cannot be looked at is said when it is read.
            let Ok(Some(found)) = files.look(&watcher.path).await else { continue };
            if found.length_bytes > CUT_BEYOND {
                watcher.not_before = now + LEAST;
                cut(files, *vm, &watcher.path).await;
            }
        }
    }

    /// The console's text, if it has changed since it was last read.
    async fn text(&self, vm: Uuid, watcher: &mut Watcher) -> Option<Report> {
        let lines = self.shared.settings.console_log_lines;
        let files = self.shared.ports.files.as_ref();
        match read_if_changed(files, &watcher.path, watcher.seen.as_ref()).await {
            Ok(None) => None,
            Ok(Some((info, bytes))) => {
                if info.length_bytes > CUT_BEYOND {
                    cut(files, vm, &watcher.path).await;
                }
                watcher.seen = Some(info);
                let text = last_lines(&bytes, lines);
                let is_new = watcher.written.as_ref() != Some(&text);
                watcher.written = Some(text.clone());
                is_new.then_some(Report::ConsoleLog(vm, text))
            }
            Err(error) => {
                if !std::mem::replace(&mut watcher.logged, true) {
                    let error = with_causes(&error);
                    tracing::warn!(error, "the console log cannot be read");
                }
                None
            }
        }
    }

    async fn write(&self, reports: Vec<Report>) -> bool {
        if reports.is_empty() {
            return true;
        }
        matches!(
            self.shared.within(DEADLINE, self.shared.store.report(reports)).await,
            Some(Ok(()))
        )
    }
}

/// The end of the file if it is not the one `seen`. A file that is not there has nothing in it.
async fn read_if_changed(
    files: &dyn Files,
    path: &Path,
    seen: Option<&FileInfo>,
) -> Result<Option<(FileInfo, Vec<u8>)>, FilesError> {
    let found = files.look(path).await?;
    if found.is_none() || found.as_ref() == seen {
        return Ok(None);
    }
    match files.read_end(path, MOST_BYTES as u64).await {
        Err(FilesError::Missing { .. }) => Ok(None),
        read => read.map(Some),
    }
}

/// Leaves nothing in the file but its end. Whoever writes it appends, and goes on behind that.
async fn cut(files: &dyn Files, vm: Uuid, path: &Path) {
    match files.keep_end(path, MOST_BYTES as u64).await {
        Ok(()) => tracing::debug!(%vm, path = %path.display(), "a console log was cut to its end"),
        Err(error) => {
            tracing::warn!(%vm, error = with_causes(&error), "a console log could not be cut");
        }
    }
}

/// The last `count` lines of what a guest printed. Guests print anything: what is not text is
/// replaced, and what is cut at the front is cut at a line, or at least at a character.
fn last_lines(bytes: &[u8], count: usize) -> String {
    let text = String::from_utf8_lossy(bytes);
    let body = text.strip_suffix('\n').unwrap_or(&text);
    let start = match count.checked_sub(1) {
        None => text.len(),
        Some(more) => body.rmatch_indices('\n').nth(more).map_or(0, |(at, _)| at + 1),
    };
    let readable = |c: char| if is_junk(c) { '\u{fffd}' } else { c };
    let mut kept: String = text[start.min(text.len())..].chars().map(readable).collect();
    if kept.len() > MOST_BYTES {
        // Replacing makes text longer.
        let mut from = kept.len() - MOST_BYTES;
        while !kept.is_char_boundary(from) {
            from += 1;
        }
        kept.drain(..from);
    }
    kept
}

/// Controls that no terminal needs for text. Those for colours, carriage return and bell stay.
fn is_junk(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{1b}' | '\u{8}' | '\u{7}')
}

#[cfg(test)]
mod tests {
    use super::*;

    use pvc_testkit::MemoryFiles;

    #[test]
    fn the_last_lines_are_kept_whole() {
        assert_eq!(last_lines(b"a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(last_lines(b"a\nb\nlogin: ", 2), "b\nlogin: ");
        assert_eq!(last_lines(b"a\nb", 9), "a\nb");
        assert_eq!(last_lines(b"a\nb\n", 0), "");
        assert_eq!(last_lines(b"", 5), "");
    }

    #[test]
    fn junk_becomes_text_and_colours_stay() {
        assert_eq!(last_lines(b"\x00\xff\x1b[1mok\r\n", 5), "\u{fffd}\u{fffd}\u{1b}[1mok\r\n");
    }

    #[test]
    fn one_endless_line_is_cut() {
        let kept = last_lines(&vec![0xff; MOST_BYTES], 10);
        assert!(kept.len() <= MOST_BYTES && kept.len() > MOST_BYTES - 4);
    }

    #[tokio::test]
    async fn a_file_is_read_when_it_changes_is_cut_or_replaced_and_not_otherwise() {
        let (files, path) = (MemoryFiles::new(), Path::new("/var/log/web1.log"));
        let read = async |seen| read_if_changed(&files, path, seen).await.unwrap();
        assert_eq!(read(None).await, None);
        files.insert(path, b"one\n");
        let (seen, bytes) = read(None).await.unwrap();
        assert_eq!(bytes, b"one\n");
        assert_eq!(read(Some(&seen)).await, None);
        files.keep_end(path, 0).await.unwrap();
        let (seen, bytes) = read(Some(&seen)).await.unwrap();
        assert_eq!(bytes, b"");
        files.insert(path, b"");
        assert!(read(Some(&seen)).await.is_some(), "another file");
    }

    #[tokio::test]
    async fn of_a_large_file_only_the_end_is_read() {
        let (files, path) = (MemoryFiles::new(), Path::new("/var/log/web1.log"));
        files.insert_sparse(path, 5 * MOST_BYTES as u64);
        let (_, bytes) = read_if_changed(&files, path, None).await.unwrap().unwrap();
        assert_eq!(bytes.len(), MOST_BYTES);
    }

    #[tokio::test]
    async fn a_file_that_is_cut_keeps_its_end() {
        let (files, path) = (MemoryFiles::new(), Path::new("/var/log/web1.log"));
        files.insert(path, &[vec![b'x'; 1 << 20], b"the end\n".to_vec()].concat());
        cut(&files, Uuid::nil(), path).await;
        let kept = files.contents(path).unwrap();
        assert!(kept.len() == MOST_BYTES && kept.ends_with(b"xthe end\n"), "{}", kept.len());
    }
}
