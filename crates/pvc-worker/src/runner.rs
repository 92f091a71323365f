//! Takes one job through its steps.

use std::sync::Arc;
use std::time::Duration;

use pvc_model::job::course::{AfterLoss, Cause, Course, Failure, Known, Next, Situation, next};
use pvc_model::job::{Job, JobId, JobState, NotUnderstood, Steps as Recorded};
use pvc_model::refusal::Kind as RefusalKind;
use pvc_store::JobClaim;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::context::{Context, RECORD_EVERY, push_line};
use crate::kind::Steps;

/// Time until something that keeps a job from going on is tried again.
const RETRY_EVERY: Duration = Duration::from_secs(10);

/// State of a job for a worker that has done with it.
pub(crate) struct Parted {
    pub job: JobId,
    /// The step that was done here after the job had been lost, perhaps.
    pub late: Option<Late>,
}

/// Does `job`, which has these steps, until it ends, this worker is asked to `leave`, or has lost
/// it.
pub(crate) async fn perform(
    context: Arc<Context>,
    job: Arc<Job>,
    steps: Result<Arc<dyn Steps>, NotUnderstood>,
    claim: JobClaim,
    leave: CancellationToken,
) -> Parted {
    let id = job.spec.id.clone();
    let kind = job.spec.work.name();
    tracing::info!(job = %id, kind, "beginning job");
    let late = match run(&context, &job, steps, &leave).await {
        Ok(status) => {
            tracing::info!(job = %id, kind, status, "job ended");
            None
        }
        Err(Left { late }) => {
            tracing::warn!(job = %id, kind, "job is left to the next worker");
            late
        }
    };
    // A claim that cannot be released now ends with this worker's session if it stops, and keeps
    // everybody else from the job if it does not.
    let clock = context.tools.clock.clone();
    tokio::select! {
        biased;
        () = claim.release() => {}
        () = async {
            leave.cancelled().await;
            clock.sleep(RECORD_EVERY).await;
        } => {}
    }
    Parted { job: id, late }
}

/// Records that a job has failed whose task has ended in a panic, as soon as the store can be told.
/// The job's claim goes with the session or with the record; nobody waits for it.
pub(crate) async fn fail(context: Arc<Context>, panic: JoinError, leave: CancellationToken) {
    let mut runner = Runner { context: &context, leave: &leave, undecided: None, troubled: None };
    if runner.end(Err(Cause::Failed(bug(&panic)))).await.is_err() {
        let job = &context.job;
        tracing::warn!(%job, "a job that ended by a panic is left to the next worker");
    }
}

fn bug(panic: &JoinError) -> Failure {
    let why = format!("the job ended by a bug of ours: {panic}");
    Failure { kind: RefusalKind::Unavailable, why, hint: None }
}

/// The job goes on without this worker.
struct Left {
    late: Option<Late>,
}

/// Returns the job's last words.
async fn run(
    context: &Arc<Context>,
    job: &Job,
    steps: Result<Arc<dyn Steps>, NotUnderstood>,
    leave: &CancellationToken,
) -> Result<String, Left> {
    let mut runner = Runner { context, leave, undecided: None, troubled: None };
    runner.take_over(job).await?;
    let steps = match steps {
        Ok(steps) => steps,
        Err(why) => {
            let (kind, why) = (RefusalKind::Invalid, why.to_string());
            return runner.end(Err(Cause::Failed(Failure { kind, why, hint: None }))).await;
        }
    };
    let is_resumed = job.progress.steps.is_some();
    if !is_resumed && let Err(failure) = runner.plan(&steps).await? {
        return runner.end(Err(Cause::Failed(failure))).await;
    }
    let after_loss = is_resumed.then(|| steps.after_loss());
    let known = if is_resumed { Known::Begun } else { Known::NotBegun };
    Walk { runner, steps, after_loss, known, fact: None }.finish().await
}

/// Writes to the job's record.
struct Runner<'a> {
    context: &'a Arc<Context>,
    leave: &'a CancellationToken,
    /// The step that was done here, while that is not recorded yet.
    undecided: Option<Late>,
    /// The latest failure that had the job wait, until it has come a step further.
    troubled: Option<Failure>,
}

impl Runner<'_> {
    /// Says whose the job is. Whoever had it before records nothing any more from here on.
    async fn take_over(&mut self, job: &Job) -> Result<(), Left> {
        let now = self.context.tools.clock.wall().as_secs();
        let node = self.context.tools.node.clone();
        let is_begun = job.progress.state == JobState::Running;
        self.context.edit(|progress| {
            progress.state = JobState::Running;
            progress.started_at.get_or_insert(now);
            if is_begun {
                push_line(progress, format!("the worker of node {node} goes on with it"));
            } else {
                progress.status = "starting".to_owned();
            }
            progress.worker = Some(node);
        });
        self.record().await
    }

    async fn plan(&mut self, steps: &Arc<dyn Steps>) -> Result<Result<(), Failure>, Left> {
        let (planning, context) = (steps.clone(), self.context.clone());
        match self.effect(async move { planning.plan(&context).await }).await {
            Err(failure) => Ok(Err(failure)),
            Ok(planned) => {
                let course = Course::Forward { done: 0 };
                let total = steps.stages().unwrap_or(planned.len() as u32).max(1);
                self.context.edit(|progress| {
                    (progress.current, progress.total) = (0, total);
                    progress.steps = Some(Recorded { planned, facts: Vec::new(), course });
                });
                self.record().await?;
                Ok(Ok(()))
            }
        }
    }

    /// Records what the job's course depends on, as soon as the store can be told.
    async fn record(&mut self) -> Result<(), Left> {
        loop {
            match self.context.record().await {
                Ok(true) => {
                    self.undecided = None;
                    return Ok(());
                }
                // What was done last here may have come after others had decided otherwise.
                Ok(false) => return Err(Left { late: self.undecided.take() }),
                Err(error) => {
                    let job = &self.context.job;
                    tracing::debug!(%job, %error, "the progress of a job could not be recorded; \
                                                   it will be tried again");
                }
            }
            self.pause(RECORD_EVERY).await?;
        }
    }

    /// The step that was done here, perhaps, if the job was lost in it.
    fn late(&mut self) -> Option<Late> {
        match self.context.is_held() {
            true => None,
            false => self.undecided.take(),
        }
    }

    async fn pause(&self, time: Duration) -> Result<(), Left> {
        tokio::select! {
            biased;
            () = self.leave.cancelled() => Err(Left { late: None }),
            () = self.context.tools.clock.sleep(time) => Ok(()),
        }
    }

    /// Carries out what has an effect, or asks for one. It runs in a task of its own, so that a
    /// panic is a failure of the job.
    async fn effect<T: Send + 'static>(
        &self,
        effect: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        let effect = AbortOnDropHandle::new(tokio::spawn(effect));
        let outcome = tokio::select! {
            biased;
            outcome = effect => outcome,
            () = self.context.keep_recording() => unreachable!("it never ends by itself"),
        };
        let outcome = outcome.unwrap_or_else(|panic| Err(bug(&panic)));
        if outcome.is_ok() && self.context.is_waiting() {
            self.context.edit(|progress| progress.trouble = None);
        }
        outcome
    }

    /// Says what keeps the job from going on, and waits a while.
    async fn wait_for(&mut self, trouble: Failure) -> Result<(), Left> {
        let job = &self.context.job;
        if !self.context.is_waiting() {
            tracing::warn!(%job, why = trouble.why, "a job cannot go on; it will be tried again");
        }
        self.context.edit(|progress| {
            let line = format!("{}; it will be tried again", trouble.why);
            if self.troubled.as_ref() != Some(&trouble) {
                push_line(progress, line.clone());
            }
            (progress.status, progress.trouble) = (line, Some(trouble.clone()));
        });
        self.troubled = Some(trouble);
        self.record().await?;
        self.pause(RETRY_EVERY).await
    }

    /// Records how the job has ended: what it says when it is done, or why it is not.
    async fn end(&mut self, outcome: Result<String, Cause>) -> Result<String, Left> {
        let ended_at = self.context.tools.clock.wall().as_secs();
        let (state, status, failure) = match outcome {
            Ok(result) => (JobState::Succeeded, result, None),
            Err(Cause::Cancelled) => (JobState::Cancelled, "cancelled".to_owned(), None),
            Err(Cause::WorkerLost) => {
                (JobState::Failed, "its worker stopped before it was done".to_owned(), None)
            }
            Err(Cause::Failed(failure)) => (JobState::Failed, failure.why.clone(), Some(failure)),
        };
        self.context.edit(|progress| {
            push_line(progress, status.clone());
            if state == JobState::Succeeded {
                progress.current = progress.total;
            }
            progress.failure = failure;
            *progress = progress.clone().ended(state, status.clone(), ended_at);
        });
        self.record().await?;
        Ok(status)
    }
}

/// A job on its way through its steps.
struct Walk<'a> {
    runner: Runner<'a>,
    steps: Arc<dyn Steps>,
    after_loss: Option<AfterLoss>,
    known: Known,
    /// Result of the step that the job stands at.
    fact: Option<String>,
}

impl Walk<'_> {
    async fn finish(mut self) -> Result<String, Left> {
        loop {
            let recorded = self.recorded();
            let context = self.runner.context;
            let situation = Situation {
                course: &recorded.course,
                steps: recorded.planned.len() as u32,
                point_of_no_return: self.point_of_no_return(&recorded),
                known: &self.known,
                cancel_requested: context.is_cancel_requested(),
                after_loss: self.after_loss,
                may_act: context.is_held()
                    && context.is_ours()
                    && !self.runner.leave.is_cancelled(),
            };
            let step = |at: u32| recorded.planned[at as usize].clone();
            match next(&situation) {
                Next::Look(at) => self.look(step(at)).await?,
                Next::Do(at) => {
                    let is_past = self.point_of_no_return(&recorded).is_some_and(|it| at >= it);
                    self.run(step(at), is_past).await;
                }
                Next::Wait(trouble) => {
                    self.runner.wait_for(trouble).await?;
                    self.known = Known::Begun;
                }
                Next::Undo(at) => self.undo(at, step(at)).await?,
                Next::Record(course) => self.advance(course).await?,
                Next::Leave => return Err(Left { late: self.runner.late() }),
                Next::End(None) => {
                    let result = self.steps.result(context, &recorded.facts);
                    return self.runner.end(Ok(result)).await;
                }
                Next::End(Some(cause)) => return self.runner.end(Err(cause)).await,
            }
        }
    }

    fn point_of_no_return(&self, recorded: &Recorded) -> Option<u32> {
        let found = recorded.planned.iter().position(|step| self.steps.is_final(step));
        found.map(|at| at as u32)
    }

    fn recorded(&self) -> Recorded {
        self.runner.context.progress().steps.expect("no job is walked before its steps are planned")
    }

    async fn look(&mut self, step: String) -> Result<(), Left> {
        let (steps, context) = (self.steps.clone(), self.runner.context.clone());
        let found = self.runner.effect(async move { steps.look(&context, &step).await }).await;
        match found {
            Ok(Some(fact)) => (self.fact, self.known) = (Some(fact), Known::Done),
            Ok(None) => {
                let failed = match std::mem::replace(&mut self.known, Known::Begun) {
                    Known::Failed(failure) => Some(failure),
                    _ => None,
                };
                self.known = Known::NotDone(failed);
            }
            Err(trouble) => self.runner.wait_for(trouble).await?,
        }
        Ok(())
    }

    /// Does the step, which can be taken back unless it `is_past` the point of no return.
    async fn run(&mut self, step: String, is_past: bool) {
        let (steps, context) = (self.steps.clone(), self.runner.context.clone());
        if self.runner.troubled.is_none() {
            context.say(&steps.doing(&step));
        }
        let late = Late { steps: steps.clone(), context: context.clone(), step: step.clone() };
        self.runner.undecided = Some(late);
        let done = self.runner.effect(async move { steps.run(&context, &step).await }).await;
        match done {
            Ok(fact) => (self.fact, self.known) = (Some(fact), Known::Done),
            Err(failure) => {
                let context = self.runner.context;
                // A step that was cancelled has not failed.
                let is_cancelled = context.is_cancel_requested();
                if is_cancelled {
                    context.log(failure.why.clone());
                }
                self.known = match failure.kind {
                    _ if is_cancelled && !is_past => Known::Begun,
                    RefusalKind::Unavailable => Known::Failed(failure),
                    _ => Known::NotDone(Some(failure)),
                };
            }
        }
    }

    async fn undo(&mut self, at: u32, step: String) -> Result<(), Left> {
        let (steps, context) = (self.steps.clone(), self.runner.context.clone());
        if self.runner.troubled.is_none() {
            context.say(&format!("taking back: {}", steps.doing(&step)));
        }
        match self.runner.effect(async move { steps.undo(&context, &step).await }).await {
            Err(trouble) => self.runner.wait_for(trouble).await,
            Ok(()) => {
                self.runner.troubled = None;
                self.runner.context.edit(|progress| {
                    if let Some(Recorded { course: Course::Back { left, .. }, .. }) =
                        &mut progress.steps
                    {
                        *left = at;
                    }
                });
                self.runner.record().await
            }
        }
    }

    async fn advance(&mut self, course: Course) -> Result<(), Left> {
        let (fact, counts_itself) = (self.fact.take(), self.steps.stages().is_some());
        self.runner.context.edit(|progress| {
            match &course {
                Course::Forward { done } if !counts_itself => progress.current = *done,
                Course::Forward { .. } => {}
                Course::Back { cause: Cause::Failed(failure), .. } => {
                    push_line(progress, failure.why.clone());
                }
                Course::Back { .. } => {}
            }
            if let Some(steps) = &mut progress.steps {
                if matches!(course, Course::Forward { .. }) {
                    steps.facts.extend(fact);
                }
                steps.course = course;
            }
        });
        (self.known, self.runner.troubled) = (Known::NotBegun, None);
        self.runner.record().await
    }
}

/// A step that a worker has done, perhaps, after it had lost its job: it had stood still, and
/// others may have taken the job back meanwhile, or have brought it to its end.
pub(crate) struct Late {
    steps: Arc<dyn Steps>,
    context: Arc<Context>,
    step: String,
}

impl Late {
    /// Waits until it is decided what becomes of the job, and undoes the step if it is taken back.
    pub async fn set_right(self) {
        let Some(is_done) = self.end_of_job().await else { return };
        while let Err(trouble) = self.act(is_done).await {
            let job = &self.context.job;
            tracing::warn!(%job, why = trouble.why, "what came too late of a step could not be set \
                                                     right; it will be tried again");
            self.context.tools.clock.sleep(RETRY_EVERY).await;
        }
    }

    /// Whether the job was done in the end; `None` if nobody can tell.
    async fn end_of_job(&self) -> Option<bool> {
        let store = &self.context.tools.store;
        let mut changed = store.changed();
        loop {
            changed.borrow_and_update();
            match store.view().jobs.get(&self.context.job)?.progress.state {
                JobState::Succeeded => return Some(true),
                JobState::Failed | JobState::Cancelled => return Some(false),
                JobState::Pending | JobState::Running => {}
            }
            changed.changed().await.ok()?;
        }
    }

    async fn act(&self, is_done: bool) -> Result<(), Failure> {
        match is_done {
            true => self.steps.make_good(&self.context, &self.step).await,
            false => self.steps.undo(&self.context, &self.step).await,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use async_trait::async_trait;
    use pvc_embedded::EmbeddedTree;
    use pvc_model::cluster::Cluster;
    use pvc_model::job::{JobProgress, JobSpec, JobWork};
    use pvc_store::{Change, Changes, Store};
    use pvc_testkit::{MemoryStorage, ScriptedHypervisor, SeededRandom, TokioClock};

    use super::*;
    use crate::context::Tools;

    /// Calls, in their order.
    type Calls = Arc<Mutex<Vec<String>>>;

    /// Two steps. The second takes for ever, and looks whether it is cancelled.
    struct Long {
        calls: Calls,
        after_loss: AfterLoss,
        /// Number of attempts to undo the second that fail.
        failing: usize,
    }

    impl Long {
        fn note(&self, what: &str, step: &str) {
            self.calls.lock().expect("nothing panics").push(format!("{what} {step}"));
        }
    }

    #[async_trait]
    impl Steps for Long {
        fn after_loss(&self) -> AfterLoss {
            self.after_loss
        }
        async fn plan(&self, _: &Context) -> Result<Vec<String>, Failure> {
            Ok(vec!["short".to_owned(), "long".to_owned()])
        }
        fn doing(&self, step: &str) -> String {
            step.to_owned()
        }
        async fn look(&self, _: &Context, step: &str) -> Result<Option<String>, Failure> {
            self.note("look", step);
            Ok(None)
        }
        async fn run(&self, context: &Context, step: &str) -> Result<String, Failure> {
            self.note("run", step);
            if step == "long" {
                context.cancelled.cancelled().await;
                let why = "it was interrupted".to_owned();
                return Err(Failure { kind: RefusalKind::Unavailable, why, hint: None });
            }
            Ok(String::new())
        }
        async fn undo(&self, _: &Context, step: &str) -> Result<(), Failure> {
            self.note("undo", step);
            let attempts = self.calls.lock().expect("nothing panics");
            let attempts = attempts.iter().filter(|call| *call == "undo long").count();
            if step == "long" && attempts <= self.failing {
                let why = "it is in use".to_owned();
                return Err(Failure { kind: RefusalKind::Unavailable, why, hint: None });
            }
            Ok(())
        }
        fn result(&self, _: &Context, _: &[String]) -> String {
            "done".to_owned()
        }
    }

    pub(crate) async fn write(store: &Store, change: Change) {
        let decide = |_: &Cluster| {
            let mut changes = Changes::new();
            changes.push(change.clone());
            Ok::<_, Infallible>((changes, ()))
        };
        store.change(decide).await.expect("nobody else writes");
    }

    /// A job as it is recorded, its store, and what performs it.
    pub(crate) async fn job(progress: JobProgress) -> (Store, Arc<Context>, Arc<Job>, JobClaim) {
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let tree = EmbeddedTree::in_memory().connect();
        let store = Store::open(tree, clock.clone(), random).await.expect("it can be read");
        store.initialize(false).await.expect("an empty tree");
        let id = JobId::from_bits(1);
        let why = NotUnderstood::UnknownKind { name: "test.long".into() };
        let spec = JobSpec {
            id: id.clone(),
            work: JobWork::Other { name: "test.long".into(), vm: None, args: Vec::new(), why },
            node: "hv1".into(),
            run_on: "hv1".into(),
            submitter: String::new(),
            submitted_at: 1,
        };
        write(&store, Change::SubmitJob(spec)).await;
        write(&store, Change::JobProgress(id.clone(), progress)).await;
        let claim = store.claim_job(&id).await.expect("reachable").expect("nobody has it");
        let job = store.view().jobs[&id].clone();
        let tools = Tools {
            node: "hv1".into(),
            store: store.clone(),
            hypervisor: Arc::new(ScriptedHypervisor::new()),
            storage: Arc::new(MemoryStorage::new()),
            clock,
            random: Arc::new(SeededRandom::new(2)),
            benchmarks: None,
            scripts: None,
            disks: Arc::default(),
            left_over: Arc::default(),
        };
        (
            store,
            Arc::new(Context::new(tools, &job, claim.id(), CancellationToken::new())),
            job,
            claim,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_step_is_cancelled_in_its_middle_and_all_of_them_are_undone() {
        let (store, context, job, claim) = job(JobProgress::pending()).await;
        let calls = Calls::default();
        let after_loss = AfterLoss::Continue;
        let steps: Arc<dyn Steps> = Arc::new(Long { calls: calls.clone(), after_loss, failing: 0 });
        let cancelling = async {
            let begun = || calls.lock().expect("nothing panics").len() == 2;
            pvc_testkit::eventually("it is in the long step", Duration::from_secs(60), begun).await;
            context.cancelled.cancel();
        };
        let performing = perform(context.clone(), job, Ok(steps), claim, CancellationToken::new());
        tokio::join!(performing, cancelling);
        let progress = store.view().jobs[&context.job].progress.clone();
        assert_eq!((progress.state, progress.failure), (JobState::Cancelled, None));
        assert!(progress.log.contains(&"it was interrupted".to_owned()), "{:?}", progress.log);
        assert_eq!(
            *calls.lock().expect("nothing panics"),
            ["run short", "run long", "look long", "undo long", "undo short"]
        );
    }

    /// A job whose worker was lost in its second step.
    fn begun() -> JobProgress {
        let planned = ["short", "long"].map(str::to_owned).to_vec();
        let (facts, course) = (vec![String::new()], Course::Forward { done: 1 });
        JobProgress {
            state: JobState::Running,
            worker: Some("hv2".into()),
            steps: Some(Recorded { planned, facts, course }),
            ..JobProgress::pending()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_of_a_kind_that_is_not_continued_is_taken_back_after_a_loss() {
        let (store, context, job, claim) = job(begun()).await;
        let calls = Calls::default();
        let after_loss = AfterLoss::TakeBack;
        let steps: Arc<dyn Steps> = Arc::new(Long { calls: calls.clone(), after_loss, failing: 0 });
        perform(context.clone(), job, Ok(steps), claim, CancellationToken::new()).await;
        let progress = store.view().jobs[&context.job].progress.clone();
        assert_eq!(progress.state, JobState::Failed);
        assert_eq!(progress.status, "its worker stopped before it was done");
        assert_eq!(
            *calls.lock().expect("nothing panics"),
            ["look long", "undo long", "undo short"]
        );
    }

    /// After half an hour the log was 200 times the same line.
    #[tokio::test(start_paused = true)]
    async fn a_job_that_waits_on_its_way_back_says_so_once() {
        let (store, context, job, claim) = job(begun()).await;
        let (calls, after_loss) = (Calls::default(), AfterLoss::TakeBack);
        let steps: Arc<dyn Steps> = Arc::new(Long { calls, after_loss, failing: 300 });
        perform(context.clone(), job, Ok(steps), claim, CancellationToken::new()).await;
        assert_eq!(
            store.view().jobs[&context.job].progress.log,
            [
                "the worker of node hv1 goes on with it",
                "taking back: long",
                "it is in use; it will be tried again",
                "taking back: short",
                "its worker stopped before it was done",
            ]
        );
    }
}
