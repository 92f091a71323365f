//! The steps of jobs: at which of them workers are, and where one is to stand still.
//!
//! A worker records a step as done before it begins the next one, and nothing else tells its steps
//! apart from outside: so that record is what is looked for in its writes.

use std::collections::BTreeMap;

use pvc_ports::Op;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::process::{Gate, Pid};
use crate::stand_still::StandStill;

/// Moment of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    /// The step before it is recorded as done, or the plan of the job is; the worker is not told
    /// yet.
    Before,
    /// Number of changes of the step that are in effect; the last of them is not reported to the
    /// worker yet.
    Inside(u32),
    /// All of the step is in effect, and the worker is about to record it.
    After,
}

/// The steps of the jobs that workers are at. Each does one job at a time, where this matters.
#[derive(Default)]
pub(crate) struct JobSteps {
    /// Number of the steps that each worker has recorded as done, of a job on its way forward.
    recorded: BTreeMap<Pid, u32>,
    /// Number of the changes that each worker has made in the step behind those.
    changes: BTreeMap<Pid, u32>,
    /// Step, counted from 1, and its moment at which the next worker is to stand still.
    still: StandStill<(u32, Moment)>,
}

impl JobSteps {
    pub fn stop_at(&mut self, step: u32, moment: Moment) {
        self.still.stop_at((step, moment));
    }

    /// Whether a worker has come to where it was to stand still, and was not told to go on.
    pub fn stands_still(&self) -> bool {
        self.still.stands_still()
    }

    pub fn go_on(&mut self) {
        self.still.go_on();
    }

    /// No worker stands still any more, or will.
    pub fn heal(&mut self) {
        self.still.heal();
    }

    /// The end of the wait, if the worker is to stand still here.
    fn reach(&mut self, step: u32, moment: Moment) -> Option<oneshot::Receiver<()>> {
        self.still.reach((step, moment))
    }

    fn before_write(&mut self, pid: Pid, write: Write) -> Option<oneshot::Receiver<()>> {
        let Write::Progress(Some(done)) = write else { return None };
        let is_new = self.recorded.get(&pid).is_some_and(|recorded| done > *recorded);
        if is_new { self.reach(done, Moment::After) } else { None }
    }

    fn after_write(&mut self, pid: Pid, write: Write) -> Option<oneshot::Receiver<()>> {
        match write {
            Write::Progress(Some(done)) => {
                if self.recorded.insert(pid, done) == Some(done) {
                    return None;
                }
                self.changes.remove(&pid);
                self.reach(done + 1, Moment::Before)
            }
            Write::Progress(None) => {
                self.recorded.remove(&pid);
                None
            }
            Write::Effect => self.after_effect(pid),
            Write::Other => None,
        }
    }

    fn after_effect(&mut self, pid: Pid) -> Option<oneshot::Receiver<()>> {
        let recorded = *self.recorded.get(&pid)?;
        let changes = self.changes.entry(pid).or_default();
        *changes += 1;
        let moment = Moment::Inside(*changes);
        self.reach(recorded + 1, moment)
    }
}

/// Meaning of a write for the steps of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write {
    /// The progress of a job, with the number of steps that are done if it is on its way forward.
    Progress(Option<u32>),
    /// Records of VMs, OSDs or benchmarks: what a step of a job may be about.
    Effect,
    Other,
}

/// The records that a step of a job may be about.
const ABOUT: [&str; 3] = ["/domains/", "/ceph/osds/", "/pvcrs/benchmarks/"];

impl Write {
    pub fn of(ops: &[Op]) -> Write {
        let mut meaning = Write::Other;
        for op in ops {
            match op {
                Op::Set { path, data, .. } | Op::Create { path, data, .. }
                    if path.starts_with("/tasks/") && path.ends_with("/progress") =>
                {
                    return Write::Progress(steps_done(data));
                }
                Op::Set { path, .. } | Op::Create { path, .. } | Op::Delete { path, .. }
                    if ABOUT.iter().any(|about| path.starts_with(about)) =>
                {
                    meaning = Write::Effect;
                }
                _ => {}
            }
        }
        meaning
    }
}

/// The number of steps that are done by this progress of a job; `None` if none are planned, or they
/// are taken back.
fn steps_done(progress: &[u8]) -> Option<u32> {
    let progress: serde_json::Value = serde_json::from_slice(progress).ok()?;
    u32::try_from(progress["steps"]["course"]["forward"]["done"].as_u64()?).ok()
}

impl Gate {
    /// Stands still before a write, if a job is to do so there.
    pub async fn before_write(&self, write: Write) {
        let until = self.world.with(|state| state.job_steps.before_write(self.pid, write));
        self.stand_still(until).await;
    }

    /// Stands still between a write and its answer, if a job is to do so there. Returns whether it
    /// did.
    pub async fn after_write(&self, write: Write) -> bool {
        let until = self.world.with(|state| state.job_steps.after_write(self.pid, write));
        self.stand_still(until).await
    }

    /// Stands still between what a step does to a guest or a volume and the answer, if a job is to
    /// do so there.
    pub async fn after_effect(&self) {
        let until = self.world.with(|state| state.job_steps.after_effect(self.pid));
        self.stand_still(until).await;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn set(path: &str, data: &str) -> Op {
        let data = Bytes::copy_from_slice(data.as_bytes());
        Op::Set { path: path.to_owned(), data, version: None }
    }

    fn progress(course: &str) -> Write {
        let data = format!(r#"{{"state":"running","steps":{{"planned":[],"course":{course}}}}}"#);
        Write::of(&[set("/tasks/00000001/progress", &data)])
    }

    #[test]
    fn a_write_says_how_many_steps_are_done() {
        assert_eq!(progress(r#"{"forward":{"done":2}}"#), Write::Progress(Some(2)));
        assert_eq!(progress(r#"{"back":{"left":2,"cause":"cancelled"}}"#), Write::Progress(None));
        assert_eq!(Write::of(&[set("/domains/x/state", "stop")]), Write::Effect);
        assert_eq!(Write::of(&[set("/ceph/osds/1/node", "hv1")]), Write::Effect);
        assert_eq!(Write::of(&[set("/pvcrs/benchmarks/1", "{}")]), Write::Effect);
        assert_eq!(Write::of(&[set("/nodes/hv1/daemonstate", "run")]), Write::Other);
    }

    /// The moments at which a worker stands still that is asked to do so there, of its way through
    /// two steps.
    fn reached(step: u32, moment: Moment) -> Vec<&'static str> {
        let mut steps = JobSteps::default();
        steps.stop_at(step, moment);
        let done = |done| Write::Progress(Some(done));
        let mut at = Vec::new();
        let mut note = |until: Option<_>, what| at.extend(until.is_some().then_some(what));
        note(steps.before_write(7, done(0)), "before the plan");
        note(steps.after_write(7, done(0)), "planned");
        note(steps.after_effect(7), "first effect");
        note(steps.after_effect(7), "second effect");
        note(steps.before_write(7, done(1)), "first step done");
        note(steps.after_write(7, done(1)), "first step recorded");
        note(steps.after_write(7, done(1)), "said what it does");
        note(steps.after_write(7, Write::Effect), "records written");
        note(steps.before_write(7, done(2)), "second step done");
        note(steps.after_write(7, done(2)), "second step recorded");
        at
    }

    #[test]
    fn a_worker_stands_still_once_at_the_moment_that_was_asked_for() {
        for (step, moment, wanted) in [
            (1, Moment::Before, "planned"),
            (1, Moment::Inside(1), "first effect"),
            (1, Moment::Inside(2), "second effect"),
            (1, Moment::After, "first step done"),
            (2, Moment::Before, "first step recorded"),
            (2, Moment::Inside(1), "records written"),
            (2, Moment::After, "second step done"),
        ] {
            assert_eq!(reached(step, moment), [wanted], "{moment:?} step {step}");
        }
        assert_eq!(reached(3, Moment::Inside(1)), [""; 0]);
        assert_eq!(reached(2, Moment::Inside(2)), [""; 0]);
    }
}
