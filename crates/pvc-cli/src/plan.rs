//! What a change would come to, printed instead of making it.

use pvc_api_types::{FlushPlan, MovePlan};

use crate::context::Pvc;
use crate::output::Table;

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
