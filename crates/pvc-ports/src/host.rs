//! Facts about this machine, and its load.

use std::collections::BTreeMap;
use std::time::Duration;

/// Facts that do not change while the daemon runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    pub cpus: u32,
    /// Release of the kernel as `uname -r` prints it.
    pub kernel: String,
    /// Operating system as `uname -o` prints it: `GNU/Linux`.
    pub os: String,
    /// Architecture as `uname -m` prints it: `x86_64`.
    pub arch: String,
}

/// Figures that change all the time.
#[derive(Debug, Clone, PartialEq)]
pub struct HostLoad {
    pub memory_total_mib: u64,
    pub memory_used_mib: u64,
    /// "Available" in the kernel's words: what a new process could get without swapping.
    pub memory_free_mib: u64,
    /// The one-minute load average.
    pub load: f64,
}

/// Counters of one network interface since it came up, and its link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceCounters {
    pub name: String,
    pub rx_bytes: u64,
    pub rx_packets: u64,
    pub tx_bytes: u64,
    pub tx_packets: u64,
    /// Megabits per second; `None` if the driver does not say.
    pub speed_mbit: Option<u64>,
    /// State of the link as the kernel calls it: `up`, `down`, or `unknown` where the driver does
    /// not say.
    pub state: String,
}

/// Counters of this machine since it started, and its memory.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostUsage {
    /// Time that all CPUs together have worked, and time that they have had.
    pub cpu_busy: Duration,
    pub cpu_total: Duration,
    pub memory_total_mib: u64,
    pub memory_used_mib: u64,
    /// Processes of that name, all together.
    pub processes: BTreeMap<String, ProcessUsage>,
    /// Bytes that the interface has received and sent; 0 if there is no such interface.
    pub received_bytes: u64,
    pub sent_bytes: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ProcessUsage {
    pub cpu: Duration,
    pub memory_mib: u64,
}

#[derive(Debug, thiserror::Error)]
#[error("`{what}` could not be read")]
pub struct HostError {
    pub what: String,
    #[source]
    pub source: std::io::Error,
}

/// The machine that the daemon runs on. Calls read from memory-backed files of the kernel and do
/// not block.
pub trait Host: Send + Sync {
    fn facts(&self) -> Result<HostFacts, HostError>;
    fn load(&self) -> Result<HostLoad, HostError>;
    /// Usage of the machine, of the processes with these names, and of one interface of any kind.
    /// Goes through all processes: not for every second.
    fn usage(&self, processes: &[&str], interface: Option<&str>) -> Result<HostUsage, HostError>;
    /// The physical interfaces (those with a device behind them), by name.
    fn interfaces(&self) -> Result<Vec<InterfaceCounters>, HostError>;
}
