//! Faults: `/faults/{id}` (`spec/zookeeper.md` §4.7).

use bytes::Bytes;
use pvc_model::fault::FaultRecord;

use super::{Kind, PLAIN, show};
use crate::draft::Draft;
use crate::feed::EventKind;
use crate::raw::Raw;
use crate::reader::Reader;

const ROOT: &str = "/faults";

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT],
    base: &[(ROOT, "")],
    record: |key| key.first().map(str::to_owned),
    read: |raw, _, id| {
        let event = EventKind::Fault(id.to_owned());
        show(|view| &mut view.faults, id.to_owned(), read(raw, id), event)
    },
    is_observed: |key| !key.is_root(),
    is_for_scripts: |_| true,
    ..PLAIN
};

fn root(id: &str) -> String {
    format!("{ROOT}/{id}")
}

fn read(raw: &Raw, id: &str) -> Option<FaultRecord> {
    let root = root(id);
    if !raw.contains(&root) {
        return None;
    }
    let mut r = Reader::new(raw, &root);
    Some(FaultRecord {
        id: id.to_owned(),
        first_reported: r.text("first_time"),
        last_reported: r.text("last_time"),
        acknowledged_at: r.text("ack_time"),
        acknowledged: r.text("status") == "ack",
        delta: r.number("delta"),
        message: r.text("message"),
    })
}

/// Writes the fault, new or not.
pub(crate) fn put(draft: &mut Draft<'_>, fault: &FaultRecord) {
    draft.ensure(ROOT);
    let root = root(&fault.id);
    draft.put(root.clone(), Bytes::new());
    let status = if fault.acknowledged { "ack" } else { "new" };
    let values = [
        ("first_time", fault.first_reported.clone()),
        ("last_time", fault.last_reported.clone()),
        ("ack_time", fault.acknowledged_at.clone()),
        ("status", status.to_owned()),
        ("delta", fault.delta.to_string()),
        ("message", fault.message.clone()),
    ];
    for (key, value) in values {
        draft.put(format!("{root}/{key}"), value);
    }
}

pub(crate) fn acknowledge(draft: &mut Draft<'_>, id: &str, at: &str) {
    draft.put(format!("{}/ack_time", root(id)), at.to_owned());
    draft.put(format!("{}/status", root(id)), "ack");
}

pub(crate) fn remove(draft: &mut Draft<'_>, id: &str) {
    draft.delete(&root(id));
}

#[cfg(test)]
mod tests {
    use super::super::{is_observed, is_of_list};

    #[test]
    fn a_fault_is_an_observation_and_no_list() {
        assert!(is_observed("/faults/x") && is_observed("/faults/x/status"));
        assert!(!is_observed("/faults") && !is_of_list("/faults/x/status"));
    }
}
