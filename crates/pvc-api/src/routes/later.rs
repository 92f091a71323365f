//! Operations that the API will have and does not have yet: it says so, instead of not knowing the
//! path.

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::routing::any;
use pvc_api_types::release::arrival;

use crate::error::{ApiError, Result};
use crate::state::ApiState;

/// Names of operations that come later and stand where a VM's name stands in a path. Only a `POST`
/// means the operation; a VM that is called so is found by all other methods.
const OPERATIONS: [&str; 2] = ["autobackup", "automirror"];

/// Refuses a path whose last part names an operation that comes later.
pub fn check_is_vm(path: &str) -> Result<()> {
    match path.rsplit('/').next() {
        Some(name) if OPERATIONS.contains(&name) => Err(coming(path)),
        _ => Ok(()),
    }
}

/// Paths below `/api/v1` that nothing is behind yet.
const PATHS: [&str; 11] = [
    "/metrics/ceph",
    "/metrics/zookeeper",
    "/vm/{vm}/backup",
    "/vm/{vm}/restore",
    "/vm/{vm}/snapshot",
    "/vm/{vm}/snapshot/{*rest}",
    "/vm/{vm}/mirror/{*rest}",
    "/sriov",
    "/sriov/{*rest}",
    "/provisioner",
    "/provisioner/{*rest}",
];

pub fn router() -> Router<ApiState> {
    let add =
        |router: Router<ApiState>, path| router.route(&format!("/api/v1{path}"), any(not_yet));
    PATHS.into_iter().fold(Router::new(), add)
}

async fn not_yet(request: Request) -> ApiError {
    let (method, path) = (request.method(), request.uri().path());
    let message =
        if matches!(*method, Method::GET | Method::HEAD) { reading(path) } else { message(path) };
    ApiError::new(StatusCode::NOT_IMPLEMENTED, message)
}

fn coming(path: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_IMPLEMENTED, message(path))
}

/// Sentence about what cannot be read yet.
fn reading(path: &str) -> String {
    match path.trim_start_matches("/api/v1/").split('/').next() {
        Some("sriov") => coming_with("reading this comes", "network sriov"),
        _ => message(path),
    }
}

fn message(path: &str) -> String {
    let (what, group) = match path.trim_start_matches("/api/v1/").split('/').next() {
        Some("vm") => ("snapshots, backups and mirrors of VMs come", "vm snapshot"),
        Some("sriov") => ("changing this comes", "network sriov"),
        Some("provisioner") => ("the provisioner comes", "provisioner"),
        Some("metrics") => ("the figures of Ceph and ZooKeeper come", "storage"),
        _ => ("this comes", ""),
    };
    coming_with(what, group)
}

fn coming_with(what: &str, group: &str) -> String {
    let release = arrival(group).unwrap_or("a later release");
    format!("{what} with {release}; this one is {}", env!("CARGO_PKG_VERSION"))
}
