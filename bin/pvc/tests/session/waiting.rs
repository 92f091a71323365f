//! Tasks, VMs and nodes are waited for, and the waiting is interrupted.

use super::*;

#[test]
fn a_task_can_be_cancelled() {
    let stub = Stub::start(|_, _| message("task `0a1b2c3d` was asked to stop"));
    let output = User::of(&stub).run(&["-q", "task", "cancel", "0a1b2c3d"]);
    assert_eq!((code(&output), out(&output).as_str()), (0, "task `0a1b2c3d` was asked to stop\n"));
    assert_eq!(stub.lines(), ["DELETE /tasks/0a1b2c3d"]);
}

#[test]
fn what_a_task_has_done_is_shown_after_its_end() {
    let log = r#"{"id": "0a1b2c3d", "name": "vm.flush_locks", "node": "hv1", "worker": "hv2",
        "submitted_at": 1700000000, "started_at": 1700000001, "ended_at": 1700000090,
        "state": "SUCCESS", "status": "freed 1 locks", "log": ["looking", "freed \u001b[2J it"]}"#;
    let stub = Stub::start(move |request, _| match request.path() {
        "/api/v1/tasks/0a1b2c3d/log" => ok(log),
        _ => status(404, r#"{"message": "there is no task `ffffffff`"}"#),
    });
    let user = User::of(&stub);
    let output = user.run(&["-q", "task", "log", "0a1b2c3d"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert_eq!(
        out(&output),
        "Task:      0a1b2c3d (vm.flush_locks)\n\
         Node:      hv1\n\
         Worker:    hv2\n\
         Submitted: 2023-11-14 22:13:20 UTC\n\
         Started:   2023-11-14 22:13:21 UTC\n\
         Ended:     2023-11-14 22:14:50 UTC\n\
         State:     SUCCESS\n\
         Status:    freed 1 locks\n\n\
         looking\n\
         freed \u{fffd}[2J it\n"
    );
    assert_eq!(stub.lines(), ["GET /tasks/0a1b2c3d/log"]);
    let bare = user.run(&["-q", "cluster", "task", "log", "0a1b2c3d", "-f", "raw"]);
    assert_eq!(out(&bare), "looking\nfreed \u{fffd}[2J it\n");
    let json = user.run(&["-q", "task", "log", "0a1b2c3d", "-f", "json"]);
    assert!(out(&json).starts_with(r#"{"id": "0a1b2c3d""#), "{json:?}");
    assert_eq!(code(&user.run(&["-q", "task", "log", "ffffffff"])), 3);
}

#[test]
fn a_download_under_way_is_listed_and_shown_with_how_far_it_is() {
    let gone = r#""name": "storage.download", "kwargs": {"pool": "vms", "volume": "a", "run_on": "hv2"},
        "submitter": "backups", "status": "1024M of 2048M (50 %), 100M/s, 11 s left",
        "transferred": {"bytes": 1073741824, "of": 2147483648, "bytes_per_second": 104857600,
        "seconds_left": 11}"#;
    let log = format!(
        r#"{{"id": "0a1b2c3d", {gone}, "node": "hv2", "worker": "hv2", "submitted_at": 1700000000,
        "started_at": 1700000000, "ended_at": null, "state": "RUNNING", "log": []}}"#
    );
    let queues = format!(
        r#"{{"active": {{"pvcapid@hv2": [{{"id": "0a1b2c3d", {gone}}}]}}, "reserved": {{}},
        "scheduled": {{}}}}"#
    );
    let stub = Stub::start(move |request, _| match request.path() {
        "/api/v1/tasks/0a1b2c3d/log" => ok(&log),
        _ => ok(&queues),
    });
    let user = User::of(&stub);
    let rows = user.run(&["-q", "task", "list", "-f", "csv", "--no-headers"]);
    let first = out(&rows).lines().next().map(str::to_owned).unwrap_or_default();
    assert_eq!(
        first,
        "0a1b2c3d,storage.download,active,pvcapid@hv2,backups,\
         \"1024M of 2048M (50 %), 100M/s, 11 s left\",pool,vms"
    );
    let json = user.run(&["-q", "task", "list", "-f", "json"]);
    assert!(out(&json).contains(r#""seconds_left": 11"#), "{json:?}");
    let shown = user.run(&["-q", "task", "show", "0a1b2c3d"]);
    assert_eq!(
        out(&shown),
        "Task:      0a1b2c3d (storage.download)\n\
         Arguments: pool: vms\n           volume: a\n\
         By:        backups\n\
         Node:      hv2\n\
         Worker:    hv2\n\
         Submitted: 2023-11-14 22:13:20 UTC\n\
         Started:   2023-11-14 22:13:20 UTC\n\
         Ended:     N/A\n\
         State:     RUNNING\n\
         Status:    1024M of 2048M (50 %), 100M/s, 11 s left\n\
         Bytes:     1073741824 of 2147483648\n"
    );
    let json = user.run(&["-q", "task", "show", "0a1b2c3d", "-f", "json"]);
    assert!(out(&json).starts_with(r#"{"id": "0a1b2c3d""#), "{json:?}");
}

#[test]
fn ended_tasks_are_listed_if_they_are_asked_for_and_the_cluster_knows_them() {
    let ended = r#"{"active": {}, "reserved": {}, "scheduled": {}, "ended": [
        {"id": "0a1b2c3d", "name": "vm.rename", "state": "CANCELLED", "ended_at": 1700000000,
         "worker": "pvcworkerd@hv1", "kwargs": {"domain": "web1", "run_on": "hv1"}}]}"#;
    let stub = Stub::start(move |_, _| ok(ended));
    let user = User::of(&stub);
    let rows = user.run(&["-q", "task", "list", "--all", "-f", "csv", "--no-headers"]);
    assert_eq!(
        out(&rows),
        "0a1b2c3d,vm.rename,cancelled,pvcworkerd@hv1,2023-11-14 22:13:20 UTC,domain,web1\n"
    );
    let json = user.run(&["-q", "task", "list", "-a", "-f", "json"]);
    assert!(out(&json).contains(r#""ended_at": 1700000000"#), "{json:?}");
    user.run(&["-q", "task", "list"]);
    assert_eq!(stub.lines(), ["GET /tasks?all=True", "GET /tasks?all=True", "GET /tasks"]);
    let legacy = Stub::start(|_, _| ok(r#"{"scheduled": null, "active": null, "reserved": null}"#));
    let output = User::of(&legacy).run(&["task", "list", "--all"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(err(&output).contains("does not list tasks that have ended"), "{output:?}");
}

#[test]
fn waiting_for_a_start_is_asked_of_the_server_and_a_failed_guest_fails_the_command() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let fine = user.run(&["-q", "vm", "start", "web1", "--wait"]);
    assert_eq!((code(&fine), out(&fine).as_str()), (0, "done\n"));
    assert_eq!(changes(&stub), ["POST /vm/web1/state?state=start&force=False&wait=True"]);
    let failed = user.run(&["-q", "vm", "start", "db1", "-w"]);
    assert_eq!(code(&failed), 1);
    assert!(err(&failed).contains("VM `db1` failed: no space"), "{failed:?}");
    let plain = user.run(&["-q", "vm", "start", "db1"]);
    assert_eq!(code(&plain), 0, "without waiting only the request counts");
}

#[test]
fn waiting_can_be_limited() {
    let stub = Stub::start(|_, _| {
        std::thread::sleep(Duration::from_secs(20));
        message("late")
    });
    let started = Instant::now();
    let output = User::of(&stub).run(&["-q", "vm", "shutdown", "web1", "-y", "--wait=1s"]);
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(code(&output), 1);
    assert!(err(&output).contains("VM `web1` has not got there within 1 s"), "{output:?}");
}

#[test]
fn a_task_is_followed_without_a_terminal_line_by_line() {
    let output = User::of(&Stub::start(task("SUCCESS"))).run(&["vm", "flush-locks", "web1"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert_eq!(
        out(&output),
        "Task ID: 0a1b2c3d (vm.flush_locks) assigned to node hv1\n\nSUCCESS: locks flushed\n"
    );
    assert!(err(&output).contains("[1/2] looking\n") && !err(&output).contains('\r'), "{output:?}");
}

#[test]
fn a_failed_task_fails_the_command_unless_old_codes_are_wanted() {
    let output = User::of(&Stub::start(task("FAILURE"))).run(&["-q", "vm", "flush-locks", "web1"]);
    assert_eq!(code(&output), 1);
    assert!(
        err(&output).contains("task `0a1b2c3d` ended with FAILURE: locks flushed"),
        "{output:?}"
    );
    let user = User::of(&Stub::start(task("FAILURE"))).with("PVC_COMPAT_EXIT", "yes");
    assert_eq!(code(&user.run(&["-q", "vm", "flush-locks", "web1"])), 0);
}

#[test]
fn interrupting_the_waiting_does_not_interrupt_the_task_and_says_so() {
    let stub = Stub::start(|request, _| match request.method.as_str() {
        "POST" => status(
            202,
            r#"{"task_id": "0a1b2c3d", "task_name": "vm.flush_locks", "run_on": "hv1"}"#,
        ),
        _ => ok(r#"{"state": "RUNNING", "current": 1, "total": 2, "status": "looking"}"#),
    });
    let user = User::of(&stub);
    let child = user.command(&["vm", "flush-locks", "web1"]).spawn().unwrap();
    let output = interrupted(child, || stub.lines().len() >= 3);
    assert_eq!(output.status.signal(), Some(2), "a shell says 130, and ends the loop around it");
    assert!(err(&output).contains("hint: `pvc cluster task 0a1b2c3d` waits again"), "{output:?}");
    let user = user.with("PVC_COMPAT_EXIT", "1");
    let child = user.command(&["vm", "flush-locks", "web1"]).spawn().unwrap();
    let asked = stub.lines().len();
    assert_eq!(code(&interrupted(child, || stub.lines().len() >= asked + 3)), 1);
}

/// Presses Ctrl-C as soon as `ready`.
fn interrupted(child: Child, ready: impl Fn() -> bool) -> Output {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !ready() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    child.wait_with_output().unwrap()
}

#[test]
fn interrupting_the_waiting_for_a_vm_says_that_the_request_stands() {
    let stub = Stub::start(|_, _| {
        std::thread::sleep(Duration::from_secs(20));
        message("late")
    });
    let user = User::of(&stub);
    let child = user.command(&["vm", "shutdown", "web1", "--wait", "-y"]).spawn().unwrap();
    let output = interrupted(child, || !stub.lines().is_empty());
    assert_eq!(output.status.signal(), Some(2));
    assert!(
        err(&output)
            .contains("\nerror: no longer waiting; a request that the API has received stands\n")
    );
    assert!(
        err(&output).ends_with("hint: `pvc vm info web1` shows the present state\n"),
        "{output:?}"
    );
    let user = user.with("PVC_COMPAT_EXIT", "1");
    let child = user.command(&["-q", "vm", "shutdown", "web1", "--wait", "-y"]).spawn().unwrap();
    let asked = stub.lines().len();
    let output = interrupted(child, || stub.lines().len() > asked);
    assert_eq!(code(&output), 1);
    assert!(err(&output).ends_with("Aborted!\n"), "{output:?}");
}

#[test]
fn a_task_need_not_be_waited_for() {
    let stub = Stub::start(task("SUCCESS"));
    let output = User::of(&stub).run(&["-q", "vm", "flush-locks", "web1", "--no-wait"]);
    assert_eq!(out(&output), "Task ID: 0a1b2c3d assigned to node hv1\n");
    assert_eq!(stub.lines(), ["POST /vm/web1/locks"]);
}

#[test]
fn a_task_that_does_not_exist_is_not_waited_for_for_ever() {
    let stub = Stub::start(|request, _| match request.path() {
        "/api/v1/tasks" => ok(r#"{"scheduled": null, "active": null, "reserved": null}"#),
        _ => ok(r#"{"state": "PENDING", "current": 0, "total": 1, "status": "waiting"}"#),
    });
    let output = User::of(&stub).run(&["-q", "cluster", "task", "ffffffff"]);
    assert_eq!(code(&output), 3, "{output:?}");
}

#[test]
fn a_flush_is_waited_for_until_the_node_says_flushed() {
    let looks = std::sync::atomic::AtomicUsize::new(0);
    let stub = Stub::start(move |request, _| {
        if request.method == "POST" {
            return message("Flushing node hv1");
        }
        let states = ["ready", "flush", "flushed"];
        let look = looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed).min(2);
        ok(format!(r#"[{{"name": "hv1", "domain_state": "{}"}}]"#, states[look]))
    });
    let output = User::of(&stub).run(&["node", "flush", "hv1", "--wait"]);
    assert_eq!((code(&output), out(&output).as_str()), (0, "Flushing node hv1\n"), "{output:?}");
    assert!(err(&output).contains("done. ["), "{output:?}");
    assert_eq!(stub.lines().len(), 4);
}

/// Server whose node reports a flush under way, look by look; the last one again and again.
fn flushing(looks: Vec<&'static str>) -> Stub {
    let look = std::sync::atomic::AtomicUsize::new(0);
    Stub::start(move |request, _| {
        if request.method == "POST" {
            return message("node `hv1` is being flushed already");
        }
        let look = look.fetch_add(1, std::sync::atomic::Ordering::Relaxed).min(looks.len() - 1);
        ok(format!(r#"[{{"name": "hv1", "daemon_state": "run", {}}}]"#, looks[look]))
    })
}

const WAITING: &str = r#""domain_state": "flush", "waits_for": [
    {"name": "web1", "action": "move", "reason": "it is being moved to node `hv2`", "percent": 7},
    {"name": "db1", "action": "blocked", "reason": "it could not be moved to node `hv2`: host CPU differs"}]"#;
const FARTHER: &str = r#""domain_state": "flush", "waits_for": [
    {"name": "web1", "action": "move", "reason": "it is being moved to node `hv2`", "percent": 93}]"#;
const FLUSHED: &str = r#""domain_state": "flushed", "waits_for": []"#;

#[test]
fn what_a_flush_waits_for_is_said_when_it_changes() {
    let stub = flushing(vec![WAITING, WAITING, FARTHER, FLUSHED]);
    let output = User::of(&stub).run(&["node", "flush", "hv1", "--wait"]);
    assert_eq!(code(&output), 0, "{output:?}");
    let said = err(&output);
    let lines: Vec<&str> = said.lines().skip_while(|line| *line != "Waiting...").collect();
    assert_eq!(
        lines[..4],
        [
            "Waiting...",
            "  VM `db1`: it could not be moved to node `hv2`: host CPU differs",
            "  VM `web1`: it is being moved to node `hv2`",
            "  VM `db1`: it is done"
        ]
    );
    assert!(lines.len() == 5 && lines[4].starts_with("done. ["), "{lines:?}");
}

#[test]
fn a_terminal_shows_how_far_the_copies_are() {
    let stub = flushing(vec![WAITING, FARTHER, FLUSHED]);
    let text = User::of(&stub).on_a_terminal("node flush hv1 --wait");
    assert!(text.contains("; web1 7 %") && text.contains("; web1 93 %"), "{text:?}");
    assert!(text.contains("  VM `db1`: it is done\r\n"), "{text:?}");
    assert_eq!(text.matches("VM `web1`: it is being moved").count(), 1, "{text:?}");
}

#[test]
fn a_quiet_wait_says_nothing_of_it() {
    let stub = flushing(vec![WAITING, FLUSHED]);
    let output = User::of(&stub).run(&["-q", "node", "flush", "hv1", "--wait"]);
    assert_eq!((code(&output), err(&output)), (0, String::new()));
}

#[test]
fn a_node_that_is_already_there_is_not_waited_for() {
    let stub = Stub::start(|_, _| message("Node hv1 is already ready"));
    assert_eq!(code(&User::of(&stub).run(&["-q", "node", "ready", "hv1", "-w"])), 0);
    assert_eq!(stub.lines().len(), 1);
}

#[test]
fn a_node_that_was_fenced_is_not_made_ready_by_itself() {
    let fault = r#"[{"id": "NODE_FENCED_HV1", "last_reported": "2026-11-20 03:00:30",
        "first_reported": "2026-11-20 03:00:30", "acknowledged_at": "", "status": "new",
        "health_delta": 10, "message": "node hv1 was fenced by hv2"}]"#;
    for (faults, asked) in [(fault, 1), ("[]", 2)] {
        let stub = Stub::start(move |request, _| match request.path() {
            "/api/v1/faults/NODE_FENCED_HV1" => ok(faults),
            _ => message("Node hv1 is already ready"),
        });
        let output = User::of(&stub).run(&["-q", "node", "ready", "hv1", "-w", "--unless-fenced"]);
        assert_eq!(code(&output), 0, "a unit that asks again and again is content: {output:?}");
        assert_eq!(stub.lines().len(), asked, "{:?}", stub.lines());
        assert_eq!(err(&output).contains("`pvc cluster fault delete NODE_FENCED_HV1`"), asked == 1);
    }
    // Who types it himself knows what he does.
    let stub = Stub::start(|_, _| message("Node hv1 is already ready"));
    assert_eq!(code(&User::of(&stub).run(&["-q", "node", "ready", "hv1"])), 0);
    assert_eq!(stub.lines().len(), 1);
}
