//! Changes: each kind once, its refusals, and waiting for it.

mod benchmark;
mod definitions;
mod download;
mod dry_runs;
mod hardware;
mod images;
mod moving;
mod networks;
mod osd;
mod ova;
mod provisioner;
mod sriov;
mod states;
mod storage;
mod store;
mod tasks;
mod transfer;
mod under_way;

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use pvc_api::{ApiSettings, Limits};
use pvc_embedded::EmbeddedTree;
use pvc_model::node::{DaemonState, DomainState};
use pvc_model::vm::VmState;
use pvc_store::synthetic::Shape;
use pvc_store::{Changes, NodeChange, VmChange};
use pvc_testkit::{Closed, FlakyTree, Gate};
use serde_json::json;

use crate::common::{Api, Reply, empty, settings, start, start_on, with_vms};

const UUID: &str = "2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1";

fn xml(name: &str, uuid: &str) -> String {
    format!(
        "<domain type='kvm'>\n  <name>{name}</name>\n  <uuid>{uuid}</uuid>\n  \
         <memory unit='MiB'>64</memory>\n  <vcpu>1</vcpu>\n  \
         <os><type arch='x86_64' machine='pc-i440fx-2.7'>hvm</type></os>\n  \
         <devices>\n    <emulator>/usr/bin/kvm</emulator>\n    \
         <serial type='pty'><log file='/var/log/libvirt/{name}.log' append='on'/></serial>\n    \
         <console type='pty'/>\n  </devices>\n</domain>\n"
    )
}

impl Api {
    async fn define(&self, query: &str, xml: &str) -> Reply {
        self.form(Method::POST, &format!("/vm{query}"), "xml", xml).await
    }

    fn state(&self, vm: &str) -> VmState {
        self.store.view().vm(vm).expect("the VM exists").state.clone()
    }

    /// Plays the node: the VM's state, and whether the node says it runs.
    async fn play(&self, vm: &str, state: &str, runs: bool) {
        let uuid = self.uuid(vm);
        let running = if runs { uuid.to_string() } else { String::new() };
        self.write("/nodes/pvchv1/runningdomains", running).await;
        self.write(&format!("/domains/{uuid}/state"), state.to_owned()).await;
    }
}

/// Cluster with one VM `web` on node `pvchv1`, off, and nothing else.
async fn with_web() -> Arc<Api> {
    let api = with_vms(0).await;
    api.define("?node=pvchv1", &xml("web", UUID)).await.ok();
    Arc::new(api)
}

/// Sends a request and lets it wait.
fn waiting(api: &Arc<Api>, path: &'static str) -> tokio::task::JoinHandle<Reply> {
    let api = api.clone();
    tokio::spawn(async move { api.post(path).await })
}
