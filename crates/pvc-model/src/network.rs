//! Networks, as recorded.

/// What the tree records about a network. Texts are kept as they stand, `None` being the word for
/// "not set" that older peers write.
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
}
