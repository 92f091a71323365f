//! Metrics, open to scrapers.

use axum::extract::State;
use axum::response::Response;
use pvc_model::cluster::Cluster;
use pvc_ports::aside;

use super::{Api, text};
use crate::metrics::{VmShares, health, resource};
use crate::state::ApiState;

/// All metrics.
#[utoipa::path(
    get, path = "/api/v1/metrics", tag = "metrics",
    responses((status = 200, body = String, content_type = "text/plain; charset=utf-8"))
)]
pub async fn get_metrics(State(api): Api) -> Response {
    text(made_aside(&api, |cluster, known| health(cluster) + &resource(cluster, known)).await)
}

/// How the cluster is doing.
#[utoipa::path(
    get, path = "/api/v1/metrics/health", tag = "metrics",
    responses((status = 200, body = String, content_type = "text/plain; charset=utf-8"))
)]
pub async fn get_metrics_health(State(api): Api) -> Response {
    text(health(&api.view()))
}

/// What the cluster has and how much of it is used.
#[utoipa::path(
    get, path = "/api/v1/metrics/resource", tag = "metrics",
    responses((status = 200, body = String, content_type = "text/plain; charset=utf-8"))
)]
pub async fn get_metrics_resource(State(api): Api) -> Response {
    text(made_aside(&api, resource).await)
}

/// A text of metrics, made where it keeps no other request, and no keepalive, from its turn. One at
/// a time: after a change of all records it takes milliseconds, and anybody may ask. Whoever goes
/// away meanwhile gives the turn to the next only when the text is made.
async fn made_aside(
    api: &ApiState,
    make: impl FnOnce(&Cluster, &mut VmShares) -> String + Send + 'static,
) -> String {
    let mut known = api.metrics().clone().lock_owned().await;
    let cluster = api.view();
    aside(move || make(&cluster, &mut known)).await
}
