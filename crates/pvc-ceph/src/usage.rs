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

use bytes::BytesMut;
use pvc_model::snapshot_usage::SnapshotUsage;
use pvc_model::storage::{SnapshotName, VolumeId};
use pvc_ports::StorageError;
use serde::Deserialize;

use crate::answers;
use crate::piped::Pipe;
use crate::rbd::{image_args, io_error};
use crate::storage::{RbdStorage, require_snapshot_name, with_json};

const LOOKING: &str = "looking what snapshots hold";

/// Time in which `rbd diff` must have said something: it says all of it at its end.
const ANSWERED: Duration = Duration::from_secs(600);

/// Bytes that a difference may have as text: those of some TiB.
const MOST_TEXT: usize = 64 << 20;

/// Stretch of an image in the output of `rbd diff`.
#[derive(Deserialize)]
struct Listed {
    offset: u64,
    length: u64,
    /// `true` or `false`, as text: whether it has data now.
    exists: String,
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
    /// Reads a difference to an image of this size. Nothing is believed to lie beyond its end.
    fn read(text: &[u8], size_bytes: u64) -> Result<Self, String> {
        let listed: Vec<Listed> = answers::json(text)?;
        let of = |exists: &'static str| {
            let these = listed.iter().filter(move |stretch| stretch.exists == exists);
            Extents::of(these.map(move |stretch| {
                let end = stretch.offset.saturating_add(stretch.length);
                stretch.offset..end.min(size_bytes)
            }))
        };
        match listed.iter().all(|stretch| ["true", "false"].contains(&stretch.exists.as_str())) {
            true => Ok(Difference { written: of("true"), discarded: of("false") }),
            false => Err("its answer is not understood: `exists` is no truth".to_owned()),
        }
    }

    /// The same, where the image had another size: what lay beyond is gone.
    fn shrunk(self, from_bytes: u64, to_bytes: u64) -> Self {
        let discarded = self.discarded.or(&Extents::of([to_bytes..from_bytes.max(to_bytes)]));
        Difference { discarded, ..self }
    }

    fn changed(&self) -> Extents {
        self.written.or(&self.discarded)
    }
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
    fn go_on(&mut self, name: SnapshotName, next: &Difference) -> SnapshotUsage {
        let changed = next.changed();
        let held = self.filled.and(&changed);
        let own = self.changed.as_ref().map_or_else(|| held.clone(), |new| held.and(new));
        self.filled = self.filled.without(&next.discarded).or(&next.written);
        self.changed = Some(changed);
        SnapshotUsage { name, held_bytes: held.bytes(), own_bytes: Some(own.bytes()) }
    }
}

impl RbdStorage {
    pub(crate) async fn usage_of_snapshots(
        &self,
        volume: &VolumeId,
    ) -> Result<Vec<SnapshotUsage>, StorageError> {
        let image = self.image(volume).await?;
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
            usage.push(walk.go_on(name(snapshot), &difference));
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
        let args = with_json([image_args(volume), more].concat());
        let text = self.long_text(volume, args).await?;
        let to_bytes = to.map_or(image.size, |snapshot| snapshot.size);
        let difference = Difference::read(&text, to_bytes).map_err(|why| io_error(LOOKING, why))?;
        Ok(difference.shrunk(from.map_or(0, |snapshot| snapshot.size), to_bytes))
    }

    /// Output of `rbd diff`, which may be longer than what is kept of other programs.
    async fn long_text(
        &self,
        volume: &VolumeId,
        args: Vec<String>,
    ) -> Result<BytesMut, StorageError> {
        let failed = |failure: crate::rbd::Failure| failure.of(volume, LOOKING);
        let started = self.programs.rbd_piped(&["diff"], args, Pipe::Output).map_err(failed)?;
        let (mut program, mut text) = (started.with_deadline(ANSWERED), BytesMut::new());
        while program.take(&mut text).await.map_err(failed)? {
            if text.len() > MOST_TEXT {
                return Err(io_error(LOOKING, format!("it says more than {MOST_TEXT} bytes")));
            }
        }
        program.end().await.map_err(failed)?;
        Ok(text)
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

    fn read(text: &str) -> Difference {
        Difference::read(text.as_bytes(), 64 * MIB).unwrap()
    }

    #[test]
    fn a_snapshot_holds_what_was_overwritten_and_discarded_since() {
        let mut walk = Walk::begin(read(SAID[0]));
        let mut go_on = |name: &str, said: &str| {
            let usage = walk.go_on(SnapshotName::new(name), &read(said));
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
        let smaller = Difference::read(b"[]", 10 * MIB).unwrap().shrunk(64 * MIB, 10 * MIB);
        let usage = walk.go_on(SnapshotName::new("s"), &smaller);
        assert_eq!(usage.held_bytes, 6 * MIB);
        let grown = Difference::read(b"[]", 64 * MIB).unwrap().shrunk(10 * MIB, 64 * MIB);
        assert_eq!(walk.go_on(SnapshotName::new("t"), &grown).held_bytes, 0);
    }

    #[test]
    fn a_difference_that_makes_no_sense_is_bounded_or_refused() {
        let beyond = format!(r#"[{{"offset":{},"length":{0},"exists":"true"}}]"#, u64::MAX);
        assert_eq!(read(&beyond).changed().bytes(), 0);
        let twice =
            r#"[{"offset":5,"length":5,"exists":"true"},{"offset":0,"length":7,"exists":"true"}]"#;
        assert_eq!(read(twice).written, Extents(vec![0..10]));
        for text in [
            "",
            "{}",
            r#"[{"offset":-1,"length":1,"exists":"true"}]"#,
            r#"[{"offset":0,"length":1,"exists":"perhaps"}]"#,
            r#"[{"offset":0,"length":1}]"#,
        ] {
            assert!(Difference::read(text.as_bytes(), MIB).is_err(), "{text}");
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
