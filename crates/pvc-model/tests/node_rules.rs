//! The rules of flush and of the primary role, one line each.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::flush::{AT_ONCE, Flush, TakeBack, flush, unflush};
use pvc_model::node::{CoordinatorState, DaemonState, DomainState, NodeFigures, NodeRecord, NodeRole};
use pvc_model::primary::{PrimaryStep, primary_step};
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{NodeName, Uuid};

fn node(name: &str) -> NodeRecord {
    NodeRecord {
        name: NodeName::new(name),
        role: NodeRole::Coordinator,
        daemon_state: DaemonState::Run,
        coordinator_state: CoordinatorState::Secondary,
        domain_state: DomainState::Ready,
        keepalive: 0,
        active_schema: Some(15),
        latest_schema: Some(15),
        pvc_version: String::new(),
        cpus: 4,
        kernel: String::new(),
        os: String::new(),
        arch: String::new(),
        figures: NodeFigures::default(),
        running: Vec::new(),
        working_on: Vec::new(),
        health: None,
        plugins: Vec::new(),
        network_stats: Arc::from(""),
        ipmi_hostname: String::new(),
        hypervisor: None,
        fence: None,
        defects: Vec::new(),
    }
}

fn vm(number: u128, state: VmState, on: &str) -> VmRecord {
    VmRecord {
        uuid: Uuid::from_u128(number),
        name: format!("vm{number}"),
        state,
        state_version: 1,
        node: Some(NodeName::new(on)),
        last_node: None,
        failed_reason: String::new(),
        xml: Arc::from(""),
        domain: Err("not needed here".to_owned()),
        profile: None,
        recorded_volumes: Vec::new(),
        stats: Arc::from(""),
        vnc: String::new(),
        autostart: false,
        migration_method: None,
        max_downtime_ms: 300,
        selector: None,
        node_limit: Vec::new(),
        tags: Vec::new(),
        snapshots: Vec::new(),
        moving: None,
        defects: Vec::new(),
    }
}

fn cluster(nodes: Vec<NodeRecord>, vms: Vec<VmRecord>) -> Cluster {
    Cluster {
        nodes: nodes.into_iter().map(|node| (node.name.clone(), Arc::new(node))).collect(),
        vms: vms.into_iter().map(|vm| (vm.uuid, Arc::new(vm))).collect(),
        ..Cluster::default()
    }
}

fn me() -> NodeName {
    NodeName::new("hv1")
}

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

#[test]
fn a_flush_of_the_only_node_shuts_down_a_few_at_a_time() {
    let vms = (1..=6).map(|number| vm(number, VmState::Start, "hv1")).collect();
    let mut cluster = cluster(vec![node("hv1")], vms);
    let left = flush(&cluster, &me());
    assert_eq!((left.shut_down.len(), left.waiting.len()), (AT_ONCE, 6 - AT_ONCE));
    for uuid in left.shut_down {
        Arc::make_mut(cluster.vms.get_mut(&uuid).unwrap()).state = VmState::Shutdown;
    }
    assert!(flush(&cluster, &me()).shut_down.is_empty());
    Arc::make_mut(cluster.vms.get_mut(&id(1)).unwrap()).state = VmState::Stop;
    assert_eq!(flush(&cluster, &me()).shut_down, [id(5)], "the next one's turn");
}

#[test]
fn a_flush_waits_for_what_is_under_way_and_does_not_care_for_what_is_off() {
    for (state, expected) in [
        (VmState::Restart, Flush { waiting: vec![id(1)], ..Flush::default() }),
        (VmState::Shutdown, Flush { waiting: vec![id(1)], ..Flush::default() }),
        (VmState::Migrate, Flush { waiting: vec![id(1)], ..Flush::default() }),
        (VmState::Start, Flush { shut_down: vec![id(1)], ..Flush::default() }),
        (VmState::Stop, Flush::default()),
        (VmState::Disable, Flush::default()),
        (VmState::Fail, Flush::default()),
        (VmState::Mirror, Flush::default()),
    ] {
        let cluster = cluster(vec![node("hv1")], vec![vm(1, state.clone(), "hv1")]);
        assert_eq!(flush(&cluster, &me()), expected, "{state}");
    }
    let mut own = node("hv1");
    own.running = vec![id(1)];
    let stopping = cluster(vec![own], vec![vm(1, VmState::Stop, "hv1")]);
    assert!(!flush(&stopping, &me()).is_done(), "the guest is still there");
}

#[test]
fn a_vm_that_could_move_is_not_shut_down() {
    let mut limited = vm(2, VmState::Start, "hv1");
    limited.node_limit = vec![me()];
    let vms = vec![vm(1, VmState::Start, "hv1"), limited, vm(3, VmState::Start, "hv2")];
    let left = flush(&cluster(vec![node("hv1"), node("hv2")], vms), &me());
    assert_eq!((left.to_move, left.shut_down), (vec![id(1)], vec![id(2)]));
}

#[test]
fn a_node_takes_back_what_is_marked_and_only_what_may_run() {
    let marked = |number, state| VmRecord { autostart: true, ..vm(number, state, "hv1") };
    let vms = vec![
        marked(1, VmState::Stop),
        marked(2, VmState::Shutdown),
        marked(3, VmState::Disable),
        marked(4, VmState::Start),
        marked(5, VmState::Mirror),
        marked(6, VmState::Provision),
        vm(7, VmState::Stop, "hv1"),
        VmRecord { autostart: true, ..vm(8, VmState::Stop, "hv2") },
    ];
    assert_eq!(
        unflush(&cluster(vec![node("hv1"), node("hv2")], vms), &me()),
        [TakeBack::Start(id(1)), TakeBack::Start(id(2)), TakeBack::Start(id(3)), TakeBack::Unmark(id(4))]
    );
}

#[test]
fn a_vm_that_came_from_here_belongs_here_again_and_stays_off_if_it_was() {
    let from_here = |number, state| VmRecord { last_node: Some(me()), ..vm(number, state, "hv2") };
    let vms = vec![from_here(1, VmState::Stop), from_here(2, VmState::Start), from_here(3, VmState::Migrate)];
    assert_eq!(
        unflush(&cluster(vec![node("hv1"), node("hv2")], vms), &me()),
        [TakeBack::Assign(id(1)), TakeBack::Move(id(2))]
    );
}

const PATIENCE: Duration = Duration::from_secs(10);

fn step(
    own: CoordinatorState,
    named: Option<&str>,
    other: Option<CoordinatorState>,
    vacant: u64,
) -> PrimaryStep {
    let mut nodes = vec![NodeRecord { coordinator_state: own, ..node("hv1") }];
    nodes.extend(other.map(|state| NodeRecord { coordinator_state: state, ..node("hv2") }));
    let mut cluster = cluster(nodes, Vec::new());
    cluster.config.primary = named.map(NodeName::new);
    primary_step(&cluster, &me(), Duration::from_secs(vacant), PATIENCE)
}

#[test]
fn the_role_goes_to_whom_the_key_names_when_nobody_else_has_it() {
    use CoordinatorState::{Primary, Relinquish, Secondary, Takeover};
    use PrimaryStep::{Become, Claim, Nothing};
    for (own, named, other, vacant, expected) in [
        (Secondary, Some("hv1"), None, 0, Become(Primary)),
        (Secondary, Some("hv1"), Some(Secondary), 0, Become(Primary)),
        (Secondary, Some("hv1"), Some(Primary), 0, Nothing),
        (Secondary, Some("hv1"), Some(Relinquish), 0, Nothing),
        (Primary, Some("hv1"), None, 0, Nothing),
        (Primary, Some("hv2"), Some(Secondary), 0, Become(Secondary)),
        (Secondary, Some("hv2"), Some(Primary), 0, Nothing),
        (Secondary, None, None, 0, Claim),
        (Secondary, Some("nobody"), None, 0, Claim),
        (Primary, None, Some(Secondary), 9, Nothing),
        (Primary, None, Some(Secondary), 10, Claim),
        (Primary, None, Some(Takeover), 60, Nothing),
    ] {
        let what = format!("{own} {named:?} {other:?} {vacant}");
        assert_eq!(step(own, named, other, vacant), expected, "{what}");
    }
}

#[test]
fn a_dead_holder_holds_nothing_and_a_hypervisor_is_a_client() {
    let dead = NodeRecord {
        coordinator_state: CoordinatorState::Primary,
        daemon_state: DaemonState::Fenced,
        ..node("hv2")
    };
    let mut with_dead = cluster(vec![node("hv1"), dead], Vec::new());
    with_dead.config.primary = Some(me());
    let become_primary = PrimaryStep::Become(CoordinatorState::Primary);
    assert_eq!(primary_step(&with_dead, &me(), Duration::ZERO, PATIENCE), become_primary);
    let hypervisor = NodeRecord { role: NodeRole::Hypervisor, ..node("hv1") };
    let step = primary_step(&cluster(vec![hypervisor], Vec::new()), &me(), PATIENCE, PATIENCE);
    assert_eq!(step, PrimaryStep::Become(CoordinatorState::Client));
}

#[test]
fn a_node_that_is_not_running_does_not_contend() {
    let starting = NodeRecord { daemon_state: DaemonState::Init, ..node("hv1") };
    let step = primary_step(&cluster(vec![starting], Vec::new()), &me(), PATIENCE, PATIENCE);
    assert_eq!(step, PrimaryStep::Nothing);
}
