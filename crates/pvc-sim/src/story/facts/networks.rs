//! Facts about networks of VMs.

use super::{Fact, Look, so};
use crate::cluster::vm_uuid;
use crate::story::words::Form;

/// Fact about networks of VMs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::story) enum NetworkFact {
    /// The managed network has its bridge and its tunnels on all of these nodes, or on none.
    NetworkStands(u32, Vec<usize>, bool),
    /// Exactly the rules of operators that are recorded for it are loaded on all of these nodes.
    HasRules(u32, Vec<usize>),
    /// Whether a rule of operators is recorded for it.
    HasRule(u32, String, bool),
    /// Exactly one of these nodes has its gateway, and no other node has it.
    HasGateway(u32, Vec<usize>),
    /// Its DHCP server runs on the primary, as it is recorded.
    DhcpAnswers(u32),
    /// The record of exactly one of these nodes says that the VM uses a function of its card; of
    /// none if there are none.
    UsesFunctionOn(usize, Vec<usize>),
}

fn network(fact: NetworkFact) -> Fact {
    Fact::Network(fact)
}

pub(super) const FORMS: &[Form<Fact>] = &[
    Form {
        form: "guest network COUNT stands on NODES",
        means: |f| network(NetworkFact::NetworkStands(f.count, f.nodes.clone(), true)),
    },
    Form {
        form: "guest network COUNT does not stand on NODES",
        means: |f| network(NetworkFact::NetworkStands(f.count, f.nodes.clone(), false)),
    },
    Form {
        form: "guest network COUNT has its recorded rules on NODES",
        means: |f| network(NetworkFact::HasRules(f.count, f.nodes.clone())),
    },
    Form {
        form: "guest network COUNT has rule TEXT",
        means: |f| network(NetworkFact::HasRule(f.count, f.text.clone(), true)),
    },
    Form {
        form: "guest network COUNT has no rule TEXT",
        means: |f| network(NetworkFact::HasRule(f.count, f.text.clone(), false)),
    },
    Form {
        form: "one of NODES has gateway of guest network COUNT",
        means: |f| network(NetworkFact::HasGateway(f.count, f.nodes.clone())),
    },
    Form {
        form: "dhcp of guest network COUNT answers",
        means: |f| network(NetworkFact::DhcpAnswers(f.count)),
    },
    Form {
        form: "VM has function on NODES",
        means: |f| network(NetworkFact::UsesFunctionOn(f.vm(), f.nodes.clone())),
    },
    Form {
        form: "VM has function nowhere",
        means: |f| network(NetworkFact::UsesFunctionOn(f.vm(), Vec::new())),
    },
];

impl Look<'_> {
    pub(super) fn network_holds(&self, fact: &NetworkFact) -> Result<(), String> {
        match fact {
            NetworkFact::NetworkStands(vni, nodes, wanted) => {
                let all = nodes.iter().copied();
                let other = self.cluster.world.with(|state| {
                    all.clone()
                        .find(|node| state.host_nets().network_stands(*node, *vni) != *wanted)
                });
                so(other.is_none(), || format!("otherwise on {:?}", self.names(other.as_slice())))
            }
            NetworkFact::HasRules(vni, nodes) => {
                let view = self.cluster.view();
                let wrong = self.cluster.world.with(|state| {
                    nodes
                        .iter()
                        .find_map(|node| state.network_ends(&view).rules_differ(*node, *vni))
                });
                wrong.map_or(Ok(()), Err)
            }
            NetworkFact::HasRule(vni, rule, wanted) => {
                let view = self.cluster.view();
                let network = view.networks.get(&vni.to_string());
                let mut rules = network.into_iter().flat_map(|network| &network.acls);
                let has = rules.any(|acl| acl.rule == *rule);
                so(has == *wanted, || format!("that it has it is {has}"))
            }
            NetworkFact::HasGateway(vni, nodes) => {
                let holders =
                    self.cluster.world.with(|state| state.host_nets().gateway_holders(*vni));
                so(matches!(holders.as_slice(), [one] if nodes.contains(one)), || {
                    format!("it is on {:?}", self.names(&holders))
                })
            }
            NetworkFact::DhcpAnswers(vni) => {
                let view = self.cluster.view();
                let wrong =
                    self.cluster.world.with(|state| state.network_ends(&view).dhcp_is_silent(*vni));
                wrong.map_or(Ok(()), Err)
            }
            NetworkFact::UsesFunctionOn(vm, nodes) => {
                let view = self.cluster.view();
                let users =
                    self.cluster.world.with(|state| state.functions().users(&view, vm_uuid(*vm)));
                so(
                    match nodes.is_empty() {
                        true => users.is_empty(),
                        false => matches!(users.as_slice(), [one] if nodes.contains(one)),
                    },
                    || format!("the records say that it has one on {:?}", self.names(&users)),
                )
            }
        }
    }
}
