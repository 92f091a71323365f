//! Nodes are flushed and made ready, and the primary role is handed on.

use pvc_model::fence::WATCH;
use pvc_model::node::removal::{NotRemoved, References};
use pvc_ops::node::Removal;
use pvc_ports::Clock;

use super::*;

#[tokio::test]
async fn a_node_is_flushed_and_made_ready_once() {
    let world = World::with_nodes(&["hv1"]).await;
    let ask = |request| node::set_domain_state(&world.store, "hv1", request);
    assert_eq!(ask(DomainRequest::Ready).await.unwrap(), Requested::Already);
    assert_eq!(ask(DomainRequest::Flush).await.unwrap(), Requested::Yes);
    assert_eq!(ask(DomainRequest::Flush).await.unwrap(), Requested::UnderWay);
    world.store.announce_daemon(&"hv1".into(), "test").await.unwrap();
    assert_eq!(ask(DomainRequest::Ready).await.unwrap(), Requested::Yes);
    assert_eq!(ask(DomainRequest::Ready).await.unwrap(), Requested::UnderWay);
    assert_eq!(world.store.view().nodes["hv1"].domain_state, DomainState::Unflush);
    let unknown = refused(node::set_domain_state(&world.store, "hv9", DomainRequest::Flush).await);
    assert_eq!(unknown.kind(), Kind::NotFound);
}

/// A legacy peer acts on nothing any more after its flush was reversed in its last moment.
#[tokio::test]
async fn a_legacy_node_is_not_reversed_in_the_middle() {
    let world = World::with_nodes(&["hv1"]).await;
    let ask = |request| node::set_domain_state(&world.store, "hv1", request);
    for (busy, other, done) in [
        (DomainState::Flush, DomainRequest::Ready, DomainState::Flushed),
        (DomainState::Unflush, DomainRequest::Flush, DomainState::Ready),
    ] {
        world.domain_state("hv1", busy.clone()).await;
        let refusal = refused(ask(other).await);
        assert!(matches!(refusal, NodeRefusal::LegacyPeerIsBusy { .. }), "{refusal}");
        assert_eq!(world.store.view().nodes["hv1"].domain_state, busy);
        world.domain_state("hv1", done).await;
        assert_eq!(ask(other).await.unwrap(), Requested::Yes, "when it is done");
    }
    world.store.announce_daemon(&"hv1".into(), "test").await.unwrap();
    world.domain_state("hv1", DomainState::Flush).await;
    assert_eq!(
        ask(DomainRequest::Ready).await.unwrap(),
        Requested::Yes,
        "ours are reversed at any moment"
    );
}

#[tokio::test]
async fn the_primary_role_is_handed_on_only_to_somebody() {
    let world = World::with_nodes(&["hv1"]).await;
    let ask =
        |node: &'static str, request| node::set_coordinator_state(&world.store, node, request);
    assert_eq!(ask("hv1", CoordinatorRequest::Primary).await.unwrap(), Requested::Yes);
    assert_eq!(ask("hv1", CoordinatorRequest::Primary).await.unwrap(), Requested::Already);
    assert!(matches!(
        refused(ask("hv1", CoordinatorRequest::Secondary).await),
        NodeRefusal::NobodyElse { .. }
    ));
    world.add_node("hv2").await;
    assert_eq!(ask("hv2", CoordinatorRequest::Secondary).await.unwrap(), Requested::Already);
    assert_eq!(ask("hv1", CoordinatorRequest::Secondary).await.unwrap(), Requested::Yes);
    assert_eq!(world.store.view().config.primary, None);
    world
        .write(|changes| {
            changes.node(&"hv2".into(), NodeChange::Daemon(DaemonState::Dead));
            changes.node(&"hv2".into(), NodeChange::Coordinator(CoordinatorState::Secondary));
        })
        .await;
    assert!(matches!(
        refused(ask("hv2", CoordinatorRequest::Primary).await),
        NodeRefusal::NotRunning { .. }
    ));
}

/// Word that `hv2` is off, for the API of `hv1`.
fn hv2_is_off() -> OffWord {
    let (node, who, asked) = ("hv2".to_owned(), "alice".to_owned(), "hv1".into());
    OffWord { node, who, asked, recover: true, nobody_fences: false }
}

impl World {
    /// Seconds since the epoch.
    fn wall(&self) -> i64 {
        i64::try_from(self.clock.wall().as_secs()).unwrap()
    }
}

async fn becomes(world: &World, state: DaemonState) {
    world.write(|changes| _ = changes.node(&"hv2".into(), NodeChange::Daemon(state.clone()))).await;
}

async fn confirm_off(world: &World, word: &OffWord) -> Result<(), ChangeError<NodeRefusal>> {
    confirm_off_in(&world.store, world, word).await
}

async fn confirm_off_in(
    store: &Store,
    world: &World,
    word: &OffWord,
) -> Result<(), ChangeError<NodeRefusal>> {
    let watched = node::watch(store, world.clock.as_ref(), word).await?;
    node::confirm_off(store, world.clock.as_ref(), word, &watched).await
}

#[tokio::test]
async fn a_node_that_says_that_it_runs_is_not_said_to_be_off() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    let word = hv2_is_off();
    for state in [DaemonState::Run, DaemonState::from_record("resting")] {
        becomes(&world, state.clone()).await;
        let refusal = refused(confirm_off(&world, &word).await);
        assert!(matches!(refusal, NodeRefusal::NotDead { .. }), "{refusal}");
        assert!(refusal.hint().is_some(), "{state}");
        assert_eq!(world.store.view().nodes["hv2"].daemon_state, state);
    }
    becomes(&world, DaemonState::Fenced).await;
    let refusal = refused(confirm_off(&world, &word).await);
    assert!(matches!(refusal, NodeRefusal::Proven { .. }), "{refusal}");
    let unknown = OffWord { node: "hv9".to_owned(), ..word };
    let refusal = refused(confirm_off(&world, &unknown).await);
    assert_eq!(refusal.kind(), Kind::NotFound);
}

#[tokio::test]
async fn a_node_with_a_session_is_not_said_to_be_off() {
    for state in [DaemonState::Dead, DaemonState::Stop, DaemonState::Shutdown, DaemonState::Init] {
        let world = World::with_nodes(&["hv1", "hv2"]).await;
        becomes(&world, state.clone()).await;
        let of_itself = OffWord { asked: "hv2".into(), ..hv2_is_off() };
        let refusal = refused(confirm_off(&world, &of_itself).await);
        assert!(refusal.to_string().contains("the API that was asked runs on it"), "{refusal}");
        world.announce_worker("hv2").await;
        world.store.fresh().await.unwrap();
        let refusal = refused(confirm_off(&world, &hv2_is_off()).await);
        assert!(refusal.to_string().contains("its worker is connected"), "{refusal}");
        world.store.announce_daemon(&"hv2".into(), "test").await.unwrap();
        let refusal = refused(confirm_off(&world, &hv2_is_off()).await);
        assert!(refusal.to_string().contains("its daemon is connected"), "{refusal}");
        assert_eq!(world.store.view().nodes["hv2"].daemon_state, state);
    }
}

/// Nobody else watches such a node, and it may never be taken for dead.
#[tokio::test(start_paused = true)]
async fn a_node_that_has_said_that_it_stops_is_watched_before_it_is_said_to_be_off() {
    for state in [DaemonState::Stop, DaemonState::Shutdown, DaemonState::Init] {
        let world = World::with_nodes(&["hv1", "hv2"]).await;
        becomes(&world, state.clone()).await;
        let begin = world.clock.monotonic();
        let dry = world.store.dry();
        confirm_off_in(&dry, &world, &hv2_is_off()).await.unwrap();
        assert!(world.clock.monotonic() < begin + WATCH, "nobody waits for a prediction");
        assert_eq!(world.store.view().nodes["hv2"].daemon_state, state);
        let (begin, said_at) = (world.clock.monotonic(), world.wall());
        confirm_off(&world, &hv2_is_off()).await.unwrap();
        assert!(world.clock.monotonic() >= begin + WATCH);
        let record = world.store.view().nodes["hv2"].clone();
        let proven_at = record.fence.as_ref().and_then(|fence| fence.proven_at);
        let watch = i64::try_from(WATCH.as_secs()).unwrap();
        assert!(proven_at.is_some_and(|at| at >= said_at + watch), "{proven_at:?}");
        assert_eq!(record.daemon_state, DaemonState::Fenced, "it was {state}");
        assert_eq!(record.domain_state, DomainState::FenceFlush);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_shows_itself_while_it_is_watched_is_not_said_to_be_off() {
    for shows in ["a keepalive", "its daemon is connected", "the state of its daemon"] {
        let world = World::with_nodes(&["hv1", "hv2"]).await;
        becomes(&world, DaemonState::Stop).await;
        let word = hv2_is_off();
        let half = async {
            world.clock.sleep(WATCH / 2).await;
            match shows {
                "a keepalive" => world.store.stamp(&"hv2".into(), 2).await.unwrap(),
                "its daemon is connected" => {
                    world.store.announce_daemon(&"hv2".into(), "test").await.unwrap();
                }
                _ => becomes(&world, DaemonState::Init).await,
            }
        };
        let (confirmed, ()) = tokio::join!(confirm_off(&world, &word), half);
        let refusal = refused(confirmed);
        assert!(refusal.to_string().contains(shows), "{shows}: {refusal}");
        assert_ne!(world.store.view().nodes["hv2"].daemon_state, DaemonState::Fenced);
    }
}

/// Such a node is never taken for dead, however long it is silent.
#[tokio::test(start_paused = true)]
async fn a_node_that_died_in_run_is_said_to_be_off_where_nobody_fences() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    becomes(&world, DaemonState::Run).await;
    let word = OffWord { nobody_fences: true, recover: false, ..hv2_is_off() };
    let half = async {
        world.clock.sleep(WATCH / 2).await;
        world.store.stamp(&"hv2".into(), 2).await.unwrap();
    };
    let (confirmed, ()) = tokio::join!(confirm_off(&world, &word), half);
    let refusal = refused(confirmed);
    assert!(refusal.to_string().contains("a keepalive"), "{refusal}");
    assert_eq!(world.store.view().nodes["hv2"].daemon_state, DaemonState::Run);
    let begin = world.clock.monotonic();
    confirm_off(&world, &word).await.unwrap();
    assert!(world.clock.monotonic() >= begin + WATCH);
    let hv2 = world.store.view().nodes["hv2"].clone();
    assert_eq!(hv2.daemon_state, DaemonState::Fenced);
    assert_ne!(hv2.domain_state, DomainState::FenceFlush, "nobody would give its VMs away");
    assert!(hv2.present_fence().expect("the record says why").proof.contains("`alice`"));
}

#[tokio::test(start_paused = true)]
async fn a_word_that_is_taken_back_while_the_node_is_watched_changes_nothing() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    becomes(&world, DaemonState::Stop).await;
    let word = hv2_is_off();
    tokio::select! {
        _ = confirm_off(&world, &word) => panic!("the watch lasts longer"),
        () = world.clock.sleep(WATCH / 2) => {}
    }
    world.clock.sleep(WATCH).await;
    let hv2 = world.store.fresh().await.unwrap().nodes["hv2"].clone();
    assert_eq!((&hv2.daemon_state, &hv2.fence), (&DaemonState::Stop, &None));
    confirm_off(&world, &word).await.unwrap();
    assert_eq!(world.store.view().nodes["hv2"].daemon_state, DaemonState::Fenced);
}

#[tokio::test]
async fn a_node_that_is_said_to_be_off_is_as_one_that_was_fenced() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    node::set_coordinator_state(&world.store, "hv2", CoordinatorRequest::Primary).await.unwrap();
    becomes(&world, DaemonState::Dead).await;
    let before = world.store.view();
    let dry = world.store.dry();
    confirm_off_in(&dry, &world, &hv2_is_off()).await.unwrap();
    let after = world.store.fresh().await.unwrap();
    assert_eq!(after.nodes, before.nodes, "a dry run writes nothing");
    assert_eq!(after.config, before.config);
    let said_at = world.wall();
    confirm_off(&world, &hv2_is_off()).await.unwrap();
    let view = world.store.view();
    let hv2 = &view.nodes["hv2"];
    assert_eq!(hv2.daemon_state, DaemonState::Fenced);
    assert_eq!(hv2.domain_state, DomainState::FenceFlush, "its VMs are given to others");
    assert_eq!(view.config.primary, None, "another can have the role");
    let fence = hv2.present_fence().expect("the record says why");
    assert_eq!(fence.by, "alice");
    assert!(fence.proven_at.is_some_and(|at| (said_at..=world.wall()).contains(&at)), "{fence:?}");
    assert!(fence.proof.contains("`alice`"), "{}", fence.proof);
}

/// Request to remove `hv2`, for the API of `hv1`, which is the only coordinator by its
/// configuration.
fn hv2_goes() -> Removal {
    let coordinators = [NodeName::new("hv1")].into();
    Removal { node: "hv2".to_owned(), asked: "hv1".into(), coordinators }
}

async fn remove_in(
    store: &Store,
    world: &World,
    removal: &Removal,
) -> Result<References, ChangeError<NodeRefusal>> {
    let watched = node::watch_for_removal(store, world.clock.as_ref(), removal).await?;
    node::remove(store, world.clock.as_ref(), removal, &watched).await
}

async fn remove(world: &World) -> Result<References, ChangeError<NodeRefusal>> {
    remove_in(&world.store, world, &hv2_goes()).await
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_gone_is_watched_and_removed_and_vms_forget_that_it_was_their_home() {
    for state in [DaemonState::Stop, DaemonState::Fenced] {
        let world = World::with_nodes(&["hv1", "hv2"]).await;
        becomes(&world, state.clone()).await;
        world.define("web1", UUID).await;
        world.write(|changes| _ = changes.vm(UUID, VmChange::LastNode(Some("hv2".into())))).await;
        let begin = world.clock.monotonic();
        let predicted = remove_in(&world.store.dry(), &world, &hv2_goes()).await.unwrap();
        assert!(world.clock.monotonic() < begin + WATCH, "nobody waits for a prediction");
        assert!(world.store.view().nodes.contains_key("hv2"), "a dry run writes nothing");
        let begin = world.clock.monotonic();
        let found = remove(&world).await.unwrap();
        assert!(world.clock.monotonic() >= begin + WATCH);
        assert_eq!(found, predicted);
        assert_eq!(found.homes, [(UUID, "web1".to_owned())]);
        let view = world.store.view();
        assert!(!view.nodes.contains_key("hv2"), "it was {state}");
        assert_eq!(
            (&view.vms[&UUID].node, &view.vms[&UUID].last_node),
            (&Some("hv1".into()), &None)
        );
        assert_eq!(refused(remove(&world).await).kind(), Kind::NotFound, "it is gone");
        world.add_node("hv2").await;
        assert!(world.store.view().nodes.contains_key("hv2"), "a server of that name joins anew");
    }
}

#[tokio::test]
async fn a_node_that_may_be_there_is_not_removed() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    for state in [DaemonState::Run, DaemonState::Dead, DaemonState::Init] {
        becomes(&world, state.clone()).await;
        let refusal = refused(remove(&world).await);
        assert!(matches!(&refusal, NodeRefusal::NotRemoved(NotRemoved::State { .. })), "{refusal}");
        assert!(refusal.hint().is_some() && refusal.kind() == Kind::Conflict, "{state}");
    }
    becomes(&world, DaemonState::Stop).await;
    world.store.announce_daemon(&"hv2".into(), "test").await.unwrap();
    let refusal = refused(remove(&world).await);
    assert!(refusal.to_string().contains("its daemon is connected"), "{refusal}");
    assert!(world.store.view().nodes.contains_key("hv2"));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_shows_itself_or_is_given_a_vm_while_it_is_watched_is_not_removed() {
    for shows in ["a keepalive", "its daemon is connected", "in state `init`", "assigned to node"] {
        let world = World::with_nodes(&["hv1", "hv2"]).await;
        becomes(&world, DaemonState::Fenced).await;
        world.define("web1", UUID).await;
        let half = async {
            world.clock.sleep(WATCH / 2).await;
            match shows {
                "a keepalive" => world.store.stamp(&"hv2".into(), 2).await.unwrap(),
                "its daemon is connected" => {
                    world.store.announce_daemon(&"hv2".into(), "test").await.unwrap();
                }
                "in state `init`" => becomes(&world, DaemonState::Init).await,
                _ => {
                    vm::move_vm(&world.store, "web1", &moving(Movement::Move, Some("hv2")))
                        .await
                        .unwrap();
                }
            }
        };
        let (removed, ()) = tokio::join!(remove(&world), half);
        let refusal = refused(removed);
        assert!(refusal.to_string().contains(shows), "{shows}: {refusal}");
        assert!(world.store.view().nodes.contains_key("hv2"));
    }
}

#[tokio::test]
async fn a_coordinator_leaves_the_configuration_before_its_record_goes() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    becomes(&world, DaemonState::Stop).await;
    let coordinators = ["hv1", "hv2"].map(NodeName::new).into();
    let removal = Removal { coordinators, ..hv2_goes() };
    let refusal = refused(remove_in(&world.store, &world, &removal).await);
    assert!(refusal.to_string().contains("`coordinator_nodes`"), "{refusal}");
    assert!(refusal.hint().unwrap().contains("`pvc.conf` on every node"), "{refusal}");
}

/// Nobody could end it before: its worker is there no more, and no other takes it.
#[tokio::test(start_paused = true)]
async fn a_cancelled_task_of_a_removed_node_ends_and_faults_about_it_are_taken_back() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    becomes(&world, DaemonState::Fenced).await;
    let id = pvc_model::job::JobId::from_bits(7);
    let spec = JobSpec {
        id: id.clone(),
        work: JobWork::FlushLocks { vm: JobVm { name: "web1".to_owned(), uuid: Some(UUID) } },
        node: "hv2".into(),
        run_on: "hv2".to_owned(),
        submitter: "tests".to_owned(),
        submitted_at: 1,
    };
    world.write(|changes| _ = changes.push(Change::SubmitJob(spec.clone()))).await;
    let progress = JobProgress {
        state: JobState::Running,
        worker: Some("hv2".into()),
        ..JobProgress::pending()
    };
    let fault = |id: &str| pvc_model::fault::FaultRecord {
        id: id.to_owned(),
        first_reported: "2026-11-30 01:02:03".to_owned(),
        last_reported: "2026-11-30 01:02:03".to_owned(),
        acknowledged_at: String::new(),
        acknowledged: false,
        delta: 10,
        message: "it was fenced".to_owned(),
    };
    world
        .write(|changes| {
            changes
                .push(Change::JobProgress(id.clone(), progress.clone()))
                .push(Change::PutFault(fault("FENCE_FAILED_HV2")))
                .push(Change::PutFault(fault("NODE_FENCED_HV2")))
                .push(Change::PutFault(fault("NODE_FENCED_HV1")));
        })
        .await;
    let refusal = refused(remove(&world).await);
    assert!(refusal.to_string().contains("task `00000007`"), "{refusal}");
    assert!(refusal.hint().unwrap().contains("`pvc task cancel 00000007`"), "{refusal}");
    let by = pvc_model::role::Role::Operator;
    job::cancel(&world.store, world.clock.as_ref(), id.as_str(), by).await.unwrap();
    assert_eq!(world.store.view().jobs[&id].progress.state, JobState::Running, "nobody ends it");
    let found = remove(&world).await.unwrap();
    assert_eq!(found.jobs, std::slice::from_ref(&id));
    assert_eq!(found.faults, ["FENCE_FAILED_HV2"]);
    assert_eq!(found.kept.as_deref(), Some("NODE_FENCED_HV2"));
    let view = world.store.view();
    let ended = &view.jobs[&id].progress;
    assert_eq!(ended.state, JobState::Failed);
    assert!(ended.status.contains("its node `hv2` was removed"), "{}", ended.status);
    let left = ["NODE_FENCED_HV1", "NODE_FENCED_HV2"];
    assert_eq!(view.faults.keys().collect::<Vec<_>>(), left, "that of its fence stays");
}
