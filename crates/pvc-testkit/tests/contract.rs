//! The scripted hypervisor keeps the contract that libvirt keeps.

use std::sync::Arc;
use std::time::Duration;

use pvc_contracts::hypervisor::{HypervisorFixture, hypervisor_contract};
use pvc_testkit::ScriptedHypervisor;

#[tokio::test(start_paused = true)]
async fn the_scripted_hypervisor_keeps_the_contract() {
    let fixture = HypervisorFixture {
        guest: Box::new(|uuid, name| {
            format!(
                "<domain><name>{name}</name><uuid>{uuid}</uuid><devices><disk><target dev='sda'/></disk></devices></domain>"
            )
        }),
        spare_disk: "<disk><target dev='sdb'/></disk>".to_owned(),
        patience: Duration::from_secs(10),
    };
    hypervisor_contract(Arc::new(ScriptedHypervisor::new()), fixture).await;
}
