//! The API's own description against the recorded interface and against the router.

use std::collections::{BTreeMap, BTreeSet};

use axum::body::Body;
use axum::http::{Method, Request};
use serde::Deserialize;
use serde_json::Value;

use crate::common::{self, with_vms};

/// API of version 1.0.3 as it was found, operation by operation.
#[derive(Deserialize)]
struct Recorded {
    id: String,
    parameters: BTreeSet<String>,
    success: BTreeSet<String>,
}

fn recorded() -> BTreeMap<String, Recorded> {
    serde_json::from_str(include_str!("interface.json")).unwrap()
}

fn document() -> Value {
    serde_json::to_value(pvc_api::document()).unwrap()
}

/// `GET /api/v1/vm` and its description, for every operation.
fn operations(document: &Value) -> BTreeMap<String, Value> {
    let paths = document["paths"].as_object().unwrap();
    let operation = |(path, item): (&String, &Value)| {
        let path = path.clone();
        let item = item.as_object().unwrap().clone();
        item.into_iter().map(move |(method, operation)| {
            (format!("{} {path}", method.to_uppercase()), operation)
        })
    };
    paths.iter().flat_map(operation).collect()
}

fn parameters(document: &Value, operation: &Value) -> BTreeSet<String> {
    let listed = operation["parameters"].as_array().into_iter().flatten();
    let mut names: BTreeSet<String> =
        listed.map(|p| p["name"].as_str().unwrap().to_owned()).collect();
    for content in
        operation["requestBody"]["content"].as_object().into_iter().flat_map(|c| c.values())
    {
        // A file by itself has no parts.
        let Some(reference) = content["schema"]["$ref"].as_str() else { continue };
        let schema = &document["components"]["schemas"][reference.rsplit('/').next().unwrap()];
        names.extend(schema["properties"].as_object().unwrap().keys().cloned());
    }
    names
}

/// Operations that version 1.0.3 does not have.
const NEW: [&str; 30] = [
    "DELETE /api/v1/node/{node}",
    "DELETE /api/v1/storage/ceph/trash/{pool}/{id}",
    "DELETE /api/v1/tasks/{task_id}",
    "DELETE /api/v1/vm/{vm}/networks",
    "DELETE /api/v1/vm/{vm}/volumes",
    "GET /api/v1/events",
    "GET /api/v1/image",
    "GET /api/v1/openapi.json",
    "GET /api/v1/storage/ceph/fullness",
    "GET /api/v1/storage/ceph/trash",
    "GET /api/v1/storage/ceph/volume/{pool}/{volume}/download",
    "GET /api/v1/store/access",
    "GET /api/v1/tasks/{task_id}/log",
    "GET /api/v1/vm/{vm}/memory",
    "GET /api/v1/vm/{vm}/networks",
    "GET /api/v1/vm/{vm}/removal",
    "GET /api/v1/vm/{vm}/trace",
    "GET /api/v1/vm/{vm}/vcpus",
    "GET /api/v1/vm/{vm}/volumes",
    "POST /api/v1/network/{vni}/confirm",
    "POST /api/v1/node/{node}/confirm-off",
    "POST /api/v1/storage/ceph/trash/{pool}/{id}/restore",
    "POST /api/v1/storage/ceph/volume/{pool}/{volume}/flatten",
    "POST /api/v1/store/access",
    "POST /api/v1/vm/{vm}/check",
    "POST /api/v1/vm/{vm}/create",
    "POST /api/v1/vm/{vm}/networks",
    "POST /api/v1/vm/{vm}/volumes",
    "PUT /api/v1/vm/{vm}/memory",
    "PUT /api/v1/vm/{vm}/vcpus",
];

/// Parameters that version 1.0.3 does not know and leaves out of account, beside `dry_run` of
/// whatever changes something.
const ADDED: [(&str, &str); 29] = [
    ("DELETE /api/v1/network/{vni}", "force"),
    ("DELETE /api/v1/network/{vni}/acl/{description}", "confirm"),
    ("DELETE /api/v1/storage/ceph/pool/{pool}", "force"),
    ("DELETE /api/v1/storage/ceph/snapshot/{pool}/{volume}/{snapshot}", "force"),
    ("DELETE /api/v1/storage/ceph/volume/{pool}/{volume}", "force"),
    ("DELETE /api/v1/storage/ceph/volume/{pool}/{volume}", "purge"),
    ("GET /api/v1/backup", "secrets"),
    ("GET /api/v1/tasks", "all"),
    ("POST /api/v1/network", "masquerade"),
    ("POST /api/v1/network", "spoof_guard"),
    ("POST /api/v1/network/{vni}", "masquerade"),
    ("POST /api/v1/network/{vni}", "spoof_guard"),
    ("POST /api/v1/network/{vni}/acl", "confirm"),
    ("POST /api/v1/network/{vni}/acl/{description}", "confirm"),
    ("POST /api/v1/restore", "force"),
    ("POST /api/v1/storage/ceph/osd", "plan"),
    ("POST /api/v1/storage/ceph/osd/{osdid}", "force"),
    ("POST /api/v1/storage/ceph/volume/{pool}/{volume}/clone", "copy_on_write"),
    ("POST /api/v1/storage/ceph/volume/{pool}/{volume}/clone", "force_flag"),
    ("POST /api/v1/storage/ceph/volume/{pool}/{volume}/scan", "force"),
    ("POST /api/v1/storage/ceph/volume/{pool}/{volume}/upload", "force"),
    ("POST /api/v1/storage/ceph/volume/{pool}/{volume}/upload", "sha256"),
    ("POST /api/v1/vm", "force"),
    ("POST /api/v1/vm/{vm}", "force"),
    ("POST /api/v1/vm/{vm}/device", "force"),
    ("PUT /api/v1/network/{vni}", "confirm"),
    ("PUT /api/v1/network/{vni}", "masquerade"),
    ("PUT /api/v1/network/{vni}", "spoof_guard"),
    ("PUT /api/v1/vm/{vm}", "force"),
];

#[test]
fn operations_have_the_names_and_parameters_of_the_recorded_interface() {
    let (document, recorded) = (document(), recorded());
    for (name, operation) in operations(&document) {
        if NEW.contains(&name.as_str()) {
            continue;
        }
        let known = recorded.get(&name).unwrap_or_else(|| panic!("{name} is not recorded"));
        assert_eq!(operation["operationId"], known.id.as_str(), "{name}");
        let mut parameters = parameters(&document, &operation);
        parameters
            .retain(|parameter| parameter != "dry_run" && !ADDED.contains(&(&name, parameter)));
        assert_eq!(parameters, known.parameters, "{name}");
        let replies = operation["responses"].as_object().unwrap();
        for status in &known.success {
            assert!(replies.contains_key(status), "{name} does not document {status}");
        }
    }
}

#[test]
fn everything_of_this_release_is_in_the_document() {
    let ours = operations(&document());
    let later = ["/snapshot", "/mirror", "/backup", "/restore", "autobackup", "automirror"];
    for name in recorded().keys() {
        let path = name.split(' ').nth(1).unwrap();
        let of_later = later.iter().any(|part| path.contains(part))
            && !["/api/v1/backup", "/api/v1/restore"].contains(&path);
        // Which says that there is nothing.
        let of_later = of_later || path == "/api/v1/provisioner";
        assert!(of_later || ours.contains_key(name), "{name} is missing");
    }
}

#[tokio::test]
async fn a_method_that_is_not_described_is_none_of_a_described_path() {
    let api = with_vms(1).await;
    let ours = operations(&document());
    let paths: BTreeSet<&str> = ours.keys().map(|name| name.split_once(' ').unwrap().1).collect();
    for path in paths {
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "BREW"] {
            if ours.contains_key(&format!("{method} {path}")) {
                continue;
            }
            let uri = path.replace(['{', '}'], "");
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let asked = Request::builder().method(method.clone()).uri(&uri);
            let reply =
                api.send(asked.header("X-Api-Key", common::KEY).body(Body::empty()).unwrap());
            let reply = reply.await;
            assert_eq!(reply.status, 405, "{method} {path}: {}", reply.text());
            let allow = reply.headers["allow"].to_str().unwrap();
            assert!(
                allow
                    .split(',')
                    .all(|one| { ours.contains_key(&format!("{one} {path}")) || one == "HEAD" }),
                "{method} {path}: {allow}"
            );
        }
    }
}

#[tokio::test]
async fn every_described_operation_is_routed_and_every_other_recorded_one_says_when() {
    let api = with_vms(1).await;
    let document = document();
    let ours = operations(&document);
    let names: BTreeSet<String> = ours.keys().cloned().chain(recorded().into_keys()).collect();
    for name in names {
        let (method, path) = name.split_once(' ').unwrap();
        let path =
            path.replace("{vm}", "nothing").replace("{node}", "nothing").replace(['{', '}'], "");
        // A stream does not end.
        if path.ends_with("/events") {
            continue;
        }
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = Request::builder().method(method).uri(&path).header("X-Api-Key", common::KEY);
        let reply = api.send(request.body(Body::empty()).unwrap()).await;
        if ours.contains_key(&name) {
            assert!(![405, 501].contains(&reply.status.as_u16()), "{name}: {}", reply.text());
            assert!(!reply.text().contains("no such path"), "{name}");
            let documented = ours[&name]["responses"].as_object().unwrap();
            let status = reply.status.as_str().to_owned();
            assert!(
                documented.contains_key(&status),
                "{name} does not document {status}: {}",
                reply.text()
            );
        } else if name == "GET /api/v1/provisioner" {
            // Nothing is there in PVC 1.0.3 either.
            assert_eq!(reply.status, 404, "{}", reply.text());
        } else {
            assert!([405, 501].contains(&reply.status.as_u16()), "{name}: {}", reply.text());
            assert!(reply.message().contains(" with release 0."), "{name}: {}", reply.text());
        }
    }
}

#[tokio::test]
async fn the_document_is_served_and_complete_in_itself() {
    let api = with_vms(0).await;
    let served =
        api.send(Request::get("/api/v1/openapi.json").body(Body::empty()).unwrap()).await.ok();
    assert!(operations(&served) == operations(&document()), "what is served is another document");
    for (name, operation) in operations(&served) {
        for (status, reply) in operation["responses"].as_object().unwrap() {
            assert!(
                !reply["description"].as_str().unwrap_or_default().is_empty(),
                "{name} {status}"
            );
        }
    }
    assert!(served["openapi"].as_str().unwrap().starts_with("3.1"));
    let text = served.to_string();
    let schemas = served["components"]["schemas"].as_object().unwrap();
    for reference in
        text.split("\"#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap())
    {
        assert!(schemas.contains_key(reference), "{reference} is not described");
    }
    let secured = operations(&served);
    assert!(secured["GET /api/v1/vm"]["security"].as_array().unwrap().len() == 2);
    assert!(secured["GET /api/v1/"]["security"].is_null());
}

#[test]
fn each_operation_and_each_of_its_parameters_says_what_it_is() {
    let document = document();
    let is_said = |of: &Value, what: &str| !of[what].as_str().unwrap_or_default().is_empty();
    for (name, operation) in operations(&document) {
        assert!(is_said(&operation, "summary"), "{name}");
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert!(is_said(parameter, "description"), "{name} {parameter}");
        }
    }
}

/// Checks the document that is kept for those who do not run PVC. Set `PVC_WRITE_DOCS` to write it.
#[test]
fn the_openapi_document_is_up_to_date() {
    let kept = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api/openapi.json");
    let now = format!("{:#}\n", document());
    if std::env::var_os("PVC_WRITE_DOCS").is_some() {
        std::fs::create_dir_all(kept.parent().unwrap()).unwrap();
        std::fs::write(&kept, now).unwrap();
        return;
    }
    let text = std::fs::read_to_string(&kept).unwrap_or_default();
    assert!(text == now, "`docs/api/openapi.json` is out of date: `cargo xtask openapi` writes it");
}

/// Operations that reach the machines themselves, the records as a whole, or secrets.
const OF_ADMINISTRATORS: [&str; 20] = [
    "DELETE /api/v1/node/{node}",
    "DELETE /api/v1/provisioner/script/{script}",
    "DELETE /api/v1/storage/ceph/osd/{osdid}",
    "DELETE /api/v1/storage/ceph/pool/{pool}",
    "GET /api/v1/backup",
    "POST /api/v1/initialize",
    "POST /api/v1/node/{node}/confirm-off",
    "POST /api/v1/provisioner/script",
    "POST /api/v1/provisioner/script/{script}",
    "POST /api/v1/restore",
    "POST /api/v1/storage/ceph/benchmark",
    "POST /api/v1/storage/ceph/osd",
    "POST /api/v1/storage/ceph/osd/{osdid}",
    "POST /api/v1/storage/ceph/osddb",
    "POST /api/v1/storage/ceph/pool",
    "POST /api/v1/storage/ceph/pool/{pool}",
    "POST /api/v1/store/access",
    "PUT /api/v1/provisioner/script/{script}",
    "PUT /api/v1/storage/ceph/osd/{osdid}",
    "PUT /api/v1/storage/ceph/pool/{pool}",
];

#[test]
fn what_is_for_administrators_alone_is_no_matter_of_chance() {
    let document = document();
    let operations = document["paths"].as_object().unwrap().iter().flat_map(|(path, methods)| {
        methods.as_object().unwrap().iter().map(move |(method, operation)| {
            (format!("{} {path}", method.to_uppercase()), operation["x-pvc-role"].clone())
        })
    });
    let mut found: Vec<String> = operations
        .filter(|(_, role)| *role == "administrator")
        .map(|(operation, _)| operation)
        .collect();
    found.sort();
    assert_eq!(found, OF_ADMINISTRATORS);
}
