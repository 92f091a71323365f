//! The access log: who asked for what, how it ended, how long it took. Never a query, a body, a
//! token. Reads that went well are told only when debugging: clients that watch something make many
//! of them. What is refused to somebody who showed no key, or that of a reader, is told once a
//! second for each address: whoever can reach the API could fill the disk, or drive older lines out
//! of a log that is bounded. Of a path only so much is told.

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use pvc_model::role::Role;

use crate::auth::{Caller, remote};
use crate::state::ApiState;

/// Most characters that are told of a path; names of all kinds of objects are shorter.
const MOST_OF_A_PATH: usize = 200;

pub async fn log(State(api): State<ApiState>, request: Request, next: Next) -> Response {
    let begun = api.clock().monotonic();
    let method = request.method().clone();
    let remote = remote(&request);
    let route = request.extensions().get::<MatchedPath>().cloned();
    // The path of a request that matches nothing may be anything, also a secret in the wrong place.
    let path = route.as_ref().map(|_| cut(request.uri().path())).unwrap_or_default();
    let response = next.run(request).await;
    let caller = response.extensions().get::<Caller>();
    let may_change = caller.is_some_and(|caller| caller.role > Role::Reader);
    let is_trusted = may_change && !api.tokens().is_open();
    let caller = caller.map_or("-", |caller| &caller.description);
    let taken = api.clock().monotonic().saturating_sub(begun);
    let route = route.as_ref().map_or("-", MatchedPath::as_str);
    let status = response.status();
    let milliseconds = u64::try_from(taken.as_millis()).unwrap_or(u64::MAX);
    // The level of an event is fixed where it is written, so there are two.
    macro_rules! line {
        ($level:ident, $left_out:expr) => {
            tracing::$level!(
                target: "pvc_api::access",
                %method, route, path, status = status.as_u16(), milliseconds, caller, %remote,
                left_out = $left_out,
                "request"
            )
        };
    }
    if is_routine(&method, status) {
        line!(debug, 0);
    } else if is_trusted || status.as_u16() < 300 {
        line!(info, 0);
    } else if let Some(left_out) = api.throttle().tell(remote, api.clock().monotonic()) {
        line!(info, left_out);
    }
    response
}

/// The path, or its beginning and its length.
fn cut(path: &str) -> String {
    match path.char_indices().nth(MOST_OF_A_PATH) {
        Some((at, _)) => format!("{}… ({} bytes)", &path[..at], path.len()),
        None => path.to_owned(),
    }
}

/// Whether the request only read, and could.
fn is_routine(method: &Method, status: StatusCode) -> bool {
    matches!(*method, Method::GET | Method::HEAD) && status.as_u16() < 400
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reads_that_went_well_are_routine() {
        assert!(is_routine(&Method::GET, StatusCode::OK));
        assert!(is_routine(&Method::HEAD, StatusCode::NOT_MODIFIED));
        assert!(!is_routine(&Method::GET, StatusCode::UNAUTHORIZED));
        assert!(!is_routine(&Method::POST, StatusCode::OK));
    }

    #[test]
    fn a_long_path_is_cut_between_characters() {
        assert_eq!(cut("/api/v1/vm/web1"), "/api/v1/vm/web1");
        let long = "ü".repeat(MOST_OF_A_PATH);
        assert_eq!(cut(&long), long);
        assert_eq!(cut(&format!("{long}üx")), format!("{long}… (403 bytes)"));
    }
}
