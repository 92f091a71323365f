//! The cluster as a whole.

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use pvc_api_types::{ClusterStatus, PrimaryNode, StoreAccess};
use pvc_model::NodeName;
use pvc_ops::cluster;
use pvc_ports::{Access, AccessList};
use pvc_store::KnownPassword;

use super::Api;
use crate::error::{ApiError, Result};
use crate::json;
use crate::openapi::{Changed, ReadRefused};
use crate::params::{Flag, Params, choice, params};
use crate::refuse::store_error;
use crate::state::ApiState;
use crate::view::status;

/// The cluster at a glance.
#[utoipa::path(
    get, path = "/api/v1/status", tag = "cluster",
    responses((status = 200, body = ClusterStatus), ReadRefused)
)]
pub async fn get_status(State(api): Api) -> Response {
    let bytes = api.status().get(&api.view(), |view| json::to_bytes(&status::status(view)));
    let tag = json::strong_tag(&bytes);
    json::from_bytes(StatusCode::OK, bytes.to_vec(), Some(tag))
}

choice! {
    /// Whether the cluster is being maintained.
    pub enum Maintenance { On = "true", Off = "false" }
}

params! {
    /// The wanted state.
    pub struct MaintenanceRequest {
        /// While `true`, no node is fenced and no fault is raised.
        state: Maintenance,
    }
}

/// Begins or ends maintenance.
#[utoipa::path(
    post,
    path = "/api/v1/status",
    tag = "cluster",
    params(MaintenanceRequest),
    responses(Changed)
)]
pub async fn post_status(
    State(api): Api,
    Params(request): Params<MaintenanceRequest>,
) -> Result<Response> {
    let on = request.state == Maintenance::On;
    api.carry_out(move |api| async move { cluster::set_maintenance(api.store(), on).await })
        .await?;
    Ok(json::done(match on {
        true => "the cluster is in maintenance",
        false => "the cluster is no longer in maintenance",
    }))
}

/// Who is primary. 204 while nobody is.
#[utoipa::path(
    get, path = "/api/v1/status/primary_node", tag = "cluster",
    responses((status = 200, body = PrimaryNode), (status = 204, description = "Nobody is primary \
                                                                                now"))
)]
pub async fn get_status_primary_node(State(api): Api) -> Response {
    match &api.view().config.primary {
        Some(primary) => json::ok(&PrimaryNode { primary_node: primary.to_string() }),
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

params! {
    /// Whether it is really meant.
    pub struct Initialization {
        /// `yes`
        really = "yes-i-really-mean-it": String,
        /// Destroys an existing cluster's records.
        overwrite: Flag,
    }
}

fn check_meant(really: &str) -> Result<()> {
    match really {
        "yes" => Ok(()),
        _ => {
            Err(ApiError::parameter("yes-i-really-mean-it", "must be `yes`: this destroys records"))
        }
    }
}

/// Creates the records of a new cluster.
#[utoipa::path(
    post,
    path = "/api/v1/initialize",
    tag = "cluster",
    params(Initialization),
    responses(Changed)
)]
pub async fn post_initialize(
    State(api): Api,
    Params(request): Params<Initialization>,
) -> Result<Response> {
    check_meant(&request.really)?;
    let overwrite = request.overwrite.0;
    api.carry_out(move |api| async move { cluster::initialize(api.store(), overwrite).await })
        .await?;
    Ok(json::done("the cluster was initialized"))
}

params! {
    /// What to back up.
    pub struct Saving {
        /// The passwords of the nodes' BMCs as well: keep it like them.
        secrets: Flag,
    }
}

/// Every record by its path, as a JSON text inside of a JSON text. A restore of it leaves the
/// passwords of BMCs that are there, unless they are in it.
#[utoipa::path(
    get, path = "/api/v1/backup", tag = "cluster", params(Saving),
    responses((status = 200, body = String, content_type = "application/json"), ReadRefused)
)]
pub async fn get_backup(State(api): Api, Params(saving): Params<Saving>) -> Result<Response> {
    let secrets = saving.secrets.0;
    let dump =
        api.ask(async { cluster::backup(api.store(), secrets).await.map_err(store_error) }).await?;
    let mut response = json::ok(&cluster::dump_text(&dump));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

params! {
    /// What to restore.
    #[large = true]
    pub struct Restoration {
        /// `yes`
        really = "yes-i-really-mean-it": String,
        @form
        /// The object that a backup holds, as JSON text.
        cluster_data: String,
    }
}

/// Writes the records of a backup over the present ones.
#[utoipa::path(
    post, path = "/api/v1/restore", tag = "cluster", params(Restoration),
    request_body(content = Restoration, content_type = "application/x-www-form-urlencoded"),
    responses(Changed)
)]
pub async fn post_restore(
    State(api): Api,
    Params(request): Params<Restoration>,
) -> Result<Response> {
    check_meant(&request.really)?;
    // Writing a large tree takes its time; it is not to be given up half-way.
    let time = api.settings().limits.change_time * 10;
    let dump = request.cluster_data;
    let restored = api
        .carry_out_within(time, |api| async move { cluster::restore(api.store(), &dump).await })
        .await?;
    Ok(json::done(format!(
        "{} records were restored{}",
        restored.keys,
        unfenceable(&restored.unfenceable)
    )))
}

fn unfenceable(nodes: &[NodeName]) -> String {
    if nodes.is_empty() {
        return String::new();
    }
    let nodes: Vec<String> = nodes.iter().map(|node| format!("`{node}`")).collect();
    let nodes = nodes.join(", ");
    format!(
        "; note: no IPMI password is known of {nodes}: start the daemon there, until then it \
         cannot be fenced"
    )
}

fn access_word(access: AccessList) -> &'static str {
    match access {
        AccessList::Anybody => "anybody",
        AccessList::Members => "members",
        AccessList::Other => "other",
    }
}

/// Who may use the records in ZooKeeper: whoever reaches it, or those alone who know their
/// password.
#[utoipa::path(
    get, path = "/api/v1/store/access", tag = "cluster",
    responses((status = 200, body = StoreAccess), ReadRefused)
)]
pub async fn get_store_access(State(api): Api) -> Result<Response> {
    let looked = api.ask(async { cluster::protection(api.store()).await.map_err(store_error) });
    let (protection, passwords) = looked.await?;
    let nodes = |with| -> Vec<String> {
        passwords
            .iter()
            .filter(|(_, found)| **found == with)
            .map(|(node, _)| node.to_string())
            .collect()
    };
    Ok(json::ok(&StoreAccess {
        access: access_word(protection.access).to_owned(),
        open: protection.open,
        closed: protection.closed,
        others: protection.others.len(),
        without_password: nodes(KnownPassword::Unproven),
        other_password: nodes(KnownPassword::Another),
    }))
}

choice! {
    /// Who may use the records.
    pub enum AccessWord { Anybody = "anybody", Members = "members" }
}

params! {
    /// Who may use the records.
    pub struct AccessRequest {
        /// `members` closes them to everybody who does not know the password, `anybody` opens them.
        access: AccessWord,
        /// Closes them although nodes would be locked out that are not known to know a password.
        force: Flag,
    }
}

/// Closes the records in ZooKeeper to whoever does not know their password, or opens them. What is
/// created later is for the same. Daemons that do not know the password yet end, and begin anew
/// with what their configuration says.
#[utoipa::path(
    post,
    path = "/api/v1/store/access",
    tag = "cluster",
    params(AccessRequest),
    responses(Changed)
)]
pub async fn post_store_access(
    State(api): Api,
    Params(request): Params<AccessRequest>,
) -> Result<Response> {
    let access = match request.access {
        AccessWord::Anybody => Access::Anybody,
        AccessWord::Members => Access::Members,
    };
    let force = request.force.0;
    // Each key is asked for, some of them changed, twice.
    let time = api.settings().limits.change_time * 10;
    let protect =
        move |api: ApiState| async move { cluster::protect(api.store(), access, force).await };
    let protection = api.carry_out_within(time, protect).await?;
    Ok(json::done(match access {
        Access::Members => {
            format!(
                "the store is closed: all {} keys are for those who know the password",
                protection.closed
            )
        }
        Access::Anybody => {
            format!(
                "the store is open: whoever reaches ZooKeeper may use all {} keys",
                protection.open
            )
        }
    }))
}
