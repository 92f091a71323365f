//! Declaration of the wire's objects, and the values that are not plain JSON types.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// Declares objects of the wire.
///
/// Every member is required in the API document and always sent. When read, an absent or `null`
/// member becomes its default: `utoipa` would call such a member optional, hence the explicit
/// `required`.
macro_rules! wire {
    ($(
        $(#[$type_meta:meta])*
        pub struct $name:ident {
            $( $(#[$member_meta:meta])* pub $member:ident: $kind:ty, )*
        }
    )*) => {$(
        $(#[$type_meta])*
        #[derive(Debug, Clone, Default, PartialEq)]
        #[derive(serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
        #[serde(default)]
        pub struct $name {
            $(
                #[serde(deserialize_with = "crate::wire::or_default")]
                #[schema(required)]
                $(#[$member_meta])*
                pub $member: $kind,
            )*
        }
    )*};
}

/// Reads a value, or its default where `null` stands: `#[serde(deserialize_with = "or_default")]`.
pub fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A health figure: percent, or a word where none is known (`"N/A"`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Health {
    Percent(i64),
    Unknown(String),
}

impl Health {
    /// The percentage, unless it is unknown.
    pub fn percent(&self) -> Option<i64> {
        match self {
            Health::Percent(percent) => Some(*percent),
            Health::Unknown(_) => None,
        }
    }
}

impl Default for Health {
    fn default() -> Self {
        Health::Unknown("N/A".to_owned())
    }
}

impl std::fmt::Display for Health {
    /// `97`, or the word that stands for an unknown figure.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Health::Percent(percent) => percent.fmt(f),
            Health::Unknown(word) => word.fmt(f),
        }
    }
}
