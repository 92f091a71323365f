//! Faults: to read, to acknowledge, to delete.

use axum::extract::State;
use axum::response::Response;
use pvc_api_types::Fault;
use pvc_ops::fault::{self, Which};

use super::Api;
use super::at::AtFault;
use crate::error::Result;
use crate::json;
use crate::openapi::{Changed, ReadRefused};
use crate::params::{Params, choice, params};
use crate::state::ApiState;
use crate::view;

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
pub async fn get_faults(State(api): Api, Params(order): Params<FaultOrder>) -> Response {
    let cluster = api.view();
    let mut faults: Vec<Fault> =
        cluster.faults.values().map(|record| view::fault::fault(record)).collect();
    sort(&mut faults, order.sort_key.unwrap_or(SortKey::LastReported));
    json::ok(&faults)
}

/// Acknowledges all faults.
#[utoipa::path(put, path = "/api/v1/faults", tag = "faults", responses(Changed))]
pub async fn put_faults(State(api): Api) -> Result<Response> {
    acknowledge(&api, Which::All).await
}

/// Deletes all faults.
#[utoipa::path(delete, path = "/api/v1/faults", tag = "faults", responses(Changed))]
pub async fn delete_faults(State(api): Api) -> Result<Response> {
    delete(&api, Which::All).await
}

/// One fault, or none.
#[utoipa::path(
    get, path = "/api/v1/faults/{fault_id}", tag = "faults",
    params(AtFault),
    responses((status = 200, body = Vec<Fault>), ReadRefused)
)]
pub async fn get_faults_fault_id(State(api): Api, AtFault(id): AtFault) -> Response {
    let cluster = api.view();
    let found: Vec<Fault> =
        cluster.faults.get(&id).map(|record| view::fault::fault(record)).into_iter().collect();
    json::ok(&found)
}

/// Acknowledges a fault.
#[utoipa::path(
    put,
    path = "/api/v1/faults/{fault_id}",
    tag = "faults",
    params(AtFault),
    responses(Changed)
)]
pub async fn put_faults_fault_id(State(api): Api, AtFault(id): AtFault) -> Result<Response> {
    acknowledge(&api, Which::One(id)).await
}

/// Deletes a fault. It returns if its condition is found again.
#[utoipa::path(
    delete,
    path = "/api/v1/faults/{fault_id}",
    tag = "faults",
    params(AtFault),
    responses(Changed)
)]
pub async fn delete_faults_fault_id(State(api): Api, AtFault(id): AtFault) -> Result<Response> {
    delete(&api, Which::One(id)).await
}

async fn acknowledge(api: &ApiState, which: Which) -> Result<Response> {
    let now = view::fault::local_time(api.clock().wall());
    let message = format!("{} acknowledged", described(&which));
    api.carry_out(|api| async move { fault::acknowledge(api.store(), &which, &now).await }).await?;
    Ok(json::done(message))
}

async fn delete(api: &ApiState, which: Which) -> Result<Response> {
    let message = format!("{} deleted", described(&which));
    api.carry_out(|api| async move { fault::delete(api.store(), &which).await }).await?;
    Ok(json::done(message))
}

fn described(which: &Which) -> String {
    match which {
        Which::All => "all faults were".to_owned(),
        Which::One(id) => format!("fault `{id}` was"),
    }
}
