use std::sync::Mutex;

use async_trait::async_trait;
use pvc_ports::{Command, Exec, ExecError, Output};

type Script = Box<dyn Fn(&Command) -> Result<Output, ExecError> + Send + Sync>;

/// Answers every command from a script, and remembers what was run.
pub struct ScriptedExec {
    script: Script,
    ran: Mutex<Vec<Command>>,
}

impl ScriptedExec {
    pub fn new(
        script: impl Fn(&Command) -> Result<Output, ExecError> + Send + Sync + 'static,
    ) -> Self {
        ScriptedExec { script: Box::new(script), ran: Mutex::new(Vec::new()) }
    }

    /// A machine on which no program is installed.
    pub fn without_programs() -> Self {
        Self::new(|command| Err(ExecError::Missing { program: command.program.clone() }))
    }

    /// Output of a program that succeeds and prints `stdout`.
    pub fn success(stdout: &str) -> Output {
        Output { code: Some(0), stdout: stdout.as_bytes().to_vec(), stderr: Vec::new() }
    }

    /// Every command so far, in order.
    pub fn ran(&self) -> Vec<Command> {
        self.ran.lock().expect("no test panics while holding it").clone()
    }
}

#[async_trait]
impl Exec for ScriptedExec {
    async fn run(&self, command: Command) -> Result<Output, ExecError> {
        self.ran.lock().expect("no test panics while holding it").push(command.clone());
        (self.script)(&command)
    }
}
