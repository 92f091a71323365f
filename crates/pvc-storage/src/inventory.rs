//! Records of the volumes that belong to this machine alone. In a cluster the primary keeps them,
//! of Ceph's pools; where one machine is everything, what lies in its directory is what there is.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use pvc_model::answered::Question;
use pvc_model::cluster::Cluster;
use pvc_model::fullness::Ratios;
use pvc_model::storage::{PoolName, SnapshotName, VolumeId};
use pvc_ops::storage::snapshot_differences;
use pvc_ports::{PoolInfo, Storage, StorageError, VolumeInfo};
use pvc_role::Context;
use pvc_store::{Change, Changes, Report, snapshot_text, volume_text};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::answered::Answered;
use crate::full_faults::FullFaults;
use crate::{directory, fullness};

/// Time between two looks at the directory: volumes are also made beside the daemon.
const EVERY: Duration = Duration::from_secs(5);

/// Time that a look may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// Questions that a look answers.
const ASKED: [Question; 3] = [Question::Status, Question::Usage, Question::Pools];

/// Volumes that there are, as they are to be recorded.
struct Found {
    pools: Vec<PoolInfo>,
    volumes: BTreeMap<VolumeId, FoundVolume>,
}

/// The text of a volume's record, and those of its snapshots.
struct FoundVolume {
    text: String,
    snapshots: BTreeMap<SnapshotName, String>,
}

impl FoundVolume {
    fn new(volume: &VolumeInfo) -> Self {
        let text = |found| snapshot_text(&volume.id, found);
        let snapshots = volume.snapshots.iter().map(|found| (found.name.clone(), text(found)));
        FoundVolume { text: volume_text(volume), snapshots: snapshots.collect() }
    }
}

/// Works until `end`.
pub async fn run(context: Context, end: CancellationToken) {
    let (mut turns, mut answered) = (context.turns(&end), Answered::default());
    let mut full_faults = FullFaults::default();
    while turns.next(EVERY).await {
        let pools = pass(&context, &mut answered).await;
        full_faults.note_pools(&context, &pools).await;
    }
}

/// Looks once, and makes the records say what there is. Returns the pools, if they can be looked
/// at.
async fn pass(context: &Context, answered: &mut Answered) -> Vec<PoolInfo> {
    let (before, at) = (context.store.view(), context.ports.clock.wall().as_secs());
    let look = context.in_time(DEADLINE, look(context.ports.storage.as_ref())).await;
    let stamp = answered.note(context, at, ASKED.map(|question| (question, look.is_ok())));
    let found = match look {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(%error, "the volumes cannot be looked at");
            write(context, stamp.into_iter().collect()).await;
            return Vec::new();
        }
    };
    let recorded = context
        .store
        .change(|cluster| Ok::<_, Infallible>((differences(cluster, &before, &found), ())))
        .await;
    let stats = |pool: &PoolInfo| Report::PoolStats(pool.name.clone(), pool_stats(pool, &found));
    let texts = [
        Report::StorageStatus(directory::status(&found.pools, found.volumes.len())),
        Report::StorageUsage(directory::usage(&found.pools)),
    ];
    let stats = found.pools.iter().map(stats).chain(texts).chain(stamp).collect();
    match recorded {
        Ok(()) => write(context, stats).await,
        Err(error) => tracing::debug!(%error, "the records of the volumes could not be brought up \
                                               to date; it is tried again"),
    }
    fullness::note(context, &found.pools, async { Ok(Ratios::OF_DIRECTORY) }).await;
    found.pools
}

async fn write(context: &Context, reports: Vec<Report>) {
    if let Err(error) = context.store.report(reports).await {
        tracing::debug!(%error, "the figures of the pools could not be written");
    }
}

async fn look(storage: &dyn Storage) -> Result<Found, StorageError> {
    let pools = storage.pools().await?;
    let mut volumes = BTreeMap::new();
    for pool in &pools {
        for volume in storage.volumes(&pool.name).await? {
            volumes.insert(volume.id.clone(), FoundVolume::new(&volume));
        }
    }
    Ok(Found { pools, volumes })
}

/// Changes that make the records say what was found. A record that is not as it was `before` the
/// look is of something that may not have been there then, and stays.
fn differences(cluster: &Cluster, before: &Cluster, found: &Found) -> Changes {
    let mut changes = Changes::new();
    for pool in found.pools.iter().filter(|pool| !cluster.pools.contains_key(&pool.name)) {
        let (pgs, tier) = ("0".to_owned(), "default".to_owned());
        changes.push(Change::PutPool { name: pool.name.clone(), pgs, tier });
    }
    for (id, volume) in &found.volumes {
        let recorded = cluster.volumes.get(id).map(|record| &**record);
        if recorded.is_none_or(|record| *record.stats != *volume.text) {
            changes.push(Change::PutVolume { id: id.clone(), stats: volume.text.clone() });
        }
        snapshot_differences(&mut changes, id, recorded, &volume.snapshots);
    }
    let is_there = |pool: &PoolName| found.pools.iter().any(|found| found.name == *pool);
    // A pool that is gone takes the records of its volumes with it.
    for (id, record) in &cluster.volumes {
        let is_gone = is_there(&id.pool) && !found.volumes.contains_key(id);
        if is_gone && before.volumes.get(id) == Some(record) {
            changes.push(Change::RemoveVolume(id.clone()));
        }
    }
    for name in cluster.pools.keys().filter(|name| !is_there(name)) {
        if before.pools.contains_key(name) {
            changes.push(Change::RemovePool(name.clone()));
        }
    }
    changes
}

fn pool_stats(pool: &PoolInfo, found: &Found) -> String {
    let objects = found.volumes.keys().filter(|id| id.pool == pool.name).count();
    let total = pool.stored_bytes + pool.free_bytes;
    let used_percent = if total == 0 { 0.0 } else { pool.stored_bytes as f64 / total as f64 };
    json!({
        "id": 0,
        "stored_bytes": pool.stored_bytes,
        "free_bytes": pool.free_bytes,
        "used_bytes": pool.stored_bytes,
        "used_percent": used_percent,
        "num_objects": objects,
        "num_object_clones": 0,
        "num_object_copies": objects,
        "num_objects_missing_on_primary": 0,
        "num_objects_unfound": 0,
        "num_objects_degraded": 0,
        "read_ops": 0,
        "read_bytes": 0,
        "write_ops": 0,
        "write_bytes": 0,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pvc_embedded::EmbeddedTree;
    use pvc_model::NodeName;
    use pvc_model::answered::answered_at;
    use pvc_model::storage::{PoolRecord, VolumeRecord};
    use pvc_ports::{Ports, SnapshotInfo};
    use pvc_store::Store;
    use pvc_testkit::{MemoryStorage, SeededRandom, TokioClock, ports};

    use super::*;

    fn id(text: &str) -> VolumeId {
        VolumeId::from_record(text).expect("well formed")
    }

    fn found(volumes: &[&str]) -> Found {
        Found {
            pools: vec![PoolInfo { name: PoolName::new("vms"), stored_bytes: 1, free_bytes: 3 }],
            volumes: volumes.iter().map(|text| (id(text), bare())).collect(),
        }
    }

    fn bare() -> FoundVolume {
        FoundVolume { text: "{}".to_owned(), snapshots: BTreeMap::new() }
    }

    fn cluster(volumes: &[&str]) -> Cluster {
        let mut cluster = Cluster::default();
        let (name, text) = (PoolName::new("vms"), || "0".to_owned());
        let pool = PoolRecord { name: name.clone(), pgs: text(), tier: text(), stats: "{}".into() };
        cluster.pools.insert(name, Arc::new(pool));
        for volume in volumes {
            let record = VolumeRecord { id: id(volume), stats: "{}".into(), snapshots: vec![] };
            cluster.volumes.insert(id(volume), Arc::new(record));
        }
        cluster
    }

    /// Nothing else was recorded meanwhile.
    fn changes_to(cluster: &Cluster, found: &Found) -> Changes {
        differences(cluster, cluster, found)
    }

    #[test]
    fn what_was_recorded_during_the_look_stays() {
        let (before, now) = (cluster(&["vms/gone"]), cluster(&["vms/gone", "fast/new"]));
        let text = format!("{:?}", differences(&now, &before, &found(&["vms/kept"])));
        assert!(text.contains("gone") && !text.contains("new") && !text.contains("fast"), "{text}");
    }

    #[test]
    fn what_is_there_is_recorded_and_what_is_gone_is_not() {
        let changes = differences(
            &cluster(&["vms/gone", "vms/kept"]),
            &cluster(&["vms/gone", "vms/kept"]),
            &found(&["vms/kept", "vms/new"]),
        );
        let text = format!("{changes:?}");
        assert!(
            text.contains(
                "PutVolume { id: VolumeId { pool: PoolName(\"vms\"), volume: VolumeName(\"new\")"
            ),
            "{text}"
        );
        assert!(
            text.contains(
                "RemoveVolume(VolumeId { pool: PoolName(\"vms\"), volume: VolumeName(\"gone\")"
            ),
            "{text}"
        );
        assert!(!text.contains("kept"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_there_is_is_also_reported_in_words() {
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let store = Store::open(EmbeddedTree::in_memory().connect(), clock.clone(), random.clone())
            .await
            .unwrap();
        store.initialize(false).await.unwrap();
        let storage = Arc::new(MemoryStorage::new());
        storage.insert("vms/web1_sda");
        let ports = Ports { storage: storage.clone(), clock, random, ..ports() };
        let context = Context::new(NodeName::new("hv1"), ports, store);
        let (mut answered, now) = (Answered::default(), || context.ports.clock.wall().as_secs());
        pass(&context, &mut answered).await;
        let view = context.store.fresh().await.unwrap();
        let status = &view.config.storage_status;
        assert!(status.contains("pools:   1\n    volumes: 1\n"), "{status}");
        assert!(view.config.storage_util.contains("\nvms "), "{}", view.config.storage_util);
        assert_eq!(view.volumes.len(), 1);
        assert_eq!(answered_at(&view, Question::Usage), Some(now()));

        context.sleep(EVERY).await;
        pass(&context, &mut answered).await;
        context.sleep(EVERY).await;
        storage.set_failing(true);
        pass(&context, &mut answered).await;
        let view = context.store.fresh().await.unwrap();
        let last = Some(now() - EVERY.as_secs());
        assert_eq!(answered_at(&view, Question::Usage), last, "the last look that saw something");
        assert_eq!(view.answered.as_ref().map(|record| record.silent.len()), Some(ASKED.len()));
    }

    #[test]
    fn snapshots_are_recorded_as_they_are() {
        let snapshot =
            |name: &str, size_bytes| SnapshotInfo { name: SnapshotName::new(name), size_bytes };
        let (kept, new) = (snapshot("kept", 512), snapshot("new", 4096));
        let volume = VolumeInfo {
            id: id("vms/a"),
            size_bytes: 4096,
            used_bytes: None,
            snapshots: vec![kept.clone(), new.clone()],
        };
        let mut cluster = cluster(&["vms/a"]);
        let text = |found: &SnapshotInfo| (found.name.clone(), snapshot_text(&volume.id, found));
        let recorded = |found: Vec<(SnapshotName, String)>| {
            let snapshots = found.into_iter().map(|(name, text)| (name, text.into())).collect();
            VolumeRecord { id: id("vms/a"), stats: volume_text(&volume).into(), snapshots }
        };
        let gone = (SnapshotName::new("gone"), "{}".to_owned());
        cluster.volumes.insert(id("vms/a"), Arc::new(recorded(vec![gone, text(&kept)])));
        let mut there = found(&[]);
        there.volumes.insert(id("vms/a"), FoundVolume::new(&volume));
        let changes = format!("{:?}", changes_to(&cluster, &there));
        assert_eq!(changes.matches("PutSnapshot").count(), 1, "{changes}");
        assert!(changes.contains("SnapshotName(\"new\")"), "{changes}");
        assert_eq!(changes.matches("RemoveSnapshot").count(), 1, "{changes}");
        assert!(!changes.contains("PutVolume"), "{changes}");
        let all = recorded(vec![text(&kept), text(&new)]);
        cluster.volumes.insert(id("vms/a"), Arc::new(all));
        assert!(changes_to(&cluster, &there).is_empty());
    }

    #[test]
    fn a_second_look_changes_nothing() {
        assert!(changes_to(&cluster(&["vms/a"]), &found(&["vms/a"])).is_empty());
    }
}
