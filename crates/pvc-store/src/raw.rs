//! The tree as this process last saw it: paths, bytes, versions.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use pvc_ports::Entry;

use crate::keys;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RawNode {
    /// Empty for paths that the mirror leaves out.
    pub data: Bytes,
    pub version: i32,
    pub mzxid: i64,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Raw {
    nodes: BTreeMap<String, RawNode>,
}

impl Raw {
    pub fn get(&self, path: &str) -> Option<&RawNode> {
        self.nodes.get(path)
    }

    pub fn contains(&self, path: &str) -> bool {
        self.nodes.contains_key(path)
    }

    /// The value at `path` as text; what is not UTF-8 is replaced. `None` if there is no such node.
    pub fn text(&self, path: &str) -> Option<Cow<'_, str>> {
        self.nodes.get(path).map(|node| String::from_utf8_lossy(&node.data))
    }

    /// Takes over what was read at `path`. An older reading than the present one changes nothing.
    pub fn put(&mut self, path: String, entry: &Entry) {
        let newer = self.nodes.get(&path).is_none_or(|node| node.mzxid <= entry.stat.mzxid);
        if newer {
            let data = if keys::is_left_out(&path) { Bytes::new() } else { entry.data.clone() };
            self.nodes.insert(path, RawNode { data, version: entry.stat.version, mzxid: entry.stat.mzxid });
        }
    }

    /// Notes that `path` is there, without its value or version: it is left out of the mirror.
    pub fn put_unread(&mut self, path: String) {
        self.nodes.insert(path, RawNode { data: Bytes::new(), version: 0, mzxid: 0 });
    }

    /// Removes `path` and everything below it.
    pub fn remove(&mut self, path: &str) {
        for below in self.subtree(path) {
            self.nodes.remove(&below);
        }
    }

    /// `path`, if it exists, and everything below it, parents before children.
    pub fn subtree(&self, path: &str) -> Vec<String> {
        let mut found: Vec<String> =
            self.nodes.contains_key(path).then(|| path.to_owned()).into_iter().collect();
        let prefix = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        let below = self.nodes.range::<str, _>((Bound::Excluded(prefix.as_str()), Bound::Unbounded));
        found.extend(below.map(|(path, _)| path).take_while(|path| path.starts_with(&prefix)).cloned());
        found
    }

    /// The names of the children of `path`, in order.
    pub fn children(&self, path: &str) -> Vec<String> {
        let prefix = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        let mut names = Vec::new();
        let mut from = Bound::Excluded(prefix.clone());
        // Grandchildren are jumped over: `0` is the character after `/`, so `/a/b0` is behind all of `/a/b/…`.
        while let Some((found, _)) = self.nodes.range::<String, _>((from.as_ref(), Bound::Unbounded)).next() {
            let Some(rest) = found.strip_prefix(&prefix) else { break };
            from = match rest.split_once('/') {
                Some((child, _)) => Bound::Included(format!("{prefix}{child}0")),
                None => {
                    names.push(rest.to_owned());
                    Bound::Excluded(found.clone())
                }
            };
        }
        names
    }

    pub fn paths(&self) -> impl Iterator<Item = &String> {
        self.nodes.keys()
    }
}

#[cfg(test)]
mod tests {
    use pvc_ports::Stat;

    use super::*;

    fn raw(paths: &[&str]) -> Raw {
        let mut raw = Raw::default();
        for path in paths {
            raw.put((*path).to_owned(), &Entry { data: Bytes::from_static(b"x"), stat: Stat::default() });
        }
        raw
    }

    #[test]
    fn children_are_the_direct_ones_only_also_beside_look_alikes() {
        let raw = raw(&["/a", "/a/b", "/a/b/c", "/a/b/c/d", "/a/b-2", "/a/b.x/orphan", "/a/b0", "/ab"]);
        assert_eq!(raw.children("/a"), ["b", "b-2", "b0"]);
        assert_eq!(raw.children("/"), ["a", "ab"]);
    }

    #[test]
    fn a_subtree_ends_where_a_longer_name_begins() {
        let mut raw = raw(&["/a", "/a/b", "/a-b", "/a0", "/ab"]);
        assert_eq!(raw.subtree("/a"), ["/a", "/a/b"]);
        raw.remove("/a");
        assert_eq!(raw.paths().collect::<Vec<_>>(), ["/a-b", "/a0", "/ab"]);
    }

    #[test]
    fn an_older_reading_does_not_replace_a_newer_one() {
        let entry = |data: &'static str, mzxid| Entry {
            data: Bytes::from_static(data.as_bytes()),
            stat: Stat { mzxid, ..Stat::default() },
        };
        let mut raw = Raw::default();
        raw.put("/a".into(), &entry("new", 7));
        raw.put("/a".into(), &entry("old", 5));
        assert_eq!(raw.text("/a").as_deref(), Some("new"));
    }
}
