//! Options that take one of the API's words.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use pvc_api_types::param::Choice;

/// Takes the words of `T`, and no others.
pub fn words<T: Choice>() -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(T::WORDS.iter().copied())
        .map(|word| T::parse(&word).expect("clap takes none but these words"))
}

/// Takes the words of `T` for a parameter that is free text, as it was typed; options that use it
/// ignore the case.
pub fn any_case<T: Choice>() -> PossibleValuesParser {
    PossibleValuesParser::new(T::WORDS.iter().copied())
}
