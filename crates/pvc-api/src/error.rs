//! Refusals of a request, as replies.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use pvc_api_types::BadRequest;

use crate::json;

/// A refusal: its status, one sentence, and perhaps what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub status: StatusCode,
    pub body: BadRequest,
    /// Seconds after which it is worth trying again.
    pub retry_after: Option<u64>,
    /// Methods that are possible instead, where only the handler knows.
    pub allow: Option<&'static str>,
}

pub type Result<T, E = ApiError> = std::result::Result<T, E>;

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let body = BadRequest { message: message.into(), hint: None, errors: BTreeMap::new() };
        ApiError { status, body, retry_after: None, allow: None }
    }

    pub fn refused(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::NOT_FOUND, message)
    }

    /// A parameter that cannot be taken.
    pub fn parameter(name: &str, text: impl Into<String>) -> Self {
        let text = text.into();
        let mut error = ApiError::refused(format!("{name}: {text}"));
        error.body.errors.insert(name.to_owned(), text);
        error
    }

    pub fn hint(mut self, hint: Option<impl Into<Cow<'static, str>>>) -> Self {
        self.body.hint = hint.map(|hint| hint.into().into_owned());
        self
    }

    /// A method that is not possible, and those that are.
    pub fn method(message: impl Into<String>, allow: &'static str) -> Self {
        let refusal = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message);
        ApiError { allow: Some(allow), ..refusal }
    }

    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json::reply(self.status, &self.body);
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(methods) = self.allow {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
        }
        response
    }
}
