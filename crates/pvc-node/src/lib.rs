//! The node role: what the daemon of one server does.
//!
//! ```text
//!  startup   the list of named steps, before and after the store is reached
//!  node      which roles run, and the way out
//!    keepalive   stamp first and alone, then the figures
//!    vms         records and guests → steps (`pvc_model::vm::plan`) → effects
//!    collect     asks the hypervisor for figures, however long it takes
//!    console     serial consoles → the store
//!    database    this node's copy of the cluster's own database: does it follow?
//!    certificates  files with certificates: a fault before one ends
//!    metadata    the metadata service of guests: a fault if nobody serves it
//!    flush       empties the node and takes its VMs back
//!    primary     who is the primary coordinator, and what goes with that
//!    fence       dead nodes: proof, recovery of their VMs (`pvc_model::fence`)
//!    reset       ends guests and machine when the store was lost for too long, if configured
//!    sweep       removes from the store what nobody needs any more
//!    nodelog     the daemon's own log → the store
//! ```
//!
//! All of them are roles (`pvc-role`): they work from the present state and are only woken by
//! changes, so start-up, normal change and recovery are one code path, and one that panics is
//! started again. Those of the networks between the nodes, of the networks of VMs and of the
//! storage are in `pvc-core-network`, `pvc-guest-network` and `pvc-storage`; `node` starts them
//! with the others.

#![forbid(unsafe_code)]

mod agents;
mod bmc;
mod certificates;
mod collect;
mod console;
mod database;
mod fence;
mod figures;
mod flush;
mod keepalive;
mod metadata;
mod node;
mod nodelog;
mod pace;
mod primary;
mod reset;
mod services;
mod settings;
mod shared;
mod startup;
mod sweep;
mod vms;

pub use node::{Node, NodeError, Outcome};
pub use pvc_guest_network::dhcp::{DhcpSettings, LEASE_NETWORK, LEASE_SOCKET};
pub use pvc_guest_network::dns::{DnsDatabase, DnsSettings};
pub use pvc_guest_network::leases::{LeaseRequest, LeaseRequests};
pub use pvc_ports::Ports;
pub use services::Service;
pub use settings::{
    FloatingAddress, GuestNetworkSettings, LogSwitches, MigrationSettings, NodeSettings,
    Subsystems, WatchedCertificates,
};
pub use startup::before_store;
