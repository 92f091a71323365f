//! The keepalive: "this node is alive", and how it is doing.
//!
//! The stamp is written first, alone, and whatever happens elsewhere: other nodes judge by it
//! whether this one must be shot. Everything else follows in a task of its own, in one report, and
//! may be late or fail. Neither asks the hypervisor or the storage anything; both use what was last
//! heard.

use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::node::{DaemonState, DomainState, NodeFigures, NodeRecord};
use pvc_model::with_causes;
use pvc_store::{ChangeError, Changes, NodeChange, Report};
use tokio_util::sync::CancellationToken;

use crate::figures::{Sample, network_stats_json, vm_stats_json};
use crate::shared::Shared;
use crate::startup;
use crate::vms::is_foreign;

/// Time until a stamp that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Time for which the last stamp may hold up the way out.
const LAST_STAMP: Duration = Duration::from_secs(2);

/// Number of intervals without a stamp, written or tried, after which the keepalive is stuck. Each
/// try ends within one, and the next begins within another.
const STUCK_AFTER: u32 = 3;

/// Stamps until `shutdown`; then once more.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    stamp_regularly(&shared, &shutdown).await;
    let last = shared.store.stamp(shared.name(), shared.ports.clock.wall().as_secs());
    if !matches!(shared.within(LAST_STAMP, last).await, Some(Ok(()))) {
        tracing::debug!("the last stamp could not be written");
    }
}

/// Stamps while the daemon starts, for as long as it is polled: one that dies then is missed as any
/// other is.
pub(crate) async fn while_starting(shared: &Shared) {
    let interval = shared.settings.keepalive_interval;
    loop {
        let stamp = shared.store.stamp(shared.name(), shared.ports.clock.wall().as_secs());
        let was_written = matches!(shared.within(interval, stamp).await, Some(Ok(())));
        shared.sleep(if was_written { interval } else { RETRY.min(interval) }).await;
    }
}

async fn stamp_regularly(shared: &Shared, shutdown: &CancellationToken) {
    let interval = shared.settings.keepalive_interval;
    let mut session = shared.store.session();
    let mut failing_since: Option<Duration> = None;
    let mut next = shared.now();
    loop {
        let sent = shared.now();
        let stamp = shared.store.stamp(shared.name(), shared.ports.clock.wall().as_secs());
        let written = shared.within(interval, stamp).await;
        let now = shared.now();
        let was_written = matches!(written, Some(Ok(())));
        let error = match written {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(with_causes(&error)),
            None => Some(format!("no answer within {} s", interval.as_secs_f32())),
        };
        match error {
            None => {
                shared.stamped.send_modify(|count| *count += 1);
                shared.role.store_answered(sent);
                if let Some(since) = failing_since.take() {
                    let seconds = now.saturating_sub(since).as_secs();
                    tracing::warn!(seconds, "the keepalive is written again after it could not be");
                }
                next += interval;
            }
            Some(error) => {
                if failing_since.is_none() {
                    failing_since = Some(now);
                    tracing::error!(
                        error,
                        "the keepalive cannot be written; other nodes may think that this one is \
                         dead"
                    );
                }
                next = now + RETRY.min(interval);
            }
        }
        // Also after a failure: the record that a stamp cannot be written to may have to be made
        // again.
        shared.stamps.send_replace(was_written.then_some(sent));
        if next <= now {
            let missed = now.saturating_sub(next).as_millis() / interval.as_millis().max(1) + 1;
            tracing::warn!(missed, "keepalives were missed: the machine or the store was too slow");
            next = now + interval;
        }
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            // A connection that is back is used at once.
            Ok(()) = session.changed(), if failing_since.is_some() => next = shared.now(),
            () = shared.sleep(next.saturating_sub(now)) => {}
        }
    }
}

/// Says that the daemon lives, at least as often as whoever listens wants to hear it. Whether the
/// store answers does not matter: only that the keepalive goes on.
pub(crate) async fn beat(shared: Arc<Shared>, shutdown: CancellationToken) {
    let interval = shared.settings.keepalive_interval;
    let every = shared.heartbeat().wanted.map_or(interval, |wanted| wanted.min(interval));
    let mut stamps = shared.stamps.subscribe();
    let mut last_stamp = shared.now();
    let mut next = last_stamp + every;
    loop {
        let now = shared.now();
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            Ok(()) = stamps.changed() => last_stamp = shared.now(),
            () = shared.sleep(next.saturating_sub(now)) => {
                next = shared.now() + every;
                if shared.now().saturating_sub(last_stamp) < STUCK_AFTER * interval {
                    (shared.heartbeat().hook)();
                }
            }
        }
    }
}

/// Reports after each stamp, until `shutdown`.
pub(crate) async fn report(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut stamps = shared.stamps.subscribe();
    let mut reporter =
        Reporter { shared: shared.clone(), sample: None, fenced_at: None, gone_at: None };
    let limit = shared.settings.keepalive_interval.max(Duration::from_secs(5));
    loop {
        let written = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            Ok(()) = stamps.changed() => {
                let begun = *stamps.borrow_and_update();
                shared.within(limit, reporter.report(begun)).await
            }
        };
        if written.is_none() {
            tracing::warn!("the node's figures could not be written in time");
        }
    }
}

/// Whether the record says that the daemon runs, or is on its way out.
fn says_run(record: &NodeRecord) -> bool {
    matches!(record.daemon_state, DaemonState::Run | DaemonState::Shutdown)
}

struct Reporter {
    shared: Arc<Shared>,
    sample: Option<Sample>,
    /// Others proved this node dead: how many passes over its guests there had been when that was
    /// seen.
    fenced_at: Option<u64>,
    /// The record of this node was found gone, which is the end of one that was proven dead: the
    /// same of that.
    gone_at: Option<u64>,
}

impl Reporter {
    /// The figures that go with a stamp, and when that was begun, if it was written.
    async fn report(&mut self, begun: Option<Duration>) {
        let shared = self.shared.clone();
        if !shared.is_connected() {
            return;
        }
        let view = shared.store.view();
        // The tree was made anew under our feet (`cluster init --overwrite`, a restore): there is
        // no record of this node, or one that says nothing of its daemon.
        if view.nodes.get(shared.name()).is_none_or(|own| own.daemon_state.as_str().is_empty()) {
            return self.register_again(&view).await;
        }
        let figures = shared.figures(&view, &shared.guests.borrow());
        let counted = figures.map(|figures| Report::Figures(shared.name().clone(), figures));
        let mut reports: Vec<Report> = counted.into_iter().collect();
        // One write where the record says `run`. Before it does, the figures come first, as whoever
        // places a VM here counts what runs here already, and the rest after it, as a large report
        // may take long.
        let is_run = view.nodes.get(shared.name()).is_some_and(|own| says_run(own));
        if is_run {
            reports.extend(self.reports(&view));
        }
        let mut written = shared.store.report(reports).await;
        if written.is_ok() {
            if let Err(error) = self.say_run().await {
                tracing::warn!(error, "the node's state could not be written");
            }
            if !is_run {
                written = shared.store.report(self.reports(&view)).await;
            }
        }
        if let Err(error) = &written {
            tracing::warn!(
                error = error as &dyn std::error::Error,
                "the node's figures could not be written"
            );
        }
        // Only of a keepalive that was one.
        let took =
            begun.filter(|_| written.is_ok()).map(|begun| shared.now().saturating_sub(begun));
        self.log(took, figures.as_ref());
    }

    async fn register_again(&mut self, view: &Cluster) {
        if view.config.schema.is_none() {
            return; // There is no cluster; the keepalive says so in the log.
        }
        self.gone_at = Some(self.shared.guests.borrow().passes);
        tracing::warn!(
            "the cluster's record of this node is gone, or says nothing of its daemon; it is made \
             again"
        );
        // What announces this daemon went with the rest. First, because this work may be cut off.
        self.shared.unannounced.notify_one();
        if let Err(error) = startup::set_up_node(&self.shared).await {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the node's record could not be made"
            );
        }
    }

    /// Reports to be written beside the figures.
    fn reports(&mut self, view: &Cluster) -> Vec<Report> {
        let shared = self.shared.clone();
        let (name, guests) = (shared.name(), shared.guests.borrow().clone());
        let (stats, addresses) = {
            let collected = shared.collected();
            (collected.stats.clone(), collected.addresses.clone())
        };
        let mut reports = vec![shared.note()];
        if let Some(json) = self.network_stats() {
            reports.push(Report::NetworkStats(name.clone(), json));
        }
        for (uuid, facts) in &guests.known {
            if let (Some(live), Some(Ok(recorded))) =
                (stats.get(uuid), view.vms.get(uuid).map(|vm| &vm.domain))
            {
                let said = addresses.get(uuid).map(Vec::as_slice).unwrap_or_default();
                let json = vm_stats_json(live, recorded, facts.live.as_deref(), said);
                reports.push(Report::VmStats(*uuid, json));
            }
        }
        reports
    }

    fn network_stats(&mut self) -> Option<String> {
        let interfaces = match self.shared.ports.host.interfaces() {
            Ok(interfaces) => interfaces,
            Err(error) => {
                tracing::debug!(%error, "the network interfaces cannot be read");
                return None;
            }
        };
        let sample = Sample { at: self.shared.now(), interfaces };
        let before = self.sample.replace(sample.clone());
        Some(network_stats_json(before.as_ref().unwrap_or(&sample), &sample))
    }

    fn log(&self, took: Option<Duration>, figures: Option<&NodeFigures>) {
        let switches = self.shared.settings.log;
        let Some(record) = self.shared.record() else { return };
        if switches.keepalives {
            let (role, daemon) = (record.coordinator_state.as_str(), record.daemon_state.as_str());
            let took_ms = took.map(|took| took.as_millis() as u64);
            let domains = record.domain_state.as_str();
            tracing::info!(role, state = daemon, domains, took_ms, "keepalive");
        }
        if let Some(f) = figures.filter(|_| switches.keepalives && switches.cluster_details) {
            let age =
                self.shared.collected().at.map(|at| self.shared.now().saturating_sub(at).as_secs());
            tracing::info!(
                "VMs: {} | load: {:.2} | memory MiB: {} total, {} used, {} free, {} allocated, {} \
                 provisioned | vCPUs allocated: {} | guest figures: {}",
                self.shared.guests.borrow().known.len(),
                f.load,
                f.memory_total_mib,
                f.memory_used_mib,
                f.memory_free_mib,
                f.memory_allocated_mib,
                f.memory_provisioned_mib,
                f.vcpus_allocated,
                age.map_or_else(|| "none yet".to_owned(), |seconds| format!("{seconds} s old")),
            );
        }
    }

    /// Writes `run` unless the node says it already, or is on its way down, or may run a VM that
    /// belongs to somebody else now.
    async fn say_run(&mut self) -> Result<(), String> {
        let shared = self.shared.clone();
        let guests = shared.guests.borrow().clone();
        let was_fenced = shared.record().is_some_and(|record| record.is_given_up());
        self.fenced_at = was_fenced.then(|| *self.fenced_at.get_or_insert(guests.passes));
        let (fenced_at, gone_at) = (self.fenced_at, self.gone_at);
        let name = shared.name();
        let decide = |cluster: &Cluster| {
            let mut changes = Changes::new();
            let Some(record) = cluster.nodes.get(name) else { return Ok((changes, ())) };
            let knows_its_guests = !shared.settings.subsystems.hypervisor
                || match &record.daemon_state {
                    // Others have started what it ran: it looks anew at every guest.
                    _ if record.is_given_up() => {
                        fenced_at.is_some_and(|at| guests.passes >= at + 2) && guests.foreign == 0
                    }
                    // Nothing was started elsewhere yet. It says that it lives before its power is
                    // cut.
                    DaemonState::Dead => {
                        !guests.known.keys().any(|vm| is_foreign(cluster, name, *vm))
                    }
                    // As after a fence, which its record may have told of.
                    _ => {
                        let enough = gone_at.map_or(1, |at| at + 2);
                        guests.passes >= enough && guests.foreign == 0
                    }
                };
            if !says_run(record) && knows_its_guests {
                changes.node(name, NodeChange::Daemon(DaemonState::Run));
                // Its VMs that were not recovered are its own again; `ready` is for an operator to
                // say.
                if record.domain_state == DomainState::FenceFlush {
                    changes.node(name, NodeChange::Domain(DomainState::Flushed));
                }
            }
            Ok::<_, std::convert::Infallible>((changes, ()))
        };
        match shared.store.change(decide).await {
            Ok(()) => Ok(()),
            Err(ChangeError::Refused(never)) => match never {},
            Err(error) => Err(with_causes(&error)),
        }
    }
}
