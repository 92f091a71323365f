//! Jobs as the records show them, held against what is so: in the end every job that was submitted
//! is over, for a reason, and has done all of what it says or nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use pvc_model::cluster::Cluster as View;
use pvc_model::job::course::{Cause, Course};
use pvc_model::job::osd::failure_of_given_up;
use pvc_model::job::{Job, JobId, JobProgress, JobState, JobWork, Steps};
use pvc_model::node::removal::failure_of_removed;
use pvc_model::storage::{PoolName, VolumeId};
use pvc_ports::{GuestRun, VolumeLock};
use uuid::Uuid;

use crate::guests::Hypervisors;
use crate::host::Hosts;
use crate::new_vms::{NewVms, is_of_one};
use crate::scripts::left_mapped;
use crate::storage::Ceph;
use crate::truth::Truth;

/// All jobs that were ever recorded.
#[derive(Default)]
pub(crate) struct Jobs {
    seen: BTreeMap<JobId, Seen>,
    /// The jobs that have ended, in this order.
    ended: Vec<JobId>,
    /// The words of the API about jobs: that one was submitted, and how it ended: done or not.
    answers: Vec<(String, Option<bool>)>,
    /// An effect that a job claimed and did not have.
    broken: Option<String>,
}

struct Seen {
    job: Arc<Job>,
    /// Number of jobs that had ended when it was submitted.
    ended_before: usize,
    /// Number of starts of the VM's guest when the job was submitted, and when it ended.
    boots: u64,
    boots_at_end: Option<u64>,
    /// Whether a guest was made and had not started when the job ended: what was plugged into it is
    /// there when it starts.
    was_held_at_end: bool,
    /// Locks on the VM's volume when the job was submitted.
    locks: Vec<VolumeLock>,
}

impl Seen {
    fn vm(&self) -> Option<Uuid> {
        self.job.spec.work.vm()?.uuid
    }
}

/// The job, for people.
fn said(job: &Job) -> String {
    let work = &job.spec.work;
    let vm = work.vm().map(|vm| vm.name.as_str()).unwrap_or_default();
    format!("job {} ({} of {vm})", job.spec.id, work.name())
}

/// Volumes and guests, which jobs are about.
#[derive(Clone, Copy)]
pub(crate) struct Around<'a> {
    pub ceph: &'a Ceph,
    pub hypervisors: &'a Hypervisors,
    pub truth: &'a Truth,
}

impl Around<'_> {
    /// Locks on the VM's volume.
    fn locks(&self, vm: Option<Uuid>) -> Vec<VolumeLock> {
        let volume = vm.and_then(|vm| self.ceph.disks.get(&vm));
        let locks = volume.and_then(|volume| self.ceph.volumes.locks(volume).ok());
        locks.unwrap_or_default().to_vec()
    }

    /// Number of starts of the VM's guest.
    fn boots(&self, vm: Option<Uuid>) -> u64 {
        vm.and_then(|vm| self.truth.boots.get(&vm)).copied().unwrap_or_default()
    }

    /// Whether a guest of the VM is made and has not started.
    fn is_held(&self, vm: Option<Uuid>) -> bool {
        let mut guests = self.hypervisors.iter().filter_map(|here| here.guests.get(&vm?));
        guests.any(|guest| guest.run == GuestRun::Created)
    }
}

/// Records, jobs and what they are about, when no job is at work any more.
pub(crate) struct JobEnds<'a> {
    pub view: &'a View,
    pub jobs: &'a Jobs,
    pub around: Around<'a>,
    pub hosts: &'a Hosts,
}

impl JobEnds<'_> {
    /// Finds what is wrong when each job has had time to end.
    pub fn wrong(&self) -> Option<String> {
        let JobEnds { view, jobs, around, hosts } = self;
        let new_vms = NewVms::of(view, around.ceph);
        let of_jobs = jobs.seen.values().find_map(|seen| jobs.wrong(view, seen));
        of_jobs
            .or_else(|| jobs.broken.clone())
            .or_else(|| jobs.answers.iter().find_map(|(id, is_done)| jobs.untrue(id, *is_done)))
            .or_else(|| new_vms.wrong(jobs.seen.values().map(|seen| &*seen.job)))
            .or_else(|| left_mapped(hosts))
            .or_else(|| self.misnamed())
            .or_else(|| view.vms.keys().find_map(|vm| self.misplugged(*vm)))
    }

    /// A VM whose records and volumes have different names, or a volume with a name that nobody
    /// gave it.
    fn misnamed(&self) -> Option<String> {
        let (view, ceph) = (self.view, self.around.ceph);
        let disks = &ceph.disks;
        let wrong = view.vms.values().find_map(|record| {
            let disk = disks.get(&record.uuid)?;
            let (name, recorded) = (&record.name, record.volumes());
            let is_right = recorded == [disk.clone()] || ceph.volumes.volume(disk).is_err();
            (!is_right).then(|| format!("VM {name} has {recorded:?}, and its volume is {disk}"))
        });
        let pool = PoolName::new("vms");
        let there = ceph.volumes.volumes(&pool).unwrap_or_default();
        // Those that are in the making, or were, are judged with the uploads.
        let is_left = |volume: &VolumeId| {
            let is_meant = ceph.changes.is_copy(volume) || is_of_one(view, volume);
            !volume.volume.is_partial() && !is_meant && !disks.values().any(|disk| disk == volume)
        };
        let left = || there.into_iter().map(|volume| volume.id).find(is_left);
        wrong.or_else(|| left().map(|volume| format!("volume {volume} is nobody's")))
    }

    /// The guest has a device that no job plugged in, or lacks one that a job did.
    fn misplugged(&self, vm: Uuid) -> Option<String> {
        let here = self.around.hypervisors.iter();
        let mut running = here.filter_map(|here| here.guests.get(&vm));
        let (Some(guest), None) = (running.next(), running.next()) else { return None };
        let wanted = self.jobs.plugged(vm, self.around.boots(Some(vm)))?;
        let so = !guest.plugged.is_empty();
        let has = if so { "has" } else { "has not" };
        let name = &guest.name;
        (so != wanted).then(|| format!("guest {name} {has} the device, against what its jobs say"))
    }
}

impl Jobs {
    /// Takes notice of the jobs of `view`.
    pub fn look(&mut self, view: &View, around: &Around<'_>) {
        for job in view.jobs.values() {
            self.look_at(around, job);
        }
    }

    /// A job that is not over.
    pub fn at_work(&self) -> Option<String> {
        let mut jobs = self.seen.iter();
        let open = jobs.find(|(_, seen)| !seen.job.progress.state.is_over());
        open.map(|(id, _)| id.to_string())
    }

    /// The API has answered that there is such a job, or how it has ended.
    pub fn answered(&mut self, id: &str, is_done: Option<bool>) {
        self.answers.push((id.to_owned(), is_done));
    }

    fn look_at(&mut self, around: &Around<'_>, job: &Arc<Job>) {
        let id = &job.spec.id;
        let vm = job.spec.work.vm().and_then(|vm| vm.uuid);
        let ended_before = self.ended.len();
        let seen = self.seen.entry(id.clone()).or_insert_with(|| Seen {
            job: job.clone(),
            ended_before,
            boots: around.boots(vm),
            boots_at_end: None,
            was_held_at_end: false,
            locks: around.locks(vm),
        });
        if !Arc::ptr_eq(&seen.job, job) {
            seen.job = job.clone();
        }
        if !job.progress.state.is_over() || seen.boots_at_end.is_some() {
            return;
        }
        seen.boots_at_end = Some(around.boots(vm));
        seen.was_held_at_end = around.is_held(vm);
        self.ended.push(id.clone());
        let is_flush = matches!(job.spec.work, JobWork::FlushLocks { .. });
        if is_flush && job.progress.state == JobState::Succeeded {
            let now = around.locks(vm);
            let left = seen.locks.iter().find(|lock| now.contains(lock));
            let broken = |lock: &VolumeLock| format!("{} left {}", said(job), lock.locker);
            self.broken = self.broken.take().or(left.map(broken));
        }
    }

    fn wrong(&self, view: &View, seen: &Seen) -> Option<String> {
        let what = said(&seen.job);
        // A transfer is long over when a day has passed, and forgotten.
        let may_be_forgotten = seen.job.spec.work.is_of_api() && seen.boots_at_end.is_some();
        if !view.jobs.contains_key(&seen.job.spec.id) && !may_be_forgotten {
            return Some(format!("{what} has no record any more"));
        }
        wrong_end(&seen.job).map(|why| format!("{what} {why}: {:?}", seen.job.progress))
    }

    /// The API's answer about the end of a job, if that is not so.
    fn untrue(&self, id: &str, is_done: Option<bool>) -> Option<String> {
        let seen = JobId::parse(id).and_then(|id| self.seen.get(&id));
        let Some(seen) = seen else { return Some(format!("job {id} was never recorded")) };
        let (so, is_done) = (seen.job.progress.state, is_done?);
        let word = if is_done { "was done" } else { "was not done" };
        let is_so = is_done == (so == JobState::Succeeded);
        (!is_so).then(|| format!("somebody was answered that {} {word}: {so:?}", said(&seen.job)))
    }

    /// Whether the guest of a VM, in its start number `boots`, is to have the device that operators
    /// plug in; `None` if a job about it began before that start, or before an opposite one had
    /// ended: either may have been the last then.
    fn plugged(&self, vm: Uuid, boots: u64) -> Option<bool> {
        let ended = self.ended.iter().enumerate();
        let seen = ended.filter_map(|(place, id)| Some((place, self.seen.get(id)?)));
        let of_this_start = seen.filter(|(_, seen)| {
            seen.vm() == Some(vm)
                && seen.boots_at_end.is_some_and(|at_end| {
                    at_end == boots || seen.was_held_at_end && at_end + 1 == boots
                })
                && (seen.job.progress.state == JobState::Succeeded || leaves_open(&seen.job))
        });
        let mut plugged = Some(false);
        let mut last_of = BTreeMap::new();
        for (place, seen) in of_this_start {
            let plugs = match seen.job.spec.work {
                JobWork::AttachDevice { .. } => true,
                JobWork::DetachDevice { .. } => false,
                _ => continue,
            };
            let opposite = last_of.get(&!plugs);
            let is_in_doubt = leaves_open(&seen.job)
                || seen.boots != boots
                || opposite.is_some_and(|other| *other >= seen.ended_before);
            plugged = (!is_in_doubt).then_some(plugs);
            last_of.insert(plugs, place);
        }
        plugged
    }
}

/// Whether the job was not done, and nobody knows what there is of it: it says so, such as a
/// detachment whose VM has moved, or was started again; or it was left as it stood.
fn leaves_open(job: &Job) -> bool {
    let is_done = job.progress.state == JobState::Succeeded;
    let says_so = || job.progress.log.iter().any(|line| line.ends_with("is not known"));
    !is_done && (says_so() || is_of_removed(job))
}

/// Whether the job was left as it stood, as its node was fenced and somebody cancelled it.
pub(crate) fn was_given_up(job: &Job) -> bool {
    job.progress.failure.as_ref() == Some(&failure_of_given_up(&job.spec.node))
}

/// Whether the job had begun and was left as it stood, as the record of its node was gone.
pub(crate) fn is_of_removed(job: &Job) -> bool {
    let progress = JobProgress { state: JobState::Running, ..job.progress.clone() };
    let failure = |cancel_requested| {
        let left = Job { progress: progress.clone(), cancel_requested, ..job.clone() };
        failure_of_removed(&left.spec.node, &left)
    };
    let failures = [false, true].map(failure);
    job.progress.failure.as_ref().is_some_and(|found| failures.contains(found))
}

/// Fault of how a job has ended, or that it has not.
fn wrong_end(job: &Job) -> Option<&'static str> {
    let progress = &job.progress;
    let is_whole = match (progress.state, &progress.steps) {
        (JobState::Pending | JobState::Running, _) => return Some("is not over"),
        (JobState::Succeeded, Some(steps)) => {
            progress.current == progress.total
                && steps.course == Course::Forward { done: all(progress) }
        }
        // What the API does has none.
        (JobState::Succeeded, None) => job.spec.work.is_of_api(),
        // One whose node is fenced stays where it is when somebody cancels it.
        (JobState::Failed, Some(_)) if was_given_up(job) => job.cancel_requested,
        (JobState::Failed, Some(_)) if is_of_removed(job) => true,
        // Behind the point of no return it is tried again until somebody cancels it.
        (JobState::Failed, Some(Steps { course: Course::Forward { .. }, .. })) => {
            job.cancel_requested && may_end_half_way(&job.spec.work)
        }
        (_, Some(steps)) => matches!(steps.course, Course::Back { left: 0, .. }),
        (_, None) => true,
    };
    let has_reason = match progress.state {
        // A transfer whose record was lost after that was asked for has another one.
        JobState::Cancelled => job.cancel_requested || job.spec.work.is_of_api(),
        // One that is not continued by another worker says that its own was lost.
        JobState::Failed => progress.failure.is_some() || is_of_lost_worker(progress),
        _ => true,
    };
    match (is_whole, has_reason) {
        (false, _) => Some("ended half way"),
        (_, false) => Some("ended for no reason"),
        _ => None,
    }
}

/// Whether the job was taken back because its worker was lost.
fn is_of_lost_worker(progress: &JobProgress) -> bool {
    let steps = progress.steps.as_ref();
    steps.is_some_and(|steps| matches!(steps.course, Course::Back { cause: Cause::WorkerLost, .. }))
}

/// Whether jobs of this kind have a point of no return.
fn may_end_half_way(work: &JobWork) -> bool {
    matches!(
        work,
        JobWork::AddOsds(_)
            | JobWork::ReplaceOsd(_)
            | JobWork::RemoveOsd { .. }
            | JobWork::BenchmarkStorage { .. }
    )
}

fn all(progress: &JobProgress) -> u32 {
    progress.steps.as_ref().map_or(0, |steps| steps.planned.len() as u32)
}

/// The jobs that are not over.
pub(crate) fn unfinished(view: &View) -> impl Iterator<Item = String> {
    let open = view.jobs.values().filter(|job| !job.progress.state.is_over());
    open.map(|job| format!("{} is {:?}: {}", said(job), job.progress.state, job.progress.status))
}

#[cfg(test)]
mod tests {
    use pvc_model::job::course::Failure;
    use pvc_model::job::{JobSpec, JobVm};
    use pvc_model::osd::OsdId;
    use pvc_model::refusal::Kind;

    use super::*;
    use crate::cluster::{Cluster, Shape, vm_uuid};
    use crate::log::Log;
    use crate::state::{State, World};

    fn job(bits: u32, work: fn(JobVm) -> JobWork) -> Job {
        let spec = JobSpec {
            id: JobId::from_bits(bits),
            work: work(JobVm { name: "web".into(), uuid: Some(vm_uuid(0)) }),
            node: "hv1".into(),
            run_on: "hv1".into(),
            submitter: String::new(),
            submitted_at: 0,
        };
        let progress = JobProgress::pending();
        Job { spec, progress, cancel_requested: false, claim: None }
    }

    fn attach(vm: JobVm) -> JobWork {
        JobWork::AttachDevice { vm, xml: String::new() }
    }

    fn detach(vm: JobVm) -> JobWork {
        JobWork::DetachDevice { vm, xml: String::new() }
    }

    fn flush(vm: JobVm) -> JobWork {
        JobWork::FlushLocks { vm }
    }

    /// The job with this end after `done` of its two steps.
    fn ended(mut job: Job, state: JobState, course: Course) -> Job {
        let facts = Vec::new();
        job.progress.total = 2;
        job.progress.current = if state == JobState::Succeeded { 2 } else { 1 };
        job.progress.steps = Some(Steps { planned: vec![String::new(); 2], facts, course });
        job.progress = job.progress.ended(state, "ended", 1);
        job
    }

    fn back(left: u32) -> Course {
        Course::Back { left, cause: Cause::Cancelled }
    }

    fn succeeded(job: Job) -> Job {
        ended(job, JobState::Succeeded, Course::Forward { done: 2 })
    }

    #[test]
    fn a_job_that_is_not_over_or_ended_half_way_or_for_no_reason_is_found() {
        let failure = Some(Failure { kind: Kind::Conflict, why: "no".into(), hint: None });
        let mut failed = ended(job(1, attach), JobState::Failed, back(0));
        assert_eq!(wrong_end(&failed), Some("ended for no reason"));
        failed.progress.failure = failure;
        let mut cancelled = ended(job(1, attach), JobState::Cancelled, back(0));
        assert_eq!(wrong_end(&cancelled), Some("ended for no reason"));
        cancelled.cancel_requested = true;
        let lost = Course::Back { left: 0, cause: Cause::WorkerLost };
        let lost = ended(job(1, attach), JobState::Failed, lost);
        for job in [failed, cancelled, lost, succeeded(job(1, attach))] {
            assert_eq!(wrong_end(&job), None, "{job:?}");
        }
        let half_way = [
            ended(job(1, attach), JobState::Succeeded, Course::Forward { done: 1 }),
            ended(job(1, attach), JobState::Cancelled, back(1)),
            ended(job(1, attach), JobState::Failed, Course::Forward { done: 1 }),
        ];
        for job in half_way {
            assert_eq!(wrong_end(&job), Some("ended half way"), "{job:?}");
        }
        assert_eq!(wrong_end(&job(1, attach)), Some("is not over"));
        let removal = |_| JobWork::RemoveOsd { osd: OsdId(1), force: false };
        let mut stopped = ended(job(1, removal), JobState::Failed, Course::Forward { done: 1 });
        stopped.progress.failure =
            Some(Failure { kind: Kind::Conflict, why: "no".into(), hint: None });
        assert_eq!(wrong_end(&stopped), Some("ended half way"));
        stopped.cancel_requested = true;
        assert_eq!(wrong_end(&stopped), None, "it could not be taken back");
        let mut given_up = ended(job(1, removal), JobState::Failed, back(1));
        given_up.cancel_requested = true;
        given_up.progress.failure = stopped.progress.failure;
        assert_eq!(wrong_end(&given_up), Some("ended half way"));
        given_up.progress.failure = Some(failure_of_given_up(&given_up.spec.node));
        assert_eq!(wrong_end(&given_up), None);
        given_up.cancel_requested = false;
        assert_eq!(wrong_end(&given_up), Some("ended half way"));
        let mut left = ended(job(1, attach), JobState::Failed, Course::Forward { done: 1 });
        let progress = JobProgress { state: JobState::Running, ..left.progress.clone() };
        let before = Job { progress, ..left.clone() };
        left.progress.failure = Some(failure_of_removed(&"hv1".into(), &before));
        assert_eq!(wrong_end(&left), None, "its node was removed");
        left.progress.failure = Some(failure_of_removed(&"hv2".into(), &before));
        assert_eq!(wrong_end(&left), Some("ended half way"));
    }

    /// A world of one host, and a view of its jobs.
    fn look(state: &mut State, jobs: &[&Job]) -> View {
        let jobs = jobs.iter().map(|job| (job.spec.id.clone(), Arc::new((*job).clone())));
        let view = View { jobs: jobs.collect(), ..View::default() };
        state.look_at_jobs(&view);
        view
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_is_lost_or_answered_wrongly_is_found() {
        let (world, _) = World::of_hosts(1);
        world.with(|state| {
            let done = succeeded(job(1, attach));
            let view = look(state, &[&done]);
            state.jobs.answered("00000001", Some(true));
            assert_eq!(state.job_ends(&view).wrong(), None);
            let gone = state.job_ends(&View::default()).wrong().expect("it is gone");
            assert!(gone.ends_with("has no record any more"), "{gone}");
            state.jobs.answered("00000001", Some(false));
            let untrue = state.job_ends(&view).wrong().expect("it was done");
            assert!(untrue.contains("was not done: Succeeded"), "{untrue}");
        });
        let (world, _) = World::of_hosts(1);
        world.with(|state| {
            state.jobs.answered("00000002", None);
            let unknown = state.job_ends(&View::default()).wrong();
            assert_eq!(unknown, Some("job 00000002 was never recorded".to_owned()));
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_that_says_it_is_done_and_left_a_lock_is_found() {
        let (world, _) = World::of_hosts(1);
        let volume = VolumeId::from_record("vms/web_sda").expect("a volume's name");
        world.with(|state| {
            state.ceph.disks.insert(vm_uuid(0), volume.clone());
            state.ceph.lock_by_unknown_client(&volume, 1);
            let flush = job(1, flush);
            look(state, &[&flush]);
            let view = look(state, &[&succeeded(flush)]);
            let left = state.job_ends(&view).wrong().expect("the lock is there");
            assert!(left.ends_with("left client.1"), "{left}");
        });
    }

    #[tokio::test(start_paused = true)]
    async fn the_device_is_there_as_the_last_job_of_this_start_says() {
        let (world, _) = World::of_hosts(1);
        world.with(|state| {
            let boots = |state: &State| state.around_jobs().boots(Some(vm_uuid(0)));
            let plugged = |state: &State| state.jobs.plugged(vm_uuid(0), boots(state));
            state.truth.boots.insert(vm_uuid(0), 1);
            assert_eq!(plugged(state), Some(false));
            let first = succeeded(job(1, attach));
            look(state, &[&first]);
            assert_eq!(plugged(state), Some(true));
            look(state, &[&first, &succeeded(job(2, detach))]);
            assert_eq!(plugged(state), Some(false));
            let third = job(3, attach);
            look(state, &[&third]);
            state.truth.boots.insert(vm_uuid(0), 2);
            assert_eq!(plugged(state), Some(false), "what was plugged in went with the guest");
            look(state, &[&succeeded(third)]);
            assert_eq!(plugged(state), None, "before the start or after it");

            // Seed 64005898: it was plugged in, unplugged, and then said to be plugged in.
            let (fourth, fifth) = (job(4, attach), job(5, detach));
            look(state, &[&fourth, &fifth]);
            look(state, &[&fourth, &succeeded(fifth)]);
            assert_eq!(plugged(state), Some(false));
            look(state, &[&succeeded(fourth)]);
            assert_eq!(plugged(state), None, "one of two at the same time");
            look(state, &[&succeeded(job(6, attach))]);
            assert_eq!(plugged(state), Some(true));
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_device_that_was_plugged_into_a_held_guest_is_not_held_against_its_start() {
        let cluster =
            Cluster::start(Shape::plain(2, 1), Log::new(false)).await.expect("all is well");
        cluster.world.with(|state| {
            let vm = vm_uuid(0);
            let before = state.around_jobs().boots(Some(vm));
            for (run, plugged) in [(GuestRun::Running, Some(false)), (GuestRun::Created, None)] {
                state.jobs = Jobs::default();
                state.hypervisors[0].guests.get_mut(&vm).expect("it is there").run = run;
                look(state, &[&succeeded(job(1, attach))]);
                assert_eq!(state.jobs.plugged(vm, before + 1), plugged, "{run:?}");
            }
        });
    }

    /// Fault of the jobs of a cluster to which this has happened.
    async fn found(happened: impl FnOnce(&mut State)) -> String {
        let cluster =
            Cluster::start(Shape::plain(2, 1), Log::new(false)).await.expect("all is well");
        assert_eq!(cluster.jobs_are_whole(), Ok(()));
        cluster.world.with(happened);
        cluster.jobs_are_whole().expect_err("it is otherwise").what
    }

    #[tokio::test(start_paused = true)]
    async fn a_renaming_or_an_attachment_that_nobody_knows_of_is_found() {
        let volume = |name| VolumeId::from_record(name).expect("a volume's name");
        let left = found(|state| state.ceph.volumes.insert(&volume("vms/left"))).await;
        assert_eq!(left, "volume vms/left is nobody's");
        let renamed = found(|state| {
            let to = volume("vms/web_sda");
            state.ceph.volumes.insert(&to);
            state.ceph.disks.insert(vm_uuid(0), to);
        });
        assert!(renamed.await.ends_with("and its volume is vms/web_sda"));
        let plugged = found(|state| {
            let guest = state.hypervisors[0].guests.get_mut(&vm_uuid(0)).expect("it runs");
            guest.plugged.insert("vda".to_owned(), "<disk/>".to_owned());
        });
        assert!(plugged.await.starts_with("guest vm0 has the device"));
    }
}
