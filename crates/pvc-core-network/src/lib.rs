//! The networks between the nodes: what a node does about them, as roles (`pvc-role`).
//!
//! ```text
//!  networks     links, addresses and routes, made again when something of them is missing
//!  filter       the packet filter for the ports between the nodes
//!  among_nodes  VMs that are plugged into a network between the nodes
//! ```
//!
//! What there should be is decided in `pvc_model::network_core` and `pvc_model::host_filter`. The
//! networks of VMs are not here.

#![forbid(unsafe_code)]

pub mod among_nodes;
pub mod filter;
pub mod networks;
