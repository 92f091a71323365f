//! The stream of events.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

use super::Api;
use crate::error::Result;
use crate::events;
use crate::openapi::ReadRefused;
use crate::params::{Params, params};

params! {
    /// Where to begin.
    pub struct Cursor {
        /// The `id` of the last event that was seen; without it the stream begins now. The header
        /// `Last-Event-ID` says the same and wins.
        cursor: Option<String>,
    }
}

/// What changes, as it changes: server-sent events whose data are `Event` objects. The first event
/// is `reset` when the cursor cannot be continued.
#[utoipa::path(
    get, path = "/api/v1/events", tag = "events", params(Cursor),
    responses((status = 200, body = String, content_type = "text/event-stream"), ReadRefused)
)]
pub async fn get_events(
    State(api): Api,
    headers: HeaderMap,
    Params(cursor): Params<Cursor>,
) -> Result<Response> {
    events::events(&api, &headers, cursor.cursor)
}
