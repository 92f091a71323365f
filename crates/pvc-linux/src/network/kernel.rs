//! Questions to the kernel, one to the kernel at a time, over a netlink socket of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use futures::TryStreamExt;
use futures::executor::block_on;
use futures::future::{AbortHandle, Abortable};
use nix::errno::Errno;
use pvc_model::link::{IpNet, Link, LinkKind, Links, Mac, Route, Vxlan};
use pvc_ports::NetworkError;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{
    InfoData, InfoKind, InfoVlan, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType,
};
use rtnetlink::{Error, Handle, RouteMessageBuilder};

use crate::apart;

/// Time that the kernel may take. It answers at once, unless something holds its lock on all links.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// Asks the kernel on a fresh connection. `what` says what is asked for: `set the MTU of `ens4``.
///
/// A socket and a thread per question cost microseconds, and no question can suffer from what
/// became of an earlier one: the kernel carries a request out while it is being sent, and a sender
/// waits for its lock. The socket is of the network namespace of whoever asks.
pub async fn ask<T, Work>(
    what: String,
    question: impl FnOnce(Handle) -> Work,
) -> Result<T, NetworkError>
where
    Work: Future<Output = Result<T, Errno>>,
{
    ask_while(what, (), question).await
}

/// The same; `out` is dropped when the kernel is through with it, which may be long after.
pub async fn ask_while<T, Work>(
    what: String,
    out: impl Send + 'static,
    question: impl FnOnce(Handle) -> Work,
) -> Result<T, NetworkError>
where
    Work: Future<Output = Result<T, Errno>>,
{
    let refused = |source| NetworkError::Refused { what: what.clone(), source };
    let late = || NetworkError::TimedOut { what: what.clone(), seconds: DEADLINE.as_secs() };
    let (connection, handle, _) = rtnetlink::new_connection().map_err(refused)?;
    let (end, registration) = AbortHandle::new_pair();
    // Ends the connection when dropped, whatever becomes of the answer.
    let _end = Ends(end);
    let carry_out = move || {
        let _ = block_on(Abortable::new(connection, registration));
        drop(out);
    };
    apart::begin(carry_out).map_err(|_| late())?;
    match tokio::time::timeout(DEADLINE, question(handle)).await {
        Ok(answer) => answer.map_err(|errno| refused(errno.into())),
        Err(_) => Err(late()),
    }
}

struct Ends(AbortHandle);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The kernel's error number; anything that is not the kernel's is an input/output error.
pub fn errno(error: Error) -> Errno {
    match error {
        Error::NetlinkError(error) => Errno::from_raw(error.code.map_or(0, |code| -code.get())),
        other => {
            tracing::debug!(error = %other, "netlink failed");
            Errno::EIO
        }
    }
}

/// The errno inside a refusal.
pub fn refused_with(error: &NetworkError) -> Option<Errno> {
    match error {
        NetworkError::Refused { source, .. } => source.raw_os_error().map(Errno::from_raw),
        _ => None,
    }
}

/// Takes a refusal for success if the kernel says that it is so already.
pub fn unless(done: Result<(), NetworkError>, already: &[Errno]) -> Result<(), NetworkError> {
    match done {
        Err(error) if refused_with(&error).is_some_and(|errno| already.contains(&errno)) => Ok(()),
        done => done,
    }
}

/// The index of a link, by which the kernel wants it named.
pub fn index_of(link: &str) -> Result<u32, NetworkError> {
    nix::net::if_::if_nametoindex(link).map_err(|errno| match errno {
        Errno::ENODEV | Errno::ENXIO => NetworkError::NoLink { link: link.to_owned() },
        errno => NetworkError::Refused {
            what: format!("say where `{link}` is"),
            source: io::Error::from(errno),
        },
    })
}

/// Every link, with its addresses.
pub async fn look(handle: Handle) -> Result<Links, Errno> {
    let links: Vec<LinkMessage> =
        handle.link().get().execute().try_collect().await.map_err(errno)?;
    let addresses: Vec<AddressMessage> =
        handle.address().get().execute().try_collect().await.map_err(errno)?;
    let names: BTreeMap<u32, String> = links
        .iter()
        .filter_map(|message| Some((message.header.index, name_of(message)?.to_owned())))
        .collect();
    let mut seen: Links = links
        .iter()
        .filter_map(|message| link(message, &names))
        .map(|l| (l.name.clone(), l))
        .collect();
    for message in addresses {
        let of = names.get(&message.header.index).and_then(|name| seen.get_mut(name));
        if let (Some(link), Some(address)) = (of, address(&message)) {
            link.addresses.insert(address);
        }
    }
    Ok(seen)
}

fn name_of(message: &LinkMessage) -> Option<&str> {
    message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}

fn link(message: &LinkMessage, names: &BTreeMap<u32, String>) -> Option<Link> {
    let mut link = Link {
        name: name_of(message)?.to_owned(),
        kind: LinkKind::Device,
        mtu: 0,
        up: message.header.flags.contains(LinkFlags::Up),
        carrier: message.header.flags.contains(LinkFlags::LowerUp),
        master: None,
        lies_on: None,
        alias: None,
        mac: None,
        addresses: BTreeSet::new(),
    };
    let (mut lower, mut is_elsewhere) = (None, false);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfAlias(alias) => link.alias = Some(alias.clone()),
            LinkAttribute::LinkNetNsId(_) => is_elsewhere = true,
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Controller(index) => link.master = names.get(index).cloned(),
            LinkAttribute::Address(bytes) => link.mac = Mac::try_from(bytes.as_slice()).ok(),
            LinkAttribute::Link(index) => lower = names.get(index).cloned(),
            LinkAttribute::LinkInfo(info) => link.kind = kind(info, names),
            _ => {}
        }
    }
    // The number of a link elsewhere may be that of another one here.
    link.lies_on = lower.filter(|_| !is_elsewhere);
    match &mut link.kind {
        LinkKind::Vlan { lower, .. } => lower.clone_from(&link.lies_on),
        LinkKind::Vxlan(vxlan) => link.lies_on.clone_from(&vxlan.lower),
        _ => {}
    }
    Some(link)
}

fn kind(info: &[LinkInfo], names: &BTreeMap<u32, String>) -> LinkKind {
    let of = info.iter().find_map(|info| match info {
        LinkInfo::Kind(kind) => Some(kind),
        _ => None,
    });
    match of {
        None => LinkKind::Device,
        Some(InfoKind::Bridge) => LinkKind::Bridge,
        Some(InfoKind::Vlan) => LinkKind::Vlan { lower: None, id: vlan_id(info) },
        Some(InfoKind::Vxlan) => LinkKind::Vxlan(vxlan(info, names)),
        Some(other) => LinkKind::Other(other.to_string()),
    }
}

fn vxlan(info: &[LinkInfo], names: &BTreeMap<u32, String>) -> Vxlan {
    let data = info.iter().filter_map(|info| match info {
        LinkInfo::Data(InfoData::Vxlan(data)) => Some(data),
        _ => None,
    });
    let mut vxlan = Vxlan { id: 0, local: None, lower: None, port: 0, learning: false };
    for data in data.flatten() {
        match data {
            InfoVxlan::Id(id) => vxlan.id = *id,
            InfoVxlan::Local(address) => vxlan.local = Some(IpAddr::from(*address)),
            InfoVxlan::Local6(address) => vxlan.local = Some(IpAddr::from(*address)),
            InfoVxlan::Link(index) => vxlan.lower = names.get(index).cloned(),
            InfoVxlan::Port(port) => vxlan.port = *port,
            InfoVxlan::Learning(learning) => vxlan.learning = *learning,
            _ => {}
        }
    }
    // The kernel says "any address" for none.
    vxlan.local = vxlan.local.filter(|address| !address.is_unspecified());
    vxlan
}

fn vlan_id(info: &[LinkInfo]) -> u16 {
    let data = info.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vlan(data)) => Some(data),
        _ => None,
    });
    let id = data.into_iter().flatten().find_map(|data| match data {
        InfoVlan::Id(id) => Some(*id),
        _ => None,
    });
    id.unwrap_or(0)
}

fn address(message: &AddressMessage) -> Option<IpNet> {
    // On a point-to-point link `Address` is the other end; `Local`, where it is given, is always
    // ours.
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let any = || {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    };
    IpNet::new(local.or_else(any)?, message.header.prefix_len).ok()
}

/// The unicast routes of the main table, of both families.
pub async fn routes(handle: Handle) -> Result<Vec<Route>, Errno> {
    let links: Vec<LinkMessage> =
        handle.link().get().execute().try_collect().await.map_err(errno)?;
    let names: BTreeMap<u32, String> = links
        .iter()
        .filter_map(|message| Some((message.header.index, name_of(message)?.to_owned())))
        .collect();
    let mut routes = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut question = RouteMessage::default();
        question.header.address_family = family;
        let answers: Vec<RouteMessage> =
            handle.route().get(question).execute().try_collect().await.map_err(errno)?;
        routes.extend(answers.iter().filter_map(|message| route(message, &names)));
    }
    routes.sort();
    Ok(routes)
}

fn route(message: &RouteMessage, names: &BTreeMap<u32, String>) -> Option<Route> {
    let header = &message.header;
    let mut table = u32::from(header.table);
    let everything = match header.address_family {
        AddressFamily::Inet => IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
        AddressFamily::Inet6 => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let (mut to, mut via, mut link, mut metric) = (everything, None, None, 0);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Destination(address) => to = ip(address)?,
            RouteAttribute::Gateway(address) => via = ip(address),
            RouteAttribute::Oif(index) => link = names.get(index).cloned(),
            RouteAttribute::Priority(priority) => metric = *priority,
            _ => {}
        }
    }
    let is_ours =
        table == u32::from(RouteHeader::RT_TABLE_MAIN) && header.kind == RouteType::Unicast;
    let to = IpNet::new(to, header.destination_prefix_length).ok()?;
    is_ours.then_some(Route { to, via, link, metric })
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

/// The kernel's form of a route.
///
/// # Errors
/// If its link does not exist, or destination and router are of different families.
pub fn route_message(route: &Route) -> Result<RouteMessage, NetworkError> {
    let mismatch = || NetworkError::Refused {
        what: format!("lead `{}` there", route),
        source: io::Error::from(io::ErrorKind::InvalidInput),
    };
    let mut builder = RouteMessageBuilder::<IpAddr>::new();
    builder = builder
        .destination_prefix(route.to.addr(), route.to.prefix_len())
        .map_err(|_| mismatch())?;
    if let Some(via) = route.via {
        builder = builder.gateway(via).map_err(|_| mismatch())?;
    }
    if let Some(link) = &route.link {
        builder = builder.output_interface(index_of(link)?);
    }
    if route.metric > 0 {
        builder = builder.priority(route.metric);
    }
    let mut message = builder.build();
    message.header.address_family = match route.to {
        IpNet::V4(_) => AddressFamily::Inet,
        IpNet::V6(_) => AddressFamily::Inet6,
    };
    Ok(message)
}
