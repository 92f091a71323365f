//! SIGTERM, SIGINT and SIGQUIT ask the daemon to stop; SIGHUP asks it to open its log file again.

use pvc_daemon::Shutdown;
use tokio::signal::unix::{SignalKind, signal};

/// From now on the process is asked to stop by signals. `on_hangup` is called for each SIGHUP.
pub fn listen(shutdown: &Shutdown, on_hangup: impl Fn() + Send + 'static) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut quit = signal(SignalKind::quit())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let shutdown = shutdown.clone();
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
            // The time runs from here, also where the log is slow.
            shutdown.ask();
            tracing::info!("asked to stop by {name}");
        }
    });
    Ok(())
}
