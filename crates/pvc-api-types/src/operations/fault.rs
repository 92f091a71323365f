//! Faults: to read, to acknowledge, to delete.

use crate::Fault;

choice! {
    /// Key that faults are sorted by.
    pub enum SortKey {
        FirstReported = "first_reported",
        LastReported = "last_reported",
        AcknowledgedAt = "acknowledged_at",
        Status = "status",
        HealthDelta = "health_delta",
        Message = "message",
    }
}

params! {
    /// Order of the faults.
    #[derive(Default)]
    pub struct FaultOrder {
        /// Ascending, but the times of report descending. Without it: by the latest report.
        sort_key: Option<SortKey>,
    }
}

operations! { "faults":
    /// All faults.
    GetFaults { GET "/faults", Reader, read(FaultOrder) -> [Fault] }

    /// Acknowledges all faults.
    PutFaults { PUT "/faults", Operator, change }

    /// Deletes all faults.
    DeleteFaults { DELETE "/faults", Operator, change }

    /// A fault, or none.
    GetFaultsFaultId { GET "/faults/{fault_id}", Reader, read -> [Fault] }

    /// Acknowledges a fault.
    PutFaultsFaultId { PUT "/faults/{fault_id}", Operator, change }

    /// Deletes a fault. It returns if its condition is found again.
    DeleteFaultsFaultId { DELETE "/faults/{fault_id}", Operator, change }
}
