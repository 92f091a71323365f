//! Transfers and changes of the storage under way, as tasks that can be looked at on every node;
//! transfers can be cancelled there.
//!
//! The record is an observation: it is written beside the transfer, seldom, and no store that does
//! not answer holds that up or fails it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::StatusCode;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use pvc_model::job::transfer::TransferEnd;
use pvc_model::job::{JobId, JobProgress, JobWork};
use pvc_model::storage::VolumeId;
use pvc_model::transfer::{Speed, Transferred};
use pvc_ops::storage::StorageRefusal;
use pvc_ports::{Course, StorageError};
use pvc_store::{ChangeError, JobClaim, StoreError};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::error::ApiError;
use crate::refuse::refused;
use crate::state::ApiState;

/// Time after which a transfer is recorded: most are over by then, and write nothing.
pub const RECORDED_AFTER: Duration = Duration::from_secs(10);

/// Time between two records of how far a transfer is.
pub const RECORD_EVERY: Duration = Duration::from_secs(5);

/// A transfer under way, which counts what has gone, or a change of the storage. Dropped without an
/// end it has lost its client.
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
    /// Course of a change of the storage, which goes on when the daemon stops.
    course: Course,
    submitter: String,
    /// The task that it is listed as at present, if it is.
    job: Mutex<Option<JobId>>,
    /// The task that somebody has cancelled.
    cancelled: OnceLock<JobId>,
}

impl Transfer {
    /// Begins to count the transfer that is `work`.
    pub fn begin(api: &ApiState, work: JobWork, submitter: &str) -> Self {
        Self::begin_on(api, work, submitter, Course::default())
    }

    /// Begins to look after the change of the storage that is `work` and is on this course.
    pub fn begin_on(api: &ApiState, work: JobWork, submitter: &str, course: Course) -> Self {
        let shared = Arc::new(Shared {
            bytes: AtomicU64::new(0),
            of: OnceLock::new(),
            doing: Mutex::default(),
            stop: api.stopping().child_token(),
            course,
            submitter: submitter.to_owned(),
            job: Mutex::default(),
            cancelled: OnceLock::new(),
        });
        let (end, ended) = oneshot::channel();
        let record = Record {
            speed: Speed::from(api.clock().monotonic()),
            began_at: api.clock().wall().as_secs(),
            api: api.clone(),
            shared: shared.clone(),
            work,
        };
        // As a change: the daemon that stops records the end first.
        api.track(record.keep(ended));
        Transfer { shared, end: Some(end) }
    }

    /// Lists the volume as one that the transfer reads, whom nobody else can open meanwhile.
    pub fn reads(&self, api: &ApiState, volume: &VolumeId) -> Reading {
        let readers = api.readers().clone();
        let reader = (volume.clone(), self.shared.clone());
        let mut now = readers.now();
        let number = now.last_key_value().map_or(0, |(last, _)| last + 1);
        now.insert(number, reader);
        drop(now);
        Reading { readers, number }
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

    /// Ends the download whose last byte was handed to the connection: whether its client has got
    /// it is not known here.
    fn sent(&mut self) {
        let bytes = self.shared.bytes.load(Ordering::Relaxed);
        self.end(TransferEnd::Whole(format!("{bytes} bytes sent")));
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.end(TransferEnd::ClientGone);
    }
}

/// Volumes that transfers of this process read.
#[derive(Default)]
pub struct Readers {
    now: Mutex<BTreeMap<u64, (VolumeId, Arc<Shared>)>>,
}

/// A volume that is read, until this is dropped.
pub struct Reading {
    readers: Arc<Readers>,
    number: u64,
}

impl Readers {
    fn now(&self) -> MutexGuard<'_, BTreeMap<u64, (VolumeId, Arc<Shared>)>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to whoever is refused a change of the storage, with the transfer that the volume
    /// is busy with, if it is one of this process.
    pub fn refused(&self, error: ChangeError<StorageRefusal>) -> ApiError {
        refused(self.explained(error))
    }

    fn explained(&self, error: ChangeError<StorageRefusal>) -> ChangeError<StorageRefusal> {
        let ChangeError::Refused(StorageRefusal::Storage(StorageError::InUse { volume, .. })) =
            &error
        else {
            return error;
        };
        match self.now().values().find(|(read, _)| read == volume) {
            None => error,
            Some((volume, reader)) => ChangeError::Refused(StorageRefusal::Downloaded {
                volume: volume.clone(),
                by: reader.submitter.clone(),
                job: reader.job.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            }),
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.readers.now().remove(&self.number);
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
    speed: Speed,
    /// Seconds since the epoch.
    began_at: u64,
}

impl Record {
    /// Keeps the record until the transfer has ended, and says how.
    async fn keep(mut self, mut ended: oneshot::Receiver<TransferEnd>) {
        let (clock, mut changes) = (self.api.clock().clone(), self.api.store().changed());
        let mut rest = clock.sleep(RECORDED_AFTER);
        let mut claim: Option<JobClaim> = None;
        let (mut was_recorded, mut recorded) = (false, None);
        let end = loop {
            changes.borrow_and_update();
            if let Some(held) = &claim {
                self.heed_request(held);
                if !self.is_held(held) {
                    lost(held);
                    (claim, recorded) = (None, None);
                }
            }
            tokio::select! {
                biased;
                end = &mut ended => break end.unwrap_or(TransferEnd::ClientGone),
                Ok(()) = changes.changed(), if claim.is_some() => {}
                () = &mut rest => {
                    let progress = self.progress();
                    match &claim {
                        None => claim = self.begin().await.unwrap_or_default(),
                        Some(held) if recorded.as_ref() != Some(&progress) => {
                            // Whether it is held any more is seen above.
                            if self.update(held, &progress).await.is_some() {
                                recorded = Some(progress);
                            }
                        }
                        Some(_) => {}
                    }
                    was_recorded |= claim.is_some();
                    rest = clock.sleep(RECORD_EVERY);
                }
            }
        };
        // What was never seen leaves nothing.
        if was_recorded {
            self.end(claim, end).await;
        }
    }

    /// Records the transfer. No more than a delay of the record comes of a store that is away,
    /// which is an error here; `None` if it is not to be recorded.
    async fn begin(&mut self) -> Result<Option<JobClaim>, StoreError> {
        let node = self.api.settings().node.clone();
        let progress = self.progress();
        let (store, clock, random) = (self.api.store(), self.api.clock(), self.api.random());
        let of = (&node, &self.work, self.shared.submitter.as_str());
        let recorded = pvc_ops::transfer::record(store, &**clock, &**random, of, &progress).await;
        let recorded = recorded.inspect_err(|error| {
            tracing::debug!(%error, "a transfer could not be recorded; it will be tried again");
        })?;
        let job = recorded.as_ref().map(|claim| claim.job().clone());
        *self.shared.job.lock().unwrap_or_else(PoisonError::into_inner) = job;
        Ok(recorded)
    }

    /// Whether the record is this daemon's, as far as is known. It is not any more once a session
    /// has ended: then a worker ends the record, or has done so.
    fn is_held(&self, claim: &JobClaim) -> bool {
        let view = self.api.store().view();
        view.jobs.get(claim.job()).and_then(|job| job.claim) == Some(claim.id())
    }

    fn heed_request(&self, claim: &JobClaim) {
        let view = self.api.store().view();
        // Older builds take a request for what cannot be cancelled.
        if self.work.can_be_cancelled()
            && view.jobs.get(claim.job()).is_some_and(|job| job.cancel_requested)
            && self.shared.cancelled.set(claim.job().clone()).is_ok()
        {
            tracing::info!(job = %claim.job(), kind = self.work.name(), "a transfer is cancelled");
            self.shared.stop.cancel();
            self.shared.course.stop();
        }
    }

    /// Records the end, also when the store is away for now: a record that says that it runs would
    /// be believed for as long as this daemon lives. One that has been lost is made anew.
    async fn end(mut self, mut claim: Option<JobClaim>, end: TransferEnd) {
        let is_cancelled = self.shared.cancelled.get().is_some();
        let now = self.api.clock().wall().as_secs();
        let ended = self.progress().transfer_ended(end, is_cancelled, now);
        loop {
            if claim.is_none() {
                claim = match self.begin().await {
                    // No worker is there any more that would forget it.
                    Ok(None) => return,
                    begun => begun.unwrap_or_default(),
                };
            }
            if let Some(held) = claim.take() {
                match self.update(&held, &ended).await {
                    Some(true) => return held.release().await,
                    Some(false) => lost(&held),
                    None => claim = Some(held),
                }
            }
            self.api.clock().sleep(RECORD_EVERY).await;
        }
    }

    /// Writes the progress; `Some(false)` if the record is not ours any more, `None` if it is to be
    /// tried again.
    async fn update(&self, claim: &JobClaim, progress: &JobProgress) -> Option<bool> {
        let updated = pvc_ops::transfer::update(self.api.store(), claim, progress).await;
        updated
            .inspect_err(|error| {
                tracing::debug!(job = %claim.job(), %error, "the progress of a transfer could not \
                                                             be recorded; it will be tried again");
            })
            .ok()
    }

    fn progress(&mut self) -> JobProgress {
        let node = self.api.settings().node.clone();
        let gone = self.look();
        let doing = *self.shared.doing.lock().unwrap_or_else(PoisonError::into_inner);
        match self.work {
            JobWork::ChangeStorage { .. } => {
                let change = JobProgress::of_change(node, self.began_at, doing);
                match self.shared.course.volumes() {
                    Some((gone, of)) => change.volumes_gone(gone, of),
                    None if gone.of.is_some() => change.transferred(gone, None),
                    // Many changes do not say how far they are.
                    None => change,
                }
            }
            _ => JobProgress::of_transfer(node, self.began_at, gone).transferred(gone, doing),
        }
    }

    fn look(&mut self) -> Transferred {
        let course = &self.shared.course;
        let bytes = self.shared.bytes.load(Ordering::Relaxed).max(course.bytes());
        let of = self.shared.of.get().copied().or(course.of());
        self.speed.look(self.api.clock().monotonic(), bytes);
        Transferred { bytes, of, bytes_per_second: self.speed.bytes_per_second() }
    }
}

fn lost(claim: &JobClaim) {
    tracing::warn!(job = %claim.job(), "the record of a transfer is not this daemon's any more, \
                                        whose session has ended; it is recorded anew");
}
