//! Volumes that were removed and are still kept, and when their time is over.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::storage::{PoolName, TrashId, VolumeId, VolumeName};
use crate::vm::volumes::users;

/// A volume in the trash, with its snapshots. Its times are seconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrashedVolume {
    pub pool: PoolName,
    pub id: TrashId,
    /// The name that it had.
    pub name: VolumeName,
    pub removed_at: u64,
    /// The moment until which it is not to be purged.
    pub kept_until: u64,
}

impl TrashedVolume {
    /// The volume that it was.
    pub fn volume(&self) -> VolumeId {
        VolumeId { pool: self.pool.clone(), volume: self.name.clone() }
    }
}

/// Decides whether a VM needs a volume that is in the trash: its record names the volume `was`, and
/// none of that name `is_there`. So it is when a removed VM has come back from a backup of the
/// records: the clock of its removal does not purge its disks.
pub fn is_needed(cluster: &Cluster, was: &VolumeId, is_there: bool) -> bool {
    !is_there && users(cluster, was).next().is_some()
}

/// Both clocks of a machine, at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Since 1970-01-01T00:00:00Z.
    pub wall: Duration,
    pub monotonic: Duration,
}

/// The volumes in the trash that somebody has seen, each with the time before which it is kept.
///
/// Moments are those of the wall clock, which days and daemons have in common, and which may step.
/// So a volume that was seen while its time was not over is kept for as long as was left of it
/// then, also if the wall clock says otherwise meanwhile; and none is due that was not in sight for
/// an hour: the clock of a machine that has just started may be years ahead until it is set.
#[derive(Debug, Default)]
pub struct Kept {
    not_before: BTreeMap<Seen, Duration>,
}

/// Time for which a volume is in sight before it is due, whatever the wall clock says.
const IN_SIGHT: Duration = Duration::from_secs(3600);

/// A volume in the trash, and until when. One that was restored and removed again is another.
type Seen = (PoolName, TrashId, u64);

impl Kept {
    /// The volumes whose time is over, of all that are in the trash of `pool`.
    pub fn due(
        &mut self,
        pool: &PoolName,
        trashed: Vec<TrashedVolume>,
        now: Now,
    ) -> Vec<TrashedVolume> {
        let seen = |entry: &TrashedVolume| (pool.clone(), entry.id.clone(), entry.kept_until);
        let mut known = std::mem::take(&mut self.not_before);
        // What is not there any more need not be remembered.
        self.not_before.extend(known.extract_if(.., |(of, ..), _| of != pool));
        let mut due = Vec::new();
        for entry in trashed {
            let left = Duration::from_secs(entry.kept_until).saturating_sub(now.wall);
            let not_before = match known.remove(&seen(&entry)) {
                Some(not_before) => not_before,
                None => now.monotonic.saturating_add(left.max(IN_SIGHT)),
            };
            self.not_before.insert(seen(&entry), not_before);
            if left.is_zero() && not_before <= now.monotonic {
                due.push(entry);
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::records;
    use crate::vm::{VmRecord, VmState};

    fn entry(id: &str, kept_until: u64) -> TrashedVolume {
        TrashedVolume {
            pool: vms(),
            id: TrashId::parse(id).unwrap(),
            name: VolumeName::new("web1_sda"),
            removed_at: 1000,
            kept_until,
        }
    }

    fn vms() -> PoolName {
        PoolName::new("vms")
    }

    fn at(wall: u64, monotonic: u64) -> Now {
        Now { wall: Duration::from_secs(wall), monotonic: Duration::from_secs(monotonic) }
    }

    fn ids(due: &[TrashedVolume]) -> Vec<&str> {
        due.iter().map(|entry| entry.id.as_str()).collect()
    }

    #[test]
    fn a_volume_is_needed_that_a_vm_names_and_that_is_in_the_trash_alone() {
        let volume = |name: &str| VolumeId { pool: vms(), volume: VolumeName::new(name) };
        let vm = records::vm(1, VmState::Stop, Some("hv1"));
        let vm = VmRecord { recorded_volumes: vec![volume("web1_sda")], ..vm };
        let cluster = Cluster { vms: [(vm.uuid, Arc::new(vm))].into(), ..Cluster::default() };
        let named = entry("a", 2000).volume();
        for (was, is_there, expected) in [
            (&named, false, true),
            (&named, true, false),
            (&volume("db1_sda"), false, false),
            (&volume("db1_sda"), true, false),
        ] {
            assert_eq!(is_needed(&cluster, was, is_there), expected, "{was} {is_there}");
        }
    }

    #[test]
    fn a_volume_is_due_when_its_time_is_over_and_not_before() {
        let mut kept = Kept::default();
        let trash = || vec![entry("a", 12_000), entry("b", 13_000)];
        for (now, expected) in [
            (at(2_000, 10), vec![]),
            (at(11_999, 10_009), vec![]),
            (at(12_000, 10_010), vec!["a"]),
            (at(12_999, 11_009), vec!["a"]),
            (at(13_000, 11_010), vec!["a", "b"]),
        ] {
            assert_eq!(ids(&kept.due(&vms(), trash(), now)), expected, "{now:?}");
        }
    }

    #[test]
    fn what_is_past_its_time_when_it_is_first_seen_is_due_after_an_hour() {
        let mut kept = Kept::default();
        for (now, expected) in
            [(at(2_000, 0), vec![]), (at(5_599, 3_599), vec![]), (at(5_600, 3_600), vec!["a"])]
        {
            assert_eq!(ids(&kept.due(&vms(), vec![entry("a", 2_000)], now)), expected, "{now:?}");
        }
    }

    /// A node was primary before the time was set on it: the whole trash was purged.
    #[test]
    fn a_clock_that_is_years_ahead_until_it_is_set_ends_no_time() {
        let mut kept = Kept::default();
        for (now, expected) in [
            (at(900_000_000, 0), vec![]),
            (at(900_003_599, 3_599), vec![]),
            (at(4_000, 3_600), vec![]),
            (at(89_999, 89_599), vec![]),
            (at(90_000, 89_600), vec!["a"]),
        ] {
            assert_eq!(ids(&kept.due(&vms(), vec![entry("a", 90_000)], now)), expected, "{now:?}");
        }
    }

    #[test]
    fn a_clock_that_steps_does_not_shorten_the_time() {
        let mut kept = Kept::default();
        let trash = || vec![entry("a", 12_000)];
        for (now, expected) in [
            (at(2_000, 100), vec![]),
            (at(9_000_000, 101), vec![]),
            (at(9_009_998, 10_099), vec![]),
            (at(9_009_999, 10_100), vec!["a"]),
            (at(11_999, 10_101), vec![]),
        ] {
            assert_eq!(ids(&kept.due(&vms(), trash(), now)), expected, "{now:?}");
        }
    }

    #[test]
    fn a_volume_that_is_removed_again_has_its_time_again() {
        let mut kept = Kept::default();
        let mut due = |kept_until, now| {
            let due = kept.due(&vms(), vec![entry("a", kept_until)], now);
            due.len()
        };
        assert_eq!(due(12_000, at(2_000, 100)), 0);
        assert_eq!(due(12_010, at(2_005, 105)), 0);
        assert_eq!(due(12_010, at(12_009, 10_109)), 0);
        assert_eq!(due(12_010, at(12_010, 10_110)), 1);
    }

    #[test]
    fn only_what_is_there_is_remembered_of_each_pool() {
        let mut kept = Kept::default();
        let ssd = PoolName::new("ssd");
        kept.due(&vms(), vec![entry("a", 2000), entry("b", 2000)], at(1990, 0));
        kept.due(&ssd, vec![TrashedVolume { pool: ssd.clone(), ..entry("a", 2000) }], at(1990, 0));
        assert_eq!(kept.not_before.len(), 3);
        kept.due(&vms(), vec![entry("b", 2000)], at(1990, 0));
        assert_eq!(kept.not_before.len(), 2);
        kept.due(&ssd, vec![], at(1990, 0));
        kept.due(&vms(), vec![], at(1990, 0));
        assert!(kept.not_before.is_empty());
    }
}
