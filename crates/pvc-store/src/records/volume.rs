//! Volumes and their snapshots: `/ceph/volumes/{pool}/{volume}` and
//! `/ceph/snapshots/{pool}/{volume}/{snapshot}` (`spec/zookeeper.md` §4.5).

use pvc_model::storage::{PoolName, SnapshotName, VolumeId, VolumeName, VolumeRecord};

use super::{Kind, PLAIN, hold, show, snapshot_usage, weight_of};
use crate::draft::Draft;
use crate::error::StoreError;
use crate::feed::EventKind;
use crate::raw::Raw;
use crate::reader::Reader;

const ROOT: &str = "/ceph/volumes";
const SNAPSHOTS: &str = "/ceph/snapshots";

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT, SNAPSHOTS],
    base: &[(ROOT, ""), (SNAPSHOTS, "")],
    record: |key| match key.below {
        ["", ..] | [_, "", ..] => None,
        [pool, volume, ..] => Some(format!("{pool}/{volume}")),
    },
    read: |raw, _, name| {
        let id = id(name);
        let (record, event) = (read(raw, &id), EventKind::Volume(id.clone()));
        show(|view| &mut view.volumes, id, record, event)
    },
    weight: |raw, _, name| weight_of(raw.place(&snapshots(&id(name))), &[("", 2)], &[]),
    is_of_list: |key| key.root == SNAPSHOTS && !key.below[2].is_empty(),
    is_for_scripts: |_| true,
    ..PLAIN
};

/// The volume whose record has that name.
fn id(name: &str) -> VolumeId {
    let (pool, volume) = name.split_once('/').unwrap_or((name, ""));
    VolumeId { pool: PoolName::new(pool), volume: VolumeName::new(volume) }
}

fn root(id: &VolumeId) -> String {
    format!("{ROOT}/{}/{}", id.pool, id.volume)
}

fn snapshots(id: &VolumeId) -> String {
    format!("{SNAPSHOTS}/{}/{}", id.pool, id.volume)
}

fn snapshot(volume: &VolumeId, name: &SnapshotName) -> String {
    format!("{}/{name}", snapshots(volume))
}

/// The containers of a pool's volumes and snapshots.
pub(super) fn containers(pool: &PoolName) -> [String; 2] {
    [ROOT, SNAPSHOTS].map(|root| format!("{root}/{pool}"))
}

fn read(raw: &Raw, id: &VolumeId) -> Option<VolumeRecord> {
    let root = root(id);
    if !raw.contains(&root) {
        return None;
    }
    let snapshots = snapshots(id);
    let mut r = Reader::new(raw, &snapshots);
    let of_volume = r.list("", |r, name| (SnapshotName::new(name), r.shared("stats")));
    r.log_what_is_cut(&snapshots);
    let stats = Reader::new(raw, &root).shared("stats");
    Some(VolumeRecord { id: id.clone(), stats, snapshots: of_volume })
}

/// Writes the volume, new or not.
pub(crate) fn put(draft: &mut Draft<'_>, id: &VolumeId, json: &str) {
    draft.ensure(&snapshots(id));
    draft.ensure(&root(id));
    draft.put(stats(id), json.to_owned());
}

/// Removes the volume with the records of its snapshots.
pub(crate) fn remove(draft: &mut Draft<'_>, id: &VolumeId) {
    draft.delete(&snapshots(id));
    draft.delete(&root(id));
    hold::remove_of_volume(draft, id);
}

/// Writes the snapshot, new or not.
pub(crate) fn put_snapshot(
    draft: &mut Draft<'_>,
    volume: &VolumeId,
    name: &SnapshotName,
    json: &str,
) {
    let root = snapshot(volume, name);
    draft.ensure(&root);
    draft.put(format!("{root}/stats"), json.to_owned());
}

pub(crate) fn remove_snapshot(draft: &mut Draft<'_>, volume: &VolumeId, name: &SnapshotName) {
    draft.delete(&snapshot(volume, name));
}

/// Demands that the snapshot is still recorded, and was not recorded anew.
pub(crate) fn expect_snapshot(
    draft: &mut Draft<'_>,
    volume: &VolumeId,
    name: &SnapshotName,
) -> Result<(), StoreError> {
    draft.check(snapshot(volume, name))
}

/// Moves the records of the volume and of its snapshots, with what these were seen to hold.
pub(crate) fn rename(draft: &mut Draft<'_>, from: &VolumeId, to: &VolumeId) {
    draft.rename(&root(from), &root(to));
    draft.rename(&snapshots(from), &snapshots(to));
    snapshot_usage::rename_volume(draft, from, to);
}

/// The key of the statistics, JSON text.
pub(crate) fn stats(id: &VolumeId) -> String {
    format!("{}/stats", root(id))
}
