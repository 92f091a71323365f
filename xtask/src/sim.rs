//! Clusters in a simulated world: a release build of the simulation, then many seeds.

use anyhow::Result;

use crate::run::{self, cargo, command, target};

/// Builds the simulation for release and has it run seeds, with `arguments`.
pub fn run(arguments: &[String]) -> Result<()> {
    run::run(cargo().args(["build", "--quiet", "--release", "--package", "pvc-sim"]))?;
    run::run(command(target().join("release/pvc-sim")).arg("seeds").args(arguments))
}
