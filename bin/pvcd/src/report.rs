//! Messages of a daemon on the terminal: errors with their causes once, and hints apart.

use std::io::Write;

use pvc_api::ServeError;
use pvc_config::{ConfigErrors, LocateError};
use pvc_embedded::OpenError;
use pvc_node::NodeError;
use pvc_ports::StorageError;
use pvc_store::StoreError;

use crate::dump::DamagedTree;
use crate::settings::IsStandalone;

/// Prints a line; a reader that has gone away is no error.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{}", line.trim_end());
}

/// Prints why the daemon ended on the terminal.
pub fn error(error: &anyhow::Error) {
    let mut terminal = std::io::stderr();
    if let Some(mistakes) = error.downcast_ref::<ConfigErrors>() {
        let _ = write!(terminal, "{mistakes}");
        return;
    }
    let _ = writeln!(terminal, "error: {}", clause(error));
    if let Some(hint) = hint(error) {
        let _ = writeln!(terminal, "hint: {hint}");
    }
}

/// Says in the log why the daemon ends.
pub fn to_log(error: &anyhow::Error) {
    tracing::error!("ending: {}", clause(error));
    if let Some(hint) = hint(error) {
        tracing::error!("hint: {hint}");
    }
}

/// The error and its causes as one clause, each said once.
fn clause(error: &anyhow::Error) -> String {
    let mut clauses: Vec<String> = Vec::new();
    for cause in error.chain().map(ToString::to_string) {
        // A transparent error repeats its source to the letter.
        if clauses.last().is_none_or(|last| !last.ends_with(&cause)) {
            clauses.push(cause);
        }
    }
    clauses.join(": ")
}

fn hint(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        None.or_else(|| cause.downcast_ref::<NodeError>().and_then(NodeError::hint))
            .or_else(|| cause.downcast_ref::<StoreError>().and_then(StoreError::hint))
            .or_else(|| cause.downcast_ref::<ServeError>().and_then(ServeError::hint))
            .or_else(|| cause.downcast_ref::<DamagedTree>().map(DamagedTree::hint))
            .or_else(|| cause.downcast_ref::<OpenError>().map(OpenError::hint))
            .or_else(|| cause.downcast_ref::<LocateError>().map(LocateError::hint))
            .or_else(|| cause.downcast_ref::<IsStandalone>().map(IsStandalone::hint))
            .or_else(|| cause.downcast_ref::<StorageError>().and_then(storage_hint))
    })
}

fn storage_hint(error: &StorageError) -> Option<String> {
    match error {
        StorageError::BeyondSafe { .. } => Some("`--force` lifts this rule".to_owned()),
        StorageError::InUse { .. } => Some("shut the VM that uses it down first".to_owned()),
        _ => None,
    }
}
