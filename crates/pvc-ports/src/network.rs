//! The network of this machine: its links, their addresses, the way out, and the kernel's settings.

use std::net::IpAddr;
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::link::{IpNet, LinkAbilities, Links, Mac, Route, Vxlan};

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("the link `{link}` does not exist")]
    NoLink { link: String },
    #[error("the link `{link}` exists and is no {wanted}")]
    OtherKind { link: String, wanted: String },
    #[error("`{name}` is no name for a link")]
    BadName { name: String },
    #[error("this kernel has no {what}")]
    Unsupported { what: String },
    #[error("the kernel has no setting `{key}`")]
    NoSetting { key: String },
    #[error("the kernel did not {what}")]
    Refused {
        /// The request: `set the MTU of `ens4` to 9000`.
        what: String,
        #[source]
        source: std::io::Error,
    },
    #[error("`{program}` is not installed")]
    NoProgram { program: String, package: &'static str },
    #[error("the kernel did not {what} within {seconds} s")]
    TimedOut { what: String, seconds: u64 },
}

impl NetworkError {
    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            NetworkError::NoLink { .. } => "`ip link` shows the links of this machine",
            NetworkError::OtherKind { link, .. } => {
                return Some(format!(
                    "`ip -d link show {link}` shows what it is; give it another name"
                ));
            }
            NetworkError::Unsupported { .. } => {
                "is the kernel's module installed? A minimal kernel may lack it"
            }
            NetworkError::NoProgram { package, .. } => {
                return Some(format!("`apt install {package}` brings it"));
            }
            NetworkError::Refused { source, .. }
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                "this needs root, and in a container CAP_NET_ADMIN and CAP_NET_RAW"
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

/// The network of this machine.
///
/// Every change may be repeated: what is there already is not an error, and neither is the absence
/// of what is to be removed. Changes touch what they name and nothing else. A call returns within
/// seconds.
#[async_trait]
pub trait Network: Send + Sync {
    /// Every link with its addresses, in one look.
    async fn links(&self) -> Result<Links, NetworkError>;

    /// A bridge without ports, switched off.
    async fn create_bridge(&self, link: &str) -> Result<(), NetworkError>;
    /// Creates a link for what is tagged `id` on the link `lower`: a link of its own, switched off.
    async fn create_vlan(&self, link: &str, lower: &str, id: u16) -> Result<(), NetworkError>;
    /// A tunnel's end, switched off. One of another number, address, port or manner has to be
    /// removed first.
    async fn create_vxlan(&self, link: &str, vxlan: &Vxlan) -> Result<(), NetworkError>;
    /// Removes a bridge, a VLAN or a VXLAN; any other kind is not ours to remove. Its ports are
    /// left without a bridge.
    async fn remove_link(&self, link: &str) -> Result<(), NetworkError>;

    /// Gives a link an Ethernet address, which it keeps: a bridge takes none of its ports from then
    /// on.
    async fn set_mac(&self, link: &str, mac: Mac) -> Result<(), NetworkError>;
    /// Notes on the link what it is, for whoever looks ([`Link::alias`](pvc_model::link::Link));
    /// at most 255 bytes.
    async fn set_alias(&self, link: &str, alias: &str) -> Result<(), NetworkError>;
    /// Has this machine compute the checksums of what it sends over `link`, instead of leaving that
    /// to a card: between a bridge and the guests on it there is none.
    ///
    /// # Errors
    /// [`Unsupported`](NetworkError::Unsupported) if the link has no such setting.
    async fn compute_checksums(&self, link: &str) -> Result<(), NetworkError>;

    async fn set_mtu(&self, link: &str, mtu: u32) -> Result<(), NetworkError>;
    async fn set_up(&self, link: &str, up: bool) -> Result<(), NetworkError>;
    /// Makes it a port of `master`, or of none.
    async fn set_master(&self, link: &str, master: Option<&str>) -> Result<(), NetworkError>;

    /// Adds an address, usable at once: an IPv6 address is not probed for duplicates first.
    async fn add_address(&self, link: &str, address: IpNet) -> Result<(), NetworkError>;
    /// Adds an address as [`add_address`](Network::add_address) does, but the kernel itself takes
    /// the address away again once `lifetime` has passed, within a second or two, unless it was
    /// leased anew by then: also when this program can do nothing any more. An address that stands
    /// for ever is leased from now on.
    async fn lease_address(
        &self,
        link: &str,
        address: IpNet,
        lifetime: Duration,
    ) -> Result<(), NetworkError>;
    /// Removes the address with this prefix length. Other addresses of the same network stay.
    async fn remove_address(&self, link: &str, address: IpNet) -> Result<(), NetworkError>;
    /// Tells the neighbours on `link` that the address is here now: gratuitous ARP for IPv4,
    /// unsolicited neighbour advertisements for IPv6, twice within 20 ms. The link must be up.
    async fn announce(&self, link: &str, address: IpAddr) -> Result<(), NetworkError>;

    /// Returns the abilities of this kernel, found out by trying them where it hurts nobody. They
    /// do not change while the kernel runs.
    async fn abilities(&self) -> Result<LinkAbilities, NetworkError>;

    /// The unicast routes of the main table.
    async fn routes(&self) -> Result<Vec<Route>, NetworkError>;
    async fn add_route(&self, route: &Route) -> Result<(), NetworkError>;
    async fn remove_route(&self, route: &Route) -> Result<(), NetworkError>;

    /// A setting of the kernel by its path below `/proc/sys`, such as `net/ipv4/ip_forward`; `None`
    /// if this kernel has no such setting. Slashes, because names of links may hold dots.
    async fn setting(&self, key: &str) -> Result<Option<String>, NetworkError>;
    async fn set_setting(&self, key: &str, value: &str) -> Result<(), NetworkError>;
}
