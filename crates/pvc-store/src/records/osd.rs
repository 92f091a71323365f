//! OSDs of Ceph: `/ceph/osds/{id}` (`spec/zookeeper.md` §4.5).

use pvc_model::storage::OsdRecord;

use super::{Keys, Kind, PLAIN, show};
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
        is_split: r.flag("is_split"),
        stats: r.shared("stats"),
    })
}

/// The key of the statistics, JSON text.
pub(crate) fn stats(id: &str) -> String {
    format!("{}/stats", root(id))
}
