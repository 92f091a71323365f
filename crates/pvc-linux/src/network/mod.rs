//! Network of this machine, asked and changed over netlink.

mod abilities;
mod announce;
mod checksums;
pub(crate) mod kernel;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use nix::errno::Errno;
use pvc_model::link::{
    IpNet, LinkAbilities, LinkKind, Links, Mac, Route, Vxlan, is_link_name, mac_text,
};
use pvc_ports::{Network, NetworkError};
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, CacheInfo};
use rtnetlink::packet_route::route::{RouteProtocol, RouteScope};
use rtnetlink::{
    AddressMessageBuilder, LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVlan, LinkVxlan,
};

use crate::apart::{self, Stuck};
use announce::FrameSocket;
use kernel::{DEADLINE, ask, ask_while, errno, index_of, refused_with, unless};

/// Number of times that an address is announced, and the pause between: short, because somebody
/// waits for it, and more than once, because a frame may get lost.
const ANNOUNCEMENTS: u32 = 2;
const ANNOUNCEMENT_PAUSE: Duration = Duration::from_millis(15);

/// Network of this machine: that of the network namespace that the calling thread is in.
#[derive(Debug, Clone)]
pub struct LinuxNetwork {
    settings: PathBuf,
    giving: Giving,
}

/// Addresses that the kernel is asked to give, with the number of such requests that are out. It
/// may carry one out long after whoever asked has given up.
#[derive(Debug, Clone, Default)]
struct Giving(Arc<Mutex<BTreeMap<(String, IpNet), usize>>>);

/// A request that is out, until it is dropped.
struct Given(Giving, (String, IpNet));

/// Time for which a removal waits for requests that are out to be carried out.
const SETTLES: Duration = Duration::from_secs(1);

impl Giving {
    fn begin(&self, link: &str, address: IpNet) -> Given {
        let which = (link.to_owned(), address);
        *self.out().entry(which.clone()).or_default() += 1;
        Given(self.clone(), which)
    }

    fn out(&self) -> MutexGuard<'_, BTreeMap<(String, IpNet), usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether none is out any more.
    async fn settles(&self, link: &str, address: IpNet) -> bool {
        let which = (link.to_owned(), address);
        let settled = async {
            while self.out().contains_key(&which) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(SETTLES, settled).await.is_ok()
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        let mut out = self.0.out();
        if let Some(count) = out.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                out.remove(&self.1);
            }
        }
    }
}

impl LinuxNetwork {
    pub fn new() -> Self {
        Self::at("/proc/sys")
    }

    /// Makes a network with another folder in the place of `/proc/sys`.
    pub fn at(settings: impl Into<PathBuf>) -> Self {
        LinuxNetwork { settings: settings.into(), giving: Giving::default() }
    }

    /// The file of a setting. A key that would lead out of the folder is no key.
    fn setting_file(&self, key: &str) -> Result<PathBuf, NetworkError> {
        let odd = |part: &str| part.is_empty() || part == "." || part == "..";
        match key.split('/').any(odd) {
            true => Err(NetworkError::NoSetting { key: key.to_owned() }),
            false => Ok(self.settings.join(key)),
        }
    }
}

impl Default for LinuxNetwork {
    fn default() -> Self {
        Self::new()
    }
}

fn check_new_name(link: &str) -> Result<(), NetworkError> {
    match is_link_name(link) {
        true => Ok(()),
        false => Err(NetworkError::BadName { name: link.to_owned() }),
    }
}

fn late(what: String) -> NetworkError {
    NetworkError::TimedOut { what, seconds: DEADLINE.as_secs() }
}

async fn look() -> Result<Links, NetworkError> {
    ask("list its links".to_owned(), kernel::look).await
}

/// Takes "exists already" for success if what exists is what was wanted.
async fn created(
    done: Result<(), NetworkError>,
    link: &str,
    wanted: &LinkKind,
) -> Result<(), NetworkError> {
    let Err(error) = done else { return Ok(()) };
    match refused_with(&error) {
        Some(Errno::EEXIST) => {}
        Some(Errno::EOPNOTSUPP) => {
            let what = match wanted {
                LinkKind::Vlan { .. } => "VLANs (module 8021q)",
                LinkKind::Vxlan(_) => "VXLANs (module vxlan)",
                _ => "bridges (module bridge)",
            };
            return Err(NetworkError::Unsupported { what: what.to_owned() });
        }
        _ => return Err(error),
    }
    match look().await?.get(link) {
        Some(found) if found.kind == *wanted => Ok(()),
        Some(_) => {
            Err(NetworkError::OtherKind { link: link.to_owned(), wanted: wanted.to_string() })
        }
        // What exists has another name: a second VXLAN of one number, for one.
        None => Err(error),
    }
}

async fn change(
    link: &str,
    what: String,
    change: impl FnOnce(LinkMessageBuilder<LinkUnspec>) -> LinkMessageBuilder<LinkUnspec>,
) -> Result<(), NetworkError> {
    let message = change(LinkUnspec::new_with_index(index_of(link)?)).build();
    ask(what, async |handle| handle.link().set(message).execute().await.map_err(errno)).await
}

/// Time for which the kernel keeps an address, in whole seconds.
struct Lifetime(u32);

impl Lifetime {
    const FOREVER: Lifetime = Lifetime(u32::MAX);

    /// Rounds a time to a lifetime: never longer than `lifetime`; the kernel knows no shorter one
    /// than a second.
    fn of(lifetime: Duration) -> Lifetime {
        Lifetime(u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX).max(1))
    }
}

/// Gives the link an address, or the address it has another lifetime.
async fn give(
    giving: &Giving,
    link: &str,
    address: IpNet,
    Lifetime(seconds): Lifetime,
) -> Result<(), NetworkError> {
    let (index, ip, length) = (index_of(link)?, address.addr(), address.prefix_len());
    let out = giving.begin(link, address);
    ask_while(format!("give `{link}` the address {address}"), out, async |handle| {
        let mut request = handle.address().add(index, ip, length).replace();
        let attributes = &mut request.message_mut().attributes;
        if ip.is_ipv6() {
            // During a hand-over another node still has it for some milliseconds: not a duplicate.
            attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        let mut lifetime = CacheInfo::default();
        (lifetime.ifa_preferred, lifetime.ifa_valid) = (seconds, seconds);
        attributes.push(AddressAttribute::CacheInfo(lifetime));
        request.execute().await.map_err(errno)
    })
    .await
}

#[async_trait]
impl Network for LinuxNetwork {
    async fn links(&self) -> Result<Links, NetworkError> {
        look().await
    }

    async fn create_bridge(&self, link: &str) -> Result<(), NetworkError> {
        check_new_name(link)?;
        let message = LinkMessageBuilder::<LinkBridge>::new(link).build();
        let done = ask(format!("make the bridge `{link}`"), async |handle| {
            handle.link().add(message).execute().await.map_err(errno)
        });
        created(done.await, link, &LinkKind::Bridge).await
    }

    async fn create_vlan(&self, link: &str, lower: &str, id: u16) -> Result<(), NetworkError> {
        check_new_name(link)?;
        let message = LinkVlan::new(link, index_of(lower)?, id).build();
        let done = ask(format!("make VLAN {id} on `{lower}`"), async |handle| {
            handle.link().add(message).execute().await.map_err(errno)
        });
        created(done.await, link, &LinkKind::Vlan { lower: Some(lower.to_owned()), id }).await
    }

    async fn create_vxlan(&self, link: &str, vxlan: &Vxlan) -> Result<(), NetworkError> {
        check_new_name(link)?;
        let mut builder = LinkVxlan::new(link, vxlan.id).port(vxlan.port).learning(vxlan.learning);
        if let Some(lower) = &vxlan.lower {
            builder = builder.dev(index_of(lower)?);
        }
        builder = match vxlan.local {
            Some(IpAddr::V4(address)) => builder.local(address),
            Some(IpAddr::V6(address)) => builder.local6(address),
            None => builder,
        };
        let message = builder.build();
        let done = ask(format!("make VXLAN {} as `{link}`", vxlan.id), async |handle| {
            handle.link().add(message).execute().await.map_err(errno)
        });
        created(done.await, link, &LinkKind::Vxlan(vxlan.clone())).await
    }

    async fn remove_link(&self, link: &str) -> Result<(), NetworkError> {
        match look().await?.get(link).map(|link| &link.kind) {
            None => return Ok(()),
            Some(LinkKind::Bridge | LinkKind::Vlan { .. } | LinkKind::Vxlan(_)) => {}
            Some(_) => {
                let wanted = "bridge, VLAN or VXLAN".to_owned();
                return Err(NetworkError::OtherKind { link: link.to_owned(), wanted });
            }
        }
        let index = index_of(link)?;
        let done = ask(format!("remove `{link}`"), async |handle| {
            handle.link().del(index).execute().await.map_err(errno)
        });
        unless(done.await, &[Errno::ENODEV])
    }

    async fn set_mac(&self, link: &str, mac: Mac) -> Result<(), NetworkError> {
        let what = format!("give `{link}` the MAC address {}", mac_text(mac));
        change(link, what, |link| link.address(mac.to_vec())).await
    }

    async fn set_alias(&self, link: &str, alias: &str) -> Result<(), NetworkError> {
        let what = format!("note `{alias}` on `{link}`");
        change(link, what, |link| link.alias(alias)).await
    }

    async fn compute_checksums(&self, link: &str) -> Result<(), NetworkError> {
        index_of(link)?;
        let name = link.to_owned();
        let done = apart::within(DEADLINE, move || checksums::compute(&name)).await;
        let what = || format!("leave the checksums of `{link}` to this machine");
        done.map_err(|Stuck| late(what()))?.map_err(|source| {
            match source.raw_os_error().map(Errno::from_raw) {
                Some(Errno::ENODEV) => NetworkError::NoLink { link: link.to_owned() },
                Some(Errno::EOPNOTSUPP) => {
                    let what = format!("choice of who computes the checksums of `{link}`");
                    NetworkError::Unsupported { what }
                }
                _ => NetworkError::Refused { what: what(), source },
            }
        })
    }

    async fn set_mtu(&self, link: &str, mtu: u32) -> Result<(), NetworkError> {
        change(link, format!("set the MTU of `{link}` to {mtu}"), |link| link.mtu(mtu)).await
    }

    async fn set_up(&self, link: &str, up: bool) -> Result<(), NetworkError> {
        let what = format!("switch `{link}` {}", if up { "on" } else { "off" });
        change(link, what, |link| if up { link.up() } else { link.down() }).await
    }

    async fn set_master(&self, link: &str, master: Option<&str>) -> Result<(), NetworkError> {
        let index = master.map(index_of).transpose()?.unwrap_or(0);
        let what = match master {
            Some(master) => format!("make `{link}` a port of `{master}`"),
            None => format!("take `{link}` off its bridge"),
        };
        change(link, what, |link| link.controller(index)).await
    }

    async fn add_address(&self, link: &str, address: IpNet) -> Result<(), NetworkError> {
        give(&self.giving, link, address, Lifetime::FOREVER).await
    }

    async fn lease_address(
        &self,
        link: &str,
        address: IpNet,
        lifetime: Duration,
    ) -> Result<(), NetworkError> {
        give(&self.giving, link, address, Lifetime::of(lifetime)).await
    }

    async fn remove_address(&self, link: &str, address: IpNet) -> Result<(), NetworkError> {
        // One that is given after this removal would stay.
        let is_settled = self.giving.settles(link, address).await;
        let index = match index_of(link) {
            Err(NetworkError::NoLink { .. }) => return Ok(()),
            index => index?,
        };
        let message = match address {
            IpNet::V4(net) => {
                // Else the kernel removes, with the first address of a network, all others of it.
                // Who must let go of an address lets go of it all the same.
                let setting = format!("net/ipv4/conf/{link}/promote_secondaries");
                if let Err(error) = self.set_setting(&setting, "1").await {
                    tracing::warn!(%error, link, "other addresses of the network may go with the \
                                                  removed one");
                }
                AddressMessageBuilder::<std::net::Ipv4Addr>::new()
                    .index(index)
                    .address(net.addr(), net.prefix_len())
                    .build()
            }
            IpNet::V6(net) => AddressMessageBuilder::<std::net::Ipv6Addr>::new()
                .index(index)
                .address(net.addr(), net.prefix_len())
                .build(),
        };
        let what = || format!("take the address {address} off `{link}`");
        let done = ask(what(), async |handle| {
            handle.address().del(message).execute().await.map_err(errno)
        });
        unless(done.await, &[Errno::EADDRNOTAVAIL, Errno::ENODEV])?;
        if is_settled { Ok(()) } else { Err(late(what())) }
    }

    async fn announce(&self, link: &str, address: IpAddr) -> Result<(), NetworkError> {
        let refused = |source| NetworkError::Refused {
            what: format!("announce {address} on `{link}`"),
            source,
        };
        let index = index_of(link)?;
        let links = look().await?;
        let found =
            links.get(link).ok_or_else(|| NetworkError::NoLink { link: link.to_owned() })?;
        let mac = found.mac.ok_or_else(|| refused(io::Error::from(Errno::EOPNOTSUPP)))?;
        let socket = FrameSocket::open(index).map_err(refused)?;
        let frames = announce::frames(mac, address);
        for round in 0..ANNOUNCEMENTS {
            if round > 0 {
                tokio::time::sleep(ANNOUNCEMENT_PAUSE).await;
            }
            for frame in &frames {
                socket.send(frame).map_err(refused)?;
            }
        }
        Ok(())
    }

    async fn abilities(&self) -> Result<LinkAbilities, NetworkError> {
        abilities::find_out().await
    }

    async fn routes(&self) -> Result<Vec<Route>, NetworkError> {
        ask("list its routes".to_owned(), kernel::routes).await
    }

    async fn add_route(&self, route: &Route) -> Result<(), NetworkError> {
        let message = kernel::route_message(route)?;
        let done = ask(format!("add the route {route}"), async |handle| {
            handle.route().add(message).execute().await.map_err(errno)
        });
        match done.await {
            // The same one, or another that leads to the same place.
            Err(error) if refused_with(&error) == Some(Errno::EEXIST) => {
                let is_there = self.routes().await?.contains(route);
                if is_there { Ok(()) } else { Err(error) }
            }
            done => done,
        }
    }

    async fn remove_route(&self, route: &Route) -> Result<(), NetworkError> {
        let mut message = match kernel::route_message(route) {
            // A link takes its routes with it.
            Err(NetworkError::NoLink { .. }) => return Ok(()),
            message => message?,
        };
        // Whoever added it, and whatever its scope.
        message.header.protocol = RouteProtocol::Unspec;
        message.header.scope = RouteScope::NoWhere;
        let done = ask(format!("remove the route {route}"), async |handle| {
            handle.route().del(message).execute().await.map_err(errno)
        });
        unless(done.await, &[Errno::ESRCH])
    }

    async fn setting(&self, key: &str) -> Result<Option<String>, NetworkError> {
        // It is in the kernel's memory: reading it does not block.
        match std::fs::read_to_string(self.setting_file(key)?) {
            Ok(value) => Ok(Some(value.trim().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => {
                Err(NetworkError::Refused { what: format!("show its setting `{key}`"), source })
            }
        }
    }

    async fn set_setting(&self, key: &str, value: &str) -> Result<(), NetworkError> {
        let (file, text) = (self.setting_file(key)?, value.to_owned());
        // Some of them are set under the lock on all links.
        let write = move || {
            let mut file = std::fs::OpenOptions::new().write(true).open(file)?;
            io::Write::write_all(&mut file, text.as_bytes())
        };
        let what = || format!("set `{key}` to {value}");
        let written = apart::within(DEADLINE, write).await.map_err(|Stuck| late(what()))?;
        written.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => NetworkError::NoSetting { key: key.to_owned() },
            _ => NetworkError::Refused { what: what(), source },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn settings_are_files_and_no_key_leads_elsewhere() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("sys/net/ipv4/conf/ens4.10")).unwrap();
        std::fs::write(root.path().join("sys/net/ipv4/conf/ens4.10/rp_filter"), "1\n").unwrap();
        std::fs::write(root.path().join("secret"), "0\n").unwrap();
        let network = LinuxNetwork::at(root.path().join("sys"));
        let key = "net/ipv4/conf/ens4.10/rp_filter";
        assert_eq!(network.setting(key).await.unwrap().as_deref(), Some("1"));
        network.set_setting(key, "0").await.unwrap();
        assert_eq!(network.setting(key).await.unwrap().as_deref(), Some("0"));
        assert_eq!(network.setting("net/ipv4/none").await.unwrap(), None);
        for odd in ["../secret", "/etc/hostname", "", "net//ipv4"] {
            let error = network.set_setting(odd, "1").await.unwrap_err();
            assert!(matches!(error, NetworkError::NoSetting { .. }), "{odd}: {error}");
        }
    }

    /// The kernel may give an address after its removal was asked for.
    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_still_being_given_is_not_said_to_be_gone() {
        let (giving, address) = (Giving::default(), "10.0.0.250/24".parse().unwrap());
        assert!(giving.settles("br0", address).await);
        let (one, two) = (giving.begin("br0", address), giving.begin("br0", address));
        assert!(!giving.settles("br0", address).await);
        assert!(giving.settles("br1", address).await);
        drop(one);
        assert!(!giving.settles("br0", address).await);
        drop(two);
        assert!(giving.settles("br0", address).await);
    }
}
