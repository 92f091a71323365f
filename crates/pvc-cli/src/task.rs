//! Following a task to its end.

use pvc_api_types::operations::task::{GetTasksTaskId, GetTasksTaskIdLog};
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
use crate::output::harmless;

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
    finish_showing(pvc, submitted, wait, false)
}

/// Same as [`finish`], and shows the lines of the task's log as they come.
pub fn finish_with_log(pvc: &mut Pvc, submitted: Submitted, wait: TaskWait) -> Outcome {
    finish_showing(pvc, submitted, wait, true)
}

fn finish_showing(pvc: &mut Pvc, submitted: Submitted, wait: TaskWait, shows_log: bool) -> Outcome {
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
    follow(pvc, &task.task_id, shows_log)
}

/// Follows a task to its end, with its progress on standard error, and says how it ended.
fn follow(pvc: &mut Pvc, id: &str, shows_log: bool) -> Outcome {
    let end = end_showing(pvc, id, shows_log)?;
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
    end_showing(pvc, id, false)
}

fn end_showing(pvc: &mut Pvc, id: &str, shows_log: bool) -> Result<TaskStatus, Failure> {
    pvc.out.flush();
    let mut progress = Progress::new(pvc.chatty());
    progress.log = (shows_log && pvc.chatty()).then(Vec::new);
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
            Ok(task) if task.is_finished() => {
                show_log(client, id, progress);
                return Ok(Some(task));
            }
            Ok(task) => {
                last_answer = Instant::now();
                show_log(client, id, progress);
                progress.show(&task);
            }
            Err(error) if may_pass(error.kind()) && last_answer.elapsed() < LONGEST_SILENCE => {}
            Err(error) => {
                return Err(Failure::from(error).context(format!("cannot follow task `{id}`")));
            }
        }
        interrupt::pause(pause);
        pause = longer(pause);
    }
    Ok(None)
}

/// The pause after this one. So the end of a task is seen late by a quarter of the task's time and
/// [`FIRST_PAUSE`] at most, and never by more than [`LONGEST_PAUSE`].
fn longer(pause: Duration) -> Duration {
    (pause * 5 / 4).min(LONGEST_PAUSE)
}

/// Shows the lines of the log that have come since the last look; none if they cannot be had now.
fn show_log(client: &Client, id: &str, progress: &mut Progress) {
    if progress.log.is_none() {
        return;
    }
    if let Ok(task) = client.read(GetTasksTaskIdLog, [id], &Nothing).and_then(|task| task.read()) {
        progress.show_log(task.log);
    }
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
    /// The lines of the task's log at the last look, if they are shown.
    log: Option<Vec<String>>,
}

impl Progress {
    fn new(shown: bool) -> Self {
        Self {
            shown,
            terminal: std::io::stderr().is_terminal(),
            last: String::new(),
            waited: false,
            log: None,
        }
    }

    fn show_log(&mut self, now: Vec<String>) {
        let Some(before) = self.log.replace(now.clone()) else { return };
        let new = new_lines(&before, &now);
        if new.is_empty() {
            return;
        }
        self.end_waiting();
        if self.terminal && !self.last.is_empty() {
            let blank = self.last.chars().count();
            self.print(&format!("\r{:blank$}\r", ""));
            self.last.clear();
        }
        for line in new {
            self.print(&format!("{}\n", harmless(line, &['\t'])));
        }
    }

    fn show(&mut self, task: &TaskStatus) {
        // Without a terminal the log says what its steps do.
        if !self.shown || (self.log.is_some() && !self.terminal && task.state != "PENDING") {
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
        let line = harmless(&if self.terminal { bar(task) } else { step(task) }, &[]);
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

/// The lines of a log that were not there before; its oldest are gone when there are too many.
fn new_lines<'a>(before: &[String], now: &'a [String]) -> &'a [String] {
    let is_kept = |gone: &usize| now.starts_with(&before[*gone..]);
    let gone = (0..=before.len()).find(is_kept).unwrap_or(before.len());
    &now[before.len() - gone..]
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
    fn the_end_of_a_task_is_seen_late_by_a_quarter_of_its_time_and_the_first_pause_at_most() {
        let (mut elapsed, mut pause) = (Duration::ZERO, FIRST_PAUSE);
        for _ in 0..20 {
            assert!(pause <= FIRST_PAUSE + elapsed / 4, "{pause:?} after {elapsed:?}");
            assert!(pause <= LONGEST_PAUSE);
            elapsed += pause;
            pause = longer(pause);
        }
        assert_eq!(pause, LONGEST_PAUSE, "of a long task the API is asked twice a second");
    }

    #[test]
    fn the_bar_has_twenty_cells_and_survives_odd_figures() {
        assert_eq!(bar(&task(2, 4)), "[##########----------]  50%  copying");
        assert_eq!(bar(&task(9, 4)), "[####################] 100%  copying");
        assert_eq!(bar(&task(1, 0)), "[####################] 100%  copying");
    }

    #[test]
    fn of_a_log_whose_oldest_lines_go_only_the_new_ones_are_shown() {
        let lines = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
        for (before, now, new) in [
            ("", "ab", "ab"),
            ("ab", "ab", ""),
            ("ab", "abc", "c"),
            ("abc", "bcd", "d"),
            ("a", "xy", "xy"),
        ] {
            assert_eq!(new_lines(&lines(before), &lines(now)), lines(new), "{before} {now}");
        }
    }

    #[test]
    fn without_a_terminal_a_step_is_a_line() {
        assert_eq!(step(&task(2, 4)), "[2/4] copying");
    }
}
