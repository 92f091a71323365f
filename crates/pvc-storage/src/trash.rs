//! The end of volumes in the trash: the primary purges what is past its time.

use std::collections::BTreeSet;
use std::time::Duration;

use pvc_model::storage::{PoolName, TrashId};
use pvc_model::trash::{Kept, Now, TrashedVolume};
use pvc_ops::storage::is_needed;
use pvc_ports::StorageError;
use pvc_role::{Context, DeadlineError};
use tokio_util::sync::CancellationToken;

/// Time between two looks into the trash.
const EVERY: Duration = Duration::from_secs(60);

/// Time that a look may take, and a purge. Adapters have deadlines of their own; these are for
/// those that forget.
const LOOK: Duration = Duration::from_secs(600);
const PURGE: Duration = Duration::from_secs(2 * 3600);

/// Looks into the trash of all pools, until `end`.
pub async fn run(context: Context, end: CancellationToken) {
    // A purge that takes long does not hold up the end; it is safe to cut off.
    end.run_until_cancelled(watch(&context, &end)).await;
}

async fn watch(context: &Context, end: &CancellationToken) {
    let mut sweeper = Sweeper::default();
    let mut turns = context.turns(end);
    while turns.next(EVERY).await {
        match context.is_primary() {
            true => sweeper.pass(context).await,
            // Whoever is primary meanwhile sees for itself.
            false => sweeper = Sweeper::default(),
        }
    }
}

#[derive(Default)]
struct Sweeper {
    kept: Kept,
    said: Said,
}

/// Failures that were said, once, until it works again.
#[derive(Default)]
struct Said {
    pools: BTreeSet<PoolName>,
    volumes: BTreeSet<(PoolName, TrashId)>,
}

impl Sweeper {
    async fn pass(&mut self, context: &Context) {
        let pools: Vec<PoolName> = context.store.view().pools.keys().cloned().collect();
        self.said.pools.retain(|pool| pools.contains(pool));
        self.said.volumes.retain(|(pool, _)| pools.contains(pool));
        for pool in pools {
            let listed = context.in_time(LOOK, context.ports.storage.trashed(&pool)).await;
            match listed {
                Ok(trashed) => self.sweep(context, &pool, trashed).await,
                Err(error) => self.said.of_pool(&pool, &error),
            }
        }
    }

    async fn sweep(&mut self, context: &Context, pool: &PoolName, trashed: Vec<TrashedVolume>) {
        self.said.pools.remove(pool);
        let is_there = |id: &TrashId| trashed.iter().any(|entry| entry.id == *id);
        self.said.volumes.retain(|(of, id)| of != pool || is_there(id));
        let now = Now { wall: context.ports.clock.wall(), monotonic: context.now() };
        for entry in self.kept.due(pool, trashed, now) {
            // The next purge is tried whatever becomes of this one.
            let purge = async {
                match is_due_still(context, &entry).await? {
                    Due::Yes => {
                        let purged = context.ports.storage.purge(&entry.pool, &entry.id).await;
                        purged.map(|()| true)
                    }
                    Due::Needed => Ok(false),
                    Due::No => {
                        let (pool, id) = (entry.pool.clone(), entry.id.clone());
                        Err(StorageError::NoTrashed { pool, id })
                    }
                }
            };
            match context.in_time(PURGE, purge).await {
                Ok(true) => tracing::info!(
                    pool = %entry.pool, volume = %entry.name, id = %entry.id,
                    "purged a removed volume whose time was over"
                ),
                Ok(false) => self.said.of_needed(&entry),
                // It is needed, or somebody restored or purged it meanwhile.
                Err(DeadlineError::Failed(StorageError::NoTrashed { .. })) => {}
                Err(error) => self.said.of_volume(&entry, &error),
            }
        }
    }
}

/// Whether a volume is in the trash as it was when its time was found to be over: the purges
/// before it may have taken hours, in which it was restored and moved there anew. What is held may
/// be given back from the trash: its contents are replaced by others.
async fn is_due_still(context: &Context, entry: &TrashedVolume) -> Result<Due, StorageError> {
    let trashed = context.ports.storage.trashed(&entry.pool).await?;
    let view = context.store.fresh().await.map_err(|error| StorageError::Io {
        doing: "looking which volumes are held".to_owned(),
        source: std::io::Error::other(error),
    })?;
    if !trashed.contains(entry) || view.holds.contains_key(&entry.volume()) {
        return Ok(Due::No);
    }
    match is_needed(&view, context.ports.storage.as_ref(), entry).await? {
        true => Ok(Due::Needed),
        false => Ok(Due::Yes),
    }
}

/// Whether a volume that was found to be past its time is still to be purged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Yes,
    /// A VM has no other disk.
    Needed,
    No,
}

impl Said {
    fn of_pool(&mut self, pool: &PoolName, error: &DeadlineError<StorageError>) {
        if self.pools.insert(pool.clone()) {
            let error = pvc_model::with_causes(error);
            tracing::warn!(%pool, error, "the trash of a pool cannot be looked into; it is tried \
                                          again, and not said again");
        }
    }

    fn of_needed(&mut self, entry: &TrashedVolume) {
        if self.volumes.insert((entry.pool.clone(), entry.id.clone())) {
            tracing::warn!(
                pool = %entry.pool, volume = %entry.name, id = %entry.id,
                "a removed volume whose time is over is kept: a VM names it, and there is no other \
                 of its name; `pvc storage trash restore` gives it back, `pvc storage trash purge` \
                 removes it"
            );
        }
    }

    fn of_volume(&mut self, entry: &TrashedVolume, error: &DeadlineError<StorageError>) {
        if self.volumes.insert((entry.pool.clone(), entry.id.clone())) {
            let error = pvc_model::with_causes(error);
            tracing::warn!(
                pool = %entry.pool, volume = %entry.name, id = %entry.id, error,
                "a removed volume whose time is over cannot be purged; it is tried again, and not \
                 said again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pvc_embedded::EmbeddedTree;
    use pvc_model::hold::{Purpose, VolumeHold};
    use pvc_model::node::{CoordinatorState, NodeRole};
    use pvc_model::storage::VolumeId;
    use pvc_model::vm::VmState;
    use pvc_model::{NodeName, Uuid};
    use pvc_ports::{Ports, Storage};
    use pvc_store::{Change, Changes, Ipmi, NewNode, NewVm, NodeChange, Store};
    use pvc_testkit::{MemoryStorage, SeededRandom, TokioClock, ports};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn vms() -> PoolName {
        PoolName::new("vms")
    }

    /// A node with the pool `vms`, as a coordinator in this state.
    async fn node(state: CoordinatorState) -> (Context, Arc<MemoryStorage>) {
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let tree = EmbeddedTree::in_memory().connect();
        let store = Store::open(tree, clock.clone(), random.clone()).await.unwrap();
        store.initialize(false).await.unwrap();
        let storage = Arc::new(MemoryStorage::new());
        let ports = Ports { storage: storage.clone(), clock, random, ..ports() };
        let context = Context::new(NodeName::new("hv1"), ports, store);
        let new = NewNode {
            name: context.name().clone(),
            role: NodeRole::Coordinator,
            cpus: 8,
            kernel: "6.1.0".into(),
            os: "GNU/Linux".into(),
            arch: "x86_64".into(),
            version: "0.2.0".into(),
            keepalive: 1,
            ipmi: Ipmi::default(),
        };
        let mut changes = Changes::new();
        let (pgs, tier) = ("0".to_owned(), "default".to_owned());
        changes.push(Change::PutPool { name: vms(), pgs, tier });
        changes.push(Change::AddNode(Box::new(new)));
        let added =
            context.store.change(|_| Ok::<_, std::convert::Infallible>((changes.clone(), ())));
        added.await.unwrap();
        part(&context, state).await;
        (context, storage)
    }

    async fn part(context: &Context, state: CoordinatorState) {
        let mut changes = Changes::new();
        changes.node(context.name(), NodeChange::Coordinator(state));
        let changed =
            context.store.change(|_| Ok::<_, std::convert::Infallible>((changes.clone(), ())));
        changed.await.unwrap();
    }

    async fn removed(storage: &MemoryStorage, volume: &str, keep: Duration) -> TrashId {
        storage.insert(volume);
        let volume = VolumeId::from_record(volume).unwrap();
        storage.trash(&volume, keep).await.unwrap().id
    }

    async fn left(storage: &MemoryStorage) -> Vec<TrashId> {
        let trashed = storage.trashed(&vms()).await.unwrap();
        trashed.into_iter().map(|entry| entry.id).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_past_its_time_is_purged_and_the_rest_is_not() {
        let (context, storage) = node(CoordinatorState::Primary).await;
        let end = CancellationToken::new();
        let task = tokio::spawn(run(context.clone(), end.clone()));
        removed(&storage, "vms/a", HOUR).await;
        let kept = removed(&storage, "vms/b", 3 * HOUR).await;
        context.sleep(HOUR - EVERY).await;
        assert_eq!(left(&storage).await.len(), 2);
        context.sleep(3 * EVERY).await;
        assert_eq!(left(&storage).await, [kept]);
        end.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_old_contents_of_a_volume_that_is_held_stay() {
        let (context, storage) = node(CoordinatorState::Primary).await;
        let old = removed(&storage, "vms/a", HOUR).await;
        let held = |hold: Change| {
            let mut changes = Changes::new();
            changes.push(hold);
            let mut changes = Some(changes);
            context.store.change(move |_| {
                Ok::<_, std::convert::Infallible>((changes.take().unwrap_or_default(), ()))
            })
        };
        let (volume, by) = (VolumeId::parse("vms/a").unwrap(), "x".to_owned());
        let hold = VolumeHold {
            volume: volume.clone(),
            purpose: Purpose::Fill { trashed: Some([].into()) },
            by,
        };
        held(Change::HoldVolume(hold)).await.unwrap();
        let mut sweeper = Sweeper::default();
        sweeper.pass(&context).await;
        context.sleep(2 * HOUR).await;
        sweeper.pass(&context).await;
        assert_eq!(left(&storage).await, [old]);
        held(Change::ReleaseVolume(volume)).await.unwrap();
        sweeper.pass(&context).await;
        assert_eq!(left(&storage).await, []);
    }

    /// A VM that is off and has the volume `vms/a`.
    fn vm_with_volume() -> NewVm {
        let uuid = Uuid::from_u128(1);
        NewVm {
            uuid,
            xml: format!(
                "<domain type='kvm'><name>web1</name><uuid>{uuid}</uuid>\
                 <memory unit='MiB'>256</memory><vcpu>2</vcpu><os><type>hvm</type></os>\
                 <devices><disk type='network'><source protocol='rbd' name='vms/a'/>\
                 <target dev='sda'/></disk></devices></domain>"
            ),
            name: "web1".to_owned(),
            state: VmState::Stop,
            node: Some(NodeName::new("hv1")),
            profile: None,
            volumes: vec![VolumeId::parse("vms/a").unwrap()],
            autostart: false,
            migration_method: None,
            max_downtime_ms: 300,
            selector: None,
            node_limit: Vec::new(),
            tags: Vec::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_only_disk_of_a_vm_that_is_recorded_again_stays() {
        let (context, storage) = node(CoordinatorState::Primary).await;
        let (a, b) = ("vms/a", "vms/b");
        let old = removed(&storage, a, HOUR).await;
        removed(&storage, b, HOUR).await;
        let mut changes = Changes::new();
        changes.push(Change::DefineVm(Box::new(vm_with_volume())));
        let defined =
            context.store.change(|_| Ok::<_, std::convert::Infallible>((changes.clone(), ())));
        defined.await.unwrap();
        let mut sweeper = Sweeper::default();
        sweeper.pass(&context).await;
        context.sleep(2 * HOUR).await;
        sweeper.pass(&context).await;
        assert_eq!(left(&storage).await, [old]);
        assert_eq!(sweeper.said.volumes.len(), 1);
        // The VM has another disk of that name since.
        storage.insert(a);
        sweeper.pass(&context).await;
        assert_eq!(left(&storage).await, []);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_restored_and_removed_again_is_kept_for_its_new_time() {
        let (context, storage) = node(CoordinatorState::Primary).await;
        let id = removed(&storage, "vms/a", HOUR).await;
        context.sleep(2 * HOUR).await;
        let stale = storage.trashed(&vms()).await.unwrap();
        let volume = VolumeId::parse("vms/a").unwrap();
        storage.restore(&vms(), &id, &volume.volume).await.unwrap();
        let anew = storage.trash(&volume, HOUR).await.unwrap();
        // Ceph's identifier of it is the same, whenever it was removed.
        let same = vec![TrashedVolume { id: anew.id.clone(), ..stale[0].clone() }];
        let mut sweeper = Sweeper::default();
        sweeper.sweep(&context, &vms(), same.clone()).await;
        context.sleep(HOUR).await;
        sweeper.sweep(&context, &vms(), same).await;
        assert_eq!(left(&storage).await, [anew.id]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_cannot_be_purged_holds_up_no_other() {
        let (context, storage) = node(CoordinatorState::Primary).await;
        let stuck = removed(&storage, "vms/a", HOUR).await;
        removed(&storage, "vms/b", HOUR).await;
        storage.with_volumes(|volumes| volumes.set_stuck(&stuck, true));
        let mut sweeper = Sweeper::default();
        sweeper.pass(&context).await;
        context.sleep(2 * HOUR).await;
        for _ in 0..2 {
            sweeper.pass(&context).await;
            assert_eq!(left(&storage).await, std::slice::from_ref(&stuck));
            assert_eq!(sweeper.said.volumes.len(), 1);
        }
        storage.with_volumes(|volumes| volumes.set_stuck(&stuck, false));
        sweeper.pass(&context).await;
        assert_eq!(left(&storage).await, []);
        sweeper.pass(&context).await;
        assert!(sweeper.said.volumes.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_is_not_primary_purges_nothing_nor_one_that_has_just_become_it() {
        let (context, storage) = node(CoordinatorState::Secondary).await;
        removed(&storage, "vms/a", HOUR).await;
        let end = CancellationToken::new();
        let task = tokio::spawn(run(context.clone(), end.clone()));
        context.sleep(3 * HOUR).await;
        assert_eq!(left(&storage).await.len(), 1);
        part(&context, CoordinatorState::Primary).await;
        context.sleep(HOUR - 2 * EVERY).await;
        assert_eq!(left(&storage).await.len(), 1, "its clock may be wrong still");
        context.sleep(4 * EVERY).await;
        assert_eq!(left(&storage).await, []);
        end.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_storage_that_does_not_answer_is_asked_again() {
        let (context, storage) = node(CoordinatorState::Primary).await;
        removed(&storage, "vms/a", HOUR).await;
        let mut sweeper = Sweeper::default();
        sweeper.pass(&context).await;
        context.sleep(2 * HOUR).await;
        storage.set_failing(true);
        sweeper.pass(&context).await;
        assert_eq!(sweeper.said.pools.len(), 1);
        storage.set_failing(false);
        sweeper.pass(&context).await;
        assert_eq!(left(&storage).await, []);
        assert!(sweeper.said.pools.is_empty());
    }
}
