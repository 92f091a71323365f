//! Networks, to read.

use axum::extract::State;
use axum::response::Response;
use pvc_api_types::Network;
use pvc_model::network::NetworkRecord;

use super::Api;
use super::at::At;
use crate::error::{ApiError, Result};
use crate::json;
use crate::limit::Limit;
use crate::openapi::ReadRefused;
use crate::params::{Params, params};
use crate::view::network::network;

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
pub async fn get_network(State(api): Api, Params(filter): Params<NetworkFilter>) -> Result<Response> {
    let limit = Limit::new(filter.limit.as_deref())?;
    let cluster = api.view();
    let wanted = |record: &&NetworkRecord| limit.matches(&record.vni) || limit.matches(&record.description);
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
    let cluster = api.view();
    let by_description = || cluster.networks.values().find(|record| record.description == vni);
    let record = cluster.networks.get(&vni).or_else(by_description).and_then(|record| network(record));
    let network = record.ok_or_else(|| ApiError::not_found(format!("there is no network `{vni}`")))?;
    Ok(json::ok(&[network]))
}
