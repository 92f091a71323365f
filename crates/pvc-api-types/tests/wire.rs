//! The objects of the wire against the recorded interface and against real answers.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed"
)]

use pvc_api_types::*;
use serde_json::{Value, json};
use utoipa::PartialSchema;

fn schema<T: PartialSchema>() -> Value {
    serde_json::to_value(T::schema()).unwrap()
}

fn names(object: &Value) -> Vec<String> {
    let mut names: Vec<String> = object.as_object().unwrap().keys().cloned().collect();
    names.sort();
    names
}

/// Members that we have added to an object of the recorded interface.
const ADDED: &[(&str, &str)] = &[
    ("Network", "masquerade"),
    ("Network", "spoof_guard"),
    ("Network", "unconfirmed_since"),
    ("Node", "hypervisor"),
    ("Node", "fence"),
    ("Node", "vlans"),
    ("Node", "waits_for"),
    ("QueuedTask", "status"),
    ("QueuedTask", "submitter"),
    ("QueuedTask", "transferred"),
    ("Pool", "answered_at"),
    ("TaskQueues", "ended"),
    ("Vm", "migration"),
    ("VmNetwork", "addresses"),
];

#[test]
fn members_and_required_members_are_those_of_the_recorded_interface() {
    let recorded: Value = serde_json::from_str(include_str!("wire-schemas.json")).unwrap();
    let ours = [
        ("Message", schema::<Message>()),
        ("TaskRef", schema::<TaskRef>()),
        ("TaskQueues", schema::<TaskQueues>()),
        ("QueuedTask", schema::<QueuedTask>()),
        ("PrimaryNode", schema::<PrimaryNode>()),
        ("Fault", schema::<Fault>()),
        ("ClusterStatus", schema::<ClusterStatus>()),
        ("Node", schema::<Node>()),
        ("NodeDaemonState", schema::<NodeDaemonState>()),
        ("NodeCoordinatorState", schema::<NodeCoordinatorState>()),
        ("NodeDomainState", schema::<NodeDomainState>()),
        ("NodeLog", schema::<NodeLog>()),
        ("VmTag", schema::<VmTag>()),
        ("VmSnapshot", schema::<VmSnapshot>()),
        ("VmNetwork", schema::<VmNetwork>()),
        ("VmController", schema::<VmController>()),
        ("VmVnc", schema::<VmVnc>()),
        ("Vm", schema::<Vm>()),
        ("VmMeta", schema::<VmMeta>()),
        ("VmTags", schema::<VmTags>()),
        ("VmState", schema::<VmState>()),
        ("VmNode", schema::<VmNode>()),
        ("VmConsole", schema::<VmConsole>()),
        ("Network", schema::<Network>()),
        ("Volume", schema::<Volume>()),
        ("Pool", schema::<Pool>()),
        ("StorageSnapshot", schema::<StorageSnapshot>()),
        ("SystemTemplate", schema::<SystemTemplate>()),
        ("NetworkTemplate", schema::<NetworkTemplate>()),
        ("NetworkTemplateNet", schema::<NetworkTemplateNet>()),
        ("StorageTemplate", schema::<StorageTemplate>()),
        ("StorageTemplateDisk", schema::<StorageTemplateDisk>()),
        ("AllTemplates", schema::<AllTemplates>()),
        ("Userdata", schema::<Userdata>()),
        ("Script", schema::<Script>()),
        ("Profile", schema::<Profile>()),
        ("Ova", schema::<Ova>()),
        ("OvaVolume", schema::<OvaVolume>()),
    ];
    for (name, ours) in ours {
        let recorded = &recorded[name];
        let mut members = names(&ours["properties"]);
        members.retain(|member| !ADDED.contains(&(name, member)));
        assert_eq!(members, names(&recorded["properties"]), "members of {name}");
        let mut required: Vec<String> = serde_json::from_value(ours["required"].clone()).unwrap();
        let mut wanted: Vec<String> = serde_json::from_value(recorded["required"].clone()).unwrap();
        required.retain(|member| !ADDED.contains(&(name, member)));
        required.sort();
        wanted.sort();
        assert_eq!(required, wanted, "required members of {name}");
    }
}

#[test]
fn a_member_that_may_be_null_says_so_in_the_document() {
    let vm = schema::<Vm>();
    assert_eq!(vm["properties"]["node_selector"]["type"], json!(["string", "null"]));
    assert_eq!(vm["properties"]["last_node"]["type"], json!("string"));
}

#[test]
fn an_empty_object_reads_as_an_empty_vm() {
    let vm: Vm = serde_json::from_str("{}").unwrap();
    assert_eq!(vm, Vm::default());
}

#[test]
fn null_where_text_belongs_reads_as_empty_text() {
    let node: Node = serde_json::from_value(json!({"name": "hv1", "kernel": null})).unwrap();
    assert_eq!((node.name.as_str(), node.kernel.as_str()), ("hv1", ""));
}

#[test]
fn a_value_of_a_wrong_type_is_still_an_error() {
    assert!(serde_json::from_value::<Node>(json!({"name": 7})).is_err());
}

#[test]
fn every_member_is_sent_even_if_empty() {
    let sent = serde_json::to_value(Vm::default()).unwrap();
    assert_eq!(sent["node_limit"], Value::Null);
    assert_eq!(sent["last_node"], json!(""));
    assert_eq!(sent["vnc"], json!({"listen": null, "port": null}));
    assert_eq!(sent["type"], json!(""));
}

#[test]
fn health_is_a_number_or_a_word() {
    let known: NodeHealth = serde_json::from_value(json!({"health": 90, "messages": []})).unwrap();
    let unknown: NodeHealth = serde_json::from_value(json!({"health": "N/A"})).unwrap();
    assert_eq!(known.health.percent(), Some(90));
    assert_eq!(unknown.health.to_string(), "N/A");
    assert_eq!(serde_json::to_value(&unknown).unwrap()["health"], json!("N/A"));
}

#[test]
fn state_counts_stand_beside_their_total() {
    let wire = json!({"total": 3, "run,ready": 2, "run,flushed": 1});
    let counts: StateCounts = serde_json::from_value(wire.clone()).unwrap();
    assert_eq!((counts.total, counts.by_state["run,ready"]), (3, 2));
    assert_eq!(serde_json::to_value(&counts).unwrap(), wire);
}

#[test]
fn a_task_status_may_come_as_an_array_of_one() {
    let wire = json!({"state": "SUCCESS", "current": 4, "total": 4, "status": ["created"]});
    let task: TaskStatus = serde_json::from_value(wire).unwrap();
    assert_eq!(task.status, "created");
    assert!(task.is_finished() && task.is_success());
}

#[test]
fn queues_without_workers_are_null_and_read_as_empty() {
    let wire = json!({"scheduled": null, "active": null, "reserved": null});
    assert_eq!(serde_json::from_value::<TaskQueues>(wire).unwrap(), TaskQueues::default());
}

#[test]
fn a_snapshot_without_figures_comes_with_an_empty_list_from_pvc_1_0_3() {
    let wire = json!([{"pool": "vms", "volume": "web1_sda", "snapshot": "s1", "stats": []}]);
    let snapshots: Vec<StorageSnapshot> = serde_json::from_value(wire).unwrap();
    assert_eq!(snapshots[0].stats, SnapshotStats::default());
    assert_eq!(serde_json::to_value(&snapshots[0]).unwrap()["stats"]["size"], json!(0));
}

#[test]
fn what_1_0_3_takes_for_true_whatever_it_says_is_sent_only_where_it_is() {
    use pvc_api_types::operations::storage::{CloneRequest, VolumeChange};
    use pvc_api_types::param::{Added, Given, Parameters};
    let request = |force: bool| CloneRequest {
        new_volume: "copy".to_owned(),
        force: Added(force),
        force_flag: Added(false),
        copy_on_write: Added(false),
    };
    assert_eq!(request(false).write().query, [("new_volume", "copy".to_owned())]);
    let forced = [("new_volume", "copy".to_owned()), ("force", "True".to_owned())];
    assert_eq!(request(true).write().query, forced);
    let mut given = Given::default();
    given.add("new_size", "20G");
    given.add("force", "False");
    assert_eq!(VolumeChange::read(&given).unwrap().force, Added(false));
}

#[test]
fn an_event_of_a_kind_from_the_future_is_readable() {
    let wire = json!({"revision": 9, "kind": "teapot", "id": "x", "change": "changed"});
    assert_eq!(serde_json::from_value::<Event>(wire).unwrap().kind, EventKind::Unknown);
}
