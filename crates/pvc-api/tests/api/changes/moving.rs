//! VMs are moved, nodes flushed and made ready, and the primary role handed over.

use super::*;

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
    // The flush of a legacy peer cannot be reversed.
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
async fn one_vm_may_try_a_flushed_node_by_force() {
    let api = with_web().await;
    api.play("web", "start", true).await;
    api.domain_state("pvchv2", "flushed").await;
    let there = "/vm/web/node?action=move&node=pvchv2";
    let refused = api.post(there).await;
    assert_eq!(refused.refused(400), "node `pvchv2` is in domain state `flushed`, not `ready`");
    assert!(refused.text().contains("`--force` moves this one there"), "{}", refused.text());
    api.post(&format!("{there}&force=true")).await.ok();
    let (view, uuid) = (api.store.view(), api.uuid("web"));
    assert_eq!(view.vms[&uuid].node.as_ref().unwrap().as_str(), "pvchv2");
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

#[tokio::test]
async fn a_dead_node_is_said_to_be_off_and_the_record_tells_by_whom() {
    let api = with_vms(0).await;
    let off = "/node/pvchv3/confirm-off";
    assert_eq!(
        api.post(off).await.refused(400),
        "the daemon of node `pvchv3` is in state `run`, not `dead`"
    );
    api.daemon_state("pvchv3", DaemonState::Dead).await;
    let dry = api.post(&format!("{off}?dry_run=true")).await.ok();
    assert!(dry["message"].as_str().unwrap().starts_with("nothing was changed"), "{dry}");
    assert_eq!(api.store.view().nodes["pvchv3"].daemon_state, DaemonState::Dead);
    assert_eq!(
        api.post(off).await.ok()["message"],
        "node `pvchv3` is recorded as off: its VMs are started elsewhere"
    );
    let view = api.store.view();
    let record = &view.nodes["pvchv3"];
    assert_eq!(record.daemon_state, DaemonState::Fenced);
    assert_eq!(record.domain_state, DomainState::FenceFlush);
    let shown = api.get("/node/pvchv3").await.ok();
    assert_eq!(shown[0]["fence"]["proof"], "an operator (`admin`) has confirmed that it is off");
    assert_eq!(api.post(off).await.refused(400), "node `pvchv3` is proven dead already");
    api.post("/node/nowhere/confirm-off").await.refused(404);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_the_node_is_watched_takes_its_word_back() {
    let api = with_vms(0).await;
    let (off, watch) = ("/node/pvchv3/confirm-off", pvc_model::fence::WATCH);
    api.daemon_state("pvchv3", DaemonState::Stop).await;
    assert!(tokio::time::timeout(watch / 2, api.post(off)).await.is_err(), "it is watched");
    tokio::time::sleep(2 * watch).await;
    let view = api.store.fresh().await.unwrap();
    assert_eq!(view.nodes["pvchv3"].daemon_state, DaemonState::Stop);
    api.post(off).await.ok();
    assert_eq!(api.store.view().nodes["pvchv3"].daemon_state, DaemonState::Fenced);
}

#[tokio::test]
async fn the_vms_of_a_node_that_is_off_wait_where_a_fence_moves_none() {
    for (nobody_fences, why) in
        [(false, "`successful_fence` is `none`"), (true, "`fence_intervals` is 0")]
    {
        let settings = ApiSettings { recover_after_fence: false, nobody_fences, ..settings() };
        let api = start(&Shape::with_vms(0).dump(), settings).await;
        api.daemon_state("pvchv3", DaemonState::Dead).await;
        let message = api.post("/node/pvchv3/confirm-off").await.ok()["message"].clone();
        assert_eq!(
            message,
            format!("node `pvchv3` is recorded as off: its VMs wait for it, because {why}")
        );
        let record = api.store.view().nodes["pvchv3"].clone();
        assert_eq!(record.daemon_state, DaemonState::Fenced);
        assert_ne!(record.domain_state, DomainState::FenceFlush);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_gone_is_removed_and_the_answer_names_what_named_it() {
    let api = with_web().await;
    api.post("/vm/web/meta?limit=pvchv1,pvchv3").await.ok();
    api.write(&format!("/domains/{}/lastnode", api.uuid("web")), "pvchv3").await;
    for fault in ["FENCE_FAILED_PVCHV3", "NODE_FENCED_PVCHV3", "NODE_FENCED_PVCHV2"] {
        api.with_fault(fault, "10", "2026-11-20 10:00:00").await;
    }
    assert_eq!(
        api.delete("/node/pvchv3").await.refused(400),
        "the daemon of node `pvchv3` is in state `run`, not `stop` or `fenced`"
    );
    api.daemon_state("pvchv3", DaemonState::Fenced).await;
    let removed = "node `pvchv3` is removed; VMs that no longer return there: `web`; faults \
                   deleted: `FENCE_FAILED_PVCHV3`; fault that stays until a machine of that name \
                   is well (`pvc cluster fault delete`): `NODE_FENCED_PVCHV3`; VMs that stay \
                   limited to it (`pvc vm meta --limit`): `web`; nodes of PVC 1.0.3, whose daemons \
                   are to be restarted: `pvchv1`, `pvchv2`";
    let dry = api.delete("/node/pvchv3?dry_run=true").await.ok();
    let would = format!("nothing was changed; without `dry_run` the answer is: {removed}");
    assert_eq!(dry["message"], would);
    assert!(api.store.view().nodes.contains_key("pvchv3"));
    assert_eq!(api.delete("/node/pvchv3").await.ok()["message"], removed);
    let view = api.store.fresh().await.unwrap();
    assert!(!view.nodes.contains_key("pvchv3") && view.nodes.contains_key("pvchv2"));
    assert_eq!(view.vm("web").unwrap().last_node, None);
    let left = ["NODE_FENCED_PVCHV2", "NODE_FENCED_PVCHV3"];
    assert_eq!(view.faults.keys().collect::<Vec<_>>(), left);
    api.get("/node/pvchv3").await.refused(404);
    api.delete("/node/pvchv3").await.refused(404);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_a_node_that_is_to_go_is_watched_takes_the_request_back() {
    let api = with_vms(0).await;
    let watch = pvc_model::fence::WATCH;
    api.daemon_state("pvchv3", DaemonState::Stop).await;
    let left = tokio::time::timeout(watch / 2, api.delete("/node/pvchv3")).await;
    assert!(left.is_err(), "it is watched");
    tokio::time::sleep(2 * watch).await;
    assert!(api.store.fresh().await.unwrap().nodes.contains_key("pvchv3"));
}

#[tokio::test]
async fn a_coordinator_of_the_apis_own_configuration_is_not_removed() {
    let coordinators = ["pvchv1", "pvchv3"].map(pvc_model::NodeName::new).into();
    let settings = ApiSettings { coordinators, ..settings() };
    let api = start(&Shape::with_vms(0).dump(), settings).await;
    api.daemon_state("pvchv3", DaemonState::Stop).await;
    assert_eq!(
        api.delete("/node/pvchv3").await.refused(400),
        "node `pvchv3` is one of `coordinator_nodes` in the configuration of node `pvchv1`"
    );
    api.daemon_state("pvchv2", DaemonState::Stop).await;
    let dry = api.delete("/node/pvchv2?dry_run=true").await.ok();
    assert!(dry["message"].as_str().unwrap().contains("node `pvchv2` is removed"), "{dry}");
}

impl Api {
    /// Plays what the record says of the node's daemon.
    pub async fn daemon_state(&self, node: &str, state: DaemonState) {
        self.write(&format!("/nodes/{node}/daemonstate"), state.as_str().to_owned()).await;
        let is_so = |view: &pvc_model::cluster::Cluster| view.nodes[node].daemon_state == state;
        self.eventually("the daemon's state is seen", is_so).await;
    }

    /// Plays the node's domain state.
    async fn domain_state(&self, node: &str, state: &str) {
        self.write(&format!("/nodes/{node}/domainstate"), state.to_owned()).await;
    }

    async fn waits_for(&self, node: &str) -> serde_json::Value {
        self.get(&format!("/node/{node}")).await.ok()[0]["waits_for"].clone()
    }
}

#[tokio::test]
async fn what_a_flush_waits_for_is_reported_with_the_node() {
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
        left_on: [].into(),
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
async fn a_wait_for_a_flush_that_runs_out_names_what_keeps_it() {
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
