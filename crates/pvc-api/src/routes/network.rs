//! Networks of VMs, their leases and their rules.

use std::sync::Arc;

use axum::http::StatusCode;
use pvc_api_types::operation::Operation;
use pvc_api_types::operations::network::{
    DeleteNetworkVni, DeleteNetworkVniAclDescription, DeleteNetworkVniLeaseMac, GetNetwork,
    GetNetworkVni, GetNetworkVniAcl, GetNetworkVniAclDescription, GetNetworkVniLease,
    GetNetworkVniLeaseMac, NetworkWord, PostNetwork, PostNetworkVni, PostNetworkVniAcl,
    PostNetworkVniAclDescription, PostNetworkVniConfirm, PostNetworkVniLease,
    PostNetworkVniLeaseMac, PutNetworkVni, Way,
};
use pvc_api_types::{CreatedNetwork, Lease, Message, Network};
use pvc_model::guest_network::acl::NewAcl;
use pvc_model::guest_network::lease::{NewReservation, card_mac};
use pvc_model::guest_network::request::{NetworkFields, NewNetwork, NewVni};
use pvc_model::guest_network::unconfirmed;
use pvc_model::link::mac_text;
use pvc_model::network::{AclRecord, Direction, LeaseRecord, NetworkRecord};
use pvc_model::shown;
use pvc_ops::network::{self, ConfirmWithin, Named, RemovedNetwork};

use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::limit::Limit;
use crate::settings::ApiSettings;
use crate::state::ApiState;
use crate::table::{Ask, Mode, Table};
use crate::view;

pub fn add(table: Table) -> Table {
    table
        .add(get_network)
        .add(post_network)
        .add(get_network_vni)
        .add(post_network_vni)
        .add(put_network_vni)
        .add(delete_network_vni)
        .add(post_network_vni_confirm)
        .add(get_network_vni_lease)
        .add(post_network_vni_lease)
        .add(get_network_vni_lease_mac)
        .add(post_network_vni_lease_mac)
        .add(delete_network_vni_lease_mac)
        .add(get_network_vni_acl)
        .add(post_network_vni_acl)
        .add(get_network_vni_acl_description)
        .add(post_network_vni_acl_description)
        .add(delete_network_vni_acl_description)
}

async fn get_network(ask: Ask<GetNetwork>) -> Result<Answer<GetNetwork>> {
    let limit = Limit::new(ask.params.limit.as_deref())?;
    let cluster = ask.api.view();
    let wanted =
        |record: &&NetworkRecord| limit.matches(&record.vni) || limit.matches(&record.description);
    let records = cluster.networks.values().map(AsRef::as_ref).filter(wanted);
    let mut networks: Vec<Network> =
        records.filter_map(|record| view::network::network(&cluster, record)).collect();
    networks.sort_by_key(|network| network.vni);
    Ok(Answer::json(&networks))
}

async fn get_network_vni(ask: Ask<GetNetworkVni>) -> Result<Answer<GetNetworkVni>> {
    let [vni] = ask.at;
    let cluster = ask.api.view();
    let record = cluster.network(&vni);
    let network = record.and_then(|record| view::network::network(&cluster, record));
    let network =
        network.ok_or_else(|| ApiError::not_found(format!("there is no network `{vni}`")))?;
    Ok(Answer::json(&vec![network]))
}

/// The members of both forms of an ask, under the names of the model.
macro_rules! fields {
    ($given:ident, $description:expr) => {
        NetworkFields {
            description: $description,
            mtu: $given.mtu,
            domain: $given.domain,
            name_servers: $given.name_servers,
            ip4_network: $given.ip4_network,
            ip4_gateway: $given.ip4_gateway,
            dhcp4: $given.dhcp4,
            dhcp4_start: $given.dhcp4_start,
            dhcp4_end: $given.dhcp4_end,
            ip6_network: $given.ip6_network,
            ip6_gateway: $given.ip6_gateway,
            masquerade: $given.masquerade,
            spoof_guard: $given.spoof_guard,
        }
    };
}

async fn post_network(ask: Ask<PostNetwork>) -> Result<Answer<PostNetwork>> {
    let given = ask.params;
    let (kind, fields) = (given.nettype, fields!(given, None));
    create(&ask.api, ask.mode, &given.vni, given.description, kind, fields).await
}

async fn post_network_vni(ask: Ask<PostNetworkVni>) -> Result<Answer<PostNetworkVni>> {
    let ([vni], given) = (ask.at, ask.params);
    let (kind, fields) = (given.nettype, fields!(given, None));
    create(&ask.api, ask.mode, &vni, given.description, kind, fields).await
}

async fn create<O: Operation<Reply = CreatedNetwork>>(
    api: &ApiState,
    mode: Mode,
    vni: &str,
    description: String,
    kind: NetworkWord,
    fields: NetworkFields,
) -> Result<Answer<O>> {
    let vni = NewVni::parse(vni).map_err(|bad| {
        ApiError::parameter("vni", bad.to_string()).hint(Some("`auto` is the next free one"))
    })?;
    let managed = kind == NetworkWord::Managed;
    let cut = cut_mtu(api, managed, fields.mtu.as_deref());
    let new = NewNetwork { vni, description, managed, fields };
    let make = |api: ApiState| async move {
        network::add_network(api.store(), api.surroundings(), &new).await
    };
    let made = api.carry_out(make).await?;
    let message = mode.message(format!("Created network {}.{cut}", named(&made)));
    let vni = made.vni.parse().unwrap_or_default();
    Ok(Answer::json(&CreatedNetwork { message, vni }))
}

/// Sentence about an MTU that is given and that nodes do not carry; empty if they do. It is no
/// reason to refuse: nodes may get more.
fn cut_mtu(api: &ApiState, managed: bool, given: Option<&str>) -> String {
    let ApiSettings { node, largest_mtus, .. } = api.settings();
    let most = if managed { largest_mtus.managed } else { largest_mtus.bridged };
    let given: Option<u32> = given.and_then(|text| text.parse().ok());
    match given.zip(most) {
        Some((given, most)) if given > most => format!(
            " Its MTU is {most} for now: node {node} carries no larger packets, and nodes cut the \
             {given} to what they carry."
        ),
        _ => String::new(),
    }
}

fn named(Named { vni, description }: &Named) -> String {
    format!("{vni} \"{description}\"")
}

async fn put_network_vni(ask: Ask<PutNetworkVni>) -> Result<Answer<PutNetworkVni>> {
    let ([vni], given) = (ask.at, ask.params);
    let within = confirm_within(&ask.api, given.confirm)?;
    let fields = fields!(given, given.description);
    let is_managed = ask.api.view().network(&vni).is_some_and(|it| it.nettype == "managed");
    let cut = cut_mtu(&ask.api, is_managed, fields.mtu.as_deref());
    let change = |api: ApiState| async move {
        network::modify_network(api.store(), api.surroundings(), &vni, &fields, within).await
    };
    let changed = ask.api.carry_out(change).await?;
    let message = format!("Changed network {}.{cut}", named(&changed));
    Ok(ask.mode.done(with_condition(message, within, &changed.vni)))
}

/// Reads within how many seconds a change is to be confirmed.
fn confirm_within(api: &ApiState, seconds: Option<u32>) -> Result<Option<ConfirmWithin>> {
    let now = api.clock().wall().as_secs();
    let within = |seconds: u32| match unconfirmed::SECONDS.contains(&seconds) {
        true => Ok(ConfirmWithin { seconds, now }),
        false => {
            let (least, most) = unconfirmed::SECONDS.into_inner();
            let why = format!("is {seconds}, and {least} to {most} seconds can be waited");
            Err(ApiError::parameter("confirm", why))
        }
    };
    seconds.map(within).transpose()
}

/// Adds to what was done how it stays so.
fn with_condition(mut message: String, within: Option<ConfirmWithin>, vni: &str) -> String {
    if let Some(ConfirmWithin { seconds, .. }) = within {
        message.push_str(&format!(
            " It is taken back in {seconds} seconds unless it is confirmed: `pvc network confirm \
             {vni}`."
        ));
    }
    message
}

async fn post_network_vni_confirm(
    ask: Ask<PostNetworkVniConfirm>,
) -> Result<Answer<PostNetworkVniConfirm>> {
    let [vni] = ask.at;
    let confirm = |api: ApiState| async move { network::confirm_change(api.store(), &vni).await };
    let confirmed = ask.api.carry_out(confirm).await?;
    Ok(ask.mode.done(format!("Confirmed the change of network {}.", named(&confirmed))))
}

async fn delete_network_vni(ask: Ask<DeleteNetworkVni>) -> Result<Answer<DeleteNetworkVni>> {
    let ([vni], force) = (ask.at, ask.params.force.0);
    let remove =
        |api: ApiState| async move { network::remove_network(api.store(), &vni, force).await };
    let RemovedNetwork { network, users } = ask.api.carry_out(remove).await?;
    let mut message = format!("Removed network {}.", named(&network));
    if let Some(users) = users {
        message.push_str(&format!(" It is still named by the definition of {users}."));
    }
    Ok(ask.mode.done(message))
}

/// The network that something is asked of.
fn known(api: &ApiState, vni: &str) -> Result<Arc<NetworkRecord>> {
    let network = api.view().network(vni).cloned();
    network.ok_or_else(|| {
        ApiError::not_found(format!("there is no network `{vni}`"))
            .hint(Some("`pvc network list` shows the networks"))
    })
}

/// The network that a list is about, and which of its entries are asked for. For clients of PVC
/// 1.0.3 a list that is not found is an empty one: that of no network is refused otherwise.
fn asked(api: &ApiState, vni: &str, limit: Option<&str>) -> Result<(Arc<NetworkRecord>, Limit)> {
    let limit = Limit::new(limit)?;
    let as_refused = |error| ApiError { status: StatusCode::BAD_REQUEST, ..error };
    Ok((known(api, vni).map_err(as_refused)?, limit))
}

async fn get_network_vni_lease(ask: Ask<GetNetworkVniLease>) -> Result<Answer<GetNetworkVniLease>> {
    let ([vni], filter) = (ask.at, ask.params);
    let (network, limit) = asked(&ask.api, &vni, filter.limit.as_deref())?;
    let only_static = filter.reserved.unwrap_or(false);
    let wanted = |lease: &&LeaseRecord| {
        let is_meant =
            limit.matches(&lease.mac) || lease.ip6.is_some() && limit.matches(&lease.address);
        !(only_static && lease.expiry.is_some()) && is_meant
    };
    let leases = network.leases.iter().filter(wanted).map(view::network::lease);
    Ok(Answer::json(&leases.collect()))
}

async fn get_network_vni_lease_mac(
    ask: Ask<GetNetworkVniLeaseMac>,
) -> Result<Answer<GetNetworkVniLeaseMac>> {
    let [vni, which] = ask.at;
    let network = known(&ask.api, &vni)?;
    let mac = card_mac(&which).map_or_else(|| which.clone(), mac_text);
    let is_client = |lease: &LeaseRecord| {
        let duid = lease.ip6.as_ref().map(|client| &client.duid);
        duid.is_some_and(|duid| duid.eq_ignore_ascii_case(&which) || lease.address == which)
    };
    let wanted = |lease: &&LeaseRecord| lease.mac.eq_ignore_ascii_case(&mac) || is_client(lease);
    let leases: Vec<Lease> =
        network.leases.iter().filter(wanted).map(view::network::lease).collect();
    match leases.is_empty() {
        true => Err(ApiError::not_found(format!("network {} has no lease of it", network.vni))),
        false => Ok(Answer::json(&leases)),
    }
}

async fn post_network_vni_lease(
    ask: Ask<PostNetworkVniLease>,
) -> Result<Answer<PostNetworkVniLease>> {
    let ([vni], given) = (ask.at, ask.params);
    reserve(&ask.api, ask.mode, vni, given.macaddress, given.ipaddress, given.hostname).await
}

async fn post_network_vni_lease_mac(
    ask: Ask<PostNetworkVniLeaseMac>,
) -> Result<Answer<PostNetworkVniLeaseMac>> {
    let ([vni, mac], given) = (ask.at, ask.params);
    reserve(&ask.api, ask.mode, vni, mac, given.ipaddress, given.hostname).await
}

async fn reserve<O: Operation<Reply = Message>>(
    api: &ApiState,
    mode: Mode,
    vni: String,
    mac: String,
    address: String,
    hostname: Option<String>,
) -> Result<Answer<O>> {
    let vni = known(api, &vni)?.vni.clone();
    let new = NewReservation { mac, address, hostname: hostname.unwrap_or_default() };
    let network = vni.clone();
    let make = |api: ApiState| async move { network::reserve(api.store(), &vni, &new).await };
    let LeaseRecord { mac, address, .. } = api.carry_out(make).await?;
    Ok(mode.done(format!("Reserved {address} for {mac} in network {network}.")))
}

async fn delete_network_vni_lease_mac(
    ask: Ask<DeleteNetworkVniLeaseMac>,
) -> Result<Answer<DeleteNetworkVniLeaseMac>> {
    let [vni, which] = ask.at;
    let vni = known(&ask.api, &vni)?.vni.clone();
    let network = vni.clone();
    let remove = |api: ApiState| async move { network::release(api.store(), &vni, &which).await };
    let gone = ask.api.carry_out(remove).await?;
    let what = if gone.expiry.is_none() { "reservation" } else { "lease" };
    let LeaseRecord { mac, address, ip6, .. } = gone;
    let client = ip6.filter(|_| mac.is_empty()).map_or(mac, |client| client.duid);
    let message = format!("Removed the {what} of {address} for {client} from network {network}.");
    Ok(ask.mode.done(message))
}

async fn get_network_vni_acl(ask: Ask<GetNetworkVniAcl>) -> Result<Answer<GetNetworkVniAcl>> {
    let ([vni], filter) = (ask.at, ask.params);
    let wanted_way = filter.direction.map(direction);
    let (network, limit) = asked(&ask.api, &vni, filter.limit.as_deref())?;
    let wanted = |acl: &&AclRecord| {
        wanted_way.is_none_or(|direction| acl.direction == direction)
            && limit.matches(&acl.description)
    };
    Ok(Answer::json(&network.acls.iter().filter(wanted).map(view::network::acl).collect()))
}

fn direction(way: Way) -> Direction {
    match way {
        Way::In => Direction::In,
        Way::Out => Direction::Out,
    }
}

async fn get_network_vni_acl_description(
    ask: Ask<GetNetworkVniAclDescription>,
) -> Result<Answer<GetNetworkVniAclDescription>> {
    let [vni, description] = ask.at;
    let network = known(&ask.api, &vni)?;
    let rules = network.acls.iter().filter(|acl| acl.description == description);
    let rules: Vec<_> = rules.map(view::network::acl).collect();
    match rules.is_empty() {
        true => Err(ApiError::not_found(format!("network {} has no such rule", network.vni))),
        false => Ok(Answer::json(&rules)),
    }
}

async fn post_network_vni_acl(ask: Ask<PostNetworkVniAcl>) -> Result<Answer<PostNetworkVniAcl>> {
    let ([vni], given) = (ask.at, ask.params);
    let direction = direction(given.direction.unwrap_or(Way::Out));
    let (description, rule, order) = (given.description, given.rule, given.order);
    let new = NewAcl { direction, order, description, rule };
    add_acl(&ask.api, ask.mode, vni, new, given.confirm).await
}

async fn post_network_vni_acl_description(
    ask: Ask<PostNetworkVniAclDescription>,
) -> Result<Answer<PostNetworkVniAclDescription>> {
    let ([vni, description], given) = (ask.at, ask.params);
    let direction = direction(given.direction.unwrap_or(Way::Out));
    let (rule, order) = (given.rule, given.order);
    let new = NewAcl { direction, order, description, rule };
    add_acl(&ask.api, ask.mode, vni, new, given.confirm).await
}

async fn add_acl<O: Operation<Reply = Message>>(
    api: &ApiState,
    mode: Mode,
    vni: String,
    new: NewAcl,
    confirm: Option<u32>,
) -> Result<Answer<O>> {
    let within = confirm_within(api, confirm)?;
    let vni = known(api, &vni)?.vni.clone();
    let (network, given) = (vni.clone(), new.rule.clone());
    let make = |api: ApiState| async move {
        network::add_acl(api.store(), api.firewall(), &vni, &new, within).await
    };
    let AclRecord { direction, order, description, rule } = api.carry_out(make).await?;
    let direction = direction.as_str();
    let mut message =
        format!("Added rule \"{description}\" to network {network}, {direction} {order}.");
    if let Some(comment) = comment_behind(&given, &rule) {
        message.push_str(&format!(
            " The comment behind it is not kept, its description is: `{}`.",
            shown(comment)
        ));
    }
    Ok(mode.done(with_condition(message, within, &network)))
}

/// The comment behind a rule that was recorded without it.
fn comment_behind<'a>(given: &'a str, recorded: &str) -> Option<&'a str> {
    let rest = given.trim().strip_prefix(recorded)?.trim_start();
    Some(rest).filter(|rest| !rest.is_empty())
}

async fn delete_network_vni_acl_description(
    ask: Ask<DeleteNetworkVniAclDescription>,
) -> Result<Answer<DeleteNetworkVniAclDescription>> {
    let ([vni, description], given) = (ask.at, ask.params);
    let within = confirm_within(&ask.api, given.confirm)?;
    let vni = known(&ask.api, &vni)?.vni.clone();
    let (network, which) = (vni.clone(), description.clone());
    let remove =
        |api: ApiState| async move { network::remove_acl(api.store(), &vni, &which, within).await };
    ask.api.carry_out(remove).await?;
    let message = format!("Removed rule \"{description}\" from network {network}.");
    Ok(ask.mode.done(with_condition(message, within, &network)))
}
