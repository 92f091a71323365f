//! Scripts of the provisioner, each in a process of its own. The messages are those of
//! `docs/dev/provisioner-scripts.md`.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};

/// The most bytes of a message, in either direction.
pub const MOST_MESSAGE_BYTES: usize = 1 << 20;

/// The most bytes of a line that a script writes or logs; what is longer is cut.
pub const MOST_SCRIPT_LINE_BYTES: usize = 4096;

/// A script to be run.
#[derive(Debug, Clone, PartialEq)]
pub struct ScriptJob {
    /// Name of its directory and its control group: letters, digits and hyphens.
    pub name: String,
    /// The text of the script.
    pub script: String,
    /// The first message to it, but for the paths of the script and of its root.
    pub facts: Map<String, Value>,
    /// Memory that all its processes may use together, where this can be limited.
    pub memory_bytes: u64,
}

/// Method of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptPhase {
    Setup,
    Create,
    Prepare,
    Install,
    Cleanup,
}

impl ScriptPhase {
    pub const ALL: [ScriptPhase; 5] =
        [Self::Setup, Self::Create, Self::Prepare, Self::Install, Self::Cleanup];

    /// Name of the method.
    pub fn word(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Create => "create",
            Self::Prepare => "prepare",
            Self::Install => "install",
            Self::Cleanup => "cleanup",
        }
    }
}

/// Message to a script's process.
#[derive(Debug, Clone, PartialEq)]
pub enum ScriptOrder {
    Run(ScriptPhase),
    /// Result of a call.
    Returned(Value),
    /// Reason why a call could not be carried out at all.
    Raised(String),
}

/// Message of a script's process. Nothing in it is to be believed.
#[derive(Debug, Clone, PartialEq)]
pub enum ScriptMessage {
    /// The script is imported.
    Ready,
    Log {
        level: ScriptLevel,
        text: String,
    },
    /// A line that one of its processes wrote to either output.
    Wrote(String),
    /// The method has ended, with what it returned.
    Done(Value),
    Failed(ScriptFailure),
    Call {
        function: String,
        arguments: Map<String, Value>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptLevel {
    Info,
    Warning,
    Error,
}

/// Exception that ended a method, or the import of a script.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScriptFailure {
    /// Name of its class.
    pub class: String,
    pub text: String,
    pub traceback: String,
}

#[derive(Debug, thiserror::Error)]
pub enum ScriptsError {
    #[error("`{program}` is not installed")]
    Missing { program: String },
    #[error("the script's process could not be started")]
    NotStarted {
        #[source]
        source: std::io::Error,
    },
    #[error("the script's process ended by itself: {how}")]
    Ended { how: String },
    #[error("the script's process sent what is no message: {why}")]
    Nonsense { why: String },
    #[error("the script's processes are there {} s after they were killed", .after.as_secs())]
    Immortal { after: Duration },
    #[error("what the script's process had in `{place}` could not be removed")]
    Left {
        place: String,
        #[source]
        source: std::io::Error,
    },
}

/// Runs scripts of the provisioner on this node.
#[async_trait]
pub trait Scripts: Send + Sync {
    /// Starts the process of a script, in namespaces of its own. It ends with this process, however
    /// that ends.
    ///
    /// # Cancellation
    /// Dropping the future ends what was started.
    async fn start(&self, job: &ScriptJob) -> Result<Box<dyn ScriptProcess>, ScriptsError>;

    /// Removes what daemons of this node that are no more have left of their scripts.
    async fn end_left_over(&self) -> Result<(), ScriptsError>;
}

/// Process of a script, with all that it has started. Dropping it kills them.
#[async_trait]
pub trait ScriptProcess: Send + Sync {
    /// Returns the next message.
    ///
    /// # Errors
    /// [`Ended`](ScriptsError::Ended) when there will be none, and
    /// [`Nonsense`](ScriptsError::Nonsense). The process is to be killed then.
    ///
    /// # Cancellation
    /// Dropping the future loses no message.
    async fn next(&mut self) -> Result<ScriptMessage, ScriptsError>;

    /// Sends a message.
    ///
    /// # Errors
    /// [`Ended`](ScriptsError::Ended) if nobody takes it.
    async fn tell(&mut self, order: ScriptOrder) -> Result<(), ScriptsError>;

    /// Names the limits that could not be set, for people.
    fn missing_limits(&self) -> Option<String>;

    /// Kills every process that it has started, and returns when none is left, and nothing of its
    /// mounts and files.
    ///
    /// # Errors
    /// If something is left all the same.
    async fn kill(self: Box<Self>) -> Result<(), ScriptsError>;
}
