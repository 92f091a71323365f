//! The networks between the nodes: brought up at the start, and made again whenever something of
//! them is missing. What is to be done is decided in `pvc_model::network_core`; here it is done and
//! logged.

use std::collections::BTreeSet;
use std::time::Duration;

use pvc_model::link::Link;
use pvc_model::network_core::{self, CoreNetworks, NetworkFinding, NetworkStep, Seen};
use pvc_model::with_causes;
use pvc_ports::{Network, NetworkError, Ports, UnitState};
use pvc_role::{Alarm, Context};
use tokio_util::sync::CancellationToken;

/// Time that the networks may take to stand. Then the start goes on without what is missing: a node
/// with a broken cable is better off with a daemon.
const CEILING: Duration = Duration::from_secs(10);

/// Time for which a pass waits for the one before to take effect, or for a device to appear.
const POLL: Duration = Duration::from_millis(500);

/// Time between two looks at the networks while the node runs.
const INTERVAL: Duration = Duration::from_secs(5);

/// Shortest and longest time for which a step that had to be taken back is not tried again: each
/// time takes a card out of service for a moment.
const FIRST_REST: Duration = Duration::from_secs(10);
const LONGEST_REST: Duration = Duration::from_secs(300);

/// Time for which a network may be down before that is a fault.
const GRACE: Duration = Duration::from_secs(15);

/// The distribution's DNS and DHCP server. It takes the ports that the networks of VMs need.
const FOREIGN_DNSMASQ: &str = "dnsmasq.service";

/// Result of a pass: what it found, did, and could not do.
#[derive(Debug, Default)]
struct Pass {
    done: Vec<NetworkStep>,
    findings: BTreeSet<NetworkFinding>,
    /// Steps that failed, in words.
    failed: Vec<String>,
    /// The steps that were taken back because what they are for failed, with that in words.
    taken_back: Vec<(NetworkStep, String)>,
}

impl Pass {
    /// Whether nothing was left to do.
    fn is_idle(&self) -> bool {
        self.done.is_empty() && self.failed.is_empty()
    }

    /// Reason for which a network does not stand, if one does not.
    fn down_reason(&self) -> Option<String> {
        let cut_off =
            self.findings.iter().filter(|finding| finding.cuts_off()).map(ToString::to_string);
        let all: Vec<String> = cut_off.chain(self.failed.iter().cloned()).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Whether something may come that is not there yet.
    fn waits(&self) -> bool {
        let is_missing =
            |finding: &NetworkFinding| matches!(finding, NetworkFinding::NoDevice { .. });
        !self.failed.is_empty() || self.findings.iter().any(is_missing)
    }
}

/// The steps that are not tried at every pass, because they had to be taken back.
#[derive(Debug, Default)]
struct Rests(Vec<Rest>);

#[derive(Debug)]
struct Rest {
    step: NetworkStep,
    /// Failure, in words.
    why: String,
    pause: Duration,
    until: Duration,
}

impl Rests {
    /// Reason for which `step` is not tried now, if it is not.
    fn why_not(&self, step: &NetworkStep, now: Duration) -> Option<&str> {
        let rest = self.0.iter().find(|rest| rest.step == *step && now < rest.until)?;
        Some(&rest.why)
    }

    /// Remembers what a pass took back, ever longer, and forgets what it did.
    fn record(&mut self, pass: &Pass, now: Duration) {
        self.0.retain(|rest| !pass.done.contains(&rest.step));
        for (step, why) in &pass.taken_back {
            let known =
                self.0.iter().position(|rest| rest.step == *step).map(|at| self.0.swap_remove(at));
            let pause = known.map_or(FIRST_REST, |rest| (rest.pause * 2).min(LONGEST_REST));
            self.0.push(Rest { step: step.clone(), why: why.clone(), pause, until: now + pause });
        }
    }
}

/// Brings the networks up, for as long as it helps and at most for a while. What could not be done
/// is logged, and done later by [`run`] if it becomes possible. Once `shutdown` is cancelled the
/// pass that has begun is the last one.
pub async fn bring_up(networks: &CoreNetworks, ports: &Ports, shutdown: &CancellationToken) {
    let until = ports.clock.monotonic() + CEILING;
    let mut rests = Rests::default();
    loop {
        let pass = pass(networks, ports, &mut rests).await;
        for step in &pass.done {
            tracing::info!("core networks: {step}");
        }
        let in_time = ports.clock.monotonic() < until && !shutdown.is_cancelled();
        if (pass.is_idle() && !pass.waits()) || !in_time {
            Failures::default().log_new(&pass);
            break;
        }
        // A first pass shows what the second has to set on the links that it made. One that failed
        // may do the same steps each time.
        if pass.done.is_empty() || !pass.failed.is_empty() {
            shutdown.run_until_cancelled(ports.clock.sleep(POLL)).await;
        }
    }
    shutdown.run_until_cancelled(stop_foreign_dnsmasq(ports)).await;
}

async fn stop_foreign_dnsmasq(ports: &Ports) {
    let runs = matches!(
        ports.services.state(FOREIGN_DNSMASQ).await,
        Ok(UnitState::Active | UnitState::Starting)
    );
    if !runs {
        return;
    }
    match ports.services.stop(FOREIGN_DNSMASQ).await {
        Ok(()) => tracing::warn!(
            "{FOREIGN_DNSMASQ} is stopped: it takes the ports that PVC's networks need; `systemctl \
             disable` it"
        ),
        Err(error) => {
            tracing::error!(%error, "{FOREIGN_DNSMASQ} takes the ports that PVC's networks need")
        }
    }
}

/// Looks at the networks again and again, and makes what somebody removed.
pub async fn run(context: Context, networks: CoreNetworks, end: CancellationToken) {
    let mut keeper = Keeper::default();
    let mut turns = context.turns(&end);
    while turns.next(INTERVAL).await {
        if let Some(reason) = keeper.round(&networks, &context.ports).await {
            let message = format!("node {}: {reason}", context.name());
            context.raise_own("NETWORK", &message).await;
        }
    }
}

/// State of the keeper: what was said already while the node runs.
struct Keeper {
    rests: Rests,
    failures: Failures,
    alarm: Alarm,
}

impl Default for Keeper {
    fn default() -> Self {
        let (rests, failures) = (Rests::default(), Failures::default());
        Keeper { rests, failures, alarm: Alarm::after(GRACE) }
    }
}

impl Keeper {
    /// Makes what is missing. Returns what is to be told to operators now.
    async fn round(&mut self, networks: &CoreNetworks, ports: &Ports) -> Option<String> {
        let pass = pass(networks, ports, &mut self.rests).await;
        for step in &pass.done {
            tracing::warn!(
                "core networks: something of them was missing or changed; repaired: {step}"
            );
        }
        if pass.done.iter().any(|step| matches!(step, NetworkStep::CreateBridge { .. })) {
            tracing::warn!(
                "VMs that were plugged into a bridge made anew are cut off until they are \
                 restarted or moved"
            );
        }
        self.failures.log_new(&pass);
        self.alarm.due(pass.down_reason(), ports.clock.monotonic())
    }
}

/// Failures that were logged already and are not logged again while they last.
#[derive(Default)]
struct Failures {
    said: BTreeSet<String>,
}

impl Failures {
    fn log_new(&mut self, pass: &Pass) {
        let mut now: BTreeSet<String> = pass.failed.iter().cloned().collect();
        for finding in &pass.findings {
            let text = finding.to_string();
            if !self.said.contains(&text) {
                tracing::error!(hint = finding.hint(), "core networks: {text}");
            }
            now.insert(text);
        }
        for text in pass.failed.iter().filter(|text| !self.said.contains(*text)) {
            tracing::error!("core networks: {text}");
        }
        for text in self.said.difference(&now) {
            tracing::info!("core networks: no longer so: {text}");
        }
        self.said = now;
    }
}

/// Looks, decides, acts: once. A step that fails keeps those back that wait for it, which the next
/// pass plans again, and no other. So does one that rests, whose failure is told again meanwhile.
async fn pass(networks: &CoreNetworks, ports: &Ports, rests: &mut Rests) -> Pass {
    let (network, now) = (ports.network.as_ref(), ports.clock.monotonic());
    let mut pass = Pass::default();
    let seen = match look(networks, network).await {
        Ok(seen) => seen,
        Err(error) => {
            pass.failed.push(in_words("they cannot be looked at", &error));
            return pass;
        }
    };
    let plan = network_core::plan(networks, &seen);
    pass.findings = plan.findings;
    let mut undone: Vec<NetworkStep> = Vec::new();
    for step in plan.steps {
        if undone.iter().any(|other| step.waits_for(other, networks)) {
            undone.push(step);
            continue;
        }
        if let Some(why) = rests.why_not(&step, now) {
            pass.failed.push(why.to_owned());
            undone.push(step);
            continue;
        }
        match act(network, &step).await {
            Ok(()) => pass.done.push(step),
            Err(error) => {
                let why = in_words(&format!("it failed to {step}"), &error);
                let useless = put_back(network, &seen, &step, &mut pass).await;
                pass.taken_back.extend(useless.iter().map(|step| (step.clone(), why.clone())));
                pass.failed.push(why);
                undone.extend(useless);
                undone.push(step);
            }
        }
    }
    rests.record(&pass, now);
    pass
}

/// Takes back what was done for the sake of `failed` alone and leaves the machine cut off without
/// it. Returns the steps that are no longer done.
async fn put_back(
    network: &dyn Network,
    seen: &Seen,
    failed: &NetworkStep,
    pass: &mut Pass,
) -> Vec<NetworkStep> {
    let is_useless = |step: &NetworkStep| match (failed, step) {
        (NetworkStep::AddRoute(new), NetworkStep::RemoveRoute(old)) => old.to == new.to,
        // A card that is a port hears nothing under its own address.
        (
            NetworkStep::AddAddress { link: bridge, address },
            NetworkStep::SetMaster { link, master },
        ) => {
            let has = |card: &Link| card.addresses.contains(address);
            master == bridge && seen.links.get(link).is_some_and(has)
        }
        _ => false,
    };
    let (useless, done) =
        std::mem::take(&mut pass.done).into_iter().partition::<Vec<_>, _>(is_useless);
    pass.done = done;
    for step in &useless {
        let back = match step {
            NetworkStep::RemoveRoute(route) => network.add_route(route).await,
            NetworkStep::SetMaster { link, .. } => {
                let before = seen.links.get(link).and_then(|card| card.master.as_deref());
                network.set_master(link, before).await
            }
            _ => Ok(()),
        };
        if let Err(error) = back {
            pass.failed.push(in_words(&format!("it failed to take back: {step}"), &error));
        }
    }
    useless
}

fn in_words(what: &str, error: &NetworkError) -> String {
    let text = format!("{what}: {}", with_causes(error));
    match error.hint() {
        Some(hint) => format!("{text} ({hint})"),
        None => text,
    }
}

async fn look(networks: &CoreNetworks, network: &dyn Network) -> Result<Seen, NetworkError> {
    let mut seen =
        Seen { links: network.links().await?, routes: network.routes().await?, ..Seen::default() };
    for key in network_core::settings(networks) {
        if let Some(value) = network.setting(&key).await? {
            seen.settings.insert(key, value);
        }
    }
    Ok(seen)
}

async fn act(network: &dyn Network, step: &NetworkStep) -> Result<(), NetworkError> {
    match step {
        NetworkStep::CreateVlan { link, lower, id } => network.create_vlan(link, lower, *id).await,
        NetworkStep::CreateBridge { link } => network.create_bridge(link).await,
        NetworkStep::SetMtu { link, mtu } => network.set_mtu(link, *mtu).await,
        NetworkStep::SwitchOn { link } => network.set_up(link, true).await,
        NetworkStep::SetMaster { link, master } => network.set_master(link, Some(master)).await,
        NetworkStep::AddAddress { link, address } => {
            network.add_address(link, *address).await?;
            // Where the address moved from a card to its bridge, neighbours know it by the card's.
            if let Err(error) = network.announce(link, address.addr()).await {
                tracing::debug!(%error, "an address was not announced");
            }
            Ok(())
        }
        NetworkStep::RemoveAddress { link, address } => {
            network.remove_address(link, *address).await
        }
        NetworkStep::AddRoute(route) => network.add_route(route).await,
        NetworkStep::RemoveRoute(route) => network.remove_route(route).await,
        NetworkStep::Set { key, value } => network.set_setting(key, value).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use pvc_model::link::{IpNet, Route};
    use pvc_model::network_core::CoreNetwork;
    use pvc_testkit::{
        MemoryNetwork, NetworkChange, ScriptedServices, UnitCall, UnitManner, ports,
    };

    fn networks() -> CoreNetworks {
        let network = |device: &str, address: &str| CoreNetwork {
            device: device.to_owned(),
            mtu: 1500,
            address: Some(address.parse().unwrap()),
            gateway: None,
        };
        let upstream = network("ens4", "10.0.0.1/24");
        CoreNetworks {
            cluster: network("ens5", "10.0.1.1/24"),
            upstream: CoreNetwork { gateway: Some("10.0.0.254".parse().unwrap()), ..upstream },
            storage: network("ens6", "10.0.2.1/24"),
        }
    }

    fn machine() -> MemoryNetwork {
        MemoryNetwork::new().with_device("ens4").with_device("ens5").with_device("ens6")
    }

    fn on(network: &Arc<MemoryNetwork>) -> Ports {
        Ports { network: network.clone(), ..ports() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_bare_machine_has_its_networks_at_once_and_a_second_start_changes_nothing() {
        let network = Arc::new(machine());
        let ports = on(&network);
        bring_up(&networks(), &ports, &CancellationToken::new()).await;
        assert_eq!(ports.clock.monotonic(), Duration::ZERO, "nothing is waited for");
        for (address, bridge) in
            [("10.0.0.1", "brupstream"), ("10.0.1.1", "brcluster"), ("10.0.2.1", "brstorage")]
        {
            assert_eq!(network.holder(address.parse().unwrap()).as_deref(), Some(bridge));
        }
        let forwarding = network.setting("net/ipv4/ip_forward").await.unwrap();
        assert_eq!(forwarding.as_deref(), Some("1"));
        let rp_filter = network.setting("net/ipv4/conf/brcluster/rp_filter").await.unwrap();
        assert_eq!(rp_filter.as_deref(), Some("0"), "also on a bridge that was made a moment ago");
        let before = network.changes().len();
        bring_up(&networks(), &ports, &CancellationToken::new()).await;
        assert_eq!(network.changes().len(), before);
    }

    #[tokio::test(start_paused = true)]
    async fn a_card_that_appears_late_is_waited_for_and_one_that_never_does_only_so_long() {
        let network = Arc::new(MemoryNetwork::new().with_device("ens4").with_device("ens5"));
        let ports = on(&network);
        let plugged = network.clone();
        let clock = ports.clock.clone();
        tokio::spawn(async move {
            clock.sleep(Duration::from_secs(3)).await;
            plugged.insert_device("ens6");
        });
        bring_up(&networks(), &ports, &CancellationToken::new()).await;
        assert_eq!(network.links().await.unwrap()["ens6"].master.as_deref(), Some("brstorage"));
        assert!(ports.clock.monotonic() < Duration::from_secs(4));

        network.pull_out("ens6");
        let begun = ports.clock.monotonic();
        bring_up(&networks(), &ports, &CancellationToken::new()).await;
        let took = ports.clock.monotonic() - begun;
        assert!((CEILING..CEILING + POLL * 2).contains(&took), "{took:?}");
        assert_eq!(network.holder("10.0.2.1".parse().unwrap()).as_deref(), Some("brstorage"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_that_is_asked_to_stop_finishes_its_pass_and_waits_for_no_card() {
        let network = Arc::new(MemoryNetwork::new().with_device("ens4").with_device("ens5"));
        let ports = on(&network);
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        let begun = ports.clock.monotonic();
        bring_up(&networks(), &ports, &shutdown).await;
        assert_eq!(ports.clock.monotonic() - begun, Duration::ZERO);
        assert_eq!(network.links().await.unwrap()["ens4"].master.as_deref(), Some("brupstream"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_kernel_that_refuses_everything_does_not_keep_the_daemon_from_starting() {
        let network = Arc::new(machine());
        network.set_failing(true);
        let ports = on(&network);
        bring_up(&networks(), &ports, &CancellationToken::new()).await;
        assert!(ports.clock.monotonic() < CEILING + POLL * 2);
    }

    /// A fresh host that is reached by its address on the upstream card.
    async fn reached_by_its_card(metric: u32) -> Arc<MemoryNetwork> {
        let network = Arc::new(machine());
        network.set_up("ens4", true).await.unwrap();
        network.add_address("ens4", own()).await.unwrap();
        network.add_route(&way_out("ens4", metric)).await.unwrap();
        network
    }

    fn own() -> IpNet {
        "10.0.0.1/24".parse().unwrap()
    }

    fn way_out(link: &str, metric: u32) -> Route {
        let via = Some("10.0.0.254".parse().unwrap());
        Route { to: "0.0.0.0/0".parse().unwrap(), via, link: Some(link.to_owned()), metric }
    }

    /// Whether the machine is reached: its address and the best default route are on one link, and
    /// that is a card of its own or a bridge with the card as its port.
    async fn is_reached(network: &MemoryNetwork) -> bool {
        let (links, routes) = (network.links().await.unwrap(), network.routes().await.unwrap());
        let way =
            routes.iter().min_by_key(|route| route.metric).and_then(|route| route.link.clone());
        let Some(link) = way.and_then(|way| links.get(&way).cloned()) else { return false };
        let port = links["ens4"].master.clone();
        link.addresses.contains(&own())
            && match link.name.as_str() {
                "ens4" => port.is_none(),
                bridge => port.as_deref() == Some(bridge),
            }
    }

    fn becomes_a_port(change: &NetworkChange) -> bool {
        matches!(change, NetworkChange::Master { link, master: Some(_) } if link == "ens4")
    }

    fn is_address_of(change: &NetworkChange, link: &str) -> bool {
        matches!(change, NetworkChange::AddressAdded { link: of, .. } if of == link)
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_bridge_for_it_a_machine_keeps_the_address_and_the_way_out_that_it_has() {
        let of_bridge: [fn(&NetworkChange) -> bool; 4] = [
            |change| matches!(change, NetworkChange::Created { link, .. } if link == "brupstream"),
            |change| matches!(change, NetworkChange::Up { link, .. } if link == "brupstream"),
            becomes_a_port,
            |change| is_address_of(change, "brupstream"),
        ];
        for (case, refuses) in of_bridge.into_iter().enumerate() {
            for metric in [0, 100] {
                let network = reached_by_its_card(metric).await;
                network.set_refusing(refuses);
                let ports = on(&network);
                bring_up(&networks(), &ports, &CancellationToken::new()).await;
                let links = network.links().await.unwrap();
                assert!(
                    links["ens4"].addresses.contains(&own()),
                    "{case}: {:?}",
                    network.changes()
                );
                let routes = network.routes().await.unwrap();
                assert_eq!(routes, [way_out("ens4", metric)], "{case}: {:?}", network.changes());
                assert_eq!(
                    network.holder("10.0.2.1".parse().unwrap()).as_deref(),
                    Some("brstorage")
                );

                network.set_refusing(|_| false);
                bring_up(&networks(), &ports, &CancellationToken::new()).await;
                assert!(is_reached(&network).await, "{case}: {:?}", network.changes());
                assert_eq!(network.links().await.unwrap()["ens4"].addresses, [].into());
                assert_eq!(network.routes().await.unwrap(), [way_out("brupstream", 0)]);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whichever_change_fails_once_or_for_ever_the_address_and_a_way_out_stay() {
        for (metric, at, lasting) in (0..32)
            .flat_map(|at| [(0, at, false), (0, at, true), (100, at, false), (100, at, true)])
        {
            let network = reached_by_its_card(metric).await;
            let (asked, first) = (AtomicUsize::new(0), Mutex::new(None));
            network.set_refusing(move |change| {
                let mut first = first.lock().unwrap();
                if asked.fetch_add(1, Ordering::SeqCst) == at {
                    *first = Some(change.clone());
                    return true;
                }
                lasting && first.as_ref() == Some(change)
            });
            bring_up(&networks(), &on(&network), &CancellationToken::new()).await;
            let reported = format!(
                "change {at} of metric {metric}, lasting: {lasting}: {:?}",
                network.changes()
            );
            assert!(network.holder(own().addr()).is_some(), "{reported}");
            let routes = network.routes().await.unwrap();
            assert!(routes.iter().any(Route::is_default), "{reported}");
            if !lasting {
                assert!(is_reached(&network).await, "{reported}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_on_one_network_does_not_keep_another_from_moving_to_its_bridge() {
        let network = reached_by_its_card(0).await;
        network.set_refusing(
            |change| matches!(change, NetworkChange::Master { link, .. } if link == "ens6"),
        );
        bring_up(&networks(), &on(&network), &CancellationToken::new()).await;
        assert!(is_reached(&network).await);
        // With the address on both of them the kernel would send by the port, and hear no answer.
        assert_eq!(network.links().await.unwrap()["ens4"].addresses, [].into());
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_refused_for_ever_takes_the_card_out_of_service_ever_less_often() {
        let network = reached_by_its_card(0).await;
        network.set_refusing(|change| is_address_of(change, "brupstream"));
        let ports = on(&network);
        let enslaved = || network.changes().iter().filter(|change| becomes_a_port(change)).count();
        bring_up(&networks(), &ports, &CancellationToken::new()).await;
        assert_eq!(network.holder("10.0.2.1".parse().unwrap()).as_deref(), Some("brstorage"));
        let (mut keeper, at_start, mut reported) = (Keeper::default(), enslaved(), Vec::new());
        for _ in 0..720 {
            reported.extend(keeper.round(&networks(), &ports).await);
            ports.clock.sleep(INTERVAL).await;
        }
        let times = enslaved() - at_start;
        assert!((5..=20).contains(&times), "{times} times in an hour");
        assert!(
            reported.len() >= 10 && reported.iter().all(|reported| reported.contains("brupstream")),
            "{reported:?}"
        );
        assert!(is_reached(&network).await, "{:?}", network.changes());

        network.set_refusing(|_| false);
        for _ in 0..=LONGEST_REST.as_secs() / INTERVAL.as_secs() {
            keeper.round(&networks(), &ports).await;
            ports.clock.sleep(INTERVAL).await;
        }
        assert_eq!(network.holder(own().addr()).as_deref(), Some("brupstream"));
        assert!(is_reached(&network).await);
        assert_eq!(keeper.round(&networks(), &ports).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_distributions_dnsmasq_is_stopped_and_left_alone_where_it_does_not_run() {
        let services = Arc::new(ScriptedServices::new().with(FOREIGN_DNSMASQ, UnitManner::Runs));
        let ports = Ports { services: services.clone(), ..on(&Arc::new(machine())) };
        bring_up(&networks(), &ports, &CancellationToken::new()).await;
        assert_eq!(services.calls(), []);
        services.set_state(FOREIGN_DNSMASQ, UnitState::Active);
        bring_up(&networks(), &ports, &CancellationToken::new()).await;
        assert_eq!(services.calls(), [UnitCall::Stop(FOREIGN_DNSMASQ.to_owned())]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_somebody_removes_is_made_again_and_an_address_of_others_is_left_alone() {
        let network = Arc::new(machine());
        let ports = on(&network);
        bring_up(&networks(), &ports, &CancellationToken::new()).await;
        let floating = "10.0.0.250/24".parse().unwrap();
        network.add_address("brupstream", floating).await.unwrap();
        network.pull_out("brcluster");
        let own = "10.0.2.1/24".parse().unwrap();
        network.remove_address("brstorage", own).await.unwrap();
        let reported = Keeper::default().round(&networks(), &ports).await;
        assert_eq!(reported, None);
        for (address, bridge) in [("10.0.1.1", "brcluster"), ("10.0.2.1", "brstorage")] {
            assert_eq!(network.holder(address.parse().unwrap()).as_deref(), Some(bridge));
        }
        let removed =
            NetworkChange::AddressRemoved { link: "brupstream".to_owned(), address: floating };
        assert!(!network.changes().contains(&removed));
    }

    #[test]
    fn a_network_that_stays_down_is_reported_after_a_while_and_now_and_then() {
        let (mut alarm, seconds) = (Keeper::default().alarm, Duration::from_secs);
        let net = pvc_model::network_core::CoreNet::Storage;
        let missing = NetworkFinding::NoDevice { net, device: "ens6".to_owned() };
        let down = Pass { findings: [missing].into(), ..Pass::default() };
        assert_eq!(alarm.due(down.down_reason(), seconds(100)), None);
        assert_eq!(
            alarm.due(Pass::default().down_reason(), seconds(110)),
            None,
            "it was mended in between"
        );
        assert_eq!(alarm.due(down.down_reason(), seconds(120)), None);
        let said = alarm.due(down.down_reason(), seconds(135));
        assert_eq!(said.as_deref(), Some("the device `ens6` of the storage network is not there"));
        assert_eq!(alarm.due(down.down_reason(), seconds(140)), None);
        assert!(alarm.due(down.down_reason(), seconds(135) + pvc_role::REFRESH).is_some());
    }

    #[test]
    fn a_complaint_is_made_once_and_taken_back() {
        let mut failures = Failures::default();
        let failing = Pass { failed: vec!["it failed".to_owned()], ..Pass::default() };
        failures.log_new(&failing);
        assert_eq!(failures.said.len(), 1);
        failures.log_new(&failing);
        assert_eq!(failures.said.len(), 1);
        failures.log_new(&Pass::default());
        assert!(failures.said.is_empty());
    }
}
