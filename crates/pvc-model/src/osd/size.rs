//! Sizes of databases and blocks, as LVM allots them.

/// LVM allots space in extents of this many bytes.
pub const EXTENT_BYTES: u64 = 4 << 20;

/// Size of the database of an OSD that lies on another device than its data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DbSize {
    /// A fraction of the size of the data's volume: more than 0, at most 1.
    Ratio(f64),
    Bytes(u64),
}

/// Reason why a database cannot have the size that was asked for.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BadDbSize {
    #[error("a database has a size or a ratio, not both")]
    Both,
    #[error("a database's ratio is more than 0 and at most 1, not {ratio}")]
    Ratio { ratio: f64 },
    #[error(
        "a database of {bytes} bytes is too small: LVM allots no less than {EXTENT_BYTES} bytes"
    )]
    TooSmall { bytes: u64 },
}

impl DbSize {
    /// The size that an ask means, which may name one of the two; `None` for no database of its
    /// own.
    pub fn of(ratio: Option<f64>, bytes: Option<u64>) -> Result<Option<Self>, BadDbSize> {
        match (ratio, bytes) {
            (Some(_), Some(_)) => Err(BadDbSize::Both),
            (None, None) => Ok(None),
            (Some(ratio), None) if ratio > 0.0 && ratio <= 1.0 => Ok(Some(DbSize::Ratio(ratio))),
            (Some(ratio), None) => Err(BadDbSize::Ratio { ratio }),
            (None, Some(bytes)) if bytes >= EXTENT_BYTES => Ok(Some(DbSize::Bytes(bytes))),
            (None, Some(bytes)) => Err(BadDbSize::TooSmall { bytes }),
        }
    }

    /// Bytes of the database for a block of so many, in whole extents.
    pub fn bytes(self, block_bytes: u64) -> Result<u64, BadDbSize> {
        let asked = match self {
            DbSize::Ratio(ratio) => (block_bytes as f64 * ratio) as u64,
            DbSize::Bytes(bytes) => bytes,
        };
        match whole_extents(asked) {
            0 => Err(BadDbSize::TooSmall { bytes: asked }),
            bytes => Ok(bytes),
        }
    }
}

/// The most whole extents in so many bytes, in bytes.
pub fn whole_extents(bytes: u64) -> u64 {
    bytes - bytes % EXTENT_BYTES
}

/// Bytes of each of `count` equal blocks in a volume group with so many bytes free.
pub fn block_bytes(free_bytes: u64, count: u32) -> u64 {
    whole_extents(free_bytes / u64::from(count.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_database_has_one_size_that_lvm_can_allot() {
        assert_eq!(DbSize::of(None, None), Ok(None));
        assert_eq!(DbSize::of(Some(0.05), None), Ok(Some(DbSize::Ratio(0.05))));
        assert_eq!(DbSize::of(Some(1.0), None), Ok(Some(DbSize::Ratio(1.0))));
        assert_eq!(DbSize::of(None, Some(GIB)), Ok(Some(DbSize::Bytes(GIB))));
        assert_eq!(DbSize::of(Some(0.05), Some(GIB)), Err(BadDbSize::Both));
        for ratio in [0.0, -0.5, 1.01, f64::NAN, f64::INFINITY] {
            assert!(DbSize::of(Some(ratio), None).is_err(), "{ratio}");
        }
        for bytes in [0, 1, EXTENT_BYTES - 1] {
            assert_eq!(DbSize::of(None, Some(bytes)), Err(BadDbSize::TooSmall { bytes }));
        }
    }

    #[test]
    fn what_is_allotted_is_whole_extents_and_never_more_than_asked() {
        for (size, block, bytes) in [
            (DbSize::Ratio(0.05), 100 * GIB, 5 * GIB),
            (DbSize::Ratio(0.05), 101 * GIB, 5 * GIB + 12 * EXTENT_BYTES),
            (DbSize::Bytes(GIB), 1, GIB),
            (DbSize::Bytes(GIB + 1), 1, GIB),
        ] {
            assert_eq!(size.bytes(block), Ok(bytes), "{size:?} of {block}");
        }
        assert_eq!(DbSize::Ratio(0.0001).bytes(10 << 20), Err(BadDbSize::TooSmall { bytes: 1048 }));
        assert_eq!(block_bytes(10 * GIB - EXTENT_BYTES, 1), 10 * GIB - EXTENT_BYTES);
        assert_eq!(block_bytes(10 * GIB, 3), 853 * EXTENT_BYTES);
        assert_eq!(block_bytes(EXTENT_BYTES - 1, 1), 0);
    }
}
