//! Between dnsmasq and the node daemon: dnsmasq calls this program with what it does to leases, and
//! it tells the daemon, on a socket that root alone can speak to. Which socket and of which network
//! it is stands in the environment, which dnsmasq hands on.
//!
//! A message is its version, the number of the network, what the environment says of the lease's
//! end and of the client (a text for each of [`LEASE_VARIABLES`], empty if it is not set), and
//! dnsmasq's arguments, each ended by a zero byte. The answer is `ok`, or the network's leases if
//! dnsmasq starts, once they are known.
#![allow(clippy::disallowed_methods, reason = "a socket of this machine, in real time")]

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use pvc_config::Config;
use pvc_model::guest_network::Vni;
use pvc_model::guest_network::dnsmasq::{LEASE_VARIABLES, LeaseNews};
use pvc_node::{LEASE_NETWORK, LEASE_SOCKET, LeaseRequest, LeaseRequests, Node};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, Semaphore, mpsc, oneshot};

use crate::settings;

/// The longest message, in bytes.
const MOST_BYTES: u64 = 8192;

/// The most fields that a message has.
const MOST_FIELDS: usize = 16;

/// The place of dnsmasq's first argument among the fields of a message.
const FIRST_ARG: usize = 2 + LEASE_VARIABLES.len();

/// Version of a message. A daemon of another one refuses it: dnsmasq runs the program that is
/// installed, and the daemon may be an older one yet.
const VERSION: &str = "2";

/// Time in which a message has to be here.
const MESSAGE: Duration = Duration::from_secs(2);

/// Time that dnsmasq is kept waiting for the store. It serves its guests meanwhile.
const ANSWER: Duration = Duration::from_secs(20);

/// Time between two tries to listen.
const BIND_AGAIN: Duration = Duration::from_secs(1);

/// Callers at once.
const MOST_CALLERS: usize = 64;

/// A call of this program by dnsmasq, as its script.
pub struct LeaseCall {
    socket: PathBuf,
    vni: String,
    /// Words of dnsmasq.
    args: Vec<String>,
}

impl LeaseCall {
    /// The call that this process is; `None` if somebody else started it. dnsmasq is who has these
    /// variables in its environment.
    pub fn of_process() -> Option<LeaseCall> {
        let socket = PathBuf::from(std::env::var_os(LEASE_SOCKET)?);
        let vni = std::env::var(LEASE_NETWORK).ok()?;
        let args = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned());
        Some(LeaseCall { socket, vni, args: args.collect() })
    }

    /// Tells the daemon of it, and writes the network's leases out if dnsmasq asks for them.
    pub fn report(&self) -> anyhow::Result<u8> {
        report(&self.socket, &self.vni, &self.args)
    }
}

fn report(socket: &Path, vni: &str, args: &[String]) -> anyhow::Result<u8> {
    let mut message = String::new();
    let environment = LEASE_VARIABLES.map(|key| std::env::var(key).unwrap_or_default());
    for field in [VERSION, vni].into_iter().chain(environment.iter().map(String::as_str)) {
        message.push_str(field);
        message.push('\0');
    }
    for arg in args.iter().take(MOST_FIELDS - FIRST_ARG) {
        message.push_str(arg);
        message.push('\0');
    }
    let mut stream = BlockingStream::connect(socket)
        .with_context(|| format!("the node daemon does not listen on `{}`", socket.display()))?;
    stream.set_read_timeout(Some(ANSWER + MESSAGE))?;
    stream.set_write_timeout(Some(MESSAGE))?;
    stream.write_all(message.as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("the node daemon does not answer")?;
    let Some(leases) = answer.strip_prefix("ok\n") else {
        bail!("the node daemon did not take the lease; the guest's next renewal is told again");
    };
    std::io::stdout().write_all(leases.as_bytes())?;
    Ok(0)
}

/// Gives the node the requests that this program reports with, where it carries networks of VMs.
pub fn with_lease_requests(node: Node, config: &Config) -> Node {
    match settings::guest_networks(config) {
        Some(networks) => node.with_lease_requests(listen(networks.dhcp.socket.into())),
        None => node,
    }
}

/// Listens for what this program reports when dnsmasq calls it, as soon as it can. The requests are
/// for the node role; the listener ends with the process.
fn listen(socket: PathBuf) -> LeaseRequests {
    let (to_role, requests) = mpsc::channel(MOST_CALLERS);
    tokio::spawn(async move {
        let listener = bound(&socket).await;
        serve(listener, to_role, socket).await;
    });
    Arc::new(Mutex::new(requests))
}

/// The listener, which is tried for until it can be had: without it no DHCP server starts.
async fn bound(socket: &Path) -> UnixListener {
    let mut said = None;
    loop {
        match bind(socket).await {
            Ok(listener) => return listener,
            Err(error) => {
                let text = format!("{error:#}");
                if said.as_ref() != Some(&text) {
                    tracing::error!(
                        "no DHCP server can start, as the socket `{}` cannot be listened on; it \
                         is tried again: {text}",
                        socket.display(),
                    );
                    said = Some(text);
                }
                tokio::time::sleep(BIND_AGAIN).await;
            }
        }
    }
}

async fn bind(socket: &Path) -> anyhow::Result<UnixListener> {
    use std::os::unix::fs::PermissionsExt;
    if let Some(directory) = socket.parent() {
        std::fs::create_dir_all(directory)?;
    }
    // Only what a daemon has left that is gone is taken away.
    match tokio::time::timeout(MESSAGE, UnixStream::connect(socket)).await {
        Ok(Err(error)) if error.kind() == ErrorKind::NotFound => {}
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(socket)?;
        }
        Ok(Err(error)) => return Err(error.into()),
        Ok(Ok(_)) | Err(_) => bail!("another daemon of this machine listens on it"),
    }
    let listener = UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn serve(listener: UnixListener, to_role: mpsc::Sender<LeaseRequest>, socket: PathBuf) {
    let callers = Arc::new(Semaphore::new(MOST_CALLERS));
    loop {
        let place = callers.clone().acquire_owned().await.expect("nobody closes it");
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, socket = %socket.display(), "a lease could not be heard of");
                tokio::time::sleep(MESSAGE).await;
                continue;
            }
        };
        let to_role = to_role.clone();
        tokio::spawn(async move {
            if let Err(error) = answer(stream, &to_role).await {
                tracing::warn!("a report of a lease was not taken: {error:#}");
            }
            drop(place);
        });
    }
}

async fn answer(
    mut stream: UnixStream,
    to_role: &mpsc::Sender<LeaseRequest>,
) -> anyhow::Result<()> {
    let peer = stream.peer_cred()?;
    if peer.uid() != nix::unistd::geteuid().as_raw() {
        bail!("user {} has no business here", peer.uid());
    }
    let mut message = Vec::new();
    let mut bounded = (&mut stream).take(MOST_BYTES);
    tokio::time::timeout(MESSAGE, bounded.read_to_end(&mut message))
        .await
        .context("it did not come in time")??;
    if message.is_empty() {
        return Ok(()); // a daemon that asks whether one listens
    }
    let (vni, args, environment) = fields(&message)?;
    let answer = match args.first().map(String::as_str) {
        Some("init") => {
            let (answer, leases) = oneshot::channel();
            to_role.send(LeaseRequest::Database { vni, answer }).await?;
            tokio::time::timeout(ANSWER, leases).await.context("the role does not answer")??
        }
        _ => {
            let by_name = |key: &str| {
                let place = LEASE_VARIABLES.iter().position(|name| *name == key)?;
                environment.get(place).filter(|value| !value.is_empty()).cloned()
            };
            if let Some(news) = LeaseNews::read(&args, by_name) {
                let (done, written) = oneshot::channel();
                to_role.send(LeaseRequest::News { vni, news, done }).await?;
                tokio::time::timeout(ANSWER, written).await.context("the store is away")??;
            }
            String::new()
        }
    };
    stream.write_all(format!("ok\n{answer}").as_bytes()).await?;
    Ok(())
}

/// The network, dnsmasq's arguments and what its environment said.
fn fields(message: &[u8]) -> anyhow::Result<(Vni, Vec<String>, Vec<String>)> {
    if message.len() as u64 >= MOST_BYTES {
        bail!("it is longer than {MOST_BYTES} bytes");
    }
    let text = std::str::from_utf8(message).context("it is no text")?;
    let text = text.strip_suffix('\0').context("its last field does not end")?;
    let mut fields: Vec<String> = text.split('\0').map(str::to_owned).collect();
    if fields.len() < FIRST_ARG || fields.len() > MOST_FIELDS {
        bail!("it has {} fields", fields.len());
    }
    let args = fields.split_off(FIRST_ARG);
    let environment = fields.split_off(2);
    if fields[0] != VERSION {
        bail!("it is of another version of this program");
    }
    let vni = Vni::parse(&fields[1]).context("it names no network")?;
    Ok((vni, args, environment))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: &str = "52:54:00:00:00:01";

    /// Runs what dnsmasq runs, beside a role that plays along. Returns what was reported to it.
    async fn report_of(args: &[&str]) -> (anyhow::Result<u8>, Vec<LeaseNews>) {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("run/leases");
        let requests = listen(socket.clone());
        eventually("it listens", || socket.exists()).await;
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let done = tokio::task::spawn_blocking(move || report(&socket, "1001", &args));
        let mut reports = Vec::new();
        let role = async {
            while let Some(request) = requests.lock().await.recv().await {
                match request {
                    LeaseRequest::Database { answer, .. } => answer.send(String::new()).unwrap(),
                    LeaseRequest::News { vni, news, done } => {
                        assert_eq!(vni.get(), 1001);
                        reports.push(news);
                        done.send(()).unwrap();
                    }
                }
            }
        };
        let reported = tokio::select! {
            () = role => panic!("the listener goes on"),
            reported = done => reported.unwrap(),
        };
        (reported, reports)
    }

    async fn eventually(what: &str, is_so: impl Fn() -> bool) {
        pvc_testkit::eventually(what, Duration::from_secs(20), is_so).await;
    }

    #[tokio::test]
    async fn a_socket_that_a_dead_daemon_has_left_is_taken_and_that_of_a_living_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("leases");
        let other = UnixListener::bind(&socket).unwrap();
        let _requests = listen(socket.clone());
        for _ in 0..2 {
            other.accept().await.unwrap(); // it asks who is there, and finds this one again
        }
        drop(other);
        assert!(socket.exists() && BlockingStream::connect(&socket).is_err(), "it is left");
        eventually("it is ours", || BlockingStream::connect(&socket).is_ok()).await;
    }

    /// A directory that cannot be made is there a moment later.
    #[tokio::test]
    async fn what_cannot_be_listened_on_is_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let parent = directory.path().join("run");
        std::fs::write(&parent, "no directory").unwrap();
        let socket = parent.join("leases");
        let _requests = listen(socket.clone());
        tokio::task::yield_now().await;
        std::fs::remove_file(&parent).unwrap();
        eventually("it listens", || socket.exists()).await;
    }

    #[tokio::test]
    async fn what_dnsmasq_says_reaches_the_role_and_is_answered() {
        let (reported, reports) = report_of(&["del", MAC, "10.20.1.100"]).await;
        assert!(matches!(reports[..], [LeaseNews::Ended { .. }]), "{reports:?}");
        assert_eq!(reported.unwrap(), 0);
        let (reported, reports) = report_of(&["init"]).await;
        assert!(reports.is_empty() && reported.is_ok());
    }

    #[tokio::test]
    async fn junk_is_answered_and_reaches_nobody() {
        for junk in [&[][..], &["tftp", "1", "2"], &["add", "x", "y", "z"]] {
            let (reported, reports) = report_of(junk).await;
            assert!(reports.is_empty() && reported.is_ok(), "{junk:?}");
        }
    }

    #[test]
    fn messages_are_bounded_and_whole() {
        assert!(fields(b"2\x001001\0\0\0\0\0init\0").is_ok());
        let long = vec![b'1'; MOST_BYTES as usize];
        let many = "1001\0".repeat(MOST_FIELDS + 1);
        for bad in [
            &b""[..],
            b"2\x001001\0\0\0\0\0init",
            b"2\x000\0\0\0\0\0init\0",
            b"1001\0\0\0\0\0init\0",
            b"1\x001001\0\0\0\0\0init\0",
            b"2\x001001\0",
            &long,
            b"\xff\0\0\0\0\0\0",
        ] {
            assert!(fields(bad).is_err(), "{bad:?}");
        }
        assert!(fields(many.as_bytes()).is_err());
    }

    #[test]
    fn without_a_daemon_it_says_so() {
        let error = report(Path::new("/nonexistent/socket"), "1001", &[]).unwrap_err();
        assert!(format!("{error:#}").contains("does not listen"));
    }
}
