//! The HTTP API: routes, authentication, events.
//!
//! A handler takes its parameters, calls one function of `pvc-ops` or shows a piece of the view,
//! and turns the outcome into a reply. What may be done and what it means is decided there, not
//! here.
//!
//! ```text
//!  connection ─▶ TLS, head in time, few enough      serve
//!  request ─▶ access log ─▶ 304 if unchanged        access, etag, guard
//!          ─▶ no foreign web page, no foreign name  origin
//!          ─▶ who is it?                            auth, throttle   before anything else is read
//!          ─▶ parameters, a body within limits      params, body
//!          ─▶ the view, or an operation             table, routes   reads never ask the tree
//!          ─▶ objects of the wire                   view, metrics, cache
//!          ─▶ the reply that is declared            answer, json
//! ```
//!
//! Without the feature `server` nothing here opens a socket: the handlers are a `tower` service.

#![forbid(unsafe_code)]

mod access;
mod ahead;
mod answer;
mod auth;
mod body;
mod cache;
#[cfg(feature = "server")]
mod connection;
mod error;
mod etag;
mod events;
mod guard;
mod incoming;
mod json;
mod limit;
#[cfg(feature = "server")]
mod link;
#[cfg(feature = "server")]
mod metadata;
mod metrics;
mod openapi;
mod origin;
mod outgoing;
mod pace;
mod params;
mod questions;
mod refuse;
mod routes;
mod script_lists;
#[cfg(feature = "server")]
mod serve;
mod settings;
mod slots;
mod state;
mod table;
mod throttle;
#[cfg(feature = "server")]
mod tls;
mod traces;
mod under_way;
mod view;
mod wait;

pub use answer::{Answer, Encoded};
#[cfg(feature = "server")]
pub use metadata::{MetadataPorts, serve_metadata, serve_metadata_on};
pub use openapi::document;
pub use pvc_images::Spool;
pub use routes::router;
pub use script_lists::script_list;
#[cfg(feature = "server")]
pub use serve::{ServeError, listen, serve, serve_on};
pub use settings::{ApiSettings, Limits, Names, TlsFiles, Token};
pub use state::ApiState;
