//! A daemon that was started, and what it takes.

use std::fs::File;
use std::io::ErrorKind;
use std::iter::Sum;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::measure::now;

/// Time that a daemon may take until it says that it is ready.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Time to listen to a daemon before looking whether it still runs.
const LOOK: Duration = Duration::from_millis(500);

/// The resident memory of a process, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    pub all: u64,
    /// Memory as `all`, but what several processes share is divided among them: the only number
    /// that may be added up over copies of one program.
    pub share: u64,
}

impl Memory {
    fn of(pid: u32) -> Result<Memory> {
        let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let bytes = |name| {
            crate::child::bytes(&rollup, name)
                .with_context(|| format!("the kernel does not say `{name}`"))
        };
        Ok(Memory { all: bytes("Rss:")?, share: bytes("Pss:")? })
    }
}

impl Sum for Memory {
    fn sum<I: Iterator<Item = Memory>>(memories: I) -> Memory {
        let add = |sum: Memory, one: Memory| Memory {
            all: sum.all + one.all,
            share: sum.share + one.share,
        };
        memories.fold(Memory::default(), add)
    }
}

/// A running daemon. It ends with the value.
pub struct Daemon {
    child: Child,
    role: String,
    /// Socket for what the daemon tells its service manager, which is us.
    notices: UnixDatagram,
    log: PathBuf,
}

impl Daemon {
    /// Starts `pvcd` in `role` with the configuration file `config`; what it says goes to a file in
    /// `directory`.
    pub fn start(pvcd: &Path, role: &str, config: &Path, directory: &Path) -> Result<Daemon> {
        let (socket, log) =
            (directory.join(format!("{role}.notify")), directory.join(format!("{role}.log")));
        let notices = UnixDatagram::bind(&socket)?;
        notices.set_read_timeout(Some(LOOK))?;
        let output = File::create(&log)?;
        let child = Command::new(pvcd)
            .args([role, "--config"])
            .arg(config)
            .env("NOTIFY_SOCKET", &socket)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("`{}` cannot be started", pvcd.display()))?;
        Ok(Daemon { child, role: role.to_owned(), notices, log })
    }

    /// Returns once it has said that it is ready.
    pub fn when_ready(&mut self) -> Result<()> {
        let deadline = now() + TIME_LIMIT;
        let mut message = [0; 256];
        loop {
            match self.notices.recv(&mut message) {
                Ok(size) if message[..size].starts_with(b"READY=1") => return Ok(()),
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
            if self.child.try_wait()?.is_some() || now() > deadline {
                let output = std::fs::read_to_string(&self.log).unwrap_or_default();
                bail!("`pvcd {}` does not get ready; it said: {}", self.role, output.trim());
            }
        }
    }

    pub fn memory(&self) -> Result<Memory> {
        Memory::of(self.child.id())
    }

    pub fn stop(mut self) -> Result<()> {
        kill(Pid::from_raw(i32::try_from(self.child.id())?), Signal::SIGTERM)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "`pvcd {}` ended badly: {status}", self.role);
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended already
        let _ = self.child.wait();
    }
}
