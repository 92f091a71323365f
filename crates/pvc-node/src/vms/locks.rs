//! The locks that guests hold on their volumes, and those that guests which are gone have left.
//!
//! Which of them are broken: `pvc_model::vm::locks`. Those of another host never are here: that one
//! knows whether its guest is gone, and frees what was left.

use std::collections::BTreeMap;

use pvc_domain::summary;
use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::storage::VolumeId;
use pvc_model::vm::VmRecord;
use pvc_model::vm::locks::{BlockingLock, Breaker, GuestsHere, Kept, Verdict, may_break};
use pvc_model::vm::volumes::{rivals, runs_on};
use pvc_ports::{Guest, GuestRun, HypervisorError, StorageError, VolumeLock};

use super::act::StepError;
use crate::shared::Shared;

/// Frees the locks that guests which are gone left on the VM's volumes: an earlier life of this
/// node, or one that ended on its way to another. A lock of somebody else means that the VM may run
/// there: never freed here.
pub(super) async fn free_own_locks(shared: &Shared, record: &VmRecord) -> Result<(), StepError> {
    let storage = &shared.ports.storage;
    // Known before the locks are asked for: what is freed meanwhile is not taken for somebody's.
    let view = shared.store.view();
    let mut here = None;
    for volume in record.volumes() {
        let locks = match storage.locks(&volume).await {
            // One that only an outdated list names; one of the XML is missed when it is attached.
            Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => continue,
            other => other?,
        };
        for lock in locks {
            let judge = |guests: Option<&GuestsHere>| {
                let own_address = shared.settings.storage_address.as_deref();
                let by = Breaker::Node { vm: record, volume: &volume, own_address, guests };
                may_break(&view, &lock.address, &by)
            };
            let verdict = match judge(None) {
                Verdict::AskGuests => {
                    let here = match &here {
                        Some(here) => here,
                        None => here.insert(Guests::look(shared).await?),
                    };
                    judge(Some(&here.of(record.uuid, &volume)))
                }
                verdict => verdict,
            };
            match verdict {
                // Its own guest lives, and so does its lock.
                Verdict::InUse => return Ok(()),
                Verdict::Shared | Verdict::AskGuests => {}
                Verdict::Keep(kept) => return Err(step_error(shared, kept, volume, lock)),
                Verdict::Break => {
                    tracing::info!(vm = record.name, %volume, lock = lock.id, "freeing a lock that \
                                                                               this node left \
                                                                               behind");
                    storage.break_lock(&volume, &lock).await?;
                }
            }
        }
    }
    Ok(())
}

fn step_error(shared: &Shared, kept: Kept, volume: VolumeId, lock: VolumeLock) -> StepError {
    let VolumeLock { id: lock, address, .. } = lock;
    match kept {
        Kept::BeingFreed => StepError::BeingFreed { lock, volume },
        Kept::HeldBy(node) => StepError::HeldBy { lock, address, volume, node },
        Kept::UsedBy { vm: other, .. } => StepError::Permanent(format!(
            "its volume `{volume}` is in use by VM `{other}`, which runs on node `{}`",
            shared.name()
        )),
        _ => {
            let why = "no node of this version has that address, and one of PVC 1.0.3 cannot be \
                       asked to free it";
            let (id, address, volume) = (lock.as_str(), address.as_str(), &volume);
            let lock = BlockingLock { id, address, volume, why, node: None };
            StepError::Permanent(lock.reason())
        }
    }
}

/// Refuses a start while a volume that the VM needs for itself is used by a VM that runs, on this
/// node or another.
pub(super) async fn check_rivals(
    shared: &Shared,
    view: &Cluster,
    record: &VmRecord,
) -> Result<(), StepError> {
    let mut here = None;
    for (other, volume) in rivals(view, record) {
        let here: &BTreeMap<Uuid, Guest> = match &here {
            Some(here) => here,
            None => here.insert(shared.ports.hypervisor.guests().await?),
        };
        let runs_here = here.get(&other.uuid).is_some_and(|guest| guest.run != GuestRun::Created);
        let there = runs_on(view, other.uuid).filter(|node| *node != shared.name());
        if let Some(node) = runs_here.then_some(shared.name()).or(there) {
            return Err(StepError::Permanent(format!(
                "its volume `{volume}` is in use by VM `{}`, which runs on node `{node}`",
                other.name
            )));
        }
    }
    Ok(())
}

/// The guests here with the volumes that they have now, as the hypervisor tells: records may be of
/// tomorrow.
struct Guests {
    guests: BTreeMap<Uuid, Guest>,
    live: BTreeMap<Uuid, String>,
}

impl Guests {
    async fn look(shared: &Shared) -> Result<Self, HypervisorError> {
        let hypervisor = &shared.ports.hypervisor;
        let guests = hypervisor.guests().await?;
        let mut live = BTreeMap::new();
        for uuid in guests.keys() {
            match hypervisor.live_xml(*uuid).await {
                Ok(xml) => _ = live.insert(*uuid, xml),
                Err(HypervisorError::NoGuest { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Guests { guests, live })
    }

    /// Guests here that a lock on the volume of a VM depends on.
    fn of(&self, vm: Uuid, volume: &VolumeId) -> GuestsHere {
        let mut here = GuestsHere { own: self.guests.contains_key(&vm), ..GuestsHere::default() };
        for (uuid, guest) in &self.guests {
            let (uses, shares) = match self.live.get(uuid).map(|xml| (xml, summary(xml))) {
                Some((_, Ok(domain))) => (domain.volumes().contains(volume), domain.shares(volume)),
                // What cannot be read is searched: better a lock too many than a guest without its
                // disk.
                Some((xml, Err(_))) => (xml.contains(&volume.to_string()), false),
                None => (false, false),
            };
            if uses {
                here.users.push(guest.name.clone());
            }
            if uses && !shares && *uuid != vm {
                here.alone.get_or_insert_with(|| guest.name.clone());
            }
        }
        here
    }
}
