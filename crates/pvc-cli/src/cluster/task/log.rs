use clap::{Args, ValueEnum};
use pvc_api_types::TaskLog;
use pvc_api_types::operations::task::GetTasksTaskIdLog;
use pvc_api_types::param::Nothing;

use super::list;
use crate::context::Pvc;
use crate::format::{Json, MaybeJson};
use crate::outcome::Outcome;
use crate::output::labels::Labels;
use crate::output::{Paint, harmless};
use crate::time;

/// Show what is recorded of a task
///
/// Who did it and when, how it ended, and the latest 200 lines of its log. It is kept for a
/// day after the end of the task.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc task log a3f4d9c1
  pvc task log a3f4d9c1 -f raw")]
pub struct Log {
    /// The task
    #[arg(add = crate::completion::recorded_tasks())]
    task_id: String,

    #[arg(short, long, value_enum, default_value_t = Format::Pretty, help = "How to print it")]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Details, and the lines of the log
    Pretty,
    /// The bare lines of the log
    Raw,
    /// Answer of the API, on one line
    Json,
    /// The same, indented
    JsonPretty,
}

impl MaybeJson for Format {
    fn json(self) -> Option<Json> {
        match self {
            Format::Json => Some(Json::Line),
            Format::JsonPretty => Some(Json::Indented),
            Format::Pretty | Format::Raw => None,
        }
    }
}

impl Log {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let answer = pvc.client()?.read(GetTasksTaskIdLog, [&self.task_id], &Nothing)?;
        if self.format.print_payload(pvc, &answer)? {
            return Ok(());
        }
        let task = answer.read()?;
        if self.format == Format::Pretty {
            let details = details(&task, pvc.out.paint());
            pvc.out.text(details);
            if !task.log.is_empty() {
                pvc.out.line("");
            }
        }
        task.log.iter().for_each(|line| pvc.out.line(harmless(line, &[])));
        Ok(())
    }
}

/// The longest argument that is shown in full.
const ARGUMENT: usize = 200;

/// Column in which the values begin.
const WIDTH: usize = 11;

/// All that is known of a task, but for its log.
pub fn details(task: &TaskLog, paint: Paint) -> String {
    let time = |seconds: Option<u64>| seconds.map(time::utc).unwrap_or_default();
    let mut lines = Labels::new(paint, WIDTH);
    lines.line("Task", format!("{} ({})", task.id, task.name));
    let arguments = list::arguments(&task.kwargs, ARGUMENT).into_iter();
    let arguments = arguments.map(|(name, value)| harmless(&format!("{name}: {value}"), &[]));
    let arguments: Vec<String> = arguments.collect();
    if !arguments.is_empty() {
        lines.lines("Arguments", &arguments);
    }
    if !task.submitter.is_empty() {
        lines.line("By", harmless(&task.submitter, &[]));
    }
    lines.line("Node", &task.node);
    lines.line("Worker", task.worker.as_deref().unwrap_or_default());
    lines.line("Submitted", time(Some(task.submitted_at)));
    lines.line("Started", time(task.started_at));
    lines.line("Ended", time(task.ended_at));
    lines.line("State", &task.state);
    lines.line("Status", harmless(&task.status, &[]));
    if let Some(hint) = &task.hint {
        lines.line("Hint", harmless(hint, &[]));
    }
    if let Some(gone) = &task.transferred {
        let of = gone.of.map_or_else(String::new, |of| format!(" of {of}"));
        lines.line("Bytes", format!("{}{of}", gone.bytes));
    }
    lines.finish()
}

#[cfg(test)]
mod tests {
    use pvc_api_types::TaskTransfer;

    use super::*;

    #[test]
    fn of_an_upload_it_is_shown_how_far_it_is() {
        let task = TaskLog {
            id: "5c3f1a2b".to_owned(),
            name: "storage.upload".to_owned(),
            kwargs: serde_json::json!({"pool": "vms", "run_on": "hv1", "volume": "web1_root"}),
            submitter: "admin\u{1b}[31m".to_owned(),
            node: "hv1".to_owned(),
            worker: Some("hv1".to_owned()),
            submitted_at: 1_700_000_000,
            started_at: Some(1_700_000_000),
            state: "RUNNING".to_owned(),
            status: "512M of 2048M (25 %), 100M/s, 15 s left".to_owned(),
            transferred: Some(TaskTransfer {
                bytes: 512 << 20,
                of: Some(2 << 30),
                ..TaskTransfer::default()
            }),
            ..TaskLog::default()
        };
        crate::golden::check("task-show-upload.txt", &details(&task, Paint::OFF));
    }

    #[test]
    fn what_is_not_known_yet_is_not_made_up() {
        let task = TaskLog {
            id: "a3f4d9c1".to_owned(),
            name: "vm.flush_locks".to_owned(),
            node: "hv1".to_owned(),
            submitted_at: 1_700_000_000,
            state: "PENDING".to_owned(),
            status: "waiting for the worker".to_owned(),
            ..TaskLog::default()
        };
        crate::golden::check("task-log-pending.txt", &details(&task, Paint::OFF));
    }
}
