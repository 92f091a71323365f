use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::apart::Asked;
use nix::sys::utsname::uname;
use pvc_ports::{Host, HostError, HostFacts, HostLoad, HostUsage, InterfaceCounters, ProcessUsage};

/// The machine as the kernel shows it below `/proc` and `/sys`.
#[derive(Debug, Clone)]
pub struct LinuxHost {
    proc: PathBuf,
    sys: PathBuf,
    /// Speeds of interfaces, in megabits per second, by their folders.
    speeds: Asked<BTreeMap<PathBuf, u64>>,
}

/// Time that cards are given to say their speeds. The kernel asks their drivers, under its lock on
/// all links, and one that is broken takes minutes.
const SPEEDS: Duration = Duration::from_millis(100);

impl LinuxHost {
    pub fn new() -> Self {
        Self::at("/proc", "/sys")
    }

    /// Makes a host with other folders in the places of `/proc` and `/sys`.
    pub fn at(proc: impl Into<PathBuf>, sys: impl Into<PathBuf>) -> Self {
        LinuxHost { proc: proc.into(), sys: sys.into(), speeds: Asked::default() }
    }
}

impl Default for LinuxHost {
    fn default() -> Self {
        Self::new()
    }
}

fn read(path: &Path) -> Result<String, HostError> {
    fs::read_to_string(path)
        .map_err(|source| HostError { what: path.display().to_string(), source })
}

fn odd(path: &Path, why: &str) -> HostError {
    let source = io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    HostError { what: path.display().to_string(), source }
}

impl Host for LinuxHost {
    fn facts(&self) -> Result<HostFacts, HostError> {
        let names = uname()
            .map_err(|errno| HostError { what: "uname".to_owned(), source: errno.into() })?;
        let stat = read(&self.proc.join("stat"))?;
        let is_cpu = |line: &&str| {
            line.strip_prefix("cpu")
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        Ok(HostFacts {
            cpus: u32::try_from(stat.lines().filter(is_cpu).count()).unwrap_or(u32::MAX).max(1),
            kernel: names.release().to_string_lossy().into_owned(),
            os: "GNU/Linux".to_owned(),
            arch: names.machine().to_string_lossy().into_owned(),
        })
    }

    fn load(&self) -> Result<HostLoad, HostError> {
        let path = self.proc.join("meminfo");
        let memory =
            Memory::parse(&read(&path)?).ok_or_else(|| odd(&path, "`MemTotal` is missing"))?;
        let path = self.proc.join("loadavg");
        let text = read(&path)?;
        let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
        Ok(HostLoad {
            memory_total_mib: memory.total / 1024,
            memory_used_mib: memory.used() / 1024,
            memory_free_mib: memory.available / 1024,
            load: first.ok_or_else(|| odd(&path, "there is no load average in it"))?,
        })
    }

    fn usage(&self, processes: &[&str], interface: Option<&str>) -> Result<HostUsage, HostError> {
        let path = self.proc.join("stat");
        let text = read(&path)?;
        let (cpu_busy, cpu_total) =
            cpu_times(&text).ok_or_else(|| odd(&path, "there are no times of all CPUs in it"))?;
        let HostLoad { memory_total_mib, memory_used_mib, .. } = self.load()?;
        let bytes = |counter| {
            let name = interface.filter(|name| is_file_name(name))?;
            let path = self.sys.join("class/net").join(name).join("statistics").join(counter);
            fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        Ok(HostUsage {
            cpu_busy,
            cpu_total,
            memory_total_mib,
            memory_used_mib,
            processes: self.processes(processes)?,
            received_bytes: bytes("rx_bytes").unwrap_or(0),
            sent_bytes: bytes("tx_bytes").unwrap_or(0),
        })
    }

    fn interfaces(&self) -> Result<Vec<InterfaceCounters>, HostError> {
        let net = self.sys.join("class/net");
        let failed = |source| HostError { what: net.display().to_string(), source };
        let mut folders = Vec::new();
        for entry in fs::read_dir(&net).map_err(failed)? {
            let folder = entry.map_err(failed)?.path();
            if folder.join("device").exists() {
                folders.push(folder);
            }
        }
        let asked = folders.clone();
        let speeds = self.speeds.newest(SPEEDS, move || speeds(asked));
        // An interface may go while it is read; then it is not there.
        let counted = |folder: &PathBuf| counters(folder, speeds.get(folder).copied()).ok();
        let mut interfaces: Vec<_> = folders.iter().filter_map(counted).collect();
        interfaces.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(interfaces)
    }
}

impl LinuxHost {
    /// The usage of all processes with each of these names.
    fn processes(&self, names: &[&str]) -> Result<BTreeMap<String, ProcessUsage>, HostError> {
        let failed = |source| HostError { what: self.proc.display().to_string(), source };
        let mut found: BTreeMap<String, ProcessUsage> = BTreeMap::new();
        for entry in fs::read_dir(&self.proc).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let is_process = entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
            if !is_process {
                continue;
            }
            // A process may end while it is looked at; then it is not there.
            let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
            let Some((name, usage)) = process(&text) else { continue };
            if names.contains(&name) {
                let sum = found.entry(name.to_owned()).or_default();
                sum.cpu += usage.cpu;
                sum.memory_mib += usage.memory_mib;
            }
        }
        Ok(found)
    }
}

/// Ticks of the kernel's clock in a second, as it shows them to programs on every architecture that
/// we run on.
const TICKS_PER_SECOND: u64 = 100;

fn ticks(count: u64) -> Duration {
    Duration::from_millis(count.saturating_mul(1000 / TICKS_PER_SECOND))
}

/// Time that all CPUs have worked, and time that they have had, from `/proc/stat`. The time of
/// guests is part of that of users.
fn cpu_times(stat: &str) -> Option<(Duration, Duration)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let times: Option<Vec<u64>> =
        line.split_whitespace().take(8).map(|word| word.parse().ok()).collect();
    let times = times.filter(|times| times.len() >= 5)?;
    let total = times.iter().fold(0_u64, |sum, time| sum.saturating_add(*time));
    let idle = times[3].saturating_add(times[4]);
    Some((ticks(total.saturating_sub(idle)), ticks(total)))
}

/// Name and usage of a process, from its `stat`. The name may have anything in it, and stands in
/// parentheses.
fn process(stat: &str) -> Option<(&str, ProcessUsage)> {
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let pages = field(21)?;
    let page_bytes = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok()??;
    let bytes = pages.saturating_mul(u64::try_from(page_bytes).ok()?);
    let cpu = ticks(field(11)?.saturating_add(field(12)?));
    Some((name, ProcessUsage { cpu, memory_mib: bytes >> 20 }))
}

/// Whether the name of an interface leads to no other folder.
fn is_file_name(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && name != "." && name != ".."
}

/// The speeds of those that say one. A link that is down answers with an error or with -1.
fn speeds(folders: Vec<PathBuf>) -> BTreeMap<PathBuf, u64> {
    let speed = |folder: PathBuf| {
        let said = fs::read_to_string(folder.join("speed")).ok()?;
        Some((folder, said.trim().parse().ok()?))
    };
    folders.into_iter().filter_map(speed).collect()
}

fn counters(folder: &Path, speed: Option<u64>) -> Result<InterfaceCounters, HostError> {
    let count = |name: &str| -> Result<u64, HostError> {
        let path = folder.join("statistics").join(name);
        read(&path)?.trim().parse().map_err(|_| odd(&path, "not a number"))
    };
    let state = read(&folder.join("operstate"))?;
    Ok(InterfaceCounters {
        name: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        rx_bytes: count("rx_bytes")?,
        rx_packets: count("rx_packets")?,
        tx_bytes: count("tx_bytes")?,
        tx_packets: count("tx_packets")?,
        speed_mbit: speed,
        state: state.trim().to_owned(),
    })
}

/// `/proc/meminfo` in KiB.
struct Memory {
    total: u64,
    free: u64,
    available: u64,
    buffers: u64,
    cached: u64,
}

impl Memory {
    fn parse(text: &str) -> Option<Memory> {
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let free = value("MemFree")?;
        let cached = value("Cached").unwrap_or(0) + value("SReclaimable").unwrap_or(0);
        let buffers = value("Buffers").unwrap_or(0);
        Some(Memory {
            total: value("MemTotal")?,
            free,
            available: value("MemAvailable").unwrap_or(free + cached + buffers),
            buffers,
            cached,
        })
    }

    /// Memory that is neither free nor a cache, as `free` counts. In some containers the caches are
    /// those of the host and larger than the rest: then only what is free is subtracted.
    fn used(&self) -> u64 {
        let idle = self.free + self.buffers + self.cached;
        self.total.checked_sub(idle).unwrap_or_else(|| self.total.saturating_sub(self.free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, LinuxHost) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let host = LinuxHost::at(root.path().join("proc"), root.path().join("sys"));
        (root, host)
    }

    #[test]
    fn memory_is_counted_as_free_counts_it() {
        let meminfo = "MemTotal: 16384000 kB\nMemFree: 1024000 kB\nMemAvailable: 9216000 kB\n\
                       Buffers: 102400 kB\nCached: 8192000 kB\nSwapCached: 5 kB\nSReclaimable: \
                       409600 kB\n";
        let (_root, host) =
            machine(&[("proc/meminfo", meminfo), ("proc/loadavg", "0.50 0.25 0.10 1/99 4711\n")]);
        let load = host.load().unwrap();
        assert_eq!((load.memory_total_mib, load.memory_free_mib), (16000, 9000));
        assert_eq!(load.memory_used_mib, 16000 - 1000 - 100 - 8000 - 400);
        assert!((load.load - 0.5).abs() < f64::EPSILON);
    }

    #[test]
    fn only_interfaces_with_a_device_behind_them_are_physical() {
        let files = |name: &str| {
            ["rx_bytes", "rx_packets", "tx_bytes", "tx_packets"]
                .map(|counter| (format!("sys/class/net/{name}/statistics/{counter}"), "7\n"))
        };
        let mut all: Vec<(String, &str)> = files("eth0").into_iter().chain(files("lo")).collect();
        all.push(("sys/class/net/eth0/device/vendor".to_owned(), "0x8086\n"));
        all.push(("sys/class/net/eth0/speed".to_owned(), "-1\n"));
        all.push(("sys/class/net/eth0/operstate".to_owned(), "down\n"));
        all.push(("sys/class/net/lo/operstate".to_owned(), "unknown\n"));
        let borrowed: Vec<(&str, &str)> =
            all.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let (_root, host) = machine(&borrowed);
        let interfaces = host.interfaces().unwrap();
        assert_eq!(interfaces.len(), 1);
        assert_eq!(interfaces[0].name, "eth0");
        assert_eq!(
            (interfaces[0].speed_mbit, interfaces[0].state.as_str(), interfaces[0].rx_bytes),
            (None, "down", 7)
        );
    }

    #[test]
    fn a_card_that_does_not_say_its_speed_holds_up_no_counters() {
        let counters = ["rx_bytes", "rx_packets", "tx_bytes", "tx_packets"];
        let mut files: Vec<(String, &str)> =
            counters.map(|name| (format!("sys/class/net/e0/statistics/{name}"), "7\n")).into();
        files.push(("sys/class/net/e0/device/vendor".to_owned(), "0x8086\n"));
        files.push(("sys/class/net/e0/operstate".to_owned(), "up\n"));
        let borrowed: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let (root, host) = machine(&borrowed);
        let speed = root.path().join("sys/class/net/e0/speed");
        // Whoever opens it waits until somebody writes.
        nix::unistd::mkfifo(&speed, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for _ in 0..3 {
            let found = host.interfaces().unwrap();
            assert_eq!((found[0].rx_bytes, found[0].speed_mbit), (7, None));
        }
        fs::write(&speed, "10000\n").unwrap();
        while host.interfaces().unwrap()[0].speed_mbit != Some(10000) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_a_machine_and_its_processes_use_is_counted() {
        let stat = "cpu  100 0 50 800 50 0 0 0 70 0\ncpu0 100 0 50 800 50 0 0 0 70 0\n";
        let of = |name: &str, user: u32, pages: u32| {
            format!("7 ({name}) S 1 7 7 0 -1 0 0 0 0 0 {user} 10 0 0 20 0 9 0 5 99 {pages} 0 0\n")
        };
        let (one, two) = (of("ceph-osd", 190, 2560), of("ceph-osd", 90, 2560));
        let odd = of("a) (b", 1, 1);
        let (_root, host) = machine(&[
            ("proc/stat", stat),
            ("proc/meminfo", "MemTotal: 2048000 kB\nMemFree: 1024000 kB\n"),
            ("proc/loadavg", "0.50 0.25 0.10 1/99 4711\n"),
            ("proc/10/stat", &one),
            ("proc/11/stat", &two),
            ("proc/12/stat", &odd),
            ("proc/13/stat", "no process\n"),
            ("sys/class/net/bond0/statistics/rx_bytes", "700\n"),
            ("sys/class/net/bond0/statistics/tx_bytes", "900\n"),
        ]);
        let usage = host.usage(&["ceph-osd", "ceph-mon"], Some("bond0")).unwrap();
        assert_eq!(usage.cpu_busy, Duration::from_millis(1500));
        assert_eq!(usage.cpu_total, Duration::from_secs(10));
        assert_eq!((usage.memory_total_mib, usage.memory_used_mib), (2000, 1000));
        assert_eq!((usage.received_bytes, usage.sent_bytes), (700, 900));
        let names: Vec<&str> = usage.processes.keys().map(String::as_str).collect();
        assert_eq!(names, ["ceph-osd"]);
        assert_eq!(usage.processes["ceph-osd"].cpu, Duration::from_secs(3));
        assert!(usage.processes["ceph-osd"].memory_mib >= 20);
        assert_eq!(process(&odd).map(|(name, _)| name), Some("a) (b"));
        let elsewhere = host.usage(&[], Some("../bond0")).unwrap();
        assert_eq!((elsewhere.received_bytes, elsewhere.processes.len()), (0, 0));
    }

    #[test]
    fn a_file_without_its_figures_is_named() {
        let (_root, host) = machine(&[("proc/meminfo", "nothing\n")]);
        assert!(host.load().unwrap_err().to_string().ends_with("proc/meminfo` could not be read"));
    }

    #[test]
    fn this_machine_has_processors_and_memory() {
        let host = LinuxHost::new();
        let facts = host.facts().unwrap();
        assert!(facts.cpus >= 1 && !facts.kernel.is_empty() && !facts.arch.is_empty());
        let load = host.load().unwrap();
        assert!(load.memory_total_mib >= load.memory_free_mib && load.load >= 0.0);
        host.interfaces().unwrap();
    }
}
