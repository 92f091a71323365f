//! Metrics, open to scrapers.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use super::{Api, text};
use crate::metrics::{Scrape, health};
use crate::state::ApiState;

/// All metrics.
#[utoipa::path(
    get, path = "/api/v1/metrics", tag = "metrics",
    responses((status = 200, body = String, content_type = "text/plain; charset=utf-8"))
)]
pub async fn get_metrics(State(api): Api) -> Response {
    let page = page(&api).await;
    text(format!("{}{}", page.health, page.resource))
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
    text(page(&api).await.resource.clone())
}

async fn page(api: &ApiState) -> Arc<Scrape> {
    let view = {
        let api = api.clone();
        move || api.view()
    };
    api.scrapes().page(view).await
}
