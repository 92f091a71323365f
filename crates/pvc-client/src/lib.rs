//! Typed calls to the API.
//!
//! Blocking, one connection at a time, no runtime: a command line that answers in milliseconds
//! cannot afford one. What there is to call is declared in `pvc_api_types::operations`; [`Client`]
//! keeps the rules of the wire.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "no part of the simulated world: one thread, real time"
)]

mod answered;
mod client;
mod cluster;
mod error;
mod event;
mod page;
mod payload;
mod query;
mod tls;
mod transfer;
mod unhurried;

pub use client::{Client, Exchange, Gate, Options, Submitted, Waiting};
pub use error::{Error, Kind};
pub use payload::Payload;
pub use transfer::{Begin, Pace};
