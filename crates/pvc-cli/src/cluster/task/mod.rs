//! Tasks: what the API calls jobs.

mod cancel;
mod log;

use clap::{Args, Subcommand};
use pvc_api_types::operations::task::{GetTasks, GetTasksTaskId};
use pvc_api_types::param::Nothing;
use pvc_api_types::{QueuedTask, TaskQueues, TaskStatus};
use serde_json::{Value, json};

use crate::context::Pvc;
use crate::format::{ListFormat, MaybeJson, Shape};
use crate::outcome::{Failure, Outcome};
use crate::output::{Cell, Table};
use crate::task::{self, TaskWait};

/// Show the unfinished tasks, or follow one
///
/// Without TASK_ID all tasks that run or wait are listed. With it the command waits for
/// that task to end and fails if the task does; `--no-wait` only shows how far it is.
/// `pvc task` is the same command.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc cluster task
  pvc cluster task a3f4d9c1
  pvc cluster task a3f4d9c1 --no-wait -f json
  pvc task log a3f4d9c1
  pvc task cancel a3f4d9c1")]
#[command(args_conflicts_with_subcommands = true)]
pub struct Task {
    #[command(subcommand)]
    action: Option<Action>,

    /// The task, as it was told when it started
    #[arg(add = crate::completion::tasks())]
    task_id: Option<String>,

    #[command(flatten)]
    wait: TaskWait,

    #[arg(short, long, value_enum, default_value_t = ListFormat::Pretty, help = "How to print it")]
    format: ListFormat,

    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, Subcommand)]
enum Action {
    Cancel(cancel::Cancel),
    Log(log::Log),
}

/// A task of the list with what its place in the list says.
struct Listed<'a> {
    kind: &'static str,
    worker: &'a str,
    task: &'a QueuedTask,
}

impl Task {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self.action {
            Some(Action::Cancel(command)) => return command.run(pvc),
            Some(Action::Log(command)) => return command.run(pvc),
            None => {}
        }
        match self.task_id.as_deref() {
            None => self.list(pvc),
            Some(id) => {
                self.shape.not_for_one(self.format)?;
                if self.wait.is_wanted() { wait_for(pvc, id) } else { self.show(pvc, id) }
            }
        }
    }

    fn list(&self, pvc: &mut Pvc) -> Outcome {
        self.shape.check(self.format)?;
        let queues = pvc.client()?.read(GetTasks, [], &Nothing)?.read()?;
        let tasks = listed(&queues);
        if self.format.print(pvc, &tasks.iter().map(value).collect()) {
            return Ok(());
        }
        if self.format == ListFormat::Raw {
            tasks.iter().for_each(|listed| pvc.out.line(&listed.task.id));
        } else {
            self.shape.print(pvc, self.format, table(&tasks))?;
        }
        Ok(())
    }

    fn show(&self, pvc: &mut Pvc, id: &str) -> Outcome {
        let answer = pvc.client()?.read(GetTasksTaskId, [id], &Nothing)?;
        if self.format.print_payload(pvc, &answer)? {
            return Ok(());
        }
        let status = answer.read()?;
        if self.format == ListFormat::Raw {
            pvc.out.line(&status.state);
        } else {
            pvc.out.line(described(&status));
        }
        Ok(())
    }
}

/// Follows a task that runs or waits. One that nobody lists may have ended a moment ago; only if
/// nothing at all is known of it, it does not exist.
fn wait_for(pvc: &mut Pvc, id: &str) -> Outcome {
    let queues = pvc.client()?.read(GetTasks, [], &Nothing)?.read()?;
    let known = listed(&queues).iter().any(|listed| listed.task.id == id);
    if !known && pvc.client()?.read(GetTasksTaskId, [id], &Nothing)?.read()?.state == "PENDING" {
        return Err(Failure::not_found(format!("no task `{id}`")).hint(
            "`pvc cluster task` lists the tasks that run or wait; the results of ended ones \
                   are kept for a day",
        ));
    }
    task::follow(pvc, id)
}

fn listed(queues: &TaskQueues) -> Vec<Listed<'_>> {
    let mut all = Vec::new();
    for (kind, workers) in [
        ("active", &queues.active),
        ("pending", &queues.reserved),
        ("scheduled", &queues.scheduled),
    ] {
        for (worker, tasks) in workers {
            all.extend(tasks.iter().map(|task| Listed { kind, worker, task }));
        }
    }
    all
}

fn value(listed: &Listed<'_>) -> Value {
    json!({
        "type": listed.kind,
        "worker": listed.worker,
        "id": listed.task.id,
        "name": listed.task.name,
        "args": listed.task.args,
        "kwargs": listed.task.kwargs,
    })
}

/// The longest argument that is shown in full.
const SHOWN: usize = 24;

fn table(tasks: &[Listed<'_>]) -> Table {
    let mut table = Table::new()
        .group("Tasks", &[("ID", 3), ("Name", 5), ("Status", 7), ("Worker", 7)])
        .group("Arguments", &[("Name", 5), ("Data", 10)]);
    for listed in tasks {
        let task = listed.task;
        let mut arguments = arguments(&task.kwargs).into_iter();
        let (name, data) = arguments.next().unwrap_or_default();
        table.row(vec![
            task.id.as_str().into(),
            task.name.as_str().into(),
            listed.kind.into(),
            listed.worker.into(),
            name.into(),
            data.into(),
        ]);
        for (name, data) in arguments {
            let blank = || Cell::from("");
            table.more(vec![blank(), blank(), blank(), blank(), name.into(), data.into()]);
        }
    }
    table
}

/// The arguments worth showing; where a task runs is said by its worker.
fn arguments(kwargs: &Value) -> Vec<(String, String)> {
    let Some(kwargs) = kwargs.as_object() else {
        return match kwargs.as_str() {
            Some(text) => vec![(String::new(), shortened(text))],
            None => Vec::new(),
        };
    };
    let shown = |(name, value): (&String, &Value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (name.clone(), shortened(&text))
    };
    kwargs.iter().filter(|(name, _)| *name != "run_on").map(shown).collect()
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= SHOWN {
        return text.to_owned();
    }
    let start: String = text.chars().take(SHOWN).collect();
    format!("{start} ...")
}

fn described(status: &TaskStatus) -> String {
    let stage = if status.state == "RUNNING" {
        format!("Stage: {}/{}\n", status.current, status.total)
    } else {
        String::new()
    };
    format!("Job state: {}\n{stage}Status: {}", status.state, status.status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    #[test]
    fn every_argument_has_its_row_and_a_task_without_any_is_shown() {
        let queues: TaskQueues =
            serde_json::from_str(include_str!("../../../tests/wire/tasks.json")).unwrap();
        let text = table(&listed(&queues)).render(Paint::OFF) + "\n";
        crate::golden::check("task-list.txt", &(text));
    }

    #[test]
    fn only_a_running_task_has_a_stage() {
        let status = |state: &str| TaskStatus {
            state: state.to_owned(),
            current: 1,
            total: 3,
            status: "x".to_owned(),
        };
        assert_eq!(described(&status("RUNNING")), "Job state: RUNNING\nStage: 1/3\nStatus: x");
        assert_eq!(described(&status("SUCCESS")), "Job state: SUCCESS\nStatus: x");
    }
}
