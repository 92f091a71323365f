//! The API's own description, made from the code that serves it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use pvc_api_types::{BadRequest, Event, Message, TaskRef};
use utoipa::openapi::path::Operation;
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Info, OpenApi, OpenApiBuilder, Ref, RefOr, Server};
use utoipa::{IntoResponses, PartialSchema, ToSchema};

use crate::auth::API_KEY;

/// The API document, OpenAPI 3.1, of everything that [`crate::router`] serves.
pub fn document() -> OpenApi {
    crate::routes::parts().1
}

/// The document before the routes are added.
pub fn frame() -> OpenApi {
    let mut info = Info::new("PVC", env!("CARGO_PKG_VERSION"));
    info.description = Some(
        "Parallel Virtual Cluster. Every parameter is taken from the query and from an urlencoded \
         or multipart \
         body alike; parameters that an operation does not know are ignored."
            .to_owned(),
    );
    let mut document = OpenApiBuilder::new().info(info).servers(Some([Server::new("/")])).build();
    let components = document.components.get_or_insert_default();
    let key = ApiKeyValue::new("X-Api-Key");
    components.add_security_scheme("ApiKey", SecurityScheme::ApiKey(ApiKey::Header(key)));
    let cookie = ApiKeyValue::new("session");
    components.add_security_scheme("Session", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
    let own = [
        (BadRequest::name(), BadRequest::schema()),
        (Event::name(), Event::schema()),
        (Message::name(), Message::schema()),
        (TaskRef::name(), TaskRef::schema()),
    ];
    for (name, schema) in own {
        components.schemas.insert(name.into_owned(), schema);
    }
    let mut parts = Vec::new();
    Event::schemas(&mut parts);
    components.schemas.extend(parts);
    debug_assert!(API_KEY.eq_ignore_ascii_case("X-Api-Key"));
    document
}

/// Either of the two ways in.
pub fn protection() -> Vec<SecurityRequirement> {
    ["ApiKey", "Session"]
        .map(|scheme| SecurityRequirement::new(scheme, Vec::<String>::new()))
        .to_vec()
}

fn refusal(description: &str) -> Response {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("BadRequest"))).build();
    ResponseBuilder::new().description(description).content("application/json", content).build()
}

fn refusals(list: &[(&str, &str)]) -> BTreeMap<String, RefOr<Response>> {
    list.iter()
        .map(|(status, description)| ((*status).to_owned(), RefOr::T(refusal(description))))
        .collect()
}

/// How a read may be refused.
pub struct ReadRefused;

impl IntoResponses for ReadRefused {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        refusals(&[
            ("400", "A parameter cannot be taken"),
            ("401", "No key, or a wrong one"),
            ("404", "There is no such thing"),
            ("429", "Too many wrong keys from this address"),
            ("503", "The store does not answer, or too many wait"),
        ])
    }
}

/// How a change may be refused.
pub struct ChangeRefused;

impl IntoResponses for ChangeRefused {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = ReadRefused::responses();
        all.extend(refusals(&[
            ("408", "The body did not arrive in time"),
            ("409", "Somebody else changes the same records all the time"),
            ("413", "The body is too large"),
            ("504", "What was waited for did not come in time"),
        ]));
        all
    }
}

/// How a change is answered: by a sentence, or a refusal.
pub struct Changed;

impl IntoResponses for Changed {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        with_reply("200", Message::name())
    }
}

/// How long work is answered: by the task that it has become, or a refusal.
pub struct Submitted;

impl IntoResponses for Submitted {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        with_reply("202", TaskRef::name())
    }
}

fn with_reply(status: &str, schema: Cow<'_, str>) -> BTreeMap<String, RefOr<Response>> {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(schema))).build();
    let reply = ResponseBuilder::new().content("application/json", content).build();
    let mut all = ChangeRefused::responses();
    all.insert(status.to_owned(), RefOr::T(reply));
    all
}

/// Gives every reply the description that the format demands.
pub fn complete(operation: &mut Operation) {
    for reply in operation.responses.responses.values_mut() {
        if let RefOr::T(reply) = reply
            && reply.description.is_empty()
        {
            reply.description = "Done".to_owned();
        }
    }
}
