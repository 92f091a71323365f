//! Contract of every [`ZoneTransfers`], with servers of DNS.

use std::net::SocketAddr;
use std::sync::Arc;

use pvc_model::guest_network::dns::HostAddress;
use pvc_ports::{TransferError, ZoneTransfers};

/// The zone that is asked for.
pub const ZONE: &str = "net1.example";

/// Servers that the suite needs from whoever runs it.
pub struct ZoneTransfersFixture {
    pub transfers: Arc<dyn ZoneTransfers>,
    /// Has the zone with [`hosts`].
    pub good: SocketAddr,
    /// Does not give it.
    pub refusing: SocketAddr,
    /// Takes the question, and says nothing.
    pub silent: SocketAddr,
    /// Nobody answers there.
    pub absent: SocketAddr,
}

/// Addresses in the zone of the good server.
pub fn hosts() -> Vec<HostAddress> {
    [("web1", "10.20.1.100"), ("web1", "2001:db8:1::64"), ("web2", "10.20.1.101")]
        .map(|(name, address)| HostAddress {
            name: format!("{name}.{ZONE}"),
            address: address.parse().expect("it is an address"),
        })
        .into()
}

/// Runs the whole suite.
///
/// # Panics
/// When the transfers break the contract.
pub async fn zone_transfers_contract(fixture: ZoneTransfersFixture) {
    let ask = |server| fixture.transfers.hosts(server, ZONE);
    let mut found = ask(fixture.good).await.expect("it gives the zone");
    found.sort();
    assert_eq!(found, hosts());
    let error = ask(fixture.refusing).await.expect_err("it does not give the zone");
    assert!(matches!(error, TransferError::Refused { .. }), "{error}");
    let error = ask(fixture.absent).await.expect_err("nobody is there");
    assert!(matches!(error, TransferError::Unreachable { .. }), "{error}");
    let error = ask(fixture.silent).await.expect_err("it says nothing");
    assert!(matches!(error, TransferError::TimedOut { .. }), "{error}");
}
