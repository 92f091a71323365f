//! Every reply of a test is one that the OpenAPI document describes.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::http::Method;
use axum::http::header::CONTENT_TYPE;
use jsonschema::Validator;
use serde_json::{Value, json};

use crate::common::Reply;

/// An operation of the document.
struct Described {
    method: Method,
    /// Parts of its path; `None` stands for a parameter.
    path: Vec<Option<String>>,
    /// What checks a JSON body, by status.
    bodies: BTreeMap<String, Validator>,
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

static OPERATIONS: LazyLock<Vec<Described>> = LazyLock::new(|| {
    let document = serde_json::to_value(pvc_api::document()).expect("a document is JSON");
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().expect("there are paths") {
        for (method, operation) in item.as_object().expect("a path has operations") {
            let parts = path.split('/').map(|part| (!part.starts_with('{')).then(|| part.into()));
            let method = method.to_uppercase().parse().expect("it is a method");
            let bodies = bodies(&document, operation);
            all.push(Described { method, path: parts.collect(), bodies });
        }
    }
    // Where a word and a parameter both fit, the word is meant.
    all.sort_by_key(|operation| operation.path.iter().filter(|part| part.is_none()).count());
    all
});

fn bodies(document: &Value, operation: &Value) -> BTreeMap<String, Validator> {
    let replies = operation["responses"].as_object().into_iter().flatten();
    let schema = |(status, reply): (&String, &Value)| {
        let schema = reply["content"].get("application/json")?.get("schema")?;
        let whole = json!({ "allOf": [schema], "components": document["components"] });
        Some((status.clone(), jsonschema::validator_for(&whole).expect("a schema is valid")))
    };
    replies.filter_map(schema).collect()
}

/// Panics if the document describes no such reply to an operation that it has.
#[track_caller]
pub fn check(method: &Method, path: &str, reply: &Reply) {
    let is_json = reply.headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    let Some(operation) = OPERATIONS.iter().find(|known| known.is_of(method, path)) else { return };
    let Some(body) = operation.bodies.get(reply.status.as_str()).filter(|_| is_json) else { return };
    let value = reply.json();
    if let Some(error) = body.iter_errors(&value).next() {
        let at = error.instance_path().to_string();
        panic!("{method} {path} answers what is not described: {error} (at `{at}`)\n{value}");
    }
}
