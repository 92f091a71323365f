//! What kinds of refusals there are.

/// What kind of refusal it is, for whoever has to choose a status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What was named is not there.
    NotFound,
    /// The ask itself is wrong.
    Invalid,
    /// It does not fit the present state.
    Conflict,
    /// Something outside did not do its part; the same ask may work later.
    Unavailable,
}
