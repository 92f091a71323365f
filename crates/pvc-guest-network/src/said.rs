//! Complaints that were logged, and are not logged again while they last.

use std::collections::BTreeMap;

use pvc_model::with_causes;
use pvc_ports::NetworkError;
use pvc_role::DeadlineError;

/// Complaints by what they are about, each with its text.
pub(crate) type Complaints = BTreeMap<String, String>;

/// A failure of the kernel's links or cards with its causes, and what to do about it.
pub(crate) fn in_words(error: DeadlineError<NetworkError>) -> String {
    let hint = match &error {
        DeadlineError::Failed(error) => error.hint(),
        DeadlineError::Exceeded { .. } => None,
    };
    let text = with_causes(&error);
    hint.map_or_else(|| text.clone(), |hint| format!("{text} ({hint})"))
}

#[derive(Default)]
pub(crate) struct Said {
    said: Complaints,
}

impl Said {
    /// Complaints of the last time.
    #[cfg(test)]
    pub fn said(&self) -> &Complaints {
        &self.said
    }

    /// Logs what is new or has another text than before, and what is no longer so.
    pub fn log_new(&mut self, now: Complaints) {
        for (about, text) in &now {
            if self.said.get(about) != Some(text) {
                tracing::error!("{about}: {text}");
            }
        }
        for (about, text) in self.said.iter().filter(|(about, _)| !now.contains_key(*about)) {
            tracing::info!("{about}: no longer so: {text}");
        }
        self.said = now;
    }
}
