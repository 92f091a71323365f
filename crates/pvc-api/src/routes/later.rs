//! Operations that the API will have and does not have yet: it says so, instead of not knowing the
//! path.

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
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
const PATHS: [&str; 8] = [
    "/vm/{vm}/backup",
    "/vm/{vm}/restore",
    "/vm/{vm}/snapshot",
    "/vm/{vm}/snapshot/{*rest}",
    "/vm/{vm}/mirror/{*rest}",
    "/provisioner",
    "/provisioner/ova",
    "/provisioner/ova/{ova}",
];

pub fn router() -> Router<ApiState> {
    let add =
        |router: Router<ApiState>, path| router.route(&format!("/api/v1{path}"), any(not_yet));
    PATHS.into_iter().fold(Router::new(), add)
}

async fn not_yet(request: Request) -> ApiError {
    coming(request.uri().path())
}

fn coming(path: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_IMPLEMENTED, message(path))
}

fn message(path: &str) -> String {
    let (what, group) = match path.trim_start_matches("/api/v1/").split('/').next() {
        Some("vm") => ("snapshots, backups and mirrors of VMs come", "vm snapshot"),
        Some("provisioner") => ("OVA images come", "provisioner ova"),
        _ => ("this comes", ""),
    };
    let release = arrival(group).unwrap_or("a later release");
    format!("{what} with {release}; this one is {}", env!("CARGO_PKG_VERSION"))
}
