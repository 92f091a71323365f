//! Releases that bring what this one lacks: one table for the API and the command line.

/// The release that brings a group of calls; `None` for what is here, or unknown.
///
/// `group` is the group's word on the command line; of some it is two, such as `vm snapshot`.
pub fn arrival(group: &str) -> Option<&'static str> {
    match group {
        "vm snapshot" | "vm backup" | "vm mirror" | "vm autobackup" | "vm automirror" => {
            Some("release 0.5")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_here_arrives_with_no_release() {
        for group in ["storage", "provisioner", "network", "vm", "vm list"] {
            assert_eq!(arrival(group), None, "{group}");
        }
        assert_eq!(arrival("vm mirror"), Some("release 0.5"));
    }
}
