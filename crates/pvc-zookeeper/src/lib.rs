//! The Tree on Apache ZooKeeper.
//!
//! ```text
//!  ZookeeperTree ──Wanted──▶ Session (a task) ──▶ Connection ──▶ a server of the ensemble
//!       ▲                        │ connects, reconnects, begins anew after an expiry
//!       └───────answers──────────┘ watches are set again, each followed by a Resync
//! ```
//!
//! `wire` and `proto` are the encoding, `servers` reaches a server, `tls` encrypts what goes there,
//! `session` keeps a session alive, `call` is one request between the two sides.
//!
//! This is a client of its own and not a library, because a cluster manager must know of each write
//! whether it was sent: a stamp of life that a library sends again later, when its sender has long
//! given up, makes a dead node look alive.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "an adapter works in real time")]

mod call;
mod names;
mod proto;
mod servers;
mod session;
mod tls;
mod tree;
mod wire;

pub use tls::{Tls, TlsError};
pub use tree::{ZookeeperOptions, ZookeeperTree};
