//! VMs that operators have made of an image, or by the script of a profile: each is there whole
//! with its volumes, or nothing of it is.

use std::collections::BTreeSet;

use pvc_model::cluster::Cluster as View;
use pvc_model::image::image_name;
use pvc_model::job::making::{is_left_behind, maker_of};
use pvc_model::job::{Job, JobState, JobVm, JobWork};
use pvc_model::storage::{PoolName, VolumeId};
use pvc_model::vm::{VmRecord, VmState};
use pvc_testkit::MemoryVolumes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::profiles::DISKS;
use crate::storage::Ceph;
use crate::storage_changes::POOL;

/// Request about a VM that is made of an image or by a script, and is not among those that the
/// cluster began with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewVmAsk {
    /// Makes it of the image [`IMAGE`].
    Create {
        name: String,
        /// Whether it is started when it is made.
        start: bool,
    },
    /// Makes it by the script of the [profile](crate::profiles::PROFILE).
    Provision {
        name: String,
        /// Whether it is started when it is made.
        start: bool,
    },
    Start {
        name: String,
    },
    FlushLocks {
        name: String,
    },
}

impl NewVmAsk {
    pub fn name(&self) -> &str {
        match self {
            NewVmAsk::Create { name, .. }
            | NewVmAsk::Provision { name, .. }
            | NewVmAsk::Start { name }
            | NewVmAsk::FlushLocks { name } => name,
        }
    }
}

/// The image that new VMs are made of.
pub(crate) const IMAGE: &str = "debian";

/// The volume that is this image, `POOL/VOLUME`.
pub(crate) fn image() -> String {
    format!("{POOL}/image_{IMAGE}")
}

/// End of the name of a disk with cloud-init's data.
const SEED: &str = "_cidata";

/// Whether the volume has cloud-init's data, which come from no upload of an operator.
pub(crate) fn is_seed(volume: &VolumeId) -> bool {
    volume.volume.as_str().ends_with(SEED)
}

/// Whether the volume is an image, or a disk of a new VM, whole or not: those that are left of such
/// VMs are found by [`NewVms`].
pub(crate) fn is_of_one(view: &View, volume: &VolumeId) -> bool {
    let is_recorded = || view.vms.values().any(|record| record.volumes().contains(volume));
    image_name(volume).is_some() || is_in_the_making(volume) || is_recorded()
}

fn is_in_the_making(volume: &VolumeId) -> bool {
    maker_of(&volume.volume).is_some()
}

/// The volumes that are recorded and left of jobs that are over: the primary removes them.
pub(crate) fn left_in_the_making(view: &View) -> impl Iterator<Item = String> {
    let left = view.volumes.keys().filter(|volume| is_left_behind(view, &volume.volume));
    left.map(|volume| format!("volume {volume} is left of a job"))
}

fn volume(name: &str) -> VolumeId {
    VolumeId::from_record(&format!("{POOL}/{name}")).expect("a volume's name")
}

/// Way in which a new VM is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Making {
    OfImage,
    ByScript,
}

impl Making {
    const ALL: [Making; 2] = [Making::OfImage, Making::ByScript];

    /// The volumes of such a VM, in the order of its XML.
    fn disks(self, name: &str) -> [VolumeId; 2] {
        let ends = match self {
            Making::OfImage => ["sda", "cidata"],
            Making::ByScript => DISKS,
        };
        ends.map(|end| volume(&format!("{name}_{end}")))
    }
}

/// A job that makes a VM.
struct Maker<'a> {
    job: &'a Job,
    vm: &'a JobVm,
}

impl<'a> Maker<'a> {
    fn of(job: &'a Job) -> Option<Self> {
        let vm = match &job.spec.work {
            JobWork::CreateVm(new) => &new.vm,
            JobWork::Provision(wanted) => &wanted.vm,
            _ => return None,
        };
        Some(Maker { job, vm })
    }
}

/// Records and storage, as far as new VMs are concerned.
pub(crate) struct NewVms<'a> {
    pub view: &'a View,
    pub volumes: &'a MemoryVolumes,
    pub named_late: &'a BTreeSet<VolumeId>,
}

impl<'a> NewVms<'a> {
    pub fn of(view: &'a View, ceph: &'a Ceph) -> Self {
        NewVms { view, volumes: &ceph.volumes, named_late: &ceph.changes.named_late }
    }

    fn record(&self, name: &str) -> Option<&VmRecord> {
        self.view.vms.values().find(|record| record.name == name).map(|record| &**record)
    }

    pub fn uuid(&self, name: &str) -> Option<Uuid> {
        Some(self.record(name)?.uuid)
    }

    /// Whether the volume is there, and whether it is recorded.
    fn presence(&self, volume: &VolumeId) -> (bool, bool) {
        (self.volumes.volume(volume).is_ok(), self.view.volumes.contains_key(volume))
    }

    /// Reason why a VM of this name is not there with all of its volumes; `None` if it is.
    pub fn not_whole(&self, name: &str) -> Option<String> {
        let Some(record) = self.record(name) else {
            return Some(format!("VM {name} has no record"));
        };
        if matches!(record.state, VmState::Provision | VmState::Delete) {
            return Some(format!("VM {name} is {}", record.state));
        }
        let making = if record.profile.is_some() { Making::ByScript } else { Making::OfImage };
        let disks = making.disks(name);
        let recorded = record.volumes();
        if recorded != disks {
            return Some(format!("VM {name} has {recorded:?}"));
        }
        let is_whole = |volume: &&VolumeId| self.presence(volume) == (true, true);
        if let Some(volume) = recorded.iter().find(|volume| !is_whole(volume)) {
            return Some(format!("{} of VM {name}", self.said(volume)));
        }
        let disk = &disks[0];
        let is_clone = self.volumes.is_clone(disk).unwrap_or_default();
        let is_lacking = making == Making::OfImage && !is_clone;
        is_lacking.then(|| format!("{disk} is no clone of the image"))
    }

    /// Part of a VM of this name that is there; `None` if nothing is.
    pub fn left(&self, name: &str) -> Option<String> {
        if self.record(name).is_some() {
            return Some(format!("VM {name} has a record"));
        }
        let disks = Making::ALL.map(|making| making.disks(name));
        self.left_of(disks.iter().flatten()).or_else(|| self.left_in_the_making())
    }

    fn left_of<'v>(&self, disks: impl IntoIterator<Item = &'v VolumeId>) -> Option<String> {
        let mut disks = disks.into_iter();
        disks.find(|disk| self.presence(disk) != (false, false)).map(|disk| self.said(disk))
    }

    fn said(&self, volume: &VolumeId) -> String {
        let (is_there, is_recorded) = self.presence(volume);
        let there = if is_there { "there" } else { "gone" };
        let recorded = if is_recorded { "recorded" } else { "not recorded" };
        format!("volume {volume} is {there}, and {recorded}")
    }

    /// Whether the volume was made by a worker that had lost the job, which was over before the
    /// volume had its name: it is nobody's, and the primary removes it within a day.
    fn is_swept(&self, volume: &VolumeId) -> bool {
        let is_recorded = self.view.volumes.contains_key(volume);
        let is_left = is_left_behind(self.view, &volume.volume) && !is_recorded;
        is_left && self.named_late.contains(volume)
    }

    /// A disk that did not become whole.
    fn left_in_the_making(&self) -> Option<String> {
        let there = self.volumes.volumes(&PoolName::new(POOL)).unwrap_or_default();
        let there = there.into_iter().map(|info| info.id);
        let recorded = self.view.volumes.keys().cloned();
        // Uploads that were cut off are judged with the uploads.
        let is_left = |volume: &VolumeId| {
            is_in_the_making(volume) && !volume.volume.is_partial() && !self.is_swept(volume)
        };
        there.chain(recorded).find(is_left).map(|volume| self.said(&volume))
    }

    /// Finds what is wrong about the VMs of these jobs, each of which has had time to end.
    pub fn wrong<'j>(&self, jobs: impl Iterator<Item = &'j Job>) -> Option<String> {
        let makers: Vec<Maker<'_>> = jobs.filter_map(Maker::of).collect();
        let names: BTreeSet<&str> = makers.iter().map(|maker| maker.vm.name.as_str()).collect();
        let of_job = |maker: &Maker<'_>| {
            let wrong = self.wrong_making(maker)?;
            let Maker { job, vm } = maker;
            let (id, work, state) = (&job.spec.id, job.spec.work.name(), job.progress.state);
            Some(format!("job {id} ({work} of {}) is {state:?}, and {wrong}", vm.name))
        };
        let half = |name: &&str| Some(format!("{}; {}", self.left(name)?, self.not_whole(name)?));
        let several = names.iter().find_map(|name| self.several(name));
        several
            .or_else(|| makers.iter().find_map(of_job))
            .or_else(|| names.iter().find_map(half))
            .or_else(|| (!makers.is_empty()).then(|| self.left_in_the_making()).flatten())
    }

    /// The number of VMs of a name that only one may have.
    fn several(&self, name: &str) -> Option<String> {
        let count = self.view.vms.values().filter(|record| record.name == name).count();
        (count > 1).then(|| format!("{count} VMs are called {name}"))
    }

    fn wrong_making(&self, maker: &Maker<'_>) -> Option<String> {
        let name = &maker.vm.name;
        let is_its = self.record(name).is_some_and(|record| Some(record.uuid) == maker.vm.uuid);
        match maker.job.progress.state {
            JobState::Succeeded if is_its => self.not_whole(name),
            JobState::Succeeded => Some(format!("VM {name} is not the one that it has made")),
            _ if is_its => Some(format!("VM {name} is there")),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pvc_model::job::creation::VmCreation;
    use pvc_model::job::provision::Provision;
    use pvc_model::job::{JobId, JobProgress, JobSpec};

    use super::*;
    use crate::cluster::{Cluster, Shape, vm_uuid};
    use crate::log::Log;
    use crate::profiles::PROFILE;

    fn of_image() -> JobWork {
        JobWork::CreateVm(Box::new(VmCreation {
            vm: JobVm { name: "web".to_owned(), uuid: Some(vm_uuid(0)) },
            xml: String::new(),
            image: volume("image_debian"),
            medium: None,
            disk: volume("web_sda"),
            disk_bytes: 1 << 30,
            seed: None,
            node: None,
            autostart: false,
            start: false,
            refuse_memory_overcommit: false,
            force: false,
        }))
    }

    fn by_script() -> JobWork {
        JobWork::Provision(Box::new(Provision {
            vm: JobVm { name: "web".to_owned(), uuid: Some(vm_uuid(0)) },
            profile: PROFILE.to_owned(),
            define: true,
            start: false,
            refuse_memory_overcommit: false,
            arguments: Vec::new(),
        }))
    }

    /// The job that makes VM `web` in this way, in this state.
    fn job(work: JobWork, state: JobState) -> Job {
        let spec = JobSpec {
            id: JobId::from_bits(1),
            work,
            node: "hv1".into(),
            run_on: "hv1".to_owned(),
            submitter: String::new(),
            submitted_at: 0,
        };
        let progress = JobProgress { state, ..JobProgress::pending() };
        Job { spec, progress, cancel_requested: false, claim: None }
    }

    fn ends<'a>(view: &'a View, volumes: &'a MemoryVolumes) -> NewVms<'a> {
        static NONE: BTreeSet<VolumeId> = BTreeSet::new();
        NewVms { view, volumes, named_late: &NONE }
    }

    fn wrong(view: &View, volumes: &MemoryVolumes, state: JobState) -> Option<String> {
        ends(view, volumes).wrong([job(of_image(), state)].iter())
    }

    #[test]
    fn of_a_job_that_failed_nothing_may_be_left() {
        let (view, mut volumes) = (View::default(), MemoryVolumes::default());
        volumes.create_pool(&PoolName::new(POOL)).expect("there is none");
        volumes.insert(&volume("image_debian"));
        assert_eq!(wrong(&view, &volumes, JobState::Cancelled), None, "the image stays");
        for name in ["creating-00000001_sda", "web_sda", "web_cidata", "web_sdb"] {
            volumes.insert(&volume(name));
            for work in [of_image(), by_script()] {
                let jobs = [job(work, JobState::Failed)];
                let left = ends(&view, &volumes).wrong(jobs.iter());
                let left = left.expect("it is there");
                let wanted = format!("volume vms/{name} is there, and not recorded");
                assert!(left.contains(&wanted), "{left}");
            }
            volumes.remove(&volume(name)).expect("it was there");
        }
    }

    #[test]
    fn what_was_named_late_is_nobodys_once_its_job_is_over() {
        let (mut view, mut volumes) = (View::default(), MemoryVolumes::default());
        volumes.create_pool(&PoolName::new(POOL)).expect("there is none");
        let left = volume("creating-00000001_sda");
        volumes.insert(&left);
        let mut over = job(of_image(), JobState::Failed);
        over.spec.id = maker_of(&left.volume).expect("a job makes it");
        over.progress.ended_at = Some(1);
        let (late, jobs) = (BTreeSet::from([left.clone()]), [over.clone()]);
        let found = |view: &View, named_late| {
            NewVms { view, volumes: &volumes, named_late }.wrong(jobs.iter()).is_some()
        };
        assert!(found(&view, &late), "the job is not over, as far as is known");
        view.jobs.insert(over.spec.id.clone(), Arc::new(over));
        assert!(!found(&view, &late));
        assert!(found(&view, &BTreeSet::new()), "nobody stood still before it had its name");
    }

    #[tokio::test(start_paused = true)]
    async fn a_vm_is_made_whole_and_once_or_not_at_all() {
        let cluster =
            Cluster::start(Shape::plain(2, 1), Log::new(false)).await.expect("all is well");
        let mut view = View::clone(&cluster.view());
        let found = |view: &View, state| {
            let wrong = cluster.world.with(|world| wrong(view, &world.ceph.volumes, state));
            wrong.expect("it is otherwise")
        };
        let other = found(&view, JobState::Succeeded);
        assert!(other.ends_with("VM web is not the one that it has made"), "{other}");
        let record = VmRecord { name: "web".to_owned(), ..(*view.vms[&vm_uuid(0)]).clone() };
        view.vms.insert(vm_uuid(0), Arc::new(record));
        let there = found(&view, JobState::Failed);
        assert!(there.ends_with("VM web is there"), "{there}");
        let lacks = found(&view, JobState::Succeeded);
        assert!(lacks.contains("VM web has [") && lacks.contains("vm0_sda"), "{lacks}");
        let record = VmRecord {
            profile: Some(PROFILE.to_owned()),
            recorded_volumes: Vec::new(),
            ..(*view.vms[&vm_uuid(0)]).clone()
        };
        view.vms.insert(vm_uuid(0), Arc::new(record));
        let jobs = [job(by_script(), JobState::Succeeded)];
        let scripted = cluster
            .world
            .with(|world| ends(&view, &world.ceph.volumes).wrong(jobs.iter()));
        let scripted = scripted.expect("it has one disk");
        assert!(scripted.contains("(provisioner.create of web)"), "{scripted}");
        let other = VmRecord { uuid: vm_uuid(1), ..(*view.vms[&vm_uuid(0)]).clone() };
        view.vms.insert(vm_uuid(1), Arc::new(other));
        assert_eq!(found(&view, JobState::Succeeded), "2 VMs are called web");
    }
}
