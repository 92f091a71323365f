//! `If-None-Match`: a client that has the reply already is told so instead.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

/// Turns a reply whose entity tag the client has into 304.
pub async fn not_modified(request: Request, next: Next) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let known = if reads { given_tags(request.headers()) } else { String::new() };
    let mut response = next.run(request).await;
    if reads && response.status() == StatusCode::OK && is_known(&response, &known) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        *response.body_mut() = Body::empty();
        response.headers_mut().remove(header::CONTENT_LENGTH);
        response.headers_mut().remove(header::CONTENT_TYPE);
    }
    response
}

fn given_tags(headers: &HeaderMap) -> String {
    let tags = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|tags| tags.to_str().ok());
    tags.collect::<Vec<_>>().join(",")
}

fn is_known(response: &Response, known: &str) -> bool {
    let Some(tag) = response.headers().get(header::ETAG).and_then(|tag| tag.to_str().ok()) else {
        return false;
    };
    let opaque = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    known.split(',').any(|given| given.trim() == "*" || opaque(given) == opaque(tag))
}
