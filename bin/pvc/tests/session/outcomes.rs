//! Every kind of outcome has its exit code and its words.

use super::*;

use pvc_contracts::tcp_port::free_port;

#[test]
fn every_kind_of_outcome_has_its_exit_code() {
    let replies = [(400, 1), (401, 5), (404, 3), (500, 7)];
    for (reply, exit) in replies {
        let stub = Stub::start(move |_, _| status(reply, r#"{"message": "no, because"}"#));
        let output = User::of(&stub).run(&["-q", "vm", "start", "web1"]);
        assert_eq!(code(&output), exit);
        assert!(
            err(&output).starts_with("error: ") && err(&output).contains("no, because"),
            "{output:?}"
        );
        assert_eq!(out(&output), "");
    }
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    assert_eq!(code(&user.run(&["vm", "dance"])), 2);
    assert_eq!(code(&user.run(&["vm", "start"])), 2);
    let later = user.run(&["-q", "vm", "snapshot", "remove", "web", "before"]);
    assert_eq!(code(&later), 6);
    assert!(
        err(&later).contains("`pvc vm snapshot remove` is not part of this release"),
        "{later:?}"
    );
    let later = user.run(&["-q", "vm", "snapshot", "remove"]);
    assert_eq!(code(&later), 6, "its arguments come second");
    assert_eq!(code(&user.run(&["-c", "nowhere", "vm", "list"])), 3);
    let user = User::of(&stub).with("PVC_COMPAT_EXIT", "1");
    assert_eq!(code(&user.run(&["vm", "info", "nobody"])), 1);
}

#[test]
fn a_server_that_is_not_there_is_code_four_with_a_hint() {
    let user = User::without_connection().with("PVC_CONNECTION", "gone");
    user.run(&["connection", "add", "gone", "-a", "127.0.0.1", "-p", &free_port().to_string()]);
    let output = user.run(&["-q", "status"]);
    assert_eq!(code(&output), 4);
    assert!(
        err(&output).contains("cannot connect to") && err(&output).contains("hint: "),
        "{output:?}"
    );
}

/// A user of a server that takes every connection and says nothing.
fn of_a_silent_server() -> User {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    let user = User::without_connection().with("PVC_CONNECTION", "mute");
    user.run(&["connection", "add", "mute", "-a", "127.0.0.1", "-p", &port]);
    user
}

#[test]
fn a_login_is_not_held_up_by_a_server_that_does_not_answer() {
    let user = of_a_silent_server();
    let begun = Instant::now();
    let output = user.run(&["-q", "cluster", "status", "-f", "short"]);
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    assert_eq!((code(&output), out(&output)), (4, String::new()));
    assert!(
        err(&output).contains("accepts connections, but has not answered within 10 s"),
        "{output:?}"
    );
}

#[test]
fn a_limit_for_the_answer_can_be_given() {
    let user = of_a_silent_server();
    let begun = Instant::now();
    for line in [&["--timeout", "1s", "vm", "list"][..], &["--timeout=1", "node", "info", "hv1"]] {
        let output = user.run(line);
        assert_eq!(code(&output), 4);
        assert!(err(&output).contains("has not answered within 1 s"), "{output:?}");
        assert!(err(&output).contains("hint: is that the port of the API? `pvc --timeout 1m …`"));
    }
    let user = user.with("PVC_TIMEOUT", "1s");
    let output = user.run(&["-q", "vm", "start", "web1"]);
    assert_eq!(code(&output), 4);
    assert!(err(&output).contains("the request may have been carried out"), "{output:?}");
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    assert_eq!(code(&user.with("PVC_TIMEOUT", "soon").run(&["status"])), 2);
}

#[test]
fn a_web_page_and_a_key_that_cannot_be_sent_are_named() {
    let stub = Stub::start(|_, _| status(404, "<html><head><title>nginx</title></head></html>"));
    let user = User::of(&stub);
    let output = user.run(&["-q", "vm", "list"]);
    assert_eq!(code(&output), 7);
    assert!(
        err(&output)
            .starts_with("error: the server's answer is a web page (`nginx`) with status 404")
    );
    let output = user.with("PVC_API_KEY", "line\nbreak").run(&["-q", "vm", "list"]);
    assert_eq!(code(&output), 5);
    assert!(
        err(&output).contains("the API key holds a character that cannot be sent"),
        "{output:?}"
    );
}

#[test]
fn a_node_that_does_not_exist_is_code_three_wherever_it_is_named() {
    let stub = Stub::start(|request, before| match (request.method.as_str(), request.path()) {
        ("GET", "/api/v1/vm") if request.target.contains("node=") => {
            status(400, r#"{"message": "node: there is no node `hv9`"}"#)
        }
        ("POST" | "PUT", _) => {
            status(400, r#"{"message": "there is no node `hv9`", "hint": "`pvc node list`"}"#)
        }
        ("GET", "/api/v1/node/hv1") => ok(NODES),
        _ => cluster(request, before),
    });
    let user = User::of(&stub);
    let file = user.home.path().join("web1.xml");
    std::fs::write(&file, out(&user.run(&["-q", "vm", "dump", "web1"]))).unwrap();
    let path = file.to_str().unwrap();
    for line in [
        &["vm", "list", "-t", "hv9"][..],
        &["vm", "define", path, "-t", "hv9"],
        &["vm", "define", path, "-l", "hv1,hv9"],
        &["vm", "meta", "web1", "-l", "hv9"],
        &["vm", "create", "web9", "-i", "debian", "-t", "hv9"],
        &["provisioner", "template", "system", "add", "small", "-u1", "-m1", "--node-limit=hv9"],
        &["provisioner", "template", "system", "modify", "small", "--node-limit", "hv9"],
    ] {
        let output = user.run(&[&["-q"], line].concat());
        assert_eq!(code(&output), 3, "{line:?}: {output:?}");
        assert!(err(&output).contains("there is no node `hv9`"), "{output:?}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_a_mistake_in_the_command_line() {
    let user = User::without_connection();
    for line in [
        &["vm", "define", "/nonexistent"][..],
        &["cluster", "restore", "-y", "-f", "/nonexistent"],
        &["vm", "meta", "web1", "--max-downtime", "abc"],
        &["vm", "create", "web9", "-i", "debian", "--user-data", "/nonexistent"],
        &["vm", "create", "web9", "-i", "debian", "--ssh-key", "/nonexistent"],
        &["image", "add", "debian", "/nonexistent"],
        &["storage", "volume", "upload", "vms", "data", "/nonexistent"],
        &["provisioner", "ova", "upload", "web", "/nonexistent", "-p", "vms"],
        &["provisioner", "script", "add", "web", "/nonexistent"],
        &["connection", "add", "lab", "-a", "127.0.0.1", "--api-key-file", "/nonexistent"],
    ] {
        let output = user.run(line);
        assert_eq!(code(&output), 2, "{line:?}: {output:?}");
        let names_the_file = err(&output).contains("error: cannot read ");
        assert_eq!(names_the_file, line.contains(&"/nonexistent"), "{line:?}: {output:?}");
    }
    let output = user.run(&["vm", "meta", "web1", "--max-downtime", "abc"]);
    assert!(
        err(&output).contains("a whole number of milliseconds is needed, as in 300"),
        "{output:?}"
    );
    // The VM is looked for first.
    let stub = Stub::start(cluster);
    let output = User::of(&stub).run(&["-q", "vm", "modify", "web1", "/nonexistent"]);
    let expected = (2, "error: cannot read `/nonexistent`: no such file or directory\n".to_owned());
    assert_eq!((code(&output), err(&output)), expected);
    assert_eq!(changes(&stub), [""; 0]);
}

#[test]
fn a_refusal_is_printed_as_the_api_words_it_with_the_exit_code_of_its_kind() {
    for (reply, exit) in [(404, 3), (400, 1), (409, 1)] {
        let stub = Stub::start(move |request, _| match request.path() {
            "/api/v1/openapi.json" => ok(DOCUMENT),
            _ => status(reply, r#"{"message": "node `x` does not do", "hint": "try `y`"}"#),
        });
        let user = User::of(&stub);
        for line in [
            &["-q", "vm", "migrate", "web1", "-t", "x"][..],
            &["-q", "vm", "migrate", "web1", "-t", "x", "--dry-run"],
            &["-q", "vm", "move", "web1", "-t", "x"],
            &["-q", "node", "primary", "x"],
            &["-q", "node", "flush", "x", "--wait"],
        ] {
            let output = user.run(line);
            assert_eq!(code(&output), exit, "{line:?}");
            assert_eq!(err(&output), "error: node `x` does not do\nhint: try `y`\n", "{line:?}");
        }
    }
}

#[test]
fn being_primary_is_reported_by_the_exit_code_alone() {
    let stub = Stub::start(|_, before| match before {
        0 => status(500, "{}"),
        1 => ok(r#"{"primary_node": "none"}"#),
        _ => ok(r#"{"primary_node": "hv1"}"#),
    });
    let user = User::of(&stub);
    let primary = user.run(&["--quiet", "node", "is-primary", "hv1"]);
    assert_eq!((code(&primary), out(&primary), err(&primary)), (0, String::new(), String::new()));
    assert_eq!(code(&user.run(&["--quiet", "node", "is-primary", "hv2"])), 1);
}

#[test]
fn a_variable_that_is_neither_on_nor_off_is_a_mistake() {
    let output = User::without_connection().with("PVC_QUIET", "maybe").run(&["connection", "list"]);
    assert_eq!(code(&output), 2);
    assert!(err(&output).contains("`PVC_QUIET` is `maybe`"), "{output:?}");
}
