//! Running programs, with a deadline each.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

/// A program to run. Arguments are a vector: nothing is ever parsed by a shell.
#[derive(Clone, PartialEq, Eq)]
pub struct Command {
    pub program: String,
    pub args: Vec<String>,
    /// Variables added to the environment: the place for secrets, which arguments are not.
    pub env: Vec<(String, String)>,
    pub stdin: Option<Vec<u8>>,
    /// Time after which the whole process group is killed and [`ExecError::TimedOut`] is returned.
    pub deadline: Duration,
}

/// Shows what may be seen of a command by everybody on the machine. Variables are named without
/// their values, and of the input its length is told: both may be secret, and what is printed with
/// `{:?}` ends in logs.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Command { program, args, env, stdin, deadline } = self;
        let names: Vec<&str> = env.iter().map(|(name, _)| name.as_str()).collect();
        let input_bytes = stdin.as_ref().map(Vec::len);
        f.debug_struct("Command")
            .field("program", program)
            .field("args", args)
            .field("env", &names)
            .field("stdin_bytes", &input_bytes)
            .field("deadline", deadline)
            .finish()
    }
}

/// Output of a program, cut at 1 MiB each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The exit status; `None` if a signal ended the program.
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Output {
    /// Whether the program exited with status 0.
    ///
    /// # Errors
    /// The first line that it wrote otherwise, of its errors or else of its output.
    pub fn success(&self) -> Result<(), String> {
        if self.code == Some(0) {
            return Ok(());
        }
        let first = |said: &[u8]| {
            let said = String::from_utf8_lossy(said);
            said.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
        };
        let line = first(&self.stderr).or_else(|| first(&self.stdout));
        Err(line.unwrap_or_else(|| "it says nothing".to_owned()))
    }
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
    /// Dropping the future kills the process group. When this process is killed, the program is,
    /// too; what that has started itself may go on.
    async fn run(&self, command: Command) -> Result<Output, ExecError>;

    /// Runs `command` as [`run`](Exec::run) does, and hands over what it writes to its standard
    /// error, piece by piece: at the latest when it has ended.
    async fn run_with_stderr(
        &self,
        command: Command,
        on_stderr: &(dyn for<'a> Fn(&'a [u8]) + Send + Sync),
    ) -> Result<Output, ExecError> {
        let output = self.run(command).await?;
        on_stderr(&output.stderr);
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_command_shows_neither_its_variables_nor_its_input() {
        let command = Command {
            program: "ipmitool".to_owned(),
            args: vec!["-E".to_owned()],
            env: vec![("IPMI_PASSWORD".to_owned(), "hunter2".to_owned())],
            stdin: Some(b"swordfish".to_vec()),
            deadline: Duration::from_secs(1),
        };
        let shown = format!("{command:?} {command:#?}");
        assert!(!shown.contains("hunter2") && !shown.contains("swordfish"), "{shown}");
        assert!(shown.contains("IPMI_PASSWORD") && shown.contains("Some(9)"), "{shown}");
    }
}
