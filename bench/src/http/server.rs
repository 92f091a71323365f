//! Processes that serve: the API of one tree, and what the API is compared with.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use bytes::Bytes;
use pvc_api::{ApiSettings, ApiState, Token};
use pvc_ceph::{CephOptions, RbdStorage};
use pvc_linux::{LinuxExec, OsRandom, SystemClock};
use pvc_model::role::Role;
use pvc_model::storage::RbdAccess;
use pvc_ports::Storage;
use pvc_store::Store;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::Client;
use crate::child::{self, Holder};
use crate::counting::{CountingTree, Requests};
use crate::place::{Source, open_store, runtime};
use crate::{statistics, uploads};

/// Key of the API.
pub const KEY: &str = "b6c4a3f2-bench";

/// Time between two changes of the statistics of VMs that have new ones all the time.
const EACH: Duration = Duration::from_secs(1);

/// The served API, seen from the one who measures.
pub struct ApiServer {
    holder: Holder,
    pub api_port: u16,
    pub api: Client,
    /// Answers questions about the process.
    side: Client,
}

impl ApiServer {
    pub fn start(source: &Source) -> Result<ApiServer> {
        ApiServer::of(Holder::start(["serve", "--source", &source.to_string()])?)
    }

    /// Starts one whose volumes are in the Ceph of this folder.
    pub fn on_ceph(source: &Source, ceph: &std::path::Path) -> Result<ApiServer> {
        let ceph = ceph.display().to_string();
        ApiServer::of(Holder::start(["serve", "--source", &source.to_string(), "--ceph", &ceph])?)
    }

    fn of(holder: Holder) -> Result<ApiServer> {
        let ports: Value = serde_json::from_str(&holder.said)?;
        let port = |name: &str| -> Result<u16> {
            let port = ports[name]
                .as_u64()
                .with_context(|| format!("the server names no port `{name}`"))?;
            Ok(u16::try_from(port)?)
        };
        let api_port = port("api")?;
        let (api, side) = (Client::connect(api_port)?, Client::connect(port("side")?)?);
        Ok(ApiServer { holder, api_port, api, side })
    }

    pub fn memory(&self) -> Result<u64> {
        self.holder.memory()
    }

    /// The most memory that the process ever had.
    pub fn peak_memory(&self) -> Result<u64> {
        self.holder.peak_memory()
    }

    /// Requests of the process to its tree.
    pub fn tree_requests(&mut self) -> Result<Requests> {
        let counted: Value = serde_json::from_slice(self.side.get("/requests")?)?;
        let count = |name: &str| {
            counted[name].as_u64().with_context(|| format!("`{name}` was not counted"))
        };
        Ok(Requests { reads: count("reads")?, writes: count("writes")? })
    }

    /// Gives `vms` VMs new statistics, as their nodes do all the time. Returns when the API's view
    /// shows them.
    pub fn touch(&mut self, vms: usize) -> Result<()> {
        self.side.post(&format!("/touch/{vms}")).map(drop)
    }

    /// Does the same each second, at first at once, while `work` asks for replies.
    pub fn while_touched<T>(
        &mut self,
        vms: usize,
        work: impl FnOnce(&mut Client) -> Result<T>,
    ) -> Result<T> {
        let ApiServer { api, side, .. } = self;
        let (done, is_done) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let touching = scope.spawn(move || {
                loop {
                    side.post(&format!("/touch/{vms}"))?;
                    if is_done.recv_timeout(EACH) != Err(RecvTimeoutError::Timeout) {
                        return anyhow::Ok(());
                    }
                }
            });
            let worked = work(api);
            drop(done);
            touching.join().expect("it reports its errors")?;
            worked
        })
    }
}

/// Replies without an API: what no reply of the same size can be faster than. In a process of its
/// own, so that its memory is not the API's.
pub struct PlainServer {
    _holder: Holder,
    client: Client,
}

impl PlainServer {
    pub fn start() -> Result<PlainServer> {
        let holder = Holder::start(["plain"])?;
        let client = Client::connect(holder.said.parse()?)?;
        Ok(PlainServer { _holder: holder, client })
    }

    /// Asks for a reply of `bytes` bytes.
    pub fn get(&mut self, bytes: usize) -> Result<()> {
        let length = self.client.get(&format!("/{bytes}"))?.len();
        anyhow::ensure!(length == bytes, "the plain reply has another size");
        Ok(())
    }
}

/// The holder's side: serves until its input ends.
pub fn serve(source: &Source, ceph: Option<&std::path::Path>) -> Result<()> {
    runtime()?.block_on(async {
        let tree = Arc::new(CountingTree::new(source.open().await?));
        let store = open_store(tree.clone()).await?;
        let shutdown = CancellationToken::new();
        let (api_port, api) = api(&store, ceph.map(storage_on), shutdown.clone())?;
        let side = Router::new()
            .route("/requests", get(requests))
            .route("/touch/{vms}", post(touch))
            .with_state(Side { tree, store, touched: Arc::default() });
        let (side_port, side) = listen(side).await?;
        println!("{}", json!({ "api": api_port, "side": side_port }));
        tokio::task::spawn_blocking(child::wait_for_the_end).await?;
        shutdown.cancel();
        side.abort();
        Ok(api.await??)
    })
}

fn storage_on(ceph: &std::path::Path) -> Arc<dyn Storage> {
    let (config, keyring) = uploads::files_of(ceph);
    let access =
        RbdAccess { monitors: Vec::new(), port: 6789, user: "libvirt".to_owned(), secret: None };
    let options = CephOptions { config, keyring, user: "admin".to_owned(), access };
    Arc::new(RbdStorage::new(options, Arc::new(LinuxExec)))
}

type Serving<E> = tokio::task::JoinHandle<Result<(), E>>;

/// The API as the daemon serves it.
fn api(
    store: &Store,
    storage: Option<Arc<dyn Storage>>,
    shutdown: CancellationToken,
) -> Result<(u16, Serving<pvc_api::ServeError>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address: SocketAddr = listener.local_addr()?;
    let token = Token {
        description: "bench".to_owned(),
        secret: KEY.to_owned(),
        role: Role::Administrator,
    };
    let settings = ApiSettings::new("pvchv1".into(), address, vec![token]);
    let (clock, random) = (Arc::new(SystemClock), Arc::new(OsRandom));
    let state = ApiState::new(store.clone(), clock, random, storage, None, settings);
    Ok((address.port(), tokio::spawn(pvc_api::serve_on(vec![listener], state, shutdown))))
}

/// The holder's side of the plain server.
pub fn serve_plain() -> Result<()> {
    runtime()?.block_on(async {
        let (port, serving) =
            listen(Router::new().route("/{bytes}", get(plain)).with_state(Made::default())).await?;
        println!("{port}");
        tokio::task::spawn_blocking(child::wait_for_the_end).await?;
        serving.abort();
        Ok(())
    })
}

async fn listen(router: Router) -> Result<(u16, Serving<std::io::Error>)> {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let port = listener.local_addr()?.port();
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true); // slower without, and it would show
    });
    Ok((port, tokio::spawn(async move { axum::serve(listener, router).await })))
}

/// The longest plain reply so far; the others are its beginning.
type Made = Arc<Mutex<Bytes>>;

async fn plain(State(made): State<Made>, Path(bytes): Path<usize>) -> Response {
    let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
    if made.len() < bytes {
        *made = Bytes::from(vec![b' '; bytes]);
    }
    ([(header::CONTENT_TYPE, "application/json")], made.slice(..bytes)).into_response()
}

/// State that the API's process tells about itself.
#[derive(Clone)]
struct Side {
    tree: Arc<CountingTree>,
    store: Store,
    touched: Arc<Mutex<usize>>,
}

async fn requests(State(side): State<Side>) -> String {
    let Requests { reads, writes } = side.tree.requests();
    json!({ "reads": reads, "writes": writes }).to_string()
}

async fn touch(
    State(side): State<Side>,
    Path(vms): Path<usize>,
) -> Result<(), (StatusCode, String)> {
    let round = {
        let mut touched = side.touched.lock().unwrap_or_else(PoisonError::into_inner);
        *touched += 1;
        *touched
    };
    let failed =
        |error: pvc_store::StoreError| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    statistics::renew(&side.store, vms, round).await.map_err(failed)
}
