//! One suite per port, run against every adapter.

pub mod tree;
