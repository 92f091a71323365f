//! The peaceful half of the story: a cluster at work, and an operator who moves things.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::super::ask::{self, text};
use super::super::process::wait_until;
use super::stage::{GUESTS, Stage, time};

pub fn cluster(stage: &Stage) -> Result<()> {
    let node = stage.node(0);
    stage.pvc(&node, "cluster status")?;
    stage.pvc(&node, "node list")?;
    let list = ask::json(&stage.lab, &node, &["node", "list"])?;
    for each in list.as_array().into_iter().flatten() {
        let is_well = text(each, "daemon_state") == "run" && text(each, "domain_state") == "ready";
        stage.so(format!("{} runs and takes VMs", text(each, "name")), is_well, each)?;
    }
    one_primary(stage)
}

/// Claims that the node which is said to be primary has the floating address, and no other.
pub fn one_primary(stage: &Stage) -> Result<()> {
    let (primary, holders) = (stage.primary()?, ask::holders(&stage.lab));
    let claim = format!("{} is on {primary}, the primary node, and nowhere else", ask::FLOATING);
    stage.so(claim, holders == [primary.text], format!("it is on {holders:?}"))
}

pub fn vms(stage: &Stage) -> Result<()> {
    for (number, guest) in GUESTS.iter().enumerate() {
        stage.cast(&[guest], &stage.node(number % 3))?;
    }
    stage.pvc(&stage.node(0), "vm list")?;
    let list = ask::json(&stage.lab, &stage.node(0), &["vm", "list"])?;
    for vm in list.as_array().into_iter().flatten().filter(|vm| GUESTS.contains(&text(vm, "name")))
    {
        let (name, node) = (text(vm, "name"), text(vm, "node"));
        let truth = ask::running_on(&stage.lab, name);
        stage.so(
            format!("the list is right: {name} is on {node}"),
            truth == [node],
            format!("{truth:?}"),
        )?;
    }
    Ok(())
}

pub fn primary(stage: &Stage) -> Result<()> {
    stage.says("From outside, the floating address is pinged 40 times a second meanwhile.\n");
    let from = stage.primary()?;
    for to in [stage.other_than(&[&from])?, from] {
        let ping = ask::Ping::start(&stage.lab)?;
        let api = ask::watch_api(&stage.lab);
        stage.pvc(&to, &format!("node primary {to} --wait"))?;
        one_primary(stage)?;
        wait_until("the API answers on the floating address", Duration::from_secs(10), || {
            Ok(ask::api_answers(&stage.lab))
        })?;
        let (pinged, away) = (ping.end()?, api.end());
        let claim = format!(
            "{} of {} pings were lost, at most one; the longest gap was {} ms",
            pinged.lost,
            pinged.sent,
            pinged.gap.as_millis()
        );
        stage.so(claim, pinged.lost <= 1, "more than one")?;
        let claim = format!("the API was away from there for {}, at most 3 s", time(away));
        stage.so(claim, away <= Duration::from_secs(3), "longer")?;
    }
    Ok(())
}

pub fn migrate(stage: &Stage) -> Result<()> {
    let (guest, home, to) = (GUESTS[0], stage.node(0), stage.node(2));
    stage.cast(&[guest], &home)?;
    stage.pvc(&home, &format!("vm migrate {guest} --dry-run"))?;
    let before = stage.beat(guest, &home.text)?;
    stage.pvc(&home, &format!("vm migrate {guest} --target {to} --wait"))?;
    stage.alone(guest, &to.text)?;
    stage.counts_on(guest, &to.text, before)?;
    let before = stage.beat(guest, &to.text)?;
    stage.pvc(&home, &format!("vm unmigrate {guest} --wait"))?;
    stage.alone(guest, &home.text)?;
    stage.counts_on(guest, &home.text, before)
}

pub fn move_for_good(stage: &Stage) -> Result<()> {
    let (guest, from, to) = (GUESTS[1], stage.node(1), stage.node(2));
    stage.cast(&[guest], &from)?;
    let before = stage.beat(guest, &from.text)?;
    stage.pvc(&from, &format!("vm move {guest} --target {to} --force-live --wait"))?;
    stage.alone(guest, &to.text)?;
    stage.counts_on(guest, &to.text, before)?;
    let vm = ask::json(&stage.lab, &from, &["vm", "info", guest])?;
    let claim = format!("{to} is its own node now: it is not there as a guest");
    stage.so(claim, text(&vm, "migrated") == "no" && text(&vm, "node") == to.text, &vm["migrated"])
}

pub fn flush(stage: &Stage) -> Result<()> {
    let (node, witness) = (stage.node(0), stage.node(1));
    stage.cast(&GUESTS, &node)?;
    let beats: Vec<_> =
        GUESTS.iter().map(|guest| stage.beat(guest, &node.text)).collect::<Result<_>>()?;
    stage.pvc(&witness, &format!("node flush {node} --dry-run"))?;
    stage.pvc(&witness, &format!("node flush {node} --wait"))?;
    let left: Vec<_> =
        ask::guests(&stage.lab).into_iter().filter(|guest| guest.node == node.text).collect();
    stage.so(format!("no VM is left on {node}"), left.is_empty(), format!("{left:?}"))?;
    for guest in GUESTS {
        stage.alone(guest, &stage.place_of(guest)?)?;
    }
    stage.pvc(&witness, &format!("node ready {node} --wait"))?;
    home_again(stage, &node.text, &beats)?;

    stage.says("\nNow reversed half way:\n");
    let begun = Instant::now();
    stage.pvc(&witness, &format!("node flush {node}"))?;
    stage.becomes("some of them are on their way", begun, 60, || {
        let elsewhere = ask::guests(&stage.lab).iter().any(|guest| guest.node != node.text);
        Ok(elsewhere)
    })?;
    stage.pvc(&witness, &format!("node ready {node} --wait"))?;
    home_again(stage, &node.text, &beats)
}

/// Claims that all guests run on `node` and went on from `beats`.
fn home_again(stage: &Stage, node: &str, beats: &[ask::Beat]) -> Result<()> {
    ensure!(beats.len() == GUESTS.len(), "each guest has counted");
    GUESTS.iter().zip(beats).try_for_each(|(guest, beat)| {
        stage.alone(guest, node)?;
        stage.counts_on(guest, node, *beat)
    })
}
