//! Networks.

wire! {
    /// One network. Unset members hold the text `None`, which old clients compare with.
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
}
