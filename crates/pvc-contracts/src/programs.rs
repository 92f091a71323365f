//! Contract of every [`Programs`], with programs that do nothing.

#![allow(clippy::disallowed_methods, reason = "real adapters work in real time")]

use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Duration;

use pvc_ports::{
    MOST_LINE_BYTES, Program, ProgramEnd, ProgramSignal, Programs, ProgramsError, RunningProgram,
};
use tokio::time::{sleep, timeout};

/// Environment that the suite needs from whoever runs it.
pub struct ProgramsFixture {
    pub programs: Arc<dyn Programs>,
    /// Writes `ready`, runs until it is ended, and writes `reloaded` each time it is hung up.
    pub steady: Program,
    /// Writes `one` and then `two`, and exits with status 3.
    pub failing: Program,
    /// Writes `ready`, and goes on when it is terminated.
    pub stubborn: Program,
    /// Starts a process that leaves its process group, writes `ready`, and goes on.
    pub forking: Program,
    /// Starts a process as `forking` does, but exits with status 0 and leaves it behind.
    pub leaving: Program,
    /// Writes 10,000 lines of 10,000 bytes and exits with status 0.
    pub chatty: Program,
    /// Its file does not exist.
    pub absent: Program,
    /// Number of processes of all these programs.
    pub processes: Box<dyn Fn() -> usize + Send + Sync>,
}

/// Time that anything may take.
const LONG: Duration = Duration::from_secs(60);

/// Time that an event which must not happen is given to happen.
const SHORT: Duration = Duration::from_millis(300);

/// Runs the whole suite.
///
/// # Panics
/// When the programs break the contract.
pub async fn programs_contract(fixture: ProgramsFixture) {
    fixture.a_program_runs_until_it_is_signalled().await;
    fixture.what_a_program_writes_comes_with_its_end().await;
    fixture.a_program_that_does_not_listen_is_killed().await;
    fixture.a_killed_program_leaves_nothing_behind().await;
    fixture.a_dropped_program_is_killed().await;
    fixture.a_program_is_not_held_up_by_what_nobody_reads().await;
    fixture.a_program_that_is_missing_is_named().await;
    fixture.what_a_living_daemon_has_started_is_not_left_over().await;
}

type Started = Arc<dyn RunningProgram>;

impl ProgramsFixture {
    async fn start(&self, program: &Program) -> Started {
        self.programs.start(program).await.expect("it can be started")
    }

    /// Starts one of those that say so when they are ready.
    async fn ready(&self, program: &Program) -> Started {
        let running = self.start(program).await;
        assert_eq!(line(&running).await.as_deref(), Some("ready"));
        running
    }

    async fn a_program_runs_until_it_is_signalled(&self) {
        let running = self.ready(&self.steady).await;
        assert!(running.pid() > 0);
        for _ in 0..2 {
            running.signal(ProgramSignal::Hangup);
            assert_eq!(line(&running).await.as_deref(), Some("reloaded"));
        }
        assert!(timeout(SHORT, running.ended()).await.is_err(), "nobody has ended it");
        running.signal(ProgramSignal::Terminate);
        let (one, other) = tokio::join!(ended(&running), ended(&running));
        assert_eq!((one, other), (ProgramEnd::Killed(15), ProgramEnd::Killed(15)));
        running.signal(ProgramSignal::Hangup);
        assert_eq!(ended(&running).await, ProgramEnd::Killed(15), "it stays so");
        running.kill().await.expect("there is nothing to kill");
        assert_eq!(line(&running).await, None);
    }

    async fn what_a_program_writes_comes_with_its_end(&self) {
        let running = self.start(&self.failing).await;
        assert_eq!(ended(&running).await, ProgramEnd::Exited(3));
        let mut lines = vec![line(&running).await, line(&running).await];
        // One of them went to the other output.
        lines.sort();
        assert_eq!(lines, [Some("one".to_owned()), Some("two".to_owned())]);
        assert_eq!(line(&running).await, None);
    }

    async fn a_program_that_does_not_listen_is_killed(&self) {
        let running = self.ready(&self.stubborn).await;
        running.signal(ProgramSignal::Terminate);
        assert!(timeout(SHORT, running.ended()).await.is_err(), "it does not listen");
        running.kill().await.expect("it can be killed");
        assert_eq!(ended(&running).await, ProgramEnd::Killed(9));
    }

    async fn a_killed_program_leaves_nothing_behind(&self) {
        let running = self.ready(&self.forking).await;
        self.until_there_are(2..).await;
        running.kill().await.expect("they can be killed");
        assert_eq!((self.processes)(), 0);
        let running = self.ready(&self.leaving).await;
        assert_eq!(ended(&running).await, ProgramEnd::Exited(0));
        // A process that begins another program cannot be recognized for a moment.
        self.until_there_are(1..).await;
        running.kill().await.expect("it can be killed");
        assert_eq!((self.processes)(), 0);
    }

    async fn a_dropped_program_is_killed(&self) {
        let running = self.ready(&self.steady).await;
        drop(running.clone());
        assert!(timeout(SHORT, running.ended()).await.is_err(), "somebody still has it");
        drop(running);
        self.until_there_are(..1).await;
    }

    async fn until_there_are(&self, counts: impl RangeBounds<usize>) {
        let there = async {
            while !counts.contains(&(self.processes)()) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LONG, there).await.expect("there come to be so many");
    }

    async fn a_program_is_not_held_up_by_what_nobody_reads(&self) {
        let running = self.start(&self.chatty).await;
        assert_eq!(ended(&running).await, ProgramEnd::Exited(0));
        let (mut count, mut left_out) = (0, 0);
        while let Some(line) = line(&running).await {
            assert!(line.len() <= MOST_LINE_BYTES, "{} bytes", line.len());
            count += 1;
            left_out += usize::from(line.ends_with("lines were left out)"));
        }
        assert!(count < 10_000 && left_out > 0, "{count} lines, {left_out} words about others");
    }

    async fn a_program_that_is_missing_is_named(&self) {
        let Err(error) = self.programs.start(&self.absent).await else {
            panic!("there is no such program");
        };
        let named = &self.absent.program;
        let is_named = matches!(&error, ProgramsError::Missing { program } if program == named);
        assert!(is_named, "{error}");
    }

    async fn what_a_living_daemon_has_started_is_not_left_over(&self) {
        let running = self.ready(&self.steady).await;
        assert_eq!(self.programs.end_left_over().await.expect("they can be looked at"), 0);
        assert!(timeout(SHORT, running.ended()).await.is_err(), "it is this daemon's");
        running.kill().await.expect("it can be killed");
        assert_eq!((self.processes)(), 0);
    }
}

async fn ended(running: &Started) -> ProgramEnd {
    timeout(LONG, running.ended()).await.expect("it ends")
}

async fn line(running: &Started) -> Option<String> {
    timeout(LONG, running.line()).await.expect("it writes a line or ends")
}
