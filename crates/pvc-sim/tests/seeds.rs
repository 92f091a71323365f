//! The program itself: each run is a process of its own.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::process::{Command, Output};

fn pvc_sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pvc-sim")).args(arguments).output().unwrap()
}

#[test]
fn one_seed_gives_one_log_to_the_byte() {
    for seed in ["5", "9"] {
        let run = || pvc_sim(&["one", "--seed", seed, "--minutes", "15", "--log", "--debug"]).stdout;
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

/// A flaw of the safety is found by one of the first thousand seeds, and would not be without it.
fn is_found(mutation: &str) {
    let mutated = ["--mutation", mutation, "--until-found", "--no-shrink", "--jobs", "1"];
    let ran = pvc_sim(&[&["seeds", "--seeds", "1000", "--minutes", "15"][..], &mutated].concat());
    let said = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.status.success() && said.contains(&format!("{mutation}: found")), "{said}");
}

#[test]
fn a_power_cut_that_nobody_confirms_is_found() {
    is_found("unconfirmed");
}

#[test]
fn a_change_whose_versions_nobody_compares_is_found() {
    is_found("versionless");
}

#[test]
fn a_stamp_that_is_compared_with_a_wall_clock_is_found() {
    is_found("wall-clock");
}

/// Histories that once went wrong, shrunk, with the seed of their cluster.
const FOUND: [(&str, &str); 1] = [("195", "stopped-while-it-takes-over.jsonl")];

#[test]
fn what_once_went_wrong_goes_well() {
    for (seed, history) in FOUND {
        let file = format!("{}/tests/histories/{history}", env!("CARGO_MANIFEST_DIR"));
        let ran = pvc_sim(&["one", "--seed", seed, "--minutes", "30", "--history", &file]);
        let said = String::from_utf8(ran.stdout).unwrap();
        assert!(ran.status.success() && said.contains("\"violation\":null"), "{history}: {said}");
    }
}
