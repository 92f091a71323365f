//! Metrics, open to scrapers.

use axum::extract::State;
use axum::response::Response;

use super::Api;
use super::text;
use crate::metrics::{health, resource};

/// All metrics.
#[utoipa::path(
    get, path = "/api/v1/metrics", tag = "metrics",
    responses((status = 200, body = String, content_type = "text/plain; charset=utf-8"))
)]
pub async fn get_metrics(State(api): Api) -> Response {
    // Not kept: whoever asks does so less often than the records change, and it is megabytes. One at a time:
    // they take milliseconds, and anybody may ask.
    let _turn = api.metrics().lock().await;
    let cluster = api.view();
    text(health(&cluster) + &resource(&cluster))
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
    text(resource(&api.view()))
}
