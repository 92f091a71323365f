//! Objects that a command names, and that there are none of.

use pvc_api_types::operation::Operation;
use pvc_api_types::param::Nothing;
use pvc_client::{Error, Kind};
use serde::de::DeserializeOwned;

use crate::context::Pvc;
use crate::outcome::{Exit, Failure};

/// The failure that an error is for a command that names an object beside what it asks for. An API
/// calls one that does not exist a parameter that makes no sense, as PVC 1.0.3 does, for whose
/// clients a list that is not found is an empty one; asked for the object, by `operation`, it says
/// so.
pub fn failure<'a, O, T>(
    pvc: &mut Pvc,
    error: Error,
    operation: O,
    named: impl IntoIterator<Item = &'a str>,
) -> Failure
where
    O: Operation<At = [String; 1], Params = Nothing, Reply = Vec<T>> + Copy,
    T: DeserializeOwned,
{
    let refused = error.kind() == Kind::Refused;
    let failure = Failure::from(error);
    let is_missing = |name: &str| {
        let found = pvc.client().map(|client| client.read_only(operation, [name], ""));
        matches!(found, Ok(Err(error)) if error.kind() == Kind::NotFound)
    };
    let mut names = named.into_iter().map(str::trim).filter(|name| !name.is_empty());
    if refused && names.any(is_missing) {
        return Failure { exit: Exit::NotFound, ..failure };
    }
    failure
}
