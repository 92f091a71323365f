//! The simulated world: what it does by itself, and what its program says.

#![allow(clippy::disallowed_methods, reason = "stories and pages are files of the real world")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod power;
mod scenarios_page;
mod story_checks;
mod what_if;
