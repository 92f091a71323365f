//! The API over an embedded tree in memory: without a socket, and on real ones in `server`.

#![allow(clippy::disallowed_methods, reason = "a test waits, in real or in paused time")]
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod changes;
mod common;
mod described;
mod document;
mod exported;
mod reads;
mod security;
mod server;
mod stream;
