//! Layers that every reply passes on its way out.

use std::panic::AssertUnwindSafe;

use axum::extract::{Request, State};
use axum::http::header::AGE;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use pvc_api_types::operation;
use pvc_ports::SessionState;

use crate::error::ApiError;
use crate::state::ApiState;

/// Turns a panic of a handler into a reply. One odd record must not look like a broken network.
pub async fn catch_panics(request: Request, next: Next) -> Response {
    let route = format!("{} {}", request.method(), request.uri().path());
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            tracing::error!(
                route,
                "a handler panicked; this is a bug, please report it with the lines above"
            );
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error")
                .hint(Some("the daemon's log says more; please report it"))
                .into_response()
        }
    }
}

const STALE: HeaderName = HeaderName::from_static(operation::STALE);

/// Marks what is read while the store cannot be reached, with its age: it is as this process last
/// saw it.
pub async fn mark_stale(State(api): State<ApiState>, request: Request, next: Next) -> Response {
    let reads = request.method() == Method::GET;
    let mut response = next.run(request).await;
    if reads && !matches!(*api.store().session().borrow(), SessionState::Connected { .. }) {
        let headers = response.headers_mut();
        headers.insert(STALE, HeaderValue::from_static("true"));
        if let Some(outage) = api.store().outage() {
            headers.insert(AGE, HeaderValue::from(outage.as_secs()));
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::get;
    use axum::{Router, middleware};
    use tower::ServiceExt;

    use super::*;

    async fn broken() -> &'static str {
        panic!("a bug of ours")
    }

    #[tokio::test]
    async fn a_handler_that_panics_is_reported_in_json() {
        let router = Router::new().route("/", get(broken)).layer(middleware::from_fn(catch_panics));
        let response = router.oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(response.status(), 500);
        let body = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
        assert!(String::from_utf8_lossy(&body).contains("\"message\":\"Internal Server Error\""));
    }
}
