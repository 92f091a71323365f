//! Writes of nobody in the world: another layout, keys of a version to come.

use bytes::Bytes;
use pvc_embedded::state::Work;
use pvc_ports::{CreateMode, Op};

use super::{Around, Ensemble};

/// Value of unknown keys.
const UNKNOWN: &str = "of a version to come";

impl Ensemble {
    /// Somebody from outside writes something.
    pub(super) fn write_from_outside(&mut self, around: &mut Around<'_>, ops: Vec<Op>) {
        let onlooker =
            (0..self.clients.len()).find(|client| self.is_onlooker(around.processes, *client));
        let session = self.clients[onlooker.expect("somebody looks on")].session;
        self.change_tree(around, &Work::Multi { session, ops })
            .expect("a story writes what can be written");
    }

    pub fn change_layout(&mut self, around: &mut Around<'_>, version: u32) {
        let (path, data) = ("/schema/version".to_owned(), Bytes::from(version.to_string()));
        self.write_from_outside(around, vec![Op::Set { path, data, version: None }]);
    }

    /// Adds keys in the root, in the configuration, and in every node's and VM's record.
    pub fn add_unknown_keys(&mut self, around: &mut Around<'_>) {
        let mut places = vec![String::new(), "/config".to_owned()];
        for parent in ["/nodes", "/domains"] {
            let names = self.tree.children(parent).unwrap_or_default();
            places.extend(names.iter().map(|name| format!("{parent}/{name}")));
        }
        let keys = places
            .iter()
            .flat_map(|place| [format!("{place}/future"), format!("{place}/future/deep")]);
        let keys: Vec<String> = keys.filter(|key| self.tree.entry(key).is_none()).collect();
        let create = |path: &String| Op::Create {
            path: path.clone(),
            data: Bytes::from_static(UNKNOWN.as_bytes()),
            mode: CreateMode::Persistent,
        };
        self.write_from_outside(around, keys.iter().map(create).collect());
        self.unknown.extend(keys);
    }

    /// Lists the unknown keys of which something is no longer as it was; those of a record that is
    /// gone have gone with it. Adds the root if it holds something.
    pub fn changed_unknown_keys(&self) -> Vec<String> {
        let tree = &self.tree;
        let holds = |path: &str, wanted: &str| {
            tree.entry(path).is_some_and(|entry| entry.data == wanted && entry.stat.version == 0)
        };
        let record = |key: &str| key.split("/future").next().unwrap_or_default().to_owned();
        let is_gone = |key: &str| !record(key).is_empty() && tree.entry(&record(key)).is_none();
        let mut spoilt: Vec<String> = self.unknown.clone();
        spoilt.retain(|key| !is_gone(key) && !holds(key, UNKNOWN));
        if !holds("/", "") {
            spoilt.push("/".to_owned());
        }
        spoilt
    }
}
