//! Records as objects of the wire. Pure: no request, no store, no clock.

pub mod benchmark;
pub mod fault;
pub mod network;
pub mod node;
pub mod osd;
pub mod provisioner;
pub mod sriov;
pub mod status;
pub mod storage;
pub mod storage_report;
pub mod task;
pub mod vm;
