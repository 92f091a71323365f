use std::sync::Arc;

use pvc_ports::Ports;

use crate::{
    FakeHost, MemoryFiles, MemoryFirewall, MemoryNetwork, MemorySriov, MemoryStorage, ScriptedExec,
    ScriptedHypervisor, ScriptedPower, ScriptedPrograms, ScriptedServices, SeededRandom,
    TokioClock,
};

/// A machine on which nothing is installed.
pub fn ports() -> Ports {
    Ports {
        hypervisor: Arc::new(ScriptedHypervisor::new()),
        storage: Arc::new(MemoryStorage::new()),
        network: Arc::new(MemoryNetwork::new()),
        sriov: Arc::new(MemorySriov::new()),
        services: Arc::new(ScriptedServices::new()),
        host: Arc::new(FakeHost::new()),
        database_cluster: None,
        dns: None,
        power: Arc::new(ScriptedPower::new()),
        exec: Arc::new(ScriptedExec::without_programs()),
        files: Arc::new(MemoryFiles::new()),
        firewall: Arc::new(MemoryFirewall::new()),
        programs: Arc::new(ScriptedPrograms::new()),
        clock: Arc::new(TokioClock::new()),
        random: Arc::new(SeededRandom::new(1)),
    }
}
