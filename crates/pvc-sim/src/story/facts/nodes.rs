//! Facts about nodes.

use pvc_model::node::NodeFigures;

use super::{Fact, Look, so};
use crate::story::words::{Form, NodeWord};

/// Fact about nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::story) enum NodeFact {
    /// The number of VMs that run there.
    NodeRuns(usize, Number, usize),
    MemoryIsEnough,
    NodeIs(usize, Vec<NodeWord>),
    NodeIsNot(usize, Vec<NodeWord>),
    RunsVersion(usize, String),
    WasNeverOff(usize),
    ApiTakesRequests(usize, bool),
    WorkerRuns(usize, bool),
    /// The node has figures of its resources in its record, or has none.
    HasFigures(usize, bool),
    HasRecord(usize, bool),
    /// The node was fenced by one of these, as the record of the present fence says.
    FencedBy(usize, Vec<usize>),
}

/// Exactness of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::story) enum Number {
    Exactly,
    AtLeast,
    AtMost,
}

impl Number {
    fn fits(self, wanted: usize, so: usize) -> bool {
        match self {
            Number::Exactly => so == wanted,
            Number::AtLeast => so >= wanted,
            Number::AtMost => so <= wanted,
        }
    }
}

fn node(fact: NodeFact) -> Fact {
    Fact::Node(fact)
}

pub(super) const FORMS: &[Form<Fact>] = &[
    Form {
        form: "NODE runs COUNT VMs",
        means: |f| node(NodeFact::NodeRuns(f.node(), Number::Exactly, f.count as usize)),
    },
    Form {
        form: "NODE runs at least COUNT VMs",
        means: |f| node(NodeFact::NodeRuns(f.node(), Number::AtLeast, f.count as usize)),
    },
    Form {
        form: "NODE runs at most COUNT VMs",
        means: |f| node(NodeFact::NodeRuns(f.node(), Number::AtMost, f.count as usize)),
    },
    Form { form: "every node has memory for its VMs", means: |_| node(NodeFact::MemoryIsEnough) },
    Form {
        form: "NODE is NODE-STATES",
        means: |f| node(NodeFact::NodeIs(f.node(), f.node_words.clone())),
    },
    Form {
        form: "NODE is not NODE-STATES",
        means: |f| node(NodeFact::NodeIsNot(f.node(), f.node_words.clone())),
    },
    Form {
        form: "NODE runs version TEXT",
        means: |f| node(NodeFact::RunsVersion(f.node(), f.text.clone())),
    },
    Form { form: "NODE was never off", means: |f| node(NodeFact::WasNeverOff(f.node())) },
    Form { form: "NODE has figures", means: |f| node(NodeFact::HasFigures(f.node(), true)) },
    Form { form: "NODE has no figures", means: |f| node(NodeFact::HasFigures(f.node(), false)) },
    Form { form: "NODE has a record", means: |f| node(NodeFact::HasRecord(f.node(), true)) },
    Form { form: "NODE has no record", means: |f| node(NodeFact::HasRecord(f.node(), false)) },
    Form {
        form: "api of NODE takes requests",
        means: |f| node(NodeFact::ApiTakesRequests(f.node(), true)),
    },
    Form {
        form: "api of NODE takes no requests",
        means: |f| node(NodeFact::ApiTakesRequests(f.node(), false)),
    },
    Form { form: "worker of NODE is there", means: |f| node(NodeFact::WorkerRuns(f.node(), true)) },
    Form {
        form: "worker of NODE is not there",
        means: |f| node(NodeFact::WorkerRuns(f.node(), false)),
    },
    Form {
        form: "fencer of NODE is NODES",
        means: |f| node(NodeFact::FencedBy(f.node(), f.nodes[1..].to_vec())),
    },
];

impl Look<'_> {
    pub(super) fn node_holds(&self, fact: &NodeFact) -> Result<(), String> {
        match fact {
            NodeFact::NodeRuns(node, number, wanted) => {
                let runs = self.guests_on(*node);
                so(number.fits(*wanted, runs), || format!("it runs {runs}"))
            }
            NodeFact::MemoryIsEnough => self.memory_is_enough(),
            NodeFact::NodeIs(node, words) => {
                so(words.iter().any(|word| self.node_is(*node, word)), || self.states_of(*node))
            }
            NodeFact::NodeIsNot(node, words) => {
                so(!words.iter().any(|word| self.node_is(*node, word)), || self.states_of(*node))
            }
            NodeFact::RunsVersion(node, version) => {
                let runs =
                    self.with_node(*node, |record| record.pvc_version.clone()).unwrap_or_default();
                so(runs == *version, || format!("it runs `{runs}`"))
            }
            NodeFact::WasNeverOff(node) => self.was_never_off(*node),
            NodeFact::ApiTakesRequests(node, wanted) => {
                let takes = self.cluster.world.with(|state| {
                    state.hosts[*node].api.as_ref().is_some_and(|api| api.desk.is_some())
                });
                so(takes == *wanted, || {
                    (if takes { "it takes them" } else { "it takes none" }).to_owned()
                })
            }
            NodeFact::WorkerRuns(node, wanted) => {
                let runs = self.cluster.world.with(|state| state.hosts[*node].worker.is_some());
                so(runs == *wanted, || {
                    (if runs { "it is there" } else { "it is not there" }).to_owned()
                })
            }
            NodeFact::HasFigures(node, wanted) => self.has_figures(*node, *wanted),
            NodeFact::HasRecord(node, wanted) => {
                let has = self.with_node(*node, |_| ()).is_some();
                so(has == *wanted, || (if has { "it has one" } else { "it has none" }).to_owned())
            }
            NodeFact::FencedBy(node, by) => {
                let fencer = self.fencer_of(*node);
                so(fencer.is_some_and(|fencer| by.contains(&fencer)), || match fencer {
                    Some(fencer) => format!("it is {}", self.name(fencer)),
                    None => "nobody fences it".to_owned(),
                })
            }
        }
    }

    fn guests_on(&self, node: usize) -> usize {
        self.cluster.world.with(|state| {
            state.hypervisors[node].guests.values().filter(|guest| guest.is_alive()).count()
        })
    }

    fn memory_is_enough(&self) -> Result<(), String> {
        for node in 0..self.cluster.shape.hosts.len() {
            let (taken, there_is) = self.cluster.memory_of(node);
            so(taken <= there_is, || {
                format!("{} has {there_is} MiB for VMs, which have {taken} MiB", self.name(node))
            })?;
        }
        Ok(())
    }

    fn has_figures(&self, node: usize, wanted: bool) -> Result<(), String> {
        let said =
            self.with_node(node, |record| (record.figures, record.running.len(), record.health));
        let (figures, running, health) = said.ok_or("it has no record")?;
        let is_so = match wanted {
            true => figures.memory_total_mib > 0,
            false => figures == NodeFigures::default() && running == 0 && health.is_none(),
        };
        so(is_so, || format!("its record says {figures:?}, {running} VMs, health {health:?}"))
    }

    fn states_of(&self, node: usize) -> String {
        let power =
            if self.cluster.world.with(|state| state.hosts[node].on) { "on" } else { "off" };
        let said = self.with_node(node, |record| {
            let (daemon, role) = (&record.daemon_state, &record.coordinator_state);
            format!("it is {power}, {daemon}, {role} and {}", record.domain_state)
        });
        said.unwrap_or_else(|| "it has no record".to_owned())
    }

    fn was_never_off(&self, node: usize) -> Result<(), String> {
        let (is_on, off) =
            self.cluster.world.with(|state| (state.hosts[node].on, state.hosts[node].last_off));
        let began = self.beginning.at;
        so(is_on && off.is_none_or(|off| off < began), || match off {
            Some(off) => {
                format!("it was off {} s into the story", off.saturating_sub(began).as_secs())
            }
            None => "it is off".to_owned(),
        })
    }

    /// Node that fences this one at present, or did so last, as its record says.
    pub fn fencer_of(&self, node: usize) -> Option<usize> {
        let by =
            self.with_node(node, |record| record.present_fence().map(|fence| fence.by.clone()));
        let by = by.flatten()?;
        self.cluster.shape.hosts.iter().position(|host| host.name == by)
    }
}
