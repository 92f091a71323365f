//! Confirmation: what is asked, refused or told before anything is changed.

use super::*;

#[test]
fn nothing_is_removed_without_somebody_to_say_yes() {
    let stub = Stub::start(|request, before| match request.line().as_str() {
        "GET /vm?negate=False" => ok(one_vm(0)),
        _ => cluster(request, before),
    });
    let user = User::of(&stub);
    let nobody = user.run(&["-q", "vm", "remove", "web1"]);
    assert_eq!(code(&nobody), 1);
    assert!(err(&nobody).contains("hint: without a terminal say `--yes`"), "{nobody:?}");
    let no = user.answering("n\n", &["-q", "vm", "remove", "web1"]);
    assert_eq!((code(&no), out(&no).as_str()), (0, "Aborted.\n"));
    assert_eq!(changes(&stub), [""; 0], "nothing was asked of the server");
    let yes = user.answering("y\n", &["-q", "vm", "remove", "web1"]);
    assert_eq!((code(&yes), out(&yes).trim()), (0, "done"));
    assert_eq!(code(&user.run(&["-q", "vm", "remove", "web1", "-y"])), 0);
    assert_eq!(code(&user.run(&["-q", "-u", "vm", "undefine", "web1"])), 0);
    let removed = "DELETE /vm/web1?delete_disks=True";
    assert_eq!(changes(&stub), [removed, removed, "DELETE /vm/web1?delete_disks=False"]);
}

#[test]
fn the_question_whether_a_node_is_off_says_what_a_mistake_costs() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let no = user.answering("n\n", &["-q", "node", "confirm-off", "hv3"]);
    assert_eq!((code(&no), out(&no).as_str()), (0, "Aborted.\n"));
    assert!(err(&no).contains("they run twice and destroy their disks"), "{no:?}");
    assert!(err(&no).contains("Have you seen that node `hv3` is without power"), "{no:?}");
    assert_eq!(code(&user.run(&["-q", "node", "confirm-off", "hv3"])), 1, "nobody says yes");
    assert_eq!(changes(&stub), [""; 0], "nothing was asked of the server");
    let yes = user.run(&["-q", "node", "confirm-off", "hv3", "-y"]);
    assert_eq!((code(&yes), out(&yes).trim()), (0, "done"));
    assert_eq!(changes(&stub), ["POST /node/hv3/confirm-off"]);
}

#[test]
fn a_node_is_removed_once_somebody_says_yes_and_nothing_refuses_it() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let no = user.answering("n\n", &["-q", "node", "remove", "hv3"]);
    assert_eq!((code(&no), out(&no).as_str()), (0, "Aborted.\n"));
    assert!(err(&no).contains("Remove node `hv3` from the cluster"), "{no:?}");
    assert_eq!(changes(&stub), [""; 0], "nothing was asked of the server");
    let yes = user.run(&["-q", "node", "remove", "hv3", "-y"]);
    assert_eq!((code(&yes), out(&yes).trim()), (0, "done"));
    assert_eq!(changes(&stub), ["DELETE /node/hv3"]);

    let stub = Stub::start(|request, _| match request.path() {
        "/api/v1/openapi.json" => ok(DOCUMENT),
        _ => status(
            400,
            r#"{"message": "VMs are assigned to node `hv3`: `web1`", "hint": "move it"}"#,
        ),
    });
    let user = User::of(&stub);
    for more in [&[][..], &["--dry-run"]] {
        let refused = user.answering("y\n", &[&["-q", "node", "remove", "hv3"], more].concat());
        assert_eq!(code(&refused), 1, "{refused:?}");
        let expected = "error: VMs are assigned to node `hv3`: `web1`\nhint: move it\n";
        assert_eq!(err(&refused), expected, "nobody is asked about what is refused");
    }
    let asked = changes(&stub);
    assert!(asked.iter().all(|line| line == "DELETE /node/hv3?dry_run=True"), "{asked:?}");
}

#[test]
fn a_piped_no_is_a_no() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    for input in ["n\n", "no\n", "\n", "perhaps\n", "n"] {
        let no = user.answering(input, &["-q", "vm", "stop", "web1"]);
        assert_eq!((code(&no), out(&no).as_str()), (0, "Aborted.\n"), "{input:?}");
        assert_eq!(err(&no), "Forcibly stop VM \"web1\" [y/N]? \n", "{input:?}");
    }
    let silent = user.answering("n\n", &["-s", "vm", "stop", "web1"]);
    assert_eq!((code(&silent), out(&silent), err(&silent)), (0, String::new(), String::new()));
    let nobody = user.answering("", &["-s", "vm", "stop", "web1"]);
    assert_eq!((code(&nobody), out(&nobody), err(&nobody)), (1, String::new(), String::new()));
    assert_eq!(changes(&stub), [""; 0]);
}

#[test]
fn what_the_cluster_would_refuse_is_refused_before_anybody_is_asked() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    for line in [
        &["vm", "undefine", "nobody"][..],
        &["vm", "remove", "nobody"],
        &["vm", "rename", "nobody", "somebody"],
        &["vm", "stop", "nobody"],
        &["vm", "shutdown", "nobody"],
        &["vm", "restart", "nobody"],
        &["vm", "disable", "nobody"],
    ] {
        let output = user.answering("y\n", &[&["-q"], line].concat());
        assert_eq!(code(&output), 3, "{line:?}: {output:?}");
        assert_eq!(err(&output), "error: nothing of that name\n", "{line:?}");
    }
    for (line, words) in [
        (&["vm", "restart", "db1"][..], "VM `db1` cannot be restarted: the VM is in state `fail`"),
        (&["vm", "shutdown", "db1"], "VM `db1` cannot be shut down: the VM is in state `fail`"),
        (&["vm", "rename", "web1", "web2"], "VM `web1` is in state `start`; it can be renamed in"),
        (&["vm", "rename", "web1", "web 2"], "VM name `web 2`"),
        (&["vm", "remove", "web1"], "volume `vms/web1_sda` of VM `web1` is used by VM `db1`, too"),
    ] {
        let output = user.answering("y\n", &[&["-q"], line].concat());
        assert_eq!(code(&output), 1, "{line:?}: {output:?}");
        assert!(
            err(&output).contains(words) && !err(&output).contains("[y/N]"),
            "{line:?}: {output:?}"
        );
    }
    assert_eq!(changes(&stub), [""; 0]);
}

/// Asks the server what only it knows, with what it says of itself: one that does not know
/// `dry_run` of an operation would carry it out.
#[test]
fn a_server_that_can_tell_is_asked_whether_it_would_refuse() {
    let documented = |document: &'static str| {
        Stub::start(move |request, _| {
            match (request.path(), request.line().contains("dry_run=True")) {
                ("/api/v1/openapi.json", _) => ok(document),
                (_, true) => {
                    status(400, r#"{"message": "VM `web1` may run on node `hv2`", "hint": "wait"}"#)
                }
                ("/api/v1/vm/web1/removal", _) if document == DOCUMENT => {
                    status(400, r#"{"message": "VM `web1` may run on node `hv2`", "hint": "wait"}"#)
                }
                ("/api/v1/vm/web1/removal", _) => status(404, "{}"),
                (path, false) if request.method == "GET" && path.starts_with("/api/v1/vm/") => {
                    ok(one_vm(0))
                }
                (_, false) => message("done"),
            }
        })
    };
    let lines: [&[&str]; 7] = [
        &["vm", "undefine", "web1"],
        &["vm", "remove", "web1"],
        &["vm", "rename", "web1", "web2"],
        &["vm", "stop", "web1"],
        &["vm", "shutdown", "web1"],
        &["vm", "restart", "web1"],
        &["vm", "disable", "web1", "--force"],
    ];
    let stub = documented(DOCUMENT);
    let user = User::of(&stub);
    for line in lines {
        for more in [&[][..], &["--dry-run"]] {
            let output = user.answering("y\n", &[&["-q"], line, more].concat());
            assert_eq!(code(&output), 1, "{line:?}: {output:?}");
            assert_eq!(
                err(&output),
                "error: VM `web1` may run on node `hv2`\nhint: wait\n",
                "{line:?}"
            );
        }
    }
    let asked = changes(&stub);
    assert!(
        asked.len() == 10 && asked.iter().all(|line| line.contains("dry_run=True")),
        "{asked:?}"
    );
    assert!(asked[8].starts_with("POST /vm/web1/state?state=disable&force=True"), "{asked:?}");

    // One that knows it of moves alone.
    let stub = documented(
        r#"{"paths": {"/api/v1/vm/{vm}/node": {"post": {"parameters": [{"name": "dry_run"}]}}}}"#,
    );
    let user = User::of(&stub);
    for line in lines {
        let output = user.answering("", &[&["-q"], line, &["--dry-run"]].concat());
        assert_eq!(code(&output), 6, "{line:?}: {output:?}");
    }
    let output = user.answering("n\n", &["-q", "vm", "stop", "web1"]);
    assert!(err(&output).contains("[y/N]"), "{output:?}");
    assert_eq!(changes(&stub), [""; 0], "it was not asked");
}

#[test]
fn what_would_be_refused_of_a_whole_cluster_is_refused_before_the_question() {
    let stub = Stub::start(|request, _| match (request.path(), request.is_tried) {
        ("/api/v1/openapi.json", _) => ok(DOCUMENT),
        ("/api/v1/status", _) => ok(STATUS),
        (_, true) => status(409, r#"{"message": "it cannot be", "hint": "wait"}"#),
        (_, false) => message("done"),
    });
    let user = User::of(&stub);
    // A restore, for which the cluster's name is typed, needs a terminal.
    for line in ["init", "store close", "store open", "fault ack-all", "fault delete-all"] {
        let words: Vec<&str> = ["-q", "cluster"].into_iter().chain(line.split(' ')).collect();
        let output = user.answering("y\n", &words);
        let expected = (1, "error: it cannot be\nhint: wait\n");
        assert_eq!((code(&output), err(&output).as_str()), expected, "{line}");
    }
    let made = stub.received().into_iter().filter(|asked| asked.method != "GET" && !asked.is_tried);
    assert_eq!(made.count(), 0);
}

#[test]
fn a_dry_run_says_what_would_be_done() {
    let stub = Stub::start(|request, _| match request.path() {
        "/api/v1/openapi.json" => ok(DOCUMENT),
        _ => message("VM `web1` would be started"),
    });
    let user = User::of(&stub);
    let output = user.run(&["-q", "vm", "start", "web1", "--dry-run", "--wait"]);
    assert_eq!((code(&output), out(&output).as_str()), (0, "VM `web1` would be started\n"));
    assert_eq!(
        changes(&stub),
        ["POST /vm/web1/state?state=start&force=False&wait=False&dry_run=True"]
    );
}

#[test]
fn a_vm_that_is_to_try_a_flushed_node_is_moved_there_by_force() {
    for line in ["vm move web1 -t hv2 --force", "vm migrate web1 -t hv2 --force"] {
        let stub = Stub::start(|request, _| match request.path() {
            "/api/v1/openapi.json" => ok(DOCUMENT),
            _ => message("done"),
        });
        let output = User::of(&stub).run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(code(&output), 0, "{output:?}");
        let asked = changes(&stub);
        assert!(
            matches!(&asked[..], [one] if one.contains("node=hv2") && one.contains("force=True")),
            "{line}: {asked:?}"
        );
    }
}

#[test]
fn a_change_that_would_be_refused_is_not_asked_about() {
    let stub = Stub::start(|request, before| match request.path().ends_with("/check") {
        true => {
            status(400, r#"{"message": "node `hv1` takes VMs of up to 2 vCPUs", "hint": "fewer"}"#)
        }
        false => cluster(request, before),
    });
    let user = User::of(&stub);
    let file = user.home.path().join("web1.xml");
    std::fs::write(&file, out(&user.run(&["-q", "vm", "dump", "web1"])).replace("2048", "1024"))
        .unwrap();
    let path = file.to_str().unwrap();
    for line in [
        &["vm", "vcpu", "set", "web1", "99"][..],
        &["vm", "vcpu", "set", "web1", "99", "--restart"],
        &["vm", "modify", "web1", path],
        &["vm", "modify", "web1", path, "-d", "-r"],
    ] {
        let output = user.answering("y\n", &[&["-q"], line].concat());
        assert_eq!(code(&output), 1);
        assert!(
            err(&output).ends_with("error: node `hv1` takes VMs of up to 2 vCPUs\nhint: fewer\n")
        );
        assert!(!err(&output).contains("[y/N]"), "{line:?}: {output:?}");
    }
    assert_eq!(changes(&stub), [""; 0]);
}

#[test]
fn a_server_that_cannot_judge_a_change_is_asked_to_make_it() {
    let stub = Stub::start(|request, before| match request.path().ends_with("/check") {
        true => status(404, "<h1>Not Found</h1>"),
        false => cluster(request, before),
    });
    let output = User::of(&stub).answering("y\n", &["-q", "vm", "memory", "set", "web1", "4096"]);
    assert_eq!((code(&output), out(&output).as_str()), (0, "done\n"), "{output:?}");
    assert!(changes(&stub)[0].ends_with("?restart=True"), "{:?}", changes(&stub));
}

#[test]
fn a_yes_that_nobody_asked_for_is_explained() {
    let output = User::without_connection().run(&["node", "flush", "-y"]);
    assert_eq!(code(&output), 2);
    assert_eq!(
        err(&output),
        "error: unexpected `-y`: this command asks no question\n\
         hint: leave `-y` out; where a command asks, `-y` stands behind it\n"
    );
}

#[test]
fn faults_are_deleted_by_scripts_that_say_yes_to_an_older_client() {
    let stub = Stub::start(cluster);
    let output = User::of(&stub).run(&["cluster", "fault", "delete", "NODE_FLUSH", "-y"]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    assert_eq!(changes(&stub), ["DELETE /faults/NODE_FLUSH"]);
}

#[test]
fn a_cluster_is_restored_only_from_a_backup() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let file = user.home.path().join("backup.json");
    std::fs::write(&file, r#"{"vm": 1}"#).unwrap();
    let path = file.to_str().unwrap();
    assert_eq!(code(&user.run(&["cluster", "restore", "-f", path, "-y"])), 1);
    std::fs::write(&file, r#"{"/": "", "/schema/version": "15", "/nodes/hv1": ""}"#).unwrap();
    let unconfirmed = user.run(&["-q", "cluster", "restore", "-f", path]);
    assert_eq!(code(&unconfirmed), 1);
    let lines = stub.lines();
    assert!(lines.iter().all(|line| line.starts_with("GET")), "sent in vain: {lines:?}");
    assert_eq!(code(&user.run(&["-q", "cluster", "restore", "-f", path, "-y"])), 0);
    assert_eq!(changes(&stub), ["POST /restore?yes-i-really-mean-it=yes"]);
}

#[test]
fn the_backup_of_another_cluster_is_restored_only_by_force() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let file = user.home.path().join("backup.json");
    let path = file.to_str().unwrap();
    std::fs::write(&file, r#"{"/config": "office", "/schema/version": "15"}"#).unwrap();
    let refused = user.run(&["-q", "cluster", "restore", "-f", path, "-y"]);
    assert_eq!(code(&refused), 1);
    assert!(err(&refused).contains("of cluster `office`, and this is cluster `pvc1`"));
    assert_eq!(changes(&stub), [""; 0]);
    assert_eq!(code(&user.run(&["-q", "cluster", "restore", "-f", path, "--force", "-y"])), 0);
    assert_eq!(changes(&stub), ["POST /restore?yes-i-really-mean-it=yes&force=True"]);
    std::fs::write(&file, r#"{"/config": "pvc1", "/schema/version": "15"}"#).unwrap();
    assert_eq!(code(&user.run(&["-q", "cluster", "restore", "-f", path, "-y"])), 0);
}
