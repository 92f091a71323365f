//! Workers: `/pvcrs/workers/{node}`, an ephemeral key with JSON, ours alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use pvc_model::NodeName;
use pvc_model::job::WorkerRecord;
use pvc_ports::{CreateMode, TreeError};
use serde::{Deserialize, Serialize};

use super::{Kind, PLAIN, private, update};
use crate::error::StoreError;
use crate::feed::EventKind;
use crate::raw::Raw;
use crate::reader::json;
use crate::store::Store;

const ROOT: &str = "/pvcrs/workers";

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT],
    base: &[(ROOT, "")],
    record: |key| key.first().map(str::to_owned),
    read: |raw, _, name| {
        let node = NodeName::new(name);
        let record = read(raw, &node).map(Arc::new);
        Box::new(move |view| {
            let changed = update(&mut view.workers, node.clone(), record);
            // The node stays when its worker goes.
            changed.map(|_| (EventKind::Node(node), false))
        })
    },
    is_observed: |_| true,
    for_jobs: &[ROOT],
    is_for_scripts: |_| true,
    ..PLAIN
};

/// The key that is there as long as one of our workers is connected for the node.
fn path(node: &NodeName) -> String {
    format!("{ROOT}/{node}")
}

fn read(raw: &Raw, node: &NodeName) -> Option<WorkerRecord> {
    json(raw, &path(node)).map(|text| worker_from(&text))
}

/// The value: what a worker says of itself.
#[derive(Serialize, Deserialize)]
struct Worker {
    #[serde(default)]
    kinds: BTreeSet<String>,
}

fn worker_text(worker: &WorkerRecord) -> String {
    let worker = Worker { kinds: worker.kinds.clone() };
    serde_json::to_string(&worker).expect("strings always have a JSON form")
}

/// A worker that says nothing which can be read is there, and knows no kind.
fn worker_from(text: &str) -> WorkerRecord {
    let worker: Option<Worker> = serde_json::from_str(text).ok();
    WorkerRecord { kinds: worker.map(|worker| worker.kinds).unwrap_or_default() }
}

impl Store {
    /// Announces this process as the worker of `node`, for as long as its session lasts. While
    /// another one is announced, nothing is done. Nor if the tree holds no cluster.
    pub async fn announce_worker(
        &self,
        node: &NodeName,
        worker: &WorkerRecord,
    ) -> Result<(), StoreError> {
        if !self.is_initialized() {
            return Ok(());
        }
        self.ensure_path(private::ROOT).await?;
        self.ensure_path(ROOT).await?;
        let (path, data) = (path(node), Bytes::from(worker_text(worker)));
        match self.tree.create(&path, data, CreateMode::Ephemeral).await {
            // An answer that was lost is found out by whoever looks for it the next time.
            Ok(_) | Err(TreeError::NodeExists { .. } | TreeError::OutcomeUnknown) => {
                self.refresh(vec![path]).await
            }
            Err(error) => Err(error.into()),
        }
    }
}
