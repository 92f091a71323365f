//! Each node's own cgroups: systemd's tree of services, and the one that freezes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::layout::{Lab, NodeName};
use super::process::wait_until;

/// The node's place in the hierarchies that count here, cgroup v1. Where `unified` is mounted
/// beside the old ones, nspawn looks there for the place in `systemd`.
pub fn directories(lab: &Lab, node: &NodeName) -> [PathBuf; 3] {
    ["freezer", "systemd", "unified"]
        .map(|hierarchy| Path::new("/sys/fs/cgroup").join(hierarchy).join(lab.named(&node.text)))
}

/// Stops every process of the node where it is: a machine that hangs.
pub fn freeze(lab: &Lab, node: &NodeName) -> Result<()> {
    write_state(lab, node, "FROZEN")
}

pub fn thaw(lab: &Lab, node: &NodeName) -> Result<()> {
    write_state(lab, node, "THAWED")
}

/// Has every process of a frozen node die when it is thawed, before it does anything else.
pub fn doom(lab: &Lab, node: &NodeName) -> Result<()> {
    let pids: Vec<String> = pids(lab, node).iter().map(ToString::to_string).collect();
    if !pids.is_empty() {
        // Those that end meanwhile are told of; the others count.
        Command::new("kill").args(["-s", "KILL"]).args(pids).output()?;
    }
    Ok(())
}

/// Every process of the node.
pub fn pids(lab: &Lab, node: &NodeName) -> Vec<u32> {
    let [freezer, ..] = directories(lab, node);
    let pids = fs::read_to_string(freezer.join("cgroup.procs")).unwrap_or_default();
    pids.lines().filter_map(|pid| pid.parse().ok()).collect()
}

pub fn is_frozen(lab: &Lab, node: &NodeName) -> bool {
    fs::read_to_string(state_file(lab, node)).is_ok_and(|state| state.trim() != "THAWED")
}

fn write_state(lab: &Lab, node: &NodeName, state: &str) -> Result<()> {
    let file = state_file(lab, node);
    if !file.exists() {
        return Ok(());
    }
    fs::write(&file, state).with_context(|| format!("cannot write `{}`", file.display()))
}

fn state_file(lab: &Lab, node: &NodeName) -> PathBuf {
    let [freezer, ..] = directories(lab, node);
    freezer.join("freezer.state")
}

/// Removes the cgroups of a node whose plug was pulled, when the last of its processes has left
/// them.
pub fn remove(lab: &Lab, node: &NodeName) -> Result<()> {
    for directory in directories(lab, node).iter().filter(|directory| directory.exists()) {
        wait_until(&format!("no process of `{node}` is left"), Duration::from_secs(60), || {
            is_empty(directory)
        })?;
        remove_tree(directory)?;
    }
    Ok(())
}

fn is_empty(directory: &Path) -> Result<bool> {
    if !fs::read_to_string(directory.join("cgroup.procs"))?.is_empty() {
        return Ok(false);
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && !is_empty(&entry.path())? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn remove_tree(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(directory).with_context(|| format!("cannot remove `{}`", directory.display()))
}
