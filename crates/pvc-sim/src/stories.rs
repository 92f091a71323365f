//! `pvc-sim stories` and `pvc-sim story`: plays stories, each in a process of its own.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pvc_sim::{Failure, Log, Story};

use crate::{FAILED, SUCCEEDED};

/// Folder of the stories if none is named.
const FOLDER: &str = "scenarios";

/// Exit code of a story that fails, and is known to.
const KNOWN: i32 = 3;

/// Number of lines of the log that are shown of a story that failed.
const TAIL: usize = 60;

pub const USAGE: &str = "\
       pvc-sim stories [FOLDER]… [--jobs N]   play the stories in these folders; all below \
       `scenarios`
       pvc-sim story FOLDER [--variant NAME] [--log] [--debug]
                                              play one
       pvc-sim sentences                      what can happen in a story, and what can be so
";

/// Prints the forms of all sentences.
pub fn sentences() -> ExitCode {
    let [story_actions, facts] = pvc_sim::sentences();
    say!("What can happen:\n\n{story_actions}\n\nWhat can be so:\n\n{facts}");
    ExitCode::SUCCESS
}

/// Plays one story in this process.
pub fn story(arguments: &[String]) -> Result<ExitCode, String> {
    let (mut folder, mut variant, mut log, mut debug) = (None, None, false, false);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--variant" => variant = Some(rest.next().ok_or("`--variant` needs a name")?.clone()),
            "--log" => log = true,
            "--debug" => debug = true,
            other if other.starts_with('-') => return Err(format!("`{other}` is no option")),
            path => folder = Some(PathBuf::from(path)),
        }
    }
    let folder = folder.ok_or("which story? `pvc-sim story FOLDER`")?;
    let stories = Story::read(&folder)?;
    let known: Vec<&str> = stories.iter().filter_map(|story| story.variant.as_deref()).collect();
    let why = || match &variant {
        Some(variant) => {
            format!(
                "{}: `{variant}` is no variant; there are {}",
                folder.display(),
                known.join(", ")
            )
        }
        None => format!(
            "{}: which variant? `--variant` with one of: {}",
            folder.display(),
            known.join(", ")
        ),
    };
    let chosen = stories.iter().find(|story| story.variant == variant).ok_or_else(why)?;
    let failed = play(chosen, log, debug)?;
    // What a killed process left behind waits for ever; there is nothing to be put in order.
    std::process::exit(judge(chosen, failed));
}

/// Plays the story. Returns how it went wrong, if it did, and the end of its log.
fn play(story: &Story, echo: bool, debug: bool) -> Result<Option<(Failure, Vec<String>)>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|error| error.to_string())?;
    Ok(runtime.block_on(async {
        let log = Log::new(echo);
        log.capture_daemons(if debug { tracing::Level::DEBUG } else { tracing::Level::INFO });
        pvc_sim::capture_panics(&log);
        let lines = if echo { 0 } else { TAIL };
        story.play(log.clone()).await.err().map(|failure| (failure, log.tail(lines)))
    }))
}

/// Says how it went. Returns the exit code: [`SUCCEEDED`], [`FAILED`] or [`KNOWN`].
fn judge(story: &Story, failed: Option<(Failure, Vec<String>)>) -> i32 {
    match (failed, &story.known) {
        (None, None) => SUCCEEDED,
        (None, Some(known)) => {
            say!(
                "expected: it fails, as is known: {known}\nis so:    it does not; take `known` away"
            );
            FAILED
        }
        (Some((failure, lines)), known) => {
            say!("expected: {}\nis so:    {}", failure.expected, failure.so);
            match known {
                Some(known) => say!("known:    {known}"),
                None => lines.iter().for_each(|line| say!("  {line}")),
            }
            if known.is_some() { KNOWN } else { FAILED }
        }
    }
}

// --- Many, each in a process of its own ----------------------------------------------------------

/// Plays the stories of these folders.
pub fn stories(arguments: &[String]) -> Result<ExitCode, String> {
    let mut jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut folders = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--jobs" => {
                let number = rest.next().and_then(|number| number.parse().ok());
                jobs = number.filter(|jobs| *jobs > 0).ok_or("`--jobs` needs a number")?;
            }
            other if other.starts_with('-') => return Err(format!("`{other}` is no option")),
            path => folders.push(PathBuf::from(path)),
        }
    }
    if folders.is_empty() {
        folders = pvc_sim::folders(Path::new(FOLDER))?;
    }
    let mut all = Vec::new();
    for folder in stories_in(folders)? {
        all.extend(Story::read(&folder)?.into_iter().map(|story| (folder.clone(), story)));
    }
    let counts = run(&all, jobs);
    say!("\n{} stories, {} failed, {} known to fail", all.len(), counts.failed, counts.known);
    Ok(if counts.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A folder that is no story itself stands for those in it.
fn stories_in(folders: Vec<PathBuf>) -> Result<Vec<PathBuf>, String> {
    let mut stories = Vec::new();
    for folder in folders {
        if folder.is_dir() && !folder.join("scenario.toml").exists() {
            stories.extend(pvc_sim::folders(&folder)?);
        } else {
            stories.push(folder);
        }
    }
    Ok(stories)
}

#[derive(Default)]
struct Counts {
    failed: usize,
    known: usize,
}

fn run(all: &[(PathBuf, Story)], jobs: usize) -> Counts {
    let next = AtomicUsize::new(0);
    let counts: Mutex<Counts> = Mutex::default();
    let work = || {
        while let Some((folder, story)) = all.get(next.fetch_add(1, Ordering::SeqCst)) {
            let begun = std::time::Instant::now();
            let (code, said) = run_child(folder, story);
            let took = begun.elapsed().as_secs_f64();
            let word = match code {
                Some(SUCCEEDED) => "ok",
                Some(KNOWN) => "KNOWN",
                _ => "FAILED",
            };
            let mut counts = counts.lock().expect("nobody panics while holding it");
            counts.failed += usize::from(word == "FAILED");
            counts.known += usize::from(word == "KNOWN");
            say!("{word:<6} {} ({took:.1} s)", story.title());
            said.lines().for_each(|line| say!("{line}"));
        }
    };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    counts.into_inner().expect("nobody panicked while holding it")
}

/// Runs the story in a process of its own. Returns its exit code and its output.
fn run_child(folder: &Path, story: &Story) -> (Option<i32>, String) {
    match begin(folder, story) {
        Ok(child) => collect(child),
        Err(error) => (None, format!("it could not be begun: {error}\n")),
    }
}

fn begin(folder: &Path, story: &Story) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("story").arg(folder);
    if let Some(variant) = &story.variant {
        command.args(["--variant", variant]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
}

fn collect(mut child: Child) -> (Option<i32>, String) {
    let output = child.stdout.take();
    let child = Arc::new(Mutex::new(child));
    let over = Arc::new(AtomicBool::new(false));
    let hung = crate::watch_over(&child, &over, crate::TIME_LIMIT);
    let mut said = String::new();
    if let Some(mut output) = output
        && output.read_to_string(&mut said).is_err()
    {
        said.push_str("what it said is no text\n");
    }
    over.store(true, Ordering::SeqCst);
    let ended = child.lock().expect("nobody panics while holding it").wait();
    if hung.join().unwrap_or(false) {
        said.push_str("it hung and was ended\n");
    }
    (ended.ok().and_then(|status| status.code()), said)
}
