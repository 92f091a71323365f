//! The routes. One file per group; the paths are written out so that they can be searched for.

mod at;
mod cluster;
mod event;
mod fault;
mod later;
mod metrics;
mod network;
mod node;
mod root;
mod storage;
mod task;
mod vm;
mod vm_change;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::ApiError;
use crate::state::ApiState;
use crate::{access, auth, etag, guard, openapi, origin};

/// What every handler is given.
type Api = State<ApiState>;

/// The whole API.
pub fn router(state: ApiState) -> Router {
    let (Routers { open, metrics, protected }, _) = parts();
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

/// The routes, by who may use them.
pub struct Routers {
    open: Router<ApiState>,
    metrics: Router<ApiState>,
    protected: Router<ApiState>,
}

/// The routes and their description.
pub fn parts() -> (Routers, OpenApi) {
    let mut document = openapi::frame();
    let (open, part) = open().split_for_parts();
    document.merge(part);
    let (metrics, part) = metrics().split_for_parts();
    document.merge(part);
    let (protected, mut part) = protected().split_for_parts();
    for operation in operations(&mut part) {
        operation.security = Some(openapi::protection());
    }
    document.merge(part);
    operations(&mut document).for_each(openapi::complete);
    (Routers { open, metrics, protected }, document)
}

fn operations(document: &mut OpenApi) -> impl Iterator<Item = &mut Operation> {
    document.paths.paths.values_mut().flat_map(|item| {
        let PathItem { get, post, put, delete, .. } = item;
        [get, post, put, delete].into_iter().flatten()
    })
}

fn open() -> OpenApiRouter<ApiState> {
    OpenApiRouter::default()
        .routes(routes!(root::get_root))
        .routes(routes!(root::get_openapi_json))
        .routes(routes!(root::post_login))
        .routes(routes!(root::post_logout))
        .routes(routes!(cluster::get_status_primary_node))
}

fn metrics() -> OpenApiRouter<ApiState> {
    OpenApiRouter::default()
        .routes(routes!(metrics::get_metrics))
        .routes(routes!(metrics::get_metrics_health))
        .routes(routes!(metrics::get_metrics_resource))
}

fn protected() -> OpenApiRouter<ApiState> {
    OpenApiRouter::default()
        .routes(routes!(cluster::get_status, cluster::post_status))
        .routes(routes!(cluster::post_initialize))
        .routes(routes!(cluster::get_backup))
        .routes(routes!(cluster::post_restore))
        .routes(routes!(cluster::get_store_access, cluster::post_store_access))
        .routes(routes!(event::get_events))
        .routes(routes!(task::get_tasks))
        .routes(routes!(task::get_tasks_task_id, task::delete_tasks_task_id))
        .routes(routes!(fault::get_faults, fault::put_faults, fault::delete_faults))
        .routes(routes!(
            fault::get_faults_fault_id,
            fault::put_faults_fault_id,
            fault::delete_faults_fault_id
        ))
        .routes(routes!(node::get_node))
        .routes(routes!(node::get_node_node))
        .routes(routes!(node::get_node_node_daemon_state))
        .routes(routes!(
            node::get_node_node_coordinator_state,
            node::post_node_node_coordinator_state
        ))
        .routes(routes!(node::get_node_node_domain_state, node::post_node_node_domain_state))
        .routes(routes!(node::get_node_node_log))
        .routes(routes!(vm::get_vm, vm_change::post_vm))
        .routes(routes!(
            vm::get_vm_vm,
            vm_change::post_vm_vm,
            vm_change::put_vm_vm,
            vm_change::delete_vm_vm
        ))
        .routes(routes!(vm::get_vm_vm_meta, vm_change::post_vm_vm_meta))
        .routes(routes!(vm::get_vm_vm_tags, vm_change::post_vm_vm_tags))
        .routes(routes!(vm::get_vm_vm_state, vm_change::post_vm_vm_state))
        .routes(routes!(vm::get_vm_vm_node, vm_change::post_vm_vm_node))
        .routes(routes!(vm::get_vm_vm_console))
        .routes(routes!(vm_change::post_vm_vm_check))
        .routes(routes!(vm_change::get_vm_vm_removal))
        .routes(routes!(vm_change::post_vm_vm_locks))
        .routes(routes!(vm_change::post_vm_vm_rename))
        .routes(routes!(vm_change::post_vm_vm_device, vm_change::delete_vm_vm_device))
        .routes(routes!(network::get_network))
        .routes(routes!(network::get_network_vni))
        .routes(routes!(network::get_network_vni_lease))
        .routes(routes!(network::get_network_vni_lease_mac))
        .routes(routes!(network::get_network_vni_acl))
        .routes(routes!(network::get_network_vni_acl_description))
        .routes(routes!(storage::get_storage_ceph_pool))
        .routes(routes!(storage::get_storage_ceph_pool_pool))
        .routes(routes!(storage::get_storage_ceph_volume))
        .routes(routes!(storage::get_storage_ceph_volume_pool_volume))
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
    let impossible = || format!("the method {} is not possible here", request.method());
    let message =
        later::missing_method(request.method(), request.uri().path()).unwrap_or_else(impossible);
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message)
        .hint(Some("the header `Allow` of this reply lists those that are"))
        .into_response()
}

/// A reply of plain text, as scrapers take it.
pub fn text(body: impl Into<axum::body::Body>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body.into()).into_response()
}
