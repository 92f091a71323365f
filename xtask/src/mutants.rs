//! Mutants of the safety rules: each small change of them that cargo-mutants makes has to fail a
//! test of their own crate, unless [`LIST`] says why no test can tell it from the rule.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::run;

/// The rules, and their mutants that are equivalent to them.
const LIST: &str = "xtask/mutants.toml";

/// Below the directory that cargo builds in.
const OUTPUT: &str = "mutants";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    /// Of cargo-mutants: another one makes other mutants, or names them otherwise.
    version: String,
    package: String,
    files: Vec<String>,
    #[serde(default, rename = "equivalent")]
    equivalents: Vec<Equivalent>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Equivalent {
    /// Name that cargo-mutants gives it, without line and column.
    mutant: String,
    /// Number of mutants of this name that no test can tell from the rule.
    #[serde(default = "once")]
    times: usize,
    reason: String,
}

fn once() -> usize {
    1
}

impl List {
    fn read(text: &str) -> Result<List> {
        let list: List = toml::from_str(text).with_context(|| format!("{LIST} cannot be read"))?;
        for (index, Equivalent { mutant, times, reason }) in list.equivalents.iter().enumerate() {
            let is_known = mutant.split_once(": ").is_some_and(|(file, _)| list.has(file));
            ensure!(is_known, "{LIST}: `{mutant}` is of none of its files");
            ensure!(*times > 0 && !reason.trim().is_empty(), "{LIST}: `{mutant}` has no reason");
            let is_new = list.equivalents[..index].iter().all(|before| before.mutant != *mutant);
            ensure!(is_new, "{LIST}: `{mutant}` stands there twice; `times` counts");
        }
        Ok(list)
    }

    fn has(&self, file: &str) -> bool {
        self.files.iter().any(|it| it == file)
    }

    /// Number of times that a mutant of this name may be missed.
    fn times(&self, name: &str) -> usize {
        self.equivalents.iter().find(|it| it.mutant == name).map_or(0, |it| it.times)
    }
}

/// Choice of mutants.
#[derive(Debug, Default, PartialEq, Eq)]
struct Choice {
    /// Of the list's; empty: all.
    files: Vec<String>,
    /// `k/n`, counted from 0.
    shard: Option<String>,
}

impl Choice {
    fn parse(list: &List, arguments: &[String]) -> Result<Choice> {
        let mut choice = Choice::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let value = arguments.next().with_context(|| format!("`{argument}` needs a value"));
            match argument.as_str() {
                "--file" => {
                    let name = value?;
                    let before = choice.files.len();
                    let matching = list.files.iter().filter(|it| Path::new(it).ends_with(name));
                    choice.files.extend(matching.cloned());
                    ensure!(choice.files.len() > before, "{LIST} has no file `{name}`");
                }
                "--shard" => choice.shard = Some(value?.clone()),
                _ => bail!("`{argument}` is no option; there are `--file FILE` and `--shard K/N`"),
            }
        }
        Ok(choice)
    }
}

#[derive(Debug, Clone, Deserialize)]
struct Mutant {
    name: String,
    file: String,
}

impl Mutant {
    /// The name without line and column, which change with every edit above.
    fn name(&self) -> String {
        let change = self.name.strip_prefix(&self.file).and_then(|rest| rest.split_once(": "));
        change.map_or_else(|| self.name.clone(), |(_, change)| format!("{}: {change}", self.file))
    }
}

/// Contents of `outcomes.json`.
#[derive(Debug, Deserialize)]
struct Outcomes {
    outcomes: Vec<Outcome>,
}

#[derive(Debug, Deserialize)]
struct Outcome {
    scenario: Scenario,
    summary: Summary,
}

#[derive(Debug, Deserialize)]
enum Scenario {
    /// The rules as they are.
    Baseline,
    Mutant(Mutant),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Summary {
    Success,
    CaughtMutant,
    MissedMutant,
    Timeout,
    /// Mutant that does not compile.
    Unviable,
    Failure,
}

/// Comparison of a run with the list.
#[derive(Debug, Default, PartialEq, Eq)]
struct Verdict {
    counts: Counts,
    /// Missed, and not listed as often.
    unlisted: Vec<String>,
    /// Listed more often than there are such mutants that are missed.
    gone: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    caught: usize,
    timed_out: usize,
    unviable: usize,
    missed: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { caught, timed_out, unviable, missed } = self;
        let viable = caught + timed_out + missed;
        write!(
            f,
            "{} mutants: {unviable} do not compile; of {viable} that do, {caught} failed a test, \
             {timed_out} did not end, {missed} were missed",
            viable + unviable
        )
    }
}

/// Compares what was found out about `run` with the list. `all` are the mutants of all files of the
/// list, with which a run may not have dealt.
fn compare(list: &List, all: &[Mutant], run: &[(Mutant, Summary)]) -> Verdict {
    let mut verdict = Verdict::default();
    let Counts { caught, timed_out, unviable, missed } = &mut verdict.counts;
    for (_, summary) in run {
        *match summary {
            Summary::Unviable => &mut *unviable,
            Summary::MissedMutant => &mut *missed,
            Summary::Timeout => &mut *timed_out,
            _ => &mut *caught,
        } += 1;
    }
    let mut missed: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (mutant, _) in run.iter().filter(|(_, summary)| *summary == Summary::MissedMutant) {
        missed.entry(mutant.name()).or_default().push(&mutant.name);
    }
    for (name, mutants) in &missed {
        if mutants.len() > list.times(name) {
            verdict.unlisted.extend(mutants.iter().map(|mutant| (*mutant).to_owned()));
        }
    }
    for Equivalent { mutant: name, times, .. } in &list.equivalents {
        let count = |mutants: &mut dyn Iterator<Item = &Mutant>| {
            mutants.filter(|mutant| mutant.name() == *name).count()
        };
        let not_run =
            count(&mut all.iter()).saturating_sub(count(&mut run.iter().map(|(mutant, _)| mutant)));
        if missed.get(name).map_or(0, Vec::len) + not_run < *times {
            verdict.gone.push(name.clone());
        }
    }
    verdict
}

/// Tests the mutants of the rules, or of some of them.
///
/// # Errors
/// If the tool is missing, if the tests fail without any mutant, if a mutant is missed that is not
/// listed, or if one is listed that no longer is missed.
pub fn run(arguments: &[String]) -> Result<()> {
    let list = fs::read_to_string(run::top().join(LIST)).with_context(|| format!("no {LIST}"))?;
    let list = List::read(&list)?;
    let choice = Choice::parse(&list, arguments)?;
    check_tool(&list.version)?;
    let all: Vec<Mutant> = serde_json::from_slice(&run::output(
        mutants(&list, &list.files).args(["--list", "--json"]),
    )?)?;
    let output = run::target().join(OUTPUT);
    fs::create_dir_all(&output)?;
    let verdict = compare(&list, &all, &test(&list, &choice, &output)?);
    println!("{}; {}", verdict.counts, output.join("mutants.out/log").display());
    for mutant in &verdict.unlisted {
        eprintln!("missed: {mutant}");
    }
    for mutant in &verdict.gone {
        eprintln!("listed and not missed: {mutant}");
    }
    ensure!(
        verdict.unlisted.is_empty(),
        "no test fails for {} mutants: write the case that tells each from the rule, make the rule \
         simpler if there is none, or list the mutant in {LIST} with the reason",
        verdict.unlisted.len()
    );
    ensure!(
        verdict.gone.is_empty(),
        "{} mutants of {LIST} are no longer missed, or no longer made: take them off",
        verdict.gone.len()
    );
    Ok(())
}

fn check_tool(version: &str) -> Result<()> {
    let found = run::cargo().args(["mutants", "--version"]).output();
    let found = found.ok().filter(|output| output.status.success());
    let found = found.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let wanted = format!("cargo-mutants {version}");
    ensure!(
        found.as_ref() == Some(&wanted),
        "{} is installed, and {LIST} is written for {wanted}: `cargo install --locked \
         cargo-mutants@{version}` brings it",
        found.map_or_else(|| "no cargo-mutants".to_owned(), |found| format!("`{found}`"))
    );
    Ok(())
}

fn mutants(list: &List, files: &[String]) -> std::process::Command {
    let mut mutants = run::cargo();
    mutants.args(["mutants", "--package", &list.package]);
    for file in files {
        mutants.args(["--file", file]);
    }
    mutants
}

/// Tests each mutant that was chosen, and returns the outcomes.
fn test(list: &List, choice: &Choice, output: &Path) -> Result<Vec<(Mutant, Summary)>> {
    let files = if choice.files.is_empty() { &list.files } else { &choice.files };
    let mut test = mutants(list, files);
    test.args(choice.shard.iter().flat_map(|shard| ["--shard", shard]));
    // Built for each mutant and run once: nobody debugs it, and examples in comments are no tests.
    test.arg("--output").arg(output).args(["--", "--lib", "--tests"]);
    test.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "1");
    // Property tests draw the same cases for each mutant, and none that an earlier one failed.
    test.env("PROPTEST_RNG_SEED", "1").env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
    let status = test.status().context("`cargo mutants` cannot be started")?;
    // 2: some were missed; 3: some did not end.
    ensure!(matches!(status.code(), Some(0 | 2 | 3)), "`cargo mutants` failed: {status}");
    let outcomes = fs::read(output.join("mutants.out/outcomes.json"))?;
    let outcomes: Outcomes = serde_json::from_slice(&outcomes)?;
    let mutants = outcomes.outcomes.into_iter().filter_map(|outcome| match outcome.scenario {
        Scenario::Baseline => None,
        Scenario::Mutant(mutant) => Some((mutant, outcome.summary)),
    });
    mutants
        .map(|(mutant, summary)| match summary {
            Summary::Success | Summary::Failure => {
                bail!("`{}` could not be tested: {summary:?}", mutant.name)
            }
            _ => Ok((mutant, summary)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLUSH: &str = "crates/pvc-model/src/flush.rs";

    fn list(equivalents: &str) -> Result<List> {
        List::read(&format!(
            "version = \"1.0.0\"\npackage = \"pvc-model\"\nfiles = [\"{FLUSH}\", \
             \"crates/pvc-model/src/fence.rs\"]\n{equivalents}"
        ))
    }

    fn entry(mutant: &str, more: &str) -> String {
        format!("[[equivalent]]\nmutant = \"{mutant}\"\nreason = \"why\"\n{more}\n")
    }

    fn mutant(line: u32, change: &str) -> Mutant {
        Mutant { name: format!("{FLUSH}:{line}:9: {change}"), file: FLUSH.to_owned() }
    }

    #[test]
    fn a_missed_mutant_has_to_be_listed_as_often_as_it_is_missed() {
        use Summary::{CaughtMutant, MissedMutant, Timeout, Unviable};
        let change = "replace > with >= in fate";
        let name = format!("{FLUSH}: {change}");
        let [first, second, third] = [7, 8, 9].map(|line| mutant(line, change));
        let other = mutant(10, "replace fate -> Fate with Default::default()");
        let run = |found: [Summary; 3]| {
            let mutants = [&first, &second, &other].map(Clone::clone);
            mutants.into_iter().zip(found).collect::<Vec<_>>()
        };
        let missed = |count: usize| Counts { missed: count, unviable: 1, ..Counts::default() };
        let [listed_once, listed_twice] = ["", "times = 2"].map(|more| entry(&name, more));
        for (listed, found, unlisted, gone) in [
            ("", [CaughtMutant, Timeout, Unviable], vec![], vec![]),
            ("", [MissedMutant, CaughtMutant, Unviable], vec![&first.name], vec![]),
            (&listed_once, [CaughtMutant, MissedMutant, Unviable], vec![], vec![]),
            (
                &listed_once,
                [MissedMutant, MissedMutant, Unviable],
                vec![&first.name, &second.name],
                vec![],
            ),
            (&listed_once, [CaughtMutant, Timeout, Unviable], vec![], vec![&name]),
            (&listed_twice, [MissedMutant, MissedMutant, Unviable], vec![], vec![]),
            (&listed_twice, [MissedMutant, CaughtMutant, Unviable], vec![], vec![&name]),
        ] {
            let all = [&first, &second, &other].map(Clone::clone);
            let verdict = compare(&list(listed).unwrap(), &all, &run(found));
            assert_eq!(verdict.unlisted.iter().collect::<Vec<_>>(), unlisted, "{listed} {found:?}");
            assert_eq!(verdict.gone.iter().collect::<Vec<_>>(), gone, "{listed} {found:?}");
        }
        // A third one, with which this run did not deal, may be the one that is missed.
        let all = [&first, &second, &third, &other].map(Clone::clone);
        let listed = list(&listed_once).unwrap();
        let verdict = compare(&listed, &all, &run([CaughtMutant, CaughtMutant, Unviable]));
        assert_eq!(verdict.gone, [""; 0]);
        let verdict = compare(&listed, &all, &run([MissedMutant, MissedMutant, Unviable]));
        assert_eq!((verdict.unlisted.len(), verdict.counts), (2, missed(2)));
        let none = compare(&list(&listed_once).unwrap(), &[], &[]);
        assert_eq!(none.gone, [name], "no such mutant is made any more");
    }

    #[test]
    fn the_figures_say_what_became_of_each() {
        use Summary::{CaughtMutant, MissedMutant, Timeout, Unviable};
        let found = [CaughtMutant, CaughtMutant, MissedMutant, Timeout, Unviable];
        let run: Vec<_> =
            found.into_iter().zip(1..).map(|(found, line)| (mutant(line, "x"), found)).collect();
        assert_eq!(
            compare(&list("").unwrap(), &[], &run).counts.to_string(),
            "5 mutants: 1 do not compile; of 4 that do, 2 failed a test, 1 did not end, 1 were \
             missed"
        );
    }

    #[test]
    fn what_the_tool_reports_is_understood() {
        let text = r#"{"outcomes": [
            {"scenario": "Baseline", "summary": "Success", "log_path": "log/baseline.log"},
            {"scenario": {"Mutant": {"name": "a.rs:1:2: delete ! in f", "package": "a",
              "file": "a.rs", "function": null}}, "summary": "MissedMutant"}
        ], "total_mutants": 1}"#;
        let outcomes: Outcomes = serde_json::from_str(text).unwrap();
        let [baseline, Outcome { scenario: Scenario::Mutant(mutant), summary }] =
            &outcomes.outcomes[..]
        else {
            panic!("{outcomes:?}")
        };
        assert!(matches!(baseline.scenario, Scenario::Baseline));
        assert_eq!(
            (mutant.name().as_str(), *summary),
            ("a.rs: delete ! in f", Summary::MissedMutant)
        );
    }

    #[test]
    fn an_entry_without_a_reason_twice_or_of_another_file_is_refused() {
        let name = format!("{FLUSH}: delete ! in fate");
        assert_eq!(list(&entry(&name, "")).unwrap().times(&name), 1);
        for bad in [
            entry(&name, "").replace("why", " "),
            entry(&name, "times = 0"),
            entry(&name, "").repeat(2),
            entry("crates/pvc-model/src/job.rs: delete ! in next", ""),
            entry(&name, "line = 7"),
        ] {
            assert!(list(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_file_is_chosen_by_the_end_of_its_path() {
        let list = list("").unwrap();
        let parse = |words: &[&str]| {
            Choice::parse(&list, &words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
        };
        let chosen = parse(&["--shard", "1/8", "--file", "flush.rs"]).unwrap();
        let expected = Choice { files: vec![FLUSH.to_owned()], shard: Some("1/8".to_owned()) };
        assert_eq!(chosen, expected);
        assert_eq!(parse(&[]).unwrap(), Choice::default());
        for bad in [&["--file", "lush.rs"][..], &["--file"], &["--jobs", "2"], &["--shard"]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn our_list_can_be_read_and_its_files_exist() {
        let top = run::top();
        let list = List::read(&fs::read_to_string(top.join(LIST)).unwrap()).unwrap();
        for file in &list.files {
            assert!(top.join(file).exists(), "{file}");
        }
    }
}
