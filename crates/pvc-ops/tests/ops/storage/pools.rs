//! Pools with all that is in them.

use super::*;

#[tokio::test]
async fn a_record_begins_no_cluster() {
    let tree = EmbeddedTree::in_memory().connect();
    let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
    let store = Store::open(tree, clock, random).await.unwrap();
    let volumes = MemoryStorage::new();
    volumes.insert("vms/a");
    storage::record_volume(&store, &volumes, &id("vms/a")).await.unwrap_err();
    assert!(store.view().pools.is_empty());
}

#[tokio::test]
async fn a_pool_that_was_made_and_not_recorded_is_recorded_by_the_next_ask() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    let fast = spec("fast", 3);
    volumes.cluster().unwrap().make_pool(&fast).await.unwrap();
    storage::create_pool(store, volumes, &fast).await.unwrap();
    let record = store.view().pools[&fast.name].clone();
    assert_eq!((record.pgs.as_str(), record.tier.as_str()), ("16", "ssd"));
    storage::create_pool(store, volumes, &fast).await.unwrap_err();
    let one = storage::create_pool(store, volumes, &spec("risky", 1)).await.unwrap_err();
    assert!(one.to_string().contains("`copies=1`"), "{one}");

    storage::set_placement_groups(store, volumes, &fast.name, 64).await.unwrap();
    assert_eq!(store.view().pools[&fast.name].pgs, "64");
    assert_eq!(store.view().pools[&fast.name].tier, "ssd", "the rest of it stays");
    let odd = storage::set_placement_groups(store, volumes, &fast.name, 100).await.unwrap_err();
    let why = "100 placement groups are no power of two; 64 and 128 are";
    assert!(odd.to_string().contains(why), "{odd}");
    assert_eq!(store.view().pools[&fast.name].pgs, "64", "it stays as it is");
    let none = storage::set_placement_groups(store, volumes, &PoolName::new("none"), 64).await;
    assert!(none.unwrap_err().to_string().contains("there is no pool `none`"));
}

/// The slower one recorded its number, and Ceph had that of the other: also where that was the one
/// of before, as it is of an operator who takes back a mistake.
#[tokio::test]
async fn of_two_numbers_of_placement_groups_at_once_the_one_that_ceph_has_is_recorded() {
    let before = spec("fast", 3).placement_groups;
    for of_faster in [128, before] {
        let world = world().await;
        let volumes = &world.storage;
        let fast = spec("fast", 3);
        storage::create_pool(&world.store, volumes, &fast).await.unwrap();
        let (slow, connection) = world.slow_process().await;
        let (tell, is_about_to_record) = tokio::sync::oneshot::channel();
        let (go, may_record) = tokio::sync::oneshot::channel();
        connection.before_next_multi(async move {
            tell.send(()).unwrap();
            may_record.await.unwrap();
        });
        let faster = async {
            is_about_to_record.await.unwrap();
            let (store, pool) = (&world.store, &fast.name);
            storage::set_placement_groups(store, volumes, pool, of_faster).await.unwrap();
            go.send(()).unwrap();
        };
        let slower = storage::set_placement_groups(&slow, volumes, &fast.name, 64);
        let (set, ()) = tokio::join!(slower, faster);
        set.unwrap();
        let recorded = world.store.fresh().await.unwrap().pools[&fast.name].pgs.clone();
        let of_ceph = |known: &PoolSpec| known.placement_groups;
        let has = volumes.with_volumes(|volumes| volumes.spec(&fast.name).map(of_ceph));
        assert_eq!((recorded.as_str(), has), ("64", Some(64)), "after {of_faster}");
    }
}

#[tokio::test]
async fn a_pool_that_is_gone_and_still_recorded_goes_with_the_next_ask() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    volumes.remove(&id("vms/web1_sda")).await.unwrap();
    volumes.remove_pool(&vms()).await.unwrap();
    assert_eq!(removed_pool(store, volumes).await, (0, 0));
    let view = store.view();
    assert!(view.pools.is_empty() && view.volumes.is_empty(), "{view:?}");
}

#[tokio::test]
async fn a_pool_of_many_volumes_goes_with_all_their_records() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    for number in 0..120 {
        let volume = id(&format!("vms/many{number}"));
        storage::create_volume(store, volumes, &volume, 4096, false).await.unwrap();
    }
    assert_eq!(removed_pool(store, volumes).await, (121, 0));
    assert!(store.view().volumes.is_empty() && store.view().pools.is_empty());
    assert!(volumes.pools().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_pool_with_a_volume_that_cannot_go_says_how_far_it_came_and_is_removed_later() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    storage::create_volume(store, volumes, &id("vms/a"), 4096, false).await.unwrap();
    volumes.with_volumes(|volumes| volumes.open(&id("vms/web1_sda"), "somebody"));
    let left =
        storage::remove_pool(store, volumes, &vms(), false, &Course::default()).await.unwrap_err();
    assert!(left.to_string().contains("`vms/web1_sda` could not be removed"), "{left}");
    assert_eq!(world.recorded(), ["vms/web1_sda"], "what is gone is not recorded any more");
    volumes.with_volumes(|volumes| volumes.close_all("somebody"));
    assert_eq!(removed_pool(store, volumes).await, (1, 0));
}

/// By name a volume comes before the clones that stand on it; and one in the trash still does.
#[tokio::test]
async fn a_pool_goes_with_clones_and_what_they_stand_on_wherever_they_are() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    for name in ["a1", "a2"] {
        let base = if name == "a1" { "web1_sda" } else { "a1" };
        let base = id(&format!("vms/{base}"));
        let clone = VolumeName::new(name);
        storage::clone_volume(store, volumes, &base, &clone, ON_WRITE, false, &Course::default())
            .await
            .unwrap();
    }
    storage::create_volume(store, volumes, &id("vms/b"), 4096, false).await.unwrap();
    let clone = VolumeName::new("z");
    storage::clone_volume(
        store,
        volumes,
        &id("vms/b"),
        &clone,
        ON_WRITE,
        false,
        &Course::default(),
    )
    .await
    .unwrap();
    // First what stands on `b`, then `a2`, which stands on `a1`, which stands on another.
    for name in ["vms/z", "vms/a2"] {
        volumes.trash(&id(name), Duration::from_secs(60)).await.unwrap();
    }
    assert_eq!(removed_pool(store, volumes).await, (3, 2));
    assert!(store.view().pools.is_empty() && store.view().volumes.is_empty());
    assert!(volumes.pools().await.unwrap().is_empty());
}

#[tokio::test]
async fn what_is_measured_or_on_its_way_is_not_removed_under_that() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    let name = "nightly".to_owned();
    for work in [
        JobWork::BenchmarkStorage { pool: vms(), name },
        JobWork::Upload { volume: id("vms/web1_sda") },
        JobWork::Download { volume: id("vms/web1_sda"), snapshot: None },
    ] {
        let request = |_: &pvc_model::cluster::Cluster| {
            let (node, run_on) = ("hv1".into(), "hv1".to_owned());
            let submitter = "a test".to_owned();
            let request = job::JobRequest { work: work.clone(), node, run_on, submitter };
            Ok::<_, std::convert::Infallible>((request, Changes::new()))
        };
        let clock = world.clock.as_ref();
        let spec = job::submit(store, clock, &world.random, request).await.unwrap();
        let refused = storage::remove_pool(store, volumes, &vms(), false, &Course::default())
            .await
            .unwrap_err();
        let said = refused.to_string();
        assert!(said.contains(&format!("task `{}` is at work in pool `vms`", spec.id)), "{said}");
        let volume = match &work {
            JobWork::BenchmarkStorage { .. } => {
                VolumeId { pool: vms(), volume: pvc_model::benchmark::volume_of(&spec.id) }
            }
            _ => id("vms/web1_sda"),
        };
        let removed = storage::remove_volume(store, volumes, &volume, DAY, true).await;
        assert!(removed.unwrap_err().to_string().contains("is at work"), "{work:?}");
        let by = pvc_model::role::Role::Operator;
        job::cancel(store, clock, spec.id.as_str(), by).await.unwrap();
    }
    assert_eq!(removed_pool(store, volumes).await, (1, 0));
}

#[tokio::test]
async fn a_pool_that_the_storage_keeps_loses_no_volume() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    volumes.with_volumes(|volumes| volumes.keep_pool(&vms()));
    let refused =
        storage::remove_pool(store, volumes, &vms(), false, &Course::default()).await.unwrap_err();
    let words = "the storage refused it while it was looking whether pool `vms` may be removed";
    assert!(refused.to_string().contains(words), "{refused}");
    assert_eq!(world.recorded(), ["vms/web1_sda"]);
    volumes.volume(&id("vms/web1_sda")).await.unwrap();
}

/// Whoever records a volume has looked at it before, and its pool may be gone since.
#[tokio::test]
async fn a_pool_that_is_removed_while_its_volume_is_made_does_not_come_back() {
    for call in 0.. {
        let (world, new) = (world().await, id("vms/new"));
        let (store, volumes) = (&world.store, &world.storage);
        let gate = Gate::closing_at(call);
        volumes.set_gate(gate.clone());
        let removed = async {
            while !gate.is_closed() {
                tokio::task::yield_now().await;
            }
            volumes.set_gate(Gate::closing_at(u64::MAX));
            removed_pool(store, volumes).await;
            gate.open();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            _ = storage::create_volume(store, volumes, &new, 4096, false) => {}
            () = removed => unreachable!("it is pending"),
        }
        if !gate.is_closed() && store.fresh().await.unwrap().pools.contains_key(&vms()) {
            // Nothing stopped it.
            assert!(call > 3, "it asks the storage more than {call} times");
            break;
        }
        assert!(world.recorded().is_empty(), "stopped at call {call}");
        let pools = &store.fresh().await.unwrap().pools;
        assert!(!pools.contains_key(&vms()), "stopped at call {call}");
    }
}
