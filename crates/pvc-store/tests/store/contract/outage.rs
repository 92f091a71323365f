//! The store on a real ZooKeeper that stops, restarts and loses everything.

use std::sync::Arc;
use std::time::Duration;

use pvc_contracts::zookeeper_server::ZookeeperServer;
use pvc_model::cluster::Cluster;
use pvc_store::{Changes, ConfigChange, Store};
use pvc_testkit::{SeededRandom, TokioClock};
use pvc_zookeeper::{ZookeeperOptions, ZookeeperTree};
use tempfile::TempDir;
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(20);

async fn store_on(server: &ZookeeperServer) -> Store {
    let tree = ZookeeperTree::connect(&server.address(), ZookeeperOptions::default()).await;
    let tree = Arc::new(tree.expect("the server lets us in"));
    let store = Store::open(tree, Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(7)));
    store.await.expect("the tree can be read")
}

async fn set_maintenance(store: &Store, on: bool) {
    let decide = |_: &Cluster| {
        let mut changes = Changes::new();
        changes.config(ConfigChange::Maintenance(on));
        Ok::<_, std::convert::Infallible>((changes, ()))
    };
    store.change(decide).await.expect("the change is made");
}

/// Waits for the view alone; asks the server nothing.
async fn wait_for_view(store: &Store, what: &str, wanted: impl Fn(&Cluster) -> bool) {
    let mut changed = store.changed();
    let look = async {
        while !wanted(&store.view()) {
            changed.changed().await.expect("the store lives");
        }
    };
    timeout(SOON, look).await.unwrap_or_else(|_| panic!("the view does not show it: {what}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_outlives_the_server_and_catches_up_with_what_it_missed() {
    let dir = TempDir::new().expect("a directory");
    let mut server = ZookeeperServer::start(dir.path()).expect("the server starts");
    let store = store_on(&server).await;
    store.initialize(false).await.expect("an empty tree can be initialized");
    for on in [true, false] {
        server.kill().expect("it dies");
        assert_eq!(store.view().config.maintenance, !on, "the view stays during the outage");
        assert!(store.is_initialized());
        server.resume().expect("it starts again");
        set_maintenance(&store_on(&server).await, on).await;
        wait_for_view(&store, "what another wrote after the outage", |view| {
            view.config.maintenance == on
        })
        .await;
        set_maintenance(&store, on).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_that_lost_everything_is_shown_as_it_is_and_can_be_filled_again() {
    let dir = TempDir::new().expect("a directory");
    let mut server = ZookeeperServer::start(dir.path()).expect("the server starts");
    let store = store_on(&server).await;
    store.initialize(false).await.expect("an empty tree can be initialized");
    set_maintenance(&store, true).await;
    let backup = store.backup(true).await.expect("everything can be read");
    server.restart_empty().expect("it starts again");
    wait_for_view(&store, "that nothing is left", |view| !view.config.initialized).await;
    store.restore(&backup).await.expect("everything can be written");
    wait_for_view(&store, "what was restored", |view| view.config.maintenance).await;
    set_maintenance(&store, false).await;
    wait_for_view(&store, "a change after it", |view| !view.config.maintenance).await;
}
