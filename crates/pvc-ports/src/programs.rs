//! Programs of this machine that run on and on, one by one. What is to run is decided above
//! (`pvc-supervisor`).

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

/// A program to be started. Arguments are a vector: nothing is ever parsed by a shell.
#[derive(Clone, PartialEq, Eq)]
pub struct Program {
    /// Name in logs: `dnsmasq-1001`.
    pub name: String,
    /// The path of its executable file.
    pub program: String,
    pub args: Vec<String>,
    /// Its environment, to which the port adds `PATH` and its own mark, and nothing of the
    /// daemon's.
    pub env: Vec<(String, String)>,
}

/// Variables are named without their values, which may be secret, as in
/// [`Command`](crate::Command).
impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Program { name, program, args, env } = self;
        let names: Vec<&str> = env.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Program")
            .field("name", name)
            .field("program", program)
            .field("args", args)
            .field("env", &names)
            .finish()
    }
}

/// End of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramEnd {
    Exited(i32),
    /// The number of the signal.
    Killed(i32),
}

impl fmt::Display for ProgramEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProgramEnd::Exited(status) => write!(f, "it exited with status {status}"),
            ProgramEnd::Killed(signal) => write!(f, "signal {signal} ended it"),
        }
    }
}

/// Signal to a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramSignal {
    Hangup,
    Interrupt,
    Terminate,
    User1,
    User2,
}

#[derive(Debug, thiserror::Error)]
pub enum ProgramsError {
    #[error("`{program}` is not installed")]
    Missing { program: String },
    #[error("`{program}` could not be started")]
    Failed {
        program: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the processes of this machine cannot be listed")]
    Unlisted {
        #[source]
        source: std::io::Error,
    },
    /// Processes that do not die, such as those that wait for a dead disk.
    #[error("{count} processes of `{name}` are still there after they were killed")]
    Immortal { name: String, count: usize },
}

/// The longest line that a program's output is read in, in bytes. What is longer is cut.
pub const MOST_LINE_BYTES: usize = 4096;

/// Starts programs of this machine that run on and on.
///
/// They belong to the daemon: their output goes to it, and none is adopted by the next one. A
/// daemon that is killed leaves them behind, and the next one [ends](Programs::end_left_over) them
/// before it starts its own.
#[async_trait]
pub trait Programs: Send + Sync {
    /// Starts the program, in a process group of its own, in the directory `/`, with nothing to
    /// read.
    ///
    /// # Cancellation
    /// Dropping the future ends what was started.
    async fn start(&self, program: &Program) -> Result<Arc<dyn RunningProgram>, ProgramsError>;

    /// Kills every process that programs of a daemon of this kind have started which is no more,
    /// and returns how many they were. What daemons that are alive have started is left alone.
    ///
    /// # Errors
    /// [`Immortal`](ProgramsError::Immortal) if some are still there after some seconds.
    async fn end_left_over(&self) -> Result<usize, ProgramsError>;
}

/// A program that was started. Dropping the last handle of it kills its process group.
#[async_trait]
pub trait RunningProgram: Send + Sync {
    /// The number of its first process.
    fn pid(&self) -> u32;

    /// Returns when its first process has ended, and how, to whoever asks and as often as they do.
    ///
    /// # Cancellation
    /// Dropping the future is harmless.
    async fn ended(&self) -> ProgramEnd;

    /// The next line that it writes, to either output, without its end and with replacements for
    /// what is no text; `None` when there will be no more. Each line is given once. A program is
    /// never held up by lines that nobody takes: they are left out, and a line says how many.
    ///
    /// # Cancellation
    /// Dropping the future loses no line.
    async fn line(&self) -> Option<String>;

    /// Signals its first process. One that has ended hears nothing, which is no error.
    fn signal(&self, signal: ProgramSignal);

    /// Kills every process that it has started, also those that left its process group, and
    /// returns when none is left.
    ///
    /// # Errors
    /// [`Immortal`](ProgramsError::Immortal) if some are still there after some seconds.
    async fn kill(&self) -> Result<(), ProgramsError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_program_shows_no_values_of_its_variables() {
        let program = Program {
            name: "pdns".to_owned(),
            program: "/usr/sbin/pdns_server".to_owned(),
            args: vec!["--daemon=no".to_owned()],
            env: vec![("PGPASSWORD".to_owned(), "hunter2".to_owned())],
        };
        let shown = format!("{program:?} {program:#?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("PGPASSWORD") && shown.contains("--daemon=no"), "{shown}");
    }
}
