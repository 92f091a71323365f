//! Programs that run on hosts, as far as the world is concerned: whether they can do anything now.

use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{Clock, Random};
use pvc_testkit::SeededRandom;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::host::Hosts;
use crate::run::{Run, StoryAction};
use crate::state::{State, World};

pub(crate) type Pid = usize;

pub(crate) struct Process {
    pub name: String,
    /// `None`: outside of the world, an onlooker.
    pub host: Option<usize>,
    pub ended: bool,
    pub frozen: bool,
    /// Time until which the process had been frozen last.
    pub thawed: Option<Duration>,
    pub client: Option<usize>,
    pub task: Option<AbortHandle>,
    waiting: Vec<oneshot::Sender<()>>,
    held: Vec<StoryAction>,
}

enum Attempt {
    Open,
    Later(oneshot::Receiver<()>),
    Never,
}

/// Gate that every port call and every sleep of a process goes through: open while it runs, closed
/// while it is frozen, and shut for ever once it has ended. So nothing that a killed process left
/// behind touches the world.
#[derive(Clone)]
pub(crate) struct Gate {
    pub world: World,
    pub pid: Pid,
}

impl Gate {
    /// Returns when the process can go on.
    pub async fn pass(&self) {
        loop {
            let try_pass =
                |state: &mut State| state.processes.try_pass(self.pid, &state.hosts, &state.run);
            match self.world.with(try_pass) {
                Attempt::Open => return,
                Attempt::Later(opened) => drop(opened.await),
                Attempt::Never => std::future::pending().await,
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

impl Process {
    /// Whether it can do anything now.
    pub fn runs(&self, hosts: &Hosts) -> bool {
        let host_frozen = self.host.is_some_and(|host| hosts[host].frozen);
        !self.ended && !self.frozen && !host_frozen
    }

    /// Has something happen inside of it when it is thawed, unless it has ended by then.
    pub fn hold(&mut self, story_action: StoryAction) {
        if !self.ended {
            self.held.push(story_action);
        }
    }

    /// Lets the process go on. Returns what was held, which is to happen now.
    pub fn thaw(&mut self, now: Duration) -> Vec<StoryAction> {
        self.thawed = Some(now);
        std::mem::take(&mut self.held)
    }

    /// Whether anything waits until it can go on.
    pub fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty() || !self.held.is_empty()
    }

    /// Opens the gate: whoever waited there goes on.
    pub fn open(&mut self) {
        for opened in std::mem::take(&mut self.waiting) {
            let _ = opened.send(()); // who knocked may have gone
        }
    }

    /// Ends the process as `kill -9` does: it does nothing more. Returns whether it lived until
    /// now.
    pub fn end(&mut self) -> bool {
        if std::mem::replace(&mut self.ended, true) {
            return false;
        }
        self.waiting.clear();
        self.held.clear();
        if let Some(task) = self.task.take() {
            task.abort();
        }
        true
    }
}

/// All programs that were ever started.
#[derive(Default)]
pub(crate) struct Processes(Vec<Process>);

impl Processes {
    pub fn start(&mut self, name: String, host: Option<usize>) -> Pid {
        self.0.push(Process {
            name,
            host,
            ended: false,
            frozen: false,
            thawed: None,
            client: None,
            task: None,
            waiting: Vec::new(),
            held: Vec::new(),
        });
        self.0.len() - 1
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn of_host(&self, host: usize) -> Vec<Pid> {
        (0..self.0.len()).filter(|pid| self.0[*pid].host == Some(host)).collect()
    }

    fn try_pass(&mut self, pid: Pid, hosts: &Hosts, run: &Run) -> Attempt {
        let process = &mut self.0[pid];
        if process.runs(hosts) {
            run.set_source(&process.name);
            return Attempt::Open;
        }
        if process.ended {
            return Attempt::Never;
        }
        let (opened, later) = oneshot::channel();
        process.waiting.push(opened);
        Attempt::Later(later)
    }
}

impl Index<Pid> for Processes {
    type Output = Process;

    fn index(&self, pid: Pid) -> &Process {
        &self.0[pid]
    }
}

impl IndexMut<Pid> for Processes {
    fn index_mut(&mut self, pid: Pid) -> &mut Process {
        &mut self.0[pid]
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
        self.gate
            .world
            .with(|state| state.run.wall(self.host.map_or(0, |host| state.hosts[host].wall_offset)))
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
