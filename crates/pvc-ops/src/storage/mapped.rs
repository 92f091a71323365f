//! Volumes that scripts of the provisioner have as devices: they are held for as long as they do.

use std::collections::BTreeSet;

use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::hold::{Purpose, VolumeHold, check_not_held};
use pvc_model::job::JobId;
use pvc_model::storage::VolumeId;
use pvc_model::vm::volumes::{is_at_rest, users};
use pvc_model::vm::{VmRecord, VmState};
use pvc_store::{Change, Changes, Expect};

use super::hold::check_keeps_its_name;
use super::{StorageRefusal, require_pool};

/// The changes with which the script of `job`, which makes VM `own`, may have the volume as a
/// device: nobody starts a VM with it, or does anything else to it, before the job
/// [lets go](let_go_of_mapped), which the job does before it starts the VM that it has made.
///
/// # Errors
/// If it is held, but for other scripts, or a guest may have it: of another VM that is not off, or
/// of VM `own` if somebody has given that another state.
pub fn hold_mapped(
    cluster: &Cluster,
    volume: &VolumeId,
    job: &JobId,
    own: Uuid,
) -> Result<Changes, StorageRefusal> {
    require_pool(cluster, &volume.pool)?;
    let is_made = |vm: &VmRecord| vm.uuid == own && vm.state == VmState::Provision;
    let users: Vec<&VmRecord> = users(cluster, volume).collect();
    if let Some(vm) = users.iter().find(|vm| !is_made(vm) && !is_at_rest(cluster, vm)) {
        return Err(StorageRefusal::Running { vm: vm.name.clone(), volume: volume.clone() });
    }
    let mut jobs = jobs_with(cluster, volume).cloned().unwrap_or_default();
    if jobs.is_empty() {
        check_not_held(cluster, volume, None)?;
    }
    let mut changes = Changes::new();
    if jobs.contains(job) {
        return Ok(changes);
    }
    check_keeps_its_name(cluster, volume)?;
    // Of a start, a definition or a renaming at the same time and this, the later one decides
    // again.
    changes.expect(Expect::VmNames);
    for vm in users {
        changes.expect(Expect::VmState(vm.uuid));
    }
    jobs.insert(job.clone());
    changes.push(hold(volume, jobs, job));
    Ok(changes)
}

/// The changes with which the script of `job` has the volume as a device no more: none if it is not
/// held for that.
pub fn let_go_of_mapped(cluster: &Cluster, volume: &VolumeId, job: &JobId) -> Changes {
    let mut changes = Changes::new();
    let Some(jobs) = jobs_with(cluster, volume).filter(|jobs| jobs.contains(job)) else {
        return changes;
    };
    let mut others = jobs.clone();
    others.remove(job);
    changes.push(match others.last().cloned() {
        None => Change::ReleaseVolume(volume.clone()),
        Some(last) => hold(volume, others, &last),
    });
    changes
}

/// The volumes that are held for the script of `job`.
pub fn mapped_by(cluster: &Cluster, job: &JobId) -> Vec<VolumeId> {
    let is_its =
        |volume: &&VolumeId| jobs_with(cluster, volume).is_some_and(|jobs| jobs.contains(job));
    cluster.holds.keys().filter(is_its).cloned().collect()
}

fn hold(volume: &VolumeId, jobs: BTreeSet<JobId>, by: &JobId) -> Change {
    let (volume, purpose) = (volume.clone(), Purpose::Mapped(jobs));
    Change::HoldVolume(VolumeHold { volume, purpose, by: by.to_string() })
}

/// The jobs whose scripts have the volume as a device, if it is held for that.
fn jobs_with<'a>(cluster: &'a Cluster, volume: &VolumeId) -> Option<&'a BTreeSet<JobId>> {
    match &cluster.holds.get(volume)?.purpose {
        Purpose::Mapped(jobs) => Some(jobs),
        _ => None,
    }
}
