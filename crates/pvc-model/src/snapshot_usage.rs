//! Space that snapshots hold: which hold the most, as far as it is known.
//!
//! Space is counted once. What a volume has overwritten or given up belongs to the newest of its
//! snapshots that still has it: whoever removes that one with all older ones of the volume frees
//! what they hold together. What no other snapshot has is its own, and goes with it alone.

use crate::storage::{PoolName, SnapshotName, VolumeId, VolumeName};

/// Seconds between two looks at the snapshots of a pool.
pub const LOOK_EVERY: u64 = 60 * 60;

/// Number of snapshots that are kept of a pool.
pub const MOST_SNAPSHOTS: usize = 20;

/// Space that a snapshot holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotUsage {
    pub name: SnapshotName,
    /// Bytes that are kept for this snapshot, and neither for its volume nor for a newer one.
    pub held_bytes: u64,
    /// Part of them that is not kept for an older one either; `None` if the storage cannot tell.
    pub own_bytes: Option<u64>,
}

/// Snapshot that was seen to hold space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenSnapshot {
    pub volume: VolumeName,
    pub usage: SnapshotUsage,
    /// When it was seen, in seconds since the epoch.
    pub at: u64,
}

/// Record of what was seen of a pool's snapshots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotUsageRecord {
    /// The last look, in seconds since the epoch.
    pub at: u64,
    /// Number of snapshots of which is not known what they hold.
    pub unknown: u64,
    /// Snapshots that hold the most, the largest first. None of them holds nothing.
    pub largest: Vec<SeenSnapshot>,
}

/// Answer to a look at the snapshots of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    pub volume: VolumeName,
    /// The snapshots that it has by the records.
    pub snapshots: Vec<SnapshotName>,
    /// `None` if the storage did not say.
    pub usage: Option<Vec<SnapshotUsage>>,
}

/// Whether it is time for another look. A last one of the future was taken by another clock.
pub fn is_due(record: Option<&SnapshotUsageRecord>, now: u64) -> bool {
    record.is_none_or(|last| last.at > now || now - last.at >= LOOK_EVERY)
}

/// The pool that is to be looked at next: of those that are due, the one whose last look is the
/// longest ago.
pub fn next_due<'a>(
    pools: impl IntoIterator<Item = (&'a PoolName, Option<&'a SnapshotUsageRecord>)>,
    now: u64,
) -> Option<&'a PoolName> {
    let due = pools.into_iter().filter(|(_, record)| is_due(*record, now));
    due.min_by_key(|(_, record)| record.map(|last| last.at)).map(|(pool, _)| pool)
}

/// The record after a look at all volumes of a pool that have snapshots. What is not answered now
/// is as it was seen before, or unknown.
pub fn looked(before: &SnapshotUsageRecord, looks: &[Look], at: u64) -> SnapshotUsageRecord {
    let (mut unknown, mut largest) = (0, Vec::new());
    for look in looks {
        if let Some(usage) = &look.usage {
            let seen = |usage: &SnapshotUsage| SeenSnapshot {
                volume: look.volume.clone(),
                usage: usage.clone(),
                at,
            };
            largest.extend(usage.iter().filter(|usage| usage.held_bytes > 0).map(seen));
            let is_missing = |name: &&SnapshotName| usage.iter().all(|seen| seen.name != **name);
            unknown += look.snapshots.iter().filter(is_missing).count() as u64;
            continue;
        }
        let was_seen = |seen: &&SeenSnapshot| {
            seen.volume == look.volume && look.snapshots.contains(&seen.usage.name)
        };
        let known: Vec<SeenSnapshot> = before.largest.iter().filter(was_seen).cloned().collect();
        unknown += (look.snapshots.len() - known.len().min(look.snapshots.len())) as u64;
        largest.extend(known);
    }
    SnapshotUsageRecord { at, unknown, largest: sorted(largest) }
}

/// The largest of them, in order.
pub fn sorted(mut seen: Vec<SeenSnapshot>) -> Vec<SeenSnapshot> {
    seen.sort_by(|a, b| {
        let largest_first = b.usage.held_bytes.cmp(&a.usage.held_bytes);
        largest_first.then_with(|| (&a.volume, &a.usage.name).cmp(&(&b.volume, &b.usage.name)))
    });
    seen.truncate(MOST_SNAPSHOTS);
    seen
}

/// Whether a snapshot that was seen may still be shown, of a volume that by the records has these:
/// also one that the storage has taken for itself to stay, of which there is no record.
pub fn is_there(seen: &SeenSnapshot, mut recorded: impl Iterator<Item = SnapshotName>) -> bool {
    let name = &seen.usage.name;
    name.is_reserved() && !name.is_passing() || recorded.any(|known| known == *name)
}

/// The volume that a snapshot of the pool was seen of.
pub fn volume_of(pool: &PoolName, seen: &SeenSnapshot) -> VolumeId {
    VolumeId { pool: pool.clone(), volume: seen.volume.clone() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> SnapshotName {
        SnapshotName::new(text)
    }

    fn usage(text: &str, held_bytes: u64) -> SnapshotUsage {
        SnapshotUsage { name: name(text), held_bytes, own_bytes: Some(held_bytes / 2) }
    }

    fn look(volume: &str, snapshots: &[&str], usage: Option<Vec<SnapshotUsage>>) -> Look {
        let snapshots = snapshots.iter().map(|text| name(text)).collect();
        Look { volume: VolumeName::new(volume), snapshots, usage }
    }

    /// Volume, snapshot, bytes and time.
    fn shown(record: &SnapshotUsageRecord) -> Vec<(&str, &str, u64, u64)> {
        let of = |seen: &'_ SeenSnapshot| (seen.usage.held_bytes, seen.at);
        let all = record.largest.iter().map(|seen| (seen, of(seen)));
        all.map(|(seen, (bytes, at))| (seen.volume.as_str(), seen.usage.name.as_str(), bytes, at))
            .collect()
    }

    #[test]
    fn the_largest_come_first_and_those_that_hold_nothing_not_at_all() {
        let looks = [
            look("b", &["s", "t"], Some(vec![usage("s", 7), usage("t", 0)])),
            look("a", &["s"], Some(vec![usage("s", 7)])),
            look("c", &["s"], Some(vec![usage("s", 9)])),
        ];
        let record = looked(&SnapshotUsageRecord::default(), &looks, 50);
        assert_eq!(shown(&record), [("c", "s", 9, 50), ("a", "s", 7, 50), ("b", "s", 7, 50)]);
        assert_eq!((record.unknown, record.at), (0, 50));
    }

    #[test]
    fn what_is_not_answered_is_as_it_was_seen_or_unknown() {
        let first = [
            look("a", &["s", "gone"], Some(vec![usage("s", 7), usage("gone", 5)])),
            look("removed", &["s"], Some(vec![usage("s", 100)])),
        ];
        let before = looked(&SnapshotUsageRecord::default(), &first, 50);
        let silent = [look("a", &["s", "new"], None), look("b", &["x", "y"], None)];
        let record = looked(&before, &silent, 90);
        assert_eq!(shown(&record), [("a", "s", 7, 50)], "with the moment of the answer");
        assert_eq!((record.unknown, record.at), (3, 90));
        // One that the storage does not speak of is not known either.
        let odd = [look("a", &["s", "new"], Some(vec![usage("s", 8)]))];
        let record = looked(&record, &odd, 95);
        assert_eq!((shown(&record), record.unknown), (vec![("a", "s", 8, 95)], 1));
    }

    #[test]
    fn a_pool_is_looked_at_each_hour_and_the_one_that_waits_longest_first() {
        let at = |at| SnapshotUsageRecord { at, ..SnapshotUsageRecord::default() };
        let (a, b, c) = (PoolName::new("a"), PoolName::new("b"), PoolName::new("c"));
        let (old, older, new) = (at(1000), at(900), at(4000));
        let next = |pools: &[(&'static str, Option<&SnapshotUsageRecord>)], now| {
            let pool = |text| [&a, &b, &c].into_iter().find(|name| name.as_str() == text);
            let pools = pools.iter().map(|(text, record)| (pool(*text).expect("known"), *record));
            next_due(pools, now).cloned()
        };
        let all = [("a", Some(&old)), ("b", Some(&older)), ("c", Some(&new))];
        assert_eq!(next(&all, 4600), Some(b.clone()));
        assert_eq!(next(&all, 4499), None);
        assert_eq!(next(&all, 4500), Some(b.clone()));
        assert_eq!(next(&[("a", Some(&old)), ("c", None)], 4600), Some(c.clone()), "never seen");
        assert_eq!(next(&[("a", Some(&old))], 999), Some(a.clone()), "a clock was set back");
    }

    #[test]
    fn a_snapshot_that_was_removed_is_not_shown_and_what_clones_stand_on_is() {
        let seen =
            |text| SeenSnapshot { volume: VolumeName::new("a"), usage: usage(text, 1), at: 1 };
        let is_shown = |text| is_there(&seen(text), [name("s")].into_iter());
        assert!(is_shown("s") && is_shown("pvc-clone-0123"));
        assert!(!is_shown("t") && !is_shown("pvc-clone-download-1"));
    }

    proptest! {
        #[test]
        fn a_record_stays_small_and_its_figures_in_order(
            held in proptest::collection::vec((0_u64..50, 0_u8..9), 0..200),
        ) {
            let usages = held.iter().enumerate().map(|(at, (bytes, volume))| {
                let usage = usage(&format!("s{at}"), *bytes);
                look(&format!("v{volume}"), &[usage.name.as_str()], Some(vec![usage.clone()]))
            });
            let looks: Vec<Look> = usages.collect();
            let record = looked(&SnapshotUsageRecord::default(), &looks, 1);
            let found: Vec<u64> = record.largest.iter().map(|seen| seen.usage.held_bytes).collect();
            let mut all: Vec<u64> = held.iter().map(|(bytes, _)| *bytes).collect();
            all.retain(|bytes| *bytes > 0);
            all.sort_by(|a, b| b.cmp(a));
            all.truncate(MOST_SNAPSHOTS);
            prop_assert_eq!(found, all);
        }
    }
}
