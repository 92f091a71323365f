//! Networks, to read.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use pvc_api_types::{Acl, Lease, Network};
use pvc_model::cluster::Cluster;
use pvc_model::network::{AclRecord, Direction, LeaseRecord, NetworkRecord};

use super::Api;
use super::at::At;
use crate::error::{ApiError, Result};
use crate::json;
use crate::limit::Limit;
use crate::openapi::ReadRefused;
use crate::params::{Params, choice, params};
use crate::state::ApiState;
use crate::view::network::{acl, lease, network};

params! {
    /// Which networks to list.
    pub struct NetworkFilter {
        /// A regular expression on the VNI or the description.
        limit: Option<String>,
    }
}

/// The networks by VNI.
#[utoipa::path(
    get, path = "/api/v1/network", tag = "network", params(NetworkFilter),
    responses((status = 200, body = Vec<Network>), ReadRefused)
)]
pub async fn get_network(
    State(api): Api,
    Params(filter): Params<NetworkFilter>,
) -> Result<Response> {
    let limit = Limit::new(filter.limit.as_deref())?;
    let cluster = api.view();
    let wanted =
        |record: &&NetworkRecord| limit.matches(&record.vni) || limit.matches(&record.description);
    let records = cluster.networks.values().map(AsRef::as_ref).filter(wanted);
    let mut networks: Vec<Network> = records.filter_map(network).collect();
    networks.sort_by_key(|network| network.vni);
    Ok(json::ok(&networks))
}

/// One network, by VNI or description.
#[utoipa::path(
    get, path = "/api/v1/network/{vni}", tag = "network",
    params(("vni" = String, Path, description = "VNI or description")),
    responses((status = 200, body = Vec<Network>), ReadRefused)
)]
pub async fn get_network_vni(State(api): Api, At(vni): At<String>) -> Result<Response> {
    let record = find(&api.view(), &vni).and_then(|record| network(&record));
    let network =
        record.ok_or_else(|| ApiError::not_found(format!("there is no network `{vni}`")))?;
    Ok(json::ok(&[network]))
}

/// The network of that VNI or, if there is none, of that description.
fn find(cluster: &Cluster, vni: &str) -> Option<Arc<NetworkRecord>> {
    let by_description = || cluster.networks.values().find(|record| record.description == vni);
    cluster.networks.get(vni).or_else(by_description).cloned()
}

/// The network that a list is about, and which of its entries are asked for.
fn asked(api: &ApiState, vni: &str, limit: Option<&str>) -> Result<(Arc<NetworkRecord>, Limit)> {
    let limit = Limit::new(limit)?;
    let network = find(&api.view(), vni);
    let network =
        network.ok_or_else(|| ApiError::refused(format!("there is no network `{vni}`")))?;
    Ok((network, limit))
}

params! {
    /// Which leases to list.
    pub struct LeaseFilter {
        /// A regular expression on the MAC address.
        limit: Option<String>,
        /// Only reservations.
        reserved = "static": Option<bool>,
    }
}

/// The DHCP leases of a network: reservations, then what was given, each by MAC address.
#[utoipa::path(
    get, path = "/api/v1/network/{vni}/lease", tag = "network",
    params(("vni" = String, Path, description = "VNI or description"), LeaseFilter),
    responses((status = 200, body = Vec<Lease>), ReadRefused)
)]
pub async fn get_network_vni_lease(
    State(api): Api,
    At(vni): At<String>,
    Params(filter): Params<LeaseFilter>,
) -> Result<Response> {
    leases(&api, &vni, filter.limit.as_deref(), filter.reserved.unwrap_or(false))
}

/// The DHCP leases of a network whose MAC address matches.
#[utoipa::path(
    get, path = "/api/v1/network/{vni}/lease/{mac}", tag = "network",
    params(
        ("vni" = String, Path, description = "VNI or description"),
        ("mac" = String, Path, description = "A regular expression on the MAC address"),
    ),
    responses((status = 200, body = Vec<Lease>), ReadRefused)
)]
pub async fn get_network_vni_lease_mac(
    State(api): Api,
    At((vni, mac)): At<(String, String)>,
) -> Result<Response> {
    leases(&api, &vni, Some(&mac), false)
}

fn leases(api: &ApiState, vni: &str, limit: Option<&str>, only_static: bool) -> Result<Response> {
    let (network, limit) = asked(api, vni, limit)?;
    let wanted = |lease: &&LeaseRecord| {
        !(only_static && lease.expiry.is_some()) && limit.matches(&lease.mac)
    };
    Ok(json::ok(&network.leases.iter().filter(wanted).map(lease).collect::<Vec<Lease>>()))
}

choice! {
    /// Which packets a rule is about.
    pub enum Way { In = "in", Out = "out" }
}

params! {
    /// Which rules to list.
    pub struct AclFilter {
        /// A regular expression on the description.
        limit: Option<String>,
        /// Only those of this direction.
        direction: Option<Way>,
    }
}

/// The rules of a network's firewall: those of packets that come in, then of those that go out,
/// each in their order.
#[utoipa::path(
    get, path = "/api/v1/network/{vni}/acl", tag = "network",
    params(("vni" = String, Path, description = "VNI or description"), AclFilter),
    responses((status = 200, body = Vec<Acl>), ReadRefused)
)]
pub async fn get_network_vni_acl(
    State(api): Api,
    At(vni): At<String>,
    Params(filter): Params<AclFilter>,
) -> Result<Response> {
    let direction = filter.direction.map(|way| match way {
        Way::In => Direction::In,
        Way::Out => Direction::Out,
    });
    acls(&api, &vni, filter.limit.as_deref(), direction)
}

/// The rules of a network's firewall whose description matches.
#[utoipa::path(
    get, path = "/api/v1/network/{vni}/acl/{description}", tag = "network",
    params(
        ("vni" = String, Path, description = "VNI or description"),
        ("description" = String, Path, description = "A regular expression on the description"),
    ),
    responses((status = 200, body = Vec<Acl>), ReadRefused)
)]
pub async fn get_network_vni_acl_description(
    State(api): Api,
    At((vni, description)): At<(String, String)>,
) -> Result<Response> {
    acls(&api, &vni, Some(&description), None)
}

fn acls(
    api: &ApiState,
    vni: &str,
    limit: Option<&str>,
    direction: Option<Direction>,
) -> Result<Response> {
    let (network, limit) = asked(api, vni, limit)?;
    let wanted = |acl: &&AclRecord| {
        direction.is_none_or(|direction| acl.direction == direction)
            && limit.matches(&acl.description)
    };
    Ok(json::ok(&network.acls.iter().filter(wanted).map(acl).collect::<Vec<Acl>>()))
}
