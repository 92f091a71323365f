//! The provisioner's records: on SQLite, and in `contract` on a real PostgreSQL, also one that
//! PVC 1.0.3 has filled.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod contract;
mod faults;
mod sqlite;
mod suite;
