//! The tree as this process last saw it: names, values, versions.
//!
//! This is most of what a daemon keeps in memory, so it is kept small: a path is not written out
//! for every node, the names that each record has stand in the program, and a text is the same one
//! that the record made of it has. A copy costs nothing but what is changed in it afterwards, so
//! that the next view can be made beside the one that is read.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use pvc_ports::Entry;

use crate::keys;

/// What a node holds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Text(Arc<str>),
    /// What is not UTF-8. Behind one more pointer, so that it costs the others no place.
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

    /// As text; what is not UTF-8 is replaced.
    fn text(&self) -> Cow<'_, str> {
        match self {
            Value::Text(text) => Cow::Borrowed(text),
            Value::Other(bytes) => String::from_utf8_lossy(bytes),
        }
    }
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

/// How many of those are known at most.
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

#[derive(Debug, Clone, Default)]
pub(crate) struct Raw {
    root: Branch,
}

/// A place in the tree with everything below it.
#[derive(Debug, Clone, Default)]
struct Branch {
    /// `None` where only something below was read.
    node: Option<RawNode>,
    /// `None` for most.
    children: Option<Arc<Children>>,
}

/// What is one level below a place, by name, in order.
#[derive(Debug, Clone, Default)]
struct Children(Vec<(Arc<str>, Branch)>);

impl Children {
    fn find(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| (**other).cmp(name))
    }

    fn insert(&mut self, at: usize, name: &str) {
        // Doubling would leave a third of all memory empty.
        if self.0.len() == self.0.capacity() {
            self.0.reserve_exact(self.0.len() / 8 + 1);
        }
        self.0.insert(at, (keys::shared_name(name), Branch::default()));
    }
}

impl Branch {
    fn children(&self) -> impl Iterator<Item = &(Arc<str>, Branch)> {
        self.children.iter().flat_map(|children| &children.0)
    }

    fn child(&self, name: &str) -> Option<&Branch> {
        let children = self.children.as_ref()?;
        children.find(name).ok().map(|at| &children.0[at].1)
    }

    /// The child `name`, made if it is missing.
    fn child_mut(&mut self, name: &str) -> &mut Branch {
        let children = Arc::make_mut(self.children.get_or_insert_default());
        let at = children.find(name).unwrap_or_else(|at| {
            children.insert(at, name);
            at
        });
        &mut children.0[at].1
    }

    /// Calls `visit` for this place, which has the path `path`, and all below it, parents before
    /// children.
    fn walk<'a>(&'a self, path: &mut String, visit: &mut impl FnMut(&str, &'a RawNode)) {
        if let Some(node) = &self.node {
            visit(if path.is_empty() { "/" } else { path }, node);
        }
        let length = path.len();
        for (name, child) in self.children() {
            path.push('/');
            path.push_str(name);
            child.walk(path, visit);
            path.truncate(length);
        }
    }

    /// Takes the values of `other` where they are the same.
    fn share(&mut self, other: &Branch) {
        if let (Some(node), Some(known)) = (&mut self.node, &other.node)
            && node.data == known.data
        {
            node.data = known.data.clone();
        }
        let children = self.children.as_mut().map(Arc::make_mut);
        for (name, child) in children.into_iter().flat_map(|children| &mut children.0) {
            if let Some(known) = other.child(name) {
                child.share(known);
            }
        }
    }
}

/// A place to read from, by paths below it: records are read key by key, and the way to them is the
/// same.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a>(Option<&'a Branch>);

impl<'a> Place<'a> {
    fn branch(self, key: &str) -> Option<&'a Branch> {
        parts(key).try_fold(self.0?, Branch::child)
    }

    pub fn get(self, key: &str) -> Option<&'a RawNode> {
        self.branch(key)?.node.as_ref()
    }

    /// The names of the children of `key`, in order.
    pub fn children(self, key: &str) -> Vec<String> {
        let is_there = |(_, child): &&(_, Branch)| child.node.is_some();
        let names = self.branch(key).into_iter().flat_map(Branch::children).filter(is_there);
        names.map(|(name, _)| name.as_ref().to_owned()).collect()
    }
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

impl Raw {
    pub fn place(&self, path: &str) -> Place<'_> {
        Place(Place(Some(&self.root)).branch(path))
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

    /// Takes over what was read at `path`. An older reading than the present one changes nothing.
    pub fn put(&mut self, path: &str, entry: &Entry) {
        let branch = self.branch_mut(path);
        let known = branch.node.take();
        if known.as_ref().is_some_and(|known| known.mzxid > entry.stat.mzxid) {
            branch.node = known;
            return;
        }
        let read = if keys::is_left_out(path) { &[] } else { &entry.data[..] };
        let same = known.map(|known| known.data).filter(|known| known.as_bytes() == read);
        let data = same.unwrap_or_else(|| Value::new(read));
        let stat = &entry.stat;
        branch.node =
            Some(RawNode { data, version: stat.version, czxid: stat.czxid, mzxid: stat.mzxid });
    }

    /// Notes that `path` is there, without its value or version: it is left out of the cache.
    pub fn put_unread(&mut self, path: &str) {
        self.branch_mut(path).node =
            Some(RawNode { data: Value::default(), version: 0, czxid: 0, mzxid: 0 });
    }

    /// Takes over what was read at `path`, also that nothing is there.
    pub fn take_over(&mut self, path: &str, read: Option<&Entry>) {
        match read {
            Some(entry) => self.put(path, entry),
            None => self.remove(path),
        }
    }

    /// Removes `path` and everything below it.
    pub fn remove(&mut self, path: &str) {
        if path == "/" {
            self.root = Branch::default();
            return;
        }
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let place =
            self.branch(parent).and_then(|parent| parent.children.as_ref()?.find(name).ok());
        if let Some(at) = place
            && let Some(children) = &mut self.branch_mut(parent).children
        {
            Arc::make_mut(children).0.remove(at);
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
        self.place(path).children("")
    }

    /// Calls `visit` for each node, parents before children.
    pub fn each<'a>(&'a self, mut visit: impl FnMut(&str, &'a RawNode)) {
        self.root.walk(&mut String::new(), &mut visit);
    }

    /// Takes the values of `other` where they are the same: who has made something of those keeps
    /// them anyway.
    pub fn share(&mut self, other: &Raw) {
        self.root.share(&other.root);
    }
}

#[cfg(test)]
mod tests {
    use pvc_ports::Stat;

    use super::*;

    fn raw(paths: &[&str]) -> Raw {
        raw_with(paths, "x")
    }

    fn raw_with(paths: &[&str], data: &'static str) -> Raw {
        let mut raw = Raw::default();
        for path in paths {
            raw.put(
                path,
                &Entry { data: Bytes::from_static(data.as_bytes()), stat: Stat::default() },
            );
        }
        raw
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
        raw.put("/e", &Entry { data: Bytes::from_static(b"y"), stat: Stat::default() });
        assert_eq!(before.subtree("/"), ["/a", "/a/b", "/a/b/c", "/d"]);
        assert_eq!(raw.subtree("/"), ["/a", "/d", "/e"]);
    }

    #[test]
    fn an_older_reading_does_not_replace_a_newer_one() {
        let entry = |data: &'static str, mzxid| Entry {
            data: Bytes::from_static(data.as_bytes()),
            stat: Stat { mzxid, ..Stat::default() },
        };
        let mut raw = Raw::default();
        raw.put("/a", &entry("new", 7));
        raw.put("/a", &entry("old", 5));
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
        raw.put("/a", &Entry { data: Bytes::from_static(b"\xff1"), stat: Stat::default() });
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
        let data = "a text that is too long to be looked up";
        let (first, mut second) =
            (raw_with(&["/a", "/b/c"], data), raw_with(&["/b/c", "/d"], data));
        second.share(&first);
        assert!(Arc::ptr_eq(&text(&first, "/b/c"), &text(&second, "/b/c")));
        let before = text(&second, "/d");
        let stat = Stat { mzxid: 3, ..Stat::default() };
        second.put("/d", &Entry { data: Bytes::from_static(data.as_bytes()), stat });
        assert!(Arc::ptr_eq(&before, &text(&second, "/d")));
    }
}
