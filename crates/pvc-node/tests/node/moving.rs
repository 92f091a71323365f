//! Two nodes and more in a played world: VMs move between them.

use std::time::Duration;

use pvc_model::node::{DaemonState, DomainState};
use pvc_model::vm::moving::{MoveNote, MovePhase};
use pvc_model::vm::{MigrationMethod, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_ports::{GuestRun, HostLoad};
use pvc_store::{Changes, NodeChange, Report, VmChange};
use pvc_testkit::{Manner, ScriptedHypervisor};

use crate::world::{Daemon, World, world};

/// hv1 and hv2, both running, with VM number 1 on hv1.
struct Two {
    one: World,
    two: World,
    vm: Uuid,
    _daemons: Vec<Daemon>,
}

async fn two() -> Two {
    let one = world().await;
    let mut two = one.another("hv2").await;
    two.settings.storage_address = Some("10.0.1.2".to_owned());
    let vm = one.define(1, VmState::Start).await;
    let daemons = vec![one.running().await, two.running().await];
    for name in ["hv1", "hv2"] {
        one.request_node_of(name, DomainState::Ready).await;
    }
    one.until_runs(vm).await;
    one.until("it is listed", || one.node().unwrap().running == [vm]).await;
    Two { one, two, vm, _daemons: daemons }
}

impl Two {
    /// Migrates the VM as `pvc vm migrate` does.
    async fn migrate(&self, to: &str) {
        self.order(VmState::Migrate, to).await;
    }

    async fn order(&self, state: VmState, to: &str) {
        let record = self.one.vm(self.vm);
        let mut changes = Changes::new();
        changes.vm(self.vm, VmChange::State(state)).vm(self.vm, VmChange::Node(NodeName::new(to)));
        let home = record
            .last_node
            .clone()
            .or_else(|| record.node.clone())
            .filter(|home| home.as_str() != to);
        changes.vm(self.vm, VmChange::LastNode(home));
        self.one.change(changes).await;
    }

    async fn set(&self, change: VmChange) {
        let mut changes = Changes::new();
        changes.vm(self.vm, change);
        self.one.change(changes).await;
    }

    fn place(&self) -> (String, String, String) {
        let record = self.one.vm(self.vm);
        let name =
            |node: &Option<NodeName>| node.as_ref().map_or_else(String::new, NodeName::to_string);
        (record.state.to_string(), name(&record.node), name(&record.last_node))
    }

    async fn until_place(&self, state: &str, node: &str, last: &str) {
        let wanted = (state.to_owned(), node.to_owned(), last.to_owned());
        self.one.until(&format!("the record says {wanted:?}"), || self.place() == wanted).await;
    }

    fn runs_on(&self) -> (bool, bool) {
        (self.one.hypervisor.is_there(self.vm), self.two.hypervisor.is_there(self.vm))
    }

    fn manner(&self, manner: Manner) {
        self.one.hypervisor.set_manner(self.vm, manner);
    }

    fn phase(&self) -> Option<MovePhase> {
        self.one.vm(self.vm).moving.as_ref().map(|note| note.phase)
    }

    /// No lock of the move is left, and nobody says that he receives the VM.
    async fn nothing_is_left_behind(&self) {
        let tree = self.one.operator.tree();
        for key in ["node", "state", "migrate_sync_lock"] {
            let path = format!("/domains/{}/{key}", self.vm);
            let left = async || tree.children(&path).await.unwrap().unwrap_or_default();
            for _ in 0..200 {
                if left().await.is_empty() {
                    break;
                }
                self.one.clock_passes(50).await;
            }
            assert_eq!(left().await, Vec::<String>::new(), "{key}");
        }
        let path = format!("/domains/{}/migrate_sync_lock", self.vm);
        assert_eq!(tree.get(&path).await.unwrap().unwrap().data, "");
    }
}

fn copies_for(seconds: u64) -> Manner {
    Manner { migration_takes: Duration::from_secs(seconds), ..Manner::default() }
}

#[tokio::test(start_paused = true)]
async fn a_vm_moves_live_and_back_and_its_progress_is_reported() {
    let world = two().await;
    world.manner(copies_for(20));
    let begun = world.one.now();
    world.migrate("hv2").await;
    world
        .one
        .until("it is half way", || {
            world.one.vm(world.vm).moving.as_ref().is_some_and(|note| note.percent() >= 50)
        })
        .await;
    assert!(!world.two.node().unwrap().running.contains(&world.vm), "it is not there yet");
    assert_eq!(world.phase(), Some(MovePhase::Copying));
    world.until_place("start", "hv2", "hv1").await;
    let took = world.one.now() - begun;
    assert!(took < Duration::from_millis(22_500), "20 s of copying took {took:?}");
    assert_eq!(world.runs_on(), (false, true));
    world
        .one
        .until("its new node lists it", || world.two.node().unwrap().running == [world.vm])
        .await;
    world.one.until("its old node does not", || world.one.node().unwrap().running.is_empty()).await;
    assert_eq!(world.phase(), Some(MovePhase::Done));
    world.nothing_is_left_behind().await;
    world.migrate("hv1").await;
    world.until_place("start", "hv1", "").await;
    assert_eq!(world.runs_on(), (true, false));
    assert_eq!(world.one.hypervisor.count("start", world.vm), 1, "it was never started again");
    let calls = ["resume", "migrate"].map(|call| format!("{call} {}", world.vm));
    assert_eq!(world.two.hypervisor.calls(), calls);
}

#[tokio::test(start_paused = true)]
async fn a_guest_stands_still_for_as_long_as_its_record_allows() {
    let world = two().await;
    world.set(VmChange::MaxDowntime(77)).await;
    world.migrate("hv2").await;
    world.until_place("start", "hv2", "hv1").await;
    let asked = world.one.hypervisor.last_migration(world.vm).unwrap();
    assert_eq!((asked.max_downtime, asked.host.as_str()), (Duration::from_millis(77), "hv2"));
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_cannot_be_copied_is_shut_down_and_started_there() {
    let world = two().await;
    world.manner(Manner {
        fails_migration: Some("host CPU differs".to_owned()),
        ..Manner::default()
    });
    world.migrate("hv2").await;
    world.until_place("start", "hv2", "hv1").await;
    world.one.until("it runs there", || world.runs_on() == (false, true)).await;
    assert_eq!(world.one.hypervisor.count("migrate", world.vm), 3);
    assert_eq!(world.one.hypervisor.count("shutdown", world.vm), 1);
    assert_eq!(world.two.hypervisor.count("start", world.vm), 1);
    world.nothing_is_left_behind().await;
}

#[tokio::test(start_paused = true)]
async fn live_or_not_at_all_never_shuts_a_guest_down() {
    for (method, state) in
        [(None, VmState::MigrateLive), (Some(MigrationMethod::Live), VmState::Migrate)]
    {
        let world = two().await;
        world.set(VmChange::MigrationMethod(method)).await;
        world.manner(Manner {
            fails_migration: Some("host CPU differs".to_owned()),
            ..Manner::default()
        });
        world.order(state, "hv2").await;
        world.until_place("start", "hv1", "").await;
        world.one.until("it says so", || world.phase() == Some(MovePhase::Failed)).await;
        assert_eq!(world.one.vm(world.vm).moving.as_ref().unwrap().why, "host CPU differs");
        assert_eq!(world.runs_on(), (true, false));
        assert_eq!(world.one.hypervisor.count("shutdown", world.vm), 0);
        world.nothing_is_left_behind().await;
        world.manner(Manner::default());
        world.migrate("hv2").await;
        world.until_place("start", "hv2", "hv1").await;
    }
}

#[tokio::test(start_paused = true)]
async fn by_shutdown_only_means_that_nothing_is_copied() {
    let world = two().await;
    world.set(VmChange::MigrationMethod(Some(MigrationMethod::Shutdown))).await;
    world.manner(Manner { ignores_shutdown: true, ..Manner::default() });
    world.order(VmState::MigrateLive, "hv2").await;
    world.until_place("start", "hv1", "").await;
    world.migrate("hv2").await;
    world.until_place("start", "hv2", "hv1").await;
    world.one.until("it runs there", || world.runs_on() == (false, true)).await;
    assert_eq!(world.one.hypervisor.count("migrate", world.vm), 0);
    assert_eq!(
        world.one.hypervisor.count("destroy", world.vm),
        1,
        "it did not listen for three minutes"
    );
}

#[tokio::test(start_paused = true)]
async fn an_order_that_changes_on_the_way_ends_the_copying() {
    let stop =
        |world: &Two| (VmState::Stop, world.one.vm(world.vm).node.clone().unwrap().to_string());
    for case in ["back", "stop", "shutdown"] {
        let world = two().await;
        world.manner(Manner { never_converges: true, ..Manner::default() });
        world.migrate("hv2").await;
        world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
        world.one.pass(120).await;
        assert_eq!(world.place().0, "migrate");
        match case {
            "back" => world.migrate("hv1").await,
            "stop" => {
                let (state, to) = stop(&world);
                world.order(state, &to).await;
            }
            _ => world.set(VmChange::State(VmState::Shutdown)).await,
        }
        let expected = if case == "back" { (true, false) } else { (false, false) };
        world.one.until(case, || world.runs_on() == expected).await;
        let state = if case == "back" { ("start", "hv1", "") } else { ("stop", "hv2", "hv1") };
        world.until_place(state.0, state.1, state.2).await;
        world.one.pass(60).await;
        assert_eq!(world.runs_on(), expected, "{case}");
        world.nothing_is_left_behind().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_vm_is_sent_to_another_node_in_the_middle_of_its_way() {
    let world = two().await;
    let three = world.one.another("hv3").await;
    let _daemon = three.running().await;
    world.manner(Manner { never_converges: true, ..Manner::default() });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    world.manner(copies_for(5));
    world.migrate("hv3").await;
    world.until_place("start", "hv3", "hv1").await;
    assert_eq!(world.runs_on(), (false, false));
    assert!(three.hypervisor.is_there(world.vm));
    world.nothing_is_left_behind().await;
}

#[tokio::test(start_paused = true)]
async fn a_target_whose_daemon_does_not_run_is_not_waited_for_for_ever() {
    let one = world().await;
    let two = one.another("hv2").await;
    let vm = one.define(1, VmState::Start).await;
    let daemon = one.running().await;
    two.running().await.stop().await;
    one.until_runs(vm).await;
    let world = Two { one, two, vm, _daemons: vec![daemon] };
    world.migrate("hv2").await;
    world.until_place("start", "hv1", "").await;
    let why = world.one.vm(vm).moving.as_ref().unwrap().why.clone();
    assert_eq!(why, "node `hv2` did not get ready to receive it within 30 s");
    assert_eq!(world.runs_on(), (true, false));
    world.nothing_is_left_behind().await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_is_not_shut_down_for_a_target_that_does_not_answer() {
    let world = two().await;
    for (was_reached, attempts) in [(false, 3), (true, 1)] {
        world.manner(copies_for(20));
        match was_reached {
            true => world.one.hypervisor.add_peer("hv2", &world.two.hypervisor),
            // As behind a firewall.
            false => world.one.hypervisor.add_peer("hv2", &ScriptedHypervisor::new()),
        }
        let before = world.one.hypervisor.count("migrate", world.vm);
        world.migrate("hv2").await;
        world
            .one
            .until("it begins", || world.one.hypervisor.count("migrate", world.vm) > before)
            .await;
        world.two.hypervisor.set_unreachable(was_reached);
        world.until_place("start", "hv1", "").await;
        world.one.until("it says so", || world.phase() == Some(MovePhase::Failed)).await;
        let why = world.one.vm(world.vm).moving.as_ref().unwrap().why.clone();
        assert!(why.contains("the hypervisor of node `hv2` does not answer"), "{why}");
        assert_eq!(world.one.hypervisor.count("migrate", world.vm) - before, attempts);
        assert_eq!(world.one.hypervisor.count("shutdown", world.vm), 0);
        assert!(runs(&world.one, world.vm));
        world.nothing_is_left_behind().await;
        world.two.hypervisor.set_unreachable(false);
    }
    world.one.until("nothing of it is there", || world.runs_on() == (true, false)).await;
    world.migrate("hv2").await;
    world.until_place("start", "hv2", "hv1").await;
    assert_eq!(world.one.hypervisor.count("start", world.vm), 1);
}

#[tokio::test(start_paused = true)]
async fn by_shutdown_only_needs_no_word_between_the_hypervisors() {
    let world = two().await;
    world.set(VmChange::MigrationMethod(Some(MigrationMethod::Shutdown))).await;
    world.one.hypervisor.add_peer("hv2", &ScriptedHypervisor::new());
    world.migrate("hv2").await;
    world.until_place("start", "hv2", "hv1").await;
    world.one.until("it runs there", || world.runs_on() == (false, true)).await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_stands_still_is_given_up_and_tried_again() {
    let world = two().await;
    world.manner(Manner { migration_stalls: true, ..Manner::default() });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    // As for the last of it, which may wait for the volume.
    world.one.hypervisor.set_run(world.vm, pvc_ports::GuestRun::Paused);
    world.one.pass(120).await;
    assert_eq!(
        (world.phase(), world.one.hypervisor.count("migrate", world.vm)),
        (Some(MovePhase::Copying), 1)
    );
    world.one.hypervisor.set_run(world.vm, pvc_ports::GuestRun::Running);
    world.manner(copies_for(5));
    let begun = world.one.now();
    world.until_place("start", "hv2", "hv1").await;
    let took = world.one.now() - begun;
    assert!((60..70).contains(&took.as_secs()), "{took:?}");
    assert_eq!(world.one.hypervisor.count("migrate", world.vm), 2);
}

/// Found by the simulation: it was copied for ever, and its node never became ready.
#[tokio::test(start_paused = true)]
async fn a_guest_that_writes_as_fast_as_it_is_copied_is_not_copied_for_ever() {
    for method in [None, Some(MigrationMethod::Live)] {
        let world = two().await;
        world.set(VmChange::MigrationMethod(method.clone())).await;
        world.manner(Manner { never_converges: true, ..Manner::default() });
        let begun = world.one.now();
        world.migrate("hv2").await;
        world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
        match method {
            None => world.until_place("start", "hv2", "hv1").await,
            Some(_) => world.until_place("start", "hv1", "").await,
        }
        let took = (world.one.now() - begun).as_secs();
        assert!((300..330).contains(&took), "{took} s");
        assert_eq!(
            world.one.hypervisor.count("migrate", world.vm),
            1,
            "another try would do no better"
        );
        if method.is_some() {
            assert_eq!(world.one.hypervisor.count("shutdown", world.vm), 0);
            world.one.until("it is told", || world.phase() == Some(MovePhase::Failed)).await;
            let why = world.one.vm(world.vm).moving.as_ref().unwrap().why.clone();
            assert!(why.starts_with("the guest writes as fast as it is copied"), "{why}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_guest_is_not_held_without_limit_for_a_target_that_takes_nothing_or_is_silent() {
    for (is_silent, limit) in [(false, 300), (true, 60)] {
        let world = two().await;
        world.manner(Manner { migration_stalls: true, ..Manner::default() });
        world.migrate("hv2").await;
        world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
        world.one.hypervisor.set_run(world.vm, pvc_ports::GuestRun::Paused);
        world.two.hypervisor.set_unreachable(is_silent);
        let begun = world.one.now();
        let is_over = || {
            let attempts = world.one.hypervisor.count("migrate", world.vm);
            attempts == 2 || world.phase() == Some(MovePhase::Failed)
        };
        world.one.until("it is given up", is_over).await;
        let took = (world.one.now() - begun).as_secs();
        assert!((limit..limit + 10).contains(&took), "{took} s");
    }
}

/// The other node is cut off in the last call, or this node's hypervisor breaks down in it as well.
#[tokio::test(start_paused = true)]
async fn a_guest_whose_arrival_was_not_heard_of_goes_on_at_one_node_and_never_at_two() {
    let world = two().await;
    for manner in [
        Manner { loses_finish: true, ..copies_for(5) },
        Manner { loses_finish: true, ignores_shutdown: true, ..copies_for(5) },
        Manner { breaks_at_finish: true, ..copies_for(5) },
    ] {
        world.manner(manner);
        world.migrate("hv2").await;
        world.one.until("it is there", || world.two.hypervisor.is_there(world.vm)).await;
        world
            .one
            .until("it stays, and nothing of it is there", || {
                assert!(!runs(&world.two, world.vm), "nobody has handed it over");
                world.place().0 == "start" && world.runs_on() == (true, false)
            })
            .await;
        world.one.until("it goes on here", || runs(&world.one, world.vm)).await;
        world.until_place("start", "hv1", "").await;
        world.one.until("it says so", || world.phase() == Some(MovePhase::Failed)).await;
        world.nothing_is_left_behind().await;
        world.one.pass(120).await;
    }
    assert_eq!(world.one.hypervisor.count("shutdown", world.vm), 0);
    assert_eq!(world.one.hypervisor.count("start", world.vm), 1);
    assert_eq!(world.two.hypervisor.count("start", world.vm), 0);
    world.manner(copies_for(5));
    world.migrate("hv2").await;
    world.until_place("start", "hv2", "hv1").await;
    world.one.until("it runs there", || runs(&world.two, world.vm)).await;
}

/// Both break down: the guest here is held, and nobody can say whether it is wanted.
#[tokio::test(start_paused = true)]
async fn a_guest_that_a_broken_move_left_held_goes_on_when_its_record_says_that_it_stays() {
    let world = two().await;
    world.manner(Manner { breaks_at_finish: true, ..copies_for(5) });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    // As behind a firewall from then on.
    world.one.hypervisor.add_peer("hv2", &ScriptedHypervisor::new());
    world.until_place("start", "hv1", "").await;
    world.one.until("it goes on", || runs(&world.one, world.vm)).await;
    assert_eq!(world.one.hypervisor.count("resume", world.vm), 2, "once when it was started");
    world.one.until("nothing of it is there", || world.runs_on() == (true, false)).await;
    assert_eq!(world.two.hypervisor.count("resume", world.vm), 0);
}

#[tokio::test(start_paused = true)]
async fn a_guest_stands_still_until_it_was_handed_over_and_goes_on_once_its_node_has_said_so() {
    let world = two().await;
    world.manner(copies_for(5));
    world.migrate("hv2").await;
    world.one.until("it runs there", || runs(&world.two, world.vm)).await;
    assert!(world.one.hypervisor.last_migration(world.vm).unwrap().held);
    assert_eq!(world.two.hypervisor.count("resume", world.vm), 1);
    world.until_place("start", "hv2", "hv1").await;
    world.one.until("the move is done", || world.phase() == Some(MovePhase::Done)).await;
    // Whoever holds it from now on means it.
    world.two.hypervisor.set_run(world.vm, GuestRun::Paused);
    world.one.pass(30).await;
    assert_eq!(world.two.hypervisor.run(world.vm), Some(GuestRun::Paused));
}

/// The sender's daemon dies between the last two steps: the guest may have gone on at the sender
/// for all that its receiver knows, and what it has itself may be older than the volumes.
#[tokio::test(start_paused = true)]
async fn a_guest_that_was_never_handed_over_is_started_afresh_when_nobody_has_it_any_more() {
    let one = world().await;
    let two = one.another("hv2").await;
    let vm = one.define(1, VmState::Start).await;
    let (daemon, other) = (one.running().await, two.running().await);
    one.until_runs(vm).await;
    let mut world = Two { one, two, vm, _daemons: vec![other] };
    world.manner(copies_for(20));
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    daemon.kill().await;
    world.one.until("it has left", || world.runs_on() == (false, true)).await;
    world.one.pass(120).await;
    assert_eq!(
        world.two.hypervisor.run(vm),
        Some(GuestRun::Paused),
        "its sender may have it, for all that is known"
    );
    assert_eq!(world.place().0, "migrate");
    world._daemons.push(world.one.start().await);
    world.until_place("start", "hv2", "hv1").await;
    world.one.until("it runs there", || runs(&world.two, vm)).await;
    assert_eq!(
        (world.two.hypervisor.count("start", vm), world.two.hypervisor.count("resume", vm)),
        (1, 1)
    );
    world.nothing_is_left_behind().await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_is_not_copied_to_where_no_daemon_would_let_it_go_on() {
    let one = world().await;
    let two = one.another("hv2").await;
    let vm = one.define(1, VmState::Start).await;
    let (daemon, other) = (one.running().await, two.running().await);
    one.until_runs(vm).await;
    let world = Two { one, two, vm, _daemons: vec![daemon] };
    world.manner(Manner { never_converges: true, ..Manner::default() });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    other.stop().await;
    world.until_place("start", "hv1", "").await;
    let why = world.one.vm(vm).moving.as_ref().unwrap().why.clone();
    assert!(why.contains("the daemon of node `hv2` does not run"), "{why}");
    assert_eq!(world.one.hypervisor.count("migrate", vm), 1);
    assert!(runs(&world.one, vm));
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_is_restarted_sends_again() {
    let one = world().await;
    let two = one.another("hv2").await;
    let vm = one.define(1, VmState::Start).await;
    let (daemon, other) = (one.running().await, two.running().await);
    one.until_runs(vm).await;
    let mut world = Two { one, two, vm, _daemons: vec![other] };
    world.manner(Manner { never_converges: true, ..Manner::default() });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    daemon.stop().await;
    assert_eq!(world.runs_on(), (true, false), "the guest stays where it is");
    assert_eq!(world.place().0, "migrate");
    world.manner(copies_for(1));
    world._daemons.push(world.one.start().await);
    world.until_place("start", "hv2", "hv1").await;
    assert_eq!(world.runs_on(), (false, true));
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_is_restarted_takes_what_has_arrived_meanwhile() {
    let one = world().await;
    let two = one.another("hv2").await;
    let vm = one.define(1, VmState::Start).await;
    let (other, daemon) = (one.running().await, two.running().await);
    one.until_runs(vm).await;
    let mut world = Two { one, two, vm, _daemons: vec![other] };
    world.manner(copies_for(20));
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    daemon.kill().await;
    world.one.until("it has left", || world.runs_on() == (false, true)).await;
    world._daemons.push(world.two.start().await);
    world.until_place("start", "hv2", "hv1").await;
    world.one.until("it goes on", || runs(&world.two, vm)).await;
    assert_eq!(world.two.hypervisor.count("start", vm), 0);
}

#[tokio::test(start_paused = true)]
async fn a_vm_whose_source_dies_in_the_middle_waits_for_the_proof_of_that_and_runs_once() {
    let one = world().await;
    let two = one.another("hv2").await;
    let vm = one.define(1, VmState::Start).await;
    let (daemon, other) = (one.running().await, two.running().await);
    one.until_runs(vm).await;
    let world = Two { one, two, vm, _daemons: vec![other] };
    world.manner(Manner { never_converges: true, ..Manner::default() });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    assert_eq!(world.two.hypervisor.run(vm), Some(GuestRun::Arriving), "it is arriving");
    daemon.kill().await;
    world.one.hypervisor.kill(vm);
    world.one.pass(120).await;
    assert_eq!((world.place().0.as_str(), world.runs_on()), ("migrate", (false, false)));
    assert_eq!(
        world.two.hypervisor.count("start", vm),
        0,
        "its source may run it still, for all that is known"
    );
    // As a fencer writes it.
    let mut changes = Changes::new();
    changes.node(&NodeName::new("hv1"), NodeChange::Daemon(DaemonState::Fenced));
    changes.vm(vm, VmChange::State(VmState::Start));
    world.one.change(changes).await;
    world.one.until("it runs there", || runs(&world.two, vm)).await;
    assert_eq!(world.two.hypervisor.count("start", vm), 1);
}

/// Found by a story, in which both nodes lost their power: the lock was left, and the VM failed
/// because of it.
#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_frees_what_it_left_locked_of_vms_that_are_others_by_now() {
    let mut one = world().await;
    one.settings.storage_address = Some("10.0.1.1".to_owned());
    let mut two = one.another("hv2").await;
    two.settings.storage_address = Some("10.0.1.2".to_owned());
    let vm = one.define(1, VmState::Start).await;
    let (daemon, other) = (one.running().await, two.running().await);
    one.until_runs(vm).await;
    one.storage.lock("vms/vm1_sda", "10.0.1.1");
    let world = Two { one, two, vm, _daemons: vec![] };
    world.manner(Manner { never_converges: true, ..Manner::default() });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    daemon.kill().await;
    other.kill().await;
    world.one.hypervisor.kill(vm);
    world.two.hypervisor.kill(vm);
    let _daemons = [world.one.running().await, world.two.running().await];
    world.until_place("start", "hv2", "hv1").await;
    world.one.until("it runs there", || runs(&world.two, vm)).await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_whose_guest_ended_on_the_way_is_started_on_its_new_node() {
    let world = two().await;
    world.manner(Manner { never_converges: true, ..Manner::default() });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    // A killed guest has no time to let go of its volume.
    world.one.storage.lock("vms/vm1_sda", "10.0.1.1");
    world.one.hypervisor.kill(world.vm);
    world.until_place("start", "hv2", "hv1").await;
    world.one.until("it runs there", || world.runs_on() == (false, true)).await;
    assert_eq!(world.place().0, "start");
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_is_moved_while_it_is_being_started_runs_once_on_its_new_node() {
    for (state, takes) in
        [(VmState::Migrate, 5), (VmState::Migrate, 100), (VmState::MigrateLive, 100)]
    {
        let two = two().await;
        two.one.request(two.vm, VmState::Stop).await;
        two.one.until("it is off", || two.runs_on() == (false, false)).await;
        two.manner(Manner { start_takes: Duration::from_secs(takes), ..Manner::default() });
        two.one.request(two.vm, VmState::Start).await;
        two.one.until("it is being made", || two.one.hypervisor.is_there(two.vm)).await;
        two.order(state.clone(), "hv2").await;
        two.one.pass(40).await;
        assert_eq!(two.runs_on(), (false, true), "{state}, a start of {takes} s");
        two.until_place("start", "hv2", "hv1").await;
        let resumed = |world: &World| world.hypervisor.count("resume", two.vm);
        assert_eq!(
            (resumed(&two.one), resumed(&two.two)),
            (1, 1),
            "the guest before, and this one"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_not_the_senders_is_left_alone() {
    let world = two().await;
    world.manner(Manner { never_converges: true, ..Manner::default() });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    world.one.storage.lock("vms/vm1_sda", "10.0.1.3");
    world.one.hypervisor.kill(world.vm);
    world.until_place("fail", "hv2", "hv1").await;
    assert_eq!(world.runs_on(), (false, false));
}

#[tokio::test(start_paused = true)]
async fn a_lost_session_gives_the_move_up_and_a_new_one_begins() {
    let one = world().await;
    let two = one.another("hv2").await;
    let vm = one.define(1, VmState::Start).await;
    let daemon = one.running().await;
    let other = two.running().await;
    one.until_runs(vm).await;
    let world = Two { one, two, vm, _daemons: vec![other] };
    world.manner(Manner { never_converges: true, ..Manner::default() });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    world.manner(copies_for(1));
    daemon.session.expire().await;
    world.until_place("start", "hv2", "hv1").await;
    assert_eq!(world.runs_on(), (false, true));
    assert_eq!(world.one.hypervisor.count("migrate", vm), 2);
}

#[tokio::test(start_paused = true)]
async fn twenty_vms_cross_each_other_and_each_runs_once() {
    let one = world().await;
    let two = one.another("hv2").await;
    let mut there = Vec::new();
    for number in 1..=20 {
        there.push(one.define(number, VmState::Start).await);
    }
    let _daemons = [one.running().await, two.running().await];
    one.until("all run", || there.iter().all(|vm| one.hypervisor.is_there(*vm))).await;
    for (round, to) in [(0, "hv2"), (1, "hv1"), (2, "hv2")] {
        let all: Vec<Uuid> = there.iter().skip(round * 3).step_by(2).copied().collect();
        let mut changes = Changes::new();
        for vm in &all {
            changes
                .vm(*vm, VmChange::State(VmState::Migrate))
                .vm(*vm, VmChange::Node(NodeName::new(to)));
        }
        one.change(changes).await;
        one.until("all have arrived", || {
            for vm in &there {
                assert!(!(runs(&one, *vm) && runs(&two, *vm)), "{vm} runs twice");
            }
            all.iter().all(|vm| one.state(*vm) == "start")
        })
        .await;
        let here = if to == "hv1" { &one } else { &two };
        assert!(all.iter().all(|vm| runs(here, *vm)), "round {round}");
    }
}

/// A VM that runs is promised nothing any more: what it took has to be in the figures by then.
#[tokio::test(start_paused = true)]
async fn how_much_memory_is_left_is_reported_as_soon_as_a_guest_has_come() {
    let world = two().await;
    let free = || world.two.node().unwrap().figures.memory_free_mib;
    world.one.until("it has said what it has", || free() == 12_288).await;
    world.manner(copies_for(2));
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    world.two.host.set_load(HostLoad {
        memory_total_mib: 16_384,
        memory_used_mib: 4352,
        memory_free_mib: 12_032,
        load: 0.5,
    });
    world.one.until("it is listed", || world.two.node().unwrap().running == [world.vm]).await;
    let since = world.one.now();
    world.one.until("what is left is told", || free() == 12_032).await;
    assert!(world.one.now() - since < Duration::from_millis(500), "{:?}", world.one.now() - since);
}

/// Others start a VM where they are told to, unless a node has said before that it is at starting
/// it.
#[tokio::test(start_paused = true)]
async fn nothing_is_started_that_could_not_be_announced() {
    let world = world().await;
    let vm = world.define(1, VmState::Start).await;
    let daemon = world.running().await;
    world.until_runs(vm).await;
    world.until("it is told", || world.node().unwrap().working_on.is_empty()).await;
    daemon.connection.lose_majority();
    world.hypervisor.kill(vm);
    world.pass(120).await;
    assert_eq!(world.hypervisor.count("start", vm), 1, "nobody was told of a second one");
}

fn runs(world: &World, vm: Uuid) -> bool {
    world.hypervisor.run(vm) == Some(pvc_ports::GuestRun::Running)
}

/// hv1 with `count` VMs that run, beside hv2.
async fn full(count: u128) -> (World, World, Vec<Uuid>, Vec<Daemon>) {
    let one = world().await;
    let two = one.another("hv2").await;
    let mut vms = Vec::new();
    for number in 1..=count {
        vms.push(one.define(number, VmState::Start).await);
    }
    let daemons = vec![one.running().await, two.running().await];
    one.until("all run", || vms.iter().all(|vm| runs(&one, *vm))).await;
    one.until("all are listed", || one.node().unwrap().running.len() == vms.len()).await;
    for vm in &vms {
        one.hypervisor.set_manner(*vm, copies_for(10));
    }
    (one, two, vms, daemons)
}

fn domain_state(world: &World) -> DomainState {
    world.node().unwrap().domain_state.clone()
}

#[tokio::test(start_paused = true)]
async fn a_flushed_node_has_given_its_vms_away_in_parallel_and_ready_brings_them_back() {
    let (one, two, vms, _daemons) = full(10).await;
    let begun = one.now();
    one.request_node(DomainState::Flush).await;
    let mut most = 0;
    one.until("it is flushed", || {
        let moving = vms.iter().filter(|vm| one.state(**vm) == "migrate").count();
        most = most.max(moving);
        domain_state(&one) == DomainState::Flushed
    })
    .await;
    let took = one.now() - begun;
    assert_eq!(most, 4, "as many at once as are configured");
    assert!(took < Duration::from_secs(45), "ten of 10 s each, four at once, took {took:?}");
    assert!(vms.iter().all(|vm| runs(&two, *vm) && !one.hypervisor.is_there(*vm)));
    assert!(vms.iter().all(|vm| one.vm(*vm).last_node == Some(NodeName::new("hv1"))));
    one.request_node(DomainState::Unflush).await;
    one.until("it is ready", || domain_state(&one) == DomainState::Ready).await;
    assert!(vms.iter().all(|vm| runs(&one, *vm) && one.vm(*vm).last_node.is_none()));
    assert!(vms.iter().all(
        |vm| one.hypervisor.count("start", *vm) == 1 && two.hypervisor.count("start", *vm) == 0
    ));
}

#[tokio::test(start_paused = true)]
async fn a_flush_is_reversed_at_any_moment() {
    for after in [0, 1, 5, 9, 11, 15, 21, 25] {
        let (one, two, vms, _daemons) = full(6).await;
        one.request_node(DomainState::Flush).await;
        one.pass(after).await;
        one.request_node(DomainState::Unflush).await;
        one.until("it is ready", || domain_state(&one) == DomainState::Ready).await;
        for vm in &vms {
            assert!(runs(&one, *vm) && !two.hypervisor.is_there(*vm), "after {after} s");
            assert_eq!(one.hypervisor.count("start", *vm), 1, "after {after} s");
            assert_eq!(
                one.hypervisor.count("destroy", *vm) + two.hypervisor.count("destroy", *vm),
                0
            );
        }
        one.request_node(DomainState::Flush).await;
        one.until("it is flushed", || domain_state(&one) == DomainState::Flushed).await;
        assert!(vms.iter().all(|vm| runs(&two, *vm)));
    }
}

#[tokio::test(start_paused = true)]
async fn what_keeps_a_node_from_being_flushed_is_named_and_tried_again() {
    let (one, two, vms, _daemons) = full(2).await;
    let mut changes = Changes::new();
    changes.vm(vms[0], VmChange::MigrationMethod(Some(MigrationMethod::Live)));
    one.change(changes).await;
    let fails =
        Manner { fails_migration: Some("host CPU differs".to_owned()), ..Manner::default() };
    one.hypervisor.set_manner(vms[0], fails);
    one.request_node(DomainState::Flush).await;
    let message = one.until_fault("FLUSH_BLOCKED_HV1").await;
    assert!(
        message.contains("VM vm1: it could not be moved to node `hv2`: host CPU differs"),
        "{message}"
    );
    one.pass(20).await;
    assert_eq!(one.hypervisor.count("migrate", vms[0]), 3, "it is not sent again at once");
    one.pass(100).await;
    assert_eq!(
        (domain_state(&one), runs(&one, vms[0]), runs(&two, vms[1])),
        (DomainState::Flush, true, true)
    );
    let tries = one.hypervisor.count("migrate", vms[0]);
    assert!((6..=12).contains(&tries), "{tries} attempts in two minutes");
    one.hypervisor.set_manner(vms[0], Manner::default());
    one.until("it is flushed", || domain_state(&one) == DomainState::Flushed).await;
    assert!(runs(&two, vms[0]));
}

#[tokio::test(start_paused = true)]
async fn a_paused_guest_is_named_as_what_holds_up_a_flush_and_does_not_hold_up_a_ready() {
    let (one, two, vms, _daemons) = full(2).await;
    one.hypervisor.set_run(vms[0], pvc_ports::GuestRun::Paused);
    one.request_node(DomainState::Flush).await;
    let message = one.until_fault("FLUSH_BLOCKED_HV1").await;
    assert!(
        message.contains("VM vm1: it could not be moved to node `hv2`: it is paused"),
        "{message}"
    );
    // In the middle of the next try, and while nothing is tried.
    for state in ["migrate", "start"] {
        one.until_state(vms[0], state).await;
        one.request_node(DomainState::Unflush).await;
        one.until("it is ready", || domain_state(&one) == DomainState::Ready).await;
        assert_eq!(
            (one.state(vms[0]), one.vm(vms[0]).node.clone()),
            ("start".to_owned(), one.settings.name.clone().into())
        );
        assert_eq!(
            one.hypervisor.run(vms[0]),
            Some(pvc_ports::GuestRun::Paused),
            "it is as it was"
        );
        assert!(one.node().unwrap().running.contains(&vms[0]), "it is still told of");
        one.request_node(DomainState::Flush).await;
    }
    one.until_state(vms[0], "start").await;
    one.hypervisor.set_run(vms[0], pvc_ports::GuestRun::Running);
    one.until("it is flushed", || domain_state(&one) == DomainState::Flushed).await;
    assert!(vms.iter().all(|vm| runs(&two, *vm)));
    assert_eq!(one.hypervisor.count("destroy", vms[0]), 0);
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_fits_nowhere_is_shut_down_and_returns() {
    let (one, two, vms, _daemons) = full(2).await;
    let mut changes = Changes::new();
    changes.vm(vms[0], VmChange::NodeLimit(vec![NodeName::new("hv1")]));
    one.change(changes).await;
    one.request_node(DomainState::Flush).await;
    one.until("it is flushed", || domain_state(&one) == DomainState::Flushed).await;
    assert!(!runs(&one, vms[0]) && one.vm(vms[0]).autostart && runs(&two, vms[1]));
    one.request_node(DomainState::Unflush).await;
    one.until("it is ready", || domain_state(&one) == DomainState::Ready).await;
    one.until("both run here", || vms.iter().all(|vm| runs(&one, *vm))).await;
    assert!(!one.vm(vms[0]).autostart);
}

/// hv1 and hv2 with the VM, which is off, and a note that hv1 has handed it over to hv2, which is
/// to be reported.
async fn two_with_a_vm_that_was_handed_over() -> (Two, MoveNote) {
    let two = two().await;
    two.order(VmState::Stop, "hv1").await;
    two.one.until("its guest is gone", || two.runs_on() == (false, false)).await;
    let record = two.one.vm(two.vm);
    let note = MoveNote {
        from: NodeName::new("hv1"),
        to: NodeName::new("hv2"),
        incarnation: record.incarnation,
        request: record.state_version - 1,
        held: true,
        phase: MovePhase::HandedOver,
        attempt: 1,
        seconds: 1,
        total_bytes: 1,
        processed_bytes: 1,
        remaining_bytes: 0,
        why: String::new(),
    };
    (two, note)
}

#[tokio::test(start_paused = true)]
async fn a_note_that_was_written_since_a_node_looked_is_not_overwritten() {
    let (two, note) = two_with_a_vm_that_was_handed_over().await;
    let newer = MoveNote { phase: MovePhase::Copying, request: note.request + 2, ..note.clone() };
    let path = format!("/pvcrs/moves/{}", two.vm);
    let (operator, vm, written) = (two.one.operator.clone(), two.vm, newer.clone());
    two._daemons[1].connection.before_next_set(&path, async move {
        operator.report(vec![Report::Move(vm, written)]).await.unwrap();
    });
    two.one.operator.report(vec![Report::Move(vm, note)]).await.unwrap();
    two.set(VmChange::Node(NodeName::new("hv2"))).await;
    let now = || two.one.vm(two.vm).moving.clone();
    two.one.until("it is written", || now().as_ref() == Some(&newer)).await;
    two.one.pass(30).await;
    assert_eq!(now(), Some(newer));
}

#[tokio::test(start_paused = true)]
async fn a_node_says_of_a_vm_that_was_stopped_when_it_was_handed_over_that_nothing_of_it_is_left() {
    let (two, note) = two_with_a_vm_that_was_handed_over().await;
    two.one.operator.report(vec![Report::Move(two.vm, note)]).await.unwrap();
    two.set(VmChange::Node(NodeName::new("hv2"))).await;
    let phase = || two.one.vm(two.vm).moving.as_ref().map(|note| (note.phase, note.held));
    two.one.until("hv2 has said so", || phase() == Some((MovePhase::Done, false))).await;
}
