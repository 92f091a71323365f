//! Running programs, with a deadline each.

use std::time::Duration;

use async_trait::async_trait;

/// What to run. Arguments are a vector: nothing is ever parsed by a shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    pub program: String,
    pub args: Vec<String>,
    /// Variables added to the environment: the place for secrets, which arguments are not.
    pub env: Vec<(String, String)>,
    pub stdin: Option<Vec<u8>>,
    /// After this long the whole process group is killed and [`ExecError::TimedOut`] is returned.
    pub deadline: Duration,
}

/// What a program said, cut at 1 MiB each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The exit status; `None` if a signal ended the program.
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error("`{program}` is not installed")]
    Missing { program: String },
    #[error("`{program}` did not end within {} s", deadline.as_secs_f32())]
    TimedOut { program: String, deadline: Duration },
    #[error("`{program}` could not be run")]
    Failed {
        program: String,
        #[source]
        source: std::io::Error,
    },
}

/// Runs programs of this machine.
#[async_trait]
pub trait Exec: Send + Sync {
    /// Runs `command` to its end. A non-zero exit status is an [`Output`], not an error.
    ///
    /// # Cancellation
    /// Dropping the future kills the process group.
    async fn run(&self, command: Command) -> Result<Output, ExecError>;
}
