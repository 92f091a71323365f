//! Reasons why a call did not succeed.

use std::time::Duration;

/// Kind of failure of an [`Error`]; a command line turns it into an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nobody answered.
    Unreachable,
    /// The server does not know the key.
    Unauthorised,
    /// The request makes no sense, or not now.
    Refused,
    NotFound,
    /// The server is of a release that cannot do this yet.
    NotYet,
    /// The server failed.
    Server,
    /// The answer could not be understood.
    BadAnswer,
    /// The stated time has passed.
    TimedOut,
}

/// Reason why a call did not succeed. Displays as one sentence; the cause follows by itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot connect to `{base}`")]
    Unreachable {
        base: String,
        /// Advice about what to do, where more is known than the general.
        advice: Option<String>,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the connection to `{base}` was lost before the answer came")]
    Lost {
        base: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
        /// Whether the request would have changed something.
        changing: bool,
    },
    #[error("`{base}` accepts connections, but has not answered within {} s", after.as_secs_f64())]
    Silent { base: String, after: Duration },
    #[error("the server at `{base}` speaks {spoken}, and was spoken to in {used}")]
    Protocol {
        base: String,
        spoken: &'static str,
        used: &'static str,
        /// The option of `pvc connection add` that mends it.
        advice: &'static str,
    },
    #[error("{message}")]
    Unauthorised { message: String, hint: Option<String> },
    #[error("{message}")]
    Refused { status: u16, message: String, hint: Option<String> },
    #[error("{message}")]
    NotFound { message: String, hint: Option<String> },
    #[error("{message}")]
    NotYet { message: String, hint: Option<String> },
    #[error("the server failed with status {status}: {message}")]
    Server { status: u16, message: String, hint: Option<String> },
    #[error("the server's answer {what}")]
    BadAnswer {
        what: String,
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    #[error("no answer within {} s", after.as_secs())]
    TimedOut { after: Duration },
}

impl Error {
    /// The server does not know `dry_run`.
    pub fn too_old_to_tell() -> Self {
        let message = "the server is too old to say what it would do".to_owned();
        Error::NotYet { message, hint: Some("upgrade its API".to_owned()) }
    }

    pub fn kind(&self) -> Kind {
        match self {
            Error::Unreachable { .. }
            | Error::Lost { .. }
            | Error::Silent { .. }
            | Error::Protocol { .. } => Kind::Unreachable,
            Error::Unauthorised { .. } => Kind::Unauthorised,
            Error::Refused { .. } => Kind::Refused,
            Error::NotFound { .. } => Kind::NotFound,
            Error::NotYet { .. } => Kind::NotYet,
            Error::Server { .. } => Kind::Server,
            Error::BadAnswer { .. } => Kind::BadAnswer,
            Error::TimedOut { .. } => Kind::TimedOut,
        }
    }

    /// Whether a read that failed so may succeed when it is repeated at once.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Error::Unreachable { .. } | Error::Lost { .. })
    }

    /// Advice about what to do, if that can be said.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Unreachable { advice, .. } => Some(advice.clone().unwrap_or_else(|| {
                "is the API daemon running, and are address, port and scheme right? \
                 `pvc connection list` shows them; during a change of the primary node wait some \
                 seconds"
                    .to_owned()
            })),
            Error::Lost { changing: false, .. } => None,
            Error::Silent { .. } => Some(
                "is that the port of the API? `pvc --timeout 1m …` waits longer; on that machine \
                 `journalctl -u pvcapid` \
                 tells more"
                    .to_owned(),
            ),
            Error::Protocol { advice, .. } => Some(format!(
                "`pvc connection add` stores it anew with {advice} and `--force`; for the \
                 connection `local` look at \
                 `api.ssl.enabled` of its configuration"
            )),
            Error::Lost { .. } => Some(
                "the request may have been carried out; look at the present state before repeating \
                 it"
                    .to_owned(),
            ),
            Error::Unauthorised { hint, .. } => Some(hint.clone().unwrap_or_else(|| {
                "give a key with `pvc connection add … --api-key`, or set `PVC_API_KEY`".to_owned()
            })),
            Error::Refused { hint, .. }
            | Error::NotFound { hint, .. }
            | Error::NotYet { hint, .. } => hint.clone(),
            Error::Server { hint, .. } => Some(hint.clone().unwrap_or_else(|| {
                "the daemon's log says more: `pvc node log` or `journalctl -u pvcapid`".to_owned()
            })),
            Error::BadAnswer { .. } => {
                Some("is that a PVC API? Check address and port of the connection".to_owned())
            }
            Error::TimedOut { .. } => None,
        }
    }
}
