//! Names of hosts in a network that not everybody may call itself: guests choose what DHCP makes
//! names of, and others believe these.
//!
//! The name of a VM is for its cards, and a reserved one for its card. Whoever else says it gets
//! an address and no name. All other names are those of whoever says them, and of guests that say
//! the same dnsmasq believes the last one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use super::GuestNetwork;
use super::dns::HostAddress;
use super::dnsmasq::reservations;
use super::guard::maker_of;
use crate::link::{Mac, mac_text, parse_mac};
use crate::network::LeaseRecord;

/// Names by which clients look for servers to obey, whoever has them (CERT VU#598349).
pub const NOBODYS: [&str; 2] = ["isatap", "wpad"];

/// Names that are somebody's in a network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// In small letters, with the MAC addresses of those who may have them.
    owners: BTreeMap<String, BTreeSet<Mac>>,
    /// Whether the guard holds guests to the addresses of their MAC addresses: what a client calls
    /// itself proves nothing, as every guest hears it, and nobody can use an address by it.
    is_guarded: bool,
}

impl Names {
    /// Names in a network. `cards` are those of VMs in it, by the VMs' names.
    pub fn of(
        cards: Option<&BTreeMap<String, BTreeSet<Mac>>>,
        network: &GuestNetwork,
        leases: &[LeaseRecord],
    ) -> Names {
        let mut names = cards.cloned().unwrap_or_default();
        if let Some(managed) = network.managed() {
            for (mac, name) in reservations(managed, leases).into_values().map(|it| it.who()) {
                if let Some(name) = name {
                    names.entry(name).or_default().insert(mac);
                }
            }
        }
        names.retain(|name, _| !NOBODYS.contains(&name.as_str()));
        Names { owners: names, is_guarded: network.options.spoof_guard }
    }

    /// Whether a host with this MAC address may have the name, in small letters.
    pub fn allow(&self, name: &str, mac: Option<Mac>) -> bool {
        let is_own = |owners: &BTreeSet<Mac>| mac.is_some_and(|mac| owners.contains(&mac));
        !NOBODYS.contains(&name) && self.owners.get(name).is_none_or(is_own)
    }

    /// Whether all of these are kept for the same hosts, too.
    pub fn cover(&self, others: &Names) -> bool {
        let is_kept = |(name, owners): (&String, &BTreeSet<Mac>)| {
            self.owners.get(name).is_some_and(|own| owners.is_subset(own))
        };
        others.owners.iter().all(is_kept)
    }

    /// Leases without the names that are another's.
    pub fn allowed(&self, leases: &[LeaseRecord]) -> Vec<LeaseRecord> {
        let mut leases = leases.to_vec();
        for lease in leases.iter_mut().filter(|lease| lease.expiry.is_some()) {
            if !self.allow(&lease.hostname.to_ascii_lowercase(), self.holder(lease)) {
                lease.hostname.clear();
            }
        }
        leases
    }

    /// Hosts of a zone whose names are not another's, by what is recorded of their addresses.
    pub fn allowed_hosts(
        &self,
        hosts: BTreeSet<HostAddress>,
        leases: &[LeaseRecord],
    ) -> BTreeSet<HostAddress> {
        let holders = leases
            .iter()
            .filter_map(|lease| Some((lease.address.parse::<IpAddr>().ok()?, self.holder(lease)?)));
        let holders: BTreeMap<IpAddr, Mac> = holders.collect();
        let is_allowed = |host: &HostAddress| {
            let label = host.name.split('.').next().unwrap_or_default();
            let holder = holders.get(&host.address).copied().or_else(|| maker_of(host.address));
            self.allow(label, holder)
        };
        hosts.into_iter().filter(is_allowed).collect()
    }

    /// Lines for dnsmasq, which takes the first part of what a client says for its name.
    pub(super) fn lines(&self) -> String {
        let mut text = String::new();
        for (number, (name, owners)) in (1..).zip(&self.owners) {
            for said in [name.clone(), format!("{name}.*")] {
                let _ = writeln!(text, "dhcp-name-match=set:name{number},{said}");
            }
            for mac in owners {
                let _ = writeln!(text, "dhcp-mac=set:own{number},{}", mac_text(*mac));
            }
            let _ = writeln!(text, "dhcp-ignore-names=tag:name{number},tag:!own{number}");
        }
        text
    }

    /// The MAC address of the lease's client. Where a server that was started anew has not found it
    /// out, it is that of which the client has made its name of DHCPv6, unless the network is
    /// guarded: a server gives no name of somebody's to whose MAC address it does not know.
    fn holder(&self, lease: &LeaseRecord) -> Option<Mac> {
        let of_duid = || lease.ip6.as_ref().and_then(|client| mac_of_duid(&client.duid));
        parse_mac(&lease.mac).or_else(|| of_duid().filter(|_| !self.is_guarded))
    }
}

/// The MAC address in a client's name of DHCPv6 (DUID-LL and DUID-LLT of Ethernet, RFC 8415).
fn mac_of_duid(duid: &str) -> Option<Mac> {
    let of_time = || duid.strip_prefix("00:01:00:01:")?.get("00:00:00:00:".len()..);
    parse_mac(duid.strip_prefix("00:03:00:01:").or_else(of_time)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{Ip6Client, NetworkRecord};

    const OWN: Mac = [0x52, 0x54, 0, 0, 0, 1];
    const OTHER: Mac = [0x52, 0x54, 0, 0, 0, 2];

    fn network() -> GuestNetwork {
        let record = NetworkRecord {
            vni: "7".to_owned(),
            nettype: "managed".to_owned(),
            ip4_network: "10.20.7.0/24".to_owned(),
            ip4_gateway: "10.20.7.1".to_owned(),
            ip6_network: "2001:db8:7::/64".to_owned(),
            ip6_gateway: "2001:db8:7::1".to_owned(),
            ..NetworkRecord::default()
        };
        GuestNetwork::read(&record).unwrap().0
    }

    fn lease(mac: Mac, address: &str, hostname: &str, expiry: Option<&str>) -> LeaseRecord {
        LeaseRecord {
            mac: mac_text(mac),
            address: address.to_owned(),
            hostname: hostname.to_owned(),
            expiry: expiry.map(str::to_owned),
            ..LeaseRecord::default()
        }
    }

    /// VM `db1` has a card, and `ns` is reserved for the other one.
    fn names() -> Names {
        names_in(&network())
    }

    fn names_in(network: &GuestNetwork) -> Names {
        let cards: BTreeMap<String, BTreeSet<Mac>> =
            ["db1", "wpad"].map(|name| (name.to_owned(), [OWN].into())).into();
        Names::of(Some(&cards), network, &[lease(OTHER, "10.20.7.9", "NS", None)])
    }

    #[test]
    fn the_name_of_a_vm_is_for_its_cards_and_every_other_one_for_whoever_says_it() {
        let names = names();
        for (name, mac, is_allowed) in [
            ("db1", Some(OWN), true),
            ("db1", Some(OTHER), false),
            ("db1", None, false),
            ("ns", Some(OTHER), true),
            ("ns", Some(OWN), false),
            // A guest calls itself otherwise than its VM is called.
            ("hello", Some(OWN), true),
            ("hello", Some(OTHER), true),
            ("wpad", Some(OWN), false),
            ("isatap", Some(OTHER), false),
        ] {
            assert_eq!(names.allow(name, mac), is_allowed, "{name} {mac:?}");
        }
    }

    #[test]
    fn a_server_knows_who_may_have_a_name_whatever_stands_behind_its_first_part() {
        assert_eq!(
            names().lines(),
            "dhcp-name-match=set:name1,db1\n\
             dhcp-name-match=set:name1,db1.*\n\
             dhcp-mac=set:own1,52:54:00:00:00:01\n\
             dhcp-ignore-names=tag:name1,tag:!own1\n\
             dhcp-name-match=set:name2,ns\n\
             dhcp-name-match=set:name2,ns.*\n\
             dhcp-mac=set:own2,52:54:00:00:00:02\n\
             dhcp-ignore-names=tag:name2,tag:!own2\n"
        );
    }

    #[test]
    fn names_that_were_taken_before_are_neither_passed_to_a_server_nor_published() {
        let leases = [
            lease(OTHER, "10.20.7.2", "db1", Some("9")),
            lease(OTHER, "10.20.7.3", "WPAD", Some("9")),
            lease(OTHER, "10.20.7.4", "hello", Some("9")),
            lease(OWN, "10.20.7.5", "db1", Some("9")),
            lease(OWN, "10.20.7.6", "kept", None),
        ];
        let names = names();
        let passed = names.allowed(&leases).into_iter().map(|lease| lease.hostname);
        assert_eq!(passed.collect::<Vec<_>>(), ["", "", "hello", "db1", "kept"]);
        let host = |(name, address): (&str, &str)| HostAddress {
            name: format!("{name}.net7.example"),
            address: address.parse().unwrap(),
        };
        let published = [
            ("db1", "10.20.7.5"),
            ("db1", "2001:db8:7:0:5054:ff:fe00:1"),
            ("hello", "10.20.7.4"),
            ("unknown", "10.20.7.77"),
        ];
        let others = [
            ("db1", "10.20.7.2"),
            ("db1", "10.20.7.77"),
            ("db1", "2001:db8:7:0:5054:ff:fe00:2"),
            ("wpad", "10.20.7.3"),
        ];
        let all = published.into_iter().chain(others).map(host).collect();
        let expected: BTreeSet<HostAddress> = published.into_iter().map(host).collect();
        assert_eq!(names.allowed_hosts(all, &leases), expected);
    }

    #[test]
    fn a_client_of_ipv6_whose_mac_address_is_unknown_has_the_name_of_the_card_it_is_called_like() {
        let names = names();
        for (duid, is_published) in [
            ("00:03:00:01:52:54:00:00:00:01", true),
            ("00:01:00:01:2a:00:00:07:52:54:00:00:00:01", true),
            ("00:03:00:01:52:54:00:00:00:02", false),
            ("00:01:00:01:2a:00:00:07:52:54:00:00:00:02", false),
            ("00:01:00:01:52:54:00:00:00:01", false),
            ("00:03:00:06:52:54:00:00:00:01", false),
            ("00:02:00:00:ab:11:52:54:00:00:00:01", false),
            ("00:03:00:01", false),
            ("", false),
        ] {
            let ip6 = Some(Ip6Client { duid: duid.to_owned(), iaid: "7".to_owned() });
            let address = "2001:db8:7::9";
            let lease = lease(OTHER, address, "db1", Some("9"));
            let lease = LeaseRecord { mac: String::new(), ip6, ..lease };
            let leases = [lease];
            let passed = names.allowed(&leases);
            assert_eq!(passed[0].hostname == "db1", is_published, "{duid}");
            let host = HostAddress {
                name: "db1.net7.example".to_owned(),
                address: address.parse().unwrap(),
            };
            let published = names.allowed_hosts([host].into(), &leases);
            assert_eq!(published.len() == 1, is_published, "{duid}");
        }
    }

    /// Every guest hears what a client calls itself, and may say the same and hide its MAC address.
    #[test]
    fn in_a_guarded_network_nobody_has_a_name_by_what_it_calls_itself() {
        let mut guarded = network();
        guarded.options.spoof_guard = true;
        let names = names_in(&guarded);
        let duid = "00:03:00:01:52:54:00:00:00:01".to_owned();
        let ip6 = Some(Ip6Client { duid, iaid: "7".to_owned() });
        let with_mac = LeaseRecord { ip6, ..lease(OWN, "2001:db8:7::9", "db1", Some("9")) };
        for (mac, hostname, expected) in
            [("", "db1", ""), ("", "hello", "hello"), (&*mac_text(OWN), "db1", "db1")]
        {
            let (mac, hostname) = (mac.to_owned(), hostname.to_owned());
            let leases = [LeaseRecord { mac, hostname, ..with_mac.clone() }];
            assert_eq!(names.allowed(&leases)[0].hostname, expected, "{leases:?}");
            let name = format!("{}.net7.example", leases[0].hostname);
            let host = HostAddress { name, address: leases[0].address.parse().unwrap() };
            let published = names.allowed_hosts([host].into(), &leases);
            assert_eq!(published.is_empty(), expected.is_empty(), "{leases:?}");
        }
    }

    #[test]
    fn a_server_that_keeps_a_name_for_another_card_does_not_keep_it() {
        let of = |cards: &[(&str, Mac)]| {
            let owners = cards.iter().map(|(name, mac)| ((*name).to_owned(), [*mac].into()));
            Names { owners: owners.collect(), is_guarded: false }
        };
        let server = of(&[("db1", OWN), ("db2", OTHER)]);
        assert!(server.cover(&of(&[("db1", OWN)])) && server.cover(&Names::default()));
        assert!(!server.cover(&of(&[("db1", OTHER)])) && !server.cover(&of(&[("db3", OWN)])));
    }
}
