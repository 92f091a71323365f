//! The store on real ZooKeeper servers.

mod access;
mod outage;
