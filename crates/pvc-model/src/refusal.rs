//! Kinds of refusals.

/// Kind of a refusal, for whoever has to choose a status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Something that was named is not there.
    NotFound,
    /// The ask itself is wrong.
    Invalid,
    /// The request does not fit the present state.
    Conflict,
    /// Something outside did not do its part; the same ask may work later.
    Unavailable,
}
