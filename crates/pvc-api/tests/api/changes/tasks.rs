//! Long work is a task that can be looked at and stopped.

use pvc_model::job::JobState;

use super::*;

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
async fn what_a_task_has_recorded_can_be_read_after_its_end() {
    let api = with_vms(0).await;
    let waits = json!({"name": "vm.flush_locks", "node": "pvchv1", "run_on": "pvchv1",
        "args": [["domain", "web"]], "submitted_at": 100, "submitter": "admin"});
    api.write("/tasks/00000007", waits.to_string()).await;
    api.eventually("the task is seen", |view| !view.jobs.is_empty()).await;
    let log = api.get("/tasks/00000007/log").await.ok();
    assert_eq!(
        log,
        json!({"id": "00000007", "name": "vm.flush_locks",
            "kwargs": {"domain": "web", "run_on": "pvchv1"}, "submitter": "admin",
            "node": "pvchv1", "worker": null,
            "submitted_at": 100, "started_at": null, "ended_at": null, "state": "PENDING",
            "status": "waiting for the worker", "hint": null, "transferred": null, "log": []})
    );
    for (recorded, seen, state) in
        [("failed", JobState::Failed, "FAILURE"), ("cancelled", JobState::Cancelled, "CANCELLED")]
    {
        let ended = json!({"state": recorded, "current": 1, "total": 2, "status": "no such pool",
            "started_at": 101, "ended_at": 103, "worker": "pvchv2", "log": ["one", "two"]});
        api.write("/tasks/00000007/progress", ended.to_string()).await;
        api.eventually("its end is seen", |view| {
            view.jobs.values().all(|job| job.progress.state == seen)
        })
        .await;
        let log = api.get("/tasks/00000007/log").await.ok();
        assert_eq!(
            log,
            json!({"id": "00000007", "name": "vm.flush_locks",
                "kwargs": {"domain": "web", "run_on": "pvchv1"}, "submitter": "admin",
                "node": "pvchv1", "worker": "pvchv2",
                "submitted_at": 100, "started_at": 101, "ended_at": 103, "state": state,
                "status": "no such pool", "hint": null, "transferred": null,
                "log": ["one", "two"]})
        );
    }
    let why = json!({"kind": "conflict", "why": "no such pool", "hint": "make it"});
    let failed = json!({"state": "failed", "current": 1, "total": 2, "status": "no such pool",
        "failure": why});
    api.write("/tasks/00000007/progress", failed.to_string()).await;
    api.eventually("the advice is seen", |view| {
        view.jobs.values().all(|job| job.progress.failure.is_some())
    })
    .await;
    for path in ["/tasks/00000007", "/tasks/00000007/log"] {
        assert_eq!(api.get(path).await.ok()["hint"], "make it", "{path}");
    }
    let message = api.get("/tasks/00000008/log").await.refused(404);
    assert_eq!(message, "there is no task `00000008`");
}

#[tokio::test]
async fn tasks_that_have_ended_are_listed_if_they_are_asked_for_the_latest_first() {
    let api = with_vms(0).await;
    let args = json!([["destination_api_key", "top-secret"], ["domain", "web"]]);
    let task = json!({"name": "vm.send_snapshot", "node": "pvchv1", "run_on": "primary",
        "args": args, "submitted_at": 100, "submitter": "admin"});
    for (id, ended_at) in [("00000001", 110), ("00000002", 130), ("00000003", 120)] {
        api.write(&format!("/tasks/{id}"), task.to_string()).await;
        let progress = json!({"state": "succeeded", "current": 1, "total": 1, "status": "sent",
            "started_at": 101, "ended_at": ended_at, "worker": "pvchv2"});
        api.write(&format!("/tasks/{id}/progress"), progress.to_string()).await;
    }
    api.write("/tasks/00000004", task.to_string()).await;
    api.eventually("all are seen", |view| {
        let over = view.jobs.values().filter(|job| job.progress.state.is_over());
        (view.jobs.len(), over.count()) == (4, 3)
    })
    .await;
    let all = api.get("/tasks?all=true").await.ok();
    let ended = all["ended"].as_array().unwrap();
    let ids: Vec<&str> = ended.iter().map(|task| task["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["00000002", "00000003", "00000001"]);
    assert_eq!(
        ended[0],
        json!({"id": "00000002", "name": "vm.send_snapshot", "worker": "pvcworkerd@pvchv2",
            "kwargs": {"destination_api_key": "***", "domain": "web", "run_on": "primary"},
            "submitted_at": 100, "started_at": 101, "ended_at": 130, "state": "SUCCESS",
            "status": "sent", "submitter": "admin", "transferred": null})
    );
    assert_eq!(all["reserved"]["pvcworkerd@pvchv1"][0]["id"], "00000004");
    let unfinished = api.get("/tasks").await.ok();
    let names: Vec<&String> = unfinished.as_object().unwrap().keys().collect();
    assert_eq!(names, ["scheduled", "active", "reserved"], "as PVC 1.0.3 answers");
}
