//! Networks: `/networks/{vni}` (`spec/zookeeper.md` §4.4).

use pvc_model::network::{AclRecord, Direction, LeaseRecord, NetworkRecord};

use super::{Keys, Kind, PLAIN, show, weight_of};
use crate::feed::EventKind;
use crate::raw::Raw;
use crate::reader::{Reader, beginning, comma_list};

const ROOT: &str = "/networks";

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT],
    base: &[(ROOT, "")],
    keys: KEYS,
    record: |key| key.first().map(str::to_owned),
    read: |raw, _, vni| {
        let event = EventKind::Network(vni.to_owned());
        show(|view| &mut view.networks, vni.to_owned(), read(raw, vni), event)
    },
    weight: |raw, _, vni| {
        let lists = [
            ("dhcp4_reservations", 4),
            ("dhcp4_leases", 4),
            ("firewall_rules/in", 3),
            ("firewall_rules/out", 3),
        ];
        weight_of(raw.place(ROOT).below(vni), &lists, &["name_servers"])
    },
    is_of_list: |key| match key.below {
        [_, "dhcp4_leases" | "dhcp4_reservations", entry, _] => !entry.is_empty(),
        [_, "firewall_rules", _, rule] => !rule.is_empty(),
        _ => false,
    },
    ..PLAIN
};

/// The keys below a network's root.
pub(crate) const KEYS: Keys = &[
    ("nettype", ""),
    ("mtu", ""),
    ("domain", ""),
    ("name_servers", ""),
    ("ip4_network", ""),
    ("ip4_gateway", ""),
    ("dhcp4_flag", ""),
    ("dhcp4_start", ""),
    ("dhcp4_end", ""),
    ("ip6_network", ""),
    ("ip6_gateway", ""),
    ("dhcp6_flag", ""),
    ("dhcp4_reservations", ""),
    ("dhcp4_leases", ""),
    ("firewall_rules", ""),
    ("firewall_rules/in", ""),
    ("firewall_rules/out", ""),
];

pub(crate) fn root(vni: &str) -> String {
    format!("{ROOT}/{vni}")
}

fn read(raw: &Raw, vni: &str) -> Option<NetworkRecord> {
    let root = root(vni);
    let description = beginning(&raw.text(&root)?).to_owned();
    let mut r = Reader::new(raw, &root);
    let mut leases = leases(&mut r, "dhcp4_reservations", false);
    leases.extend(self::leases(&mut r, "dhcp4_leases", true));
    let mut acls = acls(&mut r, Direction::In);
    acls.extend(self::acls(&mut r, Direction::Out));
    r.log_what_is_cut(&root);
    Some(NetworkRecord {
        leases,
        acls,
        vni: vni.to_owned(),
        description,
        nettype: r.text("nettype"),
        mtu: r.text("mtu"),
        domain: r.text("domain"),
        name_servers: comma_list(&r.text("name_servers")).map(str::to_owned).collect(),
        ip4_network: r.text("ip4_network"),
        ip4_gateway: r.text("ip4_gateway"),
        dhcp4_flag: r.text("dhcp4_flag"),
        dhcp4_start: r.text("dhcp4_start"),
        dhcp4_end: r.text("dhcp4_end"),
        ip6_network: r.text("ip6_network"),
        ip6_gateway: r.text("ip6_gateway"),
        dhcp6_flag: r.text("dhcp6_flag"),
    })
}

fn leases(r: &mut Reader<'_>, container: &str, is_dynamic: bool) -> Vec<LeaseRecord> {
    r.list(container, |r, mac| LeaseRecord {
        address: r.text("ipaddr"),
        hostname: r.text("hostname"),
        expiry: is_dynamic.then(|| r.text("expiry")),
        mac: mac.to_owned(),
    })
}

fn acls(r: &mut Reader<'_>, direction: Direction) -> Vec<AclRecord> {
    let container = format!("firewall_rules/{}", direction.as_str());
    let mut acls = r.list(&container, |r, description| AclRecord {
        direction,
        order: r.number("order"),
        rule: r.text("rule"),
        description: description.to_owned(),
    });
    acls.sort_by_key(|acl| acl.order);
    acls
}
