//! Specification of a program, and its state.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use pvc_ports::{Command, FileAccess, ProgramSignal};

/// A program as it is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramSpec {
    /// The path of its executable file.
    pub program: String,
    /// Arguments with which it stays in the foreground.
    pub args: Vec<String>,
    /// Its whole environment, but for `PATH`.
    pub env: Vec<(String, String)>,
    /// Files that it reads: written before it starts, and removed when it is wanted no more. The
    /// directories are made.
    pub files: BTreeMap<PathBuf, ConfigFile>,
    pub reload: Reload,
    pub ready: Ready,
    pub stop: Stop,
}

/// A file that a program reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    pub contents: Vec<u8>,
    pub access: FileAccess,
}

/// Way in which a program takes over files that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reload {
    /// Started anew, because it cannot read them while it runs.
    Restart,
    Signal(ProgramSignal),
    /// Exits with status 0 when it is done; on any other end the program is started anew.
    Command(Command),
}

/// Sign that a program that was started does its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ready {
    AtOnce,
    /// Status 0 of the command, which is tried every half second. A program that is not ready
    /// `within` that time is ended, and has failed.
    When {
        command: Command,
        within: Duration,
    },
}

/// Way in which a program is asked to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    pub signal: ProgramSignal,
    /// After this long it is killed.
    pub within: Duration,
}

impl Default for Stop {
    /// By SIGTERM, within 5 s.
    fn default() -> Self {
        Stop { signal: ProgramSignal::Terminate, within: Duration::from_secs(5) }
    }
}

/// State of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramState {
    /// Being started, or started and not ready yet.
    Starting,
    Ready {
        pid: u32,
    },
    /// Ended, or never ready, so many times in a row; it is started again. Or it runs with its old
    /// files, because the new ones could not be written so many times in a row, and they are tried
    /// again. Or its last instance could not be killed so many times in a row; it is killed again,
    /// and the next one is started when nothing is left of it.
    Failed {
        why: String,
        times: u32,
    },
    Stopping,
}
