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
    }
}
