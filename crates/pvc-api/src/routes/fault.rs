//! Faults: to read, to acknowledge, to delete.

use axum::extract::State;
use axum::response::Response;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use pvc_api_types::{Fault, Message};
use pvc_store::{Change, Changes};

use super::At;
use crate::error::{ApiError, Result};
use crate::json;
use crate::openapi::{ChangeRefused, ReadRefused};
use crate::params::{Params, choice, params};
use crate::refuse::change_error;
use crate::state::ApiState;
use crate::view::fault::fault;

choice! {
    /// What faults are sorted by.
    pub enum SortKey {
        FirstReported = "first_reported",
        LastReported = "last_reported",
        AcknowledgedAt = "acknowledged_at",
        Status = "status",
        HealthDelta = "health_delta",
        Message = "message",
    }
}

params! {
    /// In which order.
    pub struct FaultOrder {
        /// Ascending, but the times of report descending. Without it: by the latest report.
        sort_key: Option<SortKey>,
    }
}

fn sort(faults: &mut [Fault], key: SortKey) {
    match key {
        SortKey::FirstReported => faults.sort_by(|a, b| b.first_reported.cmp(&a.first_reported)),
        SortKey::LastReported => faults.sort_by(|a, b| b.last_reported.cmp(&a.last_reported)),
        SortKey::AcknowledgedAt => faults.sort_by(|a, b| a.acknowledged_at.cmp(&b.acknowledged_at)),
        SortKey::Status => faults.sort_by(|a, b| a.status.cmp(&b.status)),
        SortKey::HealthDelta => faults.sort_by_key(|fault| fault.health_delta),
        SortKey::Message => faults.sort_by(|a, b| a.message.cmp(&b.message)),
    }
}

/// All faults.
#[utoipa::path(
    get, path = "/api/v1/faults", tag = "faults", params(FaultOrder),
    responses((status = 200, body = Vec<Fault>), ReadRefused)
)]
pub async fn get_faults(State(api): State<ApiState>, Params(order): Params<FaultOrder>) -> Response {
    let cluster = api.view();
    let mut faults: Vec<Fault> = cluster.faults.values().map(|record| fault(record)).collect();
    sort(&mut faults, order.sort_key.unwrap_or(SortKey::LastReported));
    json::ok(&faults)
}

/// Acknowledges all faults.
#[utoipa::path(
    put, path = "/api/v1/faults", tag = "faults",
    responses((status = 200, body = Message), ChangeRefused)
)]
pub async fn put_faults(State(api): State<ApiState>) -> Result<Response> {
    change(&api, Which::All, Action::Acknowledge).await
}

/// Deletes all faults.
#[utoipa::path(
    delete, path = "/api/v1/faults", tag = "faults",
    responses((status = 200, body = Message), ChangeRefused)
)]
pub async fn delete_faults(State(api): State<ApiState>) -> Result<Response> {
    change(&api, Which::All, Action::Delete).await
}

/// One fault, or none.
#[utoipa::path(
    get, path = "/api/v1/faults/{fault_id}", tag = "faults",
    params(("fault_id" = String, Path, description = "Identifier of the fault")),
    responses((status = 200, body = Vec<Fault>), ReadRefused)
)]
pub async fn get_faults_fault_id(State(api): State<ApiState>, At(id): At<String>) -> Response {
    let cluster = api.view();
    let found: Vec<Fault> = cluster.faults.get(&id).map(|record| fault(record)).into_iter().collect();
    json::ok(&found)
}

/// Acknowledges a fault.
#[utoipa::path(
    put, path = "/api/v1/faults/{fault_id}", tag = "faults",
    params(("fault_id" = String, Path, description = "Identifier of the fault")),
    responses((status = 200, body = Message), ChangeRefused)
)]
pub async fn put_faults_fault_id(State(api): State<ApiState>, At(id): At<String>) -> Result<Response> {
    change(&api, Which::One(id), Action::Acknowledge).await
}

/// Deletes a fault. It returns if its condition is found again.
#[utoipa::path(
    delete, path = "/api/v1/faults/{fault_id}", tag = "faults",
    params(("fault_id" = String, Path, description = "Identifier of the fault")),
    responses((status = 200, body = Message), ChangeRefused)
)]
pub async fn delete_faults_fault_id(State(api): State<ApiState>, At(id): At<String>) -> Result<Response> {
    change(&api, Which::One(id), Action::Delete).await
}

#[derive(Clone)]
enum Which {
    All,
    One(String),
}

#[derive(Clone, Copy)]
enum Action {
    Acknowledge,
    Delete,
}

async fn change(api: &ApiState, which: Which, action: Action) -> Result<Response> {
    let store = api.store().clone();
    let now = local_time(api);
    let message = api
        .change(async move {
            let decide = |cluster: &pvc_model::cluster::Cluster| {
                let ids: Vec<String> = match &which {
                    Which::All => cluster.faults.keys().cloned().collect(),
                    Which::One(id) if cluster.faults.contains_key(id) => vec![id.clone()],
                    Which::One(id) => return Err(ApiError::not_found(format!("there is no fault `{id}`"))),
                };
                let mut changes = Changes::new();
                for id in ids {
                    changes.push(match action {
                        Action::Acknowledge => Change::AckFault { id, at: now.clone() },
                        Action::Delete => Change::RemoveFault(id),
                    });
                }
                Ok((changes, done(&which, action)))
            };
            store.change(decide).await.map_err(change_error)
        })
        .await?;
    Ok(json::ok(&Message { message }))
}

fn done(which: &Which, action: Action) -> String {
    let what = match which {
        Which::All => "all faults were".to_owned(),
        Which::One(id) => format!("fault `{id}` was"),
    };
    match action {
        Action::Acknowledge => format!("{what} acknowledged"),
        Action::Delete => format!("{what} deleted"),
    }
}

/// The server's local time as faults have it.
fn local_time(api: &ApiState) -> String {
    let seconds = i64::try_from(api.clock().wall().as_secs()).unwrap_or_default();
    let now = Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(TimeZone::system());
    now.strftime("%Y-%m-%d %H:%M:%S").to_string()
}
