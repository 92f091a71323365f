//! Typed calls to the API.
//!
//! Blocking, one connection at a time, no runtime: a command line that answers in milliseconds
//! cannot afford one. The rules of the wire are kept in one place, [`Client`]; the modules beside
//! it give each request a name and each answer a type.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "no part of the simulated world: one thread, real time"
)]

mod client;
mod cluster;
mod error;
mod event;
mod fault;
mod network;
mod node;
mod page;
mod payload;
mod query;
mod task;
mod tls;
mod vm;

pub use client::{Client, Exchange, Options, Waiting};
pub use error::{Error, Kind};
pub use node::NodeFilter;
pub use payload::Payload;
pub use query::Query;
pub use vm::{Action, Definition, Metadata, Placement, StateRequest, VmFilter};
