//! The three networks between the nodes, and whether they fit together.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::config::{
    AddressSelection, ClusterNetwork, Format, Networks, NodeAddresses, NodeId, NodeIdentity,
};
use crate::keys::{self, At, NETWORKS};
use crate::reader::Reader;

const DOMAIN: &str = "cluster.networks.{net}.domain";
const DEVICE: &str = "cluster.networks.{net}.device";
const MTU: &str = "cluster.networks.{net}.mtu";
const GATEWAY: &str = "cluster.networks.{net}.ipv4.gateway_address";

/// Advice for a node that has no number, and so no address of its own by it.
const NUMBER_IT: &str = "let the node's name end with its number, as in `hostnamectl hostname \
                         NAME1`, or write its address in place of `by-id`";

/// The keys that the two formats have in different shapes.
struct Shape {
    network: &'static str,
    floating: &'static str,
    selection: &'static str,
}

const NEW: Shape = Shape {
    network: "cluster.networks.{net}.ipv4.network_address",
    floating: "cluster.networks.{net}.ipv4.floating_address",
    selection: "cluster.networks.{net}.node_ip_selection",
};

const OLD: Shape = Shape {
    network: "cluster.networks.{net}.network",
    floating: "cluster.networks.{net}.floating_ip",
    selection: "system.configuration.networking.{net}.address",
};

/// The networks, if networking is on or all three are described. `node` is this one, if it is a
/// node of the cluster; any other machine has no addresses on them.
pub(crate) fn read(
    reader: &mut Reader<'_>,
    node: Option<&NodeIdentity>,
    all_nodes: &[String],
) -> Option<Networks> {
    let read = NETWORKS.map(|net| network(reader, At { net, item: 0 }, node));
    check_pairs(reader, &read);
    check_ids(reader, &read, all_nodes);
    check_others(reader, &read, node, all_nodes);
    let [upstream, cluster, storage] = read;
    Some(Networks { upstream: upstream?, cluster: cluster?, storage: storage? })
}

/// The domain of the storage network, which names the Ceph monitors even where PVC manages no
/// networks.
pub(crate) fn storage_domain(reader: &mut Reader<'_>) -> Option<String> {
    reader.get_at(DOMAIN, At { net: "storage", item: 0 })
}

fn shape(reader: &Reader<'_>) -> Shape {
    match reader.format {
        Format::PvcConf => NEW,
        Format::PvcnodedYaml => OLD,
    }
}

fn network(reader: &mut Reader<'_>, at: At, node: Option<&NodeIdentity>) -> Option<ClusterNetwork> {
    let domain = reader.get_at(DOMAIN, at);
    let device = reader.get_at(DEVICE, at);
    let mtu = reader.get_at(MTU, at);
    let network = range(reader, at);
    let floating = floating(reader, at, network);
    let gateway = gateway(reader, at, network);
    let selection: Option<(AddressSelection, Option<u8>)> =
        reader.get_at(shape(reader).selection, at);
    let address = match (network, selection, node) {
        (Some(network), Some((selection, mask)), Some(node)) => {
            own_address(reader, at, network, selection, mask, &node.id)
        }
        _ => None,
    };
    let has_no_number = matches!(selection, Some((AddressSelection::ById, _)))
        && node.is_some_and(|node| node.id.number == 0);
    check_distinct(reader, at, floating, gateway, address, has_no_number);
    Some(ClusterNetwork {
        domain: domain?,
        device: device?,
        mtu: mtu?,
        network: network?,
        floating: floating?,
        gateway,
        selection: selection?.0,
        address,
    })
}

fn range(reader: &mut Reader<'_>, at: At) -> Option<Ipv4Net> {
    if reader.format == Format::PvcnodedYaml {
        return reader.get_at(OLD.network, at);
    }
    let address: Option<Ipv4Addr> = reader.get_at(NEW.network, at);
    let prefix: Option<u8> = reader.get_at("cluster.networks.{net}.ipv4.netmask", at);
    let network = Ipv4Net::new(address?, prefix?).ok()?;
    if network.addr() != network.network() {
        let found = format!(
            "is `{}`, which is a host of the network `{}`",
            network.addr(),
            network.trunc()
        );
        let hint = format!("write `{}`, or check the netmask", network.network());
        reader.error_at(NEW.network, at, found, "the address of the network itself", &hint);
        return None;
    }
    Some(network)
}

fn floating(reader: &mut Reader<'_>, at: At, network: Option<Ipv4Net>) -> Option<Ipv4Net> {
    let path = shape(reader).floating;
    let (address, mask) = match reader.format {
        Format::PvcConf => (reader.get_at::<Ipv4Addr>(path, at)?, None),
        Format::PvcnodedYaml => {
            let floating: Ipv4Net = reader.get_at(path, at)?;
            (floating.addr(), Some(floating.prefix_len()))
        }
    };
    let network = network?;
    check_host(reader, path, at, address, network);
    check_mask(reader, path, at, mask, network);
    Ipv4Net::new(address, network.prefix_len()).ok()
}

fn gateway(reader: &mut Reader<'_>, at: At, network: Option<Ipv4Net>) -> Option<Ipv4Addr> {
    let gateway: Option<Ipv4Addr> = reader.get_at(GATEWAY, at);
    if let (Some(gateway), Some(network)) = (gateway, network) {
        check_host(reader, GATEWAY, at, gateway, network);
    }
    let needed = at.net == "upstream" && reader.is_on(keys::NETWORKING) && !reader.standalone;
    if needed && !reader.is_given(GATEWAY, at) {
        reader.missing_at(GATEWAY, at);
    }
    gateway
}

fn own_address(
    reader: &mut Reader<'_>,
    at: At,
    network: Ipv4Net,
    selection: AddressSelection,
    mask: Option<u8>,
    id: &NodeId,
) -> Option<Ipv4Net> {
    let path = shape(reader).selection;
    let address = match selection {
        AddressSelection::Unassigned => return None,
        AddressSelection::Static(address) => {
            check_host(reader, path, at, address, network);
            check_mask(reader, path, at, mask, network);
            address
        }
        AddressSelection::ById => match host_by_id(network, id.number) {
            Some(address) => {
                warn_of_no_id(reader, path, at, id, address);
                address
            }
            None => {
                let found =
                    format!("is `by-id`, and the network `{network}` has no host number {id}");
                let hint = "the number ends the node's name: give the node another name, an \
                            address in place of `by-id`, or a larger network";
                reader.error_at(path, at, found, "", hint);
                return None;
            }
        },
    };
    Ipv4Net::new(address, network.prefix_len()).ok()
}

/// The addresses that the nodes of the cluster have, and where they may come from.
pub(crate) fn node_addresses(
    format: Format,
    networks: &Networks,
    all_nodes: &[String],
) -> NodeAddresses {
    let Networks { upstream, cluster, storage } = networks;
    let of = |network| addresses_in(format, network, all_nodes);
    // What shares an address range shares the device.
    let is_upstream_apart =
        [cluster, storage].into_iter().all(|inner| inner.device != upstream.device);
    NodeAddresses {
        upstream: of(upstream),
        inner: of(cluster).into_iter().chain(of(storage)).collect(),
        is_upstream_apart,
        needs_upstream: !is_upstream_apart || format != Format::PvcConf,
    }
}

/// Addresses of the nodes in one network.
fn addresses_in(
    format: Format,
    network: &ClusterNetwork,
    all_nodes: &[String],
) -> BTreeSet<Ipv4Net> {
    if !knows_nodes(format, network) {
        return [network.network].into();
    }
    let numbers = all_nodes.iter().map(|name| NodeId::of(name).number);
    let own = numbers.filter_map(|number| host_by_id(network.network, number));
    own.chain([network.floating.addr()]).map(Ipv4Net::from).collect()
}

/// Whether the file says which address each node has in the network. It does not where nodes choose
/// their addresses, and in the older format, which lists no nodes but coordinators.
pub(crate) fn knows_nodes(format: Format, network: &ClusterNetwork) -> bool {
    format == Format::PvcConf && network.selection == AddressSelection::ById
}

fn warn_of_no_id(reader: &mut Reader<'_>, path: &str, at: At, id: &NodeId, address: Ipv4Addr) {
    if id.number == 0 {
        let found = format!(
            "is `by-id`, and the node's name ends with no number: it gets the last address, \
             {address}"
        );
        reader.warn_at(path, at, found, NUMBER_IT);
    }
}

/// The `id`-th host of the network; 0 stands for the last one, as PVC 1.0.3 has it.
pub(crate) fn host_by_id(network: Ipv4Net, id: u32) -> Option<Ipv4Addr> {
    let (first, last) = hosts(network);
    if id == 0 {
        return Some(Ipv4Addr::from(last));
    }
    first.checked_add(id - 1).filter(|host| *host <= last).map(Ipv4Addr::from)
}

/// The first and the last host. Networks of one or two addresses have no broadcast address.
fn hosts(network: Ipv4Net) -> (u32, u32) {
    let (first, last) = (u32::from(network.network()), u32::from(network.broadcast()));
    if network.prefix_len() >= 31 { (first, last) } else { (first + 1, last - 1) }
}

fn check_host(reader: &mut Reader<'_>, path: &str, at: At, address: Ipv4Addr, network: Ipv4Net) {
    let (first, last) = hosts(network);
    let (first, last) = (Ipv4Addr::from(first), Ipv4Addr::from(last));
    if (first..=last).contains(&address) {
        return;
    }
    let found = if address == network.network() || address == network.broadcast() {
        format!("is `{address}`, which is not a host's address in `{network}`")
    } else {
        format!("is `{address}`, which is outside of the network `{network}`")
    };
    reader.error_at(path, at, found, &format!("an address from {first} to {last}"), "");
}

fn check_mask(reader: &mut Reader<'_>, path: &str, at: At, mask: Option<u8>, network: Ipv4Net) {
    if let Some(mask) = mask.filter(|mask| *mask != network.prefix_len()) {
        let found = format!("has the mask /{mask}, and its network has /{}", network.prefix_len());
        reader.error_at(path, at, found, &format!("the mask /{}", network.prefix_len()), "");
    }
}

fn check_distinct(
    reader: &mut Reader<'_>,
    at: At,
    floating: Option<Ipv4Net>,
    gateway: Option<Ipv4Addr>,
    own: Option<Ipv4Net>,
    has_no_number: bool,
) {
    let (floating, own) = (floating.map(|net| net.addr()), own.map(|net| net.addr()));
    let number_it = if has_no_number { NUMBER_IT } else { "" };
    if let Some(floating) = floating.filter(|floating| Some(*floating) == own) {
        taken_by_floating(reader, at, floating, "this node's own address", number_it);
    }
    if let Some(gateway) =
        gateway.filter(|gateway| Some(*gateway) == floating || Some(*gateway) == own)
    {
        let is_own = Some(gateway) == own;
        let whose = if is_own { "this node's own address" } else { "the floating address" };
        taken_by_gateway(reader, at, gateway, whose, if is_own { number_it } else { "" });
    }
}

fn taken_by_floating(reader: &mut Reader<'_>, at: At, floating: Ipv4Addr, whose: &str, hint: &str) {
    let hint = if hint.is_empty() { "it moves from node to node" } else { hint };
    let found = format!("is {floating}, which is {whose}");
    reader.error_at(shape(reader).floating, at, found, "an address that no node has", hint);
}

fn taken_by_gateway(reader: &mut Reader<'_>, at: At, gateway: Ipv4Addr, whose: &str, hint: &str) {
    reader.error_at(
        GATEWAY,
        at,
        format!("is {gateway}, which is {whose}"),
        "the address of the router",
        hint,
    );
}

/// Refuses floating addresses and gateways that are the address of a node: of another one, or this
/// one's on another of the networks where two are one.
fn check_others(
    reader: &mut Reader<'_>,
    networks: &[Option<ClusterNetwork>; 3],
    node: Option<&NodeIdentity>,
    all_nodes: &[String],
) {
    let others: Vec<&String> =
        all_nodes.iter().filter(|name| node.is_none_or(|node| node.name != **name)).collect();
    for (net, network) in NETWORKS.into_iter().zip(networks) {
        let Some(network) = network else { continue };
        let at = At { net, item: 0 };
        let floating = network.floating.addr();
        if let Some((whose, hint)) = holder(floating, net, networks, &others) {
            taken_by_floating(reader, at, floating, &whose, hint);
        }
        if let Some(gateway) = network.gateway
            && let Some((whose, hint)) = holder(gateway, net, networks, &others)
        {
            taken_by_gateway(reader, at, gateway, &whose, hint);
        }
    }
}

/// Holder of `address`, and what helps if that is not obvious; this node's own on `net` is not
/// looked at.
fn holder(
    address: Ipv4Addr,
    net: &str,
    networks: &[Option<ClusterNetwork>; 3],
    others: &[&String],
) -> Option<(String, &'static str)> {
    NETWORKS.into_iter().zip(networks).find_map(|(other_net, network)| {
        let network = network.as_ref()?;
        if other_net != net && network.address.is_some_and(|own| own.addr() == address) {
            return Some((format!("this node's own address on the network `{other_net}`"), ""));
        }
        let by_id = others.iter().filter(|_| network.selection == AddressSelection::ById);
        let mut numbers = by_id.map(|name| (name, NodeId::of(name).number));
        let (name, number) =
            numbers.find(|(_, number)| host_by_id(network.network, *number) == Some(address))?;
        let hint = if number == 0 { NUMBER_IT } else { "" };
        Some((format!("the address that `by-id` gives to the node `{name}`"), hint))
    })
}

/// Networks may share a device, and then even addresses; but they must not overlap in part, nor be
/// one network on two devices.
fn check_pairs(reader: &mut Reader<'_>, networks: &[Option<ClusterNetwork>; 3]) {
    for (second, net) in NETWORKS.iter().enumerate() {
        for (first, other) in NETWORKS.iter().enumerate().take(second) {
            if let (Some(a), Some(b)) = (&networks[first], &networks[second]) {
                check_pair(reader, At { net, item: 0 }, other, a, b);
            }
        }
    }
    if let [Some(upstream), Some(cluster), Some(storage)] = networks
        && upstream.device == storage.device
        && upstream.device != cluster.device
    {
        let found =
            format!("is `{}`, as for `upstream`, while `cluster` has another", storage.device);
        let hint = "daemons of PVC 1.0.3 cannot bridge one device twice: give each network \
                    its own, or all one";
        reader.warn_at(DEVICE, At { net: "storage", item: 0 }, found, hint);
    }
}

fn check_pair(
    reader: &mut Reader<'_>,
    at: At,
    other: &str,
    a: &ClusterNetwork,
    b: &ClusterNetwork,
) {
    let same_device = a.device == b.device;
    let overlap = a.network.contains(&b.network) || b.network.contains(&a.network);
    if overlap && !(same_device && a.network == b.network) {
        let found =
            format!("is `{}`, which overlaps the network `{}` of `{other}`", b.network, a.network);
        let hint = "use separate networks, or the same network on the same device";
        reader.error_at(shape(reader).network, at, found, "", hint);
    }
    if same_device && a.mtu != b.mtu {
        let found =
            format!("is {}, and `{other}` sets {} on the same device `{}`", b.mtu, a.mtu, b.device);
        reader.warn_at(MTU, at, found, "use one MTU for networks that share a device");
    }
}

/// Warns of nodes whose names end in the same number, which `by-id` gives the same address.
fn check_ids(
    reader: &mut Reader<'_>,
    networks: &[Option<ClusterNetwork>; 3],
    all_nodes: &[String],
) {
    let by_id = |network: &Option<ClusterNetwork>| {
        network.as_ref().is_some_and(|network| network.selection == AddressSelection::ById)
    };
    let Some(net) =
        NETWORKS.into_iter().zip(networks).find(|(_, network)| by_id(network)).map(|(net, _)| net)
    else {
        return;
    };
    for (index, name) in all_nodes.iter().enumerate() {
        let id = NodeId::of(name).number;
        if let Some(other) =
            all_nodes[..index].iter().find(|other| *other != name && NodeId::of(other).number == id)
        {
            let found = format!("is `by-id`, which gives `{other}` and `{name}` the same address");
            let hint = "their names end in the same number: rename one, or give each an address of \
                        its own";
            reader.warn_at(shape(reader).selection, At { net, item: 0 }, found, hint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_id_counts_hosts_from_one_and_takes_the_last_for_zero() {
        let cases = [
            ("10.0.0.0/24", 1, Some("10.0.0.1")),
            ("10.0.0.0/24", 254, Some("10.0.0.254")),
            ("10.0.0.0/24", 255, None),
            ("10.0.0.0/24", 0, Some("10.0.0.254")),
            ("10.0.0.0/31", 1, Some("10.0.0.0")),
            ("10.0.0.0/31", 2, Some("10.0.0.1")),
            ("10.0.0.7/32", 1, Some("10.0.0.7")),
            ("10.0.0.7/32", 2, None),
            ("10.0.0.0/8", u32::MAX, None),
        ];
        for (network, id, host) in cases {
            let found =
                host_by_id(network.parse().expect(network), id).map(|host| host.to_string());
            assert_eq!(found.as_deref(), host, "{network} {id}");
        }
    }
}
