//! Course of a job through its steps, and what it does next: decided on values alone, so that every
//! moment at which its worker may die can be tried.
//!
//! ```text
//!            step 0        step 1        step 2
//!  Forward ─────────────▶────────────▶────────────▶ succeeded
//!             │             │             │  a step fails, or somebody cancels
//!  undone ◀─────────────◀─────────────◀───┘ Back
//! ```
//!
//! A step is recorded as done before the next one begins, so of a job that is found without a
//! worker one step at most is in doubt: the one it stands at. That one is looked at first. Of the
//! way back nothing is in doubt, because undoing a step that is not in effect does nothing.
//!
//! A job may have a point of no return: a step that cannot be taken back once it was begun, such as
//! one that destroys something. From there on the job only goes forward. A step that fails behind
//! it is tried again, for as long as nobody cancels the job; then it ends where it is.

use std::fmt;

use crate::refusal::Kind;

/// Reason why a step, or the job, did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub kind: Kind,
    /// The reason with its causes, in one line.
    pub why: String,
    /// Advice about what to do, if more can be said.
    pub hint: Option<String>,
}

/// Reason why a job is taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    Cancelled,
    /// The worker was lost, and jobs of this kind are not continued.
    WorkerLost,
    Failed(Failure),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Cancelled => f.write_str("it was cancelled"),
            Cause::WorkerLost => f.write_str("its worker stopped before it was done"),
            Cause::Failed(failure) => f.write_str(&failure.why),
        }
    }
}

/// Treatment of a job whose worker was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterLoss {
    Continue,
    TakeBack,
}

/// Direction of a job through its steps, and how far it is: the part of it that is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Course {
    /// The first `done` steps are in effect. The next one may have been begun, no other was.
    Forward { done: u32 },
    /// Of the first `left` steps each may be in effect, no other is. The last of them is undone
    /// next.
    Back { left: u32, cause: Cause },
}

/// Knowledge of the step at which a job stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    NotBegun,
    /// Another worker may have begun it, or this one was stopped in it.
    Begun,
    /// The step was begun here and failed; whether it has had an effect is not known.
    Failed(Failure),
    Done,
    /// The step is not in effect as a whole; parts of it may be, if it was begun. With why it
    /// failed, if it did.
    NotDone(Option<Failure>),
}

/// Basis of the decision about a job's next action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Situation<'a> {
    pub course: &'a Course,
    /// Number of all its steps.
    pub steps: u32,
    /// The first step that cannot be taken back once it was begun, if there is one.
    pub point_of_no_return: Option<u32>,
    pub known: &'a Known,
    pub cancel_requested: bool,
    /// Whether another worker had it before; then what its kind says of that.
    pub after_loss: Option<AfterLoss>,
    /// Whether this worker still holds the job, and is not asked to stop.
    pub may_act: bool,
}

/// Next action for a job. Steps are counted from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Find out whether the step is in effect.
    Look(u32),
    /// Wait a while for what keeps the job from going on, then find out how far its step is.
    Wait(Failure),
    Do(u32),
    Undo(u32),
    /// Record this before anything else happens.
    Record(Course),
    /// Leave it, as it is recorded, to the next worker.
    Leave,
    /// All steps are in effect; or none of them, and why. One that is cancelled where it cannot go
    /// on and cannot be taken back ends as the failure of its step.
    End(Option<Cause>),
}

/// Decides what to do next with a job.
pub fn next(situation: &Situation<'_>) -> Next {
    let act = |next| if situation.may_act { next } else { Next::Leave };
    let stop = || match situation {
        Situation { cancel_requested: true, .. } => Some(Cause::Cancelled),
        Situation { after_loss: Some(AfterLoss::TakeBack), .. } => Some(Cause::WorkerLost),
        _ => None,
    };
    let back = |left, cause| Next::Record(Course::Back { left, cause });
    let is_past = |step: u32| situation.point_of_no_return.is_some_and(|point| step >= point);
    // One that says so itself has left nothing behind, not even a part of it.
    let is_begun = |failure: &Failure| failure.kind == Kind::Unavailable;
    match (situation.course, situation.known) {
        (Course::Forward { done }, _) if *done >= situation.steps => Next::End(None),
        (Course::Forward { done }, Known::Done) => Next::Record(Course::Forward { done: done + 1 }),
        (Course::Forward { done }, Known::Begun | Known::Failed(_)) => act(Next::Look(*done)),
        (Course::Forward { done }, Known::NotDone(Some(failure)))
            if is_past(*done) && (is_begun(failure) || *done > 0 && is_past(done - 1)) =>
        {
            match situation.cancel_requested {
                true => Next::End(Some(Cause::Failed(failure.clone()))),
                false => act(Next::Wait(failure.clone())),
            }
        }
        (Course::Forward { done }, Known::NotDone(Some(failure))) => {
            // One that was cancelled has not failed.
            let failed = || Cause::Failed(failure.clone());
            let is_cancelled = situation.cancel_requested;
            back(done + 1, if is_cancelled { Cause::Cancelled } else { failed() })
        }
        (Course::Forward { done }, Known::NotDone(None)) => match stop() {
            Some(cause) if !is_past(*done) => back(done + 1, cause),
            _ => act(Next::Do(*done)),
        },
        (Course::Forward { done }, Known::NotBegun) => match stop() {
            Some(cause) if *done == 0 || !is_past(done - 1) => back(*done, cause),
            _ => act(Next::Do(*done)),
        },
        (Course::Back { left: 0, cause }, _) => Next::End(Some(cause.clone())),
        (Course::Back { left, .. }, _) => act(Next::Undo(left - 1)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn failure() -> Failure {
        Failure { kind: Kind::Unavailable, why: "it is away".into(), hint: None }
    }

    fn forward(done: u32) -> Course {
        Course::Forward { done }
    }

    fn back(left: u32, cause: Cause) -> Course {
        Course::Back { left, cause }
    }

    fn decided(course: &Course, known: &Known, cancel: bool, loss: Option<AfterLoss>) -> Next {
        decided_before(None, course, known, cancel, loss)
    }

    fn decided_before(
        point_of_no_return: Option<u32>,
        course: &Course,
        known: &Known,
        cancel: bool,
        loss: Option<AfterLoss>,
    ) -> Next {
        next(&Situation {
            course,
            steps: 3,
            point_of_no_return,
            known,
            cancel_requested: cancel,
            after_loss: loss,
            may_act: true,
        })
    }

    #[test]
    fn what_a_job_does_next() {
        let failed = || Cause::Failed(failure());
        let (carry_on, take_back) = (Some(AfterLoss::Continue), Some(AfterLoss::TakeBack));
        for (course, known, cancel, loss, wanted) in [
            (forward(0), Known::NotBegun, false, None, Next::Do(0)),
            (forward(1), Known::Done, false, None, Next::Record(forward(2))),
            (forward(3), Known::NotBegun, false, None, Next::End(None)),
            // A step in doubt is looked at, whoever began it.
            (forward(1), Known::Begun, false, carry_on, Next::Look(1)),
            (forward(1), Known::Begun, true, take_back, Next::Look(1)),
            (forward(1), Known::Failed(failure()), false, None, Next::Look(1)),
            // What failed and is in effect all the same has not failed.
            (forward(2), Known::Done, true, None, Next::Record(forward(3))),
            (forward(3), Known::NotBegun, true, take_back, Next::End(None)),
            // A worker was lost.
            (forward(1), Known::NotDone(None), false, carry_on, Next::Do(1)),
            (
                forward(1),
                Known::NotDone(None),
                false,
                take_back,
                Next::Record(back(2, Cause::WorkerLost)),
            ),
            (
                forward(1),
                Known::NotBegun,
                false,
                take_back,
                Next::Record(back(1, Cause::WorkerLost)),
            ),
            // Somebody cancels: a step that may have been begun is undone with those before it.
            (forward(1), Known::NotBegun, true, None, Next::Record(back(1, Cause::Cancelled))),
            (forward(1), Known::NotDone(None), true, None, Next::Record(back(2, Cause::Cancelled))),
            (
                forward(1),
                Known::NotDone(Some(failure())),
                false,
                None,
                Next::Record(back(2, failed())),
            ),
            (back(2, failed()), Known::NotBegun, true, carry_on, Next::Undo(1)),
            (back(0, failed()), Known::NotBegun, false, None, Next::End(Some(failed()))),
        ] {
            assert_eq!(
                decided(&course, &known, cancel, loss),
                wanted,
                "{course:?}, {known:?}, cancel {cancel}, {loss:?}"
            );
        }
    }

    #[test]
    fn behind_a_point_of_no_return_a_job_only_goes_forward() {
        let refused = || Failure { kind: Kind::Conflict, ..failure() };
        let take_back = Some(AfterLoss::TakeBack);
        let cancelled = |left| Next::Record(back(left, Cause::Cancelled));
        for (course, known, cancel, loss, wanted) in [
            // Before it, and at it as long as it was not begun, there is a way back.
            (forward(0), Known::NotDone(None), true, None, cancelled(1)),
            (forward(1), Known::NotBegun, true, None, cancelled(1)),
            (
                forward(1),
                Known::NotBegun,
                false,
                take_back,
                Next::Record(back(1, Cause::WorkerLost)),
            ),
            (
                forward(1),
                Known::NotDone(Some(refused())),
                false,
                None,
                Next::Record(back(2, Cause::Failed(refused()))),
            ),
            // Once it was begun there is none.
            (forward(1), Known::NotDone(None), true, take_back, Next::Do(1)),
            (forward(1), Known::NotDone(Some(failure())), false, None, Next::Wait(failure())),
            (forward(2), Known::NotBegun, true, take_back, Next::Do(2)),
            (forward(2), Known::NotDone(None), true, None, Next::Do(2)),
            (forward(2), Known::NotDone(Some(refused())), false, None, Next::Wait(refused())),
            // It ends where it cannot go on, if somebody cancels it there.
            (
                forward(1),
                Known::NotDone(Some(failure())),
                true,
                None,
                Next::End(Some(Cause::Failed(failure()))),
            ),
            (
                forward(2),
                Known::NotDone(Some(refused())),
                true,
                None,
                Next::End(Some(Cause::Failed(refused()))),
            ),
        ] {
            assert_eq!(
                decided_before(Some(1), &course, &known, cancel, loss),
                wanted,
                "{course:?}, {known:?}, cancel {cancel}, {loss:?}"
            );
        }
    }

    #[test]
    fn a_job_is_taken_back_if_its_first_step_has_no_way_back_and_refuses() {
        let refused = || Failure { kind: Kind::Conflict, ..failure() };
        for (known, wanted) in [
            // One that refuses has left nothing behind, and there is no step before it.
            (Known::NotDone(Some(refused())), Next::Record(back(1, Cause::Failed(refused())))),
            (Known::NotDone(Some(failure())), Next::Wait(failure())),
        ] {
            let found = decided_before(Some(0), &forward(0), &known, false, None);
            assert_eq!(found, wanted, "{known:?}");
        }
    }

    #[test]
    fn a_job_that_is_taken_back_says_why() {
        for (cause, words) in [
            (Cause::Cancelled, "it was cancelled"),
            (Cause::WorkerLost, "its worker stopped before it was done"),
            (Cause::Failed(failure()), "it is away"),
        ] {
            assert_eq!(cause.to_string(), words);
        }
    }

    #[test]
    fn a_worker_that_does_not_hold_the_job_has_no_effect_any_more() {
        let left = back(2, Cause::Cancelled);
        for (course, known) in [
            (forward(1), Known::NotBegun),
            (forward(1), Known::Begun),
            (forward(1), Known::NotDone(None)),
            (left, Known::NotBegun),
        ] {
            let situation = Situation {
                course: &course,
                steps: 3,
                point_of_no_return: Some(1),
                known: &known,
                cancel_requested: false,
                after_loss: None,
                may_act: false,
            };
            assert_eq!(next(&situation), Next::Leave, "{course:?}, {known:?}");
        }
    }

    /// Effect that a step has left in the world.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Effect {
        Nothing,
        Part,
        Whole,
    }

    /// Event at one action of a job.
    #[derive(Debug, Clone, Copy)]
    enum Event {
        Works,
        /// The action fails before it has an effect, in the middle, or after it although it has
        /// one.
        Fails(Effect),
        /// The worker dies before it, in its middle, after its effect, or when that is recorded.
        Dies(Option<Effect>),
        Cancel,
        /// The worker is asked to stop.
        Stops,
    }

    fn event() -> impl Strategy<Value = Event> {
        let effect =
            || proptest::sample::select(vec![Effect::Nothing, Effect::Part, Effect::Whole]);
        prop_oneof![
            4 => Just(Event::Works),
            1 => effect().prop_map(Event::Fails),
            2 => proptest::option::of(effect()).prop_map(Event::Dies),
            1 => Just(Event::Cancel),
            1 => Just(Event::Stops),
        ]
    }

    /// A job with its steps' effects, and what one worker after the other knows of it.
    struct Played {
        effects: Vec<Effect>,
        point_of_no_return: Option<u32>,
        recorded: Course,
        known: Known,
        cancel: bool,
        after_loss: Option<AfterLoss>,
        policy: AfterLoss,
        may_act: bool,
    }

    impl Played {
        fn new(steps: usize, point_of_no_return: Option<u32>, policy: AfterLoss) -> Self {
            Played {
                effects: vec![Effect::Nothing; steps],
                point_of_no_return,
                recorded: forward(0),
                known: Known::NotBegun,
                cancel: false,
                after_loss: None,
                policy,
                may_act: true,
            }
        }

        fn next(&self) -> Next {
            next(&Situation {
                course: &self.recorded,
                steps: self.effects.len() as u32,
                point_of_no_return: self.point_of_no_return,
                known: &self.known,
                cancel_requested: self.cancel,
                after_loss: self.after_loss,
                may_act: self.may_act,
            })
        }

        /// The next worker takes over what is recorded.
        fn taken_over(&mut self) {
            (self.known, self.after_loss) = (Known::Begun, Some(self.policy));
            self.may_act = true;
        }

        /// Plays one action. What it ends as, if it ends.
        fn play(&mut self, event: Event) -> Option<Option<Cause>> {
            match event {
                Event::Cancel => self.cancel = true,
                Event::Stops => self.may_act = false,
                Event::Works | Event::Fails(_) | Event::Dies(_) => {}
            }
            match self.next() {
                Next::End(cause) => return Some(cause),
                Next::Leave => self.taken_over(),
                Next::Wait(_) => self.known = Known::Begun,
                Next::Record(course) => match event {
                    Event::Dies(None) => self.taken_over(),
                    Event::Dies(Some(_)) => {
                        self.recorded = course;
                        self.taken_over();
                    }
                    _ => (self.recorded, self.known) = (course, Known::NotBegun),
                },
                Next::Look(step) => match (event, self.effects[step as usize]) {
                    (Event::Dies(_), _) => self.taken_over(),
                    (Event::Fails(_), _) => {}
                    (_, Effect::Whole) => self.known = Known::Done,
                    _ => {
                        let failed = match &self.known {
                            Known::Failed(failure) => Some(failure.clone()),
                            _ => None,
                        };
                        self.known = Known::NotDone(failed);
                    }
                },
                Next::Do(step) => self.act(step, event, Effect::Whole),
                Next::Undo(step) => {
                    let is_past = self.point_of_no_return.is_some_and(|point| step >= point);
                    assert!(!is_past, "step {step} cannot be taken back");
                    self.act(step, event, Effect::Nothing);
                }
            }
            None
        }

        fn act(&mut self, step: u32, event: Event, aim: Effect) {
            let effect = &mut self.effects[step as usize];
            match event {
                Event::Works | Event::Cancel | Event::Stops => {
                    *effect = aim;
                    match aim {
                        Effect::Nothing => self.undone(step),
                        _ => self.known = Known::Done,
                    }
                }
                // An undoing that fails is tried again.
                Event::Fails(_) if aim == Effect::Nothing => *effect = Effect::Part,
                Event::Fails(left) => {
                    *effect = left;
                    self.known = Known::Failed(failure());
                }
                Event::Dies(None) => self.taken_over(),
                Event::Dies(Some(left)) => {
                    *effect = left;
                    self.taken_over();
                }
            }
        }

        fn undone(&mut self, step: u32) {
            if let Course::Back { left, .. } = &mut self.recorded {
                *left = step;
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_dies_and_fails_a_job_ends_done_or_undone(
            steps in 0..5_usize,
            point in proptest::option::of(0..5_u32),
            takes_back in any::<bool>(),
            events in vec(event(), 0..60),
        ) {
            let policy = if takes_back { AfterLoss::TakeBack } else { AfterLoss::Continue };
            let mut job = Played::new(steps, point, policy);
            // Once nothing fails any more it comes to its end: twice through all steps, with a look
            // and a record at each.
            let calm = std::iter::repeat_n(Event::Works, 8 * (steps + 2));
            let end = events.into_iter().chain(calm).find_map(|event| job.play(event));
            match (end, &job.recorded) {
                (Some(None), _) => {
                    prop_assert!(job.effects.iter().all(|left| *left == Effect::Whole));
                }
                // Cancelled where it could neither go on nor back.
                (Some(Some(_)), Course::Forward { done }) => {
                    prop_assert!(job.cancel && point.is_some_and(|point| *done >= point));
                }
                (Some(Some(_)), Course::Back { .. }) => {
                    prop_assert!(job.effects.iter().all(|left| *left == Effect::Nothing));
                }
                (None, course) => prop_assert!(false, "it never ends: {course:?}, {:?}", job.known),
            }
        }
    }
}
