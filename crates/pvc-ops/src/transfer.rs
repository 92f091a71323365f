//! Transfers as tasks: recorded by the API daemon that they go through, for whoever looks at the
//! tasks of the cluster.

use std::convert::Infallible;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::job::{JobProgress, JobSpec, JobWork, worker_for};
use pvc_ports::{Clock, Random};
use pvc_store::{Change, ChangeError, Changes, Expect, JobClaim, Store, StoreError};

use crate::job::unused;

/// Records a transfer that the API daemon of `node` has begun for `submitter`, and holds the record
/// for it. `None` if it is not recorded: where no worker knows such records, nobody would end one
/// whose daemon dies, and nobody would forget it.
///
/// # Errors
/// If the store cannot be reached, or does not do it.
///
/// # Cancellation
/// Not to be dropped, as [`Store::submit_claimed`] is not.
pub async fn record(
    store: &Store,
    clock: &dyn Clock,
    random: &dyn Random,
    (node, work, submitter): (&NodeName, &JobWork, &str),
    progress: &JobProgress,
) -> Result<Option<JobClaim>, StoreError> {
    let view = store.view();
    if worker_for(&view, work, Some(node)).is_none() {
        return Ok(None);
    }
    let spec = JobSpec {
        id: unused(&view, random),
        work: work.clone(),
        node: node.clone(),
        run_on: node.to_string(),
        submitter: submitter.to_owned(),
        submitted_at: progress.started_at.unwrap_or_else(|| clock.wall().as_secs()),
    };
    store.submit_claimed(&spec, progress).await
}

/// Records how far the transfer is, or how it has ended, while this daemon holds its record;
/// `false` if it does not any more.
///
/// # Errors
/// If the store cannot be reached, or does not do it.
pub async fn update(
    store: &Store,
    claim: &JobClaim,
    progress: &JobProgress,
) -> Result<bool, ChangeError<Infallible>> {
    let job = claim.job();
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        let is_held = |claimed| claimed == claim.id();
        let held = cluster.jobs.get(job).and_then(|job| job.claim).is_some_and(is_held);
        if held {
            changes.push(Change::JobProgress(job.clone(), progress.clone()));
            changes.expect(Expect::JobClaim(job.clone()));
        }
        Ok((changes, held))
    };
    store.change(decide).await
}
