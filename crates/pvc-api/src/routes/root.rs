//! The root, logging in and out.

use std::sync::LazyLock;

use axum::extract::Request;
use pvc_api_types::operations::cluster::{GetOpenapiJson, GetRoot, Login, PostLogin, PostLogout};
use pvc_api_types::param::Parameters;
use serde_json::Value;

use crate::answer::Answer;
use crate::auth::{self, check_secret, session_cookie, session_of};
use crate::error::Result;
use crate::json::Json;
use crate::openapi::document;
use crate::params;
use crate::state::ApiState;
use crate::table::{Ask, Table};

/// Page to which those are sent who need no session.
const HOME: &str = "/api/v1/";

pub fn add(table: Table) -> Table {
    table.add(get_root).add(get_openapi_json).add_raw(post_login).add_raw(post_logout)
}

async fn get_root(_: Ask<GetRoot>) -> Result<Answer<GetRoot>> {
    Ok(Answer::said("PVC API version 1.0"))
}

async fn post_login(api: ApiState, request: Request) -> Result<Answer<PostLogin>> {
    if api.tokens().is_open() {
        return Ok(Answer::redirect(HOME));
    }
    let remote = auth::remote(&request);
    let given = params::given_unauthenticated(request, &api.settings().limits).await?;
    let login = Login::read(&given).map_err(params::refusal)?;
    let caller = check_secret(&api, login.token.as_bytes(), remote).await?;
    let id = api.sessions().open(caller, api.clock().monotonic(), api.random().as_ref());
    Ok(Answer::said("logged in").with_cookie(session_cookie(&api, Some(&id))))
}

async fn post_logout(api: ApiState, request: Request) -> Result<Answer<PostLogout>> {
    if api.tokens().is_open() {
        return Ok(Answer::redirect(HOME));
    }
    if let Some(id) = session_of(request.headers()) {
        api.sessions().close(id);
    }
    Ok(Answer::said("logged out").with_cookie(session_cookie(&api, None)))
}

async fn get_openapi_json(_: Ask<GetOpenapiJson>) -> Result<Answer<GetOpenapiJson>> {
    // Made once: it depends on nothing but the program.
    static DOCUMENT: LazyLock<Json<Value>> = LazyLock::new(|| {
        Json::of(&serde_json::to_value(document()).expect("the document has texts as keys"))
    });
    Ok(Answer::encoded(DOCUMENT.clone().into()))
}
