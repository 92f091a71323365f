//! Asks, over a real store on the embedded tree; the node's part is played.

#![allow(clippy::disallowed_methods, reason = "a test waits, in real or in paused time")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use pvc_embedded::EmbeddedTree;
use pvc_model::job::course::Failure;
use pvc_model::job::{JobProgress, JobState, JobVm, JobWork, WorkerRecord};
use pvc_model::node::{CoordinatorState, DaemonState, DomainState, NodeFigures, NodeRole};
use pvc_model::request::{Answer, StateRequest};
use pvc_model::storage::VolumeId;
use pvc_model::vm::{Selector, VmRecord, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_ops::node::{CoordinatorRequest, DomainRequest, NodeRefusal, Requested};
use pvc_ops::vm::{
    Define, DefineRefusal, Meta, MetaRefusal, Modify, Move, MoveRefusal, Movement, NicRefusal,
    RemoveRefusal, RenameRefusal, StateAsk, StateRefusal, TagRefusal,
};
use pvc_ops::{ChangeError, Kind, Refusal, cluster, device, job, node, vm};
use pvc_ports::{Access, AccessList, DeviceChange, Storage, Tree};
use pvc_store::{
    Change, Changes, Ipmi, KnownPassword, NewNode, NodeChange, Report, Store, VmChange,
};
use pvc_testkit::{Closed, FlakyTree, MemoryStorage, SeededRandom, TokioClock};

const UUID: Uuid = Uuid::from_u128(0x2c2b8f4e_0d3e_4b6f_9d6d_0c9b6cf3f2a1);
const OTHER: Uuid = Uuid::from_u128(0x7b1f8e1c_5d0f_4c2e_8a77_3f0b6a3e9d52);

/// Longer than a worker that cannot go on is waited for.
const RENAME_TIME_LIMIT: Duration = Duration::from_secs(120);

struct World {
    tree: EmbeddedTree,
    store: Store,
    clock: Arc<TokioClock>,
    random: SeededRandom,
    storage: MemoryStorage,
}

async fn modify(
    world: &World,
    vm: &str,
    xml: &str,
    restart: bool,
) -> Result<vm::Modified, ChangeError<DefineRefusal>> {
    vm::modify(&world.store, vm, &Modify { restart, ..Modify::new(xml) }).await
}

impl World {
    async fn with_nodes(names: &[&str]) -> World {
        let tree = EmbeddedTree::in_memory();
        let clock = Arc::new(TokioClock::new());
        let store = Store::open(tree.connect(), clock.clone(), Arc::new(SeededRandom::new(1)))
            .await
            .unwrap();
        cluster::initialize(&store, false).await.unwrap();
        let world = World {
            tree,
            store,
            clock,
            random: SeededRandom::new(2),
            storage: MemoryStorage::new(),
        };
        for name in names {
            world.add_node(name).await;
        }
        world
    }

    async fn add_node(&self, name: &str) {
        let node = NewNode {
            name: name.into(),
            role: NodeRole::Coordinator,
            cpus: 8,
            kernel: "6.1.0".into(),
            os: "GNU/Linux".into(),
            arch: "x86_64".into(),
            version: "0.2.0".into(),
            keepalive: 1,
            ipmi: Ipmi::default(),
        };
        self.write(|changes| {
            changes.push(Change::AddNode(Box::new(node.clone())));
        })
        .await;
        self.write(|changes| {
            changes
                .node(&name.into(), NodeChange::Daemon(DaemonState::Run))
                .node(&name.into(), NodeChange::Domain(DomainState::Ready));
        })
        .await;
        let figures = NodeFigures {
            memory_total_mib: 16_000,
            memory_used_mib: 1000,
            memory_free_mib: 15_000,
            ..NodeFigures::default()
        };
        self.store.report(vec![Report::Figures(name.into(), figures)]).await.unwrap();
    }

    /// With the VM `web1` that has the volumes `web1_sda` and `web1_sdb`.
    async fn with_two_volumes() -> World {
        let world = World::with_nodes(&["hv1"]).await;
        let disk = "<disk type='network'><source protocol='rbd' name='vms/web1_sdb'/><target \
                    dev='sdb'/></disk>";
        let two = xml("web1", UUID).replace("<console", &format!("{disk}<console"));
        vm::define(&world.store, &Define::new(two)).await.unwrap();
        for volume in ["vms/web1_sda", "vms/web1_sdb"] {
            world.storage.insert(volume);
        }
        world
    }

    async fn rename(&self, vm: &str, to: &str) -> Result<vm::Renamed, ChangeError<RenameRefusal>> {
        let ask =
            vm::Rename { vm: vm.to_owned(), to: to.to_owned(), submitter: "tests".to_owned() };
        let (clock, random) = (self.clock.as_ref(), &self.random);
        vm::rename(&self.store, clock, random, &self.storage, &ask, RENAME_TIME_LIMIT).await
    }

    /// A worker of this version is there, and does nothing.
    async fn announce_worker(&self, node: &str) {
        let kinds = JobWork::KINDS.map(str::to_owned).into_iter().collect();
        self.store.announce_worker(&node.into(), &WorkerRecord { kinds }).await.unwrap();
    }

    /// The store as another process sees it, in a session of its own, with its connection.
    async fn slow_process(&self) -> (Store, Arc<FlakyTree>) {
        let connection = FlakyTree::new(self.tree.connect());
        let random = Arc::new(SeededRandom::new(4));
        (Store::open(connection.clone(), self.clock.clone(), random).await.unwrap(), connection)
    }

    async fn write(&self, change: impl Fn(&mut Changes) + Send + Sync) {
        self.store
            .change(|_| {
                let mut changes = Changes::new();
                change(&mut changes);
                Ok::<_, std::convert::Infallible>((changes, ()))
            })
            .await
            .unwrap();
    }

    async fn state(&self, state: VmState) {
        self.write(|changes| {
            changes.vm(UUID, VmChange::State(state.clone()));
        })
        .await;
    }

    async fn running(&self, node: &str, vms: &[Uuid]) {
        self.store.report(vec![Report::Running(node.into(), vms.to_vec())]).await.unwrap();
        self.store.fresh().await.unwrap();
    }

    async fn working_on(&self, node: &str, vms: &[Uuid]) {
        self.store.report(vec![Report::WorkingOn(node.into(), vms.to_vec())]).await.unwrap();
        self.store.fresh().await.unwrap();
    }

    async fn memory(&self, node: &str, free_mib: u64) {
        let figures = NodeFigures {
            memory_total_mib: 16_000,
            memory_free_mib: free_mib,
            ..NodeFigures::default()
        };
        self.store.report(vec![Report::Figures(node.into(), figures)]).await.unwrap();
        self.store.fresh().await.unwrap();
    }

    async fn domain_state(&self, node: &str, state: DomainState) {
        self.write(|changes| {
            changes.node(&node.into(), NodeChange::Domain(state.clone()));
        })
        .await;
    }

    async fn define(&self, name: &str, uuid: Uuid) {
        vm::define(&self.store, &Define::new(xml(name, uuid))).await.unwrap();
    }

    fn vm(&self) -> Arc<VmRecord> {
        self.store.view().vms[&UUID].clone()
    }

    /// Its node ends the guest, and then the VM is disabled.
    async fn is_disabled_when_its_guest_is_gone(&self, outcome: &vm::StateOutcome) {
        let node = self.play_node();
        let time_limit = Duration::from_secs(200);
        vm::finish_disable(&self.store, self.clock.as_ref(), outcome, time_limit).await.unwrap();
        assert_eq!(self.vm().state, VmState::Disable);
        assert!(self.store.view().nodes["hv1"].running.is_empty());
        node.abort();
    }

    /// Plays the node `hv1`: a VM that is to be off is off a moment later.
    fn play_node(&self) -> tokio::task::JoinHandle<()> {
        let store = self.store.clone();
        tokio::spawn(async move {
            let mut changed = store.changed();
            let mut stamp = 100;
            loop {
                stamp += 1;
                store.stamp(&"hv1".into(), stamp).await.unwrap();
                let view = store.view();
                let off = |uuid: &Uuid| {
                    let state = view.vms.get(uuid).map(|vm| vm.state.clone());
                    matches!(state, None | Some(VmState::Stop | VmState::Shutdown))
                };
                let running = &view.nodes["hv1"].running;
                let left: Vec<_> = running.iter().filter(|uuid| !off(uuid)).copied().collect();
                if left != *running {
                    store.report(vec![Report::Running("hv1".into(), left)]).await.unwrap();
                }
                for vm in view.vms.values().filter(|vm| vm.state == VmState::Shutdown) {
                    let decide = |_: &pvc_model::cluster::Cluster| {
                        let mut changes = Changes::new();
                        changes.vm(vm.uuid, VmChange::State(VmState::Stop));
                        Ok::<_, std::convert::Infallible>((changes, ()))
                    };
                    store.change(decide).await.unwrap();
                }
                let _ = tokio::time::timeout(Duration::from_secs(5), changed.changed()).await;
            }
        })
    }
}

fn xml(name: &str, uuid: Uuid) -> String {
    format!(
        "<?xml version='1.0' encoding='UTF-8'?>\n<domain type='kvm'>\n  <!-- {name}'s own \
         -->\n  <name>{name}</name>\n  \
         <uuid>{uuid}</uuid>\n  <memory unit='MiB'>512</memory>\n  <vcpu>1</vcpu>\n  \
         <os><type arch='x86_64' \
         machine='pc'>hvm</type></os>\n  <devices>\n    <emulator>/usr/bin/kvm</emulator>\n    \
         <disk type='network' device='disk'>\n      <source protocol='rbd' \
         name='vms/{name}_sda'/>\n      \
         <target dev='sda' bus='scsi'/>\n    </disk>\n    <console \
         type='pty'/>\n  </devices>\n</domain>"
    )
}

fn id(text: &str) -> VolumeId {
    VolumeId::parse(text).unwrap()
}

#[track_caller]
fn refused<T: std::fmt::Debug, R: Refusal>(outcome: Result<T, ChangeError<R>>) -> R {
    match outcome {
        Err(ChangeError::Refused(refusal)) => refusal,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[tokio::test]
async fn a_vm_is_defined_with_all_that_is_recorded_of_it() {
    let world = World::with_nodes(&["hv1"]).await;
    let ask = Define {
        node_limit: vec!["hv1".into()],
        selector: Some(Selector::Load),
        user_tags: vec!["daily".into(), "web".into()],
        protected_tags: vec!["daily".into()],
        max_downtime_ms: 500,
        expected: Some("web1".into()),
        ..Define::new(xml("web1", UUID))
    };
    let defined = vm::define(&world.store, &ask).await.unwrap();
    assert_eq!((defined.name.as_str(), defined.node.as_str()), ("web1", "hv1"));
    assert_eq!(defined.warnings, Vec::<String>::new());
    let record = world.vm();
    assert_eq!((&record.state, record.max_downtime_ms), (&VmState::Stop, 500));
    assert!(record.xml.starts_with("<domain type='kvm'>\n  <!-- web1's own -->"), "{}", record.xml);
    assert_eq!(record.recorded_volumes, [id("vms/web1_sda")]);
    assert_eq!(record.node_limit, [NodeName::new("hv1")]);
    let tags: Vec<_> = record.tags.iter().map(|tag| (tag.name.as_str(), tag.protected)).collect();
    assert_eq!(tags, [("daily", true), ("web", false)]);
    assert_eq!(record.defects, Vec::<String>::new());
}

#[tokio::test]
async fn a_definition_that_cannot_be_is_refused_and_leaves_nothing() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let before = world.store.view().revision;
    let with = |change: fn(&mut Define)| {
        let mut ask = Define::new(xml("db1", OTHER));
        change(&mut ask);
        ask
    };
    for (ask, expected) in [
        (with(|ask| ask.xml = "<domain>".into()), "the domain XML cannot be taken"),
        (with(|ask| ask.xml = xml("web1", OTHER)), "a VM called `web1` exists already"),
        (
            with(|ask| ask.xml = xml("db1", UUID)),
            "a VM with UUID `2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1` exists already: `web1`",
        ),
        (with(|ask| ask.xml = xml(&OTHER.to_string(), OTHER)), "is written like a UUID"),
        (with(|ask| ask.node = Some("hv9".into())), "there is no node `hv9`"),
        (with(|ask| ask.node_limit = vec!["hv9".into()]), "there is no node `hv9`"),
        (with(|ask| ask.user_tags = vec!["a/b".into()]), "tag `a/b` can have"),
        (
            with(|ask| ask.expected = Some("web2".into())),
            "the XML is that of VM `db1`, not of `web2`",
        ),
        (
            with(|ask| ask.xml = ask.xml.replace("'MiB'>512", "'GiB'>512")),
            "has 16000 MiB of memory in all",
        ),
        (
            with(|ask| ask.xml = ask.xml.replace("<vcpu>1", "<vcpu>6")),
            "of which a VM may have 5 (all but 3)",
        ),
    ] {
        let refusal = refused(vm::define(&world.store, &ask).await);
        assert!(refusal.to_string().contains(expected), "{expected}: {refusal}");
    }
    assert_eq!(world.store.view().revision, before);
    let large = with(|ask| ask.xml = ask.xml.replace("<vcpu>1", "<vcpu>6"));
    let hint = refused(vm::define(&world.store, &large).await).hint().unwrap();
    assert_eq!(hint, "give the VM at most 5 vCPUs, or choose a node with more CPUs");
}

#[tokio::test]
async fn of_two_definitions_with_one_name_one_is_made() {
    let world = World::with_nodes(&["hv1"]).await;
    let (first, second) = (Define::new(xml("web1", UUID)), Define::new(xml("web1", OTHER)));
    let outcomes =
        tokio::join!(vm::define(&world.store, &first), vm::define(&world.store, &second));
    let made = [outcomes.0.is_ok(), outcomes.1.is_ok()];
    assert!(made[0] != made[1], "{outcomes:?}");
    assert_eq!(world.store.view().vms.len(), 1);
}

#[tokio::test]
async fn without_a_node_the_reason_is_told_for_each() {
    let world = World::with_nodes(&["hv1"]).await;
    node::set_domain_state(&world.store, "hv1", DomainRequest::Flush).await.unwrap();
    let refusal = refused(vm::define(&world.store, &Define::new(xml("web1", UUID))).await);
    assert_eq!(
        refusal.to_string(),
        "no node can take the VM: `hv1` is in domain state `flush`, not `ready`"
    );
    assert!(refusal.hint().unwrap().contains("pvc node ready"));
}

/// A VM of 10,000 MiB on nodes that have 15,000 MiB free, to run at once.
fn large(number: u128) -> Define {
    let text =
        xml(&format!("large{number}"), Uuid::from_u128(number)).replace("'MiB'>512", "'MiB'>10000");
    Define { state: VmState::Start, ..Define::new(text) }
}

#[tokio::test]
async fn what_is_promised_to_one_vm_is_not_promised_to_the_next() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    for (number, node) in [(1, "hv1"), (2, "hv2")] {
        assert_eq!(vm::define(&world.store, &large(number)).await.unwrap().node.as_str(), node);
    }
    let refusal = refused(vm::define(&world.store, &large(3)).await);
    assert_eq!(
        refusal.to_string(),
        "no node can take the VM: `hv1` has 5000 MiB of memory free, and the VM needs 10000 MiB; \
         `hv2` has 5000 MiB of memory free, and the VM needs 10000 MiB"
    );
    let off = Define { state: VmState::Stop, ..large(3) };
    vm::define(&world.store, &off).await.unwrap();
}

#[tokio::test]
async fn who_is_faster_gets_the_memory_and_the_slower_chooses_again() {
    for faster_migrates in [false, true] {
        let world = World::with_nodes(&["hv1", "hv2", "hv3"]).await;
        let full = NodeFigures {
            memory_total_mib: 16_000,
            memory_free_mib: 1000,
            ..NodeFigures::default()
        };
        world.store.report(vec![Report::Figures("hv1".into(), full)]).await.unwrap();
        let here = Define { node: Some("hv1".to_owned()), ..large(1) };
        vm::define(&world.store, &here).await.unwrap();
        world.running("hv1", &[Uuid::from_u128(1)]).await;

        let (slow, connection) = world.slow_process().await;
        let faster = world.store.clone();
        connection.before_next_multi(async move {
            if faster_migrates {
                vm::move_vm(&faster, "large1", &moving(Movement::Migrate, None)).await.unwrap();
            } else {
                vm::define(&faster, &large(3)).await.unwrap();
            }
        });
        let defined = vm::define(&slow, &large(2)).await.unwrap();
        assert_eq!(
            defined.node.as_str(),
            "hv3",
            "hv2 was promised meanwhile, migrates: {faster_migrates}"
        );
    }
}

#[tokio::test]
async fn a_modification_is_of_the_vm_it_says() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.define("db1", OTHER).await;
    let refusal = refused(modify(&world, "db1", &xml("web1", UUID), false).await);
    assert!(matches!(refusal, DefineRefusal::OtherVm { .. }));
    let cluster = world.store.view();
    assert_eq!(
        vm::check_modify(&cluster, "db1", &Modify::new(xml("web1", UUID))).unwrap_err(),
        refusal
    );
    assert_eq!(
        vm::check_modify(&cluster, "web1", &Modify::new(xml("web1", UUID))).unwrap().name,
        "web1"
    );

    let larger =
        xml("web1", UUID).replace("'MiB'>512", "'MiB'>1024").replace("web1_sda", "web1_root");
    let modified = modify(&world, "web1", &larger, true).await.unwrap();
    assert!(!modified.restarted, "a stopped VM is not started by a modification");
    assert_eq!(world.vm().memory_mib(), 1024);
    assert_eq!(world.vm().recorded_volumes, [id("vms/web1_root")]);

    world.state(VmState::Start).await;
    assert!(modify(&world, &UUID.to_string(), &larger, true).await.unwrap().restarted);
    assert_eq!(world.vm().state, VmState::Restart);
    let renamed = refused(modify(&world, "web1", &xml("web2", UUID), false).await);
    assert!(matches!(renamed, DefineRefusal::NameInUse { .. }), "{renamed}");
}

#[tokio::test]
async fn a_start_that_takes_more_memory_than_there_is_is_warned_of_or_refused() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.define("db1", OTHER).await;
    let figures = NodeFigures { memory_total_mib: 1000, ..NodeFigures::default() };
    world.store.report(vec![Report::Figures("hv1".into(), figures)]).await.unwrap();
    let ask =
        StateAsk { refuse_memory_overcommit: true, ..StateAsk::new(StateRequest::Start, false) };
    vm::set_state(&world.store, "web1", ask).await.unwrap();
    let refusal = refused(vm::set_state(&world.store, "db1", ask).await);
    let StateRefusal::Crowded { crowding, .. } = &refusal else { panic!("{refusal}") };
    assert_eq!((crowding.has_mib, crowding.wanted_mib), (1000, 1024));
    for ask in
        [StateAsk { force: true, ..ask }, StateAsk { refuse_memory_overcommit: false, ..ask }]
    {
        let outcome = vm::set_state(&world.store, "db1", ask).await.unwrap();
        assert!(outcome.warnings[0].contains("1000 MiB"), "{outcome:?}");
        vm::set_state(&world.store, "db1", StateAsk::new(StateRequest::Stop, false)).await.unwrap();
    }
}

#[tokio::test]
async fn a_function_of_a_card_is_given_to_no_vm_and_taken_from_none() {
    let world = World::with_nodes(&["hv1"]).await;
    let with = |functions: &[&str]| {
        let nic = |function: &&str| {
            format!(
                "<interface type='hostdev'><mac \
                 address='52:54:00:00:00:01'/><sriov_device>{function}</sriov_device></interface>"
            )
        };
        let nics: String = functions.iter().map(nic).collect();
        xml("web1", UUID).replace("<console", &format!("{nics}<console"))
    };
    let refusal = refused(vm::define(&world.store, &Define::new(with(&["ens1f0v3"]))).await);
    assert!(
        matches!(&refusal, DefineRefusal::Nic(NicRefusal::FunctionTaken { function }) if function == "ens1f0v3"),
        "{refusal}"
    );

    world.define("web1", UUID).await;
    refused(modify(&world, "web1", &with(&["ens1f0v3"]), false).await);
    // As one of PVC 1.0.3 has defined it.
    world.write(|changes| _ = changes.vm(UUID, VmChange::Xml(with(&["ens1f0v3"])))).await;
    modify(&world, "web1", &with(&["ens1f0v3"]).replace(">512<", ">1024<"), false).await.unwrap();
    assert_eq!(world.vm().memory_mib(), 1024);
    refused(modify(&world, "web1", &with(&["ens1f0v3", "ens1f0v4"]), false).await);
    modify(&world, "web1", &with(&[]), false).await.unwrap();
}

#[tokio::test]
async fn states_are_asked_for_and_refused() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let ask = |request, force| vm::set_state(&world.store, "web1", StateAsk::new(request, force));
    let refusal = refused(ask(StateRequest::Restart, false).await);
    assert_eq!(
        refusal.to_string(),
        "VM `web1` cannot be restarted: the VM is in state `stop`, not `start`"
    );
    let before = world.vm().state_version;
    ask(StateRequest::Start, false).await.unwrap();
    ask(StateRequest::Start, false).await.unwrap();
    assert_eq!(world.vm().state, VmState::Start);
    assert_eq!(world.vm().state_version, before + 2, "each request is one");
    let outcome = ask(StateRequest::Shutdown, false).await.unwrap();
    assert_eq!(outcome.answer, Answer::Write(VmState::Shutdown));
    assert_eq!(ask(StateRequest::Shutdown, false).await.unwrap().answer, Answer::UnderWay);
    let unknown = refused(
        vm::set_state(&world.store, "nope\u{7}", StateAsk::new(StateRequest::Start, false)).await,
    );
    assert_eq!(
        (unknown.to_string().as_str(), unknown.kind()),
        ("there is no VM `nope\u{fffd}`", Kind::NotFound)
    );
}

#[tokio::test]
async fn a_vm_that_waits_for_its_node_and_is_to_be_off_waits_no_more() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    for (state, request) in [
        (VmState::Stop, StateRequest::Stop),
        (VmState::Stop, StateRequest::Disable),
        (VmState::Shutdown, StateRequest::Shutdown),
        (VmState::Start, StateRequest::Shutdown),
    ] {
        world.state(state).await;
        let waits = |changes: &mut Changes| _ = changes.vm(UUID, VmChange::Autostart(true));
        world.write(waits).await;
        vm::set_state(&world.store, "web1", StateAsk::new(request, false)).await.unwrap();
        assert!(!world.vm().autostart, "{request:?}");
    }
    world.write(|changes| _ = changes.vm(UUID, VmChange::Autostart(true))).await;
    vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Start, false)).await.unwrap();
    assert!(world.vm().autostart, "its node takes that back when it is ready");
}

#[tokio::test]
async fn a_stop_that_a_legacy_node_would_lose_is_refused_unless_forced() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    world.running("hv1", &[UUID]).await;
    world
        .write(|changes| {
            changes
                .vm(UUID, VmChange::State(VmState::Migrate))
                .vm(UUID, VmChange::Node("hv2".into()));
        })
        .await;
    let stop =
        |force| vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Stop, force));
    world.store.announce_daemon(&"hv1".into(), "test").await.unwrap();
    let refusal = refused(stop(false).await);
    assert_eq!(
        refusal.to_string(),
        "VM `web1` cannot be stopped while it is being moved: node `hv2` has a part in it, is of \
         an older version, \
         and would not keep to it"
    );
    assert!(refusal.kind() == Kind::Conflict && refusal.hint().unwrap().contains("`--force`"));
    assert_eq!(world.vm().state, VmState::Migrate);
    stop(true).await.unwrap();
    assert_eq!(world.vm().state, VmState::Stop);

    world.state(VmState::Migrate).await;
    world.store.announce_daemon(&"hv2".into(), "test").await.unwrap();
    stop(false).await.unwrap();
    assert_eq!(world.vm().state, VmState::Stop, "both are of this version");
}

#[tokio::test]
async fn a_vm_whose_xml_cannot_be_read_does_not_start() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world
        .write(|changes| {
            changes.vm(UUID, VmChange::Xml("<domain>".into()));
        })
        .await;
    let refusal = refused(
        vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Start, true)).await,
    );
    assert!(matches!(refusal, StateRefusal::Unreadable { .. }), "{refusal}");
    assert_eq!(world.vm().state, VmState::Stop);
}

#[tokio::test]
async fn of_two_vms_with_one_volume_the_second_hears_of_the_first() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let same = xml("db1", OTHER).replace("vms/db1_sda", "vms/web1_sda");
    vm::define(&world.store, &Define::new(same.clone())).await.unwrap();
    let start = |vm: &'static str| {
        vm::set_state(&world.store, vm, StateAsk::new(StateRequest::Start, false))
    };
    start("web1").await.unwrap();
    start("web1").await.unwrap();
    let refusal = refused(start("db1").await);
    assert_eq!(
        refusal.to_string(),
        "VM `db1` cannot be started: its volume `vms/web1_sda` is in use by VM `web1`, which is in \
         state `start`"
    );
    assert!(
        refusal.kind() == Kind::Conflict
            && refusal.hint().unwrap().starts_with("shut VM `web1` down first")
    );
    // Off by its record, and its guest is not gone yet.
    world.state(VmState::Stop).await;
    world.running("hv1", &[UUID]).await;
    assert!(matches!(refused(start("db1").await), StateRefusal::VolumeInUse { .. }));
    world.running("hv1", &[]).await;
    start("db1").await.unwrap();

    world.write(|changes| _ = changes.vm(OTHER, VmChange::State(VmState::Stop))).await;
    let both = |text: &str| {
        text.replace("<target dev='sda' bus='scsi'/>", "<target dev='sda' bus='scsi'/><shareable/>")
    };
    modify(&world, "web1", &both(&xml("web1", UUID)), false).await.unwrap();
    modify(&world, "db1", &both(&same), false).await.unwrap();
    start("web1").await.unwrap();
    start("db1").await.unwrap();
}

/// The guest would be ended, and then not start again.
#[tokio::test]
async fn a_restart_that_would_end_in_nothing_is_refused_before_the_guest_is_ended() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let same = xml("db1", OTHER).replace("vms/db1_sda", "vms/web1_sda");
    vm::define(&world.store, &Define::new(same)).await.unwrap();
    for vm in [UUID, OTHER] {
        world.write(|changes| _ = changes.vm(vm, VmChange::State(VmState::Start))).await;
    }
    let restart = vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Restart, false));
    let refusal = refused(restart.await);
    assert!(
        matches!(&refusal, StateRefusal::VolumeInUse { other, .. } if other == "db1"),
        "{refusal}"
    );
    let bigger = xml("web1", UUID).replace("</vcpu>", "</vcpu><!-- new -->");
    let refusal = refused(modify(&world, "web1", &bigger, true).await);
    assert!(refusal.kind() == Kind::Conflict && refusal.to_string().contains("`db1`"), "{refusal}");
    assert_eq!(world.vm().state, VmState::Start);
    // Without a restart nobody is ended.
    modify(&world, "web1", &bigger, false).await.unwrap();
}

#[tokio::test]
async fn a_start_that_promises_more_memory_than_there_is_says_so() {
    let world = World::with_nodes(&["hv1"]).await;
    let large = |name: &str, uuid| {
        let (before, rest) = xml(name, uuid)
            .split_once("<memory")
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .unwrap();
        let after = rest.split_once("</memory>").unwrap().1.to_owned();
        format!("{before}<memory unit='MiB'>10000</memory>{after}")
    };
    for (name, uuid) in [("web1", UUID), ("db1", OTHER)] {
        vm::define(&world.store, &Define::new(large(name, uuid))).await.unwrap();
    }
    let start = |vm: &'static str| {
        vm::set_state(&world.store, vm, StateAsk::new(StateRequest::Start, false))
    };
    assert!(start("web1").await.unwrap().warnings.is_empty());
    let warnings = start("db1").await.unwrap().warnings;
    assert!(
        warnings[0].contains("node `hv1` has 16000 MiB") && warnings[0].contains("20000 MiB"),
        "{warnings:?}"
    );
}

#[tokio::test]
async fn of_two_vms_with_one_volume_that_are_started_at_once_one_is() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let same = xml("db1", OTHER).replace("vms/db1_sda", "vms/web1_sda");
    vm::define(&world.store, &Define::new(same)).await.unwrap();
    let (slow, connection) = world.slow_process().await;
    let faster = world.store.clone();
    connection.before_next_multi(async move {
        vm::set_state(&faster, "web1", StateAsk::new(StateRequest::Start, false)).await.unwrap();
    });
    let refusal =
        refused(vm::set_state(&slow, "db1", StateAsk::new(StateRequest::Start, false)).await);
    assert!(matches!(refusal, StateRefusal::VolumeInUse { .. }), "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn a_running_vm_is_disabled_after_it_stopped() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    for force in [false, true] {
        world.state(VmState::Start).await;
        world.running("hv1", &[UUID]).await;
        let outcome =
            vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Disable, force))
                .await
                .unwrap();
        world.is_disabled_when_its_guest_is_gone(&outcome).await;
    }
}

/// Found by a seed: its node leaves a disabled guest alone.
#[tokio::test(start_paused = true)]
async fn a_vm_that_is_being_stopped_is_disabled_when_its_guest_is_gone() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.state(VmState::Stop).await;
    world.running("hv1", &[UUID]).await;
    let outcome = vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Disable, false))
        .await
        .unwrap();
    assert_eq!(world.vm().state, VmState::Stop);
    world.is_disabled_when_its_guest_is_gone(&outcome).await;
}

/// Found by a seed: a disabled VM was to be started with its node, which never does that.
#[tokio::test(start_paused = true)]
async fn a_vm_that_a_flush_shut_down_before_the_order_was_heard_waits_for_nothing_once_it_is_disabled()
 {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.state(VmState::Start).await;
    world.running("hv1", &[UUID]).await;
    let outcome = vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Disable, false))
        .await
        .unwrap();
    world.write(|changes| _ = changes.vm(UUID, VmChange::Autostart(true))).await;
    world.is_disabled_when_its_guest_is_gone(&outcome).await;
    assert!(!world.vm().autostart);
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_does_not_stop_or_is_started_again_is_not_disabled() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.state(VmState::Start).await;
    let outcome = vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Disable, false))
        .await
        .unwrap();
    let time_limit = Duration::from_secs(200);
    let slow =
        refused(vm::finish_disable(&world.store, world.clock.as_ref(), &outcome, time_limit).await);
    assert!(matches!(slow, StateRefusal::TooSlow { seconds: 200, .. }));
    world.state(VmState::Start).await;
    let turned =
        refused(vm::finish_disable(&world.store, world.clock.as_ref(), &outcome, time_limit).await);
    assert!(matches!(turned, StateRefusal::StateChanged { state: VmState::Start, .. }));
}

#[tokio::test(start_paused = true)]
async fn a_running_vm_is_stopped_before_it_is_removed_with_its_volumes() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.storage.insert("vms/web1_sda");
    world.state(VmState::Start).await;
    world.running("hv1", &[UUID]).await;
    let node = world.play_node();
    let removed =
        vm::remove(&world.store, world.clock.as_ref(), Some(&world.storage), "web1").await.unwrap();
    node.abort();
    assert_eq!(removed.volumes, [id("vms/web1_sda")]);
    assert!(world.store.view().vms.is_empty());
    assert!(world.storage.volume(&id("vms/web1_sda")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_start_under_way_is_waited_for_before_a_removal() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.state(VmState::Start).await;
    // Nobody lists it as running yet, and the node says nothing: its start may be under way.
    let refusal = refused(vm::remove(&world.store, world.clock.as_ref(), None, "web1").await);
    assert!(matches!(refusal, RemoveRefusal::DoesNotStop { .. }), "{refusal}");
    assert_eq!(world.vm().state, VmState::Stop);
    let _node = world.play_node();
    vm::remove(&world.store, world.clock.as_ref(), None, "web1").await.unwrap();
    assert!(world.store.view().vms.is_empty());
}

/// Found by a seed: a node stood still in the middle of a start, in maintenance, so that its record
/// said `run`; the VM was undefined meanwhile, and its guest ran when the node went on.
#[tokio::test(start_paused = true)]
async fn a_vm_that_a_node_is_at_starting_is_not_taken_for_gone() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    world.working_on("hv2", &[UUID]).await;
    let refusal = refused(vm::remove(&world.store, world.clock.as_ref(), None, "web1").await);
    assert!(matches!(refusal, RemoveRefusal::DoesNotStop { .. }), "{refusal}");
    world.working_on("hv2", &[]).await;
    vm::remove(&world.store, world.clock.as_ref(), None, "web1").await.unwrap();
}

/// Found by a seed: the guest had arrived while its node's daemon was away, and nobody had counted
/// it yet.
#[tokio::test(start_paused = true)]
async fn a_vm_whose_nodes_daemon_begins_anew_is_not_taken_for_gone_before_that_has_looked() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    for away in [DaemonState::Init, DaemonState::Stop, DaemonState::Dead] {
        world.state(VmState::Start).await;
        world
            .write(|changes| _ = changes.node(&"hv1".into(), NodeChange::Daemon(away.clone())))
            .await;
        let refusal = refused(vm::remove(&world.store, world.clock.as_ref(), None, "web1").await);
        assert!(matches!(refusal, RemoveRefusal::NodeSilent { .. }), "{away}: {refusal}");
    }
    world.state(VmState::Start).await;
    world
        .write(|changes| _ = changes.node(&"hv1".into(), NodeChange::Daemon(DaemonState::Fenced)))
        .await;
    vm::remove(&world.store, world.clock.as_ref(), None, "web1").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn of_several_silent_nodes_that_list_a_vm_the_one_that_stays_silent_decides() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    for node in ["hv1", "hv2"] {
        world.running(node, &[UUID]).await;
    }
    let daemon = |node: &'static str, state: DaemonState| {
        world
            .write(move |changes| _ = changes.node(&node.into(), NodeChange::Daemon(state.clone())))
    };
    daemon("hv1", DaemonState::Init).await;
    daemon("hv2", DaemonState::Dead).await;
    let refusal = refused(vm::remove(&world.store, world.clock.as_ref(), None, "web1").await);
    assert!(
        matches!(&refusal, RemoveRefusal::NodeSilent(silent) if silent.node == "hv2".into()),
        "{refusal}"
    );

    // Off by its record, and listed by a node whose daemon begins anew: its word is waited for.
    world.running("hv2", &[]).await;
    world.state(VmState::Disable).await;
    let early = vm::check_remove(&world.store.fresh().await.unwrap(), "web1", false);
    early.unwrap();
    let refusal = refused(vm::remove(&world.store, world.clock.as_ref(), None, "web1").await);
    assert!(
        matches!(&refusal, RemoveRefusal::NodeSilent(silent) if silent.node == "hv1".into()),
        "{refusal}"
    );
    world.running("hv1", &[]).await;
    daemon("hv1", DaemonState::Run).await;
    vm::remove(&world.store, world.clock.as_ref(), None, "web1").await.unwrap();
}

/// Found by a story: the record went while the guest may have run on.
#[tokio::test(start_paused = true)]
async fn a_vm_whose_node_falls_silent_while_it_stops_is_not_taken_for_gone() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let daemon = |state: DaemonState| {
        world.write(move |changes| {
            changes.node(&"hv1".into(), NodeChange::Daemon(state.clone()));
        })
    };
    let running = async || {
        daemon(DaemonState::Run).await;
        world.state(VmState::Start).await;
        world.running("hv1", &[UUID]).await;
    };
    let later = |state: DaemonState| {
        let (store, daemon) = (world.store.clone(), NodeChange::Daemon(state));
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            let mut changes = Changes::new();
            changes.node(&"hv1".into(), daemon);
            store
                .change(|_| Ok::<_, std::convert::Infallible>((changes.clone(), ())))
                .await
                .unwrap();
        })
    };
    running().await;
    let silent = later(DaemonState::Dead);
    let refusal = refused(vm::remove(&world.store, world.clock.as_ref(), None, "web1").await);
    silent.await.unwrap();
    assert!(matches!(refusal, RemoveRefusal::NodeSilent { .. }), "{refusal}");

    // Neither is one that was told to stop while its node's daemon was away.
    running().await;
    world.state(VmState::Stop).await;
    daemon(DaemonState::Stop).await;
    refused(vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Disable, false)).await);

    running().await;
    let outcome = vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Disable, true))
        .await
        .unwrap();
    daemon(DaemonState::Dead).await;
    let time_limit = Duration::from_secs(30);
    let refusal =
        refused(vm::finish_disable(&world.store, world.clock.as_ref(), &outcome, time_limit).await);
    assert!(matches!(refusal, StateRefusal::NodeSilent { .. }), "{refusal}");
    assert_eq!(world.vm().state, VmState::Stop, "its node will pull the plug, if it still can");

    // What cannot happen soon is refused at once, and nothing is written.
    for (state, force) in [(VmState::Start, true), (VmState::Start, false), (VmState::Stop, true)] {
        running().await;
        world.state(state.clone()).await;
        daemon(DaemonState::Dead).await;
        let began = tokio::time::Instant::now();
        let refusal = refused(
            vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Disable, force)).await,
        );
        assert!(matches!(refusal, StateRefusal::NodeSilent { .. }), "{refusal}");
        let refusal = refused(vm::remove(&world.store, world.clock.as_ref(), None, "web1").await);
        assert!(matches!(refusal, RemoveRefusal::NodeSilent { .. }), "{refusal}");
        assert_eq!((began.elapsed(), world.vm().state.clone()), (Duration::ZERO, state));
    }

    running().await;
    let fenced = later(DaemonState::Fenced);
    vm::remove(&world.store, world.clock.as_ref(), None, "web1").await.unwrap();
    fenced.await.unwrap();
    assert!(world.store.view().vms.is_empty(), "what is proven dead is gone");
}

#[tokio::test]
async fn undefining_leaves_the_volumes() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.storage.insert("vms/web1_sda");
    vm::remove(&world.store, world.clock.as_ref(), None, "web1").await.unwrap();
    assert!(world.store.view().vms.is_empty());
    assert!(world.storage.volume(&id("vms/web1_sda")).await.is_ok());
}

#[tokio::test]
async fn a_removal_whose_volumes_resist_leaves_the_vm() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.storage.set_failing(true);
    let refusal =
        refused(vm::remove(&world.store, world.clock.as_ref(), Some(&world.storage), "web1").await);
    assert!(
        matches!(&refusal, RemoveRefusal::Volume { removed, .. } if removed.is_empty()),
        "{refusal}"
    );
    assert_eq!(world.vm().state, VmState::Stop, "and can be started again");
    world.storage.set_failing(false);
    vm::remove(&world.store, world.clock.as_ref(), Some(&world.storage), "web1").await.unwrap();
    assert!(world.store.view().vms.is_empty());
}

#[tokio::test]
async fn a_volume_that_another_vm_uses_is_not_removed_with_the_first() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let shared = Define::new(xml("db1", OTHER).replace("vms/db1_sda", "vms/web1_sda"));
    let defined = vm::define(&world.store, &shared).await.unwrap();
    assert!(defined.warnings[0].contains("is used by VM `web1`, too"), "{:?}", defined.warnings);
    let refusal =
        refused(vm::remove(&world.store, world.clock.as_ref(), Some(&world.storage), "web1").await);
    assert!(matches!(refusal, RemoveRefusal::Shared { .. }), "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_another_vm_comes_to_use_while_the_first_stops_is_not_removed() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.storage.insert("vms/web1_sda");
    world.state(VmState::Start).await;
    world.running("hv1", &[UUID]).await;
    let removal = vm::remove(&world.store, world.clock.as_ref(), Some(&world.storage), "web1");
    let meanwhile = async {
        let stopped = || world.vm().state == VmState::Stop;
        pvc_testkit::eventually("the stop is written", Duration::from_secs(30), stopped).await;
        let shared = Define::new(xml("db1", OTHER).replace("vms/db1_sda", "vms/web1_sda"));
        vm::define(&world.store, &shared).await.unwrap();
        drop(world.play_node());
    };
    let (outcome, ()) = tokio::join!(removal, meanwhile);
    let refusal = refused(outcome);
    assert!(matches!(refusal, RemoveRefusal::Shared { .. }), "{refusal}");
    assert!(world.storage.volume(&id("vms/web1_sda")).await.is_ok());
    assert_eq!(world.vm().state, VmState::Stop);
}

#[tokio::test]
async fn nobody_takes_a_volume_that_goes_with_its_vm() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.define("db1", OTHER).await;
    world.state(VmState::Delete).await;
    let taking = xml("db1", OTHER).replace("vms/db1_sda", "vms/web1_sda");
    let refusal = refused(modify(&world, "db1", &taking, false).await);
    assert!(matches!(&refusal, DefineRefusal::VolumeGoes { vm, .. } if vm == "web1"), "{refusal}");
    vm::remove(&world.store, world.clock.as_ref(), None, "db1").await.unwrap();
    let refusal = refused(vm::define(&world.store, &Define::new(taking.clone())).await);
    assert!(matches!(refusal, DefineRefusal::VolumeGoes { .. }), "{refusal}");
    vm::remove(&world.store, world.clock.as_ref(), None, "web1").await.unwrap();
    vm::define(&world.store, &Define::new(taking)).await.unwrap();
}

#[tokio::test]
async fn of_a_removal_and_a_taking_at_the_same_moment_one_is_refused() {
    for by_modifying in [false, true] {
        let world = World::with_nodes(&["hv1"]).await;
        world.define("web1", UUID).await;
        world.storage.insert("vms/web1_sda");
        let taking = xml("db1", OTHER).replace("vms/db1_sda", "vms/web1_sda");
        if by_modifying {
            world.define("db1", OTHER).await;
        }
        let take = async {
            match by_modifying {
                true => modify(&world, "db1", &taking, false).await.is_ok(),
                false => vm::define(&world.store, &Define::new(taking.clone())).await.is_ok(),
            }
        };
        let remove = vm::remove(&world.store, world.clock.as_ref(), Some(&world.storage), "web1");
        let (removed, taken) = tokio::join!(remove, take);
        assert!(removed.is_ok() != taken, "{removed:?} and {taken}");
        assert_eq!(world.storage.volume(&id("vms/web1_sda")).await.is_ok(), taken);
    }
}

/// What a legacy peer writes while a VM is removed whose volumes take 10 s each.
async fn meanwhile(world: &World, change: impl Fn(&mut Changes) + Send + Sync) -> RemoveRefusal {
    world.storage.set_removal_takes(Duration::from_secs(10));
    let remove = vm::remove(&world.store, world.clock.as_ref(), Some(&world.storage), "web1");
    let write = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        world.write(change).await;
    };
    refused(tokio::join!(remove, write).0)
}

async fn exists(world: &World, volume: &str) -> bool {
    world.storage.volume(&id(volume)).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_a_legacy_peer_starts_while_it_is_removed_keeps_what_is_left() {
    let world = World::with_two_volumes().await;
    let refusal = meanwhile(&world, |changes| {
        changes.vm(UUID, VmChange::State(VmState::Start));
    })
    .await;
    assert_eq!(refusal.to_string(), "VM `web1` was started by somebody else meanwhile");
    let hint = refusal.hint().unwrap();
    assert_eq!(hint, "1 of its volumes are gone already: stop it and remove it again");
    assert_eq!(world.vm().state, VmState::Start, "that order stands");
    assert!(!exists(&world, "vms/web1_sda").await && exists(&world, "vms/web1_sdb").await);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_a_legacy_peer_gives_to_another_vm_while_its_own_is_removed_stays() {
    let world = World::with_two_volumes().await;
    let taker = pvc_store::NewVm {
        uuid: OTHER,
        name: "db1".into(),
        state: VmState::Stop,
        node: Some("hv1".into()),
        xml: xml("db1", OTHER).replace("vms/db1_sda", "vms/web1_sdb"),
        profile: None,
        volumes: vec![id("vms/web1_sdb")],
        autostart: false,
        migration_method: None,
        max_downtime_ms: 300,
        selector: None,
        node_limit: Vec::new(),
        tags: Vec::new(),
    };
    let refusal = meanwhile(&world, |changes| {
        changes.push(Change::DefineVm(Box::new(taker.clone())));
    })
    .await;
    assert_eq!(refusal.to_string(), "volume `vms/web1_sdb` of VM `web1` is used by VM `db1`, too");
    assert_eq!(world.vm().state, VmState::Stop);
    assert!(exists(&world, "vms/web1_sdb").await);
}

#[tokio::test]
async fn a_vm_that_a_legacy_peer_starts_at_the_end_of_its_removal_keeps_its_record() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let (slow, connection) = world.slow_process().await;
    let (again, faster) = (connection.clone(), world.store.clone());
    connection.before_next_multi(async move {
        // The first multi locks it out, the second drops the record.
        again.before_next_multi(async move {
            let decide = |_: &pvc_model::cluster::Cluster| {
                let mut changes = Changes::new();
                changes.vm(UUID, VmChange::State(VmState::Start));
                Ok::<_, std::convert::Infallible>((changes, ()))
            };
            faster.change(decide).await.unwrap();
        });
    });
    let refusal = refused(vm::remove(&slow, world.clock.as_ref(), None, "web1").await);
    assert_eq!(refusal.to_string(), "VM `web1` was started by somebody else meanwhile");
    assert_eq!(refusal.hint().as_deref(), Some("stop it and remove it again"));
    assert_eq!(world.vm().state, VmState::Start);
}

#[tokio::test]
async fn the_record_of_a_volume_that_is_gone_already_goes_with_its_vm() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world
        .write(|changes| {
            changes.push(Change::PutVolume { id: id("vms/web1_sda"), stats: "{}".into() });
        })
        .await;
    let removed =
        vm::remove(&world.store, world.clock.as_ref(), Some(&world.storage), "web1").await.unwrap();
    assert_eq!(removed.volumes, []);
    assert!(!world.store.view().volumes.contains_key(&id("vms/web1_sda")));
}

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
    // The VM's own node has none: it is down, or one of PVC 1.0.3.
    world.announce_worker("hv2").await;
    let started = tokio::time::Instant::now();
    let refusal = refused(world.rename("web1", "shop").await);
    assert!(matches!(refusal, RenameRefusal::GoesOn { .. }), "nobody works here: {refusal}");
    assert!(started.elapsed() >= RENAME_TIME_LIMIT);
    let view = world.store.view();
    let job = view.jobs.values().next().unwrap();
    assert_eq!((job.spec.work.name(), job.spec.node.as_str()), ("vm.rename", "hv2"));
    let ask = StateAsk::new(StateRequest::Start, false);
    let start = refused(vm::set_state(&world.store, "web1", ask).await);
    assert_eq!(start.to_string(), "VM `web1` is being renamed to `shop`");
    refused(vm::remove(&world.store, world.clock.as_ref(), Some(&world.storage), "web1").await);
    assert!(matches!(refused(world.rename("web1", "other").await), RenameRefusal::BeingRenamed(_)));
    // Nobody has begun it: it ends at once.
    job::cancel(&world.store, world.clock.as_ref(), job.spec.id.as_str()).await.unwrap();
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

#[tokio::test]
async fn metadata_is_changed_where_it_is_given_and_checked() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    let set = |meta: Meta| {
        let store = world.store.clone();
        async move { vm::set_meta(&store, "web1", &meta).await }
    };
    assert_eq!(refused(set(Meta::default()).await), MetaRefusal::NothingGiven);
    set(Meta { node_limit: Some(vec!["hv2".into()]), autostart: Some(true), ..Meta::default() })
        .await
        .unwrap();
    set(Meta { selector: Some(Some(Selector::Vms)), ..Meta::default() }).await.unwrap();
    let record = world.vm();
    assert_eq!(
        (record.node_limit.len(), record.autostart, &record.selector),
        (1, true, &Some(Selector::Vms))
    );
    set(Meta { node_limit: Some(Vec::new()), selector: Some(None), ..Meta::default() })
        .await
        .unwrap();
    assert_eq!((world.vm().node_limit.len(), world.vm().autostart), (0, true));
    let unknown =
        refused(set(Meta { node_limit: Some(vec!["hv9".into()]), ..Meta::default() }).await);
    assert!(matches!(unknown, MetaRefusal::NoNode(_)));
    assert_eq!(
        refused(set(Meta { max_downtime_ms: Some(0), ..Meta::default() }).await),
        MetaRefusal::NoDowntime
    );
}

#[tokio::test]
async fn tags_come_and_go_unless_they_are_protected() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let store = &world.store;
    vm::add_tag(store, "web1", "mirror:backup", true).await.unwrap();
    assert!(matches!(
        refused(vm::remove_tag(store, "web1", "mirror:backup").await),
        TagRefusal::Protected { .. }
    ));
    vm::add_tag(store, "web1", "mirror:backup", false).await.unwrap();
    vm::remove_tag(store, "web1", "mirror:backup").await.unwrap();
    assert!(matches!(
        refused(vm::remove_tag(store, "web1", "mirror:backup").await),
        TagRefusal::NoTag { .. }
    ));
    let long = "x".repeat(128);
    vm::add_tag(store, "web1", &long, false).await.unwrap();
    vm::remove_tag(store, "web1", &long).await.unwrap();
    for bad in ["", "a/b", "a b", "..", "ü", &"x".repeat(200)] {
        assert!(
            matches!(refused(vm::add_tag(store, "web1", bad, false).await), TagRefusal::BadTag(_)),
            "{bad}"
        );
    }
    assert_eq!(world.vm().tags, []);
}

fn moving(movement: Movement, node: Option<&str>) -> Move {
    Move { movement, node: node.map(str::to_owned), force: false, live_only: false }
}

#[tokio::test]
async fn on_one_node_there_is_nowhere_to_move_to() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let refusal = refused(vm::move_vm(&world.store, "web1", &moving(Movement::Move, None)).await);
    assert_eq!(refusal.to_string(), "no node can take the VM: `hv1` is where the VM is now");
    assert_eq!(
        refusal.hint().as_deref(),
        Some("a VM can be moved in a cluster of two nodes or more")
    );
    let refusal =
        refused(vm::move_vm(&world.store, "web1", &moving(Movement::Migrate, Some("hv1"))).await);
    assert!(matches!(refusal, MoveRefusal::AlreadyThere { .. }));
    let refusal =
        refused(vm::move_vm(&world.store, "web1", &moving(Movement::Unmigrate, None)).await);
    assert!(matches!(refusal, MoveRefusal::NotMigrated { .. }));
}

#[tokio::test]
async fn a_migrated_vm_remembers_where_it_came_from() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    let home = world.vm().node.clone().unwrap();
    let moved = vm::move_vm(&world.store, "web1", &moving(Movement::Migrate, None)).await.unwrap();
    assert_ne!(moved.to, home);
    assert_eq!((moved.state, world.vm().state.clone()), (None, VmState::Stop));
    assert_eq!(world.vm().last_node.as_ref(), Some(&home));
    let again = refused(vm::move_vm(&world.store, "web1", &moving(Movement::Migrate, None)).await);
    assert!(matches!(again, MoveRefusal::AlreadyMigrated { .. }));
    vm::move_vm(&world.store, "web1", &moving(Movement::Unmigrate, None)).await.unwrap();
    assert_eq!((world.vm().node.clone(), world.vm().last_node.clone()), (Some(home), None));

    world.state(VmState::Start).await;
    let live = Move { live_only: true, ..moving(Movement::Move, None) };
    let moved = vm::move_vm(&world.store, "web1", &live).await.unwrap();
    assert_eq!(moved.state, Some(VmState::MigrateLive));
    assert_eq!(world.vm().state, VmState::MigrateLive);
}

#[tokio::test]
async fn a_vm_on_its_way_is_sent_elsewhere_or_called_back() {
    let world = World::with_nodes(&["hv1", "hv2", "hv3"]).await;
    world.define("web1", UUID).await;
    let ask = |ask: Move| {
        let store = world.store.clone();
        async move { vm::move_vm(&store, "web1", &ask).await }
    };
    world
        .write(|changes| {
            changes
                .vm(UUID, VmChange::Node("hv1".into()))
                .vm(UUID, VmChange::State(VmState::Start));
        })
        .await;
    world.running("hv1", &[UUID]).await;
    world.memory("hv3", 4096).await;
    let place = || {
        let vm = world.vm();
        let name =
            |node: &Option<NodeName>| node.as_ref().map_or_else(String::new, NodeName::to_string);
        (vm.state.to_string(), name(&vm.node), name(&vm.last_node))
    };
    let says =
        |state: &str, node: &str, last: &str| (state.to_owned(), node.to_owned(), last.to_owned());
    ask(moving(Movement::Migrate, Some("hv2"))).await.unwrap();
    assert_eq!(place(), says("migrate", "hv2", "hv1"));

    let older = refused(ask(moving(Movement::Move, Some("hv3"))).await);
    assert!(matches!(older, MoveRefusal::MovedByLegacyPeer { .. }), "{older}");
    for node in ["hv1", "hv2", "hv3"] {
        world.store.announce_daemon(&node.into(), "test").await.unwrap();
    }
    let again = refused(ask(moving(Movement::Move, None)).await);
    assert_eq!(again.to_string(), "VM `web1` is on its way to node `hv2` already");
    let home_is_known = refused(ask(moving(Movement::Migrate, Some("hv3"))).await);
    assert!(matches!(home_is_known, MoveRefusal::AlreadyMigrated { .. }));

    let onward = Move { force: true, ..moving(Movement::Migrate, Some("hv3")) };
    let plan = vm::plan_move(&world.store.view(), "web1", &onward).unwrap();
    assert_eq!((plan.from, plan.to), (Some("hv1".into()), Some("hv3".into())));
    let moved = ask(onward).await.unwrap();
    assert_eq!((moved.from, moved.to), (Some("hv1".into()), "hv3".into()));
    assert_eq!(place(), says("migrate", "hv3", "hv1"));

    // Its own node needs no room for it, but has to take VMs.
    world.memory("hv1", 1).await;
    world.domain_state("hv1", DomainState::Flush).await;
    let flushed = refused(ask(moving(Movement::Unmigrate, None)).await);
    assert!(matches!(flushed, MoveRefusal::Unfit { .. }), "{flushed}");
    world.domain_state("hv1", DomainState::Ready).await;
    ask(moving(Movement::Unmigrate, None)).await.unwrap();
    assert_eq!(place(), says("migrate", "hv1", ""));

    let live = Move { live_only: true, ..moving(Movement::Move, Some("hv2")) };
    ask(live).await.unwrap();
    assert_eq!(place(), says("migrate-live", "hv2", ""));
    ask(moving(Movement::Move, Some("hv1"))).await.unwrap();
    assert_eq!(place(), says("migrate-live", "hv1", ""), "it is not shut down for a later order");

    // A node that was only about to start it has no memory for it, and no right to it.
    ask(moving(Movement::Move, Some("hv2"))).await.unwrap();
    world.running("hv1", &[]).await;
    world.working_on("hv1", &[UUID]).await;
    let back = || async { refused(ask(moving(Movement::Move, Some("hv1"))).await).to_string() };
    let crowded = back().await;
    assert!(crowded.starts_with("node `hv1` has 1 MiB of memory free"), "{crowded}");
    world
        .write(|changes| {
            changes.vm(UUID, VmChange::NodeLimit(vec!["hv2".into()]));
        })
        .await;
    assert_eq!(back().await, "node `hv1` is not among the nodes the VM is limited to");
}

#[tokio::test]
async fn one_vm_tries_a_flushed_node_if_its_operator_insists() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    world
        .write(|changes| {
            changes
                .vm(UUID, VmChange::Node("hv1".into()))
                .vm(UUID, VmChange::State(VmState::Start));
        })
        .await;
    let to = |movement, node| Move { force: true, ..moving(movement, node) };
    for movement in [Movement::Move, Movement::Migrate] {
        for (state, is_taken) in [(DomainState::Flush, false), (DomainState::Flushed, true)] {
            world.domain_state("hv2", state).await;
            let refused = vm::move_vm(&world.store, "web1", &moving(movement, Some("hv2"))).await;
            let ChangeError::Refused(refusal) = refused.unwrap_err() else {
                panic!("it is refused")
            };
            assert_eq!(
                refusal.hint().is_some_and(|hint| hint.contains("--force")),
                is_taken,
                "{refusal}"
            );
            // Of its own accord the cluster never chooses it.
            assert!(vm::move_vm(&world.store, "web1", &to(movement, None)).await.is_err());
            let moved = vm::move_vm(&world.store, "web1", &to(movement, Some("hv2"))).await;
            assert_eq!(moved.is_ok(), is_taken, "{moved:?}");
        }
        world
            .write(|changes| {
                changes
                    .vm(UUID, VmChange::Node("hv1".into()))
                    .vm(UUID, VmChange::State(VmState::Start));
                changes.vm(UUID, VmChange::LastNode(None));
            })
            .await;
    }
}

#[tokio::test]
async fn a_vm_that_runs_is_sent_to_no_node_that_cannot_take_it() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    world
        .write(|changes| {
            changes
                .vm(UUID, VmChange::Node("hv1".into()))
                .vm(UUID, VmChange::State(VmState::Start));
        })
        .await;
    let to_hv2 = || async {
        let refusal =
            refused(vm::move_vm(&world.store, "web1", &moving(Movement::Move, Some("hv2"))).await);
        assert_eq!(refusal.kind(), Kind::Conflict);
        refusal.to_string()
    };
    world.domain_state("hv2", DomainState::Flushed).await;
    assert_eq!(to_hv2().await, "node `hv2` is in domain state `flushed`, not `ready`");
    world.domain_state("hv2", DomainState::Ready).await;
    world.memory("hv2", 1).await;
    let crowded = to_hv2().await;
    assert!(crowded.starts_with("node `hv2` has 1 MiB of memory free"), "{crowded}");
    world
        .write(|changes| {
            changes.vm(UUID, VmChange::NodeLimit(vec!["hv1".into()]));
        })
        .await;
    assert_eq!(to_hv2().await, "node `hv2` is not among the nodes the VM is limited to");
    assert_eq!(
        (world.vm().state.clone(), world.vm().node.clone()),
        (VmState::Start, Some("hv1".into()))
    );
}

/// Found by the simulation: it stayed off for ever, on a node that was ready already.
#[tokio::test]
async fn a_vm_that_waits_for_its_node_is_started_by_the_one_that_it_is_given_to() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    world.domain_state("hv1", DomainState::Flushed).await;
    let waits = || {
        world.write(|changes| {
            changes.vm(UUID, VmChange::Node("hv1".into())).vm(UUID, VmChange::State(VmState::Stop));
            changes.vm(UUID, VmChange::Autostart(true));
        })
    };
    waits().await;
    let ask = moving(Movement::Move, Some("hv2"));
    let plan = vm::plan_move(&world.store.view(), "web1", &ask).unwrap();
    assert_eq!((plan.to, plan.how), (Some("hv2".into()), vm::How::Start));
    let moved = vm::move_vm(&world.store, "web1", &ask).await.unwrap();
    assert_eq!(moved.state, Some(VmState::Start));
    assert_eq!((world.vm().state.clone(), world.vm().autostart), (VmState::Start, false));

    // Where there is no room it is not left off without anybody knowing.
    waits().await;
    world.memory("hv2", 1).await;
    let crowded = refused(vm::move_vm(&world.store, "web1", &ask).await).to_string();
    assert!(crowded.starts_with("node `hv2` has 1 MiB of memory free"), "{crowded}");
    assert_eq!((world.vm().state.clone(), world.vm().autostart), (VmState::Stop, true));

    // A node that takes no VMs now is waited for instead.
    world.domain_state("hv2", DomainState::Flushed).await;
    let moved = vm::move_vm(&world.store, "web1", &ask).await.unwrap();
    assert_eq!((moved.to, moved.state), ("hv2".into(), None));
    assert_eq!((world.vm().state.clone(), world.vm().autostart), (VmState::Stop, true));

    // One that is ready and whose daemon is away will never be asked to be ready.
    world.domain_state("hv2", DomainState::Ready).await;
    let daemon = |state: DaemonState| {
        world.write(move |changes| {
            changes.node(&"hv2".into(), NodeChange::Daemon(state.clone()));
        })
    };
    daemon(DaemonState::Init).await;
    waits().await;
    let away = refused(vm::move_vm(&world.store, "web1", &ask).await).to_string();
    assert_eq!(away, "node `hv2` is in daemon state `init`, not `run`");
    daemon(DaemonState::Run).await;

    // An administrator's own mark on a VM that is off means the next time that its node becomes
    // ready.
    world.domain_state("hv1", DomainState::Ready).await;
    world.domain_state("hv2", DomainState::Ready).await;
    world.memory("hv2", 8192).await;
    waits().await;
    assert_eq!(vm::move_vm(&world.store, "web1", &ask).await.unwrap().state, None);
    assert_eq!((world.vm().state.clone(), world.vm().autostart), (VmState::Stop, true));
}

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

/// PVC 1.0.3 hears nothing any more after its flush was turned round in its last moment.
#[tokio::test]
async fn a_legacy_node_is_not_turned_round_in_the_middle() {
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
        "ours are turned round at any moment"
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

#[tokio::test]
async fn jobs_are_recorded_for_the_node_of_the_vm_and_can_be_cancelled() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let (store, clock) = (&world.store, world.clock.as_ref());
    let spec = vm::submit_flush_locks(store, clock, &world.random, "web1", "tests").await.unwrap();
    assert_eq!(
        (spec.work.name(), spec.node.as_str(), spec.run_on.as_str()),
        ("vm.flush_locks", "hv1", "hv1")
    );
    let recorded = store.view().jobs[&spec.id].spec.clone();
    let vm = JobVm { name: "web1".into(), uuid: Some(UUID) };
    assert_eq!(recorded.work, JobWork::FlushLocks { vm });
    job::cancel(store, clock, spec.id.as_str()).await.unwrap();
    job::cancel(store, clock, spec.id.as_str()).await.unwrap();
    assert!(store.view().jobs[&spec.id].cancel_requested);
    assert_eq!(refused(job::cancel(store, clock, "nonsense").await).kind(), Kind::NotFound);

    let attach = async |xml: &str| {
        let (vm, xml, submitter) = ("web1".to_owned(), xml.to_owned(), "tests".to_owned());
        let ask =
            device::DeviceAsk { vm, change: DeviceChange::Attach, xml, force: false, submitter };
        device::submit_device(store, clock, &world.random, &ask).await
    };
    assert_eq!(attach("<interface type='bridge'/>").await.unwrap().work.name(), "vm.device_attach");
    assert_eq!(refused(attach("<interface").await).kind(), Kind::Invalid);
    let function =
        refused(attach("<interface type='direct'><source dev='ens1f0v3'/></interface>").await);
    assert!(matches!(function, device::DeviceRefusal::Nic(_)), "{function}");
    world.state(VmState::Start).await;
    let busy = refused(vm::submit_flush_locks(store, clock, &world.random, "web1", "tests").await);
    assert_eq!(busy.kind(), Kind::Conflict);
}

#[tokio::test]
async fn a_cluster_is_initialized_once_backed_up_and_restored() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let refusal = refused(cluster::initialize(&world.store, false).await);
    assert!(refusal.hint().unwrap().contains("--overwrite"));
    assert!(cluster::set_maintenance(&world.store, true).await.unwrap());
    assert!(!cluster::set_maintenance(&world.store, true).await.unwrap());
    let dump = cluster::backup(&world.store, true).await.unwrap();
    let text = serde_json::to_string(&dump).unwrap();
    cluster::initialize(&world.store, true).await.unwrap();
    assert!(world.store.view().vms.is_empty());
    for bad in ["", "[]", "{\"/a\": 1}", "\"no\"", "{}"] {
        assert_eq!(
            refused(cluster::restore(&world.store, bad).await).kind(),
            Kind::Invalid,
            "{bad}"
        );
    }
    let twice = serde_json::to_string(&text).unwrap();
    cluster::restore(&world.store, &twice).await.unwrap();
    assert_eq!(world.vm().name, "web1");
    assert!(world.store.view().config.maintenance);
}

#[tokio::test(start_paused = true)]
async fn no_vm_is_plugged_in_among_the_nodes_unless_that_is_forced_or_was_so_before() {
    let world = World::with_nodes(&["hv1"]).await;
    let on = |bridges: &[&str]| {
        let nic = |bridge: &&str| {
            format!("<interface type='bridge'><source bridge='{bridge}'/></interface>")
        };
        let nics: String = bridges.iter().map(nic).collect();
        xml("web1", UUID).replace("<console", &format!("{nics}<console"))
    };
    let is_refused = |refusal: &DefineRefusal, name: &str| {
        let hint = refusal.hint().unwrap_or_default();
        matches!(refusal, DefineRefusal::Nic(NicRefusal::AmongNodes { bridge }) if bridge == name)
            && hint.contains("--force")
    };
    let refusal =
        refused(vm::define(&world.store, &Define::new(on(&["brupstream", "brcluster"]))).await);
    assert!(is_refused(&refusal, "brcluster"), "{refusal}");
    vm::define(&world.store, &Define::new(on(&["brupstream", "vmbr1001"]))).await.unwrap();
    let refusal = refused(modify(&world, "web1", &on(&["brstorage"]), false).await);
    assert!(is_refused(&refusal, "brstorage"), "{refusal}");
    let ask = Modify::new(on(&["brstorage"]));
    let checked = vm::check_modify(&world.store.fresh().await.unwrap(), "web1", &ask).unwrap_err();
    assert_eq!(checked, refusal);
    let forced = Modify { force: true, ..ask };
    vm::modify(&world.store, "web1", &forced).await.unwrap();
    // It stays editable, and gets no other of them by that.
    modify(&world, "web1", &on(&["brstorage"]).replace(">512<", ">1024<"), false).await.unwrap();
    refused(modify(&world, "web1", &on(&["brstorage", "brcluster"]), false).await);

    let interface = "<interface type='bridge'><source bridge='brcluster'/></interface>";
    let mut ask = device::DeviceAsk {
        vm: "web1".to_owned(),
        change: DeviceChange::Attach,
        xml: interface.to_owned(),
        force: false,
        submitter: "tests".to_owned(),
    };
    let submit = async |ask: &device::DeviceAsk| {
        device::submit_device(&world.store, world.clock.as_ref(), &world.random, ask).await
    };
    let refusal = refused(submit(&ask).await);
    assert!(
        matches!(refusal, device::DeviceRefusal::Nic(NicRefusal::AmongNodes { .. })),
        "{refusal}"
    );
    ask.force = true;
    submit(&ask).await.unwrap();
    ask = device::DeviceAsk { force: false, change: DeviceChange::Detach, ..ask };
    submit(&ask).await.unwrap();
}

/// The store of one who knows this password, on a connection of his own.
async fn member(world: &World, password: &str, closed: &Closed) -> (Store, Arc<FlakyTree>) {
    let tree = FlakyTree::with_password(world.tree.connect(), password, closed);
    let random = Arc::new(SeededRandom::new(3));
    (Store::open(tree.clone(), world.clock.clone(), random).await.unwrap(), tree)
}

#[tokio::test(start_paused = true)]
async fn records_are_not_closed_to_a_node_of_the_cluster_unless_that_is_forced() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    let refused = cluster::protect(&world.store, Access::Members, true).await.unwrap_err();
    assert!(matches!(refused, ChangeError::Store(pvc_store::StoreError::NoPassword)), "{refused}");
    world.store.announce_daemon(&"hv2".into(), "knows none").await.unwrap();
    let (store, _) = member(&world, "secret", &Closed::default()).await;
    let refused = cluster::protect(&store, Access::Members, false).await.unwrap_err();
    assert!(refused.to_string().starts_with("nodes `hv1`, `hv2` would be locked out"), "{refused}");
    let refused = cluster::protect(&store, Access::Members, true).await.unwrap_err();
    assert!(refused.to_string().starts_with("every node would be locked out"), "{refused}");

    store.announce_daemon(&"hv1".into(), "knows it").await.unwrap();
    let refused = cluster::protect(&store, Access::Members, false).await.unwrap_err();
    assert!(refused.to_string().starts_with("node `hv2` would be locked out"), "{refused}");
    let (before, known) = cluster::protection(&store).await.unwrap();
    assert_eq!((before.access, before.closed), (AccessList::Anybody, 0));
    assert_eq!(known["hv1"], KnownPassword::Ours);
    assert_eq!(known["hv2"], KnownPassword::Unproven);
    let closed = cluster::protect(&store, Access::Members, true).await.unwrap();
    assert_eq!((closed.access, closed.open), (AccessList::Members, 0));
    // Nobody is locked out by opening them.
    let opened = cluster::protect(&store, Access::Anybody, false).await.unwrap();
    assert_eq!((opened.access, opened.closed), (AccessList::Anybody, 0));
    assert_eq!(store.known_passwords().await.unwrap(), known, "what is proven stays so");
}

#[tokio::test(start_paused = true)]
async fn records_are_never_closed_to_a_node_that_knows_another_password() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    let closed = Closed::default();
    let (right, _) = member(&world, "secret", &closed).await;
    let (typo, session) = member(&world, "secert", &closed).await;
    right.announce_daemon(&"hv1".into(), "one").await.unwrap();
    typo.announce_daemon(&"hv2".into(), "other").await.unwrap();
    for (store, locked_out) in [(&right, "hv2"), (&typo, "hv1")] {
        for force in [false, true] {
            let refused = cluster::protect(store, Access::Members, force).await.unwrap_err();
            let expected = format!("node `{locked_out}` would be locked out: another password");
            assert!(refused.to_string().starts_with(&expected), "{refused}");
        }
        assert_eq!(store.protection().await.unwrap().closed, 0);
    }
    session.close().await;
    let (mended, _) = member(&world, "secret", &closed).await;
    mended.announce_daemon(&"hv2".into(), "mended").await.unwrap();
    cluster::protect(&right, Access::Members, false).await.unwrap();
}
