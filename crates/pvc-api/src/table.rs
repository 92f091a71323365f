//! The table of operations: each handler with the declaration of what it carries out.
//!
//! [`Table::add`] takes a handler of an operation and makes of the declaration
//! (`pvc_api_types::operations`) its route and its part of the API document. A handler is given an
//! [`Ask`] of its operation and returns an [`Answer`] of the same: what replies something else than
//! the declaration says does not compile.

use std::future::Future;

use axum::Router;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::routing::{MethodFilter, on};
use pvc_api_types::Message;
use pvc_api_types::operation::{Method, Operation, ROOT, Role, TRIED, TRIED_MARK};
use pvc_api_types::param::{Flag, Mistakes, Parameters, take};
use utoipa::openapi::OpenApi;

use crate::answer::Answer;
use crate::auth::Caller;
use crate::error::{ApiError, Result};
use crate::state::ApiState;
use crate::{openapi, params};

/// Call of an operation.
pub struct Ask<O: Operation> {
    /// State of the API, with the memory that the parameters take; in a dry run its store decides
    /// and writes nothing.
    pub api: ApiState,
    /// The variable parts of the path.
    pub at: O::At,
    pub params: O::Params,
    pub caller: Caller,
    pub headers: HeaderMap,
    pub mode: Mode,
}

/// Whether something is to be done, or only to be decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Do,
    /// Nothing is changed; the reply says whether it would be refused.
    DryRun,
}

/// Mark of a request that came by the path of what is only [tried](TRIED).
#[derive(Debug, Clone, Copy)]
struct Tried;

impl Mode {
    pub fn is_dry(self) -> bool {
        self == Mode::DryRun
    }

    /// The reply to a change: the sentence about it.
    pub fn done<O: Operation<Reply = Message>>(self, message: impl Into<String>) -> Answer<O> {
        Answer::said(self.message(message.into()))
    }

    /// The sentence about a change that was made, or would be.
    pub fn message(self, message: String) -> String {
        match self {
            Mode::Do => message,
            Mode::DryRun => would_say(&message),
        }
    }
}

fn would_say(message: &str) -> String {
    format!("nothing was changed; without `dry_run` the answer is: {message}")
}

/// Routes by who may use them, and their descriptions.
#[derive(Default)]
pub struct Table {
    pub open: Router<ApiState>,
    pub metrics: Router<ApiState>,
    pub protected: Router<ApiState>,
    /// Functions that add each operation to a document: most of whom the table is for want none.
    descriptions: Vec<fn(&mut OpenApi)>,
}

impl Table {
    /// Adds every operation to the document.
    pub fn describe(&self, document: &mut OpenApi) {
        self.descriptions.iter().for_each(|describe| describe(document));
    }

    /// Has `handler` carry out its operation.
    pub fn add<O, H, F>(self, handler: H) -> Self
    where
        O: Operation,
        H: Fn(Ask<O>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<Answer<O>>> + Send + 'static,
    {
        self.add_raw(move |api, request| {
            let handler = handler.clone();
            async move { handler(ask(api, request).await?).await }
        })
    }

    /// Same as [`add`](Table::add), for a handler that reads the request itself.
    pub fn add_raw<O, H, F>(mut self, handler: H) -> Self
    where
        O: Operation,
        H: Fn(ApiState, Request) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<Answer<O>>> + Send + 'static,
    {
        let method = match O::METHOD {
            Method::Get => MethodFilter::GET,
            Method::Post => MethodFilter::POST,
            Method::Put => MethodFilter::PUT,
            Method::Delete => MethodFilter::DELETE,
        };
        let serve = move |State(api): State<ApiState>, request: Request| {
            let answer = check_may::<O>(&request).map(|()| handler(api, request));
            async move {
                let answer = match answer {
                    Ok(answer) => answer.await,
                    Err(refused) => Err(refused),
                };
                answer.map_or_else(IntoResponse::into_response, IntoResponse::into_response)
            }
        };
        let group = match O::ROLE {
            Role::Anybody if O::TAG == "metrics" => &mut self.metrics,
            Role::Anybody => &mut self.open,
            Role::Reader | Role::Operator | Role::Administrator => &mut self.protected,
        };
        let path = format!("{ROOT}{}", O::PATH);
        *group = std::mem::take(group).route(&path, on(method, serve.clone()));
        if O::DRY_RUN.is_some() {
            let serve = move |api: State<ApiState>, mut request: Request| {
                request.extensions_mut().insert(Tried);
                let answer = serve(api, request);
                async move { ([(TRIED_MARK, "true")], answer.await) }
            };
            let path = format!("{ROOT}{TRIED}{}", O::PATH);
            *group = std::mem::take(group).route(&path, on(method, serve));
        }
        self.descriptions.push(openapi::describe::<O>);
        self
    }
}

/// Refuses what the role of the request's caller does not include, before anything else of it is
/// read.
fn check_may<O: Operation>(request: &Request) -> Result<()> {
    match O::ROLE {
        Role::Anybody => Ok(()),
        needed => {
            let caller = request.extensions().get::<Caller>();
            caller.expect("the guard lets nobody in without saying who it is").check_may(needed)
        }
    }
}

/// Reads what a request asks of an operation.
///
/// # Errors
/// The refusal that tells everything that is wrong with its path and its parameters.
pub async fn ask<O: Operation>(api: ApiState, request: Request) -> Result<Ask<O>> {
    let (mut parts, body) = request.into_parts();
    let at = Path::<O::At>::from_request_parts(&mut parts, &api).await;
    let Path(at) = at.map_err(|_| ApiError::refused("the path is not UTF-8 text"))?;
    let caller = parts.extensions.get::<Caller>().cloned().unwrap_or_else(Caller::anybody);
    let headers = parts.headers.clone();
    let is_tried = parts.extensions.get::<Tried>().is_some();
    let request = Request::from_parts(parts, body);
    let (limits, share) = (&api.settings().limits, api.bodies().share(&caller));
    let (given, body) = params::given(request, limits, share, O::Params::LARGE).await?;
    let mut mistakes = Mistakes::new();
    let params = O::Params::read(&given).map_err(|found| mistakes = found).ok();
    let dry_run = match O::DRY_RUN {
        Some(_) => take::<Flag>(&given, "dry_run", &mut mistakes),
        None => Some(Flag(false)),
    };
    let (Some(params), Some(dry_run)) = (params, dry_run) else {
        return Err(params::refusal(mistakes));
    };
    let api = api.with_body(body);
    let (api, mode) = match dry_run.0 || is_tried {
        true => (api.dry(), Mode::DryRun),
        false => (api, Mode::Do),
    };
    Ok(Ask { api, at, params, caller, headers, mode })
}
