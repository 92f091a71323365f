use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::guest_network::dns::HostAddress;
use pvc_ports::{TransferError, ZoneTransfers};

/// Time for which a server that says nothing is waited for.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Behaviour of a server of DNS that is asked for a zone.
#[derive(Debug, Clone)]
pub enum ZoneManner {
    Gives(Vec<HostAddress>),
    Refuses,
    Silent,
}

/// Servers of DNS with zones. Where there is none, nobody answers.
#[derive(Debug, Clone, Default)]
pub struct ScriptedTransfers {
    manners: Arc<Mutex<BTreeMap<(SocketAddr, String), ZoneManner>>>,
}

impl ScriptedTransfers {
    pub fn new() -> Self {
        ScriptedTransfers::default()
    }

    /// From now on the server does so when it is asked for the zone.
    pub fn set_manner(&self, server: SocketAddr, zone: &str, manner: ZoneManner) {
        self.manners().insert((server, zone.to_owned()), manner);
    }

    fn manners(&self) -> std::sync::MutexGuard<'_, BTreeMap<(SocketAddr, String), ZoneManner>> {
        self.manners.lock().expect("no test panics while holding it")
    }
}

#[async_trait]
impl ZoneTransfers for ScriptedTransfers {
    async fn hosts(
        &self,
        server: SocketAddr,
        zone: &str,
    ) -> Result<Vec<HostAddress>, TransferError> {
        let manner = self.manners().get(&(server, zone.to_owned())).cloned();
        match manner {
            Some(ZoneManner::Gives(hosts)) => Ok(hosts),
            Some(ZoneManner::Refuses) => {
                Err(TransferError::Refused { server, why: "REFUSED".to_owned() })
            }
            Some(ZoneManner::Silent) => {
                tokio::time::sleep(TIME_LIMIT).await;
                Err(TransferError::TimedOut { server, seconds: TIME_LIMIT.as_secs() })
            }
            None => Err(TransferError::Unreachable { server, why: "nobody answers".to_owned() }),
        }
    }
}
