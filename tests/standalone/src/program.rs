//! Programs: where they are, and running one to its end.

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// Result of a program.
#[derive(Debug, Clone)]
pub struct Output {
    /// Command that was run, for messages.
    pub command: String,
    /// 128 + signal if a signal ended it, as shells count.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    /// The standard output of a program that succeeded; anything else fails the test.
    #[track_caller]
    pub fn ok(&self) -> &str {
        assert_eq!(self.code, 0, "{self}");
        &self.stdout
    }

    /// Asserts that the program failed with this exit code, and returns what it said: both outputs,
    /// and never a panic.
    #[track_caller]
    pub fn fails(&self, code: i32) -> String {
        assert_eq!(self.code, code, "{self}");
        let said = format!("{}{}", self.stdout, self.stderr);
        assert!(!said.trim().is_empty(), "it failed without a word: {self}");
        assert!(!said.contains("panicked"), "{self}");
        said
    }

    /// Asserts a failure as [`fails`](Output::fails) does, whatever the code, and with a hint that
    /// says what to do.
    #[track_caller]
    pub fn fails_with_hint(&self) -> String {
        assert_ne!(self.code, 0, "{self}");
        let said = self.fails(self.code);
        assert!(said.contains("hint:"), "no hint what to do: {self}");
        said
    }

    /// Checks that the standard output of a program that succeeded has each of these words.
    #[track_caller]
    pub fn says(&self, words: &[&str]) -> &str {
        let said = self.ok();
        for word in words {
            assert!(said.contains(word), "`{word}` is missing in: {self}");
        }
        said
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "`{}` ended with {}", self.command, self.code)?;
        for line in self.stdout.lines() {
            writeln!(f, "  | {line}")?;
        }
        for line in self.stderr.lines() {
            writeln!(f, "  ! {line}")?;
        }
        Ok(())
    }
}

/// Runs `command` to its end with `input` as its standard input.
pub fn run(command: &mut Command, input: &str) -> Output {
    let line = line_of(command);
    let begun = Instant::now();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("`{line}` does not start: {error}"));
    let mut stdin = child.stdin.take().expect("it was asked for");
    // A program that ends without reading is within its rights.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().unwrap_or_else(|error| panic!("`{line}`: {error}"));
    let code = exit_code(output.status);
    tell(&line, code, begun);
    Output {
        command: line,
        code,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Tells what was done and when, for when the test fails. What is repeated until something happens
/// is told once.
fn tell(line: &str, code: i32, begun: Instant) {
    static START: OnceLock<Instant> = OnceLock::new();
    static LAST: Mutex<String> = Mutex::new(String::new());
    let start = *START.get_or_init(|| begun);
    let text = format!("{line} ({code})");
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if *last != text {
        let took = begun.elapsed().as_secs_f64();
        eprintln!("{:>7.1} s  {text}, after {took:.1} s", (begun - start).as_secs_f64());
        *last = text;
    }
}

pub(crate) fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy().chars().take(200).collect::<String>())
        .collect::<Vec<_>>()
        .join(" ")
}

pub(crate) fn exit_code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

/// The top of the checkout.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate is two levels below the top").to_owned()
}

/// Directory in which cargo put the programs of this build: tests run from `deps` below it, the
/// benchmarks from it.
pub(crate) fn built() -> PathBuf {
    let own = std::env::current_exe().expect("/proc is there");
    let directory = own.parent().expect("a program is in a directory");
    match directory.ends_with("deps") {
        true => directory.parent().expect("`deps` is in one").to_owned(),
        false => directory.to_owned(),
    }
}

/// A program of ours, built beside this test.
pub fn program(name: &str) -> PathBuf {
    let path = built().join(name);
    assert!(
        path.exists(),
        "`{}` is missing: build it with `cargo build -p pvcd -p pvc -p pvc-sim`, or run `./test \
         standalone`, \
         which does",
        path.display()
    );
    path
}

/// The short name of this machine, which is also its node's.
pub fn host_name() -> String {
    let name =
        nix::unistd::gethostname().expect("the machine has a name").to_string_lossy().into_owned();
    name.split('.').next().unwrap_or_default().to_owned()
}
