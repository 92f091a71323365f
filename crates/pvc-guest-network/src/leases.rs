//! Leases that the DHCP servers report, written into the store, and those they ask for at their
//! start.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::guest_network::dnsmasq::{LeaseNews, database, parse_mac};
use pvc_model::guest_network::{GuestNetwork, Vni};
use pvc_model::link::Mac;
use pvc_model::network::GivenLease;
use pvc_role::Context;
use pvc_store::{Change, Changes};
use tokio::sync::{Mutex, mpsc, oneshot};
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

/// Answers requests until `end`, and then those that were made until then: the servers end before.
pub async fn run(context: Context, requests: LeaseRequests, end: CancellationToken) {
    let mut requests = requests.lock().await;
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
                if !write(&context, &mut pending).await && !context.rest(REST, &end).await {
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
            if !write(&context, &mut pending).await {
                context.sleep(REST).await;
            }
        }
    };
    if context.within(LAST_WRITES, rest).await.is_none() {
        let count = pending.len();
        tracing::error!(count, "leases are not recorded; the guests' next renewals are");
    }
}

/// News of leases that are not written yet, by network and MAC address.
type AllPending = BTreeMap<(Vni, String), Pending>;

/// The last that was heard of the leases of a MAC address, and who waits for it to be written.
#[derive(Default)]
struct Pending {
    given: Option<GivenLease>,
    /// Addresses that it has no longer.
    ended: BTreeSet<Ipv4Addr>,
    waiting: Vec<oneshot::Sender<()>>,
}

fn take(context: &Context, pending: &mut AllPending, request: LeaseRequest) {
    match request {
        LeaseRequest::Database { vni, answer } => _ = answer.send(leases(context, vni)),
        LeaseRequest::News { vni, news, done } => {
            let entry = pending.entry((vni, news.mac().to_owned())).or_default();
            entry.note(news);
            entry.waiting.push(done);
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
        }
    }
}

/// Writes everything that is pending. False if the store did not take it.
async fn write(context: &Context, pending: &mut AllPending) -> bool {
    let decide = |view: &Cluster| {
        let mut changes = Changes::new();
        for ((vni, mac), pending) in pending.iter() {
            if let Some(change) = change(view, *vni, mac, pending) {
                changes.push(change);
            }
        }
        Ok((changes, ()))
    };
    let failed = "leases are not written; it is tried again";
    let late = "the store does not take leases in time; it is tried again";
    let is_written = context.change(STORE, decide, failed, late).await;
    if is_written {
        let written = std::mem::take(pending).into_values();
        written.flat_map(|entry| entry.waiting).for_each(|done| _ = done.send(()));
    }
    is_written
}

/// The change of the records, if there is one. What is of no network is no lease.
fn change(view: &Cluster, vni: Vni, mac: &str, pending: &Pending) -> Option<Change> {
    let record = view.networks.get(&vni.to_string())?;
    let vni = vni.to_string();
    match &pending.given {
        Some(lease) => {
            let (network, _) = GuestNetwork::read(record).ok()?;
            let ip4 = network.managed()?.ip4.as_ref()?;
            let is_of_it = ip4.network.contains(&lease.address);
            is_of_it.then(|| Change::PutLease { vni, lease: lease.clone() })
        }
        None => {
            let mut leases = record.leases.iter().filter(|lease| lease.expiry.is_some());
            let has_ended = |address: &str| {
                address.parse().is_ok_and(|address| pending.ended.contains(&address))
            };
            // Another address may have been given meanwhile.
            leases
                .any(|lease| lease.mac == mac && has_ended(&lease.address))
                .then(|| Change::RemoveLease { vni, mac: mac.to_owned() })
        }
    }
}

fn leases(context: &Context, vni: Vni) -> String {
    let view = context.store.view();
    let Some(record) = view.networks.get(&vni.to_string()) else { return String::new() };
    let network = GuestNetwork::read(record).ok();
    let managed = network.as_ref().and_then(|(network, _)| network.managed());
    let now = context.ports.clock.wall().as_secs();
    let nics = view.vms.values().flat_map(|vm| &vm.domain).flat_map(|vm| &vm.nics);
    let cards: BTreeSet<Mac> = nics.filter_map(|nic| parse_mac(&nic.mac)).collect();
    let of_network = |managed| database(managed, &record.leases, now, |mac| cards.contains(mac));
    managed.map(of_network).unwrap_or_default()
}
