//! The loop: looks at the jobs, begins what there is to begin, and keeps the records true.
//!
//! While there is nothing to do a worker may have the jobs alone in view ([`Store::open_jobs`]);
//! what it does, it does on the whole cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::job::transfer::TransferEnd;
use pvc_model::job::{
    Job, JobId, JobProgress, JobSpec, JobState, JobVm, JobWork, NotUnderstood, WorkerRecord,
    unrecorded_node,
};
use pvc_model::node::removal::failure_of_removed;
use pvc_model::storage::VolumeId;
use pvc_ops::storage::mapped_on;
use pvc_ports::{Clock, Hypervisor, Random, Storage};
use pvc_store::{Change, Changes, JobClaim, Store, StoreError};
use tokio::task::{self, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::context::{Context, Tools};
use crate::jobs::{self, BenchmarkTools, ScriptTools};
use crate::kind::Steps;
use crate::plan::{Doing, Step, jobs_of_unrecorded, may_have_work, plan};
use crate::runner::{Parted, fail, perform};

/// The jobs are looked at at least this often, for what time alone changes.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Time that the whole cluster stays in view after the last job: they seldom come alone.
const WHOLE_FOR: Duration = Duration::from_secs(60);

/// Time for which a node has had neither record nor worker before its jobs are ended. A worker that
/// is started again, or begins a new session, is announced by then.
const GONE_AFTER: Duration = Duration::from_secs(60);

/// Time until it is tried again to get the whole cluster into view.
const OPEN_AGAIN: Duration = Duration::from_secs(1);

/// Time until it is tried again to end what earlier scripts have left.
const AGAIN: Duration = Duration::from_secs(10);

/// Time that the steps under way get when the daemon stops. The next worker goes on from there.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// Does the jobs of one node.
pub struct Worker {
    tools: Tools,
    awaited: Arc<Mutex<Awaited>>,
}

/// Nodes that jobs wait for and that have no worker, by what the tree has answered about their
/// records. Times are by the monotonic clock.
#[derive(Default)]
struct Awaited {
    /// Nodes that had records, each with the time of the question. The tree is not asked of one
    /// again before [`LOOK_EVERY`] is over: tasks of a node that is off may wait for days.
    recorded: BTreeMap<NodeName, Duration>,
    /// Nodes that had none, each with the time of the first question.
    unrecorded: BTreeMap<NodeName, Duration>,
}

impl Awaited {
    /// Returns those of `nodes`, which are all that jobs wait for at `now`, that are not known to
    /// have records.
    fn unknown(&mut self, mut nodes: BTreeSet<NodeName>, now: Duration) -> BTreeSet<NodeName> {
        self.recorded.retain(|_, asked_at| now.saturating_sub(*asked_at) < LOOK_EVERY);
        self.unrecorded.retain(|node, _| nodes.contains(node));
        nodes.retain(|node| !self.recorded.contains_key(node));
        nodes
    }

    /// Notes which of the nodes that the tree was asked of at `now` have records. Returns those
    /// that have had neither record nor worker for so long that none is on its way: a worker that
    /// is started again, or that has lost its session, may be at a job.
    fn note(
        &mut self,
        asked: &BTreeSet<NodeName>,
        recorded: &BTreeSet<NodeName>,
        now: Duration,
    ) -> BTreeSet<NodeName> {
        for node in recorded {
            self.recorded.insert(node.clone(), now);
            self.unrecorded.remove(node);
        }
        let mut gone = BTreeSet::new();
        for node in asked.difference(recorded) {
            let since = *self.unrecorded.entry(node.clone()).or_insert(now);
            if now.saturating_sub(since) >= GONE_AFTER {
                gone.insert(node.clone());
            }
        }
        gone
    }
}

/// The jobs that this process does.
#[derive(Default)]
struct Active {
    tasks: JoinSet<Parted>,
    jobs: BTreeMap<JobId, UnderWay>,
    /// Cancelled when this worker stops.
    leave: CancellationToken,
    /// Steps that were done too late and may have to be taken back, and jobs whose end by a panic
    /// is not recorded yet.
    late: JoinSet<()>,
    /// Task, one at most, that lets go of what former scripts of this node had mapped: a device
    /// that hangs holds up no job.
    letting_go: JoinSet<()>,
}

/// A job that this process does.
struct UnderWay {
    /// Subject that it holds for itself, if any.
    subject: Option<String>,
    context: Arc<Context>,
    /// The task that performs it.
    task: task::Id,
}

impl Active {
    fn begin(
        &mut self,
        context: Arc<Context>,
        job: &Arc<Job>,
        steps: Result<Arc<dyn Steps>, NotUnderstood>,
        claim: JobClaim,
    ) {
        let work = perform(context.clone(), job.clone(), steps, claim, self.leave.clone());
        let task = self.tasks.spawn(work).id();
        let subject = job.spec.subject();
        self.jobs.insert(job.spec.id.clone(), UnderWay { subject, context, task });
    }

    fn forget(&mut self, ended: Result<Parted, JoinError>) {
        match ended {
            Ok(Parted { job, late }) => {
                self.jobs.remove(&job);
                if let Some(late) = late {
                    self.late.spawn(late.set_right());
                }
            }
            // A job's steps are tasks of their own; this panic is one of the runner's.
            Err(panic) => {
                let lost = self.jobs.extract_if(.., |_, job| job.task == panic.id()).next();
                if let Some((job, lost)) = lost {
                    tracing::error!(%job, %panic, "a job ended by a bug of ours");
                    self.late.spawn(fail(lost.context, panic, self.leave.clone()));
                }
            }
        }
    }

    fn doing(&self) -> Doing {
        let working = self.jobs.iter().filter(|(_, job)| !job.context.is_waiting());
        Doing {
            jobs: self.jobs.keys().cloned().collect(),
            working: working.map(|(id, _)| id.clone()).collect(),
            subjects: self.jobs.values().filter_map(|job| job.subject.clone()).collect(),
        }
    }
}

impl Worker {
    /// `store` may be one with the jobs alone in view.
    pub fn new(
        node: NodeName,
        store: Store,
        hypervisor: Arc<dyn Hypervisor>,
        storage: Arc<dyn Storage>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Self {
        let disks = Arc::default();
        let tools = Tools {
            node,
            store,
            hypervisor,
            storage,
            clock,
            random,
            benchmarks: None,
            scripts: None,
            disks,
            left_over: Arc::default(),
        };
        Worker { tools, awaited: Arc::default() }
    }

    /// Has the worker measure the storage as well.
    #[must_use]
    pub fn with_benchmarks(self, benchmarks: BenchmarkTools) -> Self {
        let benchmarks = Some(Arc::new(benchmarks));
        Worker { tools: Tools { benchmarks, ..self.tools }, ..self }
    }

    /// Has the worker run scripts of the provisioner as well, where it has profiles, and end what
    /// earlier ones have left.
    #[must_use]
    pub fn with_scripts(self, scripts: ScriptTools) -> Self {
        let scripts = Some(Arc::new(scripts));
        Worker { tools: Tools { scripts, ..self.tools }, ..self }
    }

    /// Works until `shutdown`; then leaves the jobs, between two of their steps, to the next
    /// worker.
    pub async fn run(&self, shutdown: CancellationToken) {
        let jobs = self.do_jobs(&shutdown);
        tokio::pin!(jobs);
        tokio::select! {
            biased;
            _ = shutdown.run_until_cancelled(self.end_left_over()) => {}
            () = &mut jobs => return,
        }
        jobs.await;
    }

    /// Ends what earlier processes of this node have left for scripts, until nothing of it is
    /// mapped any more. Jobs need not wait for that.
    async fn end_left_over(&self) {
        let Tools { scripts, left_over, clock, .. } = &self.tools;
        let Some(scripts) = scripts else { return };
        loop {
            let left = scripts.end_left_over().await;
            let is_gone = left.as_ref().is_some_and(BTreeSet::is_empty);
            left_over.note(left);
            if is_gone {
                return;
            }
            clock.sleep(AGAIN).await;
        }
    }

    async fn do_jobs(&self, shutdown: &CancellationToken) {
        let mut changes = self.tools.store.changed();
        let mut left_over = self.tools.left_over.subscribe();
        loop {
            let Some(looked) = shutdown.run_until_cancelled(self.look()).await else { return };
            let rest = match looked {
                Ok(None) => LOOK_EVERY,
                Ok(Some(worker)) => {
                    worker.work(shutdown).await;
                    LOOK_EVERY
                }
                Err(error) => {
                    tracing::debug!(%error, "there is work, and the cluster cannot be read; it \
                                             will be tried again");
                    OPEN_AGAIN
                }
            };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                changed = changes.changed() => if changed.is_err() { return },
                _ = left_over.changed() => {}
                () = self.tools.clock.sleep(rest) => {}
            }
        }
    }

    /// Returns this worker with the whole cluster in view if there is something to do.
    async fn look(&self) -> Result<Option<Worker>, StoreError> {
        self.announce().await;
        let view = self.tools.store.view();
        if !self.has_work() && self.jobs_without_node(&view).await.is_empty() {
            return Ok(None);
        }
        let store = self.tools.store.whole().await?;
        let tools = Tools { store, ..self.tools.clone() };
        Ok(Some(Worker { tools, awaited: self.awaited.clone() }))
    }

    /// Whether the records ask for something that this worker does not do yet.
    fn has_work(&self) -> bool {
        let Tools { node, store, .. } = &self.tools;
        may_have_work(&store.view(), node, self.now())
            || !store.former_renamings().is_empty()
            || !self.held_for_scripts().is_empty()
    }

    /// Returns the jobs that nobody will ever do, as the node whose worker they wait for has no
    /// record by now, each with that node.
    async fn jobs_without_node<'a>(&self, view: &'a Cluster) -> Vec<(&'a Job, &'a NodeName)> {
        let Tools { node, store, clock, .. } = &self.tools;
        let mut found = jobs_of_unrecorded(view, node);
        let now = clock.monotonic();
        // The view may have no nodes at all, or not yet one that has joined.
        let awaited = found.iter().map(|(_, of)| (*of).clone()).collect();
        let asked = self.awaited().unknown(awaited, now);
        if asked.is_empty() {
            return Vec::new();
        }
        match store.recorded_nodes(&asked).await {
            Ok(recorded) => {
                let gone = self.awaited().note(&asked, &recorded, now);
                found.retain(|(_, of)| gone.contains(*of));
                found
            }
            Err(error) => {
                // No worker can say that it is there meanwhile either.
                self.awaited().unrecorded.clear();
                tracing::debug!(%error, "it is not known whether the nodes of jobs that wait are \
                                         there; it will be looked at again");
                Vec::new()
            }
        }
    }

    fn awaited(&self) -> MutexGuard<'_, Awaited> {
        self.awaited.lock().expect("nothing panics while it holds the nodes")
    }

    /// Volumes that are held for scripts of this node and can be let go of, unless this process
    /// runs these: each with the job of one.
    fn held_for_scripts(&self) -> Vec<(VolumeId, JobId)> {
        let Tools { node, store, left_over, .. } = &self.tools;
        let mut held = mapped_on(&store.view(), node);
        held.retain(|(volume, _)| !left_over.may_be(volume));
        held
    }

    /// Begins to let go of what is held for scripts that this process does not run, unless that is
    /// being done.
    fn let_go_of_former(&self, active: &mut Active) {
        let mut former = self.held_for_scripts();
        former.retain(|(_, job)| !active.jobs.contains_key(job));
        let Some(scripts) = self.tools.scripts.clone() else { return };
        if former.is_empty() || !active.letting_go.is_empty() {
            return;
        }
        let tools = self.tools.clone();
        active.letting_go.spawn(async move {
            if !scripts.let_go_of(&tools, former).await {
                tools.clock.sleep(AGAIN).await;
            }
        });
    }

    /// Does the jobs until there has been none for [a while](WHOLE_FOR), or until `shutdown`.
    async fn work(&self, shutdown: &CancellationToken) {
        let clock = &self.tools.clock;
        let mut active = Active::default();
        let mut changes = self.tools.store.changed();
        let mut left_over = self.tools.left_over.subscribe();
        let mut busy_at = clock.monotonic();
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                // May be dropped anywhere: what it has claimed then goes with the session.
                () = self.pass(&mut active) => {}
            }
            if !active.tasks.is_empty() || !active.late.is_empty() || self.has_work() {
                busy_at = clock.monotonic();
            } else if clock.monotonic() - busy_at >= WHOLE_FOR {
                return;
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(ended) = active.tasks.join_next() => active.forget(ended),
                Some(_) = active.late.join_next() => {}
                Some(_) = active.letting_go.join_next() => {}
                _ = left_over.changed() => {}
                changed = changes.changed() => if changed.is_err() { break },
                () = clock.sleep(LOOK_EVERY.min(WHOLE_FOR)) => {}
            }
        }
        self.stop(active).await;
    }

    /// Makes jobs of the renamings that a process of an earlier version left half way.
    async fn adopt_former_renamings(&self) {
        let Tools { node, store, .. } = &self.tools;
        for former in store.former_renamings() {
            let vm = JobVm { name: former.from.clone(), uuid: Some(former.vm) };
            let bits = former.vm.as_u128() as u32;
            let unused = |id: &JobId| !store.view().jobs.contains_key(id);
            let mut ids = (0..=u32::MAX).map(|more| JobId::from_bits(bits.wrapping_add(more)));
            let Some(id) = ids.find(unused) else { return };
            let spec = JobSpec {
                id,
                work: JobWork::RenameVm { vm, to: former.to.clone() },
                node: node.clone(),
                run_on: node.to_string(),
                submitter: "an earlier version of PVC".to_owned(),
                submitted_at: self.now(),
            };
            let progress = JobProgress {
                state: JobState::Running,
                started_at: Some(self.now()),
                worker: Some(node.clone()),
                steps: Some(jobs::left_half_way(&former)),
                ..JobProgress::pending()
            };
            match store.replace_former_renaming(former.vm, &spec, &progress).await {
                Ok(true) => {
                    tracing::warn!(vm = former.from, to = former.to, job = %spec.id, "a renaming \
                                   that an earlier version left half way is taken back");
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!(%error, "a renaming of an earlier version could not be taken \
                                             over; it will be tried again");
                }
            }
        }
    }

    /// Looks at all jobs once, decides, acts.
    async fn pass(&self, active: &mut Active) {
        self.let_go_of_former(active);
        self.announce().await;
        self.adopt_former_renamings().await;
        let view = self.tools.store.view();
        for (id, under_way) in &active.jobs {
            if view.jobs.get(id).is_some_and(|job| job.cancel_requested) {
                under_way.context.cancelled.cancel();
            }
        }
        for step in plan(&view, &self.tools.node, &active.doing(), self.now()) {
            match step {
                Step::Begin(id) => {
                    if let Some(job) = view.jobs.get(&id) {
                        self.begin(active, job).await;
                    }
                }
                Step::Abandoned(id) => {
                    if let Some(job) = view.jobs.get(&id) {
                        self.close(job, |begun, now| {
                            let status = "its worker stopped before it was done";
                            begun.ended(JobState::Failed, status, now)
                        })
                        .await;
                    }
                }
                Step::BrokenOff(id) => {
                    if let Some(job) = view.jobs.get(&id) {
                        self.close(job, |begun, now| {
                            begun.transfer_ended(TransferEnd::DaemonGone, false, now)
                        })
                        .await;
                    }
                }
                Step::Cancelled(id) => {
                    if let Some(job) = view.jobs.get(&id) {
                        self.close(job, |pending, now| {
                            pending.ended(JobState::Cancelled, "cancelled before it began", now)
                        })
                        .await;
                    }
                }
                Step::Forget(id) => self.remove(&id).await,
            }
        }
        for (job, of) in self.jobs_without_node(&view).await {
            self.end_without_node(job, of).await;
        }
    }

    /// Ends a job that nobody will ever do, as node `of` has no record, if that is still so.
    async fn end_without_node(&self, job: &Job, of: &NodeName) {
        let why = failure_of_removed(of, job);
        // The node may have joined anew, or the job's VM be on another one than was seen.
        let is_left = |cluster: &Cluster, job: &Job| unrecorded_node(cluster, job) == Some(of);
        self.close_if(job, is_left, |left, now| left.failed(why, now)).await;
    }

    /// Says that this worker is there, and which kinds of jobs it knows. That goes with the
    /// session, and so does what an earlier process of this node has said.
    async fn announce(&self) {
        let Tools { node, store, .. } = &self.tools;
        if store.view().workers.contains_key(node) {
            return;
        }
        let has_profiles = |scripts: &Arc<ScriptTools>| scripts.profiles.is_some();
        let is_able = |kind: &&str| match *kind {
            JobWork::BENCHMARK_STORAGE => self.tools.benchmarks.is_some(),
            JobWork::PROVISION => self.tools.scripts.as_ref().is_some_and(has_profiles),
            _ => true,
        };
        let kinds = JobWork::KINDS.into_iter().filter(is_able);
        let kinds = kinds.map(str::to_owned).collect();
        if let Err(error) = store.announce_worker(node, &WorkerRecord { kinds }).await {
            tracing::debug!(%error, "this worker could not be announced; it will be tried again");
        }
    }

    async fn begin(&self, active: &mut Active, job: &Arc<Job>) {
        let id = job.spec.id.clone();
        let claim = match self.tools.store.claim_job(&id).await {
            Ok(Some(claim)) => claim,
            Ok(None) => return, // Another worker of this node was faster.
            Err(error) => {
                tracing::debug!(job = %id, %error, "a job could not be claimed; it will be tried \
                                                    again");
                return;
            }
        };
        // Another worker may have had it between the look that chose it and the claim.
        let view = self.tools.store.view();
        let may_be_begun = |job: &&Arc<Job>| {
            let JobProgress { state, worker, .. } = &job.progress;
            let is_waiting = *state == JobState::Pending && !job.cancel_requested;
            is_waiting || (*state == JobState::Running && worker.is_some())
        };
        let Some(job) = view.jobs.get(&id).filter(may_be_begun) else {
            return claim.release().await;
        };
        let context =
            Arc::new(Context::new(self.tools.clone(), job, claim.id(), active.leave.clone()));
        active.begin(context, job, jobs::steps(&job.spec.work), claim);
    }

    /// Ends a job that nobody does, if it still is as it was in the view that was looked at.
    async fn close(&self, seen: &Job, end: impl FnOnce(JobProgress, u64) -> JobProgress) {
        self.close_if(seen, |_, _| true, end).await;
    }

    /// Ends a job as [`close`](Self::close) does, if `may_end` says so of the view that the end is
    /// written on.
    async fn close_if(
        &self,
        seen: &Job,
        may_end: impl Fn(&Cluster, &Job) -> bool + Send + Sync,
        end: impl FnOnce(JobProgress, u64) -> JobProgress,
    ) {
        let id = &seen.spec.id;
        let ended = end(seen.progress.clone(), self.now());
        let status = &ended.status;
        let decide = |cluster: &Cluster| {
            let mut changes = Changes::new();
            let same = |job: &Arc<Job>| job.claim.is_none() && job.progress == seen.progress;
            let close = cluster.jobs.get(id).is_some_and(|job| same(job) && may_end(cluster, job));
            if close {
                changes.push(Change::JobProgress(id.clone(), ended.clone()));
            }
            Ok::<_, std::convert::Infallible>((changes, close))
        };
        // Owner and progress are two keys: a view in the middle of changes may show one of them
        // only.
        let closed = match self.tools.store.fresh().await {
            Ok(_) => self.tools.store.change(decide).await,
            Err(error) => Err(error.into()),
        };
        match closed {
            Ok(true) => tracing::warn!(job = %id, kind = seen.spec.work.name(), "job {status}"),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(job = %id, %error, "a job could not be ended; it will be tried \
                                                    again");
            }
        }
    }

    async fn remove(&self, id: &JobId) {
        let removed = self
            .tools
            .store
            .change(|cluster: &Cluster| {
                let mut changes = Changes::new();
                if cluster.jobs.contains_key(id) {
                    changes.push(Change::RemoveJob(id.clone()));
                }
                Ok::<_, std::convert::Infallible>((changes, ()))
            })
            .await;
        if let Err(error) = removed {
            tracing::debug!(job = %id, %error, "the record of an old job could not be removed; it \
                                                will be tried again");
        }
    }

    async fn stop(&self, mut active: Active) {
        active.leave.cancel();
        let drained = async { while active.tasks.join_next().await.is_some() {} };
        tokio::select! {
            biased;
            () = drained => {}
            // Their claims end with the session; the next worker finds out how far they are.
            () = self.tools.clock.sleep(STOP_WITHIN) => {
                tracing::warn!("jobs were still at work when the worker stopped");
            }
        }
        drop(active);
        if let Some(scripts) = &self.tools.scripts {
            tokio::select! {
                biased;
                () = scripts.unmap_all() => {}
                () = self.tools.clock.sleep(STOP_WITHIN) => {
                    tracing::warn!("volumes were still mapped when the worker stopped");
                }
            }
        }
    }

    fn now(&self) -> u64 {
        self.tools.clock.wall().as_secs()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;
    use pvc_model::job::course::{AfterLoss, Failure};
    use pvc_model::node::NodeRole;
    use pvc_store::{Ipmi, NewNode};
    use pvc_testkit::FlakyTree;

    use super::*;
    use crate::runner::tests::{job, write};

    /// Steps that the runner cannot even ask what they do.
    struct Broken;

    #[async_trait]
    impl Steps for Broken {
        fn after_loss(&self) -> AfterLoss {
            AfterLoss::Continue
        }
        async fn plan(&self, _: &Context) -> Result<Vec<String>, Failure> {
            Ok(vec!["only".to_owned()])
        }
        fn doing(&self, _: &str) -> String {
            panic!("it is broken")
        }
        async fn look(&self, _: &Context, _: &str) -> Result<Option<String>, Failure> {
            Ok(None)
        }
        async fn run(&self, _: &Context, _: &str) -> Result<String, Failure> {
            Ok(String::new())
        }
        async fn undo(&self, _: &Context, _: &str) -> Result<(), Failure> {
            Ok(())
        }
        fn result(&self, _: &Context, _: &[String]) -> String {
            String::new()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_whose_task_panics_has_failed_and_leaves_its_place_to_others() {
        let (store, context, job, claim) = job(JobProgress::pending()).await;
        let mut active = Active::default();
        active.begin(context, &job, Ok(Arc::new(Broken)), claim);
        assert_eq!(active.doing().working.len(), 1);
        let ended = active.tasks.join_next().await.expect("it was begun");
        assert!(ended.is_err(), "it panics");
        active.forget(ended);
        assert!(active.doing().jobs.is_empty());
        while active.late.join_next().await.is_some() {}
        let progress = store.view().jobs[&job.spec.id].progress.clone();
        assert_eq!(progress.state, JobState::Failed);
        assert!(progress.status.contains("it is broken"), "{}", progress.status);
    }

    fn hv1() -> NewNode {
        NewNode {
            name: "hv1".into(),
            role: NodeRole::Coordinator,
            cpus: 8,
            kernel: String::new(),
            os: String::new(),
            arch: "x86_64".into(),
            version: "0.2.0".into(),
            ipmi: Ipmi::default(),
            keepalive: 1,
        }
    }

    /// Found in a review: each look asked anew, once for each job, of a node that is only off.
    #[tokio::test(start_paused = true)]
    async fn the_tree_is_asked_once_in_a_while_for_the_node_of_jobs_and_no_answer_ends_none() {
        let (store, context, job, claim) = job(JobProgress::pending()).await;
        claim.release().await;
        write(&store, Change::AddNode(Box::new(hv1()))).await;
        let connection = FlakyTree::new(store.tree().clone());
        let Tools { clock, random, .. } = context.tools.clone();
        let seen = Store::open(connection.clone(), clock.clone(), random).await.expect("readable");
        let tools = Tools { node: "hv2".into(), store: seen, ..context.tools.clone() };
        let worker = Worker { tools, awaited: Arc::default() };
        // As in a view of jobs alone.
        let job = Job { claim: None, ..(*job).clone() };
        let jobs = [(job.spec.id.clone(), Arc::new(job))].into();
        let view = Cluster { jobs, ..Cluster::default() };
        let look = async || {
            let is_asked = Arc::new(AtomicBool::new(false));
            let asked = is_asked.clone();
            connection.before_next_sync(async move { asked.store(true, Ordering::SeqCst) });
            let found = worker.jobs_without_node(&view).await.len();
            (is_asked.load(Ordering::SeqCst), found)
        };
        assert_eq!(look().await, (true, 0), "it has a record");
        assert_eq!(look().await, (false, 0), "it had one a moment ago");
        clock.sleep(LOOK_EVERY).await;
        assert_eq!(look().await, (true, 0));
        write(&store, Change::RemoveNode("hv1".into())).await;
        clock.sleep(LOOK_EVERY).await;
        connection.cut();
        assert_eq!(look().await, (true, 0), "nobody knows");
        connection.mend();
        assert_eq!(look().await, (true, 0), "its worker may be on its way");
        connection.cut();
        clock.sleep(GONE_AFTER).await;
        assert_eq!(look().await, (true, 0));
        connection.mend();
        assert_eq!(look().await, (true, 0), "nor could its worker say that it is there");
        clock.sleep(GONE_AFTER).await;
        assert_eq!(look().await, (true, 1));
    }

    /// After an outage the sessions of all workers are over, also of those that are at a job.
    #[test]
    fn a_node_is_gone_when_it_has_had_neither_record_nor_worker_for_a_while() {
        type Nodes = BTreeSet<NodeName>;
        let (hv1, none) = (Nodes::from([NodeName::new("hv1")]), Nodes::new());
        let mut awaited = Awaited::default();
        let mut is_gone = |seconds: u64, waiting: &Nodes, recorded: &Nodes| {
            let now = Duration::from_secs(seconds);
            let asked = awaited.unknown(waiting.clone(), now);
            awaited.note(&asked, recorded, now) == hv1
        };
        assert!(!is_gone(0, &hv1, &none));
        assert!(!is_gone(59, &hv1, &none));
        assert!(!is_gone(60, &none, &none), "its worker is there");
        assert!(!is_gone(61, &hv1, &none));
        assert!(!is_gone(120, &hv1, &hv1), "it has a record");
        assert!(!is_gone(180, &hv1, &none));
        assert!(is_gone(240, &hv1, &none));
    }

    #[tokio::test]
    async fn a_job_that_was_ended_between_its_claim_and_its_first_record_stays_ended() {
        let (store, context, job, _claim) = job(JobProgress::pending()).await;
        let ended = job.progress.clone().ended(JobState::Failed, "its node was removed", 1);
        write(&store, Change::JobProgress(job.spec.id.clone(), ended.clone())).await;
        assert!(!context.record().await.expect("the store answers"));
        assert_eq!(store.view().jobs[&job.spec.id].progress, ended);
        context.edit(|progress| *progress = ended);
        assert!(
            context.record().await.expect("the store answers"),
            "its own end is recorded twice"
        );
    }

    #[tokio::test]
    async fn a_job_of_a_node_that_has_joined_anew_since_it_was_looked_at_is_left_to_it() {
        let (store, context, job, claim) = job(JobProgress::pending()).await;
        claim.release().await;
        let worker = Worker { tools: context.tools.clone(), awaited: Arc::default() };
        write(&store, Change::AddNode(Box::new(hv1()))).await;
        let state = || store.view().jobs[&job.spec.id].progress.state;
        worker.end_without_node(&job, &"hv1".into()).await;
        assert_eq!(state(), JobState::Pending);
        write(&store, Change::RemoveNode("hv1".into())).await;
        worker.end_without_node(&job, &"hv1".into()).await;
        assert_eq!(state(), JobState::Failed, "it is gone again");
    }
}
