//! Facts about volumes, their snapshots and pools.

use pvc_model::storage::{PoolName, SnapshotName, VolumeId};
use pvc_ports::VolumeInfo;

use super::{Fact, Look, so};
use crate::cluster::vm_uuid;
use crate::state::State;
use crate::storage_changes::{generation, generation_of_snapshot};
use crate::story::words::Form;
use crate::uploads::{Contents, contents, has_partial_volume};

/// Fact about volumes, their snapshots and pools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::story) enum VolumeFact {
    /// A machine outside of the cluster has its volume.
    UnknownClientHasVolume(usize),
    /// No client has a lock on its volume.
    VolumeIsFree(usize),
    /// Its volume was removed and is still kept, or is not.
    VolumeIsInTrash(usize, bool),
    VolumeIsHeld(usize, bool),
    /// Its volume has the contents of the upload with this number, or those of before, 0.
    VolumeHasContents(usize, u64),
    /// Its volume has the contents of its snapshot, or is as it was written last.
    VolumeIsAsAtSnapshot(usize, String),
    VolumeHasSnapshot(usize, String, bool),
    VolumeHasSize(usize, u64),
    /// A volume is there, and recorded, or neither; `POOL/VOLUME`.
    ThereIsVolume(String, bool),
    ThereIsPool(String, bool),
    /// The pool has so many placement groups, and is recorded with them.
    PoolHasGroups(String, u32),
    /// The volume depends on the one that it is a copy of.
    IsClone(String, bool),
    ChangeStandsStill,
    UploadStandsStill,
    /// No volume is in the pool that was not completed.
    NothingIsLeft,
}

fn volume(fact: VolumeFact) -> Fact {
    Fact::Volume(fact)
}

pub(super) const FORMS: &[Form<Fact>] = &[
    Form {
        form: "an unknown client has volume of VM",
        means: |f| volume(VolumeFact::UnknownClientHasVolume(f.vm())),
    },
    Form { form: "volume of VM is free", means: |f| volume(VolumeFact::VolumeIsFree(f.vm())) },
    Form {
        form: "volume of VM is in trash",
        means: |f| volume(VolumeFact::VolumeIsInTrash(f.vm(), true)),
    },
    Form {
        form: "volume of VM is not in trash",
        means: |f| volume(VolumeFact::VolumeIsInTrash(f.vm(), false)),
    },
    Form {
        form: "volume of VM is held",
        means: |f| volume(VolumeFact::VolumeIsHeld(f.vm(), true)),
    },
    Form {
        form: "volume of VM is not held",
        means: |f| volume(VolumeFact::VolumeIsHeld(f.vm(), false)),
    },
    Form {
        form: "volume of VM has its first contents",
        means: |f| volume(VolumeFact::VolumeHasContents(f.vm(), 0)),
    },
    Form {
        form: "volume of VM has contents of upload COUNT",
        means: |f| volume(VolumeFact::VolumeHasContents(f.vm(), u64::from(f.count))),
    },
    Form {
        form: "volume of VM is as at snapshot TEXT",
        means: |f| volume(VolumeFact::VolumeIsAsAtSnapshot(f.vm(), f.text.clone())),
    },
    Form {
        form: "volume of VM has snapshot TEXT",
        means: |f| volume(VolumeFact::VolumeHasSnapshot(f.vm(), f.text.clone(), true)),
    },
    Form {
        form: "volume of VM has no snapshot TEXT",
        means: |f| volume(VolumeFact::VolumeHasSnapshot(f.vm(), f.text.clone(), false)),
    },
    Form {
        form: "volume of VM has COUNT MiB",
        means: |f| volume(VolumeFact::VolumeHasSize(f.vm(), u64::from(f.count))),
    },
    Form {
        form: "there is volume TEXT",
        means: |f| volume(VolumeFact::ThereIsVolume(f.text.clone(), true)),
    },
    Form {
        form: "there is no volume TEXT",
        means: |f| volume(VolumeFact::ThereIsVolume(f.text.clone(), false)),
    },
    Form {
        form: "there is pool TEXT",
        means: |f| volume(VolumeFact::ThereIsPool(f.text.clone(), true)),
    },
    Form {
        form: "there is no pool TEXT",
        means: |f| volume(VolumeFact::ThereIsPool(f.text.clone(), false)),
    },
    Form {
        form: "there are COUNT placement groups in pool TEXT",
        means: |f| volume(VolumeFact::PoolHasGroups(f.text.clone(), f.count)),
    },
    Form {
        form: "there is clone TEXT",
        means: |f| volume(VolumeFact::IsClone(f.text.clone(), true)),
    },
    Form {
        form: "there is independent volume TEXT",
        means: |f| volume(VolumeFact::IsClone(f.text.clone(), false)),
    },
    Form {
        form: "change of storage stands still",
        means: |_| volume(VolumeFact::ChangeStandsStill),
    },
    Form { form: "upload stands still", means: |_| volume(VolumeFact::UploadStandsStill) },
    Form { form: "nothing is left of uploads", means: |_| volume(VolumeFact::NothingIsLeft) },
];

impl Look<'_> {
    pub(super) fn volume_holds(&self, fact: &VolumeFact) -> Result<(), String> {
        match fact {
            VolumeFact::UnknownClientHasVolume(vm) => self.unknown_client_has_volume(*vm),
            VolumeFact::VolumeIsFree(vm) => self.volume_is_free(*vm),
            VolumeFact::VolumeIsInTrash(vm, wanted) => self.volume_is_in_trash(*vm, *wanted),
            VolumeFact::VolumeIsHeld(vm, wanted) => self.volume_is_held(*vm, *wanted),
            VolumeFact::VolumeHasContents(vm, upload) => self.has_contents(*vm, *upload),
            VolumeFact::VolumeIsAsAtSnapshot(vm, name) => self.is_as_at_snapshot(*vm, name),
            VolumeFact::VolumeHasSnapshot(vm, name, wanted) => {
                let found = self.volume(*vm)?.snapshots;
                so(found.iter().any(|it| it.name.as_str() == name) == *wanted, || {
                    format!("its snapshots are {found:?}")
                })
            }
            VolumeFact::VolumeHasSize(vm, mib) => {
                let bytes = self.volume(*vm)?.size_bytes;
                so(bytes == mib << 20, || format!("it has {} MiB", bytes >> 20))
            }
            VolumeFact::ThereIsVolume(name, wanted) => self.there_is_volume(name, *wanted),
            VolumeFact::ThereIsPool(name, wanted) => self.there_is_pool(name, *wanted),
            VolumeFact::PoolHasGroups(name, wanted) => self.pool_has_groups(name, *wanted),
            VolumeFact::IsClone(name, wanted) => {
                let volume = VolumeId::from_record(name).ok_or("that is no name of one")?;
                let is_clone =
                    self.cluster.world.with(|state| state.ceph.volumes.is_clone(&volume));
                let is_clone = is_clone.map_err(|error| error.to_string())?;
                so(is_clone == *wanted, || format!("that is {is_clone}"))
            }
            VolumeFact::ChangeStandsStill => {
                let stands =
                    self.cluster.world.with(|state| state.ceph.changes.still.stands_still());
                so(stands, || "none does".to_owned())
            }
            VolumeFact::UploadStandsStill => {
                let stands =
                    self.cluster.world.with(|state| state.ceph.uploads.still.stands_still());
                so(stands, || "none does".to_owned())
            }
            VolumeFact::NothingIsLeft => {
                let is_left =
                    self.cluster.world.with(|state| has_partial_volume(&state.ceph.volumes));
                so(!is_left, || "a volume is there that was not completed".to_owned())
            }
        }
    }

    fn volume_is_free(&self, vm: usize) -> Result<(), String> {
        let lockers: Vec<String> = self.cluster.world.with(|state| {
            let volume = state.ceph.disks.get(&vm_uuid(vm));
            let locks = volume.and_then(|volume| state.ceph.volumes.locks(volume).ok());
            locks.unwrap_or_default().iter().map(|lock| lock.locker.clone()).collect()
        });
        so(lockers.is_empty(), || format!("it is locked by {}", lockers.join(" and ")))
    }

    fn has_contents(&self, vm: usize, upload: u64) -> Result<(), String> {
        let found = self.cluster.world.with(|state| {
            let volume = state.ceph.disks.get(&vm_uuid(vm)).ok_or("it has none")?;
            contents(&state.ceph.volumes, volume).map_err(|error| error.to_string())
        })?;
        let wanted = if upload == 0 { Contents::First } else { Contents::Of(upload) };
        so(found == wanted, || format!("it has {found:?}"))
    }

    fn volume(&self, vm: usize) -> Result<VolumeInfo, String> {
        self.cluster.world.with(|state| {
            let volume = state.ceph.disks.get(&vm_uuid(vm)).ok_or("it has none")?;
            state.ceph.volumes.volume(volume).map_err(|error| error.to_string())
        })
    }

    fn is_as_at_snapshot(&self, vm: usize, name: &str) -> Result<(), String> {
        let snapshot = SnapshotName::new(name);
        let (now, then) = self.cluster.world.with(|state| {
            let volume = state.ceph.disks.get(&vm_uuid(vm)).ok_or("it has none")?;
            let volumes = &state.ceph.volumes;
            let now = generation(volumes, volume).map_err(|error| error.to_string())?;
            let then = generation_of_snapshot(volumes, volume, &snapshot);
            Ok::<_, String>((now, then.map_err(|error| error.to_string())?))
        })?;
        so(now.is_some() && now == then, || format!("it was written {now:?} times, not {then:?}"))
    }

    fn unknown_client_has_volume(&self, vm: usize) -> Result<(), String> {
        let holder =
            self.cluster.world.with(|state| state.ceph.holder(vm_uuid(vm), state.hosts.len()));
        let is_unknown_client = holder == Some(self.cluster.shape.hosts.len());
        so(is_unknown_client, || match holder {
            None => "nobody has it".to_owned(),
            Some(host) => format!("{} has it", self.name(host)),
        })
    }

    fn volume_is_in_trash(&self, vm: usize, wanted: bool) -> Result<(), String> {
        let is_there = self.cluster.world.with(|state| {
            let volume = state.ceph.disks.get(&vm_uuid(vm));
            volume.is_some_and(|volume| state.ceph.volumes.trash_id(volume).is_some())
        });
        so(is_there == wanted, || format!("that is {is_there}"))
    }

    fn volume_is_held(&self, vm: usize, wanted: bool) -> Result<(), String> {
        let view = self.cluster.view();
        let held = self.cluster.world.with(|state| {
            let volume = state.ceph.disks.get(&vm_uuid(vm));
            volume.and_then(|volume| view.holds.get(volume).cloned())
        });
        so(held.is_some() == wanted, || match held {
            Some(held) => format!("it is held: {}", held.purpose),
            None => "it is not held".to_owned(),
        })
    }

    fn there_is_volume(&self, name: &str, wanted: bool) -> Result<(), String> {
        let volume = VolumeId::from_record(name).ok_or("that is no name of one")?;
        let is_recorded = self.cluster.view().volumes.contains_key(&volume);
        let is_there = |state: &mut State| state.ceph.volumes.volume(&volume).is_ok();
        self.is_there(self.cluster.world.with(is_there), is_recorded, wanted)
    }

    fn there_is_pool(&self, name: &str, wanted: bool) -> Result<(), String> {
        let pool = PoolName::new(name);
        let is_recorded = self.cluster.view().pools.contains_key(&pool);
        let is_there = |state: &mut State| state.ceph.volumes.pool(&pool).is_ok();
        self.is_there(self.cluster.world.with(is_there), is_recorded, wanted)
    }

    fn pool_has_groups(&self, name: &str, wanted: u32) -> Result<(), String> {
        let pool = PoolName::new(name);
        let recorded = self.cluster.view().pools.get(&pool).map(|record| record.pgs.clone());
        let groups = |state: &mut State| {
            let spec = state.ceph.volumes.spec(&pool);
            spec.map(|spec| spec.placement_groups)
        };
        let has = self.cluster.world.with(groups);
        let is_so = has == Some(wanted) && recorded == Some(wanted.to_string());
        so(is_so, || format!("it has {has:?}, and is recorded with {recorded:?}"))
    }
}
