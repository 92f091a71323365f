//! Networks.

wire! {
    /// A network. Unset members hold the text `None`, which clients of PVC 1.0.3 compare with.
    pub struct Network {
        pub vni: i64,
        pub description: String,
        /// `managed` or `bridged`.
        pub r#type: String,
        /// Text.
        pub mtu: String,
        pub domain: String,
        pub name_servers: Vec<String>,
        pub ip6: Ipv6Settings,
        pub ip4: Ipv4Settings,
        /// Whether guests reach what lies outside under the primary's address. Not told by PVC
        /// 1.0.3.
        pub masquerade: bool,
        /// Whether guests may send only as themselves. Not told by PVC 1.0.3.
        pub spoof_guard: bool,
        /// Seconds since the epoch at which a change was made that waits to be confirmed; null if
        /// none does. Not told by PVC 1.0.3.
        pub unconfirmed_since: Option<u64>,
    }

    /// The reply to a network that was made.
    pub struct CreatedNetwork {
        pub message: String,
        /// Its number. Not told by PVC 1.0.3.
        pub vni: i64,
    }

    pub struct Ipv6Settings {
        pub network: String,
        pub gateway: String,
        /// The text `True`, `False` or `None`.
        pub dhcp_flag: String,
    }

    pub struct Ipv4Settings {
        pub network: String,
        pub gateway: String,
        /// The text `True`, `False` or `None`.
        pub dhcp_flag: String,
        pub dhcp_start: String,
        pub dhcp_end: String,
    }

    /// An address that DHCP keeps for a MAC address, or has given to it.
    pub struct Lease {
        /// The text `None` if there is none.
        pub hostname: String,
        /// Empty for a lease of IPv6.
        pub ip4_address: String,
        /// Empty for a lease of IPv6 if it is not known.
        pub mac_address: String,
        /// Address of a lease of IPv6; null for others. Not told by PVC 1.0.3.
        pub ip6_address: Option<String>,
        /// Name of the client (DUID) of a lease of IPv6; null for others. Not told by PVC 1.0.3.
        pub duid: Option<String>,
        /// End of the lease in seconds since the epoch, as text; `static` for a reservation.
        pub timestamp: String,
    }

    /// The way of a packet from a VM, and of the answer to it, by the records: nothing is sent.
    pub struct NetworkTrace {
        pub vm: String,
        /// Target as it was asked for.
        pub target: String,
        /// Whether the packet and its answer arrive, if all is so that is assumed, and nothing that
        /// they depend on changes that.
        pub passes: bool,
        pub there: TraceWay,
        /// Null if there is no answer, or its way is not PVC's.
        pub back: Option<TraceWay>,
    }

    /// Way of a packet.
    pub struct TraceWay {
        /// Address that it comes from; null if it is not known.
        pub from: Option<String>,
        /// Address that it goes to; null if it is not known.
        pub to: Option<String>,
        pub steps: Vec<TraceStep>,
        pub end: TraceEnd,
        /// Unknowns that may make it end in another way.
        pub depends: Vec<String>,
        /// Assumptions: what is taken for granted.
        pub assumed: Vec<String>,
    }

    /// Something that a packet meets.
    pub struct TraceStep {
        /// `interface`, `node`, `bridge`, `device`, `guard`, `vlan`, `tunnel`, `gateway`, `rule`,
        /// `unjudged`, `service`, `masquerade` or `returns`.
        pub kind: String,
        /// The step in words.
        pub text: String,
        /// Of a tunnel the node at its far end; null of an interface.
        pub node: Option<String>,
        /// Number of the network that it is about; null if none is.
        pub network: Option<i64>,
    }

    /// End of a packet's way.
    pub struct TraceEnd {
        /// `vm`, `node`, `leaves`, `dropped`, `nobody`, `off`, `no-gateway` or `no-network`.
        pub kind: String,
        /// The end in words.
        pub text: String,
        /// Null if it ends on none.
        pub node: Option<String>,
        /// Whether it gets to somebody, or out of the cluster.
        pub arrives: bool,
    }

    /// A rule of a network's firewall.
    pub struct Acl {
        /// `in` or `out`.
        pub direction: String,
        pub order: i64,
        pub description: String,
        /// Match and verdict in nftables' words.
        pub rule: String,
    }
}
