//! Knowledge of what earlier processes of this node have left mapped for scripts.

use std::collections::BTreeSet;

use pvc_model::storage::VolumeId;
use tokio::sync::watch;

/// Volumes that earlier processes of this node have left mapped: what is held for their scripts
/// stays held. `None` as long as it may be any.
pub(crate) type Left = Option<BTreeSet<VolumeId>>;

/// Knowledge of what is left.
#[derive(Default)]
pub(crate) struct LeftOver(watch::Sender<Left>);

impl LeftOver {
    /// Whether the volume may be mapped still.
    pub fn may_be(&self, volume: &VolumeId) -> bool {
        self.0.borrow().as_ref().is_none_or(|left| left.contains(volume))
    }

    /// Returns when the volume cannot be mapped any more.
    pub async fn until_gone(&self, volume: &VolumeId) {
        let mut left = self.subscribe();
        while self.may_be(volume) && left.changed().await.is_ok() {}
    }

    pub fn note(&self, left: Left) {
        self.0.send_if_modified(|noted| {
            let is_new = *noted != left;
            *noted = left;
            is_new
        });
    }

    /// Tells when something else is left.
    pub fn subscribe(&self) -> watch::Receiver<Left> {
        self.0.subscribe()
    }
}
