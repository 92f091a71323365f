use std::sync::Arc;

use crate::{Clock, Database, Exec, Host, Hypervisor, Network, Power, Random, Services, Storage};

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
    pub database: Option<Arc<dyn Database>>,
    pub exec: Arc<dyn Exec>,
    pub clock: Arc<dyn Clock>,
    pub random: Arc<dyn Random>,
}
