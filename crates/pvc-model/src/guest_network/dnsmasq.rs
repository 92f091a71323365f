//! The DHCP and DNS server of a managed network: arguments and files of its dnsmasq
//! (`spec/network.md` §4), and what it says of leases.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};

use super::{GuestNetwork, Ip4, Ip6, Managed, Vni, is_unset};
use crate::link::Mac;
use crate::network::{GivenLease, LeaseRecord};

/// Time for which an address is given.
const LEASE: &str = "48h";

/// The most leases that a server keeps, however many addresses there are: each is a record, and no
/// more of a list are read. Its own limit is no smaller for a small range: addresses that are
/// reserved, and those of a range that was recorded before, lie outside of it, and with more leases
/// than its limit dnsmasq does not start.
pub const MOST_LEASES: usize = 10_000;

/// The least time for which a lease goes on, in seconds, that a server is told of when it starts.
/// Servers of PVC 1.0.3 did not record when a guest renewed: what the record says may be over while
/// the guest has the address.
const LEAST_LEFT: u64 = 24 * 3600;

/// Everything that the DHCP server of a network is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dnsmasq {
    pub args: Vec<String>,
    /// Contents of its configuration file, with the reservations: dnsmasq reads it as root, at its
    /// start alone.
    pub reservations: String,
}

/// The node on which a server is to run.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Gateways that the network's bridge has. The family of another one is not served.
    pub gateways: &'a BTreeSet<IpAddr>,
    /// MTU of the bridge, if it is known.
    pub mtu: Option<u32>,
    /// Path of the file with the reservations.
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
        args.dhcp4(ip4, gateway, place.mtu);
    }
    if let Some((ip6, gateway)) = ip6 {
        args.dhcp6(ip6, gateway, network.vni, has_dhcp4);
    }
    Some(Dnsmasq { args: args.0, reservations: reservations(managed, leases) })
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

    fn dhcp4(&mut self, ip4: &Ip4, gateway: Ipv4Addr, mtu: Option<u32>) {
        let Some((start, end)) = ip4.dhcp else { return };
        self.add(format!("--dhcp-option=option:ntp-server,{gateway}"));
        // A guest does not see by itself that the tunnel takes its part of each frame.
        if let Some(mtu) = mtu.filter(|mtu| *mtu < super::ETHERNET_MTU) {
            self.add(format!("--dhcp-option=option:mtu,{mtu}"));
        }
        self.add(format!("--dhcp-range={start},{end},{LEASE}"));
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

/// Reservations as dnsmasq reads them: a line each. What is not one is left out.
fn reservations(managed: &Managed, leases: &[LeaseRecord]) -> String {
    let mut text = String::new();
    let Some(ip4) = &managed.ip4 else { return text };
    let mut taken: BTreeMap<Ipv4Addr, Mac> = BTreeMap::new();
    for lease in leases.iter().filter(|lease| lease.expiry.is_none()) {
        let address: Option<Ipv4Addr> = lease.address.parse().ok();
        let address = address.filter(|address| ip4.network.contains(address));
        let (Some(mac), Some(address)) = (parse_mac(&lease.mac), address) else { continue };
        // dnsmasq refuses a file in which an address is reserved twice.
        if taken.insert(address, mac).is_some() {
            continue;
        }
        let name = host_name(&lease.hostname).filter(|name| is_reservable(name));
        let name = name.map(|name| format!(",{name}")).unwrap_or_default();
        writeln!(text, "dhcp-host={},{address}{name}", shown_mac(&mac))
            .expect("a text takes everything");
    }
    text
}

/// Reads a MAC address with colons between its parts.
pub fn parse_mac(text: &str) -> Option<Mac> {
    let mut mac = Mac::default();
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next()?;
        let is_plain = part.len() == 2 && part.bytes().all(|c| c.is_ascii_hexdigit());
        *byte = u8::from_str_radix(part, 16).ok().filter(|_| is_plain)?;
    }
    parts.next().is_none().then_some(mac)
}

/// A MAC address as records have it: small letters, with colons.
pub fn shown_mac(mac: &Mac) -> String {
    let parts: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
    parts.join(":")
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

/// Report of a DHCP server about a lease of IPv4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseNews {
    /// The lease was given, or goes on.
    Given(GivenLease),
    Ended {
        mac: String,
        address: Ipv4Addr,
    },
}

/// The longest identification of a client that is recorded, in characters. RFC 2132 has 255 bytes.
const CLIENT_ID: usize = 255 * 3;

impl LeaseNews {
    /// In small letters, with colons.
    pub fn mac(&self) -> &str {
        match self {
            LeaseNews::Given(GivenLease { mac, .. }) | LeaseNews::Ended { mac, .. } => mac,
        }
    }

    /// Reads what dnsmasq calls its script with: `add|old|del MAC ADDRESS [NAME]`, and what its
    /// environment says. `None` for what is of no interest (IPv6, files of TFTP) or is junk.
    pub fn read(
        args: &[String],
        environment: impl Fn(&str) -> Option<String>,
    ) -> Option<LeaseNews> {
        let [action, mac, address, rest @ ..] = args else { return None };
        // With a type of hardware in front that is not Ethernet (`06-…`), or a DUID: not ours.
        let mac = shown_mac(&parse_mac(mac)?);
        let address: Ipv4Addr = address.parse().ok()?;
        match action.as_str() {
            "del" => Some(LeaseNews::Ended { mac, address }),
            "add" | "old" => Some(LeaseNews::Given(GivenLease {
                mac,
                address,
                hostname: rest.first().and_then(|name| host_name(name)),
                expiry: Some(environment("DNSMASQ_LEASE_EXPIRES")?.parse().ok()?),
                client_id: environment("DNSMASQ_CLIENT_ID").filter(|id| is_client_id(id)),
            })),
            _ => None,
        }
    }
}

fn is_client_id(text: &str) -> bool {
    let is_plain = |c: u8| c.is_ascii_hexdigit() || c == b':';
    (1..=CLIENT_ID).contains(&text.len()) && text.bytes().all(is_plain)
}

/// The leases of a network as dnsmasq reads them when it starts: `EXPIRY MAC ADDRESS NAME CLIENT`,
/// a line each, with `*` for what there is none of. What is not one is left out, and so are those
/// that end first if there are too many. `now` is the second since the epoch; a lease of one that
/// `is_of_a_vm` says of is told to go on for a while.
pub fn database(
    managed: &Managed,
    leases: &[LeaseRecord],
    now: u64,
    is_of_a_vm: impl Fn(&Mac) -> bool,
) -> String {
    let Some(ip4) = &managed.ip4 else { return String::new() };
    let mut lines: Vec<(u64, String)> = Vec::new();
    for lease in leases {
        let Some(expiry) = lease.expiry.as_ref().and_then(|expiry| expiry.parse::<u64>().ok())
        else {
            continue;
        };
        let address: Option<Ipv4Addr> = lease.address.parse().ok();
        let address = address.filter(|address| ip4.network.contains(address));
        let (Some(mac), Some(address)) = (parse_mac(&lease.mac), address) else { continue };
        let name = host_name(&lease.hostname).unwrap_or_else(|| "*".to_owned());
        let client = Some(&lease.client_id).filter(|id| is_client_id(id));
        let client = client.map_or("*", String::as_str);
        let least = if is_of_a_vm(&mac) { now.saturating_add(LEAST_LEFT) } else { 0 };
        let mac = shown_mac(&mac);
        let end = expiry.max(least);
        lines.push((expiry, format!("{end} {mac} {address} {name} {client}\n")));
    }
    lines.sort_by_key(|(expiry, _)| Reverse(*expiry));
    lines.into_iter().take(MOST_LEASES).map(|(_, line)| line).collect()
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
        let gateways = here.iter().map(|gateway| gateway.parse().unwrap()).collect();
        let place = Place { gateways: &gateways, mtu, file: "/run/conf", script: "/usr/bin/pvcd" };
        dnsmasq(&network(record), leases, place)
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
            "--dhcp-range=10.20.1.100,10.20.1.199,48h",
            "--dhcp-option=option:ntp-server,10.20.1.1",
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
            "--dhcp-range=10.20.1.100,10.20.1.199,48h",
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

    #[test]
    fn the_family_without_gateway_here_is_left_out_and_the_other_one_served_as_ever() {
        let one = |here| server_at(&dual(), &[], &[here], None).unwrap().args;
        let (ip4, ip6) = (one("10.20.1.1"), one("2001:db8:1::1"));
        assert!(has(&ip4, "--dhcp-range=10.20.1.100,10.20.1.199,48h"), "{ip4:?}");
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
        }
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
            lease("52:54:00:00:00:06", "10.20.1.100", "given", Some("1731672000")),
        ];
        let server = server(&record(), &leases);
        assert_eq!(
            server.reservations,
            "dhcp-host=52:54:00:00:00:01,10.20.1.50,web1\ndhcp-host=52:54:00:00:00:02,10.20.1.51\n\
             dhcp-host=52:54:00:00:00:04,10.20.1.54\n"
        );
        let network = network(&record());
        assert_eq!(
            database(network.managed().unwrap(), &leases, 1_731_500_000, |_| true),
            "1731672000 52:54:00:00:00:06 10.20.1.100 given *\n"
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
            assert_eq!(server.reservations, reserved, "{name}");
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
        let managed = network.managed().unwrap();
        assert_eq!(
            database(managed, &leases, 86_400, |mac| mac[5] != 4),
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
        let heard = database(network.managed().unwrap(), &leases, 0, |_| false);
        assert_eq!(heard.lines().count(), MOST_LEASES);
        assert!(!heard.contains(" 10.20.0.1 ") && heard.contains(" 10.20.0.2 "));
    }

    fn news(args: &[&str], environment: &[(&str, &str)]) -> Option<LeaseNews> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        LeaseNews::read(&args, |key| {
            environment.iter().find(|(name, _)| *name == key).map(|(_, value)| (*value).to_owned())
        })
    }

    const EXPIRES: (&str, &str) = ("DNSMASQ_LEASE_EXPIRES", "1731672000");

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
        assert_eq!(news(&add, &[EXPIRES, client]), Some(LeaseNews::Given(given.clone())));
        let anonymous = GivenLease { hostname: None, client_id: None, ..given };
        let old = ["old", "52:54:00:00:00:01", "10.20.1.100"];
        assert_eq!(news(&old, &[EXPIRES]), Some(LeaseNews::Given(anonymous)));
        let del = ["del", "52:54:00:00:00:01", "10.20.1.100"];
        let address = "10.20.1.100".parse().unwrap();
        assert_eq!(news(&del, &[]), Some(LeaseNews::Ended { mac, address }));
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
            assert_eq!(news(junk, &[EXPIRES]), None, "{junk:?}");
        }
        let add = ["add", "52:54:00:00:00:01", "10.20.1.100", "evil;name"];
        assert_eq!(news(&add, &[]), None, "without an end");
        let Some(LeaseNews::Given(given)) =
            news(&add, &[EXPIRES, ("DNSMASQ_CLIENT_ID", "not hex")])
        else {
            panic!("it is a lease");
        };
        assert_eq!((given.hostname, given.client_id), (None, None));
    }
}
