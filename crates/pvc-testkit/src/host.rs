use std::sync::Mutex;

use pvc_ports::{Host, HostError, HostFacts, HostLoad, HostUsage, InterfaceCounters};

/// A machine whose figures the test sets.
pub struct FakeHost {
    facts: Mutex<HostFacts>,
    load: Mutex<HostLoad>,
    interfaces: Mutex<Vec<InterfaceCounters>>,
    /// The latest usage, and what it grows by from one look to the next.
    usage: Mutex<(HostUsage, HostUsage)>,
}

impl FakeHost {
    /// 8 CPUs, 16 GiB of memory of which 4 GiB are used, no interface.
    pub fn new() -> Self {
        FakeHost {
            facts: Mutex::new(HostFacts {
                cpus: 8,
                kernel: "6.12.0-test".to_owned(),
                os: "GNU/Linux".to_owned(),
                arch: "x86_64".to_owned(),
            }),
            load: Mutex::new(HostLoad {
                memory_total_mib: 16384,
                memory_used_mib: 4096,
                memory_free_mib: 12288,
                load: 0.25,
            }),
            interfaces: Mutex::new(Vec::new()),
            usage: Mutex::default(),
        }
    }

    pub fn set_cpus(&self, cpus: u32) {
        self.facts.lock().expect("no test panics while holding it").cpus = cpus;
    }

    pub fn set_load(&self, load: HostLoad) {
        *self.load.lock().expect("no test panics while holding it") = load;
    }

    /// Sets what the machine is used by from one look to the next: times and bytes are added up,
    /// the rest is so from now on.
    pub fn set_usage_between_looks(&self, grown: HostUsage) {
        self.usage.lock().expect("no test panics while holding it").1 = grown;
    }

    pub fn set_interfaces(&self, interfaces: Vec<InterfaceCounters>) {
        *self.interfaces.lock().expect("no test panics while holding it") = interfaces;
    }
}

impl Default for FakeHost {
    fn default() -> Self {
        Self::new()
    }
}

impl Host for FakeHost {
    fn facts(&self) -> Result<HostFacts, HostError> {
        Ok(self.facts.lock().expect("no test panics while holding it").clone())
    }

    fn load(&self) -> Result<HostLoad, HostError> {
        Ok(self.load.lock().expect("no test panics while holding it").clone())
    }

    fn usage(&self, processes: &[&str], interface: Option<&str>) -> Result<HostUsage, HostError> {
        let mut usage = self.usage.lock().expect("no test panics while holding it");
        let (latest, grown) = &mut *usage;
        latest.cpu_busy += grown.cpu_busy;
        latest.cpu_total += grown.cpu_total;
        (latest.memory_total_mib, latest.memory_used_mib) =
            (grown.memory_total_mib, grown.memory_used_mib);
        for (name, more) in &grown.processes {
            let process = latest.processes.entry(name.clone()).or_default();
            process.cpu += more.cpu;
            process.memory_mib = more.memory_mib;
        }
        latest.received_bytes += grown.received_bytes;
        latest.sent_bytes += grown.sent_bytes;
        let mut seen = latest.clone();
        seen.processes.retain(|name, _| processes.contains(&name.as_str()));
        if interface.is_none() {
            (seen.received_bytes, seen.sent_bytes) = (0, 0);
        }
        Ok(seen)
    }

    fn interfaces(&self) -> Result<Vec<InterfaceCounters>, HostError> {
        Ok(self.interfaces.lock().expect("no test panics while holding it").clone())
    }
}
