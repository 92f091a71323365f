//! Check of what we depend on against the rules of `deny.toml`: licences, banned crates, where
//! crates come from, and advisories.
//!
//! The rules are written for `cargo deny check`, whose own build takes minutes and whose advisories
//! come from a repository that a machine for tests may not reach. So its four checks are made here
//! as well, for the keys that our file has, and with our copy of the advisories; any other key is
//! an error and not passed over. See docs/dev/dependencies.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, bail, ensure};
use semver::Version;
use serde::Deserialize;
use spdx::{Expression, ParseMode};

use crate::advisories::{self, Advisories, Ignored};
use crate::run;

/// Registry that crates may come from unless `deny.toml` says otherwise, as cargo writes it.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    graph: Graph,
    advisories: Exemptions,
    licenses: Licenses,
    bans: Bans,
    #[expect(dead_code, reason = "has one value, and is checked by being read")]
    sources: Sources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Graph {
    targets: Vec<String>,
}

/// The section `advisories`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exemptions {
    ignore: Vec<Ignored>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Licenses {
    allow: Vec<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    #[expect(dead_code, reason = "has one value, and is checked by being read")]
    multiple_versions: Allow,
    #[serde(default)]
    deny: Vec<Ban>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[expect(dead_code, reason = "each has one value, and is checked by being read")]
struct Sources {
    unknown_registry: Deny,
    unknown_git: Deny,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Allow {
    Allow,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Deny {
    Deny,
}

/// Metadata of cargo about the crates in `Cargo.lock`.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    version: Version,
    license: Option<String>,
    /// `None` for a crate of this checkout.
    source: Option<String>,
}

/// The crates that are built for a target of the rules, by name and version.
type Packages = BTreeMap<(String, Version), Package>;

/// Checks every crate that is built for one of the rules' targets.
///
/// # Errors
/// If a crate breaks a rule or an advisory affects it; all are named.
pub fn run() -> Result<()> {
    let (rules, packages) = used()?;
    let copy = Advisories::open()?;
    let published: Vec<(&str, &Version)> = published(&packages).collect();
    let findings = copy.examine(&published, &rules.advisories.ignore);
    for warning in copy.old(advisories::today())?.iter().chain(&findings.warnings) {
        println!("warning: {warning}");
    }
    let mut found: Vec<String> =
        packages.values().flat_map(|package| broken(&rules, package)).collect();
    found.extend(findings.failures);
    ensure!(
        found.is_empty(),
        "{} objections to what we depend on:\n  {}",
        found.len(),
        found.join("\n  ")
    );
    println!("{} crates: licences, bans and sources are as deny.toml wants them", packages.len());
    println!("{}: none but those told above affects a version that we use", copy.extent());
    Ok(())
}

/// Writes our copy of the advisories again, for the crates that we use now.
///
/// # Errors
/// Those of [`advisories::renew`].
pub fn renew_advisories(checkout: Option<&str>) -> Result<()> {
    let (_, packages) = used()?;
    let crates: BTreeSet<String> = published(&packages).map(|(name, _)| name.to_owned()).collect();
    advisories::renew(checkout, crates)
}

/// The rules, and what they are for.
fn used() -> Result<(Rules, Packages)> {
    let rules = read(&fs::read_to_string(run::top().join("deny.toml")).context("no deny.toml")?)?;
    let mut packages = Packages::new();
    for target in &rules.graph.targets {
        let mut cargo = run::cargo();
        cargo.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", target]);
        let metadata: Metadata = serde_json::from_slice(&run::output(&mut cargo)?)?;
        packages.extend(
            metadata.packages.into_iter().map(|it| ((it.name.clone(), it.version.clone()), it)),
        );
    }
    Ok((rules, packages))
}

/// The crates that are not of this checkout: an advisory on a name of ours is on somebody else's.
fn published(packages: &Packages) -> impl Iterator<Item = (&str, &Version)> {
    packages
        .values()
        .filter(|package| package.source.is_some())
        .map(|package| (package.name.as_str(), &package.version))
}

fn read(text: &str) -> Result<Rules> {
    let rules: Rules =
        toml::from_str(text).context("deny.toml says something that is not checked here")?;
    for name in rules
        .bans
        .deny
        .iter()
        .map(|ban| &ban.name)
        .chain(rules.licenses.exceptions.iter().map(|it| &it.name))
    {
        if name.contains(['@', ':', '=', '<', '>']) {
            bail!("deny.toml: `{name}` names versions, which is not checked here");
        }
    }
    Ok(rules)
}

/// The rules that `package` breaks, in words.
fn broken(rules: &Rules, package: &Package) -> Vec<String> {
    let Package { name, version, .. } = package;
    let ban = rules.bans.deny.iter().find(|ban| ban.name == *name);
    let banned = ban.map(|ban| format!("is banned: {}", ban.reason));
    let source = package.source.as_deref().filter(|source| *source != CRATES_IO);
    let strange = source.map(|source| format!("comes from `{source}`"));
    [banned, strange, unlicensed(rules, package)]
        .into_iter()
        .flatten()
        .map(|what| format!("`{name}` {version} {what}"))
        .collect()
}

/// Reason for which we may not use `package`, if we may not.
fn unlicensed(rules: &Rules, package: &Package) -> Option<String> {
    let Some(text) = &package.license else { return Some("names no licence".to_owned()) };
    // What crates have: names that SPDX has given up since, and `/` for a choice.
    let mode =
        ParseMode { allow_deprecated: true, allow_slash_as_or_operator: true, ..ParseMode::STRICT };
    let expression = match Expression::parse_mode(text, mode) {
        Ok(expression) => expression,
        Err(error) => {
            return Some(format!("has a licence that cannot be read, `{text}`: {}", error.reason));
        }
    };
    let exceptions = rules.licenses.exceptions.iter().filter(|it| it.name == package.name);
    let allowed: Vec<&String> = rules
        .licenses
        .allow
        .iter()
        .chain(exceptions.flat_map(|exception| &exception.allow))
        .collect();
    let is_allowed = expression.evaluate(|license| allowed.contains(&&license.to_string()));
    (!is_allowed).then(|| format!("has the licence `{text}`, which is not allowed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r#"
        [graph]
        targets = ["x86_64-unknown-linux-gnu"]
        [advisories]
        ignore = [{ id = "RUSTSEC-2020-0001", reason = "we do not do that" }]
        [licenses]
        allow = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]
        exceptions = [{ crate = "virt-sys", allow = ["LGPL-2.1"] }]
        [bans]
        multiple-versions = "allow"
        deny = [{ crate = "openssl", reason = "TLS is rustls" }]
        [sources]
        unknown-registry = "deny"
        unknown-git = "deny"
    "#;

    fn found(name: &str, license: Option<&str>, source: Option<&str>) -> Vec<String> {
        let (license, source) = (license.map(str::to_owned), source.map(str::to_owned));
        let package =
            Package { name: name.to_owned(), version: Version::new(1, 0, 0), license, source };
        broken(&read(RULES).unwrap(), &package)
    }

    #[test]
    fn one_licence_of_a_choice_is_enough_and_of_a_sum_all_are_needed() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "Apache-2.0 WITH LLVM-exception AND MIT",
        ] {
            assert_eq!(found("a", Some(good), Some(CRATES_IO)), [""; 0], "{good}");
        }
        for bad in
            ["GPL-3.0-only", "MIT AND GPL-3.0-only", "LGPL-2.1", "MIT WITH LLVM-exception", "mine"]
        {
            assert_eq!(found("a", Some(bad), Some(CRATES_IO)).len(), 1, "{bad}");
        }
        assert_eq!(found("a", None, None), ["`a` 1.0.0 names no licence"]);
    }

    #[test]
    fn an_exception_is_for_its_crate_alone() {
        assert_eq!(found("virt-sys", Some("LGPL-2.1"), Some(CRATES_IO)), [""; 0]);
        assert_eq!(found("other", Some("LGPL-2.1"), Some(CRATES_IO)).len(), 1);
    }

    #[test]
    fn a_banned_crate_and_one_from_elsewhere_are_named() {
        assert_eq!(
            found("openssl", Some("MIT"), Some(CRATES_IO)),
            ["`openssl` 1.0.0 is banned: TLS is rustls"]
        );
        let git = "git+https://example.org/a#0123";
        assert_eq!(found("a", Some("MIT"), Some(git)), [format!("`a` 1.0.0 comes from `{git}`")]);
        assert_eq!(found("a", Some("MIT"), Some("registry+https://example.org")).len(), 1);
        assert_eq!(found("ours", Some("MIT"), None), [""; 0]);
    }

    #[test]
    fn a_rule_that_is_not_checked_is_an_error() {
        read(RULES).unwrap();
        for (from, to) in [
            ("multiple-versions = \"allow\"", "multiple-versions = \"deny\""),
            ("unknown-git = \"deny\"", "unknown-git = \"allow\""),
            ("unknown-git = \"deny\"", "unknown-git = \"deny\"\nallow-git = []"),
            ("crate = \"openssl\"", "crate = \"openssl@0.9\""),
            ("crate = \"openssl\"", "wrappers = [], crate = \"openssl\""),
            (", reason = \"we do not do that\"", ""),
            ("ignore = [", "yanked = \"deny\"\nignore = ["),
        ] {
            assert!(RULES.contains(from), "{from}");
            assert!(read(&RULES.replace(from, to)).is_err(), "{to}");
        }
        read(&fs::read_to_string(run::top().join("deny.toml")).unwrap()).unwrap();
    }
}
