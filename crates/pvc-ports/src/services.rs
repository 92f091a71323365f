//! The service manager of this machine.

use std::time::Duration;

use async_trait::async_trait;

/// State of a unit as the service manager says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnitState {
    /// The unit runs; a unit of several programs may still be bringing them up.
    Active,
    /// The unit is on its way to run, or to start again.
    Starting,
    Stopping,
    Inactive,
    Failed,
    /// The service manager knows no such unit.
    Missing,
}

#[derive(Debug, thiserror::Error)]
pub enum ServicesError {
    #[error("there is no unit `{unit}`")]
    Missing { unit: String },
    #[error("the service manager did not {what} `{unit}`: {why}")]
    Refused {
        /// `start`, `stop`, `enable` …
        what: &'static str,
        unit: String,
        why: String,
    },
    #[error("the service manager did not answer within {} s", deadline.as_secs_f32())]
    TimedOut { deadline: Duration },
    /// The service manager does not exist, or cannot be asked.
    #[error("the service manager cannot be reached: {why}")]
    Unreachable { why: String },
}

impl ServicesError {
    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        match self {
            ServicesError::Missing { .. } => Some("is its package installed?".to_owned()),
            ServicesError::Refused { unit, .. } => Some(format!("see `systemctl status {unit}`")),
            ServicesError::TimedOut { .. } | ServicesError::Unreachable { .. } => None,
        }
    }
}

/// Services of this machine, by the full names of their units (`zookeeper.service`).
///
/// Starting and stopping only begin: a unit that hangs while it starts holds up nobody. Whoever
/// wants to know how it went asks for the [`state`](Services::state). Every call may be repeated,
/// and returns within seconds.
#[async_trait]
pub trait Services: Send + Sync {
    async fn state(&self, unit: &str) -> Result<UnitState, ServicesError>;

    /// Begins to start it. One that runs is left alone.
    async fn start(&self, unit: &str) -> Result<(), ServicesError>;
    /// Begins to stop it.
    async fn stop(&self, unit: &str) -> Result<(), ServicesError>;
    /// Begins to stop and start it; one that does not run is only started.
    async fn restart(&self, unit: &str) -> Result<(), ServicesError>;

    /// Whether it is started when the machine boots, from the next boot on; it is neither started
    /// nor stopped now.
    async fn set_enabled(&self, unit: &str, enabled: bool) -> Result<(), ServicesError>;
}
