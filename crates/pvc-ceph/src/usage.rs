//! Space that snapshots hold: what was written or discarded since each, of what was there then.
//!
//! `rbd du` says of a snapshot what was written between the one before it and itself: of a new
//! snapshot of a full volume that it uses as much as the volume, though its removal frees nothing.
//! So the differences that it adds up are asked for one by one (`rbd diff`), and what a snapshot
//! holds is the part of the next one that overwrites or discards what the snapshot has.
//!
//! Ceph answers from the map of an image with `fast-diff`, in whole objects. Of one without, such
//! as those made here, it looks at every object for every difference.

use std::ops::Range;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use pvc_model::snapshot_usage::SnapshotUsage;
use pvc_model::storage::{SnapshotName, VolumeId};
use pvc_ports::{StorageError, aside};
use serde::Deserialize;

use crate::answers;
use crate::rbd::{Failure, image_args};
use crate::storage::{RbdStorage, require_snapshot_name, with_json};

const LOOKING: &str = "looking what snapshots hold";

/// Time in which `rbd diff` must have said something: it says all of it at its end.
const ANSWERED: Duration = Duration::from_secs(3600);

/// Bytes that a stretch may have as text.
const MOST_STRETCH: usize = 512;

/// Stretches that do not touch of which one thing may be known: what a guest has scattered more is
/// unknown.
const MOST_STRETCHES: usize = 100_000;

/// Asks for one object at a time, where ten are usual: nobody waits for the answer.
const ONE_AT_A_TIME: &str = "--rbd-concurrent-management-ops=1";

/// Stretch of an image in the output of `rbd diff`.
#[derive(Deserialize)]
struct Listed {
    offset: u64,
    length: u64,
    exists: Exists,
}

/// Whether a stretch has data now.
#[derive(Deserialize)]
enum Exists {
    #[serde(rename = "true")]
    Yes,
    #[serde(rename = "false")]
    No,
}

/// Parts of an image: stretches in order, which do not touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Extents(Vec<Range<u64>>);

impl Extents {
    fn of(stretches: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut all: Vec<Range<u64>> =
            stretches.into_iter().filter(|stretch| !stretch.is_empty()).collect();
        all.sort_by_key(|stretch| stretch.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for stretch in all {
            match merged.last_mut() {
                Some(last) if stretch.start <= last.end => last.end = last.end.max(stretch.end),
                _ => merged.push(stretch),
            }
        }
        Extents(merged)
    }

    fn or(&self, other: &Extents) -> Extents {
        Extents::of(self.0.iter().chain(&other.0).cloned())
    }

    fn and(&self, other: &Extents) -> Extents {
        let (mut these, mut those) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut both = Vec::new();
        while let (Some(this), Some(that)) = (these.peek(), those.peek()) {
            both.push(this.start.max(that.start)..this.end.min(that.end));
            if this.end <= that.end {
                these.next()
            } else {
                those.next()
            };
        }
        Extents::of(both)
    }

    fn without(&self, other: &Extents) -> Extents {
        self.and(&other.rest())
    }

    /// All that is in none of them.
    fn rest(&self) -> Extents {
        let begins = std::iter::once(0).chain(self.0.iter().map(|stretch| stretch.end));
        let ends = self.0.iter().map(|stretch| stretch.start).chain(std::iter::once(u64::MAX));
        Extents::of(begins.zip(ends).map(|(begin, end)| begin..end))
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|stretch| stretch.end - stretch.start).sum()
    }
}

/// Changes from one state of an image to the next.
#[derive(Debug, Default)]
struct Difference {
    written: Extents,
    discarded: Extents,
}

impl Difference {
    /// The same, where the image had another size: what lay beyond is gone.
    fn shrunk(self, from_bytes: u64, to_bytes: u64) -> Self {
        let discarded =
            self.discarded.or(&Extents::of(std::iter::once(to_bytes..from_bytes.max(to_bytes))));
        Difference { discarded, ..self }
    }

    fn changed(&self) -> Extents {
        self.written.or(&self.discarded)
    }
}

/// Place in the output of `rbd diff`: a list of stretches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Before,
    Within,
    Behind,
}

/// Difference to an image of this size that is read as its text comes: neither the text nor
/// stretches that touch are kept.
struct Reading {
    size_bytes: u64,
    place: Place,
    written: Vec<Range<u64>>,
    discarded: Vec<Range<u64>>,
}

impl Reading {
    fn new(size_bytes: u64) -> Self {
        let (written, discarded) = (Vec::new(), Vec::new());
        Reading { size_bytes, place: Place::Before, written, discarded }
    }

    /// Takes all of the text that has come completely.
    fn take(&mut self, text: &mut BytesMut) -> Result<(), String> {
        while let Some(letter) = text.first() {
            match (letter, self.place) {
                (b' ' | b'\n' | b'\r' | b'\t', _) | (b',', Place::Within) => {}
                (b'[', Place::Before) => self.place = Place::Within,
                (b']', Place::Within) => self.place = Place::Behind,
                (b'{', Place::Within) => {
                    let within = &text[..text.len().min(MOST_STRETCH)];
                    match within.iter().position(|letter| *letter == b'}') {
                        Some(end) => {
                            self.add(&answers::json(&text[..=end])?)?;
                            text.advance(end);
                        }
                        None if text.len() < MOST_STRETCH => return Ok(()),
                        None => return Err("a stretch of its answer has no end".to_owned()),
                    }
                }
                _ => return Err("its answer is no list of stretches".to_owned()),
            }
            text.advance(1);
        }
        Ok(())
    }

    /// Adds a stretch. Nothing is believed to lie beyond the end of the image.
    fn add(&mut self, listed: &Listed) -> Result<(), String> {
        let end = listed.offset.saturating_add(listed.length).min(self.size_bytes);
        let all = match listed.exists {
            Exists::Yes => &mut self.written,
            Exists::No => &mut self.discarded,
        };
        let is_full = all.len() >= MOST_STRETCHES;
        match all.last_mut() {
            Some(last) if last.end == listed.offset => last.end = last.end.max(end),
            _ if is_full => return Err(too_scattered()),
            _ => all.push(listed.offset..end),
        }
        Ok(())
    }

    /// The difference, if the text has come to its end.
    fn end(self, rest: &[u8]) -> Result<Difference, String> {
        if self.place != Place::Behind || !rest.is_empty() {
            return Err("its answer has no end".to_owned());
        }
        let Reading { written, discarded, .. } = self;
        Ok(Difference { written: Extents::of(written), discarded: Extents::of(discarded) })
    }
}

fn too_scattered() -> String {
    format!("its answer has more than {MOST_STRETCHES} stretches")
}

/// Image as it is passed from snapshot to snapshot.
#[derive(Debug, Default)]
struct Walk {
    /// Parts that have data.
    filled: Extents,
    /// Parts that are not as the snapshot before has them; `None` at the first.
    changed: Option<Extents>,
}

impl Walk {
    /// Begins with what the first snapshot has.
    fn begin(first: Difference) -> Self {
        Walk { filled: first.written, changed: None }
    }

    /// Goes on to the next snapshot, or to the volume as it is now; returns what the snapshot holds
    /// that is left.
    fn go_on(&mut self, name: SnapshotName, next: &Difference) -> Result<SnapshotUsage, String> {
        let changed = next.changed();
        let held = self.filled.and(&changed);
        let own = self.changed.as_ref().map_or_else(|| held.clone(), |new| held.and(new));
        self.filled = self.filled.without(&next.discarded).or(&next.written);
        self.changed = Some(changed);
        // Each difference may add as many.
        if self.filled.0.len() > MOST_STRETCHES {
            return Err(too_scattered());
        }
        Ok(SnapshotUsage { name, held_bytes: held.bytes(), own_bytes: Some(own.bytes()) })
    }
}

impl RbdStorage {
    pub(crate) async fn usage_of_snapshots(
        &self,
        volume: &VolumeId,
    ) -> Result<Vec<SnapshotUsage>, StorageError> {
        let image = self.described(volume).await?;
        let snapshots = self.snapshots(volume).await?;
        let Some(first) = snapshots.first() else { return Ok(Vec::new()) };
        let name = |snapshot: &answers::Snapshot| SnapshotName::new(&snapshot.name);
        for snapshot in &snapshots {
            require_snapshot_name(volume, &name(snapshot))?;
        }
        let begin = self.difference(volume, &image, None, Some(first)).await?;
        let (mut walk, mut usage) = (Walk::begin(begin), Vec::new());
        for (at, snapshot) in snapshots.iter().enumerate() {
            let next = snapshots.get(at + 1);
            let difference = self.difference(volume, &image, Some(snapshot), next).await?;
            let (name, mut before) = (name(snapshot), walk);
            let gone_on = aside(move || {
                let held = before.go_on(name, &difference);
                (before, held)
            });
            let (after, held) = gone_on.await;
            usage.push(held.map_err(|why| Failure::Other(why).of(volume, LOOKING))?);
            walk = after;
        }
        Ok(usage)
    }

    /// Difference between two snapshots; from nothing, and to the volume as it is now.
    async fn difference(
        &self,
        volume: &VolumeId,
        image: &answers::Image,
        from: Option<&answers::Snapshot>,
        to: Option<&answers::Snapshot>,
    ) -> Result<Difference, StorageError> {
        let from_name = from.map(|snapshot| format!("--from-snap={}", snapshot.name));
        let to_name = to.map(|snapshot| format!("--snap={}", snapshot.name));
        let whole = image.has_fast_diff().then(|| "--whole-object".to_owned());
        let more = [from_name, to_name, whole].into_iter().flatten().collect();
        let to_bytes = to.map_or(image.size, |snapshot| snapshot.size);
        let args = [image_args(volume), vec![ONE_AT_A_TIME.to_owned()], more].concat();
        let difference = self.read_difference(volume, with_json(args), to_bytes).await?;
        Ok(difference.shrunk(from.map_or(0, |snapshot| snapshot.size), to_bytes))
    }

    /// Reads the output of `rbd diff`, which may be longer than what is kept of other programs.
    async fn read_difference(
        &self,
        volume: &VolumeId,
        args: Vec<String>,
        size_bytes: u64,
    ) -> Result<Difference, StorageError> {
        let failed = |failure: Failure| failure.of(volume, LOOKING);
        let started = self.programs.look_piped(&["diff"], args).map_err(failed)?;
        let (mut program, mut text) = (started.with_deadline(ANSWERED), BytesMut::new());
        let mut reading = Reading::new(size_bytes);
        while program.take(&mut text).await.map_err(failed)? {
            reading.take(&mut text).map_err(|why| failed(Failure::Other(why)))?;
        }
        program.end().await.map_err(failed)?;
        aside(move || reading.end(&text)).await.map_err(|why| failed(Failure::Other(why)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Answers of Ceph 16.2.15: 16 MiB written, a snapshot, 8 MiB of them overwritten, another,
    /// 4 KiB overwritten and 4 MiB discarded, a third, and 4 KiB written where nothing was.
    const SAID: [&str; 4] = [
        r#"[{"offset":0,"length":4194304,"exists":"true"},{"offset":4194304,"length":4194304,"exists":"true"},
            {"offset":8388608,"length":4194304,"exists":"true"},{"offset":12582912,"length":4194304,"exists":"true"}]"#,
        r#"[{"offset":0,"length":4194304,"exists":"true"},{"offset":4194304,"length":4194304,"exists":"true"}]"#,
        r#"[{"offset":0,"length":4096,"exists":"true"},{"offset":12582912,"length":4194304,"exists":"false"}]"#,
        r#"[{"offset":41943040,"length":4096,"exists":"true"}]"#,
    ];

    /// Reads a text that comes in pieces of this length.
    fn read_in(pieces: usize, text: &str, size_bytes: u64) -> Result<Difference, String> {
        let (mut reading, mut unread) = (Reading::new(size_bytes), BytesMut::new());
        for piece in text.as_bytes().chunks(pieces) {
            unread.extend_from_slice(piece);
            reading.take(&mut unread)?;
        }
        reading.end(&unread)
    }

    fn read(text: &str) -> Difference {
        read_in(64, text, 64 * MIB).unwrap()
    }

    #[test]
    fn a_difference_is_read_as_it_comes_and_what_touches_is_one() {
        for pieces in [1, 7, 50, 10_000] {
            let first = read_in(pieces, SAID[0], 64 * MIB).unwrap();
            assert_eq!(
                first.written,
                Extents::of(std::iter::once(0..16 * MIB)),
                "in pieces of {pieces}"
            );
            let third = read_in(pieces, SAID[2], 64 * MIB).unwrap();
            assert_eq!(third.written, Extents::of(std::iter::once(0..4096)));
            assert_eq!(third.discarded, Extents::of(std::iter::once(12 * MIB..16 * MIB)));
        }
        let mut reading = Reading::new(u64::MAX);
        let stretch = |offset| Listed { offset, length: 1, exists: Exists::Yes };
        for at in 0..MOST_STRETCHES as u64 {
            reading.add(&stretch(2 * at)).unwrap();
        }
        let last = 2 * (MOST_STRETCHES as u64 - 1);
        reading.add(&stretch(last + 1)).expect("it goes on where the last one ends");
        reading.add(&stretch(last + 9)).unwrap_err();
    }

    #[test]
    fn a_volume_that_is_scattered_more_with_each_snapshot_is_unknown() {
        let scattered = |first: u64| {
            let written = (0..60_000).map(|at| 4 * at + first..4 * at + first + 1);
            Difference { written: Extents::of(written), discarded: Extents::default() }
        };
        let mut walk = Walk::begin(scattered(0));
        walk.go_on(SnapshotName::new("s"), &scattered(2)).unwrap_err();
    }

    #[test]
    fn a_snapshot_holds_what_was_overwritten_and_discarded_since() {
        let mut walk = Walk::begin(read(SAID[0]));
        let mut go_on = |name: &str, said: &str| {
            let usage = walk.go_on(SnapshotName::new(name), &read(said)).unwrap();
            (usage.held_bytes, usage.own_bytes)
        };
        assert_eq!(go_on("s1", SAID[1]), (8 * MIB, Some(8 * MIB)));
        // What was discarded is in the first snapshot as well.
        assert_eq!(go_on("s2", SAID[2]), (4 * MIB + 4096, Some(4096)));
        assert_eq!(go_on("s3", SAID[3]), (0, Some(0)), "`rbd du` says 4 MiB");
    }

    #[test]
    fn what_lay_beyond_the_end_of_a_smaller_image_is_held() {
        let mut walk = Walk::begin(read(SAID[0]));
        let smaller = read_in(64, "[]", 10 * MIB).unwrap().shrunk(64 * MIB, 10 * MIB);
        let usage = walk.go_on(SnapshotName::new("s"), &smaller).unwrap();
        assert_eq!(usage.held_bytes, 6 * MIB);
        let grown = read_in(64, "[]", 64 * MIB).unwrap().shrunk(10 * MIB, 64 * MIB);
        let usage = walk.go_on(SnapshotName::new("t"), &grown).unwrap();
        assert_eq!(usage.held_bytes, 0);
    }

    #[test]
    fn a_difference_that_makes_no_sense_is_bounded_or_refused() {
        let beyond = format!(r#"[{{"offset":{},"length":{0},"exists":"true"}}]"#, u64::MAX);
        assert_eq!(read(&beyond).changed().bytes(), 0);
        let twice =
            r#"[{"offset":5,"length":5,"exists":"true"},{"offset":0,"length":7,"exists":"true"}]"#;
        assert_eq!(read(twice).written, Extents::of(std::iter::once(0..10)));
        for text in [
            "",
            "{}",
            r#"[{"offset":-1,"length":1,"exists":"true"}]"#,
            r#"[{"offset":0,"length":1,"exists":"perhaps"}]"#,
            r#"[{"offset":0,"length":1}]"#,
            r#"[{"offset":0,"length":1,"exists":"true"}"#,
            r#"[{"offset":0,"length":1,"exists":"true"#,
            r#"[{"offset":0,"length":1,"exists":"true"}]]"#,
            r#"[1]"#,
            &format!("[{{{}}}]", " ".repeat(MOST_STRETCH)),
        ] {
            assert!(read_in(64, text, MIB).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn parts_are_those_of_sets(
            these in proptest::collection::vec((0_u64..64, 0_u64..9), 0..9),
            those in proptest::collection::vec((0_u64..64, 0_u64..9), 0..9),
        ) {
            let of = |all: &[(u64, u64)]| {
                Extents::of(all.iter().map(|(offset, length)| *offset..offset + length))
            };
            let (a, b) = (of(&these), of(&those));
            let has = |parts: &Extents, at: u64| parts.0.iter().any(|part| part.contains(&at));
            for at in 0..80 {
                let (in_a, in_b) = (has(&a, at), has(&b, at));
                prop_assert_eq!(has(&a.or(&b), at), in_a || in_b);
                prop_assert_eq!(has(&a.and(&b), at), in_a && in_b);
                prop_assert_eq!(has(&a.without(&b), at), in_a && !in_b);
            }
            let count = (0..80).filter(|at| has(&a, *at)).count() as u64;
            prop_assert_eq!(a.bytes(), count);
        }
    }
}
