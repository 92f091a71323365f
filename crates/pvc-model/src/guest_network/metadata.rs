//! The metadata service: what a guest may ask about itself at 169.254.169.254 (`spec/network.md`
//! §7), as EC2 answers it, so that the data source `Ec2` of cloud-init works.
//!
//! ```text
//!  caller's address ─ MetadataIndex ─▶ MetadataGuest ─ answer ─▶ status, type, body
//!    lease or reservation ─▶ MAC ─▶ the VM that has it in that network
//! ```
//!
//! Whoever is no guest of a managed network gets 404 for everything.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::{Display, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::{Ipv4Net, Ipv6Net};

use crate::Uuid;
use crate::cluster::Cluster;
use crate::domain::SshKey;
use crate::guest_network::{GuestNetwork, GuestNetworks, Vni, managed_by_vni};
use crate::link::{Mac, mac_text, parse_mac};
use crate::network::LeaseRecord;
use crate::vm::{VmRecord, VmState};

/// The address that guests ask.
pub const ADDRESS: std::net::Ipv4Addr = std::net::Ipv4Addr::new(169, 254, 169, 254);

/// Header with the token that a guest has been given.
pub const TOKEN_HEADER: &str = "x-aws-ec2-metadata-token";

/// Header with the seconds for which a token is asked for, or given.
pub const TTL_HEADER: &str = "x-aws-ec2-metadata-token-ttl-seconds";

/// Header of a request that a proxy has passed on: in a guest, one that was fooled.
pub const FORWARDED_HEADER: &str = "x-forwarded-for";

/// The longest time that a token is valid.
const LONGEST_TTL: Duration = Duration::from_secs(6 * 60 * 60);

/// Number of tokens that one guest may have; the oldest goes for one more.
const TOKENS_EACH: usize = 64;

/// The longest path that is looked at, in bytes.
const LONGEST_PATH: usize = 512;

/// A guest, as far as the service tells it of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataGuest {
    pub uuid: Uuid,
    pub name: String,
    /// The profile of the provisioner that it was made by.
    pub profile: Option<String>,
    /// The domain of the network that it asks from.
    domain: Option<String>,
    mac: String,
    address: IpAddr,
    /// Interfaces in networks of PVC's own.
    interfaces: Vec<Interface>,
    ssh_keys: Vec<SshKey>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Interface {
    /// Place among the interfaces of the VM, from 0 on.
    number: usize,
    vni: Vni,
    mac: String,
    domain: Option<String>,
    dhcp4: bool,
    dhcp6: bool,
    /// The network of IPv4, and the address that DHCP keeps for it or has given to it.
    ip4: Option<(Ipv4Net, Option<Ipv4Addr>)>,
    ip6: Option<(Ipv6Net, Option<Ipv6Addr>)>,
}

/// Guests by the address that they ask from. Made anew when records change, not for each request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetadataIndex {
    /// `None` for an address that two guests may have: neither is told of the other.
    guests: BTreeMap<IpAddr, Option<MetadataGuest>>,
}

impl MetadataIndex {
    pub fn of(cluster: &Cluster) -> MetadataIndex {
        let networks = GuestNetworks::of(cluster).networks;
        let managed = managed_by_vni(&networks);
        let vms = vms_by_nic(cluster, &managed);
        let leases: BTreeMap<Vni, &[LeaseRecord]> = managed
            .keys()
            .filter_map(|vni| Some((*vni, &*cluster.networks.get(&vni.to_string())?.leases)))
            .collect();
        let holders: BTreeMap<Vni, BTreeMap<IpAddr, Mac>> =
            leases.iter().map(|(vni, leases)| (*vni, holders(leases))).collect();
        let known = KnownAddresses::of(&managed, &leases, &holders);
        let mut index = MetadataIndex::default();
        for network in managed.values() {
            let holders = holders.get(&network.vni).into_iter().flatten();
            for (&address, &mac) in holders {
                if !network.contains(address) {
                    continue;
                }
                let Some(Some(vm)) = vms.get(&(network.vni, mac)) else { continue };
                let guest = guest(vm, network, &managed, &known, mac, address);
                match index.guests.entry(address) {
                    Entry::Vacant(free) => drop(free.insert(Some(guest))),
                    Entry::Occupied(mut taken) => drop(taken.insert(None)),
                }
            }
        }
        index
    }

    /// The guest that asks from this address.
    pub fn guest(&self, address: IpAddr) -> Option<&MetadataGuest> {
        self.guests.get(&address.to_canonical())?.as_ref()
    }
}

/// The VM that each MAC address of a network is of; `None` if it may be of two.
pub(super) type VmsByNic<'a> = BTreeMap<(Vni, Mac), Option<&'a VmRecord>>;

pub(super) fn vms_by_nic<'a>(
    cluster: &'a Cluster,
    managed: &BTreeMap<Vni, &GuestNetwork>,
) -> VmsByNic<'a> {
    let mut found = VmsByNic::new();
    for vm in cluster.vms.values() {
        // The copy of another cluster's VM has the MAC addresses of the VM.
        if vm.state == VmState::Mirror {
            continue;
        }
        for (vni, mac) in nics(vm).filter(|(vni, _)| managed.contains_key(vni)) {
            match found.entry((vni, mac)) {
                Entry::Vacant(free) => drop(free.insert(Some(vm))),
                Entry::Occupied(mut taken) => {
                    let is_same = taken.get().is_some_and(|other| other.uuid == vm.uuid);
                    if !is_same {
                        taken.insert(None);
                    }
                }
            }
        }
    }
    found
}

/// Interfaces of a VM that are plugged into networks, each by its network and MAC address.
fn nics(vm: &VmRecord) -> impl Iterator<Item = (Vni, Mac)> {
    let nics = vm.domain.iter().flat_map(|domain| &domain.nics);
    nics.filter_map(|nic| Some((Vni::parse(&nic.vni())?, parse_mac(&nic.mac)?)))
}

/// The holder of each address: of leases the one that ends last, because an address is given again
/// after its lease alone. Nobody, if it is reserved for one and another has a lease of it: that one
/// may go on for as long as its lease lasts.
pub(super) fn holders(leases: &[LeaseRecord]) -> BTreeMap<IpAddr, Mac> {
    let mut reserved: BTreeMap<IpAddr, BTreeSet<Mac>> = BTreeMap::new();
    let mut leased: BTreeMap<IpAddr, (u64, Mac)> = BTreeMap::new();
    for lease in leases {
        let (Ok(address), Some(mac)) = (lease.address.parse(), parse_mac(&lease.mac)) else {
            continue;
        };
        let Some(end) = &lease.expiry else {
            reserved.entry(address).or_default().insert(mac);
            continue;
        };
        let end = end.parse().unwrap_or(0);
        if leased.get(&address).is_none_or(|(known, _)| *known < end) {
            leased.insert(address, (end, mac));
        }
    }
    for (address, (_, mac)) in leased {
        reserved.entry(address).or_default().insert(mac);
    }
    let only = |mut macs: BTreeSet<Mac>| macs.pop_first().filter(|_| macs.is_empty());
    reserved.into_iter().filter_map(|(address, macs)| Some((address, only(macs)?))).collect()
}

/// The address of each family that an interface is known to have: the one that is reserved for it,
/// or else the lease that ends last. More than one would have its guest set up those that it had
/// before.
struct KnownAddresses {
    ip4: BTreeMap<(Vni, Mac), Ipv4Addr>,
    ip6: BTreeMap<(Vni, Mac), Ipv6Addr>,
}

impl KnownAddresses {
    fn of(
        managed: &BTreeMap<Vni, &GuestNetwork>,
        leases: &BTreeMap<Vni, &[LeaseRecord]>,
        holders: &BTreeMap<Vni, BTreeMap<IpAddr, Mac>>,
    ) -> KnownAddresses {
        let mut known = KnownAddresses { ip4: BTreeMap::new(), ip6: BTreeMap::new() };
        for (vni, leases) in leases {
            let mut by_end: Vec<(u64, IpAddr)> = leases
                .iter()
                .filter_map(|lease| {
                    let end = lease.expiry.as_ref();
                    let end = end.map_or(u64::MAX, |end| end.parse().unwrap_or(0));
                    Some((end, lease.address.parse().ok()?))
                })
                .filter(|(_, address)| managed[vni].contains(*address))
                .collect();
            by_end.sort();
            for (_, address) in by_end {
                let Some(mac) = holders.get(vni).and_then(|holders| holders.get(&address)) else {
                    continue;
                };
                let key = (*vni, *mac);
                match address {
                    IpAddr::V4(address) => _ = known.ip4.insert(key, address),
                    IpAddr::V6(address) => _ = known.ip6.insert(key, address),
                }
            }
        }
        known
    }
}

fn guest(
    vm: &VmRecord,
    network: &GuestNetwork,
    managed: &BTreeMap<Vni, &GuestNetwork>,
    known: &KnownAddresses,
    mac: Mac,
    address: IpAddr,
) -> MetadataGuest {
    let interfaces = nics(vm).enumerate().filter_map(|(number, (vni, nic))| {
        let managed = managed.get(&vni)?.managed()?;
        let key = (vni, nic);
        let mut ip4 = managed.ip4.as_ref().map(|ip4| (ip4.network, known.ip4.get(&key).copied()));
        if let (Some((_, own)), IpAddr::V4(asks)) = (&mut ip4, address)
            && (vni, nic) == (network.vni, mac)
        {
            *own = Some(asks);
        }
        Some(Interface {
            number,
            vni,
            mac: mac_text(nic),
            domain: managed.domain.clone(),
            dhcp4: managed.ip4.as_ref().is_some_and(|ip4| ip4.dhcp.is_some()),
            dhcp6: managed.ip6.as_ref().is_some_and(|ip6| ip6.dhcp),
            ip4,
            ip6: managed.ip6.as_ref().map(|ip6| (ip6.network, known.ip6.get(&key).copied())),
        })
    });
    let interfaces = interfaces.collect();
    MetadataGuest {
        uuid: vm.uuid,
        name: vm.name.clone(),
        profile: vm.profile.clone(),
        domain: network.managed().and_then(|managed| managed.domain.clone()),
        mac: mac_text(mac),
        address,
        interfaces,
        ssh_keys: vm.domain.as_ref().map_or_else(|_| Vec::new(), |vm| vm.ssh_keys.clone()),
    }
}

/// A request, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetadataRequest<'a> {
    pub caller: IpAddr,
    pub method: &'a str,
    /// Path of the URL, without what follows a `?`.
    pub path: &'a str,
    /// The [token](TOKEN_HEADER) that it shows.
    pub token: Option<&'a str>,
    /// The [time](TTL_HEADER) that it asks for.
    pub ttl: Option<&'a str>,
    /// Whether it was [passed on](FORWARDED_HEADER).
    pub is_forwarded: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataAnswer {
    pub status: u16,
    pub content_type: &'static str,
    pub body: String,
    /// Seconds for which the token in the body is valid, if it is one.
    pub ttl_seconds: Option<u64>,
    /// Profile of the provisioner whose userdata is the body.
    pub userdata_of: Option<String>,
}

impl MetadataAnswer {
    fn new(status: u16, content_type: &'static str, body: impl Into<String>) -> Self {
        let (ttl_seconds, userdata_of) = (None, None);
        MetadataAnswer { status, content_type, body: body.into(), ttl_seconds, userdata_of }
    }

    fn text(body: impl Into<String>) -> Self {
        MetadataAnswer::new(200, "text/plain", body)
    }

    fn refused(status: u16, why: &str) -> Self {
        MetadataAnswer::new(status, "text/plain", format!("{why}\n"))
    }
}

/// Returns the answer to a request. `now` is monotonic; `random` are 256 bits for a token, should
/// one be given. With `is_token_required` nothing is told to who does not show one: a web server in
/// a guest that is made to ask cannot send the header.
pub fn answer(
    index: &MetadataIndex,
    tokens: &mut Tokens,
    request: &MetadataRequest<'_>,
    is_token_required: bool,
    now: Duration,
    random: impl FnOnce() -> [u64; 4],
) -> MetadataAnswer {
    let Some(guest) = index.guest(request.caller) else { return not_found() };
    let caller = (request.caller, guest.uuid);
    if request.path.len() > LONGEST_PATH {
        return not_found();
    }
    let path: Vec<&str> = request.path.split('/').filter(|part| !part.is_empty()).collect();
    let is_token_path = matches!(path[..], [_, "api", "token"]);
    match request.method {
        "PUT" if is_token_path => return give_token(tokens, caller, request, now, random),
        "GET" | "HEAD" if !is_token_path => {}
        _ => return MetadataAnswer::refused(405, "this is not done here"),
    }
    let may_ask = match request.token {
        Some(token) => tokens.is_valid(caller, token, now),
        None => !is_token_required,
    };
    if !may_ask {
        return MetadataAnswer::refused(401, "the token is missing, or not valid any more");
    }
    match path[..] {
        // The status of PVC 1.0.3.
        [] => MetadataAnswer::new(209, "application/json", "{\"message\":\"PVC metadata\"}\n"),
        [_] => MetadataAnswer::text("meta-data/\nuser-data\n"),
        [_, "meta-data"] => {
            let has_it = |key: &&&str| match **key {
                PUBLIC_KEYS => guest.has_keys(),
                NETWORK => guest.shown_interfaces().next().is_some(),
                _ => true,
            };
            listed(KEYS.iter().filter(has_it).copied())
        }
        [_, "meta-data", "network", ref below @ ..] => guest.network(below),
        [_, "meta-data", "public-keys", ..] if !guest.has_keys() => not_found(),
        [_, "meta-data", "public-keys"] => MetadataAnswer::text(guest.listed_keys()),
        [_, "meta-data", "public-keys", number] if guest.ssh_key(number).is_some() => {
            MetadataAnswer::text("openssh-key\n")
        }
        [_, "meta-data", "public-keys", number, "openssh-key"] => {
            let key = guest.ssh_key(number).map(|key| format!("{}\n", key.key));
            key.map_or_else(not_found, MetadataAnswer::text)
        }
        [_, "meta-data", key] => guest.value(key).map_or_else(not_found, MetadataAnswer::text),
        [_, "user-data"] => {
            MetadataAnswer { userdata_of: guest.profile.clone(), ..MetadataAnswer::text("") }
        }
        _ => not_found(),
    }
}

fn not_found() -> MetadataAnswer {
    MetadataAnswer::refused(404, "there is nothing here")
}

/// A page that lists keys, a line each.
fn listed<T: Display>(keys: impl IntoIterator<Item = T>) -> MetadataAnswer {
    let lines: String = keys.into_iter().map(|key| format!("{key}\n")).collect();
    MetadataAnswer::text(lines)
}

fn give_token(
    tokens: &mut Tokens,
    caller: Caller,
    request: &MetadataRequest<'_>,
    now: Duration,
    random: impl FnOnce() -> [u64; 4],
) -> MetadataAnswer {
    if request.is_forwarded {
        return MetadataAnswer::refused(403, "a request that was passed on gets no token");
    }
    let ttl = request.ttl.and_then(|ttl| ttl.trim().parse().ok()).map(Duration::from_secs);
    let Some(ttl) = ttl.filter(|ttl| !ttl.is_zero() && *ttl <= LONGEST_TTL) else {
        let rule = format!("the header `{TTL_HEADER}` has to be 1 to {}", LONGEST_TTL.as_secs());
        return MetadataAnswer::refused(400, &rule);
    };
    let mut answer = MetadataAnswer::text(tokens.give(caller, random(), now, ttl));
    answer.ttl_seconds = Some(ttl.as_secs());
    answer
}

/// Key below which there are others; without a key for SSH there is none.
const PUBLIC_KEYS: &str = "public-keys/";

/// Key below which the interfaces are as EC2 has them; there is none without one that DHCP serves.
const NETWORK: &str = "network/";

/// Keys of a guest's metadata.
const KEYS: [&str; 10] = [
    "hostname",
    "instance-id",
    "local-hostname",
    "local-ipv4",
    "mac",
    "name",
    NETWORK,
    "network-config",
    "profile",
    PUBLIC_KEYS,
];

impl MetadataGuest {
    fn has_keys(&self) -> bool {
        !self.ssh_keys.is_empty()
    }

    /// The key for SSH with this number, which is written without zeros in front.
    fn ssh_key(&self, number: &str) -> Option<&SshKey> {
        let key = self.ssh_keys.get(number.parse::<usize>().ok()?);
        key.filter(|_| number == "0" || !number.starts_with(['0', '+']))
    }

    /// The keys for SSH: number and name of each.
    fn listed_keys(&self) -> String {
        (0..).zip(&self.ssh_keys).map(|(number, key)| format!("{number}={}\n", key.name)).collect()
    }

    fn value(&self, key: &str) -> Option<String> {
        Some(match key {
            "instance-id" => self.uuid.to_string(),
            "name" => self.name.clone(),
            "profile" => self.profile.clone().unwrap_or_default(),
            "hostname" | "local-hostname" => self.name_in(self.domain.as_deref()),
            "local-ipv4" => self.address.to_string(),
            "mac" => self.mac.clone(),
            "network-config" => self.network_config(),
            _ => return None,
        })
    }

    /// Its name in a network's domain.
    fn name_in(&self, domain: Option<&str>) -> String {
        match domain {
            Some(domain) => format!("{}.{domain}", self.name),
            None => self.name.clone(),
        }
    }

    /// The interfaces that are shown as EC2 has them: who reads that (cloud-init) waits for DHCP of
    /// IPv4 on each of them.
    fn shown_interfaces(&self) -> impl Iterator<Item = &Interface> {
        self.interfaces.iter().filter(|interface| interface.dhcp4)
    }

    /// The answer to what is asked for below [`NETWORK`].
    fn network(&self, below: &[&str]) -> MetadataAnswer {
        if self.shown_interfaces().next().is_none() {
            return not_found();
        }
        let of_mac = |mac: &str| self.shown_interfaces().find(|interface| interface.mac == mac);
        match *below {
            [] => listed(["interfaces/"]),
            ["interfaces"] => listed(["macs/"]),
            ["interfaces", "macs"] => {
                listed(self.shown_interfaces().map(|interface| format!("{}/", interface.mac)))
            }
            ["interfaces", "macs", mac] => match of_mac(mac) {
                Some(interface) => listed(interface.values(self).into_keys()),
                None => not_found(),
            },
            ["interfaces", "macs", mac, key] => {
                let value = of_mac(mac).and_then(|interface| interface.values(self).remove(key));
                value.map_or_else(not_found, MetadataAnswer::text)
            }
            _ => not_found(),
        }
    }

    /// The interfaces in the second version of cloud-init's words for them.
    fn network_config(&self) -> String {
        let mut text = "version: 2\nethernets:\n".to_owned();
        if self.interfaces.is_empty() {
            text = "version: 2\nethernets: {}\n".to_owned();
        }
        for (number, interface) in self.interfaces.iter().enumerate() {
            let Interface { mac, dhcp4, dhcp6, .. } = interface;
            let _ = write!(
                text,
                "  nic{number}:\n    match:\n      macaddress: \"{mac}\"\n    dhcp4: {dhcp4}\n    \
                 dhcp6: {dhcp6}\n"
            );
        }
        text
    }
}

impl Interface {
    /// Values that EC2 has of an interface, by their keys.
    fn values(&self, guest: &MetadataGuest) -> BTreeMap<&'static str, String> {
        let mut values = BTreeMap::from([
            ("device-number", self.number.to_string()),
            ("local-hostname", guest.name_in(self.domain.as_deref())),
            ("mac", self.mac.clone()),
            // Without it cloud-init writes the network's configuration anew with each boot.
            ("vpc-id", format!("vpc-{}", self.vni)),
        ]);
        if let Some((network, address)) = &self.ip4 {
            values.extend(address.map(|address| ("local-ipv4s", address.to_string())));
            values.insert("subnet-ipv4-cidr-block", network.to_string());
        }
        if let Some((network, address)) = &self.ip6 {
            values.extend(address.map(|address| ("ipv6s", address.to_string())));
            values.insert("subnet-ipv6-cidr-blocks", network.to_string());
        }
        values
    }
}

/// Tokens that guests have been given, each with its end. They are of one daemon: after the primary
/// has changed guests ask for new ones, as they do for one that has ended.
#[derive(Debug, Clone, Default)]
pub struct Tokens {
    /// The oldest first. They are of a VM at an address: who gets the address later has none.
    by_guest: BTreeMap<Caller, VecDeque<(String, Duration)>>,
}

/// Address that a guest asks from, and its VM.
type Caller = (IpAddr, Uuid);

impl Tokens {
    fn give(&mut self, guest: Caller, random: [u64; 4], now: Duration, ttl: Duration) -> String {
        let token: String = random.iter().map(|bits| format!("{bits:016x}")).collect();
        let of_guest = self.by_guest.entry(guest).or_default();
        of_guest.retain(|(_, end)| *end > now);
        if of_guest.len() >= TOKENS_EACH {
            of_guest.pop_front();
        }
        of_guest.push_back((token.clone(), now + ttl));
        token
    }

    /// Whether this guest was given the token.
    fn is_valid(&self, guest: Caller, token: &str, now: Duration) -> bool {
        let of_guest = self.by_guest.get(&guest);
        of_guest.into_iter().flatten().any(|(known, end)| *end > now && is_same(known, token))
    }

    /// Forgets those of guests that are not at their address any more.
    pub fn retain(&mut self, index: &MetadataIndex) {
        self.by_guest.retain(|(address, vm), _| {
            index.guest(*address).is_some_and(|guest| guest.uuid == *vm)
        });
    }
}

/// Compares in the same time wherever they differ.
fn is_same(known: &str, token: &str) -> bool {
    let differs = known.bytes().zip(token.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    known.len() == token.len() && differs == 0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::{Nic, NicKind};
    use crate::network::NetworkRecord;
    use crate::records;

    const MAC: &str = "52:54:00:11:22:33";

    fn lease(mac: &str, address: &str, expiry: Option<&str>) -> LeaseRecord {
        LeaseRecord {
            mac: mac.to_owned(),
            address: address.to_owned(),
            hostname: String::new(),
            expiry: expiry.map(str::to_owned),
            ..LeaseRecord::default()
        }
    }

    fn network(vni: &str, leases: &[LeaseRecord]) -> NetworkRecord {
        NetworkRecord {
            vni: vni.to_owned(),
            description: format!("net{vni}"),
            nettype: "managed".to_owned(),
            domain: "net.example".to_owned(),
            ip4_network: "10.20.7.0/24".to_owned(),
            dhcp4_flag: "True".to_owned(),
            dhcp4_start: "10.20.7.100".to_owned(),
            dhcp4_end: "10.20.7.199".to_owned(),
            leases: leases.to_vec(),
            ..NetworkRecord::default()
        }
    }

    fn vm(name: &str, number: u128, nics: &[(&str, &str)]) -> VmRecord {
        let mut vm = records::vm(number, VmState::Start, None);
        vm.name = name.to_owned();
        let mut domain = vm.domain.as_deref().expect("it can be read").clone();
        let nic = |(vni, mac): &(&str, &str)| Nic {
            kind: NicKind::Bridge(format!("vmbr{vni}")),
            mac: (*mac).to_owned(),
            model: "virtio".to_owned(),
            target: None,
            is_exclusive: false,
            has_vlan: false,
        };
        domain.nics = nics.iter().map(nic).collect();
        vm.domain = Ok(Arc::new(domain));
        vm
    }

    fn cluster(networks: Vec<NetworkRecord>, vms: Vec<VmRecord>) -> Cluster {
        let mut cluster = Cluster::default();
        for network in networks {
            cluster.networks.insert(network.vni.clone(), Arc::new(network));
        }
        for vm in vms {
            cluster.vms.insert(vm.uuid, Arc::new(vm));
        }
        cluster
    }

    fn one() -> MetadataIndex {
        let leases = [lease(MAC, "10.20.7.100", Some("1700000000"))];
        let vms = vec![vm("web1", 1, &[("7", MAC)])];
        MetadataIndex::of(&cluster(vec![network("7", &leases)], vms))
    }

    fn at(address: &str) -> IpAddr {
        address.parse().unwrap()
    }

    fn get(path: &str) -> MetadataRequest<'_> {
        MetadataRequest {
            caller: at("10.20.7.100"),
            method: "GET",
            path,
            token: None,
            ttl: None,
            is_forwarded: false,
        }
    }

    fn ask(index: &MetadataIndex, request: &MetadataRequest<'_>) -> (u16, String) {
        let answer =
            answer(index, &mut Tokens::default(), request, false, Duration::ZERO, || [1; 4]);
        (answer.status, answer.body)
    }

    #[test]
    fn a_guest_learns_of_itself() {
        let index = one();
        let uuid = Uuid::from_u128(1).to_string();
        for (path, body) in [
            ("/latest/meta-data/instance-id", &*uuid),
            ("/2009-04-04/meta-data/instance-id/", &uuid),
            ("//2021-03-23//meta-data/name", "web1"),
            ("/latest/meta-data/hostname", "web1.net.example"),
            ("/latest/meta-data/local-hostname", "web1.net.example"),
            ("/latest/meta-data/local-ipv4", "10.20.7.100"),
            ("/latest/meta-data/mac", MAC),
            ("/latest/meta-data/profile", ""),
            ("/latest/user-data", ""),
            ("/latest", "meta-data/\nuser-data\n"),
            (
                "/latest/meta-data/network-config",
                "version: 2\nethernets:\n  nic0:\n    match:\n      macaddress: \
                 \"52:54:00:11:22:33\"\n    dhcp4: true\n    dhcp6: false\n",
            ),
        ] {
            assert_eq!(ask(&index, &get(path)), (200, body.to_owned()), "{path}");
        }
        assert_eq!(ask(&index, &get("/")).0, 209);
        assert!(ask(&index, &get("/")).1.starts_with("{\"message\""));
    }

    #[test]
    fn a_guest_learns_who_may_log_in_as_from_ec2() {
        let key = |name: &str| {
            SshKey::read(Some(name), "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA a").unwrap()
        };
        let mut web1 = vm("web1", 1, &[("7", MAC)]);
        let mut domain = web1.domain.as_deref().unwrap().clone();
        domain.ssh_keys = vec![key("alice"), key("bob")];
        web1.domain = Ok(Arc::new(domain));
        let leases = [lease(MAC, "10.20.7.100", None)];
        let index = MetadataIndex::of(&cluster(vec![network("7", &leases)], vec![web1]));
        let text = key("alice").key + "\n";
        for (path, answer) in [
            ("", Some("0=alice\n1=bob\n")),
            ("/", Some("0=alice\n1=bob\n")),
            ("/0", Some("openssh-key\n")),
            ("/1/", Some("openssh-key\n")),
            ("/0/openssh-key", Some(&*text)),
            ("/2", None),
            ("/2/openssh-key", None),
            ("/00/openssh-key", None),
            ("/+1/openssh-key", None),
            ("/0/other", None),
            ("/0=alice", None),
            ("/0/openssh-key/x", None),
        ] {
            let (status, body) = ask(&index, &get(&format!("/latest/meta-data/public-keys{path}")));
            assert_eq!((status == 200).then_some(&*body), answer, "{path}: {body}");
        }
        assert!(ask(&index, &get("/latest/meta-data/")).1.contains("public-keys/\n"));
        assert!(!ask(&one(), &get("/latest/meta-data/")).1.contains("public-keys"));
        assert_eq!(ask(&one(), &get("/latest/meta-data/public-keys/0/openssh-key")).0, 404);
    }

    /// Asks for everything below a page that lists what there is, as cloud-init does.
    fn crawled(index: &MetadataIndex, page: &str, found: &mut BTreeMap<String, String>) {
        let (status, lines) = ask(index, &get(page));
        assert_eq!(status, 200, "{page}");
        for key in lines.lines().filter(|key| !key.contains('=')) {
            let path = format!("{page}{key}");
            if key.ends_with('/') {
                crawled(index, &path, found);
                continue;
            }
            let (status, value) = ask(index, &get(&path));
            assert_eq!(status, 200, "{path}");
            assert!(found.insert(path, value).is_none(), "it is listed twice");
        }
    }

    #[test]
    fn every_key_that_is_listed_has_a_value() {
        let mut found = BTreeMap::new();
        crawled(&one(), "/1/meta-data/", &mut found);
        for key in ["instance-id", "name", "profile"] {
            assert!(found.contains_key(&format!("/1/meta-data/{key}")), "{key} in {found:?}");
        }
    }

    #[test]
    fn the_interfaces_that_dhcp_serves_are_shown_as_ec2_has_them() {
        let [second, of_ip6, outside] =
            ["52:54:00:00:00:02", "52:54:00:00:00:03", "52:54:00:00:00:04"];
        let leases = [
            lease(MAC, "10.20.7.50", None),
            lease(MAC, "10.20.7.100", Some("1700000000")),
            lease("52:54:00:00:00:09", "10.20.7.109", None),
        ];
        let of_8 = NetworkRecord {
            ip4_network: "10.20.8.0/25".to_owned(),
            dhcp4_start: "10.20.8.10".to_owned(),
            dhcp4_end: "10.20.8.19".to_owned(),
            domain: "None".to_owned(),
            ip6_network: "2001:db8:8::/64".to_owned(),
            dhcp6_flag: "True".to_owned(),
            ..network(
                "8",
                &[
                    lease(second, "10.20.8.10", Some("1700000000")),
                    lease(second, "10.20.8.11", Some("1700000900")),
                    lease(second, "10.20.9.12", Some("1800000000")),
                    lease(second, "2001:db8:8::b", Some("1700000000")),
                ],
            )
        };
        let of_9 = NetworkRecord { dhcp4_flag: "False".to_owned(), ..network("9", &[]) };
        let nics = [("9", of_ip6), ("7", MAC), ("100", outside), ("8", second)];
        let networks = vec![network("7", &leases), of_8, of_9];
        let index = MetadataIndex::of(&cluster(networks, vec![vm("web1", 1, &nics)]));
        let mut found = BTreeMap::new();
        let page = "/latest/meta-data/network/";
        crawled(&index, page, &mut found);
        let expected = [
            (MAC, "device-number", "1"),
            (MAC, "local-hostname", "web1.net.example"),
            (MAC, "local-ipv4s", "10.20.7.100"),
            (MAC, "mac", MAC),
            (MAC, "subnet-ipv4-cidr-block", "10.20.7.0/24"),
            (MAC, "vpc-id", "vpc-7"),
            (second, "device-number", "3"),
            (second, "ipv6s", "2001:db8:8::b"),
            (second, "local-hostname", "web1"),
            (second, "local-ipv4s", "10.20.8.11"),
            (second, "mac", second),
            (second, "subnet-ipv4-cidr-block", "10.20.8.0/25"),
            (second, "subnet-ipv6-cidr-blocks", "2001:db8:8::/64"),
            (second, "vpc-id", "vpc-8"),
        ];
        let expected: BTreeMap<String, String> = expected
            .iter()
            .map(|(mac, key, value)| {
                (format!("{page}interfaces/macs/{mac}/{key}"), (*value).to_owned())
            })
            .collect();
        assert_eq!(found, expected);
        for path in [
            "x",
            "interfaces/x",
            &format!("interfaces/macs/{of_ip6}"),
            &format!("interfaces/macs/{outside}/mac"),
            &format!("interfaces/macs/{MAC}/x"),
            &format!("interfaces/macs/{MAC}/mac/x"),
            "interfaces/macs/macs/mac",
        ] {
            assert_eq!(ask(&index, &get(&format!("{page}{path}"))).0, 404, "{path}");
        }
    }

    /// cloud-init has a guest of which nothing is said ask by DHCP on its first interface.
    #[test]
    fn a_guest_without_dhcp_sees_no_interfaces() {
        let leases = [lease(MAC, "10.20.7.100", None)];
        let still = NetworkRecord { dhcp4_flag: "False".to_owned(), ..network("7", &leases) };
        let index = MetadataIndex::of(&cluster(vec![still], vec![vm("web1", 1, &[("7", MAC)])]));
        assert!(!ask(&index, &get("/latest/meta-data/")).1.contains("network/"));
        for path in ["", "/interfaces", "/interfaces/macs"] {
            let path = format!("/latest/meta-data/network{path}");
            assert_eq!(ask(&index, &get(&path)).0, 404, "{path}");
        }
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        let index = one();
        let long = format!("/latest/meta-data/{}", "x".repeat(1 << 20));
        for path in [
            "/latest/meta-data/public-keys/",
            "/latest/meta-data/instance-id/x",
            "/latest/dynamic/instance-identity/document",
            "/latest/meta-data/../../etc/passwd",
            "/a/b/c/d",
            &long,
        ] {
            assert_eq!(ask(&index, &get(path)).0, 404, "{}", crate::shown(path));
        }
        for method in ["POST", "DELETE", "PUT", "", "get"] {
            assert_eq!(ask(&index, &MetadataRequest { method, ..get("/") }).0, 405, "{method}");
        }
        assert_eq!(ask(&index, &get("/latest/api/token")).0, 405);
    }

    #[test]
    fn whoever_is_no_guest_finds_nothing() {
        let index = one();
        for caller in ["10.20.7.101", "192.0.2.1", "2001:db8::1", "169.254.169.254"] {
            for (method, path) in
                [("GET", "/"), ("GET", "/latest/meta-data/"), ("PUT", "/latest/api/token")]
            {
                let request =
                    MetadataRequest { caller: at(caller), method, ttl: Some("60"), ..get(path) };
                assert_eq!(ask(&index, &request).0, 404, "{caller} {method} {path}");
            }
        }
    }

    #[test]
    fn a_caller_is_known_by_the_interface_in_the_network_that_has_its_address() {
        let found = |networks: Vec<NetworkRecord>, vms: Vec<VmRecord>| {
            let index = MetadataIndex::of(&cluster(networks, vms));
            index.guest(at("::ffff:10.20.7.100")).map(|guest| guest.name.clone())
        };
        let other = "52:54:00:aa:bb:cc";
        let web = || vm("web1", 1, &[("9", other), ("7", MAC)]);
        let given = |expiry| network("7", &[lease(MAC, "10.20.7.100", expiry)]);
        let web1 = Some("web1".to_owned());
        assert_eq!(found(vec![given(None)], vec![web()]), web1);
        assert_eq!(found(vec![given(Some("1"))], vec![web()]), web1);
        assert_eq!(found(vec![given(None)], vec![vm("web1", 1, &[("8", MAC)])]), None, "elsewhere");
        let upper = network("7", &[lease(&MAC.to_ascii_uppercase(), "10.20.7.100", None)]);
        assert_eq!(found(vec![upper], vec![web()]), web1);

        // Two that may be it.
        let twin = vm("web2", 2, &[("7", MAC)]);
        assert_eq!(found(vec![given(None)], vec![web(), twin.clone()]), None);
        let mirror = VmRecord { state: VmState::Mirror, ..twin };
        assert_eq!(found(vec![given(None)], vec![web(), mirror]), web1, "it does not run here");
        let overlap = network("8", &[lease(other, "10.20.7.100", None)]);
        let db = vm("db1", 2, &[("8", other)]);
        assert_eq!(found(vec![given(None), overlap], vec![web(), db]), None);

        // An address that has come to another.
        let moved = network(
            "7",
            &[
                lease(MAC, "10.20.7.100", Some("200")),
                lease(other, "10.20.7.100", Some("100")),
                lease("no mac", "10.20.7.100", None),
                lease(other, "no address", None),
            ],
        );
        let db = vm("db1", 2, &[("7", other)]);
        assert_eq!(found(vec![moved], vec![web(), db.clone()]), web1);
        let reserved = network(
            "7",
            &[lease(other, "10.20.7.100", None), lease(MAC, "10.20.7.100", Some("200"))],
        );
        assert_eq!(found(vec![reserved], vec![web(), db]), None, "its lease goes on");
        let elsewhere = |net: &str| NetworkRecord { ip4_network: net.to_owned(), ..given(None) };
        assert_eq!(found(vec![elsewhere("10.20.8.0/24")], vec![web()]), None, "renumbered");

        let bridged = NetworkRecord { nettype: "bridged".to_owned(), ..given(None) };
        assert_eq!(found(vec![bridged], vec![web()]), None);
    }

    #[test]
    fn a_token_is_the_callers_own_and_ends() {
        let leases =
            [lease(MAC, "10.20.7.100", None), lease("52:54:00:00:00:02", "10.20.7.2", None)];
        let vms = vec![vm("web1", 1, &[("7", MAC)]), vm("web2", 2, &[("7", "52:54:00:00:00:02")])];
        let index = MetadataIndex::of(&cluster(vec![network("7", &leases)], vms));
        let mut tokens = Tokens::default();
        let now = Duration::from_secs(100);
        let mut number = 0;
        let mut put = |tokens: &mut Tokens, request: &MetadataRequest<'_>| {
            number += 1;
            answer(&index, tokens, request, true, now, || [number; 4])
        };
        let please = MetadataRequest { method: "PUT", ttl: Some("60"), ..get("/latest/api/token") };
        let given = put(&mut tokens, &please);
        assert_eq!((given.status, given.ttl_seconds), (200, Some(60)));
        let path = "/latest/meta-data/name";
        let status = |tokens: &mut Tokens, caller: &str, token: Option<&str>, required, at_s| {
            let request = MetadataRequest { token, caller: at(caller), ..get(path) };
            let now = Duration::from_secs(at_s);
            answer(&index, tokens, &request, required, now, || [0; 4]).status
        };
        let own = Some(&*given.body);
        assert_eq!(status(&mut tokens, "10.20.7.100", own, true, 159), 200);
        assert_eq!(status(&mut tokens, "10.20.7.100", own, true, 160), 401, "it has ended");
        assert_eq!(status(&mut tokens, "10.20.7.2", own, true, 100), 401, "another's");
        assert_eq!(status(&mut tokens, "10.20.7.2", own, false, 100), 401, "a bad one is none");
        assert_eq!(status(&mut tokens, "10.20.7.100", Some(""), true, 100), 401);
        assert_eq!(status(&mut tokens, "10.20.7.100", None, true, 100), 401);
        assert_eq!(status(&mut tokens, "10.20.7.100", None, false, 100), 200);

        for ttl in [None, Some("0"), Some("21601"), Some("-1"), Some("x")] {
            assert_eq!(put(&mut tokens, &MetadataRequest { ttl, ..please }).status, 400, "{ttl:?}");
        }
        let passed_on = MetadataRequest { is_forwarded: true, ..please };
        assert_eq!(put(&mut tokens, &passed_on).status, 403);

        for _ in 0..TOKENS_EACH {
            put(&mut tokens, &please);
        }
        assert_eq!(status(&mut tokens, "10.20.7.100", own, true, 100), 401, "the oldest goes");
        let web1 = (at("10.20.7.100"), Uuid::from_u128(1));
        assert_eq!(tokens.by_guest[&web1].len(), TOKENS_EACH);
        tokens.retain(&MetadataIndex::default());
        assert!(tokens.by_guest.is_empty());
    }
}
