//! Both configuration formats into one typed value, every mistake at once.
//!
//! [`Config::read`] takes a `pvc.conf` or an older `pvcnoded.yaml` and tells which it is from its
//! content. What each key is called, may be and defaults to is the table in `keys`; the reference
//! page `docs/manual/configuration.md` is made from the same table.
//!
//! Three rules hold for mistakes. All are reported, not only the first. An unknown key is an error
//! if it is clearly a slip of a known one (at most two letters away), and a warning otherwise,
//! because other tools keep keys of their own in these files. And no message and no `Debug` output
//! ever holds the text of a secret.

#![forbid(unsafe_code)]

mod assemble;
mod config;
mod keys;
mod kind;
#[cfg(test)]
mod legacy_file;
mod networks;
mod problem;
mod reader;
mod reference;
mod secret;
mod source;
mod yaml;

pub use config::*;
pub use problem::{ConfigErrors, Problem, Severity, render};
pub use reference::reference_page;
pub use secret::{RawSection, Secret};
pub use source::{LocateError, Machine, Report, check, read_api};
pub use yaml::Place;
