//! The guard against guests that send as others (`NetworkOptions::spoof_guard`): the words for nft.
//!
//! Each port of a guest on the bridge of a guarded network lets in frames from the guest's own MAC
//! address, under addresses that DHCP has given or keeps for it, and nothing that a DHCP server or
//! a router says. Of DHCP it asks for itself alone: what a request says of its sender decides whose
//! lease it is about, and by leases the guard knows addresses. It judges what enters the bridge
//! from a guest, and nothing else. A port of a guest that is not known yet lets nothing in: a guest
//! decides itself when it starts, and would have a while without a guard each time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::Ipv6Net;

use crate::cluster::Cluster;
use crate::domain::{DomainSummary, NicKind};
use crate::firewall::{TableFamily, TableName};
use crate::guest_network::{GuestNetwork, GuestNetworks, Vni};
use crate::link::{Mac, is_link_name, mac_text, parse_mac};
use crate::network::LeaseRecord;

/// The table that is the guard.
pub fn table() -> TableName {
    TableName::new(TableFamily::Bridge, "pvc-guard").expect("the name is one of ours")
}

/// Kind of the link that is a guest's port, by the kernel's word.
pub const GUEST_PORT: &str = "tun";

/// Bridges that are guarded, and the guests on them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guarded {
    /// Bridges on which a port that is none of `ports`, and is one of a guest, lets nothing in.
    pub closed: BTreeSet<String>,
    /// Ports of guests that are known, by their links.
    pub ports: BTreeMap<String, GuardedPort>,
}

/// The port of a guest on the bridge of a guarded network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardedPort {
    pub mac: Mac,
    /// Addresses that DHCP has given to it or keeps for it.
    pub addresses: BTreeSet<IpAddr>,
    /// Network of IPv6 in which guests make addresses from their MAC address by themselves.
    pub ip6: Option<Ipv6Net>,
}

impl GuardedPort {
    fn ip4(&self) -> BTreeSet<Ipv4Addr> {
        let ip4 = |address: &IpAddr| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        };
        self.addresses.iter().filter_map(ip4).collect()
    }

    /// With those that the guest makes from its MAC address.
    fn ip6(&self) -> BTreeSet<Ipv6Addr> {
        let ip6 = self.addresses.iter().filter_map(|address| match address {
            IpAddr::V6(address) => Some(*address),
            IpAddr::V4(_) => None,
        });
        let link_local = made_of(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), self.mac);
        // Only in a network of 64 bits is there room for what is made of a MAC address.
        let own = self.ip6.filter(|net| net.prefix_len() == 64);
        let own = own.map(|net| made_of(net.network(), self.mac));
        ip6.chain([link_local]).chain(own).collect()
    }
}

/// The most leases of a port that count, the latest of them: a guest may ask for one of IPv6 after
/// the other, and the rules of all ports are one table.
pub const MOST_LEASES_OF_A_PORT: usize = 16;

/// Bridges and ports to guard. `guests` is what the hypervisor says of those that run here: what a
/// record says may not be so yet. `bridge_of` a port counts where a guest's definition names
/// something else, such as a network of libvirt's own.
pub fn guarded<'a, 'b>(
    cluster: &Cluster,
    guests: impl IntoIterator<Item = &'a DomainSummary>,
    bridge_of: impl Fn(&str) -> Option<&'b str>,
) -> Guarded {
    let networks = GuestNetworks::of(cluster).networks;
    let is_guarded =
        |network: &&GuestNetwork| network.options.spoof_guard && network.managed().is_some();
    let closed = networks.iter().filter(is_guarded).map(|network| network.vni.bridge()).collect();
    let mut ports = BTreeMap::new();
    for nic in guests.into_iter().flat_map(|guest| &guest.nics) {
        let (Some(link), Some(mac)) = (&nic.target, parse_mac(&nic.mac)) else { continue };
        let bridge = match &nic.kind {
            NicKind::Bridge(bridge) => Some(bridge.as_str()),
            NicKind::Other { .. } => bridge_of(link),
            NicKind::Direct(_) | NicKind::Hostdev(_) => None,
        };
        let Some(bridge) = bridge else { continue };
        let of_bridge = |vni| networks.iter().find(|network| network.vni == vni);
        let Some(network) = Vni::of_bridge(bridge).and_then(of_bridge) else { continue };
        let Some(managed) = network.managed().filter(|_| network.options.spoof_guard) else {
            continue;
        };
        let record = cluster.networks.get(&network.vni.to_string());
        let leases = record.map_or(&[][..], |record| &record.leases);
        let own = leases.iter().filter(|lease| parse_mac(&lease.mac) == Some(mac));
        let mut own: Vec<&LeaseRecord> = own.collect();
        // A reservation has no end.
        let end = |lease: &LeaseRecord| lease.expiry.as_ref().map(|end| end.parse().unwrap_or(0));
        own.sort_by_key(|lease| Reverse(end(lease).unwrap_or(u64::MAX)));
        own.truncate(MOST_LEASES_OF_A_PORT);
        let addresses = own.into_iter().filter_map(|lease| lease.address.parse().ok()).collect();
        let ip6 = managed.ip6.as_ref().map(|ip6| ip6.network);
        ports.insert(link.clone(), GuardedPort { mac, addresses, ip6 });
    }
    Guarded { closed, ports }
}

/// The address in the network `prefix` (64 bits) that is made of a MAC address (EUI-64).
pub(super) fn made_of(prefix: Ipv6Addr, mac: Mac) -> Ipv6Addr {
    let mut octets = prefix.octets();
    let [a, b, c, d, e, f] = mac;
    octets[8..].copy_from_slice(&[a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    octets.into()
}

/// The MAC address that an address of IPv6 was made of (EUI-64), if it looks like that.
pub(super) fn maker_of(address: IpAddr) -> Option<Mac> {
    let IpAddr::V6(address) = address else { return None };
    match address.octets()[8..] {
        [a, b, c, 0xff, 0xfe, d, e, f] => Some([a ^ 2, b, c, d, e, f]),
        _ => None,
    }
}

/// Text between the braces of the [`table`]; `None` if there is nothing to guard. A name that is no
/// link's is left out: it comes from a guest's definition.
///
/// All ports of a closed bridge that are no [guest's](GUEST_PORT) go on: its tunnel, and what an
/// operator has plugged into it. What the node itself sends does not come by here.
pub fn rules(guarded: &Guarded) -> Option<String> {
    let is_plain = |link: &str| is_link_name(link) && !link.contains(['"', '\\', '*']);
    let ports = guarded.ports.iter().filter(|(link, _)| is_plain(link));
    let mut text = String::new();
    let mut jumps = Vec::new();
    for (number, (link, port)) in (1..).zip(ports) {
        text += &chain(number, port);
        jumps.push(format!("\"{link}\" : goto port{number}"));
    }
    let bridges = guarded.closed.iter().filter(|bridge| is_plain(bridge));
    let bridges: Vec<String> = bridges.map(|bridge| format!("\"{bridge}\"")).collect();
    if jumps.is_empty() && bridges.is_empty() {
        return None;
    }
    text += "chain prerouting {\n";
    text += "\ttype filter hook prerouting priority filter - 5; policy accept;\n";
    if !jumps.is_empty() {
        let _ = writeln!(text, "\tiifname vmap {{ {} }}", jumps.join(", "));
    }
    if !bridges.is_empty() {
        let bridges = bridges.join(", ");
        let _ = writeln!(
            text,
            "\tmeta ibrname {{ {bridges} }} meta iifkind \"{GUEST_PORT}\" counter drop"
        );
    }
    Some(text + "}\n")
}

/// The chain of one port. What is no IPv4, IPv6 or ARP, such as frames with a tag, does not pass.
///
/// Under which address a guest asks DHCP for its own card does not matter: it renews a lease that
/// is not recorded, or not yet, from the address that it has. With DHCPv6 relays (RELAY-FORW,
/// RELAY-REPL) name the card of a client, and no guest is one; the kind of a message is its first
/// octet, which a fragment may leave to the next one.
fn chain(number: usize, port: &GuardedPort) -> String {
    let mac = mac_text(port.mac);
    // Who asks DHCP does so for this card, in one packet: a type of hardware that is Ethernet, with
    // six octets, stands 9 octets into the datagram, and the address 36.
    let asks = format!(
        "udp dport 67 ip frag-off & 0x3fff == 0 @th,72,16 0x0106 @th,288,48 0x{}",
        mac.replace(':', "")
    );
    let mut text = format!(
        "\
chain port{number} {{
	ether saddr != {mac} counter drop
	arp saddr ether != {mac} counter drop
	ether type arp arp saddr ip 0.0.0.0 accept
	ether type ip udp sport 67 counter drop
	ether type ip {asks} accept
	ether type ip udp dport 67 counter drop
	ether type ip6 udp sport 547 counter drop
	ether type ip6 exthdr frag exists udp dport 547 counter drop
	ether type ip6 udp dport 547 @th,64,8 {{ 12, 13 }} counter drop
	ether type ip6 icmpv6 type {{ nd-router-advert, nd-redirect }} counter drop
	ether type ip6 ip6 saddr :: icmpv6 type {{ nd-neighbor-solicit, nd-router-solicit, \
         mld2-listener-report, mld-listener-report }} accept
"
    );
    let ip4 = join(&port.ip4());
    if !ip4.is_empty() {
        let _ = writeln!(text, "\tether type arp arp saddr ip {{ {ip4} }} accept");
        let _ = writeln!(text, "\tether type ip ip saddr {{ {ip4} }} accept");
    }
    let advert = "icmpv6 type nd-neighbor-advert";
    let own = port.ip6();
    let ip6 = join(&own);
    for address in own {
        // The address that it says it has, 64 bits into the message: nft of Debian 12 has no word
        // for it.
        let bits = address.to_bits();
        let _ = writeln!(
            text,
            "\tether type ip6 ip6 saddr {{ {ip6} }} {advert} @th,64,128 0x{bits:032x} accept"
        );
    }
    let _ = writeln!(text, "\tether type ip6 {advert} counter drop");
    let _ = writeln!(text, "\tether type ip6 ip6 saddr {{ {ip6} }} accept");
    text + "\tcounter drop\n}\n"
}

fn join<T: ToString>(items: &BTreeSet<T>) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::firewall::check_rules;
    use crate::network::{NetworkOptions, NetworkRecord};

    fn port(addresses: &[&str]) -> GuardedPort {
        GuardedPort {
            mac: [0x52, 0x54, 0, 0x11, 0x22, 0x33],
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            ip6: Some("2001:db8:7::/64".parse().unwrap()),
        }
    }

    fn ports<const N: usize>(ports: [(&str, GuardedPort); N]) -> Guarded {
        let ports = ports.map(|(link, port)| (link.to_owned(), port)).into();
        Guarded { closed: BTreeSet::new(), ports }
    }

    /// A guest starts whenever it likes, and sends before anybody has looked at it.
    #[test]
    fn a_port_that_nobody_knows_yet_is_shut_on_a_guarded_bridge_and_what_is_no_guests_is_not() {
        let closing = "meta ibrname { \"vmbr7\", \"vmbr8\" } meta iifkind \"tun\" counter drop";
        let closed = ["vmbr7", "vmbr8"].map(str::to_owned).into();
        let guarded = Guarded { closed, ..ports([("vnet0", port(&[]))]) };
        let text = rules(&guarded).unwrap();
        assert_eq!(check_rules(&text), Ok(()));
        let known = "\tiifname vmap { \"vnet0\" : goto port1 }\n";
        assert!(text.ends_with(&format!("{known}\t{closing}\n}}\n")), "{text}");
        let empty = Guarded { ports: BTreeMap::new(), ..guarded };
        let text = rules(&empty).unwrap();
        assert_eq!(
            text,
            format!(
                "chain prerouting {{\n\ttype filter hook prerouting priority filter - 5; policy \
                 accept;\n\t{closing}\n}}\n"
            )
        );
    }

    #[test]
    fn the_bridges_of_guarded_networks_are_closed_before_any_guest_is_on_them() {
        let mut cluster = Cluster::default();
        for (vni, nettype, spoof_guard) in
            [("7", "managed", true), ("8", "managed", false), ("9", "bridged", true)]
        {
            let record = NetworkRecord {
                vni: vni.to_owned(),
                description: format!("net{vni}"),
                nettype: nettype.to_owned(),
                ..NetworkRecord::default()
            };
            cluster.networks.insert(vni.to_owned(), Arc::new(record));
            let options = NetworkOptions { spoof_guard, ..NetworkOptions::default() };
            cluster.network_options.insert(vni.to_owned(), Arc::new(options));
        }
        let found = guarded(&cluster, [], |_| None);
        assert_eq!(found.closed, BTreeSet::from(["vmbr7".to_owned()]));
        assert!(found.ports.is_empty());
    }

    #[test]
    fn a_port_is_let_in_by_its_own_addresses() {
        let text = rules(&ports([("vnet0", port(&["10.20.7.2", "2001:db8:7::9"]))])).unwrap();
        assert_eq!(check_rules(&text), Ok(()));
        let own = "2001:db8:7::9, 2001:db8:7:0:5054:ff:fe11:2233, fe80::5054:ff:fe11:2233";
        for line in [
            "ether saddr != 52:54:00:11:22:33 counter drop",
            "ether type ip ip saddr { 10.20.7.2 } accept",
            "ether type arp arp saddr ip { 10.20.7.2 } accept",
            &format!("ether type ip6 ip6 saddr {{ {own} }} accept"),
            "iifname vmap { \"vnet0\" : goto port1 }",
        ] {
            assert!(text.contains(&format!("\t{line}\n")), "{line}: {text}");
        }
    }

    /// By its leases the guard knows the addresses of a port.
    #[test]
    fn a_port_asks_dhcp_for_its_own_card_from_whatever_address() {
        let text = rules(&ports([("vnet0", port(&["10.20.7.2"]))])).unwrap();
        let at = |line: &str| text.find(&format!("\t{line}\n")).unwrap_or_else(|| panic!("{text}"));
        let asks = at("ether type ip udp dport 67 ip frag-off & 0x3fff == 0 @th,72,16 0x0106 \
                       @th,288,48 0x525400112233 accept");
        let others = at("ether type ip udp dport 67 counter drop");
        assert!(asks < others && others < at("ether type ip ip saddr { 10.20.7.2 } accept"));
        for line in [
            "ether type ip6 exthdr frag exists udp dport 547 counter drop",
            "ether type ip6 udp dport 547 @th,64,8 { 12, 13 } counter drop",
        ] {
            assert!(at(line) < text.find("ip6 saddr {").unwrap(), "{line}: {text}");
        }
    }

    #[test]
    fn a_port_without_an_address_may_ask_for_one_and_no_more() {
        let text = rules(&ports([("vnet0", port(&[]))])).unwrap();
        assert!(text.contains("udp dport 67 "), "{text}");
        assert!(!text.contains("ip saddr {  }") && !text.contains("10.20"), "{text}");
    }

    #[test]
    fn names_that_are_no_links_are_left_out() {
        let names = ["", "a\"b", "vnet*", "a b", "x; flush ruleset", "very-long-name-of-a-link"];
        assert_eq!(rules(&ports(names.map(|name| (name, port(&[]))))), None);
        assert_eq!(rules(&Guarded::default()), None);
    }
}
