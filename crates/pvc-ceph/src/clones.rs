//! Copy-on-write clones. A clone stands on a snapshot of its volume that is protected, made for it
//! and called `pvc-clone-…`; it goes when nobody stands on it any more.

use pvc_model::storage::{PoolName, SnapshotName, VolumeId, VolumeName};
use pvc_ports::{Course, Flattened, StorageError};

use crate::answers::{Parent, Snapshot};
use crate::gate::WritePermit;
use crate::looks::{Head, Whole};
use crate::rbd::{FEATURES, Failure, QUICK, image_args, target_args};
use crate::storage::{RbdStorage, good_volume};

const CLONING: &str = "cloning a volume";
const FLATTENING: &str = "flattening a volume";

impl RbdStorage {
    /// Refuses a volume that clones stand on, and removes what earlier ones stood on; returns what
    /// it is then. A clone that others made may stand on a snapshot that is removed, which is in no
    /// list.
    pub(crate) async fn require_no_clones(
        &self,
        volume: &VolumeId,
        found: Whole,
    ) -> Result<(Head, Vec<Snapshot>), StorageError> {
        let Whole { head, snapshots, clones, .. } = found;
        if !clones.is_empty() {
            return Err(StorageError::HasClones { volume: volume.clone(), clones });
        }
        let names = snapshots.iter().map(|found| SnapshotName::new(&found.name));
        let bases: Vec<SnapshotName> = names.filter(SnapshotName::is_base).collect();
        if bases.is_empty() {
            return Ok((head, snapshots));
        }
        for base in bases {
            self.release(volume, &base).await?;
        }
        Ok((head, self.snapshots(volume).await?))
    }

    /// Removes what clones stood on, unless one still does: then it stays, which is no failure.
    /// Whether it is gone.
    async fn release(&self, volume: &VolumeId, base: &SnapshotName) -> Result<bool, StorageError> {
        let args = || [image_args(volume), vec![format!("--snap={base}")]].concat();
        let unprotected = self.programs.remove(&["snap", "unprotect"], args(), QUICK).await;
        match &unprotected {
            Err(Failure::Busy) => return Ok(false),
            Err(Failure::NotFound { pool: false }) => return Ok(true),
            // One that was never protected is not unprotected either.
            Ok(()) | Err(_) => {}
        }
        match (self.programs.remove(&["snap", "rm"], args(), QUICK).await, unprotected) {
            (Ok(()) | Err(Failure::NotFound { pool: false }), _) => Ok(true),
            (Err(Failure::Busy), Ok(())) => Ok(false),
            (Err(Failure::Busy), Err(failure)) | (Err(failure), _) => {
                Err(failure.of_snapshot(volume, base, CLONING))
            }
        }
    }

    /// Removes what clones stood on.
    ///
    /// # Errors
    /// [`StorageError::Protected`] while one still does.
    pub(crate) async fn remove_base(
        &self,
        volume: &VolumeId,
        base: &SnapshotName,
    ) -> Result<(), StorageError> {
        // Asked first: a program that is ended while it takes the protection away leaves half of
        // it.
        let stands = !self.clones_by_program(volume, Some(base)).await?.is_empty();
        match !stands && self.release(volume, base).await? {
            true => Ok(()),
            false => {
                Err(StorageError::Protected { volume: volume.clone(), snapshot: base.clone() })
            }
        }
    }

    pub(crate) async fn make_clone(
        &self,
        volume: &VolumeId,
        to: &VolumeName,
        course: &Course,
    ) -> Result<(), StorageError> {
        let to = good_volume(&volume.pool, to)?;
        self.image(volume).await?;
        self.require_listed(volume).await?;
        self.require_absent(&to).await?;
        let permit = self.may_write(&to.pool).await?;
        let random =
            getrandom::u64().map_err(|why| Failure::Other(why.to_string()).of(volume, CLONING))?;
        let base = SnapshotName::base(random);
        self.make_snapshot(&permit, volume, &base).await?;
        let cloned = match course.confirmed().await {
            true => self.clone_of(&permit, volume, &base, &to).await,
            false => Err(StorageError::Stopped),
        };
        if cloned.is_err()
            && let Err(error) = self.release(volume, &base).await
        {
            // What went wrong first is what is told.
            tracing::warn!(%volume, snapshot = %base, %error, "a snapshot for a clone that was not \
                                                               made could not be removed");
        }
        cloned
    }

    async fn clone_of(
        &self,
        permit: &WritePermit,
        volume: &VolumeId,
        base: &SnapshotName,
        to: &VolumeId,
    ) -> Result<(), StorageError> {
        let source = [image_args(volume), vec![format!("--snap={base}")]].concat();
        let words = ["snap", "protect"];
        let protected = self.programs.write(permit, &words, source.clone(), QUICK).await;
        protected.map_err(|failure| failure.of_snapshot(volume, base, CLONING))?;
        self.publish(to, |partial| async move {
            let target = target_args(&partial.pool, &partial.volume);
            let args = [source, target, FEATURES.map(str::to_owned).to_vec()].concat();
            let cloned = self.programs.write(permit, &["clone"], args, QUICK).await;
            cloned.map_err(|failure| failure.of(&partial, CLONING))
        })
        .await
    }

    pub(crate) async fn make_independent(
        &self,
        volume: &VolumeId,
        force: bool,
        course: &Course,
    ) -> Result<Flattened, StorageError> {
        let image = self.described(volume).await?;
        self.require_listed(volume).await?;
        let Some(parent) = image.parent else { return Ok(Flattened::Independent) };
        let permit = self.may_fill(&volume.pool, image.size, force).await?;
        let (words, args) = (["flatten"], image_args(volume));
        let flattened =
            self.programs.write_on_course(&permit, &words, args, image.size, course).await;
        match flattened {
            Ok(()) => {}
            // It was through already, or who has the volume open has brought it to its end.
            Err(Failure::Stopped) if self.described(volume).await?.parent.is_none() => {}
            Err(failure) => return Err(failure.of(volume, FLATTENING)),
        }
        Ok(Flattened::From(self.let_go_of(parent).await?))
    }

    /// The volume that a clone stood on, of which goes what nobody stands on any more.
    async fn let_go_of(&self, parent: Parent) -> Result<Option<VolumeId>, StorageError> {
        let Parent { pool, image, snapshot, trash } = parent;
        if trash {
            return Ok(None);
        }
        let volume = VolumeId { pool: PoolName::new(pool), volume: VolumeName::new(image) };
        let base = SnapshotName::new(snapshot);
        if base.is_base() && self.clones_by_program(&volume, Some(&base)).await?.is_empty() {
            self.release(&volume, &base).await?;
        }
        Ok(Some(volume))
    }
}
