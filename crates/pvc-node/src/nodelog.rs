//! The daemon's own log in the store, for `pvc node log`.

use std::time::Duration;

use pvc_role::Context;
use tokio::sync::mpsc::Receiver;
use tokio_util::sync::CancellationToken;

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

/// Writes `lines` to the store until `end`, then what is left. The store keeps the last `keep` of
/// them. Nothing here logs about each failure: that would be another line.
pub(crate) async fn run(
    context: Context,
    mut lines: Receiver<String>,
    keep: usize,
    end: CancellationToken,
) {
    let mut batch: Vec<String> = Vec::new();
    loop {
        if batch.is_empty() {
            tokio::select! {
                biased;
                () = end.cancelled() => break,
                line = lines.recv() => match line {
                    Some(line) => batch.push(line),
                    None => break,
                }
            }
        }
        let written = write(&context, keep, &mut lines, &mut batch).await;
        if !context.rest(if written { GATHER } else { RETRY }, &end).await {
            break;
        }
    }
    let last = write(&context, keep, &mut lines, &mut batch);
    if context.within(LAST_LINES, last).await.is_none() {
        tracing::debug!("the last lines of the log did not reach the store");
    }
}

/// Writes the batch and whatever waits. Says whether that worked; if not, the lines stay in the
/// batch.
async fn write(
    context: &Context,
    keep: usize,
    lines: &mut Receiver<String>,
    batch: &mut Vec<String>,
) -> bool {
    while let Ok(line) = lines.try_recv() {
        batch.push(line);
    }
    let excess = batch.len().saturating_sub(BATCH.min(keep.max(1)));
    batch.drain(..excess);
    if batch.is_empty() || !context.is_connected() {
        return batch.is_empty();
    }
    let append = context.store.append_node_log(context.name(), batch, keep);
    let written = matches!(context.within(DEADLINE, append).await, Some(Ok(())));
    if written {
        batch.clear();
    }
    written
}
