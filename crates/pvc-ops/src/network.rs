//! Asks about networks of VMs, the leases of their DHCP, and the rules of their firewall.
//!
//! All of them change records alone: the nodes make networks of them.

use pvc_model::cluster::Cluster;
use pvc_model::guest_network::acl::{self, AclChanges, NewAcl};
use pvc_model::guest_network::lease::{self, NewReservation};
use pvc_model::guest_network::refusal::NetworkRefusal;
use pvc_model::guest_network::request::{
    self, Neighbour, NetworkFields, NetworkToRecord, NewNetwork,
};
use pvc_model::guest_network::rules;
use pvc_model::guest_network::unconfirmed::{self, UnconfirmedChange, Undo, Undoing};
use pvc_model::link::Links;
use pvc_model::network::{AclRecord, Direction, LeaseRecord};
use pvc_model::shown;
use pvc_model::vm::VmRecord;
use pvc_model::vm::volumes::is_at_rest;
use pvc_ports::{Firewall, FirewallError, Network};
use pvc_store::{Change, ChangeError, Changes, Expect, Store};

use crate::Outcome;
use crate::refusal::{Kind, Refusal};

impl Refusal for NetworkRefusal {
    fn kind(&self) -> Kind {
        NetworkRefusal::kind(self)
    }

    fn hint(&self) -> Option<String> {
        NetworkRefusal::hint(self)
    }
}

/// A network, as it is named in a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub vni: String,
    pub description: String,
}

/// Networks that machines are in and that are not those of VMs, as far as a daemon can tell: none
/// of VMs may overlap them.
#[derive(Clone, Copy, Default)]
pub struct Surroundings<'a> {
    /// Networks between the nodes, from the configuration.
    pub configured: &'a [Neighbour],
    /// Links of this machine, if it is alone: nobody has configured the networks that it is in.
    pub machine: Option<&'a dyn Network>,
    /// Whether the machine is alone and has no device that bridged networks could lie on.
    pub lacks_bridge_device: bool,
}

impl Surroundings<'_> {
    /// The links of the machine, if what is asked for depends on them.
    async fn links(&self, fields: &NetworkFields) -> Result<Links, NetworkRefusal> {
        match self.machine.filter(|_| fields.name_network()) {
            None => Ok(Links::new()),
            Some(machine) => machine.links().await.map_err(|error| {
                NetworkRefusal::MachineUnknown { why: pvc_model::with_causes(&error) }
            }),
        }
    }

    fn neighbours(&self, cluster: &Cluster, links: &Links) -> Vec<Neighbour> {
        let mut all = self.configured.to_vec();
        all.extend(request::neighbours(cluster, links));
        all
    }
}

/// Makes a network.
///
/// # Errors
/// Those of [`request::add`], and for a bridged network that no node could have.
pub async fn add_network(
    store: &Store,
    around: Surroundings<'_>,
    new: &NewNetwork,
) -> Outcome<Named, NetworkRefusal> {
    if around.lacks_bridge_device && !new.managed {
        return Err(ChangeError::Refused(NetworkRefusal::NoBridgeDevice));
    }
    let links = around.links(&new.fields).await.map_err(ChangeError::Refused)?;
    let decide = |cluster: &Cluster| {
        let made = request::add(cluster, &around.neighbours(cluster, &links), new)?;
        Ok(record(made))
    };
    store.change(decide).await
}

/// Demand that a change is taken back unless it is confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfirmWithin {
    pub seconds: u32,
    /// Seconds since the epoch, for people.
    pub now: u64,
}

impl ConfirmWithin {
    fn record(self, changes: &mut Changes, vni: &str, undo: Undo) {
        let ConfirmWithin { seconds, now } = self;
        let change = UnconfirmedChange { seconds, changed_at: now, undo };
        changes.push(Change::PutUnconfirmed { vni: vni.to_owned(), change });
    }
}

/// Makes a change of a network one that waits to be confirmed, or one for good, which the same
/// change of somebody else that waits is not taken for.
///
/// # Errors
/// If it is to wait, and could not be undone.
fn unconfirmed_or_for_good(
    within: Option<ConfirmWithin>,
    changes: &mut Changes,
    vni: &str,
    undo: impl FnOnce() -> Result<Undo, NetworkRefusal>,
) -> Result<(), NetworkRefusal> {
    match within {
        Some(within) => within.record(changes, vni, undo()?),
        None => {
            changes.expect(Expect::NothingUnconfirmed(vni.to_owned()));
        }
    }
    Ok(())
}

/// Changes fields of a network, by VNI or description.
pub async fn modify_network(
    store: &Store,
    around: Surroundings<'_>,
    network: &str,
    fields: &NetworkFields,
    within: Option<ConfirmWithin>,
) -> Outcome<Named, NetworkRefusal> {
    let vni = meant(store, network).map_err(ChangeError::Refused)?;
    let links = around.links(fields).await.map_err(ChangeError::Refused)?;
    let decide = |cluster: &Cluster| {
        let neighbours = around.neighbours(cluster, &links);
        let (mut changes, named) = record(request::modify(cluster, &neighbours, &vni, fields)?);
        let present = request::find(cluster, &vni)?;
        let undo = || Ok(unconfirmed::undo_of_fields(cluster, present));
        unconfirmed_or_for_good(within, &mut changes, &vni, undo)?;
        Ok((changes, named))
    };
    store.change(decide).await
}

/// Keeps the change of a network that waits to be confirmed.
pub async fn confirm_change(store: &Store, network: &str) -> Outcome<Named, NetworkRefusal> {
    let decide = |cluster: &Cluster| {
        let record = request::find(cluster, network)?;
        let (vni, description) = (record.vni.clone(), record.description.clone());
        if !cluster.unconfirmed.contains_key(&vni) {
            let description = shown(&description);
            return Err(NetworkRefusal::NothingUnconfirmed { vni, description });
        }
        let mut changes = Changes::new();
        changes.push(Change::RemoveUnconfirmed(vni.clone()));
        Ok((changes, Named { vni, description }))
    };
    store.change(decide).await
}

/// The change that takes a change back which was not confirmed.
pub fn take_back(cluster: &Cluster, vni: &str, change: &UnconfirmedChange) -> Changes {
    let mut changes = match unconfirmed::undo(cluster, vni, &change.undo) {
        Undoing::Fields(network) => record(*network).0,
        Undoing::Rules(rules) => written(&rules),
        Undoing::Nothing => Changes::new(),
    };
    changes.push(Change::RemoveUnconfirmed(vni.to_owned()));
    changes
}

/// Number of the network that is called so at present: whichever has that description at a later
/// try, this one was meant.
fn meant(store: &Store, network: &str) -> Result<String, NetworkRefusal> {
    Ok(request::find(&store.view(), network)?.vni.clone())
}

fn record(NetworkToRecord { record, options }: NetworkToRecord) -> (Changes, Named) {
    let (vni, description) = (record.vni.clone(), record.description.clone());
    let mut changes = Changes::new();
    changes.push(Change::PutNetwork(Box::new(record)));
    changes.push(Change::PutNetworkOptions { vni: vni.clone(), options });
    (changes, Named { vni, description })
}

/// A network that is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedNetwork {
    pub network: Named,
    /// The VMs that are still plugged into it, in words; `None` if there are none.
    pub users: Option<String>,
}

/// Removes a network with its leases and rules.
///
/// # Errors
/// While a VM's definition plugs it into the network, unless that is forced.
pub async fn remove_network(
    store: &Store,
    network: &str,
    force: bool,
) -> Outcome<RemovedNetwork, NetworkRefusal> {
    let meant = meant(store, network).map_err(ChangeError::Refused)?;
    let decide = |cluster: &Cluster| {
        let record = request::find(cluster, &meant)?;
        let using: Vec<&VmRecord> = request::users(cluster, &record.vni).collect();
        let users = (!using.is_empty()).then(|| in_words(cluster, &using));
        let (vni, description) = (record.vni.clone(), record.description.clone());
        if let Some(users) = users.clone().filter(|_| !force) {
            let description = shown(&description);
            return Err(NetworkRefusal::InUse { vni, description, users });
        }
        let mut changes = Changes::new();
        changes.push(Change::RemoveNetwork(vni.clone()));
        // Of a VM that is plugged in at this moment, and of the network's end, one decides again.
        changes.expect(Expect::VmNames);
        let network = Named { vni, description };
        Ok((changes, RemovedNetwork { network, users }))
    };
    store.change(decide).await
}

/// Number of VMs that are named one by one.
const NAMED: usize = 5;

fn in_words(cluster: &Cluster, vms: &[&VmRecord]) -> String {
    let name = |vm: &&VmRecord| {
        let runs = if is_at_rest(cluster, vm) { "" } else { ", which is not off" };
        format!("VM `{}`{runs}", vm.name)
    };
    let mut names: Vec<String> = vms.iter().take(NAMED).map(name).collect();
    if let Some(more) = vms.len().checked_sub(NAMED).filter(|more| *more > 0) {
        names.push(format!("{more} more"));
    }
    names.join("; ")
}

/// Reserves an address in a network.
pub async fn reserve(
    store: &Store,
    network: &str,
    new: &NewReservation,
) -> Outcome<LeaseRecord, NetworkRefusal> {
    let decide = |cluster: &Cluster| {
        let (record, reservation) = lease::reserve(cluster, network, new)?;
        let vni = record.vni.clone();
        let mut changes = Changes::new();
        changes.expect(Expect::Network(vni.clone()));
        changes.push(Change::PutReservation { vni, reservation: reservation.clone() });
        Ok((changes, reservation))
    };
    store.change(decide).await
}

/// Removes a reservation, or what DHCP has given, by MAC address, host name or address.
pub async fn release(
    store: &Store,
    network: &str,
    which: &str,
) -> Outcome<LeaseRecord, NetworkRefusal> {
    let decide = |cluster: &Cluster| {
        let (record, lease) = lease::release(cluster, network, which)?;
        let (vni, mac) = (record.vni.clone(), lease.mac.clone());
        let address = lease.address.parse().ok().filter(|_| lease.ip6.is_some());
        let mut changes = Changes::new();
        changes.push(match (&lease.expiry, address) {
            (_, Some(address)) => Change::RemoveLease6 { vni, address },
            (None, None) => Change::RemoveReservation { vni, mac },
            (Some(_), None) => Change::RemoveLease { vni, mac },
        });
        Ok((changes, lease.clone()))
    };
    store.change(decide).await
}

/// Reason why a rule is not added or removed.
#[derive(Debug, thiserror::Error)]
pub enum AclRefusal {
    #[error(transparent)]
    Network(#[from] NetworkRefusal),
    #[error("nobody here can say whether nft takes the rule")]
    NoFirewall,
    #[error("nft does not take the rule: {why}")]
    NotTaken { why: String },
    #[error("whether nft takes the rule is not known")]
    Unknown(#[source] FirewallError),
}

impl Refusal for AclRefusal {
    fn kind(&self) -> Kind {
        match self {
            AclRefusal::Network(refusal) => refusal.kind(),
            AclRefusal::NotTaken { .. } => Kind::Invalid,
            AclRefusal::NoFirewall | AclRefusal::Unknown(_) => Kind::Unavailable,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            AclRefusal::Network(refusal) => refusal.hint(),
            AclRefusal::NotTaken { .. } => Some(
                "a rule is what nft takes as match and verdict, such as `tcp dport 22 accept`"
                    .to_owned(),
            ),
            AclRefusal::Unknown(error) => error.hint(),
            AclRefusal::NoFirewall => None,
        }
    }
}

/// Adds a rule to the firewall of a network, where it is to stand among the others. `firewall` is
/// asked whether it is one: a rule that is none would keep all others from being loaded.
pub async fn add_acl(
    store: &Store,
    firewall: Option<&dyn Firewall>,
    network: &str,
    new: &NewAcl,
    within: Option<ConfirmWithin>,
) -> Outcome<AclRecord, AclRefusal> {
    acl::add_acl(&store.view(), network, new).map(drop).map_err(refused)?;
    let firewall = firewall.ok_or(ChangeError::Refused(AclRefusal::NoFirewall))?;
    let rule = acl::check_rule(&new.rule).map_err(|why| refused(why.into()))?;
    check_with_nft(firewall, new.direction, rule).await.map_err(ChangeError::Refused)?;
    let decide = |cluster: &Cluster| {
        let changes = acl::add_acl(cluster, network, new)?;
        let added = changes.added.first().cloned();
        let added = added.expect("a rule that is added is among the changes");
        let mut all = written(&changes);
        let undo = || Ok(Undo::RemoveRule(added.description.clone()));
        unconfirmed_or_for_good(within, &mut all, &changes.network.vni, undo)?;
        Ok((all, added))
    };
    store.change(decide).await
}

/// Asks nft whether it takes a rule. What it says to one that it always takes tells whether it is
/// the rule that it speaks of.
async fn check_with_nft(
    firewall: &dyn Firewall,
    direction: Direction,
    rule: &str,
) -> Result<(), AclRefusal> {
    let ask = async |rule: &str| {
        let (table, rules) = rules::probe(direction, rule);
        firewall.check(&table, &rules).await
    };
    match ask(rule).await {
        Ok(()) => Ok(()),
        Err(error) if error.is_forbidden() => Err(AclRefusal::Unknown(error)),
        Err(FirewallError::Refused { why, .. }) => {
            ask("accept").await.map_err(AclRefusal::Unknown)?;
            Err(AclRefusal::NotTaken { why })
        }
        Err(error) => Err(AclRefusal::Unknown(error)),
    }
}

fn refused(why: NetworkRefusal) -> ChangeError<AclRefusal> {
    ChangeError::Refused(why.into())
}

/// Removes the rule with this description from the firewall of a network.
pub async fn remove_acl(
    store: &Store,
    network: &str,
    description: &str,
    within: Option<ConfirmWithin>,
) -> Outcome<Vec<AclRecord>, NetworkRefusal> {
    let decide = |cluster: &Cluster| {
        let changes = acl::remove_acl(cluster, network, description)?;
        let mut all = written(&changes);
        let undo = || unconfirmed::undo_of_removal(&changes);
        unconfirmed_or_for_good(within, &mut all, &changes.network.vni, undo)?;
        Ok((all, changes.removed.clone()))
    };
    store.change(decide).await
}

fn written(plan: &AclChanges<'_>) -> Changes {
    let vni = || plan.network.vni.clone();
    let mut changes = Changes::new();
    changes.expect(Expect::Network(vni()));
    for acl in plan.removed.iter().cloned() {
        changes.push(Change::RemoveAcl { vni: vni(), acl });
    }
    for acl in plan.moved.iter().cloned() {
        changes.push(Change::OrderAcl { vni: vni(), acl });
    }
    for acl in plan.added.iter().cloned() {
        changes.push(Change::PutAcl { vni: vni(), acl });
    }
    changes
}
