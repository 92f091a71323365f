//! Networks of VMs.

use crate::param::Added;
use crate::{Acl, CreatedNetwork, Lease, Network};

params! {
    /// Filter of the networks to list.
    #[derive(Default)]
    pub struct NetworkFilter {
        /// A regular expression on the VNI or the description.
        limit: Option<String>,
    }
}

params! {
    /// Filter of the leases to list.
    #[derive(Default)]
    pub struct LeaseFilter {
        /// A regular expression on the MAC address.
        limit: Option<String>,
        /// Only reservations.
        reserved = "static": Option<bool>,
    }
}

choice! {
    /// Direction of the packets that a rule is about.
    pub enum Way { In = "in", Out = "out" }
}

params! {
    /// Filter of the rules to list.
    #[derive(Default)]
    pub struct AclFilter {
        /// A regular expression on the description.
        limit: Option<String>,
        /// Only those of this direction.
        direction: Option<Way>,
    }
}

choice! {
    /// Kind of a network: a VLAN of the switches, or one of PVC's own between the nodes.
    pub enum NetworkWord { Managed = "managed", Bridged = "bridged" }
}

params! {
    /// A network to make.
    pub struct NetworkCreation {
        /// Number of the network: 1 to 16777214, of a bridged one that of its VLAN. `auto` is the
        /// smallest free one: of managed networks from 1000 on, of bridged ones from 2 on.
        vni: String,
        /// Name of the network.
        description: String,
        /// Kind of the network.
        nettype: NetworkWord,
        /// MTU in bytes; the largest that the nodes carry without it.
        mtu: Option<String>,
        /// DNS domain of a managed network; its description and `.local` without it.
        domain: Option<String>,
        /// Names of DNS servers that the domain is delegated to.
        name_servers: Option<Vec<String>>,
        /// IPv4 network of a managed network: `10.20.1.0/24`.
        ip4_network: Option<String>,
        /// Address in it that the primary has.
        ip4_gateway: Option<String>,
        /// IPv6 network of a managed network, of 64 bits: `2001:db8:1::/64`. With it guests get
        /// addresses by router advertisements and DHCPv6.
        ip6_network: Option<String>,
        /// Address in it that the primary has; the first without it.
        ip6_gateway: Option<String>,
        /// Whether guests get IPv4 addresses by DHCP.
        dhcp4: Option<bool>,
        /// First address that DHCP gives.
        dhcp4_start: Option<String>,
        /// Last address that DHCP gives.
        dhcp4_end: Option<String>,
        /// Whether guests of a managed network reach what lies outside of the cluster under the
        /// primary's address.
        masquerade: Option<bool>,
        /// Whether guests of a managed network may send only as themselves: from their MAC address
        /// and the addresses that DHCP has given them.
        spoof_guard: Option<bool>,
    }
}

params! {
    /// A network to make with the number in the path.
    pub struct NetworkSettings {
        /// Name of the network.
        description: String,
        /// Kind of the network.
        nettype: NetworkWord,
        /// MTU in bytes; the largest that the nodes carry without it.
        mtu: Option<String>,
        /// DNS domain of a managed network; its description and `.local` without it.
        domain: Option<String>,
        /// Names of DNS servers that the domain is delegated to.
        name_servers: Option<Vec<String>>,
        /// IPv4 network of a managed network: `10.20.1.0/24`.
        ip4_network: Option<String>,
        /// Address in it that the primary has.
        ip4_gateway: Option<String>,
        /// IPv6 network of a managed network, of 64 bits: `2001:db8:1::/64`. With it guests get
        /// addresses by router advertisements and DHCPv6.
        ip6_network: Option<String>,
        /// Address in it that the primary has; the first without it.
        ip6_gateway: Option<String>,
        /// Whether guests get IPv4 addresses by DHCP.
        dhcp4: Option<bool>,
        /// First address that DHCP gives.
        dhcp4_start: Option<String>,
        /// Last address that DHCP gives.
        dhcp4_end: Option<String>,
        /// Whether guests of a managed network reach what lies outside of the cluster under the
        /// primary's address.
        masquerade: Option<bool>,
        /// Whether guests of a managed network may send only as themselves: from their MAC address
        /// and the addresses that DHCP has given them.
        spoof_guard: Option<bool>,
    }
}

params! {
    /// Fields of a network to change: what is not given stays, and an empty text clears. Without
    /// IPv6 network there is no gateway of it either.
    #[derive(Default)]
    pub struct NetworkChange {
        /// Name of the network.
        description: Option<String>,
        /// MTU in bytes, or empty for the largest that the nodes carry.
        mtu: Option<String>,
        /// DNS domain of a managed network, or empty for its description and `.local`.
        domain: Option<String>,
        /// Names of DNS servers that the domain is delegated to, or empty for none.
        name_servers: Option<Vec<String>>,
        /// IPv4 network of a managed network: `10.20.1.0/24`.
        ip4_network: Option<String>,
        /// Address in it that the primary has.
        ip4_gateway: Option<String>,
        /// IPv6 network of a managed network, of 64 bits: `2001:db8:1::/64`. With it guests get
        /// addresses by router advertisements and DHCPv6.
        ip6_network: Option<String>,
        /// Address in it that the primary has; the first of a new network without it.
        ip6_gateway: Option<String>,
        /// Whether guests get IPv4 addresses by DHCP.
        dhcp4: Option<bool>,
        /// First address that DHCP gives.
        dhcp4_start: Option<String>,
        /// Last address that DHCP gives.
        dhcp4_end: Option<String>,
        /// Whether guests of a managed network reach what lies outside of the cluster under the
        /// primary's address.
        masquerade: Option<bool>,
        /// Whether guests of a managed network may send only as themselves: from their MAC address
        /// and the addresses that DHCP has given them.
        spoof_guard: Option<bool>,
        /// Seconds, 5 to 3600, within which the change is taken back unless it is confirmed.
        confirm: Option<u32>,
    }
}

params! {
    /// Whether a network is really to be removed.
    #[derive(Default)]
    pub struct NetworkDeletion {
        /// Also one that a VM is plugged into.
        force: Added,
    }
}

params! {
    /// An address to reserve.
    pub struct LeaseCreation {
        /// The MAC address that it is kept for.
        macaddress: String,
        /// The IPv4 address.
        ipaddress: String,
        /// Name of the host.
        hostname: Option<String>,
    }
}

params! {
    /// An address to reserve for the MAC address in the path.
    pub struct LeaseSettings {
        /// The IPv4 address.
        ipaddress: String,
        /// Name of the host.
        hostname: Option<String>,
    }
}

params! {
    /// A rule to add.
    pub struct AclCreation {
        /// Name of the rule.
        description: String,
        /// Match and verdict in nftables' words: `tcp dport 22 accept`.
        rule: String,
        /// Direction of the packets, seen from the guests; `out` without it.
        direction: Option<Way>,
        /// Its place among the rules of that direction, from 0 on; the last without it.
        order: Option<u32>,
        /// Seconds, 5 to 3600, within which the change is taken back unless it is confirmed.
        confirm: Option<u32>,
    }
}

params! {
    /// A rule to add under the name in the path.
    pub struct AclSettings {
        /// Match and verdict in nftables' words: `tcp dport 22 accept`.
        rule: String,
        /// Direction of the packets, seen from the guests; `out` without it.
        direction: Option<Way>,
        /// Its place among the rules of that direction, from 0 on; the last without it.
        order: Option<u32>,
        /// Seconds, 5 to 3600, within which the change is taken back unless it is confirmed.
        confirm: Option<u32>,
    }
}

params! {
    /// Whether the removal of a rule is to stay.
    #[derive(Default)]
    pub struct AclDeletion {
        /// Seconds, 5 to 3600, within which the change is taken back unless it is confirmed.
        confirm: Option<u32>,
    }
}

operations! { "network":
    /// The networks by VNI.
    GetNetwork { GET "/network", Reader, read(NetworkFilter) -> [Network] }

    /// Makes a network.
    PostNetwork { POST "/network", Operator, change(NetworkCreation) -> CreatedNetwork }

    /// A network, by VNI or description.
    GetNetworkVni { GET "/network/{vni}", Reader, read -> [Network] }

    /// Makes the network with this VNI, or with the next free one if that is `auto`.
    PostNetworkVni { POST "/network/{vni}", Operator, change(NetworkSettings) -> CreatedNetwork }

    /// Changes a network.
    PutNetworkVni { PUT "/network/{vni}", Operator, change(NetworkChange) }

    /// Removes a network with its leases and rules.
    DeleteNetworkVni { DELETE "/network/{vni}", Operator, change(NetworkDeletion) }

    /// Keeps a change of a network or of one of its rules that waits to be confirmed.
    PostNetworkVniConfirm { POST "/network/{vni}/confirm", Operator, change }

    /// The DHCP leases of a network: reservations, then what was given, each by MAC address.
    GetNetworkVniLease { GET "/network/{vni}/lease", Reader, read(LeaseFilter) -> [Lease] }

    /// Reserves an IPv4 address for a MAC address.
    PostNetworkVniLease { POST "/network/{vni}/lease", Operator, change(LeaseCreation) }

    /// The DHCP leases of a MAC address.
    GetNetworkVniLeaseMac { GET "/network/{vni}/lease/{mac}", Reader, read -> [Lease] }

    /// Reserves an IPv4 address for this MAC address.
    PostNetworkVniLeaseMac {
        POST "/network/{vni}/lease/{mac}", Operator, change(LeaseSettings)
    }

    /// Removes a reservation, or what DHCP has given: by MAC address, host name, address or DUID.
    DeleteNetworkVniLeaseMac { DELETE "/network/{vni}/lease/{mac}", Operator, change }

    /// The rules of a network's firewall: those of packets that come in, then of those that go out,
    /// each in their order.
    GetNetworkVniAcl { GET "/network/{vni}/acl", Reader, read(AclFilter) -> [Acl] }

    /// Adds a rule to a network's firewall, if nft takes it. Those behind it move by one.
    PostNetworkVniAcl { POST "/network/{vni}/acl", Operator, change(AclCreation) }

    /// The rules of a network's firewall with this description.
    GetNetworkVniAclDescription { GET "/network/{vni}/acl/{description}", Reader, read -> [Acl] }

    /// Adds the rule with this description to a network's firewall, if nft takes it. Those behind
    /// it move by one.
    PostNetworkVniAclDescription {
        POST "/network/{vni}/acl/{description}", Operator, change(AclSettings)
    }

    /// Removes the rule with this description from a network's firewall. Those behind it move by
    /// one.
    DeleteNetworkVniAclDescription {
        DELETE "/network/{vni}/acl/{description}", Operator, change(AclDeletion)
    }
}
