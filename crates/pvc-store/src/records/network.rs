//! Networks: `/networks/{vni}` (`spec/zookeeper.md` §4.4), their [options](network_options), and
//! their [leases of IPv6](dhcp6_leases).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use pvc_model::network::{AclRecord, Direction, GivenLease, LeaseRecord, NetworkRecord};

use super::{Keys, Kind, PLAIN, dhcp6_leases, network_options, unconfirmed, update, weight_of};
use crate::draft::Draft;
use crate::feed::EventKind;
use crate::raw::Raw;
use crate::reader::{Reader, beginning, comma_list, joined};

/// Its version grows with every network that is made, changed or removed: of two at once, the later
/// one is decided again.
const ROOT: &str = "/networks";

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT, network_options::ROOT, dhcp6_leases::ROOT],
    base: &[(ROOT, ""), (network_options::ROOT, ""), (dhcp6_leases::ROOT, "")],
    keys: KEYS,
    record: |key| key.first().map(str::to_owned),
    read: |raw, _, vni| {
        let (record, vni) = (read(raw, vni).map(Arc::new), vni.to_owned());
        let options = network_options::read(raw, &vni).map(Arc::new);
        Box::new(move |view| {
            let event = EventKind::Network(vni.clone());
            let gone = update(&mut view.networks, vni.clone(), record);
            let changed = update(&mut view.network_options, vni, options);
            // A network is not gone with its options.
            gone.or(changed.map(|_| false)).map(|gone| (event, gone))
        })
    },
    weight: |raw, _, vni| {
        let lists = [
            ("dhcp4_reservations", 4),
            ("dhcp4_leases", 4),
            ("firewall_rules/in", 3),
            ("firewall_rules/out", 3),
        ];
        weight_of(raw.place(ROOT).below(vni), &lists, &["name_servers"])
            + network_options::weight(raw, vni)
            + dhcp6_leases::weight(raw, vni)
    },
    is_of_list: |key| match key.below {
        [_, address, ..] if key.root == dhcp6_leases::ROOT => !address.is_empty(),
        _ if key.root != ROOT => false,
        [_, "dhcp4_leases" | "dhcp4_reservations", entry, _] => !entry.is_empty(),
        [_, "firewall_rules", _, rule] => !rule.is_empty(),
        _ => false,
    },
    // Written with what lies below it.
    is_guard: |key| {
        let lists = ["dhcp4_reservations", "firewall_rules"];
        let [_, list, entry, below] = key.below;
        // A list of rules is one of a direction.
        let is_list = if list == lists[0] { entry.is_empty() } else { below.is_empty() };
        key.root == ROOT && (key.is_root() || (lists.contains(&list) && is_list))
    },
    is_for_scripts: |_| true,
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

/// Its version grows with every reservation.
const RESERVATIONS: &str = "dhcp4_reservations";

/// Lists of leases, by their paths, that have other leases now than in a dump.
pub(crate) struct OtherLeases(BTreeSet<String>);

impl OtherLeases {
    /// Finds the lists with a lease that is not in `dump`, or is another there. One that has none
    /// is not among them, nor is one that an interrupted restore of the same dump has begun.
    pub fn find(raw: &Raw, dump: &BTreeMap<String, String>) -> OtherLeases {
        let lists = |vni: String| {
            [format!("{}/dhcp4_leases", root(&vni)), format!("{}/{vni}", dhcp6_leases::ROOT)]
        };
        let is_other =
            |path: &String| raw.text(path).as_deref() != dump.get(path).map(String::as_str);
        let has_others =
            |list: &String| raw.subtree(list).iter().any(|path| path != list && is_other(path));
        OtherLeases(raw.children(ROOT).into_iter().flat_map(lists).filter(has_others).collect())
    }

    /// Tells whether `path` is that of a lease in one of the lists, or of a key of it.
    pub fn include(&self, path: &str) -> bool {
        // Lists of either family have a path of three parts.
        path.match_indices('/').nth(3).is_some_and(|(at, _)| self.0.contains(&path[..at]))
    }
}

pub(crate) fn root(vni: &str) -> String {
    format!("{ROOT}/{vni}")
}

fn read(raw: &Raw, vni: &str) -> Option<NetworkRecord> {
    let root = root(vni);
    let description = beginning(&raw.text(&root)?).to_owned();
    let mut r = Reader::new(raw, &root);
    let mut leases = leases(&mut r, "dhcp4_reservations", false);
    leases.extend(self::leases(&mut r, "dhcp4_leases", true));
    leases.extend(dhcp6_leases::read(raw, vni));
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
        client_id: if is_dynamic { r.text("clientid") } else { String::new() },
        mac: mac.to_owned(),
        ip6: None,
    })
}

fn acls(r: &mut Reader<'_>, direction: Direction) -> Vec<AclRecord> {
    let container = format!("firewall_rules/{}", direction.as_str());
    let mut acls = r.list(&container, |r, description| {
        // Without its place it may pass what a rule before it drops: it is read as half a rule.
        let has_order = r.shared("order").parse::<u32>().is_ok();
        AclRecord {
            direction,
            order: r.number("order"),
            rule: if has_order { r.text("rule") } else { String::new() },
            description: description.to_owned(),
        }
    });
    acls.sort_by_key(|acl| acl.order);
    acls
}

/// Writes a network, new or not, without its leases and rules. Of one that is there only what
/// changes is written, as legacy peers act on each write; the rest must be as it was seen, and so
/// must the reservations, which are addresses of the network.
pub(crate) fn put(draft: &mut Draft<'_>, record: &NetworkRecord) {
    draft.put(ROOT.to_owned(), Bytes::new());
    let root = root(&record.vni);
    put_new(draft, root.clone(), record.description.clone());
    for (key, first) in KEYS {
        let path = format!("{root}/{key}");
        match text(record, key) {
            Some(value) => put_new(draft, path, value),
            None if *key == RESERVATIONS && draft.check(path.clone()).is_ok() => {}
            None if draft.seen().contains(&path) => {}
            None => draft.put(path, *first),
        }
    }
}

/// Value of a key that a record has a text for.
fn text(record: &NetworkRecord, key: &str) -> Option<String> {
    Some(match key {
        "nettype" => record.nettype.clone(),
        "mtu" => record.mtu.clone(),
        "domain" => record.domain.clone(),
        "name_servers" => joined(&record.name_servers, ","),
        "ip4_network" => record.ip4_network.clone(),
        "ip4_gateway" => record.ip4_gateway.clone(),
        "dhcp4_flag" => record.dhcp4_flag.clone(),
        "dhcp4_start" => record.dhcp4_start.clone(),
        "dhcp4_end" => record.dhcp4_end.clone(),
        "ip6_network" => record.ip6_network.clone(),
        "ip6_gateway" => record.ip6_gateway.clone(),
        "dhcp6_flag" => record.dhcp6_flag.clone(),
        _ => return None,
    })
}

/// The texts of a network's keys, with its description as that of the empty one.
pub(super) fn texts(record: &NetworkRecord) -> BTreeMap<String, String> {
    let keys = KEYS.iter().filter_map(|(key, _)| Some(((*key).to_owned(), text(record, key)?)));
    keys.chain([(String::new(), record.description.clone())]).collect()
}

/// The network of these [`texts`], without leases and rules; `None` if one is missing.
pub(super) fn from_texts(vni: &str, texts: &BTreeMap<String, String>) -> Option<NetworkRecord> {
    let text = |key: &str| texts.get(key).cloned();
    Some(NetworkRecord {
        vni: vni.to_owned(),
        description: text("")?,
        nettype: text("nettype")?,
        mtu: text("mtu")?,
        domain: text("domain")?,
        name_servers: comma_list(&text("name_servers")?).map(str::to_owned).collect(),
        ip4_network: text("ip4_network")?,
        ip4_gateway: text("ip4_gateway")?,
        dhcp4_flag: text("dhcp4_flag")?,
        dhcp4_start: text("dhcp4_start")?,
        dhcp4_end: text("dhcp4_end")?,
        ip6_network: text("ip6_network")?,
        ip6_gateway: text("ip6_gateway")?,
        dhcp6_flag: text("dhcp6_flag")?,
        leases: Vec::new(),
        acls: Vec::new(),
    })
}

/// Writes a value if it is another than the one that was seen, and else demands that one.
fn put_new(draft: &mut Draft<'_>, path: String, value: String) {
    let is_same = draft.seen().text(&path).is_some_and(|text| text == value.as_str());
    if !is_same || draft.check(path.clone()).is_err() {
        draft.put(path, value);
    }
}

/// Removes a network with all that is below it, its options and leases, and a change of it that
/// waits.
pub(crate) fn remove(draft: &mut Draft<'_>, vni: &str) {
    draft.put(ROOT.to_owned(), Bytes::new());
    draft.delete(&root(vni));
    network_options::remove(draft, vni);
    dhcp6_leases::remove_all(draft, vni);
    unconfirmed::remove(draft, vni);
}

/// Demands that the network is as it was seen, but for its leases and rules.
pub(crate) fn expect(draft: &mut Draft<'_>, vni: &str) -> Result<(), crate::error::StoreError> {
    let root = root(vni);
    draft.check(root.clone())?;
    let keys = KEYS.iter().filter(|(key, _)| !is_container(key));
    for path in keys.map(|(key, _)| format!("{root}/{key}")) {
        if draft.seen().contains(&path) {
            draft.check(path)?;
        }
    }
    Ok(())
}

fn is_container(key: &str) -> bool {
    key.starts_with("firewall_rules") || matches!(key, "dhcp4_reservations" | "dhcp4_leases")
}

/// Writes a reservation. Of two at once, the later one is decided again.
pub(crate) fn put_reservation(draft: &mut Draft<'_>, vni: &str, lease: &LeaseRecord) {
    let root = root(vni);
    if !draft.demand(root.clone()) {
        return;
    }
    let container = format!("{root}/dhcp4_reservations");
    draft.put(container.clone(), Bytes::new());
    let path = format!("{container}/{}", lease.mac);
    draft.put(path.clone(), "static");
    draft.put(format!("{path}/ipaddr"), lease.address.clone());
    draft.put(format!("{path}/hostname"), lease.hostname.clone());
}

pub(crate) fn remove_lease(draft: &mut Draft<'_>, vni: &str, mac: &str, is_reservation: bool) {
    let container = if is_reservation { "dhcp4_reservations" } else { "dhcp4_leases" };
    draft.delete(&format!("{}/{container}/{mac}", root(vni)));
}

/// Writes what DHCP has given to a MAC address, in the place of what it had.
pub(crate) fn put_lease(draft: &mut Draft<'_>, vni: &str, lease: &GivenLease) {
    let root = root(vni);
    if !draft.demand(root.clone()) {
        return;
    }
    let container = format!("{root}/dhcp4_leases");
    draft.ensure(&container);
    let path = format!("{container}/{}", lease.mac);
    let values = [
        ("ipaddr", lease.address.to_string()),
        ("hostname", lease.hostname.clone().unwrap_or_default()),
        ("expiry", lease.expiry.unwrap_or_default().to_string()),
        ("clientid", lease.client_id.clone().unwrap_or_else(|| "*".to_owned())),
    ];
    draft.put(path.clone(), Bytes::new());
    for (key, value) in values {
        draft.put(format!("{path}/{key}"), value);
    }
}

/// Writes a rule. Of two changes at once in a direction, the later one is decided again.
pub(crate) fn put_acl(draft: &mut Draft<'_>, vni: &str, acl: &AclRecord) {
    if let Some(path) = acl_path(draft, vni, acl.direction, &acl.description) {
        draft.put(path.clone(), Bytes::new());
        draft.put(format!("{path}/order"), acl.order.to_string());
        draft.put(format!("{path}/rule"), acl.rule.clone());
    }
}

/// Writes the order of a rule that is there.
pub(crate) fn order_acl(draft: &mut Draft<'_>, vni: &str, acl: &AclRecord) {
    if let Some(path) = acl_path(draft, vni, acl.direction, &acl.description) {
        draft.put(format!("{path}/order"), acl.order.to_string());
    }
}

pub(crate) fn remove_acl(draft: &mut Draft<'_>, vni: &str, acl: &AclRecord) {
    if let Some(path) = acl_path(draft, vni, acl.direction, &acl.description) {
        draft.delete(&path);
    }
}

/// Path of a rule, of which the list that it is in is written as well; `None` if the network is
/// gone.
fn acl_path(
    draft: &mut Draft<'_>,
    vni: &str,
    direction: Direction,
    description: &str,
) -> Option<String> {
    let root = root(vni);
    if !draft.demand(root.clone()) {
        return None;
    }
    let container = format!("{root}/firewall_rules/{}", direction.as_str());
    draft.put_deep(container.clone(), Bytes::new());
    Some(format!("{container}/{description}"))
}

#[cfg(test)]
mod tests {
    use pvc_model::guest_network::dnsmasq;

    use super::super::is_guard;
    use crate::reader::MOST_ENTRIES;

    #[test]
    fn every_lease_that_dnsmasq_gives_is_read() {
        const { assert!(dnsmasq::MOST_LEASES <= MOST_ENTRIES) };
    }

    #[test]
    fn what_is_written_with_what_lies_below_it_tells_nothing_of_who_wrote_it() {
        for (path, guards) in [
            ("/networks", true),
            ("/networks/1", false),
            ("/networks/1/mtu", false),
            ("/networks/1/dhcp4_reservations", true),
            ("/networks/1/dhcp4_reservations/52:54:00:00:00:01", false),
            ("/networks/1/dhcp4_leases", false),
            ("/networks/1/firewall_rules/in", true),
            ("/networks/1/firewall_rules/in/ssh", false),
            ("/networks/1/firewall_rules/in/ssh/order", false),
            ("/pvcrs/networks", false),
            ("/pvcrs/networks/1", false),
        ] {
            assert_eq!(is_guard(path), guards, "{path}");
        }
    }
}
