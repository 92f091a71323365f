//! Names that volumes, snapshots and pools have or may have, and what is refused of others.

use pvc_model::BadName;
use pvc_model::storage::{PoolName, SnapshotName, VolumeId, VolumeName};
use pvc_ports::StorageError;

use crate::answers;
use crate::rbd::{is_addressable, with_volume};

pub(super) const NAMING: &str = "naming a new volume";

pub(super) fn left_of_a_rename(volume: &VolumeId) -> StorageError {
    let VolumeId { pool, volume: name } = volume;
    let said = format!(
        "the name `{name}` is left of a rename that was cut short, and no volume has it: when no \
         rename runs, `rados --pool {pool} rm rbd_id.{name}` frees it"
    );
    StorageError::Refused { doing: with_volume(NAMING, volume), said }
}

pub(crate) fn require_pool_name(pool: &PoolName) -> Result<(), StorageError> {
    match is_addressable(pool.as_str()) {
        true => Ok(()),
        false => Err(StorageError::NoPool { pool: pool.clone() }),
    }
}

/// A volume that `rbd` cannot be told of is not there.
pub(crate) fn require_addressable(volume: &VolumeId) -> Result<(), StorageError> {
    require_pool_name(&volume.pool)?;
    if !is_addressable(volume.volume.as_str()) {
        return Err(StorageError::NoVolume { volume: volume.clone() });
    }
    Ok(())
}

pub(crate) fn require_snapshot_name(
    volume: &VolumeId,
    snapshot: &SnapshotName,
) -> Result<(), StorageError> {
    if is_addressable(snapshot.as_str()) {
        return Ok(());
    }
    Err(StorageError::NoSnapshot { volume: volume.clone(), snapshot: snapshot.clone() })
}

/// A snapshot that clones stand on goes only after them.
pub(crate) fn require_unprotected(
    volume: &VolumeId,
    snapshot: &answers::Snapshot,
) -> Result<(), StorageError> {
    if !snapshot.is_protected() {
        return Ok(());
    }
    let snapshot = SnapshotName::new(&snapshot.name);
    Err(StorageError::Protected { volume: volume.clone(), snapshot })
}

/// Names of what is to be made keep our own rules.
pub(crate) fn good_volume(pool: &PoolName, name: &VolumeName) -> Result<VolumeId, BadName> {
    Ok(VolumeId { pool: pool.clone(), volume: VolumeName::parse(name.as_str())? })
}
