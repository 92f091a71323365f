//! OSDs of Ceph.

use serde_json::{Map, Value};

wire! {
    pub struct Osd {
        /// Its number, as text.
        pub id: String,
        pub fsid: String,
        pub node: String,
        pub device: String,
        /// Whether it shares its device with others.
        pub is_split: bool,
        /// Volume of its database; empty if that lies on the device itself.
        pub db_device: String,
        /// Figures by name. Before the first collection each is the text `|`, but `up` and `in`.
        #[schema(value_type = Object)]
        pub stats: Map<String, Value>,
        /// Age of the figures: as in a report of the storage.
        pub answered_at: Option<u64>,
    }

    /// Whether an OSD runs and holds data.
    pub struct OsdState {
        pub id: String,
        /// 1 if it holds data, 0 if not.
        pub r#in: i64,
        /// 1 if it runs, 0 if not.
        pub up: i64,
    }
}
