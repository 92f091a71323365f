//! The server: sockets, TLS, limits on connections, an orderly end.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;

use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use axum_server::{Handle, Server};
use futures::FutureExt as _;
use futures::future::{BoxFuture, try_join_all};
use hyper_util::rt::TokioTimer;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt,
};
use pvc_model::with_causes;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::connection::Places;
use crate::routes::router;
use crate::settings::{ApiSettings, Limits, TlsFiles};
use crate::state::ApiState;
use crate::tls::{self, TlsError};

/// Reason why the API does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the API cannot listen on {address}: the address is in use")]
    AddressInUse { address: SocketAddr },
    #[error("the API cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("the API's TLS cannot be set up")]
    Tls(#[from] TlsError),
    #[error("the API's server failed")]
    Server(#[source] io::Error),
}

impl ServeError {
    /// Advice about what to do.
    pub fn hint(&self) -> Option<String> {
        match self {
            ServeError::AddressInUse { address } => Some(format!(
                "another program listens there, perhaps another API daemon: `ss -ltnp sport = :{}` \
                 shows it",
                address.port()
            )),
            ServeError::Listen { source, .. }
                if source.kind() == io::ErrorKind::AddrNotAvailable =>
            {
                Some(
                    "no interface of this host has that address; is it the one of another node?"
                        .to_owned(),
                )
            }
            _ => None,
        }
    }
}

/// Serves the API on the address of `settings` until `shutdown`, then lets what is in flight
/// finish.
///
/// # Errors
/// At once if it cannot listen or its certificate cannot be used; see [`ServeError::hint`].
pub async fn serve(
    settings: &ApiSettings,
    state: ApiState,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    serve_on(listen(settings)?, state, shutdown).await
}

/// Takes the address of `settings`, and its port on the loopback: from here on clients can connect,
/// and wait for [`serve_on`].
///
/// On the loopback, because this machine's own clients must reach the API also while a floating
/// address is nowhere, as it is before a cluster has begun. Where that port is somebody else's, a
/// warning says so.
pub fn listen(settings: &ApiSettings) -> Result<Vec<TcpListener>, ServeError> {
    let address = settings.listen;
    let refused = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ServeError::AddressInUse { address },
        _ => ServeError::Listen { address, source },
    };
    let listener =
        if settings.floating { listen_ahead(address) } else { TcpListener::bind(address) };
    let listener = listener.map_err(refused)?;
    let port = listener.local_addr().map_err(refused)?.port();
    let mut listeners = vec![listener];
    if !address.ip().is_loopback() && !address.ip().is_unspecified() {
        let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        listeners
            .extend(loopback.into_iter().filter_map(|ip| listen_here(SocketAddr::new(ip, port))));
    }
    Ok(listeners)
}

fn listen_here(address: SocketAddr) -> Option<TcpListener> {
    match TcpListener::bind(address) {
        Ok(listener) => Some(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            tracing::warn!(%address, "the API does not listen on the loopback, too: another \
                                      program does");
            None
        }
        Err(error) => {
            tracing::debug!(%address, %error, "this machine has no such loopback");
            None
        }
    }
}

/// Listens on an address that this host need not have yet.
pub(crate) fn listen_ahead(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    // The option of the older protocol works for both.
    setsockopt(&socket, sockopt::IpFreebind, &true)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    nix::sys::socket::listen(&socket, Backlog::MAXCONN)?;
    Ok(socket.into())
}

/// Same as [`serve`], on sockets that listen already.
pub async fn serve_on(
    listeners: Vec<TcpListener>,
    state: ApiState,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let tls = state.settings().tls.clone();
    let running = tls.as_ref().map(tls::read).transpose()?;
    let limits = state.settings().limits.clone();
    let places = Places::new(limits.connections.min(half_of_all_files()), limits.connections_each);
    let handle = Handle::new();
    let service = router(state.clone()).into_make_service_with_connect_info::<SocketAddr>();
    let mut serving: Vec<BoxFuture<'static, io::Result<()>>> = Vec::new();
    for listener in listeners {
        listener.set_nonblocking(true).map_err(ServeError::Server)?;
        let address = listener.local_addr().map_err(ServeError::Server)?;
        let server = axum_server::from_tcp(listener).map_err(ServeError::Server)?;
        tracing::info!(%address, tls = running.is_some(), "the API listens");
        let (places, service) = (places.clone(), service.clone());
        serving.push(match &running {
            Some(config) => {
                let acceptor = RustlsAcceptor::new(config.clone()).acceptor(places);
                prepare(server.acceptor(acceptor), &handle, &limits).serve(service).boxed()
            }
            None => prepare(server.acceptor(places), &handle, &limits).serve(service).boxed(),
        });
    }
    let reloads =
        tls.zip(running).map(|(files, config)| tokio::spawn(reload_on_hangup(files, config)));
    let serving = try_join_all(serving).map(|served| served.map(drop)).boxed();
    let served = until_stopped(serving, &handle, &state, &shutdown).await;
    if let Some(reloads) = reloads {
        reloads.abort();
    }
    // A change whose client is gone is still a change.
    let _ = tokio::time::timeout(limits.drain_time, state.changes_done()).await;
    served.map_err(ServeError::Server)
}

/// Half of the files that this process may have open: the node's daemon may be part of it, and must
/// not lack one because clients have them all. Never less than 16, or nobody could say what is
/// wrong.
fn half_of_all_files() -> usize {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    usize::try_from(limit / 2).unwrap_or(usize::MAX).max(16)
}

fn prepare<A>(
    server: Server<SocketAddr, A>,
    handle: &Handle<SocketAddr>,
    limits: &Limits,
) -> Server<SocketAddr, A> {
    let mut server = server.http1_only().handle(handle.clone());
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(limits.head_time);
    server
}

/// Serves until `shutdown`, and then for as long as requests in flight take, within their limit.
async fn until_stopped(
    mut serving: BoxFuture<'static, io::Result<()>>,
    handle: &Handle<SocketAddr>,
    state: &ApiState,
    shutdown: &CancellationToken,
) -> io::Result<()> {
    tokio::select! {
        biased;
        served = &mut serving => return served,
        () = shutdown.cancelled() => {}
    }
    tracing::info!("the API stops: requests in flight are finished, nothing new is taken");
    state.stopping().cancel();
    handle.graceful_shutdown(Some(state.settings().limits.drain_time));
    serving.await
}

/// Reads certificate and key again whenever the process gets SIGHUP.
async fn reload_on_hangup(files: TlsFiles, running: RustlsConfig) {
    let Ok(mut hangups) = signal(SignalKind::hangup()) else { return };
    while hangups.recv().await.is_some() {
        match tls::reload(&files, &running) {
            Ok(()) => tracing::info!("certificate and key were read again"),
            Err(error) => {
                tracing::error!(error = with_causes(&error), "the former certificate stays in use");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::resource::setrlimit;

    use super::*;
    use crate::ahead;
    use crate::params::UNAUTHENTICATED_BYTES;

    #[test]
    fn half_of_the_files_that_the_process_may_open_are_left_to_the_rest_of_it() {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("every process has a limit");
        let halves = [1024, 301, 20].map(|limit| {
            setrlimit(Resource::RLIMIT_NOFILE, limit, hard).expect("less is always allowed");
            half_of_all_files()
        });
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("it was allowed before");
        assert_eq!(halves, [512, 150, 16]);
    }

    /// The units say how many files their daemons may open; what the code counts on is here.
    #[test]
    fn the_unit_of_the_api_lets_it_have_all_connections() {
        let unit = include_str!("../../../packaging/systemd/pvcapid.service");
        let limit = unit.lines().find_map(|line| line.strip_prefix("LimitNOFILE="));
        let limit: usize = limit.and_then(|limit| limit.parse().ok()).expect("it is said");
        assert!(limit / 2 >= Limits::default().connections);
    }

    /// The sum that the unit's comment tells.
    #[test]
    fn the_unit_of_the_api_lets_it_have_the_memory_that_its_limits_add_up_to() {
        let unit = include_str!("../../../packaging/systemd/pvcapid.service");
        let most = unit.lines().find_map(|line| line.strip_prefix("MemoryMax=")?.strip_suffix('G'));
        let most: usize = most.and_then(|most| most.parse().ok()).expect("it is said in GiB");
        let limits = Limits::default();
        // As they came, twice: their buffers double.
        let bodies = 5 * limits.bodies_bytes;
        // Of the head of a request hyper keeps 408 KiB at most.
        let connections = limits.connections * ((408 << 10) + UNAUTHENTICATED_BYTES);
        let uploads = limits.transfers * ahead::MOST;
        let programs = 3 * pvc_images::MOST_QEMU_BYTES;
        // Decoders of images, records.
        let others = (4 * 80 + 512) << 20;
        let all = bodies + connections + uploads + programs + others;
        assert_eq!(all >> 20, 10336);
        assert!(all <= most << 30);
        assert!(unit.contains(": 10336 MiB"));
    }
}
