//! Copies of this program that hold something, so that memory and time are theirs alone.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// A running copy of this program. It ends with the value, and with us.
pub struct Holder {
    child: Child,
    /// The line by which it said that it is ready.
    pub said: String,
}

impl Holder {
    /// Starts this program with `arguments`, and waits until it says a line.
    pub fn start<const N: usize>(arguments: [&str; N]) -> Result<Holder> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the own program cannot be started")?;
        let mut said = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut said)?;
        }
        let holder = Holder { child, said: said.trim().to_owned() };
        anyhow::ensure!(
            !holder.said.is_empty(),
            "`pvc-bench {}` ended before it was ready",
            arguments.join(" ")
        );
        Ok(holder)
    }

    pub fn memory(&self) -> Result<u64> {
        memory_of(self.child.id())
    }

    /// The most resident memory that the process ever had.
    pub fn peak_memory(&self) -> Result<u64> {
        status_of(self.child.id(), "VmHWM:")
    }

    /// Resident memory of the process without what it maps from files: copies of one program share
    /// that.
    pub fn private_memory(&self) -> Result<u64> {
        status_of(self.child.id(), "RssAnon:")
    }
}

/// The resident memory of process `pid` in bytes, what it maps from files included.
pub fn memory_of(pid: u32) -> Result<u64> {
    status_of(pid, "VmRSS:")
}

fn status_of(pid: u32, name: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    bytes(&status, name).context("the kernel does not say how much memory the process has")
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait(); // it ends because its input did
    }
}

/// The holder's side: returns when the one who started us is done with us, or gone.
pub fn wait_for_the_end() {
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
}

/// The line `name` of `/proc/PID/status` and files like it.
pub fn bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let status = "Name:\tx\nVmRSS:\t    1536 kB\nRssAnon:\t 1 kB\n";
        assert_eq!(bytes(status, "VmRSS:"), Some(1_572_864));
        assert_eq!(bytes(status, "RssAnon:"), Some(1024));
        assert_eq!(bytes("Name:\tx\n", "VmRSS:"), None);
    }
}
