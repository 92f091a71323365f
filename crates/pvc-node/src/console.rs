//! The guests' serial consoles, from their log files to the store.
//!
//! One task looks at all files: a watcher is an entry in a map and cannot leak. A file is read only
//! when it has changed and its guest's turn has come, and what is written keeps to a [`Pace`], for
//! each VM and for all: a guest that prints without end holds up no other, and all together do not
//! fill the disks of the store. Who has waited longest comes first. The last lines of a guest that
//! is gone wait for their turn, too, and the VM's next guest has what is left of its pace: guests
//! decide how often they die.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pvc_model::{Uuid, with_causes};
use pvc_ports::{FileInfo, Files, FilesError};
use pvc_store::Report;
use tokio_util::sync::CancellationToken;

use crate::pace::Pace;
use crate::shared::Shared;

/// Time between two looks at the files.
const POLL: Duration = Duration::from_millis(500);

/// The least time between two writes for one VM.
const LEAST: Duration = Duration::from_secs(2);

/// Bytes that are written in a second for one VM, if its guests print without end.
const GUEST_PACE: u64 = 8 << 10;

/// Bytes that are written in a second for all guests of the node.
const NODE_PACE: u64 = 64 << 10;

/// Number of bytes after which what was read is written, before more is.
const BATCH_BYTES: usize = 512 << 10;

/// The most that is kept of one console.
const MOST_BYTES: usize = 256 << 10;

/// A file that has grown beyond this is cut to its end: not every machine has somebody who rotates
/// it, and a guest that prints without end must not fill the disk.
const CUT_BEYOND: u64 = 8 << 20;

/// Time that the store may take for the consoles.
const DEADLINE: Duration = Duration::from_secs(15);

/// State of the guest whose console is watched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Runs,
    /// Gone, and its last lines are not read yet.
    Ended,
    /// Gone, and so is the watcher once the pace is as good as new.
    Over,
}

struct Watcher {
    life: Life,
    path: PathBuf,
    seen: Option<FileInfo>,
    /// Text in the store, if that is known.
    written: Option<String>,
    not_before: Duration,
    pace: Pace,
    /// Whether a failure to read or to cut the file was said already.
    logged: bool,
}

impl Watcher {
    fn new(path: PathBuf) -> Self {
        let (not_before, pace) = (Duration::ZERO, Pace::new(GUEST_PACE));
        let life = Life::Runs;
        Watcher { life, path, seen: None, written: None, not_before, pace, logged: false }
    }

    /// Watches the next guest of the VM, at the pace that goes on.
    fn begin_anew(&mut self, path: PathBuf) {
        let pace = self.pace.clone();
        *self = Watcher { not_before: self.not_before, pace, ..Watcher::new(path) };
    }

    /// Notes that the file was read: of a guest that is gone for the last time.
    fn note_read(&mut self) {
        if self.life == Life::Ended {
            self.life = Life::Over;
            (self.seen, self.written) = (None, None);
        }
    }

    /// Notes that what was read did not arrive: it is read and written again.
    fn note_lost(&mut self) {
        (self.seen, self.written) = (None, None);
        if self.life == Life::Over {
            self.life = Life::Ended;
        }
    }

    /// Whether it need not be known any more.
    fn is_over(&self, now: Duration) -> bool {
        self.life == Life::Over && self.not_before <= now && self.pace.is_paid(now)
    }

    fn complain(&mut self, vm: Uuid, error: &FilesError, message: &str) {
        if !std::mem::replace(&mut self.logged, true) {
            tracing::warn!(%vm, error = with_causes(error), "{message}");
        }
    }
}

/// Watches until `shutdown`; then every console is brought up to date once more.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut consoles = Consoles::new(shared.clone());
    while !shutdown.is_cancelled() {
        consoles.follow_guests();
        consoles.look(false).await;
        shared.rest(POLL, &shutdown).await;
    }
    consoles.look(true).await;
}

struct Consoles {
    shared: Arc<Shared>,
    watchers: BTreeMap<Uuid, Watcher>,
    pace: Pace,
    /// Whether the store did not take what was last written.
    is_failing: bool,
}

impl Consoles {
    fn new(shared: Arc<Shared>) -> Self {
        let (watchers, pace) = (BTreeMap::new(), Pace::new(NODE_PACE));
        Consoles { shared, watchers, pace, is_failing: false }
    }

    /// Keeps one watcher for each guest whose console is known. The console of a guest that went is
    /// read a last time: the last lines of a guest that died are the interesting ones.
    fn follow_guests(&mut self) {
        let (known, now) = (self.shared.guests.borrow().known.clone(), self.shared.now());
        let (view, own) = (self.shared.store.view(), self.shared.name());
        let is_ours = |vm: &Uuid| view.vms.get(vm).is_some_and(|record| record.is_assigned_to(own));
        for (vm, watcher) in self.watchers.iter_mut().filter(|(vm, _)| !known.contains_key(vm)) {
            watcher.life = match watcher.life {
                Life::Runs => Life::Ended,
                // Where it is now another node writes what it prints.
                Life::Ended if !is_ours(vm) => Life::Over,
                life => life,
            };
        }
        self.watchers.retain(|_, watcher| !watcher.is_over(now));
        for (vm, facts) in known {
            let Some(path) = facts.console else { continue };
            match self.watchers.get_mut(&vm) {
                Some(watcher) if watcher.life == Life::Runs && watcher.path == path => {}
                Some(watcher) => watcher.begin_anew(path),
                None => _ = self.watchers.insert(vm, Watcher::new(path)),
            }
        }
    }

    /// Reads what has changed and whose turn has come, and writes it.
    async fn look(&mut self, everybody: bool) {
        let now = self.shared.now();
        let mut watchers: Vec<(Uuid, Watcher)> =
            std::mem::take(&mut self.watchers).into_iter().collect();
        watchers.sort_by_key(|(_, watcher)| watcher.not_before);
        let (mut texts, mut size) = (Vec::new(), 0);
        let mut lost = BTreeSet::new();
        for (vm, watcher) in watchers.iter_mut().filter(|(_, it)| it.life != Life::Over) {
            let has_turn = everybody || (watcher.not_before <= now && self.pace.is_open(now));
            if !has_turn || !lost.is_empty() || !self.shared.is_connected() {
                self.cut_long(*vm, watcher).await;
                continue;
            }
            let text = self.text(*vm, watcher).await;
            watcher.note_read();
            let Some(text) = text else { continue };
            watcher.pace.spend(text.len(), now);
            self.pace.spend(text.len(), now);
            watcher.not_before = watcher.pace.opens_at().max(now + LEAST);
            size += text.len();
            texts.push((*vm, text));
            if size >= BATCH_BYTES {
                size = 0;
                lost.extend(self.write(std::mem::take(&mut texts)).await);
            }
        }
        lost.extend(self.write(texts).await);
        for (_, watcher) in watchers.iter_mut().filter(|(vm, _)| lost.contains(vm)) {
            watcher.note_lost();
        }
        self.watchers = watchers.into_iter().collect();
    }

    /// Cuts a file that has grown too long: a guest goes on printing while it waits for its turn,
    /// or while the store is away.
    async fn cut_long(&self, vm: Uuid, watcher: &mut Watcher) {
        // What cannot be looked at is said when it is read.
        let found = self.shared.ports.files.look(&watcher.path).await;
        if found.is_ok_and(|found| found.is_some_and(|file| file.length_bytes > CUT_BEYOND)) {
            self.cut(vm, watcher).await;
        }
    }

    async fn cut(&self, vm: Uuid, watcher: &mut Watcher) {
        if let Err(error) = cut(self.shared.ports.files.as_ref(), vm, &watcher.path).await {
            watcher.complain(vm, &error, "a console log could not be cut");
        }
    }

    /// The console's text, if it has changed since it was last read and is not what the store has.
    async fn text(&self, vm: Uuid, watcher: &mut Watcher) -> Option<String> {
        let lines = self.shared.settings.console_log_lines;
        let files = self.shared.ports.files.as_ref();
        match read_if_changed(files, &watcher.path, watcher.seen.as_ref()).await {
            Ok(None) => None,
            Ok(Some((info, bytes))) => {
                if info.length_bytes > CUT_BEYOND {
                    self.cut(vm, watcher).await;
                }
                watcher.seen = Some(info);
                let text = last_lines(&bytes, lines);
                if watcher.written.is_none() {
                    watcher.written = self.recorded(vm).await;
                }
                let is_new = watcher.written.as_ref() != Some(&text);
                watcher.written = Some(text.clone());
                is_new.then_some(text)
            }
            Err(error) => {
                watcher.complain(vm, &error, "the console log cannot be read");
                None
            }
        }
    }

    /// Text in the store: a daemon that starts does not write all consoles of its node once more.
    async fn recorded(&self, vm: Uuid) -> Option<String> {
        let recorded = self.shared.store.console_log(vm);
        match self.shared.is_connected() {
            true => self.shared.within(DEADLINE, recorded).await?.ok()?,
            false => None,
        }
    }

    /// Writes `texts`. Returns whose did not arrive.
    async fn write(&mut self, texts: Vec<(Uuid, String)>) -> Vec<Uuid> {
        if texts.is_empty() {
            return Vec::new();
        }
        let vms = texts.iter().map(|(vm, _)| *vm).collect();
        let reports = texts.into_iter().map(|(vm, text)| Report::ConsoleLog(vm, text)).collect();
        let written = self.shared.in_time(DEADLINE, self.shared.store.report(reports)).await;
        let was_failing = std::mem::replace(&mut self.is_failing, written.is_err());
        match written {
            Ok(()) => Vec::new(),
            Err(error) => {
                if !was_failing {
                    tracing::warn!(error = with_causes(&error), "consoles were not recorded");
                }
                vms
            }
        }
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
async fn cut(files: &dyn Files, vm: Uuid, path: &Path) -> Result<(), FilesError> {
    files.keep_end(path, MOST_BYTES as u64).await?;
    tracing::debug!(%vm, path = %path.display(), "a console log was cut to its end");
    Ok(())
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

    use std::convert::Infallible;

    use pvc_model::NodeName;
    use pvc_model::vm::VmState;
    use pvc_ports::Ports;
    use pvc_store::{Change, Changes, NewVm, VmChange};
    use pvc_testkit::{MemoryFiles, ports};

    use crate::settings::NodeSettings;
    use crate::settings::tests::settings;
    use crate::shared::tests::in_memory;
    use crate::shared::{GuestFacts, Guests};

    /// A node whose guests print, live and die as they are told.
    struct World {
        shared: Arc<Shared>,
        files: Arc<MemoryFiles>,
        consoles: Consoles,
        vms: Vec<Uuid>,
    }

    fn file_of(vm: Uuid) -> PathBuf {
        PathBuf::from(format!("/var/log/{vm}.log"))
    }

    fn new_vm(uuid: Uuid) -> NewVm {
        let name = format!("vm{}", uuid.as_u128());
        NewVm {
            uuid,
            xml: format!(
                "<domain type='kvm'><name>{name}</name><uuid>{uuid}</uuid>\
                 <memory unit='MiB'>256</memory><vcpu>2</vcpu><os><type>hvm</type></os>\
                 <devices/></domain>"
            ),
            name,
            state: VmState::Start,
            node: Some(NodeName::new("hv1")),
            profile: None,
            volumes: Vec::new(),
            autostart: false,
            migration_method: None,
            max_downtime_ms: 300,
            selector: None,
            node_limit: Vec::new(),
            tags: Vec::new(),
        }
    }

    impl World {
        async fn new(vms: u128) -> World {
            let files = Arc::new(MemoryFiles::new());
            let ports = Ports { files: files.clone(), ..ports() };
            let settings = NodeSettings { console_log_lines: 100, ..settings("hv1") };
            let shared = in_memory(settings, ports).await;
            let (consoles, vms) =
                (Consoles::new(shared.clone()), (1..=vms).map(Uuid::from_u128).collect());
            let world = World { shared, files, consoles, vms };
            let mut changes = Changes::new();
            for vm in &world.vms {
                changes.push(Change::DefineVm(Box::new(new_vm(*vm))));
            }
            world.change(changes).await;
            world
        }

        async fn change(&self, changes: Changes) {
            let store = &self.shared.store;
            store.change(|_| Ok::<_, Infallible>((changes.clone(), ()))).await.unwrap();
            store.fresh().await.unwrap();
        }

        /// Has a guest of each VM run here from now on, or none.
        fn run(&self, has_guests: bool) {
            let facts = |vm: &Uuid| GuestFacts {
                instance: 1,
                name: "web".to_owned(),
                live: None,
                console: Some(file_of(*vm)),
            };
            let vms = self.vms.iter().filter(|_| has_guests);
            let known = vms.map(|vm| (*vm, facts(vm))).collect();
            self.shared.guests.send_replace(Guests { known, ..Guests::default() });
        }

        fn print(&self, text: &str) {
            self.vms.iter().for_each(|vm| self.files.insert(&file_of(*vm), text.as_bytes()));
        }

        /// Looks after the consoles for so many seconds.
        async fn pass(&mut self, seconds: u64) {
            for _ in 0..seconds {
                self.consoles.follow_guests();
                self.consoles.look(false).await;
                self.shared.sleep(Duration::from_secs(1)).await;
            }
        }

        /// Number of times that the console of a VM was written.
        async fn writes(&self, vm: Uuid) -> u64 {
            let path = format!("/domains/{vm}/consolelog");
            let entry = self.shared.store.tree().get(&path).await.unwrap();
            entry.map_or(0, |entry| u64::try_from(entry.stat.version).unwrap())
        }

        async fn recorded(&self, vm: Uuid) -> String {
            self.shared.store.console_log(vm).await.unwrap().unwrap_or_default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn guests_that_die_again_and_again_keep_the_pace_of_those_that_live() {
        const SIZE: usize = 200 << 10;
        for (vms, pace) in [(1, GUEST_PACE), (20, NODE_PACE)] {
            let mut world = World::new(vms).await;
            let begun = world.shared.now();
            for life in 0..60 {
                world.run(true);
                world.pass(1).await;
                world.print(&format!("{}{life}", "x".repeat(SIZE)));
                world.run(false);
                world.pass(9).await;
            }
            let mut bytes = 0;
            for vm in &world.vms {
                bytes += world.writes(*vm).await * SIZE as u64;
            }
            // What nobody has written in the two minutes before may come on top, and one console.
            let most = pace * ((world.shared.now() - begun).as_secs() + 120) + SIZE as u64;
            assert!(0 < bytes && bytes <= most, "of {vms}: {bytes} of {most}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_lines_of_a_guest_wait_for_their_turn_unless_its_vm_is_elsewhere_by_then() {
        for moves in [false, true] {
            let mut world = World::new(1).await;
            let vm = world.vms[0];
            world.run(true);
            for second in 0..12 {
                world.print(&format!("{}{second}", "x".repeat(MOST_BYTES)));
                world.pass(1).await;
            }
            world.print("Kernel panic");
            world.run(false);
            if moves {
                let mut changes = Changes::new();
                changes.vm(vm, VmChange::Node(NodeName::new("hv2")));
                world.change(changes).await;
            }
            world.pass(1).await;
            assert_ne!(world.recorded(vm).await, "Kernel panic", "its pace is used up");
            world.pass(200).await;
            assert_eq!(world.recorded(vm).await == "Kernel panic", !moves);
            assert!(world.consoles.watchers.is_empty(), "nobody watches what is over");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_lines_of_a_guest_that_printed_little_come_at_once() {
        let mut world = World::new(1).await;
        let vm = world.vms[0];
        world.run(true);
        world.print("Linux version 6.12\n");
        world.pass(3).await;
        world.print("Kernel panic");
        world.run(false);
        world.pass(1).await;
        assert_eq!(world.recorded(vm).await, "Kernel panic");
    }

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
        cut(&files, Uuid::nil(), path).await.unwrap();
        let kept = files.contents(path).unwrap();
        assert!(kept.len() == MOST_BYTES && kept.ends_with(b"xthe end\n"), "{}", kept.len());
    }
}
