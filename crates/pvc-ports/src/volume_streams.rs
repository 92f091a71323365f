//! The contents of volumes, in and out.

use async_trait::async_trait;
use bytes::Bytes;
use pvc_model::storage::{SnapshotName, VolumeId};

use crate::StorageError;

/// The most bytes of one piece.
pub const MOST_PIECE_BYTES: usize = 1 << 20;

/// The contents of volumes as streams of bounded pieces, of which one is in memory at a time. What
/// is in no piece is zeros, and takes no room.
#[async_trait]
pub trait VolumeStreams: Send + Sync {
    /// Begins a volume of this size, in exact bytes, which nobody sees before it is
    /// [committed](Upload::commit). Only then the name must be free.
    ///
    /// # Errors
    /// Those of [`create`](crate::Storage::create), but for a name that is taken.
    async fn upload(
        &self,
        volume: &VolumeId,
        size_bytes: u64,
        force: bool,
    ) -> Result<Box<dyn Upload>, StorageError>;

    /// The contents of the volume, or of one of its snapshots, as they are now.
    ///
    /// # Errors
    /// [`InUse`](StorageError::InUse) if somebody has the volume open, who could change it: a
    /// snapshot can be downloaded at any time.
    async fn download(
        &self,
        volume: &VolumeId,
        snapshot: Option<&SnapshotName>,
    ) -> Result<Box<dyn Download>, StorageError>;
}

/// A volume in the making. Dropping it discards what was written, as the end of the process does.
#[async_trait]
pub trait Upload: Send {
    /// Writes at an offset, in bytes. Pieces may come in any order, and the last one counts. When
    /// it returns, the storage has them, though perhaps not for good, but for some MiB that wait
    /// for what follows, of which the next write or the end says whether they can be written.
    ///
    /// # Errors
    /// [`BeyondEnd`](StorageError::BeyondEnd) if it would not fit in the volume, and
    /// [`NoRoom`](StorageError::NoRoom) or [`Full`](StorageError::Full) if it does not fit in the
    /// pool. The upload may go on after the first, and is to be dropped after any other.
    ///
    /// # Cancellation
    /// Dropping the future leaves the piece written in part. It may be written again.
    async fn write(&mut self, offset_bytes: u64, bytes: Bytes) -> Result<(), StorageError>;

    /// Ends the writing: what was written is on disk when this returns. Asked again it does
    /// nothing.
    ///
    /// # Errors
    /// Those of [`write`](Upload::write). The upload is to be dropped then.
    async fn finish(&mut self) -> Result<(), StorageError>;

    /// Makes it the volume, on disk when this returns, after the writing has been
    /// [ended](Upload::finish) if it was not.
    ///
    /// # Errors
    /// [`VolumeExists`](StorageError::VolumeExists) if a volume has the name. On any error there is
    /// nothing of it, but for [`TimedOut`](StorageError::TimedOut): then it may still get the name.
    async fn commit(self: Box<Self>) -> Result<(), StorageError>;

    /// Discards it, and returns when the storage has done that, or has given up.
    ///
    /// # Cancellation
    /// It is discarded all the same, as by dropping it.
    async fn discard(self: Box<Self>) {}
}

/// Contents of a volume or a snapshot as they were when the download began. Until it is dropped,
/// nobody can open the volume, unless the storage has kept that moment in a snapshot of its own.
#[async_trait]
pub trait Download: Send {
    fn size_bytes(&self) -> u64;

    /// Returns the next piece that is not all zeros, as its offset in bytes and at most
    /// [`MOST_PIECE_BYTES`] bytes; `None` when there is no other. Pieces come in order and do not
    /// overlap.
    ///
    /// # Cancellation
    /// Dropping the future loses nothing: the piece comes again.
    async fn next(&mut self) -> Result<Option<(u64, Bytes)>, StorageError>;
}
