//! Volumes in the making, which have a name of their own until they are complete.

use std::time::Duration;

use pvc_model::storage::{CLONED, SnapshotName, VolumeId, VolumeName};
use pvc_ports::{Course, Storage, StorageError};

use super::RbdStorage;
use super::names::NAMING;
use crate::gate::WritePermit;
use crate::rbd::{FEATURES, Failure, QUICK, image_args, io_error, target_args};

/// Time after which Ceph has forgotten a client that was killed, and a little more.
const CLIENT_FORGOTTEN: Duration = Duration::from_secs(60);

/// Time between two looks whether it has.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl RbdStorage {
    /// Makes `volume` by `fill`, which is given another name in the same pool to work under:
    /// whatever becomes of it, `volume` is there as asked or not at all.
    pub(crate) async fn publish<Fill>(
        &self,
        volume: &VolumeId,
        fill: impl FnOnce(VolumeId) -> Fill,
    ) -> Result<(), StorageError>
    where
        Fill: Future<Output = Result<(), StorageError>>,
    {
        let partial = partial_of(volume)?;
        let filled = fill(partial.clone()).await;
        self.complete(&partial, volume, filled).await
    }

    /// Gives `partial`, which is `filled` now, the name that it is for, or removes it.
    pub(crate) async fn complete(
        &self,
        partial: &VolumeId,
        volume: &VolumeId,
        filled: Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let published = match filled {
            Ok(()) => self.publish_as(partial, &volume.volume).await,
            Err(error) => Err(error),
        };
        match &published {
            // The rename may still come to its end: the next copy to this name sees how it went.
            Ok(()) | Err(StorageError::TimedOut { .. }) => {}
            Err(StorageError::Stopped) => self.remove_stopped(partial).await,
            Err(_) => {
                // What went wrong first is what is told.
                if let Err(error) = self.remove_partial(partial).await {
                    tracing::warn!(volume = %partial, %error, "a volume that was not completed \
                                                               could not be removed");
                }
            }
        }
        published.map_err(|error| named(error, partial, volume))
    }

    /// Removes what a program has left that was ended: Ceph takes it for one that has the volume
    /// open until it has heard nothing of it for half a minute.
    async fn remove_stopped(&self, partial: &VolumeId) {
        let begun = tokio::time::Instant::now();
        loop {
            match self.remove_partial(partial).await {
                Ok(()) => return,
                Err(StorageError::InUse { .. }) if begun.elapsed() < CLIENT_FORGOTTEN => {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                Err(error) => {
                    tracing::warn!(volume = %partial, %error, "a copy that was cancelled could not \
                                                               be removed; it goes to the trash \
                                                               after a day");
                    return;
                }
            }
        }
    }

    pub(crate) async fn remove_partial(&self, partial: &VolumeId) -> Result<(), StorageError> {
        match self.remove(partial).await {
            Err(StorageError::NoVolume { .. }) => Ok(()),
            other => other,
        }
    }

    async fn publish_as(&self, partial: &VolumeId, to: &VolumeName) -> Result<(), StorageError> {
        // It may have taken hours to fill it.
        let permit = self.may_write(&partial.pool).await?;
        self.move_to(&permit, partial, to, NAMING).await
    }

    pub(super) async fn move_to(
        &self,
        permit: &WritePermit,
        volume: &VolumeId,
        to: &VolumeName,
        doing: &str,
    ) -> Result<(), StorageError> {
        let args = [image_args(volume), target_args(&volume.pool, to)].concat();
        let moved = self.programs.write(permit, &["rename"], args, QUICK).await;
        moved.map_err(|failure| match failure {
            Failure::Exists => StorageError::VolumeExists {
                volume: VolumeId { pool: volume.pool.clone(), volume: to.clone() },
            },
            other => other.of(volume, doing),
        })
    }

    pub(super) async fn copy(
        &self,
        permit: &WritePermit,
        source: Vec<String>,
        size_bytes: u64,
        volume: &VolumeId,
        to: &VolumeId,
        course: &Course,
    ) -> Result<(), StorageError> {
        let args =
            [source, target_args(&to.pool, &to.volume), FEATURES.map(str::to_owned).to_vec()]
                .concat();
        let (programs, words) = (&self.programs, ["copy"]);
        let copied = programs.write_on_course(permit, &words, args, size_bytes, course).await;
        copied.map_err(|failure| match failure {
            Failure::Exists => StorageError::VolumeExists { volume: to.clone() },
            other => other.of(volume, "copying a volume"),
        })
    }

    /// Copies a volume as it is at one moment, whatever is done to it while that is copied.
    pub(super) async fn copy_of_moment(
        &self,
        permit: &WritePermit,
        volume: &VolumeId,
        size_bytes: u64,
        to: &VolumeId,
        course: &Course,
    ) -> Result<(), StorageError> {
        let moment = SnapshotName::new(format!("{CLONED}-{}", to.volume));
        match self.remove_snapshot(volume, &moment).await {
            Ok(()) | Err(StorageError::NoSnapshot { .. }) => {}
            Err(error) => return Err(error),
        }
        self.make_snapshot(permit, volume, &moment).await?;
        let copied = match course.confirmed().await {
            true => {
                let source = [image_args(volume), vec![format!("--snap={moment}")]].concat();
                self.copy(permit, source, size_bytes, volume, to, course).await
            }
            false => Err(StorageError::Stopped),
        };
        if let Err(error) = self.remove_snapshot(volume, &moment).await {
            let text = "the snapshot that was copied could not be removed; it goes after a week";
            tracing::warn!(%volume, snapshot = %moment, %error, "{text}");
        }
        copied
    }
}

/// The error, said of `volume` if it is about `partial`, of which only we know.
pub(crate) fn named(error: StorageError, partial: &VolumeId, volume: &VolumeId) -> StorageError {
    let is_partial = |found: &VolumeId| found == partial;
    let of_volume = |doing: &str| doing.replace(&partial.to_string(), &volume.to_string());
    match error {
        StorageError::InUse { volume: found, holder } if is_partial(&found) => {
            StorageError::InUse { volume: volume.clone(), holder }
        }
        StorageError::VolumeExists { volume: found } if is_partial(&found) => {
            StorageError::VolumeExists { volume: volume.clone() }
        }
        StorageError::TimedOut { doing, seconds } => {
            StorageError::TimedOut { doing: of_volume(&doing), seconds }
        }
        StorageError::Io { doing, source } => StorageError::Io { doing: of_volume(&doing), source },
        StorageError::Refused { doing, said } => {
            StorageError::Refused { doing: of_volume(&doing), said }
        }
        other => other,
    }
}

/// Name of its own under which `volume` is to be made. What a crash leaves under such a name is not
/// removed here: it may be complete and about to get its name.
pub(crate) fn partial_of(volume: &VolumeId) -> Result<VolumeId, StorageError> {
    let name = volume.volume.partial(random()?);
    Ok(VolumeId { pool: volume.pool.clone(), volume: name })
}

/// A number that nobody else has.
pub(crate) fn random() -> Result<u64, StorageError> {
    getrandom::u64().map_err(|why| io_error(NAMING, why.to_string()))
}
