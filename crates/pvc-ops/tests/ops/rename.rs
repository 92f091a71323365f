//! VMs are renamed, and their volumes with them or not at all.

use pvc_model::role::Role;
use pvc_ops::job::Unfinished;

use super::*;

#[tokio::test]
async fn a_rename_that_cannot_be_is_no_job() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.define("db1", OTHER).await;
    for volume in ["vms/web1_sda", "vms/taken_sda"] {
        world.storage.insert(volume);
    }
    let rename = async |to: &str| refused(world.rename("web1", to).await);
    assert!(matches!(rename("shop").await, RenameRefusal::NoWorker));
    world.announce_worker("hv1").await;
    assert!(matches!(rename("a b").await, RenameRefusal::BadName(_)));
    assert!(matches!(rename("db1").await, RenameRefusal::NameTaken { .. }));
    assert!(matches!(rename("web1").await, RenameRefusal::NameTaken { .. }));
    assert!(matches!(rename("taken").await, RenameRefusal::VolumeTaken { .. }));
    world.state(VmState::Start).await;
    assert!(matches!(rename("shop").await, RenameRefusal::NotOff { .. }));
    world.state(VmState::Stop).await;
    world.storage.set_failing(true);
    assert!(matches!(rename("shop").await, RenameRefusal::Volume { .. }));
    world.storage.set_failing(false);
    assert!(matches!(refused(world.rename("none", "x").await), RenameRefusal::NoVm(_)));
    assert!(world.store.view().jobs.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_is_being_renamed_is_not_started_removed_or_renamed() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    world.define("db1", OTHER).await;
    // The VM's own node has none: it is down, or one of PVC 1.0.3.
    world.announce_worker("hv2").await;
    let started = tokio::time::Instant::now();
    let refusal = refused(world.rename("web1", "shop").await);
    assert!(
        matches!(refusal, RenameRefusal::Unfinished(job::Unfinished::GoesOn { .. })),
        "nobody works here: {refusal}"
    );
    assert!(started.elapsed() >= RENAME_TIME_LIMIT);
    let view = world.store.view();
    let job = view.jobs.values().next().unwrap();
    assert_eq!((job.spec.work.name(), job.spec.node.as_str()), ("vm.rename", "hv2"));
    let ask = StateAsk::new(StateRequest::Start, false);
    let start = refused(vm::set_state(&world.store, "web1", ask).await);
    assert_eq!(start.to_string(), "VM `web1` is being renamed to `shop`");
    let third = Uuid::from_u128(3);
    let taken = refused(vm::define(&world.store, &Define::new(xml("shop", third))).await);
    assert_eq!(taken.to_string(), "VM `web1` is being renamed to `shop`");
    let taken = refused(modify(&world, "db1", &xml("shop", OTHER), false).await);
    assert_eq!(taken.to_string(), "VM `web1` is being renamed to `shop`");
    refused(vm::remove(&world.store, world.clock.as_ref(), Some(world.volumes()), "web1").await);
    assert!(matches!(refused(world.rename("web1", "other").await), RenameRefusal::BeingRenamed(_)));
    // Nobody has begun it: it ends at once.
    let (id, by) = (job.spec.id.as_str(), Role::Operator);
    job::cancel(&world.store, world.clock.as_ref(), id, by).await.unwrap();
    vm::set_state(&world.store, "web1", ask).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_for_a_rename_hears_how_it_ends() {
    let failure = |kind| Failure { kind, why: "it is away".into(), hint: Some("wait".into()) };
    let ended = |state, failure| {
        let ended = JobProgress::pending().ended(state, "over", 1);
        JobProgress { failure, ..ended }
    };
    let stuck = JobProgress {
        state: JobState::Running,
        trouble: Some(failure(Kind::Unavailable)),
        ..JobProgress::pending()
    };
    for (progress, wanted) in [
        (ended(JobState::Succeeded, None), None),
        (
            ended(JobState::Failed, Some(failure(Kind::Conflict))),
            Some((Kind::Conflict, "it is away")),
        ),
        (
            ended(JobState::Cancelled, None),
            Some((Kind::Conflict, "the renaming of VM `web1` was cancelled")),
        ),
        (stuck, Some((Kind::Unavailable, "the renaming of VM `web1` cannot go on: it is away"))),
    ] {
        let world = World::with_nodes(&["hv1"]).await;
        world.define("web1", UUID).await;
        world.announce_worker("hv1").await;
        let worker = async {
            let submitted = || world.store.view().jobs.keys().next().cloned();
            let limit = Duration::from_secs(10);
            let id = pvc_testkit::eventually_some("there is a job", limit, submitted).await;
            world
                .write(|changes| {
                    changes.push(Change::JobProgress(id.clone(), progress.clone()));
                })
                .await;
        };
        let (outcome, ()) = tokio::join!(world.rename("web1", "shop"), worker);
        let said = outcome.map(|renamed| renamed.to).map_err(|error| match error {
            ChangeError::Refused(refusal) => (refusal.kind(), refusal.to_string()),
            other => panic!("{other}"),
        });
        match wanted {
            None => assert_eq!(said.unwrap(), "shop"),
            Some((kind, why)) => assert_eq!(said.unwrap_err(), (kind, why.to_owned())),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_for_a_rename_hears_that_it_goes_on_when_the_store_is_closed() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.announce_worker("hv1").await;
    let (connection, own) = (world.tree.connect(), Arc::new(SeededRandom::new(4)));
    let store = Store::open(connection.clone(), world.clock.clone(), own).await.unwrap();
    let ask = vm::Rename { vm: "web1".into(), to: "shop".into(), submitter: "tests".into() };
    let (clock, random, storage) = (world.clock.as_ref(), &world.random, &world.storage);
    let renamed = vm::rename(&store, clock, random, storage, &ask, RENAME_TIME_LIMIT);
    let closing = async {
        let is_submitted = || !world.store.view().jobs.is_empty();
        let limit = Duration::from_secs(10);
        pvc_testkit::eventually("there is a job", limit, is_submitted).await;
        connection.close().await;
    };
    let (renamed, ()) = tokio::join!(renamed, closing);
    let error = renamed.expect_err("nobody has done it");
    let ChangeError::Refused(RenameRefusal::Unfinished(unfinished)) = &error else {
        panic!("{error}");
    };
    assert!(matches!(unfinished, Unfinished::GoesOn { .. }), "{error}");
}
