//! Userdata that cloud-init would not take: warned of, and kept all the same.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::context::Pvc;
use crate::interrupt;

/// Beginnings by which cloud-init knows what userdata is.
const BEGINNINGS: [&str; 9] = [
    "#!",
    CONFIG,
    "#cloud-boothook",
    "#include",
    "#part-handler",
    "## template:",
    "content-type:",
    "mime-version:",
    "from ",
];

/// Beginning of what cloud-init has a schema for.
const CONFIG: &str = "#cloud-config";

/// Time for which cloud-init may look at a configuration.
const DEADLINE: Duration = Duration::from_secs(20);

/// The most bytes of its answer that are read, and the most lines that are shown.
const ANSWER_BYTES: u64 = 16 << 10;
const ANSWER_LINES: usize = 10;

/// Warns of userdata that cloud-init would leave alone, and where cloud-init is installed of a
/// configuration that is not by its schema.
pub fn check(pvc: &Pvc, data: &str) {
    let first = data.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let first = first.trim_start_matches('\u{feff}').to_ascii_lowercase();
    if !data.trim().is_empty() && !BEGINNINGS.iter().any(|known| first.starts_with(known)) {
        pvc.warn("cloud-init will not know what this userdata is: its first line says nothing");
        pvc.hint("`#cloud-config` is the first line of a configuration, `#!` begins a program");
    }
    if first.split_whitespace().next() != Some(CONFIG) {
        return;
    }
    // One that cannot be asked is as one that is not installed: it is about a warning.
    if let Some(lines) = refused_by_schema(data).ok().flatten() {
        pvc.warn("cloud-init's schema refuses this configuration:");
        lines.iter().for_each(|line| pvc.warn(line));
    }
}

/// Answer of cloud-init to a configuration that is not by its schema.
fn refused_by_schema(data: &str) -> std::io::Result<Option<Vec<String>>> {
    // Passwords may be in it: a file without a name, which cannot be left behind.
    let mut file = tempfile::tempfile()?;
    file.write_all(data.as_bytes())?;
    let mut answer = tempfile::tempfile()?;
    let mut asked = Command::new("cloud-init")
        .args(["schema", "--config-file", "/dev/stdin"])
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
    // A signal is no answer, nor is a program that is broken.
    let lines = match ended.code() {
        Some(0) | None => return Ok(None),
        Some(_) => lines(&mut answer)?,
    };
    let is_broken = lines.iter().any(|line| line.starts_with("Traceback"));
    Ok((!is_broken).then_some(lines))
}

fn lines(answer: &mut File) -> std::io::Result<Vec<String>> {
    answer.rewind()?;
    let mut bytes = Vec::new();
    answer.take(ANSWER_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let plain = |line: &str| line.trim().replace(|letter: char| letter.is_control(), " ");
    let lines = text.lines().map(plain).filter(|line| !line.is_empty());
    Ok(lines.take(ANSWER_LINES).collect())
}
