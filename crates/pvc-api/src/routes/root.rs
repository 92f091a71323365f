//! The root, logging in and out.

use std::sync::LazyLock;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use pvc_api_types::Message;
use serde_json::Value;

use super::Api;
use crate::auth::{self, check_secret, session_cookie, session_of};
use crate::error::Result;
use crate::json;
use crate::openapi::{ChangeRefused, document};
use crate::params::{Given, Parameters, params};

/// Says what this is.
#[utoipa::path(get, path = "/api/v1/", tag = "cluster", responses((status = 200, body = Message)))]
pub async fn get_root() -> Response {
    json::ok(&Message { message: "PVC API version 1.0".into() })
}

params! {
    /// What a browser logs in with.
    pub struct Login {
        @form
        /// The token. Taken from the body alone, so that it never stands in an address.
        token: String,
    }
}

/// Opens a session for a browser.
#[utoipa::path(
    post, path = "/api/v1/login", tag = "cluster",
    request_body(content = Login, content_type = "application/x-www-form-urlencoded"),
    responses(
        (status = 200, body = Message, description = "The session is in the cookie"),
        (status = 302, description = "Nobody needs to log in"),
        ChangeRefused,
    )
)]
pub async fn post_login(State(api): Api, request: Request) -> Result<Response> {
    if api.tokens().is_open() {
        return Ok(home());
    }
    let remote = auth::remote(&request);
    let given = Given::from_stranger(request, &api.settings().limits).await?;
    let login = Login::read(&given)?;
    let description = check_secret(&api, login.token.as_bytes(), remote).await?;
    let id = api.sessions().open(description, api.clock().monotonic(), api.random().as_ref());
    Ok(with_cookie(
        json::ok(&Message { message: "logged in".into() }),
        session_cookie(&api, Some(&id)),
    ))
}

/// Ends the session of a browser.
#[utoipa::path(
    post, path = "/api/v1/logout", tag = "cluster",
    responses((status = 200, body = Message), (status = 302, description = "Nobody needs to log \
                                                                            in"))
)]
pub async fn post_logout(State(api): Api, headers: HeaderMap) -> Response {
    if api.tokens().is_open() {
        return home();
    }
    if let Some(id) = session_of(&headers) {
        api.sessions().close(id);
    }
    with_cookie(json::ok(&Message { message: "logged out".into() }), session_cookie(&api, None))
}

/// This document.
#[utoipa::path(
    get, path = "/api/v1/openapi.json", tag = "cluster",
    responses((status = 200, body = String, content_type = "application/json"))
)]
pub async fn get_openapi_json() -> Response {
    // Made once: it depends on nothing but the program.
    static DOCUMENT: LazyLock<Value> =
        LazyLock::new(|| serde_json::to_value(document()).expect("the document has texts as keys"));
    json::ok(&*DOCUMENT)
}

fn home() -> Response {
    (StatusCode::FOUND, [(header::LOCATION, "/api/v1/")]).into_response()
}

fn with_cookie(mut response: Response, cookie: HeaderValue) -> Response {
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    response
}
