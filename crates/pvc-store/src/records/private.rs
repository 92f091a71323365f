//! `/pvcrs`: the root of what legacy peers know nothing of (ADR 0006). What lies below it and is of
//! no kind here was written by a later version of this program.

use super::{Kind, PLAIN};

pub(crate) const ROOT: &str = "/pvcrs";

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT],
    base: &[(ROOT, "")],
    is_observed: |key| !key.is_root(),
    // What a later version keeps there may open something.
    is_for_scripts: |key| key.is_root(),
    ..PLAIN
};
