//! Programs that run on hosts, as far as the world is concerned: whether they can do anything now.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{Clock, Random};
use pvc_testkit::{SeededRandom, TokioClock};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::state::{State, StoryAction, World};

pub(crate) type Pid = usize;

pub(crate) struct Process {
    pub name: String,
    /// `None`: outside of the world, an onlooker.
    pub host: Option<usize>,
    pub ended: bool,
    pub frozen: bool,
    /// Until when it had been frozen last.
    pub thawed: Option<Duration>,
    pub client: Option<usize>,
    pub task: Option<AbortHandle>,
    knocking: Vec<oneshot::Sender<()>>,
    held: Vec<StoryAction>,
}

enum Knock {
    Open,
    Later(oneshot::Receiver<()>),
    Never,
}

/// What every port call and every sleep of a process goes through: open while it runs, closed while
/// it is frozen, and shut for ever once it has ended. So nothing that a killed process left behind
/// touches the world.
#[derive(Clone)]
pub(crate) struct Gate {
    pub world: World,
    pub pid: Pid,
}

impl Gate {
    /// Returns when the process can go on.
    pub async fn pass(&self) {
        loop {
            match self.world.with(|state| state.knock(self.pid)) {
                Knock::Open => return,
                Knock::Later(opened) => drop(opened.await),
                Knock::Never => std::future::pending().await,
            }
        }
    }

    /// Does something to the world as soon as the process can.
    pub async fn call<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        self.pass().await;
        self.world.with(act)
    }

    /// Waits for an answer. One that nobody gives any more never comes.
    pub async fn answer<T>(&self, answer: oneshot::Receiver<T>) -> T {
        match answer.await {
            Ok(answer) => {
                self.pass().await;
                answer
            }
            Err(_) => std::future::pending().await,
        }
    }

    /// Has the process wait for `delay` of the world's time.
    #[allow(clippy::disallowed_methods, reason = "the simulation owns time")]
    pub async fn sleep(&self, delay: Duration) {
        self.pass().await;
        tokio::time::sleep(delay).await;
        self.pass().await;
    }
}

impl State {
    pub fn new_process(&mut self, name: String, host: Option<usize>) -> Pid {
        self.processes.push(Process {
            name,
            host,
            ended: false,
            frozen: false,
            thawed: None,
            client: None,
            task: None,
            knocking: Vec::new(),
            held: Vec::new(),
        });
        self.processes.len() - 1
    }

    /// Whether the process can do anything now.
    pub fn runs(&self, pid: Pid) -> bool {
        let process = &self.processes[pid];
        let host_frozen = process.host.is_some_and(|host| self.hosts[host].frozen);
        !process.ended && !process.frozen && !host_frozen
    }

    fn knock(&mut self, pid: Pid) -> Knock {
        if self.runs(pid) {
            self.log.set_speaker(&self.processes[pid].name);
            return Knock::Open;
        }
        if self.processes[pid].ended {
            return Knock::Never;
        }
        let (opened, later) = oneshot::channel();
        self.processes[pid].knocking.push(opened);
        Knock::Later(later)
    }

    /// Has something happen inside the process: at once, or when it is thawed.
    pub fn in_process(&mut self, pid: Pid, story_action: impl FnOnce(&mut State) + Send + 'static) {
        if self.runs(pid) {
            story_action(self);
        } else if !self.processes[pid].ended {
            self.processes[pid].held.push(Box::new(story_action));
        }
    }

    /// Lets every process go on that can again.
    pub fn open_gates(&mut self) {
        for pid in 0..self.processes.len() {
            let waits =
                !self.processes[pid].knocking.is_empty() || !self.processes[pid].held.is_empty();
            if !waits || !self.runs(pid) {
                continue;
            }
            self.processes[pid].thawed = Some(self.now);
            for story_action in std::mem::take(&mut self.processes[pid].held) {
                story_action(self);
            }
            for opened in std::mem::take(&mut self.processes[pid].knocking) {
                let _ = opened.send(()); // who knocked may have gone
            }
        }
    }

    /// What the wall clock of a host shows; `None`: the right time.
    pub fn wall(&self, host: Option<usize>) -> Duration {
        let offset = host.map_or(0, |host| self.hosts[host].wall_offset);
        let now = TokioClock::WALL_START + self.now;
        let step = Duration::from_secs(offset.unsigned_abs());
        if offset < 0 { now.saturating_sub(step) } else { now + step }
    }

    /// As `kill -9`: it does nothing more.
    pub fn end_process(&mut self, pid: Pid) {
        let process = &mut self.processes[pid];
        if std::mem::replace(&mut process.ended, true) {
            return;
        }
        process.knocking.clear();
        process.held.clear();
        if let Some(task) = process.task.take() {
            task.abort();
        }
        self.migrations_of_ended(pid);
        self.client_of_ended(pid);
    }
}

/// The clocks of a host, as one of its processes reads them.
pub(crate) struct HostClock {
    pub gate: Gate,
    pub host: Option<usize>,
}

impl HostClock {
    fn drift(&self) -> f64 {
        let ppm =
            self.host.map_or(0, |host| self.gate.world.with(|state| state.hosts[host].drift_ppm));
        1.0 + ppm as f64 / 1e6
    }
}

#[async_trait]
impl Clock for HostClock {
    fn monotonic(&self) -> Duration {
        // Hosts were switched on long ago, at different times.
        let since = Duration::from_secs(100_000 + self.host.unwrap_or(0) as u64 * 12_345);
        since + self.gate.world.now().mul_f64(self.drift())
    }

    fn wall(&self) -> Duration {
        self.gate.world.with(|state| state.wall(self.host))
    }

    async fn sleep(&self, duration: Duration) {
        // A clock that runs fast is through with it earlier.
        self.gate.sleep(duration.div_f64(self.drift())).await;
    }
}

/// Chance of one process: two processes of one run draw different numbers.
pub(crate) fn random(seed: u64, pid: Pid) -> Arc<dyn Random> {
    Arc::new(SeededRandom::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add((pid as u64) << 32)))
}
