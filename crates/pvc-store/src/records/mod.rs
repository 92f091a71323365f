//! The kinds of records: where each lies in the tree, how it is read and written, and what its keys
//! are to the cache, to a backup and to a restore.
//!
//! All that is known of a kind stands in its file: paths, limits of reading, writes. Whoever works
//! on any path asks the [table](KINDS) which kind it is of. A new kind is a file and a line there;
//! CONTRIBUTING.md has the list of files of a real one.

pub(crate) mod fault;
mod rest;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, LazyLock};

use pvc_model::cluster::Cluster;
use pvc_model::shared_map::SharedMap;

use crate::feed::EventKind;
use crate::keys;
use crate::raw::{Place, Raw};

/// All kinds, in the order in which what changed at one time is announced.
static KINDS: &[Kind] = &[fault::KIND];

/// Keys with their first values, parents first.
pub(crate) type Keys = &'static [(&'static str, &'static str)];

/// A kind of record.
pub(crate) struct Kind {
    /// The paths, of one part or two, below which its keys lie; what lies below a longer root of
    /// another kind is of that one. Records lie below the first root.
    roots: &'static [&'static str],
    /// Keys that every tree of the layout has (`spec/zookeeper.md` §4.1 and §4.6), and those of
    /// ours.
    base: Keys,
    /// Keys that each record has below its own place, with the values that `repair` gives missing
    /// ones.
    keys: Keys,
    /// Names that recur below those keys: memory holds each of them once.
    names: &'static [&'static str],
    /// The name of the record that a key belongs to, always spelt the same; `None` if it belongs to
    /// none.
    record: fn(Key<'_>) -> Option<String>,
    /// Reads the record of that name, over the view that is shown.
    read: fn(&Raw, &Cluster, &str) -> Show,
    /// About how many bytes reading it goes through if everything of it has changed that is not
    /// counted with what was read: its lists, and what is written as one. A record that is costly
    /// is read aside, in its turn.
    weight: fn(&Raw, &Cluster, &str) -> usize,
    /// Brings the view in order after its records were shown.
    settle: fn(&mut Cluster),
    /// Tells that a key is one of many in a list that a record has, or below one: of such as no
    /// decision on another record rests on. There may be any number of them.
    is_of_list: fn(Key<'_>) -> bool,
    /// Tells that the cache keeps the existence of a key only, not its value: a large text that few
    /// read.
    is_left_out: fn(Key<'_>) -> bool,
    /// Tells that a key changes all the time, and that its age counts in seconds.
    is_stamp: fn(Key<'_>) -> bool,
    /// Tells that a key is for those alone who know what one daemon knows: it is not read.
    is_closed: fn(Key<'_>) -> bool,
    /// Tells that a node writes a key, because it is so, and not an operator, because it is to be
    /// so: a restore leaves what is there. What a daemon needs to find its way (jobs, moves, notes)
    /// belongs to it.
    is_observed: fn(Key<'_>) -> bool,
    /// The key with a secret that a record has if it has this one: a dump may be without it, a
    /// restored record is not.
    secret_beside: fn(Key<'_>) -> Option<String>,
}

/// A kind that the view does not show and whose keys are nothing special: others are made of it.
const PLAIN: Kind = Kind {
    roots: &[],
    base: &[],
    keys: &[],
    names: &[],
    record: |_| None,
    read: |_, _, _| Box::new(|_| None),
    weight: |_, _, _| RECORD,
    settle: |_| {},
    is_of_list: |_| false,
    is_left_out: |_| false,
    is_stamp: |_| false,
    is_closed: |_| false,
    is_observed: |_| false,
    secret_beside: |_| None,
};

/// A path, as the kind sees it that it is of.
#[derive(Clone, Copy)]
pub(crate) struct Key<'a> {
    /// The parts below the root: empty where there are no more, and the last has all that follow.
    below: [&'a str; 4],
}

impl<'a> Key<'a> {
    fn new(below: &'a str) -> Key<'a> {
        let mut parts = below.splitn(4, '/');
        Key { below: std::array::from_fn(|_| parts.next().unwrap_or_default()) }
    }

    fn is_root(self) -> bool {
        self.below[0].is_empty()
    }

    /// The first part below the root, if there is one.
    fn first(self) -> Option<&'a str> {
        Some(self.below[0]).filter(|part| !part.is_empty())
    }
}

/// Puts what was read of a record into a view. What it is called in an event and whether it is
/// gone, if that changes the view.
pub(crate) type Show = Box<dyn FnOnce(&mut Cluster) -> Option<(EventKind, bool)> + Send>;

/// Shows `record` at `key` of a map of the view, and announces it as `what`.
fn show<K, V>(
    map: fn(&mut Cluster) -> &mut SharedMap<K, Arc<V>>,
    key: K,
    record: Option<V>,
    what: EventKind,
) -> Show
where
    K: Ord + Clone + Send + 'static,
    V: PartialEq + Send + Sync + 'static,
{
    let record = record.map(Arc::new);
    Box::new(move |view| update(map(view), key, record).map(|gone| (what, gone)))
}

/// Puts `record` in the place of what was at `key`. Whether it is gone, if anything changed.
fn update<K: Ord + Clone, V: PartialEq>(
    map: &mut SharedMap<K, Arc<V>>,
    key: K,
    record: Option<Arc<V>>,
) -> Option<bool> {
    match record {
        // What is not there is not taken away: that would copy a map in which nothing changes.
        None if !map.contains_key(&key) => None,
        None => map.remove(&key).map(|_| true),
        Some(record) if map.get(&key) == Some(&record) => None,
        Some(record) => {
            map.insert(key, record);
            Some(false)
        }
    }
}

/// The weight of a place in the tree beside its value, in bytes: to put it among a hundred thousand
/// others, to take it away, or to read it, costs as much as to decode a short value.
pub(crate) const PLACE: usize = 64;

/// The weight of the keys that every record has, together.
const RECORD: usize = 16 * PLACE;

/// How many bytes lie at `key`.
fn bytes_at(place: Place<'_>, key: &str) -> usize {
    place.get(key).map_or(0, |node| node.data.as_bytes().len())
}

/// The place in the table of the kind that each root belongs to.
static ROOTS: LazyLock<BTreeMap<&str, usize>> = LazyLock::new(|| {
    let roots = |(at, kind): (usize, &Kind)| kind.roots.iter().map(move |root| (*root, at));
    KINDS.iter().enumerate().flat_map(roots).collect()
});

/// The kind that `path` is of, by its place in the table; `None` if it is of none.
fn find(path: &str) -> Option<(usize, Key<'_>)> {
    let end = |from: usize| {
        path.get(from..).map(|rest| rest.find('/').map_or(path.len(), |at| from + at))
    };
    let first = end(1)?;
    [end(first + 1), Some(first)].into_iter().flatten().find_map(|end| {
        let at = ROOTS.get(&path[..end])?;
        Some((*at, Key::new(path.get(end + 1..).unwrap_or_default())))
    })
}

/// What the kind of `path` says of it; that of a [plain](PLAIN) one if it is of none.
fn ask<'a, T>(path: &'a str, what: impl Fn(&Kind, Key<'a>) -> T) -> T {
    match find(path) {
        Some((at, key)) => what(&KINDS[at], key),
        None => what(&PLAIN, Key::new(path)),
    }
}

/// The record that a path belongs to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// One of a kind that has no file yet.
    Rest(rest::Subject),
    /// One of the kind that has this place in the table.
    Of(usize, String),
}

impl Subject {
    pub fn of(path: &str) -> Option<Subject> {
        let Some((kind, key)) = find(path) else {
            return rest::Subject::of(path).map(Subject::Rest);
        };
        (KINDS[kind].record)(key).map(|name| Subject::Of(kind, name))
    }

    pub fn weight(&self, raw: &Raw, view: &Cluster) -> usize {
        match self {
            Subject::Rest(subject) => subject.weight(raw, view),
            Subject::Of(kind, name) => (KINDS[*kind].weight)(raw, view, name),
        }
    }

    /// Reads the record. `None` if it makes our decoder panic: it must not take the view of all
    /// others with it, and is shown as it was.
    pub fn read(&self, raw: &Raw, view: &Cluster) -> Option<Show> {
        let read = || match self {
            Subject::Of(kind, name) => (KINDS[*kind].read)(raw, view, name),
            Subject::Rest(subject) => {
                let (subject, record) = (subject.clone(), subject.record(raw, view));
                let show: Show = Box::new(|view| subject.show(record, view));
                show
            }
        };
        let read = std::panic::catch_unwind(AssertUnwindSafe(read));
        read.inspect_err(|_| {
            tracing::error!(record = ?self, "a record could not be read by a bug of this \
                                             program; it is shown as it was")
        })
        .ok()
    }
}

/// The path of the record.
impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Rest(subject) => subject.fmt(f),
            Subject::Of(kind, name) => write!(f, "{}/{name}", KINDS[*kind].roots[0]),
        }
    }
}

/// Brings a view in order in which everything was shown that has changed.
pub(crate) fn settle(view: &mut Cluster) {
    rest::show_hidden(view);
    KINDS.iter().for_each(|kind| (kind.settle)(view));
}

pub(crate) fn is_of_list(path: &str) -> bool {
    if find(path).is_none() {
        return keys::is_of_list(path);
    }
    ask(path, |kind, key| (kind.is_of_list)(key))
}

/// Tells that the cache keeps only the existence of `path`, not its value: what its kind leaves
/// out, and lock nodes.
pub(crate) fn is_left_out(path: &str) -> bool {
    if find(path).is_none() {
        return keys::is_left_out(path);
    }
    ask(path, |kind, key| (kind.is_left_out)(key))
}

pub(crate) fn is_stamp(path: &str) -> bool {
    if find(path).is_none() {
        return keys::is_stamp(path);
    }
    ask(path, |kind, key| (kind.is_stamp)(key))
}

/// Tells that `path` lies in a subtree that belongs to another program, or is for those alone who
/// know what one daemon knows.
pub(crate) fn is_foreign(path: &str) -> bool {
    if find(path).is_none() {
        return keys::is_foreign(path);
    }
    ask(path, |kind, key| (kind.is_closed)(key))
}

pub(crate) fn is_observed(path: &str) -> bool {
    if find(path).is_none() {
        return keys::is_observed(path);
    }
    ask(path, |kind, key| (kind.is_observed)(key))
}

pub(crate) fn secret_beside(path: &str) -> Option<String> {
    ask(path, |kind, key| (kind.secret_beside)(key))
}

/// Tells that `path` holds what opens something else.
pub(crate) fn is_secret(path: &str) -> bool {
    if find(path).is_none() {
        return keys::is_secret(path);
    }
    secret_beside(path).is_some_and(|secret| secret == path)
}

/// The keys that every tree of the layout has, with first values, parents first.
pub(crate) fn base() -> impl Iterator<Item = (&'static str, &'static str)> {
    keys::BASE.iter().chain(KINDS.iter().flat_map(|kind| kind.base)).copied()
}

/// The keys that the records of `raw` have or should have, with the values of missing ones, parents
/// first.
pub(crate) fn keys_of_records(raw: &Raw) -> Vec<(String, &'static str)> {
    let of_kind = |kind: &'static Kind| {
        let names = kind.roots.first().filter(|_| !kind.keys.is_empty());
        let places = names.into_iter().flat_map(|root| {
            raw.children(root).into_iter().map(move |name| format!("{root}/{name}"))
        });
        places.flat_map(|place| {
            kind.keys.iter().map(move |(key, value)| (format!("{place}/{key}"), *value))
        })
    };
    KINDS.iter().flat_map(of_kind).collect()
}

/// The parts of the keys that every record of a kind has.
static KNOWN_NAMES: LazyLock<BTreeSet<Arc<str>>> = LazyLock::new(|| {
    let of_kind = |kind: &'static Kind| {
        let of_records = kind.keys.iter().flat_map(|(key, _)| key.split('/'));
        of_records.chain(kind.names.iter().copied())
    };
    KINDS.iter().flat_map(of_kind).map(Arc::from).collect()
});

/// `name`; always the same one if it is one that many records have.
pub(crate) fn shared_name(name: &str) -> Arc<str> {
    KNOWN_NAMES.get(name).cloned().unwrap_or_else(|| keys::shared_name(name))
}
