//! The operations of the API, by group.

pub mod benchmark;
pub mod cluster;
pub mod event;
pub mod fault;
pub mod image;
pub mod metrics;
pub mod network;
pub mod node;
pub mod osd;
pub mod provisioner;
pub mod sriov;
pub mod storage;
pub mod storage_report;
pub mod task;
pub mod vm;
