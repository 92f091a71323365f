//! Running the test programs with a mutant.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{num, thread};

use anyhow::{Context, Result, bail};

use super::source::VARIABLE;
use super::verdict::Outcome;

/// Time that the tests have with a mutant, unless they need long without: see [`Runner::new`].
const SHORTEST_LIMIT: Duration = Duration::from_secs(20);

/// Number of times as long as without a mutant that the tests may take with one.
const SLOWER: u32 = 10;

/// Memory that a test program may take, in KiB: a mutant may allocate without end.
const MEMORY_KIB: u32 = 4 << 20;

/// Programs that end at their first test that fails.
pub struct Runner {
    /// The fastest first.
    programs: Vec<PathBuf>,
    /// Folder in which cargo would run them.
    folder: PathBuf,
    limit: Duration,
}

/// The end of a test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Passed,
    /// With the name of the test that failed, if it lived to say it.
    Failed(Option<String>),
    TimedOut,
}

impl From<&End> for Outcome {
    fn from(end: &End) -> Outcome {
        match end {
            End::Passed => Outcome::Missed,
            End::Failed(_) => Outcome::Caught,
            End::TimedOut => Outcome::TimedOut,
        }
    }
}

impl Runner {
    /// Runs the programs without a mutant, to know that they pass and how long they take.
    pub fn new(programs: Vec<PathBuf>, folder: PathBuf) -> Result<Runner> {
        let mut runner = Runner { programs, folder, limit: Duration::from_secs(600) };
        let mut timed = Vec::new();
        for program in std::mem::take(&mut runner.programs) {
            let start = Instant::now();
            match runner.run(&program, 0)? {
                End::Passed => timed.push((start.elapsed(), program)),
                end => bail!("without any mutant, `{}` has {end:?}", program.display()),
            }
        }
        timed.sort();
        let whole: Duration = timed.iter().map(|(time, _)| *time).sum();
        runner.limit = SHORTEST_LIMIT.max(whole * SLOWER);
        runner.programs = timed.into_iter().map(|(_, program)| program).collect();
        Ok(runner)
    }

    /// Other programs, which have as much time.
    pub fn with(&self, programs: Vec<PathBuf>) -> Runner {
        Runner { programs, folder: self.folder.clone(), limit: self.limit }
    }

    /// Tests each of `mutants`, as many at a time as there are processors.
    pub fn test_all(&self, mutants: &[usize]) -> Result<Vec<(usize, End)>> {
        let count = thread::available_parallelism().map_or(1, num::NonZero::get);
        let left = Mutex::new(mutants.iter());
        let next = || left.lock().ok()?.next().copied();
        let test_some = || {
            std::iter::from_fn(next)
                .map(|mutant| Ok((mutant, self.test(mutant)?)))
                .collect::<Result<Vec<_>>>()
        };
        let found = thread::scope(|scope| {
            let threads: Vec<_> = (0..count).map(|_| scope.spawn(test_some)).collect();
            let results = threads.into_iter().map(|thread| thread.join().expect("no panic in it"));
            results.collect::<Result<Vec<_>>>()
        })?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Runs one program after the other, until one does not pass.
    pub fn test(&self, mutant: usize) -> Result<End> {
        for program in &self.programs {
            let end = self.run(program, mutant)?;
            if end != End::Passed {
                return Ok(end);
            }
        }
        Ok(End::Passed)
    }

    fn run(&self, program: &PathBuf, mutant: usize) -> Result<End> {
        let limited = format!("ulimit -v {MEMORY_KIB} && exec \"$0\" --test-threads=1");
        let mut command = Command::new("sh");
        command.args(["-c", &limited]).arg(program).current_dir(&self.folder);
        command.env(VARIABLE, mutant.to_string()).env("CARGO_MANIFEST_DIR", &self.folder);
        // Property tests draw the same cases for each mutant, and none that an earlier one failed.
        command.env("PROPTEST_RNG_SEED", "1").env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        watch(&mut command, self.limit)
    }
}

/// Runs a test program until a test fails, or until the time is over.
fn watch(command: &mut Command, limit: Duration) -> Result<End> {
    let end = Instant::now() + limit;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().context("a test program cannot be started")?;
    let lines = lines(child.stdout.take().context("its output is piped")?);
    let found = loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => match failed(&line) {
                Some(test) => break Some(End::Failed(Some(test.to_owned()))),
                None => continue,
            },
            Err(RecvTimeoutError::Timeout) => break Some(End::TimedOut),
            Err(RecvTimeoutError::Disconnected) => break None,
        }
    };
    if found.is_some() {
        // It may have ended by itself since.
        let _ = child.kill();
    }
    let status = child.wait()?;
    Ok(found.unwrap_or(if status.success() { End::Passed } else { End::Failed(None) }))
}

fn lines(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        lines.map_while(|line| sender.send(line).ok()).for_each(drop);
    });
    receiver
}

/// Name of the test that failed, as this line of its program says.
fn failed(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// End of a program that does this, and has so long for it.
    fn end_of(script: &str, seconds: u64) -> End {
        watch(Command::new("sh").args(["-c", script]), Duration::from_secs(seconds)).unwrap()
    }

    #[test]
    fn a_program_ends_at_its_first_test_that_fails_or_when_its_time_is_over() {
        let failed = |test: &str| End::Failed(Some(test.to_owned()));
        for (script, end) in [
            ("echo 'test a ... ok'", End::Passed),
            ("echo 'test a ... FAILED'; exit 101", failed("a")),
            ("echo 'test a ... ok'; echo 'test b::c ... FAILED'; exec sleep 600", failed("b::c")),
            ("echo 'test a ... ok'; exit 101", End::Failed(None)),
            ("kill -ABRT $$", End::Failed(None)),
            ("exec >&-; exec sleep 0.01", End::Passed),
        ] {
            assert_eq!(end_of(script, 600), end, "{script}");
        }
        assert_eq!(end_of("exec sleep 600", 1), End::TimedOut);
    }

    #[test]
    fn each_mutant_is_tested_by_every_program_until_one_fails() {
        let folder = std::env::temp_dir().join(format!("pvc-xtask-runner-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        // Each of them fails with the mutants of its name alone.
        let programs = ["1", "23"].map(|name| {
            let program = folder.join(name);
            let script = format!("#!/bin/sh\ncase {name} in *$PVC_MUTANT*) exit 1;; esac\n");
            std::fs::write(&program, script).unwrap();
            make_executable(&program);
            program
        });
        let runner = Runner::new(programs.to_vec(), folder.clone()).unwrap();
        let mut found = runner.test_all(&[1, 2, 3, 4]).unwrap();
        found.sort_by_key(|(mutant, _)| *mutant);
        let failed = End::Failed(None);
        let expected = [(1, failed.clone()), (2, failed.clone()), (3, failed), (4, End::Passed)];
        assert_eq!(found, expected);
        let fails = folder.join("0");
        std::fs::rename(&programs[0], &fails).unwrap();
        std::fs::write(&fails, "#!/bin/sh\nexit 1\n").unwrap();
        assert!(Runner::new(vec![fails], folder.clone()).is_err(), "it fails without a mutant");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    fn make_executable(program: &PathBuf) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}
