//! The program itself: each run is a process of its own.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::process::{Command, Output};

fn pvc_sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pvc-sim")).args(arguments).output().unwrap()
}

#[test]
fn one_seed_gives_one_log_to_the_byte() {
    let many_vms = |seed: &u64| pvc_sim::Case::from_seed(*seed, 1, None).shape.vms.len() >= 100;
    let crowded = (1..).find(many_vms).unwrap().to_string();
    for (seed, minutes) in [("5", "15"), ("9", "15"), (crowded.as_str(), "3")] {
        let run =
            || pvc_sim(&["one", "--seed", seed, "--minutes", minutes, "--log", "--debug"]).stdout;
        let (first, second) = (run(), run());
        assert!(first.split(|byte| *byte == b'\n').count() > 200, "something happens");
        assert!(first == second, "seed {seed} has two logs");
    }
}

#[test]
fn a_run_of_seeds_says_what_happened() {
    let ran = pvc_sim(&["seeds", "--seeds", "4", "--minutes", "5", "--no-shrink"]);
    let said = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.status.success(), "{said}");
    assert!(said.contains("4 seeds, 0 failed") && said.contains("simulated hours in"), "{said}");
}

/// No node that is well is accused over an election (issue 13, point 29).
#[test]
fn nobody_is_accused_over_the_loss_of_zookeepers_leader() {
    let words = ["seeds", "--only", "elections", "--seeds", "200", "--no-shrink"];
    let ran = pvc_sim(&words);
    let said = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.status.success() && said.contains("200 seeds, 0 failed"), "{said}");
}

#[test]
fn a_failure_is_shrunk_and_can_be_replayed() {
    let flawed = [
        "--mutation",
        "unconfirmed",
        "--minutes",
        "10",
        "--until-found",
        "--no-shrink",
        "--jobs",
        "1",
    ];
    let found =
        String::from_utf8(pvc_sim(&[&["seeds", "--seeds", "1000"][..], &flawed].concat()).stdout)
            .unwrap();
    let seed = found.split("found by seed ").nth(1).unwrap().split(' ').next().unwrap();
    let shown = pvc_sim(&["seeds", "--seed", seed, "--mutation", "unconfirmed", "--minutes", "10"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    let number = |before: &str, after: &str| -> usize {
        shown.split(before).nth(1).unwrap().split(after).next().unwrap().parse().unwrap()
    };
    let shorter = number("the history, ", " events");
    assert!(shorter < number(&format!("of seed {seed}, "), " events"), "{shown}");
    let again = shown.lines().rev().find_map(|line| line.strip_prefix("again: ")).unwrap();
    let mut words = again.split(' ');
    let replayed = Command::new(words.next().unwrap()).args(words).output().unwrap();
    let said = String::from_utf8(replayed.stdout).unwrap();
    assert!(!replayed.status.success() && said.contains("VIOLATION"), "{again}: {said}");
}

/// A flaw breaks one of `rules` in one of a thousand seeds, in which nothing is wrong without it.
/// The seeds before `from`, in which nobody saw it, are left out to save minutes.
fn is_found(mutation: &str, rules: &[&str], from: u32) {
    let from = from.to_string();
    let mutated = ["--mutation", mutation, "--until-found", "--no-shrink", "--from", &from];
    let ran = pvc_sim(&[&["seeds", "--seeds", "1000", "--minutes", "15"][..], &mutated].concat());
    let said = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.status.success() && said.contains(&format!("{mutation}: found")), "{said}");
    assert!(rules.iter().any(|rule| said.contains(&format!("({rule})"))), "{said}");
}

#[test]
fn a_power_cut_that_nobody_confirms_is_found() {
    is_found("unconfirmed", &["I1", "I2", "I3"], 1);
}

#[test]
fn a_change_whose_versions_nobody_compares_is_found() {
    is_found("versionless", &["I1", "I2", "I3", "I4", "I9", "I10", "I11"], 400);
}

#[test]
fn a_stamp_that_is_compared_with_a_wall_clock_is_found() {
    is_found("wall-clock", &["I8"], 1);
}

#[test]
fn memory_that_is_promised_twice_is_found() {
    is_found("boastful", &["I11"], 100);
}

#[test]
fn a_drain_that_stops_what_could_have_moved_is_found() {
    is_found("modest", &["I4", "I9"], 1);
}
