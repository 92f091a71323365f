//! Tasks: what the API calls jobs.

mod cancel;
mod list;
mod log;
mod show;

use clap::{Args, Subcommand};
use pvc_api_types::TaskStatus;
use pvc_api_types::operations::task::{GetTasks, GetTasksTaskId, TaskChoice};
use pvc_api_types::param::Nothing;

use crate::context::Pvc;
use crate::format::{ListFormat, MaybeJson, Shape};
use crate::outcome::{Failure, Outcome};
use crate::task::{self, TaskWait};

/// Show the unfinished tasks, or follow one
///
/// Without TASK_ID all tasks that run or wait are listed. With it the command waits for
/// that task to end and fails if the task does; `--no-wait` only shows how far it is.
/// `pvc task` is the same command, and `pvc task list --all` lists the ended tasks, too.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc cluster task
  pvc cluster task a3f4d9c1
  pvc cluster task a3f4d9c1 --no-wait -f json
  pvc task list --all
  pvc task show a3f4d9c1
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
    List(list::List),
    Log(log::Log),
    Show(show::Show),
}

impl Task {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self.action {
            Some(Action::Cancel(command)) => return command.run(pvc),
            Some(Action::List(command)) => return command.run(pvc),
            Some(Action::Log(command)) => return command.run(pvc),
            Some(Action::Show(command)) => return command.run(pvc),
            None => {}
        }
        match self.task_id.as_deref() {
            None => list::print(pvc, self.format, &self.shape, TaskChoice::default()),
            Some(id) => {
                self.shape.not_for_one(self.format)?;
                if self.wait.is_wanted() { self.wait_for(pvc, id) } else { self.show(pvc, id) }
            }
        }
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

    /// Follows a task to its end, and prints that, also of one that failed but for people: they
    /// get the failure.
    fn wait_for(&self, pvc: &mut Pvc, id: &str) -> Outcome {
        require_known(pvc, id)?;
        let end = task::end_of(pvc, id)?;
        if !self.format.print(pvc, &end)
            && let Some(line) = ended(&end, self.format)
        {
            pvc.out.line(line);
        }
        task::check(id, &end)
    }
}

/// The end of a task as a line of a format that is not JSON.
fn ended(end: &TaskStatus, format: ListFormat) -> Option<String> {
    match format {
        ListFormat::Raw => Some(end.state.clone()),
        _ => end.is_success().then(|| format!("{}: {}", end.state, end.status)),
    }
}

/// Fails if nothing at all is known of a task. One that nobody lists may have ended a moment ago.
fn require_known(pvc: &mut Pvc, id: &str) -> Outcome {
    let queues = pvc.client()?.read(GetTasks, [], &TaskChoice::default())?.read()?;
    let known = list::listed(&queues).iter().any(|listed| listed.id == id);
    if !known && pvc.client()?.read(GetTasksTaskId, [id], &Nothing)?.read()?.state == "PENDING" {
        return Err(Failure::not_found(format!("no task `{id}`"))
            .hint("`pvc task list --all` shows the tasks of the last day"));
    }
    Ok(())
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

    fn status(state: &str) -> TaskStatus {
        TaskStatus {
            state: state.to_owned(),
            current: 1,
            total: 3,
            status: "x".to_owned(),
            hint: None,
        }
    }

    #[test]
    fn the_end_of_a_failed_task_is_a_line_only_for_scripts() {
        let line = |state: &str, format| ended(&status(state), format);
        assert_eq!(line("SUCCESS", ListFormat::Pretty).as_deref(), Some("SUCCESS: x"));
        assert_eq!(line("FAILURE", ListFormat::Pretty), None);
        assert_eq!(line("FAILURE", ListFormat::Raw).as_deref(), Some("FAILURE"));
    }

    #[test]
    fn only_a_running_task_has_a_stage() {
        assert_eq!(described(&status("RUNNING")), "Job state: RUNNING\nStage: 1/3\nStatus: x");
        assert_eq!(described(&status("SUCCESS")), "Job state: SUCCESS\nStatus: x");
    }
}
