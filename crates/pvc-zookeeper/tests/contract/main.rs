//! The client on real ZooKeeper servers.

#![allow(clippy::disallowed_methods, reason = "a real server takes real time")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod access;
mod faults;
mod tree;
