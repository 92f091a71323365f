//! Pools of Ceph: `/ceph/pools/{pool}` (`spec/zookeeper.md` §4.5). The containers of a pool's
//! volumes and snapshots come and go with it.

use pvc_model::storage::{PoolName, PoolRecord};

use super::{Keys, Kind, PLAIN, fullness, hold, show, snapshot_usage, volume};
use crate::draft::Draft;
use crate::feed::EventKind;
use crate::raw::Raw;
use crate::reader::Reader;
use crate::store::Store;

const ROOT: &str = "/ceph/pools";

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT],
    base: &[(ROOT, "")],
    keys: KEYS,
    record: |key| key.first().map(str::to_owned),
    read: |raw, _, name| {
        let event = EventKind::Pool(name.to_owned());
        show(|view| &mut view.pools, PoolName::new(name), read(raw, name), event)
    },
    is_observed: |key| matches!(key.below, [_, "stats", "", _]),
    is_for_scripts: |_| true,
    ..PLAIN
};

/// The keys below a pool's root.
const KEYS: Keys = &[("pgs", ""), ("tier", "default"), ("stats", "{}")];

pub(crate) fn root(name: &str) -> String {
    format!("{ROOT}/{name}")
}

fn read(raw: &Raw, name: &str) -> Option<PoolRecord> {
    let root = root(name);
    if !raw.contains(&root) {
        return None;
    }
    let mut r = Reader::new(raw, &root);
    Some(PoolRecord {
        name: PoolName::new(name),
        pgs: r.text("pgs"),
        tier: r.text("tier"),
        stats: r.shared("stats"),
    })
}

/// Writes the pool, new or not; a new one gets empty statistics.
pub(crate) fn put(draft: &mut Draft<'_>, name: &PoolName, pgs: &str, tier: &str) {
    let root = root(name.as_str());
    draft.ensure(&root);
    for container in volume::containers(name) {
        draft.ensure(&container);
    }
    draft.put(format!("{root}/pgs"), pgs.to_owned());
    draft.put(format!("{root}/tier"), tier.to_owned());
    if !draft.seen().contains(&stats(name)) {
        draft.put(stats(name), "{}");
    }
}

/// Removes the pool with the records of its volumes and their snapshots, of how full it was, and of
/// what its snapshots hold.
pub(crate) fn remove(draft: &mut Draft<'_>, name: &PoolName) {
    for container in volume::containers(name).iter().rev() {
        draft.delete(container);
    }
    draft.delete(&root(name.as_str()));
    fullness::remove(draft, name);
    snapshot_usage::remove(draft, name);
    hold::remove_of_pool(draft, name);
}

/// The key of the statistics, JSON text.
pub(crate) fn stats(name: &PoolName) -> String {
    format!("{}/stats", root(name.as_str()))
}

impl Store {
    /// Returns the transaction that last wrote the pool's number of placement groups, as far as it
    /// is in view. Whoever writes the same number again is another one; `None` without the pool.
    pub fn placement_groups_written(&self, pool: &PoolName) -> Option<i64> {
        let path = format!("{}/pgs", root(pool.as_str()));
        self.with_raw(|raw| raw.get(&path).map(|node| node.mzxid))
    }
}
