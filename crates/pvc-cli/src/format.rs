//! The output formats, as each kind of command offers them.

use clap::ValueEnum;
use pvc_client::{Kind, Payload};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::context::Pvc;
use crate::outcome::Failure;
use crate::output::json;

/// For lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    /// A table
    Pretty,
    /// The bare names
    Raw,
    /// What the API answered, on one line
    Json,
    /// The same, indented
    JsonPretty,
}

/// For one thing in detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InfoFormat {
    /// What matters from day to day
    Pretty,
    /// Everything
    Long,
    /// What the API answered, on one line
    Json,
    /// The same, indented
    JsonPretty,
}

/// For overviews without a raw form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlainFormat {
    /// A table
    Pretty,
    /// On one line
    Json,
    /// The same, indented
    JsonPretty,
}

/// Whether a format is JSON, and which.
pub trait MaybeJson: Copy {
    fn json(self) -> Option<Json>;

    /// Prints `value` if the format is JSON; returns whether it did.
    fn print(self, pvc: &mut Pvc, value: &Value) -> bool {
        match self.json() {
            Some(Json::Line) => pvc.out.line(json::compact(value)),
            Some(Json::Indented) => pvc.out.line(json::pretty(value)),
            None => return false,
        }
        true
    }

    /// Prints an answer as it came if the format is JSON; returns whether it did.
    fn print_payload<T: DeserializeOwned>(
        self,
        pvc: &mut Pvc,
        payload: &Payload<T>,
    ) -> Result<bool, Failure> {
        match self.json() {
            Some(Json::Line) => pvc.out.line(json::compact_text(payload.text()?)),
            Some(Json::Indented) => pvc.out.line(json::pretty_text(payload.text()?)),
            None => return Ok(false),
        }
        Ok(true)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Json {
    Line,
    Indented,
}

impl MaybeJson for ListFormat {
    fn json(self) -> Option<Json> {
        match self {
            ListFormat::Json => Some(Json::Line),
            ListFormat::JsonPretty => Some(Json::Indented),
            ListFormat::Pretty | ListFormat::Raw => None,
        }
    }
}

impl MaybeJson for InfoFormat {
    fn json(self) -> Option<Json> {
        match self {
            InfoFormat::Json => Some(Json::Line),
            InfoFormat::JsonPretty => Some(Json::Indented),
            InfoFormat::Pretty | InfoFormat::Long => None,
        }
    }
}

impl MaybeJson for PlainFormat {
    fn json(self) -> Option<Json> {
        match self {
            PlainFormat::Json => Some(Json::Line),
            PlainFormat::JsonPretty => Some(Json::Indented),
            PlainFormat::Pretty => None,
        }
    }
}

/// A list that the server does not find is an empty one.
pub fn or_empty<T: DeserializeOwned>(
    answer: Result<Payload<Vec<T>>, pvc_client::Error>,
) -> Result<Payload<Vec<T>>, pvc_client::Error> {
    match answer {
        Err(error) if error.kind() == Kind::NotFound => Ok(Payload::empty()),
        answer => answer,
    }
}
