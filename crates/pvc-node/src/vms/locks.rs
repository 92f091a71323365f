//! The locks that guests hold on their volumes, and those that guests which are gone have left.

use pvc_model::fence;
use pvc_model::vm::VmRecord;
use pvc_ports::StorageError;

use super::act::Trouble;
use crate::shared::Shared;

/// Frees the locks that guests which are gone left on the VM's volumes: an earlier life of this node, or one
/// that ended on its way to another. A lock of somebody else means that the VM may run there: never freed here.
pub(super) async fn free_own_locks(shared: &Shared, record: &VmRecord) -> Result<(), Trouble> {
    let storage = &shared.ports.storage;
    // Known before the locks are asked for: what is freed meanwhile is not taken for somebody's.
    let is_recovering = fence::is_recovering(&shared.store.view());
    for volume in record.volumes() {
        let locks = match storage.locks(&volume).await {
            // One that only an outdated list names; one of the XML is missed when it is attached.
            Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => continue,
            other => other?,
        };
        for lock in locks {
            if shared.settings.storage_address.as_deref() != Some(lock.address.as_str()) {
                if is_recovering {
                    return Err(Trouble::BeingFreed { lock: lock.id, volume });
                }
                return Err(Trouble::Hopeless(format!(
                    "Could not safely free RBD lock {} ({}) on volume {volume}; stop VM and flush locks manually",
                    lock.id, lock.address
                )));
            }
            tracing::info!(vm = record.name, %volume, lock = lock.id, "freeing a lock that this node left behind");
            storage.break_lock(&volume, &lock).await?;
        }
    }
    Ok(())
}
