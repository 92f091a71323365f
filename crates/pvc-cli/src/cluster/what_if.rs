use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::{Args, Subcommand, ValueEnum};
use pvc_api_types::{WhatIf as Answer, WhatIfRefusal, WhatIfReply, WhatIfRun, WhatIfVm};
use pvc_model::listed;
use serde_json::Value;

use super::restore;
use crate::context::Pvc;
use crate::format::{MaybeJson, PlainFormat};
use crate::outcome::{Exit, Failure, Outcome, plain_io};
use crate::output::{Colour, Paint, Table};

/// The program that simulates. It is one of its own, because a simulation needs a process for
/// itself.
const PROGRAM: &str = "pvc-sim";

/// Number of VMs that a line names.
const NAMED: usize = 8;

/// Say what would happen to the cluster, and change nothing
#[derive(Debug, Subcommand)]
pub enum WhatIf {
    Node(Node),
}

impl WhatIf {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            WhatIf::Node(command) => command.run(pvc),
        }
    }
}

/// Say what happens if a node dies now
///
/// Which VMs start where, which find no place and why, and how long it takes. The records of
/// the cluster are read once, by the rules of fencing it is planned where each VM goes, and
/// then the real daemons are run on them in a simulated world, on this machine, in which the
/// node dies. Nothing is changed in the cluster, and the records stay in the memory of this
/// machine; the passwords of the BMCs are not asked for.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc cluster what-if node hv3
  pvc cluster what-if node hv3 --death hang
  pvc cluster what-if node hv3 --from cluster.json
  pvc -q cluster what-if node hv3 --format json | jq -e .recovered")]
pub struct Node {
    /// The node that dies
    #[arg(value_name = "NODE", add = crate::completion::nodes())]
    node: String,

    /// Ask about the cluster that `pvc cluster backup` wrote to FILE; `-` is standard input
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,

    /// The way in which it dies
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Death::Power)]
    death: Death,

    /// The nodes' `keepalive_interval`, which the cluster does not record
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    keepalive_interval: u32,

    /// The nodes' `fence_intervals`, which the cluster does not record
    #[arg(long, value_name = "NUMBER", default_value_t = 6)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=10_000))]
    fence_intervals: u32,

    #[arg(short, long, value_enum, default_value_t = PlainFormat::Pretty, help = "How to print it")]
    format: PlainFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Death {
    /// Power is gone, and the BMC still answers
    Power,
    /// Machine stands still with its power on
    Hang,
}

impl Node {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let program = program()?;
        let backup = match &self.from {
            Some(file) => restore::read(file).map_err(|error| {
                Failure::usage(format!("cannot read `{}`: {}", file.display(), plain_io(&error)))
            })?,
            None => pvc.client()?.backup(false)?.to_string(),
        };
        let said = ask(&program, &self.arguments(), &backup)?;
        let reply: WhatIfReply =
            serde_json::from_value(said.clone()).map_err(|_| not_understood(&program))?;
        if let Some(refused) = reply.refused {
            return Err(self.about_the_file(failure(refused)));
        }
        let answer = reply.answer.ok_or_else(|| not_understood(&program))?;
        for defect in &answer.defects {
            pvc.warn(defect);
        }
        if !self.format.print(pvc, &said["answer"]) {
            let view = View { answer: &answer, paint: pvc.out.paint() };
            pvc.out.text(view.text());
        }
        Ok(())
    }

    fn arguments(&self) -> Vec<String> {
        let death = self
            .death
            .to_possible_value()
            .map(|word| word.get_name().to_owned())
            .unwrap_or_default();
        let (interval, intervals) =
            (self.keepalive_interval.to_string(), self.fence_intervals.to_string());
        let words = ["what-if", "-", "--node", &self.node, "--death", &death];
        let rules = ["--keepalive-interval", &interval, "--fence-intervals", &intervals];
        words.iter().chain(&rules).map(|word| (*word).to_owned()).collect()
    }

    fn about_the_file(&self, failure: Failure) -> Failure {
        match &self.from {
            Some(file) => failure.context(format_args!("`{}`", file.display())),
            None => failure,
        }
    }
}

/// The program lies beside this one: both are of one package.
fn program() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()?;
    let program = own.with_file_name(PROGRAM);
    if program.is_file() {
        return Ok(program);
    }
    let beside = own.parent().unwrap_or(Path::new("/")).display().to_string();
    Err(Failure::failed(format!(
        "the program `{PROGRAM}`, which simulates the cluster, is missing"
    ))
    .hint(format!(
        "it belongs to `{beside}` and comes with the package `pvc-client-cli`; in a checkout \
             `./run` builds it"
    )))
}

/// Has the program answer; the backup goes through a pipe and lies nowhere.
fn ask(program: &Path, arguments: &[String], backup: &str) -> Result<Value, Failure> {
    let cannot = |error: std::io::Error| {
        Failure::failed(format!("cannot run `{}`: {}", program.display(), plain_io(&error)))
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(cannot)?;
    let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(backup.as_bytes()));
    let output = child.wait_with_output().map_err(cannot)?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let complaint = String::from_utf8_lossy(&output.stderr);
        let why =
            complaint.lines().next().map(|line| line.trim_start_matches("error: ").to_owned());
        let unread = written.err().map(|error| plain_io(&error));
        let why = why.or(unread).unwrap_or_else(|| output.status.to_string());
        Failure::failed(format!("`{PROGRAM}` gave no answer: {why}"))
    })
}

fn not_understood(program: &Path) -> Failure {
    Failure::failed(format!("the answer of `{}` cannot be understood", program.display()))
        .hint("it must be of the same version as `pvc`")
}

fn failure(refused: WhatIfRefusal) -> Failure {
    let exit = if refused.not_found { Exit::NotFound } else { Exit::Failed };
    let failure = Failure::new(exit, refused.message);
    if refused.hint.is_empty() { failure } else { failure.hint(refused.hint) }
}

struct View<'a> {
    answer: &'a Answer,
    paint: Paint,
}

impl View<'_> {
    fn text(&self) -> String {
        let mut text = String::new();
        self.answer_in_short(&mut text);
        self.vms(&mut text);
        self.run(&mut text);
        self.nodes(&mut text);
        self.section(&mut text, "Assumed", &self.answer.assumptions);
        text
    }

    fn answer_in_short(&self, text: &mut String) {
        let answer = self.answer;
        let colour = if answer.recovered { Colour::Green } else { Colour::Red };
        let summary = self.paint.colour(colour, &answer.summary);
        let _ = writeln!(text, "If node `{}` dies now: {summary}", answer.node);
        for hindrance in &answer.hindrances {
            let _ = writeln!(text, "Nobody makes up for it: {hindrance}");
        }
        let coordinators = &answer.coordinators;
        let quorum = if coordinators.quorum { "a quorum" } else { "no quorum" };
        let _ = writeln!(
            text,
            "Coordinators left: {} of {}, {quorum}",
            coordinators.left, coordinators.all
        );
        if !answer.off.is_empty() {
            let off = listed(answer.off.iter(), NAMED);
            let _ = writeln!(text, "Off and not to run, so left as they are: {off}");
        }
    }

    fn vms(&self, text: &mut String) {
        if self.answer.vms.is_empty() {
            return;
        }
        let columns =
            [("VM", 5), ("Memory", 7), ("Then", 9), ("Node", 5), ("After", 6), ("Why", 4)];
        let mut table = Table::new().columns(&columns);
        for vm in &self.answer.vms {
            table.row(vec![
                vm.name.as_str().into(),
                format!("{} MiB", vm.memory_mib).into(),
                fate(vm).into(),
                or_dash(&vm.to).into(),
                self.after(vm).into(),
                vm.reason.as_str().into(),
            ]);
        }
        let _ = writeln!(text, "\n{}", table.render(self.paint));
        for vm in &self.answer.vms {
            for caution in &vm.cautions {
                let _ = writeln!(text, "Caution about `{}`: {caution}", vm.name);
            }
        }
    }

    /// Time after which the VM ran in the simulated cluster.
    fn after(&self, vm: &WhatIfVm) -> String {
        let run = self.answer.simulation.as_ref();
        let ran = run.and_then(|run| run.vms.iter().find(|ran| ran.name == vm.name));
        ran.and_then(|ran| ran.seconds).map_or_else(|| "-".to_owned(), |at| format!("{at:.1} s"))
    }

    fn run(&self, text: &mut String) {
        match &self.answer.simulation {
            Some(run) => {
                self.section(text, "In the simulated cluster", &timeline(self.answer, run));
                self.section(text, "Other than planned", &run.differences);
            }
            None => self.section(
                text,
                "Not simulated",
                std::slice::from_ref(&self.answer.not_simulated),
            ),
        }
    }

    fn nodes(&self, text: &mut String) {
        if self.answer.nodes.is_empty() {
            return;
        }
        let mut table = Table::new()
            .group("Node", &[("Name", 5), ("State", 6)])
            .group("Free memory", &[("Now", 4), ("Then", 5), ("Of", 3)])
            .group("VMs", &[("Now", 4), ("Then", 5)])
            .group("Could die next", &[("", 4), ("Why not", 7)]);
        for node in &self.answer.nodes {
            let next = if node.may_die_next { "yes" } else { "no" };
            let mib = |mib: u64| format!("{mib} MiB");
            table.row(vec![
                node.name.as_str().into(),
                format!("{},{}", node.daemon_state, node.domain_state).into(),
                mib(node.memory_free_mib).into(),
                mib(node.memory_free_after_mib).into(),
                mib(node.memory_total_mib).into(),
                node.vms.to_string().into(),
                node.vms_after.to_string().into(),
                next.into(),
                node.next.as_str().into(),
            ]);
        }
        let _ = writeln!(text, "\n{}", table.render(self.paint));
    }

    fn section(&self, text: &mut String, heading: &str, lines: &[String]) {
        if lines.is_empty() {
            return;
        }
        let _ = writeln!(text, "\n{}", self.paint.bold(format!("{heading}:")));
        for line in lines {
            let _ = writeln!(text, "  {line}");
        }
    }
}

fn fate(vm: &WhatIfVm) -> &str {
    match vm.fate.as_str() {
        "start" => "starts",
        "stay" => "runs on",
        "wait" => "no place",
        "elsewhere" => "elsewhere",
        "down" => "down",
        other => other,
    }
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

/// Events in their order.
fn timeline(answer: &Answer, run: &WhatIfRun) -> Vec<String> {
    let begins = if answer.death == "hang" { "stands still" } else { "has no power any more" };
    let mut events = vec![(0.0, format!("`{}` {begins}", answer.node))];
    let mut add = |at: Option<f64>, what: String| events.extend(at.map(|at| (at, what)));
    add(run.suspected_s, "it is taken for dead".to_owned());
    add(run.fenced_s, format!("it is proven dead by `{}`: {}", run.fenced_by, run.proof));
    add(run.primary_s, format!("`{}` is primary and has the floating addresses", run.primary));
    let times = || run.vms.iter().filter_map(|vm| vm.seconds);
    let count = times().count();
    let first = times().reduce(f64::min);
    let last = times().reduce(f64::max);
    match count {
        0 => {}
        1 => add(first, "its VM runs elsewhere".to_owned()),
        _ => {
            add(first, "the first of its VMs runs elsewhere".to_owned());
            add(last, format!("the last of {count} runs"));
        }
    }
    add(run.recovered_s, "what becomes of its VMs is recorded".to_owned());
    events.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut lines: Vec<String> =
        events.into_iter().map(|(at, what)| format!("{at:>6.1} s  {what}")).collect();
    let watched = run.watched_s;
    if run.suspected_s.is_none() {
        lines.push(format!("{watched:>6.1} s  nobody has taken it for dead"));
    } else if run.fenced_s.is_none() {
        let why = if run.fence_failure.is_empty() { "" } else { ": " };
        lines.push(format!(
            "{watched:>6.1} s  it could not be proven dead yet{why}{}",
            run.fence_failure
        ));
    } else if run.recovered_s.is_none() {
        lines.push(format!("{watched:>6.1} s  what becomes of its VMs is not all recorded yet"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Answer {
        let reply: WhatIfReply =
            serde_json::from_str(include_str!("../../tests/wire/what-if.json")).unwrap();
        reply.answer.unwrap()
    }

    #[test]
    fn the_view() {
        let view = View { answer: &answer(), paint: Paint::OFF };
        crate::golden::check("cluster-what-if.txt", &view.text());
    }

    #[test]
    fn a_death_that_nobody_makes_up_for_says_so_first() {
        let answer = Answer {
            recovered: false,
            summary: "its 2 VMs are down until the node is back".to_owned(),
            hindrances: vec!["the cluster is in maintenance".to_owned()],
            simulation: Some(WhatIfRun { watched_s: 300.0, ..WhatIfRun::default() }),
            ..answer()
        };
        let text = View { answer: &answer, paint: Paint::OFF }.text();
        let mut lines = text.lines();
        assert!(
            lines.next().unwrap().ends_with("its 2 VMs are down until the node is back"),
            "{text}"
        );
        assert_eq!(lines.next(), Some("Nobody makes up for it: the cluster is in maintenance"));
        assert!(text.contains(" 300.0 s  nobody has taken it for dead\n"), "{text}");
    }

    #[test]
    fn without_a_simulation_there_is_a_reason() {
        let not_simulated = "1 of 3 coordinators run".to_owned();
        let answer = Answer { simulation: None, not_simulated, ..answer() };
        let text = View { answer: &answer, paint: Paint::OFF }.text();
        assert!(text.contains("Not simulated:\n  1 of 3 coordinators run\n"), "{text}");
    }
}
