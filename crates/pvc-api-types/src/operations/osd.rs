//! OSDs: the disks that Ceph keeps its data on.

use crate::param::Added;
use crate::{Osd, OsdState};

params! {
    /// Filter of the OSDs to list.
    #[derive(Default)]
    pub struct OsdFilter {
        /// A regular expression on the number.
        limit: Option<String>,
    }
}

params! {
    /// A disk to become an OSD, or several.
    pub struct OsdAddition {
        /// The node that the disk is in.
        node: String,
        /// Absolute path of the disk, or `detect:NAME:SIZE:ID`.
        device: String,
        /// Weight of each OSD in the CRUSH map.
        weight: f64,
        /// Size of each database in the volume group `osd-db`, as a part of its OSD.
        ext_db_ratio: Option<f64>,
        /// Size of each database in the volume group `osd-db`: `40G`.
        ext_db_size: Option<String>,
        /// Number of OSDs to make of the disk; 1 if not given.
        osd_count: Option<u32>,
        /// Only look: the task ends with what would be done to which disk.
        plan: Added,
    }
}

params! {
    /// Another disk for an OSD, and for those that share its disk.
    pub struct OsdReplacement {
        /// Absolute path of the new disk, or `detect:NAME:SIZE:ID`.
        new_device: String,
        /// `yes`: the new disk, and the old one if it is there, lose all that is on them.
        really = "yes-i-really-mean-it": String,
        /// The disk that is replaced, if it is there under another name than the recorded one.
        old_device: Option<String>,
        /// Weight of each OSD in the CRUSH map; that of before if not given.
        weight: Option<f64>,
        /// Size of each database in the volume group `osd-db`, as a part of its OSD.
        ext_db_ratio: Option<f64>,
        /// Size of each database in the volume group `osd-db`: `40G`.
        ext_db_size: Option<String>,
        /// Does not wait until the other OSDs hold all of its data.
        force: Added,
    }
}

params! {
    /// The disk that an OSD is found on.
    pub struct OsdRefresh {
        /// Absolute path of the disk, or `detect:NAME:SIZE:ID`.
        device: String,
    }
}

params! {
    /// Removal of an OSD for good.
    pub struct OsdRemoval {
        /// `yes`: the data on its disk is destroyed.
        really = "yes-i-really-mean-it": String,
        /// Does not wait until the other OSDs hold all of its data, and passes over what fails.
        force: Added,
    }
}

choice! {
    /// Whether an OSD is to hold data.
    pub enum OsdStateWord { In = "in", Out = "out" }
}

params! {
    /// Whether an OSD is to hold data.
    pub struct OsdStateChange {
        /// `in` to hold data, `out` to have it moved to others.
        state: OsdStateWord,
    }
}

operations! { "storage-osd":
    /// The OSDs by number.
    GetStorageCephOsd { GET "/storage/ceph/osd", Reader, read(OsdFilter) -> [Osd] }

    /// Makes OSDs of a disk.
    ///
    /// Refused are a node that is not there or does not answer, a device that is no name of one,
    /// a size and a ratio of the databases at once, and a disk that has partitions or is in use.
    PostStorageCephOsd { POST "/storage/ceph/osd", Administrator, task(OsdAddition) }

    /// An OSD.
    GetStorageCephOsdOsdid { GET "/storage/ceph/osd/{osdid}", Reader, read -> [Osd] }

    /// Moves an OSD, with those that share its disk, to another disk of its node.
    PostStorageCephOsdOsdid {
        POST "/storage/ceph/osd/{osdid}", Administrator, task(OsdReplacement)
    }

    /// Takes up an OSD again, with those that share its disk: after a new installation of its
    /// node.
    PutStorageCephOsdOsdid { PUT "/storage/ceph/osd/{osdid}", Administrator, task(OsdRefresh) }

    /// Removes an OSD, when the others hold all of its data.
    DeleteStorageCephOsdOsdid {
        DELETE "/storage/ceph/osd/{osdid}", Administrator, task(OsdRemoval)
    }

    /// Whether an OSD runs and holds data.
    GetStorageCephOsdOsdidState {
        GET "/storage/ceph/osd/{osdid}/state", Reader, read -> OsdState
    }

    /// Has an OSD hold data or not.
    PostStorageCephOsdOsdidState {
        POST "/storage/ceph/osd/{osdid}/state", Operator, change(OsdStateChange)
    }
}

params! {
    /// A disk to become the volume group `osd-db`.
    pub struct DatabaseGroup {
        /// The node that the disk is in.
        node: String,
        /// Absolute path of the disk, or `detect:NAME:SIZE:ID`.
        device: String,
    }
}

operations! { "storage-osddb":
    /// Makes the volume group for the databases of OSDs of a disk.
    PostStorageCephOsddb { POST "/storage/ceph/osddb", Administrator, task(DatabaseGroup) }
}

choice! {
    /// Action on an option of the OSDs.
    pub enum OptionAction { Set = "set", Unset = "unset" }
}

params! {
    /// An option of all OSDs.
    pub struct OptionChange {
        /// Its name in Ceph: `noout` for one.
        option: String,
        /// Action to take.
        action: OptionAction,
    }
}

operations! { "storage-option":
    /// Sets an option of all OSDs, or takes it back.
    PostStorageCephOption { POST "/storage/ceph/option", Operator, change(OptionChange) }
}
