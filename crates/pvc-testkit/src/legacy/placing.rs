//! Choice of a node for a VM: `spec/coordination.md` §8.

use pvc_model::Uuid;

use super::LegacyPeer;
use super::records::Records;

/// The node that `records` say is best for the VM; `None` if there is none.
pub(super) async fn find_target(records: &Records, vm: Uuid) -> Option<String> {
    let text = async |key: &str| records.text(&format!("/domains/{vm}/{key}")).await;
    let (limit, current) = (text("node_limit").await, text("node").await);
    let mut selector = text("node_selector").await;
    if matches!(selector.as_str(), "" | "none" | "None") {
        selector = records.text("/config/migration_target_selector").await;
    }
    let mut best: Option<(f64, String)> = None;
    for node in records.children("/nodes").await {
        let is_within = limit.is_empty() || limit.split(',').any(|allowed| allowed == node);
        if !is_within || node == current {
            continue;
        }
        let is = async |key: &str| records.text(&format!("/nodes/{node}/{key}")).await;
        if is("daemonstate").await != "run" || is("domainstate").await != "ready" {
            continue;
        }
        let figure = async |key: &str| is(key).await.parse::<f64>().unwrap_or_default();
        // The larger the better, and more than the first bound.
        let (merit, least) = match selector.as_str() {
            "mem" => (figure("memfree").await, 0.0),
            "memprov" => {
                (figure("memused").await + figure("memfree").await - figure("memprov").await, 0.0)
            }
            "load" => (-figure("cpuload").await, -9999.0),
            "vcpus" => (-figure("vcpualloc").await, -9999.0),
            "vms" => (-figure("domainscount").await, -9999.0),
            _ => return None,
        };
        if merit > best.as_ref().map_or(least, |(merit, _)| *merit) {
            best = Some((merit, node));
        }
    }
    best.map(|(_, node)| node)
}

impl LegacyPeer {
    pub(super) async fn find_target(&self, vm: Uuid) -> Option<String> {
        find_target(&self.records, vm).await
    }
}
