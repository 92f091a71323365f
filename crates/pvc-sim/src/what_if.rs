//! Answer to what happens if a node of a recorded cluster dies: predicted by the rules, and played
//! in the world.
//!
//! ```text
//!  backup ──▶ records ──pvc_model::what_if──▶ plan ──┐
//!                └──────play: the real daemons──▶ run ──┴──▶ one answer
//! ```

mod backup;
mod play;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use pvc_api_types::{
    MoveCandidate, WhatIf, WhatIfCoordinators, WhatIfNode, WhatIfRefusal, WhatIfRun, WhatIfVm,
};
use pvc_model::cluster::Cluster;
use pvc_model::fence::Rules;
use pvc_model::node::{DaemonState, NodeRecord};
use pvc_model::placement::{Unfit, Weighed};
use pvc_model::what_if::{Coordinators, End, Fate, Hindrance, Outlook, lives, node_dies};
use pvc_model::{NodeName, listed};

use crate::log::Log;
use backup::Backup;
use play::{Scene, play};

/// Time for which the world is watched, after the node can be suspected, where something is
/// expected to happen.
const HORIZON: Duration = Duration::from_secs(15 * 60);

/// The same time where nothing is.
const IDLE_HORIZON: Duration = Duration::from_secs(5 * 60);

/// Number of VMs that a sentence names.
const NAMED: usize = 5;

/// Cause of a node's death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// Power of the node is gone; its BMC still answers.
    Power,
    /// The node stands still with its power on.
    Hang,
}

impl Death {
    pub const ALL: [Death; 2] = [Death::Power, Death::Hang];

    pub fn as_str(self) -> &'static str {
        match self {
            Death::Power => "power",
            Death::Hang => "hang",
        }
    }
}

/// Question that is asked.
#[derive(Debug, Clone)]
pub struct Question {
    /// The text that `pvc cluster backup` wrote.
    pub backup: String,
    pub node: String,
    pub death: Death,
    pub rules: Rules,
}

/// Answers, in this process, which must do nothing else: see `same_dice`.
///
/// # Errors
/// If the backup is none, or there is no such node that could die.
pub async fn what_if(question: &Question, log: &Log) -> Result<WhatIf, WhatIfRefusal> {
    let mut backup = Backup::read(&question.backup)?;
    let cluster = backup.cluster().await?;
    let refused = |refusal: pvc_model::what_if::Refusal| WhatIfRefusal {
        not_found: matches!(refusal, pvc_model::what_if::Refusal::NoNode { .. }),
        message: refusal.to_string(),
        hint: refusal.hint(),
    };
    let outlook = node_dies(&cluster, &question.node, &question.rules).map_err(refused)?;
    let run = match cannot_be_played(&cluster, &outlook) {
        Some(why) => Err(why),
        None => {
            let silence = question.rules.keepalive_interval * question.rules.fence_intervals;
            let scene = Scene {
                keys: &backup.keys,
                cluster: &cluster,
                victim: &outlook.node,
                death: question.death,
                rules: &question.rules,
                concerned: outlook.fates.iter().map(|fate| fate.vm).collect(),
                horizon: silence
                    + if outlook.hindrances.is_empty() { HORIZON } else { IDLE_HORIZON },
            };
            play(&scene, log).await
        }
    };
    Ok(answer(question, &cluster, &outlook, run, backup.defects))
}

fn cannot_be_played(cluster: &Cluster, outlook: &Outlook) -> Option<String> {
    let passing = outlook.hindrances.iter().find_map(|hindrance| match hindrance {
        Hindrance::NotInRun(state) => Some(state),
        _ => None,
    });
    if let Some(state) = passing {
        return Some(format!(
            "the node is in `{state}`; only the death of one in `run` can be played"
        ));
    }
    let coordinators = Coordinators::of(cluster, None);
    (!coordinators.are_a_quorum()).then(|| {
        format!(
            "{} of {} coordinators run by these records, which is no quorum: such a cluster does \
             nothing even now",
            coordinators.left, coordinators.all
        )
    })
}

fn answer(
    question: &Question,
    cluster: &Cluster,
    outlook: &Outlook,
    run: Result<WhatIfRun, String>,
    defects: Vec<String>,
) -> WhatIf {
    let (simulation, not_simulated) = match run {
        Ok(run) => {
            let differences = differences(outlook, &run);
            (Some(WhatIfRun { differences, ..run }), String::new())
        }
        Err(why) => (None, why),
    };
    let Coordinators { all, left } = outlook.coordinators;
    let is_possible = outlook.hindrances.is_empty() || outlook.fates.is_empty();
    let recovered = is_possible && down(outlook, simulation.as_ref()) == 0;
    let name = |vm: &pvc_model::Uuid| cluster.vms.get(vm).map(|vm| vm.name.clone());
    WhatIf {
        cluster: cluster.config.name.clone(),
        node: outlook.node.to_string(),
        death: question.death.as_str().to_owned(),
        summary: summary(outlook, simulation.as_ref()),
        recovered,
        was_primary: outlook.was_primary,
        coordinators: WhatIfCoordinators { all, left, quorum: outlook.coordinators.are_a_quorum() },
        hindrances: outlook.hindrances.iter().map(ToString::to_string).collect(),
        vms: outlook.fates.iter().map(|fate| vm(outlook, fate)).collect(),
        off: outlook.off.iter().filter_map(name).collect(),
        nodes: nodes(cluster, outlook, &question.rules),
        simulation,
        not_simulated,
        assumptions: assumptions(question, cluster, outlook),
        defects,
    }
}

/// The answer in a sentence.
fn summary(outlook: &Outlook, run: Option<&WhatIfRun>) -> String {
    let (all, down) = (outlook.fates.len(), down(outlook, run));
    let last = run.and_then(|run| run.vms.iter().filter_map(|vm| vm.seconds).reduce(f64::max));
    let within = last.map(|last| format!(" within {last:.1} s")).unwrap_or_default();
    match (all, down) {
        (0, _) => "no VM that is to run is lost".to_owned(),
        (1, 0) => format!("its VM runs elsewhere{within}"),
        (all, 0) => format!("its {all} VMs run elsewhere{within}"),
        (1, 1) => "its VM is down until the node is back".to_owned(),
        (all, down) if all == down => format!("its {all} VMs are down until the node is back"),
        (all, down) => {
            let are = if down == 1 { "is" } else { "are" };
            let run = all - down;
            let verb = if run == 1 { "runs" } else { "run" };
            format!(
                "{run} of its {all} VMs {verb} elsewhere{within}; {down} {are} down until the node \
                 is back"
            )
        }
    }
}

fn vm(outlook: &Outlook, fate: &Fate) -> WhatIfVm {
    let (word, to, reason) = match &fate.end {
        End::Starts(to) => ("start", to.to_string(), chosen(fate.weighed.as_ref(), to)),
        End::Stays(on) => ("stay", on.to_string(), "it is being moved, and runs there".to_owned()),
        End::Waits(why) => ("wait", String::new(), why.to_string()),
        End::Elsewhere => ("elsewhere", String::new(), "it is another node's by now".to_owned()),
        End::Down => {
            let why = outlook.hindrances.first().map(ToString::to_string);
            ("down", String::new(), why.unwrap_or_default())
        }
    };
    WhatIfVm {
        name: fate.name.clone(),
        memory_mib: fate.memory_mib,
        fate: word.to_owned(),
        to,
        reason,
        nodes: fate.weighed.as_ref().map(candidates).unwrap_or_default(),
        cautions: fate.cautions.iter().map(ToString::to_string).collect(),
    }
}

/// Reason for which this node was chosen.
fn chosen(weighed: Option<&Weighed>, to: &NodeName) -> String {
    let Some(weighed) = weighed else { return "it was on its way there".to_owned() };
    match weighed.nodes.get(to) {
        Some(Ok(merit)) => format!("best by `{}`: {}", weighed.selector, weighed.seen(*merit)),
        _ => format!("best by `{}`", weighed.selector),
    }
}

fn candidates(weighed: &Weighed) -> Vec<MoveCandidate> {
    let candidate = |(name, merit): (&NodeName, &Result<f64, Unfit>)| MoveCandidate {
        name: name.to_string(),
        suitable: merit.is_ok(),
        reason: match merit {
            Ok(merit) => format!("has {}", weighed.seen(*merit)),
            Err(unfit) => unfit.to_string(),
        },
    };
    weighed.nodes.iter().map(candidate).collect()
}

/// Lists the nodes that are left, and whether more may die.
fn nodes(cluster: &Cluster, outlook: &Outlook, rules: &Rules) -> Vec<WhatIfNode> {
    let is_made_up_for = outlook.hindrances.is_empty();
    let next: BTreeMap<_, _> = match is_made_up_for {
        true => {
            outlook.deaths_after(rules).into_iter().map(|next| (next.node.clone(), next)).collect()
        }
        false => BTreeMap::new(),
    };
    let left = cluster.nodes.values().filter(|node| node.name != outlook.node);
    left.map(|node| {
        let after = outlook.after.nodes.get(&node.name).unwrap_or(node);
        let loss = match next.get(&node.name) {
            Some(next) => loss(next),
            None if lives(node) => "the first death is not made up for".to_owned(),
            None => format!("it is in `{}` already", node.daemon_state),
        };
        WhatIfNode {
            name: node.name.to_string(),
            daemon_state: node.daemon_state.to_string(),
            domain_state: node.domain_state.to_string(),
            memory_total_mib: node.figures.memory_total_mib,
            memory_free_mib: node.figures.memory_free_mib,
            memory_free_after_mib: after.figures.memory_free_mib,
            vms: node.running.len(),
            vms_after: after.running.len(),
            may_die_next: loss.is_empty(),
            next: loss,
        }
    })
    .collect()
}

/// Names what would not be made up for; empty if everything is.
fn loss(next: &Outlook) -> String {
    match next.hindrances.first() {
        Some(Hindrance::NoQuorum(Coordinators { all, left })) => {
            return format!("no quorum: {left} of {all} coordinators would be left");
        }
        Some(other) => return other.to_string(),
        None => {}
    }
    let stranded: Vec<&str> = next.stranded().map(|fate| fate.name.as_str()).collect();
    match stranded.len() {
        0 => String::new(),
        1 => format!("1 VM finds no place: {}", stranded[0]),
        more => format!("{more} VMs find no place: {}", list(&stranded)),
    }
}

fn list(names: &[impl Display]) -> String {
    listed(names.iter(), NAMED)
}

/// Lists where the simulated cluster did something else than the plan says. That VMs are started on
/// other nodes is one line: they are placed as their volumes' locks are freed, in no fixed order,
/// and each choice changes the next.
fn differences(outlook: &Outlook, run: &WhatIfRun) -> Vec<String> {
    let (mut said, mut swapped) = (Vec::new(), Vec::new());
    for fate in &outlook.fates {
        let planned = match &fate.end {
            End::Starts(node) | End::Stays(node) => node.as_str(),
            End::Waits(_) | End::Down => "",
            End::Elsewhere => continue,
        };
        let Some(ran) = run.vms.iter().find(|ran| ran.name == fate.name && ran.node != planned)
        else {
            continue;
        };
        let name = &fate.name;
        match (planned, ran.node.as_str(), ran.failed_reason.as_str()) {
            ("", on, _) => said.push(format!("VM `{name}` was to be down and ran on {on}")),
            (on, "", "") => said.push(format!("VM `{name}` was to run on {on} and ran nowhere")),
            (on, "", why) => said.push(format!("VM `{name}` was to run on {on} and failed: {why}")),
            (planned, on, _) => swapped.push(format!("{name} on {on} instead of {planned}")),
        }
    }
    let listed = list(&swapped);
    match swapped.len() {
        0 => {}
        1 => said.push(format!("1 VM ran on another node: {listed}")),
        more => said.push(format!("{more} VMs ran on other nodes: {listed}")),
    }
    said
}

/// Number of VMs that are down in the end: as it was played, or as it was planned if it was not.
fn down(outlook: &Outlook, run: Option<&WhatIfRun>) -> usize {
    let Some(run) = run else { return outlook.stranded().count() };
    let runs = |vm: &str| run.vms.iter().any(|ran| ran.name == vm && !ran.node.is_empty());
    outlook.fates.iter().filter(|fate| fate.end != End::Elsewhere && !runs(&fate.name)).count()
}

/// Assumptions of the answer that nobody has recorded.
fn assumptions(question: &Question, cluster: &Cluster, outlook: &Outlook) -> Vec<String> {
    let Rules { keepalive_interval, fence_intervals, .. } = &question.rules;
    let seconds = keepalive_interval.as_secs();
    let has_bmc = !outlook.hindrances.contains(&Hindrance::NoBmc);
    let mut said =
        vec![
        format!(
            "`keepalive_interval` is {seconds} s, `fence_intervals` is {fence_intervals} and \
             `successful_fence` is \
             `migrate` on every node: the cluster does not record them"
        ),
        match (question.death, has_bmc) {
            (Death::Power, true) => "the node loses its power; its BMC does not, and answers in \
                                     0.1 to 1.5 s",
            (Death::Hang, true) => "the node stands still with its power on; its BMC answers in \
                                    0.1 to 1.5 s",
            (Death::Power, false) => "the node loses its power",
            (Death::Hang, false) => "the node stands still with its power on",
        }
        .to_owned(),
        format!("how soon it is noticed differs by up to {seconds} s, with the moment at which it \
                 dies"),
        "the node does not come back, and nobody steps in".to_owned(),
        "in the simulation, what was under way (starts, moves, flushes) goes on for half a minute \
         before"
            .to_owned(),
        "QEMU needs 0.3 s to start; how long the guests then boot is their affair".to_owned(),
        "a VM needs all of its memory, and nodes have as much free as they said last".to_owned(),
        "every coordinator whose daemon runs serves the store, and no other".to_owned(),
        "Ceph goes on: its monitors, and where it keeps copies, are not looked at".to_owned(),
    ];
    let named = |is_such: &dyn Fn(&NodeRecord) -> bool| {
        let such = cluster.nodes.values().filter(|node| node.name != outlook.node && is_such(node));
        such.map(|node| node.name.as_str()).collect::<Vec<_>>()
    };
    let legacy: Vec<&str> = cluster
        .nodes
        .values()
        .filter(|node| lives(node) && !node.runs_our_daemon())
        .map(|node| node.name.as_str())
        .collect();
    if !legacy.is_empty() {
        let legacy = list(&legacy);
        said.push(format!("{legacy}: of another PVC, and taken to do what this one does"));
    }
    let stopped = named(&|node| {
        !lives(node) && !matches!(node.daemon_state, DaemonState::Dead | DaemonState::Fenced)
    });
    if !stopped.is_empty() {
        said.push(format!(
            "{}: its daemon does not run, and it is taken to be switched off",
            list(&stopped)
        ));
    }
    let unproven = named(&|node| node.daemon_state == DaemonState::Dead);
    if !unproven.is_empty() {
        said.push(format!("{}: dead without a proof, and its BMC stays silent", list(&unproven)));
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    use pvc_api_types::WhatIfRan;
    use pvc_model::Uuid;

    fn outlook(ends: [(&str, End); 4]) -> Outlook {
        let fate = |(number, (name, end)): (usize, (&str, End))| Fate {
            vm: Uuid::from_u128(number as u128),
            name: name.to_owned(),
            memory_mib: 1024,
            end,
            weighed: None,
            cautions: Vec::new(),
        };
        Outlook {
            node: NodeName::new("hv3"),
            was_primary: false,
            coordinators: Coordinators { all: 3, left: 2 },
            hindrances: Vec::new(),
            fates: ends.into_iter().enumerate().map(fate).collect(),
            off: Vec::new(),
            after: Cluster::default(),
        }
    }

    #[test]
    fn what_ran_otherwise_than_planned_is_said_vm_by_vm_unless_only_the_node_differs() {
        let starts = |on: &str| End::Starts(NodeName::new(on));
        let nowhere = End::Waits(pvc_model::placement::NoPlace { reasons: BTreeMap::new() });
        let outlook = outlook([
            ("a", starts("hv1")),
            ("b", starts("hv1")),
            ("c", starts("hv2")),
            ("d", nowhere),
        ]);
        let ran = |name: &str, node: &str, why: &str| WhatIfRan {
            name: name.to_owned(),
            node: node.to_owned(),
            failed_reason: why.to_owned(),
            ..WhatIfRan::default()
        };
        let run = |vms: [WhatIfRan; 4]| WhatIfRun { vms: vms.to_vec(), ..WhatIfRun::default() };
        let same =
            [ran("a", "hv1", ""), ran("b", "hv1", ""), ran("c", "hv2", ""), ran("d", "", "")];
        assert_eq!(differences(&outlook, &run(same)), [""; 0]);
        let other = [
            ran("a", "hv2", ""),
            ran("b", "", "no such image"),
            ran("c", "", ""),
            ran("d", "hv1", ""),
        ];
        let said = [
            "VM `b` was to run on hv1 and failed: no such image",
            "VM `c` was to run on hv2 and ran nowhere",
            "VM `d` was to be down and ran on hv1",
            "1 VM ran on another node: a on hv2 instead of hv1",
        ];
        assert_eq!(differences(&outlook, &run(other.clone())), said);
        assert_eq!(
            summary(&outlook, None),
            "3 of its 4 VMs run elsewhere; 1 is down until the node is back"
        );
        let played = summary(&outlook, Some(&run(other)));
        assert_eq!(played, "2 of its 4 VMs run elsewhere; 2 are down until the node is back");
    }
}
