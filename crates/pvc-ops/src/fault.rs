//! Asks about faults.

use std::collections::BTreeSet;

use pvc_model::cluster::Cluster;
use pvc_model::shown;
use pvc_store::{Change, ChangeError, Changes, Store};

use crate::refusal::{Kind, Refusal};

/// Selection of faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    All,
    One(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FaultRefusal {
    #[error("there is no fault `{fault}`")]
    NoFault { fault: String },
}

impl Refusal for FaultRefusal {
    fn kind(&self) -> Kind {
        Kind::NotFound
    }

    fn hint(&self) -> Option<String> {
        Some("`pvc cluster fault list` shows the faults".to_owned())
    }
}

/// Notes that somebody knows of the faults: they no longer lower the cluster's health. `at` is the
/// local time, as faults have it. What was acknowledged before keeps its time.
pub async fn acknowledge(
    store: &Store,
    which: &Which,
    at: &str,
) -> Result<(), ChangeError<FaultRefusal>> {
    store
        .change(|cluster| {
            let known =
                |id: &String| cluster.faults.get(id).is_some_and(|fault| fault.acknowledged);
            let mut changes = Changes::new();
            for id in meant(cluster, which)?.into_iter().filter(|id| !known(id)) {
                changes.push(Change::AckFault { id, at: at.to_owned() });
            }
            Ok((changes, ()))
        })
        .await
}

/// Removes the faults. One whose condition is found again comes back.
pub async fn delete(store: &Store, which: &Which) -> Result<(), ChangeError<FaultRefusal>> {
    store
        .change(|cluster| {
            let mut changes = Changes::new();
            for id in meant(cluster, which)? {
                changes.push(Change::RemoveFault(id));
            }
            Ok((changes, ()))
        })
        .await
}

fn meant(cluster: &Cluster, which: &Which) -> Result<BTreeSet<String>, FaultRefusal> {
    match which {
        Which::All => Ok(cluster.faults.keys().cloned().collect()),
        Which::One(id) if cluster.faults.contains_key(id) => Ok(BTreeSet::from([id.clone()])),
        Which::One(id) => Err(FaultRefusal::NoFault { fault: shown(id) }),
    }
}
