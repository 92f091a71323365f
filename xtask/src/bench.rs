//! The benchmarks: release builds of what is measured, then the program that measures.

use anyhow::Result;

use crate::run::{self, cargo, command, target};

/// Builds what is measured and what measures for release, and runs the latter with `arguments`.
pub fn run(arguments: &[String]) -> Result<()> {
    run::run(cargo().args([
        "build",
        "--quiet",
        "--release",
        "--package",
        "pvc",
        "--package",
        "pvcd",
        "--package",
        "pvc-bench",
    ]))?;
    run::run(command(target().join("release/pvc-bench")).args(arguments))
}
