//! Files made from the code.
//!
//! The two that are kept in the checkout belong to a test of their crate, which compares them, and
//! writes them when `PVC_WRITE_DOCS` is set.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::run::{cargo, command, output, run, target, top};

/// Writes `docs/manual/configuration.md`.
pub fn config() -> Result<()> {
    written_by("pvc-config", "values", "the_reference_page_is_up_to_date")
}

/// Writes `docs/api/openapi.json`.
pub fn openapi() -> Result<()> {
    written_by("pvc-api", "document", "the_openapi_document_is_up_to_date")
}

fn written_by(package: &str, program: &str, test: &str) -> Result<()> {
    let mut cargo = cargo();
    cargo.args(["test", "--quiet", "--package", package, "--test", program, "--", "--exact", test]);
    run(cargo.env("PVC_WRITE_DOCS", "1"))
}

/// Writes the man pages of `pvc` to `directory`.
pub fn man(directory: &str) -> Result<()> {
    let directory = top().join(directory);
    run(pvc()?.arg("man").arg(&directory))
}

/// Writes the completion functions for each shell to `directory`, under the names that each shell
/// looks for.
pub fn completions(directory: &str) -> Result<()> {
    let directory = top().join(directory);
    fs::create_dir_all(&directory).with_context(|| format!("cannot create `{}`", directory.display()))?;
    for (shell, name) in [("bash", "pvc"), ("zsh", "_pvc"), ("fish", "pvc.fish")] {
        let script = output(pvc()?.args(["completion", shell]))?;
        let path = directory.join(name);
        fs::write(&path, script).with_context(|| format!("cannot write `{}`", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// The command line, as it is built now, with a store of connections that is not the user's.
fn pvc() -> Result<Command> {
    run(cargo().args(["build", "--quiet", "--package", "pvc"]))?;
    let mut pvc = command(target().join("debug/pvc"));
    pvc.env("PVC_CLIENT_DIR", target().join("xtask-pvc"));
    Ok(pvc)
}
