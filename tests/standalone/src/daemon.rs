//! `pvcd` as a process that can be killed.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::keeper::Keeper;
use crate::program::{exit_code, line_of};
use crate::wait::eventually;

/// A running daemon. Killed with the value.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    line: String,
    out: PathBuf,
}

/// End of a daemon, with all it said.
#[derive(Debug)]
pub struct Ended {
    pub line: String,
    pub code: i32,
    pub said: String,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ended with {}:\n{}", self.line, self.code, self.said)
    }
}

impl Daemon {
    /// Starts `command`; what it says is appended to `<name>.out` in the keeper's directory.
    pub fn start(keeper: &Keeper, name: &str, command: &mut Command) -> Daemon {
        let out = keeper.dir().join(format!("{name}.out"));
        let _ = fs::remove_file(&out);
        let open = || -> File {
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(&out)
                .expect("the test's directory can be written")
        };
        let line = line_of(command);
        let child = command
            .stdin(Stdio::null())
            .stdout(open())
            .stderr(open())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("`{line}` does not start: {error}"));
        keeper.keep(child.id());
        Daemon { child, line, out }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Memory that it has now, in KiB.
    pub fn resident_kib(&self) -> u64 {
        self.memory_kib("VmRSS:")
    }

    /// The most memory that it ever had, in KiB.
    pub fn most_resident_kib(&self) -> u64 {
        self.memory_kib("VmHWM:")
    }

    fn memory_kib(&self, of: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("the daemon runs");
        let line = status.lines().find(|line| line.starts_with(of)).expect("it has memory");
        line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number of KiB")
    }

    /// Returns what the daemon said so far.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.out).unwrap_or_default()
    }

    /// Returns how the daemon ended, if it did.
    pub fn ended(&mut self) -> Option<Ended> {
        let status = self.child.try_wait().expect("it is our child")?;
        Some(Ended { line: self.line.clone(), code: exit_code(status), said: self.said() })
    }

    pub fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), signal);
    }

    /// Waits for its end.
    pub fn wait(mut self, seconds: u64) -> Ended {
        eventually("at its end is the daemon", seconds, || self.ended().ok_or_else(|| self.said()))
    }

    /// Asks it to stop, as systemd does, and waits for it.
    pub fn stop(self) -> Ended {
        self.signal(Signal::SIGTERM);
        self.wait(60)
    }

    /// Ends it in the middle of whatever it does.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
