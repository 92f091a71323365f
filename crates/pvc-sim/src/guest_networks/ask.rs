//! Requests about networks of VMs, and what they promise.

use serde::{Deserialize, Serialize};

/// Request about a network of VMs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkAsk {
    /// Makes a managed network with DHCP.
    Add {
        vni: u32,
    },
    /// Makes a network of a VLAN.
    AddBridged {
        vni: u32,
    },
    Remove {
        vni: u32,
        force: bool,
    },
    /// Gives the primary the host of this number as its address in the network.
    SetGateway {
        vni: u32,
        host: u8,
    },
    SetDhcp {
        vni: u32,
        on: bool,
    },
    /// Adds a rule, behind those that there are of its direction or before them.
    AddRule {
        vni: u32,
        rule: String,
        first: bool,
    },
    /// Adds a rule that is taken back unless somebody confirms it within so many seconds.
    TryRule {
        vni: u32,
        rule: String,
        seconds: u32,
    },
    /// Confirms the change of a network that waits for it.
    Confirm {
        vni: u32,
    },
    RemoveRule {
        vni: u32,
        rule: String,
    },
    /// Keeps an address for the VM.
    Reserve {
        vni: u32,
        vm: usize,
    },
    Release {
        vni: u32,
        vm: usize,
    },
}

/// State that an operator was promised.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NetworkPart {
    Network(u32),
    Rule(u32, String),
    Reservation(u32, usize),
}

impl NetworkPart {
    pub fn vni(&self) -> u32 {
        match self {
            NetworkPart::Network(vni)
            | NetworkPart::Rule(vni, _)
            | NetworkPart::Reservation(vni, _) => *vni,
        }
    }
}

impl NetworkAsk {
    /// The VMs that it is about.
    pub fn vms(&self) -> Vec<usize> {
        match self {
            NetworkAsk::Reserve { vm, .. } | NetworkAsk::Release { vm, .. } => vec![*vm],
            _ => Vec::new(),
        }
    }

    pub fn vni(&self) -> u32 {
        match self {
            NetworkAsk::Add { vni }
            | NetworkAsk::AddBridged { vni }
            | NetworkAsk::Remove { vni, .. }
            | NetworkAsk::SetGateway { vni, .. }
            | NetworkAsk::SetDhcp { vni, .. }
            | NetworkAsk::AddRule { vni, .. }
            | NetworkAsk::TryRule { vni, .. }
            | NetworkAsk::Confirm { vni }
            | NetworkAsk::RemoveRule { vni, .. }
            | NetworkAsk::Reserve { vni, .. }
            | NetworkAsk::Release { vni, .. } => *vni,
        }
    }

    /// Things that are there once it is done, or are not.
    pub(super) fn goals(&self) -> Vec<(NetworkPart, bool)> {
        let goal = match self {
            NetworkAsk::Add { vni } | NetworkAsk::AddBridged { vni } => {
                (NetworkPart::Network(*vni), true)
            }
            NetworkAsk::Remove { vni, .. } => (NetworkPart::Network(*vni), false),
            NetworkAsk::AddRule { vni, rule, .. } => (NetworkPart::Rule(*vni, rule.clone()), true),
            NetworkAsk::RemoveRule { vni, rule } => (NetworkPart::Rule(*vni, rule.clone()), false),
            NetworkAsk::Reserve { vni, vm } => (NetworkPart::Reservation(*vni, *vm), true),
            NetworkAsk::Release { vni, vm } => (NetworkPart::Reservation(*vni, *vm), false),
            NetworkAsk::SetGateway { .. }
            | NetworkAsk::SetDhcp { .. }
            | NetworkAsk::TryRule { .. }
            | NetworkAsk::Confirm { .. } => return Vec::new(),
        };
        vec![goal]
    }
}
