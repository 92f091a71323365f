//! Pools that are to be made: how many copies they keep, on which devices, in how many parts.

use crate::storage::PoolName;

/// Most copies of an object that Ceph keeps.
const MOST_COPIES: u32 = 10;

/// Most placement groups that Ceph's monitors allow a pool.
const MOST_GROUPS: u32 = 1 << 16;

/// A pool to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSpec {
    pub name: PoolName,
    pub placement_groups: u32,
    pub replication: Replication,
    pub tier: Tier,
}

/// Class of the devices that a pool lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// All of them.
    Default,
    Hdd,
    Ssd,
    Nvme,
}

impl Tier {
    /// The word for it in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Tier::Default => "default",
            Tier::Hdd => "hdd",
            Tier::Ssd => "ssd",
            Tier::Nvme => "nvme",
        }
    }

    /// Ceph's word for the class; `None` if the tier is of any class.
    pub fn device_class(self) -> Option<&'static str> {
        (self != Tier::Default).then(|| self.as_str())
    }
}

/// Number of copies that a pool keeps of each object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replication {
    pub copies: u32,
    /// With fewer than these nothing is written any more.
    pub min_copies: u32,
}

/// Reason why a pool cannot keep copies so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadReplication {
    #[error("`{text}` does not say how many copies are kept: `copies=3,mincopies=2` does")]
    Form { text: String },
    #[error("a pool without a copy keeps nothing: `mincopies` is at least 1")]
    NoCopies,
    #[error("`mincopies={min_copies}` would be more than there are with `copies={copies}`")]
    MinBeyondCopies { copies: u32, min_copies: u32 },
    #[error("`copies={copies}` is more than the {MOST_COPIES} that Ceph keeps")]
    TooMany { copies: u32 },
    #[error("with `copies=1` the first disk that fails takes data of every volume with it")]
    OneCopy,
}

impl Replication {
    /// Replication in an operator's words: `copies=3,mincopies=2`.
    pub fn parse(text: &str) -> Result<Self, BadReplication> {
        let numbers = text.split_once(',').and_then(|(copies, min_copies)| {
            let copies = number(copies.strip_prefix("copies=")?)?;
            Some((copies, number(min_copies.strip_prefix("mincopies=")?)?))
        });
        let Some((copies, min_copies)) = numbers else {
            return Err(BadReplication::Form { text: crate::shown(text) });
        };
        if min_copies == 0 {
            return Err(BadReplication::NoCopies);
        }
        if min_copies > copies {
            return Err(BadReplication::MinBeyondCopies { copies, min_copies });
        }
        if copies > MOST_COPIES {
            return Err(BadReplication::TooMany { copies });
        }
        Ok(Replication { copies, min_copies })
    }

    /// Refuses what a cluster loses data with.
    pub fn check_for_cluster(self) -> Result<(), BadReplication> {
        if self.copies == 1 { Err(BadReplication::OneCopy) } else { Ok(()) }
    }
}

fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Reason why a pool cannot have so many placement groups.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadGroups {
    #[error("{count} placement groups are no power of two; {below} and {above} are")]
    NoPower { count: u32, below: u32, above: u32 },
    #[error("a pool has 1 to {MOST_GROUPS} placement groups, and not {count}")]
    OutOfRange { count: u32 },
}

/// Checks the number of placement groups that a pool is to have: data is spread evenly over them
/// only if it is a power of two.
pub fn check_placement_groups(count: u32) -> Result<(), BadGroups> {
    if !(1..=MOST_GROUPS).contains(&count) {
        return Err(BadGroups::OutOfRange { count });
    }
    if !count.is_power_of_two() {
        let above = count.next_power_of_two();
        return Err(BadGroups::NoPower { count, below: above / 2, above });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_copies_are_kept_as_make_sense() {
        let kept = |copies, min_copies| Ok(Replication { copies, min_copies });
        let form = |text: &str| Err(BadReplication::Form { text: text.to_owned() });
        for (text, expected) in [
            ("copies=3,mincopies=2", kept(3, 2)),
            ("copies=2,mincopies=2", kept(2, 2)),
            ("copies=1,mincopies=1", kept(1, 1)),
            ("copies=10,mincopies=1", kept(10, 1)),
            ("copies=11,mincopies=1", Err(BadReplication::TooMany { copies: 11 })),
            ("copies=0,mincopies=0", Err(BadReplication::NoCopies)),
            ("copies=3,mincopies=0", Err(BadReplication::NoCopies)),
            (
                "copies=2,mincopies=3",
                Err(BadReplication::MinBeyondCopies { copies: 2, min_copies: 3 }),
            ),
            ("", form("")),
            ("3,2", form("3,2")),
            ("copies=3", form("copies=3")),
            ("copies=,mincopies=", form("copies=,mincopies=")),
            ("copies=+3,mincopies=2", form("copies=+3,mincopies=2")),
            ("copies=3,mincopies=-2", form("copies=3,mincopies=-2")),
            ("copies=3,mincopies=2,x", form("copies=3,mincopies=2,x")),
            ("mincopies=2,copies=3", form("mincopies=2,copies=3")),
            ("copies=٣,mincopies=2", form("copies=٣,mincopies=2")),
            ("copies=99999999999,mincopies=2", form("copies=99999999999,mincopies=2")),
        ] {
            assert_eq!(Replication::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn a_cluster_keeps_more_than_one_copy() {
        for (copies, expected) in [(1, Err(BadReplication::OneCopy)), (2, Ok(())), (3, Ok(()))] {
            let replication = Replication { copies, min_copies: 1 };
            assert_eq!(replication.check_for_cluster(), expected, "{copies}");
        }
    }

    #[test]
    fn placement_groups_are_a_power_of_two() {
        let no_power = |count, below, above| Err(BadGroups::NoPower { count, below, above });
        for (count, expected) in [
            (0, Err(BadGroups::OutOfRange { count: 0 })),
            (1, Ok(())),
            (2, Ok(())),
            (3, no_power(3, 2, 4)),
            (64, Ok(())),
            (100, no_power(100, 64, 128)),
            (65_536, Ok(())),
            (65_537, Err(BadGroups::OutOfRange { count: 65_537 })),
            (u32::MAX, Err(BadGroups::OutOfRange { count: u32::MAX })),
        ] {
            assert_eq!(check_placement_groups(count), expected, "{count}");
        }
    }

    #[test]
    fn a_tier_of_any_device_has_no_class() {
        let classes = [Tier::Default, Tier::Hdd, Tier::Ssd, Tier::Nvme].map(Tier::device_class);
        assert_eq!(classes, [None, Some("hdd"), Some("ssd"), Some("nvme")]);
        assert_eq!(Tier::Default.as_str(), "default");
    }
}
