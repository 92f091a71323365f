//! Zones of DNS, as other servers have them.

use std::net::SocketAddr;

use async_trait::async_trait;
use pvc_model::guest_network::dns::HostAddress;

use crate::Database;

#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    #[error("the DNS server `{server}` cannot be reached: {why}")]
    Unreachable { server: SocketAddr, why: String },
    #[error("the DNS server `{server}` did not send the zone within {seconds} s")]
    TimedOut { server: SocketAddr, seconds: u64 },
    /// The server has no such zone, or does not give it to us.
    #[error("the DNS server `{server}` refused the zone: {why}")]
    Refused { server: SocketAddr, why: String },
    /// A server may not be able to send a large zone: dnsmasq sends 64 KiB at most.
    #[error("the zone has more names than the DNS server `{server}` transfers, or than are taken")]
    TooLarge { server: SocketAddr },
    #[error("the DNS server `{server}` sent what is no zone: {why}")]
    Malformed { server: SocketAddr, why: String },
}

/// Transfers of zones from servers of DNS (AXFR, over TCP).
#[async_trait]
pub trait ZoneTransfers: Send + Sync {
    /// Returns the addresses that names of the zone have, in no order; as they come: a name may be
    /// outside of the zone. Ends within seconds, and with a bound on what is taken.
    async fn hosts(
        &self,
        server: SocketAddr,
        zone: &str,
    ) -> Result<Vec<HostAddress>, TransferError>;
}

/// The world of the DNS aggregator.
#[derive(Clone)]
pub struct DnsPorts {
    /// Database of the zones that it serves.
    pub database: std::sync::Arc<dyn Database>,
    pub transfers: std::sync::Arc<dyn ZoneTransfers>,
}
