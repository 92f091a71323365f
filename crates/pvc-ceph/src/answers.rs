//! Output of `rbd`, in values.

use pvc_model::storage::{PoolName, SnapshotName, VolumeId, VolumeName};
use pvc_ports::{SnapshotInfo, VolumeInfo, VolumeLock};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::librbd::FoundSnapshot;

/// Reads JSON, or says what kept it from being that. Figures that are no numbers may be bare words,
/// and lines for people may come first.
pub(crate) fn json<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let read = strict(text).or_else(|error| match behind_said(text) {
        Some(rest) => strict(rest),
        None => Err(error),
    });
    read.map_err(|error| format!("its answer is not understood: {error}"))
}

fn strict<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(text).or_else(|error| match nulled(text) {
        Some(text) => serde_json::from_slice(&text),
        None => Err(error),
    })
}

/// Part of a text behind the lines for people that begin it, such as warnings: from the first line
/// on that begins a list or an object. `None` if no such line comes first.
fn behind_said(text: &[u8]) -> Option<&[u8]> {
    let begins = |line: &[u8]| matches!(line.trim_ascii_start(), [b'{', ..] | [b'[', ..]);
    let mut at = 0;
    for line in text.split_inclusive(|letter| *letter == b'\n') {
        if begins(line) {
            return (at > 0).then(|| &text[at..]);
        }
        at += line.len();
    }
    None
}

/// The text with `null` for each `inf` and `nan` outside of its strings: releases up to 18.2.4
/// write infinite figures so. `None` if there are none.
fn nulled(text: &[u8]) -> Option<Vec<u8>> {
    let (mut written, mut is_changed) = (Vec::with_capacity(text.len()), false);
    let mut rest = text;
    while let Some(&letter) = rest.first() {
        let length = match letter {
            b'"' => string_length(rest),
            _ => rest.iter().take_while(|letter| is_of_word(**letter)).count().max(1),
        };
        let (token, after) = rest.split_at(length);
        let is_no_number = matches!(token, b"inf" | b"-inf" | b"nan" | b"-nan");
        written.extend_from_slice(if is_no_number { b"null" } else { token });
        is_changed |= is_no_number;
        rest = after;
    }
    is_changed.then_some(written)
}

fn is_of_word(letter: u8) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, b'-' | b'+' | b'.')
}

/// Bytes of the string that a text begins with, to its closing quote or the text's end.
fn string_length(text: &[u8]) -> usize {
    let mut is_escaped = false;
    let end = text.iter().skip(1).position(|letter| match (is_escaped, letter) {
        (false, b'"') => true,
        (escaped, letter) => {
            is_escaped = !escaped && *letter == b'\\';
            false
        }
    });
    end.map_or(text.len(), |end| end + 2)
}

#[derive(Deserialize)]
pub(crate) struct Image {
    pub size: u64,
    #[serde(default)]
    pub id: String,
    #[serde(default)]
    features: Vec<String>,
    /// Of a copy-on-write clone.
    #[serde(default)]
    pub parent: Option<Parent>,
    #[serde(default)]
    op_features: Vec<String>,
}

impl Image {
    /// Whether clones stand on it that need no protected snapshot (of Ceph's format 2).
    pub fn is_parent(&self) -> bool {
        self.op_features.iter().any(|feature| feature == "clone-parent")
    }

    /// Whether Ceph keeps a map of what differs between its snapshots.
    pub fn has_fast_diff(&self) -> bool {
        self.features.iter().any(|feature| feature == "fast-diff")
    }
}

#[derive(Deserialize)]
pub(crate) struct Parent {
    pub pool: String,
    pub image: String,
    pub snapshot: String,
    #[serde(default)]
    pub trash: bool,
}

/// Line of `rbd snap ls`.
#[derive(Deserialize)]
pub(crate) struct Snapshot {
    /// Of no other snapshot of the pool, ever.
    pub id: u64,
    pub name: String,
    pub size: u64,
    /// `true` or `false`, as text.
    #[serde(default)]
    protected: String,
    /// Only told when all are asked for.
    #[serde(default)]
    namespace: Option<Namespace>,
}

#[derive(Deserialize)]
struct Namespace {
    #[serde(rename = "type")]
    kind: String,
}

impl Snapshot {
    /// Whether it cannot be removed: clones of it may stand on it.
    pub fn is_protected(&self) -> bool {
        self.protected == "true"
    }

    /// Whether it was removed already and is only there because clones stand on it.
    pub fn is_removed(&self) -> bool {
        self.namespace.as_ref().is_some_and(|namespace| namespace.kind == "trash")
    }
}

impl From<FoundSnapshot> for Snapshot {
    fn from(found: FoundSnapshot) -> Self {
        let FoundSnapshot { id, name, size, is_protected } = found;
        Snapshot { id, name, size, protected: is_protected.to_string(), namespace: None }
    }
}

impl From<Snapshot> for SnapshotInfo {
    fn from(found: Snapshot) -> Self {
        SnapshotInfo { name: SnapshotName::new(found.name), size_bytes: found.size }
    }
}

/// Line of `rbd ls --long`: an image, or a snapshot of one.
#[derive(Deserialize)]
struct Listed {
    image: String,
    #[serde(default)]
    snapshot: Option<String>,
    size: u64,
}

#[derive(Deserialize)]
struct Status {
    watchers: Watchers,
}

/// A list, or in older releases an object of numbered members.
#[derive(Deserialize)]
#[serde(untagged)]
enum Watchers {
    List(Vec<Watcher>),
    Numbered(std::collections::BTreeMap<String, Watcher>),
}

#[derive(Deserialize)]
struct Watcher {
    address: String,
}

/// A list, or in older releases an object by the locks' ids.
#[derive(Deserialize)]
#[serde(untagged)]
enum Locks {
    List(Vec<Lock>),
    ById(std::collections::BTreeMap<String, LockOfId>),
}

#[derive(Deserialize)]
struct Lock {
    id: String,
    locker: String,
    address: String,
}

#[derive(Deserialize)]
struct LockOfId {
    locker: String,
    address: String,
}

pub(crate) fn snapshots(text: &[u8]) -> Result<Vec<Snapshot>, String> {
    json(text)
}

/// The images of a pool with their snapshots, by name.
pub(crate) fn volumes(pool: &PoolName, text: &[u8]) -> Result<Vec<VolumeInfo>, String> {
    let lines: Vec<Listed> = json(text)?;
    let mut all = std::collections::BTreeMap::new();
    let volume = |name: &str| {
        let id = VolumeId { pool: pool.clone(), volume: VolumeName::new(name) };
        VolumeInfo { id, size_bytes: 0, used_bytes: None, snapshots: Vec::new() }
    };
    for line in lines {
        let known = all.entry(line.image.clone()).or_insert_with(|| volume(&line.image));
        match line.snapshot {
            None => known.size_bytes = line.size,
            Some(name) => {
                known
                    .snapshots
                    .push(SnapshotInfo { name: SnapshotName::new(name), size_bytes: line.size });
            }
        }
    }
    Ok(all.into_values().collect())
}

/// The addresses of those who have an image open, without port.
pub(crate) fn watchers(text: &[u8]) -> Result<Vec<String>, String> {
    let status: Status = json(text)?;
    let found = match status.watchers {
        Watchers::List(list) => list,
        Watchers::Numbered(members) => members.into_values().collect(),
    };
    Ok(found.iter().map(|watcher| host_of(&watcher.address)).collect())
}

pub(crate) fn locks(text: &[u8]) -> Result<Vec<VolumeLock>, String> {
    let of = |id, locker, address: &str| VolumeLock { id, locker, address: host_of(address) };
    Ok(match json(text)? {
        Locks::List(list) => {
            list.into_iter().map(|lock| of(lock.id, lock.locker, &lock.address)).collect()
        }
        Locks::ById(locks) => {
            locks.into_iter().map(|(id, lock)| of(id, lock.locker, &lock.address)).collect()
        }
    })
}

/// The host in one of Ceph's addresses: `10.0.0.1:0/325`, `[fd00::1]:0/325`, either with `v1:` or
/// `v2:` before it.
pub(crate) fn host_of(address: &str) -> String {
    let plain =
        address.strip_prefix("v1:").or_else(|| address.strip_prefix("v2:")).unwrap_or(address);
    match plain.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, _)) => host.to_owned(),
        None => plain.split_once(':').map_or(plain, |(host, _)| host).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_are_no_numbers_are_none_and_strings_stay() {
        let read = |text: &str| json::<serde_json::Value>(text.as_bytes());
        let text = r#"{"a":inf,"b":[-inf, nan,-nan ],"c":"a \"inf, nan\\","d":-1.5e3}"#;
        let expected = r#"{"a":null,"b":[null,null,null],"c":"a \"inf, nan\\","d":-1.5e3}"#;
        assert_eq!(read(text), read(expected));
        assert!(read(expected).is_ok());
        for wrong in ["info", "{inf}", "[inf", r#"{"a":infinite}"#, r#"["inf"#, ""] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lines_for_people_before_an_answer_are_passed_over() {
        let read = |text: &str| json::<Vec<u32>>(text.as_bytes());
        assert_eq!(read("2026-11-28 warning: slow\n\n  [1,\n2]\n"), Ok(vec![1, 2]));
        for wrong in
            ["warning", "warning\n", "warning [1]", "[1]\nwarning", "w\n[1] w", "w\n[w]\n[1]"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_holder_is_known_by_its_host() {
        for (address, host) in [
            ("10.99.2.1:0/3247176528", "10.99.2.1"),
            ("v1:10.99.2.1:0/3247176528", "10.99.2.1"),
            ("[fd00::1]:0/17", "fd00::1"),
            ("v2:[fd00::1]:0/17", "fd00::1"),
            ("10.99.2.1", "10.99.2.1"),
            ("", ""),
        ] {
            assert_eq!(host_of(address), host, "{address}");
        }
    }

    #[test]
    fn locks_are_read_as_both_old_and_new_releases_print_them() {
        let new = br#"[{"id":"auto 1","locker":"client.2","address":"10.0.0.1:0/3"}]"#;
        let old = br#"{"auto 1":{"locker":"client.2","address":"10.0.0.1:0/3"}}"#;
        let expected = vec![VolumeLock {
            id: "auto 1".to_owned(),
            locker: "client.2".to_owned(),
            address: "10.0.0.1".to_owned(),
        }];
        assert_eq!(locks(new).unwrap(), expected);
        assert_eq!(locks(old).unwrap(), expected);
        assert_eq!(locks(b"[]").unwrap(), []);
        assert_eq!(locks(b"{}").unwrap(), []);
        assert!(locks(b"rbd: error").is_err());
    }

    #[test]
    fn a_listing_puts_snapshots_with_their_images() {
        let text = br#"[{"image":"b","id":"2","size":5,"format":2},
            {"image":"a","id":"1","size":10,"format":2,"lock_type":"exclusive"},
            {"image":"a","id":"1","snapshot":"s1","snapshot_id":6,"size":7,"format":2,"protected":"false"}]"#;
        let found = volumes(&PoolName::new("vms"), text).unwrap();
        let short: Vec<_> = found
            .iter()
            .map(|volume| (volume.id.to_string(), volume.size_bytes, volume.snapshots.len()))
            .collect();
        assert_eq!(short, [("vms/a".to_owned(), 10, 1), ("vms/b".to_owned(), 5, 0)]);
        assert_eq!(found[0].snapshots[0].size_bytes, 7);
    }

    #[test]
    fn watchers_are_read_as_both_old_and_new_releases_print_them() {
        let new = br#"{"watchers":[{"address":"127.0.0.1:0/32","client":4248,"cookie":14}]}"#;
        let old =
            br#"{"watchers":{"watcher":{"address":"127.0.0.1:0/32","client":4248,"cookie":14}}}"#;
        assert_eq!(watchers(new).unwrap(), ["127.0.0.1"]);
        assert_eq!(watchers(old).unwrap(), ["127.0.0.1"]);
        assert!(watchers(br#"{"watchers":[]}"#).unwrap().is_empty());
    }
}
