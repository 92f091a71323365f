//! The records on a real ZooKeeper, closed to whoever does not know their password and opened
//! again.

use std::sync::Arc;

use bytes::Bytes;
use pvc_contracts::zookeeper_server::ZookeeperServer;
use pvc_ports::{Access, AccessList, CreateMode, Tree, TreeError};
use pvc_store::{Store, StoreError};
use pvc_testkit::{SeededRandom, TokioClock};
use pvc_zookeeper::{ZookeeperOptions, ZookeeperTree};
use tempfile::TempDir;

async fn tree(server: &ZookeeperServer, password: Option<&str>) -> Arc<ZookeeperTree> {
    let options =
        ZookeeperOptions { password: password.map(Arc::from), ..ZookeeperOptions::default() };
    Arc::new(ZookeeperTree::connect(&server.address(), options).await.unwrap())
}

async fn store(server: &ZookeeperServer, password: Option<&str>) -> Store {
    let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(7)));
    Store::open(tree(server, password).await, clock, random).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_records_of_a_running_cluster_are_closed_and_opened_and_those_of_others_stay() {
    const SECRET: Option<&str> = Some("a long random text");
    let dir = TempDir::new().unwrap();
    let server = ZookeeperServer::start(dir.path()).unwrap();
    let (one, two) = (store(&server, SECRET).await, store(&server, SECRET).await);
    let unauthenticated = tree(&server, None).await;
    unauthenticated.create("/patroni", Bytes::new(), CreateMode::Persistent).await.unwrap();
    unauthenticated.create("/patroni/leader", Bytes::new(), CreateMode::Persistent).await.unwrap();
    one.initialize(false).await.unwrap();
    let open = one.protection().await.unwrap();
    assert_eq!((open.access, open.closed), (AccessList::Anybody, 0));
    assert!(open.open > 20, "all that a new cluster has: {}", open.open);

    // What is being created meanwhile is not forgotten.
    let locks = two.role_locks();
    let (closed, lock) = tokio::join!(one.protect(Access::Members), async {
        unauthenticated.until_refused().await;
        locks.candidate(std::time::Duration::from_secs(5)).await
    });
    let closed = closed.unwrap();
    assert_eq!((closed.access, closed.open), (AccessList::Members, 0));
    assert!(closed.closed >= open.open);
    lock.unwrap().release().await;
    assert!(two.fresh().await.unwrap().config.schema.is_some(), "members go on");
    assert!(matches!(unauthenticated.get("/config").await, Err(TreeError::NotAllowed { .. })));
    assert!(
        unauthenticated.get("/patroni/leader").await.unwrap().is_some(),
        "that is another program's"
    );
    assert_eq!(one.repair_protection().await.unwrap(), 0);

    // A member of an earlier time that missed the change has left something open.
    let member = tree(&server, SECRET).await;
    member.access_control().unwrap().set_access("/nodes", Access::Anybody).await.unwrap();
    assert_eq!(one.protection().await.unwrap().open, 1);
    assert_eq!(two.repair_protection().await.unwrap(), 1);
    assert_eq!(one.protection().await.unwrap().open, 0);

    let opened = two.protect(Access::Anybody).await.unwrap();
    assert_eq!((opened.access, opened.closed), (AccessList::Anybody, 0));
    assert!(unauthenticated.get("/config").await.unwrap().is_some());

    // What proves which password a daemon knows is for those who know it, and hinders nobody else.
    one.announce_daemon(&"hv1".into(), "knows it").await.unwrap();
    let proof = "/pvcrs/passwords/hv1";
    assert_eq!(
        member.access_control().unwrap().access(proof).await.unwrap(),
        Some(AccessList::Members)
    );
    let unknowing = store(&server, None).await;
    assert!(matches!(unknowing.protect(Access::Members).await, Err(StoreError::NoPassword)));
    assert_eq!(unknowing.repair_protection().await.unwrap(), 0);
    assert!(matches!(unauthenticated.get(proof).await, Err(TreeError::NotAllowed { .. })));
    one.initialize(true).await.unwrap();
    assert!(unauthenticated.get(proof).await.unwrap().is_none());
}
