//! The table of operations: each handler with the declaration of what it carries out.
//!
//! [`Table::add`] takes a handler of an operation and makes of the declaration
//! (`pvc_api_types::operations`) its route and its part of the API document. A handler is given an
//! [`Ask`] of its operation and returns an [`Answer`] of the same: what replies something else than
//! the declaration says does not compile.

use std::future::Future;
use std::marker::PhantomData;

use axum::Router;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use pvc_api_types::operation::{Method, Operation, ROOT, Role};
use pvc_api_types::param::{Flag, Mistakes, Parameters, take};
use pvc_api_types::{Message, TaskRef};
use pvc_model::job::JobSpec;
use utoipa::openapi::OpenApi;

use crate::auth::Caller;
use crate::error::{ApiError, Result};
use crate::state::ApiState;
use crate::view::task;
use crate::{json, openapi, params};

/// Call of an operation.
pub struct Ask<O: Operation> {
    /// State of the API; in a dry run its store decides and writes nothing.
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

/// Reply of an operation.
pub struct Answer<O> {
    response: Response,
    of: PhantomData<fn() -> O>,
}

impl<O> Answer<O> {
    fn new(response: Response) -> Self {
        Answer { response, of: PhantomData }
    }
}

impl<O: Operation> Answer<O> {
    pub fn json(reply: &O::Reply) -> Self {
        Answer::new(json::ok(reply))
    }

    /// A response that was encoded as the declared reply already, or is one of the other replies
    /// that the declaration lists.
    pub fn encoded(response: Response) -> Self {
        Answer::new(response)
    }

    /// The reply to a dry run where that is more than a sentence.
    pub fn planned(reply: &O::DryRun) -> Self {
        Answer::new(json::ok(reply))
    }
}

impl<O: Operation<Reply = Message>> Answer<O> {
    /// A sentence.
    pub fn said(message: impl Into<String>) -> Self {
        Answer::new(json::ok(&Message { message: message.into() }))
    }
}

impl<O: Operation<Reply = TaskRef>> Answer<O> {
    /// The task that a request has become.
    pub fn submitted(spec: &JobSpec, mode: Mode) -> Self {
        if mode.is_dry() {
            let message = "nothing was begun; without `dry_run` this would become a task";
            return Answer::new(json::ok(&Message { message: message.to_owned() }));
        }
        let mut response = json::reply(StatusCode::ACCEPTED, &task::reference(spec));
        let location = HeaderValue::from_str(&format!("{ROOT}/tasks/{}", spec.id));
        let location = location.expect("an identifier of hexadecimal digits makes a header value");
        response.headers_mut().insert(header::LOCATION, location);
        Answer::new(response)
    }
}

/// Routes by who may use them, and their description.
pub struct Table {
    pub open: Router<ApiState>,
    pub metrics: Router<ApiState>,
    pub protected: Router<ApiState>,
    pub document: OpenApi,
}

impl Table {
    /// None yet, to be described in `document`.
    pub fn new(document: OpenApi) -> Self {
        Table { open: Router::new(), metrics: Router::new(), protected: Router::new(), document }
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
            let answer = handler(api, request);
            async move {
                answer.await.map_or_else(IntoResponse::into_response, |answer| answer.response)
            }
        };
        let group = match O::ROLE {
            Role::Anybody if O::TAG == "metrics" => &mut self.metrics,
            Role::Anybody => &mut self.open,
            Role::Reader | Role::Operator | Role::Administrator => &mut self.protected,
        };
        let path = format!("{ROOT}{}", O::PATH);
        *group = std::mem::take(group).route(&path, on(method, serve));
        openapi::describe::<O>(&mut self.document);
        self
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
    let request = Request::from_parts(parts, body);
    let given = params::given(request, &api.settings().limits, O::Params::LARGE).await?;
    let mut mistakes = Mistakes::new();
    let params = O::Params::read(&given).map_err(|found| mistakes = found).ok();
    let dry_run = match O::DRY_RUN {
        Some(_) => take::<Flag>(&given, "dry_run", &mut mistakes),
        None => Some(Flag(false)),
    };
    let (Some(params), Some(dry_run)) = (params, dry_run) else {
        return Err(params::refusal(mistakes));
    };
    let (api, mode) = match dry_run.0 {
        true => (api.dry(), Mode::DryRun),
        false => (api, Mode::Do),
    };
    Ok(Ask { api, at, params, caller, headers, mode })
}
