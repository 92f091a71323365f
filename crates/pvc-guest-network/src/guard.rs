//! The guard against guests that send as others, on this node: loaded when guests, leases or
//! options change, and again whenever it is not what was loaded. What it says is decided in
//! `pvc_model::guest_network::guard`.
//!
//! A guest that has just been plugged in is guarded from the next pass on. Nothing of the guard is
//! taken away before every guest that runs has been looked at: the table of a former life of this
//! daemon knows those that cannot be asked for now.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pvc_domain::summary;
use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::domain::DomainSummary;
use pvc_model::guest_network::Vni;
use pvc_model::guest_network::guard::{guarded_ports, rules, table};
use pvc_model::link::Mac;
use pvc_model::with_causes;
use pvc_ports::{FirewallError, Hypervisor, HypervisorError};
use pvc_role::{Alarm, Context, Few};
use tokio_util::sync::CancellationToken;

const FAULT: &str = "NETWORK_GUARD";

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(5);

/// Time that a look at all guests may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// Guests that are asked for at a time.
const AT_A_TIME: usize = 8;

/// Time for which guests may be unknown before that is a fault.
const GRACE: Duration = Duration::from_secs(30);

/// Works until `end`.
pub async fn run(context: Context, end: CancellationToken) {
    let mut keeper = Keeper::default();
    let (mut alarm, mut unknown) = (Alarm::default(), Alarm::after(GRACE));
    let mut turns = context.turns(&end);
    while turns.next(INTERVAL).await {
        let view = context.store.view();
        let failed = keeper.round(&view, &context).await.err().map(|error| {
            let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
            format!("{}{hint}", with_causes(&error))
        });
        let _ = unknown.due(keeper.unknown(), context.now());
        let lasting = keeper.unknown().filter(|_| unknown.was_reported());
        if failed.is_none() && lasting.is_none() && keeper.unknown().is_some() {
            // Perhaps it is what a former life has told of.
            continue;
        }
        let words = failed.or(lasting).map(|words| format!("guard of networks: {words}"));
        let message = words.as_ref().map(|words| format!("node {}: {words}", context.name()));
        if context.alarm_own(FAULT, &mut alarm, message).await {
            tracing::error!("{}", words.unwrap_or_default());
        }
    }
}

/// Whatever says that guests have to be read anew: each start of one, and the ports of bridges that
/// are guarded, with their MAC addresses, which are made of those of the guests.
#[derive(PartialEq)]
struct Signs {
    instances: BTreeMap<Uuid, i32>,
    ports: BTreeSet<(String, Option<Mac>)>,
}

#[derive(Default)]
struct Keeper {
    /// Rules that were loaded, and as the kernel showed them afterwards.
    loaded: Option<(String, Option<String>)>,
    /// Guests by the last look at each.
    guests: BTreeMap<Uuid, DomainSummary>,
    /// Time of the first round.
    since: Option<Duration>,
    /// Signs of the last look that has seen every guest.
    complete: Option<Signs>,
    /// Guests that the last look could not read; `None` if it did not learn which there are.
    unread: Option<usize>,
    is_wanted: bool,
}

impl Keeper {
    async fn round(&mut self, view: &Cluster, context: &Context) -> Result<(), FirewallError> {
        self.is_wanted = view.network_options.values().any(|options| options.spoof_guard);
        if self.is_wanted {
            self.look_for_guests(view, context).await;
        } else {
            (self.guests, self.complete) = (BTreeMap::new(), None);
        }
        let wanted = rules(&guarded_ports(view, self.guests.values()));
        let firewall = context.ports.firewall.as_ref();
        let shown = firewall.table(&table()).await?;
        let is_former = shown.is_some() && self.loaded.is_none();
        // Guests that stay unknown keep the others from their guard for a while only.
        let now = context.now();
        let since = *self.since.get_or_insert(now);
        let may_wait = self.unread.is_none() || now.saturating_sub(since) < GRACE;
        if self.is_wanted && self.complete.is_none() && is_former && may_wait {
            return Ok(());
        }
        match wanted {
            None if shown.is_none() => self.loaded = None,
            None => {
                firewall.apply(&table(), None).await?;
                self.loaded = None;
            }
            Some(wanted) => {
                let is_loaded = self.loaded.as_ref().is_some_and(|(rules, as_loaded)| {
                    *rules == wanted && shown.is_some() && shown == *as_loaded
                });
                if !is_loaded {
                    firewall.apply(&table(), Some(&wanted)).await?;
                    self.loaded = Some((wanted, firewall.table(&table()).await?));
                }
            }
        }
        Ok(())
    }

    /// Words about guests that may run unguarded.
    fn unknown(&self) -> Option<String> {
        match self.unread {
            _ if !self.is_wanted => None,
            None => Some("the hypervisor does not say which guests run".to_owned()),
            Some(0) => None,
            Some(unread) => Some(format!(
                "the hypervisor does not say how {unread} guests are plugged in, and they are \
                 guarded as they were before, or not at all"
            )),
        }
    }

    /// Asks the hypervisor which guests run here, and how, if there is a sign that it may be
    /// another answer than before. Of one that cannot be asked what was known stays: a guard that
    /// is too old keeps a guest from more than it should, and from no less.
    async fn look_for_guests(&mut self, view: &Cluster, context: &Context) {
        let end = context.now() + DEADLINE;
        let hypervisor = &context.ports.hypervisor;
        self.unread = None;
        let Ok(guests) = context.in_time(DEADLINE, hypervisor.guests()).await else { return };
        self.guests.retain(|uuid, _| guests.contains_key(uuid));
        let instances = guests.iter().map(|(uuid, guest)| (*uuid, guest.instance)).collect();
        let ports = ports(view, context).await;
        let signs = ports.map(|ports| Signs { instances, ports });
        if signs.is_some() && signs == self.complete {
            self.unread = Some(0);
            return;
        }
        let mut unread = guests.len();
        let mut asked = Few::new(
            AT_A_TIME,
            guests.into_keys().map(|uuid| {
                let hypervisor = hypervisor.clone();
                async move { (uuid, read(hypervisor, uuid).await) }
            }),
        );
        let mut answers = async || {
            while let Some(answer) = asked.ended().await {
                if let Ok((uuid, Some(read))) = answer {
                    return Some((uuid, read));
                }
            }
            None
        };
        while let Some(Some((uuid, read))) =
            context.within(end.saturating_sub(context.now()), answers()).await
        {
            unread -= 1;
            match read {
                Some(read) => _ = self.guests.insert(uuid, read),
                None => _ = self.guests.remove(&uuid),
            }
        }
        self.unread = Some(unread);
        if unread == 0
            && let Some(signs) = signs
        {
            self.complete = Some(signs);
        }
    }
}

/// Summary of a guest, which says how it is plugged in: `None` if the hypervisor does not say it,
/// and nothing in it if the guest ended meanwhile, or is none of ours to understand.
async fn read(hypervisor: Arc<dyn Hypervisor>, uuid: Uuid) -> Option<Option<DomainSummary>> {
    match hypervisor.live_xml(uuid).await {
        Ok(xml) => Some(summary(&xml).ok()),
        Err(HypervisorError::NoGuest { .. }) => Some(None),
        Err(_) => None,
    }
}

/// The ports of bridges that are guarded; `None` if the kernel does not say.
async fn ports(view: &Cluster, context: &Context) -> Option<BTreeSet<(String, Option<Mac>)>> {
    let links = context.in_time(DEADLINE, context.ports.network.links()).await.ok()?;
    let is_guarded = |bridge: &str| {
        let vni = Vni::of_bridge(bridge).map(|vni| vni.to_string());
        let options = vni.and_then(|vni| view.network_options.get(&vni));
        options.is_some_and(|options| options.spoof_guard)
    };
    let ports = links.into_values().filter(|link| link.master.as_deref().is_some_and(is_guarded));
    Some(ports.map(|link| (link.name, link.mac)).collect())
}

#[cfg(test)]
mod tests {
    use pvc_embedded::EmbeddedTree;
    use pvc_model::NodeName;
    use pvc_model::network::{LeaseRecord, NetworkOptions, NetworkRecord};
    use pvc_ports::{Firewall as _, Hypervisor as _, Ports};
    use pvc_store::Store;
    use pvc_testkit::{
        MemoryFirewall, MemoryNetwork, ScriptedHypervisor, SeededRandom, TokioClock, ports,
    };

    use super::*;

    const XML: &str = "<domain type='kvm'><name>web1</name>\
        <uuid>00000000-0000-0000-0000-000000000001</uuid><memory unit='MiB'>512</memory>\
        <vcpu>1</vcpu><os><type>hvm</type></os><devices><interface type='bridge'>\
        <mac address='52:54:00:00:07:02'/><source bridge='vmbr7'/><target dev='vnet0'/>\
        <model type='virtio'/></interface></devices></domain>";

    struct World {
        context: Context,
        firewall: Arc<MemoryFirewall>,
        hypervisor: Arc<ScriptedHypervisor>,
        network: Arc<MemoryNetwork>,
        view: Cluster,
    }

    fn guarded(mut view: Cluster) -> Cluster {
        let options = NetworkOptions { spoof_guard: true, ..NetworkOptions::default() };
        view.network_options.insert("7".to_owned(), Arc::new(options));
        view
    }

    /// Node `hv1` of a cluster with network 7.
    async fn world() -> World {
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let tree = EmbeddedTree::in_memory().connect();
        let store = Store::open(tree, clock.clone(), random.clone()).await.unwrap();
        let firewall = Arc::new(MemoryFirewall::new());
        let hypervisor = Arc::new(ScriptedHypervisor::new());
        let network = Arc::new(MemoryNetwork::new());
        let ports = Ports {
            clock,
            random,
            firewall: firewall.clone(),
            hypervisor: hypervisor.clone(),
            network: network.clone(),
            ..ports()
        };
        let context = Context::new(NodeName::new("hv1"), ports, store);
        let mut view = Cluster::default();
        let lease = LeaseRecord {
            mac: "52:54:00:00:07:02".to_owned(),
            address: "10.20.7.2".to_owned(),
            ..LeaseRecord::default()
        };
        let record = NetworkRecord {
            vni: "7".to_owned(),
            description: "net7".to_owned(),
            nettype: "managed".to_owned(),
            ip4_network: "10.20.7.0/24".to_owned(),
            leases: vec![lease],
            ..NetworkRecord::default()
        };
        view.networks.insert("7".to_owned(), Arc::new(record));
        World { context, firewall, hypervisor, network, view }
    }

    #[tokio::test(start_paused = true)]
    async fn guests_of_networks_that_ask_for_it_are_guarded_by_what_dhcp_gave_them() {
        let World { context, firewall, hypervisor, view, .. } = world().await;
        let uuid = Uuid::from_u128(1);
        hypervisor.start(uuid, XML).await.unwrap();
        let mut keeper = Keeper::default();
        let shown = async || firewall.table(&table()).await.unwrap();
        keeper.round(&view, &context).await.unwrap();
        assert_eq!((shown().await, firewall.changes()), (None, 0), "nobody asked for it");

        let view = guarded(view);
        keeper.round(&view, &context).await.unwrap();
        let text = shown().await.unwrap();
        assert!(
            text.contains("\"vnet0\" : goto port1") && text.contains("{ 10.20.7.2 }"),
            "{text}"
        );
        keeper.round(&view, &context).await.unwrap();
        assert_eq!(firewall.changes(), 1);
        firewall.flush();
        hypervisor.set_unreachable(true);
        keeper.round(&view, &context).await.unwrap();
        assert_eq!(shown().await, Some(text.clone()), "also while the hypervisor does not answer");

        // Nor does the next life of the daemon take it away before it has seen all guests.
        let mut next = Keeper::default();
        next.round(&view, &context).await.unwrap();
        assert_eq!(shown().await, Some(text.clone()));
        assert!(next.unknown().unwrap().contains("which guests run"), "{:?}", next.unknown());
        hypervisor.set_unreachable(false);
        let silent = Uuid::from_u128(2);
        hypervisor.insert(silent, "web2");
        hypervisor.set_xml_hangs(silent, true);
        hypervisor.destroy(uuid).await.unwrap();
        let begun = context.now();
        next.round(&view, &context).await.unwrap();
        assert_eq!(context.now() - begun, DEADLINE, "for all guests together");
        assert_eq!(shown().await, Some(text.clone()), "one guest is unknown");
        assert!(next.unknown().unwrap().contains("how 1 guests"), "{:?}", next.unknown());
        hypervisor.set_xml_hangs(silent, false);
        next.round(&view, &context).await.unwrap();
        assert_eq!((shown().await, next.unknown()), (None, None));
    }

    /// Reading a guest takes longer than anything else here.
    #[tokio::test(start_paused = true)]
    async fn guests_are_read_when_something_has_changed_and_known_ones_stay_guarded() {
        let World { context, hypervisor, network, view, .. } = world().await;
        let uuid = Uuid::from_u128(1);
        hypervisor.start(uuid, XML).await.unwrap();
        network.insert_bridge("vmbr7");
        network.plug_in("vnet0", "vmbr7");
        let view = guarded(view);
        let mut keeper = Keeper::default();
        for _ in 0..3 {
            keeper.round(&view, &context).await.unwrap();
        }
        assert_eq!(hypervisor.count_of_xml(uuid), 1);
        network.plug_in("vnet1", "vmbr7");
        for _ in 0..3 {
            keeper.round(&view, &context).await.unwrap();
        }
        assert_eq!(hypervisor.count_of_xml(uuid), 2, "a port has come");
        hypervisor.set_xml_hangs(uuid, true);
        network.pull_out("vnet1");
        keeper.round(&view, &context).await.unwrap();
        assert!(keeper.loaded.is_some() && keeper.unknown().is_some(), "it is guarded as before");
    }
}
