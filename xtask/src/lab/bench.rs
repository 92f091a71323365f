//! `cargo xtask lab bench`: what only a real cluster can show, measured, with the budgets of the
//! design.

mod daemons;
mod failing;
mod moving;
// The same form as the other benchmarks print; that crate links half of the project, this one
// nothing.
#[path = "../../../bench/src/report.rs"]
#[allow(dead_code, reason = "shared with `bench/`, which uses all of it")]
mod report;

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use self::report::{Figure, Section};
use super::ask;
use super::layout::{Lab, NodeName};
use super::process::wait_until;
use super::{mend_all, node, pvc};
use crate::run;

/// The guests of the measurements. Nobody else's are touched.
const GUESTS: [&str; 5] = ["bench1", "bench2", "bench3", "bench4", "bench5"];

const LIMIT: Duration = Duration::from_secs(180);

struct Options {
    runs: usize,
    json: Option<String>,
    only: Vec<String>,
    debug: bool,
}

impl Options {
    fn parse(words: &[&str]) -> Result<Self> {
        let mut options = Self { runs: 5, json: None, only: Vec::new(), debug: false };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("`{word}` needs a value"));
            match *word {
                "--runs" => options.runs = value()?.parse().context("`--runs` takes a number")?,
                "--json" => options.json = Some((*value()?).into()),
                "--only" => options.only.push((*value()?).into()),
                "--debug" => options.debug = true,
                _ => bail!("`{word}` is not an option of `lab bench`"),
            }
        }
        ensure!(options.runs > 0, "nothing is measured in no run");
        Ok(options)
    }
}

/// The lab while it is measured. What a measurement broke is mended, and its guests are gone, in
/// the end.
struct Bench {
    lab: Lab,
    runs: usize,
}

type Measurement = (&'static str, fn(&Bench) -> Result<Vec<Figure>>);

const MEASUREMENTS: [Measurement; 6] = [
    ("daemons at rest", daemons::at_rest),
    ("keepalives", daemons::keepalives),
    ("hand-over of the primary role", moving::hand_over),
    ("live migration and flush", moving::migration_and_flush),
    ("a node without power", failing::power),
    ("daemons with 1,000 VMs", daemons::with_many_vms),
];

/// Measures and prints a table. The lab is brought up from a release build if it is not, and one
/// that runs a debug build gets a release build.
pub fn run(lab: &Lab, words: &[&str]) -> Result<()> {
    let options = Options::parse(words)?;
    prepare(lab, &options)?;
    let bench = Bench { lab: lab.clone(), runs: options.runs };
    println!("{}\n", bench.machine("beginning"));
    let wanted = |title: &str| {
        options.only.is_empty() || options.only.iter().any(|word| title.contains(word))
    };
    let mut sections = Vec::new();
    for (title, measure) in MEASUREMENTS.iter().filter(|(title, _)| wanted(title)) {
        let failed =
            |error: anyhow::Error| vec![Figure::missing("all of it", format!("{error:#}"))];
        let figures = bench.settle().and_then(|()| measure(&bench)).unwrap_or_else(failed);
        let section = Section { title: (*title).into(), figures };
        println!("{}", report::table(std::slice::from_ref(&section)));
        sections.push(section);
    }
    println!("{}", bench.machine("end"));
    if let Some(path) = options.json {
        let text = format!("{:#}\n", report::to_json(&sections));
        fs::write(&path, text).with_context(|| format!("cannot write `{path}`"))?;
    }
    Ok(())
}

fn prepare(lab: &Lab, options: &Options) -> Result<()> {
    let release = if options.debug { vec![] } else { vec!["--release".to_owned()] };
    let wanted = if options.debug { "debug" } else { "release" };
    let made = pvc::build(lab);
    if !lab.is_up() {
        println!("the lab is brought up from a {wanted} build");
        super::run(&[vec!["up".into()], release].concat())
    } else if made.as_deref() != Some(wanted) && !options.debug {
        println!("the lab runs a debug build; a release build is made and installed");
        super::run(&[vec!["install".into()], release].concat())
    } else {
        println!(
            "the lab is up already, with a {} build",
            made.unwrap_or_else(|| "foreign".into())
        );
        Ok(())
    }
}

impl Bench {
    fn machine(&self, when: &str) -> String {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let build = pvc::build(&self.lab).unwrap_or_else(|| "foreign".into());
        format!(
            "a {build} build, {} nodes on {cpus} CPUs, guests emulated; load average at the \
             {when}: {}",
            self.lab.nodes().len(),
            load.split(' ').next().unwrap_or("unknown")
        )
    }

    fn node(&self, number: usize) -> NodeName {
        self.lab.nodes().swap_remove(number)
    }

    /// Waits until every node is on and takes VMs.
    fn settle(&self) -> Result<()> {
        let nodes = self.lab.nodes();
        ensure!(nodes.len() >= 3, "three nodes are needed");
        for each in &nodes {
            ensure!(node::answers(&self.lab, each), "`{each}` is off or frozen");
            let ready = ["node", "ready", &each.text, "--wait"];
            // Only coordinators have an API to ask.
            wait_until(&format!("`{each}` is ready"), LIMIT, || {
                Ok(ask::pvc(&self.lab, &nodes[0], &ready).is_ok())
            })?;
        }
        Ok(())
    }

    fn pvc(&self, node: &NodeName, words: &str) -> Result<String> {
        ask::pvc(&self.lab, node, &words.split(' ').collect::<Vec<_>>())
    }

    /// Has each of `guests` running on `node`, its userland too.
    fn cast(&self, guests: &[&str], node: &NodeName) -> Result<()> {
        let asked = &self.node(0);
        for guest in guests {
            let place = ask::running_on(&self.lab, guest);
            if place.is_empty() {
                ask::clear_console(&self.lab, guest);
                pvc::define_guests(&self.lab, &[guest])?;
                // It may be there already.
                self.pvc(asked, &format!("vm move {guest} --target {node}")).ok();
                self.pvc(asked, &format!("vm start {guest} --wait"))?;
            } else if place != [node.text.clone()] {
                self.pvc(asked, &format!("vm move {guest} --target {node} --wait"))?;
            }
        }
        for guest in guests {
            wait_until(&format!("`{guest}` counts on `{node}`"), LIMIT, || {
                let is_there = ask::running_on(&self.lab, guest) == [node.text.clone()];
                Ok(is_there && ask::last_beat(&self.lab, guest, &node.text).is_some())
            })?;
        }
        Ok(())
    }
}

/// Runs `script` on the first node.
fn run_on(bench: &Bench, script: &str) -> Result<()> {
    let words = ["bash", "-c", script].map(String::from);
    let first = bench.node(0);
    run::output(&mut node::inside(&bench.lab, &first, &words)?).map(drop).or_else(|_| {
        bail!("a script failed on `{first}`: {}", script.lines().last().unwrap_or_default().trim())
    })
}

impl Drop for Bench {
    fn drop(&mut self) {
        mend_all(&self.lab);
        let awake = self.lab.nodes().into_iter().find(|each| node::answers(&self.lab, each));
        for guest in GUESTS {
            // Not every measurement needs them all.
            awake.as_ref().map(|awake| ask::pvc(&self.lab, awake, &["vm", "remove", guest]).ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_runs_is_asked_for_and_none_is_refused() {
        assert_eq!(Options::parse(&["--runs", "9"]).unwrap().runs, 9);
        assert!(Options::parse(&["--runs", "0"]).is_err());
        assert!(Options::parse(&["--fast"]).is_err());
    }
}
