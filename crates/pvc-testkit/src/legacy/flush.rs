//! Emptying its node and filling it again: `spec/coordination.md` §7.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pvc_model::Uuid;
use tokio::sync::Notify;

use super::LegacyPeer;

/// A flush or an unflush that runs.
#[derive(Default)]
pub(super) struct Job {
    stops: AtomicBool,
    stopped: Notify,
}

/// Time for which it waits for one VM.
const TIME_LIMIT: Duration = Duration::from_secs(120);

impl LegacyPeer {
    /// Handles a change of its own domain state, in the callback thread: a job that runs is waited
    /// for until it says that it has heard. That it only does when it comes to its next VM, so one
    /// that is at its last never does, and no event is delivered any more ([T9]).
    pub(super) async fn own_domain_state_is(self: &Arc<Self>, state: &str) {
        let running = self.memory().job.clone();
        if let Some(job) = running {
            job.stops.store(true, Ordering::SeqCst);
            job.stopped.notified().await;
        }
        let job = Arc::new(Job::default());
        match state {
            "flush" => {
                self.memory().job = Some(job.clone());
                tokio::spawn(self.clone().flush(job));
            }
            "unflush" => {
                self.memory().job = Some(job.clone());
                tokio::spawn(self.clone().unflush(job));
            }
            _ => {}
        }
    }

    /// Whether the job is to end here. Says so.
    fn is_stopped(&self, job: &Job) -> bool {
        let stops = job.stops.load(Ordering::SeqCst);
        if stops {
            self.memory().job = None;
            job.stopped.notify_one();
        }
        stops
    }

    async fn vm(&self, vm: Uuid, key: &str) -> String {
        self.records.text(&Self::key(vm, key)).await
    }

    async fn write_vm<const N: usize>(&self, vm: Uuid, values: [(&str, &str); N]) {
        self.records
            .write(&values.map(|(key, value)| (Self::key(vm, key), value.to_owned())))
            .await;
    }

    async fn flush(self: Arc<Self>, job: Arc<Job>) {
        let listed = self.memory().running.clone();
        for vm in listed {
            if self.is_stopped(&job) {
                return;
            }
            while matches!(self.vm(vm, "state").await.as_str(), "restart" | "shutdown") {
                self.pause(2000).await;
            }
            let (node, last) = (self.vm(vm, "node").await, self.vm(vm, "lastnode").await);
            let home = if last.is_empty() { node } else { last };
            // One that would best go home is taken for one that can go nowhere.
            let target = self.find_target(vm).await.filter(|target| *target != home);
            match target {
                Some(target) => {
                    let moved = [
                        ("state", "migrate"),
                        ("node", target.as_str()),
                        ("lastnode", home.as_str()),
                    ];
                    self.write_vm(vm, moved).await;
                }
                None if self.vm(vm, "state").await == "start" => {
                    self.write_vm(vm, [("state", "shutdown"), ("node_autostart", "True")]).await;
                }
                None => {}
            }
            self.wait_for(vm).await;
        }
        // From here on nobody waits for it: what it writes now is its own event.
        self.memory().job = None;
        self.memory().running.clear();
        let done = [
            (self.own("runningdomains"), String::new()),
            (self.own("domainstate"), "flushed".to_owned()),
        ];
        self.records.write(&done).await;
    }

    async fn unflush(self: Arc<Self>, job: Arc<Job>) {
        for name in self.records.children("/domains").await {
            if self.is_stopped(&job) {
                return;
            }
            let Ok(vm) = name.parse::<Uuid>() else { continue };
            let me = self.name().to_owned();
            if self.vm(vm, "node_autostart").await == "True" && self.vm(vm, "node").await == me {
                let start = [
                    ("state", "start"),
                    ("node", me.as_str()),
                    ("lastnode", ""),
                    ("node_autostart", "False"),
                ];
                self.write_vm(vm, start).await;
            } else if self.vm(vm, "lastnode").await == me {
                // Whatever its state: one that is off stays in `migrate`.
                self.write_vm(vm, [("state", "migrate"), ("node", me.as_str()), ("lastnode", "")])
                    .await;
                self.wait_for(vm).await;
            }
        }
        self.memory().job = None;
        self.records.write(&[(self.own("domainstate"), "ready".to_owned())]).await;
    }

    /// Shorter than a guest may take to shut down.
    async fn wait_for(&self, vm: Uuid) {
        let end = self.ports.clock.monotonic() + TIME_LIMIT;
        while self.ports.clock.monotonic() < end
            && matches!(self.vm(vm, "state").await.as_str(), "migrate" | "unmigrate" | "shutdown")
        {
            self.pause(200).await;
        }
    }
}
