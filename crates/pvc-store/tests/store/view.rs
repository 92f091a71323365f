//! A daemon's view: its content, its delay, and its cost.

use pvc_model::hold::{Purpose, VolumeHold};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_that_takes_its_time_holds_up_no_view() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    let (path, runtime) = (format!("/domains/{UUID}/profile"), tokio::runtime::Handle::current());
    let (store, tree) = (world.store.clone(), world.tree.connect());
    let seen = AtomicU32::new(0);
    let decide = |_: &Cluster| {
        // Somebody else writes, and this process shows it, before the decision is taken.
        let set = Op::Set { path: path.clone(), data: Bytes::from_static(b"other"), version: None };
        tokio::task::block_in_place(|| {
            runtime.block_on(async {
                tree.multi(vec![set]).await.expect("writable");
                let other = || store.view().vms[&UUID].profile.as_deref() == Some("other");
                eventually("the view shows what another wrote", Duration::from_secs(20), other)
                    .await;
            });
        });
        seen.fetch_add(1, Ordering::SeqCst);
        let mut changes = Changes::new();
        changes.vm(UUID, VmChange::Autostart(false));
        Ok::<_, std::convert::Infallible>((changes, ()))
    };
    world.store.change(decide).await.expect("nobody else wrote the same key");
    assert_eq!(seen.into_inner(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_outage_counts_from_its_begin_until_the_connection_is_back() {
    let connection = FlakyTree::new(EmbeddedTree::in_memory().connect());
    let store = Store::open(
        connection.clone(),
        Arc::new(TokioClock::new()),
        Arc::new(SeededRandom::new(1)),
    );
    let store = store.await.expect("reachable");
    assert_eq!(store.outage(), None);
    connection.cut();
    tokio::task::yield_now().await;
    tokio::time::advance(Duration::from_secs(4)).await;
    tokio::task::yield_now().await;
    connection.expire();
    tokio::time::advance(Duration::from_secs(4)).await;
    tokio::task::yield_now().await;
    assert_eq!(store.outage(), Some(Duration::from_secs(8)));
    connection.mend();
    eventually("the connection is back", Duration::from_secs(1), || store.outage().is_none()).await;
}

/// Has each reading take `time`, and something change in it.
#[allow(clippy::disallowed_methods, reason = "a test waits, in paused time")]
fn slow(connection: Arc<FlakyTree>, writer: Store, time: Duration) {
    let again = connection.clone();
    connection.before_next_read(async move {
        tokio::time::sleep(time).await;
        let decide = |cluster: &Cluster| {
            let mut changes = Changes::new();
            changes.config(ConfigChange::Maintenance(!cluster.config.maintenance));
            Ok::<_, std::convert::Infallible>((changes, ()))
        };
        writer.change(decide).await.expect("it is reached");
        slow(again, writer, time);
    });
}

/// Found by the simulation: a node saw nothing for minutes, and seemed to be well.
#[tokio::test(start_paused = true)]
async fn a_server_that_answers_late_in_a_busy_cluster_shows_what_there_was_in_half_a_minute() {
    let world = cluster().await;
    let connection = FlakyTree::new(world.tree.connect());
    let random = Arc::new(SeededRandom::new(9));
    let clock = Arc::new(TokioClock::new());
    let late = Store::open(connection.clone(), clock, random).await.expect("reachable");
    slow(connection, world.other.clone(), Duration::from_secs(5));
    define(&world.store, new_vm("web1", UUID)).await;
    let is_shown = || late.view().vms.contains_key(&UUID);
    eventually("the view shows the VM", Duration::from_secs(30), is_shown).await;
}

/// Sets two keys in one change, which is announced before anything is answered that shows a part of
/// it.
async fn set_maintenance_and_primary(tree: Arc<dyn pvc_ports::Tree>) {
    let set = |path: &str, data: &'static str| Op::Set {
        path: path.into(),
        data: data.into(),
        version: None,
    };
    let both = vec![set("/config/maintenance", "true"), set("/config/primary_node", "hv1")];
    tree.multi(both).await.expect("nobody else writes");
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Found by a story: of two keys that were changed at once the one was read and the other was not,
/// and who decided on the new version of the first promised the same memory twice.
#[tokio::test]
async fn no_change_is_shown_by_half() {
    let world = cluster().await;
    let tree = FlakyTree::new(world.tree.connect());
    let clock = Arc::new(TokioClock::new());
    let store =
        Store::open(tree.clone(), clock, Arc::new(SeededRandom::new(8))).await.expect("readable");
    let mut changed = store.changed();
    let other = world.tree.connect();
    tree.before_next_read(set_maintenance_and_primary(other));
    write_raw(&world, "/config/maintenance", b"false").await;
    while !store.view().config.maintenance {
        changed.changed().await.expect("the store is open");
    }
    assert_eq!(store.view().config.primary, Some("hv1".into()));
}

/// A server that answers after 11 s is waited for no longer.
#[tokio::test(start_paused = true)]
#[allow(clippy::disallowed_methods, reason = "a test waits, in paused time")]
async fn who_decides_on_half_of_a_change_is_refused_and_decides_on_the_whole() {
    let world = cluster().await;
    let tree = FlakyTree::new(world.tree.connect());
    let clock = Arc::new(TokioClock::new());
    let store =
        Store::open(tree.clone(), clock, Arc::new(SeededRandom::new(8))).await.expect("readable");
    let mut changed = store.changed();
    let other = world.tree.connect();
    tree.before_next_read(async move {
        tokio::time::sleep(Duration::from_secs(11)).await;
        set_maintenance_and_primary(other).await;
    });
    write_raw(&world, "/config/maintenance", b"false").await;
    while !store.view().config.maintenance {
        changed.changed().await.expect("the store is open");
    }
    let mut seen = Vec::new();
    let decide = |cluster: &Cluster| {
        seen.push(cluster.config.primary.clone());
        let mut changes = Changes::new();
        changes.config(ConfigChange::Maintenance(false)).expect(Expect::Primary);
        Ok::<_, std::convert::Infallible>((changes, ()))
    };
    store.change(decide).await.expect("it is decided anew");
    assert_eq!(seen, [None, Some(NodeName::new("hv1"))]);
}

async fn add_node(store: &Store) -> NodeName {
    change(store, |changes| {
        changes.push(Change::AddNode(Box::new(new_node("hv1"))));
    })
    .await;
    "hv1".into()
}

#[tokio::test]
async fn a_stamp_and_the_figures_after_it_cost_another_daemon_one_read() {
    let world = cluster().await;
    let hv1 = add_node(&world.store).await;
    let tree = FlakyTree::new(world.tree.connect());
    let clock = Arc::new(TokioClock::new());
    let watching =
        Store::open(tree.clone(), clock, Arc::new(SeededRandom::new(8))).await.expect("readable");
    let before = tree.requests();
    world.store.stamp(&hv1, 1_700_000_123).await.expect("the node is there");
    let figures = NodeFigures { domains: 7, ..NodeFigures::default() };
    world
        .store
        .report(vec![Report::Figures(hv1.clone(), figures)])
        .await
        .expect("the node is there");
    eventually("the figures are seen", Duration::from_secs(5), || {
        watching.view().nodes[&hv1].figures.domains == 7
    })
    .await;
    assert_eq!(watching.view().nodes[&hv1].keepalive, 1_700_000_123);
    assert_eq!(tree.requests() - before, 1);
}

#[tokio::test(start_paused = true)]
async fn a_stamp_that_nothing_follows_is_seen_soon() {
    let world = cluster().await;
    let hv1 = add_node(&world.store).await;
    world.other.fresh().await.expect("readable");
    let begin = tokio::time::Instant::now();
    world.store.stamp(&hv1, 1_700_000_123).await.expect("the node is there");
    let seen = || world.other.view().nodes[&hv1].keepalive == 1_700_000_123;
    eventually("the stamp is seen", Duration::from_secs(5), seen).await;
    assert!(begin.elapsed() < Duration::from_millis(500));
}

#[tokio::test]
async fn a_store_of_jobs_has_jobs_and_workers_in_view_and_all_else_when_that_is_asked_for() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    let hv1 = add_node(&world.store).await;
    let tree = FlakyTree::new(world.tree.connect());
    let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(8)));
    let jobs = Store::open_jobs(tree.clone(), clock, random).await.expect("readable");
    assert!(jobs.is_initialized() && jobs.check_layout().is_ok());
    assert!(jobs.view().vms.is_empty() && jobs.view().nodes.is_empty());

    let before = tree.requests();
    world.store.stamp(&hv1, 1_700_000_123).await.expect("the node is there");
    change(&world.store, |changes| _ = changes.vm(UUID, VmChange::Autostart(true))).await;
    let worker = WorkerRecord { kinds: ["rename_vm".to_owned()].into() };
    jobs.announce_worker(&hv1, &worker).await.expect("the tree is writable");
    assert_eq!(jobs.view().workers.keys().collect::<Vec<_>>(), [&hv1]);
    assert_eq!(tree.requests() - before, 2, "of the others nothing was read");

    let whole = jobs.whole().await.expect("readable");
    assert!(whole.view().vms[&UUID].autostart && whole.view().nodes[&hv1].keepalive > 0);
    let autostart = |changes: &mut Changes| _ = changes.vm(UUID, VmChange::Autostart(false));
    change(&whole, autostart).await;
    assert!(jobs.view().vms.is_empty());

    // What scripts have mapped is let go of by workers.
    let volume = VolumeId::parse("vms/a").expect("well formed");
    let hold = VolumeHold { volume, purpose: Purpose::Shrink(1), by: "somebody".to_owned() };
    change(&whole, |changes| _ = changes.push(Change::HoldVolume(hold.clone()))).await;
    let view = jobs.fresh().await.expect("readable");
    assert!(!view.holds.is_empty() && view.vms.is_empty());
}

#[tokio::test]
#[should_panic(expected = "what is not in view would be taken for absent")]
async fn nothing_is_decided_on_a_view_of_jobs_alone() {
    let world = cluster().await;
    let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(8)));
    let jobs = Store::open_jobs(world.tree.connect(), clock, random).await.expect("readable");
    change(&jobs, |changes| _ = changes.push(Change::RemoveJob(JobId::from_bits(1)))).await;
}
