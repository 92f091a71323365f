//! SIGTERM, SIGINT and SIGQUIT ask the daemon to stop; SIGHUP asks it to open its log file again.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that is cancelled once the process is asked to stop. `on_hangup` is called for each
/// SIGHUP.
pub fn shutdown_requested(
    on_hangup: impl Fn() + Send + 'static,
) -> std::io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut quit = signal(SignalKind::quit())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let shutdown = CancellationToken::new();
    let asked = shutdown.clone();
    tokio::spawn(async move {
        loop {
            let name = tokio::select! {
                biased;
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
                _ = quit.recv() => "SIGQUIT",
                _ = hangup.recv() => {
                    on_hangup();
                    continue;
                }
            };
            tracing::info!("asked to stop by {name}");
            asked.cancel();
        }
    });
    Ok(shutdown)
}
