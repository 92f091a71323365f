//! Properties that the keys of all kinds have in common.

/// Subtrees of other programs: never read, written, backed up or wiped.
const OTHERS: &[&str] = &["/zookeeper", "/patroni"];

/// The most parts of a path of the tree, of those that are read. The longest of the layout
/// has seven, a setting of a card's function (`/nodes/N/sriov/vf/V/config/KEY`), and a lock may lie
/// below any of them: this is twice as many. What lies deeper is nobody's record, and a daemon that
/// followed it would have to follow it without end.
pub(crate) const MAX_DEPTH: usize = 16;

/// Tells whether `path` lies deeper than anything of the layout.
pub(crate) fn is_too_deep(path: &str) -> bool {
    path.bytes().filter(|byte| *byte == b'/').nth(MAX_DEPTH).is_some()
}

/// The path of `path`'s parent; `/` for a top-level node.
pub(crate) fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    }
}

/// Tells whether `path` lies in a subtree that belongs to another program.
pub(crate) fn is_of_others(path: &str) -> bool {
    OTHERS.iter().any(|root| {
        path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Tells whether `path` is a lock node; one may lie below any key.
pub(crate) fn is_lock(path: &str) -> bool {
    path.rfind('/').is_some_and(|at| path[at..].contains("lock__"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_not_too_deep() {
        for path in ["/", "/config", "/nodes/x/sriov/vf/ens1f0v1/config/vlan_id/lock__1"] {
            assert!(!is_too_deep(path), "{path}");
        }
        let deepest = "/a".repeat(MAX_DEPTH);
        assert!(!is_too_deep(&deepest) && is_too_deep(&format!("{deepest}/a")));
    }
}
