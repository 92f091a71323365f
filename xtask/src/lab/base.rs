//! The base system that all nodes of all labs share, read-only.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::layout::Lab;
use crate::run::{self, top};

/// The base system made of `lab/packages`, built now if there is none of this list yet. It is kept
/// until the list changes.
pub fn ensure(lab: &Lab) -> Result<PathBuf> {
    let home = lab.home.join("base");
    let _lock = lab.lock(&home)?;
    let packages = packages()?;
    let root = home.join("root");
    let list = home.join("packages");
    if fs::read_to_string(&list).is_ok_and(|built| built == packages) {
        return Ok(root);
    }
    println!("building the base system in {} (one to three minutes)", root.display());
    let _ = fs::remove_file(&list);
    for left in [&root, &home.join("new")] {
        if left.exists() {
            fs::remove_dir_all(left)
                .with_context(|| format!("cannot remove `{}`", left.display()))?;
        }
    }
    build(&packages, &home.join("new"))?;
    fs::rename(home.join("new"), &root)?;
    fs::write(&list, packages)?;
    Ok(root)
}

/// The names in `lab/packages`, with commas between.
fn packages() -> Result<String> {
    let file = top().join("lab/packages");
    let text =
        fs::read_to_string(&file).with_context(|| format!("cannot read `{}`", file.display()))?;
    Ok(names(&text))
}

fn names(text: &str) -> String {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(",")
}

fn build(packages: &str, root: &std::path::Path) -> Result<()> {
    // Mounts of its own: what it mounts in the new root stays nowhere, even where it is killed.
    let mut build = Command::new("unshare");
    build.args([
        "--mount",
        "mmdebstrap",
        "--quiet",
        "--variant=apt",
        "--aptopt=Apt::Install-Recommends \"false\"",
    ]);
    build.arg(format!("--include={packages}")).arg("bookworm").arg(root);
    // A mirror of one's own, as mmdebstrap takes it; without, Debian's.
    build.args(std::env::var_os("PVC_LAB_MIRROR"));
    run::run(&mut build)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_packages_may_be_commented() {
        assert_eq!(names("# all\n\nfrr\nfio # fast\n"), "frr,fio");
    }
}
