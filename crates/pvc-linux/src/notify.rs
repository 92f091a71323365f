use std::env;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;

/// Name of the variable that names the socket of the service manager.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Time for which the service manager is to wait for the next word of a start that waits, in
/// microseconds: a minute.
const EXTENSION: u32 = 60_000_000;

/// Messages of the daemon to the service manager that started it. Without one, nothing is sent.
///
/// No call waits for the service manager, which may stand still: the keepalive would stand still
/// with it, and the node be taken for dead. A message that cannot be delivered is dropped, but for
/// [`ready`](Notifier::ready), which goes out when it can.
#[derive(Debug, Clone, Copy, Default)]
pub struct Notifier;

impl Notifier {
    /// The start-up is complete, and nothing is waited for any more.
    pub fn ready(self) {
        let states = [NotifyState::Ready, NotifyState::Status("")];
        let Some(socket) = env::var_os(SOCKET) else { return };
        match send(&socket, &states, Full::Drop) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let wait = move || log(send(&socket, &states, Full::Wait));
                log(thread::Builder::new().spawn(wait).map(drop));
            }
            sent => log(sent),
        }
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

    /// Time between two calls of [`alive`](Notifier::alive), if the service manager watches: four
    /// calls in the time after which it would kill the daemon, of which some may be dropped.
    pub fn watchdog_interval(self) -> Option<Duration> {
        sd_notify::watchdog_enabled().map(|time| time / 4)
    }

    fn send(self, states: &[NotifyState<'_>]) {
        if let Some(socket) = env::var_os(SOCKET) {
            log(send(&socket, states, Full::Drop));
        }
    }
}

/// Fate of a message that there is no room for at present.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Full {
    Drop,
    Wait,
}

/// Sends `states` to the socket that `address` names: a path, or `@` and the name of an abstract
/// one (sd_notify(3)).
fn send(address: &OsStr, states: &[NotifyState<'_>], full: Full) -> io::Result<()> {
    let message: String = states.iter().map(|state| format!("{state}\n")).collect();
    let address = match address.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(full == Full::Drop)?;
    socket.send_to_addr(message.as_bytes(), &address).map(|_| ())
}

fn log(sent: io::Result<()>) {
    if let Err(error) = sent {
        tracing::debug!(%error, "the service manager could not be notified");
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
        assert_eq!(Notifier.watchdog_interval(), Some(Duration::from_millis(1500)));
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
        let mut messages = Vec::new();
        for _ in 0..4 {
            let mut buffer = [0; 256];
            let length = socket.recv(&mut buffer).unwrap();
            messages.push(String::from_utf8_lossy(&buffer[..length]).trim().to_owned());
        }
        let waiting = "STATUS=for somebody\nEXTEND_TIMEOUT_USEC=60000000";
        assert_eq!(messages, [waiting, "READY=1\nSTATUS=", "WATCHDOG=1", "STOPPING=1"]);
    }

    /// Found by a benchmark that did not read what the daemon told it: the node's keepalive stood
    /// still.
    #[test]
    fn a_service_manager_that_stands_still_holds_up_nobody_and_hears_of_the_start_when_it_goes_on()
    {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let full = loop {
            match send(path.as_os_str(), &[NotifyState::Watchdog], Full::Drop) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        let address = path.clone();
        let ready =
            thread::spawn(move || send(address.as_os_str(), &[NotifyState::Ready], Full::Wait));
        let mut buffer = [0; 256];
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        loop {
            let length = socket.recv(&mut buffer).expect("it comes after what was before it");
            if buffer[..length] == *b"READY=1\n" {
                break;
            }
        }
        ready.join().unwrap().unwrap();
    }

    #[test]
    fn a_socket_without_a_path_is_found_by_its_name() {
        let name = format!("pvc-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        let named = format!("@{name}");
        send(OsStr::new(&named), &[NotifyState::Watchdog], Full::Drop).unwrap();
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..length], *b"WATCHDOG=1\n");
    }
}
