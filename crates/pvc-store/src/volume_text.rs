//! Records of volumes and snapshots where the storage keeps none of its own, as Ceph does: with the
//! members that readers of `rbd info` look for. A file has no objects: it counts as one.

use pvc_model::storage::VolumeId;
use pvc_ports::{SnapshotInfo, VolumeInfo};
use serde_json::json;

/// The text of a volume's record.
pub fn volume_text(volume: &VolumeInfo) -> String {
    text(&volume.id, volume.size_bytes, volume.snapshots.len())
}

/// The text of a snapshot's record.
pub fn snapshot_text(volume: &VolumeId, snapshot: &SnapshotInfo) -> String {
    text(volume, snapshot.size_bytes, 0)
}

fn text(volume: &VolumeId, size_bytes: u64, snapshots: usize) -> String {
    json!({
        "name": volume.volume.as_str(),
        "id": volume.to_string(),
        "size": size_bytes,
        "objects": 1,
        "order": 0,
        "object_size": size_bytes,
        "snapshot_count": snapshots,
        "format": 2,
        "features": [],
    })
    .to_string()
}
