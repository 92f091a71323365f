//! The trial of the mutants: one build with all that compile, and a run of the tests for each.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::build::{self, Built, CompileError};
use super::list::List;
use super::mutant::Mutant;
use super::runner::{End, Runner};
use super::source::Numbered;
use super::tree::{Tree, Written};
use super::verdict::Outcome;

/// Code of the error that a constant calls a function that is not `const`.
const NOT_CONST: &str = "E0015";

pub struct Trial<'a> {
    pub list: &'a List,
    pub tree: &'a Tree,
    /// The mutants, whose numbers begin at 1.
    pub all: &'a [Mutant],
    /// Directory in which the tree is built.
    pub target: PathBuf,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    /// With what the compiler says.
    Unviable(String),
    Tested(End),
}

/// By number.
pub type Fates = BTreeMap<usize, Fate>;

/// The build that has all mutants that compile.
struct Choices {
    programs: Vec<PathBuf>,
    /// Mutants that do not compile, with what the compiler says.
    unviable: BTreeMap<usize, String>,
    /// Mutants that cannot be chosen when the program runs.
    others: Vec<usize>,
}

/// Findings of the builds that failed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    unviable: BTreeMap<usize, String>,
    /// Whether a constant calls a function that has mutants.
    keeps_const: bool,
}

impl Known {
    /// Blames the mutants in whose lines the errors are.
    ///
    /// # Errors
    /// If there is nobody to blame: another build would be the same.
    fn note(&mut self, written: &Written, errors: &[CompileError]) -> Result<()> {
        let before = (self.unviable.len(), self.keeps_const);
        let mut nobodys = "";
        for error in errors {
            let blamed = written.blamed(error);
            if blamed.is_empty() {
                self.keeps_const |= error.code.as_deref() == Some(NOT_CONST);
                nobodys = &error.text;
            }
            self.unviable.extend(blamed.into_iter().map(|number| (number, error.text.clone())));
        }
        ensure!(
            before != (self.unviable.len(), self.keeps_const),
            "the rules do not compile with a choice of mutants in them: {nobodys}"
        );
        Ok(())
    }
}

impl Fate {
    pub fn outcome(&self) -> Outcome {
        match self {
            Fate::Unviable(_) => Outcome::Unviable,
            Fate::Tested(end) => end.into(),
        }
    }
}

impl Trial<'_> {
    /// Tests the mutants at these indices.
    pub fn test(&self, chosen: &[usize]) -> Result<Fates> {
        let numbers: Vec<_> = chosen.iter().map(|index| index + 1).collect();
        let Choices { programs, unviable, others } = self.build(&numbers)?;
        let runner = self.runner(programs)?;
        let is_left = |number: &usize| !unviable.contains_key(number) && !others.contains(number);
        let left: Vec<_> = numbers.iter().copied().filter(is_left).collect();
        eprintln!("{} mutants are in one build", left.len());
        let tested = runner.test_all(&left)?.into_iter();
        let mut fates: Fates = tested.map(|(number, end)| (number, Fate::Tested(end))).collect();
        fates.extend(unviable.into_iter().map(|(number, text)| (number, Fate::Unviable(text))));
        for number in others {
            eprintln!("a build of its own: {}", self.mutant(number).name);
            fates.insert(number, self.test_alone(number, &runner)?);
        }
        ensure!(fates.keys().copied().eq(numbers), "not every mutant was tested once");
        Ok(fates)
    }

    /// A line for each mutant.
    pub fn log(&self, fates: &Fates) -> String {
        let line = |(number, fate): (&usize, &Fate)| {
            let name = &self.mutant(*number).name;
            match fate {
                Fate::Unviable(text) => {
                    format!("{number} does not compile: {name}: {}\n", first(text))
                }
                Fate::Tested(End::Passed) => format!("{number} missed: {name}\n"),
                Fate::Tested(End::TimedOut) => format!("{number} did not end: {name}\n"),
                Fate::Tested(End::Failed(Some(test))) => format!("{number} fails {test}: {name}\n"),
                Fate::Tested(End::Failed(None)) => format!("{number} ends the tests: {name}\n"),
            }
        };
        fates.iter().map(line).collect()
    }

    fn mutant(&self, number: usize) -> &Mutant {
        &self.all[number - 1]
    }

    /// Builds again and again, without the mutants that are in the way.
    fn build(&self, numbers: &[usize]) -> Result<Choices> {
        let mut known = Known::default();
        loop {
            let left = numbers.iter().filter(|number| !known.unviable.contains_key(*number));
            let left: Vec<Numbered<'_>> =
                left.map(|number| (*number, self.mutant(*number))).collect();
            let written = self.tree.write(&left, known.keeps_const)?;
            match build::build(self.list, &self.tree.top, &self.target)? {
                Built::Programs(programs) => {
                    let (unviable, others) = (known.unviable, written.others);
                    return Ok(Choices { programs, unviable, others });
                }
                Built::Errors(errors) => known.note(&written, &errors)?,
            }
            eprintln!("{} mutants do not compile", known.unviable.len());
        }
    }

    /// Tests a mutant in a build that has no other.
    fn test_alone(&self, number: usize, known: &Runner) -> Result<Fate> {
        self.tree.write_alone(self.mutant(number))?;
        Ok(match build::build(self.list, &self.tree.top, &self.target)? {
            Built::Errors(errors) => {
                let text = errors.into_iter().next().map(|error| error.text);
                Fate::Unviable(text.unwrap_or_default())
            }
            Built::Programs(programs) => Fate::Tested(known.with(programs).test(number)?),
        })
    }

    fn runner(&self, programs: Vec<PathBuf>) -> Result<Runner> {
        let folder = self.list.crate_folder().context("no crate")?;
        Runner::new(programs, self.tree.top.join(folder))
    }
}

fn first(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::mutant::{Place, Span};
    use super::super::source::Arm;
    use super::*;

    fn error(line: usize, code: &str) -> CompileError {
        let places = vec![("a.rs".to_owned(), line)];
        CompileError { code: Some(code.to_owned()), places, text: format!("{code} at {line}") }
    }

    fn known(unviable: &[(usize, &str)], keeps_const: bool) -> Known {
        let unviable = unviable.iter().map(|(number, text)| (*number, (*text).to_owned()));
        Known { unviable: unviable.collect(), keeps_const }
    }

    #[test]
    fn a_mutant_leaves_for_an_error_of_its_own_alone() {
        let arms = vec![Arm { lines: 3..=5, mutant: 7 }, Arm { lines: 6..=8, mutant: 8 }];
        let written = Written { arms: BTreeMap::from([("a.rs".to_owned(), arms)]), others: vec![] };
        let mut found = Known::default();
        // The second error may follow from the first.
        found.note(&written, &[error(4, "E0308"), error(9, "E0282")]).unwrap();
        assert_eq!(found, known(&[(7, "E0308 at 4")], false));
        found.note(&written, &[error(9, NOT_CONST)]).unwrap();
        assert_eq!(found, known(&[(7, "E0308 at 4")], true));
        for again in [error(9, NOT_CONST), error(9, "E0282")] {
            let failure = found.note(&written, std::slice::from_ref(&again)).unwrap_err();
            assert!(failure.to_string().ends_with(&again.text), "{failure}");
        }
        found.note(&written, &[error(8, "E0505")]).unwrap();
        assert_eq!(found, known(&[(7, "E0308 at 4"), (8, "E0505 at 8")], true));
    }

    #[test]
    fn the_log_says_of_each_what_became_of_it() {
        let list = List::read("version = '1'\npackage = 'a'\nfiles = ['a/src/b.rs']").unwrap();
        let place = Place { line: 1, column: 1 };
        let all: Vec<_> = ["v", "w", "x", "y", "z"]
            .map(|name| Mutant {
                name: name.to_owned(),
                file: "a/src/b.rs".to_owned(),
                function: None,
                span: Span { start: place, end: place },
                replacement: String::new(),
            })
            .into();
        let tree = Tree::default();
        let trial = Trial { list: &list, tree: &tree, all: &all, target: PathBuf::new() };
        let tested = [
            End::Passed,
            End::TimedOut,
            End::Failed(None),
            End::Failed(Some("tests::t".to_owned())),
        ];
        let fates = tested.map(Fate::Tested).into_iter();
        let fates: Fates = (1..)
            .zip(fates.chain([Fate::Unviable("error[E0308]: why\n --> where".to_owned())]))
            .collect();
        assert_eq!(
            trial.log(&fates),
            "1 missed: v\n2 did not end: w\n3 ends the tests: x\n4 fails tests::t: y\n\
             5 does not compile: z: error[E0308]: why\n"
        );
        use Outcome::{Caught, Missed, TimedOut, Unviable};
        let outcomes: Vec<_> = fates.values().map(Fate::outcome).collect();
        assert_eq!(outcomes, [Missed, TimedOut, Caught, Caught, Unviable]);
    }
}
