//! Copy-on-write clones. A clone stands on a snapshot of its volume that is protected, made for it
//! and called `pvc-clone-…`; it goes when nobody stands on it any more.

use pvc_model::storage::{CLONED, PoolName, SnapshotName, VolumeId, VolumeName};
use pvc_ports::{CloneName, Course, Flattened, StorageError};

use crate::answers::Parent;
use crate::rbd::{FEATURES, Failure, QUICK, image_args, io_error, target_args};
use crate::storage::{RbdStorage, good_volume, with_json};
use crate::trash_answers;

const CLONING: &str = "cloning a volume";
const FLATTENING: &str = "flattening a volume";

impl RbdStorage {
    /// Volumes that are clones of this one, of one of its snapshots or of any.
    async fn clones(
        &self,
        volume: &VolumeId,
        snapshot: Option<&SnapshotName>,
    ) -> Result<Vec<CloneName>, StorageError> {
        let doing = "listing clones";
        let snapshot = snapshot.map(|name| format!("--snap={name}"));
        let more = [Some("--all".to_owned()), snapshot].into_iter().flatten().collect();
        let args = with_json([image_args(volume), more].concat());
        let listed = self.programs.rbd(&["children"], args, QUICK).await;
        let text = listed.map_err(|failure| failure.of(volume, doing))?;
        trash_answers::children(&text).map_err(|why| io_error(doing, why))
    }

    /// Refuses a volume that clones stand on, and removes what earlier ones stood on. A clone that
    /// others made may stand on a snapshot that is removed, which is in no list.
    pub(crate) async fn require_no_clones(&self, volume: &VolumeId) -> Result<(), StorageError> {
        let snapshots = self.snapshots(volume).await?;
        let clones = self.clones(volume, None).await?;
        if !clones.is_empty() {
            return Err(StorageError::HasClones { volume: volume.clone(), clones });
        }
        for base in snapshots.iter().filter(|snapshot| snapshot.is_protected()) {
            if base.name.starts_with(CLONED) {
                self.release(volume, &SnapshotName::new(&base.name)).await?;
            }
        }
        Ok(())
    }

    /// Removes what clones stood on, unless one still does: then it stays, which is no failure.
    async fn release(&self, volume: &VolumeId, base: &SnapshotName) -> Result<(), StorageError> {
        for words in [["snap", "unprotect"], ["snap", "rm"]] {
            let args = [image_args(volume), vec![format!("--snap={base}")]].concat();
            match self.programs.rbd(&words, args, QUICK).await {
                Ok(_) => {}
                Err(Failure::Busy | Failure::NotFound { pool: false }) => return Ok(()),
                Err(failure) => return Err(failure.of_snapshot(volume, base, CLONING)),
            }
        }
        Ok(())
    }

    pub(crate) async fn make_clone(
        &self,
        volume: &VolumeId,
        to: &VolumeName,
    ) -> Result<(), StorageError> {
        let to = good_volume(&volume.pool, to)?;
        self.image(volume).await?;
        self.require_listed(volume).await?;
        self.require_absent(&to).await?;
        self.require_not_full(&to.pool).await?;
        let random = getrandom::u64().map_err(|why| io_error(CLONING, why.to_string()))?;
        let base = SnapshotName::new(format!("{CLONED}-{random:016x}"));
        self.make_snapshot(volume, &base).await?;
        let cloned = self.clone_of(volume, &base, &to).await;
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
        volume: &VolumeId,
        base: &SnapshotName,
        to: &VolumeId,
    ) -> Result<(), StorageError> {
        let source = [image_args(volume), vec![format!("--snap={base}")]].concat();
        let protected = self.programs.rbd(&["snap", "protect"], source.clone(), QUICK).await;
        protected.map_err(|failure| failure.of_snapshot(volume, base, CLONING))?;
        self.publish(to, |partial| async move {
            let target = target_args(&partial.pool, &partial.volume);
            let args = [source, target, FEATURES.map(str::to_owned).to_vec()].concat();
            let cloned = self.programs.rbd(&["clone"], args, QUICK).await;
            cloned.map(drop).map_err(|failure| failure.of(&partial, CLONING))
        })
        .await
    }

    pub(crate) async fn make_independent(
        &self,
        volume: &VolumeId,
        force: bool,
        course: &Course,
    ) -> Result<Flattened, StorageError> {
        let image = self.image(volume).await?;
        self.require_listed(volume).await?;
        let Some(parent) = image.parent else { return Ok(Flattened::Independent) };
        self.require_room(&volume.pool, image.size, force).await?;
        let flattened =
            self.programs.rbd_on_course(&["flatten"], image_args(volume), image.size, course);
        match flattened.await {
            Ok(_) => {}
            // It was through already, or who has the volume open has brought it to its end.
            Err(Failure::Stopped) if self.image(volume).await?.parent.is_none() => {}
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
        if base.as_str().starts_with(CLONED) && self.clones(&volume, Some(&base)).await?.is_empty()
        {
            self.release(&volume, &base).await?;
        }
        Ok(Some(volume))
    }
}
