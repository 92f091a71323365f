//! Volumes, as far as VM commands need them.

wire! {
    pub struct Volume {
        pub name: String,
        pub pool: String,
        pub stats: VolumeStats,
    }

    pub struct VolumeStats {
        pub name: String,
        pub id: String,
        /// Text with a unit letter: `10G`.
        pub size: String,
        pub objects: i64,
        pub order: i64,
        pub object_size: i64,
        pub format: i64,
        pub features: Vec<String>,
        pub flags: Vec<String>,
    }
}
