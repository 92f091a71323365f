//! Clusters in a simulated world: an optimised build of the simulation, then many seeds, or
//! stories.

use anyhow::Result;

use crate::run::{self, cargo, command, target};

/// Has it run seeds, with `arguments`.
pub fn seeds(arguments: &[String]) -> Result<()> {
    simulation("seeds", arguments)
}

/// Runs the simulator as [`seeds`] does: has it play the stories in these folders, or all below
/// `scenarios`.
pub fn stories(arguments: &[String]) -> Result<()> {
    simulation("stories", arguments)
}

fn simulation(what: &str, arguments: &[String]) -> Result<()> {
    eprintln!("building the simulation, optimised; the first time this takes some minutes");
    run::run(cargo().args(["build", "--quiet", "--profile", "quick", "--package", "pvc-sim"]))?;
    run::run(command(target().join("quick/pvc-sim")).arg(what).args(arguments))
}
