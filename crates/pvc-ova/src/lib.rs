//! OVA files, without any file or connection: a tar archive with the description of a VM (OVF),
//! checksums of what is in it (a manifest), and images of its disks.
//!
//! ```text
//!  bytes as they come ─▶ Archive ─▶ Begin(member), Data, Data, …, End
//!                          .ovf ─▶ describe() ─▶ Appliance: vCPUs, memory, disks, networks
//!                          .mf  ─▶ Manifest   ─▶ compared with Sums of each member
//! ```
//!
//! Whoever made the file may mean harm: names, sizes and numbers are bounded here, XML is refused
//! by what it would cost before it is parsed, and no name in it is ever the name of a file.

#![forbid(unsafe_code)]

mod manifest;
mod ovf;
mod tar;
mod units;

pub use manifest::{Made, Manifest, ManifestError, Sums};
pub use ovf::{Appliance, DiskFile, MOST_DISKS, OvfDisk, OvfError, describe, disk_id};
pub use tar::{Archive, Member, Part, TarError};

/// The most bytes of a description or a manifest.
pub const MOST_TEXT: u64 = 1 << 20;

/// Reason why a text is not the name of a file in an OVA: that is in no folder.
fn bad_name(name: &str) -> Option<&'static str> {
    match name {
        "" => Some("is empty"),
        "." | ".." => Some("is a folder"),
        _ if name.len() > 255 => Some("has more than 255 bytes"),
        _ if name.contains(['/', '\\']) => Some("is in a folder"),
        _ if name.chars().any(char::is_control) => Some("contains control characters"),
        _ => None,
    }
}
