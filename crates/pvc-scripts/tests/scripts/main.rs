//! The adapters on the real Python and the real kernel.

#![allow(clippy::disallowed_methods, reason = "real processes in real time")]

mod contract;
mod devices;
