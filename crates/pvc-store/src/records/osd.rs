//! OSDs of Ceph: `/ceph/osds/{id}` (`spec/zookeeper.md` §4.5).

use pvc_model::storage::OsdRecord;

use super::{Keys, Kind, PLAIN, show};
use crate::draft::Draft;
use crate::feed::EventKind;
use crate::raw::Raw;
use crate::reader::Reader;

const ROOT: &str = "/ceph/osds";

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT],
    base: &[(ROOT, "")],
    keys: KEYS,
    record: |key| key.first().map(str::to_owned),
    read: |raw, _, id| {
        let event = EventKind::Osd(id.to_owned());
        show(|view| &mut view.osds, id.to_owned(), read(raw, id), event)
    },
    is_observed: |key| matches!(key.below, [_, "stats", "", _]),
    is_for_scripts: |_| true,
    ..PLAIN
};

/// The keys below an OSD's root.
const KEYS: Keys = &[
    ("node", ""),
    ("device", ""),
    ("db_device", ""),
    ("fsid", ""),
    ("fsid/osd", ""),
    ("fsid/cluster", ""),
    ("lvm", ""),
    ("lvm/vg", ""),
    ("lvm/lv", ""),
    ("is_split", "False"),
    ("stats", ""),
];

fn root(id: &str) -> String {
    format!("{ROOT}/{id}")
}

fn read(raw: &Raw, id: &str) -> Option<OsdRecord> {
    let root = root(id);
    if !raw.contains(&root) {
        return None;
    }
    let mut r = Reader::new(raw, &root);
    Some(OsdRecord {
        id: id.to_owned(),
        node: r.text("node"),
        device: r.text("device"),
        db_device: r.text("db_device"),
        fsid: r.text("fsid/osd"),
        cluster: r.text("fsid/cluster"),
        group: r.text("lvm/vg"),
        volume: r.text("lvm/lv"),
        is_split: r.flag("is_split"),
        stats: r.shared("stats"),
    })
}

/// Statistics of an OSD that nobody has looked at yet, as legacy peers write them.
pub const OSD_STATS_TO_COME: &str = concat!(
    r#"{"uuid": "|", "up": 0, "in": 0, "primary_affinity": "|", "utilization": "|", "#,
    r#""var": "|", "pgs": "|", "kb": "|", "weight": "|", "reweight": "|", "node": "|", "#,
    r#""used": "|", "avail": "|", "wr_ops": "|", "wr_data": "|", "rd_ops": "|", "#,
    r#""rd_data": "|", "state": "|"}"#
);

/// Writes the OSD, new or not, but its statistics: only a new one gets some, which say that there
/// are none yet.
pub(crate) fn put(draft: &mut Draft<'_>, record: &OsdRecord) {
    let root = root(&record.id);
    draft.ensure(&root);
    let OsdRecord { node, device, db_device, fsid, cluster, group, volume, .. } = record;
    for (key, value) in [
        ("node", node.as_str()),
        ("device", device),
        ("db_device", db_device),
        ("fsid", ""),
        ("fsid/osd", fsid),
        ("fsid/cluster", cluster),
        ("lvm", ""),
        ("lvm/vg", group),
        ("lvm/lv", volume),
        ("is_split", if record.is_split { "True" } else { "False" }),
    ] {
        draft.put(format!("{root}/{key}"), value.to_owned());
    }
    if !draft.seen().contains(&stats(&record.id)) {
        draft.put(stats(&record.id), OSD_STATS_TO_COME);
    }
}

/// Removes the OSD with everything below it.
pub(crate) fn remove(draft: &mut Draft<'_>, id: &str) {
    draft.delete(&root(id));
}

/// The key of the statistics, JSON text.
pub(crate) fn stats(id: &str) -> String {
    format!("{}/stats", root(id))
}
