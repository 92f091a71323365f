use std::sync::Arc;

use crate::{
    Clock, DatabaseCluster, DnsPorts, Exec, Files, Firewall, Host, Hypervisor, Network, Power,
    Programs, Random, Services, Storage,
};

/// The world of one node.
#[derive(Clone)]
pub struct Ports {
    pub hypervisor: Arc<dyn Hypervisor>,
    pub storage: Arc<dyn Storage>,
    pub network: Arc<dyn Network>,
    pub services: Arc<dyn Services>,
    pub host: Arc<dyn Host>,
    pub power: Arc<dyn Power>,
    /// Database whose leader follows the primary role; `None` where there is no such database.
    pub database_cluster: Option<Arc<dyn DatabaseCluster>>,
    /// Where guests' names are served from a database; `None` where there is no such database.
    pub dns: Option<DnsPorts>,
    pub exec: Arc<dyn Exec>,
    pub files: Arc<dyn Files>,
    pub firewall: Arc<dyn Firewall>,
    /// Programs that run on.
    pub programs: Arc<dyn Programs>,
    pub clock: Arc<dyn Clock>,
    pub random: Arc<dyn Random>,
}
