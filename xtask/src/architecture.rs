//! Comparison of the code map in ARCHITECTURE.md with what the crates depend on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::run;

/// Prefix of our crates' names, which the code map leaves out.
const PREFIX: &str = "pvc-";

/// Entry of the last column for a crate that depends on none of ours.
const NONE: &str = "nothing";

/// For each folder of a crate, the crates of ours that it knows, without [`PREFIX`].
type Knows = BTreeMap<String, BTreeSet<String>>;

#[derive(Deserialize)]
struct Root {
    workspace: Workspace,
}

#[derive(Deserialize)]
struct Workspace {
    members: Vec<String>,
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    dependencies: BTreeMap<String, toml::Value>,
}

/// Compares the code map with the manifests, prints the differences and returns their number.
///
/// # Errors
/// If the code map or a manifest cannot be read.
pub fn differences() -> Result<usize> {
    let text = fs::read_to_string(run::top().join("ARCHITECTURE.md"))
        .context("cannot read ARCHITECTURE.md")?;
    let found = compare(&code_map(&text)?, &manifests(run::top())?);
    for difference in &found {
        println!("ARCHITECTURE.md: {difference}");
    }
    Ok(found.len())
}

/// Differences between the code map and the manifests, as clauses.
fn compare(map: &Knows, manifests: &Knows) -> Vec<String> {
    let mut found = Vec::new();
    for (folder, used) in manifests {
        let Some(said) = map.get(folder) else {
            found.push(format!("the code map has no row of `{folder}`"));
            continue;
        };
        let missing = used.difference(said).map(|it| (it, "depends on", "does not say so"));
        let extra = said.difference(used).map(|it| (it, "does not depend on", "says so"));
        found.extend(missing.chain(extra).map(|(it, depends, says)| {
            format!("`{folder}` {depends} `{PREFIX}{it}`, and the code map {says}")
        }));
    }
    let gone = map
        .iter()
        .filter(|(folder, said)| !said.is_empty() && !manifests.contains_key(folder.as_str()));
    found.extend(gone.map(|(folder, _)| format!("`{folder}` is no crate and knows none")));
    found
}

/// First and last column of the code map. A folder without a crate knows nothing.
fn code_map(text: &str) -> Result<Knows> {
    let mut rows = text.lines().skip_while(|line| *line != "| where | what | knows |").skip(2);
    let mut map = Knows::new();
    for row in rows.by_ref().take_while(|line| line.starts_with('|')) {
        let columns: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [folder, _, knows] = columns[..] else {
            bail!("ARCHITECTURE.md: a row of the code map has not three columns: {row}");
        };
        let knows = knows.split(", ").filter(|it| !it.is_empty() && *it != NONE);
        let knows = knows.map(str::to_owned).collect();
        if map.insert(folder.trim_matches('`').to_owned(), knows).is_some() {
            bail!("ARCHITECTURE.md: the code map has two rows of {folder}");
        }
    }
    if map.is_empty() {
        bail!("ARCHITECTURE.md has no code map");
    }
    Ok(map)
}

/// The crates of the workspace at `top`, by their `[dependencies]` alone.
fn manifests(top: &Path) -> Result<Knows> {
    let root: Root = manifest(&top.join("Cargo.toml"))?;
    let mut found = Knows::new();
    for member in root.workspace.members {
        let folders = match member.strip_suffix("/*") {
            Some(parent) => fs::read_dir(top.join(parent))
                .with_context(|| format!("cannot read `{parent}`"))?
                .map(|entry| Ok(format!("{parent}/{}", entry?.file_name().display())))
                .collect::<Result<Vec<_>>>()?,
            None => vec![member],
        };
        for folder in folders {
            let Manifest { dependencies } = manifest(&top.join(&folder).join("Cargo.toml"))?;
            let ours = dependencies.keys().filter_map(|name| name.strip_prefix(PREFIX));
            found.insert(folder, ours.map(str::to_owned).collect());
        }
    }
    Ok(found)
}

fn manifest<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    toml::from_str(&text).with_context(|| format!("cannot understand `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(rows: &str) -> Knows {
        code_map(&format!("# A\n\n| where | what | knows |\n|---|---|---|\n{rows}\n\n| b |\n"))
            .unwrap()
    }

    #[test]
    fn a_code_map_that_agrees_has_no_differences() {
        let said = map("| `a` | it | nothing |\n| `b` | it | a, c-d |\n| `docs` | it | |");
        let known = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let used = Knows::from([("a".into(), known(&[])), ("b".into(), known(&["a", "c-d"]))]);
        assert_eq!(compare(&said, &used), Vec::<String>::new());
    }

    #[test]
    fn each_difference_is_named_whichever_side_lacks_it() {
        let said = map("| `a` | it | b |\n| `gone` | it | a |");
        let used = Knows::from([
            ("a".into(), BTreeSet::from(["c".to_owned()])),
            ("new".into(), BTreeSet::new()),
        ]);
        let expected = [
            "`a` depends on `pvc-c`, and the code map does not say so",
            "`a` does not depend on `pvc-b`, and the code map says so",
            "the code map has no row of `new`",
            "`gone` is no crate and knows none",
        ];
        assert_eq!(compare(&said, &used), expected);
    }

    #[test]
    fn a_page_without_a_code_map_is_an_error() {
        assert!(code_map("# Architecture\n").is_err());
    }

    #[test]
    fn the_code_map_says_what_each_crate_depends_on() {
        assert_eq!(differences().unwrap(), 0);
    }

    /// Roots of crates that need unsafe code, each place of which says why it is sound.
    const UNSAFE: [&str; 6] = [
        "crates/pvc-ceph/src/lib.rs",
        "crates/pvc-cli/src/lib.rs",
        "crates/pvc-directory/src/lib.rs",
        "crates/pvc-libvirt/src/lib.rs",
        "crates/pvc-linux/src/lib.rs",
        "crates/pvc-sim/src/main.rs",
    ];

    #[test]
    fn every_crate_forbids_unsafe_code_but_those_that_need_it() {
        let folders = manifests(run::top()).unwrap().into_keys();
        let roots = folders
            .flat_map(|folder| ["lib", "main"].map(|name| format!("{folder}/src/{name}.rs")));
        let allows = |root: &String| {
            let text = fs::read_to_string(run::top().join(root));
            text.is_ok_and(|text| !text.contains("#![forbid(unsafe_code)]"))
        };
        assert_eq!(roots.filter(allows).collect::<Vec<_>>(), UNSAFE);
    }
}
