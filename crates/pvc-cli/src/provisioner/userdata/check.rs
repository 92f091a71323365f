//! Userdata that cloud-init would not take: warned of, and kept all the same.

use crate::context::Pvc;
use crate::provisioner::program::ask;

/// Beginnings by which cloud-init knows what userdata is.
const BEGINNINGS: [&str; 9] = [
    "#!",
    CONFIG,
    "#cloud-boothook",
    "#include",
    "#part-handler",
    "## template:",
    "content-type:",
    "mime-version:",
    "from ",
];

/// Beginning of what cloud-init has a schema for.
const CONFIG: &str = "#cloud-config";

/// Warns of userdata that cloud-init would leave alone, and where cloud-init is installed of a
/// configuration that is not by its schema.
pub fn check(pvc: &Pvc, data: &str) {
    let first = data.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let first = first.trim_start_matches('\u{feff}').to_ascii_lowercase();
    if !data.trim().is_empty() && !BEGINNINGS.iter().any(|known| first.starts_with(known)) {
        pvc.warn("cloud-init will not know what this userdata is: its first line says nothing");
        pvc.hint("`#cloud-config` is the first line of a configuration, `#!` begins a program");
    }
    if first.split_whitespace().next() != Some(CONFIG) {
        return;
    }
    // One that cannot be asked is as one that is not installed: it is about a warning.
    if let Some(lines) = refused_by_schema(data).ok().flatten() {
        pvc.warn("cloud-init's schema refuses this configuration:");
        lines.iter().for_each(|line| pvc.warn(line));
    }
}

/// Answer of cloud-init to a configuration that is not by its schema.
fn refused_by_schema(data: &str) -> std::io::Result<Option<Vec<String>>> {
    let answer = ask("cloud-init", &["schema", "--config-file", "/dev/stdin"], data)?;
    // A program that is broken says nothing about the configuration.
    let is_broken = |lines: &Vec<String>| lines.iter().any(|line| line.starts_with("Traceback"));
    Ok(answer.filter(|lines| !is_broken(lines)))
}
