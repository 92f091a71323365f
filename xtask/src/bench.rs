//! The benchmarks: release builds of what is measured, then the program that measures.

use anyhow::Result;

use crate::run::{self, cargo, command, target};

/// Builds `pvc` and `pvc-bench` for release and runs the latter with `arguments`.
pub fn run(arguments: &[String]) -> Result<()> {
    run::run(cargo().args(["build", "--quiet", "--release", "--package", "pvc", "--package", "pvc-bench"]))?;
    run::run(command(target().join("release/pvc-bench")).args(arguments))
}
