//! The power switch of a server, as its baseboard management controller (BMC) offers it.

use async_trait::async_trait;

/// Address and login of a BMC. `Debug` keeps the password to itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Bmc {
    /// Host name or address.
    pub host: String,
    pub user: String,
    pub password: String,
}

impl std::fmt::Debug for Bmc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bmc")
            .field("host", &self.host)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Reason for which a BMC did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum PowerError {
    /// The BMC did not answer, refused the login, or answered what cannot be understood.
    #[error("the BMC at `{host}` cannot be used: {why}")]
    Unusable { host: String, why: String },
    /// The BMC accepted the command, and nothing came of it.
    #[error("the BMC at `{host}` was told to switch the power {}, but says that it is \
             {}", on_off(*wanted), on_off(!*wanted))]
    Ignored { host: String, wanted: bool },
}

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Switches servers off and on. Every call ends within a bounded time, also with a BMC that hangs.
#[async_trait]
pub trait Power: Send + Sync {
    /// Whether the power is on, as the BMC says now.
    async fn is_on(&self, bmc: &Bmc) -> Result<bool, PowerError>;

    /// Cuts the power at once, without asking the operating system, and returns when the BMC says
    /// that it is off.
    ///
    /// # Errors
    /// [`PowerError::Ignored`] if it stays on. Whatever the error, the power may be off by then.
    async fn cut(&self, bmc: &Bmc) -> Result<(), PowerError>;

    /// Switches the power on and returns when the BMC says that it is; the server may take minutes
    /// to start.
    ///
    /// # Errors
    /// [`PowerError::Ignored`] if it stays off. Whatever the error, the power may be on by then, or
    /// later.
    async fn switch_on(&self, bmc: &Bmc) -> Result<(), PowerError>;
}
