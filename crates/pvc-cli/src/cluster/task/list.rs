use clap::Args;
use pvc_api_types::operations::task::{GetTasks, TaskChoice};
use pvc_api_types::param::Added;
use pvc_api_types::{EndedTask, QueuedTask, TaskQueues};
use serde_json::{Value, json};

use crate::context::Pvc;
use crate::format::{ListFormat, MaybeJson, Shape};
use crate::outcome::Outcome;
use crate::output::{Cell, Table};
use crate::time;

/// List the tasks
///
/// Those that run or wait; with `--all` those that ended within the last day as well,
/// the latest first.
#[derive(Debug, Args)]
pub struct List {
    /// List ended tasks as well
    #[arg(short, long)]
    all: bool,

    #[arg(short, long, value_enum, default_value_t = ListFormat::Pretty, help = "How to print it")]
    format: ListFormat,

    #[command(flatten)]
    shape: Shape,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        print(pvc, self.format, &self.shape, TaskChoice { all: Added(self.all) })
    }
}

/// Prints the chosen tasks.
pub fn print(pvc: &mut Pvc, format: ListFormat, shape: &Shape, choice: TaskChoice) -> Outcome {
    shape.check(format)?;
    let queues = pvc.client()?.read(GetTasks, [], &choice)?.read()?;
    let tasks = listed(&queues);
    if choice.all.0 && queues.ended.is_none() {
        pvc.note("(the API of this cluster does not list tasks that have ended)");
    }
    if format.print(pvc, &tasks.iter().map(value).collect::<Vec<_>>()) {
        return Ok(());
    }
    if format == ListFormat::Raw {
        tasks.iter().for_each(|listed| pvc.out.line(listed.id));
        return Ok(());
    }
    shape.print(pvc, format, table(&tasks, choice.all.0))
}

/// A task of the list.
pub struct Listed<'a> {
    pub id: &'a str,
    kind: String,
    worker: &'a str,
    name: &'a str,
    kwargs: &'a Value,
    stage: Stage<'a>,
}

impl Listed<'_> {
    fn submitter(&self) -> &str {
        match self.stage {
            Stage::Unfinished(task) => &task.submitter,
            Stage::Ended(task) => &task.submitter,
        }
    }

    /// Progress of the task, or what came of it.
    fn said(&self) -> &str {
        match self.stage {
            Stage::Unfinished(task) => &task.status,
            Stage::Ended(task) => &task.status,
        }
    }
}

/// A task by what the API says of it.
enum Stage<'a> {
    Unfinished(&'a QueuedTask),
    Ended(&'a EndedTask),
}

/// The tasks of all workers: those at work, those that wait, those that have ended.
pub fn listed(queues: &TaskQueues) -> Vec<Listed<'_>> {
    let mut all = Vec::new();
    for (kind, workers) in [
        ("active", &queues.active),
        ("pending", &queues.reserved),
        ("scheduled", &queues.scheduled),
    ] {
        for (worker, tasks) in workers {
            all.extend(tasks.iter().map(|task| Listed {
                id: &task.id,
                kind: kind.to_owned(),
                worker,
                name: &task.name,
                kwargs: &task.kwargs,
                stage: Stage::Unfinished(task),
            }));
        }
    }
    all.extend(queues.ended.iter().flatten().map(|task| Listed {
        id: &task.id,
        kind: task.state.to_lowercase(),
        worker: &task.worker,
        name: &task.name,
        kwargs: &task.kwargs,
        stage: Stage::Ended(task),
    }));
    all
}

fn value(listed: &Listed<'_>) -> Value {
    let Listed { id, kind, worker, name, kwargs, stage } = listed;
    match stage {
        Stage::Unfinished(task) => {
            let mut value = json!({
                "type": kind,
                "worker": worker,
                "id": id,
                "name": name,
                "args": task.args,
                "kwargs": kwargs,
            });
            // PVC 1.0.3 says none of it.
            if !task.status.is_empty() {
                value["status"] = json!(task.status);
                value["submitter"] = json!(task.submitter);
                value["transferred"] = json!(task.transferred);
            }
            value
        }
        Stage::Ended(task) => json!({
            "type": kind,
            "worker": worker,
            "id": id,
            "name": name,
            "args": [],
            "kwargs": kwargs,
            "submitted_at": task.submitted_at,
            "started_at": task.started_at,
            "ended_at": task.ended_at,
            "status": task.status,
            "submitter": task.submitter,
            "transferred": task.transferred,
        }),
    }
}

/// The longest argument, author and result that are shown in full.
const SHOWN: usize = 24;
const SHOWN_OF_RESULT: usize = 48;

/// The tasks as rows, with the time of their end if `ended` ones are among them, and with who asked
/// for them and how far they are if the API says it.
fn table(tasks: &[Listed<'_>], ended: bool) -> Table {
    let is_said = tasks.iter().any(|listed| !listed.said().is_empty());
    let columns = [("ID", 3), ("Name", 5), ("Status", 7), ("Worker", 7)].into_iter();
    let columns = columns.chain(is_said.then_some(("By", 3)));
    let columns = columns.chain(ended.then_some(("Ended", 6)));
    let columns: Vec<_> = columns.chain(is_said.then_some(("Progress", 9))).collect();
    let mut table =
        Table::new().group("Tasks", &columns).group("Arguments", &[("Name", 5), ("Data", 10)]);
    for listed in tasks {
        let mut arguments = arguments(listed.kwargs, SHOWN).into_iter();
        let mut row: Vec<Cell> = vec![
            listed.id.into(),
            listed.name.into(),
            listed.kind.as_str().into(),
            listed.worker.into(),
        ];
        if is_said {
            row.push(shortened(listed.submitter(), SHOWN).into());
        }
        if ended {
            row.push(end(&listed.stage).into());
        }
        if is_said {
            row.push(shortened(listed.said(), SHOWN_OF_RESULT).into());
        }
        let blank = || columns.iter().map(|_| Cell::from(""));
        let with = |row: Vec<Cell>, (name, data): (String, String)| {
            row.into_iter().chain([name.into(), data.into()]).collect()
        };
        table.row(with(row, arguments.next().unwrap_or_default()));
        for argument in arguments {
            table.more(with(blank().collect(), argument));
        }
    }
    table
}

fn end(stage: &Stage<'_>) -> String {
    match stage {
        Stage::Unfinished(_) => String::new(),
        Stage::Ended(task) => task.ended_at.map(time::utc).unwrap_or_default(),
    }
}

/// The arguments worth showing, cut to so many characters; where a task runs is said by its worker.
pub fn arguments(kwargs: &Value, most: usize) -> Vec<(String, String)> {
    let Some(kwargs) = kwargs.as_object() else {
        return match kwargs.as_str() {
            Some(text) => vec![(String::new(), shortened(text, most))],
            None => Vec::new(),
        };
    };
    let shown = |(name, value): (&String, &Value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (name.clone(), shortened(&text, most))
    };
    kwargs.iter().filter(|(name, _)| *name != "run_on").map(shown).collect()
}

fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let start: String = text.chars().take(most).collect();
    format!("{start} ...")
}

#[cfg(test)]
mod tests {
    use pvc_api_types::TaskTransfer;

    use super::*;
    use crate::output::Paint;

    fn queues() -> TaskQueues {
        serde_json::from_str(include_str!("../../../tests/wire/tasks.json")).unwrap()
    }

    #[test]
    fn every_argument_has_its_row_and_a_task_without_any_is_shown() {
        let text = table(&listed(&queues()), false).render(Paint::OFF) + "\n";
        crate::golden::check("task-list.txt", &text);
    }

    #[test]
    fn an_upload_under_way_says_by_whom_and_how_far_it_is() {
        let upload = QueuedTask {
            id: "5c3f1a2b".to_owned(),
            name: "storage.upload".to_owned(),
            kwargs: json!({"pool": "vms", "run_on": "pvchv2", "volume": "web1_root"}),
            status: "512M of 2048M (25 %), 100M/s, 15 s left".to_owned(),
            submitter: "admin".to_owned(),
            transferred: Some(TaskTransfer::default()),
            ..QueuedTask::default()
        };
        let active = [("pvcapid@pvchv2".to_owned(), vec![upload])].into();
        let queues = TaskQueues { active, ..TaskQueues::default() };
        let text = table(&listed(&queues), false).render(Paint::OFF) + "\n";
        crate::golden::check("task-list-upload.txt", &text);
    }

    #[test]
    fn what_has_ended_stands_below_with_its_end() {
        let mut queues = queues();
        queues.ended = Some(vec![EndedTask {
            id: "0a1b2c3d".to_owned(),
            name: "vm.rename".to_owned(),
            kwargs: json!({"domain": "web1", "new_name": "shop", "run_on": "pvchv1"}),
            worker: "pvcworkerd@pvchv2".to_owned(),
            ended_at: Some(1_700_000_000),
            state: "FAILURE".to_owned(),
            status: "the client went away".to_owned(),
            submitter: "admin".to_owned(),
            ..EndedTask::default()
        }]);
        let text = table(&listed(&queues), true).render(Paint::OFF) + "\n";
        crate::golden::check("task-list-all.txt", &text);
    }
}
