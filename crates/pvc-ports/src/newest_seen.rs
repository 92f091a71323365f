//! The newest changes that a client of the tree has seen, by which it knows a tree that has lost
//! them.

use crate::tree::Stat;

/// Number of nodes that are remembered.
const MOST: usize = 8;

/// Newest changes of nodes that a client has seen in its life.
///
/// A tree that comes back from an old copy does not have them: one of these nodes is there, created
/// in the same change as the client knows it, and last written before the client saw it. No tree
/// whose history goes on shows that. Where the nodes are gone, or were made anew, nothing is known:
/// the tree was emptied, or holds another cluster.
#[derive(Debug, Clone, Default)]
pub struct NewestSeen {
    changes: Vec<Change>,
}

#[derive(Debug, Clone)]
struct Change {
    path: String,
    czxid: i64,
    mzxid: i64,
}

impl NewestSeen {
    /// Remembers that the node at `path` has this stat, if that is new enough. Ephemeral nodes go
    /// with their sessions, and say nothing.
    pub fn note(&mut self, path: &str, stat: &Stat) {
        if stat.ephemeral_owner != 0 || stat.mzxid == 0 {
            return;
        }
        let oldest = self.changes.iter().map(|change| change.mzxid).min().unwrap_or_default();
        if self.changes.len() >= MOST && stat.mzxid <= oldest {
            return;
        }
        let Stat { czxid, mzxid, .. } = *stat;
        if let Some(known) = self.changes.iter_mut().find(|change| change.path == path) {
            if mzxid > known.mzxid {
                (known.czxid, known.mzxid) = (czxid, mzxid);
            }
            return;
        }
        if self.changes.len() >= MOST {
            self.changes.retain(|change| change.mzxid != oldest);
        }
        self.changes.push(Change { path: path.to_owned(), czxid, mzxid });
    }

    /// The paths of the nodes that are to be read before a tree is believed.
    pub fn paths(&self) -> Vec<String> {
        self.changes.iter().map(|change| change.path.clone()).collect()
    }

    /// The path of a node of which the tree has lost a change, where it shows `now` at
    /// [`paths`](NewestSeen::paths), in their order.
    pub fn lost<'a>(&'a self, now: &[Option<Stat>]) -> Option<&'a str> {
        let is_lost = |(change, stat): &(&Change, &Option<Stat>)| {
            stat.is_some_and(|stat| stat.czxid == change.czxid && stat.mzxid < change.mzxid)
        };
        let (change, _) = self.changes.iter().zip(now).find(is_lost)?;
        Some(&change.path)
    }

    /// Forgets all, as where another history has begun.
    pub fn clear(&mut self) {
        self.changes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(czxid: i64, mzxid: i64) -> Stat {
        Stat { czxid, mzxid, ..Stat::default() }
    }

    fn seen(changes: &[(&str, i64, i64)]) -> NewestSeen {
        let mut seen = NewestSeen::default();
        for (path, czxid, mzxid) in changes {
            seen.note(path, &stat(*czxid, *mzxid));
        }
        seen
    }

    #[test]
    fn a_node_that_was_last_written_before_what_was_seen_is_of_an_old_copy() {
        let seen = seen(&[("/a", 1, 7), ("/b", 2, 9)]);
        assert_eq!(seen.lost(&[Some(stat(1, 7)), Some(stat(2, 8))]), Some("/b"));
        assert_eq!(seen.lost(&[Some(stat(1, 3)), None]), Some("/a"));
    }

    #[test]
    fn a_tree_that_has_what_was_seen_and_more_goes_on() {
        let seen = seen(&[("/a", 1, 7), ("/b", 2, 9)]);
        assert_eq!(seen.lost(&[Some(stat(1, 7)), Some(stat(2, 12))]), None);
        assert_eq!(NewestSeen::default().lost(&[]), None);
    }

    #[test]
    fn a_node_that_is_gone_or_was_made_anew_says_nothing() {
        let seen = seen(&[("/a", 1, 7), ("/b", 2, 9)]);
        assert_eq!(seen.lost(&[None, Some(stat(4, 4))]), None);
    }

    #[test]
    fn what_was_seen_later_of_a_node_counts_and_not_what_is_read_of_before() {
        let mut seen = seen(&[("/a", 1, 7), ("/a", 1, 9), ("/a", 1, 8)]);
        assert_eq!(seen.paths(), ["/a"]);
        assert_eq!(seen.lost(&[Some(stat(1, 8))]), Some("/a"));
        seen.clear();
        assert_eq!(seen.paths(), Vec::<String>::new());
    }

    #[test]
    fn the_newest_are_kept_and_what_goes_with_a_session_is_not() {
        let mut seen = NewestSeen::default();
        seen.note("/daemons/hv1", &Stat { ephemeral_owner: 5, ..stat(99, 99) });
        for number in (1..=20).rev() {
            seen.note(&format!("/{number}"), &stat(1, number));
        }
        let mut paths = seen.paths();
        paths.sort_unstable();
        assert_eq!(paths, ["/13", "/14", "/15", "/16", "/17", "/18", "/19", "/20"]);
    }
}
