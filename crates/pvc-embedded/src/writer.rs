//! The thread that changes a tree kept on disk.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use pvc_ports::{MultiError, TreeError};
use tokio::sync::oneshot;

use crate::disk::{Disk, WriteError};
use crate::state::{Change, Outcome, Work};
use crate::store::Shared;

/// Largest number of pieces of work that one sync of the disk may answer. More would only make a
/// failure larger.
const BATCH: usize = 256;

struct Request {
    work: Work,
    answer: Option<oneshot::Sender<Result<Outcome, MultiError>>>,
}

impl Request {
    fn answer(self, outcome: Result<Outcome, MultiError>) {
        if let Some(answer) = self.answer {
            let _ = answer.send(outcome); // whoever stopped waiting wants no answer
        }
    }
}

pub(crate) struct Writer {
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(crate) fn start(disk: Disk, shared: Arc<Shared>) -> io::Result<Writer> {
        let (sender, receiver) = channel();
        let worker = Worker { disk, shared, unsettled: None };
        let thread = std::thread::Builder::new()
            .name("pvc-tree-writer".to_owned())
            .spawn(move || worker.run(receiver))?;
        Ok(Writer { requests: Some(sender), thread: Some(thread) })
    }

    pub(crate) async fn submit(&self, work: Work) -> Result<Outcome, MultiError> {
        let (answer, outcome) = oneshot::channel();
        self.send(Request { work, answer: Some(answer) });
        outcome.await.unwrap_or_else(|_| Err(writer_is_gone().into()))
    }

    pub(crate) fn submit_and_forget(&self, work: Work) {
        self.send(Request { work, answer: None });
    }

    fn send(&self, request: Request) {
        if let Some(requests) = &self.requests {
            // If the thread is gone, so is the answer's sender, and that is what the caller hears.
            let _ = requests.send(request);
        }
    }
}

impl Drop for Writer {
    /// Returns when everything submitted is on disk and the file is closed.
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // its panic was reported when it happened
        }
    }
}

fn writer_is_gone() -> TreeError {
    TreeError::Disk(io::Error::other("the thread that writes the tree has died"))
}

struct Worker {
    disk: Disk,
    shared: Arc<Shared>,
    /// A change of which nobody knows yet whether the disk has it. Nothing else may be written
    /// before that is known.
    unsettled: Option<Change>,
}

impl Worker {
    fn run(mut self, requests: Receiver<Request>) {
        while let Ok(first) = requests.recv() {
            let mut batch = vec![first];
            batch.extend(requests.try_iter().take(BATCH - 1));
            self.carry_out(batch);
        }
    }

    fn carry_out(&mut self, batch: Vec<Request>) {
        if !self.settle() {
            return batch
                .into_iter()
                .for_each(|request| request.answer(Err(still_unknown().into())));
        }
        let (change, outcomes) = self.draft(&batch);
        match self.disk.write(&change) {
            Ok(()) => {
                self.shared.publish(change);
                batch
                    .into_iter()
                    .zip(outcomes)
                    .for_each(|(request, outcome)| request.answer(outcome));
            }
            // What is too much together may find room one by one, and what needs no disk succeeds.
            Err(WriteError::Full | WriteError::Failed(_)) if batch.len() > 1 => {
                batch.into_iter().for_each(|request| self.carry_out(vec![request]));
            }
            Err(error) => {
                let unknown = matches!(error, WriteError::Unknown);
                batch.into_iter().for_each(|request| request.answer(Err(describe(&error).into())));
                self.unsettled = unknown.then_some(change);
            }
        }
    }

    fn draft(&self, batch: &[Request]) -> (Change, Vec<Result<Outcome, MultiError>>) {
        self.shared.read(|tree| {
            let mut draft = tree.draft();
            let outcomes = batch.iter().map(|request| draft.apply(&request.work)).collect();
            (draft.finish(), outcomes)
        })
    }

    /// Finds out what became of the change left open, and shows it if the disk has it. False: still
    /// unknown.
    fn settle(&mut self) -> bool {
        let Some(change) = self.unsettled.take() else { return true };
        match self.disk.stored_zxid() {
            Some(stored) => {
                if stored >= change.zxid() {
                    self.shared.publish(change);
                }
                true
            }
            None => {
                self.unsettled = Some(change);
                false
            }
        }
    }
}

fn still_unknown() -> TreeError {
    TreeError::Disk(io::Error::other("the file cannot be opened after a failed write"))
}

fn describe(error: &WriteError) -> TreeError {
    match error {
        WriteError::Full => TreeError::DiskFull,
        WriteError::Failed(error) => {
            TreeError::Disk(io::Error::new(error.kind(), error.to_string()))
        }
        WriteError::Unknown => TreeError::OutcomeUnknown,
    }
}
