//! A node loses its power.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use super::super::ask::{self, text};
use super::super::layout::NodeName;
use super::super::node;
use super::super::process::wait_until;
use super::report::{Budget, Figure, Spread};
use super::{Bench, GUESTS, LIMIT};

/// Number of VMs that the node has.
const VMS: usize = 3;

/// Times of a recovery.
struct Recovery {
    failed: SystemTime,
    suspected: SystemTime,
    proven: SystemTime,
    /// The last QEMU of its VMs began elsewhere.
    started: SystemTime,
}

pub fn power(bench: &Bench) -> Result<Vec<Figure>> {
    let mut all = Vec::new();
    for _ in 0..bench.runs.min(3) {
        all.push(recovery(bench)?);
    }
    let between = |from: fn(&Recovery) -> SystemTime, to: fn(&Recovery) -> SystemTime| {
        let times = all.iter().map(|one| to(one).duration_since(from(one)).unwrap_or_default());
        Spread::of(times.collect())
    };
    let started = |one: &Recovery| one.started;
    Ok(vec![
        Figure::time(
            format!("no power until QEMU runs elsewhere, {VMS} VMs"),
            between(|one| one.failed, started),
        ),
        Figure::time(
            "  of this: until it is taken for dead",
            between(|one| one.failed, |one| one.suspected),
        ),
        Figure::time(
            "  from there until QEMU runs elsewhere",
            between(|one| one.suspected, started),
        )
        .budget(Budget::P50(Duration::from_secs(3))),
        Figure::time(
            "  from the proof of its death until then",
            between(|one| one.proven, started),
        ),
    ])
}

fn recovery(bench: &Bench) -> Result<Recovery> {
    let (lab, guests) = (&bench.lab, &GUESTS[..VMS]);
    let primary = lab.node(&ask::primary(lab, &bench.node(0))?)?;
    let nodes = lab.nodes();
    let victim = nodes.iter().rev().find(|node| **node != primary).context("there is one node")?;
    bench.cast(guests, victim)?;
    let failed = SystemTime::now();
    node::power_off(lab, victim)?;
    wait_until("the VMs run elsewhere", LIMIT, || {
        let is_elsewhere = |guest: &&str| match ask::running_on(lab, guest).as_slice() {
            [one] => *one != victim.text,
            _ => false,
        };
        Ok(guests.iter().all(is_elsewhere))
    })?;
    let started =
        ask::guests(lab).into_iter().filter(|guest| guests.contains(&guest.name.as_str()));
    let started = started.map(|guest| guest.started).max().context("no guest runs")?;
    let suspected = logged(bench, victim, failed, "is taken for dead")?;
    let proven = logged(bench, victim, failed, "the node is dead")?;
    wait_until(&format!("`{victim}` runs again"), LIMIT, || {
        let record = ask::json(lab, &primary, &["node", "info", &victim.text])?;
        Ok(node::is_on(lab, victim) && text(&record, "daemon_state") == "run")
    })?;
    bench.settle()?;
    Ok(Recovery { failed, suspected, proven, started })
}

/// Time at which another node logged `words` about `victim`.
fn logged(bench: &Bench, victim: &NodeName, since: SystemTime, words: &str) -> Result<SystemTime> {
    let nodes = bench.lab.nodes();
    let others = nodes.iter().filter(|node| *node != victim);
    let about = format!("node={victim}");
    let lines =
        others.filter_map(|node| ask::journalled(&bench.lab, node, "pvcnoded", since, words));
    let times = lines.filter(|(_, line)| line.contains(&about)).map(|(at, _)| at);
    times.min().with_context(|| format!("no node says that {words}"))
}
