//! Programs of this machine that are asked about a text, where they are installed.

use std::fs::File;
use std::io::{Read, Result, Seek, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::interrupt;

/// Time for which a program may look at a text.
const DEADLINE: Duration = Duration::from_secs(20);

/// The most bytes of an answer that are read, and the most lines of it.
const ANSWER_BYTES: u64 = 16 << 10;
const ANSWER_LINES: usize = 10;

/// Lines that a program, with the text as its input, says of it when it ends with a failure; none
/// if it succeeds, is killed, or takes too long.
///
/// # Errors
/// If it cannot be asked, for example because it is not there.
pub fn ask(program: &str, args: &[&str], text: &str) -> Result<Option<Vec<String>>> {
    // Passwords may be in it: a file without a name, which cannot be left behind.
    let mut file = tempfile::tempfile()?;
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    let mut answer = tempfile::tempfile()?;
    let mut asked = Command::new(program)
        .args(args)
        .stdin(file)
        .stdout(answer.try_clone()?)
        .stderr(answer.try_clone()?)
        .spawn()?;
    let begun = Instant::now();
    let ended = loop {
        match asked.try_wait()? {
            Some(status) => break status,
            None if begun.elapsed() < DEADLINE => interrupt::pause(Duration::from_millis(20)),
            None => {
                asked.kill()?;
                break asked.wait()?;
            }
        }
    };
    match ended.code() {
        // A signal is no answer.
        Some(0) | None => Ok(None),
        Some(_) => lines(&mut answer).map(Some),
    }
}

fn lines(answer: &mut File) -> Result<Vec<String>> {
    answer.rewind()?;
    let mut bytes = Vec::new();
    answer.take(ANSWER_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let plain = |line: &str| line.trim().replace(|letter: char| letter.is_control(), " ");
    let lines = text.lines().map(plain).filter(|line| !line.is_empty());
    Ok(lines.take(ANSWER_LINES).collect())
}
