//! The API's own description, made from the declarations that serve it.

use std::collections::BTreeMap;

use pvc_api_types::operation::{
    self, Component, Documented, Effect, OCTET_STREAM, Operation, ROOT, Role,
};
use pvc_api_types::param::{self, Flag, Parameters};
use pvc_api_types::{BadRequest, Event, Message, TaskRef};
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::path::{
    HttpMethod, OperationBuilder, Parameter, ParameterBuilder, ParameterIn,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    Content, ContentBuilder, Info, Object, OpenApi, OpenApiBuilder, Ref, Required, Server, Type,
};

use crate::auth::API_KEY;

/// The API document, OpenAPI 3.1, of everything that [`crate::router`] serves.
pub fn document() -> OpenApi {
    let mut document = frame();
    crate::routes::table().describe(&mut document);
    document
}

/// The document before the routes are added.
fn frame() -> OpenApi {
    let mut info = Info::new("PVC", env!("CARGO_PKG_VERSION"));
    info.description = Some(
        "Parallel Virtual Cluster. Every parameter is taken from the query and from an urlencoded \
         or multipart body alike; parameters that an operation does not know are ignored."
            .to_owned(),
    );
    let mut document = OpenApiBuilder::new().info(info).servers(Some([Server::new("/")])).build();
    let components = document.components.get_or_insert_default();
    let key = ApiKeyValue::new("X-Api-Key");
    components.add_security_scheme("ApiKey", SecurityScheme::ApiKey(ApiKey::Header(key)));
    let cookie = ApiKeyValue::new("session");
    components.add_security_scheme("Session", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
    let mut own: Vec<Component> = Vec::new();
    operation::component::<BadRequest>(&mut own);
    operation::component::<Event>(&mut own);
    operation::component::<Message>(&mut own);
    operation::component::<TaskRef>(&mut own);
    components.schemas.extend(own);
    debug_assert!(API_KEY.eq_ignore_ascii_case("X-Api-Key"));
    document
}

/// Adds what an operation is to the document.
pub fn describe<O: Operation>(document: &mut OpenApi) {
    let mut described = OperationBuilder::new()
        .tag(O::TAG)
        .operation_id(Some(operation::id::<O>()))
        .summary(Some(param::paragraph(O::DOC)))
        .extensions(Some(Extensions::builder().add("x-pvc-role", O::ROLE.as_str()).build()));
    for variable in operation::variables(O::PATH) {
        described = described.parameter(variable_part(variable));
    }
    for parameter in O::Params::described() {
        described = described.parameter(parameter);
    }
    if let Some(what) = O::DRY_RUN {
        described = described.parameter(param::describe::<Flag>("dry_run", what));
    }
    let components = document.components.get_or_insert_default();
    components.schemas.extend(O::components());
    if let Some((name, schema)) = O::Params::form() {
        components.schemas.insert(name.to_owned(), schema);
        let body = RequestBodyBuilder::new()
            .content(
                "application/x-www-form-urlencoded",
                Content::new(Some(Ref::from_schema_name(name))),
            )
            .required(Some(Required::True));
        described = described.request_body(Some(body.build()));
    }
    if O::FILE {
        components.schemas.insert(FILE.to_owned(), file_form().into());
        let form = Content::new(Some(Ref::from_schema_name(FILE)));
        let body = RequestBodyBuilder::new()
            .content("multipart/form-data", form)
            .content(OCTET_STREAM, ContentBuilder::new().schema(Some(binary())).build())
            .required(Some(Required::True));
        described = described.request_body(Some(body.build()));
    }
    let replies =
        O::replies().into_iter().map(|reply| (reply.status.to_owned(), documented(reply)));
    let mut responses: BTreeMap<String, Response> = replies.collect();
    responses.extend(refusals::<O>().map(|(status, why)| (status.to_owned(), refusal(why))));
    for (status, response) in responses {
        described = described.response(status, response);
    }
    if O::ROLE != Role::Anybody {
        described = described.securities(Some(protection()));
    }
    let method = match O::METHOD {
        operation::Method::Get => HttpMethod::Get,
        operation::Method::Post => HttpMethod::Post,
        operation::Method::Put => HttpMethod::Put,
        operation::Method::Delete => HttpMethod::Delete,
    };
    let path = format!("{ROOT}{}", O::PATH);
    document.paths.add_path_operation(path, vec![method], described.build());
}

/// The name of the form that a file comes in.
const FILE: &str = "FileForm";

/// Bytes of any kind.
fn binary() -> Schema {
    let format = SchemaFormat::KnownFormat(KnownFormat::Binary);
    Schema::Object(ObjectBuilder::new().schema_type(Type::String).format(Some(format)).build())
}

fn file_form() -> Schema {
    Schema::Object(ObjectBuilder::new().property("file", binary()).required("file").build())
}

fn variable_part(name: &str) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some(operation::meaning(name)))
        .schema(Some(Object::with_type(Type::String)))
        .build()
}

/// Either of the two ways in.
fn protection() -> Vec<SecurityRequirement> {
    ["ApiKey", "Session"]
        .map(|scheme| SecurityRequirement::new(scheme, Vec::<String>::new()))
        .to_vec()
}

fn documented(reply: Documented) -> Response {
    let response = ResponseBuilder::new().description(reply.description);
    match reply.content {
        Some((media, schema)) => response.content(media, Content::new(Some(schema))).build(),
        None => response.build(),
    }
}

fn refusal(description: &str) -> Response {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("BadRequest"))).build();
    ResponseBuilder::new().description(description).content("application/json", content).build()
}

/// Refusals of a read.
const OF_READS: [(&str, &str); 6] = [
    ("400", "A parameter cannot be taken"),
    ("401", "No key, or a wrong one"),
    ("403", "The role of the key is not enough, or a page of another site asks"),
    ("404", "There is no such thing"),
    ("429", "Too many wrong keys from this address"),
    ("503", "The store does not answer, or too many wait"),
];

/// Refusals of a request with a body, or of one that takes its time.
const OF_CHANGES: [(&str, &str); 4] = [
    ("408", "The body did not arrive in time"),
    ("409", "Somebody else changes the same records all the time"),
    ("413", "The body is too large"),
    ("504", "What was waited for did not come in time"),
];

/// Paths of what other programs say, and how a read of it may be refused.
const FETCHED: [&str; 2] = ["/metrics/ceph", "/metrics/zookeeper"];
const OF_FETCHES: [(&str, &str); 2] = [
    ("404", "There is no such program in this cluster"),
    ("503", "It does not answer, or has nothing to say"),
];

/// Refusals of an operation. What everybody may read of ours is always answered.
fn refusals<O: Operation>() -> impl Iterator<Item = (&'static str, &'static str)> {
    let reads = O::EFFECT == Effect::Read && O::METHOD == operation::Method::Get;
    let of_reads = match reads && O::ROLE == Role::Anybody {
        true if FETCHED.contains(&O::PATH) => &OF_FETCHES[..],
        true => &OF_READS[..0],
        false => &OF_READS[..],
    };
    let of_changes = if reads { &OF_CHANGES[..0] } else { &OF_CHANGES[..] };
    of_reads.iter().chain(of_changes).copied()
}
