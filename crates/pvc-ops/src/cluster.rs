//! Asks about the cluster as a whole.

use std::collections::BTreeMap;

use pvc_model::NodeName;
use pvc_model::cluster::is_of_another;
use pvc_ports::{Access, TrashedVolume};
use pvc_store::{
    ChangeError, Changes, ConfigChange, KnownPassword, Protection, RestoreError, Restored, Store,
    StoreError, name_of_dump,
};

use crate::refusal::{Kind, Refusal};

/// Reason why the cluster was not created, backed up, restored or closed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterRefusal {
    #[error("the store holds a cluster already, or remains of one")]
    AlreadyInitialized,
    #[error("the dump cannot be read: {why}")]
    BadDump { why: String },
    #[error("the dump is of cluster `{dump}`, and this is cluster `{here}`")]
    OtherCluster { dump: String, here: String },
    #[error(transparent)]
    Restore(#[from] RestoreError),
    #[error("{} would be locked out: not known to know the store's password", named(nodes))]
    WithoutPassword { nodes: Vec<NodeName> },
    #[error(
        "{} would be locked out: another password of the store is known there than to this API",
        named(nodes)
    )]
    OtherPassword { nodes: Vec<NodeName> },
    #[error(
        "every node would be locked out: none is known to know the password that this API knows"
    )]
    Nobody,
}

fn named(nodes: &[NodeName]) -> String {
    let nodes: Vec<String> = nodes.iter().map(|node| format!("`{node}`")).collect();
    if let [one] = &nodes[..] {
        format!("node {one}")
    } else {
        format!("nodes {}", nodes.join(", "))
    }
}

impl Refusal for ClusterRefusal {
    fn kind(&self) -> Kind {
        match self {
            ClusterRefusal::AlreadyInitialized
            | ClusterRefusal::OtherCluster { .. }
            | ClusterRefusal::WithoutPassword { .. }
            | ClusterRefusal::OtherPassword { .. }
            | ClusterRefusal::Nobody => Kind::Conflict,
            ClusterRefusal::BadDump { .. } => Kind::Invalid,
            ClusterRefusal::Restore(RestoreError::Stopped { .. }) => Kind::Unavailable,
            ClusterRefusal::Restore(_) => Kind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            ClusterRefusal::AlreadyInitialized => {
                Some("say `--overwrite` to destroy all that is recorded about it".to_owned())
            }
            ClusterRefusal::BadDump { .. } => Some(
                "give the file that `pvc cluster backup` wrote: one JSON object of keys and \
                 texts"
                    .to_owned(),
            ),
            ClusterRefusal::OtherCluster { .. } => Some(
                "if this cluster has another name since, or is to become that one, say `--force`: \
                 records of the same paths are replaced, and the others stay"
                    .to_owned(),
            ),
            ClusterRefusal::Restore(error) => error.hint(),
            ClusterRefusal::WithoutPassword { .. } => Some(
                "set `database.zookeeper.password` in the configuration of every node and restart \
                 its daemons; nodes of \
                 PVC 1.0.3 cannot know one. `force` closes the store all the same"
                    .to_owned(),
            ),
            ClusterRefusal::OtherPassword { .. } | ClusterRefusal::Nobody => Some(
                "compare `database.zookeeper.password` in the configuration of the nodes, and \
                 restart the daemons that were started before it was changed, this API included"
                    .to_owned(),
            ),
        }
    }
}

/// Makes the store that of a new cluster. With `overwrite` what is recorded of the present one is
/// destroyed; running guests stay up and belong to nobody.
pub async fn initialize(store: &Store, overwrite: bool) -> crate::Outcome<(), ClusterRefusal> {
    match store.initialize(overwrite).await {
        Ok(()) => Ok(()),
        Err(StoreError::AlreadyInitialized | StoreError::Remains) => {
            Err(ChangeError::Refused(ClusterRefusal::AlreadyInitialized))
        }
        Err(error) => Err(error.into()),
    }
}

/// All that is recorded, by key; the passwords of the nodes' BMCs `with_secrets` only.
pub async fn backup(
    store: &Store,
    with_secrets: bool,
) -> Result<BTreeMap<String, String>, StoreError> {
    store.backup(with_secrets).await
}

/// Writes what is to be of what [`backup`] gave, as JSON text, also into an empty store that is to
/// take the place of a lost one. Keys that are not in it stay; what was so then, or under way, does
/// not come back. The dump of a cluster of another name is refused unless that is forced. What else
/// there is to know of it say its [`notes`].
pub async fn restore(
    store: &Store,
    dump: &str,
    force: bool,
) -> crate::Outcome<Restored, ClusterRefusal> {
    let dump = read_dump(dump).map_err(ChangeError::Refused)?;
    if !force {
        let cluster = store.fresh().await?;
        check_name(&dump, &cluster.config.name).map_err(ChangeError::Refused)?;
    }
    store.restore(&dump).await.map_err(|error| ChangeError::Refused(ClusterRefusal::Restore(error)))
}

/// Refuses the dump of another cluster than the one that has the name `here`.
fn check_name(dump: &BTreeMap<String, String>, here: &str) -> Result<(), ClusterRefusal> {
    match name_of_dump(dump) {
        Some(name) if is_of_another(name, here) => {
            Err(ClusterRefusal::OtherCluster { dump: name.to_owned(), here: here.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Sentences about what an operator has to know after a restore, without a full stop.
pub fn notes(restored: &Restored) -> Vec<String> {
    let unfenceable = (!restored.unfenceable.is_empty()).then(|| {
        format!(
            "no IPMI password is known of {}: start the daemon there, until then it cannot be \
             fenced",
            named(&restored.unfenceable)
        )
    });
    let disabled = (!restored.disabled.is_empty()).then(|| {
        format!(
            "disabled are VMs that were being made, imported, restored or removed then, `{}`: look \
             at the volumes of each, and start or remove it",
            restored.disabled.join("`, `")
        )
    });
    let maintenance = restored.maintenance.then(|| {
        "the cluster is in maintenance: no node is fenced until `pvc cluster maintenance off`"
            .to_owned()
    });
    let open = restored.open.then(|| {
        "the records are open to whoever reaches ZooKeeper, although there is a password for them: \
         close them by `pvc cluster store close`"
            .to_owned()
    });
    unfenceable.into_iter().chain(disabled).chain(maintenance).chain(open).collect()
}

/// Sentence, without a full stop, about volumes that VMs name and that are
/// [only in the trash](crate::storage::only_in_trash).
pub fn note_of_trash(volumes: &[TrashedVolume]) -> Option<String> {
    let restore = |entry: &TrashedVolume| {
        let TrashedVolume { pool, id, name, .. } = entry;
        format!("`{pool}/{name}`: `pvc storage trash restore {pool} {id}`")
    };
    let how: Vec<String> = volumes.iter().map(restore).collect();
    (!how.is_empty())
        .then(|| format!("VMs name volumes that are only in the trash, {}", how.join(", ")))
}

/// Result of [`backup`], as the JSON text that [`restore`] reads.
pub fn dump_text(dump: &BTreeMap<String, String>) -> String {
    serde_json::to_string(dump).expect("a map of texts is JSON")
}

/// `GET /backup` answers with JSON in a JSON string, and people save either.
fn read_dump(text: &str) -> Result<BTreeMap<String, String>, ClusterRefusal> {
    let bad = |error: serde_json::Error| ClusterRefusal::BadDump { why: error.to_string() };
    let value: serde_json::Value = serde_json::from_str(text).map_err(bad)?;
    match value {
        serde_json::Value::String(inner) => serde_json::from_str(&inner).map_err(bad),
        other => serde_json::from_value(other).map_err(bad),
    }
}

/// Switches maintenance on or off: while it is on, no node is taken for dead and no fault is
/// recorded. Returns whether that changed anything.
pub async fn set_maintenance(
    store: &Store,
    on: bool,
) -> Result<bool, ChangeError<std::convert::Infallible>> {
    store
        .change(|cluster| {
            let mut changes = Changes::new();
            let differs = cluster.config.maintenance != on;
            if differs {
                changes.config(ConfigChange::Maintenance(on));
            }
            Ok((changes, differs))
        })
        .await
}

/// Access rules of the store's records, and the password of the store that each node's daemon is
/// known to know.
pub async fn protection(
    store: &Store,
) -> Result<(Protection, BTreeMap<NodeName, KnownPassword>), StoreError> {
    Ok((store.protection().await?, store.known_passwords().await?))
}

/// Closes the store's records to everybody who does not know their password, or opens them to
/// whoever reaches the store. It is not closed to one of the cluster's nodes, unless that is
/// forced; and never to one that knows another password, which may as well be the right one, nor to
/// all.
pub async fn protect(
    store: &Store,
    access: Access,
    force: bool,
) -> crate::Outcome<Protection, ClusterRefusal> {
    if access == Access::Members {
        check_passwords(&store.known_passwords().await?, force).map_err(ChangeError::Refused)?;
    }
    match store.is_dry() {
        true => Ok(store.protection().await?),
        false => Ok(store.protect(access).await?),
    }
}

fn check_passwords(
    known: &BTreeMap<NodeName, KnownPassword>,
    force: bool,
) -> Result<(), ClusterRefusal> {
    let with = |wanted| -> Vec<NodeName> {
        known.iter().filter(|(_, found)| **found == wanted).map(|(node, _)| node.clone()).collect()
    };
    let (others, without) = (with(KnownPassword::Another), with(KnownPassword::Unproven));
    if !others.is_empty() {
        return Err(ClusterRefusal::OtherPassword { nodes: others });
    }
    if !without.is_empty() && !force {
        return Err(ClusterRefusal::WithoutPassword { nodes: without });
    }
    if !known.is_empty() && without.len() == known.len() {
        return Err(ClusterRefusal::Nobody);
    }
    Ok(())
}
