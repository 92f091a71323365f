//! The metadata service of networks of VMs, on the node that has the primary's services. What is
//! answered is decided in `pvc_model::guest_network::metadata`.
//!
//! It trusts nobody: whoever asks may be any program in any guest. Of a request only its head is
//! read, within seconds, and each address has few connections.

#![allow(clippy::disallowed_methods, reason = "a socket's time is real")]

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum_server::Handle;
use hyper_util::rt::TokioTimer;
use pvc_model::cluster::Cluster;
use pvc_model::domain::{Nic, SshKey};
use pvc_model::guest_network::metadata::{
    ADDRESS, FORWARDED_HEADER, MetadataAnswer, MetadataIndex, MetadataRequest, TOKEN_HEADER,
    TTL_HEADER, Tokens, answer,
};
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{shown, with_causes};
use pvc_ports::{Clock, Random};
use pvc_provisioner::Provisioner;
use pvc_store::Store;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower::limit::GlobalConcurrencyLimitLayer;

use crate::connection::Places;
use crate::serve::listen_ahead;

/// Port that guests ask.
const PORT: u16 = 80;

/// Number of connections at once, in all and of one guest.
const CONNECTIONS: usize = 256;
const CONNECTIONS_EACH: usize = 8;

/// Number of requests that are looked at in the same moment.
const AT_ONCE: usize = 4;

/// Time within which the head of a request has to come, and its size in bytes.
const HEAD_TIME: Duration = Duration::from_secs(5);
const HEAD_BYTES: usize = 16 << 10;

/// Time that the userdata of a guest may take: others wait meanwhile.
const USERDATA_TIME: Duration = Duration::from_secs(3);

/// Time after which listening is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Things that the service needs.
#[derive(Clone)]
pub struct MetadataPorts {
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    pub random: Arc<dyn Random>,
    /// Whether a guest has to get a token before it is told anything.
    pub is_token_required: bool,
    /// Database with the userdata of profiles; without it there is none.
    pub provisioner: Option<Provisioner>,
    /// Is told what keeps the service from serving, and `None` when it serves.
    pub trouble: Arc<watch::Sender<Option<String>>>,
}

/// Serves at 169.254.169.254 while `term` is not 0, until `end`: the number of times for which this
/// node has had the primary's services. What keeps it from serving is reported, and tried again.
pub async fn serve_metadata(
    ports: MetadataPorts,
    term: watch::Receiver<u64>,
    end: CancellationToken,
) {
    serve_metadata_on(SocketAddr::from((ADDRESS, PORT)), ports, term, end).await;
}

/// Same as [`serve_metadata`], at another address.
pub async fn serve_metadata_on(
    address: SocketAddr,
    ports: MetadataPorts,
    mut term: watch::Receiver<u64>,
    end: CancellationToken,
) {
    loop {
        tokio::select! {
            biased;
            () = end.cancelled() => return,
            has_begun = term.wait_for(|term| *term != 0) => if has_begun.is_err() { return },
        }
        let over = async {
            tokio::select! {
                () = end.cancelled() => {}
                _ = term.wait_for(|term| *term == 0) => {}
            }
        };
        let served = serve_until(address, ports.clone(), over).await;
        let error = served.err().map(|error| format!("{address}: {}", with_causes(&error)));
        let is_news = ports.trouble.send_replace(error.clone()).is_none();
        let Some(error) = error else { continue };
        if is_news {
            tracing::error!("metadata: not served: {error}");
        }
        tokio::select! {
            biased;
            () = end.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

async fn serve_until(
    address: SocketAddr,
    ports: MetadataPorts,
    over: impl Future<Output = ()>,
) -> std::io::Result<()> {
    // The address may come a moment later.
    let listener = listen_ahead(address)?;
    listener.set_nonblocking(true)?;
    let (handle, trouble) = (Handle::new(), ports.trouble.clone());
    let service = router(ports).into_make_service_with_connect_info::<SocketAddr>();
    let places = Places::new(CONNECTIONS, CONNECTIONS_EACH);
    let mut server = axum_server::from_tcp(listener)?.http1_only().handle(handle.clone());
    server
        .http_builder()
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        // One request, one connection: an idle one takes no place of others.
        .keep_alive(false);
    tracing::info!(%address, "metadata: served");
    trouble.send_replace(None);
    let serving = server.acceptor(places).serve(service);
    tokio::pin!(serving, over);
    tokio::select! {
        served = &mut serving => return served,
        () = &mut over => {}
    }
    tracing::info!(%address, "metadata: not served any more");
    handle.shutdown();
    serving.await
}

struct Service {
    ports: MetadataPorts,
    known: Mutex<Known>,
}

/// Guests as they are known, and of which view.
#[derive(Default)]
struct Known {
    of: Option<Arc<Cluster>>,
    index: Arc<MetadataIndex>,
    tokens: Tokens,
}

fn router(ports: MetadataPorts) -> Router {
    let service = Arc::new(Service { ports, known: Mutex::default() });
    Router::new()
        .fallback(handle)
        .layer(GlobalConcurrencyLimitLayer::new(AT_ONCE))
        .with_state(service)
}

async fn handle(
    State(service): State<Arc<Service>>,
    ConnectInfo(caller): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    let mut answered = service.answer_to(caller.ip(), &request);
    drop(request);
    if let (Some(profile), Some(provisioner)) =
        (answered.userdata_of.take(), &service.ports.provisioner)
    {
        match userdata(provisioner, &profile).await {
            Ok(text) => answered.body = text.unwrap_or_default(),
            Err(error) => {
                tracing::warn!("metadata: the userdata of profile `{}`: {error}", shown(&profile));
                // Who is told that there is none does not ask again.
                answered.status = StatusCode::SERVICE_UNAVAILABLE.as_u16();
                "the user data cannot be read at the moment\n".clone_into(&mut answered.body);
            }
        }
    }
    tracing::debug!(caller = %caller.ip(), status = answered.status, "metadata");
    response(answered)
}

/// The userdata of a profile, if it has some.
async fn userdata(provisioner: &Provisioner, profile: &str) -> Result<Option<String>, String> {
    match tokio::time::timeout(USERDATA_TIME, provisioner.userdata_of(profile)).await {
        Ok(found) => found.map_err(|error| with_causes(&error)),
        Err(_) => Err(format!("no answer within {} s", USERDATA_TIME.as_secs())),
    }
}

impl Service {
    fn answer_to(&self, caller: IpAddr, request: &Request) -> MetadataAnswer {
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        self.answer(&MetadataRequest {
            caller,
            method: request.method().as_str(),
            path: request.uri().path(),
            token: header(TOKEN_HEADER),
            ttl: header(TTL_HEADER),
            is_forwarded: request.headers().contains_key(FORWARDED_HEADER),
        })
    }

    fn answer(&self, request: &MetadataRequest<'_>) -> MetadataAnswer {
        let view = self.ports.store.view();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.of.as_ref().is_none_or(|of| !Arc::ptr_eq(of, &view) && !is_alike(of, &view)) {
            known.index = Arc::new(MetadataIndex::of(&view));
            let index = known.index.clone();
            known.tokens.retain(&index);
            known.of = Some(view);
        }
        let index = known.index.clone();
        let random = || [(); 4].map(|()| self.ports.random.next_u64());
        let (now, required) = (self.ports.clock.monotonic(), self.ports.is_token_required);
        answer(&index, &mut known.tokens, request, required, now, random)
    }
}

/// Whether the same guests are found in both. What VMs do changes with each keepalive, and says
/// nothing of that.
fn is_alike(one: &Cluster, other: &Cluster) -> bool {
    let same_vm = |(one, other): (&Arc<VmRecord>, &Arc<VmRecord>)| {
        Arc::ptr_eq(one, other)
            || (one.uuid == other.uuid
                && one.name == other.name
                && one.profile == other.profile
                && (one.state == VmState::Mirror) == (other.state == VmState::Mirror)
                && served(one) == served(other))
    };
    one.networks == other.networks
        && one.vms.len() == other.vms.len()
        && one.vms.values().zip(other.vms.values()).all(same_vm)
}

/// Parts of a VM's definition that are served to its guest.
fn served(vm: &VmRecord) -> Option<(&[Nic], &[SshKey])> {
    vm.domain.as_ref().ok().map(|domain| (&*domain.nics, &*domain.ssh_keys))
}

fn response(answer: MetadataAnswer) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = HeaderValue::from_static(answer.content_type);
    let mut response = (status, answer.body).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    if let Some(seconds) = answer.ttl_seconds {
        response
            .headers_mut()
            .insert(HeaderName::from_static(TTL_HEADER), HeaderValue::from(seconds));
    }
    response
}
