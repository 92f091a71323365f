//! The parameters of a request: what its query and its form body hold, with bounds.
//!
//! What an operation takes is declared in `pvc_api_types::operations`; its rules stand in
//! `pvc_api_types::param`.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use pvc_api_types::param::{Given, Mistakes};

use crate::body::{self, Share};
use crate::error::{ApiError, Result};
use crate::settings::Limits;

/// More parameters than any operation has, fewer than hurt.
const MAX_PARAMETERS: usize = 4096;

/// The largest body of a request that needs no key.
pub(crate) const UNAUTHENTICATED_BYTES: usize = 64 << 10;

/// Everything that a request brought, and its share of the budget for bodies with what the body
/// takes; `large` where the large limit on bodies applies.
pub async fn given(
    request: Request,
    limits: &Limits,
    mut share: Share,
    large: bool,
) -> Result<(Given, Share)> {
    let limit = if large { limits.restore_bytes } else { limits.body_bytes };
    let mut given = Given::default();
    add_urlencoded(&mut given, request.uri().query().unwrap_or_default().as_bytes())?;
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let read = read_form(request, limit, &mut given, &mut share);
        within(limits.body_time, read).await?;
    }
    Ok((given, share))
}

/// Reads what came in the body alone, of somebody who has not shown who they are yet. It has no
/// part in the budget, or they would leave nothing to those who have shown it: what bounds them
/// together is the number of connections.
pub async fn given_unauthenticated(request: Request, limits: &Limits) -> Result<Given> {
    let limit = limits.body_bytes.min(UNAUTHENTICATED_BYTES);
    let (mut given, mut share) = (Given::default(), Share::of_no_budget());
    let read = read_form(request, limit, &mut given, &mut share);
    within(limits.unauthenticated_time, read).await?;
    Ok(given)
}

/// The refusal that tells everything that is wrong; the sentence is about the first.
pub fn refusal(mistakes: Mistakes) -> ApiError {
    let first = mistakes.first().map(|(name, text)| format!("{name}: {text}"));
    let mut error = ApiError::refused(first.unwrap_or_default());
    error.body.errors = mistakes.into_iter().collect();
    error
}

fn add(given: &mut Given, name: impl Into<String>, value: impl Into<String>) -> Result<()> {
    if given.count() >= MAX_PARAMETERS {
        return Err(ApiError::refused(format!("more than {MAX_PARAMETERS} parameters were sent")));
    }
    given.add(name, value);
    Ok(())
}

fn add_urlencoded(given: &mut Given, text: &[u8]) -> Result<()> {
    // What is no text would be replaced: what is recorded would not be what was sent.
    if std::str::from_utf8(&percent_decoded(text)).is_err() {
        return Err(ApiError::refused("the parameters are not UTF-8 text"));
    }
    form_urlencoded::parse(text).try_for_each(|(name, value)| add(given, name, value))
}

async fn within(time: Duration, read: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::time::timeout(time, read).await.map_err(|_| body::too_slow(time))?
}

/// The bytes that `text` stands for where it has `%` and two hexadecimal digits.
fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
    let mut bytes = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let escaped =
            digit(text.get(at + 1)).zip(digit(text.get(at + 2))).filter(|_| *byte == b'%');
        let escaped = escaped.and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        bytes.push(escaped.unwrap_or(*byte));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    bytes
}

/// Adds what the body holds, if it is a form. Any other body is left unread: clients of PVC 1.0.3
/// send content types that mean nothing.
async fn read_form(
    request: Request,
    limit: usize,
    given: &mut Given,
    share: &mut Share,
) -> Result<()> {
    let request = body::check_announced(request, limit)?;
    let kind =
        request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match kind.as_str() {
        "application/x-www-form-urlencoded" => {
            let bytes = body::read(request.into_body(), limit, share).await?;
            add_urlencoded(given, &bytes)
        }
        "multipart/form-data" => read_multipart(request, limit, given, share).await,
        _ => Ok(()),
    }
}

async fn read_multipart(
    request: Request,
    limit: usize,
    given: &mut Given,
    share: &mut Share,
) -> Result<()> {
    let (parts, content) = request.into_parts();
    // Read as a whole first: the limit then counts every byte, whatever part it belongs to.
    let bytes = body::read(content, limit, share).await?;
    let bad =
        |text: String| ApiError::refused(format!("the multipart body cannot be read: {text}"));
    let mut request = Request::from_parts(parts, Body::from(bytes));
    // The limit is ours, and kept.
    DefaultBodyLimit::disable().apply(&mut request);
    let mut form =
        Multipart::from_request(request, &()).await.map_err(|error| bad(error.body_text()))?;
    while let Some(field) = form.next_field().await.map_err(|error| bad(error.body_text()))? {
        let Some(name) = field.name().map(str::to_owned) else { continue };
        let value = field.bytes().await.map_err(|error| match error.status() {
            StatusCode::PAYLOAD_TOO_LARGE => body::too_large(limit),
            _ => bad(error.body_text()),
        })?;
        let value = String::from_utf8(value.into());
        let value =
            value.map_err(|_| ApiError::parameter(&name, "is not UTF-8 text".to_owned()))?;
        add(given, name, value)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q08_a_wrong_parameter_is_reported_as_text_and_all_of_them_by_name() {
        let mistakes = [("colour", "is not one of them"), ("lines", "is no number")];
        let mistakes = mistakes.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let error = refusal(mistakes.to_vec());
        assert_eq!(error.body.message, "colour: is not one of them");
        assert_eq!(error.body.errors.keys().collect::<Vec<_>>(), ["colour", "lines"]);
    }

    #[test]
    fn a_flood_of_parameters_is_refused() {
        let mut given = Given::default();
        assert!(add_urlencoded(&mut given, "a&".repeat(5000).as_bytes()).is_err());
    }

    #[test]
    fn what_is_no_text_is_refused() {
        assert!(add_urlencoded(&mut Given::default(), b"a=%ff%fe").is_err());
        assert!(add_urlencoded(&mut Given::default(), b"a=%zz&b=%c3%bc").is_ok());
    }
}
