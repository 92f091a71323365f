//! The other half: nodes fail, and the cluster sees to it by itself, provably safe.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use serde_json::Value;

use super::super::ask::{self, text};
use super::super::layout::NodeName;
use super::super::{node, process};
use super::moving::one_primary;
use super::stage::{GUESTS, Stage, time};

/// A failure, and who watches it.
struct Failure<'a> {
    stage: &'a Stage,
    victim: NodeName,
    witness: NodeName,
    begun: Instant,
    since: SystemTime,
}

pub fn power(stage: &Stage) -> Result<()> {
    let (first, second) = (GUESTS[0], GUESTS[1]);
    let victim = stage.primary()?;
    let witness = stage.other_than(&[&victim])?;
    stage.cast(&[first, second], &victim)?;
    stage.says("What will happen can be asked beforehand.\n");
    let question = format!("cluster what-if node {victim}");
    stage.pvc(&witness, &question)?;
    let predicted = ask::json(&stage.lab, &witness, &question.split(' ').collect::<Vec<_>>())?;
    stage.says("");
    let before = stage.beat(first, &victim.text)?;
    let guests = ask::watch_guests(&stage.lab);
    let failure = Failure::begin(stage, victim, witness, "power VICTIM off")?;
    let floating = ask::watch_floating(&stage.lab);
    failure.is_suspected(90)?;
    failure.role_moves()?;
    failure.is_proven(60)?;
    failure.recovers(&[first, second])?;
    failure.tell_times(&[first, second], &floating.end());
    failure.was_predicted(&predicted, &[first, second])?;
    failure.comes_back()?;
    let twice = guests.end();
    stage.so("no VM ran on two nodes at any moment", twice.is_empty(), format!("{twice:?}"))?;
    let place = stage.place_of(first)?;
    let began = Instant::now();
    stage.becomes(format!("{first} has booted from its disk in Ceph"), began, 180, || {
        Ok(ask::last_beat(&stage.lab, first, &place)
            .is_some_and(|beat| beat.boot == before.boot + 1))
    })?;
    stage.pvc(&failure.witness, &format!("node info {}", failure.victim))?;
    failure.is_made_ready(&[first, second])
}

pub fn cut(stage: &Stage) -> Result<()> {
    let guest = GUESTS[0];
    let primary = stage.primary()?;
    let victim = stage.other_than(&[&primary])?;
    stage.cast(&[guest], &victim)?;
    let before = stage.beat(guest, &victim.text)?;
    let process = ask::guests(&stage.lab).into_iter().find(|one| one.name == guest);
    let process = process.context("the guest has just started")?;
    let fences = stage.record(&primary, &victim)?["fence"].clone();
    let failure = Failure::begin(stage, victim, primary, "cut VICTIM cluster")?;
    stage.says("For 15 s. The others give it 30 s.");
    std::thread::sleep(Duration::from_secs(15));
    stage.lab(&format!("heal {} cluster", failure.victim))?;
    stage.says("Whoever is suspected is so 30 s after its last keepalive. So we wait for 40 s.");
    let deadline = Instant::now() + Duration::from_secs(40);
    let mut record = failure.record()?;
    while Instant::now() < deadline
        && text(&record, "daemon_state") == "run"
        && record["fence"] == fences
    {
        std::thread::sleep(Duration::from_millis(500));
        record = failure.record()?;
    }
    let (state, fence) = (text(&record, "daemon_state"), &record["fence"]);
    stage.so(format!("{} was `run` all the time", failure.victim), state == "run", state)?;
    stage.so("nobody has fenced it", *fence == fences, fence)?;
    let now = ask::guests(&stage.lab).into_iter().filter(|one| one.name == guest);
    let now: Vec<u32> = now.map(|one| one.pid).collect();
    stage.so(
        format!("{guest} is the same process as before"),
        now == [process.pid],
        format!("{now:?}"),
    )?;
    stage.counts_on(guest, &failure.victim.text, before)
}

pub fn freeze(stage: &Stage) -> Result<()> {
    let guest = GUESTS[0];
    let primary = stage.primary()?;
    let victim = stage.other_than(&[&primary])?;
    stage.cast(&[guest], &victim)?;
    stage.says(
        "Its BMC will say that the power is on. So it gets 30 s more, then its power is cut.\n",
    );
    let guests = ask::watch_guests(&stage.lab);
    let failure = Failure::begin(stage, victim, primary, "freeze VICTIM")?;
    failure.is_suspected(90)?;
    let running = ask::running_on(&stage.lab, guest);
    let is_there = running == [failure.victim.text.clone()];
    stage.so(
        format!("{guest} is started nowhere else meanwhile"),
        is_there,
        format!("{running:?}"),
    )?;
    failure.is_proven(120)?;
    failure.recovers(&[guest])?;
    failure.tell_times(&[guest], &Default::default());
    failure.comes_back()?;
    let twice = guests.end();
    stage.so("no VM ran on two nodes at any moment", twice.is_empty(), format!("{twice:?}"))?;
    failure.is_made_ready(&[guest])
}

pub fn bmc(stage: &Stage) -> Result<()> {
    let guest = GUESTS[0];
    let primary = stage.primary()?;
    let victim = stage.other_than(&[&primary])?;
    stage.cast(&[guest], &victim)?;
    stage.says("Whether it is dead cannot be known, so nothing may be started elsewhere.\n");
    stage.lab(&format!("bmc {victim} dead"))?;
    let failure = Failure::begin(stage, victim, primary, "power VICTIM off")?;
    failure.is_suspected(90)?;
    let (victim, witness) = (&failure.victim, &failure.witness);
    stage.becomes(
        format!("{witness} knows no proof and tells of it"),
        failure.begun,
        180,
        || Ok(failure.fence()?["failed_attempts"].as_u64().unwrap_or(0) > 0),
    )?;
    stage.says(format!("why: {}", text(&failure.fence()?, "last_failure")));
    let faults = ask::pvc(&stage.lab, witness, &["cluster", "fault", "list", "--format", "json"])?;
    let fault = format!("FENCE_FAILED_{}", victim.text.to_uppercase());
    stage.so(format!("a fault {fault} asks for help"), faults.contains(&fault), faults)?;
    let running = ask::running_on(&stage.lab, guest);
    stage.so(format!("{guest} runs nowhere"), running.is_empty(), format!("{running:?}"))?;
    stage.lab(&format!("bmc {victim} ok"))?;
    failure.is_proven(120)?;
    failure.recovers(&[guest])?;
    failure.comes_back()?;
    failure.is_made_ready(&[guest])
}

impl<'a> Failure<'a> {
    /// Breaks `victim` by the lab's `command`.
    fn begin(stage: &'a Stage, victim: NodeName, witness: NodeName, command: &str) -> Result<Self> {
        let (begun, since) = (Instant::now(), SystemTime::now());
        stage.lab(&command.replace("VICTIM", &victim.text))?;
        Ok(Self { stage, victim, witness, begun, since })
    }

    fn record(&self) -> Result<Value> {
        self.stage.record(&self.witness, &self.victim)
    }

    fn fence(&self) -> Result<Value> {
        Ok(self.record()?["fence"].clone())
    }

    fn becomes(&self, claim: &str, limit: u64, is_so: impl FnMut() -> Result<bool>) -> Result<()> {
        self.stage.becomes(claim.replace("VICTIM", &self.victim.text), self.begun, limit, is_so)
    }

    fn is_suspected(&self, limit: u64) -> Result<()> {
        self.becomes("VICTIM has been silent for 30 s and is taken for dead", limit, || {
            Ok(matches!(text(&self.record()?, "daemon_state"), "dead" | "fenced"))
        })?;
        self.stage.says(format!("by {}", text(&self.fence()?, "by")));
        Ok(())
    }

    fn role_moves(&self) -> Result<()> {
        self.becomes(&format!("{} is on another node", ask::FLOATING), 60, || {
            let holders = ask::holders(&self.stage.lab);
            Ok(holders.len() == 1 && holders[0] != self.victim.text)
        })?;
        self.becomes("the API answers there", 30, || Ok(ask::api_answers(&self.stage.lab)))
    }

    fn is_proven(&self, limit: u64) -> Result<()> {
        self.becomes("VICTIM is proven dead", limit, || {
            let fence = self.fence()?;
            Ok(!text(&fence, "proven_at").is_empty() && !text(&fence, "proof").is_empty())
        })?;
        let fence = self.fence()?;
        self.stage.says(format!(
            "the proof: {}; recorded by {}",
            text(&fence, "proof"),
            text(&fence, "by")
        ));
        Ok(())
    }

    /// Claims that `guests` run elsewhere, and that none was started before the proof.
    fn recovers(&self, guests: &[&str]) -> Result<()> {
        let (lab, victim) = (&self.stage.lab, &self.victim.text);
        for guest in guests {
            self.becomes(&format!("{guest} runs elsewhere"), 60, || {
                Ok(matches!(ask::running_on(lab, guest).as_slice(), [one] if one != victim))
            })?;
        }
        for guest in guests {
            self.stage.alone(guest, &self.stage.place_of(guest)?)?;
        }
        let proof = self.logged("the node is dead").context("nobody has logged the proof")?;
        let first = self.started(guests).into_iter().min().context("none of them runs any more")?;
        let claim = format!("none of them was started before {victim} was proven dead");
        let early = proof.duration_since(first).unwrap_or_default();
        self.stage.so(claim, early < Duration::from_millis(20), format!("{} before", time(early)))
    }

    fn started(&self, guests: &[&str]) -> Vec<SystemTime> {
        let all = ask::guests(&self.stage.lab).into_iter();
        all.filter(|guest| guests.contains(&guest.name.as_str()))
            .map(|guest| guest.started)
            .collect()
    }

    /// Time at which one of the others logged `words` about the victim.
    fn logged(&self, words: &str) -> Option<SystemTime> {
        let nodes = self.stage.lab.nodes();
        let others = nodes.iter().filter(|node| **node != self.victim);
        let about = format!("node={}", self.victim);
        let lines = others.filter_map(|node| {
            let line = ask::journalled(&self.stage.lab, node, "pvcnoded", self.since, words)?;
            line.1.contains(&about).then_some(line.0)
        });
        lines.min()
    }

    /// Prints when what happened, by the journals, the processes and the devices.
    fn tell_times(&self, guests: &[&str], floating: &std::collections::BTreeMap<String, Instant>) {
        let early = self.since - Duration::from_secs(10);
        let stamp = ask::journalled(&self.stage.lab, &self.victim, "pvcnoded", early, "keepalive");
        let moved =
            floating.iter().filter(|(node, _)| **node != self.victim.text).map(|(_, at)| *at).min();
        let mut times: Vec<(f64, String)> = Vec::new();
        let mut add = |at: Option<SystemTime>, what: &str| {
            times.extend(at.map(|at| (seconds_after(self.since, at), what.to_owned())));
        };
        add(stamp.map(|(at, _)| at), "its last keepalive");
        add(Some(self.since), "it fails");
        add(
            self.logged("is taken for dead"),
            "the others have missed six keepalives: it is taken for dead",
        );
        add(
            moved.map(|at| self.since + at.saturating_duration_since(self.begun)),
            "another node has the primary role and its addresses",
        );
        add(self.logged("the node is dead"), "its death is proven");
        add(
            self.started(guests).into_iter().max(),
            "QEMU has been started elsewhere for each of its VMs",
        );
        times.sort_by(|one, other| one.0.total_cmp(&other.0));
        self.stage.says("\nTo the tenth of a second:");
        for (seconds, what) in times {
            self.stage.says(format!("{seconds:>+7.1} s  {what}"));
        }
        self.stage.says("");
    }

    /// Claims that what happened to `guests` is what `pvc cluster what-if` had said. On which node
    /// each of them runs is no part of it: all nodes here are one machine, and have the same memory
    /// free.
    fn was_predicted(&self, predicted: &Value, guests: &[&str]) -> Result<()> {
        let ran = predicted["simulation"]["vms"].as_array().into_iter().flatten();
        let ours = ran.filter(|vm| guests.contains(&text(vm, "name")));
        let times: Vec<f64> = ours.filter_map(|vm| vm["seconds"].as_f64()).collect();
        let claim = "it was predicted that all of them would run elsewhere";
        self.stage.so(claim, times.len() == guests.len(), predicted)?;
        let last = self.started(guests).into_iter().max().context("none of them runs any more")?;
        let (soon, late) = (times.into_iter().fold(0.0, f64::max), seconds_after(self.since, last));
        let claim = format!(
            "the last of them started after {late:.1} s; predicted were {soon:.1} s, and 10 s more \
             or less"
        );
        self.stage.so(claim, (late - soon).abs() <= 10.0, "it was not so")
    }

    /// Claims that the victim is switched on and takes part again.
    fn comes_back(&self) -> Result<()> {
        self.becomes("VICTIM has its power back", 120, || {
            Ok(node::is_on(&self.stage.lab, &self.victim))
        })?;
        self.becomes("VICTIM runs again, without VMs", 240, || {
            Ok(text(&self.record()?, "daemon_state") == "run")
        })
    }

    /// Has the victim take VMs, and claims that `guests` come home.
    fn is_made_ready(&self, guests: &[&str]) -> Result<()> {
        self.stage.pvc(&self.witness, &format!("node ready {} --wait", self.victim))?;
        process::wait_until("the VMs are home", Duration::from_secs(120), || {
            let is_home = |guest: &&str| {
                ask::running_on(&self.stage.lab, guest) == [self.victim.text.clone()]
            };
            Ok(guests.iter().all(is_home))
        })?;
        for guest in guests {
            self.stage.alone(guest, &self.victim.text)?;
        }
        one_primary(self.stage)
    }
}

fn seconds_after(begin: SystemTime, at: SystemTime) -> f64 {
    match at.duration_since(begin) {
        Ok(after) => after.as_secs_f64(),
        Err(before) => -before.duration().as_secs_f64(),
    }
}
