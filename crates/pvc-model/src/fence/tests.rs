mod booting;
mod cutting;
mod elections;
mod locks;
mod recovery;
mod suspicion;
mod word;

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::node::{DaemonNote, NodeFigures};
use crate::vm::moving::{MoveNote, MovePhase};
use crate::vm::{VmRecord, VmState};
use crate::{Uuid, domain::DomainSummary, records};

const INTERVAL: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_secs(1);

fn rules() -> Rules {
    Rules { keepalive_interval: INTERVAL, fence_intervals: 6, recover_after_success: true }
}

fn node(name: &str, daemon_state: DaemonState) -> NodeRecord {
    NodeRecord {
        daemon_state,
        keepalive: 1000,
        keepalives: 7,
        cpus: 16,
        figures: NodeFigures {
            memory_total_mib: 32768,
            memory_free_mib: 16384,
            ..NodeFigures::default()
        },
        ipmi_hostname: "bmc".to_owned(),
        ..records::node(name)
    }
}

fn cluster(nodes: impl IntoIterator<Item = NodeRecord>) -> Cluster {
    let nodes = nodes.into_iter().map(|node| (node.name.clone(), Arc::new(node))).collect();
    Cluster { nodes, ..Cluster::default() }
}

/// Fencer `hv1`, which looks every second.
struct Fencer {
    cluster: Cluster,
    sightings: Sightings,
    session: i64,
    histories: BTreeMap<NodeName, History>,
    rules: Rules,
    now: Duration,
}

impl Fencer {
    fn watching(nodes: impl IntoIterator<Item = NodeRecord>) -> Fencer {
        let mut fencer = Fencer {
            cluster: cluster(nodes),
            sightings: Sightings::new(&rules()),
            session: 1,
            histories: BTreeMap::new(),
            rules: rules(),
            now: Duration::from_secs(7_000),
        };
        fencer.look(true);
        fencer
    }

    fn look(&mut self, is_connected: bool) {
        self.sightings.look(&self.cluster, is_connected.then_some(self.session), self.now);
    }

    /// Is without a connection for so many seconds.
    fn cut_off(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += LOOK;
            self.look(false);
        }
    }

    /// Same as [`Self::after`], while this fencer's own keepalive is written every five seconds.
    fn after_stamping(&mut self, seconds: u64) -> Vec<(NodeName, Step)> {
        for second in 1..=seconds {
            if second % 5 == 1 {
                self.edit("hv1", |node| node.keepalives += 1);
            }
            self.after(1);
        }
        self.plan().steps
    }

    fn plan(&mut self) -> Plan {
        let me = NodeName::new("hv1");
        let view = View {
            me: &me,
            cluster: &self.cluster,
            sightings: &self.sightings,
            rules: &self.rules,
            now: self.now,
        };
        observe(&view, &mut self.histories);
        plan(&view, &self.histories)
    }

    /// Lets `seconds` pass, looking every second, and returns what is then to be done.
    fn after(&mut self, seconds: u64) -> Vec<(NodeName, Step)> {
        for _ in 0..seconds {
            self.now += LOOK;
            self.look(true);
        }
        self.plan().steps
    }

    fn steps_for(&mut self, name: &str) -> Option<Step> {
        self.plan().steps.into_iter().find(|(node, _)| node.as_str() == name).map(|(_, step)| step)
    }

    fn edit(&mut self, name: &str, change: impl FnOnce(&mut NodeRecord)) {
        change(Arc::make_mut(self.cluster.nodes.get_mut(name).unwrap()));
    }

    fn history(&mut self, name: &str) -> &mut History {
        self.histories.entry(NodeName::new(name)).or_default()
    }
}

/// `hv1` fences, `hv2` was heard at the beginning, has been silent since and is taken for dead.
fn with_dead_node() -> Fencer {
    let earlier = NodeRecord { keepalives: 6, ..node("hv2", DaemonState::Run) };
    let mut fencer = Fencer::watching([node("hv1", DaemonState::Run), earlier]);
    fencer.edit("hv2", |node| node.keepalives = 7);
    fencer.look(true);
    fencer.after(30);
    assert_eq!(fencer.steps_for("hv2"), Some(Step::Suspect { stamp: 7 }));
    fencer.edit("hv2", |node| node.daemon_state = DaemonState::Dead);
    fencer
}

fn our_node(name: &str, daemon_state: DaemonState) -> NodeRecord {
    let version = "0.2.0".to_owned();
    let note = DaemonNote {
        version: version.clone(),
        stamps_while_starting: true,
        ..DaemonNote::default()
    };
    NodeRecord { daemon: Some(note), pvc_version: version, ..node(name, daemon_state) }
}

fn vm(number: u128, state: VmState, node: &str, memory_mib: u64) -> VmRecord {
    let record = records::vm(number, state, Some(node));
    let domain = DomainSummary { memory_mib, ..records::domain(record.uuid) };
    VmRecord { domain: Ok(Arc::new(domain)), ..record }
}

fn with_vms(vms: impl IntoIterator<Item = VmRecord>) -> Cluster {
    let small = |name: &str, free| NodeRecord {
        figures: NodeFigures {
            memory_total_mib: 9000,
            memory_free_mib: free,
            ..NodeFigures::default()
        },
        ..node(name, DaemonState::Run)
    };
    let mut cluster = cluster([
        small("hv1", 4096),
        small("hv2", 2048),
        NodeRecord { ..node("dead", DaemonState::Fenced) },
    ]);
    cluster.vms = vms.into_iter().map(|vm| (vm.uuid, Arc::new(vm))).collect();
    cluster
}
