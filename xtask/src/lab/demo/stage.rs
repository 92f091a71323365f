//! Telling a story about the lab: commands as one would type them, and claims that are checked.

use std::cell::Cell;
use std::fmt::Display;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::super::ask::{self, text};
use super::super::layout::{Lab, NodeName};
use super::super::process::wait_until;
use super::super::{bmc, mend_all, node, switch};

/// The guests of the story. Nobody else's are touched.
pub const GUESTS: [&str; 3] = ["demo1", "demo2", "demo3"];

pub struct Stage {
    pub lab: Lab,
    claims: Cell<usize>,
}

impl Stage {
    /// # Errors
    /// If the lab is not whole: a node that is off, or does not take VMs.
    pub fn open(lab: &Lab) -> Result<Self> {
        let stage = Self { lab: lab.clone(), claims: Cell::new(0) };
        let nodes = lab.nodes();
        ensure!(nodes.len() >= 3, "the story needs three nodes");
        for each in &nodes {
            ensure!(
                node::answers(lab, each) && switch::cut_networks(lab, each).is_empty(),
                "`{each}` is off, frozen or cut; `cargo xtask lab status` shows it, and `lab up` \
                 mends much"
            );
            bmc::set_fault(lab, each, bmc::Fault::None)?;
            // Only coordinators have an API to ask.
            ask::pvc(lab, &nodes[0], &["node", "ready", &each.text, "--wait"])?;
        }
        Ok(stage)
    }

    pub fn title(&self, number: usize, title: &str) {
        println!("\n== {number}  {title}\n");
    }

    pub fn says(&self, words: impl Display) {
        words
            .to_string()
            .split('\n')
            .for_each(|line| println!("{}", format!("   {line}").trim_end()));
    }

    pub fn claims(&self) -> usize {
        self.claims.get()
    }

    /// Runs `pvc WORDS` on `node`, showing what is typed and what it answers. Returns how long it
    /// took.
    pub fn pvc(&self, node: &NodeName, words: &str) -> Result<Duration> {
        println!("     {node}# pvc {words}");
        let begun = Instant::now();
        let answer = ask::pvc(&self.lab, node, &words.split(' ').collect::<Vec<_>>())?;
        let took = begun.elapsed();
        answer.lines().for_each(|line| println!("       {line}"));
        println!("       ({})", time(took));
        Ok(took)
    }

    /// Runs `cargo xtask lab WORDS`.
    pub fn lab(&self, words: &str) -> Result<()> {
        println!("     $ cargo xtask lab {words}");
        let words: Vec<String> = words.split(' ').map(Into::into).collect();
        super::super::run(&words)
    }

    /// Says that `claim` is so.
    ///
    /// # Errors
    /// If `seen` says that it is not: what was seen.
    pub fn so(&self, claim: impl Display, is_so: bool, seen: impl Display) -> Result<()> {
        if !is_so {
            println!("  NO {claim}: {seen}");
        }
        ensure!(is_so, "it is not so that {claim}: {seen}");
        println!(" yes {claim}");
        self.claims.set(self.claims.get() + 1);
        Ok(())
    }

    /// Says that `claim` has become so, and how long after `since`.
    ///
    /// # Errors
    /// If it has not within `limit` seconds.
    pub fn becomes(
        &self,
        claim: impl Display,
        since: Instant,
        limit: u64,
        is_so: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let waited = wait_until(&claim.to_string(), Duration::from_secs(limit), is_so);
        if waited.is_err() {
            println!("  NO {claim}");
        }
        waited?;
        println!(" yes {:>7}  {claim}", time(since.elapsed()));
        self.claims.set(self.claims.get() + 1);
        Ok(())
    }

    pub fn node(&self, number: usize) -> NodeName {
        self.lab.nodes().swap_remove(number)
    }

    pub fn primary(&self) -> Result<NodeName> {
        self.lab.node(&ask::primary(&self.lab, &self.awake()?)?)
    }

    /// A coordinator that is not one of `others`.
    pub fn other_than(&self, others: &[&NodeName]) -> Result<NodeName> {
        let nodes = self.lab.nodes();
        let mut coordinators = nodes.iter().take(3).filter(|node| !others.contains(node));
        coordinators.next().cloned().context("the story has no coordinator left")
    }

    fn awake(&self) -> Result<NodeName> {
        let nodes = self.lab.nodes();
        nodes.into_iter().find(|each| node::answers(&self.lab, each)).context("no node is awake")
    }

    /// Record of `node` in the cluster, asked for on `witness`.
    pub fn record(&self, witness: &NodeName, node: &NodeName) -> Result<Value> {
        ask::json(&self.lab, witness, &["node", "info", &node.text])
    }

    /// Has each of `guests` running on `node`, its userland too.
    pub fn cast(&self, guests: &[&str], node: &NodeName) -> Result<()> {
        let awake = self.awake()?;
        for guest in guests {
            match ask::running_on(&self.lab, guest).as_slice() {
                [] => {
                    ask::clear_console(&self.lab, guest);
                    self.define(guest, &awake, node)?;
                    self.pvc(&awake, &format!("vm start {guest} --wait"))?;
                }
                [one] if *one == node.text => {}
                _ => drop(self.pvc(&awake, &format!("vm move {guest} --target {node} --wait"))?),
            }
        }
        for guest in guests {
            self.alone(guest, &node.text)?;
            wait_until(&format!("`{guest}` counts"), Duration::from_secs(180), || {
                Ok(ask::last_beat(&self.lab, guest, &node.text).is_some())
            })?;
        }
        Ok(())
    }

    fn define(&self, guest: &str, awake: &NodeName, node: &NodeName) -> Result<()> {
        if ask::json(&self.lab, awake, &["vm", "info", guest]).is_err() {
            self.lab(&format!("guest {guest}"))?;
        }
        let vm = ask::json(&self.lab, awake, &["vm", "info", guest])?;
        if text(&vm, "node") != node.text {
            self.pvc(awake, &format!("vm move {guest} --target {node}"))?;
        }
        Ok(())
    }

    /// Claims that `guest` runs on `node` and nowhere else: one QEMU process in the whole lab, and
    /// nobody else's lock on its volume.
    pub fn alone(&self, guest: &str, node: &str) -> Result<()> {
        let running = ask::running_on(&self.lab, guest);
        let claim = format!("{guest} runs on {node} and nowhere else");
        self.so(&claim, running == [node], format!("its QEMU processes are on {running:?}"))?;
        let owners = ask::lock_owners(&self.lab, &self.awake()?, guest)?;
        ensure!(owners.iter().all(|owner| owner == node), "its volume is locked by {owners:?}");
        Ok(())
    }

    /// Node that `guest` runs on.
    pub fn place_of(&self, guest: &str) -> Result<String> {
        let mut running = ask::running_on(&self.lab, guest);
        ensure!(running.len() == 1, "{guest} runs on {running:?}");
        Ok(running.swap_remove(0))
    }

    pub fn beat(&self, guest: &str, node: &str) -> Result<ask::Beat> {
        ask::last_beat(&self.lab, guest, node)
            .with_context(|| format!("{guest} does not count on {node}"))
    }

    /// Claims that `guest`, now on `node`, went on from `before`: the same boot, a higher count.
    pub fn counts_on(&self, guest: &str, node: &str, before: ask::Beat) -> Result<()> {
        let mut now = None;
        wait_until(&format!("{guest} counts on {node}"), Duration::from_secs(60), || {
            // An earlier visit may have left something there.
            let beat =
                ask::last_beat(&self.lab, guest, node).filter(|beat| beat.boot >= before.boot);
            ensure!(beat.is_none_or(|beat| beat.boot == before.boot), "{guest} was booted again");
            now = beat.filter(|beat| beat.count > before.count);
            Ok(now.is_some())
        })?;
        let after = now.map_or(0, |beat| beat.count);
        self.so(format!("{guest} counts on: {} before, {after} on {node}", before.count), true, "")
    }
}

/// Whatever the story broke is mended, also when it ended early; its guests are gone.
impl Drop for Stage {
    fn drop(&mut self) {
        mend_all(&self.lab);
        let Ok(awake) = self.awake() else { return };
        for guest in GUESTS {
            // Most are not there in a story that was not told whole.
            ask::pvc(&self.lab, &awake, &["vm", "remove", guest]).ok();
        }
    }
}

/// A time as it is read aloud.
pub fn time(time: Duration) -> String {
    match time.as_secs() {
        0..90 => format!("{:.1} s", time.as_secs_f64()),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_times_are_reported_in_minutes() {
        assert_eq!(time(Duration::from_millis(1_240)), "1.2 s");
        assert_eq!(time(Duration::from_secs(432)), "7 min 12 s");
    }
}
