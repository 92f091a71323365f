//! Pools and volumes.

use crate::{Pool, Volume};

params! {
    /// Filter of the pools to list.
    #[derive(Default)]
    pub struct PoolFilter {
        /// A regular expression on the name.
        limit: Option<String>,
    }
}

operations! { "storage-pool":
    /// The pools by Ceph's number; those that have no statistics yet come first.
    GetStorageCephPool { GET "/storage/ceph/pool", Reader, read(PoolFilter) -> [Pool] }

    /// A pool.
    GetStorageCephPoolPool { GET "/storage/ceph/pool/{pool}", Reader, read -> [Pool] }
}

params! {
    /// Filter of the volumes to list.
    #[derive(Default)]
    pub struct VolumeFilter {
        /// A regular expression on the name.
        limit: Option<String>,
        /// Only those of this pool.
        pool: Option<String>,
    }
}

operations! { "storage-volume":
    /// The volumes by name.
    GetStorageCephVolume { GET "/storage/ceph/volume", Reader, read(VolumeFilter) -> [Volume] }

    /// A volume.
    GetStorageCephVolumePoolVolume {
        GET "/storage/ceph/volume/{pool}/{volume}", Reader, read -> [Volume]
    }
}
