//! The networks of VMs: what a node does about them, as roles (`pvc-role`).
//!
//! ```text
//!  links     bridges, VLANs and tunnels, made again when something of them is missing
//!  firewall  what passes between networks of VMs, this node, and everything else
//!  dhcp      on the primary, a DHCP and DNS server for each managed network
//!  dns       on the primary, PowerDNS for the domains of all managed networks
//!  evpn      FRR's configuration: how the ends of the tunnels find each other
//!  leases    what those servers say of leases, into the store
//!  unconfirmed  changes that nobody confirms in time are taken back
//!  guard     guests send as themselves, in networks that ask for it
//!  sriov     cards that divide themselves: functions, their settings, and who uses them
//! ```
//!
//! What there should be is decided in `pvc_model::guest_network`. Gateways are addresses of the
//! primary role, which is pvc-node's.

#![forbid(unsafe_code)]

pub mod dhcp;
pub mod dns;
pub mod evpn;
pub mod firewall;
pub mod guard;
pub mod leases;
pub mod links;
mod said;
pub mod sriov;
pub mod unconfirmed;
