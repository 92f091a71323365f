//! Facts that can be true in a story, and whether they are.

mod cluster;
mod jobs;
mod networks;
mod nodes;
mod osds;
mod vms;
mod volumes;

use std::collections::BTreeMap;
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::node::NodeRecord;
use pvc_model::vm::VmRecord;
use uuid::Uuid;

use self::cluster::ClusterFact;
use self::jobs::JobFact;
use self::networks::NetworkFact;
pub(super) use self::nodes::NodeFact;
use self::osds::OsdFact;
use self::vms::VmFact;
use self::volumes::VolumeFact;
use super::words::{Form, NodeWord};
use crate::cluster::{Cluster, vm_uuid};

/// Something that is true or not, by its subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fact {
    Vm(VmFact),
    Volume(VolumeFact),
    Osd(OsdFact),
    Job(JobFact),
    Node(NodeFact),
    Network(NetworkFact),
    Cluster(ClusterFact),
}

/// Tables of the sentences, one for each subject.
pub(super) const FORMS: &[&[Form<Fact>]] = &[
    vms::FORMS,
    volumes::FORMS,
    osds::FORMS,
    jobs::FORMS,
    nodes::FORMS,
    networks::FORMS,
    cluster::FORMS,
];

/// State of things when the story began.
pub(super) struct Beginning {
    pub at: Duration,
    pub log_lines: u64,
    pub connections: u64,
    pub boots: BTreeMap<Uuid, u64>,
}

impl Beginning {
    pub fn of(cluster: &Cluster) -> Self {
        let (boots, connections) =
            cluster.world.with(|state| (state.truth.boots.clone(), state.zookeeper.connections));
        Beginning { at: cluster.now(), log_lines: cluster.log().lines(), connections, boots }
    }
}

/// A look at the cluster.
pub(super) struct Look<'a> {
    pub cluster: &'a Cluster,
    pub beginning: &'a Beginning,
}

impl Look<'_> {
    /// Whether the fact is so.
    ///
    /// # Errors
    /// What is so instead.
    pub fn holds(&self, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Vm(fact) => self.vm_holds(fact),
            Fact::Volume(fact) => self.volume_holds(fact),
            Fact::Osd(fact) => self.osd_holds(fact),
            Fact::Job(fact) => self.job_holds(fact),
            Fact::Node(fact) => self.node_holds(fact),
            Fact::Network(fact) => self.network_holds(fact),
            Fact::Cluster(fact) => self.cluster_holds(fact),
        }
    }

    fn name(&self, node: usize) -> &str {
        &self.cluster.shape.hosts[node].name
    }

    fn names(&self, nodes: &[usize]) -> Vec<&str> {
        nodes.iter().map(|node| self.name(*node)).collect()
    }

    fn where_is(&self, vm: usize) -> String {
        match self.cluster.runs_on(vm).as_slice() {
            [] => format!("it runs nowhere; {}", self.record_of(vm)),
            hosts => {
                format!("it runs on {}; {}", self.names(hosts).join(" and "), self.record_of(vm))
            }
        }
    }

    fn record_of(&self, vm: usize) -> String {
        let view = self.cluster.view();
        let Some(record) = view.vms.get(&vm_uuid(vm)) else { return "it has no record".to_owned() };
        let node = record.node.as_ref().map_or("no node", |node| node.as_str());
        let why = match record.failed_reason.as_str() {
            "" => String::new(),
            why => format!(" ({why})"),
        };
        format!("its record says {} on {node}{why}", record.state)
    }

    fn is_there(&self, is_there: bool, is_recorded: bool, wanted: bool) -> Result<(), String> {
        so((is_there, is_recorded) == (wanted, wanted), || {
            format!("that it is there is {is_there}, that it is recorded is {is_recorded}")
        })
    }

    fn record(
        &self,
        vm: usize,
        is_so: impl Fn(&VmRecord) -> bool,
        instead: impl Fn(&VmRecord) -> String,
    ) -> Result<(), String> {
        let view = self.cluster.view();
        let record = view.vms.get(&vm_uuid(vm)).ok_or("it has no record")?;
        so(is_so(record), || format!("it is {}", instead(record)))
    }

    fn with_node<T>(&self, node: usize, look: impl Fn(&NodeRecord) -> T) -> Option<T> {
        self.cluster.view().nodes.get(self.name(node)).map(|record| look(record))
    }

    fn node_is(&self, node: usize, word: &NodeWord) -> bool {
        let is_on = self.cluster.world.with(|state| state.hosts[node].on);
        let said = self.with_node(node, |record| match word {
            NodeWord::On => is_on,
            NodeWord::Off => !is_on,
            NodeWord::Daemon(state) => record.daemon_state == *state,
            NodeWord::Coordinator(state) => record.coordinator_state == *state,
            NodeWord::Domain(state) => record.domain_state == *state,
        });
        said.unwrap_or(false)
    }
}

fn so(is_so: bool, instead: impl FnOnce() -> String) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(instead()) }
}

fn name_or_none(node: Option<&NodeName>) -> &str {
    node.map_or("nobody", NodeName::as_str)
}
