//! `pvc-sim`: runs clusters from seeds, plays stories, and predicts what the death of a node would
//! do.

// All of it but one function, which says why: see `same_dice`.
#![deny(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "this program is in the real world, whatever runs in it"
)]

/// A line for whoever reads.
macro_rules! say {
    ($($line:tt)*) => { pvc_sim::say(format_args!($($line)*)) };
}

mod same_dice;
mod stories;
mod what_if_command;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pvc_sim::{Case, Event, Log, Mutation, Report};

/// The allocator of the simulation: a fifth of a run is saved.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "\
Usage: pvc-sim seeds [OPTION]…   run clusters from many seeds
       pvc-sim one [OPTION]…     run one, and say what came of it as JSON

  --seeds N          how many seeds (100)
  --from S           the first seed (1)
  --seed S           only this one
  --minutes M        minutes of faults in each run (30; elections: 3)
  --hours H          as --minutes, in hours
  --only elections   short worlds in which nothing happens but the loss of ZooKeeper's leaders, \
  connections and machines
  --jobs N           how many runs at once (as many as there are processors)
  --no-shrink        only say what failed
  --mutation NAME    break the safety logic on purpose: unconfirmed, versionless, wall-clock,
                     boastful, modest
  --until-found      stop at the first failure and count that as success: a test of the tests
  --history FILE     one: what happens, instead of what the seed says; a JSON event per line
  --log              one: print the whole log
  --debug            one: with the daemons' debug messages
";

/// Exit code of a run or a story that went as it should, and of a prediction that was made.
const SUCCEEDED: i32 = 0;

/// Exit code of a run or a story that fails, and of a prediction that was not made.
const FAILED: i32 = 1;

/// Exit code if nothing could be run: the command line makes no sense, or a file is no good.
const NOT_RUN: u8 = 2;

/// Processor time that a run may take until it is taken for one that hangs.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Real time as a multiple of it: a run may be left waiting by a machine that is busy, but one that
/// waits for nothing ends as well.
const REAL_TIMES: u32 = 20;

/// Number of runs that shrinking a history may take.
const SHRINKING: usize = 150;

/// Number of lines of the log that are shown of a run that failed.
const TAIL: usize = 80;

/// Number of runs after which somebody who waits is told the progress.
const PROGRESS: usize = 1000;

#[derive(Debug, Clone)]
struct Options {
    seeds: u64,
    from: u64,
    minutes: u64,
    /// Nothing but elections and the like.
    elections: bool,
    jobs: usize,
    shrink: bool,
    mutation: Option<String>,
    until_found: bool,
    history: Option<String>,
    log: bool,
    debug: bool,
}

impl Options {
    fn case(&self, seed: u64, mutation: Option<Mutation>) -> Case {
        match self.elections {
            true => Case::of_elections(seed, self.minutes, mutation),
            false => Case::from_seed(seed, self.minutes, mutation),
        }
    }

    /// Options that a run needs beside its seed, to be the same.
    fn kind(&self) -> Vec<String> {
        let mut words = vec!["--minutes".to_owned(), self.minutes.to_string()];
        if self.elections {
            words.extend(["--only", "elections"].map(str::to_owned));
        }
        if let Some(mutation) = &self.mutation {
            words.extend(["--mutation".to_owned(), mutation.clone()]);
        }
        words
    }
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options {
        seeds: 100,
        from: 1,
        minutes: 0,
        elections: false,
        jobs: std::thread::available_parallelism().map_or(1, usize::from),
        shrink: true,
        mutation: None,
        until_found: false,
        history: None,
        log: false,
        debug: false,
    };
    let mut rest = arguments.iter();
    while let Some(option) = rest.next() {
        let mut value = || rest.next().cloned().ok_or_else(|| format!("`{option}` needs a value"));
        let number =
            |text: String| text.parse::<u64>().map_err(|_| format!("`{text}` is no number"));
        match option.as_str() {
            "--seeds" => options.seeds = number(value()?)?,
            "--from" => options.from = number(value()?)?,
            "--seed" => (options.from, options.seeds) = (number(value()?)?, 1),
            "--minutes" => options.minutes = number(value()?)?,
            "--hours" => options.minutes = 60 * number(value()?)?,
            "--only" => match value()?.as_str() {
                "elections" => options.elections = true,
                other => {
                    return Err(format!(
                        "`{other}` is nothing that can happen alone; `elections` is"
                    ));
                }
            },
            "--jobs" => options.jobs = (number(value()?)? as usize).max(1),
            "--no-shrink" => options.shrink = false,
            "--mutation" => options.mutation = Some(value()?),
            "--until-found" => options.until_found = true,
            "--history" => options.history = Some(value()?),
            "--log" => options.log = true,
            "--debug" => options.debug = true,
            other => return Err(format!("`{other}` is no option")),
        }
    }
    mutation(&options)?;
    if options.minutes == 0 {
        options.minutes = if options.elections { 3 } else { 30 };
    }
    if options.seeds == 0 {
        return Err("`--seeds` must be at least 1".to_owned());
    }
    Ok(options)
}

fn mutation(options: &Options) -> Result<Option<Mutation>, String> {
    let Some(wanted) = &options.mutation else { return Ok(None) };
    let known = Mutation::ALL.iter().find(|(name, _)| name == wanted);
    known.map(|(_, mutation)| Some(*mutation)).ok_or_else(|| format!("`{wanted}` is no mutation"))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help") {
        return usage();
    }
    let run = match arguments.first().map(String::as_str) {
        Some("seeds") => seeds,
        Some("one") => one,
        Some("stories") => return ended(stories::stories(&arguments[1..])),
        Some("sentences") => return stories::sentences(),
        Some("story") => return ended(stories::story(&arguments[1..])),
        Some("what-if") => return ended(what_if_command::what_if(&arguments[1..])),
        Some("-h" | "help") | None => return usage(),
        Some(other) => {
            return ended(Err(format!(
                "`{other}` is nothing that `pvc-sim` does; see `pvc-sim --help`"
            )));
        }
    };
    ended(parse(&arguments[1..]).and_then(|options| run(&options)))
}

fn usage() -> ExitCode {
    say!("{USAGE}\n{}\n{}", stories::USAGE, what_if_command::USAGE);
    ExitCode::SUCCESS
}

fn ended(done: Result<ExitCode, String>) -> ExitCode {
    match done {
        Ok(code) => code,
        Err(why) => {
            aside(format_args!("error: {why}"));
            ExitCode::from(NOT_RUN)
        }
    }
}

/// A line beside what was asked for.
fn aside(line: std::fmt::Arguments) {
    use std::io::Write as _;
    // Who reads may have gone.
    let _ = writeln!(std::io::stderr(), "{line}");
}

// --- One run, in this process --------------------------------------------------------------------

fn one(options: &Options) -> Result<ExitCode, String> {
    let mut case = options.case(options.from, mutation(options)?);
    if let Some(file) = &options.history {
        case.history = read_history(file)?;
        let (hosts, vms) = (case.shape.hosts.len(), case.shape.vms.len());
        if let Some(event) = case.history.iter().find(|event| !event.action.is_possible(hosts, vms))
        {
            let (action, seed) = (&event.action, options.from);
            return Err(format!(
                "{action:?}: seed {seed} has {hosts} hosts and {vms} VMs, counted from 0"
            ));
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|error| error.to_string())?;
    let report = runtime.block_on(async {
        let log = Log::new(options.log);
        log.capture_daemons(if options.debug {
            tracing::Level::DEBUG
        } else {
            tracing::Level::INFO
        });
        pvc_sim::capture_panics(&log);
        let report = case.run(log.clone()).await;
        if report.violation.is_some() && !options.log {
            log.tail(TAIL).iter().for_each(|line| say!("{line}"));
        }
        report
    });
    say!("{}", serde_json::to_string(&report).map_err(|error| error.to_string())?);
    // What a killed process left behind waits for ever; there is nothing to be put in order.
    std::process::exit(if report.violation.is_some() { FAILED } else { SUCCEEDED });
}

fn read_history(file: &str) -> Result<Vec<Event>, String> {
    let text = match file {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map_err(|error| error.to_string())?;
            text
        }
        file => std::fs::read_to_string(file).map_err(|error| format!("`{file}`: {error}"))?,
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| serde_json::from_str(line).map_err(|error| format!("`{line}`: {error}")))
        .collect()
}

// --- Many runs, each in a process of its own -----------------------------------------------------

/// Log and result of a run.
struct Outcome {
    lines: Vec<String>,
    report: Report,
}

fn run_child(options: &Options, seed: u64, history: Option<&[Event]>) -> Result<Outcome, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(own);
    command.args(["one", "--seed", &seed.to_string()]).args(options.kind());
    if history.is_some() {
        command.args(["--history", "-"]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let input = child.stdin.take();
    if let (Some(history), Some(mut input)) = (history, input) {
        use std::io::Write as _;
        for event in history {
            let line = serde_json::to_string(event).map_err(|error| error.to_string())?;
            writeln!(input, "{line}").map_err(|error| error.to_string())?;
        }
    }
    let output = child.stdout.take().expect("it was asked for");
    let child = Arc::new(Mutex::new(child));
    let over = Arc::new(AtomicBool::new(false));
    // Long histories may take long.
    let time_limit = TIME_LIMIT * (1 + u32::try_from(options.minutes / 30).unwrap_or(u32::MAX));
    let hung = watch_over(&child, &over, time_limit);
    let lines: Vec<String> = BufReader::new(output).lines().map_while(Result::ok).collect();
    over.store(true, Ordering::SeqCst);
    let _ = child.lock().expect("nobody panics while holding it").wait();
    let hung = hung.join().unwrap_or(false);
    let report = lines.last().and_then(|line| serde_json::from_str(line).ok());
    let failed = |why: &str| Report {
        violation: Some(("crash".to_owned(), why.to_owned())),
        ..Report::default()
    };
    let report = report.unwrap_or_else(|| {
        failed(if hung { "it hung and was ended" } else { "it ended without a word" })
    });
    Ok(Outcome { lines, report })
}

/// Ends a run that takes too much processor time, or far too much real time. Whether it had to.
fn watch_over(
    child: &Arc<Mutex<std::process::Child>>,
    over: &Arc<AtomicBool>,
    time_limit: Duration,
) -> std::thread::JoinHandle<bool> {
    let (child, over) = (child.clone(), over.clone());
    std::thread::spawn(move || {
        let begun = std::time::Instant::now();
        let id = child.lock().expect("nobody panics while holding it").id();
        while !over.load(Ordering::SeqCst) {
            let real = begun.elapsed();
            // It cannot have used more than has passed, on its one thread.
            let is_late = real > time_limit && processor_time(id).is_none_or(|t| t > time_limit);
            if is_late || real > time_limit * REAL_TIMES {
                let _ = child.lock().expect("nobody panics while holding it").kill();
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    })
}

/// Processor time that a process has taken, by `/proc/PID/stat` (proc(5)): its fields 14 and 15, in
/// hundredths of a second.
fn processor_time(id: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The second field is a name, which may hold anything.
    let (_, fields) = text.rsplit_once(')')?;
    let numbers = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let hundredths: u64 = numbers.collect::<Result<Vec<_>, _>>().ok()?.iter().sum();
    Some(Duration::from_millis(hundredths * 10))
}

fn seeds(options: &Options) -> Result<ExitCode, String> {
    let begun = std::time::Instant::now();
    let next = AtomicU64::new(options.from);
    let enough = AtomicBool::new(false);
    let end = options.from + options.seeds;
    let done: Mutex<Vec<(u64, Outcome)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                while !enough.load(Ordering::SeqCst) {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= end {
                        return;
                    }
                    let outcome = run_child(options, seed, None).unwrap_or_else(|why| Outcome {
                        lines: Vec::new(),
                        report: Report {
                            violation: Some(("crash".to_owned(), why)),
                            ..Report::default()
                        },
                    });
                    if let Some((rule, what)) = &outcome.report.violation {
                        say!("seed {seed}: {rule}: {what}");
                        say!("  again: cargo xtask sim {} --seed {seed}", options.kind().join(" "));
                        enough.fetch_or(
                            options.until_found && is_by_mutation(options, seed),
                            Ordering::SeqCst,
                        );
                    }
                    let mut done = done.lock().expect("nobody panics while holding it");
                    done.push((seed, outcome));
                    if done.len().is_multiple_of(PROGRESS) {
                        let (so_far, minutes) = (done.len(), begun.elapsed().as_secs() / 60);
                        aside(format_args!(
                            "{so_far} of {} seeds in {minutes} minutes",
                            options.seeds
                        ));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().expect("nobody panicked while holding it");
    done.sort_by_key(|(seed, _)| *seed);
    let failed: Vec<&(u64, Outcome)> =
        done.iter().filter(|(_, outcome)| outcome.report.violation.is_some()).collect();
    if options.until_found {
        return Ok(found(options, &failed, done.len()));
    }
    if let Some((seed, outcome)) = failed.first().filter(|_| options.shrink) {
        show(options, *seed, outcome)?;
    }
    summary(&done, begun.elapsed());
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the seed runs well without the mutation.
fn is_by_mutation(options: &Options, seed: u64) -> bool {
    let sound = Options { mutation: None, ..options.clone() };
    run_child(&sound, seed, None).is_ok_and(|outcome| outcome.report.violation.is_none())
}

/// Whether a seed has failed that does not fail without the mutation.
fn found(options: &Options, failed: &[&(u64, Outcome)], runs: usize) -> ExitCode {
    let name = options.mutation.as_deref().unwrap_or("nothing");
    match failed.iter().find(|(seed, _)| is_by_mutation(options, *seed)) {
        Some((seed, outcome)) => {
            let (rule, _) = outcome.report.violation.clone().unwrap_or_default();
            say!("{name}: found by seed {seed} ({rule}), after {runs} runs");
            ExitCode::SUCCESS
        }
        None => {
            say!("{name}: not found in {runs} runs");
            ExitCode::FAILURE
        }
    }
}

/// Shows a failure: what happened last, and the shortest history that still fails so.
fn show(options: &Options, seed: u64, outcome: &Outcome) -> Result<(), String> {
    let case = options.case(seed, None);
    let (rule, _) = outcome.report.violation.clone().unwrap_or_default();
    let mut history = case.history;
    let mut lines = outcome.lines.clone();
    if rule != "crash" {
        say!("\nshrinking the history of seed {seed}, {} events …", history.len());
        let shrunk = shrink(options, seed, &rule, history)?;
        (history, lines) = (shrunk.0, shrunk.1.unwrap_or(lines));
    }
    say!("\nthe end of the log:");
    lines.iter().rev().skip(1).rev().for_each(|line| say!("{line}"));
    say!("\nthe history, {} events:", history.len());
    let mut text = String::new();
    for event in &history {
        let line = serde_json::to_string(event).map_err(|error| error.to_string())?;
        say!("  {line}");
        text.push_str(&line);
        text.push('\n');
    }
    let file = std::env::temp_dir().join(format!("pvc-sim-{seed}.history"));
    std::fs::write(&file, text).map_err(|error| error.to_string())?;
    say!(
        "\nagain: {} one --log {} --seed {seed} --history {}",
        std::env::current_exe().map_err(|error| error.to_string())?.display(),
        options.kind().join(" "),
        file.display()
    );
    Ok(())
}

/// Leaves out whatever is not needed to fail in the same way.
fn shrink(
    options: &Options,
    seed: u64,
    rule: &str,
    history: Vec<Event>,
) -> Result<(Vec<Event>, Option<Vec<String>>), String> {
    let (mut history, mut lines, mut runs) = (history, None, 0);
    let mut chunk = history.len().div_ceil(2);
    while chunk > 0 && runs < SHRINKING {
        let (mut from, mut shorter) = (0, false);
        while from < history.len() && runs < SHRINKING {
            let mut candidate = history.clone();
            candidate.drain(from..(from + chunk).min(history.len()));
            runs += 1;
            let outcome = run_child(options, seed, Some(&candidate))?;
            if outcome.report.violation.as_ref().is_some_and(|(other, _)| other == rule) {
                (history, lines, shorter) = (candidate, Some(outcome.lines), true);
            } else {
                from += chunk;
            }
        }
        if !shorter || chunk > 1 {
            chunk /= 2;
        }
    }
    Ok((history, lines))
}

fn summary(done: &[(u64, Outcome)], took: Duration) {
    let seconds: u64 = done.iter().map(|(_, outcome)| outcome.report.seconds).sum();
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for (kind, count) in done.iter().flat_map(|(_, outcome)| &outcome.report.counts) {
        *counts.entry(kind).or_default() += count;
    }
    let failed = done.iter().filter(|(_, outcome)| outcome.report.violation.is_some()).count();
    say!("\n{} seeds, {failed} failed", done.len());
    for (kind, count) in counts {
        say!("{count:>9}  {}", kind.trim_start_matches("= "));
    }
    let hours = seconds as f64 / 3600.0;
    let rate = hours / took.as_secs_f64().max(0.001);
    say!("{hours:.1} simulated hours in {:.1} s: {rate:.2} hours per second", took.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_has_worked_is_read_and_not_how_long_it_waited() {
        let own = || processor_time(std::process::id()).expect("this process is there");
        let before = own();
        let mut sum = 0_u64;
        while own() < before + Duration::from_millis(50) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert_eq!(processor_time(u32::MAX), None);
    }
}
