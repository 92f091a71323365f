//! Request bodies: never more than allowed, and what is too much is refused before it has come.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;

use crate::error::{ApiError, Result};

/// The whole body, if it has at most `limit` bytes.
pub async fn read(body: Body, limit: usize) -> Result<Bytes> {
    let mut stream = body.into_data_stream();
    let mut whole = BytesMut::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk
            .map_err(|_| ApiError::refused("the request ended before its body was complete"))?;
        if whole.len() + chunk.len() > limit {
            linger(stream);
            return Err(too_large(limit));
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}

/// The request, or a refusal if it announces a body larger than `limit`.
pub fn check_announced(request: Request, limit: usize) -> Result<Request> {
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        linger(request.into_body().into_data_stream());
        return Err(too_large(limit));
    }
    Ok(request)
}

/// Lets go of a body that is not read.
pub fn turn_away(body: Body) {
    linger(body.into_data_stream());
}

/// Number of bytes of a refused body that are still taken, and for how long.
const LINGER_BYTES: usize = 4 << 20;
const LINGER_TIME: Duration = Duration::from_secs(2);

/// Takes a little more of a body that was refused. A connection that is closed on unread bytes is
/// reset, and a client that is still sending would lose the reply that tells it why.
pub fn linger(mut stream: BodyDataStream) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(tokio::time::timeout(LINGER_TIME, async move {
        let mut taken = 0;
        while let Some(Ok(chunk)) = stream.next().await {
            taken += chunk.len();
            if taken > LINGER_BYTES {
                return;
            }
        }
    }));
}

pub fn too_large(limit: usize) -> ApiError {
    let shown = if limit < 1 << 20 {
        format!("{} KiB", limit >> 10)
    } else {
        format!("{} MiB", limit >> 20)
    };
    let message = format!("the request body is larger than {shown}");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}

pub fn too_slow(time: Duration) -> ApiError {
    let message = format!("the request body did not arrive within {} s", time.as_secs());
    ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
}
