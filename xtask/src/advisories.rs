//! Known holes in what we depend on: our copy of RustSec's advisories, against the locked versions.
//!
//! The database is a git repository that a machine for tests may not reach, so what it says of our
//! crates is kept in this checkout. What the copy covers and what not: docs/dev/dependencies.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use semver::{Version, VersionReq};
use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::value::Datetime;

use crate::run;

/// Path of our copy, from the top of the checkout.
pub const COPY: &str = "docs/dev/advisories.toml";

const DATABASE: &str = "https://github.com/rustsec/advisory-db";

/// Number of days from which on the copy counts as old.
const OLD: i64 = 90;

const HEADER: &str = "\
# Advisories of RustSec (https://rustsec.org) on crates that we use, for `cargo xtask deny`.
# Written by `cargo xtask advisories`; what it covers and what not: docs/dev/dependencies.md.
#
# RustSec dedicates its database to the public domain (CC0-1.0); where a `license` stands, that one
# holds, and the advisory is adapted from GitHub's, https://github.com/advisories.
";

/// State of RustSec's database on one day, for the crates that we used then.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Advisories {
    date: Datetime,
    source: String,
    /// The crates that were looked up, those without advisories as well.
    crates: BTreeSet<String>,
    #[serde(rename = "advisory", default)]
    advisories: Vec<Advisory>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Advisory {
    id: String,
    package: String,
    title: String,
    informational: Option<Informational>,
    patched: Vec<VersionReq>,
    #[serde(default)]
    unaffected: Vec<VersionReq>,
    /// License of the advisory, if not the database's own.
    license: Option<String>,
    source: String,
}

/// Kind of an advisory that is no vulnerability.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Informational {
    Notice,
    Unmaintained,
    Unsound,
}

/// An advisory that `deny.toml` lets pass.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ignored {
    id: String,
    reason: String,
}

/// Findings of the advisories about the versions that we use, in words.
#[derive(Debug, Default, PartialEq)]
pub struct Findings {
    pub failures: Vec<String>,
    pub warnings: Vec<String>,
}

impl Advisories {
    /// The copy of this checkout.
    ///
    /// # Errors
    /// If it is missing, or any of it cannot be read.
    pub fn open() -> Result<Self> {
        let text =
            fs::read_to_string(run::top().join(COPY)).with_context(|| format!("no {COPY}"))?;
        Self::read(&text)
    }

    fn read(text: &str) -> Result<Self> {
        let copy: Self = toml::from_str(text).with_context(|| format!("{COPY} cannot be read"))?;
        days(&copy.date)?;
        let mut ids = BTreeSet::new();
        for Advisory { id, package, .. } in &copy.advisories {
            ensure!(is_id(id), "{COPY}: `{id}` is not the id of an advisory");
            ensure!(ids.insert(id), "{COPY}: `{id}` stands there twice");
            ensure!(
                copy.crates.contains(package),
                "{COPY}: `{id}` is on `{package}`, which is not among the crates looked up"
            );
        }
        Ok(copy)
    }

    /// Compares what is used, names and versions of crates, with the advisories.
    pub fn examine(&self, used: &[(&str, &Version)], ignored: &[Ignored]) -> Findings {
        let mut findings = Findings::default();
        let mut met = BTreeSet::new();
        for advisory in &self.advisories {
            let id = &advisory.id;
            for (name, version) in used.iter().filter(|(name, _)| *name == advisory.package) {
                if !advisory.affects(version) {
                    continue;
                }
                met.insert(id);
                let what = format!("`{name}` {version}: {}", advisory.summary());
                match (ignored.iter().find(|it| it.id == *id), advisory.informational) {
                    (Some(Ignored { reason, .. }), _) => {
                        findings.warnings.push(format!("{what}; ignored: {reason}"));
                    }
                    (None, Some(Informational::Notice | Informational::Unmaintained)) => {
                        findings.warnings.push(what);
                    }
                    (None, Some(Informational::Unsound) | None) => findings.failures.push(what),
                }
            }
        }
        for Ignored { id, .. } in ignored.iter().filter(|it| !met.contains(&it.id)) {
            findings.warnings.push(format!("deny.toml ignores {id}, which affects nothing we use"));
        }
        let unknown: BTreeSet<String> = used
            .iter()
            .filter(|(name, _)| !self.crates.contains(*name))
            .map(|(name, _)| format!("`{name}`"))
            .collect();
        if !unknown.is_empty() {
            let names = Vec::from_iter(unknown).join(", ");
            findings.warnings.push(format!("nobody has looked for advisories on {names}"));
        }
        findings
    }

    /// Returns how many advisories there are, on how many crates, and as of when.
    pub fn extent(&self) -> String {
        let crates: BTreeSet<_> = self.advisories.iter().map(|it| &it.package).collect();
        let (advisories, crates) = (self.advisories.len(), crates.len());
        format!("{advisories} advisories on {crates} crates, as of {}", self.date)
    }

    /// A warning if the copy is old, `today` being a number of days since 1970.
    pub fn old(&self, today: i64) -> Result<Option<String>> {
        let age = today - days(&self.date)?;
        Ok((age > OLD).then(|| {
            format!("the advisories are {age} days old; `cargo xtask advisories` renews them")
        }))
    }

    /// Returns the text that [`Advisories::read`] reads.
    fn written(&self) -> String {
        let list = |requirements: &[VersionReq]| {
            requirements.iter().map(quoted).collect::<Vec<_>>().join(", ")
        };
        let mut text = format!("{HEADER}\ndate = {}\n", self.date);
        let mut line = |key: &str, value: String| {
            writeln!(text, "{key}{value}").expect("a string takes what is written to it");
        };
        line("source = ", quoted(&self.source));
        line("crates = [", String::new());
        for name in &self.crates {
            line("    ", quoted(name) + ",");
        }
        line("]", String::new());
        for it in &self.advisories {
            line("\n[[advisory]]", String::new());
            line("id = ", quoted(&it.id));
            line("package = ", quoted(&it.package));
            line("title = ", quoted(&it.title));
            if let Some(informational) = it.informational {
                line("informational = ", quoted(format!("{informational:?}").to_lowercase()));
            }
            line("patched = ", format!("[{}]", list(&it.patched)));
            if !it.unaffected.is_empty() {
                line("unaffected = ", format!("[{}]", list(&it.unaffected)));
            }
            if let Some(license) = &it.license {
                line("license = ", quoted(license));
            }
            line("source = ", quoted(&it.source));
        }
        text
    }
}

impl Advisory {
    fn affects(&self, version: &Version) -> bool {
        !self.patched.iter().chain(&self.unaffected).any(|good| good.matches(version))
    }

    /// The advisory in one line: id, title, what is patched, where more is said.
    fn summary(&self) -> String {
        let Self { id, title, .. } = self;
        let patched = match self.patched.as_slice() {
            [] => "in no version".to_owned(),
            patched => patched.iter().map(VersionReq::to_string).collect::<Vec<_>>().join(" or "),
        };
        format!("{id}, {title}; patched {patched}; https://rustsec.org/advisories/{id}.html")
    }
}

/// The days from 1970 until today.
#[expect(clippy::disallowed_methods, reason = "runs in no simulated world")]
pub fn today() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs() / (24 * 60 * 60)).cast_signed()
}

/// The days from 1970 until `date`.
fn days(date: &Datetime) -> Result<i64> {
    let Datetime { date: Some(date), time: None, offset: None } = date else {
        bail!("`{date}` is not a date");
    };
    // Years that begin in March, so that the day of a leap year is the last.
    let (year, month) = match (i64::from(date.year), i64::from(date.month)) {
        (year, month @ ..=2) => (year - 1, month + 9),
        (year, month) => (year, month - 3),
    };
    let leap_days = year / 4 - year / 100 + year / 400;
    Ok(365 * year + leap_days + (153 * month + 2) / 5 + i64::from(date.day) - 1 - 719_468)
}

/// Whether `text` reads `RUSTSEC-2026-0001`.
fn is_id(text: &str) -> bool {
    let are_digits = |part: &str| part.len() == 4 && part.bytes().all(|it| it.is_ascii_digit());
    text.strip_prefix("RUSTSEC-")
        .and_then(|rest| rest.split_once('-'))
        .is_some_and(|(year, number)| are_digits(year) && are_digits(number))
}

/// A string as TOML writes it, which takes what JSON writes.
fn quoted(text: impl ToString) -> String {
    serde_json::Value::String(text.to_string()).to_string()
}

/// Writes the copy again, for `crates`, from a checkout of the database, or from a fresh clone.
///
/// # Errors
/// If there is no database at `checkout`, it cannot be fetched, or an advisory cannot be read.
pub fn renew(checkout: Option<&str>, crates: BTreeSet<String>) -> Result<()> {
    let checkout = match checkout {
        Some(checkout) => fs::canonicalize(checkout).with_context(|| format!("no `{checkout}`"))?,
        None => clone()?,
    };
    let commit = head(&checkout, "%H")?;
    let copy = Advisories {
        date: head(&checkout, "%cs")?.parse().context("git tells no date")?,
        source: format!("{DATABASE} at {commit}"),
        advisories: published(&checkout, &crates, &commit)?,
        crates,
    };
    let text = copy.written();
    Advisories::read(&text)?;
    fs::write(run::top().join(COPY), text).with_context(|| format!("cannot write {COPY}"))?;
    println!("{COPY}: {}", copy.extent());
    Ok(())
}

fn clone() -> Result<PathBuf> {
    let place = run::target().join("advisory-db");
    if place.exists() {
        fs::remove_dir_all(&place).context("cannot remove the last clone")?;
    }
    run::run(run::command("git").args(["clone", "--quiet", "--depth", "1", DATABASE]).arg(&place))?;
    Ok(place)
}

/// Asks git about the commit that is checked out, in its `format`.
fn head(checkout: &Path, format: &str) -> Result<String> {
    let mut git = run::command("git");
    git.arg("-C").arg(checkout).args(["log", "-1", &format!("--format={format}")]);
    Ok(String::from_utf8(run::output(&mut git)?)?.trim().to_owned())
}

/// The advisories on `crates` in a checkout of the database, by crate and id.
fn published(checkout: &Path, crates: &BTreeSet<String>, commit: &str) -> Result<Vec<Advisory>> {
    let top = checkout.join("crates");
    ensure!(top.is_dir(), "`{}` is no checkout of {DATABASE}", checkout.display());
    let mut files = BTreeMap::new();
    for folder in crates.iter().map(|name| top.join(name)).filter(|it| it.is_dir()) {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.strip_prefix(checkout)?.display().to_string();
            files.insert(name, fs::read_to_string(&path)?);
        }
    }
    let mut advisories = Vec::new();
    for (name, text) in files {
        let advisory = one(&text, format!("{name}@{commit}"));
        advisories.extend(advisory.with_context(|| format!("`{name}` cannot be read"))?);
    }
    Ok(advisories)
}

/// Reads one file of the database: TOML in a fence, and a title after it.
///
/// `None` if the advisory was withdrawn.
fn one(text: &str, source: String) -> Result<Option<Advisory>> {
    #[derive(Deserialize)]
    struct File {
        advisory: Head,
        versions: Versions,
    }
    #[derive(Deserialize)]
    struct Head {
        id: String,
        package: String,
        informational: Option<Informational>,
        license: Option<String>,
        withdrawn: Option<IgnoredAny>,
    }
    #[derive(Deserialize)]
    struct Versions {
        patched: Vec<VersionReq>,
        #[serde(default)]
        unaffected: Vec<VersionReq>,
    }

    let fenced =
        text.trim_start().strip_prefix("```toml").context("it does not begin with TOML")?;
    let (head, body) = fenced.split_once("\n```").context("its TOML does not end")?;
    let title = body.lines().find_map(|line| line.strip_prefix("# ")).context("it has no title")?;
    let File { advisory, versions } = toml::from_str(head)?;
    let Head { id, package, informational, license, withdrawn } = advisory;
    let Versions { patched, unaffected } = versions;
    let title = title.trim().to_owned();
    Ok(withdrawn.is_none().then_some(Advisory {
        id,
        package,
        title,
        informational,
        patched,
        unaffected,
        license,
        source,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: &str = r#"
        date = 2026-10-09
        source = "a test"
        crates = ["gone", "rustls", "tokio"]
        [[advisory]]
        id = "RUSTSEC-2026-0285"
        package = "rustls"
        title = "messages at the wrong level"
        patched = [">=0.23.45"]
        unaffected = ["<0.23.13"]
        source = "a test"
        [[advisory]]
        id = "RUSTSEC-2025-0023"
        package = "tokio"
        title = "values are cloned in parallel"
        informational = "unsound"
        patched = [">=1.43.1, <1.44.0", ">=1.44.2"]
        source = "a test"
        [[advisory]]
        id = "RUSTSEC-2020-0001"
        package = "gone"
        title = "nobody maintains it"
        informational = "unmaintained"
        patched = []
        source = "a test"
    "#;

    const RUSTLS: &str = "`rustls` 0.23.44: RUSTSEC-2026-0285, messages at the wrong level; \
                          patched >=0.23.45; https://rustsec.org/advisories/RUSTSEC-2026-0285.html";

    fn found(used: &[(&str, &str)], ignored: &[(&str, &str)]) -> Findings {
        let used: Vec<(&str, Version)> =
            used.iter().map(|(name, version)| (*name, version.parse().unwrap())).collect();
        let used: Vec<_> = used.iter().map(|(name, version)| (*name, version)).collect();
        let ignored = ignored
            .iter()
            .map(|(id, reason)| Ignored { id: id.to_string(), reason: reason.to_string() });
        Advisories::read(SOME).unwrap().examine(&used, &Vec::from_iter(ignored))
    }

    #[test]
    fn an_affected_version_fails_and_a_patched_or_unaffected_one_passes() {
        let findings = found(&[("rustls", "0.23.44")], &[]);
        assert_eq!(findings.failures, [RUSTLS]);
        assert_eq!(findings.warnings, [""; 0]);
        for good in ["0.23.45", "0.23.46", "0.24.0", "0.23.12", "0.23.45+of.somebody"] {
            assert_eq!(found(&[("rustls", good)], &[]), Findings::default(), "{good}");
        }
    }

    #[test]
    fn each_of_two_versions_is_compared_and_what_is_unsound_fails() {
        let used =
            [("tokio", "1.43.0"), ("tokio", "1.43.1"), ("tokio", "1.44.1"), ("tokio", "1.54.1")];
        let findings = found(&used, &[]);
        let heads: Vec<_> =
            findings.failures.iter().map(|it| it.split(':').next().unwrap()).collect();
        assert_eq!(heads, ["`tokio` 1.43.0", "`tokio` 1.44.1"]);
    }

    #[test]
    fn an_ignored_advisory_is_reported_with_its_reason() {
        let ignored = [("RUSTSEC-2026-0285", "we speak no TLS 1.3")];
        let findings = found(&[("rustls", "0.23.44")], &ignored);
        assert_eq!(findings.failures, [""; 0]);
        assert_eq!(findings.warnings, [format!("{RUSTLS}; ignored: we speak no TLS 1.3")]);
    }

    #[test]
    fn an_advisory_that_is_ignored_for_nothing_is_reported() {
        let findings =
            found(&[("rustls", "0.23.45")], &[("RUSTSEC-2026-0285", "we speak no TLS 1.3")]);
        assert_eq!(findings.failures, [""; 0]);
        assert_eq!(
            findings.warnings,
            ["deny.toml ignores RUSTSEC-2026-0285, which affects nothing we use"]
        );
    }

    #[test]
    fn a_crate_that_nobody_maintains_is_reported_and_does_not_fail() {
        let findings = found(&[("gone", "1.0.0")], &[]);
        assert_eq!(findings.failures, [""; 0]);
        assert_eq!(
            findings.warnings,
            ["`gone` 1.0.0: RUSTSEC-2020-0001, nobody maintains it; patched in no version; \
              https://rustsec.org/advisories/RUSTSEC-2020-0001.html"]
        );
    }

    #[test]
    fn a_crate_that_nobody_has_looked_up_is_reported() {
        let findings = found(&[("new", "1.0.0"), ("new", "2.0.0"), ("young", "0.1.0")], &[]);
        assert_eq!(findings.failures, [""; 0]);
        assert_eq!(findings.warnings, ["nobody has looked for advisories on `new`, `young`"]);
    }

    #[test]
    fn a_copy_that_cannot_be_read_is_an_error() {
        Advisories::read(SOME).unwrap();
        for (from, to) in [
            ("date = 2026-10-09", ""),
            ("date = 2026-10-09", "date = 10:00:00"),
            ("patched = [\">=0.23.45\"]", ""),
            ("patched = [\">=0.23.45\"]", "patched = [\"after 0.23.45\"]"),
            ("\"unsound\"", "\"unsightly\""),
            ("\"RUSTSEC-2026-0285\"", "\"CVE-2026-0285\""),
            ("\"RUSTSEC-2026-0285\"", "\"RUSTSEC-2025-0023\""),
            ("package = \"tokio\"", "package = \"other\""),
            ("unaffected", "untouched"),
        ] {
            assert!(SOME.contains(from), "{from}");
            assert!(Advisories::read(&SOME.replacen(from, to, 1)).is_err(), "{to}");
        }
    }

    #[test]
    fn a_copy_is_old_after_ninety_days() {
        let copy = Advisories::read(SOME).unwrap();
        let made = days(&copy.date).unwrap();
        assert_eq!(made, 20_735);
        assert_eq!(copy.old(made + OLD).unwrap(), None);
        let message = copy.old(made + OLD + 1).unwrap().unwrap();
        assert!(message.starts_with("the advisories are 91 days old"), "{message}");
    }

    #[test]
    fn days_are_counted_over_leap_years() {
        for (date, count) in [
            ("1970-01-01", 0),
            ("2000-02-29", 11_016),
            ("2000-03-01", 11_017),
            ("2100-03-01", 47_541),
        ] {
            assert_eq!(days(&date.parse().unwrap()).unwrap(), count, "{date}");
        }
    }

    #[test]
    fn the_copy_of_this_checkout_is_as_it_would_be_written() {
        let text = fs::read_to_string(run::top().join(COPY)).unwrap();
        let written = Advisories::read(&text).unwrap().written();
        for (line, (have, want)) in text.lines().zip(written.lines()).enumerate() {
            assert_eq!(have, want, "{COPY}:{}", line + 1);
        }
        assert_eq!(text.len(), written.len());
    }

    const FILE: &str = r#"```toml
[advisory]
id = "RUSTSEC-2026-0285"
package = "rustls"
date = "2026-09-14"
informational = "unsound"

[affected.functions]
"rustls::some" = ["< 0.23.45"]

[versions]
patched = [">= 0.23.45"]
```

# Messages at the *wrong* "level"

More of it.
"#;

    #[test]
    fn a_file_of_the_database_is_copied_and_one_that_was_withdrawn_left_out() {
        let advisory = one(FILE, "here".to_owned()).unwrap().unwrap();
        let copy = Advisories {
            date: "2026-09-15".parse().unwrap(),
            source: "there".to_owned(),
            crates: BTreeSet::from(["rustls".to_owned()]),
            advisories: vec![advisory],
        };
        let written = copy.written();
        let body = written.strip_prefix(HEADER).unwrap();
        assert_eq!(
            body,
            r#"
date = 2026-09-15
source = "there"
crates = [
    "rustls",
]

[[advisory]]
id = "RUSTSEC-2026-0285"
package = "rustls"
title = "Messages at the *wrong* \"level\""
informational = "unsound"
patched = [">=0.23.45"]
source = "here"
"#
        );
        Advisories::read(&written).unwrap();

        let withdrawn =
            FILE.replacen("informational = \"unsound\"", "withdrawn = \"2026-09-20\"", 1);
        assert!(one(&withdrawn, String::new()).unwrap().is_none());
    }

    #[test]
    fn a_file_of_the_database_that_cannot_be_read_is_an_error() {
        for (from, to) in [
            ("```toml", "---"),
            ("```\n\n#", "\n\n#"),
            ("# Messages", "Messages"),
            ("\"unsound\"", "\"unsightly\""),
            ("patched", "fixed"),
            (">= 0.23.45\"]\n```", "since 0.23.45\"]\n```"),
        ] {
            assert!(FILE.contains(from), "{from}");
            assert!(one(&FILE.replacen(from, to, 1), String::new()).is_err(), "{to}");
        }
    }
}
