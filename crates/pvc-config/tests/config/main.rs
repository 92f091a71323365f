//! Configurations, whole files at a time.

#![allow(clippy::disallowed_methods, reason = "a configuration is a file")]

mod mistakes;
mod secrets;
mod values;

const SAMPLE: &str = include_str!("../../../../packaging/config/pvc.conf");
const OLD_SAMPLE: &str = include_str!("../../../../packaging/config/pvcnoded.yaml");
