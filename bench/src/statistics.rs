//! New statistics of VMs, as their nodes send them all the time.

use std::sync::Arc;

use pvc_model::vm::VmRecord;
use pvc_store::{Report, Store, StoreError};

/// Mark by which statistics differ from those before.
const MARK: &str = ", \"round\": 1";

/// Gives `vms` of the running VMs other statistics than those of another `round`, other VMs in each
/// round. Returns when the view of `store` shows them.
pub async fn renew(store: &Store, vms: usize, round: usize) -> Result<(), StoreError> {
    let view = store.view();
    let changed = |vm: &Arc<VmRecord>| {
        let before = vm.stats.split(MARK).next().unwrap_or_default().trim_end_matches('}');
        Report::VmStats(vm.uuid, format!("{before}{MARK}{round:08}}}"))
    };
    let running: Vec<_> = view.vms.values().filter(|vm| !vm.stats.is_empty()).collect();
    let reports =
        running.iter().cycle().skip(round % running.len().max(1)).take(vms.min(running.len()));
    store.report(reports.map(|vm| changed(vm)).collect()).await?;
    store.fresh().await.map(drop)
}
