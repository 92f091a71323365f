//! Faults: what is wrong and an operator should know.

use std::time::Duration;

/// The kind of the fault of a VM that was to be restarted and would not have started again.
pub const VM_NOT_RESTARTED: &str = "VM_NOT_RESTARTED";

/// The kind of the fault of a VM that its node has left off when it was made ready.
pub const VM_LEFT_OFF: &str = "VM_LEFT_OFF";

/// The kind of the fault of a node that was fenced: it stays until an operator deletes it.
pub const NODE_FENCED: &str = "NODE_FENCED";

/// The kind of the fault of a node whose hypervisor does not answer.
pub const HYPERVISOR_UNREACHABLE: &str = "HYPERVISOR_UNREACHABLE";

/// Interval at which that fault is written again while it lasts: soon enough to tell one that is
/// over from one that goes on.
pub const HYPERVISOR_REFRESH: Duration = Duration::from_secs(60);

/// An identifier of a fault: upper-case words joined by `_`. What cannot be part of a key is
/// replaced.
pub fn fault_id(kind: &str, name: &str) -> String {
    let replaced =
        |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '.') { c } else { '_' };
    format!("{kind}_{}", name.chars().map(replaced).collect::<String>().to_ascii_uppercase())
}

/// A fault as recorded. Times are local `YYYY-MM-DD HH:MM:SS`, as legacy peers write them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultRecord {
    /// Upper-case words joined by `_`.
    pub id: String,
    pub first_reported: String,
    pub last_reported: String,
    /// Empty until acknowledged.
    pub acknowledged_at: String,
    pub acknowledged: bool,
    /// Points that it takes from the cluster's 100 of health.
    pub delta: i64,
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_one_key_whatever_the_name() {
        assert_eq!(fault_id("VM_STRAY", "web-1.a/b ü"), "VM_STRAY_WEB-1.A_B__");
    }
}
