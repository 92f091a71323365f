//! Fill of pools: `/pvcrs/fullness/{pool}` with JSON, ours alone. Whoever collects the figures of
//! pools writes it.

use std::sync::Arc;

use pvc_model::fullness::{FullnessRecord, MOST_SAMPLES, Ratios, Sample};
use pvc_model::storage::PoolName;
use serde::{Deserialize, Serialize};

use super::{Kind, PLAIN, RECORD, bytes_at, update};
use crate::draft::Draft;
use crate::feed::EventKind;
use crate::raw::Raw;
use crate::reader::{MOST_JSON, json};

const ROOT: &str = "/pvcrs/fullness";

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT],
    base: &[(ROOT, "")],
    record: |key| key.first().map(str::to_owned),
    read: |raw, _, name| {
        let record = read(raw, name).map(Arc::new);
        let (pool, event) = (PoolName::new(name), EventKind::Pool(name.to_owned()));
        // A pool is not gone with its history.
        Box::new(move |view| update(&mut view.fullness, pool, record).map(|_| (event, false)))
    },
    weight: |raw, _, name| RECORD + bytes_at(raw.place(ROOT), name).min(MOST_JSON),
    is_observed: |_| true,
    is_for_scripts: |_| true,
    ..PLAIN
};

#[derive(Serialize, Deserialize)]
struct Written {
    /// Nearfull, backfillfull, full.
    ratios: [f64; 3],
    /// Seconds since the epoch, bytes stored, bytes free.
    samples: Vec<[u64; 3]>,
}

pub(crate) fn path(pool: &PoolName) -> String {
    format!("{ROOT}/{pool}")
}

fn read(raw: &Raw, name: &str) -> Option<FullnessRecord> {
    let text = json(raw, &path(&PoolName::new(name)))?;
    let written: Written = serde_json::from_str(&text).ok()?;
    let [nearfull, backfillfull, full] = written.ratios;
    let sample = |[at, stored_bytes, free_bytes]: [u64; 3]| Sample { at, stored_bytes, free_bytes };
    let mut samples: Vec<Sample> =
        written.samples.into_iter().take(MOST_SAMPLES).map(sample).collect();
    samples.sort_by_key(|sample| sample.at);
    let ratios = Ratios::new(nearfull, backfillfull, full).unwrap_or_default();
    Some(FullnessRecord { ratios, samples })
}

pub(crate) fn text(record: &FullnessRecord) -> String {
    let ratios = &record.ratios;
    let sample = |sample: &Sample| [sample.at, sample.stored_bytes, sample.free_bytes];
    let written = Written {
        ratios: [ratios.nearfull(), ratios.backfillfull(), ratios.full()],
        samples: record.samples.iter().map(sample).collect(),
    };
    serde_json::to_string(&written).expect("ratios are finite, and all others whole numbers")
}

pub(crate) fn remove(draft: &mut Draft<'_>, pool: &PoolName) {
    draft.delete(&path(pool));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::raw_of;

    fn read_back(text: &str) -> Option<FullnessRecord> {
        read(&raw_of([("/pvcrs/fullness/vms".to_owned(), text.to_owned())]), "vms")
    }

    #[test]
    fn a_history_reads_back_as_it_was_written() {
        let sample = |at| Sample { at, stored_bytes: at * 2, free_bytes: u64::MAX };
        let ratios = Ratios::new(0.7, 0.8, 0.9).expect("they rise");
        let record = FullnessRecord { ratios, samples: vec![sample(1), sample(3600)] };
        assert_eq!(read_back(&text(&record)), Some(record));
    }

    #[test]
    fn a_history_that_another_wrote_is_bounded_and_in_order() {
        let odd = r#"{"ratios":[0.9,0.1,7],"samples":[[9,1,1],[3,1,1]],"more":1}"#;
        let record = read_back(odd).expect("it is one");
        assert_eq!(record.ratios, Ratios::default());
        assert_eq!(record.samples.iter().map(|sample| sample.at).collect::<Vec<_>>(), [3, 9]);
        let samples = vec!["[1,2,3]"; MOST_SAMPLES + 9].join(",");
        let long = format!(r#"{{"ratios":[0.85,0.9,0.95],"samples":[{samples}]}}"#);
        assert_eq!(read_back(&long).expect("it is one").samples.len(), MOST_SAMPLES);
        for text in ["", "{}", "[]", r#"{"ratios":[1,1,1],"samples":[[-1,0,0]]}"#] {
            assert_eq!(read_back(text), None, "{text}");
        }
    }
}
