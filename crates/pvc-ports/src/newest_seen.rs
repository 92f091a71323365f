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
    /// Changes of the history before the present one, which may come back.
    former: Vec<Change>,
    era: u64,
}

/// Last change of a node that was written since it was created.
#[derive(Debug, Clone)]
struct Change {
    path: String,
    czxid: i64,
    mzxid: i64,
}

impl Change {
    /// Whether this one shows each old copy that the other shows: one has the node, and not yet
    /// its last change.
    fn covers(&self, other: &Change) -> bool {
        self.czxid <= other.czxid && self.mzxid >= other.mzxid
    }

    /// Number of changes after which a copy may have been made that this one shows.
    fn width(&self) -> i64 {
        self.mzxid.saturating_sub(self.czxid)
    }

    fn is_in(&self, now: Option<Stat>) -> bool {
        now.is_some_and(|stat| stat.czxid == self.czxid && stat.mzxid >= self.mzxid)
    }
}

impl NewestSeen {
    /// Number of the present history: whoever notes what was asked for in another is not heard.
    pub fn era(&self) -> u64 {
        self.era
    }

    /// Remembers that the node at `path` has this stat, if that shows more than what is known.
    /// Ephemeral nodes go with their sessions, and what was not written since its creation is in
    /// no copy by halves.
    pub fn note(&mut self, era: u64, path: &str, stat: &Stat) {
        let Stat { czxid, mzxid, .. } = *stat;
        if era != self.era || stat.ephemeral_owner != 0 || mzxid <= czxid {
            return;
        }
        if let Some(known) = self.changes.iter_mut().find(|change| change.path == path) {
            if known.czxid != czxid || mzxid > known.mzxid {
                (known.czxid, known.mzxid) = (czxid, mzxid);
            }
            return;
        }
        let new = Change { path: path.to_owned(), czxid, mzxid };
        if self.changes.len() < MOST {
            self.changes.push(new);
        } else if !self.changes.iter().any(|change| change.covers(&new)) {
            self.changes.push(new);
            let least = self.least();
            self.changes.remove(least);
        }
    }

    /// The place of the change that is missed least: the one that shows the fewest copies of those
    /// that another covers, or of all.
    fn least(&self) -> usize {
        let is_covered = |place: usize| {
            let change = &self.changes[place];
            let mut others = self.changes.iter().enumerate().filter(|(other, _)| *other != place);
            others.any(|(_, other)| other.covers(change))
        };
        let places = 0..self.changes.len();
        places.min_by_key(|place| (!is_covered(*place), self.changes[*place].width())).unwrap_or(0)
    }

    /// The paths of the nodes that are to be read before a tree is believed.
    pub fn paths(&self) -> Vec<String> {
        self.changes.iter().chain(&self.former).map(|change| change.path.clone()).collect()
    }

    /// The path of a node of which the tree has lost a change, where it shows `now` at
    /// [`paths`](NewestSeen::paths), in their order. `goes_on`: its last change is not older than
    /// the last that this client knew, so that a node made anew since has a larger number.
    pub fn lost<'a>(&'a self, now: &[Option<Stat>], goes_on: bool) -> Option<&'a str> {
        let present = self.changes.iter().map(|change| (change, goes_on));
        // A tree with what was seen last is no former one, however alike the numbers are with which
        // both began.
        let is_present = self.changes.iter().zip(now).any(|(change, stat)| change.is_in(*stat));
        let former = self.former.iter().filter(|_| !is_present);
        let known = present.chain(former.map(|change| (change, false)));
        let is_lost = |((change, goes_on), stat): &((&Change, bool), &Option<Stat>)| {
            let is_older =
                |stat: Stat| stat.mzxid < change.mzxid && (*goes_on || stat.czxid == change.czxid);
            stat.is_some_and(is_older)
        };
        let ((change, _), _) = known.zip(now).find(is_lost)?;
        Some(&change.path)
    }

    /// Begins another history: the tree has nothing of the present one.
    pub fn begin_anew(&mut self) {
        self.era += 1;
        let ended = std::mem::take(&mut self.changes);
        let widest = |changes: &[Change]| changes.iter().map(Change::width).max();
        if widest(&ended) >= widest(&self.former) {
            self.former = ended;
        }
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
            seen.note(0, path, &stat(*czxid, *mzxid));
        }
        seen
    }

    fn sorted_paths(seen: &NewestSeen) -> Vec<String> {
        let mut paths = seen.paths();
        paths.sort_unstable();
        paths
    }

    #[test]
    fn a_node_that_was_last_written_before_what_was_seen_is_of_an_old_copy() {
        let seen = seen(&[("/a", 1, 7), ("/b", 2, 9)]);
        for goes_on in [true, false] {
            let now = [Some(stat(1, 7)), Some(stat(2, 8))];
            assert_eq!(seen.lost(&now, goes_on), Some("/b"));
            assert_eq!(seen.lost(&[Some(stat(1, 3)), None], goes_on), Some("/a"));
        }
    }

    #[test]
    fn a_tree_that_has_what_was_seen_and_more_goes_on() {
        let seen = seen(&[("/a", 1, 7), ("/b", 2, 9)]);
        for now in [[Some(stat(1, 7)), Some(stat(2, 12))], [None, Some(stat(14, 15))]] {
            assert_eq!(seen.lost(&now, true), None);
        }
        assert_eq!(NewestSeen::default().lost(&[], true), None);
    }

    /// A copy may be older than the node's present life, as after a restore.
    #[test]
    fn an_earlier_life_of_a_node_is_of_an_old_copy_where_the_numbers_go_on() {
        let seen = seen(&[("/b", 5, 9)]);
        let now = [Some(stat(2, 3))];
        assert_eq!(seen.lost(&now, true), Some("/b"));
        assert_eq!(seen.lost(&now, false), None, "another cluster, whose numbers are its own");
    }

    #[test]
    fn a_node_that_is_gone_or_was_made_anew_says_nothing() {
        let seen = seen(&[("/a", 1, 7), ("/b", 2, 9)]);
        assert_eq!(seen.lost(&[None, Some(stat(4, 4))], false), None);
    }

    #[test]
    fn what_was_seen_later_of_a_node_counts_and_not_what_is_read_of_before() {
        let mut seen = seen(&[("/a", 1, 7), ("/a", 1, 9), ("/a", 1, 8)]);
        assert_eq!(seen.paths(), ["/a"]);
        assert_eq!(seen.lost(&[Some(stat(1, 8))], false), Some("/a"));
        seen.note(0, "/a", &stat(11, 12));
        assert_eq!(seen.lost(&[Some(stat(1, 9))], false), None, "its present life counts");
        assert_eq!(seen.lost(&[Some(stat(11, 11))], false), Some("/a"));
    }

    #[test]
    fn the_history_before_an_empty_tree_is_known_when_it_comes_back() {
        let mut seen = seen(&[("/a", 3, 90)]);
        seen.begin_anew();
        seen.note(0, "/late", &stat(1, 95));
        seen.note(1, "/a", &stat(2, 4));
        assert_eq!(seen.paths(), ["/a", "/a"], "what was asked for before is not heard");
        assert_eq!(seen.lost(&[Some(stat(2, 6)), Some(stat(2, 6))], true), None);
        assert_eq!(seen.lost(&[Some(stat(3, 80)), Some(stat(3, 80))], true), Some("/a"));
    }

    #[test]
    fn what_shows_nothing_is_not_kept() {
        let mut seen = seen(&[("/created", 9, 9)]);
        seen.note(0, "/daemons/hv1", &Stat { ephemeral_owner: 5, ..stat(9, 99) });
        assert_eq!(seen.paths(), Vec::<String>::new());
    }

    #[test]
    fn a_tree_with_what_was_seen_last_is_not_the_former_one() {
        let mut seen = seen(&[("/a", 2, 90)]);
        seen.begin_anew();
        seen.note(1, "/a", &stat(2, 8));
        assert_eq!(seen.lost(&[Some(stat(2, 9)), Some(stat(2, 9))], true), None);
        assert_eq!(seen.lost(&[Some(stat(2, 5)), Some(stat(2, 5))], true), Some("/a"));
        // What was seen for a moment of a third one is no reason to forget the first.
        seen.begin_anew();
        assert_eq!(seen.lost(&[Some(stat(2, 80))], true), Some("/a"));
    }

    #[test]
    fn what_is_written_once_each_does_not_push_a_stamp_out() {
        let mut seen = seen(&[("/stamp", 1, 99)]);
        for number in 0..10 {
            let created = 100 + 2 * number;
            seen.note(0, &format!("/{number}"), &stat(created, created + 1));
        }
        assert!(seen.paths().contains(&"/stamp".to_owned()), "{seen:?}");
    }

    /// A change of many keys, and what is written once, do not push a stamp out.
    #[test]
    fn what_shows_more_copies_stays() {
        let mut seen = seen(&[("/stamp", 1, 50)]);
        for number in 0..20 {
            seen.note(0, &format!("/{number}"), &stat(40, 60));
        }
        assert!(seen.paths().contains(&"/stamp".to_owned()), "{seen:?}");
        seen.note(0, "/stamp", &stat(1, 61));
        seen.note(0, "/later", &stat(55, 70));
        let paths = sorted_paths(&seen);
        assert!(paths.contains(&"/stamp".to_owned()) && paths.contains(&"/later".to_owned()));
        assert_eq!(paths.len(), MOST);
        seen.note(0, "/covered", &stat(60, 65));
        assert_eq!(sorted_paths(&seen), paths, "it shows nothing that others do not");
    }
}
