//! Comparison of what became of the mutants with the list.

use std::collections::BTreeMap;
use std::fmt;

use super::list::{Equivalent, List};
use super::mutant::Mutant;

/// Result of testing a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A test failed.
    Caught,
    Missed,
    TimedOut,
    /// The mutant does not compile.
    Unviable,
}

/// Comparison of a run with the list.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub counts: Counts,
    /// Missed, and not listed as often.
    pub unlisted: Vec<String>,
    /// Listed more often than there are such mutants that are missed.
    pub gone: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts {
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
pub fn compare(list: &List, all: &[Mutant], run: &[(Mutant, Outcome)]) -> Verdict {
    let mut verdict = Verdict::default();
    let Counts { caught, timed_out, unviable, missed } = &mut verdict.counts;
    for (_, outcome) in run {
        *match outcome {
            Outcome::Unviable => &mut *unviable,
            Outcome::Missed => &mut *missed,
            Outcome::TimedOut => &mut *timed_out,
            Outcome::Caught => &mut *caught,
        } += 1;
    }
    let mut missed: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (mutant, _) in run.iter().filter(|(_, outcome)| *outcome == Outcome::Missed) {
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

#[cfg(test)]
mod tests {
    use super::super::mutant::{Place, Span};
    use super::*;

    const FLUSH: &str = "crates/pvc-model/src/flush.rs";

    fn list(equivalents: &str) -> Result<List, anyhow::Error> {
        List::read(&format!(
            "version = \"1.0.0\"\npackage = \"pvc-model\"\nfiles = [\"{FLUSH}\"]\n{equivalents}"
        ))
    }

    fn entry(mutant: &str, more: &str) -> String {
        format!("[[equivalent]]\nmutant = \"{mutant}\"\nreason = \"why\"\n{more}\n")
    }

    fn mutant(line: usize, change: &str) -> Mutant {
        let place = Place { line, column: 9 };
        Mutant {
            name: format!("{FLUSH}:{line}:9: {change}"),
            file: FLUSH.to_owned(),
            function: None,
            span: Span { start: place, end: place },
            replacement: String::new(),
        }
    }

    #[test]
    fn a_missed_mutant_has_to_be_listed_as_often_as_it_is_missed() {
        use Outcome::{Caught, Missed, TimedOut, Unviable};
        let change = "replace > with >= in fate";
        let name = format!("{FLUSH}: {change}");
        let [first, second, third] = [7, 8, 9].map(|line| mutant(line, change));
        let other = mutant(10, "replace fate -> Fate with Default::default()");
        let run = |found: [Outcome; 3]| {
            let mutants = [&first, &second, &other].map(Clone::clone);
            mutants.into_iter().zip(found).collect::<Vec<_>>()
        };
        let missed = |count: usize| Counts { missed: count, unviable: 1, ..Counts::default() };
        let [listed_once, listed_twice] = ["", "times = 2"].map(|more| entry(&name, more));
        for (listed, found, unlisted, gone) in [
            ("", [Caught, TimedOut, Unviable], vec![], vec![]),
            ("", [Missed, Caught, Unviable], vec![&first.name], vec![]),
            (&listed_once, [Caught, Missed, Unviable], vec![], vec![]),
            (&listed_once, [Missed, Missed, Unviable], vec![&first.name, &second.name], vec![]),
            (&listed_once, [Caught, TimedOut, Unviable], vec![], vec![&name]),
            (&listed_twice, [Missed, Missed, Unviable], vec![], vec![]),
            (&listed_twice, [Missed, Caught, Unviable], vec![], vec![&name]),
        ] {
            let all = [&first, &second, &other].map(Clone::clone);
            let verdict = compare(&list(listed).unwrap(), &all, &run(found));
            assert_eq!(verdict.unlisted.iter().collect::<Vec<_>>(), unlisted, "{listed} {found:?}");
            assert_eq!(verdict.gone.iter().collect::<Vec<_>>(), gone, "{listed} {found:?}");
        }
        // A third one, with which this run did not deal, may be the one that is missed.
        let all = [&first, &second, &third, &other].map(Clone::clone);
        let listed = list(&listed_once).unwrap();
        let verdict = compare(&listed, &all, &run([Caught, Caught, Unviable]));
        assert_eq!(verdict.gone, [""; 0]);
        let verdict = compare(&listed, &all, &run([Missed, Missed, Unviable]));
        assert_eq!((verdict.unlisted.len(), verdict.counts), (2, missed(2)));
        let none = compare(&list(&listed_once).unwrap(), &[], &[]);
        assert_eq!(none.gone, [name], "no such mutant is made any more");
    }

    #[test]
    fn the_figures_say_what_became_of_each() {
        use Outcome::{Caught, Missed, TimedOut, Unviable};
        let found = [Caught, Caught, Missed, TimedOut, Unviable];
        let run: Vec<_> =
            found.into_iter().zip(1..).map(|(found, line)| (mutant(line, "x"), found)).collect();
        assert_eq!(
            compare(&list("").unwrap(), &[], &run).counts.to_string(),
            "5 mutants: 1 do not compile; of 4 that do, 2 failed a test, 1 did not end, 1 were \
             missed"
        );
    }
}
