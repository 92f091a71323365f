//! Space that snapshots hold: which hold the most, as far as it is known.
//!
//! Space is counted once. What a volume has overwritten or given up belongs to the newest of its
//! snapshots that still has it: whoever removes that one with all older ones of the volume frees
//! what they hold together. What no other snapshot has is its own, and goes with it alone.

use std::collections::BTreeMap;

use crate::storage::{PoolName, SnapshotName, VolumeId, VolumeName};

/// Least number of seconds between two passes through the volumes of a pool.
pub const LOOK_EVERY: u64 = 60 * 60;

/// Rest of a pool after a pass, as a multiple of the time that its looks took.
pub const REST: u64 = 20;

/// Seconds after which a look without an answer was a load that is not asked for again soon.
pub const COSTLY: u64 = 60;

/// Seconds for which a volume is left alone after such a look.
pub const LEFT_ALONE: u64 = 24 * 60 * 60;

/// Seconds of looks after which what they have brought is written before the end of a pass.
pub const WRITTEN_AFTER: u64 = 30;

/// Number of snapshots that are kept of a pool.
pub const MOST_SNAPSHOTS: usize = 20;

/// Number of volumes of a pool that are left alone. More cannot be looked at without an answer
/// within [`LEFT_ALONE`] as long as each look takes [`COSTLY`].
pub const MOST_LATE: usize = (LEFT_ALONE / COSTLY) as usize;

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
    /// Time at which it was seen, in seconds since the epoch.
    pub at: u64,
}

/// Record of what was seen of a pool's snapshots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotUsageRecord {
    /// End of the last pass, in seconds since the epoch; `None` before the first.
    pub at: Option<u64>,
    /// Seconds that the looks of that pass took together.
    pub took: u64,
    /// Number of snapshots of which was not known then what they hold.
    pub unknown: u64,
    /// Snapshots that hold the most, the largest first. None of them holds nothing.
    pub largest: Vec<SeenSnapshot>,
    /// Volumes that are left alone, with when the look ended that had no answer.
    pub late: BTreeMap<VolumeName, u64>,
    /// The pass that is under way, whoever goes on with it.
    pub pass: Option<Pass>,
}

/// Pass through the volumes of a pool, in the order of their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    /// The last volume that is done.
    pub after: VolumeName,
    /// Same as those of the record, so far.
    pub took: u64,
    pub unknown: u64,
    pub largest: Vec<SeenSnapshot>,
}

/// Answer to a look at the snapshots of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    pub volume: VolumeName,
    /// The snapshots that it has by the records.
    pub snapshots: Vec<SnapshotName>,
    /// `None` if the storage did not say, or was not asked.
    pub usage: Option<Vec<SnapshotUsage>>,
    /// Seconds that it took.
    pub took: u64,
}

/// Whether it is time for another pass, or to go on with one. A last one of the future was made by
/// another clock.
pub fn is_due(record: Option<&SnapshotUsageRecord>, now: u64) -> bool {
    let Some(record) = record else { return true };
    let rest = record.took.saturating_mul(REST).max(LOOK_EVERY);
    record.pass.is_some() || record.at.is_none_or(|at| at > now || now - at >= rest)
}

/// The pool that is to be looked at next: of those that are due, one whose pass is under way, or
/// whose last one is the longest ago.
pub fn next_due<'a>(
    pools: impl IntoIterator<Item = (&'a PoolName, Option<&'a SnapshotUsageRecord>)>,
    now: u64,
) -> Option<&'a PoolName> {
    let due = pools.into_iter().filter(|(_, record)| is_due(*record, now));
    let order = |record: Option<&SnapshotUsageRecord>| {
        (record.is_none_or(|last| last.pass.is_none()), record.and_then(|last| last.at))
    };
    due.min_by_key(|(_, record)| order(*record)).map(|(pool, _)| pool)
}

impl SnapshotUsageRecord {
    /// Whether the pass that is under way has still to come to a volume.
    pub fn has_to_come_to(&self, volume: &VolumeName) -> bool {
        self.pass.as_ref().is_none_or(|pass| *volume > pass.after)
    }

    /// Whether a volume is left alone: the storage was long in not answering.
    pub fn leaves_alone(&self, volume: &VolumeName, now: u64) -> bool {
        self.late.get(volume).is_some_and(|at| is_recent(*at, now))
    }

    /// Takes in a look that ended at `at`. What is not answered is as it was seen before, or
    /// unknown.
    pub fn take(&mut self, look: Look, at: u64) {
        let Look { volume, snapshots, usage, took } = look;
        let (mut unknown, mut largest) = (snapshots.len(), Vec::new());
        if let Some(usage) = usage {
            let is_missing = |name: &&SnapshotName| usage.iter().all(|seen| seen.name != **name);
            unknown = snapshots.iter().filter(is_missing).count();
            let holding = usage.into_iter().filter(|usage| usage.held_bytes > 0);
            largest.extend(holding.map(|usage| SeenSnapshot { volume: volume.clone(), usage, at }));
            self.late.remove(&volume);
        } else {
            let was_seen = |seen: &&SeenSnapshot| {
                seen.volume == volume && snapshots.contains(&seen.usage.name)
            };
            largest.extend(self.largest.iter().filter(was_seen).cloned());
            unknown = unknown.saturating_sub(largest.len());
            if took >= COSTLY {
                self.late.insert(volume.clone(), at);
            }
        }
        let pass = self.pass.take();
        let (took_before, unknown_before, seen_before) =
            pass.map(|pass| (pass.took, pass.unknown, pass.largest)).unwrap_or_default();
        largest.extend(seen_before);
        self.pass = Some(Pass {
            after: volume,
            took: took_before.saturating_add(took),
            unknown: unknown_before.saturating_add(unknown as u64),
            largest: sorted(largest),
        });
    }

    /// Ends the pass: it has come to all volumes that have snapshots.
    pub fn end_pass(&mut self, at: u64) {
        self.late.retain(|_, then| is_recent(*then, at));
        let pass = self.pass.take();
        (self.took, self.unknown, self.largest) =
            pass.map(|pass| (pass.took, pass.unknown, pass.largest)).unwrap_or_default();
        self.at = Some(at);
    }

    /// Takes in that a volume is called `to` now, with all that was seen of its snapshots. The pass
    /// goes by names: it may have to come to the volume once more, or not any more.
    pub fn rename_volume(&mut self, from: &VolumeName, to: &VolumeName) {
        let mut its_own = self.seen();
        its_own.retain(|seen| seen.volume == *from);
        its_own.iter_mut().for_each(|seen| seen.volume = to.clone());
        let has_to_come = self.has_to_come_to(to);
        // What has had the new name before is gone.
        let is_of_others = |seen: &SeenSnapshot| seen.volume != *from && seen.volume != *to;
        self.largest.retain(is_of_others);
        let list = match &mut self.pass {
            Some(pass) => {
                pass.largest.retain(is_of_others);
                if has_to_come { &mut self.largest } else { &mut pass.largest }
            }
            None => &mut self.largest,
        };
        list.extend(its_own);
        *list = sorted(std::mem::take(list));
        match self.late.remove(from) {
            Some(at) => self.late.insert(to.clone(), at),
            None => self.late.remove(to),
        };
    }

    /// Takes in that a snapshot of the volume is called `to` now.
    pub fn rename_snapshot(&mut self, volume: &VolumeName, from: &SnapshotName, to: &SnapshotName) {
        let of_pass = self.pass.as_mut().map(|pass| &mut pass.largest);
        for list in [Some(&mut self.largest), of_pass].into_iter().flatten() {
            let is = |seen: &SeenSnapshot, name: &SnapshotName| {
                seen.volume == *volume && seen.usage.name == *name
            };
            list.retain(|seen| !is(seen, to));
            for seen in list.iter_mut().filter(|seen| is(seen, from)) {
                seen.usage.name = to.clone();
            }
            *list = sorted(std::mem::take(list));
        }
    }

    /// Snapshots that hold the most by all that was seen, the largest first: of the volumes that
    /// the pass has come to what it has seen, and of the others what was seen before.
    pub fn seen(&self) -> Vec<SeenSnapshot> {
        let before = self.largest.iter().filter(|seen| self.has_to_come_to(&seen.volume));
        let now = self.pass.iter().flat_map(|pass| &pass.largest);
        sorted(before.chain(now).cloned().collect())
    }
}

/// Whether a volume that was looked at without an answer is still left alone. One of the future was
/// looked at by another clock.
fn is_recent(at: u64, now: u64) -> bool {
    at <= now && now - at < LEFT_ALONE
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
    name.is_base() || recorded.any(|known| known == *name)
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
        Look { volume: VolumeName::new(volume), snapshots, usage, took: 1 }
    }

    /// The record after a pass with these looks.
    fn looked(before: &SnapshotUsageRecord, looks: &[Look], at: u64) -> SnapshotUsageRecord {
        let mut record = before.clone();
        looks.iter().for_each(|look| record.take(look.clone(), at));
        record.end_pass(at);
        record
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
        assert_eq!((record.unknown, record.at, record.took), (0, Some(50), 3));
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
        assert_eq!((record.unknown, record.at), (3, Some(90)));
        // One that the storage does not speak of is not known either.
        let odd = [look("a", &["s", "new"], Some(vec![usage("s", 8)]))];
        let record = looked(&record, &odd, 95);
        assert_eq!((shown(&record), record.unknown), (vec![("a", "s", 8, 95)], 1));
    }

    #[test]
    fn a_pool_is_looked_at_each_hour_and_the_one_that_waits_longest_first() {
        let at = |at| SnapshotUsageRecord { at: Some(at), ..SnapshotUsageRecord::default() };
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
        // A pass goes on before another pool has its turn.
        let mut begun = at(5000);
        begun.take(look("v", &["s"], None), 5000);
        assert_eq!(next(&[("a", Some(&old)), ("b", Some(&begun))], 5001), Some(b.clone()));
    }

    #[test]
    fn a_pool_rests_twenty_times_as_long_as_its_looks_took() {
        for (took, rest) in [(0, 3600), (180, 3600), (181, 3620), (36_000, 720_000)] {
            let record = SnapshotUsageRecord { at: Some(1000), took, ..Default::default() };
            assert!(!is_due(Some(&record), 1000 + rest - 1), "{took} s");
            assert!(is_due(Some(&record), 1000 + rest), "{took} s");
        }
        let forged = SnapshotUsageRecord { at: Some(0), took: u64::MAX, ..Default::default() };
        assert!(!is_due(Some(&forged), 1 << 40));
    }

    #[test]
    fn a_volume_whose_look_was_long_and_had_no_answer_is_left_alone_for_a_day() {
        let volume = VolumeName::new("a");
        let is_left_alone = |usage: Option<Vec<SnapshotUsage>>, took, after| {
            let mut record = SnapshotUsageRecord::default();
            record.take(Look { took, ..look("a", &["s"], usage) }, 1000);
            record.leaves_alone(&volume, 1000 + after)
        };
        assert!(is_left_alone(None, COSTLY, 0) && is_left_alone(None, COSTLY, LEFT_ALONE - 1));
        assert!(!is_left_alone(None, COSTLY, LEFT_ALONE), "it is tried again");
        assert!(!is_left_alone(None, COSTLY - 1, 0), "it cost nothing");
        assert!(!is_left_alone(Some(Vec::new()), 9 * COSTLY, 0), "it was answered");
        let mut record = SnapshotUsageRecord::default();
        record.take(Look { took: COSTLY, ..look("a", &["s"], None) }, 1000);
        assert!(!record.leaves_alone(&volume, 999), "a clock was set back");
        record.end_pass(1000);
        assert!(record.leaves_alone(&volume, 1001), "the end of the pass does not change that");
        record.take(look("a", &["s"], None), 1002);
        assert!(record.leaves_alone(&volume, 1003), "nor a look that asks nothing");
        record.take(look("a", &["s"], Some(Vec::new())), 1004);
        record.end_pass(1000 + LEFT_ALONE);
        assert_eq!(record.late, BTreeMap::new());
    }

    #[test]
    fn a_pass_goes_on_where_it_was_left_and_until_its_end_what_was_seen_before_is_shown() {
        let first = [
            look("a", &["s"], Some(vec![usage("s", 7)])),
            look("b", &["s"], Some(vec![usage("s", 8)])),
        ];
        let mut record = looked(&SnapshotUsageRecord::default(), &first, 50);
        assert!(record.has_to_come_to(&VolumeName::new("a")));
        record.take(look("a", &["s"], Some(vec![usage("s", 9)])), 90);
        let (a, b) = (VolumeName::new("a"), VolumeName::new("b"));
        assert!(!record.has_to_come_to(&a) && record.has_to_come_to(&b));
        let seen = |record: &SnapshotUsageRecord| {
            let of = |seen: SeenSnapshot| (seen.volume.to_string(), seen.usage.held_bytes, seen.at);
            record.seen().into_iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(seen(&record), [("a".to_owned(), 9, 90), ("b".to_owned(), 8, 50)]);
        assert_eq!((record.at, record.unknown), (Some(50), 0));
        record.take(look("b", &["s"], None), 95);
        record.end_pass(95);
        assert_eq!(seen(&record), [("a".to_owned(), 9, 90), ("b".to_owned(), 8, 50)]);
        assert_eq!((record.at, record.took, record.pass), (Some(95), 2, None));
    }

    #[test]
    fn a_snapshot_that_was_removed_is_not_shown_and_what_clones_stand_on_is() {
        let seen =
            |text| SeenSnapshot { volume: VolumeName::new("a"), usage: usage(text, 1), at: 1 };
        let is_shown = |text| is_there(&seen(text), [name("s")].into_iter());
        assert!(is_shown("s") && is_shown("pvc-clone-0123456789abcdef"));
        assert!(!is_shown("t") && !is_shown("pvc-clone-download-0123456789abcdef"));
    }

    #[test]
    fn what_was_seen_goes_with_the_name_of_the_volume_wherever_the_pass_is() {
        let first = [
            look("b", &["s"], Some(vec![usage("s", 7)])),
            look("d", &["s", "t"], Some(vec![usage("s", 8), usage("t", 6)])),
        ];
        let before = looked(&SnapshotUsageRecord::default(), &first, 50);
        // The pass has looked at nothing, at `b`, or at both.
        for looks in 0..=2 {
            for (from, to) in [("b", "a"), ("b", "e"), ("d", "a"), ("d", "e"), ("d", "c")] {
                let mut record = before.clone();
                first[..looks].iter().for_each(|look| record.take(look.clone(), 90));
                let mut expected = record.seen();
                for seen in expected.iter_mut().filter(|seen| seen.volume.as_str() == from) {
                    seen.volume = VolumeName::new(to);
                }
                record.rename_volume(&VolumeName::new(from), &VolumeName::new(to));
                assert_eq!(record.seen(), sorted(expected), "{looks}: {from} {to}");
            }
        }
    }

    #[test]
    fn a_name_that_is_taken_over_has_nothing_of_what_had_it_before() {
        let first = [
            look("a", &["s"], Some(vec![usage("s", 7)])),
            look("b", &["s", "t"], Some(vec![usage("s", 8), usage("t", 6)])),
        ];
        let mut record = looked(&SnapshotUsageRecord::default(), &first, 50);
        record.late = BTreeMap::from([(VolumeName::new("b"), 40)]);
        record.rename_volume(&VolumeName::new("a"), &VolumeName::new("b"));
        assert_eq!(shown(&record), [("b", "s", 7, 50)]);
        assert_eq!(record.late, BTreeMap::new());

        let mut record = looked(&SnapshotUsageRecord::default(), &first, 50);
        record.take(look("b", &["s", "t"], Some(vec![usage("s", 9), usage("t", 6)])), 90);
        record.rename_snapshot(&VolumeName::new("b"), &name("s"), &name("t"));
        let expected = [("b", "t", 8, 50), ("a", "s", 7, 50)];
        assert_eq!(shown(&record), expected, "the snapshot of another volume keeps its name");
        record.end_pass(95);
        assert_eq!(shown(&record), [("b", "t", 9, 90)]);
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
