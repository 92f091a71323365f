//! The API over HTTP, served by a process of its own.

mod client;
mod figures;
mod server;

pub use client::Client;
pub use figures::figures;
pub use server::{ApiServer, KEY, PlainServer, serve, serve_plain};
