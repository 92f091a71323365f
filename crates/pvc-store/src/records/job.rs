//! Jobs: `/tasks/{id}` with JSON, ours alone. Fields that a later version added are passed over.

mod creation;
mod osd;
mod provision;

use bytes::Bytes;
use pvc_model::job::course::{Cause, Course, Failure};
use pvc_model::job::{
    ClaimId, Job, JobId, JobProgress, JobSpec, JobState, JobVm, JobWork, NotUnderstood, Steps,
    StorageChange,
};
use pvc_model::refusal::Kind as RefusalKind;
use pvc_model::storage::{PoolName, SnapshotName, VolumeId, VolumeName};
use pvc_model::transfer::Transferred;
use pvc_model::{NodeName, Uuid};
use pvc_ports::{CreateMode, Op};
use serde::{Deserialize, Serialize};

use super::{Kind, PLAIN, RECORD, bytes_at, show};
use crate::draft::Draft;
use crate::feed::EventKind;
use crate::raw::Raw;
use crate::reader::{MOST_JSON, json};

pub(super) const ROOT: &str = "/tasks";

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT],
    base: &[(ROOT, "")],
    record: |key| JobId::parse(key.below[0]).map(|id| id.to_string()),
    read: |raw, _, name| {
        let id = JobId::parse(name).expect("a job's record has the name of a job");
        let (job, event) = (read(raw, &id), EventKind::Job(id.clone()));
        show(|view| &mut view.jobs, id, job, event)
    },
    weight: |raw, _, name| {
        let place = raw.place(ROOT).below(name);
        RECORD
            + ["", "progress", "secrets"]
                .map(|key| bytes_at(place, key).min(MOST_JSON))
                .iter()
                .sum::<usize>()
    },
    is_observed: |key| !key.is_root(),
    secret_beside: |key| match key.below {
        [id, "secrets", "", _] if key.root == ROOT => Some(format!("{ROOT}/{id}/secrets")),
        _ => None,
    },
    for_jobs: &[ROOT],
    ..PLAIN
};

/// The key of the job's record.
pub(crate) fn root(id: &JobId) -> String {
    format!("{ROOT}/{id}")
}

/// The key that says how far the job is; whoever works on it writes it.
pub(crate) fn progress(id: &JobId) -> String {
    format!("{}/progress", root(id))
}

/// The key that is there as long as the daemon is connected that has the job.
pub(crate) fn owner(id: &JobId) -> String {
    format!("{}/owner", root(id))
}

/// The key that is there once somebody has asked the job to end.
pub(crate) fn cancel(id: &JobId) -> String {
    format!("{}/cancel", root(id))
}

/// The key of those arguments that are secrets, as JSON. It goes when the job is over.
fn secrets(id: &JobId) -> String {
    format!("{}/secrets", root(id))
}

fn read(raw: &Raw, id: &JobId) -> Option<Job> {
    let secrets = json(raw, &secrets(id)).and_then(|text| serde_json::from_str(&text).ok());
    let spec = spec_from(id, &json(raw, &root(id))?, secrets.unwrap_or_default())?;
    let progress = raw.text(&progress(id)).unwrap_or_default();
    // One that is too long to be read is none.
    let progress = if progress.len() <= MOST_JSON { &*progress } else { "too long" };
    Some(Job {
        spec,
        progress: progress_from(progress),
        cancel_requested: raw.contains(&cancel(id)),
        claim: raw.get(&owner(id)).map(|owner| ClaimId(owner.czxid)),
    })
}

/// Writes a new job, which nobody has begun.
pub(crate) fn submit(draft: &mut Draft<'_>, spec: &JobSpec) {
    draft.put_deep(root(&spec.id), spec_text(spec));
    let (_, secret) = apart(&spec.work);
    if !secret.is_empty() {
        let text = serde_json::to_string(&secret).expect("strings always have a JSON form");
        draft.put(secrets(&spec.id), text);
    }
    put_progress(draft, &spec.id, &JobProgress::pending());
}

pub(crate) fn put_progress(draft: &mut Draft<'_>, id: &JobId, made: &JobProgress) {
    draft.put(progress(id), progress_text(made));
    if made.state.is_over() {
        draft.delete(&secrets(id));
    }
}

pub(crate) fn request_cancel(draft: &mut Draft<'_>, id: &JobId) {
    draft.put(cancel(id), Bytes::new());
}

pub(crate) fn remove(draft: &mut Draft<'_>, id: &JobId) {
    draft.delete(&root(id));
}

/// The operations that make a job which has got so far already.
pub(crate) fn creation(spec: &JobSpec, made: &JobProgress) -> [Op; 2] {
    let create = |path: String, data: String| Op::Create {
        path,
        data: Bytes::from(data),
        mode: CreateMode::Persistent,
    };
    [create(root(&spec.id), spec_text(spec)), create(progress(&spec.id), progress_text(made))]
}

#[derive(Serialize, Deserialize)]
struct Spec {
    name: String,
    node: String,
    run_on: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vm: Option<String>,
    #[serde(default)]
    args: Vec<(String, String)>,
    #[serde(default)]
    submitter: String,
    #[serde(default)]
    submitted_at: u64,
}

#[derive(Serialize, Deserialize)]
struct Progress {
    state: String,
    current: u32,
    total: u32,
    status: String,
    #[serde(default)]
    started_at: Option<u64>,
    #[serde(default)]
    ended_at: Option<u64>,
    #[serde(default)]
    log: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    steps: Option<StepsRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trouble: Option<FailureRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<FailureRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    transferred: Option<TransferredRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    made: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct TransferredRecord {
    bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    of: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes_per_second: Option<u64>,
}

impl TransferredRecord {
    fn of(gone: &Transferred) -> Self {
        let Transferred { bytes, of, bytes_per_second } = *gone;
        TransferredRecord { bytes, of, bytes_per_second }
    }

    fn read(self) -> Transferred {
        let TransferredRecord { bytes, of, bytes_per_second } = self;
        Transferred { bytes, of, bytes_per_second }
    }
}

#[derive(Serialize, Deserialize)]
struct StepsRecord {
    planned: Vec<String>,
    #[serde(default)]
    facts: Vec<String>,
    course: CourseRecord,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CourseRecord {
    Forward { done: u32 },
    Back { left: u32, cause: CauseRecord },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CauseRecord {
    Cancelled,
    WorkerLost,
    Failed(FailureRecord),
}

#[derive(Serialize, Deserialize)]
struct FailureRecord {
    kind: KindRecord,
    why: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", remote = "RefusalKind")]
enum KindDef {
    NotFound,
    Invalid,
    Conflict,
    Unavailable,
}

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct KindRecord(#[serde(with = "KindDef")] RefusalKind);

impl FailureRecord {
    fn of(failure: &Failure) -> Self {
        let Failure { kind, why, hint } = failure.clone();
        FailureRecord { kind: KindRecord(kind), why, hint }
    }

    fn read(self) -> Failure {
        let FailureRecord { kind: KindRecord(kind), why, hint } = self;
        Failure { kind, why, hint }
    }
}

impl StepsRecord {
    fn of(steps: &Steps) -> Self {
        let Steps { planned, facts, course } = steps.clone();
        let course = match course {
            Course::Forward { done } => CourseRecord::Forward { done },
            Course::Back { left, cause } => {
                let cause = match cause {
                    Cause::Cancelled => CauseRecord::Cancelled,
                    Cause::WorkerLost => CauseRecord::WorkerLost,
                    Cause::Failed(why) => CauseRecord::Failed(FailureRecord::of(&why)),
                };
                CourseRecord::Back { left, cause }
            }
        };
        StepsRecord { planned, facts, course }
    }

    /// `None` if it stands at a step that was never planned.
    fn read(self) -> Option<Steps> {
        let StepsRecord { planned, facts, course } = self;
        let (CourseRecord::Forward { done: at } | CourseRecord::Back { left: at, .. }) = &course;
        if *at as usize > planned.len() {
            return None;
        }
        let course = match course {
            CourseRecord::Forward { done } => Course::Forward { done },
            CourseRecord::Back { left, cause } => {
                let cause = match cause {
                    CauseRecord::Cancelled => Cause::Cancelled,
                    CauseRecord::WorkerLost => Cause::WorkerLost,
                    CauseRecord::Failed(why) => Cause::Failed(why.read()),
                };
                Course::Back { left, cause }
            }
        };
        Some(Steps { planned, facts, course })
    }
}

const STATES: &[(JobState, &str)] = &[
    (JobState::Pending, "pending"),
    (JobState::Running, "running"),
    (JobState::Succeeded, "succeeded"),
    (JobState::Failed, "failed"),
    (JobState::Cancelled, "cancelled"),
];

/// The arguments of a job by name, as they are recorded and as the task API shows them. Values
/// whose name ends in `_key` are secrets.
pub fn job_arguments(work: &JobWork) -> Vec<(String, String)> {
    let of = |args: &[(&str, &str)]| {
        args.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    match work {
        JobWork::FlushLocks { vm } => of(&[("domain", &vm.name)]),
        JobWork::AttachDevice { vm, xml } | JobWork::DetachDevice { vm, xml } => {
            of(&[("domain", &vm.name), ("xml", xml)])
        }
        JobWork::CreateVm(creation) => creation::arguments(creation),
        JobWork::Provision(wanted) => provision::arguments(wanted),
        JobWork::RenameVm { vm, to } => of(&[("domain", &vm.name), ("new_name", to)]),
        JobWork::ResizeDisk { vm, volume } => {
            of(&[("domain", &vm.name), ("volume", &volume.to_string())])
        }
        JobWork::AddOsds(_)
        | JobWork::PlanOsds(_)
        | JobWork::ReplaceOsd(_)
        | JobWork::RefreshOsd { .. }
        | JobWork::RemoveOsd { .. }
        | JobWork::AddDbGroup { .. } => osd::arguments(work),
        JobWork::BenchmarkStorage { pool, name } => of(&[("pool", pool.as_str()), ("name", name)]),
        JobWork::Upload { volume } => of(&volume_arguments(volume)),
        JobWork::Download { volume, snapshot } => {
            let snapshot = snapshot.as_ref().map(|name| ("snapshot", name.as_str()));
            of(&volume_arguments(volume).into_iter().chain(snapshot).collect::<Vec<_>>())
        }
        JobWork::ChangeStorage { of: what, .. } => of(&[("of", what)]),
        JobWork::Other { args, .. } => args.clone(),
    }
}

fn volume_arguments(id: &VolumeId) -> [(&str, &str); 2] {
    [("pool", id.pool.as_str()), ("volume", id.volume.as_str())]
}

/// The work of a job by its recorded name and arguments. `uuid` is that of the VM it is about.
fn work_from(name: String, uuid: Option<Uuid>, args: Vec<(String, String)>) -> JobWork {
    let arguments = Arguments { uuid, args: &args };
    let understood = match name.as_str() {
        JobWork::FLUSH_LOCKS => arguments.vm().map(|vm| JobWork::FlushLocks { vm }),
        JobWork::ATTACH_DEVICE => {
            arguments.device().map(|(vm, xml)| JobWork::AttachDevice { vm, xml })
        }
        JobWork::DETACH_DEVICE => {
            arguments.device().map(|(vm, xml)| JobWork::DetachDevice { vm, xml })
        }
        JobWork::CREATE_VM => {
            arguments.creation().map(|creation| JobWork::CreateVm(Box::new(creation)))
        }
        JobWork::PROVISION => {
            arguments.provision().map(|wanted| JobWork::Provision(Box::new(wanted)))
        }
        JobWork::RENAME_VM => arguments.renaming().map(|(vm, to)| JobWork::RenameVm { vm, to }),
        JobWork::RESIZE_DISK => {
            arguments.resizing().map(|(vm, volume)| JobWork::ResizeDisk { vm, volume })
        }
        JobWork::BENCHMARK_STORAGE => {
            arguments.benchmark().map(|(pool, name)| JobWork::BenchmarkStorage { pool, name })
        }
        JobWork::UPLOAD => arguments.volume().map(|volume| JobWork::Upload { volume }),
        JobWork::DOWNLOAD => arguments.volume().map(|volume| {
            let snapshot = arguments.find("snapshot").map(SnapshotName::new);
            JobWork::Download { volume, snapshot }
        }),
        name if name.starts_with("osd.") => arguments.osd_work(name),
        name => match StorageChange::of_kind(name) {
            Some(change) => arguments.text("of").map(|of| JobWork::ChangeStorage { change, of }),
            None => Err(NotUnderstood::UnknownKind { name: name.to_owned() }),
        },
    };
    understood.unwrap_or_else(|why| JobWork::Other { name, vm: uuid, args, why })
}

struct Arguments<'a> {
    uuid: Option<Uuid>,
    args: &'a [(String, String)],
}

impl Arguments<'_> {
    fn find(&self, argument: &str) -> Option<&str> {
        let found = self.args.iter().find(|(name, _)| name == argument);
        found.map(|(_, value)| value.as_str())
    }

    fn text(&self, argument: &'static str) -> Result<String, NotUnderstood> {
        let found = self.find(argument).map(str::to_owned);
        found.ok_or(NotUnderstood::MissingArgument { argument })
    }

    /// The argument as `parse` understands it, if it is there.
    fn maybe<T, E: std::fmt::Display>(
        &self,
        argument: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, NotUnderstood> {
        let bad = |why: E| NotUnderstood::BadArgument { argument, why: why.to_string() };
        self.find(argument).map(parse).transpose().map_err(bad)
    }

    fn parsed<T, E: std::fmt::Display>(
        &self,
        argument: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, NotUnderstood> {
        self.maybe(argument, parse)?.ok_or(NotUnderstood::MissingArgument { argument })
    }

    fn vm(&self) -> Result<JobVm, NotUnderstood> {
        Ok(JobVm { name: self.text("domain")?, uuid: self.uuid })
    }

    fn benchmark(&self) -> Result<(PoolName, String), NotUnderstood> {
        Ok((PoolName::new(self.text("pool")?), self.text("name")?))
    }

    fn volume(&self) -> Result<VolumeId, NotUnderstood> {
        let (pool, volume) = (self.text("pool")?, self.text("volume")?);
        Ok(VolumeId { pool: PoolName::new(pool), volume: VolumeName::new(volume) })
    }

    fn device(&self) -> Result<(JobVm, String), NotUnderstood> {
        Ok((self.vm()?, self.text("xml")?))
    }

    fn renaming(&self) -> Result<(JobVm, String), NotUnderstood> {
        Ok((self.vm()?, self.text("new_name")?))
    }

    fn resizing(&self) -> Result<(JobVm, VolumeId), NotUnderstood> {
        let volume = VolumeId::from_record(&self.text("volume")?);
        Ok((self.vm()?, volume.ok_or(NotUnderstood::MissingArgument { argument: "volume" })?))
    }
}

/// Arguments of a job, by name.
type Named = Vec<(String, String)>;

/// The arguments of a job that anybody may read, and the secrets among them.
fn apart(work: &JobWork) -> (Named, Named) {
    // Those of another version stay as they are.
    let is_ours = !matches!(work, JobWork::Other { .. });
    let is_secret = |(name, _): &(String, String)| is_ours && name.ends_with("_key");
    let (secret, open) = job_arguments(work).into_iter().partition(is_secret);
    (open, secret)
}

/// `None` if the record is no job: it is then left alone.
fn spec_from(id: &JobId, text: &str, secrets: Vec<(String, String)>) -> Option<JobSpec> {
    let mut spec: Spec = serde_json::from_str(text).ok()?;
    spec.args.extend(secrets);
    let uuid = spec.vm.as_deref().and_then(|uuid| Uuid::try_parse(uuid).ok());
    Some(JobSpec {
        id: id.clone(),
        work: work_from(spec.name, uuid, spec.args),
        node: NodeName::new(spec.node),
        run_on: spec.run_on,
        submitter: spec.submitter,
        submitted_at: spec.submitted_at,
    })
}

fn spec_text(spec: &JobSpec) -> String {
    let uuid = match &spec.work {
        JobWork::Other { vm, .. } => *vm,
        work => work.vm().and_then(|vm| vm.uuid),
    };
    let spec = Spec {
        name: spec.work.name().to_owned(),
        node: spec.node.to_string(),
        run_on: spec.run_on.clone(),
        vm: uuid.map(|uuid| uuid.to_string()),
        args: apart(&spec.work).0,
        submitter: spec.submitter.clone(),
        submitted_at: spec.submitted_at,
    };
    serde_json::to_string(&spec).expect("strings and numbers always have a JSON form")
}

/// A job whose progress cannot be read is shown as failed rather than as running for ever.
fn progress_from(text: &str) -> JobProgress {
    if text.is_empty() {
        return JobProgress::pending();
    }
    let unreadable = || JobProgress {
        state: JobState::Failed,
        current: 1,
        status: "the record of this job's progress cannot be read".to_owned(),
        ..JobProgress::pending()
    };
    let Ok(progress) = serde_json::from_str::<Progress>(text) else { return unreadable() };
    let Some((state, _)) = STATES.iter().find(|(_, word)| *word == progress.state) else {
        return unreadable();
    };
    let steps = match progress.steps.map(StepsRecord::read) {
        Some(None) => return unreadable(),
        steps => steps.flatten(),
    };
    JobProgress {
        state: *state,
        current: progress.current,
        total: progress.total.max(1),
        status: progress.status,
        started_at: progress.started_at,
        ended_at: progress.ended_at,
        log: progress.log,
        worker: progress.worker.map(NodeName::new),
        steps,
        trouble: progress.trouble.map(FailureRecord::read),
        failure: progress.failure.map(FailureRecord::read),
        transferred: progress.transferred.map(TransferredRecord::read),
        made: progress.made,
    }
}

fn progress_text(progress: &JobProgress) -> String {
    let (_, word) =
        STATES.iter().find(|(state, _)| *state == progress.state).expect("every state has a word");
    let progress = Progress {
        state: (*word).to_owned(),
        current: progress.current,
        total: progress.total,
        status: progress.status.clone(),
        started_at: progress.started_at,
        ended_at: progress.ended_at,
        log: progress.log.clone(),
        worker: progress.worker.as_ref().map(NodeName::to_string),
        steps: progress.steps.as_ref().map(StepsRecord::of),
        trouble: progress.trouble.as_ref().map(FailureRecord::of),
        failure: progress.failure.as_ref().map(FailureRecord::of),
        transferred: progress.transferred.as_ref().map(TransferredRecord::of),
        made: progress.made.clone(),
    };
    serde_json::to_string(&progress).expect("strings and numbers always have a JSON form")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::raw_of;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    use std::collections::BTreeSet;

    fn uuid() -> impl Strategy<Value = Option<Uuid>> {
        option::of(any::<u128>().prop_map(Uuid::from_u128))
    }

    fn vm() -> impl Strategy<Value = JobVm> {
        ("\\PC{0,20}", uuid()).prop_map(|(name, uuid)| JobVm { name, uuid })
    }

    fn other() -> impl Strategy<Value = JobWork> {
        let args = vec(("[a-z_]{1,12}", "\\PC{0,40}"), 0..5);
        ("[a-z]{1,8}[.][a-z]{1,4}", uuid(), args).prop_map(|(name, vm, args)| JobWork::Other {
            why: NotUnderstood::UnknownKind { name: name.clone() },
            name,
            vm,
            args,
        })
    }

    pub(super) fn volume() -> impl Strategy<Value = VolumeId> {
        ("[a-z]{1,9}", "[^/]{1,20}").prop_map(|(pool, volume)| VolumeId {
            pool: PoolName::new(pool),
            volume: VolumeName::new(volume),
        })
    }

    fn transferred() -> impl Strategy<Value = Transferred> {
        let figures = (any::<u64>(), any::<Option<u64>>(), any::<Option<u64>>());
        figures.prop_map(|(bytes, of, bytes_per_second)| Transferred {
            bytes,
            of,
            bytes_per_second,
        })
    }

    fn work() -> impl Strategy<Value = JobWork> {
        let device = || (vm(), "\\PC{0,80}");
        prop_oneof![
            vm().prop_map(|vm| JobWork::FlushLocks { vm }),
            device().prop_map(|(vm, xml)| JobWork::AttachDevice { vm, xml }),
            device().prop_map(|(vm, xml)| JobWork::DetachDevice { vm, xml }),
            (vm(), "\\PC{0,20}").prop_map(|(vm, to)| JobWork::RenameVm { vm, to }),
            (vm(), volume()).prop_map(|(vm, volume)| JobWork::ResizeDisk { vm, volume }),
            osd::tests::work(),
            creation::tests::work(),
            provision::tests::work(),
            ("[a-z]{1,9}", "\\PC{0,20}").prop_map(|(pool, name)| {
                JobWork::BenchmarkStorage { pool: PoolName::new(pool), name }
            }),
            volume().prop_map(|volume| JobWork::Upload { volume }),
            (volume(), option::of("\\PC{0,20}")).prop_map(|(volume, snapshot)| {
                let snapshot = snapshot.map(SnapshotName::new);
                JobWork::Download { volume, snapshot }
            }),
            (proptest::sample::select(&StorageChange::ALL[..]), "\\PC{0,20}")
                .prop_map(|(change, of)| JobWork::ChangeStorage { change, of }),
            other(),
        ]
    }

    fn spec() -> impl Strategy<Value = JobSpec> {
        let words = ("[a-z0-9-]{1,12}", "[a-z0-9-]{1,12}", "\\PC{0,20}");
        (any::<u32>(), work(), words, any::<u64>()).prop_map(
            |(bits, work, (node, run_on, submitter), submitted_at)| JobSpec {
                id: JobId::from_bits(bits),
                work,
                node: NodeName::new(node),
                run_on,
                submitter,
                submitted_at,
            },
        )
    }

    fn failure() -> impl Strategy<Value = Failure> {
        let kinds = vec![
            RefusalKind::NotFound,
            RefusalKind::Invalid,
            RefusalKind::Conflict,
            RefusalKind::Unavailable,
        ];
        let kind = proptest::sample::select(kinds);
        (kind, "\\PC{0,40}", option::of("\\PC{0,20}")).prop_map(|(kind, why, hint)| Failure {
            kind,
            why,
            hint,
        })
    }

    fn course(steps: u32) -> impl Strategy<Value = Course> {
        let cause = prop_oneof![
            Just(Cause::Cancelled),
            Just(Cause::WorkerLost),
            failure().prop_map(Cause::Failed),
        ];
        prop_oneof![
            (0..=steps).prop_map(|done| Course::Forward { done }),
            (0..=steps, cause).prop_map(|(left, cause)| Course::Back { left, cause }),
        ]
    }

    fn any_progress() -> impl Strategy<Value = JobProgress> {
        let lines = || vec("\\PC{0,30}", 0..4);
        let steps = lines().prop_flat_map(move |planned| {
            let course = course(planned.len() as u32);
            (Just(planned), lines(), course).prop_map(|(planned, facts, course)| Steps {
                planned,
                facts,
                course,
            })
        });
        let states: Vec<JobState> = STATES.iter().map(|(state, _)| *state).collect();
        let counts = (any::<u32>(), 1..u32::MAX, any::<Option<u64>>(), any::<Option<u64>>());
        let texts = ("\\PC{0,40}", lines(), option::of("[a-z0-9-]{1,12}"));
        let failures = (option::of(failure()), option::of(failure()));
        let rest = (option::of(steps), failures, option::of(transferred()), lines());
        (proptest::sample::select(states), counts, texts, rest).prop_map(
            |(state, counts, (status, log, worker), (steps, failures, transferred, made))| {
                let (trouble, failure) = failures;
                let (current, total, started_at, ended_at) = counts;
                let worker = worker.map(NodeName::new);
                JobProgress {
                    state,
                    current,
                    total,
                    status,
                    started_at,
                    ended_at,
                    log,
                    worker,
                    steps,
                    trouble,
                    failure,
                    transferred,
                    made,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn progress_reads_back_as_it_was_recorded(made in any_progress()) {
            prop_assert_eq!(progress_from(&progress_text(&made)), made);
        }

        #[test]
        fn a_job_reads_back_as_it_was_submitted(spec in spec()) {
            let secret = apart(&spec.work).1;
            prop_assert_eq!(spec_from(&spec.id, &spec_text(&spec), secret), Some(spec));
        }
    }

    #[test]
    fn jobs_of_every_kind_are_among_those_that_are_read_back_and_are_announced() {
        let (work, mut runner) = (work(), TestRunner::deterministic());
        let mut draw = || work.new_tree(&mut runner).expect("nothing is filtered").current();
        let mut drawn: Vec<JobWork> = (0..3000).map(|_| draw()).collect();
        drawn.retain(|work| !matches!(work, JobWork::Other { .. }));
        let drawn: BTreeSet<&str> = drawn.iter().map(JobWork::name).collect();
        assert_eq!(drawn, BTreeSet::from(JobWork::KINDS));
    }

    fn understood(text: &str) -> JobSpec {
        spec_from(&JobId::from_bits(1), text, Vec::new()).expect("it is a job")
    }

    #[test]
    fn jobs_of_the_versions_before_are_read() {
        let with_uuid = r#"{"name":"vm.device_attach","node":"hv1","run_on":"hv1",
            "vm":"2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1","submitter":"admin","submitted_at":7,
            "args":[["domain","web1"],["xml","<disk/>"]]}"#;
        let uuid = Uuid::try_parse("2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1").ok();
        let vm = JobVm { name: "web1".into(), uuid };
        assert_eq!(understood(with_uuid).work, JobWork::AttachDevice { vm, xml: "<disk/>".into() });
        let by_name = r#"{"name":"vm.flush_locks","node":"hv1","run_on":"hv1",
            "args":[["domain","web1"]]}"#;
        let vm = JobVm { name: "web1".into(), uuid: None };
        assert_eq!(understood(by_name).work, JobWork::FlushLocks { vm });
    }

    #[test]
    fn what_is_not_understood_is_kept_as_it_is_and_says_why() {
        for (text, why) in [
            (
                r#"{"name":"cluster.automirror","node":"hv1","run_on":"hv1","args":[["vm","a"]]}"#,
                "no worker of this version knows jobs of the kind `cluster.automirror`",
            ),
            (
                r#"{"name":"vm.flush_locks","node":"hv1","run_on":"hv1","args":[["device","x"]]}"#,
                "the job has no argument `domain`",
            ),
            (
                r#"{"name":"osd.add_db_vg","node":"hv1","run_on":"hv1","args":[["device","sdb"]]}"#,
                "the job's argument `device` is not understood: device `sdb` is not below `/dev`",
            ),
        ] {
            let JobWork::Other { name, args, why: found, .. } = understood(text).work else {
                panic!("{text} is understood")
            };
            assert!(text.contains(&name), "{name}");
            assert_eq!((args.len(), found.to_string().as_str()), (1, why));
        }
    }

    #[test]
    fn a_job_that_stands_at_a_step_that_was_never_planned_has_failed() {
        let state = |course: &str| {
            let steps = format!(r#"{{"planned":["a","b"],"course":{course}}}"#);
            let text = format!(
                r#"{{"state":"running","current":0,"total":2,"status":"","steps":{steps}}}"#
            );
            progress_from(&text).state
        };
        let back = |left: u32| format!(r#"{{"back":{{"left":{left},"cause":"worker_lost"}}}}"#);
        assert_eq!(state(r#"{"forward":{"done":2}}"#), JobState::Running);
        assert_eq!(state(r#"{"forward":{"done":3}}"#), JobState::Failed);
        assert_eq!(state(&back(2)), JobState::Running);
        assert_eq!(state(&back(3)), JobState::Failed);
        assert_eq!(state(&back(u32::MAX)), JobState::Failed);
    }

    #[test]
    fn a_job_of_which_too_much_is_said_has_failed_or_is_none() {
        let id = JobId::from_bits(7);
        let spec = r#"{"name": "x", "node": "hv1", "run_on": "hv1"}"#.to_owned();
        let job = |spec: String, progress: String| {
            let keys = [(root(&id), spec), (super::progress(&id), progress)];
            super::read(&raw_of(keys), &id)
        };
        let padded = |text: &str| format!("{text}{}", " ".repeat(MOST_JSON));
        assert!(job(spec.clone(), String::new()).is_some());
        assert!(job(padded(&spec), String::new()).is_none());
        let state = job(spec, padded("{}")).unwrap().progress.state;
        assert_eq!(state, JobState::Failed);
    }
}
