//! Replies that are made once and sent often.
//!
//! A VM's JSON is made when its record changes, not when somebody asks: a list of thousands of VMs is
//! then a copy of bytes. A record is a shared value that is never modified, so its address says
//! whether the JSON still fits.

#![allow(clippy::disallowed_types, reason = "looked up by key, never walked")]

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::vm::VmRecord;

use crate::json;
use crate::view;

/// The JSON of one VM, in the pieces that change together:
///
/// ```text
///  {"name": … "snapshots":  [ … ]  , "description": … "xml":  "<domain …"  }
///  └───────── front ──────┘ texts └──────── back ────────────┘   texts
/// ```
///
/// Statistics change every few seconds and are in front and back; texts change when an operator does
/// something, and take most of the time to make.
#[derive(Debug)]
pub struct Fragment {
    front: Box<[u8]>,
    back: Box<[u8]>,
    texts: Arc<Texts>,
    /// Of everything but the ages of snapshots.
    pub hash: u64,
}

/// The members of a VM's JSON that are texts made of its XML.
#[derive(Debug)]
struct Texts {
    /// What they were made of.
    source: u64,
    /// The list of snapshots, cut where their ages belong, which change by themselves: one part more
    /// than there are moments.
    snapshots: Vec<Box<[u8]>>,
    /// The moments whose ages belong between the parts, in seconds since the epoch.
    moments: Vec<f64>,
    xml: Box<[u8]>,
}

// Quotes inside of texts are escaped, so no text can look like one of these members.
const SNAPSHOTS: &str = "\"snapshots\":[]";
const XML: &str = "\"xml\":\"\"}";
/// An age that no snapshot has; it marks the place of one that has.
const GAP: i64 = i64::MIN;

impl Fragment {
    /// The JSON of `record`; its texts are those of `before`, a former fragment of the same VM, if they
    /// are the same.
    fn new(record: &VmRecord, before: Option<&Fragment>) -> Self {
        let source = source_of_texts(record);
        let known = before.map(|before| &before.texts).filter(|texts| texts.source == source);
        let texts = known.cloned().unwrap_or_else(|| Arc::new(Texts::new(record, source)));
        let bytes = json::to_bytes(&view::vm::vm_without_texts(record));
        let at =
            find(&bytes, SNAPSHOTS.as_bytes()).expect("a VM has a list of snapshots, and it was left empty");
        let (front, rest) = bytes.split_at(at + SNAPSHOTS.len() - 2);
        let end = rest.len() - XML.len() + "\"xml\":".len();
        Fragment { hash: json::hash(&bytes) ^ source, front: front.into(), back: rest[2..end].into(), texts }
    }

    /// The JSON at `now`, in seconds since the epoch, appended to `out`.
    pub fn write(&self, now: f64, out: &mut Vec<u8>) {
        self.pieces(now, |piece| out.extend_from_slice(piece));
    }

    /// How many bytes [`write`](Fragment::write) adds at the same `now`.
    pub fn size(&self, now: f64) -> usize {
        let mut size = 0;
        self.pieces(now, |piece| size += piece.len());
        size
    }

    fn pieces(&self, now: f64, mut take: impl FnMut(&[u8])) {
        take(&self.front);
        let texts = &self.texts;
        for (part, moment) in texts.snapshots.iter().zip(texts.moments.iter().map(Some).chain([None])) {
            take(part);
            if let Some(moment) = moment {
                // A snapshot whose time cannot be read, or lies ahead of this clock, is new.
                let age = if moment.is_nan() { 0.0 } else { (now - moment).max(0.0) };
                take((age as i64).to_string().as_bytes());
            }
        }
        take(&self.back);
        take(&texts.xml);
        take(b"}");
    }
}

impl Texts {
    fn new(record: &VmRecord, source: u64) -> Self {
        let mut snapshots = view::vm::snapshots(record);
        snapshots.iter_mut().for_each(|snapshot| snapshot.age = GAP);
        let gap = format!("\"age\":{GAP}");
        let list = json::to_bytes(&snapshots);
        let moment = |snapshot: &pvc_model::vm::VmSnapshot| snapshot.timestamp.parse().unwrap_or(f64::NAN);
        Texts {
            source,
            snapshots: split(&list, gap.as_bytes(), "\"age\":".len()),
            moments: record.snapshots.iter().map(moment).collect(),
            xml: json::to_bytes(&view::vm::xml(record)).into(),
        }
    }
}

/// A hash of everything that [`Texts`] are made of.
fn source_of_texts(record: &VmRecord) -> u64 {
    let mut hasher = DefaultHasher::new();
    record.xml.hash(&mut hasher);
    for snapshot in &record.snapshots {
        (&snapshot.name, &snapshot.timestamp, &snapshot.xml, &snapshot.volumes).hash(&mut hasher);
    }
    hasher.finish()
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// The pieces of `bytes` between occurrences of `gap`, each but the last with the first `kept` bytes
/// of the gap behind it.
fn split(bytes: &[u8], gap: &[u8], kept: usize) -> Vec<Box<[u8]>> {
    let mut parts = Vec::new();
    let mut rest = bytes;
    while let Some(at) = find(rest, gap) {
        parts.push(rest[..at + kept].into());
        rest = &rest[at + gap.len()..];
    }
    parts.push(rest.into());
    parts
}

/// A fragment, and the record it was made of. The record is not kept alive, but its address is not
/// given to another as long as this is here.
type Entry = (Weak<VmRecord>, Arc<Fragment>);

/// The fragments of all VMs that somebody asked for.
#[derive(Default)]
pub struct VmCache {
    entries: Mutex<HashMap<Uuid, Entry>>,
}

impl VmCache {
    /// The fragments of `records`, in their order.
    pub fn fragments<'a>(
        &self,
        cluster: &Cluster,
        records: impl IntoIterator<Item = &'a Arc<VmRecord>>,
    ) -> Vec<Arc<Fragment>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() > cluster.vms.len() {
            entries.retain(|uuid, _| cluster.vms.contains_key(uuid));
        }
        let fragment = |record: &Arc<VmRecord>| {
            let before = entries.get(&record.uuid);
            if let Some((known, fragment)) = before
                && std::ptr::eq(known.as_ptr(), Arc::as_ptr(record))
            {
                return fragment.clone();
            }
            let fragment = Arc::new(Fragment::new(record, before.map(|(_, fragment)| &**fragment)));
            entries.insert(record.uuid, (Arc::downgrade(record), fragment.clone()));
            fragment
        };
        records.into_iter().map(fragment).collect()
    }
}

/// A reply that depends on the records alone, kept for as long as they do not change.
#[derive(Default)]
pub struct Memo {
    known: Mutex<Option<(u64, Bytes)>>,
}

impl Memo {
    pub fn get(&self, cluster: &Cluster, make: impl FnOnce(&Cluster) -> Vec<u8>) -> Bytes {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some((revision, bytes)) if *revision == cluster.revision => bytes.clone(),
            _ => {
                let bytes = Bytes::from(make(cluster));
                *known = Some((cluster.revision, bytes.clone()));
                bytes
            }
        }
    }
}
