//! What can be changed: each kind of change once, its refusals, and waiting for it.

#![allow(clippy::disallowed_methods, reason = "a test waits, in real or in paused time")]
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use common::{Api, Reply, empty, settings, start, start_on, with_vms};
use pvc_api::{ApiSettings, Limits};
use pvc_embedded::EmbeddedTree;
use pvc_model::node::{DaemonState, DomainState};
use pvc_model::vm::VmState;
use pvc_store::synthetic::Shape;
use pvc_store::{Changes, NodeChange, VmChange};
use pvc_testkit::{Closed, FlakyTree};
use serde_json::json;

const UUID: &str = "2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1";

fn xml(name: &str, uuid: &str) -> String {
    format!(
        "<domain type='kvm'>\n  <name>{name}</name>\n  <uuid>{uuid}</uuid>\n  <memory \
         unit='MiB'>64</memory>\n  <vcpu>1</vcpu>\n  \
         <os><type arch='x86_64' \
         machine='pc-i440fx-2.7'>hvm</type></os>\n  <devices>\n    <emulator>/usr/bin/kvm</emulator>\n    \
         <serial type='pty'><log file='/var/log/libvirt/{name}.log' \
         append='on'/></serial>\n    <console type='pty'/>\n  \
         </devices>\n</domain>\n"
    )
}

impl Api {
    async fn define(&self, query: &str, xml: &str) -> Reply {
        self.form(Method::POST, &format!("/vm{query}"), "xml", xml).await
    }

    fn state(&self, vm: &str) -> VmState {
        self.store.view().vm(vm).expect("the VM exists").state.clone()
    }

    /// Plays the node: the VM's state, and whether the node says it runs.
    async fn play(&self, vm: &str, state: &str, runs: bool) {
        let uuid = self.uuid(vm);
        let running = if runs { uuid.to_string() } else { String::new() };
        self.write("/nodes/pvchv1/runningdomains", running).await;
        self.write(&format!("/domains/{uuid}/state"), state.to_owned()).await;
    }
}

/// One VM `web` on node `pvchv1`, off, and nothing else.
async fn with_web() -> Arc<Api> {
    let api = with_vms(0).await;
    api.define("?node=pvchv1", &xml("web", UUID)).await.ok();
    Arc::new(api)
}

#[tokio::test]
async fn a_vm_is_defined_with_all_that_is_said_about_it() {
    let api = with_vms(0).await;
    let query = "?node=pvchv2&limit=pvchv2,pvchv3&selector=vms&autostart=True&migration_method=live\
                 &migration_max_downtime=500&user_tags=a&user_tags=b&protected_tags=c";
    let message =
        api.define(query, &xml("web", UUID)).await.ok()["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("VM `web` was defined on node `pvchv2`"), "{message}");
    let vm = &api.get("/vm/web").await.ok()[0];
    assert_eq!(vm["uuid"], UUID);
    assert_eq!(vm["state"], "stop");
    assert_eq!(vm["node_limit"], json!(["pvchv2", "pvchv3"]));
    assert_eq!((&vm["node_selector"], &vm["migration_method"]), (&json!("vms"), &json!("live")));
    assert_eq!((&vm["node_autostart"], &vm["migration_max_downtime"]), (&json!(true), &json!(500)));
    let tags: Vec<(&str, bool)> = vm["tags"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tag| (tag["name"].as_str().unwrap(), tag["protected"].as_bool().unwrap()))
        .collect();
    assert_eq!(tags, [("a", false), ("b", false), ("c", true)]);
}

#[tokio::test]
async fn q19_what_is_not_said_has_its_documented_default() {
    let api = with_web().await;
    let vm = &api.get("/vm/web").await.ok()[0];
    assert_eq!(vm["migration_max_downtime"], 300);
    assert_eq!((&vm["node_autostart"], &vm["tags"]), (&json!(false), &json!([])));
}

#[tokio::test]
async fn q15_a_single_node_in_the_limit_is_kept() {
    let api = with_vms(0).await;
    api.define("?limit=pvchv3", &xml("web", UUID)).await.ok();
    let vm = &api.get("/vm/web").await.ok()[0];
    assert_eq!((&vm["node_limit"], &vm["node"]), (&json!(["pvchv3"]), &json!("pvchv3")));
}

#[tokio::test]
async fn bad_definitions_are_refused_with_a_reason_and_leave_nothing() {
    let api = with_vms(1).await;
    let good = xml("web", UUID);
    for (bad, part) in [
        (String::new(), ""),
        ("no xml at all".to_owned(), ""),
        (good.replace(&format!("<uuid>{UUID}</uuid>"), ""), "uuid"),
        (good.replace("<name>web</name>", "<name>we b</name>"), "space"),
        (good.replace("<name>web</name>", "<name>../../etc</name>"), "`/`"),
        (
            good.replace("<name>web</name>", &format!("<name>{}</name>", "x".repeat(300))),
            "300 characters",
        ),
        (format!("<!DOCTYPE d [<!ENTITY e 'x'>]>{good}"), ""),
        (
            good.replace(
                "<devices>",
                &format!("<!--{}--><devices>", "c".repeat(600_000).repeat(2)),
            ),
            "",
        ),
        (xml("vm00000", UUID), "vm00000"),
    ] {
        let reply = api.define("", &bad).await;
        assert!([400, 413].contains(&reply.status.as_u16()), "{}", reply.text());
        assert!(reply.message().contains(part), "{part}: {}", reply.message());
        assert_eq!(api.store.view().vms.len(), 1);
    }
    assert_eq!(api.post("/vm").await.refused(400), "xml: is required and was not given");
    assert_eq!(api.define("?node=nowhere", &good).await.status, 400);
    assert_eq!(api.define("?limit=nowhere", &good).await.status, 400);
    assert!(api.define("?selector=best", &good).await.refused(400).starts_with("selector: "));
}

#[tokio::test]
async fn q54_a_name_in_the_path_must_be_that_of_the_xml() {
    let api = with_vms(0).await;
    api.form(Method::POST, "/vm/other", "xml", &xml("web", UUID)).await.refused(400);
    api.form(Method::POST, "/vm/web", "xml", &xml("web", UUID)).await.ok();
}

#[tokio::test]
async fn q53_a_vm_is_modified_by_its_own_xml_only() {
    let api = with_web().await;
    let larger = xml("web", UUID).replace(">64<", ">128<");
    let reply = api.form(Method::PUT, "/vm/web?restart=no", "xml", &larger).await.ok();
    assert_eq!(reply["message"], "VM `web` was modified");
    assert_eq!(api.get("/vm/web").await.ok()[0]["memory"], 128);
    let other = xml("web", "7b1f8e1c-5d0f-4c2e-8a77-3f0b6a3e9d52");
    api.form(Method::PUT, "/vm/web", "xml", &other).await.refused(400);
    api.form(Method::PUT, "/vm/nothing", "xml", &larger).await.refused(404);
    let edited = api.get("/vm/web").await.ok()[0]["xml"].as_str().unwrap().to_owned();
    api.form(Method::PUT, "/vm/web", "xml", &edited).await.ok();
}

#[tokio::test]
async fn a_modification_can_be_judged_without_making_it() {
    let api = with_web().await;
    let larger = xml("web", UUID).replace(">64<", ">128<");
    let reply = api.form(Method::POST, "/vm/web/check", "xml", &larger).await.ok();
    assert_eq!(reply["message"], "VM `web` can be modified so");
    assert_eq!(api.get("/vm/web").await.ok()[0]["memory"], 64, "nothing is changed");
    let other = xml("web", "7b1f8e1c-5d0f-4c2e-8a77-3f0b6a3e9d52");
    let put = api.form(Method::PUT, "/vm/web", "xml", &other).await.refused(400);
    assert_eq!(api.form(Method::POST, "/vm/web/check", "xml", &other).await.refused(400), put);
    api.form(Method::POST, "/vm/nothing/check", "xml", &larger).await.refused(404);
}

#[tokio::test]
async fn metadata_is_changed_member_by_member() {
    let api = with_web().await;
    api.post("/vm/web/meta?limit=pvchv1&autostart=yes&profile=small").await.ok();
    let vm = &api.get("/vm/web").await.ok()[0];
    assert_eq!(
        (&vm["node_limit"], &vm["node_autostart"], &vm["profile"]),
        (&json!(["pvchv1"]), &json!(true), &json!("small"))
    );
    api.post("/vm/web/meta?limit=&selector=none").await.ok();
    let vm = &api.get("/vm/web").await.ok()[0];
    assert_eq!((&vm["node_limit"], &vm["node_autostart"]), (&json!(null), &json!(true)));
    api.post("/vm/web/meta").await.refused(400);
    api.post("/vm/nothing/meta?autostart=yes").await.refused(404);
    api.post("/vm/web/meta?limit=nowhere").await.refused(400);
    for bad in ["migration_max_downtime=soon", "autostart=perhaps", "selector=x"] {
        api.post(&format!("/vm/web/meta?{bad}")).await.refused(400);
    }
}

#[tokio::test]
async fn q51_tags_are_checked_and_unprotected_unless_said_otherwise() {
    let api = with_web().await;
    api.post("/vm/web/tags?action=add&tag=daily").await.ok();
    api.post("/vm/web/tags?action=add&tag=kept&protected=True").await.ok();
    let tags = api.get("/vm/web/tags").await.ok();
    assert_eq!(tags["tags"][0], json!({"name": "daily", "type": "user", "protected": false}));
    api.post("/vm/web/tags?action=remove&tag=daily").await.ok();
    api.post("/vm/web/tags?action=remove&tag=daily").await.refused(404);
    api.post("/vm/web/tags?action=remove&tag=kept").await.refused(400);
    for bad in
        ["action=add", "tag=x", "action=add&tag=", "action=add&tag=a%2Fb", "action=paint&tag=x"]
    {
        api.post(&format!("/vm/web/tags?{bad}")).await.refused(400);
    }
    api.post("/vm/nothing/tags?action=add&tag=x").await.refused(404);
}

#[tokio::test]
async fn q03_a_vm_gets_another_name_or_a_refusal_that_can_be_read() {
    let api = with_web().await;
    assert_eq!(
        api.post("/vm/web/rename").await.refused(400),
        "new_name: is required and was not given"
    );
    for bad in ["we%20b", "..%2Fx", "", "web", UUID] {
        api.post(&format!("/vm/web/rename?new_name={bad}")).await.refused(400);
    }
    let refusal = api.post("/vm/web/rename?new_name=shop").await.refused(503);
    assert_eq!(refusal, "no worker runs that can rename VMs");
    api.start_worker("pvchv2");
    api.eventually("a worker is there", |view| !view.workers.is_empty()).await;
    let reply = api.post("/vm/web/rename?new_name=shop").await.ok();
    assert_eq!(reply["message"], "VM `web` is called `shop` now");
    assert_eq!(api.get("/vm/shop").await.ok()[0]["uuid"], UUID);
    api.get("/vm/web").await.refused(404);
    api.post("/vm/nothing/rename?new_name=x").await.refused(404);
}

#[tokio::test]
async fn a_vm_is_removed() {
    let api = with_web().await;
    assert_eq!(
        api.delete("/vm/web?delete_disks=true").await.ok()["message"],
        "VM `web` was removed"
    );
    api.get("/vm/web").await.refused(404);
    api.delete("/vm/web").await.refused(404);
}

#[tokio::test]
async fn a_state_is_asked_for_and_the_reply_comes_at_once() {
    let api = with_web().await;
    assert_eq!(
        api.post("/vm/web/state?state=start&force=False&wait=False").await.ok()["message"],
        "VM `web` is being started"
    );
    assert_eq!(api.state("web"), VmState::Start);
    api.post("/vm/web/state?state=restart").await.ok();
    assert_eq!(api.state("web"), VmState::Restart);
    api.post("/vm/web/state?state=stop").await.ok();
    assert!(api.post("/vm/web/state?state=shutdown").await.refused(400).contains("not `start`"));
    api.post("/vm/web/state?state=disable").await.ok();
    assert_eq!(api.state("web"), VmState::Disable);
    api.post("/vm/nothing/state?state=start").await.refused(404);
    assert!(api.post("/vm/web/state").await.refused(400).starts_with("state: is required"));
    assert!(
        api.post("/vm/web/state?state=fly")
            .await
            .refused(400)
            .starts_with("state: `fly` is not one of")
    );
}

/// Sends a request and lets it wait.
fn waiting(api: &Arc<Api>, path: &'static str) -> tokio::task::JoinHandle<Reply> {
    let api = api.clone();
    tokio::spawn(async move { api.post(path).await })
}

#[tokio::test]
async fn who_waits_for_a_start_hears_when_the_guest_runs() {
    let api = with_web().await;
    let waiter = waiting(&api, "/vm/web/state?state=start&wait=True");
    api.eventually("the start is asked for", |view| {
        view.vm("web").unwrap().state == VmState::Start
    })
    .await;
    assert!(!waiter.is_finished());
    api.play("web", "start", true).await;
    assert_eq!(waiter.await.unwrap().ok()["message"], "VM `web` runs");
}

#[tokio::test]
async fn who_waits_for_a_start_or_a_stop_waits_as_long_as_the_node_works_on_it() {
    let api = with_web().await;
    let cases = [
        ("start", "/vm/web/state?state=start&wait=True", true, "VM `web` runs"),
        ("stop", "/vm/web/state?state=stop&wait=True", false, "VM `web` is stopped"),
    ];
    for (state, request, runs, said) in cases {
        api.write("/pvcrs/working_on/pvchv1", UUID).await;
        let waiter = waiting(&api, request);
        api.eventually("it is asked for", |view| view.vm("web").unwrap().state.as_str() == state)
            .await;
        api.play("web", state, runs).await;
        api.eventually("the node's list is seen", |view| {
            view.nodes["pvchv1"].running.is_empty() != runs
        })
        .await;
        assert!(!waiter.is_finished(), "{state}");
        api.write("/pvcrs/working_on/pvchv1", "").await;
        assert_eq!(waiter.await.unwrap().ok()["message"], said);
    }
}

#[tokio::test]
async fn who_waits_for_a_start_believes_the_list_of_its_own_node_and_no_other() {
    let api = with_web().await;
    // As a legacy peer left it there.
    api.write("/nodes/pvchv2/runningdomains", UUID).await;
    let waiter = waiting(&api, "/vm/web/state?state=start&wait=True");
    api.eventually("the start is asked for", |view| {
        view.vm("web").unwrap().state == VmState::Start
    })
    .await;
    api.eventually("the old list is seen", |view| !view.nodes["pvchv2"].running.is_empty()).await;
    assert!(!waiter.is_finished());
    api.play("web", "start", true).await;
    assert_eq!(waiter.await.unwrap().ok()["message"], "VM `web` runs");
}

#[tokio::test]
async fn who_waits_for_a_move_waits_as_long_as_the_new_node_brings_the_guest_up() {
    let api = with_web().await;
    api.play("web", "start", true).await;
    let waiter = waiting(&api, "/vm/web/node?action=move&node=pvchv2&wait=True");
    api.eventually("the move is asked for", |view| {
        view.vm("web").unwrap().state == VmState::Migrate
    })
    .await;
    // Shut down for the journey.
    api.write("/nodes/pvchv1/runningdomains", "").await;
    api.write("/pvcrs/working_on/pvchv2", UUID).await;
    api.write(&format!("/domains/{UUID}/state"), "start").await;
    api.write("/nodes/pvchv2/runningdomains", UUID).await;
    api.eventually("the new node lists it", |view| !view.nodes["pvchv2"].running.is_empty()).await;
    assert!(!waiter.is_finished());
    api.write("/pvcrs/working_on/pvchv2", "").await;
    assert_eq!(waiter.await.unwrap().ok()["message"], "VM `web` is on node `pvchv2` now");
}

#[tokio::test]
async fn who_waits_for_a_start_that_fails_hears_why() {
    let api = with_web().await;
    let waiter = waiting(&api, "/vm/web/state?state=start&wait=True");
    api.eventually("the start is asked for", |view| {
        view.vm("web").unwrap().state == VmState::Start
    })
    .await;
    let uuid = api.uuid("web");
    let mut changes = Changes::new();
    changes
        .vm(uuid, VmChange::FailedReason("no such emulator".into()))
        .vm(uuid, VmChange::State(VmState::Fail));
    api.store.change(|_| Ok::<_, std::convert::Infallible>((changes.clone(), ()))).await.unwrap();
    assert_eq!(waiter.await.unwrap().refused(400), "VM `web` failed: no such emulator");
}

#[tokio::test]
async fn who_waits_for_a_stop_hears_when_no_guest_is_left() {
    let api = with_web().await;
    api.play("web", "start", true).await;
    let waiter = waiting(&api, "/vm/web/state?state=shutdown&wait=True");
    api.eventually("the shutdown is asked for", |view| {
        view.vm("web").unwrap().state == VmState::Shutdown
    })
    .await;
    api.write(&format!("/domains/{UUID}/state"), "stop").await;
    api.play("web", "stop", false).await;
    assert_eq!(waiter.await.unwrap().ok()["message"], "VM `web` was shut down");
}

#[tokio::test]
async fn who_waits_hears_when_somebody_else_wants_another_state_or_removes_the_vm() {
    let api = with_web().await;
    let waiter = waiting(&api, "/vm/web/state?state=start&wait=True");
    api.eventually("the start is asked for", |view| {
        view.vm("web").unwrap().state == VmState::Start
    })
    .await;
    api.post("/vm/web/state?state=stop").await.ok();
    assert!(waiter.await.unwrap().refused(400).contains("somebody else"));
    let waiter = waiting(&api, "/vm/web/state?state=start&wait=True");
    api.eventually("the start is asked for", |view| {
        view.vm("web").unwrap().state == VmState::Start
    })
    .await;
    api.post("/vm/web/state?state=stop").await.ok();
    api.delete("/vm/web").await.ok();
    let reply = waiter.await.unwrap();
    assert!([400, 404].contains(&reply.status.as_u16()), "{}", reply.text());
}

#[tokio::test]
async fn who_waits_for_a_restart_hears_that_the_guest_was_left_as_it_was() {
    let api = with_web().await;
    api.play("web", "start", true).await;
    let waiter = waiting(&api, "/vm/web/state?state=restart&wait=True");
    api.eventually("the restart is asked for", |view| {
        view.vm("web").unwrap().state == VmState::Restart
    })
    .await;
    api.write(&format!("/domains/{UUID}/failedreason"), "not restarted: volume `vms/web` is gone")
        .await;
    api.write(&format!("/domains/{UUID}/state"), "start").await;
    let said = waiter.await.unwrap().refused(400);
    assert!(
        said.contains("was not restarted and runs on") && said.ends_with("`vms/web` is gone"),
        "{said}"
    );
    // The next one is not told of it.
    let waiter = waiting(&api, "/vm/web/state?state=restart&wait=True");
    api.eventually("it is asked for", |view| view.vm("web").unwrap().state == VmState::Restart)
        .await;
    assert_eq!(api.store.view().vm("web").unwrap().failed_reason, "");
    api.play("web", "start", true).await;
    waiter.await.unwrap().ok();
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_stop_hears_at_once_that_the_guest_of_a_dead_node_may_run_on() {
    let api = with_web().await;
    api.play("web", "start", true).await;
    api.write("/nodes/pvchv1/daemonstate", "dead").await;
    api.eventually("it is seen", |view| view.nodes["pvchv1"].daemon_state == DaemonState::Dead)
        .await;
    api.post("/vm/web/state?state=disable&force=true").await.refused(400);
    api.delete("/vm/web").await.refused(400);
    assert_eq!(api.state("web"), VmState::Start, "what was refused has changed nothing");
    let said = api.post("/vm/web/state?state=stop&wait=True").await.refused(503);
    assert!(
        said.contains("may still run on node `pvchv1`, whose daemon is in state `dead`"),
        "{said}"
    );
    assert_eq!(api.state("web"), VmState::Stop);
}

#[tokio::test]
async fn q58_disabling_shuts_down_first_and_goes_on_without_its_client() {
    let api = with_web().await;
    api.play("web", "start", true).await;
    let waiter = waiting(&api, "/vm/web/state?state=disable");
    api.eventually("the shutdown is asked for", |view| {
        view.vm("web").unwrap().state == VmState::Shutdown
    })
    .await;
    waiter.abort();
    api.play("web", "stop", false).await;
    api.eventually("it is disabled", |view| view.vm("web").unwrap().state == VmState::Disable)
        .await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_vain_hears_that_the_hypervisor_does_not_answer_if_that_is_so_now() {
    let api = with_web().await;
    let root = "/faults/HYPERVISOR_UNREACHABLE_PVCHV1";
    api.write(root, "").await;
    for (key, value) in [("first_time", "2026-11-01 00:00:00"), ("ack_time", ""), ("status", "new")]
    {
        api.write(&format!("{root}/{key}"), value).await;
    }
    api.write(&format!("{root}/delta"), "10").await;
    api.write(&format!("{root}/message"), "odd").await;
    // Far enough from the test's noon of 20 November for every time zone.
    for (last, is_reported) in [("2026-11-18 00:00:00", false), ("2026-11-22 00:00:00", true)] {
        api.write(&format!("{root}/last_time"), last).await;
        let seen = |view: &pvc_model::cluster::Cluster| {
            view.faults.values().any(|fault| fault.last_reported == last)
        };
        api.eventually("the fault is seen", seen).await;
        let said = api.post("/vm/web/state?state=start&wait=True").await.refused(504);
        assert_eq!(
            said.contains("the hypervisor of node `pvchv1` does not answer"),
            is_reported,
            "{said}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_vain_hears_which_other_node_says_that_it_runs_the_vm() {
    let api = with_web().await;
    api.write("/nodes/pvchv2/runningdomains", UUID).await;
    api.eventually("the old list is seen", |view| !view.nodes["pvchv2"].running.is_empty()).await;
    let why =
        "because node `pvchv2` says that it runs the VM or works on it; the change itself was made";
    let said = api.post("/vm/web/state?state=start&wait=True").await.refused(504);
    assert!(said.ends_with(why), "{said}");
    let said = api.post("/vm/web/node?action=move&node=pvchv3&wait=True").await.refused(504);
    assert!(said.ends_with(why), "{said}");
}

#[tokio::test(start_paused = true)]
async fn q59_a_wait_is_bounded_in_time_and_number_and_ends_with_the_daemon() {
    let limits = Limits { waits: 1, ..Limits::default() };
    let api = start(&Shape::with_vms(0).dump(), ApiSettings { limits, ..settings() }).await;
    api.define("?node=pvchv1", &xml("web", UUID)).await.ok();
    let api = Arc::new(api);
    let reply = api.post("/vm/web/state?state=start&wait=True").await;
    assert!(reply.refused(504).contains("900 s"));
    let waiter = waiting(&api, "/vm/web/state?state=start&wait=True");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(
        api.post("/vm/web/state?state=start&wait=True").await.refused(503).contains("too many")
    );
    api.state.stopping().cancel();
    assert!(waiter.await.unwrap().refused(503).contains("is being stopped"));
}

#[tokio::test]
async fn a_vm_is_moved_and_whoever_waits_hears_of_its_arrival() {
    let api = with_web().await;
    assert!(api.post("/vm/web/node").await.refused(400).starts_with("action: "));
    api.post("/vm/web/node?action=unmigrate").await.refused(400);
    api.post("/vm/web/node?action=move&node=nowhere").await.refused(404);
    let moved = api.post("/vm/web/node?action=move&node=pvchv2&wait=True").await;
    assert_eq!(
        moved.ok()["message"],
        "VM `web` is on node `pvchv2` now",
        "q12: it is off, so it is there at once"
    );
    api.write(&format!("/domains/{UUID}/state"), "start").await;
    let waiter = waiting(&api, "/vm/web/node?action=migrate&node=pvchv3&wait=True");
    api.eventually("the migration is asked for", |view| {
        view.vm("web").unwrap().state == VmState::Migrate
    })
    .await;
    assert_eq!(api.get("/vm/web").await.ok()[0]["migrated"], "from pvchv2");
    api.write(&format!("/domains/{UUID}/state"), "start").await;
    api.eventually("its state is seen", |view| view.vm("web").unwrap().state == VmState::Start)
        .await;
    assert!(!waiter.is_finished(), "its node does not say yet that it runs");
    api.write("/nodes/pvchv3/runningdomains", UUID).await;
    waiter.await.unwrap().ok();
}

#[tokio::test]
async fn nodes_are_flushed_and_made_ready_and_a_repetition_says_already() {
    let api = Arc::new(with_vms(0).await);
    api.post("/node/pvchv2/domain-state?state=flush").await.ok();
    let again = api.post("/node/pvchv2/domain-state?state=flush").await.ok();
    assert_eq!(again["message"], "node `pvchv2` is being flushed already");
    // Older daemons are not turned round on their way.
    api.store.announce_daemon(&"pvchv2".into(), "test").await.unwrap();
    let waiter = waiting(&api, "/node/pvchv2/domain-state?state=ready&wait=yes");
    api.eventually("ready is asked for", |view| {
        view.node("pvchv2").unwrap().domain_state == DomainState::Unflush
    })
    .await;
    let mut changes = Changes::new();
    changes.node(&"pvchv2".into(), NodeChange::Domain(DomainState::Ready));
    api.store.change(|_| Ok::<_, std::convert::Infallible>((changes.clone(), ()))).await.unwrap();
    assert_eq!(waiter.await.unwrap().ok()["message"], "node `pvchv2` is ready");
    let again = api.post("/node/pvchv2/domain-state?state=ready").await.ok();
    assert_eq!(again["message"], "node `pvchv2` is ready already");
    api.post("/node/nowhere/domain-state?state=flush").await.refused(404);
    assert!(
        api.post("/node/pvchv2/domain-state?state=x").await.refused(400).starts_with("state: ")
    );
}

#[tokio::test]
async fn each_place_that_does_not_do_is_refused_with_its_reason() {
    let api = with_web().await;
    let uuid = api.uuid("web");
    api.play("web", "start", true).await;
    let to = async |node: &str, status| {
        let moved =
            api.post(&format!("/vm/web/node?action=migrate&node={node}")).await.refused(status);
        let planned =
            api.post(&format!("/vm/web/node?action=migrate&node={node}&dry_run=true")).await;
        assert_eq!(planned.refused(status), moved, "a dry run says the same");
        moved
    };
    assert_eq!(to("nowhere", 404).await, "there is no node `nowhere`");
    assert_eq!(to("pvchv1", 400).await, "VM `web` is on node `pvchv1` already");
    api.domain_state("pvchv2", "flushed").await;
    assert_eq!(to("pvchv2", 400).await, "node `pvchv2` is in domain state `flushed`, not `ready`");
    api.write("/nodes/pvchv2/daemonstate", "upgrading").await;
    assert_eq!(
        to("pvchv2", 400).await,
        "node `pvchv2` is in daemon state `upgrading`, not `run`",
        "a word that a peer of another version may write"
    );
    assert_eq!(api.get("/node/pvchv2").await.ok()[0]["daemon_state"], "upgrading");
    api.write("/nodes/pvchv2/daemonstate", "run").await;
    api.domain_state("pvchv2", "resting").await;
    assert_eq!(to("pvchv2", 400).await, "node `pvchv2` is in domain state `resting`, not `ready`");
    assert_eq!(api.get("/node/pvchv2/domain-state").await.ok()["domain_state"], "resting");
    api.write("/nodes/pvchv3/memtotal", "48").await;
    assert_eq!(
        to("pvchv3", 400).await,
        "node `pvchv3` has 48 MiB of memory in all, and the VM's 64 MiB must be less"
    );
    api.write("/nodes/pvchv3/memtotal", "4096").await;
    api.write("/nodes/pvchv3/memfree", "60").await;
    assert_eq!(
        to("pvchv3", 400).await,
        "node `pvchv3` has 60 MiB of memory free, and the VM needs 64 MiB"
    );
    api.post("/vm/web/meta?limit=pvchv1,pvchv2").await.ok();
    assert_eq!(
        to("pvchv3", 400).await,
        "node `pvchv3` is not among the nodes the VM is limited to"
    );
    assert_eq!(
        api.post("/vm/web/node?action=migrate").await.refused(400),
        "no node can take the VM: `pvchv1` is where the VM is now; \
         `pvchv2` is in domain state `resting`, not `ready`; \
         `pvchv3` is not among the nodes the VM is limited to"
    );
    let view = api.store.view();
    assert_eq!(
        (view.vms[&uuid].state.as_str(), view.vms[&uuid].node.as_ref().unwrap().as_str()),
        ("start", "pvchv1")
    );
}

#[tokio::test]
async fn a_hypervisor_does_not_become_primary() {
    let api = with_vms(0).await;
    api.write("/nodes/pvchv3/daemonmode", "hypervisor").await;
    let primary = api.store.view().config.primary.clone();
    assert_eq!(
        api.post("/node/pvchv3/coordinator-state?state=primary").await.refused(400),
        "node `pvchv3` is no coordinator"
    );
    assert_eq!(api.store.view().config.primary, primary);
}

impl Api {
    /// Plays the node's domain state.
    async fn domain_state(&self, node: &str, state: &str) {
        self.write(&format!("/nodes/{node}/domainstate"), state.to_owned()).await;
    }

    async fn waits_for(&self, node: &str) -> serde_json::Value {
        self.get(&format!("/node/{node}")).await.ok()[0]["waits_for"].clone()
    }
}

#[tokio::test]
async fn what_a_flush_waits_for_is_told_with_the_node() {
    let api = with_web().await;
    api.play("web", "start", true).await;
    api.post("/vm/web/meta?limit=pvchv1").await.ok();
    assert_eq!(api.waits_for("pvchv1").await, json!([]));
    api.post("/node/pvchv1/domain-state?state=flush").await.ok();
    let why = "no node can take the VM: `pvchv1` is where the VM is now; \
               `pvchv2` is not among the nodes the VM is limited to; \
               `pvchv3` is not among the nodes the VM is limited to";
    assert_eq!(
        api.waits_for("pvchv1").await,
        json!([{
            "name": "web", "action": "shutdown", "reason": format!("it is to be shut down: \
                                                                    {why}"), "percent": null
        }])
    );
    let uuid = api.uuid("web");
    api.write(&format!("/domains/{uuid}/node"), "pvchv2").await;
    api.play("web", "migrate", true).await;
    let note = pvc_model::vm::moving::MoveNote {
        from: "pvchv1".into(),
        to: "pvchv2".into(),
        incarnation: 0,
        request: 1,
        held: true,
        phase: pvc_model::vm::moving::MovePhase::Copying,
        attempt: 1,
        seconds: 3,
        total_bytes: 100,
        processed_bytes: 43,
        remaining_bytes: 57,
        why: String::new(),
    };
    api.store.report(vec![pvc_store::Report::Move(uuid, note)]).await.unwrap();
    api.store.fresh().await.unwrap();
    assert_eq!(
        api.waits_for("pvchv1").await,
        json!([{"name": "web", "action": "move", "reason": "it is being moved to node \
                                                            `pvchv2`", "percent": 43}])
    );
    assert_eq!(api.waits_for("pvchv2").await, json!([]));
}

#[tokio::test]
async fn who_waits_for_a_flush_in_vain_hears_what_keeps_it() {
    let limits = Limits { wait_time: Duration::from_secs(1), ..Limits::default() };
    let api = start(&Shape::with_vms(0).dump(), ApiSettings { limits, ..settings() }).await;
    api.define("?node=pvchv1", &xml("web", UUID)).await.ok();
    api.play("web", "restart", true).await;
    let path = "/node/pvchv1/domain-state?state=flush&wait=yes";
    assert_eq!(
        api.post(path).await.refused(504),
        "the end of the flush of node `pvchv1` did not come within 1 s (VM `web`: it is being \
         restarted); \
         the change itself was made"
    );
    api.write("/nodes/pvchv1/daemonstate", "dead").await;
    assert_eq!(
        api.post(path).await.refused(504),
        "the end of the flush of node `pvchv1` did not come within 1 s, because its daemon is in \
         state `dead`; \
         the change itself was made"
    );
}

#[tokio::test]
async fn who_waits_for_a_flush_hears_when_somebody_turns_it_round() {
    let api = Arc::new(with_web().await);
    api.store.announce_daemon(&"pvchv1".into(), "test").await.unwrap();
    let waiter = waiting(&api, "/node/pvchv1/domain-state?state=flush&wait=yes");
    api.eventually("it is asked for", |view| {
        view.node("pvchv1").unwrap().domain_state == DomainState::Flush
    })
    .await;
    api.store.announce_daemon(&"pvchv1".into(), "test").await.unwrap();
    api.post("/node/pvchv1/domain-state?state=ready").await.ok();
    assert_eq!(
        waiter.await.unwrap().refused(400),
        "node `pvchv1` is in state `unflush` now: somebody else asked for that meanwhile"
    );
}

#[tokio::test]
async fn a_flush_says_which_vms_it_leaves_behind() {
    let api = with_web().await;
    api.play("web", "start", true).await;
    api.post("/vm/web/meta?limit=pvchv1").await.ok();
    let flush = async |node: &str| {
        let reply = api.post(&format!("/node/{node}/domain-state?state=flush")).await.ok();
        api.domain_state(node, "ready").await;
        reply["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        api.post("/node/pvchv1/domain-state?state=flush&dry_run=true").await.ok()["vms"],
        json!([{
            "name": "web",
            "action": "shutdown",
            "to": "",
            "reason": "no node can take the VM: `pvchv1` is where the VM is now; \
                       `pvchv2` is not among the nodes the VM is limited to; \
                       `pvchv3` is not among the nodes the VM is limited to"
        }])
    );
    assert_eq!(
        flush("pvchv1").await,
        "node `pvchv1` is being flushed; note: no other node can take VM `web`: it is shut down, \
         and started again when the node is ready"
    );
    assert_eq!(flush("pvchv2").await, "node `pvchv2` is being flushed");
    // The last node that takes VMs.
    for other in ["pvchv2", "pvchv3"] {
        api.domain_state(other, "flushed").await;
    }
    for number in 1..=7_u128 {
        let name = format!("x{number}");
        api.define("?node=pvchv1", &xml(&name, &uuid::Uuid::from_u128(number).to_string()))
            .await
            .ok();
        let uuid = api.uuid(&name);
        api.write(&format!("/domains/{uuid}/state"), "start").await;
    }
    assert_eq!(
        flush("pvchv1").await,
        "node `pvchv1` is being flushed; note: no other node takes VMs: VMs `x1`, `x2`, `x3`, \
         `x4`, `x5` \
         and 3 more are shut down, and started again when the node is ready"
    );
    for name in ["web", "x1", "x2", "x3", "x4", "x5", "x6", "x7"] {
        let uuid = api.uuid(name);
        api.write(&format!("/domains/{uuid}/state"), "stop").await;
    }
    assert_eq!(
        flush("pvchv1").await,
        "node `pvchv1` is being flushed; note: no node takes VMs from now on"
    );
}

#[tokio::test]
async fn the_primary_role_is_handed_over() {
    let api = with_vms(0).await;
    let message =
        async |path: &str| api.post(path).await.ok()["message"].as_str().unwrap().to_owned();
    assert!(message("/node/pvchv1/coordinator-state?state=primary").await.contains("already"));
    assert!(message("/node/pvchv2/coordinator-state?state=secondary").await.contains("already"));
    message("/node/pvchv2/coordinator-state?state=primary").await;
    assert_eq!(api.store.view().config.primary.as_ref().unwrap().as_str(), "pvchv2");
    message("/node/pvchv2/coordinator-state?state=secondary").await;
    assert_eq!(api.store.view().config.primary, None);
    api.post("/node/nowhere/coordinator-state?state=primary").await.refused(404);
    api.write("/nodes/pvchv3/daemonstate", "dead").await;
    api.post("/node/pvchv3/coordinator-state?state=primary").await.refused(400);
}

#[tokio::test]
async fn long_work_becomes_a_task_that_can_be_looked_at_and_stopped() {
    let api = with_web().await;
    let reply = api.post("/vm/web/locks").await;
    assert_eq!(reply.status, 202);
    let task = reply.json();
    let id = task["task_id"].as_str().unwrap();
    assert!(id.len() == 8 && id.chars().all(|c| c.is_ascii_hexdigit()));
    assert_eq!((&task["task_name"], &task["run_on"]), (&json!("vm.flush_locks"), &json!("pvchv1")));
    assert_eq!(reply.headers["location"], format!("/api/v1/tasks/{id}").as_str());
    let status = api.get(&format!("/tasks/{id}")).await.ok();
    assert_eq!(
        (&status["state"], &status["current"], &status["total"]),
        (&json!("PENDING"), &json!(0), &json!(1))
    );
    let queues = api.get("/tasks").await.ok();
    let waiting = &queues["reserved"]["pvcworkerd@pvchv1"][0];
    assert_eq!(waiting["id"], id);
    assert_eq!(waiting["kwargs"], json!({"domain": "web", "run_on": "pvchv1"}));
    assert_eq!(
        (&queues["active"]["pvcworkerd@pvchv1"], &queues["scheduled"]["pvcworkerd@pvchv1"]),
        (&json!([]), &json!([]))
    );
    api.delete(&format!("/tasks/{id}")).await.ok();
    assert!(api.store.view().jobs.values().next().unwrap().cancel_requested);
    api.post("/vm/nothing/locks").await.refused(404);
}

#[tokio::test]
async fn q32_a_task_that_never_was_is_not_there() {
    let api = empty().await;
    for id in ["deadbeef", "nonsense", "DEADBEEF"] {
        api.get(&format!("/tasks/{id}")).await.refused(404);
        api.delete(&format!("/tasks/{id}")).await.refused(404);
    }
    assert_eq!(
        api.get("/tasks").await.ok(),
        json!({"scheduled": {}, "active": {}, "reserved": {}})
    );
}

#[tokio::test]
async fn devices_are_plugged_by_tasks_also_with_a_body_of_delete() {
    let api = with_web().await;
    let device = "<interface type='bridge'><mac address='52:54:00:aa:bb:cc'/><source \
                  bridge='vmbr1000'/></interface>";
    for (method, name) in [(Method::POST, "vm.device_attach"), (Method::DELETE, "vm.device_detach")]
    {
        let reply = api.form(method.clone(), "/vm/web/device", "xml", device).await;
        assert_eq!((reply.status.as_u16(), &reply.json()["task_name"]), (202, &json!(name)));
        api.form(method.clone(), "/vm/web/device", "xml", "<interface").await.refused(400);
        api.form(method.clone(), "/vm/web/device", "other", device).await.refused(400);
        api.form(method, "/vm/nothing/device", "xml", device).await.refused(404);
    }
}

#[tokio::test]
async fn q24_another_clusters_key_is_not_shown_among_the_tasks() {
    let api = with_vms(0).await;
    let args = json!([["destination_api_key", "top-secret"], ["domain", "web"]]);
    let (name, node, run_on) = ("vm.send_snapshot", "pvchv1", "primary");
    let task = json!({"name": name, "node": node, "run_on": run_on, "args": args});
    api.write("/tasks/00000007", task.to_string()).await;
    api.eventually("the task is seen", |view| !view.jobs.is_empty()).await;
    let text = api.get("/tasks").await.text();
    assert!(
        text.contains("\"destination_api_key\":\"***\"") && !text.contains("top-secret"),
        "{text}"
    );
}

#[tokio::test]
async fn without_a_store_changes_are_refused_and_reads_go_on() {
    let api = with_web().await;
    api.tree.close().await;
    let reply = api.post("/vm/web/state?state=start").await;
    assert_eq!(reply.status, 503, "{}", reply.text());
    let reply = api.get("/vm/web").await;
    assert_eq!(reply.ok()[0]["name"], "web");
    assert_eq!(reply.headers["x-pvc-stale"], "true");
    assert_eq!(api.get("/vm/web/console").await.status, 503);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_known_to_be_gone_refuses_changes_at_once() {
    let connection = FlakyTree::new(EmbeddedTree::in_memory().connect());
    let api = start_on(connection.clone(), &Shape::with_vms(1).dump(), settings()).await;
    connection.cut();
    let reply = api.post("/vm/vm00000/state?state=start").await;
    assert!(!reply.headers.contains_key("retry-after"), "a connection lost just now is waited for");
    tokio::time::sleep(Duration::from_secs(4)).await;
    let asked = connection.requests();
    for path in ["/vm/vm00000/state?state=start", "/vm/vm00000/rename?new_name=shop"] {
        let reply = api.post(path).await;
        assert!(reply.refused(503).contains("has not been reachable for 4 s"), "{}", reply.text());
        assert_eq!(reply.headers["retry-after"], "5");
    }
    assert_eq!(api.get("/vm/vm00000/console").await.headers["retry-after"], "5");
    assert_eq!(connection.requests(), asked, "the store was not asked for any of it");
    api.get("/vm/vm00000").await.ok();
    connection.mend();
    api.eventually("the view is fresh", |_| api.store.outage().is_none()).await;
    api.post("/vm/vm00000/state?state=start").await.ok();
}

#[tokio::test]
async fn what_a_move_would_come_to_is_told_without_making_it() {
    let api = with_vms(0).await;
    api.define("?node=pvchv1&limit=pvchv1,pvchv2", &xml("web", UUID)).await.ok();
    let plan = api.post("/vm/web/node?action=migrate&dry_run=true").await.ok();
    assert_eq!(plan["message"], "VM `web` would go to node `pvchv2`");
    assert_eq!(
        (&plan["from"], &plan["to"], &plan["method"]),
        (&json!("pvchv1"), &json!("pvchv2"), &json!("off"))
    );
    let reasons: Vec<&str> = plan["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["reason"].as_str().unwrap())
        .collect();
    assert_eq!(reasons[0], "is where the VM is now");
    assert!(
        reasons[1].starts_with("has ") && reasons[1].ends_with("MiB of memory free"),
        "{reasons:?}"
    );
    assert_eq!(reasons[2], "is not among the nodes the VM is limited to");
    assert_eq!(api.get("/vm/web/node").await.ok()["node"], "pvchv1", "nothing was changed");
    api.post("/vm/web/node?action=migrate&node=pvchv3&dry_run=true").await.refused(400);
    api.post("/vm/none/node?action=migrate&dry_run=true").await.refused(404);
}

#[tokio::test]
async fn what_a_flush_would_come_to_is_told_without_making_it() {
    let api = with_vms(20).await;
    let before = api.get("/node/pvchv1/domain-state").await.ok();
    let plan = api.post("/node/pvchv1/domain-state?state=flush&dry_run=true").await.ok();
    assert!(
        plan["message"].as_str().unwrap().starts_with("a flush of node `pvchv1` would move "),
        "{plan}"
    );
    for step in plan["vms"].as_array().unwrap() {
        assert!(
            ["move", "shutdown", "wait", "blocked"].contains(&step["action"].as_str().unwrap()),
            "{step}"
        );
    }
    assert_eq!(api.get("/node/pvchv1/domain-state").await.ok(), before);
    api.post("/node/pvchv1/domain-state?state=ready&dry_run=true").await.refused(400);
    api.post("/node/nowhere/domain-state?state=flush&dry_run=true").await.refused(404);
}

#[tokio::test]
async fn whether_a_state_a_name_or_a_removal_is_refused_is_told_without_a_change() {
    let api = with_web().await;
    let other = UUID.replace('2', "3");
    api.define("?node=pvchv1", &xml("db", &other)).await.ok();
    api.play("web", "start", true).await;
    api.eventually("it runs", |view| view.vm("web").is_some_and(|vm| vm.state == VmState::Start))
        .await;
    let told = |reply: Reply| async move { reply.ok()["message"].as_str().unwrap().to_owned() };
    let stop = told(api.post("/vm/web/state?state=stop&dry_run=true&wait=true").await).await;
    assert_eq!(stop, "VM `web` would be stopped");
    assert_eq!(told(api.get("/vm/web/removal").await).await, "VM `web` would be removed");
    let rename = told(api.post("/vm/db/rename?new_name=shop&dry_run=true").await).await;
    assert_eq!(rename, "VM `db` would be called `shop`");
    for (path, status) in [
        ("/vm/db/state?state=restart&dry_run=true", 400),
        ("/vm/none/state?state=stop&dry_run=true", 404),
        ("/vm/web/rename?new_name=shop&dry_run=true", 400),
        ("/vm/db/rename?new_name=web&dry_run=true", 400),
        ("/vm/db/rename?new_name=..%2fx&dry_run=true", 400),
    ] {
        let words = api.post(path).await.refused(status);
        let made = api.post(&path.replace("&dry_run=true", "")).await.refused(status);
        assert_eq!(words, made, "it is refused as the change would be: {path}");
    }
    api.get("/vm/none/removal").await.refused(404);
    api.write("/nodes/pvchv1/daemonstate", "dead".to_owned()).await;
    let silent = |reply: Reply| reply.refused(400).contains("whose daemon is in state `dead`");
    api.eventually("it is silent", |view| {
        view.node("pvchv1")
            .is_some_and(|node| node.daemon_state == pvc_model::node::DaemonState::Dead)
    })
    .await;
    assert!(silent(api.get("/vm/web/removal").await), "of the node nobody but the API knows");
    assert_eq!(api.state("web"), VmState::Start, "nothing was changed");
    assert_eq!(api.state("db"), VmState::Stop);
    let view = api.store.view();
    assert!(view.vm("shop").is_none() && view.jobs.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_store_is_closed_and_opened_by_those_who_know_its_password() {
    let stranger = with_vms(1).await;
    assert!(stranger.get("/store/access").await.refused(400).contains("knows no password"));
    assert!(
        stranger
            .post("/store/access?access=members")
            .await
            .refused(400)
            .contains("knows no password")
    );

    let member =
        FlakyTree::with_password(EmbeddedTree::in_memory().connect(), "secret", &Closed::default());
    let api = start_on(member, &Shape::with_vms(1).dump(), settings()).await;
    let before = api.get("/store/access").await.ok();
    assert_eq!((&before["access"], &before["closed"]), (&json!("anybody"), &json!(0)));
    let nodes = before["without_password"].as_array().unwrap().len();
    assert_eq!(nodes, 3, "their daemons have said nothing");
    assert!(
        api.post("/store/access?access=members").await.refused(400).contains("would be locked out")
    );
    assert!(api.post("/store/access?access=nobody").await.refused(400).contains("access"));
    let forced = "/store/access?access=members&force=true";
    assert!(api.post(forced).await.refused(400).contains("every node would be locked out"));
    api.store.announce_daemon(&"pvchv1".into(), "a test").await.unwrap();
    let before = api.get("/store/access").await.ok();
    assert_eq!(before["without_password"], json!(["pvchv2", "pvchv3"]));
    let done = api.post(forced).await.ok();
    assert!(done["message"].as_str().unwrap().starts_with("the store is closed: all "), "{done}");
    let closed = api.get("/store/access").await.ok();
    assert_eq!(
        (&closed["access"], &closed["open"], &closed["closed"]),
        (&json!("members"), &json!(0), &before["open"])
    );
    api.post("/store/access?access=anybody").await.ok();
    assert_eq!(api.get("/store/access").await.ok(), before);
}
