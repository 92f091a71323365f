//! The daemon that has a job: an ephemeral key of the job's record.

use std::time::Duration;

use bytes::Bytes;
use pvc_model::job::{ClaimId, JobId, JobProgress, JobSpec};
use pvc_ports::{CreateMode, Done, MultiError, Op, SessionState, TreeError};

use crate::error::StoreError;
use crate::records::job;
use crate::store::{Store, flat, is_conflict};

/// The time between two looks whether a job was claimed, while that cannot be told.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A job held by this process.
pub struct JobClaim {
    store: Store,
    job: JobId,
    id: ClaimId,
}

impl JobClaim {
    pub fn id(&self) -> ClaimId {
        self.id
    }

    pub fn job(&self) -> &JobId {
        &self.job
    }

    /// Lets the job go, and tries again for as long as it is not known to be let go. Whoever does
    /// not wait for the end leaves the claim to the end of the session.
    pub async fn release(self) {
        let mut released = self.delete().await;
        while let Err(error) = released {
            tracing::debug!(%error, "a claim on a job could not be released; it is tried again, or \
                                     ends with the session");
            if matches!(error, TreeError::SessionExpired | TreeError::Closed) {
                return;
            }
            self.store.clock.sleep(LOOK_AGAIN).await;
            released = self.delete_again().await;
        }
    }

    /// Deletes the claim if it is still this one: it may have been deleted, and another worker may
    /// have the job by now.
    async fn delete_again(&self) -> Result<(), TreeError> {
        self.store.tree.sync().await?;
        match self.store.tree.get(&job::owner(&self.job)).await? {
            Some(entry) if ClaimId(entry.stat.czxid) == self.id => self.delete().await,
            _ => Ok(()),
        }
    }

    async fn delete(&self) -> Result<(), TreeError> {
        let view = self.store.view();
        let other =
            view.jobs.get(&self.job).and_then(|job| job.claim).filter(|now| *now != self.id);
        if other.is_some() {
            return Ok(()); // It was lost, and another worker has the job.
        }
        let release = vec![Op::Delete { path: job::owner(&self.job), version: None }];
        match self.store.tree.multi(release).await {
            Ok(_) => Ok(()),
            Err(MultiError::Refused { why: TreeError::NoNode { .. }, .. }) => Ok(()),
            Err(MultiError::Refused { why: error, .. } | MultiError::Tree(error)) => Err(error),
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
        self.see_claim(id, made, session).await
    }

    /// Records a job that this process has begun, which nobody sees without its claim: no worker
    /// takes it for one that waits, or was left. `None` if there is a job of that name.
    ///
    /// # Errors
    /// The job is not recorded, or by a session that is over.
    ///
    /// # Cancellation
    /// Not to be dropped: a job that was recorded would be this process's, which does not know it.
    pub async fn submit_claimed(
        &self,
        spec: &JobSpec,
        progress: &JobProgress,
    ) -> Result<Option<JobClaim>, StoreError> {
        let (path, data) = (job::owner(&spec.id), Bytes::new());
        let claim = Op::Create { path, data, mode: CreateMode::Ephemeral };
        let ops = job::creation(spec, progress).into_iter().chain([claim]).collect();
        let session = *self.tree.session().borrow();
        let made = match self.tree.multi(ops).await {
            Ok(done) => match done.last() {
                Some(Done::Created(stat)) => Some(ClaimId(stat.czxid)),
                _ => None,
            },
            Err(MultiError::Tree(TreeError::OutcomeUnknown)) => None,
            Err(MultiError::Refused { why, .. }) if is_conflict(&why) => return Ok(None),
            Err(error) => return Err(flat(error)),
        };
        self.see_claim(&spec.id, made, session).await
    }

    /// Waits until the claim that was `made`, or may have been by `session`, is in view.
    async fn see_claim(
        &self,
        id: &JobId,
        made: Option<ClaimId>,
        session: SessionState,
    ) -> Result<Option<JobClaim>, StoreError> {
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
        let paths = [job::root(id), job::owner(id), job::progress(id), job::cancel(id)];
        self.refresh(paths.to_vec()).await?;
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
