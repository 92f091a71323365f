//! A whole PVC on one machine, for tests: real QEMU, driven by `pvc` and over HTTP.
//!
//! ```text
//!  Machine ─┬─ Keeper    ends and removes everything, even if the test is killed
//!           ├─ Libvirt   a libvirtd of its own, so that the machine's own is left alone
//!           ├─ Daemon…   `pvcd` in its roles, as processes that can be killed
//!           └─ Zookeeper in cluster mode
//! ```
//!
//! Every process is started, and ended, by its number. The programs are the ones that cargo built
//! into the directory that these tests were built into: `./test standalone` sees to it.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "nothing is simulated here: real time passes, real threads wait"
)]

mod archive;
mod daemon;
mod debian;
pub mod exit;
mod hello;
mod http;
mod keeper;
mod libvirt;
mod machine;
mod outside;
mod program;
mod serial;
mod wait;

pub use archive::Archive;
pub use daemon::{Daemon, Ended};
pub use debian::{CLOUD_INIT_IS_DONE, debian_profile, debian_userdata};
pub use hello::{hello_image, hello_uuid};
pub use http::{Answer, Api};
pub use keeper::Keeper;
pub use libvirt::Libvirt;
pub use machine::{Machine, Settings};
pub use outside::Outside;
pub use program::{Output, host_name, program, repository, run};
pub use serial::SerialLine;
pub use wait::{eventually, never_within};
