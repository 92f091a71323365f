//! The links of a machine: its network interfaces, as the kernel has them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

pub use ipnet::IpNet;

/// The links of a machine by name.
pub type Links = BTreeMap<String, Link>;

/// A network interface and what it carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub name: String,
    pub kind: LinkKind,
    pub mtu: u32,
    /// Switched on by the administrator; whether a cable is plugged in is
    /// [`carrier`](Link::carrier).
    pub up: bool,
    pub carrier: bool,
    /// The link that this one is a port of: a bridge, a bond.
    pub master: Option<String>,
    /// The link that this one, of whatever kind, lies on: a VLAN on its card; `None` also if that
    /// lies in another network namespace.
    pub lies_on: Option<String>,
    /// Note that somebody has put on it (`ip link set LINK alias …`).
    pub alias: Option<String>,
    /// `None` for links that have no Ethernet address.
    pub mac: Option<Mac>,
    /// Each with the prefix length of the network that it stands in.
    pub addresses: BTreeSet<IpNet>,
}

/// A tunnel for the frames of one network, as this machine's end of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vxlan {
    /// The VNI, 1 to 16,777,215.
    pub id: u32,
    /// The address that the other ends send to; `None` leaves it to the route.
    pub local: Option<IpAddr>,
    /// The link that it is bound to, if any; also `None` if that lies in another network namespace.
    pub lower: Option<String>,
    /// The UDP port, here and there.
    pub port: u16,
    /// Whether it learns from what comes in who is where. Not with EVPN, which tells it.
    pub learning: bool,
}

/// Abilities of a machine's kernel with links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkAbilities {
    /// VLANs as links of their own.
    pub vlans: bool,
    pub vxlans: bool,
}

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Reads an Ethernet address: six octets in hexadecimal with colons between.
pub fn parse_mac(text: &str) -> Option<Mac> {
    let mut mac = Mac::default();
    let mut parts = text.split(':');
    for octet in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2)?;
        *octet = u8::from_str_radix(part, 16).ok().filter(|_| !part.starts_with('+'))?;
    }
    parts.next().is_none().then_some(mac)
}

/// An Ethernet address as it is recorded: in small letters, with colons.
pub fn mac_text(mac: Mac) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}

/// Whether an Ethernet address is of one card: a multicast one is of many.
pub fn is_unicast(mac: Mac) -> bool {
    mac[0] & 1 == 0
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkKind {
    /// A network card, or whatever else the kernel names no kind of.
    Device,
    Bridge,
    /// `lower` is `None` if it lies in another network namespace.
    Vlan {
        lower: Option<String>,
        id: u16,
    },
    Vxlan(Vxlan),
    /// Any other, by the kernel's word for it: `bond`, `veth`.
    Other(String),
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkKind::Device => f.write_str("device"),
            LinkKind::Bridge => f.write_str("bridge"),
            LinkKind::Vlan { id, .. } => write!(f, "VLAN {id}"),
            LinkKind::Vxlan(vxlan) => write!(f, "VXLAN {}", vxlan.id),
            LinkKind::Other(kind) => f.write_str(kind),
        }
    }
}

/// A way out of the machine: a unicast route of the main table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// The whole address space for a default route.
    pub to: IpNet,
    /// `None` if it is reached without a router.
    pub via: Option<IpAddr>,
    /// `None` if the kernel names no single link.
    pub link: Option<String>,
    /// Among routes to the same place the smallest wins.
    pub metric: u32,
}

impl Route {
    pub fn is_default(&self) -> bool {
        self.to.prefix_len() == 0
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_default() {
            true => f.write_str("default")?,
            false => write!(f, "{}", self.to)?,
        }
        if let Some(via) = self.via {
            write!(f, " via {via}")?;
        }
        if let Some(link) = &self.link {
            write!(f, " on {link}")?;
        }
        Ok(())
    }
}

/// The longest name that the kernel takes for a link, in bytes.
pub const LINK_NAME_BYTES: usize = 15;

/// Whether the kernel takes `name` for a link.
pub fn is_link_name(name: &str) -> bool {
    let odd = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    !name.is_empty()
        && name.len() <= LINK_NAME_BYTES
        && name != "."
        && name != ".."
        && !name.contains(odd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_names_are_what_the_kernel_takes() {
        for good in ["lo", "ens4.10", "brupstream", "enp0s31f6u1u2u3"] {
            assert!(is_link_name(good), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "a:1", "enp0s31f6u1u2u34", "x\n"] {
            assert!(!is_link_name(bad), "{bad}");
        }
    }

    #[test]
    fn an_ethernet_address_is_read_in_letters_of_any_size_and_said_in_small_ones() {
        let text = |text: &str| parse_mac(text).map(mac_text);
        assert_eq!(text("52:54:00:AA:bb:0F").as_deref(), Some("52:54:00:aa:bb:0f"));
        assert_eq!(text("00:00:00:00:00:00").as_deref(), Some("00:00:00:00:00:00"));
        for bad in [
            "",
            "52:54:00:aa:bb",
            "52:54:00:aa:bb:01:02",
            "52:54:00:aa:bb:01:",
            "52:54:00:aa:bb:1",
            "52-54-00-aa-bb-01",
            "+2:54:00:aa:bb:01",
            "52:54:00:aa:bb:0g",
        ] {
            assert_eq!(text(bad), None, "{bad}");
        }
        assert!(parse_mac("52:54:00:00:00:01").is_some_and(is_unicast));
        assert!(!parse_mac("53:54:00:00:00:01").is_some_and(is_unicast));
    }
}
