//! Running other programs from the top of the checkout.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The top of the checkout.
pub fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies one level below the top")
}

/// Directory in which cargo puts what it builds.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => top().join(directory),
        None => top().join("target"),
    }
}

/// The cargo that runs us, in the top of the checkout.
pub fn cargo() -> Command {
    command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(top());
    command
}

/// Runs `command` with our own standard streams.
///
/// # Errors
/// If it cannot be started, or ends with anything but success.
pub fn run(command: &mut Command) -> Result<()> {
    let name = name(command);
    let status = command.status().with_context(|| format!("`{name}` cannot be started"))?;
    if !status.success() {
        bail!("`{name}` failed: {status}");
    }
    Ok(())
}

/// Runs as [`run`] does, and returns what it wrote to its standard output.
pub fn output(command: &mut Command) -> Result<Vec<u8>> {
    let name = name(command);
    let output = command.stderr(std::process::Stdio::inherit()).output();
    let output = output.with_context(|| format!("`{name}` cannot be started"))?;
    if !output.status.success() {
        bail!("`{name}` failed: {}", output.status);
    }
    Ok(output.stdout)
}

/// The program and its arguments, as one would type them.
fn name(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_named_with_its_arguments() {
        let error = run(command("sh").args(["-c", "exit 3"])).unwrap_err();
        assert_eq!(error.to_string(), "`sh -c exit 3` failed: exit status: 3");
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let error = run(&mut command("/nowhere/at-all")).unwrap_err();
        assert_eq!(error.to_string(), "`at-all` cannot be started");
    }

    #[test]
    fn the_top_of_the_checkout_holds_the_root_manifest() {
        assert!(top().join("Cargo.toml").exists());
    }
}
