//! Hardware is changed by the operations of a server that has them. That of PVC 1.0.3 has none:
//! there the definition is (`definitions.rs`).

use super::*;

const VM: &str = "/vm/2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1";
const CARD: &str = "<interface type='bridge'><mac address='52:54:00:11:22:33'/><source \
                    bridge='vmbr1001'/><model type='virtio'/></interface>";

/// A server of this version, where the devices of a change are these.
fn current(devices: &'static [&'static str]) -> impl Fn(&Received, usize) -> Reply + Send + Sync {
    move |request, before| match (request.method.as_str(), request.path()) {
        ("GET", "/api/v1/openapi.json") => ok(DOCUMENT),
        ("POST" | "DELETE", path) if path.ends_with("/device") => status(
            202,
            r#"{"task_id": "0a1b2c3d", "task_name": "vm.device_attach", "run_on": "hv1"}"#,
        ),
        ("GET", _) => cluster(request, before),
        _ => ok(serde_json::json!({"message": "done", "devices": devices}).to_string()),
    }
}

/// Answers as [`current`] does, where a task ends so.
fn ending(state: &'static str) -> impl Fn(&Received, usize) -> Reply + Send + Sync {
    let rest = current(&[CARD]);
    move |request, before| match request.path() {
        "/api/v1/tasks/0a1b2c3d" => ok(format!(
            r#"{{"state": "{state}", "current": 1, "total": 1, "status": "no such bridge"}}"#
        )),
        _ => rest(request, before),
    }
}

#[test]
fn memory_and_vcpus_are_changed_by_the_server_and_a_restart_only_on_demand() {
    let stub = Stub::start(current(&[]));
    let user = User::of(&stub);
    let unasked = user.run(&["-q", "vm", "memory", "set", "web1", "4096"]);
    assert_eq!((code(&unasked), out(&unasked).as_str()), (0, "done\n"), "{unasked:?}");
    assert!(
        err(&unasked).contains("warning: VM `web1` runs on as it was; the change takes effect"),
        "{unasked:?}"
    );
    user.run(&["-q", "vm", "vcpu", "set", "web1", "4", "-t", "2,2,1", "-r", "-y"]);
    user.run(&["-q", "vm", "vcpu", "set", "web1", "4", "-R"]);
    user.run(&["-q", "vm", "memory", "set", "db1", "4096", "-r", "-y"]);
    let changes = changes(&stub);
    assert_eq!(
        changes[..4],
        [
            format!("PUT {VM}/memory?memory=4096&restart=False&dry_run=True"),
            format!("PUT {VM}/memory?memory=4096&restart=False"),
            format!("PUT {VM}/vcpus?vcpus=4&sockets=2&cores=2&threads=1&restart=True"),
            format!("PUT {VM}/vcpus?vcpus=4&restart=False"),
        ],
        "one who may be asked is asked last"
    );
    assert!(changes[4].ends_with("/memory?memory=4096&restart=False"), "{changes:?}");
    assert_eq!(changes.len(), 5);
}

#[test]
fn a_change_that_would_be_refused_asks_nobody() {
    let stub = Stub::start(|request, before| match request.line().contains("dry_run=True") {
        true => status(400, r#"{"message": "too large", "hint": "take less"}"#),
        false => current(&[])(request, before),
    });
    let user = User::of(&stub);
    for line in [
        &["vm", "memory", "set", "web1", "999999"][..],
        &["vm", "vcpu", "set", "web1", "999", "-r"],
        &["vm", "network", "add", "web1", "1001", "-L"],
        &["vm", "volume", "remove", "web1", "sda", "-L"],
    ] {
        let output = user.answering("y\n", &[&["-q"], line].concat());
        assert_eq!(code(&output), 1, "{line:?}: {output:?}");
        assert_eq!(err(&output), "error: too large\nhint: take less\n", "{line:?}");
    }
    assert!(changes(&stub).iter().all(|line| line.contains("dry_run=True")));
}

#[test]
fn a_card_that_the_guest_does_not_take_is_removed_from_the_definition() {
    let stub = Stub::start(ending("FAILURE"));
    let output = User::of(&stub).run(&["-q", "vm", "network", "add", "web1", "1001"]);
    assert_eq!(code(&output), 1);
    assert!(err(&output).contains("the definition is as it was"), "{output:?}");
    assert_eq!(
        changes(&stub),
        [
            format!("POST {VM}/networks?network=1001&model=virtio&restart=False&force=False"),
            format!("POST {VM}/device"),
            format!(
                "DELETE {VM}/networks?mac=52%3A54%3A00%3A11%3A22%3A33&sriov=False&restart=False"
            ),
        ]
    );
    let attached =
        stub.received().into_iter().find(|request| request.path().ends_with("/device")).unwrap();
    assert!(attached.body.contains("vmbr1001"), "{attached:?}");
}

#[test]
fn what_is_removed_from_the_definition_is_unplugged() {
    let stub = Stub::start(ending("SUCCESS"));
    let user = User::of(&stub);
    let output = user.run(&["-q", "vm", "network", "remove", "web1", "1001"]);
    assert_eq!(code(&output), 0, "{output:?}");
    let output = user.run(&["-q", "vm", "volume", "remove", "web1", "vms/web1_data", "-L", "-R"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert_eq!(
        changes(&stub),
        [
            format!("DELETE {VM}/networks?network=1001&sriov=False&restart=False"),
            format!("DELETE {VM}/device"),
            format!("DELETE {VM}/volumes?volume=vms%2Fweb1_data&restart=False"),
        ]
    );
}

#[test]
fn a_card_on_a_function_is_asked_for_by_its_name_and_how_the_guest_is_given_it() {
    let stub = Stub::start(current(&[]));
    let user = User::of(&stub);
    for line in [
        "add web1 ens1f0v1 --sriov --sriov-mode hostdev -L -R",
        "add web1 ens1f0v1 --sriov --macaddr 52:54:00:11:22:33 -L -R",
        "remove web1 ens1f0v1 --sriov -L -R",
    ] {
        let words: Vec<&str> = ["-q", "vm", "network"].into_iter().chain(line.split(' ')).collect();
        let output = user.run(&words);
        assert_eq!((code(&output), out(&output).as_str()), (0, "done\n"), "{line}: {output:?}");
    }
    let add = format!("POST {VM}/networks?network=ens1f0v1");
    assert_eq!(
        changes(&stub),
        [
            format!("{add}&model=virtio&sriov=hostdev&restart=False&force=False"),
            format!(
                "{add}&mac=52%3A54%3A00%3A11%3A22%3A33&model=virtio&sriov=macvtap&restart=False\
                 &force=False"
            ),
            format!("DELETE {VM}/networks?network=ens1f0v1&sriov=True&restart=False"),
        ]
    );
}

/// A server of this version says so, and of one of PVC 1.0.3 the definition is looked at.
#[test]
fn what_is_not_plugged_in_is_not_found() {
    let ours = Stub::start(|request, before| match request.method.as_str() {
        "DELETE" => status(404, r#"{"message": "the VM has none"}"#),
        _ => current(&[])(request, before),
    });
    let former = Stub::start(cluster);
    for stub in [&ours, &former] {
        let user = User::of(stub);
        for line in [
            &["vm", "network", "remove", "web1", "4711"][..],
            &["vm", "network", "remove", "web1", "4711", "-L", "-R"],
            &["vm", "volume", "remove", "web1", "vms/none"],
            &["vm", "volume", "remove", "web1", "sdz", "-L", "-R"],
        ] {
            let output = user.run(&[&["-q"], line].concat());
            assert_eq!(code(&output), 3, "{line:?}: {output:?}");
            assert!(err(&output).starts_with("error: the VM has n"), "{line:?}: {output:?}");
        }
    }
    assert!(changes(&former).is_empty());
}

#[test]
fn a_volume_is_added_as_it_was_said_and_what_is_none_never() {
    let stub = Stub::start(current(&[]));
    let user = User::of(&stub);
    let line = ["-q", "vm", "volume", "add", "web1", "vms/data", "-b", "virtio", "-d", "vdb", "-L"];
    assert_eq!(code(&user.run(&[&line[..], &["-R"]].concat())), 0);
    assert_eq!(
        changes(&stub),
        [format!(
            "POST {VM}/volumes?volume=vms%2Fdata&type=rbd&disk_id=vdb&bus=virtio&restart=False"
        )]
    );
    assert_eq!(code(&user.run(&["-q", "vm", "volume", "add", "web1", "nothing"])), 2);
    assert_eq!(changes(&stub).len(), 1);
}

#[test]
fn a_dry_run_of_a_change_is_the_servers() {
    let stub = Stub::start(current(&[]));
    let user = User::of(&stub);
    let output = user.run(&["-q", "vm", "memory", "set", "web1", "4096", "--dry-run", "-R"]);
    assert_eq!((code(&output), out(&output).as_str()), (0, "done\n"), "{output:?}");
    assert_eq!(changes(&stub), [format!("PUT {VM}/memory?memory=4096&restart=False&dry_run=True")]);
}
