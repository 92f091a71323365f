//! State that all handlers share.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pvc_api_types::{Benchmark, ClusterStatus, TrashedVolume};
use pvc_model::cluster::Cluster;
use pvc_model::storage::PoolName;
use pvc_model::{NodeName, Uuid};
use pvc_ops::network::Surroundings;
use pvc_ops::{Outcome, Refusal, cluster};
use pvc_ports::{Clock, Exporters, Firewall, Network, Random, Storage};
use pvc_provisioner::Provisioner;
use pvc_store::{KnownPassword, Protection, Store};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::{Sessions, Tokens};
use crate::body::{Budget, Share};
use crate::cache::{Memo, VmCache};
use crate::error::{ApiError, Result};
use crate::metrics::{Scrapes, exported};
use crate::questions::Questions;
use crate::refuse::{refused, store_error};
use crate::settings::ApiSettings;
use crate::slots::Slots;
use crate::throttle::Throttle;
use crate::traces::Traces;
use crate::under_way::Readers;

/// Number of logs that are read from the store at once: each may be half a megabyte.
const LOGS_AT_ONCE: usize = 4;

/// Number of definitions of VMs that are judged at once for who may read: each may be as large as a
/// request may be.
const CHECKS_AT_ONCE: usize = 8;

/// Number of times that the benchmarks of PVC 1.0.3 are read at once: each takes megabytes, and a
/// connection to the provisioner's database, of which there are four.
const FORMER_AT_ONCE: usize = 1;

/// Access to the records, and the passwords that nodes have proven to know.
type Protected = (Protection, BTreeMap<NodeName, KnownPassword>);

/// Owner of a log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Logged {
    Node(NodeName),
    Vm(Uuid),
}

/// The API's state; cheap to clone.
#[derive(Clone)]
pub struct ApiState {
    shared: Arc<Shared>,
    /// The store of a dry run decides and writes nothing.
    store: Store,
    machine: Option<Arc<dyn Network>>,
    exporters: Option<Arc<dyn Exporters>>,
    provisioner: Option<Provisioner>,
    /// Memory for the body of a request, which counts until the request is answered and what it has
    /// begun has come [to its end](ApiState::to_its_end).
    body: Option<Arc<Share>>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    storage: Option<Arc<dyn Storage>>,
    firewall: Option<Arc<dyn Firewall>>,
    settings: ApiSettings,
    tokens: Tokens,
    sessions: Sessions,
    throttle: Throttle,
    vms: VmCache,
    status: Memo<ClusterStatus>,
    scrapes: Arc<Scrapes>,
    ceph_page: exported::Page,
    zookeeper_page: exported::Page,
    trash_lists: Questions<Option<PoolName>, Vec<TrashedVolume>>,
    logs: Questions<Logged, String>,
    protections: Questions<(), Protected>,
    former_benchmarks: Questions<Option<String>, Vec<Benchmark>>,
    bodies: Budget,
    waits: Arc<Semaphore>,
    streams: Arc<Slots>,
    uploads: Arc<Slots>,
    downloads: Arc<Slots>,
    checks: Arc<Slots>,
    traces: Traces,
    readers: Arc<Readers>,
    images: pvc_images::Places,
    stopping: CancellationToken,
    changes: TaskTracker,
    process: String,
}

impl ApiState {
    /// `storage` is where VMs have their volumes; without it, what touches volumes is refused.
    /// `firewall` says which rules nft takes; without it, no rule is added to a network.
    pub fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
        storage: Option<Arc<dyn Storage>>,
        firewall: Option<Arc<dyn Firewall>>,
        settings: ApiSettings,
    ) -> Self {
        let shared = Arc::new(Shared {
            tokens: Tokens::new(settings.tokens.as_deref()),
            sessions: Sessions::new(settings.limits.session_time),
            throttle: Throttle::default(),
            vms: VmCache::default(),
            status: Memo::default(),
            scrapes: Arc::default(),
            ceph_page: exported::Page::default(),
            zookeeper_page: exported::Page::default(),
            trash_lists: Questions::unlimited(),
            logs: Questions::at_once(LOGS_AT_ONCE),
            protections: Questions::at_once(1),
            former_benchmarks: Questions::at_once(FORMER_AT_ONCE),
            bodies: Budget::new(settings.limits.bodies_bytes),
            waits: Arc::new(Semaphore::new(settings.limits.waits)),
            streams: Slots::new(settings.limits.streams),
            uploads: Slots::new(settings.limits.transfers),
            downloads: Slots::new(settings.limits.transfers),
            checks: Slots::brief(CHECKS_AT_ONCE),
            traces: Traces::default(),
            readers: Arc::default(),
            images: pvc_images::Places::default(),
            stopping: CancellationToken::new(),
            changes: TaskTracker::new(),
            process: format!("{:08x}", random.next_u64() >> 32),
            clock,
            random,
            storage,
            firewall,
            settings,
        });
        ApiState { shared, store, machine: None, exporters: None, provisioner: None, body: None }
    }

    /// The same for a machine that is alone: networks of VMs may not overlap those that it is in.
    pub fn with_machine(self, machine: Arc<dyn Network>) -> Self {
        ApiState { machine: Some(machine), ..self }
    }

    /// The same for a cluster, whose Ceph and ZooKeeper export metrics.
    pub fn with_exporters(self, exporters: Arc<dyn Exporters>) -> Self {
        ApiState { exporters: Some(exporters), ..self }
    }

    /// The same with a provisioner; without it, what it keeps is refused.
    pub fn with_provisioner(self, provisioner: Option<Provisioner>) -> Self {
        ApiState { provisioner, ..self }
    }

    /// The same for a request whose body takes this memory.
    pub(crate) fn with_body(self, body: Share) -> Self {
        ApiState { body: Some(Arc::new(body)), ..self }
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The same for a dry run.
    pub(crate) fn dry(&self) -> Self {
        ApiState { store: self.store.dry(), ..self.clone() }
    }

    /// Everything recorded, as this process last saw it.
    pub fn view(&self) -> Arc<Cluster> {
        self.store.view()
    }

    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.clock
    }

    pub fn random(&self) -> &Arc<dyn Random> {
        &self.shared.random
    }

    /// The storage that VMs have their volumes in.
    pub(crate) fn storage(&self) -> Result<Arc<dyn Storage>> {
        self.shared.storage.clone().ok_or_else(|| {
            let message = "this API has no storage that it could change volumes in";
            ApiError::new(axum::http::StatusCode::NOT_IMPLEMENTED, message)
        })
    }

    /// The provisioner, where this API has its database.
    pub(crate) fn provisioner(&self) -> Result<&Provisioner> {
        self.provisioner.as_ref().ok_or_else(|| {
            let message = "this API has no database for the provisioner";
            ApiError::new(axum::http::StatusCode::NOT_IMPLEMENTED, message)
                .hint(Some("`database.postgres` in the configuration says where it is"))
        })
    }

    /// The packet filter of this machine, which says what it would take.
    pub(crate) fn firewall(&self) -> Option<&dyn Firewall> {
        self.shared.firewall.as_deref()
    }

    /// Networks that are not those of VMs.
    pub(crate) fn surroundings(&self) -> Surroundings<'_> {
        Surroundings {
            configured: &self.settings().core_networks,
            machine: self.machine.as_deref(),
            lacks_bridge_device: self.settings().lacks_bridge_device,
        }
    }

    /// The links of this machine, if it is alone.
    pub(crate) fn machine(&self) -> Option<&dyn Network> {
        self.machine.as_deref()
    }

    pub fn settings(&self) -> &ApiSettings {
        &self.shared.settings
    }

    pub(crate) fn tokens(&self) -> &Tokens {
        &self.shared.tokens
    }

    pub(crate) fn sessions(&self) -> &Sessions {
        &self.shared.sessions
    }

    pub(crate) fn throttle(&self) -> &Throttle {
        &self.shared.throttle
    }

    pub(crate) fn vms(&self) -> &VmCache {
        &self.shared.vms
    }

    pub(crate) fn status(&self) -> &Memo<ClusterStatus> {
        &self.shared.status
    }

    pub(crate) fn scrapes(&self) -> &Arc<Scrapes> {
        &self.shared.scrapes
    }

    /// Whether there are a Ceph and a ZooKeeper that may export metrics.
    pub(crate) fn has_exporters(&self) -> (bool, bool) {
        let has_any = self.exporters.is_some();
        (has_any && exported::has_ceph(self.shared.storage.as_deref()), has_any)
    }

    /// The metrics that Ceph exports.
    pub(crate) async fn ceph_page(&self) -> Result<Bytes> {
        let fetch = exported::ceph(self.shared.storage.clone(), self.exporters.clone());
        self.shared.ceph_page.fetched(self.clock().monotonic(), "Ceph", fetch).await
    }

    /// The metrics that ZooKeeper's exporter has on the primary node.
    pub(crate) async fn zookeeper_page(&self) -> Result<Bytes> {
        let fetch = exported::zookeeper(self.view(), self.exporters.clone());
        self.shared.zookeeper_page.fetched(self.clock().monotonic(), "ZooKeeper", fetch).await
    }

    /// Lists of what is in the trash of a pool; without one, of all.
    pub(crate) fn trash_lists(&self) -> &Questions<Option<PoolName>, Vec<TrashedVolume>> {
        &self.shared.trash_lists
    }

    /// A log from the store, read once for all who want it; empty if there is none.
    pub(crate) async fn log(&self, of: Logged) -> Result<Arc<String>> {
        let (store, which) = (self.store.clone(), of.clone());
        let read = async move {
            let log = match &which {
                Logged::Node(node) => store.node_log(node).await,
                Logged::Vm(vm) => store.console_log(*vm).await,
            };
            log.map(Option::unwrap_or_default).map_err(store_error)
        };
        self.ask(self.shared.logs.answered(self.clock().clone(), of, read)).await
    }

    /// Access to the records, which is asked of each of them: once for all who want to know.
    pub(crate) async fn protection(&self) -> Result<Arc<Protected>> {
        let store = self.store.clone();
        let look = async move { cluster::protection(&store).await.map_err(store_error) };
        self.ask(self.shared.protections.answered(self.clock().clone(), (), look)).await
    }

    /// Memory for the bodies of requests, but for files that are uploaded.
    pub(crate) fn bodies(&self) -> &Budget {
        &self.shared.bodies
    }

    pub(crate) fn waits(&self) -> &Arc<Semaphore> {
        &self.shared.waits
    }

    pub(crate) fn streams(&self) -> &Arc<Slots> {
        &self.shared.streams
    }

    pub(crate) fn uploads(&self) -> &Arc<Slots> {
        &self.shared.uploads
    }

    pub(crate) fn downloads(&self) -> &Arc<Slots> {
        &self.shared.downloads
    }

    /// Slots for judging definitions of VMs.
    pub fn checks(&self) -> &Arc<Slots> {
        &self.shared.checks
    }

    /// Benchmarks that PVC 1.0.3 has recorded, by their name or all.
    pub(crate) fn former_benchmarks(&self) -> &Questions<Option<String>, Vec<Benchmark>> {
        &self.shared.former_benchmarks
    }

    pub(crate) fn traces(&self) -> &Traces {
        &self.shared.traces
    }

    /// Volumes that are busy with downloads.
    pub(crate) fn readers(&self) -> &Arc<Readers> {
        &self.shared.readers
    }

    /// Places for reading images.
    pub(crate) fn images(&self) -> &pvc_images::Places {
        &self.shared.images
    }

    /// A word that tells this process from those before and beside it.
    pub(crate) fn process(&self) -> &str {
        &self.shared.process
    }

    /// Cancelled when the daemon is to stop: waits and streams end at once, changes are finished.
    pub fn stopping(&self) -> &CancellationToken {
        &self.shared.stopping
    }

    /// Returns when every change that was begun has ended.
    pub async fn changes_done(&self) {
        self.shared.changes.close();
        self.shared.changes.wait().await;
    }

    /// Does something that is to come to its end also when the daemon stops, within its time.
    pub(crate) fn track(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.shared.changes.spawn(task);
    }

    /// Refuses at once what would only wait for a store that is known to be gone: without a quorum
    /// no decision is taken, and whoever asked should not hang until that is said.
    fn check_reachable(&self) -> Result<()> {
        match self.store().outage() {
            Some(outage) if outage >= HICCUP => Err(out_of_reach(outage)),
            _ => Ok(()),
        }
    }

    /// Waits until the store can be reached, no longer than `time`: for work that is too long to be
    /// done again because its end falls into a short outage.
    pub(crate) async fn reached_within(&self, time: Duration) -> Result<()> {
        let end = self.clock().monotonic() + time;
        loop {
            match self.store().outage() {
                None => return Ok(()),
                Some(outage) if self.clock().monotonic() >= end => {
                    return Err(out_of_reach(outage));
                }
                Some(_) => self.clock().sleep(LOOK_AGAIN).await,
            }
        }
    }

    /// Asks the store something beside the view, within the time of a change.
    pub async fn ask<T>(&self, question: impl Future<Output = Result<T>>) -> Result<T> {
        self.ask_within(self.settings().limits.change_time, question).await
    }

    /// Same as [`ApiState::ask`], with another time.
    pub async fn ask_within<T>(
        &self,
        time: Duration,
        question: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.check_reachable()?;
        tokio::time::timeout(time, question).await.unwrap_or_else(|_| {
            let message = format!("the store did not answer within {} s", time.as_secs());
            Err(ApiError::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, message)
                .hint(Some("is a majority of the coordinators' ZooKeeper servers running?")))
        })
    }

    /// Carries out an operation as a [change](ApiState::change_within); its refusal is the reply.
    pub async fn carry_out<T: Send + 'static, R: Refusal, F>(
        &self,
        operation: impl FnOnce(ApiState) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Outcome<T, R>> + Send + 'static,
    {
        self.carry_out_within(self.settings().limits.change_time, operation).await
    }

    /// Same as [`ApiState::carry_out`], with another time.
    pub async fn carry_out_within<T: Send + 'static, R: Refusal, F>(
        &self,
        time: Duration,
        operation: impl FnOnce(ApiState) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Outcome<T, R>> + Send + 'static,
    {
        let operation = operation(self.clone());
        self.change_within(time, async { operation.await.map_err(refused) }).await
    }

    /// Carries out a change to its end, also when the client that asked for it goes away: half a
    /// change is worse than an unanswered one. A change that takes too long goes on, too, but the
    /// client is told that its outcome is open.
    pub async fn change_within<T: Send + 'static>(
        &self,
        time: Duration,
        change: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.outcome_within(time, change).await?.unwrap_or_else(|| Err(open_outcome(time)))
    }

    /// Carries something out to its end, also when nobody waits for it any more. Until then the
    /// body of the request counts, of which it may hold all.
    pub async fn to_its_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let body = self.body.clone();
        let work = async move {
            let done = work.await;
            drop(body);
            done
        };
        match self.shared.changes.spawn(work).await {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }

    /// Carries out a change as [`change_within`](Self::change_within) does; `None` if its outcome
    /// is open after that time.
    pub async fn outcome_within<T: Send + 'static>(
        &self,
        time: Duration,
        change: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<Option<Result<T>>> {
        self.check_reachable()?;
        Ok(tokio::time::timeout(time, self.to_its_end(change)).await.ok())
    }
}

/// A connection that is lost for so long may be one that changes servers: requests wait for it.
const HICCUP: Duration = Duration::from_secs(3);

/// Time between two looks whether the store can be reached.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Seconds after which it is worth asking again.
const RETRY_AFTER: u64 = 5;

fn out_of_reach(outage: Duration) -> ApiError {
    let message = format!(
        "the cluster's store has not been reachable for {} s; nothing was changed",
        outage.as_secs()
    );
    ApiError::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, message)
        .hint(Some("is a majority of the coordinators' ZooKeeper servers running?"))
        .retry_after(RETRY_AFTER)
}

fn open_outcome(time: Duration) -> ApiError {
    let message = format!(
        "the store did not confirm the change within {} s; it may still be made",
        time.as_secs()
    );
    ApiError::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, message).hint(Some(
        "look at the present state before repeating it; is a majority of the coordinators' \
         ZooKeeper servers running?",
    ))
}
