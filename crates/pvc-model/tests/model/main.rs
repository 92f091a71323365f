//! Rules in tables of cases, and what must hold for all of them together.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod guest_links;
mod macs;
mod network_core;
mod network_requests;
mod node_rules;
mod primary_rules;
mod records;
mod vm_plan;
