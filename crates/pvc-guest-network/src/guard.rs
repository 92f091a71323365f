//! The guard against guests that send as others, on this node: loaded when guests, leases or
//! options change, and again whenever it is not what was loaded. What it says is decided in
//! `pvc_model::guest_network::guard`.
//!
//! The port of a guest that has just been plugged in is shut until the next pass, for which a port
//! that comes is a reason. Nothing of the guard is taken away before every guest that runs has been
//! looked at: the table of a former life of this daemon knows those that cannot be asked for now.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pvc_domain::summary;
use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::domain::DomainSummary;
use pvc_model::guest_network::Vni;
use pvc_model::guest_network::guard::{GUEST_PORT, Guarded, guarded, rules, table};
use pvc_model::link::{Link, LinkKind, Mac};
use pvc_model::with_causes;
use pvc_ports::{Firewall, FirewallError, Hypervisor, HypervisorError};
use pvc_role::{Alarm, Context, Few};
use tokio_util::sync::CancellationToken;

const FAULT: &str = "NETWORK_GUARD";

/// Time between two passes without a reason.
const INTERVAL: Duration = Duration::from_secs(5);

/// Time between two looks for ports that have come, whose guests wait to be let in.
const LOOK: Duration = Duration::from_secs(1);

/// Time that a look at all guests may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// Guests that are asked for at a time: fewer than libvirt answers questions of ours at once, or
/// those that hang would keep the others from being answered within their time.
const AT_A_TIME: usize = 3;

/// Time that the look at one guest may take: one of which the hypervisor says nothing keeps its
/// place from others for no longer.
const OF_ONE: Duration = Duration::from_secs(2);

/// Time until a guest is asked for again that had no answer in its time: the question may still
/// hold one of the threads that all roles ask with.
const ASK_AGAIN: Duration = Duration::from_secs(15);

/// Time for which guests or ports may be unknown before that is a fault.
const GRACE: Duration = Duration::from_secs(30);

/// Number of looks at all guests, one a round, for a port that is none of theirs: of a card that
/// is being plugged in the kernel tells before the hypervisor does.
const LOOKS: u32 = 6;

/// Time between two looks at all guests after these.
const SELDOM: Duration = Duration::from_secs(60);

/// Works until `end`.
pub async fn run(context: Context, end: CancellationToken) {
    let mut keeper = Keeper::default();
    let (mut alarm, mut unknown) = (Alarm::default(), Alarm::after(GRACE));
    let mut turns = context.turns(&end);
    while turns.next(if keeper.is_wanted { LOOK } else { INTERVAL }).await {
        let view = context.store.view();
        if !keeper.is_due(&view, &context).await {
            continue;
        }
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
        let words = failed.or(lasting).or(keeper.unclosed());
        let words = words.or_else(|| keeper.unclaimed(context.now()));
        let words = words.map(|words| format!("guard of networks: {words}"));
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
    ports: GuestPorts,
}

/// Ports by their links.
type GuestPorts = BTreeMap<String, Plug>;

/// Place of a port.
#[derive(Clone, PartialEq)]
struct Plug {
    bridge: String,
    mac: Option<Mac>,
}

#[derive(Default)]
struct Keeper {
    /// Rules that were loaded, and as the kernel showed them afterwards.
    loaded: Option<(String, Option<String>)>,
    /// Guests by the last look at each.
    guests: BTreeMap<Uuid, DomainSummary>,
    order: LookOrder,
    /// Guests that had no answer, and when they are asked for again.
    ask_at: BTreeMap<Uuid, Duration>,
    /// Time of the first round.
    since: Option<Duration>,
    /// Time of the last round.
    at: Option<Duration>,
    /// Ports as they were last found.
    seen: Option<GuestPorts>,
    /// Ports on closed bridges that are no guest's that is known, and since when.
    unclaimed: BTreeMap<String, Duration>,
    /// Number of looks at all guests since the signs were last others.
    looks: u32,
    /// Time of the last of them.
    looked_at: Option<Duration>,
    /// Signs of the last look that has seen every guest.
    complete: Option<Signs>,
    /// Guests that the last look could not read; `None` if it did not learn which there are.
    unread: Option<usize>,
    is_wanted: bool,
    /// Whether the kernel has not taken the rules with what closes bridges in them.
    is_unclosed: bool,
}

impl Keeper {
    /// Whether there is a reason for a round: a port has come or gone, or it is time.
    async fn is_due(&self, view: &Cluster, context: &Context) -> bool {
        let now = context.now();
        let is_time = self.at.is_none_or(|at| now.saturating_sub(at) >= INTERVAL);
        is_time || ports(view, context).await.is_some_and(|ports| self.seen != Some(ports))
    }

    async fn round(&mut self, view: &Cluster, context: &Context) -> Result<(), FirewallError> {
        self.at = Some(context.now());
        self.is_wanted = view.network_options.values().any(|options| options.spoof_guard);
        if self.is_wanted {
            self.look_for_guests(view, context).await;
        } else {
            (self.guests, self.complete, self.seen) = (BTreeMap::new(), None, None);
        }
        let bridge_of = |port: &str| Some(self.seen.as_ref()?.get(port)?.bridge.as_str());
        let guarded = guarded(view, self.guests.values(), bridge_of);
        self.find_unclaimed(&guarded, context.now());
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
        let Some(wanted) = rules(&guarded) else {
            if shown.is_some() {
                firewall.apply(&table(), None).await?;
            }
            (self.loaded, self.is_unclosed) = (None, false);
            return Ok(());
        };
        let is_loaded = self.loaded.as_ref().is_some_and(|(rules, as_loaded)| {
            // Without what the kernel does not take there may be none.
            *rules == wanted && shown == *as_loaded && (shown.is_some() || self.is_unclosed)
        });
        if !is_loaded {
            self.is_unclosed = !load(firewall, &wanted, guarded).await?;
            self.loaded = Some((wanted, firewall.table(&table()).await?));
        }
        Ok(())
    }

    /// Words about ports that are not shut before they are known.
    fn unclosed(&self) -> Option<String> {
        self.is_unclosed.then(|| {
            "the kernel does not take rules about bridges by their names (`nft_meta_bridge`), and \
             a guest that has just started is unguarded for a second"
                .to_owned()
        })
    }

    /// Words about guests that may run unguarded.
    fn unknown(&self) -> Option<String> {
        match self.unread {
            _ if !self.is_wanted => None,
            None => Some("the hypervisor does not say which guests run".to_owned()),
            Some(0) => None,
            Some(unread) => Some(format!(
                "the hypervisor does not say how {unread} guests are plugged in, and they are \
                 guarded as they were before, or shut in"
            )),
        }
    }

    /// Takes in which ports are shut since no guest is known that they are of.
    fn find_unclaimed(&mut self, guarded: &Guarded, now: Duration) {
        let is_unclaimed = |(port, plug): &(&String, &Plug)| {
            guarded.closed.contains(&plug.bridge) && !guarded.ports.contains_key(*port)
        };
        let ports = self.seen.iter().flatten().filter(is_unclaimed).map(|(port, _)| port);
        let since = |port: &String| self.unclaimed.get(port).copied().unwrap_or(now);
        self.unclaimed = ports.map(|port| (port.clone(), since(port))).collect();
    }

    /// Words about ports that stay shut, as no guest is known that they are of: somebody has
    /// plugged in a tap by hand, or nobody understands what the hypervisor says of a guest.
    fn unclaimed(&self, now: Duration) -> Option<String> {
        if self.unread != Some(0) || self.is_unclosed {
            return None;
        }
        let lasts = |since: &Duration| now.saturating_sub(*since) >= GRACE;
        let mut lasting = self.unclaimed.iter().filter(|(_, since)| lasts(since));
        let (port, _) = lasting.next()?;
        let bridge = &self.seen.as_ref()?.get(port)?.bridge;
        let more = match lasting.count() {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        Some(format!(
            "port `{port}` on `{bridge}`{more} is no guest's that libvirt tells of, and is shut"
        ))
    }

    /// Asks the hypervisor which guests run here, and how, if there is a sign that it may be
    /// another answer than before. Of one that cannot be asked what was known stays: a guard that
    /// is too old keeps a guest from more than it should, and from no less.
    async fn look_for_guests(&mut self, view: &Cluster, context: &Context) {
        let end = context.now() + DEADLINE;
        let hypervisor = &context.ports.hypervisor;
        self.unread = None;
        // Before the guests: a port that comes meanwhile is a reason for another round.
        let ports = ports(view, context).await;
        if ports.is_some() {
            self.seen.clone_from(&ports);
        }
        let Ok(guests) = context.in_time(DEADLINE, hypervisor.guests()).await else { return };
        self.guests.retain(|uuid, _| guests.contains_key(uuid));
        let instances = guests.iter().map(|(uuid, guest)| (*uuid, guest.instance)).collect();
        let signs = ports.map(|ports| Signs { instances, ports });
        if signs.as_ref().is_some_and(|signs| self.complete.as_ref() == Some(signs)) {
            if !self.is_to_look(context.now()) {
                self.unread = Some(0);
                return;
            }
        } else {
            self.looks = 0;
        }
        self.looks += 1;
        self.looked_at = Some(context.now());
        let (mut unread, mut ended) = (guests.len(), 0);
        let now = context.now();
        self.ask_at.retain(|uuid, at| guests.contains_key(uuid) && now < *at);
        let is_due = |uuid: &Uuid| !self.ask_at.contains_key(uuid);
        let order = self.order.of(guests.into_keys().filter(is_due).collect());
        let mut asked = Few::new(
            AT_A_TIME,
            order.clone().into_iter().map(|uuid| {
                let (context, hypervisor) = (context.clone(), hypervisor.clone());
                async move { (uuid, context.within(OF_ONE, read(hypervisor, uuid)).await) }
            }),
        );
        let mut answered = BTreeSet::new();
        let mut answers = async || {
            while let Some(answer) = asked.ended().await {
                ended += 1;
                let Ok((uuid, Some(read))) = answer else { continue };
                answered.insert(uuid);
                if let Some(read) = read {
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
        // Those that have ended have made room for as many others.
        let begun = order.len().min(ended + AT_A_TIME);
        self.order.note(&order[..begun]);
        let at = context.now() + ASK_AGAIN;
        let silent = order[..begun].iter().filter(|uuid| !answered.contains(uuid));
        self.ask_at.extend(silent.map(|uuid| (*uuid, at)));
        self.unread = Some(unread);
        if unread == 0
            && let Some(signs) = signs
        {
            self.complete = Some(signs);
        }
    }

    /// Whether all guests are looked at once more though nothing has changed: a port is no
    /// guest's that is known.
    fn is_to_look(&self, now: Duration) -> bool {
        let is_time = self.looked_at.is_none_or(|at| now.saturating_sub(at) >= SELDOM);
        !self.unclaimed.is_empty() && (self.looks < LOOKS || is_time)
    }
}

/// Order of guests in a look, of which not every guest has its turn if many take long.
#[derive(Default)]
struct LookOrder {
    /// Number of the last turn of each guest.
    turns: BTreeMap<Uuid, u64>,
    /// Number of turns that there were.
    count: u64,
}

impl LookOrder {
    /// Returns `guests`, beginning with those that never had a turn, whose ports may be shut, and
    /// going on with those that had theirs longest ago.
    fn of(&mut self, guests: BTreeSet<Uuid>) -> Vec<Uuid> {
        self.turns.retain(|uuid, _| guests.contains(uuid));
        let mut order: Vec<Uuid> = guests.into_iter().collect();
        order.sort_by_key(|uuid| self.turns.get(uuid).copied());
        order
    }

    /// Takes note of the guests that had a turn, in their order.
    fn note(&mut self, guests: &[Uuid]) {
        for uuid in guests {
            self.count += 1;
            self.turns.insert(*uuid, self.count);
        }
    }
}

/// Loads the rules; false if the kernel took them without what closes bridges alone.
async fn load(
    firewall: &dyn Firewall,
    wanted: &str,
    guarded: Guarded,
) -> Result<bool, FirewallError> {
    match firewall.apply(&table(), Some(wanted)).await {
        Err(FirewallError::Refused { .. }) if !guarded.closed.is_empty() => {
            let unclosed = rules(&Guarded { closed: BTreeSet::new(), ..guarded });
            firewall.apply(&table(), unclosed.as_deref()).await?;
            Ok(false)
        }
        done => done.map(|()| true),
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

/// The ports of guests on bridges that are guarded; `None` if the kernel does not say.
async fn ports(view: &Cluster, context: &Context) -> Option<GuestPorts> {
    let links = context.in_time(DEADLINE, context.ports.network.links()).await.ok()?;
    let is_guarded = |bridge: &str| {
        let vni = Vni::of_bridge(bridge).map(|vni| vni.to_string());
        let options = vni.and_then(|vni| view.network_options.get(&vni));
        options.is_some_and(|options| options.spoof_guard)
    };
    let is_guests = |link: &Link| matches!(&link.kind, LinkKind::Other(kind) if kind == GUEST_PORT);
    let ports = links.into_values().filter(is_guests);
    let ports = ports.filter(|link| link.master.as_deref().is_some_and(is_guarded));
    let plug = |link: Link| Some((link.name, Plug { bridge: link.master?, mac: link.mac }));
    Some(ports.filter_map(plug).collect())
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
        assert_eq!(context.now() - begun, OF_ONE, "no longer for one guest");
        assert_eq!(shown().await, Some(text.clone()), "one guest is unknown");
        assert!(next.unknown().unwrap().contains("how 1 guests"), "{:?}", next.unknown());
        hypervisor.set_xml_hangs(silent, false);
        next.round(&view, &context).await.unwrap();
        assert_eq!(shown().await, Some(text.clone()), "it is not asked again at once");
        context.ports.clock.sleep(ASK_AGAIN).await;
        next.round(&view, &context).await.unwrap();
        // The bridge stays closed to those that come.
        let text = shown().await.unwrap();
        assert!(!text.contains("vnet0") && text.contains("{ \"vmbr7\" }"), "{text}");
        assert_eq!(next.unknown(), None);
        // Its networks are gone.
        next.round(&Cluster::default(), &context).await.unwrap();
        assert_eq!(shown().await, None);
    }

    #[test]
    fn who_had_a_turn_longest_ago_comes_first_and_before_them_who_had_none() {
        let uuids = |numbers: &[u128]| -> Vec<Uuid> {
            numbers.iter().map(|number| Uuid::from_u128(*number)).collect()
        };
        let mut order = LookOrder::default();
        let mut of = |numbers: &[u128], begun: usize| {
            let found = order.of(uuids(numbers).into_iter().collect());
            order.note(&found[..begun]);
            found
        };
        assert_eq!(of(&[1, 2, 3, 4], 2), uuids(&[1, 2, 3, 4]));
        assert_eq!(of(&[1, 2, 3, 4], 3), uuids(&[3, 4, 1, 2]));
        assert_eq!(of(&[1, 2, 3, 4, 5], 2), uuids(&[5, 2, 3, 4, 1]), "5 has come");
        assert_eq!(of(&[1, 3, 4, 5], 0), uuids(&[3, 4, 1, 5]), "2 has gone");
        assert_eq!(of(&[1, 2, 3, 4, 5], 0), uuids(&[2, 3, 4, 1, 5]), "and comes again");
    }

    /// Once eight that hung kept the port of every guest behind them shut.
    #[tokio::test(start_paused = true)]
    async fn guests_of_which_the_hypervisor_says_nothing_do_not_keep_others_from_being_read() {
        let World { context, hypervisor, view, .. } = world().await;
        let view = guarded(view);
        let last = Uuid::from_u128(0x100);
        let xml = XML.replace("000000000001", "000000000100");
        hypervisor.start(last, &xml).await.unwrap();
        // The number of guests that hang, and of looks until the last one is read.
        for (count, looks) in [(8, 1), (20, 3)] {
            for uuid in (1..=count).map(Uuid::from_u128) {
                hypervisor.insert(uuid, "web");
                hypervisor.set_xml_hangs(uuid, true);
            }
            let mut keeper = Keeper::default();
            for look in 1..=looks {
                let begun = context.now();
                keeper.round(&view, &context).await.unwrap();
                assert!(context.now() - begun <= DEADLINE);
                assert_eq!(keeper.guests.contains_key(&last), look == looks, "{count} {look}");
            }
        }
    }

    /// Debian's kernels take them.
    #[tokio::test(start_paused = true)]
    async fn a_kernel_that_knows_no_bridges_by_their_names_has_the_rest_of_the_guard() {
        let World { context, firewall, hypervisor, view, .. } = world().await;
        firewall.set_refusing(|_, rules| rules.is_some_and(|rules| rules.contains("ibrname")));
        let (view, mut keeper) = (guarded(view), Keeper::default());
        let shown = async || firewall.table(&table()).await.unwrap();
        keeper.round(&view, &context).await.unwrap();
        assert_eq!(shown().await, None, "there is no guest");
        assert!(keeper.unclosed().unwrap().contains("nft_meta_bridge"));
        hypervisor.start(Uuid::from_u128(1), XML).await.unwrap();
        for _ in 0..2 {
            keeper.round(&view, &context).await.unwrap();
            assert!(shown().await.unwrap().contains("\"vnet0\" : goto port1"));
            assert_eq!(firewall.changes(), 2, "what is loaded stays");
        }
        firewall.set_refusing(|_, _| false);
        firewall.flush();
        keeper.round(&view, &context).await.unwrap();
        assert!(shown().await.unwrap().contains("ibrname") && keeper.unclosed().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_that_comes_is_a_reason_for_a_round_and_so_is_time() {
        let World { context, hypervisor, network, view, .. } = world().await;
        hypervisor.start(Uuid::from_u128(1), XML).await.unwrap();
        network.insert_bridge("vmbr7");
        network.insert_bridge("vmbr8");
        let (view, mut keeper) = (guarded(view), Keeper::default());
        assert!(keeper.is_due(&view, &context).await, "there was none yet");
        keeper.round(&view, &context).await.unwrap();
        assert!(!keeper.is_due(&view, &context).await);
        network.plug_in("vnet5", "vmbr8");
        assert!(!keeper.is_due(&view, &context).await, "that bridge is not guarded");
        network.plug_in("vnet0", "vmbr7");
        assert!(keeper.is_due(&view, &context).await);
        keeper.round(&view, &context).await.unwrap();
        assert!(!keeper.is_due(&view, &context).await);
        context.sleep(INTERVAL).await;
        assert!(keeper.is_due(&view, &context).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_that_stays_no_guests_is_said_and_one_by_a_network_of_libvirts_is_guarded() {
        let World { context, firewall, hypervisor, network, view } = world().await;
        let by_network = XML
            .replace("type='bridge'", "type='network'")
            .replace("bridge='vmbr7'", "network='net7' bridge='vmbr7'");
        hypervisor.start(Uuid::from_u128(1), &by_network).await.unwrap();
        network.insert_bridge("vmbr7");
        network.plug_in("vnet0", "vmbr7");
        network.plug_in("tap3", "vmbr7");
        let (view, mut keeper) = (guarded(view), Keeper::default());
        keeper.round(&view, &context).await.unwrap();
        let shown = firewall.table(&table()).await.unwrap().unwrap();
        assert!(shown.contains("\"vnet0\" : goto port1"), "{shown}");
        assert_eq!(keeper.unclaimed(context.now()), None, "it may be a guest's that starts");
        context.sleep(GRACE).await;
        keeper.round(&view, &context).await.unwrap();
        let said = keeper.unclaimed(context.now()).unwrap();
        assert!(said.starts_with("port `tap3` on `vmbr7` is no guest's"), "{said}");
        network.plug_in("tap4", "vmbr7");
        keeper.round(&view, &context).await.unwrap();
        assert_eq!(keeper.unclaimed(context.now()), Some(said), "the other one has come just now");
        network.pull_out("tap3");
        keeper.round(&view, &context).await.unwrap();
        assert_eq!(keeper.unclaimed(context.now()), None);
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
        assert_eq!(hypervisor.count_of_xml(uuid), 4, "nobody has the port that has come, yet");
        for _ in 0..2 * LOOKS {
            keeper.round(&view, &context).await.unwrap();
        }
        assert_eq!(hypervisor.count_of_xml(uuid), 7, "it stays nobody's");
        context.sleep(SELDOM).await;
        for _ in 0..3 {
            keeper.round(&view, &context).await.unwrap();
        }
        assert_eq!(hypervisor.count_of_xml(uuid), 8, "perhaps somebody's by now");
        network.pull_out("vnet1");
        for _ in 0..3 {
            keeper.round(&view, &context).await.unwrap();
        }
        assert_eq!(hypervisor.count_of_xml(uuid), 9, "it has gone");
        hypervisor.set_xml_hangs(uuid, true);
        network.plug_in("vnet2", "vmbr7");
        keeper.round(&view, &context).await.unwrap();
        assert!(keeper.loaded.is_some() && keeper.unknown().is_some(), "it is guarded as before");
    }
}
