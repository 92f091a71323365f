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
    /// By MAC address, reservations first.
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

/// An IPv4 address that a network's DHCP keeps for a MAC address, or has given to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseRecord {
    pub mac: String,
    pub address: String,
    pub hostname: String,
    /// When it ends, in seconds since the epoch, as text; `None` for a reservation.
    pub expiry: Option<String>,
    /// Name that the client gave itself beside its MAC address, as DHCP servers write it; `*` or
    /// empty if it gave none. Reservations have none.
    pub client_id: String,
}

/// An IPv4 address that a network's DHCP has given, as the node writes it that gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenLease {
    /// In small letters, with colons.
    pub mac: String,
    pub address: std::net::Ipv4Addr,
    pub hostname: Option<String>,
    /// When it ends, in seconds since the epoch; `None` if that is not known.
    pub expiry: Option<u64>,
    /// Name that the client gave itself beside its MAC address.
    pub client_id: Option<String>,
}

/// A rule of a network's firewall.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AclRecord {
    pub direction: Direction,
    pub order: u32,
    pub description: String,
    /// Match and verdict in nftables' words.
    pub rule: String,
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
