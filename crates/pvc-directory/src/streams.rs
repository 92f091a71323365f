//! The contents of volumes, in and out.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use pvc_model::storage::{SnapshotName, VolumeId};
use pvc_ports::{Download, MOST_PIECE_BYTES, StorageError, Upload, VolumeStreams};
use tokio::runtime::RuntimeFlavor;
use tokio::task::JoinHandle;

use crate::copy::{next_data, write_without_holes};
use crate::layout::{NewVolume, Root, failed};
use crate::lock::ImageGuard;
use crate::{DirectoryStorage, no_room, require_room};

#[async_trait]
impl VolumeStreams for DirectoryStorage {
    async fn upload(
        &self,
        volume: &VolumeId,
        size_bytes: u64,
        force: bool,
    ) -> Result<Box<dyn Upload>, StorageError> {
        let id = volume.clone();
        let (id, new) = self
            .work(move |root, _| {
                root.check_new_name(&id)?;
                require_room(root, &id.pool, size_bytes, force)?;
                let make = || {
                    let new = root.new_volume(&id)?;
                    let making = failed(format!("making volume `{id}`"));
                    new.image().set_len(size_bytes).map_err(making)?;
                    Ok(new)
                };
                let new = make().map_err(no_room(root, &id.pool, size_bytes))?;
                Ok((id, new))
            })
            .await?;
        let new = Some(Arc::new(new));
        Ok(Box::new(DirectoryUpload { root: self.root.clone(), id, size_bytes, new }))
    }

    async fn download(
        &self,
        volume: &VolumeId,
        snapshot: Option<&SnapshotName>,
    ) -> Result<Box<dyn Download>, StorageError> {
        let (id, snapshot) = (volume.clone(), snapshot.cloned());
        self.work(move |root, _| {
            let volume = root.volume(&id)?;
            let (image, guard) = match snapshot {
                // Nobody writes it, and its file stays when its name goes.
                Some(snapshot) => (volume.snapshot_file(&snapshot)?, None),
                None => (volume.image()?, Some(volume.require_unused()?)),
            };
            let size_bytes = image.metadata().map_err(failed(reading(&id)))?.len();
            let (image, at) = (Arc::new(image), 0);
            let download: Box<dyn Download> =
                Box::new(DirectoryDownload { id, image, size_bytes, at, _guard: guard });
            Ok(download)
        })
        .await
    }
}

struct DirectoryUpload {
    root: Arc<Root>,
    id: VolumeId,
    size_bytes: u64,
    /// Nothing any more once it is being published. Its folder goes when it is dropped.
    new: Option<Arc<NewVolume>>,
}

impl Drop for DirectoryUpload {
    fn drop(&mut self) {
        self.begin_discard();
    }
}

impl DirectoryUpload {
    fn gone(&self) -> StorageError {
        failed(writing(&self.id))(std::io::Error::other("the upload has ended"))
    }

    /// Frees the room aside, where that is possible: of a large file it takes its time.
    fn begin_discard(&mut self) -> Option<JoinHandle<()>> {
        let new = self.new.take()?;
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        match runtime.runtime_flavor() {
            RuntimeFlavor::MultiThread => Some(runtime.spawn_blocking(move || drop(new))),
            _ => None,
        }
    }
}

/// Does file work aside. It goes on if nobody waits for it any more.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StorageError> + Send + 'static,
) -> Result<T, StorageError> {
    pvc_ports::aside(work).await
}

fn writing(id: &VolumeId) -> String {
    format!("writing volume `{id}`")
}

fn reading(id: &VolumeId) -> String {
    format!("reading volume `{id}`")
}

#[async_trait]
impl Upload for DirectoryUpload {
    async fn write(&mut self, offset_bytes: u64, bytes: Bytes) -> Result<(), StorageError> {
        let end = offset_bytes.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.size_bytes) {
            let (volume, size_bytes) = (self.id.clone(), self.size_bytes);
            return Err(StorageError::BeyondEnd { volume, offset_bytes, size_bytes });
        }
        let new = self.new.clone().ok_or_else(|| self.gone())?;
        let (root, id) = (self.root.clone(), self.id.clone());
        aside(move || {
            write_without_holes(new.image(), offset_bytes, &bytes)
                .map_err(failed(writing(&id)))
                .map_err(no_room(&root, &id.pool, bytes.len() as u64))
        })
        .await
    }

    async fn finish(&mut self) -> Result<(), StorageError> {
        let new = self.new.clone().ok_or_else(|| self.gone())?;
        let doing = writing(&self.id);
        aside(move || new.image().sync_all().map_err(failed(doing))).await
    }

    async fn commit(mut self: Box<Self>) -> Result<(), StorageError> {
        let id = self.id.clone();
        // A write whose future was dropped may still be at work, and ends soon.
        let mut new = self.new.take().ok_or_else(|| self.gone())?;
        aside(move || {
            loop {
                match Arc::try_unwrap(new) {
                    Ok(new) => return new.publish(&id),
                    Err(busy) => new = busy,
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        })
        .await
    }

    async fn discard(mut self: Box<Self>) {
        if let Some(discarded) = self.begin_discard() {
            // A panic in it has been told of.
            let _ = discarded.await;
        }
    }
}

struct DirectoryDownload {
    id: VolumeId,
    image: Arc<File>,
    size_bytes: u64,
    /// Up to where it was read.
    at: u64,
    /// Keeps whoever could write the image from opening it.
    _guard: Option<ImageGuard>,
}

#[async_trait]
impl Download for DirectoryDownload {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    async fn next(&mut self) -> Result<Option<(u64, Bytes)>, StorageError> {
        loop {
            let (image, at, size_bytes) = (self.image.clone(), self.at, self.size_bytes);
            let look = move || next_piece(&image, at, size_bytes);
            let doing = reading(&self.id);
            match aside(move || look().map_err(failed(doing))).await? {
                Look::Piece(at, bytes) => {
                    self.at = at + bytes.len() as u64;
                    return Ok(Some((at, bytes)));
                }
                Look::ZerosUntil(at) => self.at = at,
                Look::End => {
                    self.at = size_bytes;
                    return Ok(None);
                }
            }
        }
    }
}

/// The most bytes of zeros that are read at a time: nobody can open the volume until that has come
/// to its end, also if nobody waits for it any more.
const MOST_LOOKED_AT: u64 = 16 << 20;

/// Outcome of a look for data.
enum Look {
    /// A piece that is neither a hole nor all zeros, and where it begins.
    Piece(u64, Bytes),
    /// Zeros up to there, and perhaps beyond.
    ZerosUntil(u64),
    End,
}

/// Looks for data from `at` on.
fn next_piece(image: &File, mut at: u64, size: u64) -> std::io::Result<Look> {
    let mut read = 0;
    while let Some((start, end)) = next_data(image, at, size)? {
        let length = usize::try_from(end - start).unwrap_or(MOST_PIECE_BYTES);
        let mut bytes = vec![0; length.min(MOST_PIECE_BYTES)];
        image.read_exact_at(&mut bytes, start)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(Look::Piece(start, bytes.into()));
        }
        at = start + bytes.len() as u64;
        read += bytes.len() as u64;
        if read >= MOST_LOOKED_AT {
            return Ok(Look::ZerosUntil(at));
        }
    }
    Ok(Look::End)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_read_in_bounded_parts_and_what_is_behind_them_is_found() {
        let image = tempfile::tempfile().unwrap();
        let (zeros, size) = (vec![0; 1 << 20], 40 << 20);
        for at in 0..33 {
            image.write_all_at(&zeros, at << 20).unwrap();
        }
        image.write_all_at(b"x", 33 << 20).unwrap();
        image.set_len(size).unwrap();
        let (mut at, mut looks) = (0, 0);
        loop {
            looks += 1;
            match next_piece(&image, at, size).unwrap() {
                Look::ZerosUntil(end) => {
                    assert!(end > at && end - at <= MOST_LOOKED_AT, "{at} to {end}");
                    at = end;
                }
                Look::Piece(start, bytes) => {
                    assert_eq!((start, bytes[0]), (33 << 20, b'x'));
                    at = start + bytes.len() as u64;
                }
                Look::End => break,
            }
        }
        assert!(looks >= 4, "{looks}");
    }
}
