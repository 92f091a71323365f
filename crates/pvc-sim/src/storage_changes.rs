//! Changes of the storage that operators ask for: OSDs, snapshots, copies, sizes and pools; where
//! one stands still; and whether volumes, copies and pools are whole in the end.
//!
//! Whoever uses a volume writes on: each snapshot is followed by a write that says, at several
//! places, how often that was so. The places agree where the contents are those of one moment.

use std::collections::BTreeSet;
use std::time::Duration;

use pvc_model::cluster::Cluster as View;
use pvc_model::storage::{PoolName, SnapshotName, VolumeId};
use pvc_ports::StorageError;
use pvc_testkit::MemoryVolumes;
use serde::{Deserialize, Serialize};

use crate::cluster::vm_uuid;
use crate::operators::Answer;
use crate::process::Gate;
use crate::run::Run;
use crate::stand_still::StandStill;
use crate::storage::Ceph;
use crate::words_given::WordsGiven;

/// Change of the storage that an operator asks for. OSDs are named by their number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StorageAsk {
    /// Makes the volume group for databases of a disk.
    AddDbGroup {
        host: usize,
        device: String,
    },
    /// Makes so many OSDs of a disk.
    AddOsds {
        host: usize,
        device: String,
        count: u32,
        db: Option<NewDb>,
    },
    ReplaceOsd {
        osd: u32,
        device: String,
        force: bool,
    },
    RefreshOsd {
        osd: u32,
        device: String,
    },
    RemoveOsd {
        osd: u32,
        force: bool,
    },
    AddSnapshot {
        vm: usize,
        name: String,
    },
    RenameSnapshot {
        vm: usize,
        name: String,
        to: String,
    },
    RemoveSnapshot {
        vm: usize,
        name: String,
    },
    RollBack {
        vm: usize,
        name: String,
    },
    /// Makes a copy of the VM's volume, which has this name in the pool `vms`.
    Clone {
        vm: usize,
        to: String,
        is_on_write: bool,
    },
    /// Makes a copy independent of the volume that it is a copy of.
    Flatten {
        copy: String,
    },
    RemoveCopy {
        copy: String,
    },
    /// Gives the VM's volume so many MiB, or none if that would be fewer.
    Resize {
        vm: usize,
        mib: u64,
    },
    /// Reads the begin of the VM's volume, and hangs up.
    Download {
        vm: usize,
    },
    AddPool {
        pool: String,
    },
    SetPgs {
        pool: String,
        count: u32,
    },
    /// Makes a volume, `POOL/VOLUME`.
    AddVolume {
        volume: String,
    },
    RemovePool {
        pool: String,
    },
}

/// Size of the database that each new OSD gets in the group for those.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewDb {
    /// The number of bytes that operators usually say.
    OfSize,
    /// A part of what the OSD has for its data.
    OfRatio,
}

/// The pool of the VMs' volumes and their copies.
pub(crate) const POOL: &str = "vms";

impl StorageAsk {
    /// The hosts and the VMs that it is about.
    pub fn about(&self) -> (Vec<usize>, Vec<usize>) {
        match self {
            StorageAsk::AddDbGroup { host, .. } | StorageAsk::AddOsds { host, .. } => {
                (vec![*host], Vec::new())
            }
            StorageAsk::AddSnapshot { vm, .. }
            | StorageAsk::RenameSnapshot { vm, .. }
            | StorageAsk::RemoveSnapshot { vm, .. }
            | StorageAsk::RollBack { vm, .. }
            | StorageAsk::Clone { vm, .. }
            | StorageAsk::Resize { vm, .. }
            | StorageAsk::Download { vm } => (Vec::new(), vec![*vm]),
            StorageAsk::ReplaceOsd { .. }
            | StorageAsk::RefreshOsd { .. }
            | StorageAsk::RemoveOsd { .. }
            | StorageAsk::Flatten { .. }
            | StorageAsk::RemoveCopy { .. }
            | StorageAsk::AddPool { .. }
            | StorageAsk::SetPgs { .. }
            | StorageAsk::AddVolume { .. }
            | StorageAsk::RemovePool { .. } => (Vec::new(), Vec::new()),
        }
    }

    /// State that is there once it is done, or is not.
    fn goals(&self) -> Vec<(StoragePart, bool)> {
        let snapshot = |vm: &usize, name: &String| StoragePart::Snapshot(*vm, name.clone());
        match self {
            StorageAsk::AddSnapshot { vm, name } => vec![(snapshot(vm, name), true)],
            StorageAsk::RemoveSnapshot { vm, name } => vec![(snapshot(vm, name), false)],
            StorageAsk::RenameSnapshot { vm, name, to } => {
                vec![(snapshot(vm, name), false), (snapshot(vm, to), true)]
            }
            StorageAsk::Clone { to, .. } => vec![(StoragePart::Copy(to.clone()), true)],
            StorageAsk::RemoveCopy { copy } => vec![(StoragePart::Copy(copy.clone()), false)],
            StorageAsk::AddPool { pool } => vec![(StoragePart::Pool(pool.clone()), true)],
            StorageAsk::RemovePool { pool } => vec![(StoragePart::Pool(pool.clone()), false)],
            _ => Vec::new(),
        }
    }
}

/// Moment of a change of the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeMoment {
    /// A part of it is done, if it has parts.
    HalfWay,
    /// Done; whoever did it has no answer yet.
    Done,
    /// A download has the volume open, and its next piece is to be read.
    Reading,
}

/// Part of the storage that operators add and remove.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum StoragePart {
    Snapshot(usize, String),
    Copy(String),
    Pool(String),
}

/// Number of the places that say how often a volume was written, and where they are.
const PLACES: u64 = 3;
const FIRST_PLACE: u64 = 16 << 20;
const PLACE_BYTES: u64 = 1 << 20;

/// Bytes of a volume that a rollback has done when it stands still: one of the places.
pub(crate) const HALF_BYTES: u64 = FIRST_PLACE + PLACE_BYTES;

fn places() -> impl Iterator<Item = u64> {
    (0..PLACES).map(|place| FIRST_PLACE + place * PLACE_BYTES)
}

/// Number of the volume's last write; `None` if a part of it was written otherwise than another.
pub(crate) fn generation(
    volumes: &MemoryVolumes,
    volume: &VolumeId,
) -> Result<Option<u64>, StorageError> {
    agreed(places().map(|place| volumes.read(volume, place, 8)))
}

/// The same of the volume as its snapshot has it.
pub(crate) fn generation_of_snapshot(
    volumes: &MemoryVolumes,
    volume: &VolumeId,
    snapshot: &SnapshotName,
) -> Result<Option<u64>, StorageError> {
    agreed(places().map(|place| volumes.read_snapshot(volume, snapshot, place, 8)))
}

fn agreed(
    found: impl Iterator<Item = Result<Vec<u8>, StorageError>>,
) -> Result<Option<u64>, StorageError> {
    let found = found.collect::<Result<Vec<_>, _>>()?;
    let number =
        |bytes: &Vec<u8>| u64::from_le_bytes(bytes[..].try_into().expect("eight bytes were read"));
    Ok(found.windows(2).all(|two| two[0] == two[1]).then(|| number(&found[0])))
}

/// All changes of the storage that there were.
#[derive(Default)]
pub(crate) struct StorageChanges {
    pub still: StandStill<ChangeMoment>,
    words: WordsGiven<StoragePart>,
    /// Names of copies that somebody asked for.
    copies: BTreeSet<String>,
    /// Pools that somebody asked for.
    pools: BTreeSet<String>,
    /// Copies that got their names from somebody who had stood still since they were confirmed: the
    /// job that they are for may have been over by then.
    pub named_late: BTreeSet<VolumeId>,
    /// Number of times that volumes were written.
    writes: u64,
    /// The ends of rollbacks and the growths of volumes.
    effects: Vec<(Duration, Effect)>,
}

/// Something that was done to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    RolledBack(VolumeId, SnapshotName),
    /// The volume has so many bytes.
    Has(VolumeId, u64),
}

impl StorageChanges {
    pub fn asked(&mut self, ask: &StorageAsk) {
        match ask {
            StorageAsk::Clone { to, .. } => drop(self.copies.insert(to.clone())),
            StorageAsk::AddPool { pool } => drop(self.pools.insert(pool.clone())),
            _ => {}
        }
        self.words.asked(ask.goals().into_iter().map(|(part, _)| part));
    }

    /// Whether somebody asked for a volume of this name as a copy.
    pub fn is_copy(&self, volume: &VolumeId) -> bool {
        self.copies.contains(volume.volume.as_str())
    }

    /// A snapshot of the volume was taken: whoever uses it writes on, where it is so large.
    pub fn snapshot_taken(&mut self, volumes: &mut MemoryVolumes, volume: &VolumeId) {
        self.writes += 1;
        let bytes = self.writes.to_le_bytes();
        let there = "a snapshot of it was taken";
        let size_bytes = volumes.volume(volume).expect(there).size_bytes;
        for place in places().filter(|place| place + bytes.len() as u64 <= size_bytes) {
            volumes.write(volume, place, &bytes).expect(there);
        }
    }

    pub fn happened(&mut self, run: &Run, effect: Effect) {
        run.note(format!("ceph: {effect:?}"));
        self.effects.push((run.now, effect));
    }

    /// Takes notice of the answer to an ask that was begun at this time. Returns the fault of it.
    pub fn answered(
        &mut self,
        ask: &StorageAsk,
        begun: Duration,
        answer: &Answer,
    ) -> Option<String> {
        self.words.answered(ask.goals(), answer);
        if !matches!(answer, Some(Ok(()))) {
            return None;
        }
        let is_so = |is_it: &dyn Fn(&Effect) -> bool| {
            let since = self.effects.iter().rev();
            since.take_while(|(at, _)| *at >= begun).any(|(_, effect)| is_it(effect))
        };
        let wrong = match ask {
            StorageAsk::RollBack { name, .. } => !is_so(&|effect: &Effect| match effect {
                Effect::RolledBack(_, snapshot) => snapshot.as_str() == name,
                _ => false,
            }),
            StorageAsk::Resize { mib, .. } => {
                !is_so(&|effect| matches!(effect, Effect::Has(_, bytes) if *bytes == mib << 20))
            }
            _ => false,
        };
        wrong.then(|| format!("somebody was answered that {ask:?} was done, and nothing happened"))
    }
}

impl Gate {
    /// Stands still at this moment of a change of the storage, if one is to do so there. Returns
    /// whether it did.
    pub async fn at_change(&self, moment: ChangeMoment) -> bool {
        let until = self.world.with(|state| {
            let until = state.ceph.changes.still.reach(moment)?;
            state.run.note(format!("a change of the storage stands still: {moment:?}"));
            Some(until)
        });
        self.stand_still(until).await
    }
}

/// Records and Ceph, when no change of the storage is under way any more.
pub(crate) struct StorageEnds<'a> {
    pub view: &'a View,
    pub ceph: &'a Ceph,
}

impl StorageEnds<'_> {
    /// Finds what is wrong about volumes, copies and pools when each change has had time to end.
    pub fn wrong(&self) -> Option<String> {
        let of_words = self.ceph.changes.words.settled().find_map(|(part, wanted)| {
            let (is_there, is_recorded) = self.presence(part)?;
            let is_so = (is_there, is_recorded) == (wanted, wanted);
            (!is_so).then(|| {
                format!(
                    "somebody was answered that {part:?} is {}, and it is {}, and {}",
                    said(wanted, "there", "gone"),
                    said(is_there, "there", "gone"),
                    said(is_recorded, "recorded", "not recorded")
                )
            })
        });
        of_words.or_else(|| self.mixed_volume()).or_else(|| self.open_volume())
    }

    /// Whether the part is there, and whether the records say so; `None` if what it is of is not.
    fn presence(&self, part: &StoragePart) -> Option<(bool, bool)> {
        let (view, volumes) = (self.view, &self.ceph.volumes);
        match part {
            StoragePart::Snapshot(vm, name) => {
                let volume = self.ceph.disks.get(&vm_uuid(*vm))?;
                let found = volumes.volume(volume).ok()?.snapshots;
                let recorded = view.volumes.get(volume).map(|record| &record.snapshots);
                let is_recorded = recorded.into_iter().flatten().any(|(it, _)| it.as_str() == name);
                Some((found.iter().any(|it| it.name.as_str() == name), is_recorded))
            }
            StoragePart::Copy(name) => {
                let volume = VolumeId::from_record(&format!("{POOL}/{name}"))?;
                let is_recorded = view.volumes.contains_key(&volume);
                Some((volumes.volume(&volume).is_ok(), is_recorded))
            }
            StoragePart::Pool(name) => {
                let pool = PoolName::new(name);
                Some((volumes.pool(&pool).is_ok(), view.pools.contains_key(&pool)))
            }
        }
    }

    /// A volume that a download has open yet, which is over.
    fn open_volume(&self) -> Option<String> {
        let volumes = self.ceph.volumes.volumes(&PoolName::new(POOL)).unwrap_or_default();
        volumes.iter().find_map(|volume| {
            let users = self.ceph.volumes.users(&volume.id).ok()?;
            let user = users.iter().find(|user| user.starts_with("download"))?;
            Some(format!("{} is open by {user}, which is over", volume.id))
        })
    }

    /// A volume that has a part of one moment and a part of another, and is not held until that is
    /// brought to its end, or a snapshot of that kind.
    fn mixed_volume(&self) -> Option<String> {
        let pools = self.ceph.volumes.pools().into_iter();
        let volumes = pools.flat_map(|pool| self.ceph.volumes.volumes(&pool.name));
        let mut whole = volumes.flatten().filter(|volume| !volume.id.volume.is_partial());
        whole.find_map(|volume| {
            let snapshots = volume.snapshots.iter().filter(|snapshot| !snapshot.name.is_passing());
            let mut mixed = snapshots.filter(|snapshot| {
                let found = generation_of_snapshot(&self.ceph.volumes, &volume.id, &snapshot.name);
                matches!(found, Ok(None))
            });
            if let Some(snapshot) = mixed.next() {
                let what = &snapshot.name;
                return Some(format!("snapshot {what} of {} has parts of two moments", volume.id));
            }
            let mixed = wrong_contents(&self.ceph.volumes, &volume.id)?;
            (!self.view.holds.contains_key(&volume.id)).then_some(mixed)
        })
    }
}

/// The fault of what the volume has now, if there is one.
pub(crate) fn wrong_contents(volumes: &MemoryVolumes, volume: &VolumeId) -> Option<String> {
    let found = generation(volumes, volume).ok()?;
    found.is_none().then(|| format!("{volume} has parts of two moments"))
}

fn said(is_so: bool, so: &'static str, otherwise: &'static str) -> &'static str {
    if is_so { so } else { otherwise }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::Refusal;
    use crate::state::{State, World};

    fn volume() -> VolumeId {
        VolumeId::from_record("vms/web_sda").expect("a volume's name")
    }

    fn add(name: &str) -> StorageAsk {
        StorageAsk::AddSnapshot { vm: 0, name: name.to_owned() }
    }

    /// A world with the volume of the first VM, which has the snapshot `old`.
    fn world() -> World {
        let (world, _) = World::of_hosts(1);
        world.with(|state| {
            state.ceph.volumes.insert(&volume());
            state.ceph.disks.insert(vm_uuid(0), volume());
            take(state, "old");
        });
        world
    }

    fn take(state: &mut State, name: &str) {
        let name = SnapshotName::new(name);
        state.ceph.volumes.snapshot(&volume(), &name).expect("there is none of this name");
        let Ceph { changes, volumes, .. } = &mut state.ceph;
        changes.snapshot_taken(volumes, &volume());
    }

    fn wrong(state: &State, view: &View) -> Option<String> {
        StorageEnds { view, ceph: &state.ceph }.wrong()
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_that_is_half_rolled_back_is_found_unless_it_is_held() {
        use std::sync::Arc;

        use pvc_model::hold::{Purpose, VolumeHold};
        let old = SnapshotName::new("old");
        let hold = VolumeHold {
            volume: volume(),
            purpose: Purpose::RollBack(old.clone()),
            by: "somebody".to_owned(),
        };
        let held = View { holds: [(volume(), Arc::new(hold))].into(), ..View::default() };
        world().with(|state| {
            assert_eq!(wrong(state, &View::default()), None);
            let volumes = &mut state.ceph.volumes;
            volumes.begin_roll_back(&volume(), &old, HALF_BYTES).expect("nobody uses it");
            let mixed = Some("vms/web_sda has parts of two moments".to_owned());
            assert_eq!(wrong(state, &View::default()), mixed);
            assert_eq!(wrong(state, &held), None);
            let uploads = &state.ceph.uploads;
            let now = Duration::from_secs(1);
            assert_eq!(uploads.wrong_about_start(&state.ceph.volumes, &volume(), now), mixed);
            let half = SnapshotName::new("half");
            state.ceph.volumes.snapshot(&volume(), &half).expect("there is none of this name");
            state.ceph.volumes.roll_back(&volume(), &old).expect("nobody uses it");
            let mixed = "snapshot half of vms/web_sda has parts of two moments".to_owned();
            assert_eq!(wrong(state, &View::default()), Some(mixed));
            state.ceph.volumes.remove_snapshot(&volume(), &half).expect("it is there");
            assert_eq!(wrong(state, &View::default()), None);
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_snapshot_that_was_promised_and_is_not_there_is_found() {
        let found = |answer: &Answer, is_taken: bool| {
            world().with(|state| {
                state.ceph.changes.asked(&add("new"));
                if is_taken {
                    take(state, "new");
                }
                state.ceph.changes.answered(&add("new"), Duration::ZERO, answer);
                wrong(state, &View::default())
            })
        };
        let lost = found(&Some(Ok(())), false).expect("it is not there");
        assert!(lost.ends_with("is there, and it is gone, and not recorded"), "{lost}");
        let unrecorded = found(&Some(Ok(())), true).expect("it is not recorded");
        assert!(unrecorded.ends_with("and it is there, and not recorded"), "{unrecorded}");
        assert_eq!(found(&Some(Err(Refusal::new("no"))), false), None);
        assert_eq!(found(&None, true), None, "it may have been carried out");
    }

    #[tokio::test(start_paused = true)]
    async fn a_rollback_that_was_reported_and_never_was_is_found() {
        let ask = StorageAsk::RollBack { vm: 0, name: "old".to_owned() };
        for is_done in [true, false] {
            let world = world();
            let found = world.with(|state| {
                let begun = state.run.now;
                if is_done {
                    let old = SnapshotName::new("old");
                    state.ceph.changes.happened(&state.run, Effect::RolledBack(volume(), old));
                }
                state.ceph.changes.answered(&ask, begun, &Some(Ok(())))
            });
            assert_eq!(found.is_none(), is_done, "{found:?}");
        }
    }
}
