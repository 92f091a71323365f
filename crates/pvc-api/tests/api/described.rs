//! Every reply of a test is one that the OpenAPI document describes.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::http::Method;
use axum::http::header::CONTENT_TYPE;
use serde_json::{Value, json};

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

/// Words of a schema that say nothing about values.
const REMARKS: [&str; 5] = ["description", "default", "format", "title", "example"];

/// Finds what of `value` is not as the schema says; `at` is its place in the reply. The schemas
/// are our own, in the few words that the document is made with: an unknown one is an error, too.
/// With a library for all of JSON Schema half of the workspace would be built once more for the
/// tests, as that asks for other features of what is shared.
fn mismatch(schema: &Value, value: &Value, at: &str) -> Option<String> {
    let words = schema.as_object()?;
    words.iter().find_map(|(word, said)| one_mismatch((word, said), schema, value, at))
}

fn one_mismatch(
    (word, said): (&str, &Value),
    schema: &Value,
    value: &Value,
    at: &str,
) -> Option<String> {
    let wrong = |what: String| Some(format!("{what} at `{at}`"));
    let members = value.as_object();
    match word {
        _ if REMARKS.contains(&word) => None,
        "$ref" => {
            let name = said.as_str()?.strip_prefix("#/components/schemas/")?;
            match &DOCUMENT["components"]["schemas"][name] {
                Value::Null => wrong(format!("a schema `{name}` that is nowhere")),
                of => mismatch(of, value, at),
            }
        }
        "type" => {
            let types = said.as_array().map_or(std::slice::from_ref(said), Vec::as_slice);
            let is_one = types.iter().any(|name| is_of_type(value, name.as_str().unwrap_or("")));
            if is_one { None } else { wrong(format!("not of type {said}")) }
        }
        "enum" => match said.as_array()?.contains(value) {
            true => None,
            false => wrong(format!("none of {said}")),
        },
        "minimum" => match value.as_f64() < said.as_f64() && value.is_number() {
            true => wrong(format!("less than {said}")),
            false => None,
        },
        "required" => {
            let mut names = said.as_array()?.iter().filter_map(Value::as_str);
            let absent = names.find(|name| members.is_some_and(|all| !all.contains_key(*name)));
            absent.and_then(|name| wrong(format!("no member `{name}`")))
        }
        "properties" => said
            .as_object()?
            .iter()
            .find_map(|(name, of)| mismatch(of, members?.get(name)?, &format!("{at}/{name}"))),
        "additionalProperties" => members?.iter().find_map(|(name, one)| {
            let is_named = schema["properties"].get(name).is_some();
            match said {
                _ if is_named => None,
                Value::Bool(true) => None,
                Value::Bool(false) => wrong(format!("a member `{name}`")),
                of => mismatch(of, one, &format!("{at}/{name}")),
            }
        }),
        "propertyNames" => members?
            .keys()
            .find_map(|name| mismatch(said, &Value::String(name.clone()), &format!("{at}, name"))),
        "items" => value
            .as_array()?
            .iter()
            .enumerate()
            .find_map(|(place, one)| mismatch(said, one, &format!("{at}/{place}"))),
        "oneOf" => {
            let fitting = said.as_array()?.iter().filter(|of| mismatch(of, value, at).is_none());
            match fitting.count() {
                1 => None,
                number => wrong(format!("it fits {number} of several schemas")),
            }
        }
        unknown => wrong(format!("a schema with the unknown word `{unknown}`")),
    }
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
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
    if let Some(what) = mismatch(body, &value, "") {
        let what: String = what.chars().take(500).collect();
        panic!("{method} {path} answers what is not described: {what}");
    }
}

#[test]
fn what_is_not_as_described_is_found() {
    let schema = json!({
        "type": "object", "required": ["a"],
        "properties": {
            "a": { "type": "integer", "minimum": 0 },
            "b": { "type": ["string", "null"], "enum": ["x", null] },
            "c": {
                "type": "array",
                "items": { "oneOf": [{ "type": "null" }, { "type": "string" }] },
            },
        },
        "additionalProperties": { "type": "boolean" },
        "propertyNames": { "type": "string" },
    });
    let good = [json!({"a": 1}), json!({"a": 0, "b": null, "c": [null, "y"], "d": true})];
    for value in good {
        assert_eq!(mismatch(&schema, &value, ""), None, "{value}");
    }
    let bad = [
        (json!([]), "not of type \"object\" at ``"),
        (json!({}), "no member `a` at ``"),
        (json!({"a": -1}), "less than 0 at `/a`"),
        (json!({"a": 1.5}), "not of type \"integer\" at `/a`"),
        (json!({"a": 1, "b": "y"}), "none of [\"x\",null] at `/b`"),
        (json!({"a": 1, "c": ["y", 1]}), "it fits 0 of several schemas at `/c/1`"),
        (json!({"a": 1, "d": 1}), "not of type \"boolean\" at `/d`"),
    ];
    for (value, what) in bad {
        assert_eq!(mismatch(&schema, &value, "").as_deref(), Some(what), "{value}");
    }
    for (schema, value, what) in [
        (json!({ "additionalProperties": false }), json!({"x": 1}), "a member `x` at ``"),
        (
            json!({ "propertyNames": { "enum": ["a"] } }),
            json!({"x": 1}),
            "none of [\"a\"] at `, name`",
        ),
        (
            json!({ "oneOf": [{ "type": "number" }, { "type": "integer" }] }),
            json!(1),
            "it fits 2 of several schemas at ``",
        ),
        (
            json!({ "$ref": "#/components/schemas/Nowhere" }),
            json!(1),
            "a schema `Nowhere` that is nowhere at ``",
        ),
    ] {
        assert_eq!(mismatch(&schema, &value, "").as_deref(), Some(what), "{schema}");
    }
    let unknown = mismatch(&json!({ "pattern": "x" }), &json!("y"), "");
    assert_eq!(unknown.as_deref(), Some("a schema with the unknown word `pattern` at ``"));
}
