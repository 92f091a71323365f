//! Facts about the cluster as a whole: its primary, its database, its store.

use pvc_model::node::CoordinatorState;

use super::{Fact, Look, so};
use crate::story::words::{Form, NodeWord};

/// Fact about the cluster as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::story) enum ClusterFact {
    /// Exactly one of these nodes has the addresses, and no other node has them.
    HasAddresses(Vec<usize>),
    IsPrimary(Vec<usize>),
    NobodyHasAddresses,
    NobodyIsPrimary,
    DatabaseIsLedBy(Vec<usize>),
    DatabaseIsLedByPrimary,
    Fault(String, bool),
    Quorum(bool),
    Maintenance(bool),
    Layout(u32),
    UnknownKeysAreUntouched,
    NobodyConnectedAnew,
    AllIsWell,
    LogSays(String, bool),
}

fn cluster(fact: ClusterFact) -> Fact {
    Fact::Cluster(fact)
}

pub(super) const FORMS: &[Form<Fact>] = &[
    Form {
        form: "NODE has floating addresses",
        means: |f| cluster(ClusterFact::HasAddresses(f.nodes.clone())),
    },
    Form {
        form: "one of NODES has floating addresses",
        means: |f| cluster(ClusterFact::HasAddresses(f.nodes.clone())),
    },
    Form {
        form: "one of NODES is primary",
        means: |f| cluster(ClusterFact::IsPrimary(f.nodes.clone())),
    },
    Form {
        form: "nobody has floating addresses",
        means: |_| cluster(ClusterFact::NobodyHasAddresses),
    },
    Form { form: "nobody is primary", means: |_| cluster(ClusterFact::NobodyIsPrimary) },
    Form {
        form: "database is led by primary",
        means: |_| cluster(ClusterFact::DatabaseIsLedByPrimary),
    },
    Form {
        form: "database is led by NODES",
        means: |f| cluster(ClusterFact::DatabaseIsLedBy(f.nodes.clone())),
    },
    Form {
        form: "there is fault TEXT",
        means: |f| cluster(ClusterFact::Fault(f.text.clone(), true)),
    },
    Form {
        form: "there is no fault TEXT",
        means: |f| cluster(ClusterFact::Fault(f.text.clone(), false)),
    },
    Form { form: "there is a quorum", means: |_| cluster(ClusterFact::Quorum(true)) },
    Form { form: "there is no quorum", means: |_| cluster(ClusterFact::Quorum(false)) },
    Form { form: "maintenance is on", means: |_| cluster(ClusterFact::Maintenance(true)) },
    Form { form: "maintenance is off", means: |_| cluster(ClusterFact::Maintenance(false)) },
    Form { form: "layout of store is COUNT", means: |f| cluster(ClusterFact::Layout(f.count)) },
    Form {
        form: "unknown keys are untouched",
        means: |_| cluster(ClusterFact::UnknownKeysAreUntouched),
    },
    Form { form: "nobody connected anew", means: |_| cluster(ClusterFact::NobodyConnectedAnew) },
    Form { form: "all is well", means: |_| cluster(ClusterFact::AllIsWell) },
    Form { form: "log says TEXT", means: |f| cluster(ClusterFact::LogSays(f.text.clone(), true)) },
    Form {
        form: "log does not say TEXT",
        means: |f| cluster(ClusterFact::LogSays(f.text.clone(), false)),
    },
];

impl Look<'_> {
    pub(super) fn cluster_holds(&self, fact: &ClusterFact) -> Result<(), String> {
        match fact {
            ClusterFact::HasAddresses(nodes) => self.has_addresses(nodes),
            ClusterFact::IsPrimary(nodes) => self.is_primary(nodes),
            ClusterFact::NobodyHasAddresses => so(self.holders().is_empty(), || {
                format!("they are on {:?}", self.names(&self.holders()))
            }),
            ClusterFact::NobodyIsPrimary => {
                let primaries = self.primaries();
                so(primaries.is_empty(), || format!("primary is {:?}", self.names(&primaries)))
            }
            ClusterFact::DatabaseIsLedBy(nodes) => self.database_is_led_by(nodes),
            ClusterFact::DatabaseIsLedByPrimary => self.database_is_led_by(&self.primaries()),
            ClusterFact::Fault(id, wanted) => {
                let view = self.cluster.view();
                so(view.faults.contains_key(id) == *wanted, || {
                    format!("the faults are {:?}", view.faults.keys().collect::<Vec<_>>())
                })
            }
            ClusterFact::Quorum(wanted) => {
                let has = self.cluster.world.with(|state| state.zookeeper.has_quorum());
                so(has == *wanted, || {
                    (if has { "there is one" } else { "there is none" }).to_owned()
                })
            }
            ClusterFact::Maintenance(wanted) => {
                let is_on = self.cluster.view().config.maintenance;
                so(is_on == *wanted, || (if is_on { "it is on" } else { "it is off" }).to_owned())
            }
            ClusterFact::Layout(version) => {
                let found = self.cluster.view().config.schema;
                so(found == Some(*version), || format!("it is {found:?}"))
            }
            ClusterFact::UnknownKeysAreUntouched => {
                let spoilt =
                    self.cluster.world.with(|state| state.zookeeper.changed_unknown_keys());
                so(spoilt.is_empty(), || format!("no longer as they were: {}", spoilt.join(", ")))
            }
            ClusterFact::NobodyConnectedAnew => {
                let connections = self.cluster.world.with(|state| state.zookeeper.connections);
                let anew = connections - self.beginning.connections;
                so(anew == 0, || format!("there were {anew} new connections"))
            }
            ClusterFact::AllIsWell => {
                let unsettled = self.cluster.unsettled();
                so(unsettled.is_empty(), || unsettled.join("; "))
            }
            ClusterFact::LogSays(text, wanted) => {
                let says = self.cluster.log().says(text, self.beginning.log_lines);
                so(says == *wanted, || (if says { "it does" } else { "it does not" }).to_owned())
            }
        }
    }

    /// The hosts on which any of the floating addresses is.
    fn holders(&self) -> Vec<usize> {
        self.cluster.world.with(|state| {
            let holds = |host: &usize| !state.hosts[*host].addresses.is_empty();
            (0..state.hosts.len()).filter(holds).collect()
        })
    }

    fn primaries(&self) -> Vec<usize> {
        let is_primary = NodeWord::Coordinator(CoordinatorState::Primary);
        (0..self.cluster.shape.hosts.len())
            .filter(|node| self.node_is(*node, &is_primary))
            .collect()
    }

    fn database_is_led_by(&self, nodes: &[usize]) -> Result<(), String> {
        let leader = self.cluster.world.with(|state| {
            let database = state.database_cluster.as_ref()?;
            database.leader(&state.hosts)
        });
        let leads = leader.is_some_and(|leader| nodes.contains(&leader));
        so(leads, || format!("the database is led by {:?}", self.names(leader.as_slice())))
    }

    fn has_addresses(&self, nodes: &[usize]) -> Result<(), String> {
        let holders = self.holders();
        so(matches!(holders.as_slice(), [one] if nodes.contains(one)), || {
            format!("they are on {:?}", self.names(&holders))
        })
    }

    fn is_primary(&self, nodes: &[usize]) -> Result<(), String> {
        let primaries = self.primaries();
        so(matches!(primaries.as_slice(), [one] if nodes.contains(one)), || {
            format!("primary is {:?}", self.names(&primaries))
        })
    }
}
