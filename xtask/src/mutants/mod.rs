//! Mutants of the safety rules: each small change of them that cargo-mutants makes has to fail a
//! test of their own crate, unless [`LIST`] says why no test can tell it from the rule.
//!
//! One build has all of them, and its tests run once for each: see docs/adr/0076.

mod build;
mod list;
mod mutant;
mod runner;
mod source;
mod tree;
mod trial;
mod verdict;

use std::fs;

use anyhow::{Context, Result, ensure};

use self::list::{Choice, LIST, List};
use self::tree::Tree;
use self::trial::Trial;
use self::verdict::Verdict;
use crate::run;

/// Below the directory that cargo builds in.
const OUTPUT: &str = "mutants";

/// Tests the mutants of the rules, or of some of them.
///
/// # Errors
/// If the tool is missing, if the tests fail without any mutant, if a mutant is missed that is not
/// listed, or if one is listed that no longer is missed.
pub fn run(arguments: &[String]) -> Result<()> {
    let list = fs::read_to_string(run::top().join(LIST)).with_context(|| format!("no {LIST}"))?;
    let list = List::read(&list)?;
    let choice = Choice::parse(&list, arguments)?;
    let output = run::target().join(OUTPUT);
    let tree = Tree::copy(output.join("tree"), &list)?;
    let all = mutant::list(&list, &tree.top)?;
    let chosen = choice.among(all.iter().map(|mutant| mutant.file.as_str()));
    let trial = Trial { list: &list, tree: &tree, all: &all, target: output.join("build") };
    let found = trial.test(&chosen)?;
    let log = output.join("outcomes.txt");
    fs::write(&log, trial.log(&found))?;
    let run: Vec<_> =
        found.iter().map(|(number, fate)| (all[*number - 1].clone(), fate.outcome())).collect();
    let verdict = verdict::compare(&list, &all, &run);
    println!("{}; {}", verdict.counts, log.display());
    judge(&verdict)
}

fn judge(verdict: &Verdict) -> Result<()> {
    for mutant in &verdict.unlisted {
        eprintln!("missed: {mutant}");
    }
    for mutant in &verdict.gone {
        eprintln!("listed and not missed: {mutant}");
    }
    ensure!(
        verdict.unlisted.is_empty(),
        "no test fails for {} mutants: write the case that tells each from the rule, make the rule \
         simpler if there is none, or list the mutant in {LIST} with the reason",
        verdict.unlisted.len()
    );
    ensure!(
        verdict.gone.is_empty(),
        "{} mutants of {LIST} are no longer missed, or no longer made: take them off",
        verdict.gone.len()
    );
    Ok(())
}
