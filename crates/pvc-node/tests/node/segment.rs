//! The networks that nodes share, as far as floating addresses are concerned: who has which one,
//! since when, and whether anybody else has it, too.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pvc_model::link::IpNet;
use pvc_model::primary::handover::Duty;
use pvc_node::FloatingAddress;
use pvc_ports::{Clock, Network};
use pvc_testkit::{MemoryNetwork, NetworkChange, TokioClock};

use crate::world::World;

/// Address, link, and with what it goes over.
const FLOATING: [(&str, &str, Duty); 4] = [
    ("10.0.0.250/24", "brupstream", Duty::Upstream),
    ("10.0.1.250/24", "brcluster", Duty::Inner),
    ("10.0.2.250/24", "brstorage", Duty::Inner),
    ("169.254.169.254/32", "lo", Duty::Metadata),
];

/// The addresses of [`FLOATING`]; what is on `lo` may be on several nodes, but should not.
pub fn floating() -> Vec<FloatingAddress> {
    FLOATING
        .map(|(address, link, duty)| FloatingAddress {
            duty,
            link: link.to_owned(),
            address: address.parse::<IpNet>().unwrap(),
        })
        .into()
}

#[derive(Default)]
struct Seen {
    holders: BTreeMap<IpAddr, BTreeSet<String>>,
    /// Times since which nobody, or more than one, has it.
    unowned_since: BTreeMap<IpAddr, Duration>,
    shared_since: BTreeMap<IpAddr, Duration>,
    longest_gap: Duration,
    were_nowhere: BTreeSet<IpAddr>,
    longest_overlap: Duration,
    announced: BTreeSet<IpAddr>,
    two_allowed: bool,
    /// Violations of I12.
    violations: Vec<String>,
}

pub struct Segment {
    clock: Arc<TokioClock>,
    seen: Mutex<Seen>,
}

impl Segment {
    pub fn new(clock: Arc<TokioClock>) -> Arc<Self> {
        Arc::new(Segment { clock, seen: Mutex::default() })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Gives a node its links and has every change of its addresses noted here.
    pub async fn plug_in(self: &Arc<Self>, world: &mut World) {
        world.network = self.links_of(world.settings.name.as_str()).await;
        world.settings.floating = floating();
    }

    /// Plugs in as [`plug_in`](Segment::plug_in) does, and returns the links of a node of this
    /// name.
    pub async fn links_of(self: &Arc<Self>, name: &str) -> Arc<MemoryNetwork> {
        let (segment, name) = (self.clone(), name.to_owned());
        let network = MemoryNetwork::with_watcher(move |change| segment.note(&name, change));
        for link in ["brupstream", "brcluster", "brstorage"] {
            network.insert_device(link);
            network.set_up(link, true).await.unwrap();
        }
        Arc::new(network)
    }

    fn note(&self, node: &str, change: &NetworkChange) {
        match change {
            NetworkChange::AddressAdded { address, .. } => self.added(node, address.addr()),
            NetworkChange::AddressRemoved { address, .. } => self.removed(node, address.addr()),
            NetworkChange::Announced { address, .. } => _ = self.seen().announced.insert(*address),
            _ => {}
        }
    }

    pub fn added(&self, node: &str, address: IpAddr) {
        let now = self.clock.monotonic();
        let mut seen = self.seen();
        let gap = seen.unowned_since.remove(&address).map_or(Duration::ZERO, |since| now - since);
        seen.longest_gap = seen.longest_gap.max(gap);
        let holders = seen.holders.entry(address).or_default();
        holders.insert(node.to_owned());
        let all = holders.clone();
        if all.len() > 1 {
            if !seen.two_allowed {
                seen.violations.push(format!("{now:?}: {address} is at {all:?}"));
            }
            seen.shared_since.insert(address, now);
        }
    }

    pub fn removed(&self, node: &str, address: IpAddr) {
        let now = self.clock.monotonic();
        let mut seen = self.seen();
        let holders = seen.holders.entry(address).or_default();
        holders.remove(node);
        let left = holders.len();
        if left == 0 {
            seen.unowned_since.insert(address, now);
            seen.were_nowhere.insert(address);
        }
        if left < 2
            && let Some(since) = seen.shared_since.remove(&address)
        {
            seen.longest_overlap = seen.longest_overlap.max(now - since);
        }
    }

    pub fn holders(&self, address: &str) -> BTreeSet<String> {
        self.seen().holders.get(&address.parse::<IpAddr>().unwrap()).cloned().unwrap_or_default()
    }

    pub fn has_all(&self, node: &str) -> bool {
        let only = BTreeSet::from([node.to_owned()]);
        floating().iter().all(|it| self.holders(&it.address.addr().to_string()) == only)
    }

    pub fn has_none(&self, node: &str) -> bool {
        floating().iter().all(|it| !self.holders(&it.address.addr().to_string()).contains(node))
    }

    pub fn assert_all_at(&self, node: &str) {
        let violations = self.seen().violations.clone();
        assert!(violations.is_empty(), "I12: {violations:?}");
        let holders = self.seen().holders.clone();
        assert!(self.has_all(node), "not all at {node}: {holders:?}");
    }

    pub fn assert_nobody_has_any(&self) {
        let holders = self.seen().holders.clone();
        assert!(holders.values().all(BTreeSet::is_empty), "{holders:?}");
    }

    /// The longest time since [`forget_gaps`](Segment::forget_gaps) that an address was nowhere.
    pub fn longest_gap(&self) -> Duration {
        self.seen().longest_gap
    }

    /// Whether the address was nowhere since [`forget_gaps`](Segment::forget_gaps), if only for an
    /// instant.
    pub fn was_nowhere(&self, address: &str) -> bool {
        self.seen().were_nowhere.contains(&address.parse::<IpAddr>().unwrap())
    }

    /// The longest time that an address was on two nodes.
    pub fn longest_overlap(&self) -> Duration {
        self.seen().longest_overlap
    }

    pub fn forget_gaps(&self) {
        let mut seen = self.seen();
        seen.longest_gap = Duration::ZERO;
        seen.unowned_since.clear();
        seen.were_nowhere.clear();
    }

    /// Allows two nodes to have one address from now on.
    pub fn allow_two_holders(&self) {
        self.seen().two_allowed = true;
    }

    pub fn announced(&self, address: &str) -> bool {
        self.seen().announced.contains(&address.parse::<IpAddr>().unwrap())
    }
}
