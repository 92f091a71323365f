//! SR-IOV cards and their functions.

use std::sync::Arc;

use pvc_api_types::operations::sriov::{
    GetSriov, GetSriovPf, GetSriovPfNode, GetSriovVf, GetSriovVfNode, GetSriovVfNodeVf,
    LinkStateWord, PutSriovVfNodeVf,
};
use pvc_api_types::{SriovPf, SriovVf};
use pvc_model::node::NodeRecord;
use pvc_model::shown;
use pvc_model::sriov::settings::{VfFields, VfLinkState, VfRefusal};
use pvc_ops::sriov;

use super::node::find;
use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::state::ApiState;
use crate::table::{Ask, Table};
use crate::view;

pub fn add(table: Table) -> Table {
    table
        .add(get_sriov)
        .add(get_sriov_pf)
        .add(get_sriov_pf_node)
        .add(get_sriov_vf)
        .add(get_sriov_vf_node)
        .add(get_sriov_vf_node_vf)
        .add(put_sriov_vf_node_vf)
}

async fn get_sriov(_: Ask<GetSriov>) -> Result<Answer<GetSriov>> {
    Ok(Answer::json(&()))
}

async fn get_sriov_pf(ask: Ask<GetSriovPf>) -> Result<Answer<GetSriovPf>> {
    Ok(Answer::json(&cards(&*known(&ask.api, &ask.params.node)?)))
}

async fn get_sriov_pf_node(ask: Ask<GetSriovPfNode>) -> Result<Answer<GetSriovPfNode>> {
    let [node] = ask.at;
    Ok(Answer::json(&cards(&*known(&ask.api, &node)?)))
}

async fn get_sriov_vf(ask: Ask<GetSriovVf>) -> Result<Answer<GetSriovVf>> {
    let given = ask.params;
    Ok(Answer::json(&functions(&*known(&ask.api, &given.node)?, given.pf.as_deref())))
}

async fn get_sriov_vf_node(ask: Ask<GetSriovVfNode>) -> Result<Answer<GetSriovVfNode>> {
    let ([node], filter) = (ask.at, ask.params);
    Ok(Answer::json(&functions(&*known(&ask.api, &node)?, filter.pf.as_deref())))
}

async fn get_sriov_vf_node_vf(ask: Ask<GetSriovVfNodeVf>) -> Result<Answer<GetSriovVfNodeVf>> {
    let [node, vf] = ask.at;
    let cluster = ask.api.view();
    let node = find(&cluster, &node)?;
    let record = node.sriov.vf(&vf).ok_or_else(|| {
        let none = VfRefusal::NoVf { node: node.name.to_string(), vf: shown(&vf) };
        ApiError::not_found(none.to_string()).hint(none.hint())
    })?;
    Ok(Answer::json(&vec![view::sriov::vf(record)]))
}

/// Refuses what is asked of a node that is not there: nothing of it is an empty list.
fn known(api: &ApiState, node: &str) -> Result<Arc<NodeRecord>> {
    api.view().node(node).cloned().ok_or_else(|| {
        ApiError::refused(format!("there is no node `{}`", shown(node)))
            .hint(Some("`pvc node list` lists them"))
    })
}

fn cards(node: &NodeRecord) -> Vec<SriovPf> {
    node.sriov.pfs.iter().map(|pf| view::sriov::pf(&node.sriov, pf)).collect()
}

fn functions(node: &NodeRecord, pf: Option<&str>) -> Vec<SriovVf> {
    let is_meant = |of: &str| pf.is_none_or(|pf| pf == of);
    let functions = node.sriov.vfs.iter().filter(|vf| is_meant(&vf.pf));
    functions.map(view::sriov::vf).collect()
}

async fn put_sriov_vf_node_vf(ask: Ask<PutSriovVfNodeVf>) -> Result<Answer<PutSriovVfNodeVf>> {
    let ([node, vf], given) = (ask.at, ask.params);
    let fields = VfFields {
        vlan_id: given.vlan_id,
        vlan_qos: given.vlan_qos,
        tx_rate_min: given.tx_rate_min,
        tx_rate_max: given.tx_rate_max,
        link_state: given.link_state.map(|word| match word {
            LinkStateWord::Auto => VfLinkState::Auto,
            LinkStateWord::Enable => VfLinkState::Enable,
            LinkStateWord::Disable => VfLinkState::Disable,
        }),
        spoof_check: given.spoof_check,
        trust: given.trust,
        query_rss: given.query_rss,
    };
    let message = format!("Changed SR-IOV function {vf} of node {node}.");
    let change =
        |api: ApiState| async move { sriov::set_vf(api.store(), &node, &vf, &fields).await };
    ask.api.carry_out(change).await?;
    Ok(ask.mode.done(message))
}
