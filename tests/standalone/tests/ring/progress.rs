//! Progress of `./run`, while others work for it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use pvc_standalone_tests::{Keeper, Output, repository, run};

/// Script that writes what cargo writes while it builds: `\r` before and after what it overwrites.
const CARGO: &str = r#"#!/bin/bash
printf '   Compiling libc v0.2\n' >&2
printf '\r\e[K    Building [=>       ] 2/345: serde, libc(build)\r' >&2
sleep 2
printf 'warning: unused variable\n  --> src/main.rs:1\n' >&2
printf '    Building [=======> ] 344/345: pvcd(bin)\r' >&2
sleep 2
printf '    Finished `dev` profile\n' >&2
exit "$1"
"#;

/// `crates cargo` as `./run` calls it, to where `command` makes it go.
fn build(keeper: &Keeper, command: &mut Command, status: &str) -> Output {
    let cargo = keeper.dir().join("cargo");
    fs::write(&cargo, CARGO).expect("the test's directory can be written");
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let progress = repository().join("packaging/install/progress.sh");
    let script =
        format!("set -euo pipefail; . {}; crates {} {status}", progress.display(), cargo.display());
    run(command.env("SCRIPT", script).env("PROGRESS_EVERY", "1"), "")
}

#[test]
fn a_log_of_a_build_says_at_which_crate_of_how_many_it_is() {
    let keeper = Keeper::start();
    let output = build(&keeper, Command::new("bash").args(["-c", "eval \"$SCRIPT\""]), "0");
    assert_eq!(output.code, 0, "{output}");
    for said in ["crate 2 of 345: serde, libc(build), 0 min", "crate 344 of 345: pvcd(bin), 0 min"]
    {
        assert!(output.stderr.contains(said), "{output}");
    }
    assert!(
        output.stderr.contains("warning: unused variable\n"),
        "all else is handed on: {output}"
    );
    assert!(!output.stderr.contains(['\r', '\u{1b}', '[']), "a log has lines: {output}");
}

#[test]
fn a_line_that_comes_in_parts_is_handed_on_whole() {
    let progress = repository().join("packaging/install/progress.sh");
    let script = format!(
        "set -euo pipefail; . {}; never() {{ return 1; }}; \
         {{ printf war; sleep 2; printf 'ning\n'; }} | follow never",
        progress.display()
    );
    let output = run(Command::new("bash").args(["-c", &script]).env("PROGRESS_EVERY", "1"), "");
    assert_eq!(output.stderr, "warning\n", "{output}");
}

#[test]
fn a_terminal_shows_how_far_a_build_is_in_one_line() {
    let keeper = Keeper::start();
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", "bash -c 'eval \"$SCRIPT\"'", "/dev/null"]);
    let output = build(&keeper, &mut terminal, "0");
    assert_eq!(output.code, 0, "{output}");
    assert!(output.stdout.contains("crate 344 of 345: pvcd(bin), 0 min"), "{output:?}");
    // What a line shows in the end is what follows the last order to clear it.
    let stays = output.stdout.lines().filter_map(|line| line.rsplit("\u{1b}[K").next());
    let stays: Vec<&str> = stays.filter(|line| line.contains("crate")).collect();
    assert!(stays.is_empty(), "however often it was written: {output:?}");
}

#[test]
fn a_build_that_fails_is_not_said_to_be_good() {
    let keeper = Keeper::start();
    let output = build(&keeper, Command::new("bash").args(["-c", "eval \"$SCRIPT\""]), "101");
    assert_eq!(output.code, 101, "{output}");
}
