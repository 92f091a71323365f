//! Groups of keys that have to be shown together, and their order: some may be shown before others.
//!
//! One change of the tree writes several keys, and whoever decides on the new version of one of
//! them must have seen what the change did to the others. So of what was read at one time, whatever
//! may have been written by one change makes one group, and a group is shown as a whole. The tree
//! says by which of its transactions a key was written last, and by how many since it was shown: of
//! a key that was written once that is exact, of one that was written more often, or is gone, it is
//! a span of transactions.
//!
//! Groups that have nothing to do with each other may be shown in any order. So what is decoded at
//! once is shown at once, and what costs more waits for its turn in a [`Queue`], in which it holds
//! up what belongs to it and nothing else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pvc_model::cluster::Cluster;

use crate::raw::{Batch, Raw, RawNode};
use crate::records::{PLACE, Subject};

/// Largest number of bytes that are decoded and shown at one time of what waits for its turn, if it
/// is no single group: a few milliseconds' worth.
const PIECE: usize = 512 << 10;

/// A part that is shown as a whole: a record, or a key that belongs to none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Record(Subject),
    Key(String),
}

impl Part {
    fn of(path: &str) -> Part {
        Subject::of(path).map_or_else(|| Part::Key(path.to_owned()), Part::Record)
    }
}

/// Keys that were read at one time and are shown at one time.
#[derive(Debug, Default)]
pub(crate) struct Group {
    parts: BTreeSet<Part>,
    pub read: Batch,
    /// Approximate number of bytes that it takes to show it.
    pub weight: usize,
    /// The number of the earliest reading of which something is in it.
    since: u64,
}

impl Group {
    pub fn subjects(&self) -> impl Iterator<Item = &Subject> {
        self.parts.iter().filter_map(|part| match part {
            Part::Record(subject) => Some(subject),
            Part::Key(_) => None,
        })
    }

    pub fn touches(&self, other: &Group) -> bool {
        let (few, many) = if self.parts.len() < other.parts.len() {
            (&self.parts, &other.parts)
        } else {
            (&other.parts, &self.parts)
        };
        few.iter().any(|part| many.contains(part))
    }

    /// Takes up a group that is to be shown at the same time; what it read counts.
    fn join(&mut self, mut later: Group) {
        self.parts.append(&mut later.parts);
        self.read.append(&mut later.read);
        self.weight += later.weight;
        self.since = self.since.min(later.since);
    }
}

/// The transactions of the tree of which one may have written a key: those after the first number
/// up to the second. `None` if nobody has since it was shown.
fn written(shown: Option<&RawNode>, read: Option<&RawNode>) -> Option<(i64, i64)> {
    let just = |zxid: i64| Some((zxid.saturating_sub(1), zxid));
    match (shown, read) {
        (None, None) => None,
        (None, Some(read)) if read.version == 0 => just(read.czxid),
        (None, Some(read)) => Some((read.czxid.saturating_sub(1), read.mzxid)),
        // Nobody knows when it went.
        (Some(shown), None) => Some((shown.mzxid, i64::MAX)),
        (Some(shown), Some(read)) if shown.mzxid >= read.mzxid => None,
        (Some(shown), Some(read))
            if shown.czxid == read.czxid && read.version.wrapping_sub(shown.version) == 1 =>
        {
            just(read.mzxid)
        }
        (Some(shown), Some(read)) => Some((shown.mzxid, read.mzxid)),
    }
}

/// Numbers from 0 on, joined into sets of those that belong to one another.
struct Joined(Vec<usize>);

impl Joined {
    fn of(count: usize) -> Joined {
        Joined((0..count).collect())
    }

    fn first(&mut self, mut of: usize) -> usize {
        while self.0[of] != of {
            self.0[of] = self.0[self.0[of]];
            of = self.0[of];
        }
        of
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.first(one), self.first(other));
        self.0[one.max(other)] = one.min(other);
    }
}

/// The groups of what was read, as reading `number`, over what is shown: the lightest first.
pub(crate) fn groups(read: Batch, raw: &Raw, view: &Cluster, number: u64) -> Vec<Group> {
    let mut places: BTreeMap<Part, usize> = BTreeMap::new();
    let mut spans = Vec::new();
    for (path, node) in &read {
        let count = places.len();
        let place = *places.entry(Part::of(path)).or_insert(count);
        if let Some((after, until)) = written(raw.get(path), node.as_ref()) {
            spans.push((after, until, place));
        }
    }
    let mut joined = Joined::of(places.len());
    spans.sort_unstable();
    let mut open: Option<(i64, usize)> = None;
    for (after, until, place) in spans {
        open = match open {
            Some((end, first)) if after < end => {
                joined.join(first, place);
                Some((end.max(until), first))
            }
            _ => Some((until, place)),
        };
    }
    let mut groups: BTreeMap<usize, Group> = BTreeMap::new();
    for (path, node) in read {
        let place = places[&Part::of(&path)];
        let group = groups.entry(joined.first(place)).or_default();
        group.weight += PLACE + node.as_ref().map_or(0, |node| node.data.as_bytes().len());
        group.read.insert(path, node);
    }
    for (part, place) in places {
        let group = groups.entry(joined.first(place)).or_default();
        if let Part::Record(subject) = &part {
            group.weight += subject.weight(raw, view);
        }
        group.since = number;
        group.parts.insert(part);
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by_key(|group| group.weight);
    groups
}

/// Groups that were read and are not shown yet, in the order in which they will be.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: VecDeque<Group>,
}

impl Queue {
    /// Whether something that belongs to `group` waits here.
    pub fn has_part_of(&self, group: &Group) -> bool {
        self.waiting.iter().any(|other| other.touches(group))
    }

    /// Has a group wait for its turn. It is shown together with what waits and belongs to it.
    pub fn push(&mut self, mut group: Group) {
        let mut place = self.waiting.len();
        while let Some(at) = self.waiting.iter().position(|other| other.touches(&group)) {
            if let Some(mut earlier) = self.waiting.remove(at) {
                earlier.join(group);
                group = earlier;
                place = place.min(at);
            }
        }
        self.waiting.insert(place.min(self.waiting.len()), group);
    }

    /// Takes what has its turn: one group, or several that are no more work together than one
    /// piece.
    pub fn next(&mut self) -> Vec<Group> {
        let mut weight = 0;
        let mut next = Vec::new();
        while let Some(group) = self.waiting.front() {
            weight += group.weight;
            if !next.is_empty() && weight > PIECE {
                break;
            }
            next.extend(self.waiting.pop_front());
        }
        next
    }

    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.waiting.iter()
    }
}

/// Whether one of `groups` holds what was read of one of `paths` by the time of reading `number`;
/// of any path if there are none.
pub(crate) fn hold<'a>(
    mut groups: impl Iterator<Item = &'a Group>,
    paths: &[String],
    number: u64,
) -> bool {
    groups.any(|group| {
        let is_early = group.since <= number;
        is_early && (paths.is_empty() || paths.iter().any(|path| group.read.contains_key(path)))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::raw::Value;

    fn node(version: i32, czxid: i64, mzxid: i64) -> RawNode {
        RawNode { data: Value::default(), version, czxid, mzxid }
    }

    const A: &str = "/faults/a/status";
    const B: &str = "/faults/b/status";
    const C: &str = "/faults/c/status";

    /// Returns which paths are shown together, of those that were shown as the first and read as
    /// the second.
    fn together(paths: &[(&str, Option<RawNode>, Option<RawNode>)]) -> Vec<Vec<String>> {
        let (mut raw, mut read) = (Raw::default(), Batch::new());
        for (path, shown, now) in paths {
            if let Some(shown) = shown {
                raw.put(path, shown.clone());
            }
            read.insert((*path).to_owned(), now.clone());
        }
        let groups = groups(read, &raw, &Cluster::default(), 1);
        let mut together: Vec<Vec<String>> =
            groups.into_iter().map(|group| group.read.into_keys().collect()).collect();
        together.sort_unstable();
        together
    }

    #[test]
    fn what_one_transaction_wrote_is_shown_together_and_nothing_else() {
        let shown = Some(node(4, 1, 5));
        let once = |mzxid| Some(node(5, 1, mzxid));
        let made = |zxid| Some(node(0, zxid, zxid));
        for (a, b, are_together) in [
            ((shown.clone(), once(8)), (shown.clone(), once(8)), true),
            ((shown.clone(), once(8)), (shown.clone(), once(9)), false),
            ((None, made(8)), (shown.clone(), once(8)), true),
            ((None, made(8)), (shown.clone(), once(7)), false),
            // Written twice: once of that perhaps with the other.
            ((shown.clone(), Some(node(6, 1, 9))), (shown.clone(), once(8)), true),
            ((shown.clone(), Some(node(6, 1, 9))), (shown.clone(), once(10)), false),
            ((shown.clone(), Some(node(6, 1, 9))), (shown.clone(), Some(node(6, 1, 12))), true),
            // Made anew, or gone: nobody knows when it went.
            ((shown.clone(), Some(node(0, 9, 9))), (shown.clone(), once(7)), true),
            ((shown.clone(), None), (shown.clone(), once(7)), true),
            ((shown.clone(), None), (shown.clone(), None), true),
            ((shown.clone(), None), (Some(node(4, 1, 3)), once(4)), false),
            // Read again, and as it was.
            ((shown.clone(), shown.clone()), (shown.clone(), once(8)), false),
            ((None, None), (shown.clone(), once(8)), false),
        ] {
            let found = together(&[(A, a.0.clone(), a.1.clone()), (B, b.0.clone(), b.1.clone())]);
            let expected = if are_together {
                vec![vec![A.to_owned(), B.to_owned()]]
            } else {
                vec![vec![A.to_owned()], vec![B.to_owned()]]
            };
            assert_eq!(found, expected, "{a:?} {b:?}");
        }
    }

    #[test]
    fn what_belongs_to_one_record_or_to_the_same_others_is_shown_together() {
        let made = |zxid| Some(node(0, zxid, zxid));
        let message = "/faults/a/message";
        let paths = [(A, None, made(3)), (message, None, made(5)), (B, None, made(5))];
        let expected = vec![vec![message.to_owned(), A.to_owned(), B.to_owned()]];
        assert_eq!(together(&paths), expected);
        // Keys of no record stand for themselves.
        let paths = [("/domains", None, made(3)), ("/pvcrs/placement", None, made(4))];
        assert_eq!(together(&paths).len(), 2);
    }

    fn group(paths: &[&str], weight: usize, since: u64) -> Group {
        Group {
            parts: paths.iter().map(|path| Part::of(path)).collect(),
            read: paths.iter().map(|path| ((*path).to_owned(), None)).collect(),
            weight,
            since,
        }
    }

    #[test]
    fn what_belongs_to_what_waits_is_shown_with_it_and_the_others_in_their_turn() {
        let mut queue = Queue::default();
        queue.push(group(&[A], PIECE, 1));
        queue.push(group(&[B], PIECE, 2));
        queue.push(group(&[C], 1, 3));
        assert!(queue.has_part_of(&group(&["/faults/b/message"], 1, 4)));
        queue.push(group(&[B, C], 1, 4));
        let of_a = [A.to_owned()];
        assert!(hold(queue.groups(), &of_a, 1) && !hold(queue.groups(), &of_a, 0));
        assert!(!hold(queue.groups(), &["/faults/x".to_owned()], 9));
        assert!(hold(queue.groups(), &[C.to_owned()], 2), "it is part of an earlier one");
        let paths = |groups: Vec<Group>| -> Vec<String> {
            groups.into_iter().flat_map(|group| group.read.into_keys()).collect()
        };
        assert_eq!(paths(queue.next()), [A]);
        assert_eq!(paths(queue.next()), [B, C]);
        assert!(queue.next().is_empty() && !hold(queue.groups(), &[], 9));
        queue.push(group(&[A], 1, 5));
        queue.push(group(&[B], 1, 6));
        assert_eq!(paths(queue.next()), [A, B], "they are little work together");
    }

    proptest! {
        #[test]
        fn of_whatever_waits_the_latest_reading_comes_out_once(
            steps in proptest::collection::vec(
                (proptest::collection::btree_set("/faults/[a-f]", 1..3), any::<bool>()),
                0..30,
            ),
        ) {
            let (mut queue, mut latest) = (Queue::default(), BTreeMap::new());
            let mut out: Vec<Group> = Vec::new();
            for (number, (paths, is_taken)) in (1..).zip(steps) {
                let mut group = group(&[], PIECE, number);
                for path in paths {
                    let version = i32::try_from(number).unwrap();
                    group.parts.insert(Part::of(&path));
                    group.read.insert(path.clone(), Some(node(version, 1, 1)));
                    latest.insert(path, version);
                }
                queue.push(group);
                let all: Vec<&Group> = queue.groups().collect();
                for (at, group) in all.iter().enumerate() {
                    prop_assert!(all[at + 1..].iter().all(|other| !other.touches(group)));
                }
                if is_taken {
                    out.append(&mut queue.next());
                }
            }
            while let next = queue.next() && !next.is_empty() {
                out.extend(next);
            }
            let mut shown = BTreeMap::new();
            for (path, node) in out.into_iter().flat_map(|group| group.read) {
                let version = node.map_or(0, |node| node.version);
                prop_assert!(shown.insert(path, version) < Some(version), "no step back");
            }
            prop_assert_eq!(shown, latest);
        }
    }
}
