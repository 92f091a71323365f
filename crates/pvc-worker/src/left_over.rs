//! Knowledge of what earlier processes of this node have left mapped for scripts.

use tokio::sync::watch;

/// Knowledge of what earlier processes of this node have left. Until nothing of it is mapped any
/// more, what is held for their scripts stays held.
#[derive(Default)]
pub(crate) struct LeftOver(watch::Sender<bool>);

impl LeftOver {
    /// Whether nothing of it is mapped any more.
    pub fn is_gone(&self) -> bool {
        *self.0.borrow()
    }

    pub fn note_gone(&self) {
        self.0.send_replace(true);
    }

    /// Tells when that is known anew.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }
}
