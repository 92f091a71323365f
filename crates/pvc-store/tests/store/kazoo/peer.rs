//! A ZooKeeper server and Python peers on it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use pvc_contracts::zookeeper_server::ZookeeperServer;
use pvc_ports::{CreateMode, Tree};
use pvc_zookeeper::{ZookeeperOptions, ZookeeperTree};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Time limit for something that should happen soon.
pub const SOON: Duration = Duration::from_secs(20);
/// The path that is locked.
pub const PATH: &str = "/lock";

/// The world of one test: a server and everything that talks to it.
pub struct World {
    pub server: ZookeeperServer,
    python: PathBuf,
    _dir: TempDir,
}

impl World {
    pub async fn new(version: &str) -> World {
        let python = environments().join(version).join("bin/python");
        let dir = TempDir::new().expect("a directory");
        let server = ZookeeperServer::start(dir.path()).expect("the server starts");
        let world = World { server, python, _dir: dir };
        let tree = world.tree().await;
        tree.create(PATH, Bytes::new(), CreateMode::Persistent).await.expect("a creation succeeds");
        world
    }

    pub async fn tree(&self) -> Arc<dyn Tree> {
        connect(&self.server.address()).await
    }

    pub async fn kazoo(&self) -> Kazoo {
        Kazoo::start(&self.python, &self.server.address()).await
    }
}

pub async fn connect(address: &str) -> Arc<dyn Tree> {
    // The shortest session that the server grants: expiries come soon.
    let options =
        ZookeeperOptions { session_timeout: Duration::from_secs(2), ..ZookeeperOptions::default() };
    Arc::new(ZookeeperTree::connect(address, options).await.expect("the server lets us in"))
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The Python environments, made at the first call. `./test` says where it keeps them.
fn environments() -> PathBuf {
    let named = std::env::var_os("PVC_INTEROP").map(PathBuf::from);
    let dir = named.unwrap_or_else(|| workspace().join("target/interop"));
    let setup = std::process::Command::new(workspace().join("tests/interop/setup.sh"))
        .arg(&dir)
        .status()
        .expect("the script runs");
    assert!(setup.success(), "the Python environments cannot be made");
    dir
}

/// A Python process with a kazoo client. Killed when dropped.
pub struct Kazoo {
    child: Child,
    pub requests: Requests,
}

/// The way to tell a Python process what to do.
#[derive(Clone)]
pub struct Requests {
    stdin: Arc<tokio::sync::Mutex<ChildStdin>>,
    answers: Arc<Mutex<BTreeMap<u64, oneshot::Sender<Value>>>>,
    next: Arc<AtomicU64>,
}

impl Requests {
    /// Returns the result, or the name of Python's exception.
    pub async fn ask(&self, mut request: Value) -> Result<Value, String> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        request["id"] = id.into();
        let (wanted, answer) = oneshot::channel();
        self.answers.lock().expect("no panic").insert(id, wanted);
        let line = format!("{request}\n");
        self.stdin.lock().await.write_all(line.as_bytes()).await.expect("Python listens");
        let answer = answer.await.map_err(|_| "Python is gone".to_owned())?;
        match answer.get("error") {
            Some(error) => Err(error.as_str().expect("a name").to_owned()),
            None => Ok(answer["result"].clone()),
        }
    }

    fn take(&self, line: &str) {
        let answer: Value = serde_json::from_str(line).expect("an answer is JSON");
        let id = answer["id"].as_u64().expect("an answer has a number");
        if let Some(wanted) = self.answers.lock().expect("no panic").remove(&id) {
            let _ = wanted.send(answer); // a test may have stopped waiting
        }
    }
}

impl Kazoo {
    async fn start(python: &Path, address: &str) -> Kazoo {
        let mut child = Command::new(python)
            .arg(workspace().join("tests/interop/driver.py"))
            .args([address, "2"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("Python starts");
        let stdin = child.stdin.take().expect("piped");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let requests = Requests {
            stdin: Arc::new(tokio::sync::Mutex::new(stdin)),
            answers: Arc::default(),
            next: Arc::default(),
        };
        let hearing = requests.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                hearing.take(&line);
            }
        });
        Kazoo { child, requests }
    }

    pub fn begin(&self, request: Value) -> JoinHandle<Result<Value, String>> {
        let requests = self.requests.clone();
        tokio::spawn(async move { requests.ask(request).await })
    }

    pub async fn ask(&self, request: Value) -> Result<Value, String> {
        timeout(SOON, self.requests.ask(request)).await.expect("Python answers soon")
    }

    pub async fn lock(&self, name: &str, kind: &str) {
        let made = self.ask(json!({"do": "lock", "name": name, "path": PATH, "kind": kind})).await;
        made.expect("a lock object is made");
    }

    pub fn acquiring(&self, name: &str, timeout: Option<f64>) -> JoinHandle<Result<Value, String>> {
        self.begin(json!({"do": "acquire", "name": name, "timeout": timeout}))
    }

    pub async fn acquire(&self, name: &str, timeout: Option<f64>) -> Result<Value, String> {
        self.ask(json!({"do": "acquire", "name": name, "timeout": timeout})).await
    }

    pub async fn release(&self, name: &str) {
        self.ask(json!({"do": "release", "name": name})).await.expect("a release succeeds");
    }

    pub async fn kill(mut self) {
        self.child.kill().await.expect("it is killed");
    }
}
