//! The daemon's own log in the store, for `pvc node log`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::Receiver;
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

/// How long lines are gathered before they are written: one write for a burst.
const GATHER: Duration = Duration::from_millis(500);

/// How long a write may take.
const DEADLINE: Duration = Duration::from_secs(15);

/// How soon a failed write is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// How long the last lines may hold up the way out.
const LAST_LINES: Duration = Duration::from_secs(5);

/// The most lines of one write, and the most that are kept while the store is away.
const BATCH: usize = 2000;

/// Writes `lines` to the store until `shutdown`, then what is left. Nothing here logs about each
/// failure: that would be another line.
pub(crate) async fn run(
    shared: Arc<Shared>,
    mut lines: Receiver<String>,
    shutdown: CancellationToken,
) {
    let mut batch: Vec<String> = Vec::new();
    loop {
        if batch.is_empty() {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                line = lines.recv() => match line {
                    Some(line) => batch.push(line),
                    None => break,
                }
            }
        }
        let rest = if write(&shared, &mut lines, &mut batch).await { GATHER } else { RETRY };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            () = shared.sleep(rest) => {}
        }
    }
    let last = write(&shared, &mut lines, &mut batch);
    if shared.within(LAST_LINES, last).await.is_none() {
        tracing::debug!("the last lines of the log did not reach the store");
    }
}

/// Writes the batch and whatever waits. Says whether that worked; if not, the lines stay in the
/// batch.
async fn write(shared: &Shared, lines: &mut Receiver<String>, batch: &mut Vec<String>) -> bool {
    while let Ok(line) = lines.try_recv() {
        batch.push(line);
    }
    let keep = shared.settings.node_log_lines;
    let excess = batch.len().saturating_sub(BATCH.min(keep.max(1)));
    batch.drain(..excess);
    if batch.is_empty() || !shared.is_connected() {
        return batch.is_empty();
    }
    let append = shared.store.append_node_log(shared.name(), batch, keep);
    let written = matches!(shared.within(DEADLINE, append).await, Some(Ok(())));
    if written {
        batch.clear();
    }
    written
}
