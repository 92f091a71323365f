//! Replies that are made once and sent often.
//!
//! A VM's JSON is made once for each version of its record: a list of thousands of VMs is then a
//! copy of bytes. While somebody asks for such lists it is made when the record changes, not when
//! he asks. A record is a shared value that is never modified, so its address says whether the JSON
//! still fits.

#![allow(clippy::disallowed_types, reason = "looked up by key, never walked")]

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::vm::VmRecord;
use serde::Serialize;

use crate::json::{self, Json};
use crate::view;

/// The JSON of one VM, in the pieces that change together:
///
/// ```text
///  {"name": … "snapshots":  [ … ]  , "description": … "xml":  "<domain …"  }
///  └───────── front ──────┘ texts └──────── back ────────────┘   texts
/// ```
///
/// Statistics change every few seconds and are in front and back; texts change when an operator
/// does something, and take most of the time to make.
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
    /// Version that they were made of.
    source: u64,
    /// The list of snapshots, cut where their ages belong, which change by themselves: one part
    /// more than there are moments.
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
    /// The JSON of `record`; its texts are those `before`, of a former fragment of the same VM, if
    /// they are the same.
    fn new(record: &VmRecord, before: Option<&Arc<Texts>>) -> Self {
        let source = source_of_texts(record);
        let known = before.filter(|texts| texts.source == source);
        let texts = known.cloned().unwrap_or_else(|| Arc::new(Texts::new(record, source)));
        let bytes = json::to_bytes(&view::vm::vm_without_texts(record));
        let at = find(&bytes, SNAPSHOTS.as_bytes())
            .expect("a VM has a list of snapshots, and it was left empty");
        let (front, rest) = bytes.split_at(at + SNAPSHOTS.len() - 2);
        let end = rest.len() - XML.len() + "\"xml\":".len();
        Fragment {
            hash: json::hash(&bytes) ^ source,
            front: front.into(),
            back: rest[2..end].into(),
            texts,
        }
    }

    /// The JSON at `now`, in seconds since the epoch, appended to `out`.
    pub fn write(&self, now: f64, out: &mut Vec<u8>) {
        self.pieces(now, |piece| out.extend_from_slice(piece));
    }

    /// Number of bytes that [`write`](Fragment::write) adds at the same `now`.
    pub fn size(&self, now: f64) -> usize {
        let mut size = 0;
        self.pieces(now, |piece| size += piece.len());
        size
    }

    fn pieces(&self, now: f64, mut take: impl FnMut(&[u8])) {
        take(&self.front);
        let texts = &self.texts;
        for (part, moment) in
            texts.snapshots.iter().zip(texts.moments.iter().map(Some).chain([None]))
        {
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
        let moment =
            |snapshot: &pvc_model::vm::VmSnapshot| snapshot.timestamp.parse().unwrap_or(f64::NAN);
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

/// The pieces of `bytes` between occurrences of `gap`, each but the last with the first `kept`
/// bytes of the gap behind it.
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

/// A record as it is shown, made once, by the first who needs it; whoever comes meanwhile waits for
/// that.
#[derive(Debug, Default)]
struct Version {
    /// The record. It is not kept alive, but its address is not given to another as long as this is
    /// here.
    of: Weak<VmRecord>,
    /// The texts of the version before.
    before: Option<Arc<Texts>>,
    made: OnceLock<Fragment>,
}

impl Version {
    fn is_of(&self, record: &Arc<VmRecord>) -> bool {
        std::ptr::eq(self.of.as_ptr(), Arc::as_ptr(record))
    }

    /// The texts for the next version, if they are still the same.
    fn texts(&self) -> Option<Arc<Texts>> {
        self.made.get().map(|made| &made.texts).or(self.before.as_ref()).cloned()
    }
}

/// A VM that somebody asks for.
#[derive(Debug)]
pub struct Asked {
    record: Arc<VmRecord>,
    version: Arc<Version>,
}

impl Asked {
    pub fn is_made(&self) -> bool {
        self.version.made.get().is_some()
    }

    /// Returns its JSON. Takes its time unless [it is made](Asked::is_made).
    pub fn fragment(&self) -> &Fragment {
        self.version.made.get_or_init(|| Fragment::new(&self.record, self.version.before.as_ref()))
    }
}

/// All VMs that somebody asked for, as they were then. Nothing is made while they are locked: a VM
/// whose texts take long holds up nobody who asks for another.
#[derive(Default)]
pub struct VmCache {
    versions: Mutex<HashMap<Uuid, Arc<Version>>>,
    /// Time at which all VMs were last asked for, on the monotonic clock, while they are kept ready
    /// for the next who asks.
    kept_since: Mutex<Option<Duration>>,
}

/// Time for which all VMs are kept ready after somebody has asked for them.
const KEPT: Duration = Duration::from_secs(15);

impl VmCache {
    /// Notes that all VMs are asked for. Returns whether nobody keeps them ready yet: the caller
    /// has to.
    pub fn begin_to_keep(&self, now: Duration) -> bool {
        self.kept_since.lock().unwrap_or_else(PoisonError::into_inner).replace(now).is_none()
    }

    /// Whether they are still to be kept ready. Once they are not, the next who asks begins anew.
    pub fn is_kept(&self, now: Duration) -> bool {
        let mut since = self.kept_since.lock().unwrap_or_else(PoisonError::into_inner);
        *since = since.filter(|since| now.saturating_sub(*since) < KEPT);
        since.is_some()
    }

    /// The VMs of `records`, in their order.
    pub fn ask<'a>(
        &self,
        cluster: &Cluster,
        records: impl IntoIterator<Item = &'a Arc<VmRecord>>,
    ) -> Vec<Asked> {
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        if versions.len() > cluster.vms.len() {
            versions.retain(|uuid, _| cluster.vms.contains_key(uuid));
        }
        let ask = |record: &Arc<VmRecord>| {
            let known = versions.entry(record.uuid).or_default();
            if !known.is_of(record) {
                let of = Arc::downgrade(record);
                *known = Arc::new(Version { of, before: known.texts(), made: OnceLock::new() });
            }
            Asked { record: record.clone(), version: known.clone() }
        };
        records.into_iter().map(ask).collect()
    }
}

/// A reply that depends on the records alone, kept for as long as they do not change.
pub struct Memo<T> {
    known: Mutex<Option<(u64, Json<T>)>>,
}

impl<T> Default for Memo<T> {
    fn default() -> Self {
        Memo { known: Mutex::default() }
    }
}

impl<T: Serialize> Memo<T> {
    pub fn get(&self, cluster: &Cluster, make: impl FnOnce(&Cluster) -> T) -> Json<T> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some((revision, reply)) if *revision == cluster.revision => reply.clone(),
            _ => {
                let reply = Json::of(&make(cluster));
                *known = Some((cluster.revision, reply.clone()));
                reply
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::mpsc;

    use pvc_embedded::EmbeddedTree;
    use pvc_store::Store;
    use pvc_store::synthetic::Shape;
    use pvc_testkit::{SeededRandom, TokioClock};

    use super::*;

    /// Seconds since the epoch.
    const NOW: f64 = 1_900_000_000.0;

    async fn cluster(dump: &BTreeMap<String, String>) -> Arc<Cluster> {
        let tree = EmbeddedTree::in_memory().connect();
        let random = Arc::new(SeededRandom::new(7));
        let store = Store::open(tree, Arc::new(TokioClock::new()), random).await.unwrap();
        store.load(dump).await.unwrap();
        store.fresh().await.unwrap()
    }

    /// VMs with snapshots, some of whose texts look like what fragments are cut at, or are of no
    /// use.
    fn dump() -> BTreeMap<String, String> {
        let mut dump = Shape { snapshots: 2, ..Shape::with_vms(12) }.dump();
        let hostile = format!(r#"{SNAPSHOTS}{XML}"age":{GAP} "é😀" \ <x/>"#);
        for (index, (key, value)) in dump.iter_mut().enumerate() {
            let is = |end: &str| key.starts_with("/domains/") && key.ends_with(end);
            if (is("/description") || is("/failedreason") || is("/profile")) && index % 2 == 0 {
                value.clone_from(&hostile);
            } else if is("/snapshots/s0/timestamp") && index % 3 == 0 {
                *value = if index % 2 == 0 { "soon".to_owned() } else { "2900000000.5".to_owned() };
            } else if is("/snapshots/s1/xml") && index % 3 == 1 {
                *value = value.replace("</name>", "</name><title>\"snapshots\":[]</title>");
            } else if is("/stats") && index % 5 == 0 {
                "{\"mem_stats\": 7".clone_into(value);
            }
        }
        dump
    }

    /// The JSON as it is made of a whole value at once.
    fn plain(record: &VmRecord) -> String {
        let mut snapshots = view::vm::snapshots(record);
        for snapshot in &mut snapshots {
            let moment: Option<f64> = snapshot.timestamp.parse().ok();
            snapshot.age = moment.map_or(0.0, |moment| (NOW - moment).max(0.0)) as i64;
        }
        let xml = view::vm::xml(record);
        let vm = pvc_api_types::Vm { snapshots, xml, ..view::vm::vm_without_texts(record) };
        String::from_utf8(json::to_bytes(&vm)).unwrap()
    }

    fn written(asked: &Asked) -> String {
        let mut out = Vec::new();
        asked.fragment().write(NOW, &mut out);
        assert_eq!(out.len(), asked.fragment().size(NOW));
        String::from_utf8(out).unwrap()
    }

    #[tokio::test]
    async fn a_list_of_fragments_is_byte_for_byte_what_a_plain_encoding_is() {
        let mut dump = dump();
        let cache = VmCache::default();
        for round in 0..3 {
            let cluster = cluster(&dump).await;
            let asked = cache.ask(&cluster, cluster.vms.values());
            assert_eq!(asked.len(), 12);
            let hostile = |asked: &&Asked| written(asked).contains(r#"\"snapshots\":[]\"xml\""#);
            assert!(
                asked.iter().any(|asked| hostile(&asked)),
                "the hostile texts are shown somewhere"
            );
            for (asked, record) in asked.iter().zip(cluster.vms.values()) {
                assert_eq!(written(asked), plain(record), "round {round}");
            }
            // Of some the statistics change, of some the definition, of some nothing.
            for (index, (key, value)) in dump.iter_mut().enumerate() {
                if key.ends_with("/stats") && index % 2 == 0 {
                    *value = format!(r#"{{"mem_stats": {{"rss": {round}.5}}}}"#);
                } else if key.ends_with("/xml") && index % 3 == 0 {
                    *value = value.replace("</name>", "</name><title>ä</title>");
                }
            }
        }
    }

    #[test]
    fn vms_are_kept_ready_for_as_long_as_they_are_asked_for() {
        let cache = VmCache::default();
        let at = Duration::from_secs;
        assert!(!cache.is_kept(at(1)));
        assert!(cache.begin_to_keep(at(1)), "the first begins");
        assert!(!cache.begin_to_keep(at(10)), "one is enough");
        assert!(cache.is_kept(at(24)));
        assert!(!cache.is_kept(at(25)));
        assert!(cache.begin_to_keep(at(30)), "and it begins anew");
    }

    fn record_like(record: &VmRecord, stats: &str) -> Arc<VmRecord> {
        Arc::new(VmRecord { stats: stats.into(), ..record.clone() })
    }

    #[tokio::test]
    async fn a_version_is_made_once_and_its_texts_are_those_of_the_version_before() {
        let cluster = cluster(&dump()).await;
        let record = cluster.vms.values().find(|vm| !vm.stats.is_empty()).unwrap();
        let cache = VmCache::default();
        let ask = |record: &Arc<VmRecord>| cache.ask(&cluster, [record]).remove(0);
        let first = ask(record);
        assert!(!first.is_made());
        let made = first.fragment();
        let again = ask(record);
        assert!(again.is_made() && std::ptr::eq(made, again.fragment()));

        let changed = record_like(record, "{}");
        let unread = ask(&changed);
        let changed_again = record_like(record, "{\"mem_stats\": {\"rss\": 1}}");
        let next = ask(&changed_again);
        assert!(!unread.is_made() && !next.is_made());
        assert!(
            Arc::ptr_eq(&next.fragment().texts, &made.texts),
            "also over a version that nobody read"
        );
        assert_ne!(next.fragment().hash, made.hash);
    }

    #[tokio::test]
    async fn a_vm_that_takes_long_holds_up_nobody_who_asks_for_another() {
        let cluster = cluster(&dump()).await;
        let cache = VmCache::default();
        let mut asked = cache.ask(&cluster, cluster.vms.values()).into_iter();
        let (slow, other) = (asked.next().unwrap(), asked.next().unwrap());
        let (begun, begins) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let slow = std::thread::spawn(move || {
            slow.version.made.get_or_init(|| {
                begun.send(()).unwrap();
                ended.recv().unwrap();
                Fragment::new(&slow.record, None)
            });
        });
        begins.recv().unwrap();
        assert_eq!(written(&other), plain(&other.record), "while the first is being made");
        let all = cache.ask(&cluster, cluster.vms.values());
        assert_eq!(all.iter().filter(|asked| asked.is_made()).count(), 1);
        end.send(()).unwrap();
        slow.join().unwrap();
        assert!(all[0].is_made(), "who waited for it makes nothing");
    }
}
