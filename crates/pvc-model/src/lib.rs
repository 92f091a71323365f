//! Words and rules. Nothing here does I/O, knows the time, or waits.
//!
//! The words of PVC, one each, in code, command line, API and documents:
//!
//! - **node**: one server. A **coordinator** keeps the store; one of them is the **primary**.
//! - **VM**: a virtual machine as recorded. A **guest** is what the hypervisor runs for it.
//! - **volume**: a VM's disk, in a **pool**. **snapshot**: a volume, or a VM, as it was.
//! - **network**: what VMs are plugged into, numbered by its VNI.
//! - **job**: long work, recorded, done by a node's worker. The old API calls it a task.
//! - **flush**/**ready**: empty a node of VMs, and take them back. **fence**: cut off a dead node.
//! - **record**: what the tree holds about one thing. **pass**: one round of a reconciler,
//!   made of **steps**.

#![forbid(unsafe_code)]

pub mod answered;
pub mod attention;
pub mod benchmark;
pub mod certificate;
pub mod cluster;
pub mod database_cluster;
pub mod disk_image;
pub mod domain;
pub mod fault;
pub mod fence;
pub mod firewall;
pub mod flush;
pub mod fullness;
pub mod guest_network;
pub mod hold;
pub mod host_filter;
pub mod image;
pub mod job;
pub mod link;
pub mod network;
pub mod network_core;
pub mod node;
pub mod osd;
pub mod placement;
pub mod pool;
pub mod primary;
pub mod provisioner;
pub mod qcow2;
pub mod refusal;
pub mod request;
pub mod role;
pub mod shared_map;
pub mod size;
pub mod snapshot_usage;
pub mod space;
pub mod sriov;
pub mod storage;
pub mod transfer;
pub mod trash;
pub mod vm;
pub mod what_if;

mod causes;
mod name;
mod time;

#[cfg(test)]
extern crate self as pvc_model;
#[cfg(test)]
#[path = "../tests/model/records.rs"]
mod records;

pub use causes::with_causes;
pub use name::{BadName, NodeName, check_name, listed, shown};
pub use time::utc;
pub use uuid::Uuid;
