//! Uploads of new contents for volumes: files as operators send them, where one stands still, and
//! what has become of each.
//!
//! A file says in each of its pieces which upload it is of, so that the volume shows whose contents
//! it has. It has those that it had, or those of one upload, whole; those that somebody was told of
//! stay, unless others came later; and of what came to nothing nothing is left, unless whoever was
//! at it died.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, Stream};
use pvc_model::cluster::Cluster as View;
use pvc_model::storage::{PoolName, VolumeId};
use pvc_ports::StorageError;
use pvc_testkit::MemoryVolumes;
use serde::{Deserialize, Serialize};

use crate::cluster::vm_uuid;
use crate::new_vms::is_seed;
use crate::operators::Answer;
use crate::process::{Gate, Pid, Processes};
use crate::run::Run;
use crate::stand_still::StandStill;
use crate::storage::Ceph;
use crate::storage_changes;

/// Way in which the file of an upload is sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sending {
    /// Time between its begin and its end, in milliseconds.
    pub takes_ms: u64,
    pub flaw: Option<Flaw>,
}

/// Reason for which nothing is to come of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Flaw {
    /// The connection breaks when a part of the file has gone.
    BreaksOff,
    /// Whoever sends it goes away then, and nobody waits for an answer.
    HangsUp,
    /// Nothing more comes then.
    Stalls,
    /// The file is announced as longer than it is.
    WrongSize,
    WrongChecksum,
}

/// Moment of an upload whose file has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum UploadMoment {
    /// The volume is held, and has its name yet.
    Held,
    /// In the trash; whoever moved it there is not told yet.
    Trashed,
    /// The new contents are about to get the name.
    Naming,
    /// The new contents have the name; whoever gave it to them is not told yet.
    Named,
}

/// The pieces of a file, which are written one by one.
const PIECES: u64 = 3;
const PIECE_BYTES: u64 = 1 << 20;

const FILE_BYTES: u64 = PIECES * PIECE_BYTES;

/// Number of bytes at the begin of a piece that say what it is; the rest are zeros.
const MARK_BYTES: usize = 24;

const BOUNDARY: &str = "what-is-sent";

/// A guest that starts so long after its volume was held was not on its way before.
const ON_ITS_WAY: Duration = Duration::from_secs(30);

fn mark(upload: u64, piece: u64) -> [u8; MARK_BYTES] {
    let mut mark = *b"contents................";
    mark[8..16].copy_from_slice(&upload.to_le_bytes());
    mark[16..].copy_from_slice(&piece.to_le_bytes());
    mark
}

/// Contents of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Contents {
    /// The contents of before all uploads.
    First,
    /// The contents of the upload with this number.
    Of(u64),
    /// A part of something, or parts of several.
    Parts,
}

/// Contents that the volume has.
pub(crate) fn contents(
    volumes: &MemoryVolumes,
    volume: &VolumeId,
) -> Result<Contents, StorageError> {
    if is_seed(volume) {
        return Ok(Contents::First);
    }
    let read = |piece: u64| volumes.read(volume, piece * PIECE_BYTES, MARK_BYTES);
    let marks = (0..PIECES).map(read).collect::<Result<Vec<_>, _>>()?;
    if marks.iter().flatten().all(|byte| *byte == 0) {
        return Ok(Contents::First);
    }
    let upload = u64::from_le_bytes(marks[0][8..16].try_into().expect("these are eight bytes"));
    let is_of_it = |(piece, found): (u64, &Vec<u8>)| found[..] == mark(upload, piece);
    match (0..).zip(&marks).all(is_of_it) {
        true => Ok(Contents::Of(upload)),
        false => Ok(Contents::Parts),
    }
}

/// A file to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct File {
    /// Number of the upload, from 1.
    pub upload: u64,
    pub sending: Sending,
}

impl File {
    /// Words of the request that announce it.
    pub fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = vec![("image_format", "raw".to_owned())];
        match self.sending.flaw {
            Some(Flaw::WrongSize) => query.push(("file_size", (FILE_BYTES + 1).to_string())),
            Some(Flaw::WrongChecksum) => query.push(("sha256", "0".repeat(64))),
            // Every second one only says how long the request is, as PVC 1.0.3's clients do.
            _ if self.has_length() => {}
            _ => query.push(("file_size", FILE_BYTES.to_string())),
        }
        query
    }

    pub fn content_type(&self) -> String {
        format!("multipart/form-data; boundary={BOUNDARY}")
    }

    /// The length of the request's body, in bytes, if that is said.
    pub fn length(&self) -> Option<u64> {
        let around = head().len() + tail().len();
        self.has_length().then(|| FILE_BYTES + around as u64)
    }

    fn has_length(&self) -> bool {
        self.upload.is_multiple_of(2)
    }

    /// The body of the request, as it comes.
    #[allow(clippy::disallowed_methods, reason = "the simulation owns time")]
    pub fn body(self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        let pause = Duration::from_millis(self.sending.takes_ms / PIECES);
        stream::unfold(Some(0), move |at| async move {
            let at: u64 = at?;
            if (1..=PIECES).contains(&at) {
                tokio::time::sleep(pause).await;
            }
            let flaw = self.sending.flaw.filter(|_| at == 2);
            let part = match (flaw, at) {
                (Some(Flaw::BreaksOff), _) => {
                    return Some((Err(io::Error::other("connection reset by peer")), None));
                }
                (Some(Flaw::HangsUp | Flaw::Stalls), _) => std::future::pending().await,
                (_, 0) => Bytes::from(head()),
                (_, at) if at <= PIECES => piece(self.upload, at - 1),
                _ => return Some((Ok(Bytes::from(tail())), None)),
            };
            Some((Ok(part), Some(at + 1)))
        })
    }

    /// Time after which whoever sends it goes away; `None` if they wait for an answer.
    pub fn leaves_after(&self) -> Option<Duration> {
        let hangs_up = self.sending.flaw == Some(Flaw::HangsUp);
        hangs_up.then(|| Duration::from_millis(self.sending.takes_ms) + Duration::from_secs(1))
    }
}

fn head() -> String {
    let disposition = "form-data; name=\"file\"; filename=\"disk.raw\"";
    format!("--{BOUNDARY}\r\nContent-Disposition: {disposition}\r\n\r\n")
}

fn tail() -> String {
    format!("\r\n--{BOUNDARY}--\r\n")
}

fn piece(upload: u64, piece: u64) -> Bytes {
    let mut bytes = vec![0; PIECE_BYTES as usize];
    bytes[..MARK_BYTES].copy_from_slice(&mark(upload, piece));
    bytes.into()
}

/// All uploads that there were, and the volumes in the making.
#[derive(Default)]
pub(crate) struct Uploads {
    /// In the order of their numbers.
    asked: Vec<Asked>,
    /// Numbers of uploads, in the order in which their contents got a volume's name.
    named: Vec<u64>,
    /// Volumes in the making, each with the process that is at it, until that is done with it.
    in_the_making: BTreeMap<VolumeId, Pid>,
    /// Volumes that are held: the attempt, and since when it holds.
    holds: BTreeMap<VolumeId, (String, Duration)>,
    /// Moment at which the next upload is to stand still.
    pub still: StandStill<UploadMoment>,
}

struct Asked {
    vm: usize,
    has_flaw: bool,
    outcome: Outcome,
}

/// Answer to whoever asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Nothing that is for certain.
    Nothing,
    Done,
    /// Refused for good.
    Refused,
}

impl Uploads {
    /// Begins an upload to the volume of this VM.
    pub fn begin(&mut self, vm: usize, sending: Sending) -> File {
        self.asked.push(Asked { vm, has_flaw: sending.flaw.is_some(), outcome: Outcome::Nothing });
        File { upload: self.asked.len() as u64, sending }
    }

    pub fn answered(&mut self, file: File, answer: &Answer) {
        let outcome = match answer {
            Some(Ok(())) => Outcome::Done,
            Some(Err(refusal)) if refusal.is_final => Outcome::Refused,
            Some(Err(_)) | None => Outcome::Nothing,
        };
        if let Some(asked) = self.find_mut(file.upload) {
            asked.outcome = outcome;
        }
    }

    fn find(&self, upload: u64) -> Option<&Asked> {
        self.asked.get(usize::try_from(upload.checked_sub(1)?).ok()?)
    }

    fn find_mut(&mut self, upload: u64) -> Option<&mut Asked> {
        self.asked.get_mut(usize::try_from(upload.checked_sub(1)?).ok()?)
    }

    /// Takes notice of the volumes that are held.
    pub fn look(&mut self, view: &View, now: Duration) {
        let since = |volume: &VolumeId, by: &String| {
            let before = self.holds.get(volume).filter(|(attempt, _)| attempt == by);
            before.map_or(now, |(_, since)| *since)
        };
        let held = view.holds.values().map(|hold| {
            let since = since(&hold.volume, &hold.by);
            (hold.volume.clone(), (hold.by.clone(), since))
        });
        self.holds = held.collect();
    }

    /// The fault of a guest that starts now with this volume.
    pub fn wrong_about_start(
        &self,
        volumes: &MemoryVolumes,
        volume: &VolumeId,
        now: Duration,
    ) -> Option<String> {
        let held = self.holds.get(volume).filter(|(_, since)| *since + ON_ITS_WAY < now);
        if let Some((by, since)) = held {
            let seconds = (now - *since).as_secs();
            return Some(format!("{volume} is held by {by} for {seconds} s"));
        }
        let wrong = storage_changes::wrong_contents(volumes, volume);
        wrong.or_else(|| self.wrong_contents(volumes, volume))
    }

    /// The fault of what the volume has now, if there is one.
    fn wrong_contents(&self, volumes: &MemoryVolumes, volume: &VolumeId) -> Option<String> {
        match contents(volumes, volume).ok()? {
            Contents::First => None,
            Contents::Parts => Some(format!("{volume} has parts of an upload")),
            Contents::Of(upload) => match self.find(upload) {
                Some(asked) if !asked.has_flaw => None,
                _ => Some(format!("{volume} has the contents of upload {upload}, a flawed one")),
            },
        }
    }

    /// The contents of an upload have got the name of this volume. Returns the fault of what it has
    /// now.
    pub fn contents_named(
        &mut self,
        run: &Run,
        volumes: &MemoryVolumes,
        volume: &VolumeId,
    ) -> Option<String> {
        let found = contents(volumes, volume);
        if let Ok(Contents::Of(upload)) = found {
            self.named.push(upload);
        }
        run.note(format!("ceph: volume {volume} has new contents: {found:?}"));
        self.wrong_contents(volumes, volume)
    }

    // --- Volumes in the making -----------------------------------------------------------------

    pub fn begins(&mut self, partial: &VolumeId, pid: Pid) {
        self.in_the_making.insert(partial.clone(), pid);
    }

    /// Whoever made it is through with it: it is gone, has a name, or is the primary's to remove.
    pub fn ends(&mut self, partial: &VolumeId) {
        self.in_the_making.remove(partial);
    }
}

impl Gate {
    /// Stands still at this moment of an upload, if one is to do so there.
    pub async fn at_upload(&self, moment: UploadMoment) {
        let until = self.world.with(|state| {
            let until = state.ceph.uploads.still.reach(moment)?;
            state.run.note(format!("an upload stands still: {moment:?}"));
            Some(until)
        });
        self.stand_still(until).await;
    }
}

/// Uploads, volumes and programs, when no upload is at work any more.
pub(crate) struct UploadEnds<'a> {
    pub ceph: &'a Ceph,
    pub processes: &'a Processes,
}

impl UploadEnds<'_> {
    /// Finds what is wrong when each has had time to end.
    pub fn wrong(&self) -> Option<String> {
        let uploads = &self.ceph.uploads;
        let numbered = || (1..).zip(&uploads.asked);
        let refused = numbered().find(|(number, asked)| {
            asked.outcome == Outcome::Refused && uploads.named.contains(number)
        });
        if let Some((number, _)) = refused {
            return Some(format!("upload {number} was refused, and a volume had its contents"));
        }
        let vms: std::collections::BTreeSet<usize> =
            uploads.asked.iter().map(|asked| asked.vm).collect();
        let of_volumes = vms.into_iter().find_map(|vm| self.wrong_about_volume(vm));
        of_volumes.or_else(|| self.wrong_leftover())
    }

    /// The fault of what the volume of a VM has now.
    fn wrong_about_volume(&self, vm: usize) -> Option<String> {
        let uploads = &self.ceph.uploads;
        let volume = self.ceph.disks.get(&vm_uuid(vm))?;
        let Ok(found) = contents(&self.ceph.volumes, volume) else {
            return Some(format!("no volume is called {volume}, which was to get new contents"));
        };
        if let Some(wrong) = uploads.wrong_contents(&self.ceph.volumes, volume) {
            return Some(wrong);
        }
        let rank = |upload: u64| uploads.named.iter().rposition(|named| *named == upload);
        let now = match found {
            Contents::Of(upload) if uploads.find(upload).is_some_and(|asked| asked.vm != vm) => {
                return Some(format!("{volume} has the contents of upload {upload}, of another"));
            }
            Contents::Of(upload) => rank(upload),
            Contents::First | Contents::Parts => None,
        };
        let own = (1..).zip(&uploads.asked).filter(|(_, asked)| asked.vm == vm);
        let mut done = own.filter(|(_, asked)| asked.outcome == Outcome::Done);
        let lost = done.find(|(number, _)| rank(*number) > now || rank(*number).is_none())?;
        Some(format!("upload {} was done, and {volume} has {found:?}", lost.0))
    }

    /// A volume in the making whose process lives and is through with it, or that nobody knows.
    fn wrong_leftover(&self) -> Option<String> {
        let pool = PoolName::new("vms");
        let there = self.ceph.volumes.volumes(&pool).unwrap_or_default();
        let partials = there.into_iter().map(|info| info.id).filter(|id| id.volume.is_partial());
        let is_wrong = |partial: &VolumeId| {
            let at_it = self.ceph.uploads.in_the_making.get(partial);
            at_it.is_some_and(|pid| !self.processes[*pid].ended)
        };
        let left = partials.into_iter().find(is_wrong)?;
        Some(format!("{left} is left of an upload, and whoever made it lives"))
    }
}

/// Whether a volume that was not completed is in the pool.
pub(crate) fn has_partial_volume(volumes: &MemoryVolumes) -> bool {
    let there = volumes.volumes(&PoolName::new("vms")).unwrap_or_default();
    there.iter().any(|info| info.id.volume.is_partial())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pvc_model::hold::{Purpose, VolumeHold};

    use super::*;
    use crate::operators::Refusal;
    use crate::state::{State, World};

    const DONE: Answer = Some(Ok(()));

    fn volume() -> VolumeId {
        VolumeId::from_record("vms/web_sda").expect("a volume's name")
    }

    /// A world with the volume of the first VM, and an upload to it that was answered so.
    fn world(flaw: Option<Flaw>, answer: &Answer) -> (World, File) {
        let (world, _) = World::of_hosts(1);
        let file = world.with(|state| {
            state.ceph.volumes.insert(&volume());
            state.ceph.disks.insert(vm_uuid(0), volume());
            let file = state.ceph.uploads.begin(0, Sending { takes_ms: 0, flaw });
            state.ceph.uploads.answered(file, answer);
            file
        });
        (world, file)
    }

    /// Writes so many pieces of the upload to the volume.
    fn write(state: &mut State, upload: u64, pieces: u64) {
        for number in 0..pieces {
            let bytes = mark(upload, number);
            state.ceph.volumes.write(&volume(), number * PIECE_BYTES, &bytes).expect("it is there");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn contents_are_the_first_or_those_of_an_upload_or_parts() {
        let (world, file) = world(None, &DONE);
        world.with(|state| {
            let found = |state: &State| contents(&state.ceph.volumes, &volume()).unwrap();
            assert_eq!(found(state), Contents::First);
            write(state, file.upload, 2);
            assert_eq!(found(state), Contents::Parts);
            write(state, file.upload, PIECES);
            assert_eq!(found(state), Contents::Of(1));
            write(state, 2, 1);
            assert_eq!(found(state), Contents::Parts);
        });
    }

    #[tokio::test(start_paused = true)]
    async fn parts_and_the_contents_of_a_file_that_was_none_are_found() {
        for (flaw, pieces, wanted) in [
            (None, PIECES, None),
            (None, 2, Some("vms/web_sda has parts of an upload")),
            (
                Some(Flaw::WrongSize),
                PIECES,
                Some("vms/web_sda has the contents of upload 1, a flawed one"),
            ),
        ] {
            let (world, file) = world(flaw, &None);
            let found = world.with(|state| {
                write(state, file.upload, pieces);
                state.contents_named(&volume());
                state.truth.violation.clone().map(|violation| violation.what)
            });
            assert_eq!(found.as_deref(), wanted);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_was_done_and_is_lost_or_was_refused_and_is_there_is_found() {
        let refused = Some(Err(Refusal::new("no")));
        let wrong = |answer: &Answer, is_named: bool, pieces: u64| {
            let (world, file) = world(None, answer);
            world.with(|state| {
                write(state, file.upload, pieces);
                if is_named {
                    state.ceph.uploads.named.push(file.upload);
                }
                state.upload_ends().wrong()
            })
        };
        assert_eq!(wrong(&DONE, true, PIECES), None);
        assert_eq!(wrong(&refused, false, 0), None);
        let lost = Some("upload 1 was done, and vms/web_sda has First".to_owned());
        assert_eq!(wrong(&DONE, false, 0), lost);
        assert_eq!(wrong(&DONE, true, 0), lost);
        let there = Some("upload 1 was refused, and a volume had its contents".to_owned());
        assert_eq!(wrong(&refused, true, PIECES), there);
        assert_eq!(wrong(&None, true, PIECES), None, "it may have been carried out");
        assert_eq!(wrong(&None, true, 0), None, "others may have come later");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_by_somebody_who_lives_is_found() {
        let (world, _) = world(None, &None);
        let partial = VolumeId { volume: volume().volume.partial(7), ..volume() };
        world.with(|state| {
            state.ceph.volumes.insert(&partial);
            let pid = state.processes.start("an API".to_owned(), Some(0));
            state.ceph.uploads.begins(&partial, pid);
            let left = state.upload_ends().wrong().expect("it is there");
            assert!(left.ends_with("is left of an upload, and whoever made it lives"), "{left}");
            state.end_process(pid);
            assert_eq!(state.upload_ends().wrong(), None);
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_starts_with_a_volume_that_is_held_for_long_is_found() {
        let (world, _) = world(None, &None);
        let by = "somebody".to_owned();
        let purpose = Purpose::Fill { trashed: None };
        let hold = Arc::new(VolumeHold { volume: volume(), purpose, by });
        let view = View { holds: [(volume(), hold)].into(), ..View::default() };
        let second = Duration::from_secs(1);
        world.with(|state| {
            let uploads = &mut state.ceph.uploads;
            uploads.look(&view, second);
            uploads.look(&view, 20 * second);
            let wrong = |uploads: &Uploads, now| {
                uploads.wrong_about_start(&state.ceph.volumes, &volume(), now)
            };
            assert_eq!(wrong(uploads, second + ON_ITS_WAY), None);
            let held = wrong(uploads, 2 * second + ON_ITS_WAY);
            assert_eq!(held.as_deref(), Some("vms/web_sda is held by somebody for 31 s"));
            uploads.look(&View::default(), 40 * second);
            assert_eq!(wrong(uploads, 60 * second), None);
        });
    }
}
