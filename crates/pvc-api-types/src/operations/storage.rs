//! Pools, volumes, and snapshots of volumes.

use crate::param::{Added, Flag};
use crate::{Pool, StorageSnapshot, TrashedVolume, Uploaded, Volume};

operations! { "storage":
    /// Replies `null`, as PVC 1.0.3.
    GetStorage { GET "/storage", Reader, read -> null }

    /// Replies `null`, as PVC 1.0.3.
    GetStorageCeph { GET "/storage/ceph", Reader, read -> null }
}

params! {
    /// Filter of the pools to list.
    #[derive(Default)]
    pub struct PoolFilter {
        /// A regular expression on the name.
        limit: Option<String>,
    }
}

choice! {
    /// Class of the devices that a pool's data lies on; `default` is all of them.
    pub enum TierWord { Hdd = "hdd", Ssd = "ssd", Nvme = "nvme", Default = "default" }
}

params! {
    /// A pool to create.
    pub struct PoolCreation {
        /// The name of the pool.
        pool: String,
        /// Number of placement groups, a power of two.
        pgs: u32,
        /// Number of copies of each object, and the least number with which the pool can still be
        /// written to: `copies=3,mincopies=2`.
        replcfg: String,
        /// Class of its devices; `default` without it.
        tier: Option<TierWord>,
    }
}

params! {
    /// A pool to create under the name in the path.
    pub struct PoolSettings {
        /// Number of placement groups, a power of two.
        pgs: u32,
        /// Number of copies of each object, and the least number with which the pool can still be
        /// written to: `copies=3,mincopies=2`.
        replcfg: String,
        /// Class of its devices; `default` without it.
        tier: Option<TierWord>,
    }
}

params! {
    /// Another number of placement groups.
    pub struct PgsChange {
        /// Number of placement groups, a power of two.
        pgs: u32,
    }
}

params! {
    /// Whether a pool is really to be removed.
    pub struct PoolRemoval {
        /// `yes`
        really = "yes-i-really-mean-it": String,
        /// Also one with a volume that the definition of a VM names.
        force: Added,
    }
}

operations! { "storage-pool":
    /// The pools by Ceph's number; those that have no statistics yet come first.
    GetStorageCephPool { GET "/storage/ceph/pool", Reader, read(PoolFilter) -> [Pool] }

    /// Creates a pool.
    PostStorageCephPool { POST "/storage/ceph/pool", Administrator, change(PoolCreation) }

    /// A pool.
    GetStorageCephPoolPool { GET "/storage/ceph/pool/{pool}", Reader, read -> [Pool] }

    /// Creates the pool with this name.
    PostStorageCephPoolPool {
        POST "/storage/ceph/pool/{pool}", Administrator, change(PoolSettings)
    }

    /// Gives a pool another number of placement groups.
    PutStorageCephPoolPool { PUT "/storage/ceph/pool/{pool}", Administrator, change(PgsChange) }

    /// Removes a pool with all its volumes and their snapshots, and with those in its trash. None
    /// of them is kept.
    DeleteStorageCephPoolPool {
        DELETE "/storage/ceph/pool/{pool}", Administrator, change(PoolRemoval)
    }
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

params! {
    /// A volume to create.
    pub struct VolumeCreation {
        /// The name of the volume.
        volume: String,
        /// The pool that it lies in.
        pool: String,
        /// Its size: bytes, or a number with a unit such as `10G`.
        size: String,
        /// Also where the pool would be filled above 80 % if the volume were written in full.
        force: Flag,
    }
}

params! {
    /// A volume to create under the names in the path.
    pub struct VolumeSettings {
        /// Its size: bytes, or a number with a unit such as `10G`.
        size: String,
        /// Also where the pool would be filled above 80 % if the volume were written in full.
        force: Added,
    }
}

params! {
    /// Another size or another name of a volume: one of them.
    #[derive(Default)]
    pub struct VolumeChange {
        /// The size it is to have: bytes, or a number with a unit such as `10G`.
        new_size: Option<String>,
        /// The name it is to have.
        new_name: Option<String>,
        /// Also a smaller size, a size that would fill the pool above 80 %, and the name of a
        /// volume that the definition of a VM names.
        force: Added,
    }
}

params! {
    /// Removal of a volume.
    #[derive(Default)]
    pub struct VolumeDeletion {
        /// Also one that the definition of a VM names.
        force: Added,
        /// Not kept in the trash: removed for good at once.
        purge: Added,
    }
}

params! {
    /// A look at a volume.
    #[derive(Default)]
    pub struct VolumeScan {
        /// Also lets go of one that is held for what this version does not know, or whose hold is
        /// damaged. If half of it is changed its VMs start with that.
        force: Added,
    }
}

params! {
    /// A copy of a volume.
    pub struct CloneRequest {
        /// The name of the copy, which lies in the same pool.
        new_volume: String,
        /// Also where the pool would be filled above 80 % if the copy were written in full.
        force: Added,
        /// The same as `force`, by the name under which clients of PVC 1.0.3 send it.
        force_flag: Added,
        /// Shares with the volume what neither has written since, and depends on it.
        copy_on_write: Added,
    }
}

params! {
    /// A clone to make independent.
    #[derive(Default)]
    pub struct Flattening {
        /// Also where the pool would be filled above 80 % by it.
        force: Added,
    }
}

params! {
    /// A disk image that is to be the contents of a volume.
    pub struct VolumeUpload {
        /// The format of the image: `raw`, `qcow2`, `qed`, `vmdk`, `vdi`, `vpc` (VHD) or `vhdx`.
        /// Any of them may be compressed as gzip, xz or zstd.
        image_format: String,
        /// The size of the file that is sent, in bytes: another number of bytes is refused. A `raw`
        /// image that is smaller than the volume and has no size, neither here nor as
        /// `Content-Length`, and no `sha256`, may have been cut and is refused.
        file_size: Option<u64>,
        /// The SHA-256 checksum of the file that is sent, as 64 hexadecimal digits: a file with
        /// another one is refused.
        sha256: Option<String>,
        /// Also where the pool would be filled above 80 %, and a `raw` image that begins as one of
        /// another format does, or may have been cut.
        force: Added,
    }
}

choice! {
    /// Format of a disk image.
    pub enum ImageFormatWord {
        Raw = "raw",
        Qcow2 = "qcow2",
        Qed = "qed",
        Vmdk = "vmdk",
        Vdi = "vdi",
        Vpc = "vpc",
        Vhdx = "vhdx",
    }
}

choice! {
    /// Way in which a file is compressed.
    pub enum CompressionWord { None = "none", Gzip = "gzip", Xz = "xz", Zstd = "zstd" }
}

params! {
    /// The contents to send.
    #[derive(Default)]
    pub struct VolumeDownload {
        /// The snapshot whose contents are meant, and not those of now.
        snapshot: Option<String>,
        /// The format of the image, `raw` without it. Any other is made before the reply begins.
        image_format: Option<ImageFormatWord>,
        /// Compression of the image, `none` without it. With one the reply does not say how many
        /// bytes come.
        compression: Option<CompressionWord>,
    }
}

operations! { "storage-volume":
    /// The volumes by name.
    GetStorageCephVolume { GET "/storage/ceph/volume", Reader, read(VolumeFilter) -> [Volume] }

    /// Creates a volume.
    PostStorageCephVolume { POST "/storage/ceph/volume", Operator, change(VolumeCreation) }

    /// A volume.
    GetStorageCephVolumePoolVolume {
        GET "/storage/ceph/volume/{pool}/{volume}", Reader, read -> [Volume]
    }

    /// Creates the volume with these names.
    PostStorageCephVolumePoolVolume {
        POST "/storage/ceph/volume/{pool}/{volume}", Operator, change(VolumeSettings)
    }

    /// Gives a volume another size, or another name.
    PutStorageCephVolumePoolVolume {
        PUT "/storage/ceph/volume/{pool}/{volume}", Operator, change(VolumeChange)
    }

    /// Removes a volume with its snapshots. It is kept in the trash for as long as
    /// `api.removed_volume_hours` says; the message says how it is restored.
    DeleteStorageCephVolumePoolVolume {
        DELETE "/storage/ceph/volume/{pool}/{volume}", Operator, change(VolumeDeletion)
    }

    /// Makes the record of a volume and its snapshots say what is there.
    PostStorageCephVolumePoolVolumeScan {
        POST "/storage/ceph/volume/{pool}/{volume}/scan", Operator, change(VolumeScan)
    }

    /// Makes a copy of a volume, in the same pool: a full one, unless it is to be a clone.
    PostStorageCephVolumePoolVolumeClone {
        POST "/storage/ceph/volume/{pool}/{volume}/clone", Operator, change(CloneRequest)
    }

    /// Makes a copy-on-write clone independent of the volume that it is a clone of.
    PostStorageCephVolumePoolVolumeFlatten {
        POST "/storage/ceph/volume/{pool}/{volume}/flatten", Operator, change(Flattening)
    }

    /// Replaces the contents of a volume that nobody uses by a disk image.
    ///
    /// The image is the part `file` of a multipart form, or the body itself as
    /// `application/octet-stream`. The volume keeps its size, and what the image does not fill is
    /// zeros. Contents change when the whole image has come and was checked, or not at all; the old
    /// ones go to the trash.
    PostStorageCephVolumePoolVolumeUpload {
        POST "/storage/ceph/volume/{pool}/{volume}/upload", Operator,
        upload(VolumeUpload) -> Uploaded
    }

    /// Sends the contents of a volume that nobody uses, or of a snapshot, as a disk image.
    GetStorageCephVolumePoolVolumeDownload {
        GET "/storage/ceph/volume/{pool}/{volume}/download", Operator, read(VolumeDownload) -> bytes
    }
}

params! {
    /// Filter of the removed volumes to list.
    #[derive(Default)]
    pub struct TrashFilter {
        /// Only those of this pool.
        pool: Option<String>,
    }
}

params! {
    /// A removed volume to restore.
    #[derive(Default)]
    pub struct Restoration {
        /// The name it is to have; without it the one that it had.
        new_name: Option<String>,
    }
}

operations! { "storage-trash":
    /// The removed volumes that are still kept; those that were removed first come first.
    GetStorageCephTrash { GET "/storage/ceph/trash", Reader, read(TrashFilter) -> [TrashedVolume] }

    /// Makes a removed volume one of its pool again, with its snapshots.
    PostStorageCephTrashPoolIdRestore {
        POST "/storage/ceph/trash/{pool}/{id}/restore", Operator, change(Restoration)
    }

    /// Removes a removed volume for good, also before its time.
    DeleteStorageCephTrashPoolId { DELETE "/storage/ceph/trash/{pool}/{id}", Operator, change }
}

params! {
    /// Filter of the snapshots to list.
    #[derive(Default)]
    pub struct SnapshotFilter {
        /// Only those of volumes in this pool.
        pool: Option<String>,
        /// Only those of volumes with this name.
        volume: Option<String>,
        /// A regular expression on the name.
        limit: Option<String>,
    }
}

params! {
    /// A snapshot to take.
    pub struct SnapshotCreation {
        /// The name of the snapshot.
        snapshot: String,
        /// The volume that it is taken of.
        volume: String,
        /// The pool of the volume.
        pool: String,
    }
}

params! {
    /// Another name of a snapshot.
    pub struct SnapshotRename {
        /// The name it is to have.
        new_name: String,
    }
}

params! {
    /// Removal of a snapshot.
    #[derive(Default)]
    pub struct SnapshotDeletion {
        /// Also one that is part of a snapshot of a VM.
        force: Added,
    }
}

operations! { "storage-snapshot":
    /// The snapshots by pool, volume and name.
    GetStorageCephSnapshot {
        GET "/storage/ceph/snapshot", Reader, read(SnapshotFilter) -> [StorageSnapshot]
    }

    /// Takes a snapshot of a volume.
    PostStorageCephSnapshot { POST "/storage/ceph/snapshot", Operator, change(SnapshotCreation) }

    /// A snapshot.
    GetStorageCephSnapshotPoolVolumeSnapshot {
        GET "/storage/ceph/snapshot/{pool}/{volume}/{snapshot}", Reader, read -> [StorageSnapshot]
    }

    /// Takes the snapshot with this name.
    PostStorageCephSnapshotPoolVolumeSnapshot {
        POST "/storage/ceph/snapshot/{pool}/{volume}/{snapshot}", Operator, change
    }

    /// Gives a snapshot another name.
    PutStorageCephSnapshotPoolVolumeSnapshot {
        PUT "/storage/ceph/snapshot/{pool}/{volume}/{snapshot}", Operator, change(SnapshotRename)
    }

    /// Removes a snapshot.
    DeleteStorageCephSnapshotPoolVolumeSnapshot {
        DELETE "/storage/ceph/snapshot/{pool}/{volume}/{snapshot}", Operator,
        change(SnapshotDeletion)
    }

    /// Makes a volume what it was when the snapshot was taken. What was written since is lost.
    PostStorageCephSnapshotPoolVolumeSnapshotRollback {
        POST "/storage/ceph/snapshot/{pool}/{volume}/{snapshot}/rollback", Operator, change
    }
}
