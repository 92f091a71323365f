//! Following a task to its end.

use pvc_api_types::operations::task::GetTasksTaskId;
use pvc_api_types::param::Nothing;
use std::time::{Duration, Instant};

use clap::Args;
use pvc_api_types::{TaskRef, TaskStatus};
use pvc_client::{Client, Kind, Submitted};
use std::io::IsTerminal;

use crate::answer::Format;
use crate::context::Pvc;
use crate::interrupt;
use crate::outcome::{Exit, Failure, Outcome};

/// The pauses between looks: short at first, because most tasks are.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Time that nobody may answer before the waiting is given up. A change of the primary node takes
/// less.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);
const BAR: i64 = 20;

/// `--wait / --no-wait`, for commands that start a task.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct TaskWait {
    /// Wait for the task to end, which is the default
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,

    /// Return as soon as the task is queued
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
}

impl TaskWait {
    pub fn is_wanted(self) -> bool {
        !self.no_wait
    }
}

/// Reports a task that has just been started and, if wanted, follows it. A task that fails makes
/// the command fail.
pub fn finish(pvc: &mut Pvc, submitted: Submitted, wait: TaskWait) -> Outcome {
    let task = match submitted {
        Submitted::Task(task) => task,
        Submitted::WouldBe(message) => {
            pvc.done(message);
            return Ok(());
        }
    };
    if !wait.is_wanted() {
        if pvc.done_as_json(&task) {
            return Ok(());
        }
        pvc.out.line(format!("Task ID: {} assigned to node {}", task.task_id, task.run_on));
        return Ok(());
    }
    // Whoever wants it quiet and waits is told of the end alone.
    if pvc.answers == Format::Sentence && pvc.chatty() {
        let TaskRef { task_id, task_name, run_on } = &task;
        pvc.out.line(format!("Task ID: {task_id} ({task_name}) assigned to node {run_on}"));
        pvc.out.line("");
    }
    follow(pvc, &task.task_id)
}

/// Follows a task to its end, with its progress on standard error, and says how it ended.
pub fn follow(pvc: &mut Pvc, id: &str) -> Outcome {
    let end = end_of(pvc, id)?;
    if !pvc.done_as_json(&end) && end.is_success() {
        pvc.out.line(format!("{}: {}", end.state, end.status));
    }
    check(id, &end)
}

/// Fails if the task did.
pub fn check(id: &str, end: &TaskStatus) -> Outcome {
    if end.is_success() {
        return Ok(());
    }
    let failure = Failure::failed(format!("task `{id}` ended with {}: {}", end.state, end.status));
    Err(Failure { hint: end.hint.clone(), ..failure }.once_a_success())
}

/// Follows a task to its end, with its progress on standard error.
pub fn end_of(pvc: &mut Pvc, id: &str) -> Result<TaskStatus, Failure> {
    pvc.out.flush();
    let mut progress = Progress::new(pvc.chatty());
    interrupt::watch();
    let client = pvc.client()?;
    let end = watch(client, id, &mut progress)?;
    progress.end();
    end.ok_or_else(|| {
        Failure::interrupted("no longer waiting; the task goes on")
            .hint(format!("`pvc cluster task {id}` waits again"))
    })
}

/// Looks until the task has ended, or until Ctrl-C: then there is no end to return.
fn watch(
    client: &Client,
    id: &str,
    progress: &mut Progress,
) -> Result<Option<TaskStatus>, Failure> {
    let mut pause = FIRST_PAUSE;
    let mut last_answer = Instant::now();
    while !interrupt::happened() {
        match client.read(GetTasksTaskId, [id], &Nothing).and_then(|task| task.read()) {
            Ok(task) if task.is_finished() => return Ok(Some(task)),
            Ok(task) => {
                last_answer = Instant::now();
                progress.show(&task);
            }
            Err(error) if may_pass(error.kind()) && last_answer.elapsed() < LONGEST_SILENCE => {}
            Err(error) => {
                return Err(Failure::from(error).context(format!("cannot follow task `{id}`")));
            }
        }
        interrupt::pause(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    Ok(None)
}

/// Whether a failure may be gone at the next look: the primary node moves, a server restarts.
fn may_pass(kind: Kind) -> bool {
    matches!(kind, Kind::Unreachable | Kind::Server | Kind::BadAnswer)
}

/// Shows progress on standard error: a bar on a terminal, a line per step anywhere else.
struct Progress {
    shown: bool,
    terminal: bool,
    last: String,
    waited: bool,
}

impl Progress {
    fn new(shown: bool) -> Self {
        Self {
            shown,
            terminal: std::io::stderr().is_terminal(),
            last: String::new(),
            waited: false,
        }
    }

    fn show(&mut self, task: &TaskStatus) {
        if !self.shown {
            return;
        }
        if task.state == "PENDING" {
            let text = if self.waited { "." } else { "Waiting for task to start." };
            if self.terminal || !self.waited {
                self.print(text);
            }
            self.waited = true;
            return;
        }
        let line = if self.terminal { bar(task) } else { step(task) };
        if line != self.last {
            self.end_waiting();
            if self.terminal {
                let blank = self.last.chars().count().saturating_sub(line.chars().count());
                self.print(&format!("\r{line}{:blank$}", ""));
            } else {
                self.print(&format!("{line}\n"));
            }
            self.last = line;
        }
    }

    fn end_waiting(&mut self) {
        if std::mem::take(&mut self.waited) {
            self.print("\n");
        }
    }

    /// Leaves the cursor at the beginning of a line.
    fn end(&mut self) {
        if self.terminal && !self.last.is_empty() {
            self.print("\n");
        }
        self.end_waiting();
    }

    fn print(&self, text: &str) {
        use std::io::Write;
        if self.shown {
            let mut stderr = std::io::stderr();
            let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
        }
    }
}

/// `[########------------]  40%  text`, cut to the terminal.
fn bar(task: &TaskStatus) -> String {
    let total = task.total.max(1);
    let done = task.current.clamp(0, total);
    let filled = BAR * done / total;
    let cells: String = (0..BAR).map(|cell| if cell < filled { '#' } else { '-' }).collect();
    let line = format!("[{cells}] {:3}%  {}", 100 * done / total, task.status);
    line.chars().take(crate::output::width()).collect()
}

fn step(task: &TaskStatus) -> String {
    format!("[{}/{}] {}", task.current, task.total, task.status)
}

/// The failure that a VM's recorded trouble amounts to.
pub fn guest_failed(vm: &str, reason: &str) -> Failure {
    let reason = if reason.is_empty() { "no reason is recorded" } else { reason };
    Failure::new(Exit::Failed, format!("VM `{vm}` failed: {reason}"))
        .hint(format!("`pvc vm log {vm}` shows its console, `pvc node log` what its node did"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(current: i64, total: i64) -> TaskStatus {
        let (state, status) = ("RUNNING".to_owned(), "copying".to_owned());
        TaskStatus { state, current, total, status, hint: None }
    }

    #[test]
    fn the_bar_has_twenty_cells_and_survives_odd_figures() {
        assert_eq!(bar(&task(2, 4)), "[##########----------]  50%  copying");
        assert_eq!(bar(&task(9, 4)), "[####################] 100%  copying");
        assert_eq!(bar(&task(1, 0)), "[####################] 100%  copying");
    }

    #[test]
    fn without_a_terminal_a_step_is_a_line() {
        assert_eq!(step(&task(2, 4)), "[2/4] copying");
    }
}
