//! The packet filter of a host. It filters nothing here: who reaches whom is said by the cables.
//! What is loaded for networks of VMs is judged (`guest_networks`).

use std::sync::Arc;

use async_trait::async_trait;
use pvc_model::firewall::TableName;
use pvc_model::guest_network;
use pvc_ports::{Firewall, FirewallError};
use pvc_testkit::MemoryFirewall;

use crate::process::Gate;

/// The packet filter of a host, as its programs have it.
pub(crate) struct HostFirewall {
    pub gate: Gate,
    pub host: usize,
    pub inner: Arc<MemoryFirewall>,
}

#[async_trait]
impl Firewall for HostFirewall {
    async fn table(&self, table: &TableName) -> Result<Option<String>, FirewallError> {
        self.gate.pass().await;
        self.inner.table(table).await
    }

    async fn check(&self, table: &TableName, rules: &str) -> Result<(), FirewallError> {
        self.gate.pass().await;
        self.inner.check(table, rules).await
    }

    async fn apply(&self, table: &TableName, rules: Option<&str>) -> Result<(), FirewallError> {
        self.gate.pass().await;
        self.inner.apply(table, rules).await?;
        if *table == guest_network::rules::table() {
            let pid = self.gate.pid;
            self.gate.world.with(|state| state.firewall_loaded(self.host, pid));
        }
        Ok(())
    }

    async fn remove_old_rules(&self) -> Result<bool, FirewallError> {
        self.gate.pass().await;
        self.inner.remove_old_rules().await
    }
}
