//! Every reply of a test is one that the OpenAPI document describes.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::http::Method;
use axum::http::header::CONTENT_TYPE;
use serde_json::{Map, Value, json};

use crate::common::Reply;

/// An operation of the document.
struct Described {
    method: Method,
    /// Parts of its path; `None` stands for a parameter.
    path: Vec<Option<String>>,
    /// Schema of a JSON body, by status.
    bodies: BTreeMap<String, Value>,
}

impl Described {
    fn is_of(&self, method: &Method, path: &str) -> bool {
        let parts: Vec<&str> = path.split('/').collect();
        let mut both = self.path.iter().zip(&parts);
        self.method == *method
            && self.path.len() == parts.len()
            && both.all(|(known, part)| known.as_ref().is_none_or(|known| known == part))
    }
}

static DOCUMENT: LazyLock<Value> =
    LazyLock::new(|| serde_json::to_value(pvc_api::document()).expect("a document is JSON"));

static OPERATIONS: LazyLock<Vec<Described>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for (path, item) in DOCUMENT["paths"].as_object().expect("there are paths") {
        for (method, operation) in item.as_object().expect("a path has operations") {
            let parts = path.split('/').map(|part| (!part.starts_with('{')).then(|| part.into()));
            let method = method.to_uppercase().parse().expect("it is a method");
            all.push(Described { method, path: parts.collect(), bodies: bodies(operation) });
        }
    }
    // Where a word and a parameter both fit, the word is meant.
    all.sort_by_key(|operation| operation.path.iter().filter(|part| part.is_none()).count());
    all
});

fn bodies(operation: &Value) -> BTreeMap<String, Value> {
    let replies = operation["responses"].as_object().into_iter().flatten();
    let schema = |(status, reply): (&String, &Value)| {
        let schema = reply["content"].get("application/json")?.get("schema")?;
        Some((status.clone(), schema.clone()))
    };
    replies.filter_map(schema).collect()
}

/// The schema with those parts of the document that it names, and no others: each test that sends
/// anything makes such a validator, and one of the whole document takes seconds.
fn whole(schema: &Value) -> Value {
    let (mut named, mut parts) = (Vec::new(), Map::new());
    references(schema, &mut named);
    while let Some(name) = named.pop() {
        let part = &DOCUMENT["components"]["schemas"][&name];
        if parts.insert(name, part.clone()).is_none() {
            references(part, &mut named);
        }
    }
    json!({ "allOf": [schema], "components": { "schemas": parts } })
}

fn references(value: &Value, named: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(to)) = members.get("$ref") {
                named.push(to.trim_start_matches("#/components/schemas/").to_owned());
            }
            members.values().for_each(|member| references(member, named));
        }
        Value::Array(elements) => elements.iter().for_each(|element| references(element, named)),
        _ => {}
    }
}

/// Panics if the document describes no such reply to an operation that it has.
#[track_caller]
pub fn check(method: &Method, path: &str, reply: &Reply) {
    let is_json = reply.headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    let Some(operation) = OPERATIONS.iter().find(|known| known.is_of(method, path)) else { return };
    let Some(body) = operation.bodies.get(reply.status.as_str()).filter(|_| is_json) else {
        return;
    };
    let value = reply.json();
    let validator = jsonschema::validator_for(&whole(body)).expect("a schema is valid");
    if let Some(error) = validator.iter_errors(&value).next() {
        let at = error.instance_path().to_string();
        let error: String = error.to_string().chars().take(500).collect();
        panic!("{method} {path} answers what is not described (at `{at}`): {error}");
    }
}
