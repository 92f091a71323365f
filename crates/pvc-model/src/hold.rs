//! Volumes that are held: something is done to them of which no guest may see a half.
//!
//! Whoever does it holds the volume first, while all VMs that use it are off, and lets go of it
//! when it is done. If that process dies, the volume stays held, for it may be half of one thing
//! and half of another: doing the same again takes the hold over and brings it to its end. Of new
//! contents there never is a half, only a moment in which no volume has the name: the primary ends
//! that, and nobody else. What a script works on is let go of by the worker of its node, or when
//! that node is [proven dead](has_nothing_mapped).
//!
//! Whoever starts a guest looks: the API before it writes the order, and the node that obeys it.
//! That one lets the guest wait, also if it is one that a fence has given it: a guest that is late
//! is better than one that begins on half a rollback. A guest that arrives from another node is
//! not started, and a volume that it has is never held.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::NodeName;
use crate::cluster::Cluster;
use crate::job::JobId;
use crate::storage::{SnapshotName, TrashId, VolumeId};
use crate::vm::VmRecord;

/// A volume that is held, by whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeHold {
    pub volume: VolumeId,
    pub purpose: Purpose,
    /// Name of the attempt: a later one of the same purpose takes the hold over.
    pub by: String,
}

/// The reason why a volume is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    RollBack(SnapshotName),
    /// To this size, in bytes.
    Shrink(u64),
    /// For what this version does not know, or cannot read. Nobody but who wrote it ends it, or
    /// an operator who says that nobody does.
    Other,
    /// Its contents give way to others: the old go to the trash, and the new get the name.
    Fill {
        /// Volumes of this name that were in the trash before: none of them is the old contents.
        /// `None` until they were looked for: then nothing has been moved there.
        trashed: Option<BTreeSet<TrashId>>,
    },
    /// Scripts of these tasks, one at least, have it as a device, each on its node, and may write
    /// it.
    Mapped(BTreeMap<JobId, NodeName>),
}

impl VolumeHold {
    /// The snapshot without which nobody can repeat what was begun, if the volume has it no more.
    pub fn lost_snapshot(&self, has: impl Fn(&SnapshotName) -> bool) -> Option<&SnapshotName> {
        match &self.purpose {
            Purpose::RollBack(snapshot) if !has(snapshot) => Some(snapshot),
            Purpose::RollBack(_)
            | Purpose::Other
            | Purpose::Shrink(_)
            | Purpose::Fill { .. }
            | Purpose::Mapped(_) => None,
        }
    }
}

impl Purpose {
    /// Whether it comes to its end without an operator, also where it was cut off.
    pub fn ends_by_itself(&self) -> bool {
        matches!(self, Purpose::Fill { .. } | Purpose::Mapped(_))
    }

    /// Whether another attempt at the same may go on where one was cut off.
    pub fn can_be_taken_over(&self) -> bool {
        match self {
            Purpose::RollBack(_) | Purpose::Shrink(_) => true,
            // Two that are not known need not be the same.
            Purpose::Other => false,
            // The contents of two attempts are not the same.
            Purpose::Fill { .. } => false,
            // No script goes on where another was ended.
            Purpose::Mapped(_) => false,
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Purpose::RollBack(snapshot) => write!(f, "rolled back to snapshot `{snapshot}`"),
            Purpose::Shrink(bytes) => write!(f, "made smaller, to {bytes} bytes"),
            Purpose::Other => f.write_str("changed in a way that this version does not know"),
            Purpose::Fill { .. } => f.write_str("given new contents"),
            Purpose::Mapped(jobs) => {
                let task =
                    |(job, node): (&JobId, &NodeName)| format!("task `{job}` on node `{node}`");
                let tasks: Vec<String> = jobs.iter().map(task).collect();
                write!(f, "worked on by the script of {}", tasks.join(" and of "))
            }
        }
    }
}

/// The refusal of what a held volume must not meet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("volume `{volume}` is being {purpose}")]
pub struct Held {
    pub volume: VolumeId,
    pub purpose: Purpose,
}

impl Held {
    pub fn hint(&self) -> String {
        let VolumeId { pool, volume } = &self.volume;
        let (again, lost) = match &self.purpose {
            Purpose::RollBack(snapshot) => (
                format!("`pvc storage volume snapshot rollback {pool} {volume} {snapshot}`"),
                format!("; if that snapshot is gone, {}", self.way_out()),
            ),
            Purpose::Shrink(bytes) => {
                let again = format!("`pvc storage volume resize {pool} {volume} {bytes} --force`");
                (again, String::new())
            }
            Purpose::Other => {
                return format!(
                    "another version of PVC has written that, and ends it, or tells how: wait for \
                     it, or give all nodes that version and ask again; if no version knows it, its \
                     record is damaged: look what the volume holds, and `pvc storage volume scan \
                     {pool} {volume} --force` lets go of it"
                );
            }
            Purpose::Fill { .. } => {
                return "wait for it; if it was cut off, the primary node gives the volume its old \
                        contents back within a quarter of an hour"
                    .to_owned();
            }
            Purpose::Mapped(jobs) => {
                let ends: Vec<String> =
                    jobs.keys().map(|job| format!("`pvc task cancel {job}`")).collect();
                let nodes: BTreeSet<&NodeName> = jobs.values().collect();
                let off: Vec<String> =
                    nodes.iter().map(|node| format!("`pvc node confirm-off {node}`")).collect();
                return format!(
                    "wait for it, or end it: {}; of a task that is over, or taken back, the worker \
                     of its node lets go when it is there again; if the server is off for good, {}",
                    ends.join(" and "),
                    off.join(" and ")
                );
            }
        };
        format!("wait for it; if it was cut off, {again} brings it to its end{lost}")
    }

    /// Commands that end a rollback whose snapshot is gone: nobody sees the half of it.
    pub fn way_out(&self) -> String {
        let VolumeId { pool, volume } = &self.volume;
        format!(
            "roll it back to another (`pvc storage volume snapshot list -p {pool} -o {volume}`), \
             or remove it for good, with all its snapshots (`pvc storage volume remove --purge \
             {pool} {volume}`, and `--force` if a VM names it), make it anew and upload its \
             contents"
        )
    }
}

/// Refuses if the volume is held for anything but `allowed`, or for what nobody can take over.
pub fn check_not_held(
    cluster: &Cluster,
    volume: &VolumeId,
    allowed: Option<&Purpose>,
) -> Result<(), Held> {
    let is_allowed =
        |hold: &VolumeHold| Some(&hold.purpose) == allowed && hold.purpose.can_be_taken_over();
    match cluster.holds.get(volume).filter(|hold| !is_allowed(hold)) {
        None => Ok(()),
        Some(hold) => Err(Held { volume: volume.clone(), purpose: hold.purpose.clone() }),
    }
}

/// Refuses if the volume is held for anything but the script of `job` alone.
pub fn check_held_by_none_but(
    cluster: &Cluster,
    volume: &VolumeId,
    job: &JobId,
) -> Result<(), Held> {
    match cluster.holds.get(volume).map(|hold| &hold.purpose) {
        Some(Purpose::Mapped(jobs)) if jobs.keys().all(|other| other == job) => Ok(()),
        _ => check_not_held(cluster, volume, None),
    }
}

/// Whether no script can have anything mapped on the node any more: it is proven dead, or no part
/// of the cluster. One that only says nothing may be cut off, and its scripts go on.
pub fn has_nothing_mapped(cluster: &Cluster, node: &NodeName) -> bool {
    cluster.nodes.get(node).is_none_or(|node| node.is_fenced())
}

/// Refuses if a volume that the VM names is held.
pub fn check_none_held(cluster: &Cluster, vm: &VmRecord) -> Result<(), Held> {
    if cluster.holds.is_empty() {
        return Ok(());
    }
    vm.named_volumes().try_for_each(|volume| check_not_held(cluster, volume, None))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::node::{DaemonState, NodeRecord};
    use crate::records;

    #[test]
    fn a_volume_that_is_held_is_so_for_all_but_the_same_purpose() {
        let volume = VolumeId::parse("vms/a").unwrap();
        let before = Purpose::RollBack(SnapshotName::new("before"));
        let mut cluster = Cluster::default();
        assert_eq!(check_not_held(&cluster, &volume, None), Ok(()));
        let hold =
            VolumeHold { volume: volume.clone(), purpose: before.clone(), by: "x".to_owned() };
        cluster.holds.insert(volume.clone(), Arc::new(hold));
        let words = Held { volume: volume.clone(), purpose: before.clone() };
        let held = Err(words.clone());
        let after = Purpose::RollBack(SnapshotName::new("after"));
        for (allowed, expected) in [
            (None, &held),
            (Some(&after), &held),
            (Some(&Purpose::Shrink(1)), &held),
            (Some(&before), &Ok(())),
        ] {
            assert_eq!(&check_not_held(&cluster, &volume, allowed), expected, "{allowed:?}");
        }
        let purpose = Purpose::Fill { trashed: None };
        let fill =
            VolumeHold { purpose: purpose.clone(), ..VolumeHold::clone(&cluster.holds[&volume]) };
        let mut filled = Cluster::default();
        filled.holds.insert(volume.clone(), Arc::new(fill));
        let held = Held { volume: volume.clone(), purpose: purpose.clone() };
        assert_eq!(held.to_string(), "volume `vms/a` is being given new contents");
        let again = check_not_held(&filled, &volume, Some(&purpose));
        assert_eq!(again, Err(held), "two attempts have not the same contents");

        let other = VolumeId::parse("vms/b").unwrap();
        assert_eq!(check_not_held(&cluster, &other, None), Ok(()));
        assert_eq!(words.to_string(), "volume `vms/a` is being rolled back to snapshot `before`");
        assert!(words.hint().contains("rollback vms a before`"), "{}", words.hint());
        assert!(words.hint().contains("remove --purge vms a`"), "{}", words.hint());
    }

    #[test]
    fn nobody_takes_over_what_this_version_does_not_know() {
        let volume = VolumeId::parse("vms/a").unwrap();
        let (purpose, by) = (Purpose::Other, "x".to_owned());
        let hold = VolumeHold { volume: volume.clone(), purpose: purpose.clone(), by };
        assert_eq!(hold.lost_snapshot(|_| false), None);
        let mut cluster = Cluster::default();
        cluster.holds.insert(volume.clone(), Arc::new(hold));
        let held = Held { volume: volume.clone(), purpose };
        let before = Purpose::RollBack(SnapshotName::new("before"));
        for allowed in [None, Some(&Purpose::Other), Some(&before), Some(&Purpose::Shrink(1))] {
            assert_eq!(check_not_held(&cluster, &volume, allowed), Err(held.clone()));
        }
        let words = "volume `vms/a` is being changed in a way that this version does not know";
        assert_eq!(held.to_string(), words);
        let hint = held.hint();
        assert!(hint.starts_with("another version of PVC has written that"), "{hint}");
        assert!(hint.contains("`pvc storage volume scan vms a --force`"), "{hint}");
    }

    #[test]
    fn what_an_operator_has_to_repeat_does_not_end_by_itself() {
        let before = Purpose::RollBack(SnapshotName::new("before"));
        for purpose in [before, Purpose::Shrink(1), Purpose::Other] {
            assert!(!purpose.ends_by_itself(), "{purpose}");
        }
        assert!(Purpose::Fill { trashed: None }.ends_by_itself());
    }

    #[test]
    fn a_rollback_alone_cannot_be_repeated_when_its_snapshot_is_gone() {
        let hold = |purpose| VolumeHold {
            volume: VolumeId::parse("vms/a").unwrap(),
            purpose,
            by: "x".to_owned(),
        };
        let before = SnapshotName::new("before");
        let back = hold(Purpose::RollBack(before.clone()));
        assert_eq!(back.lost_snapshot(|_| false), Some(&before));
        assert_eq!(back.lost_snapshot(|name| *name == before), None);
        assert_eq!(hold(Purpose::Shrink(1)).lost_snapshot(|_| false), None);
        assert_eq!(hold(Purpose::Fill { trashed: None }).lost_snapshot(|_| false), None);
    }

    #[test]
    fn what_scripts_work_on_is_let_go_of_by_their_tasks() {
        let [first, second] = [1, 2].map(JobId::from_bits);
        let on = |job: &JobId, node: &str| (job.clone(), NodeName::new(node));
        let purpose = Purpose::Mapped([on(&first, "hv1"), on(&second, "hv2")].into());
        assert!(!purpose.can_be_taken_over());
        let volume = VolumeId::parse("vms/a").unwrap();
        let held = Held { volume: volume.clone(), purpose: purpose.clone() };
        let words = "volume `vms/a` is being worked on by the script of task `00000001` on node \
                     `hv1` and of task `00000002` on node `hv2`";
        assert_eq!(held.to_string(), words);
        let hint = held.hint();
        let ends = "`pvc task cancel 00000001` and `pvc task cancel 00000002`; ";
        assert!(hint.contains(ends), "{hint}");
        let off = "off for good, `pvc node confirm-off hv1` and `pvc node confirm-off hv2`";
        assert!(hint.ends_with(off), "{hint}");
        let hold = VolumeHold { volume: volume.clone(), purpose, by: "00000002".to_owned() };
        assert_eq!(hold.lost_snapshot(|_| false), None);
        let mut cluster = Cluster::default();
        cluster.holds.insert(volume.clone(), Arc::new(hold.clone()));
        assert_eq!(check_not_held(&cluster, &volume, None), Err(held.clone()));
        assert_eq!(check_held_by_none_but(&cluster, &volume, &first), Err(held));
        let alone = VolumeHold { purpose: Purpose::Mapped([on(&first, "hv1")].into()), ..hold };
        cluster.holds.insert(volume.clone(), Arc::new(alone));
        assert_eq!(check_held_by_none_but(&cluster, &volume, &first), Ok(()));
        assert!(check_held_by_none_but(&cluster, &volume, &second).is_err());
        assert!(check_not_held(&cluster, &volume, None).is_err());
    }

    #[test]
    fn a_node_has_nothing_mapped_when_it_is_proven_dead_or_removed() {
        for (state, wanted) in [
            (DaemonState::Run, false),
            (DaemonState::Stop, false),
            (DaemonState::Dead, false),
            (DaemonState::Fenced, true),
        ] {
            let name = NodeName::new("hv1");
            let node = NodeRecord { daemon_state: state.clone(), ..records::node("hv1") };
            let nodes = [(name.clone(), Arc::new(node))].into();
            let cluster = Cluster { nodes, ..Cluster::default() };
            assert_eq!(has_nothing_mapped(&cluster, &name), wanted, "{state:?}");
            assert!(has_nothing_mapped(&cluster, &NodeName::new("hv2")));
        }
    }
}
