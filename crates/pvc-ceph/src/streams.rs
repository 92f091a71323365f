//! The VolumeStreams port on RBD.
//!
//! An upload is one `rbd import-diff` that fills an image of another name, a download one
//! `rbd export-diff` of a snapshot. Both know zeros, which take no room.

use std::collections::VecDeque;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use pvc_model::storage::{DOWNLOADED, SnapshotName, TrashId, VolumeId};
use pvc_ports::{Download, StorageError, Upload, VolumeStreams};
use tokio::task::JoinHandle;

use crate::answers::Snapshot;
use crate::diff::{self, Diff, Gathered, Next};
use crate::gate::WritePermit;
use crate::piped::Piped;
use crate::rbd::{Failure, QUICK, image_args, io_error, with_volume};
use crate::storage::{RbdStorage, good_volume, named, partial_of, random, require_snapshot_name};
use crate::trash::image_args_of;

const WRITING: &str = "writing a volume";
const READING: &str = "reading a volume";

/// Runs of zeros of this length take no room, also inside a piece. Each is an act of its own.
const SPARSE: &str = "--sparse-size=64K";

const OPEN_POLL: Duration = Duration::from_millis(10);

/// Removing what nobody wants any more waits for Ceph to notice that its client died.
const REMOVE_POLL: Duration = Duration::from_secs(5);
const REMOVE_TRIES: usize = 12;

#[async_trait]
impl VolumeStreams for RbdStorage {
    async fn upload(
        &self,
        volume: &VolumeId,
        size_bytes: u64,
        force: bool,
    ) -> Result<Box<dyn Upload>, StorageError> {
        let volume = good_volume(&volume.pool, &volume.volume)?;
        let permit = self.may_fill(&volume.pool, size_bytes, force).await?;
        let partial = partial_of(&volume)?;
        let mut upload = RbdUpload {
            storage: self.clone(),
            volume,
            size_bytes,
            partial: Some(partial.clone()),
            import: None,
            is_finished: false,
            gathered: Gathered::default(),
            unsent: VecDeque::from([diff::begin(size_bytes)]),
        };
        let begun = upload.begin(&permit, &partial).await;
        begun.map_err(|error| named(error, &partial, &upload.volume))?;
        Ok(Box::new(upload))
    }

    async fn download(
        &self,
        volume: &VolumeId,
        snapshot: Option<&SnapshotName>,
    ) -> Result<Box<dyn Download>, StorageError> {
        let (name, is_ours) = match snapshot {
            Some(name) => (name.clone(), false),
            None => {
                self.require_unused(volume).await?;
                (SnapshotName::new(format!("{DOWNLOADED}{:016x}", random()?)), true)
            }
        };
        require_snapshot_name(volume, &name)?;
        let image = self.image(volume).await?.trash_id(volume, READING)?;
        // From here on it is removed when this is dropped, also if nothing comes to be read.
        let mut moment = Moment {
            storage: self.clone(),
            volume: volume.clone(),
            image,
            name,
            id: None,
            is_ours,
            export: None,
        };
        if moment.is_ours {
            let permit = self.may_write(&volume.pool).await?;
            self.make_snapshot(&permit, volume, &moment.name).await?;
        }
        let found = self.require_snapshot(volume, &moment.name).await?;
        moment.id = Some(found.id);
        let diff = Diff::of(moment.name.as_str(), found.size);
        let snapshot = format!("--snap={}", moment.name);
        let words = ["export-diff", "-", "--no-progress"];
        let args = [image_args(volume), vec![snapshot]].concat();
        let export = self.programs.look_piped(&words, args);
        moment.export = Some(export.map_err(|failure| failure.of(volume, READING))?);
        let state = State::Reading { diff, read: BytesMut::new() };
        Ok(Box::new(RbdDownload { size_bytes: found.size, moment, state }))
    }
}

struct RbdUpload {
    storage: RbdStorage,
    volume: VolumeId,
    size_bytes: u64,
    /// The image that is filled, and removed when this is dropped; none once it gets its name.
    partial: Option<VolumeId>,
    import: Option<Piped>,
    is_finished: bool,
    /// Data that was written and is no whole record yet.
    gathered: Gathered,
    /// Bytes that the program has yet to be given: at most records that a dropped write left in
    /// part.
    unsent: VecDeque<Bytes>,
}

impl RbdUpload {
    async fn begin(
        &mut self,
        permit: &WritePermit,
        partial: &VolumeId,
    ) -> Result<(), StorageError> {
        self.storage.make_empty(permit, partial, self.size_bytes).await?;
        let words = ["import-diff", "-", "--no-progress", SPARSE];
        let import = self.storage.programs.write_piped(permit, &words, image_args(partial));
        self.import = Some(import.map_err(|failure| failure.of(partial, WRITING))?);
        let (doing, seconds) = (with_volume(WRITING, &self.volume), QUICK.as_secs());
        let late = StorageError::TimedOut { doing, seconds };
        let open = self.until_open(partial);
        tokio::time::timeout(QUICK, open).await.unwrap_or(Err(late))
    }

    /// Waits until the image has its user: one without passes for what a crash has left.
    async fn until_open(&mut self, partial: &VolumeId) -> Result<(), StorageError> {
        while self.storage.holder(partial).await?.is_none() {
            let import = self.import.as_mut().ok_or_else(gone)?;
            if import.has_ended() {
                let ended = import.end().await.err();
                return Err(ended.map_or_else(gone, |failure| failure.of(partial, WRITING)));
            }
            tokio::time::sleep(OPEN_POLL).await;
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<(), StorageError> {
        while let Some(bytes) = self.unsent.front_mut() {
            let import = self.import.as_mut().ok_or_else(gone)?;
            let given = import.give(bytes).await;
            if bytes.is_empty() {
                self.unsent.pop_front();
            }
            if let Err(failure) = given {
                return Err(self.failed(failure));
            }
        }
        Ok(())
    }

    /// Begins to remove the image, if there is one. One that is not removed here, for want of a
    /// runtime, is a leftover.
    fn begin_discard(&mut self) -> Option<JoinHandle<()>> {
        let partial = self.partial.take()?;
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let (storage, import) = (self.storage.clone(), self.import.take());
        Some(runtime.spawn(async move { discard(&storage, import, &partial).await }))
    }

    fn failed(&self, failure: Failure) -> StorageError {
        match &self.partial {
            Some(partial) => named(failure.of(partial, WRITING), partial, &self.volume),
            None => failure.of(&self.volume, WRITING),
        }
    }
}

fn gone() -> StorageError {
    io_error(WRITING, "the upload has ended".to_owned())
}

#[async_trait]
impl Upload for RbdUpload {
    async fn write(&mut self, offset_bytes: u64, mut bytes: Bytes) -> Result<(), StorageError> {
        let end = offset_bytes.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.size_bytes) {
            let (volume, size_bytes) = (self.volume.clone(), self.size_bytes);
            return Err(StorageError::BeyondEnd { volume, offset_bytes, size_bytes });
        }
        let mut at = offset_bytes;
        while !bytes.is_empty() {
            // A record that was begun is brought to its end first.
            self.send().await?;
            let room = usize::try_from(Gathered::room_at(at)).unwrap_or(usize::MAX);
            let piece = bytes.split_to(bytes.len().min(room));
            let length = piece.len() as u64;
            self.unsent.extend(self.gathered.add(at, piece));
            at += length;
        }
        self.send().await
    }

    /// Has the program write the end and go, so that what it has written is on disk.
    async fn finish(&mut self) -> Result<(), StorageError> {
        if self.is_finished {
            return Ok(());
        }
        self.unsent.extend(self.gathered.take());
        self.unsent.push_back(diff::end());
        self.send().await?;
        let ended = self.import.as_mut().ok_or_else(gone)?.end().await;
        match ended {
            Ok(()) => {
                self.is_finished = true;
                Ok(())
            }
            Err(failure) => Err(self.failed(failure)),
        }
    }

    async fn commit(mut self: Box<Self>) -> Result<(), StorageError> {
        self.finish().await?;
        // Whoever stops waiting from here on may find it under either name, and removes nothing.
        let partial = self.partial.take().ok_or_else(gone)?;
        self.storage.complete(&partial, &self.volume, Ok(())).await
    }

    async fn discard(mut self: Box<Self>) {
        if let Some(discarded) = self.begin_discard() {
            // It has said itself what it could not do.
            let _ = discarded.await;
        }
    }
}

impl Drop for RbdUpload {
    fn drop(&mut self) {
        self.begin_discard();
    }
}

/// Removes an image that is not to be completed.
async fn discard(storage: &RbdStorage, import: Option<Piped>, partial: &VolumeId) {
    if let Some(import) = import {
        // Its input is cut before the end: it closes the image and fails.
        import.leave().await;
    }
    let mut tries = REMOVE_TRIES;
    loop {
        tries -= 1;
        match storage.remove_partial(partial).await {
            Ok(()) => return,
            Err(StorageError::InUse { .. }) if tries > 0 => tokio::time::sleep(REMOVE_POLL).await,
            Err(error) => {
                tracing::warn!(volume = %partial, %error, "a volume that was not completed could \
                                                           not be removed");
                return;
            }
        }
    }
}

/// A snapshot that is downloaded, and what is ours to clear away.
struct Moment {
    storage: RbdStorage,
    volume: VolumeId,
    /// The image, which has its snapshot also when another has its name, and it is in the trash.
    image: TrashId,
    name: SnapshotName,
    id: Option<u64>,
    is_ours: bool,
    export: Option<Piped>,
}

impl Moment {
    /// Makes sure that what was read was the snapshot. One that is removed meanwhile reads as
    /// zeros, and the program ends well.
    async fn require_whole(&self) -> Result<(), StorageError> {
        let (pool, name) = (&self.volume.pool, self.name.as_str());
        let there = self.storage.snapshots_by_id(pool, &self.image).await?;
        let is_it = |found: &Snapshot| found.name == name && Some(found.id) == self.id;
        match there.iter().any(is_it) {
            true => Ok(()),
            false => Err(StorageError::NoSnapshot {
                volume: self.volume.clone(),
                snapshot: self.name.clone(),
            }),
        }
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (export, is_ours) = (self.export.take(), self.is_ours);
        if export.is_none() && !is_ours {
            return;
        }
        let (storage, volume) = (self.storage.clone(), self.volume.clone());
        let (image, name) = (self.image.clone(), self.name.clone());
        runtime.spawn(async move {
            if let Some(export) = export {
                export.leave().await;
            }
            if is_ours {
                remove_ours(&storage, &volume, &image, &name).await;
            }
        });
    }
}

/// Removes a snapshot that was only made to be read. One that stays harms nobody but takes room.
async fn remove_ours(
    storage: &RbdStorage,
    volume: &VolumeId,
    image: &TrashId,
    name: &SnapshotName,
) {
    let args = [image_args_of(&volume.pool, image), vec![format!("--snap={name}")]].concat();
    match storage.programs.remove(&["snap", "rm"], args, QUICK).await {
        Ok(()) | Err(Failure::NotFound { pool: false }) => {}
        Err(failure) => {
            let error = failure.of(volume, "removing a snapshot");
            tracing::warn!(%volume, snapshot = %name, %error, "a snapshot that was made for a \
                                                               download could not be removed");
        }
    }
}

struct RbdDownload {
    size_bytes: u64,
    moment: Moment,
    state: State,
}

enum State {
    Reading {
        diff: Diff,
        /// Bytes that were read and are in no piece yet: less than a piece and a read.
        read: BytesMut,
    },
    /// All pieces are out; whether they are right is not known yet.
    Read,
    Done,
}

impl RbdDownload {
    fn failed(&self, failure: Failure) -> StorageError {
        let Moment { volume, name, .. } = &self.moment;
        match failure {
            // The volume may be there, without the snapshot.
            Failure::NotFound { pool: false } => {
                StorageError::NoSnapshot { volume: volume.clone(), snapshot: name.clone() }
            }
            other => other.of(volume, READING),
        }
    }
}

fn unlikely(volume: &VolumeId, why: &str) -> StorageError {
    let why = format!("the output of `rbd export-diff` is not understood: {why}");
    Failure::Other(why).of(volume, READING)
}

#[async_trait]
impl Download for RbdDownload {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    async fn next(&mut self) -> Result<Option<(u64, Bytes)>, StorageError> {
        loop {
            let (diff, read) = match &mut self.state {
                State::Reading { diff, read } => (diff, read),
                State::Read => break,
                State::Done => return Ok(None),
            };
            let next = diff.next(read).map_err(|why| unlikely(&self.moment.volume, &why))?;
            if let Next::Piece(offset, bytes) = next {
                return Ok(Some((offset, bytes)));
            }
            let Some(export) = &mut self.moment.export else {
                return Err(unlikely(&self.moment.volume, "it has ended"));
            };
            match export.take(read).await {
                // Something behind the end is for the reader to refuse.
                Ok(true) => {}
                Ok(false) if next == Next::End => self.state = State::Read,
                Ok(false) => {
                    let ended = export.end().await;
                    let cut = || unlikely(&self.moment.volume, "it is cut short");
                    return Err(ended.err().map_or_else(cut, |failure| self.failed(failure)));
                }
                Err(failure) => return Err(self.failed(failure)),
            }
        }
        if let Some(export) = &mut self.moment.export {
            let ended = export.end().await;
            ended.map_err(|failure| self.failed(failure))?;
        }
        self.moment.require_whole().await?;
        self.moment.export = None;
        self.state = State::Done;
        if self.moment.is_ours {
            let Moment { storage, volume, image, name, .. } = &self.moment;
            remove_ours(storage, volume, image, name).await;
            self.moment.is_ours = false;
        }
        Ok(None)
    }
}
