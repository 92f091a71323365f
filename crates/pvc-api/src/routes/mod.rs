//! The handlers, one file per group of operations. What an operation takes, replies and is called
//! stands in `pvc_api_types::operations`.

mod benchmark;
mod cluster;
mod event;
mod fault;
mod image;
mod later;
mod metrics;
mod network;
mod node;
mod osd;
mod provisioner;
mod root;
mod sriov;
mod storage;
mod storage_report;
mod task;
mod trace;
mod vm;
mod vm_change;
mod vm_hardware;

use crate::error::ApiError;
use crate::state::ApiState;
use crate::table::Table;
use crate::{access, auth, etag, guard, origin};
use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::middleware;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;

/// The whole API.
pub fn router(state: ApiState) -> Router {
    let Table { open, metrics, protected, .. } = table();
    let guard = middleware::from_fn_with_state(state.clone(), auth::guard);
    let mut all = open
        .merge(protected.merge(later::router()).route_layer(guard))
        .route("/api/v1", get(|| async { Redirect::permanent("/api/v1/") }));
    if state.settings().metrics {
        all = all.merge(metrics);
    }
    all.fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(state.clone(), origin::check))
        .layer(middleware::from_fn(guard::catch_panics))
        .layer(middleware::from_fn_with_state(state.clone(), guard::mark_stale))
        .layer(middleware::from_fn(etag::not_modified))
        .layer(middleware::from_fn_with_state(state.clone(), access::log))
        .with_state(state)
}

/// All operations of this release.
pub fn table() -> Table {
    let groups = [
        root::add,
        cluster::add,
        event::add,
        task::add,
        fault::add,
        node::add,
        vm::add,
        vm_change::add,
        vm_hardware::add,
        trace::add,
        network::add,
        sriov::add,
        osd::add,
        storage::add,
        storage_report::add,
        benchmark::add,
        image::add,
        provisioner::add,
        metrics::add,
    ];
    groups.into_iter().fold(Table::default(), |table, add| add(table))
}

async fn unknown_path() -> ApiError {
    ApiError::not_found("this API has no such path")
        .hint(Some("`GET /api/v1/openapi.json` lists them; a path does not end with `/`"))
}

/// 405, or the answer to a client that asks which methods there are. The header `Allow` is added by
/// the router.
async fn wrong_method(request: Request) -> Response {
    if request.method() == Method::OPTIONS {
        return StatusCode::OK.into_response();
    }
    let message = format!("the method {} is not possible here", request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message)
        .hint(Some("the header `Allow` of this reply lists those that are"))
        .into_response()
}
