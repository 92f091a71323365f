//! The access log: who asked for what, how it ended, how long it took. Never a query, a body, a token.

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;

use crate::auth::{Caller, remote};
use crate::state::ApiState;

pub async fn log(State(api): State<ApiState>, request: Request, next: Next) -> Response {
    let begun = api.clock().monotonic();
    let method = request.method().clone();
    let remote = remote(&request);
    let route = request.extensions().get::<MatchedPath>().cloned();
    // The path of a request that matches nothing may be anything, also a secret in the wrong place.
    let path = route.as_ref().map(|_| request.uri().path().to_owned()).unwrap_or_default();
    let response = next.run(request).await;
    let caller = response.extensions().get::<Caller>().map_or("-", |caller| &caller.description);
    let taken = api.clock().monotonic().saturating_sub(begun);
    tracing::info!(
        target: "pvc_api::access",
        %method,
        route = route.as_ref().map_or("-", MatchedPath::as_str),
        path,
        status = response.status().as_u16(),
        milliseconds = u64::try_from(taken.as_millis()).unwrap_or(u64::MAX),
        caller,
        %remote,
    );
    response
}
