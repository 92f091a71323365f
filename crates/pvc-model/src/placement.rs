//! Choice of the node that a VM goes to, and why the others do not do.

use std::collections::BTreeMap;
use std::fmt;

use crate::cluster::Cluster;
use crate::domain::Nic;
use crate::node::{DaemonState, DomainState, NodeRecord};
use crate::sriov::{has_functions, other_user, vf_of};
use crate::vm::moving::{MovePhase, is_moving};
use crate::vm::{Selector, VmRecord, VmState};
use crate::{NodeName, Uuid};

/// Demands of a VM on the node it is to be placed on.
#[derive(Debug, Clone, Default)]
pub struct Need<'a> {
    pub memory_mib: u64,
    pub vcpus: u32,
    /// The only nodes allowed; empty: any.
    pub node_limit: &'a [NodeName],
    /// The node it is to leave.
    pub leaving: Option<&'a NodeName>,
    /// Whether it runs as soon as it is there, and so needs its memory to be free.
    pub runs: bool,
    /// Its interfaces: one that takes an SR-IOV function does it on its node.
    pub nics: &'a [Nic],
    /// Itself: the functions that it has are free for it.
    pub vm: Option<Uuid>,
}

impl<'a> Need<'a> {
    /// Demands of the VM wherever it runs.
    pub fn of(vm: &'a VmRecord) -> Self {
        Need {
            memory_mib: vm.memory_mib(),
            vcpus: vm.domain.as_ref().map_or(1, |domain| domain.vcpus),
            node_limit: &vm.node_limit,
            leaving: None,
            runs: true,
            nics: vm.domain.as_ref().map_or(&[], |domain| &domain.nics),
            vm: Some(vm.uuid),
        }
    }
}

/// Resources promised to VMs that are on their way, so that nothing is promised twice.
#[derive(Debug, Clone, Default)]
pub struct Promises {
    by_node: BTreeMap<NodeName, Promise>,
    /// The VMs that SR-IOV functions are promised to.
    functions: BTreeMap<(NodeName, String), Option<Uuid>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Promise {
    memory_mib: u64,
    vcpus: u64,
    vms: u64,
}

impl Promises {
    /// Promises to VMs that belong to a node and do not run there yet. Their figures say nothing of
    /// it.
    pub fn under_way(cluster: &Cluster) -> Self {
        Promises::under_way_but(cluster, |_| false)
    }

    /// Same as [`under_way`](Promises::under_way), without the VMs that are to be placed anew.
    pub fn under_way_but(cluster: &Cluster, is_placed_anew: impl Fn(&VmRecord) -> bool) -> Self {
        let mut promises = Promises::default();
        for vm in cluster.vms.values().filter(|vm| !is_placed_anew(vm)) {
            // One that is being made is started when it is whole.
            let comes = matches!(
                vm.state,
                VmState::Start
                    | VmState::Restart
                    | VmState::Migrate
                    | VmState::MigrateLive
                    | VmState::Provision
            );
            if let Some(node) =
                vm.node.as_ref().and_then(|node| cluster.nodes.get(node)).filter(|_| comes)
                && !node.running.contains(&vm.uuid)
            {
                promises.reserve(&node.name, &Need::of(vm));
            }
            // One that was shut down to be moved is started where it was if the move fails.
            if let Some(from) = sender(vm).and_then(|from| cluster.nodes.get(from))
                && !from.running.contains(&vm.uuid)
            {
                promises.reserve(&from.name, &Need::of(vm));
            }
        }
        promises
    }

    /// Same as [`add`](Promises::add), for a VM that is counted among the node's already.
    pub fn reserve(&mut self, node: &NodeName, need: &Need<'_>) {
        self.add(node, need);
        if let Some(promise) = self.by_node.get_mut(node) {
            promise.vms -= 1;
        }
    }

    /// Notes that a VM with this need goes to `node`.
    pub fn add(&mut self, node: &NodeName, need: &Need<'_>) {
        let promise = self.by_node.entry(node.clone()).or_default();
        // What a record says may be absurd.
        promise.memory_mib = promise.memory_mib.saturating_add(need.memory_mib);
        promise.vcpus += u64::from(need.vcpus);
        promise.vms += 1;
        for function in need.nics.iter().filter_map(vf_of) {
            self.functions.insert((node.clone(), function.to_owned()), need.vm);
        }
    }

    /// Memory of `node` that is promised, in MiB.
    pub fn memory_mib(&self, node: &NodeName) -> u64 {
        self.of(node).memory_mib
    }

    fn of(&self, node: &NodeName) -> Promise {
        self.by_node.get(node).copied().unwrap_or_default()
    }
}

/// The node that sends the VM and has not given it away yet.
fn sender(vm: &VmRecord) -> Option<&NodeName> {
    use MovePhase::{Copying, ShuttingDown, Waiting};
    let note = vm.moving.as_ref().filter(|note| is_moving(&vm.state) && note.is_for(vm))?;
    let has_it = matches!(note.phase, Waiting | Copying | ShuttingDown)
        && vm.node.as_ref() != Some(&note.from);
    has_it.then_some(&note.from)
}

/// Reason why a node does not do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// The VM is to leave this node.
    Leaving,
    NotInLimit,
    /// The node's daemon does not run.
    Daemon(DaemonState),
    /// The node's hypervisor is switched off.
    NoGuests,
    /// The node takes no VMs at present.
    Domain(DomainState),
    /// The node as a whole is too small.
    TooLittleMemory {
        total_mib: u64,
        needed_mib: u64,
    },
    TooFewCpus {
        cpus: u32,
        most: u32,
        needed: u32,
    },
    /// At present, with what is promised to others.
    NotEnoughFree {
        free_mib: u64,
        needed_mib: u64,
    },
    /// Another VM there has the SR-IOV function that an interface of the VM takes.
    FunctionUsed(String),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Leaving => write!(f, "is where the VM is now"),
            Unfit::NotInLimit => write!(f, "is not among the nodes the VM is limited to"),
            Unfit::Daemon(state) => write!(f, "is in daemon state `{state}`, not `run`"),
            Unfit::NoGuests => write!(f, "runs no guests: its hypervisor is switched off"),
            Unfit::Domain(state) => write!(f, "is in domain state `{state}`, not `ready`"),
            Unfit::TooLittleMemory { total_mib, needed_mib } => {
                write!(
                    f,
                    "has {total_mib} MiB of memory in all, and the VM's {needed_mib} MiB must be \
                     less"
                )
            }
            Unfit::TooFewCpus { cpus, most, needed } => {
                let rule = if most + HOST_CPUS == *cpus {
                    format!("all but {HOST_CPUS}")
                } else {
                    "half of them, rounded up".to_owned()
                };
                write!(
                    f,
                    "has {cpus} CPUs, of which a VM may have {most} ({rule}), and this one has \
                     {needed} vCPUs"
                )
            }
            Unfit::NotEnoughFree { free_mib, needed_mib } => {
                write!(f, "has {free_mib} MiB of memory free, and the VM needs {needed_mib} MiB")
            }
            Unfit::FunctionUsed(function) => {
                write!(f, "has given its SR-IOV function `{function}` to another VM")
            }
        }
    }
}

impl Unfit {
    /// Advice about a VM that can never run there; `None` if the VM's size is not the reason.
    pub fn size_hint(&self) -> Option<String> {
        match self {
            Unfit::TooLittleMemory { total_mib, .. } => Some(format!(
                "give the VM less than {total_mib} MiB of memory, or choose a larger node"
            )),
            Unfit::TooFewCpus { most, .. } => {
                let unit = if *most == 1 { "vCPU" } else { "vCPUs" };
                Some(format!("give the VM at most {most} {unit}, or choose a node with more CPUs"))
            }
            _ => None,
        }
    }
}

/// No node does, and why, for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoPlace {
    pub reasons: BTreeMap<NodeName, Unfit>,
}

impl NoPlace {
    /// Whether a node may take the VM as soon as its daemon has started, or has taken back its own
    /// VMs.
    pub fn is_starting(&self) -> bool {
        let starts = |unfit: &Unfit| {
            matches!(unfit, Unfit::Daemon(DaemonState::Init) | Unfit::Domain(DomainState::Unflush))
        };
        self.reasons.values().any(starts)
    }

    /// Whether a node would do but for what is promised to others.
    pub fn is_crowded_somewhere(&self, cluster: &Cluster) -> bool {
        self.crowded(cluster).next().is_some()
    }

    /// Nodes that would do but for what is promised to others.
    pub(crate) fn crowded<'a>(
        &'a self,
        cluster: &'a Cluster,
    ) -> impl Iterator<Item = &'a NodeRecord> {
        self.reasons.iter().filter_map(|(name, unfit)| match unfit {
            Unfit::NotEnoughFree { needed_mib, .. } => {
                let node = cluster.nodes.get(name).map(|node| &**node);
                node.filter(|node| node.figures.memory_free_mib >= *needed_mib)
            }
            _ => None,
        })
    }

    /// Advice about a VM that is too large for every node; `None` if another node would do.
    pub fn size_hint(&self) -> Option<String> {
        let hints: Option<Vec<String>> = self.reasons.values().map(Unfit::size_hint).collect();
        match hints?.as_slice() {
            [] => None,
            [only] => Some(only.clone()),
            _ => Some("give the VM less memory or fewer vCPUs".to_owned()),
        }
    }
}

impl fmt::Display for NoPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.reasons.is_empty() {
            return f.write_str("there are no nodes");
        }
        f.write_str("no node can take the VM: ")?;
        for (index, (node, unfit)) in self.reasons.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}`{node}` {unfit}")?;
        }
        Ok(())
    }
}

impl std::error::Error for NoPlace {}

/// Merits of each node as a place for a VM.
#[derive(Debug, Clone, PartialEq)]
pub struct Weighed {
    pub selector: Selector,
    /// The best; of equals, the first by name. A node that has all SR-IOV functions of the VM is
    /// better than one that has not.
    pub best: Option<NodeName>,
    /// Merit of each node, the more the better, or why it does not do.
    pub nodes: BTreeMap<NodeName, Result<f64, Unfit>>,
}

impl Weighed {
    /// The best node, or why none does.
    pub fn chosen(self) -> Result<NodeName, NoPlace> {
        let reasons = self.nodes.into_iter().filter_map(|(name, merit)| Some((name, merit.err()?)));
        self.best.ok_or_else(|| NoPlace { reasons: reasons.collect() })
    }

    /// Figure that the selector sees in a node of this merit, for people.
    pub fn seen(&self, merit: f64) -> String {
        let s = if merit.abs() == 1.0 { "" } else { "s" };
        match self.selector {
            Selector::Memprov => format!("{merit:.0} MiB of memory not promised to VMs"),
            Selector::Load => format!("load {:.2}", merit.abs()),
            Selector::Vcpus => format!("{:.0} vCPU{s} given to VMs", merit.abs()),
            Selector::Vms => format!("{:.0} VM{s}", merit.abs()),
            Selector::Mem | Selector::Unknown(_) => format!("{merit:.0} MiB of memory free"),
        }
    }
}

/// Weighs every node as a place for the VM by `selector`.
pub fn weigh(
    cluster: &Cluster,
    selector: &Selector,
    need: &Need<'_>,
    promises: &Promises,
) -> Weighed {
    let mut best: Option<((bool, f64), &NodeName)> = None;
    let mut nodes = BTreeMap::new();
    for (name, node) in &cluster.nodes {
        let weighed = check_node(cluster, node, need, promises)
            .map(|()| merit(cluster, node, selector, promises.of(name)));
        if let Ok(merit) = weighed {
            let has_all = has_functions(node, need.nics);
            let is_better = |(had_all, most): (bool, f64)| match has_all == had_all {
                true => merit.total_cmp(&most).is_gt(),
                false => has_all,
            };
            if best.is_none_or(|(most, _)| is_better(most)) {
                best = Some(((has_all, merit), name));
            }
        }
        nodes.insert(name.clone(), weighed);
    }
    Weighed { selector: selector.clone(), best: best.map(|(_, name)| name.clone()), nodes }
}

/// The best node for the VM by `selector`; of equals, the first by name.
pub fn place(
    cluster: &Cluster,
    selector: &Selector,
    need: &Need<'_>,
    promises: &Promises,
) -> Result<NodeName, NoPlace> {
    weigh(cluster, selector, need, promises).chosen()
}

/// Whether the VM may go to this node.
pub fn check_node(
    cluster: &Cluster,
    node: &NodeRecord,
    need: &Need<'_>,
    promises: &Promises,
) -> Result<(), Unfit> {
    check_in(&[DomainState::Ready], cluster, node, need, promises)
}

/// Same as [`check_node`], for an operator who insists on this node although it was flushed, as to
/// try it before it takes VMs again.
pub fn check_insisted(
    cluster: &Cluster,
    node: &NodeRecord,
    need: &Need<'_>,
    promises: &Promises,
) -> Result<(), Unfit> {
    check_in(&[DomainState::Ready, DomainState::Flushed], cluster, node, need, promises)
}

/// Same as [`check_node`], for a VM that is on its way to this node: one that takes its VMs back
/// waits for it.
pub fn check_destination(
    cluster: &Cluster,
    node: &NodeRecord,
    need: &Need<'_>,
    promises: &Promises,
) -> Result<(), Unfit> {
    check_in(&[DomainState::Ready, DomainState::Unflush], cluster, node, need, promises)
}

/// Whether the VM may go to this node in one of the domain states `allowed`.
fn check_in(
    allowed: &[DomainState],
    cluster: &Cluster,
    node: &NodeRecord,
    need: &Need<'_>,
    promises: &Promises,
) -> Result<(), Unfit> {
    if need.leaving == Some(&node.name) {
        return Err(Unfit::Leaving);
    }
    check_limit(&node.name, need.node_limit)?;
    if node.daemon_state != DaemonState::Run {
        return Err(Unfit::Daemon(node.daemon_state.clone()));
    }
    if !node.runs_guests() {
        return Err(Unfit::NoGuests);
    }
    if !allowed.contains(&node.domain_state) {
        return Err(Unfit::Domain(node.domain_state.clone()));
    }
    check_size(node, need.memory_mib, need.vcpus)?;
    check_free_functions(cluster, node, need, promises)?;
    if need.runs { check_room(node, need.memory_mib, promises) } else { Ok(()) }
}

/// Whether no other VM that is on the node has an SR-IOV function that the VM takes there, or is
/// promised it. What is not recorded there is no reason against the node.
pub fn check_free_functions(
    cluster: &Cluster,
    node: &NodeRecord,
    need: &Need<'_>,
    promises: &Promises,
) -> Result<(), Unfit> {
    for function in need.nics.iter().filter_map(|nic| node.sriov.taken_by(nic)) {
        let promised = promises.functions.get(&(node.name.clone(), function.name.clone()));
        let is_promised = promised.is_some_and(|to| to.is_none() || *to != need.vm);
        if is_promised || other_user(cluster, node, need.vm, function).is_some() {
            return Err(Unfit::FunctionUsed(function.name.clone()));
        }
    }
    Ok(())
}

/// Whether a VM limited to the nodes `limit` may run on this one. An empty limit is none.
pub fn check_limit(node: &NodeName, limit: &[NodeName]) -> Result<(), Unfit> {
    if limit.is_empty() || limit.contains(node) { Ok(()) } else { Err(Unfit::NotInLimit) }
}

/// Whether there is as much memory free on the node at present. One that has not said anything yet
/// is given the benefit of the doubt.
pub fn check_room(node: &NodeRecord, memory_mib: u64, promises: &Promises) -> Result<(), Unfit> {
    let free_mib = node.figures.memory_free_mib.saturating_sub(promises.of(&node.name).memory_mib);
    match node.figures.memory_total_mib > 0 && memory_mib > free_mib {
        true => Err(Unfit::NotEnoughFree { free_mib, needed_mib: memory_mib }),
        false => Ok(()),
    }
}

/// Whether a VM of this size can ever run on this node, however empty. What the node has not said
/// yet refuses nothing.
pub fn check_size(node: &NodeRecord, memory_mib: u64, vcpus: u32) -> Result<(), Unfit> {
    let total_mib = node.figures.memory_total_mib;
    if total_mib > 0 && memory_mib >= total_mib {
        return Err(Unfit::TooLittleMemory { total_mib, needed_mib: memory_mib });
    }
    let most = most_vcpus(node.cpus);
    if node.cpus > 0 && vcpus > most {
        return Err(Unfit::TooFewCpus { cpus: node.cpus, most, needed: vcpus });
    }
    Ok(())
}

/// Number of CPUs that stay with the host.
const HOST_CPUS: u32 = 3;

/// The largest VM that a host with `cpus` CPUs takes: some stay with the host, but of a small one
/// no more than half.
fn most_vcpus(cpus: u32) -> u32 {
    cpus.saturating_sub(HOST_CPUS).max(cpus.div_ceil(2))
}

/// Merit of a node, the more the better.
fn merit(cluster: &Cluster, node: &NodeRecord, selector: &Selector, promise: Promise) -> f64 {
    let figures = &node.figures;
    match selector {
        // May be negative: of nodes that are all over-provisioned, the least is the best.
        Selector::Memprov => {
            figures.memory_free_mib as f64 + figures.memory_used_mib as f64
                - figures.memory_provisioned_mib as f64
                - promise.memory_mib as f64
        }
        // What is on its way will be load.
        Selector::Load => -figures.load - promise.vcpus as f64,
        Selector::Vcpus => -(figures.vcpus_allocated as f64) - promise.vcpus as f64,
        Selector::Vms => {
            let here = |vm: &&std::sync::Arc<VmRecord>| vm.is_assigned_to(&node.name);
            -(cluster.vms.values().filter(here).count() as f64) - promise.vms as f64
        }
        Selector::Mem | Selector::Unknown(_) => {
            figures.memory_free_mib as f64 - promise.memory_mib as f64
        }
    }
}

/// The selector to use: the VM's own, else the cluster's, else free memory. Older records say
/// `none` for "not given".
pub fn selector_for(vm: Option<&Selector>, cluster: &Cluster) -> Selector {
    let known = |selector: &&Selector| !matches!(selector, Selector::Unknown(_));
    let chosen = vm.filter(known).or(cluster.config.selector.as_ref().filter(known));
    chosen.cloned().unwrap_or(Selector::Mem)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::node::{DaemonNote, NodeFigures};
    use crate::records;
    use crate::vm::moving::MoveNote;

    fn node(name: &str, free: u64, provisioned: u64, vcpus: u64, load: f64) -> NodeRecord {
        NodeRecord {
            cpus: 16,
            figures: NodeFigures {
                memory_total_mib: 64_000,
                memory_used_mib: 64_000 - free,
                memory_free_mib: free,
                memory_provisioned_mib: provisioned,
                vcpus_allocated: vcpus,
                load,
                ..NodeFigures::default()
            },
            ..records::node(name)
        }
    }

    fn cluster(nodes: Vec<NodeRecord>) -> Cluster {
        let nodes = nodes.into_iter().map(|node| (node.name.clone(), Arc::new(node))).collect();
        Cluster { nodes, ..Cluster::default() }
    }

    #[test]
    fn a_vm_goes_where_nobody_else_has_its_function_and_best_where_it_is() {
        let with = |name: &str, used_by: Option<u128>| {
            let mut sriov = records::one_function("ens1v0");
            sriov.vfs[0].used = used_by.is_some();
            sriov.vfs[0].used_by = used_by.map(Uuid::from_u128);
            NodeRecord { sriov, ..node(name, 10_000, 0, 0, 0.0) }
        };
        let nics = [records::hostdev("ens1v0")];
        let need = Need { nics: &nics, vm: Some(Uuid::from_u128(1)), ..Need::default() };
        let without = |name| node(name, 50_000, 0, 0, 0.0);
        let having = [with("hv2", Some(2)), with("hv3", Some(1)), with("hv4", None)];
        let nodes = [without("hv1")].into_iter().chain(having).chain([without("hv5")]);
        let mut cluster = cluster(nodes.collect());
        let judged = |cluster: &Cluster| {
            let weighed = weigh(cluster, &Selector::Mem, &need, &Promises::default());
            (weighed.nodes["hv2"].clone().err(), weighed.best.unwrap().to_string())
        };
        // The VM that is noted is gone, and a node that has the function is better.
        assert_eq!(judged(&cluster), (None, "hv2".to_owned()));
        let other = records::with_hostdev(records::vm(2, VmState::Stop, Some("hv2")), "ens1v0");
        cluster.vms.insert(other.uuid, Arc::new(other));
        let used = Unfit::FunctionUsed("ens1v0".to_owned());
        assert_eq!(judged(&cluster), (Some(used.clone()), "hv3".to_owned()));
        let weighed = weigh(&cluster, &Selector::Mem, &need, &Promises::default());
        assert!(weighed.nodes.values().filter(|weighed| weighed.is_ok()).count() == 4);
        let mut promises = Promises::default();
        promises.add(&NodeName::new("hv3"), &Need { vm: Some(Uuid::from_u128(3)), ..need.clone() });
        promises.add(&NodeName::new("hv4"), &need);
        let chosen = place(&cluster, &Selector::Mem, &need, &promises).unwrap();
        assert_eq!(chosen.as_str(), "hv4", "what is promised to itself is free for it");
        // Of two that are not recorded yet, neither is the other.
        let unknown = Need { vm: None, ..need };
        promises.add(&NodeName::new("hv4"), &unknown);
        assert_eq!(check_node(&cluster, &cluster.nodes["hv4"], &unknown, &promises), Err(used));
    }

    #[test]
    fn a_function_is_kept_for_a_vm_that_is_started_again_where_it_was_if_its_move_fails() {
        let nodes = ["hv1", "hv2"].map(|name| {
            let sriov = records::one_function("ens1v0");
            NodeRecord { sriov, ..node(name, 10_000, 0, 0, 0.0) }
        });
        let mut cluster = cluster(nodes.to_vec());
        let sent = records::vm(1, VmState::Migrate, Some("hv2"));
        let note = MoveNote {
            incarnation: sent.incarnation,
            request: sent.state_version,
            phase: MovePhase::ShuttingDown,
            ..records::move_note("hv1", "hv2")
        };
        let sent = records::with_hostdev(VmRecord { moving: Some(note), ..sent }, "ens1v0");
        let other = records::with_hostdev(records::vm(2, VmState::Start, None), "ens1v0");
        cluster.vms.insert(sent.uuid, Arc::new(sent.clone()));
        let promises = Promises::under_way(&cluster);
        let fits =
            |vm: &VmRecord| check_node(&cluster, &cluster.nodes["hv1"], &Need::of(vm), &promises);
        assert_eq!(fits(&sent), Ok(()));
        assert_eq!(fits(&other), Err(Unfit::FunctionUsed("ens1v0".to_owned())));
        assert_eq!(fits(&records::with_hostdev(other, "ens1v1")), Ok(()));
    }

    fn placed(cluster: &Cluster, selector: Selector, need: &Need<'_>) -> String {
        place(cluster, &selector, need, &Promises::default())
            .map_or_else(|no| no.to_string(), |node| node.to_string())
    }

    #[test]
    fn each_selector_has_its_favourite() {
        let cluster = cluster(vec![
            node("hv1", 30_000, 40_000, 9, 1.0),
            node("hv2", 20_000, 10_000, 9, 2.0),
            node("hv3", 10_000, 40_000, 1, 3.0),
        ]);
        let need = Need { memory_mib: 1024, vcpus: 1, ..Need::default() };
        assert_eq!(placed(&cluster, Selector::Mem, &need), "hv1");
        assert_eq!(placed(&cluster, Selector::Memprov, &need), "hv2");
        assert_eq!(placed(&cluster, Selector::Vcpus, &need), "hv3");
        assert_eq!(placed(&cluster, Selector::Load, &need), "hv1");
        assert_eq!(placed(&cluster, Selector::Vms, &need), "hv1", "of equals the first");
    }

    /// VM number `number` on this node.
    fn on(cluster: &mut Cluster, number: u128, node: &str) {
        let vm = records::vm(number, VmState::Start, Some(node));
        cluster.vms.insert(vm.uuid, Arc::new(vm));
    }

    #[test]
    fn the_fewest_vms_are_counted_by_the_records() {
        let mut cluster =
            cluster(["hv1", "hv2", "hv3"].map(|name| node(name, 30_000, 0, 0, 0.0)).to_vec());
        for (number, node) in [(1, "hv1"), (2, "hv1"), (3, "hv2"), (4, "hv3"), (5, "hv3")] {
            on(&mut cluster, number, node);
        }
        assert_eq!(placed(&cluster, Selector::Vms, &Need::default()), "hv2");
        on(&mut cluster, 6, "hv2");
        assert_eq!(placed(&cluster, Selector::Vms, &Need::default()), "hv1", "of equals the first");
    }

    #[test]
    fn of_equals_each_selector_takes_the_first_by_name_and_sees_what_is_promised() {
        let names = ["hv2", "hv10", "hv1", "hv3"];
        let cluster = cluster(names.map(|name| node(name, 30_000, 10_000, 4, 0.5)).to_vec());
        let need = Need { memory_mib: 1024, vcpus: 1, runs: true, ..Need::default() };
        for selector in Selector::ALL {
            let mut promises = Promises::default();
            let mut chosen = Vec::new();
            for _ in 0..5 {
                let name = place(&cluster, selector, &need, &promises).unwrap();
                promises.add(&name, &need);
                chosen.push(name.to_string());
            }
            assert_eq!(chosen, ["hv1", "hv10", "hv2", "hv3", "hv1"], "{selector:?}");
        }
    }

    #[test]
    fn each_reason_of_a_refusal_has_its_words() {
        for (unfit, words) in [
            (Unfit::Leaving, "is where the VM is now"),
            (Unfit::NotInLimit, "is not among the nodes the VM is limited to"),
            (Unfit::Daemon(DaemonState::Stop), "is in daemon state `stop`, not `run`"),
            (Unfit::Daemon(DaemonState::from_record("odd")), "is in daemon state `odd`, not `run`"),
            (Unfit::Domain(DomainState::Flush), "is in domain state `flush`, not `ready`"),
            (
                Unfit::Domain(DomainState::from_record("odd")),
                "is in domain state `odd`, not `ready`",
            ),
            (
                Unfit::TooLittleMemory { total_mib: 1000, needed_mib: 1000 },
                "has 1000 MiB of memory in all, and the VM's 1000 MiB must be less",
            ),
            (
                Unfit::TooFewCpus { cpus: 8, most: 5, needed: 6 },
                "has 8 CPUs, of which a VM may have 5 (all but 3), and this one has 6 vCPUs",
            ),
            (
                Unfit::NotEnoughFree { free_mib: 100, needed_mib: 1000 },
                "has 100 MiB of memory free, and the VM needs 1000 MiB",
            ),
            (
                Unfit::FunctionUsed("ens1v0".to_owned()),
                "has given its SR-IOV function `ens1v0` to another VM",
            ),
        ] {
            assert_eq!(unfit.to_string(), words);
        }
    }

    #[test]
    fn a_choice_is_explained_in_the_words_of_its_selector() {
        let cluster =
            cluster(vec![node("hv1", 30_000, 40_000, 9, 1.25), node("hv2", 100, 0, 9, 2.0)]);
        let need = Need { memory_mib: 1024, vcpus: 1, runs: true, ..Need::default() };
        for (selector, seen) in [
            (Selector::Mem, "30000 MiB of memory free"),
            (Selector::Memprov, "24000 MiB of memory not promised to VMs"),
            (Selector::Load, "load 1.25"),
            (Selector::Vcpus, "9 vCPUs given to VMs"),
            (Selector::Vms, "0 VMs"),
        ] {
            let weighed = weigh(&cluster, &selector, &need, &Promises::default());
            let merit = weighed.nodes["hv1"].clone().unwrap();
            assert_eq!(weighed.seen(merit), seen);
            assert_eq!(
                weighed.nodes["hv2"],
                Err(Unfit::NotEnoughFree { free_mib: 100, needed_mib: 1024 })
            );
            assert_eq!(weighed.best, Some(NodeName::new("hv1")));
        }
        for (selector, seen) in [
            (Selector::Vcpus, ["1 vCPU given to VMs", "2 vCPUs given to VMs"]),
            (Selector::Vms, ["1 VM", "2 VMs"]),
        ] {
            let weighed = weigh(&cluster, &selector, &need, &Promises::default());
            assert_eq!([-1.0, -2.0].map(|merit| weighed.seen(merit)), seen);
        }
    }

    #[test]
    fn of_over_provisioned_nodes_the_least_is_chosen() {
        let cluster =
            cluster(vec![node("hv1", 10, 100_000, 0, 0.0), node("hv2", 10, 90_000, 0, 0.0)]);
        assert_eq!(placed(&cluster, Selector::Memprov, &Need::default()), "hv2");
    }

    #[test]
    fn a_node_whose_load_is_no_number_comes_last() {
        let odd = f64::NAN.copysign(1.0);
        let cluster = cluster(vec![node("hv1", 10, 0, 0, odd), node("hv2", 10, 0, 0, 9.0)]);
        assert_eq!(placed(&cluster, Selector::Load, &Need::default()), "hv2");
    }

    #[test]
    fn a_refusal_says_why_for_each_node() {
        let mut flushed = node("hv2", 64_000, 0, 0, 0.0);
        flushed.domain_state = DomainState::Flushed;
        let mut dead = node("hv3", 64_000, 0, 0, 0.0);
        dead.daemon_state = DaemonState::Dead;
        let full = node("hv4", 100, 0, 0, 0.0);
        let mut idle = node("hv5", 64_000, 0, 0, 0.0);
        idle.daemon = Some(DaemonNote { runs_guests: false, ..DaemonNote::default() });
        let cluster = cluster(vec![node("hv1", 64_000, 0, 0, 0.0), flushed, dead, full, idle]);
        let here = NodeName::new("hv1");
        let need = Need {
            memory_mib: 4096,
            vcpus: 2,
            leaving: Some(&here),
            runs: true,
            ..Need::default()
        };
        assert_eq!(
            placed(&cluster, Selector::Mem, &need),
            "no node can take the VM: `hv1` is where the VM is now; `hv2` is in domain state \
             `flushed`, not `ready`; \
             `hv3` is in daemon state `dead`, not `run`; `hv4` has 100 MiB of memory free, and the \
             VM needs 4096 MiB; \
             `hv5` runs no guests: its hypervisor is switched off"
        );
        assert_eq!(placed(&Cluster::default(), Selector::Mem, &need), "there are no nodes");
    }

    #[test]
    fn a_vm_must_be_smaller_than_its_node() {
        let big = node("hv1", 1000, 0, 0, 0.0);
        assert_eq!(check_size(&big, 63_999, 13), Ok(()));
        assert_eq!(
            check_size(&big, 64_000, 1),
            Err(Unfit::TooLittleMemory { total_mib: 64_000, needed_mib: 64_000 })
        );
        assert_eq!(
            check_size(&big, 1, 14),
            Err(Unfit::TooFewCpus { cpus: 16, most: 13, needed: 14 })
        );
        for (cpus, most) in [(1, 1), (2, 1), (4, 2), (6, 3), (8, 5), (32, 29)] {
            assert_eq!(most_vcpus(cpus), most, "{cpus}");
        }
        let refused = |cpus, needed| {
            let node = NodeRecord { cpus, ..big.clone() };
            check_size(&node, 1, needed).unwrap_err().to_string()
        };
        assert_eq!(
            refused(8, 6),
            "has 8 CPUs, of which a VM may have 5 (all but 3), and this one has 6 vCPUs"
        );
        assert_eq!(
            refused(3, 4),
            "has 3 CPUs, of which a VM may have 2 (half of them, rounded up), and this one has 4 \
             vCPUs"
        );
        let silent = NodeRecord { cpus: 0, figures: NodeFigures::default(), ..big };
        assert_eq!(check_size(&silent, 64_000, 100), Ok(()));
    }

    #[test]
    fn what_to_do_about_a_vm_that_is_too_large_is_said_only_if_its_size_is_the_reason() {
        let too_much = || Unfit::TooLittleMemory { total_mib: 1000, needed_mib: 2000 };
        let too_many = |most| Unfit::TooFewCpus { cpus: 4, most, needed: 9 };
        let less_memory = "give the VM less than 1000 MiB of memory, or choose a larger node";
        let one = "give the VM at most 1 vCPU, or choose a node with more CPUs";
        let two = "give the VM at most 2 vCPUs, or choose a node with more CPUs";
        let less = "give the VM less memory or fewer vCPUs";
        for (reasons, expected) in [
            (vec![], None),
            (vec![too_much()], Some(less_memory)),
            (vec![too_many(1)], Some(one)),
            (vec![too_many(2)], Some(two)),
            (vec![too_much(), too_many(2)], Some(less)),
            (vec![Unfit::Leaving], None),
            // The other one would do if it ran.
            (vec![too_much(), Unfit::Daemon(DaemonState::Stop)], None),
        ] {
            let numbered = reasons.into_iter().zip(1..);
            let reasons =
                numbered.map(|(unfit, number)| (NodeName::new(format!("hv{number}")), unfit));
            let no = NoPlace { reasons: reasons.collect() };
            assert_eq!(no.size_hint().as_deref(), expected, "{no}");
        }
    }

    #[test]
    fn who_may_go_to_a_node_that_takes_no_others_is_on_its_way_there_or_insists() {
        use DomainState::{FenceFlush, Flush, Flushed, Ready, Unflush};
        for (state, new, insisted, on_its_way) in [
            (Ready, true, true, true),
            (Flushed, false, true, false),
            (Unflush, false, false, true),
            (Flush, false, false, false),
            (FenceFlush, false, false, false),
        ] {
            let node = NodeRecord { domain_state: state.clone(), ..node("hv1", 1000, 0, 0, 0.0) };
            let (need, promises) = (Need::default(), Promises::default());
            let found = [check_node, check_insisted, check_destination]
                .map(|check| check(&Cluster::default(), &node, &need, &promises).is_ok());
            assert_eq!(found, [new, insisted, on_its_way], "{state}");
        }
    }

    #[test]
    fn memory_that_is_just_enough_and_not_promised_is_room() {
        let node = node("hv1", 1000, 0, 0, 0.0);
        let mut promises = Promises::default();
        promises.add(&node.name, &Need { memory_mib: 400, ..Need::default() });
        assert_eq!(check_room(&node, 600, &promises), Ok(()));
        let not_enough = Unfit::NotEnoughFree { free_mib: 600, needed_mib: 601 };
        assert_eq!(check_room(&node, 601, &promises), Err(not_enough));
        let silent = NodeRecord { figures: NodeFigures::default(), ..node };
        assert_eq!(check_room(&silent, 601, &promises), Ok(()));
    }

    /// VM 1 has 512 MiB, and if anything is said of its move, then that `hv1` sends it to `hv2`.
    #[test]
    fn a_vm_on_its_way_has_its_memory_promised_wherever_it_may_be_started() {
        use MovePhase::{Copying, Done, Failed, HandedOver, ShuttingDown, Waiting};
        use VmState::{Migrate, MigrateLive, Provision, Restart, Shutdown, Start, Stop};
        let promised = |state, on: &str, sent: Option<(MovePhase, i32)>, runs: &[&str]| {
            let mut vm = records::vm(1, state, Some(on));
            vm.moving = sent.map(|(phase, request)| MoveNote {
                incarnation: vm.incarnation,
                request,
                phase,
                ..records::move_note("hv1", "hv2")
            });
            let nodes = ["hv1", "hv2"].map(|name| {
                let mut node = node(name, 1000, 0, 0, 0.0);
                node.running.extend(runs.contains(&name).then_some(vm.uuid));
                node
            });
            let mut cluster = cluster(nodes.to_vec());
            cluster.vms.insert(vm.uuid, Arc::new(vm));
            let promises = Promises::under_way(&cluster);
            ["hv1", "hv2"].map(|name| promises.memory_mib(&NodeName::new(name)) / 512)
        };
        for (state, on, sent, runs, expected) in [
            (Start, "hv2", None, &[][..], [0, 1]),
            (Restart, "hv2", None, &[], [0, 1]),
            (Provision, "hv2", None, &[], [0, 1]),
            (Start, "hv2", None, &["hv2"], [0, 0]),
            (Stop, "hv2", None, &[], [0, 0]),
            (Shutdown, "hv2", None, &[], [0, 0]),
            (Migrate, "hv2", None, &["hv1"], [0, 1]),
            (MigrateLive, "hv2", Some((Waiting, 1)), &["hv1"], [0, 1]),
            // It was shut down, and is started again where it was if the move fails.
            (Migrate, "hv2", Some((ShuttingDown, 1)), &[], [1, 1]),
            (Migrate, "hv2", Some((Waiting, 1)), &[], [1, 1]),
            (Migrate, "hv2", Some((Copying, 1)), &[], [1, 1]),
            (Migrate, "hv2", Some((HandedOver, 1)), &[], [0, 1]),
            (Migrate, "hv2", Some((Done, 1)), &[], [0, 1]),
            (Migrate, "hv2", Some((Failed, 1)), &[], [0, 1]),
            // That was another order.
            (Migrate, "hv2", Some((ShuttingDown, 0)), &[], [0, 1]),
            (Start, "hv2", Some((ShuttingDown, 1)), &[], [0, 1]),
            // It was called back.
            (Migrate, "hv1", Some((ShuttingDown, 1)), &[], [1, 0]),
        ] {
            let case = format!("{state} on {on}, {sent:?}, runs on {runs:?}");
            assert_eq!(promised(state, on, sent, runs), expected, "{case}");
        }
    }

    #[test]
    fn a_vm_that_belongs_to_a_node_is_counted_there_once_whether_it_runs_or_not() {
        let mut cluster = cluster(["hv1", "hv2"].map(|name| node(name, 5000, 0, 0, 0.0)).to_vec());
        on(&mut cluster, 1, "hv1");
        on(&mut cluster, 2, "hv2");
        let mut hv2 = (*cluster.nodes["hv2"]).clone();
        hv2.running.push(crate::Uuid::from_u128(2));
        cluster.nodes.insert(hv2.name.clone(), Arc::new(hv2));
        let promises = Promises::under_way(&cluster);
        let chosen = place(&cluster, &Selector::Vms, &Need::default(), &promises).unwrap();
        assert_eq!(chosen.as_str(), "hv1", "of equals the first");
    }

    #[test]
    fn the_vms_selector_comes_before_the_clusters() {
        let mut cluster = Cluster::default();
        assert_eq!(selector_for(None, &cluster), Selector::Mem);
        cluster.config.selector = Some(Selector::Load);
        assert_eq!(selector_for(None, &cluster), Selector::Load);
        assert_eq!(selector_for(Some(&Selector::from_record("none")), &cluster), Selector::Load);
        assert_eq!(selector_for(Some(&Selector::Vms), &cluster), Selector::Vms);
    }

    fn nodes() -> impl Strategy<Value = Vec<NodeRecord>> {
        let node = (0..64_000_u64, 0..100_000_u64, 0..50_u64, 0.0..20.0_f64, any::<bool>())
            .prop_map(|(free, provisioned, vcpus, load, ready)| {
                let mut node = node("x", free, provisioned, vcpus, load);
                if !ready {
                    node.domain_state = DomainState::Flush;
                }
                node
            });
        proptest::collection::vec(node, 0..6).prop_map(|mut nodes| {
            for (index, node) in nodes.iter_mut().enumerate() {
                node.name = NodeName::new(format!("hv{index}"));
            }
            nodes
        })
    }

    proptest! {
        #[test]
        fn the_chosen_node_is_always_allowed(
            nodes in nodes(),
            selector in proptest::sample::select(Selector::ALL),
            memory_mib in 0..70_000_u64,
            limit in proptest::collection::vec(0..6_usize, 0..3),
            leaving in 0..6_usize,
            runs: bool,
        ) {
            let cluster = cluster(nodes);
            let name = |index: &usize| NodeName::new(format!("hv{index}"));
            let node_limit: &[_] = &limit.iter().map(name).collect::<Vec<_>>();
            let leaving = name(&leaving);
            let need = Need {
                memory_mib,
                vcpus: 1,
                node_limit,
                leaving: Some(&leaving),
                runs,
                ..Need::default()
            };
            match place(&cluster, &selector, &need, &Promises::default()) {
                Ok(name) => {
                    let node = &cluster.nodes[&name];
                    prop_assert!(node.takes_vms() && name != leaving);
                    prop_assert!(node_limit.is_empty() || node_limit.contains(&name));
                    prop_assert!(memory_mib < node.figures.memory_total_mib);
                    prop_assert!(!runs || memory_mib <= node.figures.memory_free_mib);
                }
                Err(no) => prop_assert_eq!(no.reasons.len(), cluster.nodes.len()),
            }
        }

        #[test]
        fn no_memory_is_promised_twice(
            nodes in nodes(),
            vms in proptest::collection::vec(1..20_000_u64, 0..20),
        ) {
            let cluster = cluster(nodes);
            let mut promises = Promises::default();
            let mut given: BTreeMap<NodeName, u64> = BTreeMap::new();
            for memory_mib in vms {
                let need = Need { memory_mib, vcpus: 1, runs: true, ..Need::default() };
                if let Ok(name) = place(&cluster, &Selector::Mem, &need, &promises) {
                    promises.add(&name, &need);
                    *given.entry(name).or_default() += memory_mib;
                }
            }
            for (name, sum) in given {
                prop_assert!(sum <= cluster.nodes[&name].figures.memory_free_mib);
            }
        }
    }
}
