//! A cluster's records from the file that `pvc cluster backup` wrote.

use std::collections::BTreeMap;
use std::sync::Arc;

use pvc_api_types::WhatIfRefusal;
use pvc_embedded::EmbeddedTree;
use pvc_model::cluster::Cluster;
use pvc_model::what_if::lives;
use pvc_store::{RestoreError, Store};
use pvc_testkit::{SeededRandom, TokioClock};
use serde_json::Value;

/// The records, and what of the file is none.
#[derive(Debug)]
pub(super) struct Backup {
    pub keys: BTreeMap<String, String>,
    pub defects: Vec<String>,
}

pub(super) fn refusal(message: impl Into<String>, hint: impl Into<String>) -> WhatIfRefusal {
    WhatIfRefusal { not_found: false, message: message.into(), hint: hint.into() }
}

impl Backup {
    /// Reads the text of the file. A single value that is none is left out and named.
    pub fn read(text: &str) -> Result<Backup, WhatIfRefusal> {
        let no_json = |error: serde_json::Error| {
            refusal(
                format!("the backup is no JSON: {error}"),
                "give the file that `pvc cluster backup` wrote",
            )
        };
        let value: Value = serde_json::from_str(text).map_err(no_json)?;
        // The API sends JSON in a JSON text, and people save either.
        let value = match value {
            Value::String(inner) => serde_json::from_str(&inner).map_err(no_json)?,
            other => other,
        };
        let Value::Object(object) = value else { return Err(no_backup()) };
        let mut backup = Backup { keys: BTreeMap::new(), defects: Vec::new() };
        for (key, value) in object {
            match value {
                Value::String(text) => drop(backup.keys.insert(key, text)),
                _ => {
                    backup.defects.push(format!("`{key}` of the backup is no text; it is left out"))
                }
            }
        }
        Ok(backup)
    }

    /// Writes the records into a store. What no store takes is left out and named.
    pub async fn load(&mut self, store: &Store) -> Result<(), WhatIfRefusal> {
        loop {
            let (key, why) = match store.load(&self.keys).await {
                Ok(()) => return Ok(()),
                Err(RestoreError::BadKey { key }) => (key, "is no record of PVC"),
                Err(RestoreError::TooLarge { key, .. }) => {
                    (key, "is larger than any record can be")
                }
                Err(error) => return Err(not_loaded(&error)),
            };
            if self.keys.remove(&key).is_none() {
                return Err(refusal(format!("the backup cannot be read: `{key}` {why}"), ""));
            }
            self.defects.push(format!("`{key}` of the backup {why}; it is left out"));
        }
    }

    /// The cluster that the records tell of. What of them cannot be read is named.
    pub async fn cluster(&mut self) -> Result<Arc<Cluster>, WhatIfRefusal> {
        let opened = Store::open(
            EmbeddedTree::in_memory().connect(),
            Arc::new(TokioClock::new()),
            Arc::new(SeededRandom::new(1)),
        );
        let store = opened.await.map_err(|error| refusal(error.to_string(), ""))?;
        self.load(&store).await?;
        let cluster = store.view();
        self.defects.extend(unreadable(&cluster));
        Ok(cluster)
    }
}

fn no_backup() -> WhatIfRefusal {
    refusal(
        "the file is no backup of a cluster",
        "a backup is one object of records by path, with `/schema/version` among them",
    )
}

fn not_loaded(error: &RestoreError) -> WhatIfRefusal {
    match error {
        RestoreError::NoSchema => no_backup(),
        RestoreError::Schema { found, expected } => refusal(
            format!(
                "the backup has records of schema version `{found}`, and this program reads \
                 version {expected}"
            ),
            "take a backup of the cluster as it is now",
        ),
        other => {
            refusal(format!("the backup cannot be read: {}", pvc_model::with_causes(other)), "")
        }
    }
}

fn unreadable(cluster: &Cluster) -> Vec<String> {
    let mut found = Vec::new();
    for node in cluster.nodes.values() {
        found.extend(node.defects.iter().map(|defect| format!("node `{}`: {defect}", node.name)));
        if lives(node) && node.figures.memory_total_mib == 0 {
            found.push(format!(
                "node `{}` does not say how much memory it has: it is believed to have enough for \
                 every VM",
                node.name
            ));
        }
    }
    for vm in cluster.vms.values() {
        let xml = vm.domain.as_ref().err().map(|why| format!("its XML cannot be read: {why}"));
        found.extend(
            vm.defects.iter().cloned().chain(xml).map(|why| format!("VM `{}`: {why}", vm.name)),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use pvc_store::synthetic::Shape;

    #[test]
    fn what_is_no_backup_is_refused() {
        let said = |text: &str| Backup::read(text).unwrap_err().message;
        assert!(said("<html>").starts_with("the backup is no JSON: "));
        assert_eq!(said("[1]"), "the file is no backup of a cluster");
    }

    async fn read(
        keys: &BTreeMap<String, String>,
    ) -> Result<(Arc<Cluster>, Vec<String>), WhatIfRefusal> {
        let mut backup = Backup::read(&serde_json::to_string(keys).unwrap()).unwrap();
        let cluster = backup.cluster().await?;
        Ok((cluster, backup.defects))
    }

    #[tokio::test(start_paused = true)]
    async fn another_version_and_no_version_are_refused() {
        let mut keys = Shape::with_vms(2).dump();
        keys.insert("/schema/version".to_owned(), "14".to_owned());
        let words =
            "the backup has records of schema version `14`, and this program reads version 15";
        assert_eq!(read(&keys).await.unwrap_err().message, words);
        keys.remove("/schema/version");
        assert_eq!(read(&keys).await.unwrap_err().message, "the file is no backup of a cluster");
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_record_is_named_and_the_others_are_read() {
        let mut keys = Shape::with_vms(3).dump();
        let xml = keys.keys().find(|key| key.ends_with("/xml")).unwrap().clone();
        keys.insert(xml, "<domain".to_owned());
        keys.insert("/nodes/pvchv2/memfree".to_owned(), "plenty".to_owned());
        keys.insert("no path".to_owned(), String::new());
        let mut text: Value = serde_json::to_value(&keys).unwrap();
        text["/nodes/pvchv3/cpuload"] = Value::from(7);
        let mut backup = Backup::read(&text.to_string()).unwrap();
        let cluster = backup.cluster().await.unwrap();
        assert_eq!((cluster.nodes.len(), cluster.vms.len()), (3, 3));
        let named = |what: &str| backup.defects.iter().any(|defect| defect.contains(what));
        assert!(named("`/nodes/pvchv3/cpuload` of the backup is no text"), "{:?}", backup.defects);
        assert!(named("`no path` of the backup is no record of PVC"), "{:?}", backup.defects);
        assert!(
            named("node `pvchv2`: `memfree` is `plenty`, not a number"),
            "{:?}",
            backup.defects
        );
        assert!(named("its XML cannot be read"), "{:?}", backup.defects);
    }

    #[tokio::test(start_paused = true)]
    async fn a_backup_is_read_as_the_api_sends_it_too() {
        let keys = Shape::with_vms(2).dump();
        let text = serde_json::to_string(&serde_json::to_string(&keys).unwrap()).unwrap();
        let mut backup = Backup::read(&text).unwrap();
        assert_eq!(backup.cluster().await.unwrap().vms.len(), 2);
        assert_eq!(backup.defects, [""; 0]);
    }
}
