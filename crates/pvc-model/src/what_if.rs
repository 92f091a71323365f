//! Prediction of what becomes of a cluster whose node dies, made from the records.
//!
//! ```text
//!  records ──proven dead──▶ a fence ──weighed_rescues──▶ fates ──carried out──▶ records after it
//! ```
//!
//! Nothing is decided here: the VMs' new places are chosen by the very function that the fencer
//! calls. What is added is everything for which that function is never called at all
//! ([`Hindrance`]), and what it does not look at ([`Caution`]).

use std::sync::Arc;

use crate::cluster::Cluster;
use crate::domain::{DiskSource, NicKind};
use crate::fence::{Rules, Way, weighed_rescues};
use crate::node::{CoordinatorState, DaemonState, DomainState, NodeFigures, NodeRecord, NodeRole};
use crate::placement::{NoPlace, Weighed};
use crate::vm::{VmRecord, VmState};
use crate::{NodeName, Uuid};

/// Prediction for one node's death.
#[derive(Debug, Clone)]
pub struct Outlook {
    pub node: NodeName,
    pub was_primary: bool,
    pub coordinators: Coordinators,
    /// Reasons why nobody makes up for it. Empty: somebody does.
    pub hindrances: Vec<Hindrance>,
    /// The VMs that should run and cannot since the node is dead; those of much memory first, as
    /// they are placed.
    pub fates: Vec<Fate>,
    /// The VMs that are assigned to the node and not to run.
    pub off: Vec<Uuid>,
    /// Records when everything is done. As before if nothing is.
    pub after: Cluster,
}

/// The coordinators, each of which is a server of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coordinators {
    pub all: usize,
    /// Number of those whose daemons run. One that was stopped may or may not serve the store; it
    /// is not counted on.
    pub left: usize,
}

impl Coordinators {
    pub fn are_a_quorum(self) -> bool {
        self.left * 2 > self.all
    }

    /// The coordinators of the cluster but for `dead`.
    pub fn of(cluster: &Cluster, dead: Option<&NodeName>) -> Self {
        let all = || cluster.nodes.values().filter(|node| node.role == NodeRole::Coordinator);
        let left = all().filter(|node| lives(node) && dead != Some(&node.name)).count();
        Coordinators { all: all().count(), left }
    }
}

/// Whether the node's machine is taken to be on, by what its daemon said last.
pub fn lives(node: &NodeRecord) -> bool {
    matches!(node.daemon_state, DaemonState::Run | DaemonState::Init | DaemonState::Shutdown)
}

/// Reason why a death is not made up for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Hindrance {
    #[error("nobody else is there to notice")]
    Alone,
    #[error(
        "only {} of {} coordinators would be left, which is no quorum: nothing is decided until \
         one is back, and what runs elsewhere runs on", .0.left, .0.all
    )]
    NoQuorum(Coordinators),
    #[error("the cluster is in maintenance: no fence begins until that ends")]
    Maintenance,
    #[error("its daemon is in state `{0}`: only the death of a node in `run` is predicted")]
    NotInRun(DaemonState),
    #[error("no BMC is recorded for it: its death cannot be proven")]
    NoBmc,
    #[error("`fence_intervals` is 0: no node is ever taken for dead")]
    NeverFenced,
    #[error("`successful_fence` is `none`: its VMs wait for it")]
    NotRecovered,
}

/// Fate of one VM.
#[derive(Debug, Clone, PartialEq)]
pub struct Fate {
    pub vm: Uuid,
    pub name: String,
    pub memory_mib: u64,
    pub end: End,
    /// Merits of each node as a place for it; `None` if none was looked for.
    pub weighed: Option<Weighed>,
    pub cautions: Vec<Caution>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Is started on this node.
    Starts(NodeName),
    /// Runs on this node, on its way to or from the dead one.
    Stays(NodeName),
    /// No node can take it: it is off until its own node is ready again.
    Waits(NoPlace),
    /// Another node has it, or another fence decides.
    Elsewhere,
    /// Nobody does anything about it: see the [`Hindrance`]s.
    Down,
}

/// Something that may keep a VM from running at its new place, and is not looked at when that is
/// chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Caution {
    #[error(
        "it uses the network device `{0}` of its host; nobody looks whether the new one has it to \
         spare"
    )]
    Device(String),
    #[error("it uses the file `{0}` of its host; nobody looks whether the new one has it")]
    File(String),
    #[error(
        "its XML cannot be read ({0}): it counts for nothing when a place is chosen, and does not \
         start"
    )]
    Unreadable(String),
}

/// Reason why there is nothing to predict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("there is no node `{node}`")]
    NoNode { node: String, known: Vec<NodeName> },
    #[error("node `{node}` is dead already: its daemon is in state `{state}`")]
    DeadAlready { node: NodeName, state: DaemonState },
}

impl Refusal {
    pub fn hint(&self) -> String {
        match self {
            Refusal::NoNode { known, .. } => {
                let known: Vec<&str> = known.iter().map(NodeName::as_str).collect();
                format!("the nodes are: {}", known.join(", "))
            }
            Refusal::DeadAlready { node, .. } => {
                format!(
                    "`pvc node info {node}` says what became of it; ask about a node that lives"
                )
            }
        }
    }
}

/// Predicts what happens if `node` dies now.
///
/// # Errors
/// If there is no such node, or it is dead already.
pub fn node_dies(cluster: &Cluster, node: &str, rules: &Rules) -> Result<Outlook, Refusal> {
    let Some(record) = cluster.nodes.get(node) else {
        return Err(Refusal::NoNode {
            node: node.to_owned(),
            known: cluster.nodes.keys().cloned().collect(),
        });
    };
    if matches!(record.daemon_state, DaemonState::Dead | DaemonState::Fenced) {
        let state = record.daemon_state.clone();
        return Err(Refusal::DeadAlready { node: record.name.clone(), state });
    }
    let node = &record.name;
    let hindrances = hindrances(cluster, record, rules);
    let fenced = proven_dead(cluster, node);
    let fates: Vec<Fate> = fates(&fenced, node, hindrances.is_empty());
    let is_off = |vm: &&Arc<VmRecord>| {
        vm.is_assigned_to(node) && !fates.iter().any(|fate| fate.vm == vm.uuid)
    };
    let after =
        if hindrances.is_empty() { carried_out(fenced, node, &fates) } else { cluster.clone() };
    Ok(Outlook {
        node: node.clone(),
        was_primary: cluster.config.primary.as_ref() == Some(node),
        coordinators: Coordinators::of(cluster, Some(node)),
        off: cluster.vms.values().filter(is_off).map(|vm| vm.uuid).collect(),
        hindrances,
        fates,
        after,
    })
}

impl Outlook {
    /// Whether every VM that ran runs again.
    pub fn is_made_up_for(&self) -> bool {
        self.stranded().next().is_none() && (self.hindrances.is_empty() || self.fates.is_empty())
    }

    /// The VMs that are down in the end.
    pub fn stranded(&self) -> impl Iterator<Item = &Fate> {
        self.fates.iter().filter(|fate| matches!(fate.end, End::Waits(_) | End::Down))
    }

    /// Predictions for the death of yet another node then, while this one has not come back; one
    /// for each node that is left.
    pub fn deaths_after(&self, rules: &Rules) -> Vec<Outlook> {
        let left = self.after.nodes.values().filter(|node| lives(node) && node.name != self.node);
        left.filter_map(|node| node_dies(&self.after, node.name.as_str(), rules).ok()).collect()
    }
}

fn hindrances(cluster: &Cluster, record: &NodeRecord, rules: &Rules) -> Vec<Hindrance> {
    let coordinators = Coordinators::of(cluster, Some(&record.name));
    let mut found = Vec::new();
    if !cluster.nodes.values().any(|node| lives(node) && node.name != record.name) {
        found.push(Hindrance::Alone);
    } else if !coordinators.are_a_quorum() {
        found.push(Hindrance::NoQuorum(coordinators));
    }
    if cluster.config.maintenance {
        found.push(Hindrance::Maintenance);
    }
    if record.daemon_state != DaemonState::Run {
        found.push(Hindrance::NotInRun(record.daemon_state.clone()));
    }
    if rules.fence_intervals == 0 {
        found.push(Hindrance::NeverFenced);
    }
    if record.ipmi_hostname.is_empty() {
        found.push(Hindrance::NoBmc);
    }
    if !rules.recover_after_success {
        found.push(Hindrance::NotRecovered);
    }
    found
}

/// The records once `node` is proven dead and before its VMs are recovered.
fn proven_dead(cluster: &Cluster, node: &NodeName) -> Cluster {
    let mut fenced = cluster.clone();
    if let Some(record) = fenced.nodes.get_mut(node).map(Arc::make_mut) {
        record.daemon_state = DaemonState::Fenced;
        record.domain_state = DomainState::FenceFlush;
        if record.role == NodeRole::Coordinator {
            record.coordinator_state = CoordinatorState::Secondary;
        }
    }
    fenced.config.primary = fenced.config.primary.filter(|primary| primary != node);
    fenced
}

fn fates(fenced: &Cluster, node: &NodeName, is_recovered: bool) -> Vec<Fate> {
    let fate = |(rescue, weighed): (crate::fence::Rescue, Option<Weighed>)| {
        let record = fenced.vms.get(&rescue.vm)?;
        let end = match rescue.way {
            // It was to be off, and is; only locks are to be freed.
            Way::Off => return None,
            Way::Leave if !is_to_run(record) => return None,
            Way::Leave => End::Elsewhere,
            Way::Stay(on) => End::Stays(on),
            Way::Start(_) | Way::Wait(_) | Way::Later(_) if !is_recovered => End::Down,
            Way::Start(on) => End::Starts(on),
            Way::Wait(why) | Way::Later(why) => End::Waits(why),
        };
        let weighed = weighed.filter(|_| is_recovered);
        let (memory_mib, cautions) = (record.memory_mib(), cautions(record));
        Some(Fate { vm: rescue.vm, name: rescue.name, memory_mib, end, weighed, cautions })
    };
    weighed_rescues(fenced, node).into_iter().filter_map(fate).collect()
}

fn is_to_run(vm: &VmRecord) -> bool {
    use VmState::{Migrate, MigrateLive, Restart, Start, Unmigrate};
    matches!(vm.state, Start | Restart | Migrate | MigrateLive | Unmigrate)
}

fn cautions(vm: &VmRecord) -> Vec<Caution> {
    let domain = match &vm.domain {
        Ok(domain) => domain,
        Err(why) => return vec![Caution::Unreadable(why.clone())],
    };
    let devices = domain.nics.iter().filter_map(|nic| match &nic.kind {
        NicKind::Hostdev(name) | NicKind::Direct(name) => Some(Caution::Device(name.clone())),
        _ => None,
    });
    let files = domain.disks.iter().filter_map(|disk| match &disk.source {
        DiskSource::File(path) => Some(Caution::File(path.clone())),
        DiskSource::Other(_) => Some(Caution::File(disk.target.clone())),
        _ => None,
    });
    devices.chain(files).collect()
}

/// The records once every VM is where `fates` say. The figures are those that the nodes will
/// report.
fn carried_out(mut cluster: Cluster, dead: &NodeName, fates: &[Fate]) -> Cluster {
    for fate in fates {
        let Some(vm) = cluster.vms.get_mut(&fate.vm).map(Arc::make_mut) else { continue };
        match &fate.end {
            End::Starts(to) => {
                vm.state = VmState::Start;
                vm.node = Some(to.clone());
                if let Some(node) = cluster.nodes.get_mut(to).map(Arc::make_mut) {
                    settles(node, vm);
                }
            }
            End::Stays(on) => {
                vm.state = VmState::Start;
                vm.node = Some(on.clone());
            }
            End::Waits(_) => vm.state = VmState::Stop,
            End::Elsewhere | End::Down => {}
        }
    }
    if let Some(node) = cluster.nodes.get_mut(dead).map(Arc::make_mut) {
        node.domain_state = DomainState::Flushed;
        node.figures = NodeFigures::default();
        node.running.clear();
        node.working_on.clear();
    }
    cluster
}

/// The VM runs on the node from now on.
fn settles(node: &mut NodeRecord, vm: &VmRecord) {
    let figures = &mut node.figures;
    figures.memory_free_mib = figures.memory_free_mib.saturating_sub(vm.memory_mib());
    figures.memory_used_mib = figures.memory_used_mib.saturating_add(vm.memory_mib());
    figures.memory_allocated_mib = figures.memory_allocated_mib.saturating_add(vm.memory_mib());
    figures.memory_provisioned_mib = figures.memory_provisioned_mib.saturating_add(vm.memory_mib());
    figures.vcpus_allocated += vm.domain.as_ref().map_or(0, |domain| u64::from(domain.vcpus));
    figures.domains += 1;
    node.running.push(vm.uuid);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::{Disk, DomainSummary, Nic};
    use crate::fence::rescues;
    use crate::records;

    fn rules() -> Rules {
        Rules {
            keepalive_interval: Duration::from_secs(5),
            fence_intervals: 6,
            recover_after_success: true,
        }
    }

    fn node(name: &str, free_mib: u64) -> NodeRecord {
        NodeRecord {
            cpus: 16,
            ipmi_hostname: format!("bmc-{name}"),
            figures: NodeFigures {
                memory_total_mib: 64_000,
                memory_used_mib: 64_000 - free_mib,
                memory_free_mib: free_mib,
                ..NodeFigures::default()
            },
            ..records::node(name)
        }
    }

    fn vm(number: u128, memory_mib: u64, on: &str) -> VmRecord {
        let uuid = Uuid::from_u128(number);
        let domain = DomainSummary { memory_mib, ..records::domain(uuid) };
        VmRecord { domain: Ok(Arc::new(domain)), ..records::vm(number, VmState::Start, Some(on)) }
    }

    fn cluster(nodes: Vec<NodeRecord>, vms: Vec<VmRecord>) -> Cluster {
        let mut cluster = Cluster {
            nodes: nodes.into_iter().map(|node| (node.name.clone(), Arc::new(node))).collect(),
            vms: vms.into_iter().map(|vm| (vm.uuid, Arc::new(vm))).collect(),
            ..Cluster::default()
        };
        for vm in cluster.vms.values().filter(|vm| vm.state == VmState::Start) {
            let on = vm.node.as_ref().and_then(|node| cluster.nodes.get_mut(node));
            Arc::make_mut(on.unwrap()).running.push(vm.uuid);
        }
        cluster
    }

    /// Three coordinators, of which `hv3` runs three VMs.
    fn three() -> Cluster {
        let nodes = vec![node("hv1", 10_000), node("hv2", 6_000), node("hv3", 40_000)];
        cluster(
            nodes,
            vec![
                vm(1, 4_000, "hv3"),
                vm(2, 8_000, "hv3"),
                vm(3, 5_000, "hv3"),
                vm(4, 1_000, "hv1"),
            ],
        )
    }

    fn ends(outlook: &Outlook) -> Vec<String> {
        let end = |fate: &Fate| match &fate.end {
            End::Starts(on) => format!("{} starts on {on}", fate.name),
            End::Stays(on) => format!("{} stays on {on}", fate.name),
            End::Waits(_) => format!("{} waits", fate.name),
            End::Elsewhere => format!("{} is elsewhere", fate.name),
            End::Down => format!("{} is down", fate.name),
        };
        outlook.fates.iter().map(end).collect()
    }

    fn edit(cluster: &mut Cluster, name: &str, change: impl FnOnce(&mut NodeRecord)) {
        change(Arc::make_mut(cluster.nodes.get_mut(name).unwrap()));
    }

    #[test]
    fn a_vm_that_is_on_its_way_down_is_off_whatever_becomes_of_its_locks() {
        let mut cluster = three();
        for (number, state) in [(2, VmState::Shutdown), (3, VmState::Stop)] {
            Arc::make_mut(cluster.vms.get_mut(&Uuid::from_u128(number)).unwrap()).state = state;
        }
        let outlook = node_dies(&cluster, "hv3", &rules()).unwrap();
        assert_eq!(ends(&outlook), ["vm1 starts on hv1"]);
        assert_eq!(outlook.off, [2, 3].map(Uuid::from_u128));
    }

    #[test]
    fn vms_go_where_the_fencer_sends_them() {
        let cluster = three();
        let outlook = node_dies(&cluster, "hv3", &rules()).unwrap();
        assert_eq!(ends(&outlook), ["vm2 starts on hv1", "vm3 starts on hv2", "vm1 waits"]);
        let sent = rescues(&proven_dead(&cluster, &NodeName::new("hv3")), &NodeName::new("hv3"));
        let sent: Vec<Way> = sent.into_iter().map(|rescue| rescue.way).collect();
        assert_eq!(sent[..2], [Way::Start(NodeName::new("hv1")), Way::Start(NodeName::new("hv2"))]);
        let weighed = outlook.fates[0].weighed.as_ref().unwrap();
        assert_eq!(weighed.seen(weighed.nodes["hv1"].clone().unwrap()), "10000 MiB of memory free");
        assert!(!outlook.is_made_up_for());
        let stranded: Vec<&str> = outlook.stranded().map(|fate| fate.name.as_str()).collect();
        assert_eq!(stranded, ["vm1"]);
    }

    #[test]
    fn the_records_afterwards_are_those_of_a_flushed_dead_node_and_of_fuller_others() {
        let mut cluster = three();
        cluster.config.primary = Some(NodeName::new("hv3"));
        let outlook = node_dies(&cluster, "hv3", &rules()).unwrap();
        assert!(outlook.was_primary);
        let after = &outlook.after;
        assert_eq!(after.config.primary, None);
        assert_eq!(after.nodes["hv3"].domain_state, DomainState::Flushed);
        assert!(after.nodes["hv3"].running.is_empty());
        assert_eq!(after.nodes["hv1"].figures.memory_free_mib, 2_000);
        assert_eq!(after.nodes["hv1"].running, [Uuid::from_u128(4), Uuid::from_u128(2)]);
        assert_eq!(after.vms[&Uuid::from_u128(1)].state, VmState::Stop);
        assert_eq!(after.vms[&Uuid::from_u128(3)].node, Some(NodeName::new("hv2")));
    }

    #[test]
    fn after_one_of_three_coordinators_a_second_one_must_not_die() {
        let mut cluster = three();
        let mut fourth = node("hv4", 60_000);
        fourth.role = NodeRole::Hypervisor;
        cluster.nodes.insert(fourth.name.clone(), Arc::new(fourth));
        let outlook = node_dies(&cluster, "hv3", &rules()).unwrap();
        assert!(outlook.is_made_up_for());
        let next = outlook.deaths_after(&rules());
        let found: Vec<(&str, bool)> =
            next.iter().map(|next| (next.node.as_str(), next.hindrances.is_empty())).collect();
        assert_eq!(found, [("hv1", false), ("hv2", false), ("hv4", true)]);
        let coordinators = Coordinators { all: 3, left: 1 };
        assert_eq!(next[0].hindrances, [Hindrance::NoQuorum(coordinators)]);
        assert_eq!(ends(&next[2]), ["vm2 starts on hv1", "vm3 starts on hv2", "vm1 waits"]);
    }

    #[test]
    fn each_hindrance_that_keeps_a_death_from_being_made_up_for_is_named() {
        let said = |cluster: &Cluster, rules: &Rules| {
            let outlook = node_dies(cluster, "hv3", rules).unwrap();
            assert_eq!(ends(&outlook), ["vm2 is down", "vm3 is down", "vm1 is down"]);
            assert!(!outlook.is_made_up_for());
            assert_eq!(outlook.after.nodes["hv3"].daemon_state, cluster.nodes["hv3"].daemon_state);
            outlook.hindrances.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let mut maintained = three();
        maintained.config.maintenance = true;
        assert_eq!(said(&maintained, &rules()), [Hindrance::Maintenance.to_string()]);

        let mut bare = three();
        edit(&mut bare, "hv3", |node| node.ipmi_hostname.clear());
        assert_eq!(
            said(&bare, &rules()),
            ["no BMC is recorded for it: its death cannot be proven"]
        );

        let mut starting = three();
        edit(&mut starting, "hv3", |node| node.daemon_state = DaemonState::Init);
        let words = "its daemon is in state `init`: only the death of a node in `run` is predicted";
        assert_eq!(said(&starting, &rules()), [words]);

        let mut weak = three();
        edit(&mut weak, "hv2", |node| node.daemon_state = DaemonState::Stop);
        let words = "only 1 of 3 coordinators would be left, which is no quorum: nothing is \
                     decided until one is back, and \
                     what runs elsewhere runs on";
        assert_eq!(said(&weak, &rules()), [words]);

        let mut lonely = three();
        lonely.nodes.retain(|name, _| name.as_str() == "hv3");
        assert_eq!(said(&lonely, &rules()), ["nobody else is there to notice"]);

        assert_eq!(
            said(&three(), &Rules { fence_intervals: 0, ..rules() }),
            [Hindrance::NeverFenced.to_string()]
        );
        let waits = Rules { recover_after_success: false, ..rules() };
        assert_eq!(said(&three(), &waits), ["`successful_fence` is `none`: its VMs wait for it"]);
    }

    #[test]
    fn a_node_that_is_dead_already_and_one_that_is_unknown_are_refused() {
        let mut cluster = three();
        edit(&mut cluster, "hv3", |node| node.daemon_state = DaemonState::Fenced);
        let refusal = |name| node_dies(&cluster, name, &rules()).unwrap_err();
        assert_eq!(
            refusal("hv3").to_string(),
            "node `hv3` is dead already: its daemon is in state `fenced`"
        );
        assert_eq!(refusal("hv9").to_string(), "there is no node `hv9`");
        assert_eq!(refusal("hv9").hint(), "the nodes are: hv1, hv2, hv3");
    }

    #[test]
    fn what_the_choice_of_a_place_does_not_look_at_is_said() {
        let mut cluster = three();
        let uuid = Uuid::from_u128(1);
        let nic = |kind| Nic {
            kind,
            mac: String::new(),
            model: String::new(),
            target: None,
            is_exclusive: false,
            has_vlan: false,
        };
        let disk = Disk {
            source: DiskSource::File("/srv/tools.iso".to_owned()),
            target: "sdb".to_owned(),
            bus: "scsi".to_owned(),
            device: "cdrom".to_owned(),
            shared: true,
        };
        let nics = vec![
            nic(NicKind::Hostdev("eth2v1".to_owned())),
            nic(NicKind::Bridge("vmbr10".to_owned())),
        ];
        let domain = DomainSummary { nics, disks: vec![disk], ..records::domain(uuid) };
        Arc::make_mut(cluster.vms.get_mut(&uuid).unwrap()).domain = Ok(Arc::new(domain));
        let other = Uuid::from_u128(3);
        Arc::make_mut(cluster.vms.get_mut(&other).unwrap()).domain =
            Err("no XML is recorded".to_owned());
        let outlook = node_dies(&cluster, "hv3", &rules()).unwrap();
        let cautions = |name: &str| {
            outlook.fates.iter().find(|fate| fate.name == name).unwrap().cautions.clone()
        };
        let expected =
            [Caution::Device("eth2v1".to_owned()), Caution::File("/srv/tools.iso".to_owned())];
        assert_eq!(cautions("vm1"), expected);
        assert_eq!(cautions("vm3"), [Caution::Unreadable("no XML is recorded".to_owned())]);
        assert_eq!(cautions("vm2"), []);
    }

    #[test]
    fn vms_that_are_not_to_run_are_nobodys_loss() {
        let mut cluster = three();
        let stopped = records::vm(9, VmState::Stop, Some("hv3"));
        cluster.vms.insert(stopped.uuid, Arc::new(stopped));
        let outlook = node_dies(&cluster, "hv3", &rules()).unwrap();
        assert_eq!(outlook.off, [Uuid::from_u128(9)]);
        let idle = node_dies(&cluster, "hv2", &rules()).unwrap();
        assert!(idle.fates.is_empty() && idle.is_made_up_for());
    }
}
