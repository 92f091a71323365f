//! Adapters of [`Scripts`](pvc_ports::Scripts) and [`BlockDevices`](pvc_ports::BlockDevices): the
//! Python process of a script of the provisioner, and the volumes that it works on.
//!
//! ```text
//!  worker ── socket pair, a JSON object to a line ── python3 run.py (python/)
//!                                                     in a mount, a process namespace, and a
//!                                                     control group of its own
//! ```
//!
//! - `home`: the directory of this process, and what others that are no more have left
//! - `process`: one script: how it is started, heard and killed
//! - `wire`: its messages as JSON
//! - `group`: the control group with its limit of memory
//! - `devices`: volumes as block devices

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "adapters are in the real world")]

mod devices;
mod group;
mod home;
mod process;
mod wire;

pub use devices::LinuxBlockDevices;
pub use home::Home;
pub use process::LinuxScripts;
