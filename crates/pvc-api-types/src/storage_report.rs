//! Reports on the storage as a whole.

wire! {
    /// Report of the storage in its own words.
    pub struct CephReport {
        /// `status` or `utilization`.
        pub r#type: String,
        pub primary_node: String,
        /// Text for people; empty before the first collection.
        pub ceph_data: String,
        /// Moment at which the storage was asked for it last and answered, in seconds since
        /// 1970-01-01T00:00:00Z by the clock of the primary node; written once a minute. `null` if
        /// it is not known, as while a node of PVC 1.0.3 is the primary.
        pub answered_at: Option<u64>,
    }
    /// Fullness of a pool, now and as it is predicted.
    pub struct PoolFullness {
        pub pool: String,
        /// `ok`, `nearfull`, `backfillfull` or `full`.
        pub state: String,
        /// Bytes stored, without copies.
        pub stored_bytes: u64,
        /// Bytes that can still be stored.
        pub free_bytes: u64,
        /// Stored bytes of stored and free ones, in percent.
        pub used_percent: f64,
        pub volumes: u64,
        pub snapshots: u64,
        /// Sizes of all volumes together, written or not.
        pub provisioned_bytes: u64,
        /// The same of stored and free bytes, in percent.
        pub provisioned_percent: f64,
        /// Bytes that would be missing if all volumes were written full.
        pub overcommitted_bytes: u64,
        /// Ratio at which the cluster calls an OSD nearly full.
        pub nearfull_ratio: f64,
        /// Ratio at which an OSD takes no more data from others.
        pub backfillfull_ratio: f64,
        /// Ratio at which an OSD takes no more writes.
        pub full_ratio: f64,
        /// Seconds of history that the prediction rests on.
        pub history_seconds: u64,
        /// `null` while the history is shorter than a day.
        pub growth_bytes_per_day: Option<i64>,
        /// Seconds until the pool is nearly full at the rate of the last days: 0 if it is so, and
        /// `null` if that cannot be foreseen. The next two likewise.
        pub nearfull_in: Option<u64>,
        pub backfillfull_in: Option<u64>,
        pub full_in: Option<u64>,
        /// Snapshots that hold the most, the largest first: 20 at most, and none that holds
        /// nothing.
        pub largest_snapshots: Vec<SnapshotUsage>,
        /// Time at which the storage was asked last what snapshots hold, in seconds since the
        /// epoch; `null` if it was not asked yet, or there are none.
        pub snapshots_looked_at: Option<u64>,
        /// Number of snapshots of which the storage did not say then what they hold; `null`
        /// likewise.
        pub snapshots_unknown: Option<u64>,
    }
    /// Space that a snapshot holds.
    pub struct SnapshotUsage {
        pub volume: String,
        pub snapshot: String,
        /// Bytes that are kept for this snapshot, and neither for its volume nor for a newer one:
        /// its removal with all older ones of the volume frees what they hold together.
        pub bytes: u64,
        /// Part of them that is not kept for an older one either: its removal alone frees them.
        /// `null` if the storage cannot tell.
        pub own_bytes: Option<u64>,
        /// Time of the storage's answer, in seconds since the epoch.
        pub looked_at: u64,
    }
}
