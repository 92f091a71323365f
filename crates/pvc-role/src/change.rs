use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_store::{ChangeError, Changes};

use crate::{Context, DeadlineError};

/// What was decided on has changed: nothing is written, and the next pass decides anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it changed meanwhile")]
pub struct Superseded;

impl Context {
    /// Makes a change that is decided on the view. Whether it was made: one that is called for no
    /// more is left out without a word, and of any other failure the log says `failed`.
    pub async fn change(
        &self,
        deadline: Duration,
        failed: &str,
        decide: impl FnMut(&Cluster) -> Result<(Changes, ()), Superseded> + Send,
    ) -> bool {
        match self.in_time(deadline, self.store.change(decide)).await {
            Ok(()) => true,
            Err(DeadlineError::Failed(ChangeError::Refused(Superseded))) => false,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "{failed}");
                false
            }
        }
    }
}
