//! Leases that the DHCP servers report, written into the store, and those they ask for at their
//! start.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::guest_network::dnsmasq::{LeaseNews, database, left_of_6};
use pvc_model::guest_network::guard::MOST_LEASES_OF_A_PORT;
use pvc_model::guest_network::mac::cards_by_name;
use pvc_model::guest_network::names::Names;
use pvc_model::guest_network::{GuestNetwork, Vni};
use pvc_model::link::{Mac, parse_mac};
use pvc_model::network::{GivenLease, GivenLease6, LeaseRecord, NetworkRecord};
use pvc_model::request::is_off;
use pvc_model::vm::VmRecord;
use pvc_role::Context;
use pvc_store::{Change, Changes};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// The most that one write takes.
const BATCH: usize = 32;

/// Time that the store may take for a write. It is tried again.
const STORE: Duration = Duration::from_secs(10);

/// Time between two tries.
const REST: Duration = Duration::from_secs(1);

/// Time that everything may take that is written at the end.
const LAST_WRITES: Duration = Duration::from_secs(8);

/// A request of a DHCP server.
#[derive(Debug)]
pub enum LeaseRequest {
    /// Something happened to a lease. It is answered when the store has it.
    News { vni: Vni, news: LeaseNews, done: oneshot::Sender<()> },
    /// The server starts, and wants to know its leases, a line each.
    Database { vni: Vni, answer: oneshot::Sender<String> },
}

/// Requests of the servers, in their order. A role that is started anew goes on with them.
pub type LeaseRequests = Arc<Mutex<mpsc::Receiver<LeaseRequest>>>;

/// Leases that were not recorded as another card keeps the address: how many, by network. The
/// server does not know of that until it is started anew, and reads what is recorded.
pub type Refused = BTreeMap<Vni, u64>;

/// Answers requests until `end`, and then those that were made until then: the servers end before.
pub async fn run(
    context: Context,
    requests: LeaseRequests,
    refused: watch::Sender<Refused>,
    end: CancellationToken,
) {
    let mut requests = requests.lock().await;
    let mut refusals = Refusals { refused, logged: BTreeMap::new() };
    let mut pending = AllPending::new();
    loop {
        let request = tokio::select! {
            biased;
            () = end.cancelled() => break,
            request = requests.recv(), if pending.len() < BATCH => request,
            () = std::future::ready(()), if !pending.is_empty() => None,
        };
        match request {
            Some(request) => take(&context, &mut pending, request),
            None if pending.is_empty() => return end.cancelled().await,
            None => {
                let is_written = write(&context, &mut pending, &mut refusals).await;
                if !is_written && !context.rest(REST, &end).await {
                    break;
                }
            }
        }
    }
    let rest = async {
        loop {
            while let Ok(request) = requests.try_recv() {
                take(&context, &mut pending, request);
            }
            if pending.is_empty() {
                return;
            }
            if !write(&context, &mut pending, &mut refusals).await {
                context.sleep(REST).await;
            }
        }
    };
    if context.within(LAST_WRITES, rest).await.is_none() {
        let count = pending.len();
        tracing::error!(count, "leases are not recorded; the guests' next renewals are");
    }
}

/// News of leases that are not written yet, by network and what their records are called by.
type AllPending = BTreeMap<(Vni, LeaseKey), Pending>;

/// A lease of IPv4 is that of a MAC address, and one of IPv6 that of an address.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum LeaseKey {
    Mac(String),
    Ip6(Ipv6Addr),
}

/// The last that was heard of the leases of a MAC address, or of the lease of an address of IPv6,
/// and who waits for it to be written.
#[derive(Default)]
struct Pending {
    given: Option<GivenLease>,
    /// Addresses that it has no longer.
    ended: BTreeSet<Ipv4Addr>,
    given6: Option<GivenLease6>,
    waiting: Vec<oneshot::Sender<()>>,
}

/// An address that a server has given to one client while the guard keeps it for another card.
struct Refusal {
    vni: Vni,
    address: IpAddr,
    /// The client's MAC address, or what it calls itself.
    client: String,
    /// MAC address of the card that keeps the address.
    keeper: String,
}

/// Refusals for others to know of.
struct Refusals {
    refused: watch::Sender<Refused>,
    /// The client that the log has last named with an address: each of its renewals is refused.
    logged: BTreeMap<(Vni, IpAddr), String>,
}

impl Refusals {
    fn add(&mut self, refusal: Refusal) {
        let Refusal { vni, address, client, keeper } = refusal;
        self.refused.send_modify(|refused| *refused.entry(vni).or_default() += 1);
        if self.logged.insert((vni, address), client.clone()).as_ref() != Some(&client) {
            tracing::warn!(
                "the DHCP server of network {vni} has given {address} to {client}, and the guard \
                 keeps it for {keeper}, whose lease lasts: nothing from {client} passes until it \
                 asks for another address, which it gets once the server was started anew"
            );
        }
    }
}

fn take(context: &Context, pending: &mut AllPending, request: LeaseRequest) {
    match request {
        LeaseRequest::Database { vni, answer } => {
            let view = context.store.view();
            let Some((record, network)) = of_network(&view, vni) else {
                _ = answer.send(String::new());
                return;
            };
            for address in left_of_6(&network, &record.leases) {
                pending.entry((vni, LeaseKey::Ip6(address))).or_default();
            }
            _ = answer.send(leases(context, record, &network));
        }
        LeaseRequest::News { vni, news, done } => {
            let entry = pending.entry((vni, key(&news))).or_default();
            entry.note(news);
            entry.waiting.push(done);
        }
    }
}

fn key(news: &LeaseNews) -> LeaseKey {
    match news {
        LeaseNews::Given(GivenLease { mac, .. }) | LeaseNews::Ended { mac, .. } => {
            LeaseKey::Mac(mac.clone())
        }
        LeaseNews::Given6(GivenLease6 { address, .. }) | LeaseNews::Ended6(address) => {
            LeaseKey::Ip6(*address)
        }
    }
}

impl Pending {
    fn note(&mut self, news: LeaseNews) {
        match news {
            LeaseNews::Given(lease) => {
                self.ended.remove(&lease.address);
                self.given = Some(lease);
            }
            // The end of the address that it had before is no end of the one that it has.
            LeaseNews::Ended { address, .. } => {
                self.given.take_if(|lease| lease.address == address);
                self.ended.insert(address);
            }
            LeaseNews::Given6(lease) => self.given6 = Some(lease),
            LeaseNews::Ended6(_) => self.given6 = None,
        }
    }
}

/// Writes everything that is pending. False if the store did not take it.
async fn write(context: &Context, pending: &mut AllPending, refusals: &mut Refusals) -> bool {
    let now = context.ports.clock.wall().as_secs();
    let mut refused = Vec::new();
    let decide = |view: &Cluster| {
        let mut changes = Changes::new();
        let mut left = BTreeSet::new();
        refused.clear();
        for ((vni, key), news) in pending.iter() {
            refused.extend(refusal(view, *vni, news, now));
            let change = match key {
                LeaseKey::Mac(mac) => change(view, *vni, mac, news, now),
                LeaseKey::Ip6(address) => change6(view, *vni, *address, news, now),
            };
            let Some(change) = change else { continue };
            if let Change::PutLease { lease, .. } = &change {
                left.extend(others_with(view, *vni, lease).map(|mac| (*vni, mac.to_owned())));
            }
            changes.push(change);
        }
        // Of whom there is news of his own, that decides.
        let is_silent =
            |(vni, mac): &(Vni, String)| !pending.contains_key(&(*vni, LeaseKey::Mac(mac.clone())));
        for (vni, mac) in left.into_iter().filter(is_silent) {
            changes.push(Change::RemoveLease { vni: vni.to_string(), mac });
        }
        Ok((changes, ()))
    };
    let failed = "leases are not written; it is tried again";
    let late = "the store does not take leases in time; it is tried again";
    let is_written = context.change(STORE, decide, failed, late).await;
    if is_written {
        refused.into_iter().for_each(|refusal| refusals.add(refusal));
        let written = std::mem::take(pending).into_values();
        written.flat_map(|entry| entry.waiting).for_each(|done| _ = done.send(()));
    }
    is_written
}

/// The change of the records, if there is one. What is of no network is no lease.
fn change(view: &Cluster, vni: Vni, mac: &str, pending: &Pending, now: u64) -> Option<Change> {
    let (record, network) = of_network(view, vni)?;
    match &pending.given {
        Some(lease) => {
            let ip4 = network.managed()?.ip4.as_ref()?;
            let is_anothers = kept4(view, vni, lease, now).is_some();
            let is_taken = ip4.network.contains(&lease.address) && !is_anothers;
            is_taken.then(|| Change::PutLease { vni: vni.to_string(), lease: lease.clone() })
        }
        None => {
            // Another address may have been given meanwhile.
            let has_ended = |lease: &&LeaseRecord| {
                let address: Option<Ipv4Addr> = lease.address.parse().ok();
                lease.mac == mac && address.is_some_and(|address| pending.ended.contains(&address))
            };
            let ended = given4(record).find(has_ended)?;
            // An address that is not of the network any more goes in any case.
            let is_of_it = ended.address.parse().is_ok_and(|address| network.contains(address));
            let goes = !(is_of_it && is_kept4(view, vni, ended, now));
            goes.then(|| Change::RemoveLease { vni: vni.to_string(), mac: mac.to_owned() })
        }
    }
}

/// Refusal of what a server has given; `None` if it is recorded.
fn refusal(view: &Cluster, vni: Vni, news: &Pending, now: u64) -> Option<Refusal> {
    if let Some(given) = &news.given {
        let keeper = kept4(view, vni, given, now)?.mac.clone();
        let (address, client) = (given.address.into(), given.mac.clone());
        return Some(Refusal { vni, address, client, keeper });
    }
    let given = news.given6.as_ref()?;
    let keeper = kept6(view, vni, given.address, now).filter(|known| is_anothers(known, given))?;
    let client = given.mac.as_ref().unwrap_or(&given.client.duid).clone();
    Some(Refusal { vni, address: given.address.into(), client, keeper: keeper.mac.clone() })
}

/// Lease of another card by which the guard keeps the address that is given.
fn kept4<'a>(view: &'a Cluster, vni: Vni, given: &GivenLease, now: u64) -> Option<&'a LeaseRecord> {
    let is_it = |other: &&LeaseRecord| {
        other.mac != given.mac
            && other.address.parse() == Ok(given.address)
            && is_kept4(view, vni, other, now)
    };
    given4(view.networks.get(&vni.to_string())?).find(is_it)
}

/// Whether the guard keeps the address of a lease of IPv4 for its card, whatever the server says.
fn is_kept4(view: &Cluster, vni: Vni, lease: &LeaseRecord, now: u64) -> bool {
    is_guarded(view, vni) && lasts(lease, now) && is_card_in_use(view, &lease.mac)
}

/// Lease by which the guard keeps an address of IPv6 for a card.
fn kept6(view: &Cluster, vni: Vni, address: Ipv6Addr, now: u64) -> Option<&LeaseRecord> {
    let record = view.networks.get(&vni.to_string())?;
    let is_it = |lease: &&LeaseRecord| lease.ip6.is_some() && lease.address.parse() == Ok(address);
    let known = record.leases.iter().find(is_it)?;
    (is_guarded(view, vni) && lasts(known, now) && is_card(view, &known.mac)).then_some(known)
}

/// Leases of IPv4 that a server has given.
fn given4(record: &NetworkRecord) -> impl Iterator<Item = &LeaseRecord> {
    record.leases.iter().filter(|lease| lease.expiry.is_some() && lease.ip6.is_none())
}

/// MAC addresses of others that the address of the lease was given to before: it is theirs no more.
fn others_with<'a>(
    view: &'a Cluster,
    vni: Vni,
    lease: &GivenLease,
) -> impl Iterator<Item = &'a str> + use<'a> {
    let (mac, address) = (lease.mac.clone(), lease.address);
    let given = view.networks.get(&vni.to_string()).into_iter().flat_map(|it| given4(it));
    let others =
        given.filter(move |other| other.mac != mac && other.address.parse() == Ok(address));
    others.map(|other| other.mac.as_str())
}

/// Same as [`change`], of the lease of an address of IPv6.
fn change6(
    view: &Cluster,
    vni: Vni,
    address: Ipv6Addr,
    pending: &Pending,
    now: u64,
) -> Option<Change> {
    let (record, network) = of_network(view, vni)?;
    let known_to_last = kept6(view, vni, address, now);
    let vni = vni.to_string();
    let is_it = |lease: &&LeaseRecord| lease.ip6.is_some() && lease.address.parse() == Ok(address);
    let known = record.leases.iter().find(is_it);
    let Some(given) = &pending.given6 else {
        // An address that is not of the network any more goes in any case.
        let is_kept = known_to_last.is_some() && network.contains(address.into());
        return known.filter(|_| !is_kept).map(|_| Change::RemoveLease6 { vni, address });
    };
    if known_to_last.is_some_and(|known| is_anothers(known, given)) {
        return None;
    }
    let lease = with_its_client(given, known, |mac| is_card(view, mac));
    let is_of_it = |other: &&LeaseRecord| {
        other.ip6.is_some() && other.mac == lease.mac.as_deref().unwrap_or_default()
    };
    if known.is_none() && record.leases.iter().filter(is_of_it).count() >= MOST_LEASES_OF_A_PORT {
        return None;
    }
    network.contains(address.into()).then_some(Change::PutLease6 { vni, lease })
}

/// Whether the lease goes on, by its own record: the server may say that it is over because
/// another guest, which knows what its client calls itself, has given it back.
fn lasts(lease: &LeaseRecord, now: u64) -> bool {
    let end: Option<u64> = lease.expiry.as_ref().and_then(|end| end.parse().ok());
    end.is_some_and(|end| end > now)
}

/// Whether the lease of one client is given to another one at another interface.
fn is_anothers(known: &LeaseRecord, given: &GivenLease6) -> bool {
    known.ip6.as_ref() != Some(&given.client) && given.mac.as_deref() != Some(&*known.mac)
}

/// Whether guests of the network are held to the addresses that are recorded as theirs.
fn is_guarded(view: &Cluster, vni: Vni) -> bool {
    view.network_options.get(&vni.to_string()).is_some_and(|options| options.spoof_guard)
}

/// The lease with the MAC address of its client, which a server that was started anew has
/// forgotten. Another guest that calls itself the same, as every guest of the network can hear it,
/// neither gets the lease of an interface that there is nor names it.
fn with_its_client(
    given: &GivenLease6,
    known: Option<&LeaseRecord>,
    is_card: impl Fn(&str) -> bool,
) -> GivenLease6 {
    let asks = given.mac.as_deref().unwrap_or_default();
    let is_kept = |known: &&LeaseRecord| {
        known.ip6.as_ref() == Some(&given.client)
            && known.mac != asks
            && (asks.is_empty() || is_card(&known.mac))
    };
    match known.filter(is_kept) {
        Some(LeaseRecord { mac, hostname, .. }) => GivenLease6 {
            mac: Some(mac.clone()),
            hostname: Some(hostname.clone()).filter(|name| !name.is_empty()),
            ..given.clone()
        },
        None => given.clone(),
    }
}

/// Whether this is the MAC address of an interface of a VM.
fn is_card(view: &Cluster, mac: &str) -> bool {
    view.vms.values().any(|vm| has_card(vm, mac))
}

/// Same as [`is_card`], of VMs that are not off: many guests give their leases back when they shut
/// down, and an address that nobody uses is free for others.
fn is_card_in_use(view: &Cluster, mac: &str) -> bool {
    view.vms.values().any(|vm| !is_off(&vm.state) && has_card(vm, mac))
}

fn has_card(vm: &VmRecord, mac: &str) -> bool {
    let mac = parse_mac(mac);
    let mut nics = vm.domain.iter().flat_map(|domain| &domain.nics);
    mac.is_some() && nics.any(|nic| parse_mac(&nic.mac) == mac)
}

/// The record of a network, and what it says; `None` if it says nothing.
pub(crate) fn of_network(view: &Cluster, vni: Vni) -> Option<(&NetworkRecord, GuestNetwork)> {
    let record = view.networks.get(&vni.to_string())?;
    let (mut network, _) = GuestNetwork::read(record).ok()?;
    let options = view.network_options.get(&vni.to_string());
    network.options = options.map_or_else(Default::default, |options| **options);
    Some((&**record, network))
}

fn leases(context: &Context, record: &NetworkRecord, network: &GuestNetwork) -> String {
    let view = context.store.view();
    let now = context.ports.clock.wall().as_secs();
    let nics = view.vms.values().flat_map(|vm| &vm.domain).flat_map(|vm| &vm.nics);
    let cards: BTreeSet<Mac> = nics.filter_map(|nic| parse_mac(&nic.mac)).collect();
    let names = Names::of(cards_by_name(&view).get(&network.vni), network, &record.leases);
    database(network, &names.allowed(&record.leases), now, |mac| cards.contains(mac))
}

#[cfg(test)]
mod tests {
    use pvc_model::network::Ip6Client;

    use super::*;

    #[test]
    fn whoever_repeats_what_another_guest_calls_itself_neither_gets_its_lease_nor_names_it() {
        let client = |duid: &str| Ip6Client { duid: duid.to_owned(), iaid: "7".to_owned() };
        let given = |mac: Option<&str>| GivenLease6 {
            address: "2001:db8::9".parse().unwrap(),
            client: client("00:01"),
            mac: mac.map(str::to_owned),
            hostname: Some("said".to_owned()),
            expiry: 5,
        };
        let of = |duid: &str, mac: &str| {
            let (mac, hostname) = (mac.to_owned(), "known".to_owned());
            LeaseRecord { mac, hostname, ip6: Some(client(duid)), ..LeaseRecord::default() }
        };
        let (own, other) = ("52:54:00:00:00:01", "52:54:00:00:00:02");
        let known = of("00:01", own);
        for (given, known, is_there, mac, hostname) in [
            (given(Some(other)), Some(&known), true, Some(own), "known"),
            (given(Some(other)), Some(&known), false, Some(other), "said"),
            (given(Some(own)), Some(&known), true, Some(own), "said"),
            (given(None), Some(&known), false, Some(own), "known"),
            (given(Some(other)), Some(&of("00:02", own)), true, Some(other), "said"),
            (given(Some(other)), None, true, Some(other), "said"),
            (given(None), Some(&of("00:01", "")), false, None, "said"),
        ] {
            let lease = with_its_client(&given, known, |mac| mac == own && is_there);
            let found = (lease.mac.as_deref(), lease.hostname.as_deref());
            assert_eq!(found, (mac, Some(hostname)), "{given:?} {known:?} {is_there}");
            assert_eq!(lease.expiry, given.expiry);
        }
        let unnamed = LeaseRecord { hostname: String::new(), ..known };
        let lease = with_its_client(&given(Some(other)), Some(&unnamed), |mac| mac == own);
        assert_eq!(lease.hostname, None);
    }
}
