//! Knowledge of what earlier processes of this node have left mapped for scripts.

use std::sync::Mutex;
use std::time::Duration;

/// Time until it is tried again to end what could not be ended.
const AGAIN: Duration = Duration::from_secs(10);

/// Knowledge of what earlier processes of this node have left. Until nothing of it is mapped any
/// more, what is held for their scripts stays held.
#[derive(Default)]
pub(crate) struct LeftOver(Mutex<State>);

#[derive(Debug, Clone, Copy, Default)]
struct State {
    is_gone: bool,
    /// Monotonic time before which nothing is tried again.
    not_before: Duration,
}

impl LeftOver {
    /// Whether nothing of it is mapped any more.
    pub fn is_gone(&self) -> bool {
        self.with(|state| state.is_gone)
    }

    /// Whether it is tried, at `now` on the monotonic clock.
    pub fn is_due(&self, now: Duration) -> bool {
        self.with(|state| now >= state.not_before)
    }

    pub fn note_gone(&self) {
        self.with(|state| state.is_gone = true);
    }

    /// Has the next attempt wait.
    pub fn wait(&self, now: Duration) {
        self.with(|state| state.not_before = now + AGAIN);
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().expect("nothing panics while it holds the state"))
    }
}
