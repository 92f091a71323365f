//! OSDs are made, moved and removed by one request each, after a question where a disk is erased.

use super::*;

/// Output about a task that is waited for.
const DONE: &str = "SUCCESS: made it\n";

/// A server that takes every task and makes every change.
fn server(request: &Received, _: usize) -> Reply {
    match (request.method.as_str(), request.path()) {
        ("GET", "/api/v1/storage/ceph/osd") => ok(OSDS),
        ("GET", "/api/v1/storage/ceph/osd/10") => {
            let osds: Vec<serde_json::Value> = serde_json::from_str(OSDS).unwrap();
            ok(serde_json::json!([osds[0]]).to_string())
        }
        ("GET", "/api/v1/tasks/0a1b2c3d") => {
            ok(r#"{"state": "SUCCESS", "current": 1, "total": 1, "status": "made it"}"#)
        }
        ("GET", _) => status(404, r#"{"message": "nothing of that name"}"#),
        (_, "/api/v1/storage/ceph/option") => message("done"),
        (_, path) if path.ends_with("/state") => message("done"),
        _ => status(202, r#"{"task_id": "0a1b2c3d", "task_name": "osd.add", "run_on": "hv1"}"#),
    }
}

fn words(line: &str) -> Vec<&str> {
    ["-q", "storage"].into_iter().chain(line.split(' ')).collect()
}

#[test]
fn each_change_of_an_osd_is_one_request() {
    let (osd, meant) = ("/storage/ceph/osd", "yes-i-really-mean-it=yes");
    let group = "POST /storage/ceph/osddb?node=hv1&device=%2Fdev%2Fsdc".to_owned();
    for (line, said, request) in [
        (
            "osd add hv1 /dev/sdb -y",
            DONE,
            format!("POST {osd}?node=hv1&device=%2Fdev%2Fsdb&weight=1"),
        ),
        (
            "osd add hv1 detect:SSD:1TB:0 -w 0.5 -r 0.05 -c 2 -y",
            DONE,
            format!(
                "POST {osd}?node=hv1&device=detect%3ASSD%3A1TB%3A0&weight=0.5&ext_db_ratio=0.05\
                 &osd_count=2"
            ),
        ),
        (
            "osd replace 4 /dev/sdc -o /dev/sdb -s 40G -y",
            DONE,
            format!(
                "POST {osd}/4?new_device=%2Fdev%2Fsdc&{meant}&old_device=%2Fdev%2Fsdb\
                 &ext_db_size=40G"
            ),
        ),
        ("osd refresh 4 /dev/sdc -y", DONE, format!("PUT {osd}/4?device=%2Fdev%2Fsdc")),
        // PVC 1.0.3 takes any text as true: what is not forced does not say so.
        ("osd remove 4 -y", DONE, format!("DELETE {osd}/4?{meant}")),
        ("osd remove 4 -f -y", DONE, format!("DELETE {osd}/4?{meant}&force=True")),
        ("osd create-db-vg hv1 /dev/sdc -y", DONE, group.clone()),
        ("create-db-vg hv1 /dev/sdc -y", DONE, group),
        ("osd in 4", "done\n", format!("POST {osd}/4/state?state=in")),
        ("osd out 4", "done\n", format!("POST {osd}/4/state?state=out")),
        ("osd set noout", "done\n", "POST /storage/ceph/option?option=noout&action=set".to_owned()),
        (
            "osd unset noout",
            "done\n",
            "POST /storage/ceph/option?option=noout&action=unset".to_owned(),
        ),
    ] {
        let stub = Stub::start(server);
        let output = User::of(&stub).run(&words(line));
        assert_eq!((code(&output), out(&output).as_str()), (0, said), "{line}: {output:?}");
        assert_eq!(changes(&stub), [request], "{line}");
    }
}

#[test]
fn a_disk_is_erased_after_a_question_alone() {
    let stub = Stub::start(server);
    let user = User::of(&stub);
    for (line, question) in [
        ("osd add hv1 /dev/sdb", "Destroy all data on \"/dev/sdb\" of node \"hv1\" for a new OSD"),
        ("osd replace 4 /dev/sdc", "and move OSD \"4\" and those that share its disk to it"),
        ("osd replace 4 /dev/sdc --force", "though their data may be nowhere else"),
        ("osd refresh 4 /dev/sdc", "Take up OSD \"4\" from \"/dev/sdc\""),
        ("osd remove 4", "Remove and destroy OSD \"4\""),
        ("osd remove 4 --force", "though its data may be nowhere else"),
        (
            "osd create-db-vg hv1 /dev/sdc",
            "Destroy all data on \"/dev/sdc\" of node \"hv1\" for a group of OSD databases",
        ),
    ] {
        let output = user.answering("n\n", &words(line));
        assert!(out(&output).ends_with("Aborted.\n"), "{line}: {output:?}");
        assert!(err(&output).contains(question), "{line}: {output:?}");
    }
    assert!(changes(&stub).is_empty(), "{:?}", changes(&stub));
}

#[test]
fn a_plan_is_the_log_of_a_task_that_does_nothing() {
    let stub = Stub::start(|request, before| match request.path() {
        "/api/v1/openapi.json" => ok(DOCUMENT),
        "/api/v1/tasks/0a1b2c3d/log" => {
            ok(r#"{"id": "0a1b2c3d", "name": "osd.plan", "node": "hv1", "worker": "hv1",
                "submitted_at": 1, "started_at": 1, "ended_at": 2, "state": "SUCCESS",
                "status": "nothing has been done",
                "log": ["device /dev/sdb: model \u001b[2J", "device /dev/sdb would be erased"]}"#)
        }
        _ => server(request, before),
    });
    let output = User::of(&stub).run(&words("osd add hv1 /dev/sdb --plan"));
    assert_eq!(
        (code(&output), out(&output).as_str()),
        (0, "device /dev/sdb: model \u{fffd}[2J\ndevice /dev/sdb would be erased\n"),
        "{output:?}"
    );
    let request = "POST /storage/ceph/osd?node=hv1&device=%2Fdev%2Fsdb&weight=1&plan=True";
    assert_eq!(changes(&stub), [request]);

    let legacy = Stub::start(server);
    let output = User::of(&legacy).run(&words("osd add hv1 /dev/sdb --plan"));
    assert_eq!(code(&output), 6, "{output:?}");
    assert!(changes(&legacy).is_empty(), "it would add the OSD: {:?}", changes(&legacy));
}

#[test]
fn a_plan_that_is_refused_says_what_is_on_the_disk_and_what_to_do() {
    let stub = Stub::start(|request, before| match request.path() {
        "/api/v1/openapi.json" => ok(DOCUMENT),
        "/api/v1/tasks/0a1b2c3d" => ok(r#"{"state": "FAILURE", "current": 1, "total": 1,
                "status": "TaskFailure: device `/dev/sdb` has partitions", "hint": "wipe it"}"#),
        "/api/v1/tasks/0a1b2c3d/log" => {
            ok(r#"{"id": "0a1b2c3d", "log": ["device /dev/sdb: 1T", "partition /dev/sdb1: ext4"]}"#)
        }
        _ => server(request, before),
    });
    let user = User::of(&stub);
    let output = user.run(&words("osd add hv1 detect:SSD:1TB:0 --plan"));
    assert_eq!(code(&output), 1, "{output:?}");
    assert_eq!(out(&output), "device /dev/sdb: 1T\npartition /dev/sdb1: ext4\n");
    assert_eq!(
        err(&output),
        "error: task `0a1b2c3d` ended with FAILURE: TaskFailure: device `/dev/sdb` has \
         partitions\nhint: wipe it\n"
    );
    let output = user.run(&words("osd add hv1 detect:SSD:1TB:0 -y"));
    assert!(err(&output).ends_with("hint: wipe it\n"), "of every task that fails: {output:?}");
}

#[test]
fn what_is_no_number_asks_nobody() {
    let stub = Stub::start(server);
    let user = User::of(&stub);
    for line in [
        "osd add hv1 /dev/sdb -w heavy -y",
        "osd add hv1 /dev/sdb -c -1 -y",
        "osd add hv1 /dev/sdb -r 0.1 -s 4G -y",
        "osd add hv1 /dev/sdb --plan --no-wait",
    ] {
        assert_eq!(code(&user.run(&words(line))), 2, "{line}");
    }
    assert!(stub.lines().is_empty(), "{:?}", stub.lines());
}

#[test]
fn osds_are_listed_and_shown_in_detail() {
    let stub = Stub::start(server);
    let user = User::of(&stub);
    let raw = user.run(&words("osd list -f raw"));
    assert_eq!(
        out(&raw),
        "0:hv1:/dev/disk/by-path/pci-0000:03:00.0-scsi-0:1:0:0\n10:hv2:/dev/nvme0n1\n"
    );
    let info = user.run(&words("osd info 10"));
    assert!(code(&info) == 0 && out(&info).contains("osd-db/osd-10"), "{info:?}");
    let json = user.run(&words("osd info 10 -f json"));
    assert!(serde_json::from_str::<serde_json::Value>(&out(&json)).is_ok(), "{json:?}");
    assert_eq!(code(&user.run(&words("osd info 7"))), 3);
}
