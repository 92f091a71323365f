//! Events, jobs and faults, and locks of VMs.

use super::*;

#[tokio::test]
async fn events_tell_what_changed_and_continue_from_a_cursor() {
    let world = cluster().await;
    let mut feed = world.store.events(None);
    define(&world.store, new_vm("web1", UUID)).await;
    let event = feed.next().await.expect("open");
    assert_eq!((event.what, event.gone), (EventKind::Vm(UUID), false));
    change(&world.store, |changes| {
        changes.push(Change::RemoveVm(UUID));
    })
    .await;
    let mut resumed = world.store.events(Some(event.revision));
    let event = resumed.next().await.expect("open");
    assert_eq!((event.what, event.gone), (EventKind::Vm(UUID), true));
    let mut stale = world.store.events(Some(0));
    assert_eq!(stale.next().await.expect("open").what, EventKind::Reset);
}

#[tokio::test]
async fn the_age_of_what_the_storage_says_is_shown_and_announced_to_nobody() {
    let world = cluster().await;
    let mut feed = world.store.events(None);
    let record = AnsweredRecord {
        by: "hv1".into(),
        at: BTreeMap::from([(Question::Status, 7)]),
        silent: BTreeSet::new(),
    };
    let report = vec![Report::StorageAnswered(record.clone())];
    world.store.report(report).await.expect("reachable");
    let shown = world.store.fresh().await.expect("reachable").answered.clone();
    assert_eq!(shown.as_deref(), Some(&record));
    define(&world.store, new_vm("web1", UUID)).await;
    assert_eq!(feed.next().await.expect("open").what, EventKind::Vm(UUID), "it is the first");
}

/// A server of ZooKeeper without a `jute.maxbuffer` of its own closes the connection over a request
/// of more than a mebibyte.
#[tokio::test]
async fn the_consoles_of_a_node_are_written_in_requests_that_every_server_takes() {
    let world = cluster().await;
    let vms: Vec<Uuid> = (1..=64).map(Uuid::from_u128).collect();
    for vm in &vms {
        define(&world.store, new_vm(&format!("vm{}", vm.as_u128()), *vm)).await;
    }
    let tree = FlakyTree::new(world.tree.connect());
    tree.limit_requests(0xf_ffff);
    let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(8)));
    let store = Store::open(tree, clock, random).await.expect("readable");
    let text = "x".repeat(256 << 10);
    let console = |vm: &Uuid| Report::ConsoleLog(*vm, text.clone());
    store.report(vms.iter().map(console).collect()).await.expect("nothing is too large");
    for vm in vms {
        let recorded = store.console_log(vm).await.expect("still connected");
        assert!(recorded.as_ref() == Some(&text), "of {vm}");
    }
}

#[tokio::test]
async fn events_are_kept_once_somebody_wants_them() {
    let world = cluster().await;
    let begun = world.store.view().revision;
    define(&world.store, new_vm("web1", UUID)).await;
    let mut late = world.store.events(Some(begun));
    assert_eq!(late.next().await.expect("open").what, EventKind::Reset);
    // Somebody has read by now: the next one may come late.
    let begun = world.store.view().revision;
    change(&world.store, |changes| {
        changes.push(Change::RemoveVm(UUID));
    })
    .await;
    let mut late = world.store.events(Some(begun));
    assert_eq!(late.next().await.expect("open").what, EventKind::Vm(UUID));
}

#[tokio::test]
async fn a_job_is_claimed_by_one_worker_only_and_let_go_with_its_session() {
    let world = cluster().await;
    let id = JobId::from_bits(0xdead_beef);
    let spec = JobSpec {
        id: id.clone(),
        work: JobWork::FlushLocks { vm: JobVm { name: "web1".into(), uuid: Some(UUID) } },
        node: "hv1".into(),
        run_on: "primary".into(),
        submitter: "cli".into(),
        submitted_at: 1,
    };
    change(&world.store, |changes| {
        changes.push(Change::SubmitJob(spec.clone()));
    })
    .await;
    let claim = world.store.claim_job(&id).await.expect("reachable").expect("free");
    assert!(world.other.claim_job(&id).await.expect("reachable").is_none());
    let done = JobProgress {
        state: JobState::Succeeded,
        current: 2,
        total: 2,
        status: "done".into(),
        ..JobProgress::pending()
    };
    change(&world.store, |changes| {
        changes
            .push(Change::JobProgress(id.clone(), done.clone()))
            .push(Change::CancelJob(id.clone()));
    })
    .await;
    let view = world.other.fresh().await.expect("readable");
    let job = &view.jobs[&id];
    assert_eq!(
        (&job.spec, &job.progress, job.cancel_requested, job.claim),
        (&spec, &done, true, Some(claim.id()))
    );
    claim.release().await;
    world.store.claim_job(&id).await.expect("reachable").expect("free again");
    world.store.tree().close().await;
    assert!(world.other.claim_job(&id).await.expect("reachable").is_some());
}

/// Found by the simulation: the claim stayed for as long as its worker lived, and nobody else could
/// have the job.
#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_be_released_now_is_released_later() {
    let world = cluster().await;
    let id = JobId::from_bits(7);
    let spec = JobSpec {
        id: id.clone(),
        work: JobWork::FlushLocks { vm: JobVm { name: "web1".into(), uuid: Some(UUID) } },
        node: "hv1".into(),
        run_on: "hv1".into(),
        submitter: "cli".into(),
        submitted_at: 1,
    };
    change(&world.store, |changes| _ = changes.push(Change::SubmitJob(spec.clone()))).await;
    for lose in [FlakyTree::lose_next_multi, FlakyTree::lose_next_answer] {
        let tree = FlakyTree::new(world.tree.connect());
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(8)));
        let store = Store::open(tree.clone(), clock, random).await.expect("readable");
        let claim = store.claim_job(&id).await.expect("reachable").expect("free");
        lose(&tree);
        claim.release().await;
        let claim = world.other.claim_job(&id).await.expect("reachable").expect("free again");
        claim.release().await;
    }
}

#[tokio::test]
async fn a_job_that_was_begun_already_is_seen_with_its_claim_until_that_goes_with_the_session() {
    let world = cluster().await;
    let id = JobId::from_bits(7);
    let volume = VolumeId::parse("vms/data").expect("it is one");
    let spec = JobSpec {
        id: id.clone(),
        work: JobWork::Upload { volume },
        node: "hv1".into(),
        run_on: "hv1".into(),
        submitter: "cli".into(),
        submitted_at: 1,
    };
    let gone = Transferred { bytes: 7, of: Some(70), bytes_per_second: None };
    let begun = JobProgress::of_transfer("hv1".into(), 1, gone);
    let claim = world.store.submit_claimed(&spec, &begun).await.expect("reachable").expect("new");
    assert_eq!(world.store.view().jobs[&id].claim, Some(claim.id()), "it is in view at once");
    let job = world.other.fresh().await.expect("readable").jobs[&id].clone();
    assert_eq!((&job.spec, &job.progress, job.claim), (&spec, &begun, Some(claim.id())));
    assert!(world.other.claim_job(&id).await.expect("reachable").is_none());
    let again = world.other.submit_claimed(&spec, &begun).await.expect("reachable");
    assert!(again.is_none(), "there is one of that name");
    world.store.tree().close().await;
    let job = world.other.fresh().await.expect("readable").jobs[&id].clone();
    assert_eq!((job.progress.state, job.claim), (JobState::Running, None));
}

/// Found by a seed: a daemon that had stood still locked a VM that was removed meanwhile, and half
/// of its record was back.
#[tokio::test]
async fn a_lock_of_a_vm_that_was_removed_does_not_bring_back_half_of_it() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    world.other.fresh().await.expect("reachable");
    change(&world.store, |changes| {
        changes.push(Change::RemoveVm(UUID));
    })
    .await;
    for store in [&world.other, &world.store] {
        let locks = store.move_locks(UUID);
        assert!(locks.turn(Some(Duration::from_secs(1))).await.is_err());
        assert!(locks.record(Duration::from_secs(1)).await.is_err());
        let _ = locks.say_receiving(true).await; // nobody is to hear it
    }
    assert_eq!(raw(&world, &format!("/domains/{UUID}")).await, None);
}

#[tokio::test]
async fn faults_are_written_acknowledged_and_removed() {
    let world = cluster().await;
    let fault = FaultRecord {
        id: "VM_CRASHLOOP_WEB1".into(),
        first_reported: "2026-11-20 10:00:00".into(),
        last_reported: "2026-11-20 10:00:00".into(),
        acknowledged_at: String::new(),
        acknowledged: false,
        delta: 10,
        message: "web1 keeps dying".into(),
    };
    change(&world.store, |changes| {
        changes.push(Change::PutFault(fault.clone()));
    })
    .await;
    assert_eq!(*world.store.view().faults["VM_CRASHLOOP_WEB1"], fault);
    change(&world.store, |changes| {
        changes.push(Change::AckFault { id: fault.id.clone(), at: "2026-11-20 11:00:00".into() });
    })
    .await;
    assert!(world.store.view().faults[&fault.id].acknowledged);
    change(&world.store, |changes| {
        changes.push(Change::RemoveFault(fault.id.clone()));
    })
    .await;
    assert!(world.other.fresh().await.expect("readable").faults.is_empty());
}

/// Figures come every few seconds from every node, and most are those of before.
#[tokio::test]
async fn what_is_reported_as_it_was_is_not_written_again() {
    let world = cluster().await;
    let (path, tree) = ("/ceph/util", world.store.tree());
    let version =
        async || tree.get(path).await.expect("reachable").expect("it is there").stat.version;
    let report = async |text: &str| {
        let (usage, status) =
            (Report::StorageUsage(text.to_owned()), Report::StorageStatus("HEALTH_OK".to_owned()));
        world.store.report(vec![usage, status]).await.expect("reachable");
        world.store.fresh().await.expect("reachable");
    };
    let before = version().await;
    report("10% used").await;
    let (once, zxid) = (version().await, tree.get("/ceph").await.unwrap().unwrap().stat.mzxid);
    assert_eq!(once, before + 1);
    report("10% used").await;
    assert_eq!(version().await, once, "the same is not written twice");
    report("11% used").await;
    assert_eq!(version().await, once + 1);
    let status = tree.get("/ceph").await.unwrap().unwrap().stat;
    assert_eq!(status.mzxid, zxid, "what stays beside it is not written either");
}

#[tokio::test]
async fn what_is_reported_twice_at_once_is_what_was_said_last() {
    let world = cluster().await;
    for at in [7, 8] {
        let at = BTreeMap::from([(Question::Status, at)]);
        let record = AnsweredRecord { by: "hv1".into(), at, silent: BTreeSet::new() };
        world.store.report(vec![Report::StorageAnswered(record)]).await.expect("reachable");
    }
    let shown = world.store.fresh().await.expect("reachable").answered.clone();
    assert_eq!(shown.expect("it is recorded").at, BTreeMap::from([(Question::Status, 8)]));
}
