//! An answer's body, kept as it came.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::Error;

/// A body that can be read as a `T`, or passed on unmodified. Scripts rely on the second: what
/// the API adds tomorrow must not vanish on its way through a client of today.
#[derive(Debug, Clone)]
pub struct Payload<T> {
    value: Value,
    kind: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Payload<T> {
    pub(crate) fn new(value: Value) -> Self {
        Self { value, kind: PhantomData }
    }

    /// The body as it came.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The body as a `T`; fails if it has another shape.
    pub fn read(&self) -> Result<T, Error> {
        T::deserialize(&self.value).map_err(|source| Error::BadAnswer {
            what: "has an unexpected shape".to_owned(),
            source: Some(source.into()),
        })
    }
}

impl<T: DeserializeOwned> Payload<Vec<T>> {
    /// The list without elements: what a 404 for a list means.
    pub fn empty() -> Self {
        Self::new(Value::Array(Vec::new()))
    }

    pub fn is_empty(&self) -> bool {
        self.value.as_array().is_some_and(Vec::is_empty)
    }

    /// The only element of a list, or `None` if there is not exactly one: the API answers a
    /// question for one object with a list. An object outside any list counts as one.
    pub fn only(self) -> Option<Payload<T>> {
        match self.value {
            Value::Array(mut list) if list.len() == 1 => list.pop().map(Payload::new),
            object @ Value::Object(_) => Some(Payload::new(object)),
            _ => None,
        }
    }
}
