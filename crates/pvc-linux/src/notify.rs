use std::time::Duration;

use sd_notify::NotifyState;

/// What the daemon tells the service manager that started it. Without one, nothing is told to nobody.
///
/// A message that cannot be delivered is dropped: the daemon's work does not depend on being heard.
#[derive(Debug, Clone, Copy, Default)]
pub struct Notifier;

impl Notifier {
    /// The start-up is complete.
    pub fn ready(self) {
        self.send(NotifyState::Ready);
    }

    /// The shutdown has begun.
    pub fn stopping(self) {
        self.send(NotifyState::Stopping);
    }

    /// One line for `systemctl status`.
    pub fn status(self, line: &str) {
        self.send(NotifyState::Status(line));
    }

    /// The daemon is alive and does its work.
    pub fn alive(self) {
        self.send(NotifyState::Watchdog);
    }

    /// Asks for this much more time to start or to stop.
    pub fn more_time(self, time: Duration) {
        let micros = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        self.send(NotifyState::ExtendTimeoutUsec(micros));
    }

    /// How often [`alive`](Notifier::alive) must be called at least, if the service manager watches.
    pub fn watchdog_interval(self) -> Option<Duration> {
        sd_notify::watchdog_enabled()
    }

    fn send(self, state: NotifyState<'_>) {
        if let Err(error) = sd_notify::notify(&[state]) {
            tracing::debug!(%error, "the service manager could not be told");
        }
    }
}
