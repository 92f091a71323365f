//! The tree as this process last saw it: names, values, versions.
//!
//! This is most of what a daemon keeps in memory, so it is kept small: a path is not written out
//! for every node, the names that each record has stand in the program, and a text is the same one
//! that the record made of it has. A copy costs nothing but what is changed in it afterwards, so
//! that the next view can be made beside the one that is read.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use pvc_ports::{Entry, Stat};

use crate::keys;
use crate::names::Names;
use crate::records;

/// The value of a node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Text(Arc<str>),
    /// Bytes that are not UTF-8. Behind one more pointer, so that they cost the others no place.
    Other(Box<Box<[u8]>>),
}

impl Value {
    /// Always a copy: what was read may be a small part of a large answer, and would keep all of
    /// it.
    fn new(data: &[u8]) -> Value {
        match std::str::from_utf8(data) {
            Ok("") => Value::default(),
            Ok(text) => Value::Text(shared_text(text)),
            Err(_) => Value::Other(Box::new(data.into())),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Value::Text(text) => text.as_bytes(),
            Value::Other(bytes) => bytes,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.as_bytes().is_empty()
    }

    pub fn to_bytes(&self) -> Bytes {
        Bytes::copy_from_slice(self.as_bytes())
    }

    /// Returns it as text; what is not UTF-8 is replaced.
    fn text(&self) -> Cow<'_, str> {
        match self {
            Value::Text(text) => Cow::Borrowed(text),
            Value::Other(bytes) => lossy(bytes),
        }
    }
}

/// Largest number of bytes that are shown as text of what is none.
const MOST_LOSSY: usize = 64 << 10;

/// The beginning of `bytes` as text, with what is not UTF-8 replaced.
pub(crate) fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MOST_LOSSY)])
}

impl PartialEq<Bytes> for Value {
    fn eq(&self, other: &Bytes) -> bool {
        self.as_bytes() == other
    }
}

impl Default for Value {
    fn default() -> Value {
        Value::Text(Arc::default()) // every empty text is the same one
    }
}

/// Up to so many bytes a text may be one that many records hold: a state, a flag, a node's name, a
/// small number.
const SHORT: usize = 12;

/// Number of those that are known at most.
const KNOWN: usize = 1_000;

/// `text`; if it is short, the same one as elsewhere, as a rule.
fn shared_text(text: &str) -> Arc<str> {
    static TEXTS: Mutex<BTreeSet<Arc<str>>> = Mutex::new(BTreeSet::new());
    if text.len() > SHORT {
        return text.into();
    }
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.get(text) {
        return known.clone();
    }
    if texts.len() >= KNOWN {
        // Besides this table: what nobody but one record holds is worth no place.
        texts.retain(|text| Arc::strong_count(text) > 2);
    }
    let text: Arc<str> = text.into();
    if texts.len() < KNOWN {
        texts.insert(text.clone());
    }
    text
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RawNode {
    /// Empty for paths that the cache leaves out.
    pub data: Value,
    pub version: i32,
    pub czxid: i64,
    pub mzxid: i64,
}

impl RawNode {
    /// Returns what was read at `path`, without what the cache leaves out.
    pub fn read(path: &str, entry: &Entry) -> RawNode {
        let data = if records::is_left_out(path) { &[] } else { &entry.data[..] };
        let Stat { version, czxid, mzxid, .. } = entry.stat;
        RawNode { data: Value::new(data), version, czxid, mzxid }
    }

    /// Whether nobody has written between the two readings of one path.
    fn is_as(&self, other: &RawNode) -> bool {
        (self.version, self.czxid, self.mzxid) == (other.version, other.czxid, other.mzxid)
    }
}

/// Nodes that were read, by path; `None` where nothing is.
pub(crate) type Batch = BTreeMap<String, Option<RawNode>>;

#[derive(Debug, Clone, Default)]
pub(crate) struct Raw {
    root: Branch,
}

/// A place in the tree with everything below it. Nothing lies deeper than
/// [`MAX_DEPTH`](keys::MAX_DEPTH), so whatever goes from parent to child here may call itself.
#[derive(Debug, Clone, Default)]
struct Branch {
    /// `None` where only something below was read.
    node: Option<RawNode>,
    /// Branches one level below, by name, in order. `None` for most.
    children: Option<Arc<Names<Branch>>>,
}

impl Branch {
    fn children(&self) -> impl Iterator<Item = &(Arc<str>, Branch)> {
        self.children.iter().flat_map(|children| children.iter())
    }

    fn child(&self, name: &str) -> Option<&Branch> {
        self.children.as_ref()?.get(name)
    }

    /// The child `name`, made if it is missing.
    fn child_mut(&mut self, name: &str) -> &mut Branch {
        let children = Arc::make_mut(self.children.get_or_insert_default());
        children.get_or_insert(name, || (records::shared_name(name), Branch::default()))
    }

    /// Calls `visit` for this place, which has the path `path`, and all below it, parents before
    /// children.
    fn walk<'a>(&'a self, path: &mut String, visit: &mut impl FnMut(&str, &'a RawNode)) {
        if let Some(node) = &self.node {
            visit(if path.is_empty() { "/" } else { path }, node);
        }
        for (name, child) in self.children() {
            below(path, name, |path| child.walk(path, visit));
        }
    }
}

/// Does `work` with the path of the child `name` of `path`.
fn below(path: &mut String, name: &str, work: impl FnOnce(&mut String)) {
    let length = path.len();
    path.push('/');
    path.push_str(name);
    work(path);
    path.truncate(length);
}

/// Calls `tell` with whatever is another at `path` and below in `now` than it was in `before`,
/// parents before children.
fn differ<'a>(
    before: Option<&Branch>,
    now: Option<&'a Branch>,
    path: &mut String,
    tell: &mut impl FnMut(&str, Option<&'a RawNode>),
) {
    let (old, new) = (before.and_then(|b| b.node.as_ref()), now.and_then(|b| b.node.as_ref()));
    let is_same = match (old, new) {
        (Some(old), Some(new)) => old.is_as(new),
        (old, new) => old.is_none() && new.is_none(),
    };
    if !is_same {
        tell(if path.is_empty() { "/" } else { path }, new);
    }
    let mut old = before.into_iter().flat_map(Branch::children).peekable();
    let mut new = now.into_iter().flat_map(Branch::children).peekable();
    loop {
        let (first, second) = (old.peek().map(|(name, _)| name), new.peek().map(|(name, _)| name));
        let name = match (first, second) {
            (None, None) => return,
            (Some(name), None) | (None, Some(name)) => name.clone(),
            (Some(first), Some(second)) => first.min(second).clone(),
        };
        let old = old.next_if(|(other, _)| *other == name).map(|(_, child)| child);
        let new = new.next_if(|(other, _)| *other == name).map(|(_, child)| child);
        below(path, &name, |path| differ(old, new, path, tell));
    }
}

/// A place to read from, by paths below it: records are read key by key, and the way to them is the
/// same.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a>(Option<&'a Branch>);

impl<'a> Place<'a> {
    pub fn below(self, key: &str) -> Place<'a> {
        Place(self.0.and_then(|branch| parts(key).try_fold(branch, Branch::child)))
    }

    pub fn node(self) -> Option<&'a RawNode> {
        self.0?.node.as_ref()
    }

    pub fn get(self, key: &str) -> Option<&'a RawNode> {
        self.below(key).node()
    }

    /// The names of the children of `key`, in order.
    pub fn children(self, key: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let is_there = |(_, child): &&(_, Branch)| child.node.is_some();
        let names = self.below(key).0.into_iter().flat_map(Branch::children).filter(is_there);
        names.map(|(name, _)| &**name)
    }

    /// Number of children that `key` has at most: some may only have something below them.
    pub fn width(self, key: &str) -> usize {
        let children = self.below(key).0.and_then(|branch| branch.children.as_ref());
        children.map_or(0, |children| children.len())
    }
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

impl Raw {
    pub fn place(&self, path: &str) -> Place<'_> {
        Place(Some(&self.root)).below(path)
    }

    fn branch(&self, path: &str) -> Option<&Branch> {
        self.place(path).0
    }

    fn branch_mut(&mut self, path: &str) -> &mut Branch {
        parts(path).fold(&mut self.root, Branch::child_mut)
    }

    pub fn get(&self, path: &str) -> Option<&RawNode> {
        self.branch(path)?.node.as_ref()
    }

    pub fn contains(&self, path: &str) -> bool {
        self.get(path).is_some()
    }

    /// The value at `path` as text; what is not UTF-8 is replaced. `None` if there is no such node.
    pub fn text(&self, path: &str) -> Option<Cow<'_, str>> {
        self.get(path).map(|node| node.data.text())
    }

    /// Takes over what was read at `path`, unless it is [too deep](keys::is_too_deep). An older
    /// reading than the present one changes nothing.
    pub fn put(&mut self, path: &str, node: RawNode) {
        if keys::is_too_deep(path) {
            return;
        }
        let present = &mut self.branch_mut(path).node;
        match present {
            Some(known) if known.mzxid > node.mzxid => {}
            // Who has made something of the known value keeps it anyway.
            Some(known) if known.data == node.data => {
                *known = RawNode { data: known.data.clone(), ..node };
            }
            _ => *present = Some(node),
        }
    }

    /// Notes that `path` is there, without its value or version: it is left out of the cache.
    pub fn put_unread(&mut self, path: &str) {
        self.put(path, RawNode { data: Value::default(), version: 0, czxid: 0, mzxid: 0 });
    }

    /// Takes over what was read, also that nothing is there.
    pub fn take_over(&mut self, batch: &Batch) {
        for (path, read) in batch {
            match read {
                Some(node) => self.put(path, node.clone()),
                None => self.remove(path),
            }
        }
    }

    /// Removes `path` and everything below it.
    pub fn remove(&mut self, path: &str) {
        if path == "/" {
            self.root = Branch::default();
            return;
        }
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        if self.branch(parent).is_none_or(|parent| parent.child(name).is_none()) {
            return; // nothing is copied
        }
        let parent = self.branch_mut(parent);
        if let Some(children) = &mut parent.children {
            let children = Arc::make_mut(children);
            children.remove(name);
            if children.is_empty() {
                parent.children = None;
            }
        }
    }

    /// `path`, if it exists, and everything below it, parents before children.
    pub fn subtree(&self, path: &str) -> Vec<String> {
        let mut found = Vec::new();
        if let Some(branch) = self.branch(path) {
            branch.walk(&mut path.trim_end_matches('/').to_owned(), &mut |path, _| {
                found.push(path.to_owned())
            });
        }
        found
    }

    /// The names of the children of `path`, in order.
    pub fn children(&self, path: &str) -> Vec<String> {
        self.place(path).children("").map(str::to_owned).collect()
    }

    /// Calls `visit` for each node, parents before children.
    pub fn each<'a>(&'a self, mut visit: impl FnMut(&str, &'a RawNode)) {
        self.root.walk(&mut String::new(), &mut visit);
    }

    /// Returns what is to be taken over into `before` to make it what this is.
    pub fn since(&self, before: &Raw) -> Batch {
        let mut batch = Batch::new();
        differ(Some(&before.root), Some(&self.root), &mut String::new(), &mut |path, node| {
            batch.insert(path.to_owned(), node.cloned());
        });
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(paths: &[&str]) -> Raw {
        raw_with(paths, "x")
    }

    fn raw_with(paths: &[&str], data: &'static str) -> Raw {
        let mut raw = Raw::default();
        for path in paths {
            raw.put(path, node(path, data.as_bytes(), 0));
        }
        raw
    }

    fn node(path: &str, data: &'static [u8], mzxid: i64) -> RawNode {
        let stat = Stat { mzxid, ..Stat::default() };
        RawNode::read(path, &Entry { data: Bytes::from_static(data), stat })
    }

    #[test]
    fn children_are_the_direct_ones_only_also_beside_look_alikes() {
        let raw =
            raw(&["/a", "/a/b", "/a/b/c", "/a/b/c/d", "/a/b-2", "/a/b.x/orphan", "/a/b0", "/ab"]);
        assert_eq!(raw.children("/a"), ["b", "b-2", "b0"]);
        assert_eq!(raw.children("/"), ["a", "ab"]);
    }

    #[test]
    fn a_subtree_ends_where_a_longer_name_begins() {
        let mut raw = raw(&["/a", "/a/b", "/a-b", "/a0", "/ab"]);
        assert_eq!(raw.subtree("/a"), ["/a", "/a/b"]);
        raw.remove("/a");
        assert_eq!(raw.subtree("/"), ["/a-b", "/a0", "/ab"]);
        raw.remove("/never/there");
        raw.remove("/");
        assert_eq!(raw.subtree("/"), Vec::<String>::new());
    }

    #[test]
    fn a_copy_keeps_what_it_was_made_of() {
        let mut raw = raw(&["/a", "/a/b", "/a/b/c", "/d"]);
        let before = raw.clone();
        raw.remove("/a/b");
        raw.put("/e", node("/e", b"y", 0));
        assert_eq!(before.subtree("/"), ["/a", "/a/b", "/a/b/c", "/d"]);
        assert_eq!(raw.subtree("/"), ["/a", "/d", "/e"]);
    }

    #[test]
    fn an_older_reading_does_not_replace_a_newer_one() {
        let mut raw = Raw::default();
        raw.put("/a", node("/a", b"new", 7));
        raw.put("/a", node("/a", b"old", 5));
        assert_eq!(raw.text("/a").as_deref(), Some("new"));
    }

    #[test]
    fn a_place_above_what_was_read_is_not_there_itself() {
        let mut raw = raw(&["/a/b/c"]);
        assert!(raw.contains("/a/b/c") && !raw.contains("/a/b") && !raw.contains("/"));
        assert_eq!(raw.subtree("/a"), ["/a/b/c"]);
        raw.remove("/a/b");
        assert_eq!(raw.subtree("/"), Vec::<String>::new());
    }

    #[test]
    fn what_is_not_text_is_kept_as_it_is() {
        let mut raw = Raw::default();
        raw.put("/a", node("/a", b"\xff1", 0));
        assert_eq!(raw.text("/a").as_deref(), Some("\u{fffd}1"));
        assert_eq!(raw.get("/a").unwrap().data.to_bytes(), b"\xff1"[..]);
    }

    fn text(raw: &Raw, path: &str) -> Arc<str> {
        match &raw.get(path).unwrap().data {
            Value::Text(text) => text.clone(),
            Value::Other(_) => panic!("it is text"),
        }
    }

    #[test]
    fn a_short_text_that_two_records_hold_is_one_text() {
        let raw = raw(&["/a", "/b"]);
        assert!(Arc::ptr_eq(&text(&raw, "/a"), &text(&raw, "/b")));
        // However many there are that only one record holds.
        let many: Vec<Arc<str>> =
            (0..2 * KNOWN).map(|number| shared_text(&format!("n{number}"))).collect();
        assert_eq!(many.len(), 2 * KNOWN);
        assert!(Arc::ptr_eq(&shared_text("x"), &text(&raw, "/a")));
        assert!(Arc::ptr_eq(&shared_text("y"), &shared_text("y")), "there is room for another");
    }

    #[test]
    fn a_second_reading_of_the_same_text_is_no_second_text() {
        let mut raw = raw_with(&["/a"], "a text that is too long to be looked up");
        let before = text(&raw, "/a");
        raw.put("/a", node("/a", b"a text that is too long to be looked up", 3));
        assert!(Arc::ptr_eq(&before, &text(&raw, "/a")));
        assert_eq!(raw.get("/a").unwrap().mzxid, 3);
    }

    #[test]
    fn what_is_deeper_than_the_layout_needs_is_left_out() {
        let mut raw = raw(&["/a"]);
        let deep = "/a".repeat(keys::MAX_DEPTH);
        for path in [&deep, &format!("{deep}/a"), &"/a".repeat(10_000)] {
            raw.put(path, node(path, b"x", 0));
        }
        assert_eq!(raw.subtree("/"), ["/a".to_owned(), deep]);
    }

    proptest::proptest! {
        #[test]
        fn what_is_taken_over_of_a_later_tree_makes_an_earlier_one_the_same(
            first in proptest::collection::btree_set("(/[ab]){1,4}", 0..20),
            steps in proptest::collection::vec(("(/[ab]){1,4}", proptest::bool::ANY), 0..20),
        ) {
            let listed = |raw: &Raw| {
                let mut nodes = Vec::new();
                raw.each(|path, node| nodes.push((path.to_owned(), node.clone())));
                nodes
            };
            let mut before = raw(&first.iter().map(String::as_str).collect::<Vec<_>>());
            let mut after = before.clone();
            for (mzxid, (path, is_put)) in (1..).zip(&steps) {
                if *is_put {
                    after.put(path, node(path, b"y", mzxid));
                } else {
                    after.remove(path);
                }
            }
            before.take_over(&after.since(&before));
            proptest::prop_assert_eq!(listed(&before), listed(&after));
            proptest::prop_assert!(after.since(&before).is_empty());
        }
    }
}
