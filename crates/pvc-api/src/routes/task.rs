//! Tasks: what the API calls jobs.

use std::sync::Arc;

use pvc_api_types::operations::task::{
    DeleteTasksTaskId, GetTasks, GetTasksTaskId, GetTasksTaskIdLog,
};
use pvc_model::job::{Job, JobId};
use pvc_model::shown;

use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::state::ApiState;
use crate::table::{Ask, Table};
use crate::view::task;

pub fn add(table: Table) -> Table {
    table.add(get_tasks).add(get_tasks_task_id).add(get_tasks_task_id_log).add(delete_tasks_task_id)
}

async fn get_tasks(ask: Ask<GetTasks>) -> Result<Answer<GetTasks>> {
    let cluster = ask.api.view();
    let mut queues = task::queues(&cluster);
    if ask.params.all.0 {
        queues.ended = Some(task::ended(&cluster));
    }
    Ok(Answer::json(&queues))
}

async fn get_tasks_task_id(ask: Ask<GetTasksTaskId>) -> Result<Answer<GetTasksTaskId>> {
    let [id] = ask.at;
    Ok(Answer::json(&task::status(&*job(&ask.api, &id)?)))
}

async fn get_tasks_task_id_log(ask: Ask<GetTasksTaskIdLog>) -> Result<Answer<GetTasksTaskIdLog>> {
    let [id] = ask.at;
    Ok(Answer::json(&task::log(&*job(&ask.api, &id)?)))
}

async fn delete_tasks_task_id(ask: Ask<DeleteTasksTaskId>) -> Result<Answer<DeleteTasksTaskId>> {
    let ([id], role) = (ask.at, ask.caller.role);
    let cancel = |api: ApiState| async move {
        pvc_ops::job::cancel(api.store(), api.clock().as_ref(), &id, role).await
    };
    let id = ask.api.carry_out(cancel).await?;
    Ok(ask.mode.done(format!("task `{id}` was asked to stop")))
}

fn job(api: &ApiState, id: &str) -> Result<Arc<Job>> {
    let cluster = api.view();
    let found = JobId::parse(id).and_then(|id| cluster.jobs.get(&id).cloned());
    found.ok_or_else(|| no_task(id))
}

fn no_task(id: &str) -> ApiError {
    ApiError::not_found(format!("there is no task `{}`", shown(id))).hint(Some(
        "tasks are forgotten a day after their end; `pvc task list --all` lists those that are \
         known",
    ))
}
