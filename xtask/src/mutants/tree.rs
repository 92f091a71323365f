//! The scratch copy of the checkout, whose rules are rewritten.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::build::CompileError;
use super::list::List;
use super::mutant::Mutant;
use super::source::{self, Arm, Numbered};
use crate::run;

#[derive(Debug, Default)]
pub struct Tree {
    pub top: PathBuf,
    /// The files of the list as they are, with their text.
    rules: BTreeMap<String, String>,
    /// The root of their crate, and its text.
    root: (String, String),
}

/// Places of the mutants that were written into the tree.
#[derive(Debug, Default)]
pub struct Written {
    /// Per file.
    pub arms: BTreeMap<String, Vec<Arm>>,
    /// Mutants that cannot be chosen when the program runs.
    pub others: Vec<usize>,
}

impl Tree {
    /// Copies every file of the checkout that git does not ignore, in the place of an older copy.
    pub fn copy(top: PathBuf, list: &List) -> Result<Tree> {
        if top.exists() {
            fs::remove_dir_all(&top)?;
        }
        let mut files = run::command("git");
        files.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        for file in String::from_utf8(run::output(&mut files)?)?.split_terminator('\0') {
            copy(&run::top().join(file), &top.join(file))
                .with_context(|| format!("cannot copy `{file}`"))?;
        }
        let read = |file: &str| -> Result<(String, String)> {
            let text = fs::read_to_string(top.join(file));
            Ok((file.to_owned(), text.with_context(|| format!("cannot read `{file}`"))?))
        };
        let rules = list.files.iter().map(|file| read(file)).collect::<Result<_>>()?;
        let folder = list.crate_folder().context("no crate")?;
        let root = read(&format!("{folder}/src/lib.rs"))?;
        Ok(Tree { top, rules, root })
    }

    /// Writes the rules anew, so that each of `mutants` can be chosen.
    pub fn write(&self, mutants: &[Numbered<'_>], keeps_const: bool) -> Result<Written> {
        let mut written = Written::default();
        for (file, text) in &self.rules {
            let of_file = mutants.iter().filter(|(_, mutant)| mutant.file == *file).copied();
            let new = source::rewrite(text, &of_file.collect::<Vec<_>>(), keeps_const);
            let new = new.with_context(|| format!("`{file}` cannot be rewritten"))?;
            self.put(file, &new.text)?;
            written.others.extend(new.others);
            written.arms.insert(file.clone(), new.arms);
        }
        let (root, text) = &self.root;
        self.put(root, &format!("{text}{}", source::MODULE))?;
        Ok(written)
    }

    /// Writes the rules as they are, but for this mutant.
    pub fn write_alone(&self, mutant: &Mutant) -> Result<()> {
        for (file, text) in self.rules.iter().chain([(&self.root.0, &self.root.1)]) {
            self.put(file, text)?;
        }
        let text = self.rules.get(&mutant.file).context("a mutant of a file that is not listed")?;
        self.put(&mutant.file, &source::mutated(text, mutant)?)
    }

    fn put(&self, file: &str, text: &str) -> Result<()> {
        fs::write(self.top.join(file), text).with_context(|| format!("cannot write `{file}`"))
    }
}

/// Copies a file. One that is deleted is still listed, and a link may lead to a folder.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_file() {
        fs::create_dir_all(to.parent().context("no folder")?)?;
        fs::copy(from, to)?;
    }
    Ok(())
}

impl Written {
    /// The mutants in whose lines the error is.
    pub fn blamed(&self, error: &CompileError) -> Vec<usize> {
        let arms = |file: &String| self.arms.get(file).into_iter().flatten();
        let places =
            error.places.iter().flat_map(|(file, line)| arms(file).map(move |arm| (arm, line)));
        places.filter(|(arm, line)| arm.lines.contains(line)).map(|(arm, _)| arm.mutant).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_blamed_on_the_mutant_in_whose_lines_it_is() {
        let arms = vec![Arm { lines: 3..=5, mutant: 1 }, Arm { lines: 6..=6, mutant: 2 }];
        let written = Written { arms: BTreeMap::from([("a.rs".to_owned(), arms)]), others: vec![] };
        let blamed = |places: &[(&str, usize)]| {
            let places = places.iter().map(|(file, line)| ((*file).to_owned(), *line));
            written.blamed(&CompileError { places: places.collect(), ..CompileError::default() })
        };
        for (line, mutants) in [(2, &[][..]), (3, &[1]), (5, &[1]), (6, &[2]), (7, &[])] {
            assert_eq!(blamed(&[("a.rs", line)]), mutants, "{line}");
            assert_eq!(blamed(&[("b.rs", line)]), [0; 0], "{line}");
        }
        assert_eq!(blamed(&[("b.rs", 4), ("a.rs", 4), ("a.rs", 6)]), [1, 2]);
    }
}
