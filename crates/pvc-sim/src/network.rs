//! The links of a host, and which floating addresses are on them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::guest_network::Vni;
use pvc_model::link::{IpNet, LinkAbilities, Links, Mac, Route, Vxlan};
use pvc_model::primary::handover::Duty;
use pvc_node::FloatingAddress;
use pvc_ports::{Network, NetworkError};
use pvc_testkit::{MemoryNetwork, NetworkChange};

use crate::process::Gate;
use crate::sriov;
use crate::state::{State, World};

/// The device whose VLANs bridged networks of VMs are.
pub(crate) const BRIDGE_DEVICE: &str = "ens9";

const LINKS: [&str; 3] = ["brupstream", "brcluster", "brstorage"];

/// Addresses that go with the primary role.
pub(crate) fn floating() -> Vec<FloatingAddress> {
    let address = |duty, link: &str, text: &str| FloatingAddress {
        duty,
        link: link.to_owned(),
        address: text.parse().expect("an address with its prefix length"),
    };
    vec![
        address(Duty::Upstream, "brupstream", "192.0.2.100/24"),
        address(Duty::Inner, "brcluster", "10.0.0.100/24"),
        address(Duty::Inner, "brstorage", "10.0.1.100/24"),
    ]
}

/// The links of a host that has just booted, for this life of it.
pub(crate) fn new_network(world: &World, host: usize, life: u64) -> Arc<MemoryNetwork> {
    let world = Arc::downgrade(&world.0);
    let network = MemoryNetwork::with_watcher(move |change| {
        let Some(shared) = world.upgrade() else { return };
        World(shared).with(|state| {
            if state.hosts[host].life == life {
                address_changed(state, host, change);
            }
        });
    });
    for link in LINKS {
        network.insert_bridge(link);
    }
    network.insert_device(BRIDGE_DEVICE);
    network.insert_device(sriov::CARD);
    Arc::new(network)
}

fn address_changed(state: &mut State, host: usize, change: &NetworkChange) {
    let known = &mut state.hosts[host];
    match change {
        NetworkChange::AddressAdded { link, address } => {
            state.run.note(format!("{}: has address {address}", known.name));
            match is_of_guests(link) {
                true => known.gateways.insert((link.clone(), *address)),
                false => known.addresses.insert(*address),
            };
            state.judge(|truth, sight| truth.of_address(sight, host, *address));
        }
        NetworkChange::AddressRemoved { link, address } => {
            state.run.note(format!("{}: no longer has address {address}", known.name));
            match is_of_guests(link) {
                true => known.gateways.remove(&(link.clone(), *address)),
                false => known.addresses.remove(address),
            };
        }
        // Its addresses go with it.
        NetworkChange::Removed { link } => known.gateways.retain(|(of, _)| of != link),
        _ => {}
    }
}

fn is_of_guests(link: &str) -> bool {
    Vni::of_bridge(link).is_some()
}

/// The links of a host, as its daemon has them.
pub(crate) struct HostNetwork {
    pub gate: Gate,
    pub host: usize,
    pub inner: Arc<MemoryNetwork>,
}

impl HostNetwork {
    /// Has the world judge what has become of the ports and their bridges.
    fn changed<T>(&self, done: T) -> T {
        self.gate.world.with(|state| state.links_changed(self.host));
        done
    }
}

#[async_trait]
impl Network for HostNetwork {
    async fn links(&self) -> Result<Links, NetworkError> {
        self.gate.pass().await;
        self.inner.links().await
    }

    async fn create_bridge(&self, link: &str) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.changed(self.inner.create_bridge(link).await)
    }

    async fn create_vlan(&self, link: &str, lower: &str, id: u16) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.inner.create_vlan(link, lower, id).await
    }

    async fn create_vxlan(&self, link: &str, vxlan: &Vxlan) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.inner.create_vxlan(link, vxlan).await
    }

    async fn remove_link(&self, link: &str) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.changed(self.inner.remove_link(link).await)
    }

    async fn set_mac(&self, link: &str, mac: Mac) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.inner.set_mac(link, mac).await
    }

    async fn set_alias(&self, link: &str, alias: &str) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.inner.set_alias(link, alias).await
    }

    async fn compute_checksums(&self, link: &str) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.inner.compute_checksums(link).await
    }

    async fn set_mtu(&self, link: &str, mtu: u32) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.inner.set_mtu(link, mtu).await
    }

    async fn set_up(&self, link: &str, up: bool) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.inner.set_up(link, up).await
    }

    async fn set_master(&self, link: &str, master: Option<&str>) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.changed(self.inner.set_master(link, master).await)
    }

    async fn add_address(&self, link: &str, address: IpNet) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.inner.add_address(link, address).await
    }

    async fn lease_address(
        &self,
        link: &str,
        address: IpNet,
        lifetime: Duration,
    ) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.inner.lease_address(link, address, lifetime).await
    }

    async fn remove_address(&self, link: &str, address: IpNet) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.inner.remove_address(link, address).await
    }

    async fn announce(&self, link: &str, address: IpAddr) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.inner.announce(link, address).await
    }

    async fn abilities(&self) -> Result<LinkAbilities, NetworkError> {
        self.gate.pass().await;
        self.inner.abilities().await
    }

    async fn routes(&self) -> Result<Vec<Route>, NetworkError> {
        self.gate.pass().await;
        self.inner.routes().await
    }

    async fn add_route(&self, route: &Route) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.inner.add_route(route).await
    }

    async fn remove_route(&self, route: &Route) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.inner.remove_route(route).await
    }

    async fn setting(&self, key: &str) -> Result<Option<String>, NetworkError> {
        self.gate.pass().await;
        self.inner.setting(key).await
    }

    async fn set_setting(&self, key: &str, value: &str) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.inner.set_setting(key, value).await
    }
}

#[cfg(test)]
mod tests {
    use pvc_contracts::network::{ABLE, NetworkFixture, network_contract};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_simulated_links_keep_the_contract() {
        let (world, gates) = World::of_hosts(1);
        let inner = world.with(|state| state.hosts[0].network.clone());
        inner.insert_device("ens4");
        let network = HostNetwork { gate: gates[0].clone(), host: 0, inner };
        network_contract(
            Arc::new(network),
            NetworkFixture { device: "ens4".to_owned(), able: ABLE },
        )
        .await;
    }
}
