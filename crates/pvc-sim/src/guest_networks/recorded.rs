//! Rules of networks as they are recorded.

use std::collections::BTreeMap;
use std::time::Duration;

use pvc_embedded::state::{TreeState, Work};
use pvc_model::guest_network::Vni;
use pvc_model::network::{Direction, NetworkRecord};
use pvc_ports::Op;

/// The rules of all managed networks as they were recorded at a time.
pub(crate) struct Recorded {
    pub(super) at: Duration,
    pub(super) rules: BTreeMap<Vni, Rules>,
}

impl Recorded {
    /// Reads the tree, which nobody has to announce: a host may have loaded by then what it says.
    pub fn of(tree: &TreeState, at: Duration) -> Recorded {
        let networks = children(tree, ROOT);
        let managed = networks.into_iter().filter_map(|name| {
            let is_managed = text(tree, &format!("{ROOT}/{name}/nettype")) == "managed";
            let vni = Vni::parse(&name).filter(|_| is_managed)?;
            let [incoming, outgoing] = [Direction::In, Direction::Out].map(|direction| {
                let list = format!("{ROOT}/{name}/firewall_rules/{}", direction.as_str());
                let mut rules: Vec<(u32, String)> = children(tree, &list)
                    .into_iter()
                    .map(|rule| {
                        let order = text(tree, &format!("{list}/{rule}/order"));
                        (order.parse().unwrap_or(0), text(tree, &format!("{list}/{rule}/rule")))
                    })
                    .collect();
                rules.sort_by_key(|(order, _)| *order);
                rules.into_iter().map(|(_, rule)| rule).collect()
            });
            Some((vni, Rules { incoming, outgoing }))
        });
        Recorded { at, rules: managed.collect() }
    }

    /// Whether a write changes what is recorded of networks.
    pub fn is_changed_by(work: &Work) -> bool {
        let changes = |op: &Op| match op {
            Op::Check { .. } => false,
            op => op.path().starts_with(ROOT),
        };
        match work {
            Work::Create { path, .. } => path.starts_with(ROOT),
            Work::Multi { ops, .. } => ops.iter().any(changes),
            Work::End { .. } => false,
        }
    }
}

const ROOT: &str = "/networks";

/// The names below a key, in order.
fn children(tree: &TreeState, path: &str) -> Vec<String> {
    let mut names = tree.children(path).unwrap_or_default();
    names.sort();
    names
}

fn text(tree: &TreeState, path: &str) -> String {
    let data = tree.entry(path).map(|entry| entry.data).unwrap_or_default();
    String::from_utf8_lossy(&data).into_owned()
}

/// Rules of one version of a record: those of what comes in, and of what goes out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Rules {
    pub incoming: Vec<String>,
    pub outgoing: Vec<String>,
}

impl Rules {
    pub fn of(record: &NetworkRecord) -> Rules {
        let of = |direction| {
            let mut acls: Vec<_> =
                record.acls.iter().filter(|acl| acl.direction == direction).collect();
            acls.sort_by_key(|acl| acl.order);
            acls.iter().map(|acl| acl.rule.clone()).collect()
        };
        Rules { incoming: of(Direction::In), outgoing: of(Direction::Out) }
    }
}

/// Version of a network's record, as far as the packet filter is about it.
#[derive(Debug)]
pub(super) struct Version {
    pub since: Duration,
    /// `None`: there is no such network, or it is not a managed one.
    pub rules: Option<Rules>,
}
