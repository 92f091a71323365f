//! What the API will have and does not have yet: it says so, instead of not knowing the path.

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::routing::{MethodFilter, MethodRouter, on};

use crate::error::ApiError;
use crate::state::ApiState;

const GET: MethodFilter = MethodFilter::GET;
const POST: MethodFilter = MethodFilter::POST;
const PUT: MethodFilter = MethodFilter::PUT;
const DELETE: MethodFilter = MethodFilter::DELETE;
const ALL: MethodFilter = GET.or(POST).or(PUT).or(DELETE).or(MethodFilter::PATCH);

/// Paths below `/api/v1`, and the methods that are still missing there.
const LATER: [(&str, MethodFilter); 35] = [
    ("/metrics/ceph", GET),
    ("/metrics/zookeeper", GET),
    ("/vm/autobackup", POST),
    ("/vm/automirror", POST),
    ("/vm/{vm}/backup", POST.or(DELETE)),
    ("/vm/{vm}/restore", POST),
    ("/vm/{vm}/snapshot", POST.or(DELETE)),
    ("/vm/{vm}/snapshot/{*rest}", ALL),
    ("/vm/{vm}/mirror/{*rest}", ALL),
    ("/network", POST),
    ("/network/{vni}", POST.or(PUT).or(DELETE)),
    ("/network/{vni}/lease", ALL),
    ("/network/{vni}/lease/{*rest}", ALL),
    ("/network/{vni}/acl", ALL),
    ("/network/{vni}/acl/{*rest}", ALL),
    ("/sriov", ALL),
    ("/sriov/{*rest}", ALL),
    ("/storage", GET),
    ("/storage/ceph", GET),
    ("/storage/ceph/status", GET),
    ("/storage/ceph/utilization", GET),
    ("/storage/ceph/benchmark", ALL),
    ("/storage/ceph/option", POST),
    ("/storage/ceph/osddb", POST),
    ("/storage/ceph/osd", ALL),
    ("/storage/ceph/osd/{*rest}", ALL),
    ("/storage/ceph/pool", POST),
    ("/storage/ceph/pool/{pool}", POST.or(PUT).or(DELETE)),
    ("/storage/ceph/volume", POST),
    ("/storage/ceph/volume/{pool}/{volume}", POST.or(PUT).or(DELETE)),
    ("/storage/ceph/volume/{pool}/{volume}/{action}", POST),
    ("/storage/ceph/snapshot", ALL),
    ("/storage/ceph/snapshot/{*rest}", ALL),
    ("/provisioner", ALL),
    ("/provisioner/{*rest}", ALL),
];

pub fn router() -> Router<ApiState> {
    let add = |router: Router<ApiState>, (path, methods): (&str, MethodFilter)| {
        let refuse: MethodRouter<ApiState> = on(methods, not_yet);
        router.route(&format!("/api/v1{path}"), refuse)
    };
    LATER.into_iter().fold(Router::new(), add)
}

async fn not_yet(request: Request) -> ApiError {
    let path = request.uri().path().trim_start_matches("/api/v1/");
    let group = path.split('/').next().unwrap_or_default();
    let what = match group {
        "vm" => "snapshots, backups and mirrors of VMs come",
        "network" | "sriov" => "changing networks comes",
        "storage" => "changing storage comes",
        "provisioner" => "the provisioner comes",
        _ => "this comes",
    };
    let message = format!("{what} with a later release; this one is {}", env!("CARGO_PKG_VERSION"));
    ApiError::new(StatusCode::NOT_IMPLEMENTED, message)
}
