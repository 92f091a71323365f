//! Tests against a server that answers as Patroni does.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use pvc_contracts::database_cluster::{DatabaseClusterFixture, database_cluster_contract};
use pvc_contracts::tcp_port::free_port;
use pvc_model::NodeName;
use pvc_model::database_cluster::Member;
use pvc_patroni::Patroni;
use pvc_ports::{DatabaseCluster, DatabaseClusterError};
use serde_json::{Value, json};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

struct Members {
    leader: Option<String>,
    lags: bool,
    /// The timelines of `hv1` and `hv2`.
    timelines: [Value; 2],
    /// Their positions in it, in bytes.
    positions: [u64; 2],
    /// Whether the Patroni of `hv1` does not answer for itself.
    is_silent: bool,
}

type Cluster = Arc<Mutex<Members>>;

async fn serve(cluster: Cluster) -> Patroni {
    let listener = tokio::net::TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = Router::new()
        .route("/cluster", get(move |state: State<Cluster>| members(state, port)))
        .route("/{member}/patroni", get(member))
        .route("/patroni", get(own))
        .route("/switchover", post(switchover))
        .with_state(cluster);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Patroni::new(LOOPBACK, port)
}

async fn members(State(cluster): State<Cluster>, port: u16) -> Json<Value> {
    let leader = cluster.lock().unwrap().leader.clone();
    let role = |name: &str| if leader.as_deref() == Some(name) { "leader" } else { "replica" };
    // What Patroni says here of the timelines is as old as its last round.
    let members = ["hv1", "hv2"].map(|name| {
        let address = format!("http://{LOOPBACK}:{port}/{name}/patroni");
        let role = role(name);
        json!({"name": name, "role": role, "state": "running", "api_url": address, "timeline": 6})
    });
    Json(json!({ "members": members, "scope": "pvc" }))
}

/// Answers as the Patroni of `hv2` does about itself.
async fn own(State(cluster): State<Cluster>) -> Json<Value> {
    let mut report = report(&cluster.lock().unwrap(), "hv2");
    report["dcs_last_seen"] = json!(1_700_000_000);
    Json(report)
}

#[tokio::test]
async fn a_member_is_reported_as_its_own_patroni_and_the_cluster_see_it() {
    for (leader, leads) in [("hv1", false), ("hv2", true)] {
        let patroni = serve(cluster(Some(leader), false)).await;
        let last_contact = Some(std::time::Duration::from_secs(1_700_000_000));
        let member = patroni.member(&NodeName::new("hv2")).await.unwrap();
        assert_eq!(member, Member { leads, state: Some("running".to_owned()), last_contact });
        assert_eq!(patroni.member(&NodeName::new("hv9")).await.unwrap().state, None);
    }
}

async fn member(
    State(cluster): State<Cluster>,
    Path(name): Path<String>,
) -> Result<Json<Value>, StatusCode> {
    let cluster = cluster.lock().unwrap();
    if name == "hv1" && cluster.is_silent {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    Ok(Json(report(&cluster, &name)))
}

/// Report of a member's Patroni, as that of Patroni 3.0.2 with PostgreSQL 15 names things.
fn report(cluster: &Members, name: &str) -> Value {
    let index = usize::from(name == "hv2");
    let position = cluster.positions[index];
    let (role, xlog) = match cluster.leader.as_deref() == Some(name) {
        true => ("master", json!({ "location": position })),
        false => {
            ("replica", json!({ "received_location": position, "replayed_location": position }))
        }
    };
    json!({
        "state": "running", "role": role, "xlog": xlog, "timeline": cluster.timelines[index]
    })
}

async fn switchover(
    State(cluster): State<Cluster>,
    Json(request): Json<Value>,
) -> (StatusCode, String) {
    let mut cluster = cluster.lock().unwrap();
    if request["leader"].as_str() != cluster.leader.as_deref() {
        return (StatusCode::PRECONDITION_FAILED, "leader name does not match".to_owned());
    }
    if cluster.lags {
        return (
            StatusCode::PRECONDITION_FAILED,
            "candidate does not match with sync_standby".to_owned(),
        );
    }
    cluster.leader = request["candidate"].as_str().map(str::to_owned);
    (StatusCode::OK, "Successfully switched over to \"hv2\"".to_owned())
}

fn cluster(leader: Option<&str>, lags: bool) -> Cluster {
    let timelines = [json!(7), json!(7)];
    let leader = leader.map(str::to_owned);
    Arc::new(Mutex::new(Members {
        leader,
        lags,
        timelines,
        positions: [4096, 4096],
        is_silent: false,
    }))
}

#[tokio::test]
async fn a_copy_that_has_not_followed_the_leader_yet_does_not_become_the_leader() {
    let cluster = cluster(Some("hv1"), false);
    cluster.lock().unwrap().timelines[1] = json!(6);
    let patroni = serve(cluster.clone()).await;
    let error = patroni.switch_to(&NodeName::new("hv2")).await.unwrap_err();
    let expected = "the database's leader was not changed: the copy on `hv2` is in timeline 6 and \
                    does not follow `hv1` into timeline 7 yet";
    assert_eq!(error.to_string(), expected);
    assert_eq!(
        cluster.lock().unwrap().leader.as_deref(),
        Some("hv1"),
        "nobody was asked to switch"
    );

    cluster.lock().unwrap().timelines[1] = json!(7);
    patroni.switch_to(&NodeName::new("hv2")).await.unwrap();
    assert_eq!(cluster.lock().unwrap().leader.as_deref(), Some("hv2"));
}

const AHEAD: &str = "running, but ahead of the leader; nothing but patronictl reinit helps";

/// Has `hv2` asked to lead in the place of `hv1`; why it does not.
async fn refusal(cluster: &Cluster, patroni: &Patroni) -> String {
    let error = patroni.switch_to(&NodeName::new("hv2")).await.unwrap_err().to_string();
    let leader = cluster.lock().unwrap().leader.clone();
    assert_eq!(leader.as_deref(), Some("hv1"), "nobody was asked to switch");
    error
}

async fn state_of_hv2(patroni: &Patroni) -> String {
    patroni.member(&NodeName::new("hv2")).await.unwrap().state.unwrap()
}

/// Both were promoted to the same timeline, and one lost power before the other knew.
#[tokio::test]
async fn a_copy_that_holds_what_the_leader_never_wrote_is_in_trouble_and_does_not_become_it() {
    let cluster = cluster(Some("hv1"), false);
    let patroni = serve(cluster.clone()).await;
    assert_eq!(state_of_hv2(&patroni).await, "running", "it has what the leader has");

    cluster.lock().unwrap().positions = [4096, 4097];
    assert_eq!(state_of_hv2(&patroni).await, AHEAD);
    let expected = "the database's leader was not changed: the copy on `hv2` holds what `hv1` \
                    never wrote; `patronictl reinit` throws it away and makes it anew";
    assert_eq!(refusal(&cluster, &patroni).await, expected);

    // A leader that says nothing changes nothing.
    cluster.lock().unwrap().is_silent = true;
    assert_eq!(state_of_hv2(&patroni).await, AHEAD);
    cluster.lock().unwrap().is_silent = false;
    // What is in another timeline is in other bytes; Patroni rewinds it.
    cluster.lock().unwrap().timelines[1] = json!(6);
    assert_eq!(state_of_hv2(&patroni).await, "running");
    cluster.lock().unwrap().is_silent = true;
    assert_eq!(state_of_hv2(&patroni).await, "running");
}

/// Such a copy stops when the leader has come as far, and its records do not fit.
#[tokio::test]
async fn a_copy_that_replays_no_more_does_not_become_the_leader() {
    let cluster = cluster(Some("hv1"), false);
    let patroni = serve(cluster.clone()).await;
    cluster.lock().unwrap().positions = [8192, 4096];
    let expected = "the database's leader was not changed: the copy on `hv2` has not replayed \
                    what `hv1` has written yet";
    assert_eq!(refusal(&cluster, &patroni).await, expected);

    cluster.lock().unwrap().positions[1] = 8192;
    patroni.switch_to(&NodeName::new("hv2")).await.unwrap();
    assert_eq!(cluster.lock().unwrap().leader.as_deref(), Some("hv2"));
    assert_eq!(state_of_hv2(&patroni).await, "running", "the leader is not ahead of itself");
}

#[tokio::test]
async fn a_copy_whose_timeline_nobody_tells_is_left_to_patroni() {
    let cluster = cluster(Some("hv1"), false);
    cluster.lock().unwrap().timelines[1] = Value::Null;
    serve(cluster.clone()).await.switch_to(&NodeName::new("hv2")).await.unwrap();
    assert_eq!(cluster.lock().unwrap().leader.as_deref(), Some("hv2"));
}

#[tokio::test]
async fn patroni_keeps_the_contract() {
    let fixture = DatabaseClusterFixture {
        good: Arc::new(serve(cluster(Some("hv1"), false)).await),
        refusing: Arc::new(serve(cluster(Some("hv1"), true)).await),
        absent: Arc::new(nobody()),
    };
    database_cluster_contract(fixture).await;
}

#[tokio::test]
async fn a_refusal_says_why() {
    let patroni = serve(cluster(Some("hv1"), true)).await;
    let error = patroni.switch_to(&NodeName::new("hv2")).await.unwrap_err();
    let expected = "the database's leader was not changed: candidate does not match with \
                    sync_standby (status 412)";
    assert_eq!(error.to_string(), expected);
    let patroni = serve(cluster(None, false)).await;
    assert_eq!(patroni.leader().await.unwrap(), None);
    assert!(matches!(
        patroni.switch_to(&NodeName::new("hv2")).await,
        Err(DatabaseClusterError::Refused { .. })
    ));
}

#[tokio::test]
async fn a_patroni_that_does_not_run_has_a_hint() {
    let error = nobody().leader().await.unwrap_err();
    assert!(error.hint().unwrap().contains("systemctl status patroni"));
}

/// Returns a client for a port at which nobody listens.
fn nobody() -> Patroni {
    Patroni::new(LOOPBACK, free_port())
}
