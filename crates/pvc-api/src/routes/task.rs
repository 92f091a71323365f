//! Tasks: what the API calls jobs.

use axum::extract::State;
use axum::response::Response;
use pvc_api_types::{TaskQueues, TaskStatus};
use pvc_model::job::JobId;

use super::Api;
use super::at::AtTask;
use crate::error::{ApiError, Result};
use crate::json;
use crate::openapi::{Changed, ReadRefused};
use crate::view::task;

/// All tasks that have not ended, by worker.
#[utoipa::path(
    get, path = "/api/v1/tasks", tag = "tasks",
    responses((status = 200, body = TaskQueues), ReadRefused)
)]
pub async fn get_tasks(State(api): Api) -> Response {
    json::ok(&task::queues(&api.view()))
}

/// How far a task is. A task that never was, or is forgotten, is not there.
#[utoipa::path(
    get, path = "/api/v1/tasks/{task_id}", tag = "tasks",
    params(AtTask),
    responses((status = 200, body = TaskStatus), ReadRefused)
)]
pub async fn get_tasks_task_id(State(api): Api, AtTask(id): AtTask) -> Result<Response> {
    let cluster = api.view();
    let job = JobId::parse(&id).and_then(|id| cluster.jobs.get(&id)).ok_or_else(|| no_task(&id))?;
    Ok(json::ok(&task::status(job)))
}

/// Asks a task to stop. One that waits ends at once, one at work at its next step.
#[utoipa::path(
    delete,
    path = "/api/v1/tasks/{task_id}",
    tag = "tasks",
    params(AtTask),
    responses(Changed)
)]
pub async fn delete_tasks_task_id(State(api): Api, AtTask(id): AtTask) -> Result<Response> {
    let id = api
        .carry_out(|api| async move {
            pvc_ops::job::cancel(api.store(), api.clock().as_ref(), &id).await
        })
        .await?;
    Ok(json::done(format!("task `{id}` was asked to stop")))
}

fn no_task(id: &str) -> ApiError {
    ApiError::not_found(format!("there is no task `{}`", crate::params::shown(id))).hint(Some(
        "tasks are forgotten some time after their end; `pvc cluster task` lists those that have \
         not ended",
    ))
}
