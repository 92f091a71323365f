//! Replies that are made once and sent often.
//!
//! A VM's JSON is made when its record changes, not when somebody asks: a list of thousands of VMs is
//! then a copy of bytes. A record is a shared value that is never modified, so its address says
//! whether the JSON still fits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::vm::VmRecord;

use crate::json;
use crate::view;

/// The JSON of one VM with gaps where the ages of its snapshots belong, which change by themselves.
#[derive(Debug)]
pub struct Fragment {
    /// One part more than there are gaps.
    parts: Vec<Vec<u8>>,
    /// The moments whose ages belong into the gaps, in seconds since the epoch.
    moments: Vec<f64>,
    /// Of everything but the ages.
    pub hash: u64,
}

/// An age that no snapshot has; it marks a gap.
const GAP: i64 = i64::MIN;

impl Fragment {
    fn new(record: &VmRecord) -> Self {
        let mut vm = view::vm::vm(record);
        let moments =
            record.snapshots.iter().map(|snapshot| snapshot.timestamp.parse().unwrap_or(f64::NAN)).collect();
        for snapshot in &mut vm.snapshots {
            snapshot.age = GAP;
        }
        let bytes = json::to_bytes(&vm);
        // Quotes inside of texts are escaped, so no text can look like this member.
        let gap = format!("\"age\":{GAP}");
        let parts = split(&bytes, gap.as_bytes(), b"\"age\":");
        Fragment { hash: json::hash(&bytes), parts, moments }
    }

    /// The JSON at `now`, in seconds since the epoch, appended to `out`.
    pub fn write(&self, now: f64, out: &mut Vec<u8>) {
        for (part, moment) in self.parts.iter().zip(self.moments.iter().map(Some).chain([None])) {
            out.extend_from_slice(part);
            if let Some(moment) = moment {
                // A snapshot whose time cannot be read, or lies ahead of this clock, is new.
                let age = if moment.is_nan() { 0.0 } else { (now - moment).max(0.0) };
                out.extend_from_slice((age as i64).to_string().as_bytes());
            }
        }
    }

    pub fn size(&self) -> usize {
        self.parts.iter().map(|part| part.len() + 12).sum()
    }
}

/// The pieces of `bytes` between occurrences of `gap`, each but the last with `tail` behind it.
fn split(bytes: &[u8], gap: &[u8], tail: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    let mut begin = 0;
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(gap.len()).position(|window| window == gap) {
        let end = at + found;
        parts.push([&bytes[begin..end], tail].concat());
        begin = end + gap.len();
        at = begin;
    }
    parts.push(bytes[begin..].to_vec());
    parts
}

/// The fragments of all VMs that somebody asked for.
#[derive(Default)]
pub struct VmCache {
    entries: Mutex<HashMap<Uuid, (Arc<VmRecord>, Arc<Fragment>)>>,
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
        let fragment = |record: &Arc<VmRecord>| match entries.get(&record.uuid) {
            Some((known, fragment)) if Arc::ptr_eq(known, record) => fragment.clone(),
            _ => {
                let fragment = Arc::new(Fragment::new(record));
                entries.insert(record.uuid, (record.clone(), fragment.clone()));
                fragment
            }
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
