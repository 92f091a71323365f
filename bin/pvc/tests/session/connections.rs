//! Connections are stored, chosen and protected.

use super::*;

#[test]
fn a_key_is_kept_and_shown_only_on_demand() {
    let user = User::without_connection();
    let added = user.answering(
        "2c2b8f4e-0D3e\n",
        &["connection", "add", "a", "-a", "10.0.0.1", "-s", "-k", "-"],
    );
    assert_eq!(code(&added), 0, "{added:?}");
    let list = out(&user.run(&["connection", "list"]));
    assert!(list.contains("xxxxxxxx-xxxx") && !list.contains("2c2b"), "{list}");
    assert!(out(&user.run(&["connection", "list", "-k"])).contains("2c2b8f4e-0D3e"));
    let targets = out(&user.run(&["connection", "list", "--format", "json-prometheus"]));
    let targets: serde_json::Value = serde_json::from_str(&targets).unwrap();
    let target = targets
        .as_array()
        .unwrap()
        .iter()
        .find(|target| target["labels"]["pvc_cluster_id"] == "a")
        .unwrap();
    assert_eq!(target["targets"][0], "10.0.0.1:7370");
    assert_eq!(target["labels"]["pvc_cluster_name"], "a: N/A");
    assert_eq!(code(&user.run(&["connection", "remove", "a"])), 0);
    assert_eq!(code(&user.run(&["connection", "remove", "a"])), 3);
}

#[test]
fn a_read_stores_nothing_and_without_a_home_a_write_is_refused() {
    let user = User::without_connection();
    assert_eq!(code(&user.run(&["connection", "list"])), 0);
    assert_eq!(std::fs::read_dir(user.home.path()).unwrap().count(), 0);
    let homeless = |args: &[&str]| user.command(args).env_remove("HOME").output().unwrap();
    let read = homeless(&["connection", "list"]);
    assert_eq!((code(&read), err(&read)), (0, String::new()));
    let write = homeless(&["connection", "add", "x", "-a", "10.0.0.1"]);
    assert_eq!(code(&write), 1);
    assert!(err(&write).contains("hint: set `PVC_CLIENT_DIR`"), "{write:?}");
    assert!(!std::path::Path::new("/tmp/pvc/pvc.json").exists());
}

#[test]
fn connections_that_everybody_could_have_written_are_not_used() {
    let user = User::without_connection();
    user.run(&["connection", "add", "x", "-a", "10.0.0.1"]);
    let directory = user.home.path().join(".config/pvc");
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
    let list = user.run(&["connection", "list", "-f", "raw"]);
    assert_eq!((code(&list), out(&list).as_str()), (0, ""));
    assert!(err(&list).contains("everybody can write it"), "{list:?}");
    assert_eq!(code(&user.run(&["-c", "x", "status"])), 3);
    assert_eq!(code(&user.run(&["connection", "add", "y", "-a", "10.0.0.1"])), 1);
}

#[test]
fn a_connection_that_could_not_be_used_is_not_stored() {
    let user = User::without_connection();
    let odd: [&[&str]; 6] = [
        &["local", "-a", "h"],
        &["a b/..", "-a", "h"],
        &["", "-a", "h"],
        &["x", "-a", "h", "-p", "0"],
        &["x", "-a", "h", "-p", "70000"],
        &["x", "-a", "http://h"],
    ];
    for args in odd {
        let output = user.run(&[&["connection", "add"], args].concat());
        assert_eq!(code(&output), 2, "{args:?}: {output:?}");
    }
    assert_eq!(std::fs::read_dir(user.home.path()).unwrap().count(), 0);
    let local = user.run(&["connection", "remove", "local"]);
    assert_eq!(code(&local), 1);
    assert!(err(&local).contains("always there"), "{local:?}");
}

#[test]
fn a_local_daemon_that_does_not_answer_is_said_how_to_start() {
    let user = User::without_connection();
    let file = user.home.path().join("pvc.conf");
    std::fs::write(&file, "api: {listen: {address: 127.0.0.1, port: 1}}\n").unwrap();
    let output = user.with("PVC_CONFIG_FILE", file.to_str().unwrap()).run(&["-q", "status"]);
    assert_eq!(code(&output), 4);
    assert!(
        err(&output).contains("`systemctl start pvcapid`") && err(&output).contains("`./run`"),
        "{output:?}"
    );
    assert!(err(&output).contains("api/v1`: connection refused\n"), "{output:?}");
}

#[test]
fn clusters_that_cannot_be_reached_are_shown_as_such_beside_the_others() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let locked = Stub::start(|_, _| status(401, r#"{"message": "unknown key"}"#));
    let port = locked.address.port().to_string();
    user.run(&["connection", "add", "locked", "-a", "127.0.0.1", "-p", &port]);
    user.run(&["connection", "add", "gone", "-a", "127.0.0.1", "-p", "1"]);
    let output = user.run(&["-q", "connection", "detail", "-f", "json"]);
    let rows: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!((&rows[0]["name"], &rows[0]["health"]), (&"gone".into(), &"N/A".into()));
    assert_eq!(rows[0]["problem"], "unreachable: connection refused");
    assert_eq!((&rows[1]["name"], &rows[1]["health"]), (&"lab".into(), &90.into()));
    assert_eq!(rows[1]["problem"], serde_json::Value::Null);
    assert_eq!(rows[2]["problem"], "the key is not accepted: unknown key");
    assert_eq!(code(&output), 0);
    let table = out(&user.run(&["-q", "connection", "detail"]));
    assert!(
        table.contains("Problem\n") && table.contains(" unreachable: connection refused\n"),
        "{table}"
    );
    user.run(&["connection", "remove", "gone"]);
    user.run(&["connection", "remove", "locked"]);
    let table = out(&user.run(&["-q", "connection", "detail"]));
    assert!(table.contains("Snapshots\n"), "without problems there is no column for them: {table}");
}

#[test]
fn the_local_connection_is_read_from_the_daemons_configuration() {
    let stub = Stub::start(cluster);
    let user = User::without_connection();
    let file = user.home.path().join("pvc.conf");
    let text = format!(
        "api:\n  enabled: yes\n  listen:\n    address: 0.0.0.0\n    port: {}\n",
        stub.address.port()
    );
    std::fs::write(&file, text).unwrap();
    let user = user.with("PVC_CONFIG_FILE", file.to_str().unwrap());
    let output = user.run(&["-c", "local", "vm", "list", "-f", "raw"]);
    assert_eq!((code(&output), out(&output).as_str()), (0, "db1\nweb1\n"), "{output:?}");
    assert!(err(&output).contains("Using connection \"local\""));
}

#[test]
fn without_a_daemon_and_a_connection_the_error_says_what_to_do() {
    let user = User::without_connection().with("PVC_CONFIG_FILE", "/nonexistent/pvc.conf");
    let output = user.run(&["vm", "list"]);
    assert_eq!(code(&output), 1);
    assert!(
        err(&output).contains("no connection") && err(&output).contains("pvc connection add"),
        "{output:?}"
    );
}

#[test]
fn a_stored_connection_is_replaced_only_by_force() {
    let user = User::without_connection();
    let add = |host: &str, more: &[&str]| {
        let line = [&["connection", "add", "office", "-a", host, "-k", "secret"], more].concat();
        user.run(&line)
    };
    assert_eq!(code(&add("10.0.0.1", &[])), 0);
    assert_eq!(code(&add("10.0.0.1", &[])), 0, "the same once more");
    let refused = add("10.0.0.2", &[]);
    assert_eq!(code(&refused), 1);
    assert_eq!(
        err(&refused),
        "error: there is a connection `office` already\n\
         hint: `pvc connection list` shows it; another name keeps it, `--force` replaces it\n"
    );
    assert!(out(&user.run(&["connection", "list"])).contains("10.0.0.1"));
    assert_eq!(code(&add("10.0.0.2", &["--force"])), 0);
    assert!(out(&user.run(&["connection", "list"])).contains("10.0.0.2"));
}
