//! The whole tree as text, and back.

use std::collections::BTreeMap;

use bytes::Bytes;
use pvc_model::NodeName;
use pvc_model::node::DomainState;
use pvc_model::vm::VmState;
use pvc_ports::Op;

use crate::error::{RestoreError, StoreError};
use crate::keys;
use crate::raw::Raw;
use crate::reader::beginning;
use crate::records::network::OtherLeases;
use crate::records::{self, cluster, node, vm};
use crate::schema::{SCHEMA_VERSION, create};
use crate::store::{Store, chunks, flat, paths_of};

/// Result of a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Number of keys of the dump that were written.
    pub keys: usize,
    /// Names of VMs whose disks were being made, filled or removed then, and that are disabled now.
    pub disabled: Vec<String>,
    /// Whether the cluster is in maintenance by what was restored, or already was.
    pub maintenance: bool,
    /// Nodes with a BMC whose password neither the dump nor the store has: nobody can fence them
    /// until their daemons have written it.
    pub unfenceable: Vec<NodeName>,
    /// Whether whoever reaches the tree may use the records, although this client knows a password
    /// for them: a tree that has lost everything is not closed any more.
    pub open: bool,
}

/// Returns the name of the cluster that `dump` is of, if it says one.
pub fn name_of_dump(dump: &BTreeMap<String, String>) -> Option<&str> {
    let name = dump.get(cluster::NAME).map(|name| beginning(name));
    name.filter(|name| !name.is_empty())
}

impl Store {
    /// Every key with its value, but for other programs' subtrees, what lies deeper than anything
    /// of the layout, lock nodes and what ends with a session; the passwords of the nodes' BMCs
    /// `with_secrets` only. Values that are not UTF-8 have the unreadable bytes replaced.
    ///
    /// A restore of a dump without the passwords leaves those that are there. Where there are none,
    /// each node's daemon writes its own at its start; until then nobody can fence it, least of all
    /// one that is dead already.
    ///
    /// # Errors
    /// [`StoreError::NotInitialized`] if the tree holds no cluster, as after a loss of ZooKeeper's
    /// data: nothing is no backup, and whoever keeps one file would put it in the place of the last
    /// good one.
    pub async fn backup(&self, with_secrets: bool) -> Result<BTreeMap<String, String>, StoreError> {
        self.fresh().await?;
        if !self.is_initialized() {
            return Err(StoreError::NotInitialized);
        }
        let mut paths = self.with_raw(|raw| raw.subtree("/"));
        paths.retain(|path| {
            !records::is_foreign(path) && (with_secrets || !records::is_secret(path))
        });
        let entries = self.tree.get_many(&paths).await?;
        let lasting = |(path, entry): (String, Option<pvc_ports::Entry>)| {
            let entry = entry.filter(|entry| entry.stat.ephemeral_owner == 0)?;
            Some((path, String::from_utf8_lossy(&entry.data).into_owned()))
        };
        Ok(paths.into_iter().zip(entries).filter_map(lasting).collect())
    }

    /// Writes the orders in `dump`: what is to be. Keys that are not in it stay.
    ///
    /// What was so then, or under way, does not come back: others would act on it. What a node says
    /// of itself now stays; where it says nothing, each key of its record is there and says nothing
    /// either, as in a new one. A job, a hold, a note of a former time is not made again, and a VM
    /// to which something was done gets [another state](VmState::restored), unless it is in that
    /// one now; so does a [node](DomainState::restored), but for one that is being recovered.
    /// Leases of DHCP come back where the network has none of the family now.
    ///
    /// A dump larger than one request is written in several, the schema version last.
    pub async fn restore(&self, dump: &BTreeMap<String, String>) -> Result<Restored, RestoreError> {
        self.check_dump(dump)?;
        self.see_before_restore(dump).await?;
        let Orders { keys, disabled } = self.with_raw(|raw| orders(raw, dump));
        let maintenance = keys
            .get(cluster::MAINTENANCE)
            .map_or(self.view().config.maintenance, |text| cluster::is_maintenance(text));
        let (unfenceable, open) = (Vec::new(), self.is_open_to_others().await);
        let restored = Restored { keys: keys.len(), disabled, maintenance, unfenceable, open };
        if self.is_dry() {
            return Ok(restored);
        }
        self.write_dump(&keys, &records_keys(&keys)).await?;
        Ok(Restored { unfenceable: self.with_raw(node::unfenceable), ..restored })
    }

    /// Writes every key of `dump` to the letter, with what nodes said of themselves and what was
    /// under way: a copy of a cluster to look at, or to play with. A daemon of the cluster
    /// itself would act on all of it.
    pub async fn load(&self, dump: &BTreeMap<String, String>) -> Result<(), RestoreError> {
        self.check_dump(dump)?;
        self.see_before_restore(dump).await?;
        self.write_dump(dump, &BTreeMap::new()).await
    }

    async fn see_before_restore(
        &self,
        dump: &BTreeMap<String, String>,
    ) -> Result<(), RestoreError> {
        let total = dump.len();
        let stopped = |source| RestoreError::Stopped { written: 0, total, source };
        self.fresh().await.map(drop).map_err(stopped)
    }

    /// Writes `keys`, and creates what is `missing` of others.
    async fn write_dump(
        &self,
        keys: &BTreeMap<String, String>,
        missing: &BTreeMap<String, &str>,
    ) -> Result<(), RestoreError> {
        let stopped =
            |written| move |source| RestoreError::Stopped { written, total: keys.len(), source };
        let ops = self.with_raw(|raw| restore_ops(raw, keys, missing));
        let mut written = 0;
        for chunk in chunks(ops, self.chunk_bytes()) {
            let paths = paths_of(&chunk);
            self.tree.multi(chunk).await.map_err(flat).map_err(stopped(written))?;
            written += paths.iter().filter(|path| keys.contains_key(*path)).count();
        }
        // Everything may have changed; whoever restores wants to see it.
        let paths = keys.keys().chain(missing.keys()).cloned().collect();
        self.refresh(paths).await.map_err(stopped(written))
    }

    fn check_dump(&self, dump: &BTreeMap<String, String>) -> Result<(), RestoreError> {
        let version = dump.get(cluster::SCHEMA_VERSION).ok_or(RestoreError::NoSchema)?;
        if version.trim() != SCHEMA_VERSION.to_string() {
            return Err(RestoreError::Schema { found: version.clone(), expected: SCHEMA_VERSION });
        }
        let limit = self.tree.max_request_bytes();
        for (key, value) in dump {
            if !is_path(key) || records::is_foreign(key) || keys::is_too_deep(key) {
                return Err(RestoreError::BadKey { key: key.clone() });
            }
            let size = set(key, value).request_bytes();
            if size > limit {
                return Err(RestoreError::TooLarge { key: key.clone(), size, limit });
            }
        }
        Ok(())
    }
}

/// Part of a dump that is restored.
struct Orders {
    keys: BTreeMap<String, String>,
    /// Names of the VMs that were in another state.
    disabled: Vec<String>,
}

fn orders(raw: &Raw, dump: &BTreeMap<String, String>) -> Orders {
    let (mut keys, mut disabled) = (BTreeMap::new(), Vec::new());
    // What DHCP has given since is so: beside it, a lease of then could give an address twice.
    let leases_of_now = OtherLeases::find(raw, dump);
    for (path, then) in dump {
        let is_of_now = node::is_being_recovered(raw, path) || leases_of_now.include(path);
        if path == "/" || records::is_observed(path) || is_of_now {
            continue;
        }
        let (of_vm, of_node) = (vm::restored_state(path, then), node::restored_state(path, then));
        let state = of_vm.as_ref().map(VmState::as_str);
        let state = state.or(of_node.as_ref().map(DomainState::as_str));
        // Whoever has brought it into that state may still be at it.
        if state.is_some() && raw.text(path).is_some_and(|now| now == *then) {
            continue;
        }
        if of_vm == Some(VmState::Disable) {
            disabled.push(keys::parent(path));
        }
        keys.insert(path.clone(), state.unwrap_or(then).to_owned());
    }
    keys.extend(disabled.iter().map(|root| vm::no_autostart(root)));
    let name = |root: &str| {
        let name = dump.get(root).filter(|name| !name.is_empty());
        name.map_or(root, String::as_str).to_owned()
    };
    Orders { disabled: disabled.into_iter().map(name).collect(), keys }
}

/// The keys without which the records of `orders` are not whole, and those that every tree has.
fn records_keys(orders: &BTreeMap<String, String>) -> BTreeMap<String, &'static str> {
    let base = records::base().into_iter().map(|(path, value)| (path.to_owned(), value));
    base.chain(orders.keys().flat_map(|path| records::keys_of_record(path))).collect()
}

/// Operations that write `keys` and create, where there is nothing, what is `missing`, parents and
/// secrets beside what is written; the schema version last.
fn restore_ops(
    raw: &Raw,
    keys: &BTreeMap<String, String>,
    missing: &BTreeMap<String, &str>,
) -> Vec<Op> {
    let secrets: Vec<String> = keys.keys().filter_map(|key| records::secret_beside(key)).collect();
    let mut wanted: BTreeMap<&str, &str> = secrets.iter().map(|key| (key.as_str(), "")).collect();
    wanted.extend(missing.iter().map(|(key, value)| (key.as_str(), *value)));
    for key in keys.keys() {
        let mut parent = keys::parent(key);
        while parent != "/" {
            wanted.entry(parent).or_insert("");
            parent = keys::parent(parent);
        }
    }
    wanted.extend(keys.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    wanted.remove("/");
    let version = wanted.remove_entry(cluster::SCHEMA_VERSION);
    // In the order of the paths a parent comes before its children.
    let op = |(path, value): (&str, &str)| match raw.contains(path) {
        true => keys.contains_key(path).then(|| set(path, value)),
        false => Some(create(path, value)),
    };
    wanted.into_iter().chain(version).filter_map(op).collect()
}

fn set(path: &str, value: &str) -> Op {
    Op::Set { path: path.to_owned(), data: Bytes::copy_from_slice(value.as_bytes()), version: None }
}

fn is_path(key: &str) -> bool {
    key == "/"
        || (key.starts_with('/')
            && key[1..].split('/').all(|part| {
                !matches!(part, "" | "." | "..") && !part.chars().any(char::is_control)
            }))
}
