use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::link::{
    IpNet, Link, LinkAbilities, LinkKind, Links, Mac, Route, Vxlan, is_link_name,
};
use pvc_ports::{Network, NetworkError};
use tokio::time::Instant;

/// A change that somebody asked a [`MemoryNetwork`] for. What was so already is not noted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkChange {
    Created { link: String, kind: LinkKind },
    Removed { link: String },
    Mac { link: String, mac: Mac },
    Alias { link: String, alias: String },
    ChecksumsComputed { link: String },
    Mtu { link: String, mtu: u32 },
    Up { link: String, up: bool },
    Master { link: String, master: Option<String> },
    AddressAdded { link: String, address: IpNet },
    AddressRemoved { link: String, address: IpNet },
    Announced { link: String, address: IpAddr },
    RouteAdded(Route),
    RouteRemoved(Route),
    Setting { key: String, value: String },
}

#[derive(Clone, Default)]
struct Inner {
    links: Links,
    routes: BTreeSet<Route>,
    settings: BTreeMap<String, String>,
    changes: Vec<NetworkChange>,
    /// Times at which addresses go by themselves.
    leases: BTreeMap<(String, IpNet), Instant>,
    failing: bool,
    hides_abilities: bool,
    counts_announcements: bool,
    refuses: Option<Refuses>,
    lacks: Lacks,
    looks: u64,
    /// Links for which this machine computes checksums.
    checksums: BTreeSet<String>,
}

/// Abilities that the kernel lacks.
#[derive(Clone, Copy, Default)]
struct Lacks {
    vlans: bool,
    vxlans: bool,
}

type Refuses = Arc<dyn Fn(&NetworkChange) -> bool + Send + Sync>;

/// A machine's network without packets: links, addresses, routes and settings as the [`Network`]
/// contract says, and a list of what was changed, in order.
pub struct MemoryNetwork {
    board: Arc<Board>,
}

struct Board {
    inner: Mutex<Inner>,
    watcher: Watcher,
    /// Announcements that are under way, and the most that ever were.
    announcing: AtomicUsize,
    most_announcing: AtomicUsize,
}

type Watcher = Box<dyn Fn(&NetworkChange) + Send + Sync>;

/// The settings that the kernel keeps for every link.
const PER_LINK: [(&str, &str); 7] = [
    ("net/ipv6/conf/{}/accept_dad", "1"),
    ("net/ipv6/conf/{}/disable_ipv6", "0"),
    ("net/ipv4/conf/{}/rp_filter", "1"),
    ("net/ipv4/conf/{}/accept_source_route", "1"),
    ("net/ipv4/conf/{}/promote_secondaries", "0"),
    ("net/ipv6/conf/{}/accept_ra", "1"),
    ("net/ipv6/conf/{}/forwarding", "0"),
];

/// The settings that the kernel keeps once, and for `all` and `default`.
const GLOBAL: [(&str, &str); 10] = [
    ("net/ipv4/ip_forward", "0"),
    ("net/ipv6/conf/all/forwarding", "0"),
    ("net/ipv4/conf/all/send_redirects", "1"),
    ("net/ipv4/conf/default/send_redirects", "1"),
    ("net/ipv4/conf/all/accept_source_route", "0"),
    ("net/ipv4/conf/default/accept_source_route", "1"),
    ("net/ipv6/conf/all/accept_source_route", "0"),
    ("net/ipv6/conf/default/accept_source_route", "0"),
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "1"),
];

impl MemoryNetwork {
    /// Makes a network with the link `lo` and nothing else.
    pub fn new() -> Self {
        Self::with_watcher(|_| {})
    }

    /// Calls `watcher` with each change at once, while nobody else can make one.
    pub fn with_watcher(watcher: impl Fn(&NetworkChange) + Send + Sync + 'static) -> Self {
        let board = Board {
            inner: Mutex::default(),
            watcher: Box::new(watcher),
            announcing: AtomicUsize::new(0),
            most_announcing: AtomicUsize::new(0),
        };
        let network = MemoryNetwork { board: Arc::new(board) };
        {
            let mut inner = network.inner();
            inner.settings = GLOBAL.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            inner.insert("lo", LinkKind::Device, 65536);
            inner.link("lo").expect("it was just inserted").up = true;
        }
        network
    }

    /// Adds a network card of this name, switched off.
    pub fn with_device(self, link: &str) -> Self {
        self.insert_device(link);
        self
    }

    /// Plugs in a network card.
    pub fn insert_device(&self, link: &str) {
        self.inner().insert(link, LinkKind::Device, 1500);
    }

    /// A bridge that the system has set up: switched on.
    pub fn insert_bridge(&self, link: &str) {
        let mut inner = self.inner();
        inner.insert(link, LinkKind::Bridge, 1500);
        inner.link(link).expect("it was just inserted").up = true;
    }

    /// Plugs a port, such as that of a guest, into a bridge.
    pub fn plug_in(&self, link: &str, bridge: &str) {
        let mut inner = self.inner();
        inner.insert(link, LinkKind::Other("tun".to_owned()), 1500);
        inner.link(link).expect("it was just inserted").master = Some(bridge.to_owned());
    }

    /// Takes a link away, of whatever kind, as a driver does when its card is pulled out.
    pub fn pull_out(&self, link: &str) {
        self.inner().take(link);
    }

    /// Sets the abilities of the kernel from now on. It has all of them at first.
    pub fn set_abilities(&self, able: LinkAbilities) {
        self.inner().lacks = Lacks { vlans: !able.vlans, vxlans: !able.vxlans };
    }

    /// Has the kernel not say from now on what it can, as where a program may have no namespaces.
    pub fn hide_abilities(&self) {
        self.inner().hides_abilities = true;
    }

    /// Sets whether changes fail. While set, every call fails as if the kernel refused.
    pub fn set_failing(&self, failing: bool) {
        self.inner().failing = failing;
    }

    /// Has every change fail, from now on, that `refuses` says so of; it changes nothing.
    pub fn set_refusing(&self, refuses: impl Fn(&NetworkChange) -> bool + Send + Sync + 'static) {
        self.inner().refuses = Some(Arc::new(refuses));
    }

    /// Number of times that the links were asked for.
    pub fn looks(&self) -> u64 {
        self.inner().looks
    }

    /// Counts announcements that are under way at once, from now on: each takes a moment then.
    pub fn count_announcements(&self) {
        self.inner().counts_announcements = true;
    }

    /// The most announcements that were ever under way at once.
    pub fn most_announced_at_once(&self) -> usize {
        self.board.most_announcing.load(Ordering::Relaxed)
    }

    /// Changes so far, in order.
    pub fn changes(&self) -> Vec<NetworkChange> {
        self.inner().changes.clone()
    }

    /// The links as they are, whether calls fail or not. Nobody has looked.
    pub fn links_as_they_are(&self) -> Links {
        self.inner().links.clone()
    }

    /// The link that has this address, if any.
    pub fn holder(&self, address: IpAddr) -> Option<String> {
        let inner = self.inner();
        let has = |link: &&Link| link.addresses.iter().any(|net| net.addr() == address);
        inner.links.values().find(has).map(|link| link.name.clone())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.board.inner()
    }

    fn change(
        &self,
        act: impl FnOnce(&mut Inner) -> Result<Option<NetworkChange>, NetworkError>,
    ) -> Result<(), NetworkError> {
        self.board.change(act)
    }
}

impl Board {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no test panics while holding it")
    }

    /// Lets `act` say what it changed.
    fn change(
        &self,
        act: impl FnOnce(&mut Inner) -> Result<Option<NetworkChange>, NetworkError>,
    ) -> Result<(), NetworkError> {
        let mut inner = self.inner();
        inner.answers()?;
        let before = inner.refuses.clone().map(|refuses| (refuses, inner.clone()));
        let change = act(&mut inner)?;
        if let (Some((refuses, before)), Some(change)) = (before, &change)
            && refuses(change)
        {
            *inner = before;
            return Err(refused("make a change", "this one is refused"));
        }
        self.note(&mut inner, change);
        Ok(())
    }

    fn note(&self, inner: &mut Inner, change: Option<NetworkChange>) {
        if let Some(change) = change {
            (self.watcher)(&change);
            inner.changes.push(change);
        }
    }

    /// Takes away what was leased until now or earlier: the kernel does, whoever asks it for
    /// nothing else.
    fn expire(&self) {
        let (mut inner, now) = (self.inner(), Instant::now());
        let over: Vec<(String, IpNet)> = inner
            .leases
            .iter()
            .filter(|(_, until)| **until <= now)
            .map(|(lease, _)| lease.clone())
            .collect();
        for (link, address) in over {
            let change = inner.remove_address(&link, address);
            self.note(&mut inner, change);
        }
    }
}

impl Default for MemoryNetwork {
    fn default() -> Self {
        Self::new()
    }
}

impl Inner {
    fn answers(&self) -> Result<(), NetworkError> {
        match self.failing {
            true => Err(refused("answer", "somebody pulled the plug")),
            false => Ok(()),
        }
    }

    fn link(&mut self, link: &str) -> Result<&mut Link, NetworkError> {
        self.links.get_mut(link).ok_or_else(|| NetworkError::NoLink { link: link.to_owned() })
    }

    fn insert(&mut self, name: &str, kind: LinkKind, mtu: u32) {
        let mac = Some([2, 0, 0, 0, 0, u8::try_from(self.links.len()).unwrap_or(u8::MAX)]);
        let link = Link {
            name: name.to_owned(),
            kind,
            mtu,
            up: false,
            carrier: true,
            master: None,
            lies_on: None,
            alias: None,
            mac,
            addresses: BTreeSet::new(),
        };
        self.links.insert(name.to_owned(), link);
        for (key, value) in PER_LINK {
            self.settings.insert(key.replace("{}", name), value.to_owned());
        }
    }

    fn add_address(
        &mut self,
        link: &str,
        address: IpNet,
    ) -> Result<Option<NetworkChange>, NetworkError> {
        let is_new = self.link(link)?.addresses.insert(address);
        self.leases.remove(&(link.to_owned(), address));
        Ok(is_new.then(|| NetworkChange::AddressAdded { link: link.to_owned(), address }))
    }

    fn remove_address(&mut self, link: &str, address: IpNet) -> Option<NetworkChange> {
        self.leases.remove(&(link.to_owned(), address));
        let was_there = self.links.get_mut(link)?.addresses.remove(&address);
        was_there.then(|| NetworkChange::AddressRemoved { link: link.to_owned(), address })
    }

    /// Removes a link and what cannot be without it.
    fn take(&mut self, name: &str) {
        self.links.remove(name);
        self.checksums.remove(name);
        let on_it = |kind: &LinkKind| match kind {
            LinkKind::Vlan { lower, .. } => lower.as_deref() == Some(name),
            LinkKind::Vxlan(vxlan) => vxlan.lower.as_deref() == Some(name),
            _ => false,
        };
        self.links.retain(|_, link| !on_it(&link.kind));
        for link in self.links.values_mut().filter(|link| link.master.as_deref() == Some(name)) {
            link.master = None;
        }
        self.routes.retain(|route| route.link.as_deref() != Some(name));
        for (key, _) in PER_LINK {
            self.settings.remove(&key.replace("{}", name));
        }
    }

    /// Whether the link is to be made: `false` if it is there.
    fn is_free(&self, name: &str, kind: &LinkKind) -> Result<bool, NetworkError> {
        if !is_link_name(name) {
            return Err(NetworkError::BadName { name: name.to_owned() });
        }
        match self.links.get(name) {
            None => Ok(true),
            Some(link) if link.kind == *kind => Ok(false),
            Some(_) => {
                Err(NetworkError::OtherKind { link: name.to_owned(), wanted: kind.to_string() })
            }
        }
    }
}

fn refused(what: &str, why: &str) -> NetworkError {
    NetworkError::Refused { what: what.to_owned(), source: std::io::Error::other(why.to_owned()) }
}

#[async_trait]
impl Network for MemoryNetwork {
    async fn links(&self) -> Result<Links, NetworkError> {
        let mut inner = self.inner();
        inner.looks += 1;
        inner.answers()?;
        Ok(inner.links.clone())
    }

    async fn create_bridge(&self, link: &str) -> Result<(), NetworkError> {
        self.change(|inner| {
            if !inner.is_free(link, &LinkKind::Bridge)? {
                return Ok(None);
            }
            inner.insert(link, LinkKind::Bridge, 1500);
            Ok(Some(NetworkChange::Created { link: link.to_owned(), kind: LinkKind::Bridge }))
        })
    }

    async fn create_vlan(&self, link: &str, lower: &str, id: u16) -> Result<(), NetworkError> {
        self.change(|inner| {
            let kind = LinkKind::Vlan { lower: Some(lower.to_owned()), id };
            let mtu = inner.link(lower)?.mtu;
            if !(1..=4094).contains(&id) {
                return Err(refused("make a VLAN", "its number is out of range"));
            }
            if inner.lacks.vlans {
                let what = "VLANs (module 8021q)".to_owned();
                return Err(NetworkError::Unsupported { what });
            }
            if !inner.is_free(link, &kind)? {
                return Ok(None);
            }
            inner.insert(link, kind.clone(), mtu);
            inner.link(link)?.lies_on = Some(lower.to_owned());
            Ok(Some(NetworkChange::Created { link: link.to_owned(), kind }))
        })
    }

    async fn create_vxlan(&self, link: &str, vxlan: &Vxlan) -> Result<(), NetworkError> {
        self.change(|inner| {
            let kind = LinkKind::Vxlan(vxlan.clone());
            if let Some(lower) = &vxlan.lower {
                inner.link(lower)?;
            }
            if !(1..1 << 24).contains(&vxlan.id) {
                return Err(refused("make a VXLAN", "its number is out of range"));
            }
            if inner.lacks.vxlans {
                let what = "VXLANs (module vxlan)".to_owned();
                return Err(NetworkError::Unsupported { what });
            }
            if !inner.is_free(link, &kind)? {
                return Ok(None);
            }
            let is_taken = |other: &Link| match &other.kind {
                LinkKind::Vxlan(other) => (other.id, other.port) == (vxlan.id, vxlan.port),
                _ => false,
            };
            if inner.links.values().any(is_taken) {
                return Err(refused("make a VXLAN", "another one has its number"));
            }
            inner.insert(link, kind.clone(), 1450);
            inner.link(link)?.lies_on.clone_from(&vxlan.lower);
            Ok(Some(NetworkChange::Created { link: link.to_owned(), kind }))
        })
    }

    async fn remove_link(&self, link: &str) -> Result<(), NetworkError> {
        self.change(|inner| match inner.links.get(link).map(|link| &link.kind) {
            None => Ok(None),
            Some(LinkKind::Bridge | LinkKind::Vlan { .. } | LinkKind::Vxlan(_)) => {
                inner.take(link);
                Ok(Some(NetworkChange::Removed { link: link.to_owned() }))
            }
            Some(_) => Err(NetworkError::OtherKind {
                link: link.to_owned(),
                wanted: "bridge, VLAN or VXLAN".to_owned(),
            }),
        })
    }

    async fn set_mac(&self, link: &str, mac: Mac) -> Result<(), NetworkError> {
        self.change(|inner| {
            let before = inner.link(link)?.mac.replace(mac);
            Ok((before != Some(mac)).then(|| NetworkChange::Mac { link: link.to_owned(), mac }))
        })
    }

    async fn set_alias(&self, link: &str, alias: &str) -> Result<(), NetworkError> {
        self.change(|inner| {
            if alias.len() > 255 {
                return Err(refused("note what it is", "that is too long"));
            }
            let alias = alias.to_owned();
            let noted = (!alias.is_empty()).then(|| alias.clone());
            let before = std::mem::replace(&mut inner.link(link)?.alias, noted.clone());
            let link = link.to_owned();
            Ok((before != noted).then_some(NetworkChange::Alias { link, alias }))
        })
    }

    async fn compute_checksums(&self, link: &str) -> Result<(), NetworkError> {
        self.change(|inner| {
            inner.link(link)?;
            let is_new = inner.checksums.insert(link.to_owned());
            Ok(is_new.then(|| NetworkChange::ChecksumsComputed { link: link.to_owned() }))
        })
    }

    async fn set_mtu(&self, link: &str, mtu: u32) -> Result<(), NetworkError> {
        self.change(|inner| {
            let found = inner.link(link)?;
            if !(68..=65535).contains(&mtu) {
                return Err(refused("set the MTU", "it is out of range"));
            }
            let before = std::mem::replace(&mut found.mtu, mtu);
            Ok((before != mtu).then(|| NetworkChange::Mtu { link: link.to_owned(), mtu }))
        })
    }

    async fn set_up(&self, link: &str, up: bool) -> Result<(), NetworkError> {
        self.change(|inner| {
            let before = std::mem::replace(&mut inner.link(link)?.up, up);
            if !up {
                // The kernel forgets the ways through a link that is switched off.
                inner.routes.retain(|route| route.link.as_deref() != Some(link));
            }
            Ok((before != up).then(|| NetworkChange::Up { link: link.to_owned(), up }))
        })
    }

    async fn set_master(&self, link: &str, master: Option<&str>) -> Result<(), NetworkError> {
        self.change(|inner| {
            if let Some(master) = master
                && inner.link(master)?.kind != LinkKind::Bridge
            {
                return Err(NetworkError::OtherKind {
                    link: master.to_owned(),
                    wanted: "bridge".to_owned(),
                });
            }
            let master = master.map(str::to_owned);
            let before = std::mem::replace(&mut inner.link(link)?.master, master.clone());
            Ok((before != master).then(|| NetworkChange::Master { link: link.to_owned(), master }))
        })
    }

    async fn add_address(&self, link: &str, address: IpNet) -> Result<(), NetworkError> {
        self.change(|inner| inner.add_address(link, address))
    }

    async fn lease_address(
        &self,
        link: &str,
        address: IpNet,
        lifetime: Duration,
    ) -> Result<(), NetworkError> {
        let until = Instant::now() + lifetime;
        self.change(|inner| {
            let change = inner.add_address(link, address)?;
            inner.leases.insert((link.to_owned(), address), until);
            Ok(change)
        })?;
        let board = self.board.clone();
        tokio::spawn(async move {
            tokio::time::sleep_until(until).await;
            board.expire();
        });
        Ok(())
    }

    async fn remove_address(&self, link: &str, address: IpNet) -> Result<(), NetworkError> {
        self.change(|inner| Ok(inner.remove_address(link, address)))
    }

    async fn announce(&self, link: &str, address: IpAddr) -> Result<(), NetworkError> {
        if self.inner().counts_announcements {
            let Board { announcing, most_announcing, .. } = &*self.board;
            let now = announcing.fetch_add(1, Ordering::Relaxed) + 1;
            most_announcing.fetch_max(now, Ordering::Relaxed);
            tokio::task::yield_now().await;
            announcing.fetch_sub(1, Ordering::Relaxed);
        }
        self.change(|inner| match inner.link(link)?.up {
            true => Ok(Some(NetworkChange::Announced { link: link.to_owned(), address })),
            false => Err(refused("announce an address", "the link is down")),
        })
    }

    async fn abilities(&self) -> Result<LinkAbilities, NetworkError> {
        let inner = self.inner();
        inner.answers()?;
        if inner.hides_abilities {
            return Err(refused("give a thread a network of its own", "that is forbidden"));
        }
        let Lacks { vlans, vxlans } = inner.lacks;
        Ok(LinkAbilities { vlans: !vlans, vxlans: !vxlans })
    }

    async fn routes(&self) -> Result<Vec<Route>, NetworkError> {
        let inner = self.inner();
        inner.answers()?;
        Ok(inner.routes.iter().cloned().collect())
    }

    async fn add_route(&self, route: &Route) -> Result<(), NetworkError> {
        self.change(|inner| {
            if let Some(link) = &route.link
                && !inner.link(link)?.up
            {
                return Err(refused("add a route", "the link is down"));
            }
            let same_place = |other: &Route| other.to == route.to && other.metric == route.metric;
            if inner.routes.iter().any(|other| same_place(other) && other != route) {
                return Err(refused("add a route", "another route leads there"));
            }
            Ok(inner.routes.insert(route.clone()).then(|| NetworkChange::RouteAdded(route.clone())))
        })
    }

    async fn remove_route(&self, route: &Route) -> Result<(), NetworkError> {
        self.change(|inner| {
            Ok(inner.routes.remove(route).then(|| NetworkChange::RouteRemoved(route.clone())))
        })
    }

    async fn setting(&self, key: &str) -> Result<Option<String>, NetworkError> {
        let inner = self.inner();
        inner.answers()?;
        Ok(inner.settings.get(key).cloned())
    }

    async fn set_setting(&self, key: &str, value: &str) -> Result<(), NetworkError> {
        self.change(|inner| {
            let found = inner
                .settings
                .get_mut(key)
                .ok_or_else(|| NetworkError::NoSetting { key: key.to_owned() })?;
            let before = std::mem::replace(found, value.to_owned());
            let (key, value) = (key.to_owned(), value.to_owned());
            Ok((before != value).then_some(NetworkChange::Setting { key, value }))
        })
    }
}
