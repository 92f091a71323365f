//! The list of rules with mutants that are equivalent to them, and which of the rules are chosen.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// The rules, and their mutants that are equivalent to them.
pub const LIST: &str = "xtask/mutants.toml";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Of cargo-mutants: another one makes other mutants, or names them otherwise.
    pub version: String,
    pub package: String,
    pub files: Vec<String>,
    #[serde(default, rename = "equivalent")]
    pub equivalents: Vec<Equivalent>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Equivalent {
    /// Name that cargo-mutants gives it, without line and column.
    pub mutant: String,
    /// Number of mutants of this name that no test can tell from the rule.
    #[serde(default = "once")]
    pub times: usize,
    reason: String,
}

fn once() -> usize {
    1
}

impl List {
    pub fn read(text: &str) -> Result<List> {
        let list: List = toml::from_str(text).with_context(|| format!("{LIST} cannot be read"))?;
        ensure!(list.crate_folder().is_some(), "{LIST}: not all files are below one folder `src`");
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

    /// Folder of the crate that all files are of; `None` if they are not of one.
    pub fn crate_folder(&self) -> Option<&str> {
        let mut folders = self.files.iter().map(|file| file.split_once("/src/").map(|it| it.0));
        let first = folders.next()??;
        folders.all(|folder| folder == Some(first)).then_some(first)
    }

    /// Number of times that a mutant of this name may be missed.
    pub fn times(&self, name: &str) -> usize {
        self.equivalents.iter().find(|it| it.mutant == name).map_or(0, |it| it.times)
    }
}

/// Choice of mutants.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Of the list's; empty: all.
    files: Vec<String>,
    shard: Option<Shard>,
}

impl Choice {
    pub fn parse(list: &List, arguments: &[String]) -> Result<Choice> {
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
                "--shard" => choice.shard = Some(Shard::parse(value?)?),
                _ => bail!("`{argument}` is no option; there are `--file FILE` and `--shard K/N`"),
            }
        }
        Ok(choice)
    }

    /// Indices of those mutants that are chosen, of all whose files these are.
    pub fn among<'a>(&self, files: impl Iterator<Item = &'a str>) -> Vec<usize> {
        let is_chosen =
            |file: &str| self.files.is_empty() || self.files.iter().any(|it| it == file);
        let indices = files.enumerate().filter(|(_, file)| is_chosen(file)).map(|(index, _)| index);
        let indices: Vec<_> = indices.collect();
        let part = self.shard.as_ref().map_or(0..indices.len(), |shard| shard.of(indices.len()));
        indices[part].to_vec()
    }
}

/// Part of `count` parts that together are the whole.
#[derive(Debug, PartialEq, Eq)]
struct Shard {
    /// Counted from 0.
    number: usize,
    count: usize,
}

impl Shard {
    fn parse(text: &str) -> Result<Shard> {
        let numbers = text.split_once('/').and_then(|(number, count)| {
            Some(Shard { number: number.parse().ok()?, count: count.parse().ok()? })
        });
        numbers
            .filter(|shard| shard.number < shard.count)
            .with_context(|| format!("`{text}` is no part of N: there are `0/N` to `N-1/N`"))
    }

    fn of(&self, length: usize) -> Range<usize> {
        self.number * length / self.count..(self.number + 1) * length / self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run;

    const FLUSH: &str = "crates/pvc-model/src/flush.rs";
    const FENCE: &str = "crates/pvc-model/src/fence.rs";

    fn list(equivalents: &str) -> Result<List> {
        List::read(&format!(
            "version = \"1.0.0\"\npackage = \"pvc-model\"\nfiles = [\"{FLUSH}\", \"{FENCE}\"]\n\
             {equivalents}"
        ))
    }

    fn entry(mutant: &str, more: &str) -> String {
        format!("[[equivalent]]\nmutant = \"{mutant}\"\nreason = \"why\"\n{more}\n")
    }

    fn parse(words: &[&str]) -> Result<Choice> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        Choice::parse(&list("")?, &words)
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
    fn all_files_are_of_one_crate() {
        assert_eq!(list("").unwrap().crate_folder(), Some("crates/pvc-model"));
        for files in ["", "'a/src/b.rs', 'c/src/d.rs'", "'a/src/b.rs', 'a/tests/c.rs'"] {
            let text = format!("version = '1'\npackage = 'a'\nfiles = [{files}]");
            assert!(List::read(&text).is_err(), "{files}");
        }
    }

    #[test]
    fn a_file_is_chosen_by_the_end_of_its_path() {
        let chosen = parse(&["--shard", "1/8", "--file", "flush.rs"]).unwrap();
        let shard = Some(Shard { number: 1, count: 8 });
        assert_eq!(chosen, Choice { files: vec![FLUSH.to_owned()], shard });
        assert_eq!(parse(&[]).unwrap(), Choice::default());
        for bad in [
            &["--file", "lush.rs"][..],
            &["--file"],
            &["--jobs", "2"],
            &["--shard"],
            &["--shard", "8/8"],
            &["--shard", "1"],
            &["--shard", "a/2"],
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_parts_of_a_choice_are_the_whole() {
        let among = |words: &[&str]| {
            let files = [FLUSH, FENCE, FLUSH, FLUSH, FENCE, FLUSH, FLUSH];
            parse(words).unwrap().among(files.into_iter())
        };
        assert_eq!(among(&[]), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(among(&["--file", "fence.rs"]), [1, 4]);
        assert_eq!(among(&["--file", "flush.rs", "--shard", "0/2"]), [0, 2]);
        assert_eq!(among(&["--file", "flush.rs", "--shard", "1/2"]), [3, 5, 6]);
        let parts: Vec<_> =
            ["0/3", "1/3", "2/3"].into_iter().flat_map(|part| among(&["--shard", part])).collect();
        assert_eq!(parts, among(&[]));
    }

    #[test]
    fn our_list_can_be_read_and_its_files_exist() {
        let top = run::top();
        let list = List::read(&std::fs::read_to_string(top.join(LIST)).unwrap()).unwrap();
        for file in &list.files {
            assert!(top.join(file).exists(), "{file}");
        }
    }
}
