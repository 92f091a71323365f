//! The cluster itself: `/config`, `/schema`, and how its storage is, at `/ceph`
//! (`spec/zookeeper.md` §4.1).

use std::sync::Arc;

use pvc_model::NodeName;
use pvc_model::cluster::ClusterRecord;
use pvc_model::vm::Selector;

use super::{Kind, PLAIN};
use crate::draft::Draft;
use crate::feed::EventKind;
use crate::raw::Raw;
use crate::reader::{beginning, set};

pub(crate) const NAME: &str = "/config";
pub(crate) const MAINTENANCE: &str = "/config/maintenance";
pub(crate) const PRIMARY: &str = "/config/primary_node";
/// Nothing but the locks of a hand-over of the primary role.
pub(crate) const HAND_OVER: &str = "/config/primary_node/sync_lock";
/// Nothing but the locks of those who fence.
pub(crate) const FENCE_LOCK: &str = "/config/fence_lock";
pub(crate) const UPSTREAM_IP: &str = "/config/upstream_ip";
pub(crate) const SELECTOR: &str = "/config/migration_target_selector";
const SCHEMA: &str = "/schema";
pub(crate) const SCHEMA_VERSION: &str = "/schema/version";
pub(crate) const STORAGE_STATUS: &str = "/ceph";
pub(crate) const STORAGE_HEALTH: &str = "/ceph/health";
pub(crate) const STORAGE_USAGE: &str = "/ceph/util";

pub(super) const KIND: Kind = Kind {
    roots: &[NAME, SCHEMA, STORAGE_STATUS],
    base: &[
        (SCHEMA, ""),
        (NAME, ""),
        (MAINTENANCE, ""),
        (FENCE_LOCK, ""),
        (PRIMARY, ""),
        (HAND_OVER, ""),
        (UPSTREAM_IP, ""),
        (SELECTOR, ""),
        (STORAGE_STATUS, ""),
        (STORAGE_HEALTH, ""),
        (STORAGE_USAGE, ""),
    ],
    record: |key| {
        let is_known = key.root != STORAGE_STATUS || matches!(key.below[0], "" | "health" | "util");
        is_known.then(String::new)
    },
    read: |raw, _, _| {
        let config = read(raw);
        Box::new(move |view| {
            let is_changed = config != view.config;
            view.config = config;
            is_changed.then_some((EventKind::Cluster, false))
        })
    },
    is_observed: |key| match key.root {
        STORAGE_STATUS => matches!(key.below, ["" | "health" | "util", "", ..]),
        root => root == NAME && matches!(key.below, ["primary_node", "", ..]),
    },
    for_jobs: &[NAME, SCHEMA],
    is_for_scripts: |_| true,
    ..PLAIN
};

fn read(raw: &Raw) -> ClusterRecord {
    let whole = |path: &str| raw.text(path).unwrap_or_default();
    let text = |path: &str| beginning(&whole(path)).to_owned();
    let selector = text(SELECTOR);
    ClusterRecord {
        name: text(NAME),
        schema: text(SCHEMA_VERSION).trim().parse().ok(),
        maintenance: is_maintenance(&text(MAINTENANCE)),
        initialized: raw.contains(PRIMARY),
        primary: set(&text(PRIMARY)).filter(|name| *name != "none").map(NodeName::new),
        upstream_ip: text(UPSTREAM_IP),
        selector: set(&selector).map(Selector::from_record),
        storage_status: Arc::from(whole(STORAGE_STATUS)),
        storage_util: Arc::from(whole(STORAGE_USAGE)),
        storage_health: Arc::from(whole(STORAGE_HEALTH)),
    }
}

/// Tells whether the cluster is in maintenance by this text of its record.
pub(crate) fn is_maintenance(text: &str) -> bool {
    text.eq_ignore_ascii_case("true")
}

/// A change of the cluster's own record.
#[derive(Debug, Clone, PartialEq)]
pub enum ConfigChange {
    Name(String),
    Maintenance(bool),
    /// `None` writes the word `none`: whoever can should contend.
    Primary(Option<NodeName>),
    UpstreamIp(String),
    Selector(Selector),
}

pub(crate) fn write(draft: &mut Draft<'_>, change: &ConfigChange) {
    let (path, value) = match change {
        ConfigChange::Name(name) => (NAME, name.clone()),
        ConfigChange::Maintenance(on) => (MAINTENANCE, on.to_string()),
        ConfigChange::Primary(None) => (PRIMARY, "none".to_owned()),
        ConfigChange::Primary(Some(node)) => (PRIMARY, node.to_string()),
        ConfigChange::UpstreamIp(ip) => (UPSTREAM_IP, ip.clone()),
        ConfigChange::Selector(selector) => (SELECTOR, selector.as_str().to_owned()),
    };
    draft.put(path.to_owned(), value);
}
