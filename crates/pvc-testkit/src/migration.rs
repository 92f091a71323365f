//! A migration under way as a value, and the one job that watches it. How long it takes, who loses
//! touch with whom and how its last moment goes is for its owner.

use std::ops::DerefMut;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{GuestRun, HypervisorError, MigrationJob, MigrationProgress};
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use crate::guests::{MemoryGuest, MemoryHypervisor, refused};

/// Number of bytes that there are to copy of any guest.
const COPY_BYTES: u64 = 1 << 28;

/// End of a migration for the hypervisor that sends the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The guest is gone here.
    Done,
    /// The word of it is lost: the guest runs here as well.
    Lost,
    /// The word is lost and the hypervisor breaks down: the guest stays here, held.
    Broken,
}

impl<G: DerefMut<Target = MemoryGuest>> MemoryHypervisor<G> {
    /// A guest that was on its way here runs from now on, or is held.
    ///
    /// # Errors
    /// [`HypervisorError::Refused`] if it is not here any more.
    pub fn arrives(&mut self, uuid: Uuid, held: bool) -> Result<(), HypervisorError> {
        let here = self.guests.get_mut(&uuid).filter(|_| self.is_up);
        let guest = here.ok_or_else(|| refused("the target has lost the guest"))?;
        guest.run = if held { GuestRun::Paused } else { GuestRun::Running };
        Ok(())
    }

    /// A guest that has arrived elsewhere leaves. Returns it if it is gone.
    pub fn departs(&mut self, uuid: Uuid, finish: Finish) -> Option<G> {
        let stays_as = match finish {
            Finish::Done => return self.guests.remove(&uuid),
            Finish::Lost => GuestRun::Running,
            Finish::Broken => GuestRun::Leaving,
        };
        if let Some(guest) = self.guests.get_mut(&uuid) {
            guest.run = stays_as;
        }
        None
    }
}

struct State {
    never_converges: bool,
    /// Time from which on nothing is copied.
    stands_from: Option<Instant>,
    ended: Option<Result<(), String>>,
    waiting: Vec<oneshot::Sender<()>>,
}

/// A migration as the hypervisor keeps it that sends the guest. Clones are the same one.
#[derive(Clone)]
pub struct MemoryMigration {
    begun: Instant,
    takes: Duration,
    state: Arc<Mutex<State>>,
}

impl MemoryMigration {
    /// Begins now; everything is copied after `takes`, unless it never converges.
    pub fn begin(takes: Duration, never_converges: bool) -> Self {
        let (stands_from, ended, waiting) = (None, None, Vec::new());
        let state = State { never_converges, stands_from, ended, waiting };
        MemoryMigration { begun: Instant::now(), takes, state: Arc::new(Mutex::new(state)) }
    }

    pub fn is_under_way(&self) -> bool {
        self.state().ended.is_none()
    }

    /// Whether everything will be copied within `time`.
    pub fn is_copied_within(&self, time: Duration) -> bool {
        !self.state().never_converges && self.begun.elapsed() + time >= self.takes
    }

    /// The guest no longer writes faster than it can be copied.
    pub fn converges(&self) {
        self.state().never_converges = false;
    }

    /// Nothing is copied from `time` after the beginning on.
    pub fn stands_still_after(&self, time: Duration) {
        self.state().stands_from = Some(self.begun + time);
    }

    /// Nothing is copied at the moment. Returns for how long that is so.
    pub fn stands_still(&self) -> Duration {
        self.state().stands_from.get_or_insert_with(Instant::now).elapsed()
    }

    /// Copying goes on, as if it had never stopped.
    pub fn goes_on(&self) {
        self.state().stands_from = None;
    }

    /// Ends it, and wakes everybody who waits for that. Returns whether it was under way.
    pub fn end(&self, outcome: Result<(), String>) -> bool {
        let mut state = self.state();
        if state.ended.is_some() {
            return false;
        }
        state.ended = Some(outcome);
        for waiting in state.waiting.drain(..) {
            let _ = waiting.send(()); // whoever waited may have gone
        }
        true
    }

    /// The job of whoever asked for the migration of the guest, and what aborts it.
    pub fn job(&self, uuid: Uuid, abort: impl Fn() + Send + Sync + 'static) -> MemoryJob {
        let (migration, abort) = (self.clone(), Box::new(abort));
        MemoryJob { uuid, migration, abort, is_reported: false }
    }

    /// Progress, until it has ended. One that never converges has as much before it as ever.
    fn progress(&self) -> Option<MigrationProgress> {
        let state = self.state();
        if state.ended.is_some() {
            return None;
        }
        let elapsed = self.begun.elapsed();
        let stands_after = state.stands_from.map(|from| from - self.begun);
        let copying = stands_after.map_or(elapsed, |after| after.min(elapsed));
        let share = copying.as_secs_f64() / self.takes.as_secs_f64().max(1e-3);
        let once = (COPY_BYTES as f64 * share.min(1.0)) as u64;
        let again = copying.as_millis() as u64 * (COPY_BYTES >> 10);
        let (processed, remaining) = match state.never_converges {
            true => (again, COPY_BYTES / 2),
            false => (once, COPY_BYTES - once),
        };
        Some(MigrationProgress { elapsed, total: COPY_BYTES, processed, remaining })
    }

    /// Its outcome, or the end that is to be waited for.
    fn outcome(&self) -> Result<Result<(), String>, oneshot::Receiver<()>> {
        let mut state = self.state();
        if let Some(outcome) = &state.ended {
            return Ok(outcome.clone());
        }
        let (sender, ended) = oneshot::channel();
        state.waiting.push(sender);
        Err(ended)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while holding it")
    }
}

/// The job of a [`MemoryMigration`].
pub struct MemoryJob {
    uuid: Uuid,
    migration: MemoryMigration,
    abort: Box<dyn Fn() + Send + Sync>,
    is_reported: bool,
}

#[async_trait]
impl MigrationJob for MemoryJob {
    async fn progress(&self) -> Result<Option<MigrationProgress>, HypervisorError> {
        Ok(self.migration.progress())
    }

    async fn abort(&self) -> Result<(), HypervisorError> {
        (self.abort)();
        Ok(())
    }

    async fn outcome(&mut self) -> Result<(), HypervisorError> {
        if self.is_reported {
            return Err(HypervisorError::NoGuest { uuid: self.uuid });
        }
        let ended = loop {
            match self.migration.outcome() {
                Ok(ended) => break ended,
                // The migration itself holds the sender.
                Err(ended) => drop(ended.await),
            }
        };
        self.is_reported = true;
        ended.map_err(|why| HypervisorError::Refused { why })
    }
}
