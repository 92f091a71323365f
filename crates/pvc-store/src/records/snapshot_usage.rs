//! Space that the snapshots of pools hold: `/pvcrs/snapshot-usage/{pool}` with JSON, ours alone.
//! Whoever looks at them writes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use pvc_model::snapshot_usage::{
    MOST_LATE, MOST_SNAPSHOTS, Pass, SeenSnapshot, SnapshotUsage, SnapshotUsageRecord, sorted,
};
use pvc_model::storage::{PoolName, SnapshotName, VolumeId, VolumeName};
use serde::{Deserialize, Serialize};

use super::{Kind, PLAIN, RECORD, bytes_at, update};
use crate::draft::Draft;
use crate::feed::EventKind;
use crate::raw::Raw;
use crate::reader::{MOST_JSON, json};

const ROOT: &str = "/pvcrs/snapshot-usage";

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT],
    base: &[(ROOT, "")],
    record: |key| key.first().map(str::to_owned),
    read: |raw, _, name| {
        let record = read(raw, name).map(Arc::new);
        let (pool, event) = (PoolName::new(name), EventKind::Pool(name.to_owned()));
        // A pool is not gone with what its snapshots hold.
        Box::new(move |view| update(&mut view.snapshot_usage, pool, record).map(|_| (event, false)))
    },
    weight: |raw, _, name| RECORD + bytes_at(raw.place(ROOT), name).min(MOST_JSON),
    is_observed: |_| true,
    is_for_scripts: |_| true,
    ..PLAIN
};

#[derive(Serialize, Deserialize)]
struct Written {
    /// Seconds since the epoch.
    at: Option<u64>,
    #[serde(default)]
    took: u64,
    unknown: u64,
    largest: Vec<WrittenSnapshot>,
    /// Volumes, with seconds since the epoch.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    late: BTreeMap<String, u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pass: Option<WrittenPass>,
}

#[derive(Serialize, Deserialize)]
struct WrittenPass {
    after: String,
    took: u64,
    unknown: u64,
    largest: Vec<WrittenSnapshot>,
}

#[derive(Serialize, Deserialize)]
struct WrittenSnapshot {
    volume: String,
    snapshot: String,
    held: u64,
    own: Option<u64>,
    at: u64,
}

pub(crate) fn path(pool: &PoolName) -> String {
    format!("{ROOT}/{pool}")
}

fn read(raw: &Raw, name: &str) -> Option<SnapshotUsageRecord> {
    parse(&json(raw, &path(&PoolName::new(name)))?)
}

fn parse(text: &str) -> Option<SnapshotUsageRecord> {
    let Written { at, took, unknown, largest, late, pass } = serde_json::from_str(text).ok()?;
    let late = late.into_iter().take(MOST_LATE);
    let pass = pass.map(|WrittenPass { after, took, unknown, largest }| Pass {
        after: VolumeName::new(after),
        took,
        unknown,
        largest: seen(largest),
    });
    Some(SnapshotUsageRecord {
        at,
        took,
        unknown,
        largest: seen(largest),
        late: late.map(|(volume, at)| (VolumeName::new(volume), at)).collect(),
        pass,
    })
}

fn seen(written: Vec<WrittenSnapshot>) -> Vec<SeenSnapshot> {
    let seen = |written: WrittenSnapshot| {
        let WrittenSnapshot { volume, snapshot, held: held_bytes, own: own_bytes, at } = written;
        let usage = SnapshotUsage { name: SnapshotName::new(snapshot), held_bytes, own_bytes };
        SeenSnapshot { volume: VolumeName::new(volume), usage, at }
    };
    sorted(written.into_iter().take(MOST_SNAPSHOTS).map(seen).collect())
}

fn written(seen: &[SeenSnapshot]) -> Vec<WrittenSnapshot> {
    let written = |seen: &SeenSnapshot| WrittenSnapshot {
        volume: seen.volume.to_string(),
        snapshot: seen.usage.name.to_string(),
        held: seen.usage.held_bytes,
        own: seen.usage.own_bytes,
        at: seen.at,
    };
    seen.iter().map(written).collect()
}

pub(crate) fn text(record: &SnapshotUsageRecord) -> String {
    let pass = record.pass.as_ref().map(|pass| WrittenPass {
        after: pass.after.to_string(),
        took: pass.took,
        unknown: pass.unknown,
        largest: written(&pass.largest),
    });
    let written = Written {
        at: record.at,
        took: record.took,
        unknown: record.unknown,
        largest: written(&record.largest),
        late: record.late.iter().map(|(volume, at)| (volume.to_string(), *at)).collect(),
        pass,
    };
    serde_json::to_string(&written).expect("it has names and whole numbers alone")
}

pub(crate) fn remove(draft: &mut Draft<'_>, pool: &PoolName) {
    draft.delete(&path(pool));
}

/// Has what was seen of the volume's snapshots under its new name.
pub(crate) fn rename_volume(draft: &mut Draft<'_>, from: &VolumeId, to: &VolumeId) {
    change(draft, &from.pool, |record| record.rename_volume(&from.volume, &to.volume));
}

/// Has what was seen of the snapshot under its new name.
pub(crate) fn rename_snapshot(
    draft: &mut Draft<'_>,
    volume: &VolumeId,
    from: &SnapshotName,
    to: &SnapshotName,
) {
    change(draft, &volume.pool, |record| record.rename_snapshot(&volume.volume, from, to));
}

fn change(draft: &mut Draft<'_>, pool: &PoolName, change: impl FnOnce(&mut SnapshotUsageRecord)) {
    let path = path(pool);
    let written = draft.value(&path).filter(|bytes| bytes.len() <= MOST_JSON);
    let known = written.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok());
    let Some(before) = known.and_then(parse) else { return };
    let mut record = before.clone();
    change(&mut record);
    if record != before {
        draft.put(path, text(&record));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::raw_of;

    fn read_back(text: &str) -> Option<SnapshotUsageRecord> {
        read(&raw_of([("/pvcrs/snapshot-usage/vms".to_owned(), text.to_owned())]), "vms")
    }

    #[test]
    fn what_was_seen_reads_back_as_it_was_written_whatever_the_names() {
        let seen = |snapshot: &str, held_bytes, own_bytes| {
            let usage = SnapshotUsage { name: SnapshotName::new(snapshot), held_bytes, own_bytes };
            SeenSnapshot { volume: VolumeName::new("web1\"_sda\n"), usage, at: 7 }
        };
        let largest = vec![seen("s \u{1b}[31m\\", u64::MAX, None), seen("t", 5, Some(0))];
        let mut record = SnapshotUsageRecord {
            at: Some(9),
            took: 4,
            unknown: 3,
            largest: largest.clone(),
            ..SnapshotUsageRecord::default()
        };
        assert_eq!(read_back(&text(&record)), Some(record.clone()));
        let after = VolumeName::new("w\"");
        record.at = None;
        record.late = BTreeMap::from([(after.clone(), 8)]);
        record.pass = Some(Pass { after, took: 5, unknown: 6, largest });
        assert_eq!(read_back(&text(&record)), Some(record));
    }

    #[test]
    fn what_another_wrote_is_bounded_and_in_order() {
        let one = |held: u64| {
            format!(r#"{{"volume":"a","snapshot":"s{held}","held":{held},"own":null,"at":1}}"#)
        };
        let all: Vec<String> = (1..=MOST_SNAPSHOTS as u64 + 9).map(one).collect();
        let many = format!(r#"{{"at":1,"unknown":0,"largest":[{}],"more":1}}"#, all.join(","));
        let record = read_back(&many).expect("it is one");
        let held: Vec<u64> = record.largest.iter().map(|seen| seen.usage.held_bytes).collect();
        assert_eq!((held.len(), held[0]), (MOST_SNAPSHOTS, MOST_SNAPSHOTS as u64));
        for text in ["", "{}", "[]", r#"{"at":-1,"unknown":0,"largest":[]}"#] {
            assert_eq!(read_back(text), None, "{text}");
        }
    }
}
