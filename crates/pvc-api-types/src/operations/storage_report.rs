//! Reports on the storage as a whole.

use crate::{CephReport, PoolFullness};

operations! { "storage-status":
    /// State of the storage in its own words, as the primary collected it last.
    GetStorageCephStatus { GET "/storage/ceph/status", Reader, read -> CephReport }
}

operations! { "storage-utilization":
    /// Usage of the storage in its own words, as the primary collected it last.
    GetStorageCephUtilization { GET "/storage/ceph/utilization", Reader, read -> CephReport }

    /// Fullness of each pool: how far it is over-committed, when it fills at the rate of the last
    /// days, and which snapshots hold the most.
    GetStorageCephFullness { GET "/storage/ceph/fullness", Reader, read -> [PoolFullness] }
}
