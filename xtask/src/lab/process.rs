//! Processes that outlive the command that started them.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};

/// A process, known by its pid and the moment it began: a pid alone is given to others later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    pub pid: u32,
    began: u64,
}

impl Process {
    /// Starts `command` in a session of its own, writing to `log`, and remembers it in `file`.
    pub fn spawn(command: &Command, log: &Path, file: &Path) -> Result<Self> {
        let out = File::options().create(true).append(true).open(log);
        let out = out.with_context(|| format!("cannot open `{}`", log.display()))?;
        // Not the leader of a group, so `setsid` does not fork and the pid is the program's.
        let mut child = Command::new("setsid");
        child.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                child.env(name, value);
            }
        }
        let child = child.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).spawn();
        let child = child.context("`setsid` cannot be started")?;
        let process = Self::by_pid(child.id()).context("the process ended at once")?;
        fs::write(file, format!("{} {}\n", process.pid, process.began))?;
        Ok(process)
    }

    /// The process that [`spawn`](Self::spawn) remembered in `file`, if it still lives.
    pub fn read(file: &Path) -> Option<Self> {
        let text = fs::read_to_string(file).ok()?;
        let (pid, began) = text.trim().split_once(' ')?;
        let process = Self { pid: pid.parse().ok()?, began: began.parse().ok()? };
        process.is_alive().then_some(process)
    }

    fn by_pid(pid: u32) -> Option<Self> {
        let (_, began) = state_and_start(pid)?;
        Some(Self { pid, began })
    }

    pub fn is_alive(self) -> bool {
        state_and_start(self.pid).is_some_and(|(state, began)| state != 'Z' && began == self.began)
    }

    /// The name of its program, of which the kernel keeps fifteen characters.
    pub fn name(self) -> Option<String> {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.pid)).ok()?;
        Some(name.trim_end().into())
    }

    pub fn children(self) -> Vec<u32> {
        let text = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid));
        text.unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// The descendant reached by the only child of an only child and so on, `depth` times.
    pub fn descendant(self, depth: usize) -> Option<Self> {
        (0..depth).try_fold(self, |process, _| match process.children().as_slice() {
            [child] => Self::by_pid(*child),
            _ => None,
        })
    }

    /// Sends `signal`, named without its `SIG`.
    pub fn signal(self, signal: &str) -> Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        let status = Command::new("kill").args(["-s", signal, &self.pid.to_string()]).status()?;
        ensure!(
            status.success() || !self.is_alive(),
            "process {} cannot be sent {signal}",
            self.pid
        );
        Ok(())
    }

    /// Ends it at once and waits until it is gone.
    pub fn kill(self) -> Result<()> {
        self.signal("KILL")?;
        wait_until("the killed process is gone", Duration::from_secs(30), || Ok(!self.is_alive()))
    }
}

/// The state and the start of a process, from the line that the kernel keeps of it.
fn state_and_start(pid: u32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in brackets and may hold anything; the state follows, the start is the 20th.
    let mut rest = stat.rsplit_once(')')?.1.split_whitespace();
    let state = rest.next()?.chars().next()?;
    Some((state, rest.nth(18)?.parse().ok()?))
}

/// Parts of a second in which the kernel counts time for programs, on every machine that we run on.
const TICKS_PER_SECOND: f64 = 100.0;

/// Time at which the process `pid` began.
pub fn started(pid: u32) -> Option<SystemTime> {
    let (state, began) = state_and_start(pid)?;
    let uptime: f64 = fs::read_to_string("/proc/uptime").ok()?.split(' ').next()?.parse().ok()?;
    let age =
        Duration::try_from_secs_f64(uptime - began as f64 / TICKS_PER_SECOND).unwrap_or_default();
    (state != 'Z').then(|| SystemTime::now() - age)
}

/// Asks `is_so` again and again until it is so.
///
/// # Errors
/// If `is_so` fails, or after `limit`, naming `what`.
pub fn wait_until(
    what: &str,
    limit: Duration,
    mut is_so: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !is_so()? {
        ensure!(Instant::now() < deadline, "waited {} seconds until {what}", limit.as_secs());
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_again_until_it_has_ended() {
        let directory = std::env::temp_dir().join(format!("pvc-lab-test-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("pid");
        let mut sleep = Command::new("sleep");
        let started = Process::spawn(sleep.arg("60"), &directory.join("log"), &file).unwrap();
        assert_eq!(Process::read(&file), Some(started));
        started.kill().unwrap();
        assert_eq!(Process::read(&file), None);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_pid_that_somebody_else_has_now_is_not_ours() {
        let own = Process::by_pid(std::process::id()).unwrap();
        assert!(own.is_alive());
        assert!(!Process { began: own.began + 1, ..own }.is_alive());
    }

    #[test]
    fn a_process_began_when_it_was_started() {
        let mut sleep = Command::new("sleep").arg("60").spawn().unwrap();
        let age = started(sleep.id()).unwrap().elapsed().unwrap_or_default();
        sleep.kill().unwrap();
        assert!(age < Duration::from_secs(30), "{age:?}");
        sleep.wait().unwrap();
        assert_eq!(started(sleep.id()), None);
    }

    #[test]
    fn a_wait_that_runs_out_says_for_what() {
        let error = wait_until("pigs fly", Duration::ZERO, || Ok(false)).unwrap_err();
        assert_eq!(error.to_string(), "waited 0 seconds until pigs fly");
    }
}
