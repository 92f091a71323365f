//! An API over an embedded tree in memory, asked without a socket.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use bytes::Bytes;
use pvc_api::{ApiSettings, ApiState, Limits, Spool, Token, router};
use pvc_database::SqliteDatabase;
use pvc_embedded::EmbeddedTree;
use pvc_model::role::Role;
use pvc_ports::{CreateMode, Op, Tree};
use pvc_provisioner::Provisioner;
use pvc_store::Store;
use pvc_store::synthetic::Shape;
use pvc_testkit::{
    FakeHost, FlakyDatabase, MemoryFirewall, MemoryStorage, ScriptedExec, ScriptedHypervisor,
    SeededRandom, TokioClock, eventually,
};
use pvc_worker::{BenchmarkSettings, BenchmarkTools, Worker};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::described;

pub const KEY: &str = "correct-horse-battery-staple";

pub struct Api {
    pub state: ApiState,
    pub router: Router,
    pub store: Store,
    pub tree: Arc<dyn Tree>,
    pub storage: Arc<MemoryStorage>,
    pub firewall: Arc<MemoryFirewall>,
    /// The provisioner's.
    pub database: FlakyDatabase,
}

/// Report of fio, as far as it is needed.
const FIO_REPORT: &str = r#"{"jobs":[{"error":0,"read":{"bw_bytes":1,"iops":2.5,"io_bytes":3},
    "write":{"bw_bytes":4,"iops":5.5,"io_bytes":4096}}]}"#;

/// A reply, read to its end.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {:?}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn message(&self) -> String {
        self.json()["message"].as_str().expect("a message that is text").to_owned()
    }

    /// The JSON of a reply that must be 200.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// The message of a reply that must have this status.
    #[track_caller]
    pub fn refused(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.text());
        self.message()
    }
}

pub fn settings() -> ApiSettings {
    let token = |description: &str, secret: &str| Token {
        description: description.into(),
        secret: secret.into(),
        role: Role::Administrator,
    };
    let tokens = vec![token("admin", KEY), token("monitoring", "another-key")];
    let limits = Limits { body_bytes: 1 << 20, restore_bytes: 8 << 20, ..Limits::default() };
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    // What is free on this machine is no matter of these tests.
    let spool = Spool { least_free_bytes: Some(0), ..Spool::default() };
    ApiSettings { limits, spool, ..ApiSettings::new("pvchv1".into(), listen, tokens) }
}

pub async fn start(dump: &BTreeMap<String, String>, settings: ApiSettings) -> Api {
    start_on(EmbeddedTree::in_memory().connect(), dump, settings).await
}

pub async fn start_on(
    tree: Arc<dyn Tree>,
    dump: &BTreeMap<String, String>,
    settings: ApiSettings,
) -> Api {
    start_with(tree, dump, settings, MemoryStorage::new()).await
}

/// The same, on this storage.
pub async fn start_with(
    tree: Arc<dyn Tree>,
    dump: &BTreeMap<String, String>,
    settings: ApiSettings,
    storage: MemoryStorage,
) -> Api {
    let random = Arc::new(SeededRandom::new(7));
    let store =
        Store::open(tree.clone(), Arc::new(TokioClock::new()), random.clone()).await.unwrap();
    if !dump.is_empty() {
        store.load(dump).await.unwrap();
        store.repair().await.unwrap();
    }
    let (storage, firewall) = (Arc::new(storage), Arc::new(MemoryFirewall::new()));
    let database = FlakyDatabase::new(Arc::new(SqliteDatabase::in_memory()));
    let provisioner = Provisioner::new(Arc::new(database.clone()));
    let state = ApiState::new(
        store.clone(),
        Arc::new(TokioClock::new()),
        random,
        Some(storage.clone()),
        Some(firewall.clone()),
        settings,
    )
    .with_provisioner(Some(provisioner));
    Api { router: router(state.clone()), state, store, tree, storage, firewall, database }
}

/// Three nodes, `vms` VMs, four networks.
pub async fn with_vms(vms: usize) -> Api {
    start(&Shape::with_vms(vms).dump(), settings()).await
}

/// A store without any cluster.
pub async fn empty() -> Api {
    start(&BTreeMap::new(), settings()).await
}

/// A request that begins with the right key.
pub fn request(method: Method, path: &str) -> axum::http::request::Builder {
    Request::builder().method(method).uri(format!("/api/v1{path}")).header("X-Api-Key", KEY)
}

impl Api {
    /// Sends a request, and checks the reply against the OpenAPI document.
    pub async fn send(&self, mut request: Request<Body>) -> Reply {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let remote = SocketAddr::from(([192, 0, 2, 1], 4711));
        request.extensions_mut().insert(ConnectInfo(remote));
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        let reply = Reply { status: parts.status, headers: parts.headers, body };
        described::check(&method, &path, &reply);
        reply
    }

    async fn bare(&self, method: Method, path: &str) -> Reply {
        self.send(request(method, path).body(Body::empty()).unwrap()).await
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.bare(Method::GET, path).await
    }

    pub async fn post(&self, path: &str) -> Reply {
        self.bare(Method::POST, path).await
    }

    pub async fn put(&self, path: &str) -> Reply {
        self.bare(Method::PUT, path).await
    }

    pub async fn delete(&self, path: &str) -> Reply {
        self.bare(Method::DELETE, path).await
    }

    /// A request with an urlencoded body of one member.
    pub async fn form(&self, method: Method, path: &str, name: &str, value: &str) -> Reply {
        let body =
            form_urlencoded::Serializer::new(String::new()).append_pair(name, value).finish();
        let kind = "application/x-www-form-urlencoded";
        self.send(
            request(method, path).header("Content-Type", kind).body(Body::from(body)).unwrap(),
        )
        .await
    }

    /// Writes a key as another program would, creating what is missing above it.
    pub async fn write(&self, path: &str, data: impl Into<Bytes>) {
        let data = data.into();
        let mut at = 0;
        while let Some(next) = path[at + 1..].find('/') {
            at += 1 + next;
            let _ = self.tree.create(&path[..at], Bytes::new(), CreateMode::Persistent).await;
        }
        if self.tree.create(path, data.clone(), CreateMode::Persistent).await.is_err() {
            self.tree
                .multi(vec![Op::Set { path: path.into(), data, version: None }])
                .await
                .unwrap();
        }
        self.store.fresh().await.unwrap();
    }

    /// Records a fault that nobody has acknowledged.
    pub async fn with_fault(&self, id: &str, delta: &str, at: &str) {
        let root = format!("/faults/{id}");
        self.write(&root, "").await;
        for (key, value) in [
            ("first_time", at),
            ("last_time", at),
            ("ack_time", ""),
            ("status", "new"),
            ("delta", delta),
            ("message", "odd"),
        ] {
            self.write(&format!("{root}/{key}"), value.to_owned()).await;
        }
    }

    /// The UUID of the VM with this name.
    #[track_caller]
    pub fn uuid(&self, name: &str) -> uuid::Uuid {
        self.store.view().vm(name).expect("the VM exists").uuid
    }

    /// The first synthetic VM in this state.
    #[track_caller]
    pub fn vm_in(&self, state: &str) -> String {
        let view = self.store.view();
        let vm =
            view.vms.values().find(|vm| vm.state.as_str() == state).expect("a VM in that state");
        vm.name.clone()
    }

    /// The worker of `node`, in this process.
    pub fn start_worker(&self, node: &str) {
        let (hypervisor, clock) = (Arc::new(ScriptedHypervisor::new()), TokioClock::new());
        let worker = Worker::new(
            node.into(),
            self.store.clone(),
            hypervisor,
            self.storage.clone(),
            Arc::new(clock),
            Arc::new(SeededRandom::new(5)),
        );
        let fio = |_: &pvc_ports::Command| Ok(ScriptedExec::success(FIO_REPORT));
        let worker = worker.with_benchmarks(BenchmarkTools {
            exec: Arc::new(ScriptedExec::new(fio)),
            host: Arc::new(FakeHost::new()),
            settings: BenchmarkSettings {
                storage_interface: None,
                volume_bytes: 4096,
                test_time: Duration::from_secs(1),
            },
        });
        tokio::spawn(async move { worker.run(CancellationToken::new()).await });
    }

    pub async fn eventually(
        &self,
        what: &str,
        ready: impl Fn(&pvc_model::cluster::Cluster) -> bool,
    ) {
        eventually(what, Duration::from_secs(20), || ready(&self.store.view())).await;
    }
}
