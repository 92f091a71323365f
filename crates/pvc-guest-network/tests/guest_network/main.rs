//! Networks of guests: the roles in the testkit's world, and with the kernel, dnsmasq, PowerDNS and
//! PostgreSQL themselves.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod common;
mod contract;
mod dns;
mod dnsmasq;
mod frr;
mod pdns;
mod roles;
