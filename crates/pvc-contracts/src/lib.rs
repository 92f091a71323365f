//! Contract suites, one per port, run against every adapter.
//!
//! Beside the suites stand the things that their tests share: a real ZooKeeper server, a real
//! PostgreSQL server, a real Ceph, a proxy that cuts connections, and ports that nobody else takes.

#![forbid(unsafe_code)]

pub mod access_control;
pub mod block_devices;
pub mod ceph_cluster;
pub mod database;
pub mod database_cluster;
pub mod exporters;
pub mod files;
pub mod firewall;
pub mod hypervisor;
pub mod machine;
pub mod network;
pub mod osds;
pub mod postgres_server;
pub mod power;
pub mod programs;
pub mod proxy;
pub mod scripts;
pub mod services;
pub mod sriov;
pub mod storage;
pub mod storage_clones;
pub mod storage_cluster;
pub mod storage_trash;
pub mod tcp_port;
pub mod tree;
pub mod tree_agreement;
pub mod volume_streams;
pub mod zone_transfers;
pub mod zookeeper_server;
