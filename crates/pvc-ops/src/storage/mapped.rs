//! Volumes that scripts of the provisioner have as devices: they are held for as long as they do.

use std::collections::BTreeMap;

use pvc_model::cluster::Cluster;
use pvc_model::hold::{Purpose, VolumeHold, check_not_held, has_nothing_mapped};
use pvc_model::job::JobId;
use pvc_model::storage::VolumeId;
use pvc_model::vm::volumes::{is_at_rest, users};
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_store::{Change, Changes, Expect};

use super::hold::check_keeps_its_name;
use super::{StorageRefusal, require_pool};
use crate::refusal::{Kind, Refusal};

/// A volume that nobody may let go of: what a script had mapped on a node may be there still.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("volume `{volume}` may still be mapped on node `{node}`")]
pub struct StillMapped {
    pub volume: VolumeId,
    pub node: NodeName,
}

impl Refusal for StillMapped {
    fn kind(&self) -> Kind {
        Kind::Unavailable
    }

    fn hint(&self) -> Option<String> {
        let StillMapped { node, .. } = self;
        Some(format!(
            "the worker of node `{node}` lets go of it when it is there again; if the server is \
             off for good, `pvc node confirm-off {node}` does"
        ))
    }
}

/// The changes with which the script of `job`, which makes VM `own`, may have the volume as a
/// device on `node`: nobody starts a VM with it, or does anything else to it, before the job
/// [lets go](let_go_of_mapped), which the job does before it starts the VM that it has made.
///
/// # Errors
/// If it is held, but for other scripts, or a guest may have it: of another VM that is not off, or
/// of VM `own` if somebody has given that another state.
pub fn hold_mapped(
    cluster: &Cluster,
    volume: &VolumeId,
    (job, node): (&JobId, &NodeName),
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
    if jobs.contains_key(job) {
        return Ok(changes);
    }
    check_keeps_its_name(cluster, volume)?;
    // Of a start, a definition or a renaming at the same time and this, the later one decides
    // again.
    changes.expect(Expect::VmNames);
    for vm in users {
        changes.expect(Expect::VmState(vm.uuid));
    }
    jobs.insert(job.clone(), node.clone());
    changes.push(hold(volume, jobs, job));
    Ok(changes)
}

/// The changes with which the script of `job` has the volume as a device no more: none if it is not
/// held for that. Whoever asks knows that nothing of it is left on node `here`, if on any.
///
/// # Errors
/// If the script had it on another node that is not [proven dead](has_nothing_mapped).
pub fn let_go_of_mapped(
    cluster: &Cluster,
    volume: &VolumeId,
    job: &JobId,
    here: Option<&NodeName>,
) -> Result<Changes, StillMapped> {
    let mut changes = Changes::new();
    let Some((jobs, node)) = jobs_with(cluster, volume).and_then(|it| Some((it, it.get(job)?)))
    else {
        return Ok(changes);
    };
    if here != Some(node) && !has_nothing_mapped(cluster, node) {
        return Err(StillMapped { volume: volume.clone(), node: node.clone() });
    }
    let mut others = jobs.clone();
    others.remove(job);
    let last = others.keys().next_back().cloned();
    changes.push(match last {
        None => Change::ReleaseVolume(volume.clone()),
        Some(last) => hold(volume, others, &last),
    });
    Ok(changes)
}

/// The volumes that are held for the script of `job`.
pub fn mapped_by(cluster: &Cluster, job: &JobId) -> Vec<VolumeId> {
    let is_its =
        |volume: &&VolumeId| jobs_with(cluster, volume).is_some_and(|it| it.contains_key(job));
    cluster.holds.keys().filter(is_its).cloned().collect()
}

/// The volumes that are held for scripts on `node`, each with the job of one.
pub fn mapped_on(cluster: &Cluster, node: &NodeName) -> Vec<(VolumeId, JobId)> {
    let mut found = Vec::new();
    for volume in cluster.holds.keys() {
        let jobs = jobs_with(cluster, volume).into_iter().flatten();
        let here = jobs.filter(|(_, on)| *on == node).map(|(job, _)| job.clone());
        found.extend(here.map(|job| (volume.clone(), job)));
    }
    found
}

fn hold(volume: &VolumeId, jobs: BTreeMap<JobId, NodeName>, by: &JobId) -> Change {
    let (volume, purpose) = (volume.clone(), Purpose::Mapped(jobs));
    Change::HoldVolume(VolumeHold { volume, purpose, by: by.to_string() })
}

/// The jobs whose scripts have the volume as a device, if it is held for that, and their nodes.
fn jobs_with<'a>(cluster: &'a Cluster, volume: &VolumeId) -> Option<&'a BTreeMap<JobId, NodeName>> {
    match &cluster.holds.get(volume)?.purpose {
        Purpose::Mapped(jobs) => Some(jobs),
        _ => None,
    }
}
