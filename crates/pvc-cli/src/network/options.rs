//! Fields of a network, as options.

use clap::Args;

use crate::outcome::{Exit, Failure};

/// Options that a network is added and modified with.
#[derive(Debug, Args)]
pub struct Options {
    /// MTU in bytes [default: the largest that the nodes carry]
    #[arg(short, long)]
    pub mtu: Option<String>,

    /// DNS domain of the network [default: the description and `.local`]
    #[arg(short = 'n', long)]
    pub domain: Option<String>,

    /// DNS server that the domain is delegated to; may be repeated
    #[arg(long = "dns-server", value_name = "NAME")]
    pub dns_servers: Option<Vec<String>>,

    /// IPv4 network, such as 10.20.1.0/24
    #[arg(short, long, value_name = "NETWORK")]
    pub ipnet: Option<String>,

    /// IPv6 network of 64 bits, such as 2001:db8:1::/64; also `-i6`
    #[arg(long, value_name = "NETWORK")]
    pub ipnet6: Option<String>,

    /// Address of the gateway, which the primary has, in the IPv4 network
    #[arg(short, long, value_name = "ADDRESS")]
    pub gateway: Option<String>,

    /// Address of the gateway in the IPv6 network [default: the first]; also `-g6`
    #[arg(long, value_name = "ADDRESS")]
    pub gateway6: Option<String>,

    /// Give guests IPv4 addresses by DHCP
    #[arg(long, overrides_with = "no_dhcp")]
    dhcp: bool,

    /// Give guests no IPv4 addresses
    #[arg(long, overrides_with = "dhcp")]
    no_dhcp: bool,

    /// First address that DHCP gives
    #[arg(long, value_name = "ADDRESS")]
    pub dhcp_start: Option<String>,

    /// Last address that DHCP gives
    #[arg(long, value_name = "ADDRESS")]
    pub dhcp_end: Option<String>,

    /// Let guests reach what lies outside of the cluster under the primary's address
    #[arg(long, overrides_with = "no_masquerade")]
    masquerade: bool,

    /// Let guests keep their own addresses towards the outside
    #[arg(long, overrides_with = "masquerade")]
    no_masquerade: bool,

    /// Let guests send only from their MAC address and the addresses that DHCP has given them
    #[arg(long, overrides_with = "no_spoof_guard")]
    spoof_guard: bool,

    /// Let guests send from any address
    #[arg(long, overrides_with = "spoof_guard")]
    no_spoof_guard: bool,
}

impl Options {
    pub fn dhcp(&self) -> Option<bool> {
        either(self.dhcp, self.no_dhcp)
    }

    pub fn masquerade(&self) -> Option<bool> {
        either(self.masquerade, self.no_masquerade)
    }

    pub fn spoof_guard(&self) -> Option<bool> {
        either(self.spoof_guard, self.no_spoof_guard)
    }

    /// Whether something is asked for that PVC 1.0.3 does not know and would not do.
    pub fn are_new(&self) -> bool {
        self.masquerade || self.spoof_guard
    }
}

/// Whether there is one DNS server, of which PVC 1.0.3 makes as many as its name has letters.
pub fn is_single(servers: Option<&Vec<String>>) -> bool {
    servers.is_some_and(|servers| servers.len() == 1 && !servers[0].is_empty())
}

/// The failure of who asks a server that is too old for one DNS server alone.
pub fn too_old_for_one() -> Failure {
    too_old("a network with one DNS server, of whose letters it would make servers")
}

/// The failure of who asks a server for what it does not know, and would leave out of account.
pub fn too_old(what: &str) -> Failure {
    Failure::new(Exit::NotYet, format!("the server is too old for {what}"))
        .hint("upgrade its API; nothing was done")
}

/// A flag that may be left as it is.
pub fn either(on: bool, off: bool) -> Option<bool> {
    (on || off).then_some(on)
}
