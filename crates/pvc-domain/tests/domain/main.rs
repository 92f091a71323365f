//! Definitions of guests: reading and editing.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod editing;
mod reading;

const WEB1: &str = include_str!("web1.xml");
