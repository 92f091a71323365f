//! Against a server that answers as Patroni does.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use pvc_model::NodeName;
use pvc_patroni::Patroni;
use pvc_ports::{Database, DatabaseError};
use serde_json::{Value, json};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The leader, and whether the candidate lags behind.
type Cluster = Arc<Mutex<(Option<String>, bool)>>;

async fn serve(cluster: Cluster) -> Patroni {
    let router = Router::new()
        .route("/cluster", get(members))
        .route("/switchover", post(switchover))
        .with_state(cluster);
    let listener = tokio::net::TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, router).await });
    Patroni::new(LOOPBACK, port)
}

async fn members(State(cluster): State<Cluster>) -> Json<Value> {
    let leader = cluster.lock().unwrap().0.clone();
    let role = |name: &str| if leader.as_deref() == Some(name) { "leader" } else { "replica" };
    let members: Vec<Value> = ["hv1", "hv2"].map(|name| json!({"name": name, "role": role(name)})).into();
    Json(json!({ "members": members, "scope": "pvc" }))
}

async fn switchover(State(cluster): State<Cluster>, Json(wish): Json<Value>) -> (StatusCode, String) {
    let mut cluster = cluster.lock().unwrap();
    if wish["leader"].as_str() != cluster.0.as_deref() {
        return (StatusCode::PRECONDITION_FAILED, "leader name does not match".to_owned());
    }
    if cluster.1 {
        return (StatusCode::PRECONDITION_FAILED, "candidate does not match with sync_standby".to_owned());
    }
    cluster.0 = wish["candidate"].as_str().map(str::to_owned);
    (StatusCode::OK, "Successfully switched over to \"hv2\"".to_owned())
}

fn cluster(leader: Option<&str>, lags: bool) -> Cluster {
    Arc::new(Mutex::new((leader.map(str::to_owned), lags)))
}

#[tokio::test]
async fn the_leader_is_switched_and_a_switch_to_the_leader_is_none() {
    let patroni = serve(cluster(Some("hv1"), false)).await;
    let two = NodeName::new("hv2");
    patroni.switch_to(&two).await.unwrap();
    assert_eq!(patroni.leader().await.unwrap(), Some(two.clone()));
    patroni.switch_to(&two).await.unwrap();
}

#[tokio::test]
async fn a_refusal_says_why() {
    let patroni = serve(cluster(Some("hv1"), true)).await;
    let error = patroni.switch_to(&NodeName::new("hv2")).await.unwrap_err();
    let expected =
        "the database's leader was not changed: candidate does not match with sync_standby (status 412)";
    assert_eq!(error.to_string(), expected);
    let patroni = serve(cluster(None, false)).await;
    assert_eq!(patroni.leader().await.unwrap(), None);
    assert!(matches!(patroni.switch_to(&NodeName::new("hv2")).await, Err(DatabaseError::Refused { .. })));
}

#[tokio::test]
async fn a_patroni_that_does_not_run_is_unreachable() {
    let listener = std::net::TcpListener::bind((LOOPBACK, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let error = Patroni::new(LOOPBACK, port).leader().await.unwrap_err();
    assert!(matches!(error, DatabaseError::Unreachable { .. }), "{error}");
    assert!(error.hint().unwrap().contains("systemctl status patroni"));
}
