//! Predictions of a change, printed instead of making it.

use pvc_api_types::operations::node::{DomainRequest, Duty, PostNodeNodeDomainState};
use pvc_api_types::operations::vm::{Placement, PostVmVmNode};
use pvc_api_types::param::Flag;
use pvc_api_types::{FlushPlan, MovePlan};
use pvc_client::{Client, Error};

use crate::context::Pvc;
use crate::output::Table;

/// Asks where a VM would go, and how every node does. Changes nothing.
pub fn of_move(client: &Client, vm: &str, placement: &Placement) -> Result<MovePlan, Error> {
    client.dry_run(PostVmVmNode, [vm], placement)?.ok_or_else(Error::too_old_to_tell)
}

/// Asks what a flush of the node would do with each VM. Changes nothing.
pub fn of_flush(client: &Client, node: &str) -> Result<FlushPlan, Error> {
    let request = DomainRequest { state: Duty::Flush, wait: Flag(false) };
    client.dry_run(PostNodeNodeDomainState, [node], &request)?.ok_or_else(Error::too_old_to_tell)
}

pub fn print_move(pvc: &mut Pvc, plan: &MovePlan) {
    if pvc.done_as_json(plan) {
        return;
    }
    pvc.out.line(&plan.message);
    let (from, way) = (&plan.from, way(&plan.method));
    pvc.out.line(format!("from `{from}`, by {way}; the target is chosen by `{}`", plan.selector));
    let mut table = Table::new().columns(&[("Node", 5), ("Suitable", 9), ("Why", 4)]);
    for node in &plan.nodes {
        let suitable = if node.suitable { "yes" } else { "no" };
        table.row(vec![node.name.as_str().into(), suitable.into(), node.reason.as_str().into()]);
    }
    let text = table.render(pvc.out.paint());
    pvc.out.line(text);
}

fn way(method: &str) -> &str {
    match method {
        "live" => "live migration",
        "live-or-shutdown" => "live migration, or else a shutdown",
        "shutdown" => "a shutdown",
        "off" => "a change of its record alone",
        "start" => "a start there: it waits for its own node to take VMs again",
        other => other,
    }
}

pub fn print_flush(pvc: &mut Pvc, plan: &FlushPlan) {
    if pvc.done_as_json(plan) {
        return;
    }
    pvc.out.line(&plan.message);
    if plan.vms.is_empty() {
        return;
    }
    let mut table = Table::new().columns(&[("VM", 5), ("Action", 9), ("To", 5), ("Why", 4)]);
    for step in &plan.vms {
        let cell = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        table.row(vec![
            step.name.as_str().into(),
            step.action.as_str().into(),
            cell(&step.to).into(),
            cell(&step.reason).into(),
        ]);
    }
    let text = table.render(pvc.out.paint());
    pvc.out.line(text);
}
