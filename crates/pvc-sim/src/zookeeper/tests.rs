//! The simulated ZooKeeper is a Tree.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pvc_contracts::tree::TreeFixture;
use pvc_ports::{CreateMode, Op, SessionState, Tree, TreeEvent};

use super::{Connection, Ensemble};
use crate::cluster::{Cluster, Shape, host_name};
use crate::host::Host;
use crate::log::Log;
use crate::process::Gate;
use crate::state::{State, World};

struct Simulated(World);

impl Simulated {
    /// Three hosts on which nothing runs but ZooKeeper.
    fn servers() -> Simulated {
        let host = |index| Host::new(host_name(index), true, 1024, 0);
        let nature = Shape::plain(3, 0).nature;
        let world = World::new(nature, Log::new(false), (0..3).map(host).collect());
        world.with(|state| {
            for host in &mut *state.hosts {
                (host.on, host.booted) = (true, true);
            }
            state.rearranged();
            state.with_zookeeper(Ensemble::watch_sessions);
        });
        Simulated(world)
    }

    /// Servers each of which is told late of what is written, some later than others.
    fn lagging() -> Simulated {
        let servers = Simulated::servers();
        servers.0.with(|state| {
            for (host, lag_ms) in [(0, (1, 40)), (1, (0, 10)), (2, (20, 90))] {
                set_lag(state, host, lag_ms);
            }
        });
        servers
    }

    /// A client whose server is the one on `host`.
    async fn client_of(&self, host: usize) -> Connection {
        let pid = self.0.with(|state| {
            while state.processes.len() % 3 != host {
                state.processes.start("nobody".to_owned(), Some(0));
            }
            state.processes.start("a client".to_owned(), Some(0))
        });
        let gate = Gate { world: self.0.clone(), pid };
        let connection = Connection::open(gate).await.expect("there is a quorum");
        let server = self.0.with(|state| state.zookeeper.clients[connection.client].server);
        assert_eq!(server, Some(host));
        connection
    }
}

fn set_lag(state: &mut State, host: usize, lag_ms: (u64, u64)) {
    state.with_zookeeper(|zookeeper, around| zookeeper.set_lag(around, host, lag_ms));
}

async fn data(tree: &Connection, path: &str) -> Option<Bytes> {
    tree.get(path).await.expect("it answers").map(|entry| entry.data)
}

async fn write(tree: &Connection, path: &str, text: &'static str) {
    tree.create(path, Bytes::from_static(text.as_bytes()), CreateMode::Persistent)
        .await
        .expect("it is new");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lags_shows_what_was_until_it_is_notified_or_asked_to_catch_up() {
    let servers = Simulated::servers();
    let (quick, late) = (servers.client_of(0).await, servers.client_of(1).await);
    let mut events = late.watch("/").await.expect("it watches");
    servers.0.with(|state| set_lag(state, 1, (3000, 3000)));
    write(&quick, "/a", "one").await;
    let written = servers.0.now();
    assert_eq!(data(&quick, "/a").await.as_deref(), Some(&b"one"[..]));
    assert_eq!(data(&late, "/a").await, None);
    assert!(events.try_recv().is_err(), "an event comes before what it is about");
    late.sync().await.expect("it answers");
    assert_eq!(data(&late, "/a").await.as_deref(), Some(&b"one"[..]));
    assert!(servers.0.now() - written >= Duration::from_millis(2900));
    assert_eq!(events.recv().await, Some(TreeEvent::Changed { path: "/a".to_owned() }));
}

#[tokio::test(start_paused = true)]
async fn whoever_writes_by_a_server_that_lags_reads_it_afterwards_and_others_before() {
    let servers = Simulated::servers();
    servers.0.with(|state| set_lag(state, 1, (3000, 3000)));
    let (quick, late) = (servers.client_of(0).await, servers.client_of(1).await);
    let begun = servers.0.now();
    let (early, ()) = tokio::join!(
        async {
            while data(&quick, "/a").await.is_none() {}
            servers.0.now() - begun
        },
        write(&late, "/a", "one")
    );
    assert!(early < Duration::from_secs(1), "{early:?}");
    assert!(servers.0.now() - begun >= Duration::from_secs(3));
    assert_eq!(data(&late, "/a").await.as_deref(), Some(&b"one"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_knows_less_than_the_client_has_seen_refuses_it() {
    let servers = Simulated::servers();
    let client = servers.client_of(0).await;
    servers.0.with(|state| set_lag(state, 1, (8000, 8000)));
    write(&client, "/a", "one").await;
    assert!(data(&client, "/a").await.is_some());
    servers.0.with(|state| {
        state.hosts[0].server_up = false;
        state.rearranged();
    });
    let mut session = client.session();
    session
        .wait_for(|state| *state == SessionState::Disconnected)
        .await
        .expect("the world goes on");
    session
        .wait_for(|state| matches!(state, SessionState::Connected { .. }))
        .await
        .expect("it goes on");
    let server = servers.0.with(|state| state.zookeeper.clients[client.client].server);
    assert_eq!(server, Some(2), "the one that does not lag");
    assert!(data(&client, "/a").await.is_some(), "nobody sees what was before what they have seen");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_too_far_behind_is_no_part_of_the_quorum_until_it_has_caught_up() {
    let servers = Simulated::servers();
    servers.0.with(|state| {
        state.hosts[2].server_up = false;
        set_lag(state, 1, (60_000, 60_000));
        state.rearranged();
        assert!(!state.zookeeper.has_quorum());
        set_lag(state, 1, (0, 0));
        state.rearranged();
        assert!(state.zookeeper.has_quorum());
    });
    let late = servers.client_of(1).await;
    write(&late, "/a", "one").await;
}

mod lagging {
    use super::Simulated;

    pvc_contracts::tree_contract!(Simulated::lagging());
}

#[async_trait]
impl TreeFixture for Simulated {
    async fn connect(&self) -> Arc<dyn Tree> {
        let pid = self.0.with(|state| state.processes.start("a client".to_owned(), Some(0)));
        let gate = Gate { world: self.0.clone(), pid };
        Arc::new(Connection::open(gate).await.expect("there is a quorum"))
    }
}

pvc_contracts::tree_contract!(Simulated::servers());

#[tokio::test(start_paused = true)]
async fn who_touches_a_key_that_nobody_knows_is_found() {
    let cluster = Cluster::start(Shape::plain(1, 1), Log::new(false)).await.expect("all is well");
    let spoilt = cluster.world.with(|state| {
        state.with_zookeeper(Ensemble::add_unknown_keys);
        assert_eq!(state.zookeeper.changed_unknown_keys(), [""; 0]);
        let path = "/nodes/hv1/future".to_owned();
        let spoil = vec![Op::Set { path, data: Bytes::new(), version: None }];
        state.with_zookeeper(|zookeeper, around| zookeeper.write_from_outside(around, spoil));
        state.zookeeper.changed_unknown_keys()
    });
    assert_eq!(spoilt, ["/nodes/hv1/future"]);
}
