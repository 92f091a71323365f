//! Outcome of a command, and the one place where an error becomes an exit code.

use std::fmt::Write as _;

use pvc_client::Kind;

/// The exit codes, one per kind of outcome. They are listed in `pvc --help` and in the manual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Success = 0,
    /// Refused, failed, or not confirmed.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
    NotFound = 3,
    Unreachable = 4,
    Unauthorised = 5,
    /// The command exists, but not in this release.
    NotYet = 6,
    /// The server failed, or its answer could not be understood.
    Server = 7,
    /// Ctrl-C, as shells number it.
    Interrupted = 130,
}

impl Exit {
    /// The number for the shell. With `compat` (`PVC_COMPAT_EXIT=1`) only what PVC 1.0.3's
    /// client distinguishes: success, failure, usage.
    pub fn code(self, compat: bool) -> u8 {
        match self {
            Exit::Success | Exit::Failed | Exit::Usage => self as u8,
            _ if compat => Exit::Failed as u8,
            _ => self as u8,
        }
    }
}

/// Reason why a command did not succeed: a sentence, what to do about it, and the exit code.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    /// Empty if everything has been said already.
    pub message: String,
    pub hint: Option<String>,
    /// PVC 1.0.3's client calls this a success; `PVC_COMPAT_EXIT=1` still does.
    pub once_a_success: bool,
}

pub type Outcome = Result<(), Failure>;

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), hint: None, once_a_success: false }
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Ends because of a Ctrl-C while the command waited for work that goes on without it.
    pub fn interrupted(message: impl Into<String>) -> Self {
        Self::new(Exit::Interrupted, message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Exit::NotFound, message)
    }

    /// Ends with that code and says nothing.
    pub fn quiet(exit: Exit) -> Self {
        Self::new(exit, "")
    }

    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub fn once_a_success(self) -> Self {
        Self { once_a_success: true, ..self }
    }

    /// Puts what was attempted in front: `cannot read \`x\`: no such file`.
    pub fn context(self, what: impl std::fmt::Display) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    /// The number for the shell.
    pub fn code(&self, compat: bool) -> u8 {
        if compat && self.once_a_success { Exit::Success as u8 } else { self.exit.code(compat) }
    }
}

impl From<pvc_client::Error> for Failure {
    fn from(error: pvc_client::Error) -> Self {
        let exit = match error.kind() {
            Kind::Unreachable => Exit::Unreachable,
            Kind::Unauthorised => Exit::Unauthorised,
            Kind::Refused | Kind::TimedOut => Exit::Failed,
            Kind::NotFound => Exit::NotFound,
            Kind::NotYet => Exit::NotYet,
            Kind::Server | Kind::BadAnswer => Exit::Server,
        };
        Self { hint: error.hint(), ..Self::new(exit, chain(&error)) }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::failed(plain_io(&error))
    }
}

/// An error with its causes on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = match error.downcast_ref() {
            Some(error) => write!(text, ": {}", plain_io(error)),
            None => write!(text, ": {error}"),
        };
        cause = error.source();
    }
    text
}

/// An I/O error in words, without Rust's `(os error 2)`.
pub fn plain_io(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}
