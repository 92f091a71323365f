//! Transfers under way, as tasks that can be looked at and cancelled on every node.
//!
//! The record is an observation: it is written beside the transfer, seldom, and no store that does
//! not answer holds that up or fails it.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::StatusCode;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use pvc_model::job::transfer::TransferEnd;
use pvc_model::job::{JobId, JobProgress, JobWork};
use pvc_model::transfer::{Speed, Transferred};
use pvc_store::JobClaim;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::error::ApiError;
use crate::state::ApiState;

/// Time after which a transfer is recorded: most are over by then, and write nothing.
pub const RECORDED_AFTER: Duration = Duration::from_secs(2);

/// Time between two records of how far a transfer is.
pub const RECORD_EVERY: Duration = Duration::from_secs(5);

/// A transfer under way, which counts what has gone. Dropped without an end it has lost its client.
pub struct Transfer {
    shared: Arc<Shared>,
    end: Option<oneshot::Sender<TransferEnd>>,
}

struct Shared {
    bytes: AtomicU64,
    /// Bytes in all, once that is known.
    of: OnceLock<u64>,
    /// Work while nothing goes, in words.
    doing: Mutex<Option<&'static str>>,
    stop: CancellationToken,
    /// The task that somebody has cancelled.
    cancelled: OnceLock<JobId>,
}

impl Transfer {
    /// Begins to count the transfer that is `work`.
    pub fn begin(api: &ApiState, work: JobWork, submitter: &str) -> Self {
        let shared = Arc::new(Shared {
            bytes: AtomicU64::new(0),
            of: OnceLock::new(),
            doing: Mutex::default(),
            stop: api.stopping().child_token(),
            cancelled: OnceLock::new(),
        });
        let (end, ended) = oneshot::channel();
        let record = Record {
            speed: Speed::from(api.clock().monotonic()),
            began_at: api.clock().wall().as_secs(),
            api: api.clone(),
            shared: shared.clone(),
            work,
            submitter: submitter.to_owned(),
        };
        // As a change: the daemon that stops records the end first.
        api.track(record.keep(ended));
        Transfer { shared, end: Some(end) }
    }

    /// Says how many bytes there are in all.
    pub fn announce(&self, bytes: u64) {
        // Nobody says it twice.
        let _ = self.shared.of.set(bytes);
    }

    pub fn count(&self, bytes: usize) {
        self.shared.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Says what is done while nothing goes.
    pub fn say(&self, doing: Option<&'static str>) {
        *self.shared.doing.lock().unwrap_or_else(PoisonError::into_inner) = doing;
    }

    /// Returns the token that is cancelled when somebody cancels the task, or the daemon stops.
    pub fn stop(&self) -> &CancellationToken {
        &self.shared.stop
    }

    /// Ends the transfer that was [stopped](Self::stop); returns the answer to its client.
    pub fn stopped(self) -> ApiError {
        let error = match self.shared.cancelled.get() {
            Some(job) => ApiError::refused(format!("it was cancelled, as task `{job}`")),
            None => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon stops"),
        };
        self.failed(error)
    }

    /// Ends the transfer that has failed; returns the answer to its client.
    pub fn failed(mut self, error: ApiError) -> ApiError {
        self.end(TransferEnd::Failed(error.body.message.clone()));
        error
    }

    /// Ends the transfer.
    pub fn end(&mut self, end: TransferEnd) {
        if let Some(sender) = self.end.take() {
            // Whoever records it may be gone with the runtime.
            let _ = sender.send(end);
        }
    }

    /// The body of a reply, counted as it is sent. Its end is the end of the transfer.
    pub fn through(self, body: Body) -> Body {
        Body::from_stream(Counted { body: body.into_data_stream(), transfer: self })
    }

    fn sent(&mut self) {
        let bytes = self.shared.bytes.load(Ordering::Relaxed);
        self.end(TransferEnd::Whole(format!("{bytes} bytes")));
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.end(TransferEnd::ClientGone);
    }
}

/// The body of a download.
struct Counted {
    body: BodyDataStream,
    transfer: Transfer,
}

impl Stream for Counted {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.body.poll_next_unpin(context);
        match &next {
            Poll::Ready(Some(Ok(piece))) => self.transfer.count(piece.len()),
            Poll::Ready(Some(Err(error))) => {
                let end = TransferEnd::Failed(error.to_string());
                self.transfer.end(end);
            }
            Poll::Ready(None) => self.transfer.sent(),
            Poll::Pending => {}
        }
        next
    }
}

impl Drop for Counted {
    /// Whoever sends a body of a known length does not ask for more once that has gone.
    fn drop(&mut self) {
        let bytes = self.transfer.shared.bytes.load(Ordering::Relaxed);
        if self.transfer.shared.of.get() == Some(&bytes) {
            self.transfer.sent();
        }
    }
}

/// The record of a transfer, and who keeps it.
struct Record {
    api: ApiState,
    shared: Arc<Shared>,
    work: JobWork,
    submitter: String,
    speed: Speed,
    /// Seconds since the epoch.
    began_at: u64,
}

impl Record {
    /// Keeps the record until the transfer has ended, and says how.
    async fn keep(mut self, mut ended: oneshot::Receiver<TransferEnd>) {
        let clock = self.api.clock().clone();
        let mut rest = RECORDED_AFTER;
        let claim = loop {
            tokio::select! {
                biased;
                // It was never seen.
                _ = &mut ended => return,
                () = clock.sleep(rest) => {}
            }
            match self.begin().await {
                Some(claim) => break claim,
                None => rest = RECORD_EVERY,
            }
        };
        let end = self.watch(&claim, ended).await;
        self.end(claim, end).await;
    }

    /// Records the transfer. No more than a delay of the record comes of a store that is away.
    async fn begin(&mut self) -> Option<JobClaim> {
        let node = self.api.settings().node.clone();
        let progress = JobProgress::of_transfer(node.clone(), self.began_at, self.look());
        let (store, clock, random) = (self.api.store(), self.api.clock(), self.api.random());
        let of = (&node, &self.work, self.submitter.as_str());
        let recorded = pvc_ops::transfer::record(store, &**clock, &**random, of, &progress).await;
        recorded.unwrap_or_else(|error| {
            tracing::debug!(%error, "a transfer could not be recorded; it will be tried again");
            None
        })
    }

    /// Takes notice of a request to cancel, and records how far the transfer is when that has
    /// changed, until it ends.
    async fn watch(
        &mut self,
        claim: &JobClaim,
        mut ended: oneshot::Receiver<TransferEnd>,
    ) -> TransferEnd {
        let (clock, mut changes) = (self.api.clock().clone(), self.api.store().changed());
        let mut rest = clock.sleep(RECORD_EVERY);
        let mut recorded = None;
        loop {
            changes.borrow_and_update();
            self.heed_request(claim);
            tokio::select! {
                biased;
                end = &mut ended => return end.unwrap_or(TransferEnd::ClientGone),
                Ok(()) = changes.changed() => {}
                () = &mut rest => {
                    let progress = self.progress();
                    if recorded.as_ref() != Some(&progress) && self.update(claim, &progress).await {
                        recorded = Some(progress);
                    }
                    rest = clock.sleep(RECORD_EVERY);
                }
            }
        }
    }

    fn heed_request(&self, claim: &JobClaim) {
        let view = self.api.store().view();
        if view.jobs.get(claim.job()).is_some_and(|job| job.cancel_requested)
            && self.shared.cancelled.set(claim.job().clone()).is_ok()
        {
            tracing::info!(job = %claim.job(), kind = self.work.name(), "a transfer is cancelled");
            self.shared.stop.cancel();
        }
    }

    /// Records the end, also when the store is away for now: a record that says that it runs would
    /// be believed for as long as this daemon lives.
    async fn end(mut self, claim: JobClaim, end: TransferEnd) {
        let is_cancelled = self.shared.cancelled.get().is_some();
        let now = self.api.clock().wall().as_secs();
        let ended = self.progress().transfer_ended(end, is_cancelled, now);
        while !self.update(&claim, &ended).await {
            self.api.clock().sleep(RECORD_EVERY).await;
        }
        claim.release().await;
    }

    /// Returns whether there is nothing more to write: it was written, or is not ours any more.
    async fn update(&self, claim: &JobClaim, progress: &JobProgress) -> bool {
        match pvc_ops::transfer::update(self.api.store(), claim, progress).await {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(job = %claim.job(), %error, "the progress of a transfer could not \
                                                             be recorded; it will be tried again");
                false
            }
        }
    }

    fn progress(&mut self) -> JobProgress {
        let node = self.api.settings().node.clone();
        let gone = self.look();
        let doing = *self.shared.doing.lock().unwrap_or_else(PoisonError::into_inner);
        JobProgress::of_transfer(node, self.began_at, gone).transferred(gone, doing)
    }

    fn look(&mut self) -> Transferred {
        let bytes = self.shared.bytes.load(Ordering::Relaxed);
        let of = self.shared.of.get().copied();
        self.speed.look(self.api.clock().monotonic(), bytes);
        Transferred { bytes, of, bytes_per_second: self.speed.bytes_per_second() }
    }
}
