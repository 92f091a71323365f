//! The DHCP and DNS server of a managed network: arguments and files of its dnsmasq
//! (`spec/network.md` §4), and what it says of leases.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::names::{NOBODYS, Names};
use super::{GuestNetwork, Ip4, Ip6, Managed, Vni, is_unset};
use crate::link::{Mac, mac_text, parse_mac};
use crate::network::{GivenLease, GivenLease6, Ip6Client, LeaseRecord};

/// Time for which an address is given.
const LEASE: &str = "48h";

/// The most leases that a server keeps, however many addresses there are: each is a record, and no
/// more of a list are read. Its own limit is no smaller for a small range: addresses that are
/// reserved, and those of a range that was recorded before, lie outside of it, and with more leases
/// than its limit dnsmasq does not start.
pub const MOST_LEASES: usize = 10_000;

/// The smallest range that is divided. Of a smaller one every address is anybody's.
const LEAST_DIVIDED: u32 = 64;

/// The fewest addresses of a divided range that are for VMs' cards alone.
const LEAST_OF_VMS: u32 = 16;

/// The most addresses of a divided range that are anybody's: they leave some of [`MOST_LEASES`].
const MOST_OF_OTHERS: u32 = 1024;

/// The least time for which a lease goes on, in seconds, that a server is told of when it starts.
/// Servers of PVC 1.0.3 did not record when a guest renewed: what the record says may be over while
/// the guest has the address.
const LEAST_LEFT: u64 = 24 * 3600;

/// Everything that the DHCP server of a network is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dnsmasq {
    pub args: Vec<String>,
    /// Contents of its configuration file, with the hosts that it knows: dnsmasq reads it as root,
    /// at its start alone.
    pub hosts: String,
}

/// The node on which a server is to run.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Gateways that the network's bridge has. The family of another one is not served.
    pub gateways: &'a BTreeSet<IpAddr>,
    /// Division of the range of IPv4.
    pub division: &'a Division,
    /// Names that are somebody's.
    pub names: &'a Names,
    /// MTU of the bridge, if it is known.
    pub mtu: Option<u32>,
    /// Path of the file with the hosts.
    pub file: &'a str,
    /// Path of the program that is called for leases.
    pub script: &'a str,
}

/// Returns the arguments and the file of the DHCP server of `network`; `None` for a network that
/// has none: one that is bridged, or has no gateway to listen on.
pub fn dnsmasq(
    network: &GuestNetwork,
    leases: &[LeaseRecord],
    place: Place<'_>,
) -> Option<Dnsmasq> {
    let managed = network.managed()?;
    let is_here = |gateway: IpAddr| place.gateways.contains(&gateway);
    let ip4 = managed.ip4.as_ref().and_then(|ip4| Some((ip4, ip4.gateway?)));
    let ip6 = managed.ip6.as_ref().and_then(|ip6| Some((ip6, ip6.gateway?)));
    // Of the network as it is recorded: guests would get other addresses of IPv6 meanwhile.
    let has_dhcp4 = ip4.is_some_and(|(ip4, _)| ip4.dhcp.is_some());
    let ip4 = ip4.filter(|(_, gateway)| is_here((*gateway).into()));
    let ip6 = ip6.filter(|(_, gateway)| is_here((*gateway).into()));
    if ip4.is_none() && ip6.is_none() {
        return None;
    }
    let mut args = Args(Vec::new());
    args.always(network.vni, place.file, place.script);
    args.domain(managed, ip4.map(|(_, gateway)| gateway), ip6.map(|(_, gateway)| gateway));
    if let Some((ip4, gateway)) = ip4 {
        args.dhcp4(ip4, gateway, place.mtu, place.division.others);
        // By its MAC address a guest has one lease, whatever it calls itself.
        if place.division.others.is_some() || network.options.spoof_guard {
            args.add("--dhcp-ignore-clid");
        }
    }
    if let Some((ip6, gateway)) = ip6 {
        args.dhcp6(ip6, gateway, network.vni, has_dhcp4);
    }
    let reserved = reservations(managed, leases);
    let hosts = hosts(&reserved, &place.division.known) + &place.names.lines();
    Some(Dnsmasq { args: args.0, hosts })
}

/// Division of a network's range of IPv4 into a part for hosts that the server knows, which are
/// VMs' cards, and one for anybody: a guest may ask for addresses under as many MAC addresses as
/// it likes, and takes the second part alone.
///
/// ```text
///  start ─── for those that are known ─── others ─── anybody's ─── end
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Division {
    /// First address that is anybody's; `None`: all of them are.
    others: Option<Ipv4Addr>,
    /// MAC addresses of the cards, and of those who had addresses of the first part before it was
    /// one, and keep them.
    known: BTreeSet<Mac>,
}

impl Division {
    /// Divides the range of a network in which VMs have these `cards`. There is room for all of
    /// them, as long as that is no more than three quarters of the range.
    pub fn of(network: &GuestNetwork, leases: &[LeaseRecord], cards: &BTreeSet<Mac>) -> Division {
        let managed = network.managed();
        let range = managed.and_then(|managed| managed.ip4.as_ref()?.dhcp);
        let (Some(managed), Some((start, end))) = (managed, range) else {
            return Division::default();
        };
        let all = end.to_bits().saturating_sub(start.to_bits()).saturating_add(1);
        if all < LEAST_DIVIDED {
            return Division::default();
        }
        let reserved = reservations(managed, leases);
        let has_place: BTreeSet<Mac> = reserved.values().map(|host| host.mac).collect();
        let hosts = reserved.range(start..=end).count() + cards.difference(&has_place).count();
        let hosts = u32::try_from(hosts).unwrap_or(u32::MAX).clamp(LEAST_OF_VMS, 1 << 31);
        // In large steps: another border is another server.
        let of_vms = hosts.next_power_of_two().max(all / 4).min(all - all / 4);
        let of_vms = of_vms.max(all.saturating_sub(MOST_OF_OTHERS));
        let others = Ipv4Addr::from_bits(start.to_bits() + of_vms);
        let holders = given(leases).filter(|(_, address)| (start..others).contains(address));
        let known = holders.map(|(mac, _)| mac).chain(cards.iter().copied()).collect();
        Division { others: Some(others), known }
    }

    /// Whether one of the cards is not known, and there is hardly an address that is anybody's: it
    /// may find none.
    pub fn is_outdated(
        &self,
        network: &GuestNetwork,
        leases: &[LeaseRecord],
        cards: &BTreeSet<Mac>,
    ) -> bool {
        let range = network.managed().and_then(|managed| managed.ip4.as_ref()?.dhcp);
        let (Some(others), Some((_, end))) = (self.others, range) else { return false };
        if cards.is_subset(&self.known) {
            return false;
        }
        let all = usize::try_from(end.to_bits().saturating_sub(others.to_bits())).unwrap_or(0) + 1;
        let addresses = leases.iter().filter_map(|lease| lease.address.parse::<Ipv4Addr>().ok());
        let taken = addresses.filter(|address| (others..=end).contains(address)).count();
        all.saturating_sub(taken) <= all / 8
    }
}

/// Leases of IPv4 that were given: who has which address.
fn given(leases: &[LeaseRecord]) -> impl Iterator<Item = (Mac, Ipv4Addr)> {
    let given = leases.iter().filter(|lease| lease.expiry.is_some());
    given.filter_map(|lease| Some((parse_mac(&lease.mac)?, lease.address.parse().ok()?)))
}

struct Args(Vec<String>);

impl Args {
    fn add(&mut self, arg: impl Into<String>) {
        self.0.push(arg.into());
    }

    fn always(&mut self, vni: Vni, file: &str, script: &str) {
        for arg in [
            // Not the file with the number of the system's own server.
            "--pid-file",
            "--keep-in-foreground",
            "--log-facility=-",
            "--log-dhcp",
            "--domain-needed",
            "--bogus-priv",
            "--no-hosts",
            "--dhcp-authoritative",
            "--filterwin2k",
            "--expand-hosts",
            "--leasefile-ro",
            "--script-on-renewal",
            // By its interface alone: it listens on its addresses, and a renewal that is sent to a
            // gateway does not reach the server of another network. With `--listen-address` beside
            // it the wildcard of IPv6 would be bound, which the DNS aggregator needs.
            "--bind-interfaces",
            "--except-interface=lo",
        ] {
            self.add(arg);
        }
        for name in NOBODYS {
            self.add(format!("--dhcp-name-match=set:nobodys,{name}"));
            self.add(format!("--dhcp-name-match=set:nobodys,{name}.*"));
        }
        self.add("--dhcp-ignore-names=tag:nobodys");
        self.add(format!("--interface={}", vni.bridge()));
        self.add(format!("--dhcp-lease-max={MOST_LEASES}"));
        // In the place of the system's own.
        self.add(format!("--conf-file={file}"));
        self.add(format!("--dhcp-script={script}"));
    }

    /// The domain, of which it is the authority for the DNS aggregator.
    fn domain(
        &mut self,
        managed: &Managed,
        gateway4: Option<Ipv4Addr>,
        gateway6: Option<std::net::Ipv6Addr>,
    ) {
        let Some(domain) = &managed.domain else { return };
        self.add(format!("--domain={domain}"));
        self.add(format!("--local=/{domain}/"));
        self.add(format!("--auth-zone={domain}"));
        let gateways = gateway4.map(IpAddr::V4).into_iter().chain(gateway6.map(IpAddr::V6));
        for (number, gateway) in gateways.enumerate() {
            self.add(format!("--auth-peer={gateway}"));
            if number == 0 {
                self.add(format!("--auth-server={gateway}"));
                self.add(format!("--auth-sec-servers={gateway}"));
            }
        }
    }

    /// Addresses before `others` are for hosts alone that are known.
    fn dhcp4(&mut self, ip4: &Ip4, gateway: Ipv4Addr, mtu: Option<u32>, others: Option<Ipv4Addr>) {
        let Some((start, end)) = ip4.dhcp else { return };
        self.add(format!("--dhcp-option=option:ntp-server,{gateway}"));
        // A guest does not see by itself that the tunnel takes its part of each frame.
        if let Some(mtu) = mtu.filter(|mtu| *mtu < super::ETHERNET_MTU) {
            self.add(format!("--dhcp-option=option:mtu,{mtu}"));
        }
        let Some(others) = others else {
            self.add(format!("--dhcp-range={start},{end},{LEASE}"));
            return;
        };
        let last = Ipv4Addr::from_bits(others.to_bits().saturating_sub(1));
        self.add(format!("--dhcp-range=tag:known,{start},{last},{LEASE}"));
        self.add(format!("--dhcp-range={others},{end},{LEASE}"));
    }

    fn dhcp6(&mut self, ip6: &Ip6, gateway: std::net::Ipv6Addr, vni: Vni, has_dhcp4: bool) {
        if !ip6.dhcp {
            return;
        }
        let bridge = vni.bridge();
        self.add(format!("--dhcp-option=option6:dns-server,[{gateway}]"));
        self.add(format!("--dhcp-option=option6:sntp-server,[{gateway}]"));
        self.add("--enable-ra");
        self.add(match has_dhcp4 {
            true => format!("--dhcp-range=::,constructor:{bridge},ra-stateless,ra-names"),
            false => {
                format!("--dhcp-range=::2,::ffff:ffff:ffff:ffff,constructor:{bridge},64,24h")
            }
        });
    }
}

/// Host that has an address for itself.
pub(super) struct Reserved {
    mac: Mac,
    name: Option<String>,
}

impl Reserved {
    pub(super) fn who(self) -> (Mac, Option<String>) {
        (self.mac, self.name)
    }
}

/// Reservations, by their addresses. What is not one is left out.
pub(super) fn reservations(
    managed: &Managed,
    leases: &[LeaseRecord],
) -> BTreeMap<Ipv4Addr, Reserved> {
    let mut reserved = BTreeMap::new();
    let Some(ip4) = &managed.ip4 else { return reserved };
    for lease in leases.iter().filter(|lease| lease.expiry.is_none()) {
        let address: Option<Ipv4Addr> = lease.address.parse().ok();
        let address = address.filter(|address| ip4.network.contains(address));
        let (Some(mac), Some(address)) = (parse_mac(&lease.mac), address) else { continue };
        let name = host_name(&lease.hostname).filter(|name| is_reservable(name));
        // dnsmasq refuses a file in which an address is reserved twice.
        reserved.entry(address).or_insert(Reserved { mac, name });
    }
    reserved
}

/// Hosts as dnsmasq reads them, a line each: those with a reservation, and others that are known.
fn hosts(reserved: &BTreeMap<Ipv4Addr, Reserved>, known: &BTreeSet<Mac>) -> String {
    let mut text = String::new();
    let mut others = known.clone();
    for (address, Reserved { mac, name }) in reserved {
        let name = name.as_ref().map(|name| format!(",{name}")).unwrap_or_default();
        writeln!(text, "dhcp-host={},{address}{name}", mac_text(*mac))
            .expect("a text takes everything");
        others.remove(mac);
    }
    for mac in others {
        writeln!(text, "dhcp-host={}", mac_text(mac)).expect("a text takes everything");
    }
    text
}

/// The name of a host, which is one label of DNS; `None` if there is none, or it could not be one.
pub fn host_name(text: &str) -> Option<String> {
    super::dns_name(text).filter(|name| !is_unset(text) && !name.contains('.'))
}

/// Whether dnsmasq takes a host name for one where it stands with an address that is reserved.
/// There `ignore` means that the host gets no address at all, `infinite` and numbers, as `90` and
/// `12h`, for how long it gets it, and a file with a name that begins with `_` is not read.
pub fn is_reservable(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let number = match name.char_indices().last() {
        Some((last @ 1.., 's' | 'm' | 'h' | 'd' | 'w')) => &name[..last],
        _ => &name,
    };
    let is_time = number.bytes().all(|c| c.is_ascii_digit());
    !is_time && !name.starts_with('_') && !matches!(name.as_str(), "ignore" | "infinite")
}

/// Report of a DHCP server about a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseNews {
    /// The lease was given, or goes on.
    Given(GivenLease),
    Ended {
        mac: String,
        address: Ipv4Addr,
    },
    /// The same of IPv6.
    Given6(GivenLease6),
    Ended6(Ipv6Addr),
}

/// Variables of dnsmasq's environment that a report is [read](LeaseNews::read) from.
pub const LEASE_VARIABLES: [&str; 4] = [EXPIRES, CLIENT, IAID, MAC_OF_6];

const EXPIRES: &str = "DNSMASQ_LEASE_EXPIRES";
const CLIENT: &str = "DNSMASQ_CLIENT_ID";
const IAID: &str = "DNSMASQ_IAID";
/// Of IPv6 alone, and only when the client has just asked.
const MAC_OF_6: &str = "DNSMASQ_MAC";

/// The longest identification of a client that is recorded, in characters. RFC 2132 has 255 bytes.
const CLIENT_ID: usize = 255 * 3;

impl LeaseNews {
    /// Reads what dnsmasq calls its script with: `add|old|del CLIENT ADDRESS [NAME]`, and what its
    /// environment says. The client is a MAC address, or of IPv6 a DUID. `None` for what is of no
    /// interest (files of TFTP) or is junk.
    pub fn read(
        args: &[String],
        environment: impl Fn(&str) -> Option<String>,
    ) -> Option<LeaseNews> {
        let [action, client, address, rest @ ..] = args else { return None };
        let is_given = match action.as_str() {
            "add" | "old" => true,
            "del" => false,
            _ => return None,
        };
        let hostname = rest.first().and_then(|name| host_name(name));
        let expiry = || environment(EXPIRES)?.parse().ok();
        let mac = |text: &str| parse_mac(text).map(mac_text);
        match (address.parse().ok()?, is_given) {
            // With a type of hardware in front that is not Ethernet (`06-…`): not ours.
            (IpAddr::V4(address), false) => Some(LeaseNews::Ended { mac: mac(client)?, address }),
            (IpAddr::V4(address), true) => Some(LeaseNews::Given(GivenLease {
                mac: mac(client)?,
                address,
                hostname,
                expiry: Some(expiry()?),
                client_id: environment(CLIENT).filter(|id| is_client_id(id)),
            })),
            (IpAddr::V6(address), false) => Some(LeaseNews::Ended6(address)),
            (IpAddr::V6(address), true) => Some(LeaseNews::Given6(GivenLease6 {
                address,
                client: ip6_client(client, &environment(IAID)?)?,
                mac: environment(MAC_OF_6).and_then(|text| mac(&text)),
                hostname,
                expiry: expiry()?,
            })),
        }
    }
}

/// The client of a lease of IPv6; `None` if its names are none.
fn ip6_client(duid: &str, iaid: &str) -> Option<Ip6Client> {
    let number = iaid.strip_prefix('T').unwrap_or(iaid);
    let is_number = number.bytes().all(|c| c.is_ascii_digit()) && number.parse::<u32>().is_ok();
    let client = Ip6Client { duid: duid.to_ascii_lowercase(), iaid: iaid.to_owned() };
    (is_number && is_client_id(duid)).then_some(client)
}

fn is_client_id(text: &str) -> bool {
    let is_plain = |c: u8| c.is_ascii_hexdigit() || c == b':';
    (1..=CLIENT_ID).contains(&text.len()) && text.bytes().all(is_plain)
}

/// The leases of a network as dnsmasq reads them when it starts: `EXPIRY MAC ADDRESS NAME CLIENT`
/// and, of IPv6, `EXPIRY IAID ADDRESS NAME DUID`, a line each, with `*` for what there is none of;
/// with IPv6 also the name of the server. What is not one is left out, and so are those that end
/// first if there are too many. `now` is the second since the epoch; a lease of one that
/// `is_of_a_vm` says of is told to go on for a while.
pub fn database(
    network: &GuestNetwork,
    leases: &[LeaseRecord],
    now: u64,
    is_of_a_vm: impl Fn(&Mac) -> bool,
) -> String {
    let mut lines: Vec<(u64, bool, String)> = Vec::new();
    for lease in leases {
        let Some(expiry) = lease.expiry.as_ref().and_then(|expiry| expiry.parse::<u64>().ok())
        else {
            continue;
        };
        let address: Option<IpAddr> = lease.address.parse().ok();
        let Some(address) = address.filter(|address| network.contains(*address)) else { continue };
        let mac = parse_mac(&lease.mac);
        let names = match (address, mac, &lease.ip6) {
            (IpAddr::V4(_), Some(mac), None) => {
                let client = Some(&lease.client_id).filter(|id| is_client_id(id));
                Some((mac_text(mac), client.map_or("*", String::as_str)))
            }
            (IpAddr::V6(_), _, Some(Ip6Client { duid, iaid })) => {
                ip6_client(duid, iaid).map(|client| (client.iaid, duid.as_str()))
            }
            _ => None,
        };
        let Some((first, last)) = names else { continue };
        let name = host_name(&lease.hostname).unwrap_or_else(|| "*".to_owned());
        let is_kept = mac.is_some_and(|mac| is_of_a_vm(&mac));
        let end = expiry.max(if is_kept { now.saturating_add(LEAST_LEFT) } else { 0 });
        let line = format!("{end} {first} {address} {name} {last}\n");
        lines.push((expiry, address.is_ipv6(), line));
    }
    lines.sort_by_key(|(expiry, ..)| Reverse(*expiry));
    lines.truncate(MOST_LEASES);
    // As dnsmasq itself writes them: those of IPv6 last, behind the server's name.
    let (of_6, of_4): (Vec<_>, Vec<_>) = lines.into_iter().partition(|(_, is_ip6, _)| *is_ip6);
    let ip6 = network.managed().and_then(|managed| managed.ip6.as_ref());
    let server = ip6.map(|_| format!("duid {}\n", server_duid(network.vni)));
    let text = |lines: Vec<(u64, bool, String)>| lines.into_iter().map(|(.., line)| line);
    text(of_4).chain(server).chain(text(of_6)).collect()
}

/// The name of a network's server in DHCP of IPv6, the same on each node: a guest renews its lease
/// with the server of this name, and another one would not answer before most of its time is over.
/// It is made of a MAC address that no card has (DUID-LL).
fn server_duid(vni: Vni) -> String {
    let [_, a, b, c] = vni.get().to_be_bytes();
    format!("00:03:00:01:{}", mac_text([0x02, 0x70, 0x76, a, b, c]))
}

/// Leases of IPv6 that are recorded and not of the network any more: no server says when they end.
pub fn left_of_6<'a>(
    network: &GuestNetwork,
    leases: &'a [LeaseRecord],
) -> impl Iterator<Item = Ipv6Addr> + use<'a> {
    let ip6 = network.managed().and_then(|managed| managed.ip6.as_ref()).map(|ip6| ip6.network);
    let of_6 = leases.iter().filter(|lease| lease.ip6.is_some());
    let addresses = of_6.filter_map(|lease| lease.address.parse::<Ipv6Addr>().ok());
    addresses.filter(move |address| !ip6.is_some_and(|net| net.contains(address)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::NetworkRecord;

    fn record() -> NetworkRecord {
        NetworkRecord {
            vni: "1001".to_owned(),
            nettype: "managed".to_owned(),
            domain: "net1.example".to_owned(),
            ip4_network: "10.20.1.0/24".to_owned(),
            ip4_gateway: "10.20.1.1".to_owned(),
            dhcp4_flag: "True".to_owned(),
            dhcp4_start: "10.20.1.100".to_owned(),
            dhcp4_end: "10.20.1.199".to_owned(),
            ..NetworkRecord::default()
        }
    }

    fn dual() -> NetworkRecord {
        NetworkRecord {
            ip6_network: "2001:db8:1::/64".to_owned(),
            ip6_gateway: "2001:db8:1::1".to_owned(),
            dhcp6_flag: "True".to_owned(),
            ..record()
        }
    }

    fn network(record: &NetworkRecord) -> GuestNetwork {
        GuestNetwork::read(record).unwrap().0
    }

    /// The server where all gateways are, or only `here`.
    fn server_at(
        record: &NetworkRecord,
        leases: &[LeaseRecord],
        here: &[&str],
        mtu: Option<u32>,
    ) -> Option<Dnsmasq> {
        server_with(record, leases, here, mtu, &BTreeSet::new())
    }

    /// Same as [`server_at`], with these cards of VMs in the network.
    fn server_with(
        record: &NetworkRecord,
        leases: &[LeaseRecord],
        here: &[&str],
        mtu: Option<u32>,
        cards: &BTreeSet<Mac>,
    ) -> Option<Dnsmasq> {
        let gateways = here.iter().map(|gateway| gateway.parse().unwrap()).collect();
        let network = network(record);
        let division = Division::of(&network, leases, cards);
        let (file, script) = ("/run/conf", "/usr/bin/pvcd");
        let (division, names) = (&division, &Names::default());
        let place = Place { gateways: &gateways, division, names, mtu, file, script };
        dnsmasq(&network, leases, place)
    }

    const GATEWAYS: [&str; 2] = ["10.20.1.1", "2001:db8:1::1"];

    fn server(record: &NetworkRecord, leases: &[LeaseRecord]) -> Dnsmasq {
        server_at(record, leases, &GATEWAYS, None).unwrap()
    }

    fn args(record: &NetworkRecord) -> Vec<String> {
        server(record, &[]).args
    }

    fn has(args: &[String], wanted: &str) -> bool {
        args.iter().any(|arg| arg == wanted)
    }

    #[test]
    fn a_network_of_ipv4_gives_addresses_and_names() {
        let args = args(&record());
        for wanted in [
            "--interface=vmbr1001",
            "--domain=net1.example",
            "--local=/net1.example/",
            "--auth-peer=10.20.1.1",
            "--dhcp-ignore-clid",
            "--dhcp-range=tag:known,10.20.1.100,10.20.1.124,48h",
            "--dhcp-range=10.20.1.125,10.20.1.199,48h",
            "--dhcp-option=option:ntp-server,10.20.1.1",
            "--dhcp-name-match=set:nobodys,wpad",
            "--dhcp-name-match=set:nobodys,isatap.*",
            "--dhcp-ignore-names=tag:nobodys",
            // Not the 100 of its range.
            "--dhcp-lease-max=10000",
        ] {
            assert!(has(&args, wanted), "{wanted} in {args:?}");
        }
        assert!(!args.iter().any(|arg| arg.contains("ra") && arg.starts_with("--enable")));
    }

    /// The program of PVC 1.0.3 listened on IPv6 alone then.
    #[test]
    fn a_network_of_both_serves_both() {
        let args = args(&dual());
        for wanted in [
            "--dhcp-range=10.20.1.125,10.20.1.199,48h",
            "--dhcp-range=::,constructor:vmbr1001,ra-stateless,ra-names",
            "--dhcp-option=option6:dns-server,[2001:db8:1::1]",
            "--enable-ra",
            "--auth-peer=2001:db8:1::1",
        ] {
            assert!(has(&args, wanted), "{wanted} in {args:?}");
        }
        // Lesson H3.
        assert!(!args.iter().any(|arg| arg.starts_with("--listen-address")));
    }

    /// Options of `spec/network.md` §4, but for `--listen-address` (lesson H3).
    #[test]
    fn every_server_has_the_options_of_pvc_1_0_3() {
        let without_dhcp = NetworkRecord { dhcp4_flag: "False".to_owned(), ..record() };
        let of_ipv6 = NetworkRecord { ip4_network: "None".to_owned(), ..dual() };
        for (record, gateway) in [
            (record(), "10.20.1.1"),
            (without_dhcp, "10.20.1.1"),
            (dual(), "10.20.1.1"),
            (of_ipv6, "2001:db8:1::1"),
        ] {
            let args = args(&record);
            let always = [
                "--domain-needed",
                "--bogus-priv",
                "--no-hosts",
                "--dhcp-authoritative",
                "--filterwin2k",
                "--expand-hosts",
                "--domain=net1.example",
                "--local=/net1.example/",
                "--log-facility=-",
                "--log-dhcp",
                "--keep-in-foreground",
                "--leasefile-ro",
                "--dhcp-script=/usr/bin/pvcd",
                "--bind-interfaces",
                "--auth-zone=net1.example",
            ];
            let authority = ["auth-peer", "auth-server", "auth-sec-servers"]
                .map(|option| format!("--{option}={gateway}"));
            for wanted in always.into_iter().chain(authority.iter().map(String::as_str)) {
                assert!(has(&args, wanted), "{wanted} in {args:?}");
            }
            let servers = args.iter().filter(|arg| arg.starts_with("--auth-server="));
            assert_eq!(servers.count(), 1, "{args:?}");
            let time = "--dhcp-option=option6:sntp-server,[2001:db8:1::1]";
            assert_eq!(has(&args, time), record.dhcp6_flag == "True", "{args:?}");
        }
    }

    #[test]
    fn the_family_without_gateway_here_is_left_out_and_the_other_one_served_as_ever() {
        let one = |here| server_at(&dual(), &[], &[here], None).unwrap().args;
        let (ip4, ip6) = (one("10.20.1.1"), one("2001:db8:1::1"));
        assert!(has(&ip4, "--dhcp-range=10.20.1.125,10.20.1.199,48h"), "{ip4:?}");
        assert!(!ip4.iter().any(|arg| arg.contains("::") || arg == "--enable-ra"), "{ip4:?}");
        let stateless = "--dhcp-range=::,constructor:vmbr1001,ra-stateless,ra-names";
        assert!(has(&ip6, stateless), "{ip6:?}");
        assert!(!ip6.iter().any(|arg| arg.contains("10.20.1")), "{ip6:?}");
        assert_eq!(server_at(&dual(), &[], &["10.20.1.2"], None), None);
    }

    #[test]
    fn a_network_of_ipv6_alone_gives_addresses_of_its_own() {
        let only = NetworkRecord { ip4_network: "None".to_owned(), ..dual() };
        let args = args(&only);
        let range = "--dhcp-range=::2,::ffff:ffff:ffff:ffff,constructor:vmbr1001,64,24h";
        assert!(has(&args, range), "{args:?}");
        assert!(!args.iter().any(|arg| arg.contains("10.20.1")));
    }

    #[test]
    fn a_network_without_dhcp_has_names_and_time_and_one_without_gateway_nothing() {
        let names = NetworkRecord { dhcp4_flag: "False".to_owned(), ..record() };
        let args = args(&names);
        assert!(has(&args, "--auth-zone=net1.example"));
        assert!(!args.iter().any(|arg| arg.starts_with("--dhcp-range")));
        let none = NetworkRecord { ip4_gateway: "None".to_owned(), ..record() };
        assert_eq!(server_at(&none, &[], &GATEWAYS, None), None);
        let bridged = NetworkRecord { nettype: "bridged".into(), vni: "101".into(), ..record() };
        assert_eq!(server_at(&bridged, &[], &GATEWAYS, None), None);
    }

    #[test]
    fn guests_hear_of_an_mtu_that_is_smaller_than_theirs() {
        let args = |mtu| server_at(&record(), &[], &GATEWAYS, Some(mtu)).unwrap().args;
        assert!(has(&args(1450), "--dhcp-option=option:mtu,1450"));
        assert!(!args(8950).iter().any(|arg| arg.contains("option:mtu")));
    }

    fn lease(mac: &str, address: &str, hostname: &str, expiry: Option<&str>) -> LeaseRecord {
        LeaseRecord {
            mac: mac.to_owned(),
            address: address.to_owned(),
            hostname: hostname.to_owned(),
            expiry: expiry.map(str::to_owned),
            client_id: "*".to_owned(),
            ip6: None,
        }
    }

    /// A network whose range begins with 10.20.1.100.
    fn ending_with(end: &str) -> NetworkRecord {
        NetworkRecord {
            ip4_network: "10.20.0.0/16".to_owned(),
            dhcp4_end: end.to_owned(),
            ..record()
        }
    }

    fn cards(count: u8) -> BTreeSet<Mac> {
        (0..count).map(|last| [0x52, 0x54, 0, 0, 0, last]).collect()
    }

    /// A guest may call itself by as many MAC addresses as it likes.
    #[test]
    fn a_part_of_a_range_is_for_the_cards_of_vms_alone_unless_the_range_is_small() {
        let reserved = [
            lease("52:54:00:00:00:01", "10.20.1.100", "web1", None),
            lease("52:54:00:00:00:ff", "10.20.1.101", "", None),
            lease("52:54:00:00:00:02", "10.20.1.50", "", None),
        ];
        for (end, leases, count, of_vms, others) in [
            ("10.20.1.109", &[][..], 9, "", "10.20.1.100,10.20.1.109"),
            ("10.20.1.162", &[], 63, "", "10.20.1.100,10.20.1.162"),
            ("10.20.1.163", &[], 0, "10.20.1.100,10.20.1.115", "10.20.1.116,10.20.1.163"),
            ("10.20.1.199", &[], 0, "10.20.1.100,10.20.1.124", "10.20.1.125,10.20.1.199"),
            ("10.20.1.199", &[], 25, "10.20.1.100,10.20.1.131", "10.20.1.132,10.20.1.199"),
            ("10.20.1.199", &[], 32, "10.20.1.100,10.20.1.131", "10.20.1.132,10.20.1.199"),
            // Two of the cards have their reservations, one of which lies outside of the range.
            ("10.20.1.199", &reserved, 32, "10.20.1.100,10.20.1.131", "10.20.1.132,10.20.1.199"),
            ("10.20.1.199", &reserved, 33, "10.20.1.100,10.20.1.163", "10.20.1.164,10.20.1.199"),
            ("10.20.1.199", &[], 65, "10.20.1.100,10.20.1.174", "10.20.1.175,10.20.1.199"),
            ("10.20.1.199", &[], 200, "10.20.1.100,10.20.1.174", "10.20.1.175,10.20.1.199"),
            ("10.20.41.99", &[], 5, "10.20.1.100,10.20.37.99", "10.20.37.100,10.20.41.99"),
        ] {
            let record = ending_with(end);
            let server = server_with(&record, leases, &GATEWAYS, None, &cards(count)).unwrap();
            let ranges: Vec<&str> =
                server.args.iter().filter_map(|arg| arg.strip_prefix("--dhcp-range=")).collect();
            let is_divided = !of_vms.is_empty();
            let of_vms = is_divided.then(|| format!("tag:known,{of_vms},48h"));
            let expected: Vec<String> =
                of_vms.into_iter().chain([format!("{others},48h")]).collect();
            assert_eq!(ranges, expected, "{end} {count}");
            assert_eq!(has(&server.args, "--dhcp-ignore-clid"), is_divided);
            assert_eq!(
                server.hosts.contains("dhcp-host=52:54:00:00:00:00\n"),
                is_divided && count > 0
            );
        }
        let mut guarded = network(&ending_with("10.20.1.109"));
        guarded.options.spoof_guard = true;
        let gateways = ["10.20.1.1".parse().unwrap()].into();
        let (division, file) = (&Division::default(), "/run/conf");
        let (names, script) = (&Names::default(), "/bin/x");
        let place = Place { gateways: &gateways, division, names, mtu: None, file, script };
        let server = dnsmasq(&guarded, &[], place).unwrap();
        assert!(has(&server.args, "--dhcp-ignore-clid"), "{:?}", server.args);
        // A line makes the host one that dnsmasq knows.
        let server = server_with(&record(), &reserved, &GATEWAYS, None, &cards(3)).unwrap();
        assert_eq!(
            server.hosts,
            "dhcp-host=52:54:00:00:00:02,10.20.1.50\ndhcp-host=52:54:00:00:00:01,10.20.1.100,web1\n\
             dhcp-host=52:54:00:00:00:ff,10.20.1.101\ndhcp-host=52:54:00:00:00:00\n"
        );
    }

    #[test]
    fn whoever_has_an_address_of_the_part_for_cards_keeps_it() {
        let leases = [
            lease("52:54:00:cc:00:01", "10.20.1.124", "", Some("9")),
            lease("52:54:00:cc:00:02", "10.20.1.125", "", Some("9")),
            lease("none", "10.20.1.101", "", Some("9")),
        ];
        let server = server(&record(), &leases);
        assert_eq!(server.hosts, "dhcp-host=52:54:00:cc:00:01\n");
    }

    #[test]
    fn a_card_that_is_new_is_a_reason_for_another_server_only_if_it_may_find_no_address() {
        let (network, one, two) = (network(&record()), cards(1), cards(2));
        // 75 addresses are anybody's.
        let taken = |count: u8| -> Vec<LeaseRecord> {
            let other = |number| {
                let address = format!("10.20.1.{}", 125 + number);
                lease(&format!("52:54:00:cc:00:{number:02x}"), &address, "", Some("9"))
            };
            (0..count).map(other).collect()
        };
        let division = Division::of(&network, &[], &one);
        assert!(!division.is_outdated(&network, &taken(65), &two));
        assert!(division.is_outdated(&network, &taken(66), &two));
        assert!(!division.is_outdated(&network, &taken(75), &one), "it is known");
        assert!(!division.is_outdated(&network, &taken(75), &cards(0)), "it is gone");
        let small = GuestNetwork::read(&ending_with("10.20.1.109")).unwrap().0;
        let undivided = Division::of(&small, &taken(75), &one);
        assert!(!undivided.is_outdated(&small, &taken(75), &two), "it would find none either way");
    }

    #[test]
    fn reservations_that_are_none_do_not_spoil_the_others() {
        let leases = [
            lease("52:54:00:00:00:01", "10.20.1.50", "web1", None),
            lease("52:54:00:00:00:02", "10.20.1.51", "None", None),
            lease("52:54:00:00:00:03", "10.20.2.52", "", None),
            lease("not a mac", "10.20.1.53", "", None),
            lease("52:54:00:00:00:04", "10.20.1.54", "a b,set:x\nserver", None),
            lease("52:54:00:00:00:05", "10.20.1.50", "again", None),
            lease("52:54:00:00:00:06", "10.20.1.150", "given", Some("1731672000")),
        ];
        let server = server(&record(), &leases);
        assert_eq!(
            server.hosts,
            "dhcp-host=52:54:00:00:00:01,10.20.1.50,web1\ndhcp-host=52:54:00:00:00:02,10.20.1.51\n\
             dhcp-host=52:54:00:00:00:04,10.20.1.54\n"
        );
        let network = network(&record());
        assert_eq!(
            database(&network, &leases, 1_731_500_000, |_| true),
            "1731672000 52:54:00:00:00:06 10.20.1.150 given *\n"
        );
    }

    /// `ignore` kept a host without any address.
    #[test]
    fn names_that_mean_something_else_in_a_reservation_are_left_out_of_it() {
        for name in
            ["ignore", "Ignore", "infinite", "5", "90", "12h", "1S", "7w", "30m", "2d", "_x"]
        {
            let leases = [lease("52:54:00:00:00:01", "10.20.1.50", name, None)];
            let server = server(&record(), &leases);
            let reserved = "dhcp-host=52:54:00:00:00:01,10.20.1.50\n";
            assert_eq!(server.hosts, reserved, "{name}");
        }
        for name in ["web1", "h", "12x", "1a", "h12", "hh", "12-h", "ignored", "x_y", "4s5"] {
            assert!(is_reservable(name), "{name}");
        }
        assert!(!is_reservable(""));
    }

    /// Guests of PVC 1.0.3 that renewed their leases have records that are over.
    #[test]
    fn a_lease_of_a_vm_that_seems_to_be_over_goes_on_for_a_day() {
        let leases = [
            lease("52:54:00:00:00:01", "10.20.1.100", "old", Some("5")),
            lease("52:54:00:00:00:02", "10.20.1.101", "new", Some("172799")),
            lease("52:54:00:00:00:03", "10.20.1.102", "odd", Some("18446744073709551615")),
            lease("52:54:00:00:00:04", "10.20.1.103", "gone", Some("4")),
        ];
        let network = network(&record());
        assert_eq!(
            database(&network, &leases, 86_400, |mac| mac[5] != 4),
            "18446744073709551615 52:54:00:00:00:03 10.20.1.102 odd *\n\
             172800 52:54:00:00:00:02 10.20.1.101 new *\n\
             172800 52:54:00:00:00:01 10.20.1.100 old *\n4 52:54:00:00:00:04 10.20.1.103 gone *\n"
        );
    }

    #[test]
    fn a_server_hears_of_no_more_leases_than_it_takes_and_of_those_that_go_on_longest() {
        let wide = NetworkRecord { ip4_network: "10.20.0.0/16".to_owned(), ..record() };
        let leases: Vec<LeaseRecord> = (0..MOST_LEASES + 2)
            .map(|number| {
                let [high, low] = u16::try_from(number).unwrap().to_be_bytes();
                let mac = format!("52:54:00:00:{high:02x}:{low:02x}");
                let expiry = (1_731_600_000 + number).to_string();
                lease(&mac, &format!("10.20.{high}.{low}"), "", Some(&expiry))
            })
            .collect();
        let network = network(&wide);
        let shown = database(&network, &leases, 0, |_| false);
        assert_eq!(shown.lines().count(), MOST_LEASES);
        assert!(!shown.contains(" 10.20.0.1 ") && shown.contains(" 10.20.0.2 "));
    }

    fn lease6(address: &str, duid: &str, iaid: &str, expiry: &str) -> LeaseRecord {
        let ip6 = Some(Ip6Client { duid: duid.to_owned(), iaid: iaid.to_owned() });
        LeaseRecord { ip6, ..lease("", address, "web6", Some(expiry)) }
    }

    #[test]
    fn a_server_hears_of_leases_of_ipv6_and_of_the_name_that_the_one_before_had() {
        let only = NetworkRecord { ip4_network: "None".to_owned(), ..dual() };
        let (duid, own) = ("00:03:00:01:52:54:00:aa:bb:01", "52:54:00:aa:bb:01");
        let of_a_vm =
            LeaseRecord { mac: own.to_owned(), ..lease6("2001:db8:1::9", duid, "7", "5") };
        let leases = [
            lease6("2001:db8:1::a", duid, "T8", "172799"),
            of_a_vm,
            lease6("2001:db8:2::b", duid, "7", "172799"),
            lease6("10.20.1.5", duid, "7", "172799"),
            lease6("2001:db8:1::c", "no name", "7", "172799"),
            lease6("2001:db8:1::d", duid, "-7", "172799"),
            lease(own, "2001:db8:1::e", "", Some("172799")),
        ];
        let text = "duid 00:03:00:01:02:70:76:00:03:e9\n\
                    172799 T8 2001:db8:1::a web6 00:03:00:01:52:54:00:aa:bb:01\n\
                    172800 7 2001:db8:1::9 web6 00:03:00:01:52:54:00:aa:bb:01\n";
        assert_eq!(database(&network(&only), &leases, 86_400, |_| true), text);
        let both = [lease(own, "10.20.1.100", "web1", Some("172798"))];
        let both = database(&network(&dual()), &[&both[..], &leases[..1]].concat(), 0, |_| false);
        let lines: Vec<&str> = both.lines().collect();
        assert_eq!(lines[0], "172798 52:54:00:aa:bb:01 10.20.1.100 web1 *");
        assert!(lines[1].starts_with("duid ") && lines[2].starts_with("172799 T8 "), "{both}");
        assert!(!database(&network(&record()), &leases, 0, |_| false).contains("duid"));
        let left: Vec<String> =
            left_of_6(&network(&only), &leases).map(|address| address.to_string()).collect();
        assert_eq!(left, ["2001:db8:2::b"]);
        assert_eq!(left_of_6(&network(&record()), &leases).count(), 5, "it has no IPv6 any more");
    }

    fn news(args: &[&str], environment: &[(&str, &str)]) -> Option<LeaseNews> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        LeaseNews::read(&args, |key| {
            environment.iter().find(|(name, _)| *name == key).map(|(_, value)| (*value).to_owned())
        })
    }

    const UNTIL: (&str, &str) = ("DNSMASQ_LEASE_EXPIRES", "1731672000");

    #[test]
    fn what_a_dhcp_server_says_of_leases_is_understood() {
        let mac = "52:54:00:00:00:01".to_owned();
        let given = GivenLease {
            mac: mac.clone(),
            address: "10.20.1.100".parse().unwrap(),
            hostname: Some("web1".to_owned()),
            expiry: Some(1_731_672_000),
            client_id: Some("ff:00:01".to_owned()),
        };
        let add = ["add", "52:54:00:00:00:01", "10.20.1.100", "Web1"];
        let client = ("DNSMASQ_CLIENT_ID", "ff:00:01");
        assert_eq!(news(&add, &[UNTIL, client]), Some(LeaseNews::Given(given.clone())));
        let anonymous = GivenLease { hostname: None, client_id: None, ..given };
        let old = ["old", "52:54:00:00:00:01", "10.20.1.100"];
        assert_eq!(news(&old, &[UNTIL]), Some(LeaseNews::Given(anonymous)));
        let del = ["del", "52:54:00:00:00:01", "10.20.1.100"];
        let address = "10.20.1.100".parse().unwrap();
        assert_eq!(news(&del, &[]), Some(LeaseNews::Ended { mac, address }));
    }

    /// Words of dnsmasq 2.90, which knows the MAC address only when the client has just asked.
    #[test]
    fn a_lease_of_ipv6_is_of_a_client_that_names_itself() {
        let duid = "00:03:00:01:52:54:00:AA:bb:01";
        let add = ["add", duid, "2001:db8:1:0:0:0:0:9", "web6"];
        let (iaid, mac) = (("DNSMASQ_IAID", "7"), ("DNSMASQ_MAC", "52:54:00:AA:bb:01"));
        let given = GivenLease6 {
            address: "2001:db8:1::9".parse().unwrap(),
            client: ip6_client(duid, "7").unwrap(),
            mac: Some("52:54:00:aa:bb:01".to_owned()),
            hostname: Some("web6".to_owned()),
            expiry: 1_731_672_000,
        };
        assert_eq!(news(&add, &[UNTIL, iaid, mac]), Some(LeaseNews::Given6(given.clone())));
        let unknown = GivenLease6 { mac: None, hostname: None, ..given.clone() };
        let old = ["old", duid, "2001:db8:1::9"];
        assert_eq!(news(&old, &[UNTIL, iaid]), Some(LeaseNews::Given6(unknown)));
        let del = ["del", duid, "2001:db8:1::9", "web6"];
        assert_eq!(news(&del, &[UNTIL, iaid]), Some(LeaseNews::Ended6(given.address)));
        for (iaid, is_one) in [("T7", true), ("4294967295", true), ("4294967296", false)] {
            let found = news(&old, &[UNTIL, ("DNSMASQ_IAID", iaid)]);
            assert_eq!(found.is_some(), is_one, "{iaid}");
        }
        for iaid in ["", "T", "TT7", "+7", "7 8"] {
            assert_eq!(news(&old, &[UNTIL, ("DNSMASQ_IAID", iaid)]), None, "{iaid:?}");
        }
        assert_eq!(news(&old, &[UNTIL]), None, "of no interface");
        assert_eq!(news(&old, &[iaid]), None, "without an end");
        let long = "00:".repeat(400);
        for duid in ["", "web6", "00 01", &long] {
            assert_eq!(news(&["add", duid, "2001:db8:1::9"], &[UNTIL, iaid]), None, "{duid}");
        }
    }

    #[test]
    fn junk_is_no_news_of_a_lease() {
        for junk in [
            &[][..],
            &["add"],
            &["add", "x", "10.20.1.100"],
            &["add", "06-52:54:00:00:00:01", "10.20.1.100"],
            &["add", "00:01:00:01:2e:d4:52:54:00:00:00:01", "2001:db8::1"],
            &["add", "52:54:00:00:00:01", "999.1.1.1"],
            &["tftp", "52:54:00:00:00:01", "10.20.1.100"],
            &["arp-add", "52:54:00:00:00:01", "10.20.1.100"],
            &["; rm", "52:54:00:00:00:01", "10.20.1.100"],
        ] {
            assert_eq!(news(junk, &[UNTIL]), None, "{junk:?}");
        }
        let add = ["add", "52:54:00:00:00:01", "10.20.1.100", "evil;name"];
        assert_eq!(news(&add, &[]), None, "without an end");
        let Some(LeaseNews::Given(given)) = news(&add, &[UNTIL, ("DNSMASQ_CLIENT_ID", "not hex")])
        else {
            panic!("it is a lease");
        };
        assert_eq!((given.hostname, given.client_id), (None, None));
    }
}
