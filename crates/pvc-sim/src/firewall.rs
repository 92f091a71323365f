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

#[cfg(test)]
mod tests {
    use pvc_contracts::firewall::{FirewallFixture, firewall_contract};

    use super::*;
    use crate::state::World;

    #[tokio::test(start_paused = true)]
    async fn the_simulated_packet_filter_keeps_the_contract() {
        let (_, gates) = World::of_hosts(1);
        let inner = Arc::new(MemoryFirewall::new());
        inner.set_refusing(|_, rules| rules.is_some_and(|rules| rules.contains("@nobody")));
        firewall_contract(FirewallFixture {
            firewall: Arc::new(HostFirewall { gate: gates[0].clone(), host: 0, inner }),
            tables: Box::new(|| "a table that nothing here could touch".to_owned()),
            refused: "chain input { ip saddr @nobody drop }".to_owned(),
        })
        .await;
    }
}
