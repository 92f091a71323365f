use std::sync::Mutex;

use pvc_ports::{Host, HostError, HostFacts, HostLoad, InterfaceCounters};

/// A machine whose figures the test sets.
pub struct FakeHost {
    facts: Mutex<HostFacts>,
    load: Mutex<HostLoad>,
    interfaces: Mutex<Vec<InterfaceCounters>>,
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
        }
    }

    pub fn set_cpus(&self, cpus: u32) {
        self.facts.lock().expect("no test panics while holding it").cpus = cpus;
    }

    pub fn set_load(&self, load: HostLoad) {
        *self.load.lock().expect("no test panics while holding it") = load;
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

    fn interfaces(&self) -> Result<Vec<InterfaceCounters>, HostError> {
        Ok(self.interfaces.lock().expect("no test panics while holding it").clone())
    }
}
