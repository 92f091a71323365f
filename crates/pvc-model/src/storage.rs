//! Pools, volumes, snapshots: their names and records.

use std::fmt;
use std::sync::Arc;

use crate::name::{BadName, check_name};

/// A kind of name with rules of its own when it is created, and none when it is read from a record.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $limit:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as a record has it.
            pub fn new(name: impl AsRef<str>) -> Self {
                $name(Arc::from(name.as_ref()))
            }
            /// The name as an operator gives it: it becomes part of a path and of command lines.
            pub fn parse(name: &str) -> Result<Self, BadName> {
                check_name($what, name, $limit).map(|()| $name::new(name))
            }
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// The name of a pool.
    PoolName, "pool", 63
}
name! {
    /// The name of a volume within its pool.
    VolumeName, "volume", 128
}
name! {
    /// The name of a snapshot within its volume.
    SnapshotName, "snapshot", 128
}

/// End of the name under which a storage makes a volume until it is whole, which begins with the
/// name that it is to have.
pub const PARTIAL: &str = ".partial";

/// Begin of the names of the snapshots that a storage takes for itself, to copy or to download a
/// volume.
pub const CLONED: &str = "pvc-clone";

/// Begin of those that are taken to download a volume.
pub const DOWNLOADED: &str = "pvc-clone-download-";

impl VolumeName {
    /// Whether the name is the storage's own: what has it is being made by somebody, or is left of
    /// what was not made whole.
    pub fn is_reserved(&self) -> bool {
        self.as_str().ends_with(PARTIAL)
    }

    /// Name under which the storage makes this volume: `NAME.0123456789abcdef.partial`, with a
    /// number that no other has.
    #[must_use]
    pub fn partial(&self, number: u64) -> VolumeName {
        VolumeName::new(format!("{self}.{number:016x}{PARTIAL}"))
    }

    /// Whether the name is one of [these](VolumeName::partial).
    pub fn is_partial(&self) -> bool {
        let number = self.as_str().strip_suffix(PARTIAL).and_then(|rest| rest.rsplit_once('.'));
        number.is_some_and(|(name, number)| !name.is_empty() && is_number(number))
    }
}

/// Whether the text is a number that no other name has: 16 hexadecimal digits, the letters small.
fn is_number(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
    text.len() == 16 && text.bytes().all(is_digit)
}

impl SnapshotName {
    /// Name of a snapshot of the storage's own with a number that no other has: it
    /// [passes](SnapshotName::is_passing) unless it gets another.
    pub fn passing(number: u64) -> Self {
        SnapshotName::new(format!("{CLONED}-{number:016x}{PARTIAL}"))
    }

    /// Whether the storage has taken the snapshot for the time of a copy or a download, which is
    /// under way or was cut short. Others of its own are what clones stand on; somebody else's that
    /// begins as these do is none: it would go after a while.
    pub fn is_passing(&self) -> bool {
        self.is_of_download() || self.is_of_copy()
    }

    fn is_of_download(&self) -> bool {
        self.as_str().strip_prefix(DOWNLOADED).is_some_and(is_number)
    }

    /// Name of a snapshot of the storage's own, with a number that no other has, for a
    /// copy-on-write clone to [stand on](SnapshotName::is_base).
    pub fn base(number: u64) -> Self {
        SnapshotName::new(format!("{CLONED}-{number:016x}"))
    }

    /// Whether the storage has taken the snapshot for copy-on-write clones to stand on. Somebody
    /// else's that begins as these do is none: it would go when no clone stands on it.
    pub fn is_base(&self) -> bool {
        let number = self.as_str().strip_prefix(CLONED).and_then(|rest| rest.strip_prefix('-'));
        number.is_some_and(is_number)
    }

    /// Whether the storage has taken the snapshot for the time of a copy, or as one that is to get
    /// another name: it is called after the volume in the making, or has a number alone.
    pub fn is_of_copy(&self) -> bool {
        let own = self.as_str().strip_prefix(CLONED).and_then(|rest| rest.strip_prefix('-'));
        own.is_some_and(|name| {
            name.strip_suffix(PARTIAL).is_some_and(is_number) || VolumeName::new(name).is_partial()
        })
    }

    /// Whether the name is the storage's own: what has it is being copied by somebody, or is left
    /// of a copy that was cut short.
    pub fn is_reserved(&self) -> bool {
        self.as_str().starts_with(CLONED)
    }
}

/// The storage's own identifier of a volume in the trash. It belongs to that volume alone: another
/// one that had the same name has another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrashId(Arc<str>);

impl TrashId {
    /// The most characters that one has. Ceph's own have about 14.
    const LIMIT: usize = 64;

    /// The identifier as the storage or an operator gives it; `None` if it cannot be one.
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
        let is_one = (1..=TrashId::LIMIT).contains(&text.len()) && text.bytes().all(is_digit);
        is_one.then(|| TrashId(Arc::from(text)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TrashId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A volume, written `pool/volume`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId {
    pub pool: PoolName,
    pub volume: VolumeName,
}

impl VolumeId {
    /// `pool/volume` as a record or an XML source has it, if it has that shape.
    pub fn from_record(text: &str) -> Option<Self> {
        let (pool, volume) = text.split_once('/')?;
        let well_formed = !pool.is_empty() && !volume.is_empty();
        well_formed.then(|| VolumeId { pool: PoolName::new(pool), volume: VolumeName::new(volume) })
    }

    /// `pool/volume` as an operator gives it for something that is to be created.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        let Some((pool, volume)) = text.split_once('/') else {
            return Err(VolumeName::parse(text)
                .err()
                .unwrap_or(BadName::NoPool { name: text.to_owned() }));
        };
        Ok(VolumeId { pool: PoolName::parse(pool)?, volume: VolumeName::parse(volume)? })
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.volume)
    }
}

/// Access of a hypervisor to RBD volumes: what the `<source>` and `<auth>` of a disk say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RbdAccess {
    /// The monitors, by name or address; none leaves the choice to the hypervisor's own
    /// `ceph.conf`.
    pub monitors: Vec<String>,
    pub port: u16,
    /// Ceph's name for the hypervisor as a user.
    pub user: String,
    /// UUID of the secret in which libvirt keeps that user's key; `None` if Ceph asks for none.
    pub secret: Option<String>,
}

/// Record of an OSD. `stats` is JSON text as its writer left it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OsdRecord {
    pub id: String,
    pub node: String,
    pub device: String,
    pub db_device: String,
    pub fsid: String,
    /// UUID of the Ceph cluster that it belongs to.
    pub cluster: String,
    /// Volume group and logical volume that its data lies on.
    pub group: String,
    pub volume: String,
    pub is_split: bool,
    pub stats: Arc<str>,
}

/// Record of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolRecord {
    pub name: PoolName,
    pub pgs: String,
    pub tier: String,
    pub stats: Arc<str>,
}

/// Record of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRecord {
    pub id: VolumeId,
    pub stats: Arc<str>,
    /// Snapshots with their stats text, by name.
    pub snapshots: Vec<(SnapshotName, Arc<str>)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_as_the_storages_own_and_has_no_number_is_somebodys() {
        for (name, is_base, is_passing) in [
            ("pvc-clone-0123456789abcdef", true, false),
            ("pvc-clone-0123456789abcdef.partial", false, true),
            ("pvc-clone-web.1.0123456789abcdef.partial", false, true),
            ("pvc-clone-download-0123456789abcdef", false, true),
            ("pvc-clone-download-1", false, false),
            ("pvc-clone-download-nightly", false, false),
            ("pvc-clone-web.partial", false, false),
            ("pvc-clone-.partial", false, false),
            ("pvc-clone-golden", false, false),
            ("pvc-clones-monday", false, false),
            ("pvc-clone-0123456789ABCDEF", false, false),
        ] {
            let name = SnapshotName::new(name);
            assert_eq!((name.is_base(), name.is_passing()), (is_base, is_passing), "{name}");
        }
        assert!(SnapshotName::passing(7).is_passing() && SnapshotName::base(7).is_base());
        let of_download = SnapshotName::new(format!("{DOWNLOADED}{:016x}", 7));
        let of_copy = SnapshotName::new("pvc-clone-download-x.0123456789abcdef.partial");
        assert_eq!([of_download.is_of_copy(), of_copy.is_of_copy()], [false, true]);
    }

    #[test]
    fn a_volume_in_the_making_is_known_by_its_number() {
        let partial = VolumeName::new("web.1").partial(0xfe);
        assert_eq!(partial.as_str(), "web.1.00000000000000fe.partial");
        assert!(partial.is_partial() && partial.is_reserved());
        for name in [
            "web.partial",
            "web",
            ".00000000000000fe.partial",
            "00000000000000fe.partial",
            "web.00000000000000FE.partial",
            "web.0000000000000fe.partial",
            "web.00000000000000fe.partial.partial",
            "web.00000000000000fe",
        ] {
            assert!(!VolumeName::new(name).is_partial(), "{name}");
        }
    }
}
