//! Networks, to read.

use std::sync::Arc;

use pvc_api_types::operation::Operation;
use pvc_api_types::operations::network::{
    GetNetwork, GetNetworkVni, GetNetworkVniAcl, GetNetworkVniAclDescription, GetNetworkVniLease,
    GetNetworkVniLeaseMac, Way,
};
use pvc_api_types::{Acl, Lease, Network};
use pvc_model::network::{AclRecord, Direction, LeaseRecord, NetworkRecord};

use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::limit::Limit;
use crate::state::ApiState;
use crate::table::{Ask, Table};
use crate::view::network::{acl, lease, network};

pub fn add(table: Table) -> Table {
    table
        .add(get_network)
        .add(get_network_vni)
        .add(get_network_vni_lease)
        .add(get_network_vni_lease_mac)
        .add(get_network_vni_acl)
        .add(get_network_vni_acl_description)
}

async fn get_network(ask: Ask<GetNetwork>) -> Result<Answer<GetNetwork>> {
    let limit = Limit::new(ask.params.limit.as_deref())?;
    let cluster = ask.api.view();
    let wanted =
        |record: &&NetworkRecord| limit.matches(&record.vni) || limit.matches(&record.description);
    let records = cluster.networks.values().map(AsRef::as_ref).filter(wanted);
    let mut networks: Vec<Network> = records.filter_map(network).collect();
    networks.sort_by_key(|network| network.vni);
    Ok(Answer::json(&networks))
}

async fn get_network_vni(ask: Ask<GetNetworkVni>) -> Result<Answer<GetNetworkVni>> {
    let [vni] = ask.at;
    let record = ask.api.view().network(&vni).and_then(|record| network(record));
    let network =
        record.ok_or_else(|| ApiError::not_found(format!("there is no network `{vni}`")))?;
    Ok(Answer::json(&vec![network]))
}

/// The network that a list is about, and which of its entries are asked for.
fn asked(api: &ApiState, vni: &str, limit: Option<&str>) -> Result<(Arc<NetworkRecord>, Limit)> {
    let limit = Limit::new(limit)?;
    let network = api.view().network(vni).cloned();
    let network =
        network.ok_or_else(|| ApiError::refused(format!("there is no network `{vni}`")))?;
    Ok((network, limit))
}

async fn get_network_vni_lease(ask: Ask<GetNetworkVniLease>) -> Result<Answer<GetNetworkVniLease>> {
    let ([vni], filter) = (ask.at, ask.params);
    leases(&ask.api, &vni, filter.limit.as_deref(), filter.reserved.unwrap_or(false))
}

async fn get_network_vni_lease_mac(
    ask: Ask<GetNetworkVniLeaseMac>,
) -> Result<Answer<GetNetworkVniLeaseMac>> {
    let [vni, mac] = ask.at;
    leases(&ask.api, &vni, Some(&mac), false)
}

fn leases<O>(api: &ApiState, vni: &str, limit: Option<&str>, only_static: bool) -> Result<Answer<O>>
where
    O: Operation<Reply = Vec<Lease>>,
{
    let (network, limit) = asked(api, vni, limit)?;
    let wanted = |lease: &&LeaseRecord| {
        !(only_static && lease.expiry.is_some()) && limit.matches(&lease.mac)
    };
    Ok(Answer::json(&network.leases.iter().filter(wanted).map(lease).collect()))
}

async fn get_network_vni_acl(ask: Ask<GetNetworkVniAcl>) -> Result<Answer<GetNetworkVniAcl>> {
    let ([vni], filter) = (ask.at, ask.params);
    let direction = filter.direction.map(|way| match way {
        Way::In => Direction::In,
        Way::Out => Direction::Out,
    });
    acls(&ask.api, &vni, filter.limit.as_deref(), direction)
}

async fn get_network_vni_acl_description(
    ask: Ask<GetNetworkVniAclDescription>,
) -> Result<Answer<GetNetworkVniAclDescription>> {
    let [vni, description] = ask.at;
    acls(&ask.api, &vni, Some(&description), None)
}

fn acls<O>(
    api: &ApiState,
    vni: &str,
    limit: Option<&str>,
    direction: Option<Direction>,
) -> Result<Answer<O>>
where
    O: Operation<Reply = Vec<Acl>>,
{
    let (network, limit) = asked(api, vni, limit)?;
    let wanted = |acl: &&AclRecord| {
        direction.is_none_or(|direction| acl.direction == direction)
            && limit.matches(&acl.description)
    };
    Ok(Answer::json(&network.acls.iter().filter(wanted).map(acl).collect()))
}
