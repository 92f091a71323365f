//! FRR's configuration on a node: how the ends of the tunnels find each other (EVPN), and how the
//! networks of VMs are announced to routers outside. What PVC writes stands between two lines of
//! FRR's file; the rest of it is the operator's.
//!
//! ```text
//!  coordinators   speak with each other, and reflect what they hear
//!  other nodes    speak with every coordinator; coordinators let in the nodes that they know
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{Ipv4Net, Ipv6Net};

use super::GuestNetworks;
use crate::NodeName;
use crate::cluster::Cluster;

/// Line before what PVC writes.
pub const BEGIN: &str = "! BEGIN PVC: written by the node daemon; changes in here are lost";

/// Line behind it.
pub const END: &str = "! END PVC";

/// Seconds between keepalives, and after which a silent neighbour is gone. A busy node is not to
/// lose its guests' networks, and where the guests of a dead one are then, they say themselves.
const TIMERS: &str = "10 30";

/// Group of the coordinators.
const NODES: &str = "pvc-nodes";

/// Group of all other nodes, of which coordinators are route reflectors.
const HYPERVISORS: &str = "pvc-hypervisors";

/// Settings of the cluster's BGP, the same on each node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvpnSettings {
    /// Number of the cluster's autonomous system.
    pub asn: u32,
    /// Routers outside that the networks of VMs are announced to.
    pub routers: BTreeSet<IpAddr>,
    /// Number of the routers' autonomous system.
    pub router_asn: u32,
    /// Address of this node in the cluster's network, from which it speaks.
    pub own: Ipv4Addr,
    /// The cluster's network.
    pub network: Ipv4Net,
    pub coordinators: BTreeSet<NodeName>,
    /// Address that the configuration gives to a node, as far as it gives any.
    pub configured: BTreeMap<NodeName, Ipv4Addr>,
    pub is_coordinator: bool,
}

impl EvpnSettings {
    fn has_routers(&self) -> bool {
        !self.routers.is_empty()
    }
}

/// Whether the kernel forwards packets of each family. FRR switches it on where its file does not
/// say otherwise, and that is not FRR's to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forwarding {
    pub ip4: bool,
    pub ip6: bool,
}

/// Address of a node: as it says itself, or as the configuration has it.
fn address(settings: &EvpnSettings, cluster: &Cluster, node: &NodeName) -> Option<Ipv4Addr> {
    let note = cluster.nodes.get(node).and_then(|node| node.daemon.as_ref());
    let recorded = note.and_then(|note| note.cluster_address.as_ref()?.parse().ok());
    let recorded = recorded.filter(|address| settings.network.contains(address));
    recorded.or(settings.configured.get(node).copied())
}

/// Coordinators of which no address is known: nothing can be written for them.
pub fn unknown_coordinators<'a>(
    settings: &'a EvpnSettings,
    cluster: &Cluster,
) -> Vec<&'a NodeName> {
    let is_unknown = |node: &&NodeName| address(settings, cluster, node).is_none();
    settings.coordinators.iter().filter(is_unknown).collect()
}

/// Returns PVC's part of the file, with the lines around it.
pub fn block(settings: &EvpnSettings, cluster: &Cluster, forwarding: Forwarding) -> String {
    let mut text = format!("{BEGIN}\n");
    for (family, is_on) in [("ip", forwarding.ip4), ("ipv6", forwarding.ip6)] {
        let _ = writeln!(text, "{}{family} forwarding", if is_on { "" } else { "no " });
    }
    if settings.has_routers() {
        announced(&mut text, &GuestNetworks::of(cluster));
    }
    let EvpnSettings { asn, own, .. } = settings;
    let _ = write!(text, "router bgp {asn}\n bgp router-id {own}\n bgp graceful-restart\n");
    neighbors(&mut text, settings, cluster);
    families(&mut text, settings);
    let _ = write!(text, "exit\n{END}\n");
    text
}

/// Groups of nodes that this node speaks with.
fn groups(settings: &EvpnSettings) -> &'static [&'static str] {
    if settings.is_coordinator { &[NODES, HYPERVISORS] } else { &[NODES] }
}

/// Nodes and routers that are spoken to, in their groups.
fn neighbors(text: &mut String, settings: &EvpnSettings, cluster: &Cluster) {
    let EvpnSettings { asn, own, coordinators, .. } = settings;
    let addresses = |nodes: &mut dyn Iterator<Item = &NodeName>| -> BTreeSet<Ipv4Addr> {
        let all = nodes.filter_map(|node| address(settings, cluster, node));
        all.filter(|address| address != own).collect()
    };
    for name in groups(settings) {
        let _ = write!(
            text,
            " neighbor {name} peer-group\n neighbor {name} remote-as {asn}\n neighbor {name} \
             timers {TIMERS}\n neighbor {name} timers connect 3\n neighbor {name} update-source \
             {own}\n"
        );
        let nodes = addresses(&mut coordinators.iter());
        if *name == NODES {
            for address in nodes {
                let _ = writeln!(text, " neighbor {address} peer-group {name}");
            }
            continue;
        }
        text.push_str(" bgp listen limit 512\n");
        let known = cluster.nodes.keys().chain(settings.configured.keys());
        let mut others = known.filter(|node| !coordinators.contains(*node));
        for address in addresses(&mut others).difference(&nodes) {
            let _ = writeln!(text, " bgp listen range {address}/32 peer-group {name}");
        }
    }
    if settings.has_routers() {
        let _ = write!(
            text,
            " neighbor pvc-routers peer-group\n neighbor pvc-routers remote-as {}\n",
            settings.router_asn
        );
        for router in &settings.routers {
            let _ = writeln!(text, " neighbor {router} peer-group pvc-routers");
        }
    }
}

/// Families of addresses, and which neighbours are told of which.
fn families(text: &mut String, settings: &EvpnSettings) {
    // The other way, `no bgp default ipv4-unicast`, is the operator's neighbours', too.
    text.push_str(" address-family ipv4 unicast\n");
    for group in groups(settings) {
        let _ = writeln!(text, "  no neighbor {group} activate");
    }
    text.push_str(" exit-address-family\n address-family l2vpn evpn\n");
    for group in groups(settings) {
        let _ = writeln!(text, "  neighbor {group} activate");
        if *group == HYPERVISORS {
            let _ = writeln!(text, "  neighbor {group} route-reflector-client");
        }
    }
    text.push_str("  advertise-all-vni\n exit-address-family\n");
    if settings.has_routers() {
        for (family, map) in [("ipv4", "pvc-networks"), ("ipv6", "pvc-networks6")] {
            let _ = write!(
                text,
                " address-family {family} unicast\n  redistribute connected route-map {map}\n  \
                 neighbor pvc-routers activate\n  neighbor pvc-routers route-map pvc-routers in\n  \
                 neighbor pvc-routers route-map {map} out\n exit-address-family\n"
            );
        }
    }
}

/// Networks that routers outside are told of. The node announces those that it has an address in:
/// the primary, which has the gateways.
fn announced(text: &mut String, networks: &GuestNetworks) {
    let (mut ip4, mut ip6) = (BTreeMap::<u32, Ipv4Net>::new(), BTreeMap::<u32, Ipv6Net>::new());
    for network in &networks.networks {
        let Some(managed) = network.managed() else { continue };
        let vni = network.vni.get();
        let of_4 = managed.ip4.iter().filter(|ip4| ip4.gateway.is_some());
        ip4.extend(of_4.map(|ip4| (vni, ip4.network)));
        let of_6 = managed.ip6.iter().filter(|ip6| ip6.gateway.is_some());
        ip6.extend(of_6.map(|ip6| (vni, ip6.network)));
    }
    // A list without a line would let everything pass.
    text.push_str("ip prefix-list pvc-networks seq 1 deny 0.0.0.0/32\n");
    for (vni, network) in ip4 {
        let _ = writeln!(text, "ip prefix-list pvc-networks seq {} permit {network}", vni + 1);
    }
    text.push_str("ipv6 prefix-list pvc-networks6 seq 1 deny ::/128\n");
    for (vni, network) in ip6 {
        let _ = writeln!(text, "ipv6 prefix-list pvc-networks6 seq {} permit {network}", vni + 1);
    }
    text.push_str(
        "route-map pvc-networks permit 10\n match ip address prefix-list pvc-networks\nexit\n\
         route-map pvc-networks6 permit 10\n match ipv6 address prefix-list pvc-networks6\nexit\n\
         route-map pvc-routers permit 10\nexit\n",
    );
}

/// Reason for which PVC's part cannot be put into the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvpnError {
    #[error("the file has a `router bgp {found}` of its own, and the cluster's number is {asn}")]
    OtherAs { found: String, asn: u32 },
    #[error("the line `{BEGIN}` is there without `{END}`, or more than once")]
    Markers,
}

impl EvpnError {
    /// Advice for the operator.
    pub fn hint(&self) -> &'static str {
        match self {
            EvpnError::OtherAs { .. } => {
                "set `guest_networking.evpn.asn` to that number, or take that part out of the file"
            }
            EvpnError::Markers => "take PVC's part out of the file, with all such lines",
        }
    }
}

/// Puts PVC's part into FRR's file: in the place of the former one, or at the end. All else stays
/// as it is.
///
/// # Errors
/// If the file has a BGP of another autonomous system, beside which FRR takes none, or lines that
/// look like the ends of PVC's part and are not.
pub fn merged(file: &str, block: &str, asn: u32) -> Result<String, EvpnError> {
    let is = |line: &str, marker: &str| line.trim_end() == marker;
    let lines: Vec<&str> = file.lines().collect();
    let places = |marker: &str| -> Vec<usize> {
        let all = lines.iter().enumerate().filter(|(_, line)| is(line, marker));
        all.map(|(at, _)| at).collect()
    };
    let (before, behind): (&[&str], &[&str]) = match (&places(BEGIN)[..], &places(END)[..]) {
        ([], []) => (&lines, &[]),
        ([begin], [end]) if begin < end => (&lines[..*begin], &lines[end + 1..]),
        _ => return Err(EvpnError::Markers),
    };
    for line in before.iter().chain(behind) {
        // In a VRF there may be others.
        if let ["router", "bgp", found] = line.split_whitespace().collect::<Vec<_>>()[..]
            && found != asn.to_string()
        {
            return Err(EvpnError::OtherAs { found: crate::shown(found).to_string(), asn });
        }
    }
    // An operator's own word about it comes first.
    let is_said = |line: &&str| {
        let said = |whole: &&str| whole.trim() == *line || whole.trim() == format!("no {line}");
        before.iter().chain(behind).any(said)
    };
    let is_left_out = |line: &&str| {
        let word = line.strip_prefix("no ").unwrap_or(line);
        word.ends_with(" forwarding") && is_said(&word)
    };
    let mut text = String::new();
    let mut add = |lines: &[&str]| lines.iter().for_each(|line| _ = writeln!(text, "{line}"));
    add(before);
    add(&block.lines().filter(|line| !is_left_out(line)).collect::<Vec<_>>());
    add(behind);
    Ok(text)
}

/// FRR's file of daemons with BGP switched on; `None` if it is.
pub fn with_bgp(daemons: &str) -> Option<String> {
    let is_on = |line: &str| {
        let value = line.trim().strip_prefix("bgpd=").and_then(|value| value.split('#').next());
        value.is_some_and(|value| value.trim().trim_matches(['"', '\'']) == "yes")
    };
    if daemons.lines().any(is_on) {
        return None;
    }
    let is_switch = |line: &&str| !line.trim_start().starts_with("bgpd=");
    let others: String =
        daemons.lines().filter(is_switch).map(|line| format!("{line}\n")).collect();
    Some(format!("{others}bgpd=yes\n"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::network::NetworkRecord;
    use crate::node::DaemonNote;
    use crate::records;

    fn settings(is_coordinator: bool) -> EvpnSettings {
        let name = |name: &str| NodeName::new(name);
        EvpnSettings {
            asn: 65500,
            routers: BTreeSet::new(),
            router_asn: 65500,
            own: "10.0.0.1".parse().unwrap(),
            network: "10.0.0.0/24".parse().unwrap(),
            coordinators: ["hv1", "hv2", "other"].map(name).into(),
            configured: [("hv1", "10.0.0.1"), ("hv2", "10.0.0.2"), ("hv9", "10.0.0.9")]
                .map(|(node, address)| (name(node), address.parse().unwrap()))
                .into(),
            is_coordinator,
        }
    }

    const FORWARDS: Forwarding = Forwarding { ip4: true, ip6: false };

    fn lines(block: &str) -> Vec<&str> {
        block.lines().map(str::trim).collect()
    }

    #[test]
    fn coordinators_speak_with_each_other_and_let_the_others_in() {
        let cluster = Cluster::default();
        let settings = settings(true);
        let text = block(&settings, &cluster, FORWARDS);
        let all = lines(&text);
        assert!(all.contains(&"neighbor 10.0.0.2 peer-group pvc-nodes"), "{text}");
        assert!(!all.iter().any(|line| line.starts_with("neighbor 10.0.0.1 ")), "{text}");
        let range = "bgp listen range 10.0.0.9/32 peer-group pvc-hypervisors";
        let ranges: Vec<&&str> = all.iter().filter(|line| line.contains("range")).collect();
        assert_eq!(ranges, [&range], "neither a coordinator nor an unknown node is a hypervisor");
        assert!(all.contains(&"no neighbor pvc-nodes activate"));
        assert!(all.contains(&"ip forwarding") && all.contains(&"no ipv6 forwarding"));
        assert!(all.contains(&"neighbor pvc-hypervisors route-reflector-client"));
        assert!(all.contains(&"bgp graceful-restart"), "it is offered; tunnels are away meanwhile");
        assert!(all.contains(&"advertise-all-vni"));
        assert!(!text.contains("unicast\n  redistribute"), "there is nobody to tell");
        assert_eq!(unknown_coordinators(&settings, &cluster), [&NodeName::new("other")]);
    }

    #[test]
    fn other_nodes_speak_with_the_coordinators_and_let_nobody_in() {
        let mut cluster = Cluster::default();
        let mut other = records::node("other");
        let note = |address: &str| DaemonNote {
            cluster_address: Some(address.to_owned()),
            ..DaemonNote::default()
        };
        other.daemon = Some(note("10.0.0.33"));
        let mut hv2 = records::node("hv2");
        hv2.daemon = Some(note("192.0.2.1"));
        for node in [other, hv2] {
            cluster.nodes.insert(node.name.clone(), Arc::new(node));
        }
        let mut settings = settings(false);
        settings.own = "10.0.0.9".parse().unwrap();
        let text = block(&settings, &cluster, FORWARDS);
        for (address, is_there) in
            [("10.0.0.1", true), ("10.0.0.2", true), ("10.0.0.33", true), ("192.0.2.1", false)]
        {
            let line = format!("neighbor {address} peer-group pvc-nodes");
            assert_eq!(lines(&text).contains(&&*line), is_there, "{address}: {text}");
        }
        assert!(!text.contains("listen"), "{text}");
        assert!(lines(&text).contains(&"bgp graceful-restart"), "{text}");
        assert!(unknown_coordinators(&settings, &cluster).is_empty());
    }

    #[test]
    fn routers_hear_of_the_networks_with_a_gateway_and_of_nothing_else() {
        let mut cluster = Cluster::default();
        let network = |vni: &str, ip4: &str, gateway: &str| NetworkRecord {
            vni: vni.to_owned(),
            nettype: "managed".to_owned(),
            ip4_network: ip4.to_owned(),
            ip4_gateway: gateway.to_owned(),
            ..NetworkRecord::default()
        };
        for record in
            [network("7", "10.20.7.0/24", "10.20.7.1"), network("8", "10.20.8.0/24", "None")]
        {
            cluster.networks.insert(record.vni.clone(), Arc::new(record));
        }
        let mut settings = settings(true);
        settings.routers = ["192.0.2.1", "2001:db8::1"].map(|ip| ip.parse().unwrap()).into();
        settings.router_asn = 65001;
        let text = block(&settings, &cluster, FORWARDS);
        let all = lines(&text);
        assert!(all.contains(&"ip prefix-list pvc-networks seq 8 permit 10.20.7.0/24"), "{text}");
        assert!(!text.contains("10.20.8.0"), "{text}");
        assert!(all.contains(&"neighbor pvc-routers remote-as 65001"));
        assert!(all.contains(&"neighbor 2001:db8::1 peer-group pvc-routers"));
        assert!(all.contains(&"neighbor pvc-routers route-map pvc-networks out"));
        assert!(all.contains(&"redistribute connected route-map pvc-networks6"));
    }

    #[test]
    fn what_the_operator_wrote_stays_and_a_second_time_changes_nothing() {
        let own =
            "frr defaults datacenter\n!\nrouter ospf\n network 192.0.2.0/24 area 0\n!\nline vty\n";
        let part = format!("{BEGIN}\nrouter bgp 65500\n{END}\n");
        let first = merged(own, &part, 65500).unwrap();
        assert_eq!(first, format!("{own}{part}"));
        let behind = format!("{first}router bgp 65500\n neighbor 192.0.2.9 remote-as 1\n");
        assert_eq!(merged(&behind, &part, 65500).unwrap(), behind);
        let other = format!("{BEGIN}\n! other\n{END}\n");
        let changed = merged(&behind, &other, 65500).unwrap();
        assert_eq!(changed, behind.replace(&part, &other));
        let forwards = format!("{BEGIN}\nip forwarding\nno ipv6 forwarding\n{END}\n");
        let said = merged("no ip forwarding\n", &forwards, 65500).unwrap();
        assert_eq!(said, format!("no ip forwarding\n{BEGIN}\nno ipv6 forwarding\n{END}\n"));
    }

    #[test]
    fn a_file_that_would_not_be_understood_is_left_alone() {
        let part = format!("{BEGIN}\nrouter bgp 65500\n{END}\n");
        let other = merged("router bgp 65000\n", &part, 65500).unwrap_err();
        assert_eq!(other, EvpnError::OtherAs { found: "65000".to_owned(), asn: 65500 });
        assert!(merged("router bgp 65000 vrf red\n", &part, 65500).is_ok());
        for file in [
            format!("{BEGIN}\n"),
            format!("{END}\n{BEGIN}\n"),
            format!("{part}{part}"),
            format!("{END}\n"),
        ] {
            assert_eq!(merged(&file, &part, 65500), Err(EvpnError::Markers), "{file}");
        }
    }

    #[test]
    fn bgp_is_switched_on_where_it_is_off() {
        assert_eq!(with_bgp("zebra=yes\nbgpd=no\n"), Some("zebra=yes\nbgpd=yes\n".to_owned()));
        assert_eq!(with_bgp("#bgpd=yes\n"), Some("#bgpd=yes\nbgpd=yes\n".to_owned()));
        for line in [" bgpd=yes \n", "bgpd=\"yes\"\n", "bgpd=yes # for PVC\n"] {
            assert_eq!(with_bgp(line), None, "{line}");
        }
    }
}
