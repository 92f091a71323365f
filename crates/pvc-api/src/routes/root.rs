//! The root, logging in and out.

use std::sync::LazyLock;

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use pvc_api_types::Message;
use pvc_api_types::operations::cluster::{GetOpenapiJson, GetRoot, Login, PostLogin, PostLogout};
use pvc_api_types::param::Parameters;
use serde_json::Value;

use crate::auth::{self, check_secret, session_cookie, session_of};
use crate::error::Result;
use crate::openapi::document;
use crate::state::ApiState;
use crate::table::{Answer, Ask, Table};
use crate::{json, params};

pub fn add(table: Table) -> Table {
    table.add(get_root).add(get_openapi_json).add_raw(post_login).add_raw(post_logout)
}

async fn get_root(_: Ask<GetRoot>) -> Result<Answer<GetRoot>> {
    Ok(Answer::said("PVC API version 1.0"))
}

async fn post_login(api: ApiState, request: Request) -> Result<Answer<PostLogin>> {
    if api.tokens().is_open() {
        return Ok(Answer::encoded(home()));
    }
    let remote = auth::remote(&request);
    let given = params::given_unauthenticated(request, &api.settings().limits).await?;
    let login = Login::read(&given).map_err(params::refusal)?;
    let description = check_secret(&api, login.token.as_bytes(), remote).await?;
    let id = api.sessions().open(description, api.clock().monotonic(), api.random().as_ref());
    let reply = json::ok(&Message { message: "logged in".into() });
    Ok(Answer::encoded(with_cookie(reply, session_cookie(&api, Some(&id)))))
}

async fn post_logout(api: ApiState, request: Request) -> Result<Answer<PostLogout>> {
    if api.tokens().is_open() {
        return Ok(Answer::encoded(home()));
    }
    if let Some(id) = session_of(request.headers()) {
        api.sessions().close(id);
    }
    let reply = json::ok(&Message { message: "logged out".into() });
    Ok(Answer::encoded(with_cookie(reply, session_cookie(&api, None))))
}

async fn get_openapi_json(_: Ask<GetOpenapiJson>) -> Result<Answer<GetOpenapiJson>> {
    // Made once: it depends on nothing but the program.
    static DOCUMENT: LazyLock<Value> =
        LazyLock::new(|| serde_json::to_value(document()).expect("the document has texts as keys"));
    Ok(Answer::encoded(json::ok(&*DOCUMENT)))
}

fn home() -> Response {
    (StatusCode::FOUND, [(header::LOCATION, "/api/v1/")]).into_response()
}

fn with_cookie(mut response: Response, cookie: HeaderValue) -> Response {
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    response
}
