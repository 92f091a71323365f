use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_store::{ChangeError, Changes};

use crate::Context;

/// Refusal because what was decided on has changed: nothing is written, and the next pass decides
/// anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it changed meanwhile")]
pub struct Superseded;

impl Context {
    /// Makes a change that is decided on the view. Whether it was made: one that is called for no
    /// more is left out without a word. Of any other failure the log says `failed`, and `late` if
    /// it takes longer than `deadline`.
    pub async fn change(
        &self,
        deadline: Duration,
        decide: impl FnMut(&Cluster) -> Result<(Changes, ()), Superseded> + Send,
        failed: &str,
        late: &str,
    ) -> bool {
        match self.within(deadline, self.store.change(decide)).await {
            Some(Ok(())) => return true,
            Some(Err(ChangeError::Refused(Superseded))) => {}
            Some(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "{failed}");
            }
            None => tracing::warn!("{late}"),
        }
        false
    }
}
