//! The part of the tree that a store holds in memory.

use crate::records;

/// Part of the tree that a store holds in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Whole,
    /// Whether there is a cluster, of which layout, its jobs and its workers.
    Jobs,
}

impl Scope {
    /// Tells whether `path` belongs to it, or leads there.
    pub fn holds(self, path: &str) -> bool {
        match self {
            Scope::Whole => true,
            Scope::Jobs => records::is_for_jobs(path),
        }
    }
}
