//! Networks, as recorded.

/// Record of a network. Texts are kept as they stand, `None` being the word for "not set" that
/// legacy peers write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkRecord {
    pub vni: String,
    pub description: String,
    pub nettype: String,
    pub mtu: String,
    pub domain: String,
    pub name_servers: Vec<String>,
    pub ip4_network: String,
    pub ip4_gateway: String,
    pub dhcp4_flag: String,
    pub dhcp4_start: String,
    pub dhcp4_end: String,
    pub ip6_network: String,
    pub ip6_gateway: String,
    pub dhcp6_flag: String,
    /// By MAC address, reservations first; then those of IPv6 by address.
    pub leases: Vec<LeaseRecord>,
    /// Rules for packets that come in first, each direction by their order.
    pub acls: Vec<AclRecord>,
}

/// Options of a network that legacy peers know nothing of; recorded apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetworkOptions {
    /// Whether guests reach addresses outside of the cluster under the address of the primary,
    /// which then stands for theirs in their packets.
    pub masquerade: bool,
    /// Whether each guest may send only as itself: from its own MAC address and the addresses that
    /// DHCP has given it, and without being a DHCP server or a router.
    pub spoof_guard: bool,
}

/// An address that a network's DHCP keeps for a MAC address, or has given to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Empty if it is not known, of IPv6.
    pub mac: String,
    pub address: String,
    pub hostname: String,
    /// End of the lease, in seconds since the epoch, as text; `None` for a reservation.
    pub expiry: Option<String>,
    /// Name that the client gave itself beside its MAC address, as DHCP servers write it; `*` or
    /// empty if it gave none. Reservations have none.
    pub client_id: String,
    /// The client, if it is a lease of IPv6.
    pub ip6: Option<Ip6Client>,
}

/// Client of DHCP of IPv6, which names itself and is not known by its MAC address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ip6Client {
    /// Name that it keeps, in hexadecimal, with colons.
    pub duid: String,
    /// Number of the interface among those of the client, with `T` in front of it if the address is
    /// a temporary one.
    pub iaid: String,
}

/// An IPv4 address that a network's DHCP has given, as the node writes it that gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenLease {
    /// In small letters, with colons.
    pub mac: String,
    pub address: std::net::Ipv4Addr,
    pub hostname: Option<String>,
    /// End of the lease, in seconds since the epoch; `None` if that is not known.
    pub expiry: Option<u64>,
    /// Name that the client gave itself beside its MAC address.
    pub client_id: Option<String>,
}

/// An IPv6 address that a network's DHCP has given, as the node writes it that gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenLease6 {
    pub address: std::net::Ipv6Addr,
    pub client: Ip6Client,
    /// In small letters, with colons; `None` if that is not known.
    pub mac: Option<String>,
    pub hostname: Option<String>,
    /// End of the lease, in seconds since the epoch.
    pub expiry: u64,
}

/// A rule of a network's firewall.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AclRecord {
    pub direction: Direction,
    pub order: u32,
    pub description: String,
    /// Match and verdict in nftables' words; empty if its text or its order is not recorded.
    pub rule: String,
}

impl AclRecord {
    /// Whether only a part of it is recorded, so that nobody knows what it does.
    pub fn is_half(&self) -> bool {
        self.rule.trim().is_empty()
    }
}

/// Direction of the packets that a rule is about, seen from the network's guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    In,
    Out,
}

impl Direction {
    pub fn as_str(self) -> &'static str {
        match self {
            Direction::In => "in",
            Direction::Out => "out",
        }
    }
}
