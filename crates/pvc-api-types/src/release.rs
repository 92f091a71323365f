//! Releases that bring what this one lacks: one table for the API and the command line.

/// The release that brings a group of calls; `None` for what is here, or unknown.
///
/// `group` is the group's word on the command line; of some it is two, such as `vm snapshot`.
pub fn arrival(group: &str) -> Option<&'static str> {
    match group {
        "storage" => Some("release 0.4"),
        "vm snapshot" | "vm backup" | "vm mirror" | "vm autobackup" | "vm automirror" => {
            Some("release 0.5")
        }
        "provisioner ova" => Some("release 0.6"),
        _ => None,
    }
}
