use std::time::Duration;

use sd_notify::NotifyState;

/// Time for which the service manager is to wait for the next word of a start that waits, in
/// microseconds: a minute.
const EXTENSION: u32 = 60_000_000;

/// Messages of the daemon to the service manager that started it. Without one, nothing is sent.
///
/// A message that cannot be delivered is dropped: the daemon's work does not depend on being heard.
#[derive(Debug, Clone, Copy, Default)]
pub struct Notifier;

impl Notifier {
    /// The start-up is complete, and nothing is waited for any more.
    pub fn ready(self) {
        self.send(&[NotifyState::Ready, NotifyState::Status("")]);
    }

    /// The start-up waits for something outside of this machine's power, and says what. It is to be
    /// said again within a minute for as long as that lasts; it then does not count as a start that
    /// takes too long.
    pub fn waiting(self, what: &str) {
        // One line is one variable.
        let what = what.replace('\n', " ");
        self.send(&[NotifyState::Status(&what), NotifyState::ExtendTimeoutUsec(EXTENSION)]);
    }

    /// The shutdown has begun.
    pub fn stopping(self) {
        self.send(&[NotifyState::Stopping]);
    }

    /// The daemon is alive and does its work.
    pub fn alive(self) {
        self.send(&[NotifyState::Watchdog]);
    }

    /// Time between two calls of [`alive`](Notifier::alive), if the service manager watches: two
    /// calls in the time after which it would kill the daemon.
    pub fn watchdog_interval(self) -> Option<Duration> {
        sd_notify::watchdog_enabled().map(|time| time / 2)
    }

    fn send(self, states: &[NotifyState<'_>]) {
        if let Err(error) = sd_notify::notify(states) {
            tracing::debug!(%error, "the service manager could not be notified");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;
    use std::process::Command;

    /// Does what a daemon does, in a process of its own: the socket is named by the environment.
    #[test]
    #[ignore = "run by the test below, with a socket"]
    fn daemon() {
        assert_eq!(Notifier.watchdog_interval(), Some(Duration::from_secs(3)));
        Notifier.waiting("for\nsomebody");
        Notifier.ready();
        Notifier.alive();
        Notifier.stopping();
    }

    #[test]
    fn the_service_manager_hears_of_the_start_the_life_and_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let daemon = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "notify::tests::daemon", "--ignored"])
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", "6000000")
            .env_remove("WATCHDOG_PID")
            .output()
            .unwrap();
        assert!(daemon.status.success(), "{daemon:?}");
        let mut heard = Vec::new();
        for _ in 0..4 {
            let mut buffer = [0; 256];
            let length = socket.recv(&mut buffer).unwrap();
            heard.push(String::from_utf8_lossy(&buffer[..length]).trim().to_owned());
        }
        let waiting = "STATUS=for somebody\nEXTEND_TIMEOUT_USEC=60000000";
        assert_eq!(heard, [waiting, "READY=1\nSTATUS=", "WATCHDOG=1", "STOPPING=1"]);
    }
}
