//! The daemon's own log in the store, for `pvc node log`.

use std::time::Duration;

use pvc_role::Context;
use tokio::sync::mpsc::Receiver;
use tokio_util::sync::CancellationToken;

use crate::pace::Pace;

/// Time in which lines are gathered before they are written: one write for a burst.
const GATHER: Duration = Duration::from_millis(500);

/// Time that a write may take.
const DEADLINE: Duration = Duration::from_secs(15);

/// Time until a failed write is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Time for which the last lines may hold up the way out.
const LAST_LINES: Duration = Duration::from_secs(5);

/// The most lines of one write, and the most that are kept while the store is away.
const BATCH: usize = 2000;

/// Bytes of the log that are written in a second, if there are lines without end: all of it is
/// written for each line.
const PACE: u64 = 16 << 10;

/// Writes `lines` to the store until `end`, then what is left. The store keeps the last `keep` of
/// them. Nothing here logs about each failure: that would be another line.
pub(crate) async fn run(
    context: Context,
    lines: Receiver<String>,
    keep: usize,
    end: CancellationToken,
) {
    let mut log = Log { context, lines, keep, batch: Vec::new(), pace: Pace::new(PACE) };
    log.follow(&end).await;
    let context = log.context.clone();
    if context.within(LAST_LINES, log.write()).await.is_none() {
        tracing::debug!("the last lines of the log did not reach the store");
    }
}

struct Log {
    context: Context,
    lines: Receiver<String>,
    keep: usize,
    /// Lines that are not in the store.
    batch: Vec<String>,
    pace: Pace,
}

impl Log {
    async fn follow(&mut self, end: &CancellationToken) {
        loop {
            if self.batch.is_empty() {
                tokio::select! {
                    biased;
                    () = end.cancelled() => return,
                    line = self.lines.recv() => match line {
                        Some(line) => self.batch.push(line),
                        None => return,
                    }
                }
            }
            let written = self.write().await;
            if !self.context.rest(if written { GATHER } else { RETRY }, end).await {
                return;
            }
            // Of more lines than are kept it is the newest that count: the queue does not fill.
            while !self.pace.is_open(self.context.now()) {
                self.gather();
                if !self.context.rest(GATHER, end).await {
                    return;
                }
            }
        }
    }

    /// Adds the lines that wait to the batch, and drops those that would not be kept.
    fn gather(&mut self) {
        while let Ok(line) = self.lines.try_recv() {
            self.batch.push(line);
        }
        let excess = self.batch.len().saturating_sub(BATCH.min(self.keep.max(1)));
        self.batch.drain(..excess);
    }

    /// Writes the batch and whatever waits. Says whether that worked; if not, the lines stay in the
    /// batch.
    async fn write(&mut self) -> bool {
        self.gather();
        let context = &self.context;
        if self.batch.is_empty() || !context.is_connected() {
            return self.batch.is_empty();
        }
        let append = context.store.append_node_log(context.name(), &self.batch, self.keep);
        let Some(Ok(size)) = context.within(DEADLINE, append).await else { return false };
        self.pace.spend(size, context.now());
        self.batch.clear();
        true
    }
}
