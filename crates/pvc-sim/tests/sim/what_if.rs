//! `pvc-sim what-if` as `pvc cluster what-if` runs it: a backup in, an answer out; and the plan in
//! the answer holds against what the daemons really do in the world.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use pvc_api_types::{WhatIf, WhatIfRefusal, WhatIfReply, WhatIfRun};
use pvc_embedded::EmbeddedTree;
use pvc_model::NodeName;
use pvc_model::node::{
    CoordinatorState, DaemonNote, DaemonState, DomainState, NodeFigures, NodeRole,
};
use pvc_model::vm::{Selector, VmState};
use pvc_ops::vm::Define;
use pvc_store::{Change, Changes, ConfigChange, Ipmi, NewNode, NodeChange, Report, Store};
use pvc_testkit::{SeededRandom, TokioClock};
use uuid::Uuid;

struct Node {
    name: &'static str,
    role: NodeRole,
    free_mib: u64,
    daemon: DaemonState,
    domain: DomainState,
    has_bmc: bool,
}

fn node(name: &'static str, free_mib: u64) -> Node {
    let (role, daemon, domain) = (NodeRole::Coordinator, DaemonState::Run, DomainState::Ready);
    Node { name, role, free_mib, daemon, domain, has_bmc: true }
}

struct Vm {
    memory_mib: u64,
    on: &'static str,
    limit: &'static [&'static str],
    selector: Option<Selector>,
}

fn vm(memory_mib: u64, on: &'static str) -> Vm {
    Vm { memory_mib, on, limit: &[], selector: None }
}

/// A cluster as it is recorded. VMs are called `vm0`, `vm1` and so on, and run.
struct Records {
    nodes: Vec<Node>,
    vms: Vec<Vm>,
    primary: &'static str,
    maintenance: bool,
}

fn xml(number: usize, vm: &Vm) -> String {
    let (uuid, memory_mib) = (Uuid::from_u128(0x77_0000 + number as u128), vm.memory_mib);
    format!(
        "<domain type='kvm'><name>vm{number}</name><uuid>{uuid}</uuid><memory \
         unit='MiB'>{memory_mib}</memory>\
         <vcpu>2</vcpu><os><type arch='x86_64' machine='pc'>hvm</type></os><devices>\
         <emulator>/usr/bin/kvm</emulator><disk type='network' device='disk'><driver name='qemu'/>\
         <source protocol='rbd' name='vms/vm{number}_sda'/><target dev='sda' bus='scsi'/></disk>\
         <serial type='pty'/><console type='pty'/></devices></domain>"
    )
}

impl Records {
    fn new(nodes: Vec<Node>, vms: Vec<Vm>) -> Records {
        Records { primary: nodes[0].name, nodes, vms, maintenance: false }
    }

    /// Returns what `pvc cluster backup` writes of the cluster.
    fn backup(&self) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(self.written())
    }

    async fn written(&self) -> String {
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let store = Store::open(EmbeddedTree::in_memory().connect(), clock, random).await.unwrap();
        store.initialize(false).await.unwrap();
        for node in &self.nodes {
            self.write_node(&store, node).await;
        }
        let mut changes = Changes::new();
        changes.config(ConfigChange::Primary(Some(NodeName::new(self.primary))));
        changes.config(ConfigChange::Name("office".to_owned()));
        changes.config(ConfigChange::Maintenance(self.maintenance));
        write(&store, changes).await;
        for (number, vm) in self.vms.iter().enumerate() {
            let define = Define {
                state: VmState::Start,
                node: Some(vm.on.to_owned()),
                node_limit: vm.limit.iter().map(|name| (*name).to_owned()).collect(),
                selector: vm.selector.clone(),
                ..Define::new(xml(number, vm))
            };
            pvc_ops::vm::define(&store, &define).await.unwrap();
        }
        for node in &self.nodes {
            let here = self.vms.iter().enumerate().filter(|(_, vm)| vm.on == node.name);
            let running =
                here.map(|(number, _)| Uuid::from_u128(0x77_0000 + number as u128)).collect();
            store.report(vec![Report::Running(NodeName::new(node.name), running)]).await.unwrap();
        }
        serde_json::to_string(&store.backup(true).await.unwrap()).unwrap()
    }

    async fn write_node(&self, store: &Store, node: &Node) {
        let name = NodeName::new(node.name);
        let bmc = |of: &str| Ipmi {
            hostname: format!("{of}.ipmi.example"),
            username: "root".to_owned(),
            password: "calvin".to_owned(),
        };
        let mut changes = Changes::new();
        changes.push(Change::AddNode(Box::new(NewNode {
            name: name.clone(),
            role: node.role.clone(),
            cpus: 32,
            kernel: "6.12".to_owned(),
            os: "GNU/Linux".to_owned(),
            arch: "x86_64".to_owned(),
            version: "0.2.0".to_owned(),
            ipmi: if node.has_bmc { bmc(node.name) } else { Ipmi::default() },
            keepalive: 1_790_000_000,
        })));
        write(store, changes).await;
        let mut changes = Changes::new();
        changes.node(&name, NodeChange::Daemon(node.daemon.clone()));
        changes.node(&name, NodeChange::Domain(node.domain.clone()));
        changes.node(
            &name,
            NodeChange::Coordinator(match (&node.role, node.name == self.primary) {
                (NodeRole::Coordinator, true) => CoordinatorState::Primary,
                (NodeRole::Coordinator, false) => CoordinatorState::Secondary,
                _ => CoordinatorState::Client,
            }),
        );
        write(store, changes).await;
        let here = || self.vms.iter().filter(|vm| vm.on == node.name);
        let allocated_mib = here().map(|vm| vm.memory_mib).sum();
        let figures = NodeFigures {
            memory_allocated_mib: allocated_mib,
            memory_provisioned_mib: allocated_mib,
            vcpus_allocated: 2 * here().count() as u64,
            memory_total_mib: 65_536,
            memory_used_mib: 65_536 - node.free_mib,
            memory_free_mib: node.free_mib,
            ..NodeFigures::default()
        };
        let note = DaemonNote {
            version: "0.2.0".to_owned(),
            runs_guests: true,
            takes_held_guests: true,
            stamps_while_starting: true,
            ..DaemonNote::default()
        };
        let reports =
            vec![Report::Figures(name.clone(), figures), Report::Daemon(name, note, None)];
        store.report(reports).await.unwrap();
    }
}

async fn write(store: &Store, changes: Changes) {
    let written = store.change(|_| Ok::<_, std::convert::Infallible>((changes.clone(), ())));
    written.await.unwrap();
}

fn asked(backup: &str, arguments: &[&str]) -> Result<WhatIf, WhatIfRefusal> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pvc-sim"));
    command.args(["what-if", "-"]).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(backup.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let reply: WhatIfReply = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(output.status.code(), Some(i32::from(reply.refused.is_some())), "{said}");
    reply.refused.map_or_else(|| Ok(reply.answer.unwrap()), Err)
}

fn dies(records: &Records, node: &str) -> WhatIf {
    asked(&records.backup(), &["--node", node]).unwrap()
}

/// The plan: `vm on node`, or `vm: fate`.
fn planned(answer: &WhatIf) -> Vec<String> {
    let line = |vm: &pvc_api_types::WhatIfVm| match vm.to.as_str() {
        "" => format!("{}: {}", vm.name, vm.fate),
        to => format!("{} on {to}", vm.name),
    };
    answer.vms.iter().map(line).collect()
}

/// The run, which must have been as planned.
fn run_as_planned(answer: &WhatIf) -> &WhatIfRun {
    assert_eq!(answer.not_simulated, "");
    let run = answer.simulation.as_ref().unwrap();
    assert_eq!(run.differences, [""; 0]);
    for vm in &answer.vms {
        let ran = run.vms.iter().find(|ran| ran.name == vm.name).unwrap();
        assert_eq!(ran.node, vm.to, "{}", vm.name);
        assert_eq!(ran.seconds.is_some(), !vm.to.is_empty(), "{}", vm.name);
    }
    run
}

/// Checks that the run waited and nothing recovered, and for how long, and returns it.
fn nothing_recovered(answer: &WhatIf) -> &WhatIfRun {
    assert!(!answer.recovered);
    assert!(planned(answer).iter().all(|line| line.ends_with(": down")), "{:?}", planned(answer));
    let run = run_as_planned(answer);
    assert_eq!(run.recovered_s, None);
    // Five minutes beyond the silence that makes a node suspected, if any does.
    assert!([300.0, 330.0].contains(&run.watched_s), "{}", run.watched_s);
    run
}

#[test]
fn the_vms_of_a_primary_that_dies_run_elsewhere_and_another_is_primary() {
    let nodes = vec![node("hv1", 30_000), node("hv2", 19_000), node("hv3", 9_000)];
    let vms =
        vec![vm(4096, "hv3"), vm(8192, "hv3"), vm(2048, "hv3"), vm(1024, "hv1"), vm(6000, "hv3")];
    let records = Records { primary: "hv3", ..Records::new(nodes, vms) };
    let answer = dies(&records, "hv3");
    assert_eq!(planned(&answer), ["vm1 on hv1", "vm4 on hv1", "vm0 on hv2", "vm2 on hv1"]);
    assert!(answer.recovered && answer.was_primary && answer.coordinators.quorum);
    let run = run_as_planned(&answer);
    let in_order = [run.suspected_s.unwrap(), run.fenced_s.unwrap(), run.recovered_s.unwrap()];
    assert!(in_order.is_sorted() && in_order[0] > 20.0 && in_order[2] < 60.0, "{in_order:?}");
    assert_eq!(run.proof, "its BMC said twice that the power is off");
    assert!(["hv1", "hv2"].contains(&run.primary.as_str()) && run.primary_s.is_some());
    let free: Vec<(u64, u64)> = answer
        .nodes
        .iter()
        .map(|node| (node.memory_free_mib, node.memory_free_after_mib))
        .collect();
    assert_eq!(free, [(30_000, 30_000 - 8192 - 6000 - 2048), (19_000, 19_000 - 4096)]);
    let next: Vec<(bool, &str)> =
        answer.nodes.iter().map(|node| (node.may_die_next, node.next.as_str())).collect();
    assert!(
        next.iter()
            .all(|(may, why)| !may && *why == "no quorum: 1 of 3 coordinators would be left"),
        "{next:?}"
    );
    assert_eq!(answer.defects, [""; 0]);
}

#[test]
fn a_vm_that_fits_nowhere_is_off_in_plan_and_world() {
    let nodes = vec![node("hv1", 5_000), node("hv2", 3_000), node("hv3", 9_000)];
    let limited = Vm { limit: &["hv3"], ..vm(512, "hv3") };
    let vms = vec![vm(4096, "hv3"), vm(4000, "hv3"), vm(2048, "hv3"), limited];
    let answer = dies(&Records::new(nodes, vms), "hv3");
    assert_eq!(planned(&answer), ["vm0 on hv1", "vm1: wait", "vm2 on hv2", "vm3: wait"]);
    let run = run_as_planned(&answer);
    assert!(!answer.recovered && run.recovered_s.is_some());
    assert!(
        answer.vms[1]
            .reason
            .contains("`hv2` has 3000 MiB of memory free, and the VM needs 4000 MiB")
    );
    assert!(answer.vms[3].reason.contains("`hv1` is not among the nodes the VM is limited to"));
    assert!(
        answer.summary.starts_with("2 of its 4 VMs run elsewhere within "),
        "{}",
        answer.summary
    );
}

#[test]
fn each_selector_flushed_nodes_and_nodes_that_are_no_coordinators_count_in_plan_and_world() {
    let hypervisor = |name, free| Node { role: NodeRole::Hypervisor, ..node(name, free) };
    let nodes = vec![
        node("hv1", 20_000),
        node("hv2", 21_000),
        Node { domain: DomainState::Flushed, ..node("hv3", 60_000) },
        hypervisor("hv4", 22_000),
        hypervisor("hv5", 9_000),
    ];
    let mut vms: Vec<Vm> = Selector::ALL
        .iter()
        .map(|selector| Vm { selector: Some(selector.clone()), ..vm(2048, "hv5") })
        .collect();
    vms.extend([vm(1024, "hv1"), vm(1024, "hv4"), vm(1024, "hv4")]);
    let answer = dies(&Records::new(nodes, vms), "hv5");
    assert_eq!(answer.vms.len(), Selector::ALL.len());
    assert!(answer.recovered && answer.coordinators.left == 3);
    run_as_planned(&answer);
    assert!(planned(&answer).iter().all(|line| !line.ends_with("hv3")), "{:?}", planned(&answer));
    let may_die: Vec<bool> = answer.nodes.iter().map(|node| node.may_die_next).collect();
    assert_eq!(may_die, [true, true, true, true]);
}

#[test]
fn a_node_that_hangs_is_cut_off_first() {
    let nodes = vec![node("hv1", 30_000), node("hv2", 20_000), node("hv3", 9_000)];
    let records = Records::new(nodes, vec![vm(4096, "hv3"), vm(1024, "hv3")]);
    let answer = asked(&records.backup(), &["--node", "hv3", "--death", "hang"]).unwrap();
    let run = run_as_planned(&answer);
    assert_eq!(run.proof, "its BMC says that the power is off, after it was told to cut it");
    let fenced = run.fenced_s.unwrap();
    assert!((50.0..90.0).contains(&fenced), "{fenced}");
}

#[test]
fn the_time_limits_of_fencers_can_be_said() {
    let nodes = vec![node("hv1", 30_000), node("hv2", 20_000), node("hv3", 9_000)];
    let backup = Records::new(nodes, vec![vm(4096, "hv3")]).backup();
    let hasty = ["--node", "hv3", "--keepalive-interval", "2", "--fence-intervals", "3"];
    let answer = asked(&backup, &hasty).unwrap();
    let run = run_as_planned(&answer);
    assert!(run.recovered_s.unwrap() < 15.0, "{run:?}");
    let never = asked(&backup, &["--node", "hv3", "--fence-intervals", "0"]).unwrap();
    assert_eq!(nothing_recovered(&never).suspected_s, None);
}

#[test]
fn what_keeps_a_death_from_being_made_up_for_does_so_in_the_world() {
    let three = || vec![node("hv1", 30_000), node("hv2", 20_000), node("hv3", 9_000)];
    let vms = || vec![vm(4096, "hv3"), vm(1024, "hv2")];

    let maintained = Records { maintenance: true, ..Records::new(three(), vms()) };
    assert_eq!(nothing_recovered(&dies(&maintained, "hv3")).suspected_s, None);

    let mut bare = Records::new(three(), vms());
    bare.nodes[2].has_bmc = false;
    let answer = dies(&bare, "hv3");
    let run = nothing_recovered(&answer);
    assert_eq!(answer.hindrances, ["no BMC is recorded for it: its death cannot be proven"]);
    assert!(run.suspected_s.is_some() && run.fenced_s.is_none());
    assert_eq!(run.fence_failure, "no BMC is configured for it");

    let mut two = Records::new(three(), vms());
    two.nodes.remove(0);
    two.primary = "hv2";
    let answer = dies(&two, "hv3");
    assert_eq!(nothing_recovered(&answer).suspected_s, None);
    assert_eq!((answer.coordinators.left, answer.coordinators.quorum), (1, false));

    let alone = Records::new(vec![node("hv3", 9_000)], vec![vm(4096, "hv3")]);
    let answer = dies(&alone, "hv3");
    nothing_recovered(&answer);
    assert_eq!(answer.hindrances, ["nobody else is there to notice"]);
    assert!(answer.nodes.is_empty());
}

#[test]
fn a_cluster_without_a_quorum_is_planned_for_and_not_played() {
    let mut records = Records::new(
        vec![node("hv1", 30_000), node("hv2", 20_000), node("hv3", 9_000)],
        vec![vm(4096, "hv3")],
    );
    records.nodes[0].daemon = DaemonState::Dead;
    records.nodes[1].daemon = DaemonState::Stop;
    records.primary = "hv3";
    let answer = dies(&records, "hv3");
    assert_eq!(answer.simulation, None);
    assert!(
        answer.not_simulated.starts_with("1 of 3 coordinators run by these records"),
        "{answer:?}"
    );
    assert_eq!(planned(&answer), ["vm0: down"]);
    assert!(answer.assumptions.iter().any(|said| said.starts_with("hv1: dead without a proof")));
    assert!(answer.assumptions.iter().any(|said| said.starts_with("hv2: its daemon does not run")));
}

#[test]
fn a_node_that_starts_is_nobodys_suspect_and_its_death_is_not_played() {
    let mut records = Records::new(
        vec![node("hv1", 30_000), node("hv2", 20_000), node("hv3", 9_000)],
        vec![vm(4096, "hv3")],
    );
    records.nodes[2].daemon = DaemonState::Init;
    let answer = dies(&records, "hv3");
    assert_eq!(planned(&answer), ["vm0: down"]);
    assert_eq!(
        answer.not_simulated,
        "the node is in `init`; only the death of one in `run` can be played"
    );
}

#[test]
fn questions_without_an_answer_are_refused_with_a_hint() {
    let mut records =
        Records::new(vec![node("hv1", 30_000), node("hv2", 20_000), node("hv3", 9_000)], vec![]);
    records.nodes[2].daemon = DaemonState::Fenced;
    let backup = records.backup();
    let refused = |backup: &str, node: &str| asked(backup, &["--node", node]).unwrap_err();
    let unknown = refused(&backup, "hv9");
    assert!(unknown.not_found);
    assert_eq!(
        (unknown.message.as_str(), unknown.hint.as_str()),
        ("there is no node `hv9`", "the nodes are: hv1, hv2, hv3")
    );
    let dead = refused(&backup, "hv3");
    assert_eq!(dead.message, "node `hv3` is dead already: its daemon is in state `fenced`");
    assert!(!dead.not_found);
    assert!(refused("no backup", "hv1").message.starts_with("the backup is no JSON"));
    assert_eq!(refused("{}", "hv1").message, "the file is no backup of a cluster");
}

#[test]
fn one_question_has_one_answer_and_it_holds_no_password() {
    let nodes = vec![node("hv1", 30_000), node("hv2", 20_000), node("hv3", 9_000)];
    let backup = Records::new(nodes, vec![vm(4096, "hv3"), vm(1024, "hv3")]).backup();
    assert!(backup.contains("calvin"));
    let first = asked(&backup, &["--node", "hv3"]).unwrap();
    assert_eq!(asked(&backup, &["--node", "hv3"]).unwrap(), first);
    assert!(!serde_json::to_string(&first).unwrap().contains("calvin"));
}
