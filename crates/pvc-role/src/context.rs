use std::sync::Arc;
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::node::{CoordinatorState, NodeRecord};
use pvc_ports::{Ports, SessionState};
use pvc_store::Store;
use tokio_util::sync::CancellationToken;

use crate::Turns;

/// Things that every role of a node is given. Clones are cheap, and are one and the same.
#[derive(Clone)]
pub struct Context {
    name: NodeName,
    pub ports: Ports,
    pub store: Store,
}

/// Reason for which work with a deadline came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum DeadlineError<E> {
    #[error(transparent)]
    Failed(E),
    #[error("no answer within {} s", after.as_secs_f32())]
    Exceeded { after: Duration },
}

impl Context {
    pub fn new(name: NodeName, ports: Ports, store: Store) -> Self {
        Context { name, ports, store }
    }

    /// The node's.
    pub fn name(&self) -> &NodeName {
        &self.name
    }

    /// The monotonic clock.
    pub fn now(&self) -> Duration {
        self.ports.clock.monotonic()
    }

    pub async fn sleep(&self, duration: Duration) {
        self.ports.clock.sleep(duration).await;
    }

    /// Sleeps for `pause`. False if `end` was cancelled before: the role is to end.
    pub async fn rest(&self, pause: Duration, end: &CancellationToken) -> bool {
        tokio::select! {
            biased;
            () = end.cancelled() => false,
            () = self.sleep(pause) => true,
        }
    }

    /// The turns of a role that works until `end`.
    pub fn turns(&self, end: &CancellationToken) -> Turns {
        Turns::new(self.clone(), end.clone())
    }

    /// The outcome of `work`, or `None` if it takes longer than `deadline`; then it is dropped.
    pub async fn within<T>(&self, deadline: Duration, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.sleep(deadline) => None,
        }
    }

    /// Runs work as [`within`](Context::within) does, for those who say the same of work that
    /// failed and of work that took too long.
    ///
    /// # Errors
    /// Those of `work`, and [`DeadlineError::Exceeded`].
    pub async fn in_time<T, E>(
        &self,
        deadline: Duration,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, DeadlineError<E>> {
        match self.within(deadline, work).await {
            Some(done) => done.map_err(DeadlineError::Failed),
            None => Err(DeadlineError::Exceeded { after: deadline }),
        }
    }

    /// Whether there is a connection to the store.
    pub fn is_connected(&self) -> bool {
        matches!(*self.store.session().borrow(), SessionState::Connected { .. })
    }

    /// Record of this node, if there is one.
    pub fn record(&self) -> Option<Arc<NodeRecord>> {
        self.store.view().nodes.get(&self.name).cloned()
    }

    /// Whether the cluster wants this node to be its primary. It may not be yet.
    pub fn is_named_primary(&self, view: &Cluster) -> bool {
        view.config.primary.as_ref() == Some(&self.name)
    }

    /// Whether this node is primary, as far as the store says so now: for what the primary does for
    /// all, and two may do for a moment.
    pub fn is_primary(&self) -> bool {
        self.is_connected()
            && self.record().is_some_and(|own| own.coordinator_state == CoordinatorState::Primary)
    }
}
