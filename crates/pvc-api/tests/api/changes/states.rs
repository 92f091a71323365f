//! A state is asked for, and whoever wants to waits for it.

use super::*;

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
async fn a_wait_that_runs_out_says_that_the_hypervisor_does_not_answer_if_that_is_so_now() {
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
async fn a_wait_that_runs_out_says_which_other_node_says_that_it_runs_the_vm() {
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
