//! A ZooKeeper server is a Tree, and the embedded tree behaves like it. All rules in one test:
//! starting a server takes a second.

use std::sync::Arc;

use async_trait::async_trait;
use pvc_contracts::tree::{self, TreeFixture};
use pvc_contracts::tree_agreement::agree;
use pvc_contracts::zookeeper_server::ZookeeperServer;
use pvc_embedded::EmbeddedTree;
use pvc_ports::{CreateMode, Tree};
use pvc_zookeeper::{ZookeeperOptions, ZookeeperTree};
use tempfile::TempDir;

struct Zookeeper {
    server: ZookeeperServer,
    _dir: TempDir,
}

#[async_trait]
impl TreeFixture for Zookeeper {
    async fn connect(&self) -> Arc<dyn Tree> {
        let tree =
            ZookeeperTree::connect(&self.server.address(), ZookeeperOptions::default()).await;
        Arc::new(tree.expect("the server lets us in"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zookeeper_keeps_the_contract_of_the_tree() {
    let dir = TempDir::new().expect("a directory");
    let server = ZookeeperServer::start(dir.path()).expect("the server starts");
    tree::all(&Zookeeper { server, _dir: dir }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_tree_answers_as_zookeeper_does() {
    const WALKS: u64 = 20;
    let dir = TempDir::new().expect("a directory");
    let server = ZookeeperServer::start(dir.path()).expect("the server starts");
    let zookeeper = Zookeeper { server, _dir: dir };
    let real = zookeeper.connect().await;
    for seed in 1..=WALKS {
        let embedded = EmbeddedTree::in_memory();
        let root = format!("/walk-{seed}");
        for tree in [&*real as &dyn Tree, &embedded] {
            tree.create(&root, "".into(), CreateMode::Persistent)
                .await
                .expect("a creation succeeds");
        }
        agree(&*real, &embedded, &root, seed, 200).await;
    }
}
