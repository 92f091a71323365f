//! The firewall of networks of VMs on this node: loaded when records change, and again whenever it
//! is not what was loaded. What it says is decided in `pvc_model::guest_network::rules`.
//!
//! ```text
//!  records ─▶ NetworkFilter ─▶ apply ──▶ taken: these rules are each network's last good ones
//!                  ▲             └─────▶ refused: find the rules that nft does not take, and
//!                  └── what is refused ◀─┘        make the filter without them
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::guest_network::rules::{
    AclChain, Acls, BadAcl, FilteredNetwork, Known, NetworkFilter, TunnelSources, closed,
    network_filter, of_rules_fault, probe_table, rules_fault, table,
};
use pvc_model::guest_network::{GuestNetworks, Vni};
use pvc_model::link::IpNet;
use pvc_model::with_causes;
use pvc_ports::{Firewall, FirewallError, NetworkError};
use pvc_role::{Alarm, Context};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const FAULT: &str = "NETWORK_FIREWALL";

/// Time between two looks at the firewall.
const INTERVAL: Duration = Duration::from_secs(10);

/// Time that a pass may search for rules that nft does not take. How far it has come by then is
/// known, and the next pass goes on. Until then networks have the rules that were taken last.
const SEARCH: Duration = Duration::from_secs(20);

/// Time after which a rule that nft did not take is tried again: it may name a link that is there
/// by now.
const RETRY: Duration = Duration::from_secs(300);

/// Time for which a network without a record stays closed, whether it has a bridge or not: whoever
/// makes links may have begun to make them before. Longer than the steps of a network take.
const LEFT: Duration = Duration::from_secs(120);

/// Works until `end`. `nodes` are the addresses of the nodes and the networks between them, and
/// `tunnels` come from some of those. `filtered` says which networks the loaded firewall is about:
/// before a network is among them, its bridge is not to be made.
pub async fn run(
    context: Context,
    nodes: BTreeSet<IpNet>,
    tunnels: Option<TunnelSources>,
    filtered: watch::Sender<BTreeSet<Vni>>,
    end: CancellationToken,
) {
    let mut keeper = Keeper { tunnels, ..Keeper::new(nodes) };
    let mut alarm = Alarm::default();
    let mut alarms = BTreeMap::new();
    let mut turns = context.turns(&end);
    while turns.next_change(INTERVAL).await {
        let view = context.store.view();
        if !keeper.is_due(&view, context.now()) {
            continue;
        }
        let done = keeper.round(&view, &context).await;
        filtered.send_if_modified(|known| {
            let is_news = *known != keeper.filtered;
            known.clone_from(&keeper.filtered);
            is_news
        });
        match &done {
            Ok(round) if round.has_loaded => tracing::info!("firewall of networks: loaded"),
            _ => {}
        }
        keeper.clean(&context).await;
        if let Ok(round) = &done {
            tell_of_rules(&context, &mut alarms, &round.bad).await;
        }
        let words = done.err().map(|error| {
            let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
            format!("firewall of networks: {}{hint}", with_causes(&error))
        });
        let message = words.as_ref().map(|words| format!("node {}: {words}", context.name()));
        if context.alarm_own(FAULT, &mut alarm, message).await {
            tracing::error!("{}", words.unwrap_or_default());
        }
    }
}

/// Raises a fault for each network with rules that are not taken here, and takes back those whose
/// rules are taken again, also of a former life of the daemon.
async fn tell_of_rules(context: &Context, alarms: &mut BTreeMap<Vni, Alarm>, bad: &[BadAcl]) {
    let mut by_network: BTreeMap<Vni, Vec<String>> = BTreeMap::new();
    for acl in bad {
        by_network.entry(acl.vni).or_default().push(acl.to_string());
    }
    let is_over = |vni: &Vni, _: &mut Alarm| !by_network.contains_key(vni);
    let mut over: BTreeSet<Vni> = alarms.extract_if(.., is_over).map(|(vni, _)| vni).collect();
    for vni in &over {
        tracing::info!("the rules of network {vni} are taken again");
    }
    let view = context.store.view();
    let standing = view.faults.keys().filter_map(|id| of_rules_fault(id, context.name()));
    over.extend(standing.filter(|vni| !by_network.contains_key(vni)));
    for vni in over {
        context.clear(&rules_fault(vni, context.name())).await;
    }
    let mut faults = Vec::new();
    for (vni, said) in by_network {
        let alarm = alarms.entry(vni).or_default();
        if let Some(said) = alarm.due(Some(said), context.now()) {
            let said = said.join("; ");
            tracing::error!("{said}");
            let message = format!("node {}: {said}", context.name());
            faults.push((rules_fault(vni, context.name()), message));
        }
    }
    context.raise_aside(faults);
}

/// A rule that nft does not take, behind the rules of its chain before it.
struct Refused {
    rules: Vec<String>,
    why: String,
    /// Monotonic time.
    until: Duration,
}

/// A search for the first rule that nft does not take, among those of a filter.
struct Search {
    /// The chains up to each of its rules.
    prefixes: Vec<Vec<String>>,
    /// Number of them that are taken together.
    good: usize,
    /// Number of them that are not, because of `why`.
    bad: usize,
    why: String,
}

/// Result of a round.
#[derive(Debug)]
struct Round {
    has_loaded: bool,
    bad: Vec<BadAcl>,
}

struct Keeper {
    nodes: BTreeSet<IpNet>,
    tunnels: Option<TunnelSources>,
    /// Rules that were loaded, and as the kernel showed them afterwards in its own words.
    loaded: Option<(String, Option<String>)>,
    /// Networks that the loaded rules are about.
    filtered: BTreeSet<Vni>,
    closed: BTreeSet<Vni>,
    /// Networks that were filtered and have no record any more, and since when.
    left: BTreeMap<Vni, Duration>,
    /// The rules of each network when all of them were taken last.
    last: BTreeMap<Vni, Acls>,
    refused: Vec<Refused>,
    /// A search that has not come to its end.
    search: Option<Search>,
    /// Whether nothing of PVC 1.0.3's firewall is left.
    has_cleaned: bool,
    /// The view that the last round was about, and when it was; `None` if it has to be done again.
    looked: Option<(Cluster, Duration)>,
}

impl Keeper {
    fn new(nodes: BTreeSet<IpNet>) -> Self {
        Keeper {
            nodes,
            tunnels: None,
            loaded: None,
            filtered: BTreeSet::new(),
            closed: BTreeSet::new(),
            left: BTreeMap::new(),
            last: BTreeMap::new(),
            refused: Vec::new(),
            search: None,
            has_cleaned: false,
            looked: None,
        }
    }

    /// Whether it is time for a round: the store changes more often than its networks.
    fn is_due(&self, view: &Cluster, now: Duration) -> bool {
        self.looked.as_ref().is_none_or(|(before, at)| {
            now.saturating_sub(*at) >= INTERVAL
                || before.networks != view.networks
                || before.network_options != view.network_options
        })
    }

    /// Looks, decides, acts.
    async fn round(&mut self, view: &Cluster, context: &Context) -> Result<Round, FirewallError> {
        let now = context.now();
        self.looked = Some((view.clone(), now));
        self.look_for_closed(view, context).await;
        self.forget_refused(view);
        let firewall = context.ports.firewall.as_ref();
        let shown = firewall.table(&table()).await;
        let is_as_loaded = |(_, as_loaded): &(String, Option<String>)| {
            shown.as_ref().is_ok_and(|shown| shown.is_some() && shown == as_loaded)
        };
        if !self.loaded.as_ref().is_some_and(is_as_loaded) {
            // Somebody changed or removed it: until it is loaded, nothing is known of what it does.
            self.filtered.clear();
            self.loaded = None;
        }
        let is_there = shown?.is_some();
        let deadline = now + SEARCH;
        self.try_refused_again(context, deadline).await;
        loop {
            let (filter, _) = self.filter(view);
            // What is known to be refused is not tried: it may take long.
            if !self.is_searched(&filter) {
                match self.load(view, firewall, is_there).await {
                    Err(error) if is_refusal(&error) => {
                        if !self.begin_search(&filter, firewall).await? {
                            return Err(error);
                        }
                    }
                    done => return done,
                }
            }
            if !self.search(&filter, context, deadline).await? {
                return Err(self.load_last(filter, firewall).await);
            }
        }
    }

    /// Loads the filter with the rules that each network had last, and closed where there were
    /// none: one rule that is hard to find keeps no other network from standing. Returns why it is
    /// not the one that there should be.
    async fn load_last(
        &mut self,
        mut filter: NetworkFilter,
        firewall: &dyn Firewall,
    ) -> FirewallError {
        for (vni, network) in &mut filter.networks {
            let cut = |chain: &AclChain| AclChain {
                rules: Vec::new(),
                is_cut: chain.is_cut || !chain.rules.is_empty(),
            };
            let closed = Acls {
                incoming: cut(&network.acls.incoming),
                outgoing: cut(&network.acls.outgoing),
            };
            network.acls = self.last.get(vni).cloned().unwrap_or(closed);
        }
        let rules = filter.rules();
        if self.loaded.as_ref().is_none_or(|(loaded, _)| *loaded != rules) {
            let done = firewall.apply(&table(), Some(&rules)).await;
            let shown = match done {
                Ok(()) => firewall.table(&table()).await,
                Err(error) => return error,
            };
            match shown {
                Ok(shown) => self.loaded = Some((rules, shown)),
                Err(error) => return error,
            }
            self.filtered = filter.networks.keys().copied().collect();
        }
        let why = self.search.as_ref().map_or_else(String::new, |search| search.why.clone());
        let why = format!(
            "a rule of an operator is not taken and not found yet; until then networks have the \
             rules that they had, or are closed ({why})"
        );
        FirewallError::Refused { what: "load", table: table(), why }
    }

    /// Removes what PVC 1.0.3 has left, once its rules are replaced: networks that it knew stand in
    /// them for ever, with rules that nobody changes any more.
    async fn clean(&mut self, context: &Context) {
        if self.has_cleaned || self.loaded.is_none() {
            return;
        }
        match context.ports.firewall.remove_old_rules().await {
            Ok(had_some) => {
                self.has_cleaned = true;
                if had_some {
                    tracing::info!(
                        "firewall of networks: PVC 1.0.3's rules are removed from `inet filter`"
                    );
                }
            }
            Err(error) => tracing::warn!("firewall of networks: {}", with_causes(&error)),
        }
    }

    /// Loads the filter, unless that is what stands.
    async fn load(
        &mut self,
        view: &Cluster,
        firewall: &dyn Firewall,
        is_there: bool,
    ) -> Result<Round, FirewallError> {
        let (filter, bad) = self.filter(view);
        let is_loaded = self.loaded.is_some();
        let mut round = Round { has_loaded: false, bad };
        if filter.is_empty() {
            if is_there {
                firewall.apply(&table(), None).await?;
                tracing::info!("firewall of networks: there are none, and it is taken away");
            }
            (self.loaded, self.filtered) = (None, BTreeSet::new());
            self.last.clear();
            return Ok(round);
        }
        let rules = filter.rules();
        if !is_loaded || self.loaded.as_ref().is_some_and(|(loaded, _)| *loaded != rules) {
            firewall.apply(&table(), Some(&rules)).await?;
            self.loaded = Some((rules, firewall.table(&table()).await?));
            round.has_loaded = true;
        }
        self.filtered = filter.networks.keys().copied().collect();
        let is_good = |vni: &Vni| round.bad.iter().all(|bad| bad.vni != *vni);
        // What could not be gone back to when that was called for is not gone back to later: the
        // network has something newer by then.
        let is_refused = |chain: &AclChain| first_refused(&self.refused, &chain.rules).is_some();
        self.last.retain(|vni, last| {
            let can_be_loaded = || !last.chains().iter().any(|(_, chain)| is_refused(chain));
            filter.networks.contains_key(vni) && (is_good(vni) || can_be_loaded())
        });
        for (vni, network) in filter.networks {
            if is_good(&vni) {
                self.last.insert(vni, network.acls);
            }
        }
        Ok(round)
    }

    fn filter(&self, view: &Cluster) -> (NetworkFilter, Vec<BadAcl>) {
        let refused = |rules: &[String]| first_refused(&self.refused, rules);
        let (closed, nodes, tunnels) = (&self.closed, &self.nodes, self.tunnels.as_ref());
        let known = Known { closed, nodes, tunnels, last: &self.last, refused: &refused };
        network_filter(view, &known)
    }

    /// Looks which bridges are to be closed. If the links cannot be seen it stays as it was.
    async fn look_for_closed(&mut self, view: &Cluster, context: &Context) {
        let (networks, now) = (GuestNetworks::of(view), context.now());
        let known: BTreeSet<Vni> = networks.networks.iter().map(|network| network.vni).collect();
        for vni in self.filtered.iter().chain(self.last.keys()) {
            self.left.entry(*vni).or_insert(now);
        }
        self.left.retain(|vni, since| !known.contains(vni) && now.saturating_sub(*since) < LEFT);
        match context.ports.network.links().await {
            Ok(links) => {
                let before = self.filtered.iter().chain(&self.closed).chain(self.last.keys());
                let before = before.copied().collect();
                self.closed = closed(&links, &networks, &before);
            }
            Err(error) => tell_of_links(&error),
        }
        self.closed.extend(self.left.keys());
    }

    /// Forgets rules that were refused and are nobody's any more.
    fn forget_refused(&mut self, view: &Cluster) {
        if self.refused.is_empty() {
            return;
        }
        let refused = &|_: &[String]| None;
        let (closed, nodes, tunnels) = (&self.closed, &self.nodes, self.tunnels.as_ref());
        let known = Known { closed, nodes, tunnels, last: &self.last, refused };
        let (recorded, _) = network_filter(view, &known);
        let recorded: BTreeSet<&[String]> = recorded.acl_prefixes().into_iter().collect();
        let chains = || self.last.values().flat_map(Acls::chains);
        self.refused.retain(|Refused { rules, .. }| {
            recorded.contains(&rules[..])
                || chains().any(|(_, chain)| chain.rules.starts_with(rules))
        });
    }

    /// Whether a search among the rules of this filter is under way.
    fn is_searched(&self, filter: &NetworkFilter) -> bool {
        self.search.as_ref().is_some_and(|search| search.prefixes == filter.acl_prefixes())
    }

    /// Begins to search among the rules of this filter. Whether it is they that nft does not take.
    async fn begin_search(
        &mut self,
        filter: &NetworkFilter,
        firewall: &dyn Firewall,
    ) -> Result<bool, FirewallError> {
        self.search = None;
        let prefixes = filter.acl_prefixes().into_iter().map(<[String]>::to_vec);
        let prefixes: Vec<Vec<String>> = prefixes.collect();
        let bad = prefixes.len();
        if try_rules(filter, 0, firewall).await?.is_some() {
            return Ok(false);
        }
        let Some(why) = try_rules(filter, bad, firewall).await? else { return Ok(false) };
        self.search = Some(Search { prefixes, good: 0, bad, why: why.to_string() });
        Ok(true)
    }

    /// Searches on by halves for the first rule that nft does not take. Whether it has found it.
    /// It loads the rules into a table beside: what nft only checks is not all that the kernel
    /// refuses.
    async fn search(
        &mut self,
        filter: &NetworkFilter,
        context: &Context,
        deadline: Duration,
    ) -> Result<bool, FirewallError> {
        let firewall = context.ports.firewall.as_ref();
        let Some(search) = &mut self.search else { return Ok(false) };
        while search.good + 1 < search.bad {
            if context.now() >= deadline {
                return Ok(false);
            }
            let middle = search.good.midpoint(search.bad);
            match try_rules(filter, middle, firewall).await? {
                None => search.good = middle,
                Some(error) => (search.bad, search.why) = (middle, error.to_string()),
            }
        }
        let Some(Search { mut prefixes, bad, why, .. }) = self.search.take() else {
            return Ok(false);
        };
        let rules = prefixes.swap_remove(bad - 1);
        self.refused.push(Refused { rules, why, until: context.now() + RETRY });
        Ok(true)
    }

    /// Tries rules again that were refused a while ago, each by itself, and forgets of those that
    /// are taken that they were not. Wherever one rule stands it is tried at once: why it was
    /// refused has passed for all of them, or for none.
    async fn try_refused_again(&mut self, context: &Context, deadline: Duration) {
        let firewall = context.ports.firewall.as_ref();
        // What nobody has to wait for comes after what is to be loaded.
        if self.loaded.is_none() {
            return;
        }
        let now = context.now();
        let is_due = |refused: &&Refused| refused.until <= now;
        let due: BTreeSet<String> =
            self.refused.iter().filter(is_due).filter_map(|it| it.rules.last().cloned()).collect();
        // Also what there is no time for in this round is due in the next.
        for refused in &mut self.refused {
            if refused.rules.last().is_some_and(|rule| due.contains(rule)) {
                refused.until = refused.until.min(now);
            }
        }
        let mut kept = Vec::new();
        for mut refused in std::mem::take(&mut self.refused) {
            if refused.until <= now && context.now() < deadline {
                match try_chain(&refused.rules, firewall).await {
                    Ok(None) => continue,
                    Ok(Some(error)) => {
                        (refused.why, refused.until) = (error.to_string(), now + RETRY);
                    }
                    Err(_) => {}
                }
            }
            kept.push(refused);
        }
        self.refused = kept;
    }
}

/// The place of the first of these rules that was refused, and why.
fn first_refused(refused: &[Refused], rules: &[String]) -> Option<(usize, String)> {
    let refused = refused.iter().filter(|refused| rules.starts_with(&refused.rules));
    let first = refused.min_by_key(|refused| refused.rules.len())?;
    Some((first.rules.len() - 1, first.why.clone()))
}

fn tell_of_links(error: &NetworkError) {
    tracing::warn!("firewall of networks: the links cannot be seen: {}", with_causes(error));
}

/// Whether it may be the rules that are at fault.
fn is_refusal(error: &FirewallError) -> bool {
    matches!(
        error,
        FirewallError::BadRules { .. }
            | FirewallError::Refused { .. }
            | FirewallError::TimedOut { .. }
    )
}

/// Loads the first `count` rules of operators of `filter` where no packet gets to them, and takes
/// them away again. Returns why they are refused, if they are.
async fn try_rules(
    filter: &NetworkFilter,
    count: usize,
    firewall: &dyn Firewall,
) -> Result<Option<FirewallError>, FirewallError> {
    let table = probe_table();
    match firewall.apply(&table, Some(&filter.probe_rules(count))).await {
        Ok(()) => {
            firewall.apply(&table, None).await?;
            Ok(None)
        }
        Err(error) if is_refusal(&error) => Ok(Some(error)),
        Err(error) => Err(error),
    }
}

/// Loads these rules as those of a network by themselves, as [`try_rules`] does.
async fn try_chain(
    rules: &[String],
    firewall: &dyn Firewall,
) -> Result<Option<FirewallError>, FirewallError> {
    let incoming = AclChain { rules: rules.to_vec(), is_cut: false };
    let acls = Acls { incoming, ..Acls::default() };
    let network = FilteredNetwork { acls, ..FilteredNetwork::default() };
    let vni = Vni::new(1).expect("there is such a number");
    let filter = NetworkFilter { networks: [(vni, network)].into(), ..NetworkFilter::default() };
    try_rules(&filter, rules.len(), firewall).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use pvc_embedded::EmbeddedTree;
    use pvc_model::NodeName;
    use pvc_model::network::{AclRecord, Direction, NetworkRecord};
    use pvc_ports::{CreateMode, Ports, Tree};
    use pvc_store::Store;
    use pvc_testkit::{MemoryFirewall, MemoryNetwork, SeededRandom, TokioClock, eventually, ports};

    use super::*;

    struct World {
        context: Context,
        firewall: Arc<MemoryFirewall>,
        network: Arc<MemoryNetwork>,
        tree: Arc<dyn Tree>,
    }

    /// Node `hv1` of a new cluster, whose packet filter refuses rules with the word `bad`.
    async fn world() -> World {
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let tree = EmbeddedTree::in_memory().connect();
        let store = Store::open(tree.clone(), clock.clone(), random.clone()).await.unwrap();
        store.initialize(false).await.unwrap();
        let (firewall, network) = (Arc::new(MemoryFirewall::new()), Arc::new(MemoryNetwork::new()));
        firewall.set_refusing(|_, rules| rules.is_some_and(|rules| rules.contains("bad")));
        let ports = Ports {
            clock,
            random,
            firewall: firewall.clone(),
            network: network.clone(),
            ..ports()
        };
        let context = Context::new(NodeName::new("hv1"), ports, store);
        World { context, firewall, network, tree }
    }

    fn cluster(networks: &[(&str, &[&str])]) -> Cluster {
        let mut cluster = Cluster::default();
        for (vni, rules) in networks {
            let acls = (1..).zip(*rules).map(|(order, rule)| AclRecord {
                direction: Direction::In,
                order,
                description: format!("rule {order}"),
                rule: (*rule).to_owned(),
            });
            let record = NetworkRecord {
                vni: (*vni).to_owned(),
                description: format!("net{vni}"),
                nettype: "managed".to_owned(),
                ip4_network: format!("10.20.{vni}.0/24"),
                acls: acls.collect(),
                ..NetworkRecord::default()
            };
            cluster.networks.insert((*vni).to_owned(), Arc::new(record));
        }
        cluster
    }

    fn vnis(numbers: &[u32]) -> BTreeSet<Vni> {
        numbers.iter().map(|number| Vni::new(*number).unwrap()).collect()
    }

    impl World {
        async fn loaded(&self) -> String {
            self.firewall.table(&table()).await.unwrap().unwrap_or_default()
        }

        /// Chain of the loaded firewall without what every chain has.
        async fn chain(&self, name: &str) -> Vec<String> {
            let text = self.loaded().await;
            let begin = format!("chain {name} {{\n\tcounter\n");
            let (_, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("{name}: {text}"));
            let lines = rest.lines().take_while(|line| *line != "}");
            lines.map(|line| line.trim().trim_start_matches("counter ").to_owned()).collect()
        }

        async fn round(&self, keeper: &mut Keeper, view: &Cluster) -> Round {
            keeper.round(view, &self.context).await.unwrap()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_loaded_once_and_again_when_somebody_flushed_it() {
        let (world, mut keeper) = (world().await, Keeper::new(BTreeSet::new()));
        let view = cluster(&[("7", &["drop"])]);
        assert!(world.round(&mut keeper, &view).await.has_loaded);
        assert_eq!(keeper.filtered, vnis(&[7]));
        assert!(!world.round(&mut keeper, &view).await.has_loaded);
        assert_eq!(world.firewall.changes(), 1);
        world.firewall.flush();
        assert!(world.round(&mut keeper, &view).await.has_loaded);
        assert_eq!(world.chain("vxlan7-in").await, ["drop"]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_cannot_be_loaded_again_counts_as_none() {
        let (world, mut keeper) = (world().await, Keeper::new(BTreeSet::new()));
        let view = cluster(&[("7", &[])]);
        world.round(&mut keeper, &view).await;
        world.firewall.set_refusing(|_, _| true);
        world.firewall.flush();
        keeper.round(&view, &world.context).await.unwrap_err();
        assert_eq!(keeper.filtered, BTreeSet::new());
    }

    #[tokio::test(start_paused = true)]
    async fn without_networks_there_is_no_table_and_a_network_that_is_gone_is_closed_before() {
        let (world, mut keeper) = (world().await, Keeper::new(BTreeSet::new()));
        assert!(!world.round(&mut keeper, &cluster(&[])).await.has_loaded);
        assert_eq!(world.firewall.changes(), 0);
        world.network.insert_bridge("vmbr7");
        world.round(&mut keeper, &cluster(&[("7", &["accept"])])).await;
        world.round(&mut keeper, &cluster(&[])).await;
        let text = world.loaded().await;
        let closed = "set closed {\n\ttype ifname\n\telements = { \"vmbr7\" }";
        assert!(text.contains(closed) && !text.contains("vxlan7"), "{text}");
        assert_eq!(keeper.filtered, BTreeSet::new());
        world.network.pull_out("vmbr7");
        world.round(&mut keeper, &cluster(&[])).await;
        tokio::time::advance(LEFT).await;
        world.round(&mut keeper, &cluster(&[])).await;
        assert_eq!(world.loaded().await, "");
    }

    /// Whoever makes the links has heard that the network is filtered, and has begun.
    #[tokio::test(start_paused = true)]
    async fn a_network_that_is_gone_is_closed_before_its_bridge_comes() {
        let (world, mut keeper) = (world().await, Keeper::new(BTreeSet::new()));
        world.round(&mut keeper, &cluster(&[("7", &["accept"]), ("8", &[])])).await;
        let rest = cluster(&[("8", &[])]);
        world.round(&mut keeper, &rest).await;
        let is_closed = async || world.loaded().await.contains("elements = { \"vmbr7\" }");
        assert!(is_closed().await, "{}", world.loaded().await);
        assert_eq!(keeper.filtered, vnis(&[8]));
        tokio::time::advance(LEFT / 2).await;
        world.round(&mut keeper, &rest).await;
        assert!(is_closed().await, "{}", world.loaded().await);
        tokio::time::advance(LEFT / 2).await;
        world.round(&mut keeper, &rest).await;
        assert!(!is_closed().await, "{}", world.loaded().await);
        // One that comes back is as it is recorded.
        world.round(&mut keeper, &cluster(&[("7", &["drop"]), ("8", &[])])).await;
        world.round(&mut keeper, &rest).await;
        world.round(&mut keeper, &cluster(&[("7", &["accept"]), ("8", &[])])).await;
        assert_eq!(world.chain("vxlan7-in").await, ["accept"]);
        assert!(!is_closed().await && keeper.left.is_empty(), "{}", world.loaded().await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_rule_is_forgotten_with_its_record() {
        let (world, mut keeper) = (world().await, Keeper::new(BTreeSet::new()));
        let rules = ["accept", "bad one", "bad two"];
        world.round(&mut keeper, &cluster(&[("7", &rules), ("8", &["bad"])])).await;
        let known = |keeper: &Keeper| -> Vec<Vec<String>> {
            keeper.refused.iter().map(|refused| refused.rules.clone()).collect()
        };
        assert_eq!(known(&keeper), [vec!["accept", "bad one"], vec!["bad"]]);
        for other in 0..20 {
            let other = format!("bad {other}");
            world.round(&mut keeper, &cluster(&[("7", &rules), ("8", &[&other])])).await;
            assert_eq!(known(&keeper), [vec!["accept", "bad one"], vec![&*other]]);
        }
        world.round(&mut keeper, &cluster(&[("7", &rules)])).await;
        assert_eq!(known(&keeper), [["accept", "bad one"]]);
        world.round(&mut keeper, &cluster(&[])).await;
        assert_eq!(known(&keeper), [[""; 0]; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rule_that_is_refused_takes_no_other_network_down_and_is_known_from_then_on() {
        let (world, mut keeper) = (world().await, Keeper::new(BTreeSet::new()));
        let good = ("8", &["tcp dport 1 accept", "drop"] as &[&str]);
        let rules = ["accept one", "accept two", "bad one", "accept three", "bad two"];
        let view = cluster(&[("7", &rules), good, ("9", &["bad three"])]);
        let round = world.round(&mut keeper, &view).await;
        assert_eq!(world.chain("vxlan7-in").await, ["accept one", "accept two", "drop"]);
        assert_eq!(world.chain("vxlan8-in").await, ["tcp dport 1 accept", "drop"]);
        assert_eq!(world.chain("vxlan9-in").await, ["drop"]);
        assert_eq!(keeper.filtered, vnis(&[7, 8, 9]));
        let bad: Vec<(u32, &str)> =
            round.bad.iter().map(|bad| (bad.vni.get(), &*bad.rule)).collect();
        assert_eq!(bad, [(7, "rule 3"), (9, "rule 1")]);
        assert!(round.bad[0].why.contains("these are refused"), "{}", round.bad[0]);
        assert_eq!(world.firewall.table(&probe_table()).await.unwrap(), None);

        let before = world.firewall.changes();
        assert_eq!(world.round(&mut keeper, &view).await.bad.len(), 2);
        assert_eq!(world.firewall.changes(), before, "what is known is not searched for");
        // Later it is taken: a link that it names may be there.
        world.firewall.set_refusing(|_, _| false);
        tokio::time::advance(RETRY).await;
        assert_eq!(world.round(&mut keeper, &view).await.bad.len(), 0);
        assert_eq!(world.chain("vxlan7-in").await, rules);
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_with_a_rule_that_is_refused_keeps_the_rules_it_had() {
        let (world, mut keeper) = (world().await, Keeper::new(BTreeSet::new()));
        let rest = ("8", &["drop"] as &[&str]);
        world.round(&mut keeper, &cluster(&[("7", &["tcp dport 22 accept"]), rest])).await;
        for wrong in [&["bad"] as &[&str], &["accept; accept"], &["accept", "drop", "bad"], &[""]] {
            let round = world.round(&mut keeper, &cluster(&[("7", wrong), rest])).await;
            assert_eq!(world.chain("vxlan7-in").await, ["tcp dport 22 accept"], "{wrong:?}");
            assert!(round.bad[0].has_last, "{}", round.bad[0]);
        }
        world.round(&mut keeper, &cluster(&[("7", &["drop"]), ("8", &["accept"])])).await;
        assert_eq!(world.chain("vxlan7-in").await, ["drop"]);
        assert_eq!(world.chain("vxlan8-in").await, ["accept"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rule_that_is_taken_again_is_so_in_the_newer_set_when_it_is_in_the_older() {
        let (world, mut keeper) = (world().await, Keeper::new(BTreeSet::new()));
        world.firewall.set_refusing(|_, _| false);
        let older = cluster(&[("7", &["bad"])]);
        world.round(&mut keeper, &older).await;
        world.firewall.set_refusing(|_, rules| rules.is_some_and(|rules| rules.contains("bad")));
        world.firewall.flush();
        world.round(&mut keeper, &older).await;
        tokio::time::advance(RETRY / 2).await;
        let newer = cluster(&[("7", &["drop", "bad"])]);
        assert_eq!(world.round(&mut keeper, &newer).await.bad.len(), 1);
        assert_eq!(world.chain("vxlan7-in").await, ["drop", "drop"]);
        world.firewall.set_refusing(|_, _| false);
        tokio::time::advance(RETRY / 2).await;
        world.round(&mut keeper, &newer).await;
        assert_eq!(world.chain("vxlan7-in").await, ["drop", "drop"], "not back to the older");
        tokio::time::advance(RETRY / 2).await;
        assert_eq!(world.round(&mut keeper, &newer).await.bad, []);
        assert_eq!(world.chain("vxlan7-in").await, ["drop", "bad"]);
    }

    /// Found by the simulation.
    #[tokio::test(start_paused = true)]
    async fn a_set_that_was_not_taken_when_it_was_called_for_is_not_gone_back_to_later() {
        let (world, mut keeper) = (world().await, Keeper::new(BTreeSet::new()));
        world.firewall.set_refusing(|_, _| false);
        let older = cluster(&[("7", &["bad", "drop"])]);
        world.round(&mut keeper, &older).await;
        let refuses = |words: &'static [&'static str]| {
            let is_one = |rules: &str| words.iter().any(|word| rules.contains(word));
            world.firewall.set_refusing(move |_, rules| rules.is_some_and(is_one));
        };
        refuses(&["bad", "worse"]);
        world.firewall.flush();
        world.round(&mut keeper, &older).await;
        let newer = cluster(&[("7", &["accept", "worse"])]);
        world.round(&mut keeper, &newer).await;
        assert_eq!(world.chain("vxlan7-in").await, ["accept", "drop"], "the older is not taken");
        refuses(&["worse"]);
        tokio::time::advance(RETRY).await;
        world.round(&mut keeper, &newer).await;
        assert_eq!(world.chain("vxlan7-in").await, ["accept", "drop"]);
    }

    /// Each try takes its time, as when nft waits for DNS.
    #[tokio::test(start_paused = true)]
    async fn a_rule_that_is_hard_to_find_keeps_no_network_from_standing_and_is_found() {
        let (world, mut keeper) = (world().await, Keeper::new(BTreeSet::new()));
        let many: Vec<String> = (0..100).map(|number| format!("accept {number}")).collect();
        let mut many: Vec<&str> = many.iter().map(String::as_str).collect();
        many.insert(77, "bad");
        let first = ("9", &["tcp dport 9 accept"] as &[&str]);
        world.round(&mut keeper, &cluster(&[first])).await;
        let view = cluster(&[("7", &many), ("8", &[]), first]);
        world.firewall.set_delay(Duration::from_secs(10));
        let error = keeper.round(&view, &world.context).await.unwrap_err();
        assert!(error.to_string().contains("not found yet"), "{error}");
        assert_eq!(keeper.filtered, vnis(&[7, 8, 9]), "the others stand");
        assert_eq!(world.chain("vxlan7-in").await, ["drop"]);
        assert_eq!(world.chain("vxlan8-in").await, [""; 0]);
        assert_eq!(world.chain("vxlan9-in").await, ["tcp dport 9 accept"]);
        for pass in 0.. {
            assert!(pass < 10, "each pass goes on from the one before");
            if keeper.round(&view, &world.context).await.is_ok() {
                break;
            }
        }
        assert_eq!(world.chain("vxlan7-in").await.len(), 78);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_rule_is_tried_again_by_itself() {
        let (world, mut keeper) = (world().await, Keeper::new(BTreeSet::new()));
        let tried = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = tried.clone();
        world.firewall.set_refusing(move |asked, rules| {
            let is_bad = rules.is_some_and(|rules| rules.contains("bad"));
            if is_bad && *asked == table() {
                count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            is_bad
        });
        let view = cluster(&[("7", &["accept", "bad"]), ("8", &["accept"])]);
        world.round(&mut keeper, &view).await;
        let before = tried.load(std::sync::atomic::Ordering::Relaxed);
        for _ in 0..3 {
            tokio::time::advance(RETRY).await;
            assert_eq!(world.round(&mut keeper, &view).await.bad.len(), 1);
        }
        let after = tried.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(after, before, "not with what is loaded");
    }

    #[tokio::test(start_paused = true)]
    async fn a_firewall_that_takes_nothing_blames_no_rule() {
        let (world, mut keeper) = (world().await, Keeper::new(BTreeSet::new()));
        let view = cluster(&[("7", &["drop"])]);
        world.firewall.set_refusing(|_, _| true);
        keeper.round(&view, &world.context).await.unwrap_err();
        assert!(keeper.refused.is_empty());
        world.firewall.set_refusing(|_, _| false);
        assert_eq!(world.round(&mut keeper, &view).await.bad, []);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_recorded_is_filtered_and_said() {
        let world = world().await;
        world.firewall.leave_old_rules();
        let (sender, said) = watch::channel(BTreeSet::new());
        let end = CancellationToken::new();
        let role = run(world.context.clone(), BTreeSet::new(), None, sender, end.clone());
        let role = tokio::spawn(role);
        world.context.sleep(2 * INTERVAL).await;
        assert!(world.firewall.has_old_rules(), "nothing has taken their place");
        for (key, value) in [
            ("", "net7"),
            ("/nettype", "managed"),
            ("/ip4_network", "10.20.7.0/24"),
            ("/firewall_rules", ""),
            ("/firewall_rules/in", ""),
            ("/firewall_rules/in/web", ""),
            ("/firewall_rules/in/web/order", "0"),
            ("/firewall_rules/in/web/rule", "bad"),
        ] {
            let data = Bytes::from_static(value.as_bytes());
            let path = format!("/networks/7{key}");
            world.tree.create(&path, data, CreateMode::Persistent).await.unwrap();
        }
        let long = Duration::from_secs(60);
        eventually("others are told", long, || *said.borrow() == vnis(&[7])).await;
        let is_clean = || !world.firewall.has_old_rules();
        eventually("what PVC 1.0.3 has left is removed", long, is_clean).await;
        let store = &world.context.store;
        let fault = || store.view().faults.get("NETWORK_RULES_7_HV1").cloned();
        eventually("there is a fault", long, || fault().is_some()).await;
        let message = fault().unwrap().message.clone();
        assert!(message.starts_with("node hv1: "), "{message}");
        assert!(message.contains("`web` (in) of network 7 (net7)"), "{message}");
        // Another node does not take it either, and this one had a former life.
        let [others, former] = ["NETWORK_RULES_7_HV2", "NETWORK_RULES_9_HV1"];
        world.context.raise(others, "node hv2: it is refused").await;
        world.context.raise(former, "node hv1: it was refused").await;
        let is_gone = || !store.view().faults.contains_key(former);
        eventually("what is over is taken back", long, is_gone).await;
        world.firewall.set_refusing(|_, _| false);
        eventually("it is taken back", 2 * RETRY, || fault().is_none()).await;
        assert!(store.view().faults.contains_key(others), "that of another node stays");
        end.cancel();
        role.await.unwrap();
    }
}
