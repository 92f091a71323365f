//! Nodes.

use axum::extract::State;
use axum::response::Response;
use pvc_api_types::{Node, NodeCoordinatorState, NodeDaemonState, NodeDomainState, NodeLog};
use pvc_model::cluster::Cluster;
use pvc_model::node::NodeRecord;
use pvc_ops::node::{self, Requested};
use pvc_store::ChangeError;

use super::Api;
use super::at::AtNode;
use crate::error::{ApiError, Result};
use crate::json;
use crate::limit::Limit;
use crate::openapi::{Changed, ReadRefused};
use crate::params::{Flag, Or, Params, choice, params, shown};
use crate::refuse::{refused, store_error};
use crate::state::ApiState;
use crate::view;
use crate::wait;

params! {
    /// Which nodes to list. The three states are alternatives to each other.
    pub struct NodeFilter {
        /// A regular expression on the name.
        limit: Option<String>,
        /// Nodes whose daemon is in this state.
        daemon_state: Option<String>,
        /// Nodes in this coordinator state.
        coordinator_state: Option<String>,
        /// Nodes in this domain state.
        domain_state: Option<String>,
    }
}

impl NodeFilter {
    fn states_match(&self, node: &NodeRecord) -> bool {
        let wanted = [
            (&self.daemon_state, node.daemon_state.as_str()),
            (&self.coordinator_state, node.coordinator_state.as_str()),
            (&self.domain_state, node.domain_state.as_str()),
        ];
        let mut given = wanted
            .iter()
            .filter_map(|(wanted, is)| wanted.as_ref().map(|wanted| wanted == is))
            .peekable();
        given.peek().is_none() || given.any(|matches| matches)
    }
}

/// The nodes by name.
#[utoipa::path(
    get, path = "/api/v1/node", tag = "node", params(NodeFilter),
    responses((status = 200, body = Vec<Node>), ReadRefused)
)]
pub async fn get_node(State(api): Api, Params(filter): Params<NodeFilter>) -> Result<Response> {
    let limit = Limit::new(filter.limit.as_deref())?;
    let cluster = api.view();
    let wanted =
        |record: &&NodeRecord| limit.matches(record.name.as_str()) && filter.states_match(record);
    let records = cluster.nodes.values().map(AsRef::as_ref).filter(wanted);
    Ok(json::ok(&records.map(|record| view::node::node(record, &cluster)).collect::<Vec<_>>()))
}

pub fn find<'a>(cluster: &'a Cluster, name: &str) -> Result<&'a NodeRecord> {
    cluster.node(name).map(AsRef::as_ref).ok_or_else(|| {
        ApiError::not_found(format!("there is no node `{}`", shown(name)))
            .hint(Some("`pvc node list` lists them"))
    })
}

/// One node.
#[utoipa::path(
    get, path = "/api/v1/node/{node}", tag = "node",
    params(AtNode),
    responses((status = 200, body = Vec<Node>), ReadRefused)
)]
pub async fn get_node_node(State(api): Api, AtNode(name): AtNode) -> Result<Response> {
    let cluster = api.view();
    Ok(json::ok(&[view::node::node(find(&cluster, &name)?, &cluster)]))
}

/// The state of a node's daemon.
#[utoipa::path(
    get, path = "/api/v1/node/{node}/daemon-state", tag = "node",
    params(AtNode),
    responses((status = 200, body = NodeDaemonState), ReadRefused)
)]
pub async fn get_node_node_daemon_state(State(api): Api, AtNode(name): AtNode) -> Result<Response> {
    let cluster = api.view();
    let daemon_state = find(&cluster, &name)?.daemon_state.to_string();
    Ok(json::ok(&NodeDaemonState { name, daemon_state }))
}

/// A node's part in the coordination.
#[utoipa::path(
    get, path = "/api/v1/node/{node}/coordinator-state", tag = "node",
    params(AtNode),
    responses((status = 200, body = NodeCoordinatorState), ReadRefused)
)]
pub async fn get_node_node_coordinator_state(
    State(api): Api,
    AtNode(name): AtNode,
) -> Result<Response> {
    let cluster = api.view();
    let coordinator_state = find(&cluster, &name)?.coordinator_state.to_string();
    Ok(json::ok(&NodeCoordinatorState { name, coordinator_state }))
}

/// Whether a node takes VMs.
#[utoipa::path(
    get, path = "/api/v1/node/{node}/domain-state", tag = "node",
    params(AtNode),
    responses((status = 200, body = NodeDomainState), ReadRefused)
)]
pub async fn get_node_node_domain_state(State(api): Api, AtNode(name): AtNode) -> Result<Response> {
    let cluster = api.view();
    let domain_state = find(&cluster, &name)?.domain_state.to_string();
    Ok(json::ok(&NodeDomainState { name, domain_state }))
}

params! {
    /// How much of a log.
    pub struct Lines {
        /// How many of the last lines.
        lines: Or<10>,
    }
}

/// The last `lines` lines of a log.
pub fn last_lines(log: &str, lines: u32) -> String {
    let all: Vec<&str> = log.lines().collect();
    let skipped = all.len().saturating_sub(usize::try_from(lines).unwrap_or(usize::MAX));
    all[skipped..].join("\n")
}

/// The end of a node's log.
#[utoipa::path(
    get, path = "/api/v1/node/{node}/log", tag = "node",
    params(AtNode, Lines),
    responses((status = 200, body = NodeLog), ReadRefused)
)]
pub async fn get_node_node_log(
    State(api): Api,
    AtNode(name): AtNode,
    Params(lines): Params<Lines>,
) -> Result<Response> {
    let node = find(&api.view(), &name)?.name.clone();
    let log = api.ask(async { api.store().node_log(&node).await.map_err(store_error) }).await?;
    let log = log.unwrap_or_default();
    Ok(json::ok(&NodeLog { name, data: last_lines(&log, lines.lines.0) }))
}

choice! {
    /// What part a node is to have.
    pub enum Part { Primary = "primary", Secondary = "secondary" }
}

params! {
    /// The part that is wanted.
    pub struct CoordinatorRequest {
        /// `primary`, or `secondary` to hand the role over.
        state: Part,
    }
}

choice! {
    /// Whether a node is to take VMs.
    pub enum Duty { Ready = "ready", Flush = "flush" }
}

params! {
    /// The state that is wanted.
    pub struct DomainRequest {
        /// `flush` moves the node's VMs away, `ready` takes them back.
        state: Duty,
        /// Reply when it is done.
        wait: Flag,
        /// Change nothing, and reply what a flush would do with each VM.
        dry_run: Flag,
    }
}

/// Asks a node to become primary, or to leave that to another.
#[utoipa::path(
    post,
    path = "/api/v1/node/{node}/coordinator-state",
    tag = "node",
    params(AtNode, CoordinatorRequest),
    responses(Changed)
)]
pub async fn post_node_node_coordinator_state(
    State(api): Api,
    AtNode(name): AtNode,
    Params(CoordinatorRequest { state }): Params<CoordinatorRequest>,
) -> Result<Response> {
    let (request, word) = match state {
        Part::Primary => (node::CoordinatorRequest::Primary, "primary"),
        Part::Secondary => (node::CoordinatorRequest::Secondary, "secondary"),
    };
    let asked = name.clone();
    let set = |api: ApiState| async move {
        node::set_coordinator_state(api.store(), &asked, request).await
    };
    Ok(match api.carry_out(set).await? {
        Requested::Yes => json::done(format!("node `{name}` is to become {word}")),
        Requested::Already | Requested::UnderWay => {
            json::done(format!("node `{name}` is {word} already"))
        }
    })
}

/// Has a node's VMs moved away, or takes them back.
#[utoipa::path(
    post,
    path = "/api/v1/node/{node}/domain-state",
    tag = "node",
    params(AtNode, DomainRequest),
    responses(Changed)
)]
pub async fn post_node_node_domain_state(
    State(api): Api,
    AtNode(name): AtNode,
    Params(DomainRequest { state, wait, dry_run }): Params<DomainRequest>,
) -> Result<Response> {
    if dry_run.0 {
        return planned(&api, &name, state);
    }
    let (request, is_so, will_be) = match state {
        Duty::Ready => (node::DomainRequest::Ready, "ready", "being made ready"),
        Duty::Flush => (node::DomainRequest::Flush, "flushed", "being flushed"),
    };
    let asked = name.clone();
    let set =
        |api: ApiState| async move { node::set_domain_state(api.store(), &asked, request).await };
    let stays = match state {
        Duty::Flush => left_behind(&api.view(), &name),
        Duty::Ready => String::new(),
    };
    let requested = api.carry_out(set).await?;
    if wait.0 {
        wait::for_node(&api, &name, request).await?;
    }
    Ok(match requested {
        Requested::Already => json::done(format!("node `{name}` is {is_so} already")),
        Requested::Yes | Requested::UnderWay if wait.0 => {
            json::done(format!("node `{name}` is {is_so}{stays}"))
        }
        Requested::UnderWay => json::done(format!("node `{name}` is {will_be} already{stays}")),
        Requested::Yes => json::done(format!("node `{name}` is {will_be}{stays}")),
    })
}

fn planned(api: &ApiState, name: &str, state: Duty) -> Result<Response> {
    if !matches!(state, Duty::Flush) {
        return Err(ApiError::refused("only a flush can be planned without doing it".to_owned()));
    }
    let fates =
        node::plan_flush(&api.view(), name).map_err(|why| refused(ChangeError::Refused(why)))?;
    Ok(json::ok(&view::node::flush_plan(name, &fates)))
}

/// How many VMs a message names.
const NAMED: usize = 5;

/// What an operator may not expect of the flush of a node that has nobody to give its VMs to.
fn left_behind(cluster: &Cluster, name: &str) -> String {
    let vms = node::left_behind(cluster, name);
    let is_last = node::is_last_to_take_vms(cluster, name);
    let (they, are, named) = match vms.as_slice() {
        [] if is_last => return "; note: no node takes VMs from now on".to_owned(),
        [] => return String::new(),
        [only] => ("it", "is", format!("VM `{only}`")),
        several => ("they", "are", format!("VMs {}", list(several))),
    };
    let why = match is_last {
        true => format!("no other node takes VMs: {named}"),
        false => format!("no other node can take {named}: {they}"),
    };
    format!("; note: {why} {are} shut down, and started again when the node is ready")
}

/// `a`, `b` and 3 more
fn list(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(NAMED).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(NAMED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
