//! Replies of operations, each of the type that its declaration says.
//!
//! An [`Answer`] of an operation is made of a value of the declared type, or of what one was
//! [`Encoded`] as before; there is no other way:
//!
//! ```
//! use pvc_api::{Answer, Encoded};
//! use pvc_api_types::operations::vm::{GetVm, GetVmVmTags};
//! use pvc_api_types::{Vm, VmTags};
//!
//! fn tags(tags: &VmTags) -> Answer<GetVmVmTags> {
//!     Answer::json(tags)
//! }
//!
//! fn all(vms: &Vec<Vm>) -> Answer<GetVm> {
//!     Answer::encoded(Encoded::of(vms))
//! }
//! ```
//!
//! Another type is no reply, encoded or not:
//!
//! ```compile_fail
//! use pvc_api::Answer;
//! use pvc_api_types::VmState;
//! use pvc_api_types::operations::vm::GetVmVmTags;
//!
//! fn tags(state: &VmState) -> Answer<GetVmVmTags> {
//!     Answer::json(state)
//! }
//! ```
//!
//! ```compile_fail
//! use pvc_api::{Answer, Encoded};
//! use pvc_api_types::Node;
//! use pvc_api_types::operations::vm::GetVm;
//!
//! fn all(nodes: &Vec<Node>) -> Answer<GetVm> {
//!     Answer::encoded(Encoded::of(nodes))
//! }
//! ```
//!
//! Neither are plain text, a redirection and an empty reply where none is declared. That one is:
//!
//! ```
//! use pvc_api::Answer;
//! use pvc_api_types::operations::cluster::GetStatusPrimaryNode;
//!
//! fn nobody() -> Answer<GetStatusPrimaryNode> {
//!     Answer::empty()
//! }
//! ```
//!
//! ```compile_fail
//! use pvc_api::Answer;
//! use pvc_api_types::operations::cluster::GetStatus;
//!
//! fn nobody() -> Answer<GetStatus> {
//!     Answer::empty()
//! }
//! ```

mod vms;

use std::convert::Infallible;
use std::marker::PhantomData;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::sse::Sse;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use pvc_api_types::operation::{
    Empty, EventStream, OCTET_STREAM, OctetStream, Operation, PLAIN_TEXT, PlainText, ROOT, Redirect,
};
use pvc_api_types::{Message, TaskRef};
use pvc_model::job::JobSpec;
use serde::Serialize;

use crate::json::{self, Json};
use crate::table::Mode;
use crate::view::task;

/// Reply of an operation.
pub struct Answer<O> {
    response: Response,
    of: PhantomData<fn() -> O>,
}

impl<O> Answer<O> {
    fn new(response: impl IntoResponse) -> Self {
        Answer { response: response.into_response(), of: PhantomData }
    }

    /// The same, which nobody on the way is to keep.
    pub fn not_kept(self) -> Self {
        self.with(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
    }

    /// The same with a cookie to be set.
    pub fn with_cookie(self, cookie: HeaderValue) -> Self {
        self.with(header::SET_COOKIE, cookie)
    }

    fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.response.headers_mut().insert(name, value);
        self
    }
}

impl<O: Operation> Answer<O> {
    pub fn json(reply: &O::Reply) -> Self
    where
        O::Reply: Serialize,
    {
        Answer::new(json::ok(reply))
    }

    /// A reply that was encoded before.
    pub fn encoded(reply: Encoded<O::Reply>) -> Self {
        Answer::new(reply.response)
    }

    /// The reply to a dry run where that is more than a sentence.
    pub fn planned(reply: &O::DryRun) -> Self
    where
        O::DryRun: Serialize,
    {
        Answer::new(json::ok(reply))
    }
}

impl<O: Operation<Reply = Message>> Answer<O> {
    /// A sentence.
    pub fn said(message: impl Into<String>) -> Self {
        Answer::json(&Message { message: message.into() })
    }
}

impl<O: Operation<Reply = TaskRef, DryRun = Message>> Answer<O> {
    /// The task that a request has become.
    pub fn submitted(spec: &JobSpec, mode: Mode) -> Self {
        if mode.is_dry() {
            let message = "nothing was begun; without `dry_run` this would become a task";
            return Answer::planned(&Message { message: message.to_owned() });
        }
        let location = HeaderValue::from_str(&format!("{ROOT}/tasks/{}", spec.id));
        let location = location.expect("an identifier of hexadecimal digits makes a header value");
        Answer::new(json::reply(StatusCode::ACCEPTED, &task::reference(spec)))
            .with(header::LOCATION, location)
    }
}

impl<O: Operation<Reply = PlainText>> Answer<O> {
    pub fn text(text: impl Into<Body>) -> Self {
        let body: Body = text.into();
        Answer::new(([(header::CONTENT_TYPE, PLAIN_TEXT)], body))
    }

    /// A text of pieces, each sent from the memory that it is in.
    pub fn text_of(pieces: Vec<Bytes>) -> Self {
        let size: usize = pieces.iter().map(Bytes::len).sum();
        let pieces = stream::iter(pieces.into_iter().map(Ok::<_, Infallible>));
        Answer::text(Body::from_stream(pieces))
            .with(header::CONTENT_LENGTH, HeaderValue::from(size))
    }
}

impl<O: Operation<Reply = EventStream>> Answer<O> {
    pub fn events<S>(events: Sse<S>) -> Self
    where
        Sse<S>: IntoResponse,
    {
        Answer::new(events)
    }
}

impl<O: Operation<Reply = OctetStream>> Answer<O> {
    /// A body of `size` bytes, which a browser keeps as a file of this name. One whose size is not
    /// known goes in chunks, of which the last says that it was all.
    pub fn bytes(size: Option<u64>, name: &str, body: Body) -> Self {
        // Whatever would end the quotes, or is no ASCII.
        let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '/');
        let name: String = name.chars().map(|c| if plain(c) { c } else { '_' }).collect();
        let kept = HeaderValue::from_str(&format!("attachment; filename=\"{name}\""));
        let answer = Answer::new(([(header::CONTENT_TYPE, OCTET_STREAM)], body))
            .with(header::CONTENT_DISPOSITION, kept.expect("printable ASCII makes a header value"))
            .not_kept();
        match size {
            Some(size) => answer.with(header::CONTENT_LENGTH, HeaderValue::from(size)),
            None => answer,
        }
    }
}

impl<O: Operation<Other = Empty>> Answer<O> {
    pub fn empty() -> Self {
        Answer::new(StatusCode::NO_CONTENT)
    }
}

impl<O: Operation<Other = Redirect>> Answer<O> {
    pub fn redirect(location: &'static str) -> Self {
        Answer::new((StatusCode::FOUND, [(header::LOCATION, location)]))
    }
}

impl<O> IntoResponse for Answer<O> {
    fn into_response(self) -> Response {
        self.response
    }
}

/// A whole reply that is the JSON of a `T`.
pub struct Encoded<T> {
    response: Response,
    of: PhantomData<fn() -> T>,
}

impl<T> Encoded<T> {
    fn new(response: Response) -> Self {
        Encoded { response, of: PhantomData }
    }
}

impl<T: Serialize> Encoded<T> {
    pub fn of(value: &T) -> Self {
        Encoded::new(json::ok(value))
    }
}

impl<T> From<Json<T>> for Encoded<T> {
    fn from(text: Json<T>) -> Self {
        let tag = json::strong_tag(text.bytes());
        Encoded::new(json::from_line(StatusCode::OK, text.line(), tag))
    }
}
