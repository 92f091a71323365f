//! Faults: what is wrong and an operator should know.

/// A fault as recorded. Times are local `YYYY-MM-DD HH:MM:SS`, as older peers write them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultRecord {
    /// Upper-case words joined by `_`.
    pub id: String,
    pub first_reported: String,
    pub last_reported: String,
    /// Empty until acknowledged.
    pub acknowledged_at: String,
    pub acknowledged: bool,
    /// What it takes from the cluster's 100 points of health.
    pub delta: i64,
    pub message: String,
}
