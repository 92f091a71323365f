//! Checks that must pass before a change is handed in.

use std::process::Command;

use anyhow::{Result, bail};

use crate::run::{self, cargo, command};

/// Runs every check, also after one has failed, and says at the end which did.
fn run_all(checks: Vec<(&'static str, Command)>) -> Result<()> {
    let mut failed = Vec::new();
    for (name, mut check) in checks {
        println!("check: {name}");
        if let Err(error) = run::run(&mut check) {
            eprintln!("error: {error:#}");
            failed.push(name);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("these checks failed: {}", failed.join(", "))
}

pub fn run() -> Result<()> {
    let mut checks = vec![
        ("formatting", fmt()),
        ("clippy", clippy()),
        ("words", own("words")),
        ("dependency policy", own("deny")),
    ];
    if is_installed("deny") {
        checks.push(("dependency policy, with the advisories of today", deny()));
    } else {
        println!(
            "check: advisories newer than our copy left out; `cargo install --locked cargo-deny` \
             brings them"
        );
    }
    // The generated files are compared by tests of this ring.
    checks.push(("rules and generated files", rules()));
    run_all(checks)
}

fn fmt() -> Command {
    let mut fmt = cargo();
    fmt.args(["fmt", "--all", "--check"]);
    fmt
}

fn clippy() -> Command {
    let mut clippy = cargo();
    clippy.args(["clippy", "--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"]);
    clippy
}

fn own(check: &str) -> Command {
    let mut own = cargo();
    own.args(["xtask", check]);
    own
}

fn deny() -> Command {
    let mut deny = cargo();
    deny.args(["deny", "--log-level", "error", "check"]);
    deny
}

fn rules() -> Command {
    let mut rules = command("./test");
    rules.arg("rules");
    rules
}

fn is_installed(subcommand: &str) -> bool {
    cargo().args([subcommand, "--version"]).output().is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_runs_and_those_that_failed_are_named() {
        let error = run_all(vec![
            ("first", command("false")),
            ("second", command("true")),
            ("third", command("false")),
        ]);
        assert_eq!(error.unwrap_err().to_string(), "these checks failed: first, third");
        assert!(run_all(vec![("only", command("true"))]).is_ok());
    }
}
