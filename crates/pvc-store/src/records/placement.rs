//! `/pvcrs/placement`: whoever chooses a node for a VM writes it, so that two who choose at once do
//! not promise the same memory twice.

use bytes::Bytes;

use super::{Kind, PLAIN};
use crate::draft::Draft;

const PATH: &str = "/pvcrs/placement";

pub(super) const KIND: Kind = Kind {
    roots: &[PATH],
    base: &[(PATH, "")],
    is_observed: |_| true,
    is_guard: |_| true,
    is_for_scripts: |_| true,
    ..PLAIN
};

/// Demands that nobody has chosen a node since.
pub(crate) fn expect(draft: &mut Draft<'_>) {
    draft.put_deep(PATH.to_owned(), Bytes::new());
}
