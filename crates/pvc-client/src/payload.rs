//! An answer's body, kept as it came.

use std::marker::PhantomData;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use serde_json::error::Category;
use serde_json::value::RawValue;

use crate::error::Error;
use crate::page;

/// A body that can be read as a `T`, or passed on unmodified. Scripts rely on the second: what the
/// API adds tomorrow must not vanish on its way through a client of today. Nothing is parsed before
/// one of the two is asked for.
#[derive(Debug, Clone)]
pub struct Payload<T> {
    body: Vec<u8>,
    served_at: Option<u64>,
    kind: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Payload<T> {
    pub(crate) fn new(body: Vec<u8>) -> Self {
        Self { body, served_at: None, kind: PhantomData }
    }

    pub(crate) fn dated(self, served_at: Option<u64>) -> Self {
        Self { served_at, ..self }
    }

    /// Moment of the answer by the server's own clock, in seconds since the epoch, if it says so.
    pub fn served_at(&self) -> Option<u64> {
        self.served_at
    }

    /// The body as it came. Fails if it is no JSON.
    pub fn text(&self) -> Result<&str, Error> {
        let text: &RawValue =
            serde_json::from_slice(&self.body).map_err(|source| self.misunderstood(source))?;
        Ok(text.get())
    }

    /// The body as plain data. Fails if it is no JSON.
    pub fn value(&self) -> Result<Value, Error> {
        self.read_as()
    }

    /// The body as a `T`. Fails if it has another shape.
    pub fn read(&self) -> Result<T, Error> {
        self.read_as()
    }

    /// The body as something with fewer members than a `T`, for those who need only these.
    pub fn read_as<U: DeserializeOwned>(&self) -> Result<U, Error> {
        serde_json::from_slice(&self.body).map_err(|source| self.misunderstood(source))
    }

    fn misunderstood(&self, source: serde_json::Error) -> Error {
        if let Some(title) = page::title(&self.body) {
            return Error::BadAnswer {
                what: format!("is a web page{title}, not JSON"),
                source: None,
            };
        }
        let what = match source.classify() {
            Category::Data => "has an unexpected shape",
            Category::Syntax | Category::Eof | Category::Io => "is no JSON",
        };
        Error::BadAnswer { what: what.to_owned(), source: Some(source.into()) }
    }
}

impl<T: DeserializeOwned> Payload<Vec<T>> {
    /// The list without elements: what a 404 for a list means.
    pub fn empty() -> Self {
        Self::new(b"[]".to_vec())
    }

    pub fn is_empty(&self) -> bool {
        self.read_as::<Vec<IgnoredAny>>().is_ok_and(|list| list.is_empty())
    }

    /// The only element of a list, or `None` if there is not exactly one: the API answers a
    /// question for one object with a list. An object outside any list counts as one.
    pub fn only(self) -> Option<Payload<T>> {
        let payload = |body| Payload::new(body).dated(self.served_at);
        if self.body.trim_ascii_start().starts_with(b"{") {
            return Some(payload(self.body));
        }
        match &serde_json::from_slice::<Vec<&RawValue>>(&self.body).ok()?[..] {
            [only] => Some(payload(only.get().as_bytes().to_vec())),
            _ => None,
        }
    }
}
