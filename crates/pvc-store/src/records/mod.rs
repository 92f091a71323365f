//! The kinds of records: where each lies in the tree, how it is read and written, and what its keys
//! are to the cache, to a backup and to a restore.
//!
//! All that is known of a kind stands in its file: paths, limits of reading, writes. Whoever works
//! on any path asks the [table](KINDS) which kind it is of. A new kind is a file and a line there;
//! CONTRIBUTING.md has the list of files of a real one.

pub(crate) mod answered;
pub(crate) mod benchmark;
pub(crate) mod cluster;
pub(crate) mod daemon;
pub(crate) mod daemon_note;
pub(crate) mod dhcp6_leases;
pub(crate) mod fault;
pub(crate) mod fence_note;
pub(crate) mod former_renaming;
pub(crate) mod fullness;
pub(crate) mod hold;
pub(crate) mod job;
mod log;
pub(crate) mod move_note;
pub(crate) mod network;
pub(crate) mod network_options;
pub(crate) mod node;
pub(crate) mod osd;
pub(crate) mod placement;
pub(crate) mod pool;
mod private;
pub(crate) mod snapshot_usage;
pub(crate) mod sriov;
pub(crate) mod unconfirmed;
pub(crate) mod vm;
pub(crate) mod volume;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, LazyLock};

use pvc_model::cluster::Cluster;
use pvc_model::shared_map::SharedMap;
use pvc_ports::is_at_or_below;

use crate::feed::EventKind;
use crate::keys;
use crate::raw::{Place, Raw};
use crate::reader::{MOST_ENTRIES, MOST_TEXT};

/// All kinds, in the order in which what changed at one time is announced.
static KINDS: &[Kind] = &[
    cluster::KIND,
    node::KIND,
    vm::KIND,
    network::KIND,
    unconfirmed::KIND,
    osd::KIND,
    pool::KIND,
    volume::KIND,
    fullness::KIND,
    answered::KIND,
    snapshot_usage::KIND,
    hold::KIND,
    fault::KIND,
    job::KIND,
    worker::KIND,
    benchmark::KIND,
    // Those that the view does not show.
    daemon::KIND,
    placement::KIND,
    former_renaming::KIND,
    log::KIND,
    private::KIND,
];

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
    /// Approximate number of bytes that reading it goes through if everything of it has changed
    /// that is not counted with what was read: its lists, and what is written as one. A record that
    /// is costly is read aside, in its turn.
    weight: fn(&Raw, &Cluster, &str) -> usize,
    /// Brings the view in order after its records were shown.
    settle: fn(&mut Cluster),
    /// Tells whether a key is one of many in a list that a record has, or below one: of such as no
    /// decision on another record rests on. There may be any number of them.
    is_of_list: fn(Key<'_>) -> bool,
    /// Tells whether the cache keeps the existence of a key only, not its value: a large text that
    /// few read.
    is_left_out: fn(Key<'_>) -> bool,
    /// Tells whether a key changes all the time; its age counts in seconds.
    is_stamp: fn(Key<'_>) -> bool,
    /// Tells whether a key is for those alone who know what one daemon knows: it is not read.
    is_closed: fn(Key<'_>) -> bool,
    /// Tells whether a node writes a key, because it is so, and not an operator, because it is to
    /// be so: a restore leaves what is there, and brings back none. What a daemon needs to find its
    /// way (jobs, moves, notes) belongs to it.
    is_observed: fn(Key<'_>) -> bool,
    /// Whether the view shows its changes without an event that announces them: they come all the
    /// time, and say nothing of what the records of others are.
    is_quiet: bool,
    /// Tells whether different changes write the same key, and the same into it, so that others do
    /// not interfere: nobody can tell who wrote it last.
    is_guard: fn(Key<'_>) -> bool,
    /// The paths below which lies what a store holds that has the [jobs](crate::scope::Scope::Jobs)
    /// alone in memory.
    for_jobs: &'static [&'static str],
    /// The key with a secret that a record has if it has this one: a dump may be without it, a
    /// restored record is not.
    secret_beside: fn(Key<'_>) -> Option<String>,
    /// Tells whether scripts of the provisioner may read a key that is no secret and not closed:
    /// nothing is for them unless its kind says so.
    is_for_scripts: fn(Key<'_>) -> bool,
}

impl Kind {
    /// The keys of a record at `place`, with the values of missing ones.
    fn keys_at(&self, place: &str) -> Vec<(String, &'static str)> {
        self.keys.iter().map(|(key, value)| (format!("{place}/{key}"), *value)).collect()
    }
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
    is_quiet: false,
    is_guard: |_| false,
    for_jobs: &[],
    secret_beside: |_| None,
    is_for_scripts: |_| false,
};

/// A path, as the kind sees it that it is of.
#[derive(Clone, Copy)]
pub(crate) struct Key<'a> {
    root: &'static str,
    /// The parts below the root: empty where there are no more, and the last has all that follow.
    below: [&'a str; 4],
}

impl<'a> Key<'a> {
    fn new(root: &'static str, below: &'a str) -> Key<'a> {
        let mut parts = below.splitn(4, '/');
        Key { root, below: std::array::from_fn(|_| parts.next().unwrap_or_default()) }
    }

    fn is_root(self) -> bool {
        self.below[0].is_empty()
    }

    /// The first part below the root, if there is one.
    fn first(self) -> Option<&'a str> {
        Some(self.below[0]).filter(|part| !part.is_empty())
    }
}

/// Puts what was read of a record into a view. Returns what it is called in an event and whether it
/// is gone, if that changes the view.
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

/// Puts `record` in the place of what was at `key`. Returns whether it is gone, if anything
/// changed.
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

/// The weight of a record at `place` with these lists, each with the number of keys that an entry
/// has, and with these texts.
fn weight_of(place: Place<'_>, lists: &[(&str, usize)], texts: &[&str]) -> usize {
    let entries = |(key, keys): &(&str, usize)| place.width(key).min(MOST_ENTRIES) * keys;
    let entries: usize = lists.iter().map(entries).sum();
    let bytes = |key: &&str| bytes_at(place, key).min(MOST_TEXT);
    RECORD + PLACE * entries + texts.iter().map(bytes).sum::<usize>()
}

/// The number of bytes at `key`.
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
        let (root, at) = ROOTS.get_key_value(&path[..end])?;
        Some((*at, Key::new(root, path.get(end + 1..).unwrap_or_default())))
    })
}

/// Asks the kind of `path`; a [plain](PLAIN) one if it is of none.
fn ask<'a, T>(path: &'a str, what: impl Fn(&Kind, Key<'a>) -> T) -> T {
    match find(path) {
        Some((at, key)) => what(&KINDS[at], key),
        None => what(&PLAIN, Key::new("/", path)),
    }
}

/// The record that a path belongs to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Subject {
    /// The place of its kind in the table.
    kind: usize,
    name: String,
}

impl Subject {
    pub fn of(path: &str) -> Option<Subject> {
        let (kind, key) = find(path)?;
        (KINDS[kind].record)(key).map(|name| Subject { kind, name })
    }

    /// Tells whether no event announces what changes of it.
    pub fn is_quiet(&self) -> bool {
        KINDS[self.kind].is_quiet
    }

    pub fn weight(&self, raw: &Raw, view: &Cluster) -> usize {
        (KINDS[self.kind].weight)(raw, view, &self.name)
    }

    /// Reads the record. `None` if it makes our decoder panic: it must not take the view of all
    /// others with it, and is shown as it was.
    pub fn read(&self, raw: &Raw, view: &Cluster) -> Option<Show> {
        let read = || (KINDS[self.kind].read)(raw, view, &self.name);
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
        let root = KINDS[self.kind].roots[0];
        if self.name.is_empty() { f.write_str(root) } else { write!(f, "{root}/{}", self.name) }
    }
}

/// Brings a view in order in which everything was shown that has changed.
pub(crate) fn settle(view: &mut Cluster) {
    KINDS.iter().for_each(|kind| (kind.settle)(view));
}

pub(crate) fn is_of_list(path: &str) -> bool {
    ask(path, |kind, key| (kind.is_of_list)(key))
}

/// Tells whether the cache keeps only the existence of `path`, not its value: what its kind leaves
/// out, and lock nodes.
pub(crate) fn is_left_out(path: &str) -> bool {
    keys::is_lock(path) || ask(path, |kind, key| (kind.is_left_out)(key))
}

pub(crate) fn is_stamp(path: &str) -> bool {
    ask(path, |kind, key| (kind.is_stamp)(key))
}

/// Tells whether `path` lies in a subtree that belongs to another program, or is for those alone
/// who know what one daemon knows.
pub(crate) fn is_foreign(path: &str) -> bool {
    keys::is_of_others(path) || ask(path, |kind, key| (kind.is_closed)(key))
}

pub(crate) fn is_observed(path: &str) -> bool {
    ask(path, |kind, key| (kind.is_observed)(key))
}

/// Tells whether `path` is held by a store that has the jobs alone in memory, or leads there.
pub(crate) fn is_for_jobs(path: &str) -> bool {
    let leads = |root: &&str| is_at_or_below(path, root) || is_at_or_below(root, path);
    KINDS.iter().flat_map(|kind| kind.for_jobs).any(leads)
}

pub(crate) fn is_guard(path: &str) -> bool {
    ask(path, |kind, key| (kind.is_guard)(key))
}

pub(crate) fn secret_beside(path: &str) -> Option<String> {
    ask(path, |kind, key| (kind.secret_beside)(key))
}

/// Tells whether `path` holds what opens something else.
pub(crate) fn is_secret(path: &str) -> bool {
    secret_beside(path).is_some_and(|secret| secret == path)
}

/// Tells whether a script of the provisioner may read `path`: what its kind says, and the root.
pub fn is_for_scripts(path: &str) -> bool {
    let is_open = path == "/" || ask(path, |kind, key| (kind.is_for_scripts)(key));
    is_open && !is_foreign(path) && !is_secret(path)
}

/// The keys that every tree of the layout has, with first values, parents first.
pub(crate) fn base() -> BTreeMap<&'static str, &'static str> {
    KINDS.iter().flat_map(|kind| kind.base).copied().collect()
}

/// The keys that the records of `raw` have or should have, with the values of missing ones, parents
/// first.
pub(crate) fn keys_of_records(raw: &Raw) -> Vec<(String, &'static str)> {
    let mut keys = Vec::new();
    for kind in KINDS.iter().filter(|kind| !kind.keys.is_empty()) {
        let root = kind.roots[0];
        for name in raw.children(root) {
            keys.extend(kind.keys_at(&format!("{root}/{name}")));
        }
    }
    keys
}

/// The same of the one record whose place is `path`; none if that is no record's place.
pub(crate) fn keys_of_record(path: &str) -> Vec<(String, &'static str)> {
    let is_place = |(at, key): &(usize, Key<'_>)| {
        key.root == KINDS[*at].roots[0] && !key.is_root() && key.below[1].is_empty()
    };
    find(path).filter(is_place).map_or_else(Vec::new, |(at, _)| KINDS[at].keys_at(path))
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
    KNOWN_NAMES.get(name).cloned().unwrap_or_else(|| name.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::raw_of;
    use crate::synthetic::Shape;

    const UUID: &str = "2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1";

    /// A key, or the place of a record, of each kind that a made-up cluster has none of.
    fn others() -> Vec<String> {
        let keys = [
            "/ceph/osds/0",
            "/faults/x/status",
            "/tasks/0123abcd/progress",
            "/pvcrs/workers/hv1",
            "/pvcrs/daemon/hv1",
            "/pvcrs/passwords/hv1",
            "/logs/hv1/messages",
            "/pvcrs/nodes/hv1",
            "/pvcrs/fences/hv1",
            "/pvcrs/fullness/vms",
            "/pvcrs/storage_answered",
            "/pvcrs/snapshot-usage/vms",
            "/pvcrs/holds/vms:a",
            "/pvcrs/benchmarks/1",
            "/pvcrs/networks/1001",
            "/pvcrs/dhcp6_leases/1001/2001:db8::9",
            "/pvcrs/of_tomorrow/x",
        ];
        let of_vm = ["/pvcrs/moves", "/pvcrs/renamings"].map(|root| format!("{root}/{UUID}"));
        keys.map(str::to_owned).into_iter().chain(of_vm).collect()
    }

    /// The kinds of which `path` is, by their first roots.
    fn kinds_of(path: &str) -> Vec<&'static str> {
        let lies_below = |root: &str| {
            path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let roots = KINDS.iter().flat_map(|kind| kind.roots);
        let longest = roots.filter(|root| lies_below(root)).map(|root| root.len()).max();
        let is_of = |root: &&str| Some(root.len()) == longest && lies_below(root);
        let kinds = KINDS.iter().filter(|kind| kind.roots.iter().any(is_of));
        kinds.map(|kind| kind.roots[0]).collect()
    }

    #[test]
    fn each_key_of_a_cluster_is_of_exactly_one_kind_and_each_kind_has_one() {
        let shape = Shape { snapshots: 2, ..Shape::with_vms(3) };
        let mut without: BTreeSet<&str> = KINDS.iter().map(|kind| kind.roots[0]).collect();
        for path in shape.dump().into_keys().chain(others()) {
            let kinds = kinds_of(&path);
            assert_eq!(kinds.len(), 1, "{path}: {kinds:?}");
            assert_eq!(find(&path).map(|(at, _)| KINDS[at].roots[0]), Some(kinds[0]), "{path}");
            without.remove(kinds[0]);
        }
        assert_eq!(without, BTreeSet::new());
        for path in ["/", "/zookeeper/quota", "/patroni/x", "/cmd", "/nodesx/hv1"] {
            assert_eq!((kinds_of(path).len(), find(path).is_none()), (0, true), "{path}");
        }
    }

    #[test]
    fn each_root_has_one_part_or_two_and_is_that_of_one_kind_which_makes_its_own_keys() {
        let roots: Vec<&str> = KINDS.iter().flat_map(|kind| kind.roots).copied().collect();
        assert_eq!(roots.iter().collect::<BTreeSet<_>>().len(), roots.len());
        for root in &roots {
            assert!(root.starts_with('/') && root.matches('/').count() <= 2, "{root}");
        }
        for (at, kind) in KINDS.iter().enumerate() {
            let of_record = kind.keys.iter().map(|(key, _)| format!("{}/x/{key}", kind.roots[0]));
            let base = kind.base.iter().map(|(path, _)| (*path).to_owned());
            for path in base.chain(of_record) {
                assert_eq!(find(&path).map(|(at, _)| at), Some(at), "{path}");
            }
        }
    }

    #[test]
    fn what_belongs_to_one_record_belongs_to_it_however_its_name_is_written() {
        let subject = |path: &str| Subject::of(path).map(|subject| format!("{subject:?}"));
        let vm = format!("/domains/{UUID}");
        for (path, record) in [
            (format!("{vm}/tags/daily/type"), Some(vm.as_str())),
            (format!("/domains/{}", UUID.to_uppercase()), Some(vm.as_str())),
            (format!("/pvcrs/moves/{UUID}"), Some(vm.as_str())),
            ("/domains/of_nobody".to_owned(), None),
            ("/domains".to_owned(), None),
            ("/ceph".to_owned(), Some("/config")),
            ("/ceph/util".to_owned(), Some("/config")),
            ("/ceph/of_tomorrow".to_owned(), None),
            ("/schema/version".to_owned(), Some("/config")),
            ("/ceph/snapshots/vms/web1_sda/s1".to_owned(), Some("/ceph/volumes/vms/web1_sda")),
            ("/ceph/volumes/vms".to_owned(), None),
            ("/pvcrs/working_on/hv1".to_owned(), Some("/nodes/hv1")),
            ("/pvcrs/workers/hv1".to_owned(), Some("/pvcrs/workers/hv1")),
            ("/pvcrs/daemon/hv1".to_owned(), None),
            ("/tasks/0123abcd/owner".to_owned(), Some("/tasks/0123abcd")),
            ("/tasks/no-job".to_owned(), None),
            ("/".to_owned(), None),
        ] {
            assert_eq!(subject(&path).as_deref(), record, "{path}");
        }
    }

    #[test]
    fn scripts_read_what_a_kind_has_opened_to_them_and_no_secrets() {
        // A root that comes to this list was looked at: nothing below it opens anything else.
        let open = [
            "/ceph",
            "/ceph/osds",
            "/ceph/pools",
            "/ceph/snapshots",
            "/ceph/volumes",
            "/config",
            "/domains",
            "/faults",
            "/logs",
            "/networks",
            "/nodes",
            "/pvcrs/benchmarks",
            "/pvcrs/daemon",
            "/pvcrs/dhcp6_leases",
            "/pvcrs/fences",
            "/pvcrs/fullness",
            "/pvcrs/holds",
            "/pvcrs/moves",
            "/pvcrs/networks",
            "/pvcrs/nodes",
            "/pvcrs/placement",
            "/pvcrs/renamings",
            "/pvcrs/snapshot-usage",
            "/pvcrs/storage_answered",
            "/pvcrs/unconfirmed",
            "/pvcrs/workers",
            "/pvcrs/working_on",
            "/schema",
        ];
        let roots = KINDS.iter().flat_map(|kind| kind.roots).copied();
        let below = |root: &str, is_open: fn(&str) -> bool| {
            ["x", "x/y", "x/y/z/a/b"].map(|key| is_open(&format!("{root}/{key}")))
        };
        let found: BTreeSet<&str> =
            roots.filter(|root| below(root, is_for_scripts).contains(&true)).collect();
        assert_eq!(found, BTreeSet::from(open));
        for kind in KINDS {
            for (key, _) in kind.keys {
                let path = format!("{}/x/{key}", kind.roots[0]);
                let is_open = open.contains(&kind.roots[0]) && !is_secret(&path);
                assert_eq!(is_for_scripts(&path), is_open, "{path}");
            }
        }
        // The ways to them are open.
        assert!(["/", "/pvcrs"].into_iter().all(is_for_scripts));
        for closed in [
            "/nodes/hv1/ipmipassword",
            "/tasks",
            "/tasks/0123abcd/secrets",
            "/pvcrs/passwords",
            "/pvcrs/passwords/hv1",
            "/pvcrs/of_tomorrow",
            "/pvcrs/of_tomorrow/x",
            "/of_nobody",
            "/patroni/pvc/leader",
            "/zookeeper/config",
        ] {
            assert!(!is_for_scripts(closed), "{closed}");
        }
    }

    #[test]
    fn what_is_of_a_list_lies_in_one() {
        let root = "/domains/x";
        for (path, is_of_one) in [
            (format!("{root}/tags"), false),
            (format!("{root}/tags/daily"), true),
            (format!("{root}/tags/daily/type"), true),
            (format!("{root}/snapshots/s/xml"), true),
            (format!("{root}/state"), false),
            ("/networks/1/dhcp4_leases/mac/ipaddr".to_owned(), true),
            ("/pvcrs/dhcp6_leases/1".to_owned(), false),
            ("/pvcrs/dhcp6_leases/1/2001:db8::9".to_owned(), true),
            ("/networks/1/firewall_rules/in".to_owned(), false),
            ("/networks/1/firewall_rules/in/web".to_owned(), true),
            ("/nodes/hv1/monitoring_data/load/message".to_owned(), true),
            ("/ceph/snapshots/vms/web1_sda".to_owned(), false),
            ("/ceph/snapshots/vms/web1_sda/s1".to_owned(), true),
            ("/ceph/volumes/vms/web1_sda/stats".to_owned(), false),
            ("/faults/x/status".to_owned(), false),
        ] {
            assert_eq!(is_of_list(&path), is_of_one, "{path}");
        }
    }

    /// The keys of all records that a node writes, below their record's root.
    fn observed(kind: &Kind) -> Vec<&'static str> {
        let keys = kind.keys.iter().map(|(key, _)| *key);
        keys.filter(|key| is_observed(&format!("{}/x/{key}", kind.roots[0]))).collect()
    }

    #[test]
    fn each_key_of_the_layout_is_an_order_or_an_observation() {
        let orders = ["daemonmode", "domainstate", "ipmihostname", "ipmiusername", "ipmipassword"];
        let of_node = observed(&node::KIND);
        for (key, _) in node::KEYS {
            let is_order = orders.contains(key) || key.starts_with("sriov");
            assert_eq!(of_node.contains(key), !is_order, "{key}");
        }
        assert_eq!(observed(&vm::KIND), ["stats", "failedreason", "consolelog", "vnc"]);
        assert_eq!(observed(&network::KIND), [""; 0]);
        assert_eq!(observed(&osd::KIND), ["stats"]);
        assert_eq!(observed(&pool::KIND), ["stats"]);
        let base: Vec<&str> = base().into_keys().filter(|path| is_observed(path)).collect();
        assert_eq!(
            base,
            [
                "/ceph",
                "/ceph/health",
                "/ceph/util",
                "/config/primary_node",
                "/pvcrs/benchmarks",
                "/pvcrs/daemon",
                "/pvcrs/fences",
                "/pvcrs/fullness",
                "/pvcrs/holds",
                "/pvcrs/moves",
                "/pvcrs/nodes",
                "/pvcrs/placement",
                "/pvcrs/snapshot-usage",
                "/pvcrs/storage_answered",
                "/pvcrs/unconfirmed",
                "/pvcrs/workers",
                "/pvcrs/working_on",
            ]
        );
        for path in [
            "/domains/x",
            "/domains/x/tags/daily",
            "/domains/x/snapshots/s/xml",
            "/networks/1/mtu",
            "/config",
            "/faults",
            "/nodes/hv1",
            "/nodes/hv1/sriov/vf/ens1f0v1/mtu",
        ] {
            assert!(!is_observed(path), "{path}");
        }
        for path in [
            "/nodes/hv1/monitoring_data/x/message",
            "/tasks/1/progress",
            "/faults/x",
            "/logs/hv1/messages",
            "/pvcrs/working_on/hv1",
            "/pvcrs/of_tomorrow",
        ] {
            assert!(is_observed(path), "{path}");
        }
    }

    #[test]
    fn what_is_left_out_closed_or_secret_is_that_and_nothing_beside_it() {
        for (path, left_out, foreign, secret) in [
            ("/domains/x/consolelog", true, false, false),
            ("/domains/x/tags/consolelog", false, false, false),
            ("/domains/x/state/8-__lock__-1", true, false, false),
            ("/logs/hv1/messages", true, false, false),
            ("/logs", false, false, false),
            ("/zookeeper/quota", false, true, false),
            ("/patroni", false, true, false),
            ("/patroni2", false, false, false),
            ("/pvcrs/passwords", false, false, false),
            ("/pvcrs/passwords/hv1", false, true, false),
            ("/nodes/hv1/ipmipassword", false, false, true),
            ("/nodes/hv1/ipmihostname", false, false, false),
            ("/tasks/0000000a/secrets", false, false, true),
            ("/tasks/0000000a", false, false, false),
        ] {
            let found = (is_left_out(path), is_foreign(path), is_secret(path));
            assert_eq!(found, (left_out, foreign, secret), "{path}");
        }
        let stamps = ["/nodes/hv1/keepalive", "/nodes/hv1/keepalive/x", "/domains/x/keepalive"];
        assert_eq!(stamps.map(is_stamp), [true, false, false]);
    }

    #[test]
    fn a_record_that_lacks_keys_is_reported_with_those_it_should_have() {
        let raw = raw_of([("/ceph/pools/vms".to_owned(), String::new())]);
        let keys = keys_of_records(&raw);
        let expected = [("pgs", ""), ("tier", "default"), ("stats", "{}")];
        assert_eq!(keys, expected.map(|(key, value)| (format!("/ceph/pools/vms/{key}"), value)));
        assert_eq!(keys_of_record("/ceph/pools/vms"), keys);
        for path in ["/", "/ceph", "/ceph/pools", "/ceph/pools/vms/pgs", "/pvcrs/nodes/hv1", "/x"] {
            assert!(keys_of_record(path).is_empty(), "{path}");
        }
    }
}
