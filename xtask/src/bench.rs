//! The benchmarks: release builds of what is measured, then the program that measures.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::run::{self, cargo, command, target};

/// Builds what is measured and what measures for release, and runs the latter with `arguments`.
pub fn run(arguments: &[String]) -> Result<()> {
    let packages = ["--package", "pvc", "--package", "pvcd", "--package", "pvc-bench"];
    run::run(cargo().args(["build", "--quiet", "--release"]).args(packages))?;
    run::run(before_others(&target().join("release/pvc-bench")).args(arguments))
}

/// `program`, and all that it starts, before others who want the processor, if we may: what is slow
/// because its neighbours are busy is not slow.
fn before_others(program: &Path) -> Command {
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if !is_root {
        return command(program);
    }
    let mut nice = command("nice");
    nice.args(["-n", "-15"]).arg(program);
    nice
}
