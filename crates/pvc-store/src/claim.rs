//! The worker that has a job: an ephemeral key of the job's record.

use std::time::Duration;

use bytes::Bytes;
use pvc_model::job::{ClaimId, JobId};
use pvc_ports::{CreateMode, Op, SessionState, TreeError};

use crate::error::StoreError;
use crate::records::job;
use crate::store::Store;

/// The time between two looks whether a job was claimed, while that cannot be told.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A job held by this process's worker.
pub struct JobClaim {
    store: Store,
    job: JobId,
    id: ClaimId,
}

impl JobClaim {
    pub fn id(&self) -> ClaimId {
        self.id
    }

    /// Lets the job go. If the connection is lost, the claim goes with the session.
    pub async fn release(self) {
        let JobClaim { store, job, id } = self;
        let other = store.view().jobs.get(&job).and_then(|job| job.claim).filter(|now| *now != id);
        if other.is_some() {
            return; // It was lost, and another worker has the job.
        }
        let path = job::owner(&job);
        let release = vec![Op::Delete { path, version: None }];
        if let Err(error) = store.tree.multi(release).await {
            tracing::debug!(%error, "a claim on a job could not be released; it ends with the \
                                     session");
        }
    }
}

impl Store {
    /// Claims a job for this process. `None` if another holds it, or there is no such job. From
    /// then on the view shows the job as it was at the claim or later.
    ///
    /// # Errors
    /// The job is not claimed, or by a session that is over.
    pub async fn claim_job(&self, id: &JobId) -> Result<Option<JobClaim>, StoreError> {
        let path = job::owner(id);
        let session = *self.tree.session().borrow();
        let made = match self.tree.create(&path, Bytes::new(), CreateMode::Ephemeral).await {
            Ok((_, stat)) => Some(ClaimId(stat.czxid)),
            Err(TreeError::OutcomeUnknown) => None,
            Err(TreeError::NodeExists { .. } | TreeError::NoNode { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // A claim of ours that we do not know of would keep the job from everybody, us included,
        // for as long as our session lasts.
        loop {
            match self.look_at_claim(id, made).await {
                Err(_) if self.may_still_be_in(session) => self.clock.sleep(LOOK_AGAIN).await,
                looked => return looked,
            }
        }
    }

    /// The claim that was `made`, or the one that may have been.
    async fn look_at_claim(
        &self,
        id: &JobId,
        made: Option<ClaimId>,
    ) -> Result<Option<JobClaim>, StoreError> {
        let made = match made {
            Some(made) => Some(made),
            None => self.own(&job::owner(id)).await?.map(|stat| ClaimId(stat.czxid)),
        };
        self.refresh(vec![job::owner(id), job::progress(id), job::cancel(id)]).await?;
        Ok(made.map(|made| JobClaim { store: self.clone(), job: id.clone(), id: made }))
    }

    /// Whether the session that was `before` may last.
    fn may_still_be_in(&self, before: SessionState) -> bool {
        match (before, *self.tree.session().borrow()) {
            (_, SessionState::Expired | SessionState::Closed) => false,
            (SessionState::Connected { id: before }, SessionState::Connected { id: now }) => {
                before == now
            }
            _ => true,
        }
    }
}
