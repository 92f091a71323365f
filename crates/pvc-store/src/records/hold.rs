//! Volumes that are held: `/pvcrs/holds/{pool}:{volume}` with JSON, ours alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use pvc_model::NodeName;
use pvc_model::hold::{Purpose, VolumeHold};
use pvc_model::job::JobId;
use pvc_model::storage::{PoolName, SnapshotName, TrashId, VolumeId, VolumeName};
use pvc_ports::Entry;
use serde::{Deserialize, Serialize};

use super::{Kind, PLAIN, RECORD, bytes_at, update};
use crate::draft::Draft;
use crate::error::StoreError;
use crate::feed::EventKind;
use crate::raw::Raw;
use crate::reader::{MOST_JSON, json};

pub(crate) const ROOT: &str = "/pvcrs/holds";

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT],
    base: &[(ROOT, "")],
    record: |key| key.first().filter(|name| id(name).is_some()).map(str::to_owned),
    read: |raw, _, name| {
        let id = id(name).expect("a record has such a name");
        let (record, event) = (read(raw, &id).map(Arc::new), EventKind::Volume(id.clone()));
        // A volume is not gone with its hold.
        Box::new(move |view| update(&mut view.holds, id, record).map(|_| (event, false)))
    },
    weight: |raw, _, name| RECORD + bytes_at(raw.place(ROOT), name).min(MOST_JSON),
    // What is under way is not what a restore brings back.
    is_observed: |_| true,
    is_for_scripts: |_| true,
    // What scripts have mapped is let go of by the worker of their node.
    for_jobs: &[ROOT],
    ..PLAIN
};

#[derive(Serialize, Deserialize)]
struct Written {
    by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    roll_back: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shrink: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    fill: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trashed: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mapped: Option<BTreeMap<String, String>>,
}

fn id(name: &str) -> Option<VolumeId> {
    let (pool, volume) = name.split_once(':')?;
    Some(VolumeId { pool: PoolName::new(pool), volume: VolumeName::new(volume) })
}

fn path(id: &VolumeId) -> String {
    format!("{ROOT}/{}:{}", id.pool, id.volume)
}

fn read(raw: &Raw, id: &VolumeId) -> Option<VolumeHold> {
    let path = path(id);
    if !raw.contains(&path) {
        return None;
    }
    let written = json(raw, &path).and_then(|text| serde_json::from_str::<Written>(&text).ok());
    let by = written.as_ref().map_or_else(String::new, |written| written.by.clone());
    // What nobody here understands may be under way all the same.
    let purpose = written.and_then(known_purpose).unwrap_or(Purpose::Other);
    Some(VolumeHold { volume: id.clone(), purpose, by })
}

/// Purpose that was written; `None` if this version knows none such.
fn known_purpose(written: Written) -> Option<Purpose> {
    Some(match (written.roll_back, written.shrink, written.fill, written.mapped) {
        (Some(snapshot), None, false, None) => Purpose::RollBack(SnapshotName::new(snapshot)),
        (None, Some(bytes), false, None) => Purpose::Shrink(bytes),
        (None, None, false, Some(jobs)) => {
            let known = |(job, node): (&String, &String)| {
                Some((JobId::parse(job)?, NodeName::new(node.as_str())))
            };
            let jobs: BTreeMap<JobId, NodeName> = jobs.iter().filter_map(known).collect();
            // Of no task that this version knows.
            if jobs.is_empty() {
                return None;
            }
            Purpose::Mapped(jobs)
        }
        (None, None, true, None) => {
            // One that is no identifier is that of no volume.
            let ids = |ids: Vec<String>| ids.iter().filter_map(|id| TrashId::parse(id)).collect();
            Purpose::Fill { trashed: written.trashed.map(ids) }
        }
        _ => return None,
    })
}

/// Writes the hold, new or taken over. The version of the container grows, so that whoever decided
/// before [decides again](expect).
pub(crate) fn put(draft: &mut Draft<'_>, hold: &VolumeHold) {
    let by = hold.by.clone();
    let none =
        Written { by, roll_back: None, shrink: None, fill: false, trashed: None, mapped: None };
    let written = match &hold.purpose {
        Purpose::RollBack(snapshot) => Written { roll_back: Some(snapshot.to_string()), ..none },
        Purpose::Shrink(bytes) => Written { shrink: Some(*bytes), ..none },
        Purpose::Fill { trashed } => {
            let ids = |ids: &BTreeSet<TrashId>| ids.iter().map(TrashId::to_string).collect();
            let trashed = trashed.as_ref().map(ids);
            Written { fill: true, trashed, ..none }
        }
        Purpose::Mapped(jobs) => {
            let jobs = jobs.iter().map(|(job, node)| (job.to_string(), node.to_string()));
            let jobs = jobs.collect();
            Written { mapped: Some(jobs), ..none }
        }
        // It is read as such again.
        Purpose::Other => none,
    };
    let text = serde_json::to_string(&written).expect("texts, numbers and a boolean");
    draft.put_deep(ROOT.to_owned(), Bytes::new());
    draft.put(path(&hold.volume), text);
}

/// Number of holds that were ever [put](put), by the container.
pub(crate) fn count(container: Option<&Entry>) -> i32 {
    container.map_or(-1, |container| container.stat.version)
}

/// Demands that no volume was held since.
pub(crate) fn expect(draft: &mut Draft<'_>) -> Result<(), StoreError> {
    // What this multi makes was not there.
    draft.ensure(ROOT);
    draft.check(ROOT.to_owned())
}

pub(crate) fn remove(draft: &mut Draft<'_>, id: &VolumeId) {
    draft.delete(&path(id));
}

/// Removes the hold of a volume that is gone. While a volume is given new contents it has no name
/// for a moment, and is not gone; what else takes its name away is not known.
pub(super) fn remove_of_volume(draft: &mut Draft<'_>, id: &VolumeId) {
    let held = read(draft.seen(), id);
    if !held.is_some_and(|hold| matches!(hold.purpose, Purpose::Fill { .. } | Purpose::Other)) {
        remove(draft, id);
    }
}

/// Removes the holds of all volumes in a pool.
pub(super) fn remove_of_pool(draft: &mut Draft<'_>, pool: &PoolName) {
    let held = draft.seen().children(ROOT).into_iter().filter_map(|name| id(&name));
    let held: Vec<VolumeId> = held.filter(|id| id.pool == *pool).collect();
    held.iter().for_each(|id| remove(draft, id));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::raw_of;

    #[test]
    fn a_hold_that_nobody_understands_is_one_for_something_else() {
        let volume = VolumeId::parse("vms/a").expect("well formed");
        let read_back = |text: &str| {
            read(&raw_of([("/pvcrs/holds/vms:a".to_owned(), text.to_owned())]), &volume)
        };
        assert_eq!(read(&raw_of([]), &volume), None, "where there is none, nothing is held");
        let shrink = read_back(r#"{"by":"x","shrink":4096,"more":1}"#).expect("it is one");
        assert_eq!(shrink.purpose, Purpose::Shrink(4096));
        let back = read_back(r#"{"by":"x","roll_back":"before"}"#).expect("it is one");
        assert_eq!(back.purpose, Purpose::RollBack(SnapshotName::new("before")));
        let fill = read_back(r#"{"by":"x","fill":true}"#).expect("it is one");
        assert_eq!(fill.purpose, Purpose::Fill { trashed: None });
        let fill = read_back(r#"{"by":"x","fill":true,"trashed":["1a","../b"]}"#).expect("one");
        let trashed = TrashId::parse("1a").into_iter().collect();
        assert_eq!(fill.purpose, Purpose::Fill { trashed: Some(trashed) });
        let text = r#"{"by":"x","mapped":{"00000001":"hv1","no task":"hv2"}}"#;
        let mapped = read_back(text).expect("it is one");
        assert_eq!(mapped.purpose, Purpose::Mapped([(JobId::from_bits(1), "hv1".into())].into()));
        let both = r#"{"by":"x","shrink":1,"roll_back":"y"}"#;
        let long = " ".repeat(MOST_JSON + 1);
        for text in [
            "",
            "{}",
            r#"{"by":"x"}"#,
            both,
            r#"{"by":"x","shrink":-1}"#,
            r#"{"by":"x","fill":false}"#,
            r#"{"by":"x","mapped":{}}"#,
            r#"{"by":"x","mapped":["00000001"]}"#,
            r#"{"by":"x","mapped":{"00000001":"hv1"},"fill":true}"#,
            r#"{"by":"x","of_tomorrow":1}"#,
            "no JSON",
            long.as_str(),
        ] {
            let hold = read_back(text).expect("there is one");
            let is_other = (hold.volume, hold.purpose) == (volume.clone(), Purpose::Other);
            assert!(is_other, "{}", &text[..text.len().min(99)]);
        }
    }
}
