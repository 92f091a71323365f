//! Nodes.

use pvc_api_types::operations::node::{
    DeleteNodeNode, Duty, GetNode, GetNodeNode, GetNodeNodeCoordinatorState,
    GetNodeNodeDaemonState, GetNodeNodeDomainState, GetNodeNodeLog, NodeFilter, Part,
    PostNodeNodeConfirmOff, PostNodeNodeCoordinatorState, PostNodeNodeDomainState,
};
use pvc_api_types::{Node, NodeCoordinatorState, NodeDaemonState, NodeDomainState, NodeLog};
use pvc_model::cluster::Cluster;
use pvc_model::fence::WATCH;
use pvc_model::node::NodeRecord;
use pvc_model::node::removal::References;
use pvc_model::{listed, shown};
use pvc_ops::node::{self, OffWord, Removal, Requested};
use pvc_store::ChangeError;

use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::limit::Limit;
use crate::refuse::refused;
use crate::state::{ApiState, Logged};
use crate::table::{Ask, Table};
use crate::view;
use crate::wait;

pub fn add(table: Table) -> Table {
    table
        .add(get_node)
        .add(get_node_node)
        .add(delete_node_node)
        .add(get_node_node_daemon_state)
        .add(get_node_node_coordinator_state)
        .add(post_node_node_coordinator_state)
        .add(get_node_node_domain_state)
        .add(post_node_node_domain_state)
        .add(post_node_node_confirm_off)
        .add(get_node_node_log)
}

fn states_match(filter: &NodeFilter, node: &NodeRecord) -> bool {
    let wanted = [
        (&filter.daemon_state, node.daemon_state.as_str()),
        (&filter.coordinator_state, node.coordinator_state.as_str()),
        (&filter.domain_state, node.domain_state.as_str()),
    ];
    let mut given = wanted
        .iter()
        .filter_map(|(wanted, is)| wanted.as_ref().map(|wanted| wanted == is))
        .peekable();
    given.peek().is_none() || given.any(|matches| matches)
}

async fn get_node(ask: Ask<GetNode>) -> Result<Answer<GetNode>> {
    let limit = Limit::new(ask.params.limit.as_deref())?;
    let cluster = ask.api.view();
    let wanted = |record: &&NodeRecord| {
        limit.matches(record.name.as_str()) && states_match(&ask.params, record)
    };
    let records = cluster.nodes.values().map(AsRef::as_ref).filter(wanted);
    let nodes: Vec<Node> = records.map(|record| view::node::node(record, &cluster)).collect();
    Ok(Answer::json(&nodes))
}

pub fn find<'a>(cluster: &'a Cluster, name: &str) -> Result<&'a NodeRecord> {
    cluster.node(name).map(AsRef::as_ref).ok_or_else(|| {
        ApiError::not_found(format!("there is no node `{}`", shown(name)))
            .hint(Some("`pvc node list` lists them"))
    })
}

async fn get_node_node(ask: Ask<GetNodeNode>) -> Result<Answer<GetNodeNode>> {
    let [name] = ask.at;
    let cluster = ask.api.view();
    Ok(Answer::json(&vec![view::node::node(find(&cluster, &name)?, &cluster)]))
}

async fn get_node_node_daemon_state(
    ask: Ask<GetNodeNodeDaemonState>,
) -> Result<Answer<GetNodeNodeDaemonState>> {
    let [name] = ask.at;
    let cluster = ask.api.view();
    let daemon_state = find(&cluster, &name)?.daemon_state.to_string();
    Ok(Answer::json(&NodeDaemonState { name, daemon_state }))
}

async fn get_node_node_coordinator_state(
    ask: Ask<GetNodeNodeCoordinatorState>,
) -> Result<Answer<GetNodeNodeCoordinatorState>> {
    let [name] = ask.at;
    let cluster = ask.api.view();
    let coordinator_state = find(&cluster, &name)?.coordinator_state.to_string();
    Ok(Answer::json(&NodeCoordinatorState { name, coordinator_state }))
}

async fn get_node_node_domain_state(
    ask: Ask<GetNodeNodeDomainState>,
) -> Result<Answer<GetNodeNodeDomainState>> {
    let [name] = ask.at;
    let cluster = ask.api.view();
    let domain_state = find(&cluster, &name)?.domain_state.to_string();
    Ok(Answer::json(&NodeDomainState { name, domain_state }))
}

/// The last `lines` lines of a log.
pub fn last_lines(log: &str, lines: u32) -> String {
    let all: Vec<&str> = log.lines().collect();
    let skipped = all.len().saturating_sub(usize::try_from(lines).unwrap_or(usize::MAX));
    all[skipped..].join("\n")
}

async fn get_node_node_log(ask: Ask<GetNodeNodeLog>) -> Result<Answer<GetNodeNodeLog>> {
    let ([name], api) = (ask.at, ask.api);
    let node = find(&api.view(), &name)?.name.clone();
    let data = last_lines(&api.log(Logged::Node(node)).await?, ask.params.lines.0);
    Ok(Answer::json(&NodeLog { name, data }))
}

async fn post_node_node_coordinator_state(
    ask: Ask<PostNodeNodeCoordinatorState>,
) -> Result<Answer<PostNodeNodeCoordinatorState>> {
    let [name] = ask.at;
    let (request, word) = match ask.params.state {
        Part::Primary => (node::CoordinatorRequest::Primary, "primary"),
        Part::Secondary => (node::CoordinatorRequest::Secondary, "secondary"),
    };
    let asked = name.clone();
    let set = |api: ApiState| async move {
        node::set_coordinator_state(api.store(), &asked, request).await
    };
    Ok(ask.mode.done(match ask.api.carry_out(set).await? {
        Requested::Yes => format!("node `{name}` is to become {word}"),
        Requested::Already | Requested::UnderWay => format!("node `{name}` is {word} already"),
    }))
}

async fn post_node_node_domain_state(
    ask: Ask<PostNodeNodeDomainState>,
) -> Result<Answer<PostNodeNodeDomainState>> {
    let ([name], api, state) = (ask.at, ask.api, ask.params.state);
    if ask.mode.is_dry() && state == Duty::Flush {
        let fates = node::plan_flush(&api.view(), &name);
        let fates = fates.map_err(|why| refused(ChangeError::Refused(why)))?;
        return Ok(Answer::planned(&view::node::flush_plan(&name, &fates)));
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
    let wait = ask.params.wait.0 && !ask.mode.is_dry();
    if wait {
        wait::for_node(&api, &name, request).await?;
    }
    Ok(ask.mode.done(match requested {
        Requested::Already => format!("node `{name}` is {is_so} already"),
        Requested::Yes | Requested::UnderWay if wait => format!("node `{name}` is {is_so}{stays}"),
        Requested::UnderWay => format!("node `{name}` is {will_be} already{stays}"),
        Requested::Yes => format!("node `{name}` is {will_be}{stays}"),
    }))
}

/// Takes the caller's word, and logs whose it is: nothing else proves that the node is off.
async fn post_node_node_confirm_off(
    ask: Ask<PostNodeNodeConfirmOff>,
) -> Result<Answer<PostNodeNodeConfirmOff>> {
    let ([name], api) = (ask.at, ask.api);
    let recover = api.settings().recover_after_fence;
    let who = ask.caller.description.to_string();
    if !ask.mode.is_dry() {
        // Before: what becomes of it may stay unknown.
        tracing::warn!(node = shown(&name), caller = who, "an operator says that a node is off");
    }
    let asked = api.settings().node.clone();
    let nobody_fences = api.settings().nobody_fences;
    let word = OffWord { node: name.clone(), who, asked, recover, nobody_fences };
    if let Err(error) = take_word(&api, word).await {
        if !ask.mode.is_dry() {
            tracing::warn!(node = shown(&name), "the word that a node is off was not recorded");
        }
        return Err(error);
    }
    let follows = match (recover, nobody_fences) {
        (true, _) => "its VMs are started elsewhere",
        (false, true) => "its VMs wait for it, because `fence_intervals` is 0",
        (false, false) => "its VMs wait for it, because `successful_fence` is `none`",
    };
    Ok(ask.mode.done(format!("node `{name}` is recorded as off: {follows}")))
}

/// Takes the word that a node is off once it was watched. That is a part of the request: a client
/// that goes away meanwhile takes its word back.
async fn take_word(api: &ApiState, word: OffWord) -> Result<()> {
    let time = api.settings().limits.change_time + WATCH;
    let watch =
        async { node::watch(api.store(), api.clock().as_ref(), &word).await.map_err(refused) };
    let watched = api.ask_within(time, watch).await?;
    let confirm = |api: ApiState| async move {
        node::confirm_off(api.store(), api.clock().as_ref(), &word, &watched).await
    };
    api.carry_out(confirm).await
}

/// Removes the node, and logs who asks for it.
async fn delete_node_node(ask: Ask<DeleteNodeNode>) -> Result<Answer<DeleteNodeNode>> {
    let ([name], api) = (ask.at, ask.api);
    let who = ask.caller.description.to_string();
    if !ask.mode.is_dry() {
        // Before: what becomes of it may stay unknown.
        tracing::warn!(node = shown(&name), caller = who, "the removal of a node is asked for");
    }
    let asked = api.settings().node.clone();
    let coordinators = api.settings().coordinators.clone();
    let removed = remove(&api, Removal { node: name.clone(), asked, coordinators }).await;
    if !ask.mode.is_dry() {
        match &removed {
            Ok(_) => tracing::warn!(node = shown(&name), "the node was removed from the cluster"),
            Err(_) => tracing::warn!(
                node = shown(&name),
                "the node was not removed, or that is not known"
            ),
        }
    }
    let found = removed?;
    Ok(ask.mode.done(format!("node `{name}` is removed{}", beside(&found))))
}

/// Removes a node once it was watched. That is a part of the request: a client that goes away
/// meanwhile takes it back.
async fn remove(api: &ApiState, removal: Removal) -> Result<References> {
    let time = api.settings().limits.change_time + WATCH;
    let watch = async {
        let watched = node::watch_for_removal(api.store(), api.clock().as_ref(), &removal);
        watched.await.map_err(refused)
    };
    let watched = api.ask_within(time, watch).await?;
    let remove = |api: ApiState| async move {
        node::remove(api.store(), api.clock().as_ref(), &removal, &watched).await
    };
    api.carry_out(remove).await
}

/// The rest of the sentence about a node's removal: what else named the node.
fn beside(found: &References) -> String {
    let homes: Vec<String> = found.homes.iter().map(|(_, name)| name.clone()).collect();
    let jobs: Vec<String> = found.jobs.iter().map(ToString::to_string).collect();
    let kept: Vec<String> = found.kept.iter().cloned().collect();
    let legacy: Vec<String> = found.legacy.iter().map(ToString::to_string).collect();
    let parts = [
        ("VMs that no longer return there", &homes),
        ("faults deleted", &found.faults),
        (
            "fault that stays until a machine of that name is well (`pvc cluster fault delete`)",
            &kept,
        ),
        ("tasks ended as failed", &jobs),
        ("VMs that stay limited to it (`pvc vm meta --limit`)", &found.limited),
        ("nodes of PVC 1.0.3, whose daemons are to be restarted", &legacy),
    ];
    let named = parts.into_iter().filter(|(_, names)| !names.is_empty());
    named.map(|(what, names)| format!("; {what}: {}", list(names))).collect()
}

/// Number of VMs, faults or tasks that a message names.
const NAMED: usize = 5;

/// Warning about the flush of a node that has nobody to give its VMs to.
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
    listed(names.iter().map(|name| format!("`{name}`")), NAMED)
}
