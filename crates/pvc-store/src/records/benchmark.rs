//! Benchmarks of the storage: `/pvcrs/benchmarks/{number}` with JSON, ours alone. The worker that
//! does one writes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pvc_model::benchmark::{BenchmarkRecord, BenchmarkState};
use pvc_model::job::JobId;
use pvc_model::storage::VolumeId;
use serde::{Deserialize, Serialize};

use super::{Kind, PLAIN, RECORD, bytes_at, update};
use crate::draft::Draft;
use crate::feed::EventKind;
use crate::raw::Raw;
use crate::reader::json;

const ROOT: &str = "/pvcrs/benchmarks";

/// The largest record that is read, in bytes; what is written is smaller by far.
const MOST_BYTES: usize = 512 << 10;

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT],
    base: &[(ROOT, "")],
    record: |key| number(key.first()?).map(|number| number.to_string()),
    read: |raw, _, name| {
        let number = number(name).expect("a benchmark's record has the number of one");
        let record = read(raw, number).map(Arc::new);
        Box::new(move |view| {
            // The cluster is not gone with it.
            update(&mut view.benchmarks, number, record).map(|_| (EventKind::Cluster, false))
        })
    },
    weight: |raw, _, name| RECORD + bytes_at(raw.place(ROOT), name).min(MOST_BYTES),
    is_observed: |_| true,
    is_guard: |key| key.is_root(),
    is_for_scripts: |_| true,
    ..PLAIN
};

/// Demands that nobody has asked for a benchmark since.
pub(crate) fn expect(draft: &mut Draft<'_>) {
    draft.put_deep(ROOT.to_owned(), Bytes::new());
}

/// The number of a benchmark, as it is always written.
fn number(name: &str) -> Option<u32> {
    name.parse().ok().filter(|number: &u32| number.to_string() == name)
}

#[derive(Serialize, Deserialize)]
struct Written {
    name: String,
    job: String,
    volume: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    made: Option<String>,
    test_format: u32,
    /// JSON text; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<String>,
    /// JSON texts by the names of the tests, while it runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    reports: BTreeMap<String, String>,
}

fn path(number: u32) -> String {
    format!("{ROOT}/{number}")
}

fn read(raw: &Raw, number: u32) -> Option<BenchmarkRecord> {
    let text = json(raw, &path(number)).filter(|text| text.len() <= MOST_BYTES)?;
    let Written { name, job, volume, made, test_format, result, reports } =
        serde_json::from_str(&text).ok()?;
    let reports = reports.into_iter().map(|(test, report)| (test, report.into())).collect();
    let state = match result {
        Some(result) => BenchmarkState::Done(result.into()),
        None => BenchmarkState::Running,
    };
    let (job, volume) = (JobId::parse(&job)?, VolumeId::from_record(&volume)?);
    let format = test_format;
    Some(BenchmarkRecord { number, name, job, volume, made, format, state, reports })
}

pub(crate) fn put(draft: &mut Draft<'_>, record: &BenchmarkRecord) {
    draft.put_deep(path(record.number), text(record));
}

pub(crate) fn remove(draft: &mut Draft<'_>, number: u32) {
    draft.delete(&path(number));
}

fn text(record: &BenchmarkRecord) -> String {
    let written = Written {
        name: record.name.clone(),
        job: record.job.to_string(),
        volume: record.volume.to_string(),
        made: record.made.clone(),
        test_format: record.format,
        result: match &record.state {
            BenchmarkState::Running => None,
            BenchmarkState::Done(result) => Some(result.to_string()),
        },
        reports: record
            .reports
            .iter()
            .map(|(test, report)| (test.clone(), report.to_string()))
            .collect(),
    };
    serde_json::to_string(&written).expect("texts and a number")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::raw_of;

    fn read_back(text: String) -> Option<BenchmarkRecord> {
        read(&raw_of([(path(7), text)]), 7)
    }

    #[test]
    fn a_benchmark_reads_back_as_it_was_written() {
        let running = BenchmarkRecord {
            number: 7,
            name: "2026-11-27T00:30:00_hv1".to_owned(),
            job: JobId::from_bits(3),
            volume: VolumeId::parse("vms/pvcbenchmark-00000003").unwrap(),
            made: Some("10226b8b4567".to_owned()),
            format: 2,
            state: BenchmarkState::Running,
            reports: [("seq_read".to_owned(), r#"{"jobs":[]}"#.into())].into(),
        };
        assert_eq!(read_back(text(&running)), Some(running.clone()));
        let state = BenchmarkState::Done(r#"{"seq_read":{}}"#.into());
        let done = BenchmarkRecord { made: None, state, reports: BTreeMap::new(), ..running };
        assert_eq!(read_back(text(&done)), Some(done));
    }

    #[test]
    fn what_is_no_benchmark_or_too_large_is_none() {
        for text in ["", "{}", "[]", r#"{"name":"x","job":"1","volume":"v","test_format":2}"#] {
            assert_eq!(read_back(text.to_owned()), None, "{text}");
        }
        let large = format!(
            r#"{{"name":"{}","job":"00000003","volume":"a/b","test_format":2}}"#,
            "x".repeat(MOST_BYTES)
        );
        assert_eq!(read_back(large), None);
    }

    #[test]
    fn a_number_is_written_in_one_way() {
        assert_eq!(number("17"), Some(17));
        for name in ["017", "+17", "", "x", "-1", "4294967296"] {
            assert_eq!(number(name), None, "{name}");
        }
    }
}
