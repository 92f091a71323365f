//! Pools, volumes, and snapshots of volumes.

use serde_json::{Map, Value};

wire! {
    /// Image that the disks of new VMs are clones of.
    pub struct Image {
        pub name: String,
        pub pool: String,
        /// The volume that it is.
        pub volume: String,
        /// Text with a unit letter: `10G`.
        pub size: String,
        /// The same, exactly.
        pub size_bytes: u64,
    }

    pub struct Volume {
        pub name: String,
        pub pool: String,
        pub stats: VolumeStats,
    }

    /// Contents that a volume was given.
    pub struct Uploaded {
        pub message: String,
        /// Size of the file that was sent, in bytes; 0 in a dry run.
        pub file_bytes: u64,
        /// Its CRC-32 checksum, as of gzip and zip, as hexadecimal digits; empty in a dry run.
        pub crc32: String,
        /// Its SHA-256 checksum, as hexadecimal digits, if `sha256` was given, which it is then;
        /// empty otherwise.
        pub sha256: String,
        /// Size of the disk that it describes, in bytes; 0 in a dry run.
        pub disk_bytes: u64,
    }

    pub struct VolumeStats {
        pub name: String,
        pub id: String,
        /// Text with a unit letter: `10G`.
        pub size: String,
        /// The same, exactly.
        pub size_bytes: u64,
        pub objects: i64,
        pub order: i64,
        pub object_size: i64,
        pub snapshot_count: i64,
        pub block_name_prefix: String,
        pub format: i64,
        pub features: Vec<String>,
        pub op_features: Vec<String>,
        pub flags: Vec<String>,
        pub create_timestamp: String,
        pub access_timestamp: String,
        pub modify_timestamp: String,
    }

    /// A removed volume that is still kept.
    pub struct TrashedVolume {
        pub pool: String,
        /// The storage's own identifier, by which it is restored and purged.
        pub id: String,
        /// The name that it had.
        pub name: String,
        /// Seconds since 1970-01-01T00:00:00Z.
        pub removed_at: u64,
        /// The moment, likewise, after which it is purged.
        pub kept_until: u64,
    }

    pub struct StorageSnapshot {
        pub pool: String,
        pub volume: String,
        pub snapshot: String,
        pub stats: SnapshotStats,
    }

    /// A volume as its snapshot has it. PVC 1.0.3 sends an empty list where
    /// nothing was collected yet.
    pub struct SnapshotStats {
        pub name: String,
        pub id: String,
        /// Bytes.
        pub size: u64,
        pub objects: i64,
        pub order: i64,
        pub object_size: i64,
        pub snapshot_count: i64,
        pub block_name_prefix: String,
        pub format: i64,
        pub features: Vec<String>,
        pub op_features: Vec<String>,
        pub flags: Vec<String>,
        pub create_timestamp: String,
        pub access_timestamp: String,
        pub modify_timestamp: String,
    }

    pub struct Pool {
        pub name: String,
        pub volume_count: i64,
        /// `default`, `hdd`, `ssd` or `nvme`.
        pub tier: String,
        /// Text.
        pub pgs: String,
        /// Counters by name; 0 before the first collection.
        #[schema(value_type = Object)]
        pub stats: Map<String, Value>,
        /// Age of the counters: as in a report of the storage.
        pub answered_at: Option<u64>,
    }
}
