//! Promises to operators, to be held against the records in the end (I10).
//!
//! An ask that was answered "done" is a promise until the next one about the same thing. Of two
//! that were under way at once nobody knows which one came last; and one that was never answered
//! may still be carried out at any time, for the process that took it may stand still. Then nothing
//! is promised.

use std::collections::{BTreeMap, BTreeSet};

use pvc_model::cluster::Cluster as View;
use pvc_model::vm::{MigrationMethod, VmState};

use crate::actions::{Ask, OnlyWay};
use crate::cluster::{Shape, vm_uuid};
use crate::operators::Answer;

/// Something about a VM that operators decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Aspect {
    Existence,
    Power,
    Name,
    Memory,
    Limit,
    Method,
}

impl Aspect {
    const ALL: [Aspect; 6] = [
        Aspect::Existence,
        Aspect::Power,
        Aspect::Name,
        Aspect::Memory,
        Aspect::Limit,
        Aspect::Method,
    ];
}

/// State that a VM is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Goal {
    IsThere,
    IsGone,
    Runs,
    IsOff,
    IsCalled(String),
    /// Memory of the VM, in MiB.
    Has(u64),
    /// Hosts; none: to any.
    IsLimitedTo(Vec<usize>),
    /// `None`: in whatever way does.
    MovesOnly(Option<MigrationMethod>),
}

impl Goal {
    pub fn is_power(&self) -> bool {
        self.aspect() == Aspect::Power
    }

    fn aspect(&self) -> Aspect {
        match self {
            Goal::IsThere | Goal::IsGone => Aspect::Existence,
            Goal::Runs | Goal::IsOff => Aspect::Power,
            Goal::IsCalled(_) => Aspect::Name,
            Goal::Has(_) => Aspect::Memory,
            Goal::IsLimitedTo(_) => Aspect::Limit,
            Goal::MovesOnly(_) => Aspect::Method,
        }
    }
}

/// Subject of a request, and what is promised once it is done.
struct Stake {
    vm: usize,
    aspects: Vec<Aspect>,
    goals: Vec<Goal>,
}

fn stake(ask: &Ask) -> Option<Stake> {
    let one = |vm: usize, goal: Goal| {
        let aspects = vec![goal.aspect()];
        Some(Stake { vm, aspects, goals: vec![goal] })
    };
    let all =
        |vm: usize, goals: Vec<Goal>| Some(Stake { vm, aspects: Aspect::ALL.to_vec(), goals });
    match ask {
        Ask::Start(vm) | Ask::Restart(vm) => one(*vm, Goal::Runs),
        Ask::Stop(vm) | Ask::Shutdown(vm) | Ask::Disable(vm) => one(*vm, Goal::IsOff),
        Ask::Rename { vm, to } => one(*vm, Goal::IsCalled(to.clone())),
        Ask::Modify { vm, memory_mib } => one(*vm, Goal::Has(*memory_mib)),
        Ask::Limit { vm, to } => one(*vm, Goal::IsLimitedTo(to.clone())),
        Ask::Method { vm, only } => one(*vm, Goal::MovesOnly(only.map(OnlyWay::method))),
        Ask::Undefine(vm) => all(*vm, vec![Goal::IsGone]),
        Ask::Define(vm) => all(*vm, vec![Goal::IsThere, Goal::IsOff]),
        _ => None,
    }
}

#[derive(Default)]
struct Promise {
    under_way: u32,
    /// Several were, since it was last quiet.
    is_mixed: bool,
    /// Whether a request was never answered.
    is_open: bool,
    goal: Option<Goal>,
    /// Goal before the request that is under way: it stays if that is refused.
    before: Option<Goal>,
}

#[derive(Default)]
pub(crate) struct Promises(BTreeMap<(usize, Aspect), Promise>);

impl Promises {
    /// Begins with these goals, without anybody having asked.
    pub fn begin_with(&mut self, vm: usize, goals: impl IntoIterator<Item = Goal>) {
        for goal in goals {
            let promise = self.0.entry((vm, goal.aspect())).or_default();
            promise.goal = Some(goal);
        }
    }

    pub fn asked(&mut self, ask: &Ask) {
        let Some(stake) = stake(ask) else { return };
        for aspect in stake.aspects {
            let promise = self.0.entry((stake.vm, aspect)).or_default();
            promise.is_mixed |= promise.under_way > 0;
            promise.under_way += 1;
            promise.before = promise.goal.take();
        }
    }

    pub fn answered(&mut self, ask: &Ask, answer: &Answer) {
        let Some(stake) = stake(ask) else { return };
        for aspect in stake.aspects {
            let promise = self.0.entry((stake.vm, aspect)).or_default();
            promise.under_way = promise.under_way.saturating_sub(1);
            promise.is_open |= is_open(answer);
            let before = promise.before.take();
            if !promise.is_mixed && !promise.is_open {
                promise.goal = match answer {
                    Some(Ok(())) => {
                        stake.goals.iter().find(|goal| goal.aspect() == aspect).cloned()
                    }
                    // It may have been stopped before it could not be undefined.
                    _ if aspect == Aspect::Power
                        && matches!(ask, Ask::Undefine(_) | Ask::Disable(_)) =>
                    {
                        None
                    }
                    _ => before,
                };
            }
            if promise.under_way == 0 {
                promise.is_mixed = false;
            }
        }
    }

    /// Whether nothing was ever left open about the VM's being there, and it was not to be gone.
    pub fn is_there(&self, vm: usize) -> bool {
        let promise = self.0.get(&(vm, Aspect::Existence));
        promise.is_some_and(|promise| promise.goal == Some(Goal::IsThere))
    }

    /// The first promise of those that count that the records do not keep, with what they say.
    pub fn broken(
        &self,
        view: &View,
        shape: &Shape,
        counts: impl Fn(&Goal) -> bool,
    ) -> Option<(usize, Goal, String)> {
        self.0.iter().find_map(|((vm, _), promise)| {
            let goal = promise.goal.clone().filter(&counts)?;
            let record = view.vms.get(&vm_uuid(*vm));
            let (is_kept, so) = match (&goal, record) {
                (Goal::IsGone, record) => (record.is_none(), "there".to_owned()),
                (_, None) => (false, "gone".to_owned()),
                (Goal::IsThere, Some(_)) => (true, String::new()),
                (Goal::Runs, Some(record)) => {
                    (record.state == VmState::Start, record.state.to_string())
                }
                (Goal::IsOff, Some(record)) => {
                    (record.state != VmState::Start, record.state.to_string())
                }
                (Goal::IsCalled(name), Some(record)) => (record.name == *name, record.name.clone()),
                (Goal::Has(mib), Some(record)) => {
                    (record.memory_mib() == *mib, format!("one with {} MiB", record.memory_mib()))
                }
                (Goal::IsLimitedTo(hosts), Some(record)) => {
                    let names =
                        hosts.iter().map(|host| shape.host_name(*host)).collect::<BTreeSet<_>>();
                    let so =
                        record.node_limit.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
                    (names == so, format!("limited to {so:?}"))
                }
                (Goal::MovesOnly(only), Some(record)) => (
                    record.migration_method == *only,
                    format!("moved by {:?}", record.migration_method),
                ),
            };
            (!is_kept).then_some((*vm, goal, so))
        })
    }
}

/// Whether what was asked may still be carried out at any time.
fn is_open(answer: &Answer) -> bool {
    match answer {
        None => true,
        Some(Ok(())) => false,
        Some(Err(refusal)) => !refusal.is_final,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: Answer = Some(Ok(()));

    fn goal(promises: &Promises, aspect: Aspect) -> Option<Goal> {
        promises.0.get(&(0, aspect)).and_then(|promise| promise.goal.clone())
    }

    fn power_after(asks: &[(&str, Ask, Answer)]) -> Option<Goal> {
        let mut promises = Promises::default();
        for (what, ask, answer) in asks {
            match *what {
                "asked" => promises.asked(ask),
                _ => promises.answered(ask, answer),
            }
        }
        goal(&promises, Aspect::Power)
    }

    #[test]
    fn what_is_done_is_promised_until_the_next_ask() {
        let (start, stop) = (Ask::Start(0), Ask::Stop(0));
        let asked = |ask: &Ask| ("asked", ask.clone(), DONE);
        let done = |ask: &Ask| ("done", ask.clone(), DONE);
        assert_eq!(power_after(&[asked(&start), done(&start)]), Some(Goal::Runs));
        assert_eq!(power_after(&[asked(&start), done(&start), asked(&stop)]), None);
        assert_eq!(
            power_after(&[asked(&start), done(&start), asked(&stop), done(&stop)]),
            Some(Goal::IsOff)
        );
    }

    #[test]
    fn of_two_at_once_and_after_one_that_was_never_answered_nothing_is_promised() {
        let (start, stop) = (Ask::Start(0), Ask::Stop(0));
        let asked = |ask: &Ask| ("asked", ask.clone(), DONE);
        let done = |ask: &Ask| ("done", ask.clone(), DONE);
        let lost = |ask: &Ask| ("lost", ask.clone(), None);
        assert_eq!(power_after(&[asked(&start), asked(&stop), done(&start), done(&stop)]), None);
        assert_eq!(power_after(&[asked(&stop), lost(&stop), asked(&start), done(&start)]), None);
        let quiet =
            [asked(&start), asked(&stop), done(&start), done(&stop), asked(&stop), done(&stop)];
        assert_eq!(power_after(&quiet), Some(Goal::IsOff));
    }

    #[test]
    fn what_is_undefined_has_nothing_else_promised_and_must_be_gone() {
        let mut promises = Promises::default();
        promises.begin_with(0, [Goal::IsThere, Goal::Runs, Goal::Has(512)]);
        promises.asked(&Ask::Undefine(0));
        promises.answered(&Ask::Undefine(0), &DONE);
        assert_eq!(goal(&promises, Aspect::Existence), Some(Goal::IsGone));
        assert_eq!(goal(&promises, Aspect::Memory), None);
        assert_eq!(promises.broken(&View::default(), &Shape::plain(1, 1), |_| true), None);
        let mut promises = Promises::default();
        promises.begin_with(0, [Goal::Runs]);
        assert_eq!(
            promises.broken(&View::default(), &Shape::plain(1, 1), |_| true),
            Some((0, Goal::Runs, "gone".to_owned()))
        );
    }
}
