//! Files made from the code.
//!
//! The two that are kept in the checkout belong to a test of their crate, which compares them, and
//! writes them when `PVC_WRITE_DOCS` is set.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::run::{cargo, command, output, run, target, top};

/// Writes `docs/manual/configuration.md`.
pub fn config() -> Result<()> {
    written_by("pvc-config", "config", "values::the_reference_page_is_up_to_date")
}

/// Writes `docs/api/openapi.json`.
pub fn openapi() -> Result<()> {
    written_by("pvc-api", "api", "document::the_openapi_document_is_up_to_date")
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

/// Writes the completion functions for each shell to `directory`.
pub fn completions(directory: &str) -> Result<()> {
    let program = pvc()?.get_program().to_owned();
    let directory = top().join(directory);
    for path in write_completions(|| apart(command(&program)), &directory)? {
        println!("{}", path.display());
    }
    Ok(())
}

/// Writes what `pvc` prints for each shell to `directory`, under the name that the shell looks for.
pub fn write_completions(pvc: impl Fn() -> Command, directory: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create `{}`", directory.display()))?;
    let mut paths = Vec::new();
    for (shell, name) in [("bash", "pvc"), ("zsh", "_pvc"), ("fish", "pvc.fish")] {
        let script = output(pvc().args(["completion", shell]))?;
        let path = directory.join(name);
        fs::write(&path, script).with_context(|| format!("cannot write `{}`", path.display()))?;
        paths.push(path);
    }
    Ok(paths)
}

/// The command line, as it is built now.
fn pvc() -> Result<Command> {
    run(cargo().args(["build", "--quiet", "--package", "pvc"]))?;
    Ok(apart(command(target().join("debug/pvc"))))
}

/// `pvc` with a store of connections that is not the user's.
pub fn apart(mut pvc: Command) -> Command {
    pvc.env("PVC_CLIENT_DIR", target().join("xtask-pvc"));
    pvc
}
