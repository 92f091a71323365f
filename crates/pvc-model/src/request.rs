//! Requests that an operator may make about a VM, and the answers to them.

use crate::vm::VmState;

/// State that an operator asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateRequest {
    Start,
    /// Graceful stop, then start.
    Restart,
    /// Press the power button.
    Shutdown,
    /// Pull the plug.
    Stop,
    /// Off, and nobody wonders.
    Disable,
}

impl StateRequest {
    pub const ALL: &'static [StateRequest] = &[
        StateRequest::Start,
        StateRequest::Restart,
        StateRequest::Shutdown,
        StateRequest::Stop,
        StateRequest::Disable,
    ];

    /// The word of the API and the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            StateRequest::Start => "start",
            StateRequest::Restart => "restart",
            StateRequest::Shutdown => "shutdown",
            StateRequest::Stop => "stop",
            StateRequest::Disable => "disable",
        }
    }

    /// Word for the VM's state then: `cannot be …`.
    pub fn participle(self) -> &'static str {
        match self {
            StateRequest::Start => "started",
            StateRequest::Restart => "restarted",
            StateRequest::Shutdown => "shut down",
            StateRequest::Stop => "stopped",
            StateRequest::Disable => "disabled",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        StateRequest::ALL.iter().copied().find(|request| request.as_str() == word)
    }
}

/// Answer to a request that may be granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Write this state. Writing the word that stands there already is a request as well: a node
    /// that gave up a VM begins anew.
    Write(VmState),
    /// The same is being done already.
    UnderWay,
    /// Write this state, and `disable` when the VM has reached `stop`.
    ThenDisable(VmState),
    /// The VM is on its way down: write `disable` when it has reached `stop`.
    AwaitStopThenDisable,
}

/// Reason why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Lifted by force.
    #[error("the VM is the mirror of a VM in another cluster")]
    Mirror,
    #[error("the VM is in state `{state}`, not `start`")]
    NotStarted { state: VmState },
    #[error("the VM is being moved to another node")]
    Moving,
    #[error("the VM is being removed")]
    BeingRemoved,
}

impl Refusal {
    /// Advice about what to do.
    pub fn hint(&self) -> &'static str {
        match self {
            Refusal::Mirror => {
                "promote the mirror with `pvc vm mirror promote` on the cluster that has the VM, \
                 or use `--force`"
            }
            Refusal::NotStarted { .. } => {
                "only a started VM can be restarted or shut down; `pvc vm start` starts it, `pvc \
                 vm stop` stops it in any state"
            }
            Refusal::Moving => {
                "wait until the VM is in state `start` again; `pvc vm move --target NODE` sends it \
                 elsewhere, or back"
            }
            Refusal::BeingRemoved => "look again in a moment: the VM will be gone",
        }
    }
}

/// Decides about `request` for a VM in state `current`. Every request may be repeated.
pub fn request_state(
    current: &VmState,
    request: StateRequest,
    force: bool,
) -> Result<Answer, Refusal> {
    let moving = matches!(current, VmState::Migrate | VmState::MigrateLive | VmState::Unmigrate);
    match (request, current) {
        (_, VmState::Delete) => Err(Refusal::BeingRemoved),
        (StateRequest::Start | StateRequest::Stop | StateRequest::Disable, VmState::Mirror)
            if !force =>
        {
            Err(Refusal::Mirror)
        }
        (StateRequest::Start, _) if moving => Err(Refusal::Moving),
        (StateRequest::Start, _) => Ok(Answer::Write(VmState::Start)),
        (StateRequest::Stop, _) => Ok(Answer::Write(VmState::Stop)),
        (StateRequest::Restart, VmState::Start) => Ok(Answer::Write(VmState::Restart)),
        (StateRequest::Shutdown, VmState::Start) => Ok(Answer::Write(VmState::Shutdown)),
        (StateRequest::Restart, VmState::Restart) | (StateRequest::Shutdown, VmState::Shutdown) => {
            Ok(Answer::UnderWay)
        }
        (StateRequest::Restart | StateRequest::Shutdown, state) => {
            Err(Refusal::NotStarted { state: state.clone() })
        }
        (StateRequest::Disable, VmState::Disable) => Ok(Answer::UnderWay),
        (StateRequest::Disable, _) if moving && !force => Err(Refusal::Moving),
        (StateRequest::Disable, _) => Ok(disable(current, force)),
    }
}

/// A VM that may be running is stopped first: nobody looks after a disabled one.
fn disable(current: &VmState, force: bool) -> Answer {
    match current {
        VmState::Shutdown if !force => Answer::AwaitStopThenDisable,
        VmState::Start | VmState::Restart if !force => Answer::ThenDisable(VmState::Shutdown),
        VmState::Stop
        | VmState::Fail
        | VmState::Provision
        | VmState::Import
        | VmState::Restore
        | VmState::Mirror => Answer::Write(VmState::Disable),
        _ => Answer::ThenDisable(VmState::Stop),
    }
}

/// Whether the VM is off for sure, so that its volumes may be renamed, rolled back or taken away.
pub fn is_off(state: &VmState) -> bool {
    matches!(state, VmState::Stop | VmState::Disable | VmState::Mirror)
}

/// Whether the locks on the VM's volumes may be broken: nothing should be writing them.
pub fn may_flush_locks(state: &VmState) -> bool {
    is_off(state) || *state == VmState::Fail
}

/// The state that moves the VM elsewhere: only a started one needs more than another node in its
/// record. One that is on its way may be sent elsewhere, or back, and stays live or not at all if
/// that was asked for.
pub fn moving_state(current: &VmState, live_only: bool) -> Result<Option<VmState>, Refusal> {
    match current {
        VmState::Delete => Err(Refusal::BeingRemoved),
        VmState::Unmigrate => Err(Refusal::Moving), // a word of older records that no node acts on
        VmState::Restart | VmState::Shutdown => Err(Refusal::NotStarted { state: current.clone() }),
        VmState::MigrateLive => Ok(Some(VmState::MigrateLive)),
        VmState::Start | VmState::Migrate if live_only => Ok(Some(VmState::MigrateLive)),
        VmState::Start | VmState::Migrate => Ok(Some(VmState::Migrate)),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn states() -> impl Strategy<Value = VmState> {
        let known = proptest::sample::select(VmState::ALL);
        prop_oneof![9 => known, 1 => Just(VmState::from_record("odd"))]
    }

    fn requests() -> impl Strategy<Value = StateRequest> {
        proptest::sample::select(StateRequest::ALL)
    }

    #[test]
    fn the_table_of_requests() {
        use StateRequest::{Disable, Restart, Shutdown, Start, Stop};
        let write = |state| Ok(Answer::Write(state));
        let not_started = |state| Err(Refusal::NotStarted { state });
        for (current, request, force, expected) in [
            (VmState::Stop, Start, false, write(VmState::Start)),
            (VmState::Start, Start, false, write(VmState::Start)),
            (VmState::Fail, Start, false, write(VmState::Start)),
            (VmState::Provision, Start, false, write(VmState::Start)),
            (VmState::Mirror, Start, false, Err(Refusal::Mirror)),
            (VmState::Mirror, Start, true, write(VmState::Start)),
            (VmState::Migrate, Start, true, Err(Refusal::Moving)),
            (VmState::Start, Restart, false, write(VmState::Restart)),
            (VmState::Restart, Restart, false, Ok(Answer::UnderWay)),
            (VmState::Stop, Restart, true, not_started(VmState::Stop)),
            (VmState::Start, Shutdown, false, write(VmState::Shutdown)),
            (VmState::Shutdown, Shutdown, false, Ok(Answer::UnderWay)),
            (VmState::Disable, Shutdown, false, not_started(VmState::Disable)),
            (VmState::Start, Stop, false, write(VmState::Stop)),
            (VmState::Stop, Stop, false, write(VmState::Stop)),
            (VmState::Mirror, Stop, false, Err(Refusal::Mirror)),
            (VmState::Start, Disable, false, Ok(Answer::ThenDisable(VmState::Shutdown))),
            (VmState::Start, Disable, true, Ok(Answer::ThenDisable(VmState::Stop))),
            (VmState::Shutdown, Disable, false, Ok(Answer::AwaitStopThenDisable)),
            (VmState::Shutdown, Disable, true, Ok(Answer::ThenDisable(VmState::Stop))),
            (VmState::Stop, Disable, false, write(VmState::Disable)),
            (VmState::Fail, Disable, false, write(VmState::Disable)),
            (VmState::Disable, Disable, false, Ok(Answer::UnderWay)),
            (VmState::Migrate, Disable, false, Err(Refusal::Moving)),
            (VmState::Migrate, Disable, true, Ok(Answer::ThenDisable(VmState::Stop))),
            (VmState::Mirror, Disable, true, write(VmState::Disable)),
            (VmState::Delete, Start, true, Err(Refusal::BeingRemoved)),
        ] {
            assert_eq!(
                request_state(&current, request, force),
                expected,
                "{request:?} in {current} force {force}"
            );
        }
    }

    #[test]
    fn the_words_of_requests_and_the_advice_about_refusals() {
        use StateRequest::{Disable, Restart, Shutdown, Start, Stop};
        for (request, word, participle) in [
            (Start, "start", "started"),
            (Restart, "restart", "restarted"),
            (Shutdown, "shutdown", "shut down"),
            (Stop, "stop", "stopped"),
            (Disable, "disable", "disabled"),
        ] {
            assert_eq!((request.as_str(), request.participle()), (word, participle));
            assert_eq!(StateRequest::parse(word), Some(request));
        }
        assert_eq!(StateRequest::parse("started"), None);
        for (refusal, advised) in [
            (Refusal::Mirror, "`pvc vm mirror promote`"),
            (Refusal::NotStarted { state: VmState::Stop }, "`pvc vm start`"),
            (Refusal::Moving, "`pvc vm move --target NODE`"),
            (Refusal::BeingRemoved, "look again"),
        ] {
            assert!(refusal.hint().contains(advised), "{refusal}");
        }
    }

    #[test]
    fn a_vm_is_off_in_these_states_and_its_locks_may_be_broken_in_one_more() {
        for state in VmState::ALL {
            let off = matches!(state, VmState::Stop | VmState::Disable | VmState::Mirror);
            assert_eq!(is_off(state), off, "{state}");
            assert_eq!(may_flush_locks(state), off || *state == VmState::Fail, "{state}");
        }
    }

    #[test]
    fn the_table_of_moves() {
        use VmState::{
            Delete, Fail, Migrate, MigrateLive, Restart, Shutdown, Start, Stop, Unmigrate,
        };
        let not_started = |state| Err(Refusal::NotStarted { state });
        for (current, live_only, expected) in [
            (Start, false, Ok(Some(Migrate))),
            (Start, true, Ok(Some(MigrateLive))),
            (Migrate, false, Ok(Some(Migrate))),
            (Migrate, true, Ok(Some(MigrateLive))),
            (MigrateLive, false, Ok(Some(MigrateLive))),
            (Stop, true, Ok(None)),
            (Fail, false, Ok(None)),
            (Restart, false, not_started(Restart)),
            (Shutdown, false, not_started(Shutdown)),
            (Unmigrate, false, Err(Refusal::Moving)),
            (Delete, false, Err(Refusal::BeingRemoved)),
        ] {
            assert_eq!(moving_state(&current, live_only), expected, "{current}, live {live_only}");
        }
    }

    proptest! {
        #[test]
        fn a_request_that_was_granted_may_be_repeated(
            state in states(),
            request in requests(),
            force: bool,
        ) {
            let next = match request_state(&state, request, force) {
                Ok(Answer::Write(next) | Answer::ThenDisable(next)) => next,
                Ok(Answer::UnderWay | Answer::AwaitStopThenDisable) | Err(_) => return Ok(()),
            };
            prop_assert!(request_state(&next, request, force).is_ok(), "{request:?} in {state}, \
                                                                        then in {next}");
        }

        #[test]
        fn force_only_allows_more(state in states(), request in requests()) {
            if request_state(&state, request, false).is_ok() {
                prop_assert!(request_state(&state, request, true).is_ok());
            }
        }

        #[test]
        fn what_may_run_is_never_disabled_at_once(state in states(), force: bool) {
            let answer = request_state(&state, StateRequest::Disable, force);
            if matches!(
                state,
                VmState::Start
                    | VmState::Restart
                    | VmState::Shutdown
                    | VmState::Migrate
                    | VmState::MigrateLive
            ) {
                prop_assert_ne!(answer, Ok(Answer::Write(VmState::Disable)));
            }
        }

        #[test]
        fn without_force_nothing_becomes_of_a_mirror(request in requests()) {
            prop_assert!(request_state(&VmState::Mirror, request, false).is_err());
        }
    }
}
