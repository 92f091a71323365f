//! VMs are defined and modified, by files, an editor and single values.

use super::*;

#[test]
fn a_definition_with_mistakes_is_refused_with_all_of_them_and_never_sent() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let file = user.home.path().join("vm.xml");
    std::fs::write(
        &file,
        "<domain type='kvm'>\n<name>a b</name><memory unit='MiB'>x</memory>\n</domain>",
    )
    .unwrap();
    let output = user.run(&["-q", "vm", "define", file.to_str().unwrap()]);
    assert_eq!(code(&output), 1);
    assert!(err(&output).contains("mistakes:\n") && err(&output).contains("uuid"), "{output:?}");
    std::fs::write(&file, "no xml").unwrap();
    assert_eq!(code(&user.run(&["-q", "vm", "define", file.to_str().unwrap()])), 1);
    assert_eq!(changes(&stub), [""; 0]);
}

#[test]
fn a_definition_is_sent_with_everything_that_was_said() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let xml = out(&user.run(&["-q", "vm", "dump", "web1"]));
    assert!(xml.starts_with("<domain type=\"kvm\">\n  <name>web1</name>\n"), "{xml}");
    let output = user.answering(
        &xml,
        &[
            "-q", "vm", "define", "-", "-t", "hv2", "-l", "hv1,hv2", "-a", "-g", "x", "-g", "y",
            "-G", "z",
        ],
    );
    assert_eq!(code(&output), 0, "{output:?}");
    let wanted = "POST /vm?node=hv2&limit=hv1%2Chv2&selector=none&autostart=True\
                  &migration_method=none&migration_max_downtime=300&user_tags=x&user_tags=y\
                  &protected_tags=z";
    assert_eq!(changes(&stub), [wanted]);
}

#[test]
fn a_screen_that_everybody_reaches_without_a_password_is_warned_of_before_it_is_sent() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let xml = out(&user.run(&["-q", "vm", "dump", "web1"]));
    for (password, warnings) in [("", 1), (" passwd='s3cret'", 0)] {
        let screen =
            format!("<devices><graphics type='vnc' port='-1' listen='0.0.0.0'{password}/>");
        let xml = xml.replace("<devices>", &screen);
        let output = user.answering(&xml, &["-q", "vm", "define", "-"]);
        assert_eq!(code(&output), 0, "{output:?}");
        let words = "the vnc display on `0.0.0.0` asks for no password";
        assert_eq!(err(&output).matches(words).count(), warnings, "{output:?}");
    }
    assert_eq!(changes(&stub).len(), 2, "it is taken all the same");
}

#[test]
fn only_what_was_given_of_the_metadata_is_sent() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    user.run(&["vm", "meta", "web1", "-A", "-d", "500"]);
    assert_eq!(changes(&stub), ["POST /vm/web1/meta?autostart=False&migration_max_downtime=500"]);
    assert_eq!(code(&user.run(&["vm", "meta", "web1"])), 2);
}

#[test]
fn memory_is_set_in_the_definition_and_a_restart_only_on_demand() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let unasked = user.run(&["-q", "vm", "memory", "set", "web1", "4096"]);
    assert_eq!(code(&unasked), 0, "nobody to ask is no restart: {unasked:?}");
    assert!(
        err(&unasked).contains("warning: VM `web1` runs on as it was; the change takes effect"),
        "{unasked:?}"
    );
    assert!(err(&unasked).contains("hint: `pvc vm restart web1`"), "{unasked:?}");
    user.run(&["-q", "vm", "vcpu", "set", "web1", "4", "-t", "2,2,1", "-r", "-y"]);
    let path = "/vm/2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1";
    assert_eq!(
        changes(&stub),
        [format!("PUT {path}?restart=False"), format!("PUT {path}?restart=True")]
    );
    let bodies: Vec<String> = stub
        .received()
        .into_iter()
        .filter(|request| request.method == "PUT")
        .map(|request| request.body)
        .collect();
    assert!(bodies[0].contains("4096") && bodies[1].contains("sockets"), "{bodies:?}");
    user.run(&["-q", "vm", "memory", "set", "db1", "4096", "-r", "-y"]);
    assert!(
        changes(&stub)[2].ends_with("restart=False"),
        "a VM that does not run is not started by a change"
    );
}

#[test]
fn a_removed_card_is_detached_by_its_own_address() {
    let stub = Stub::start(|request, before| match (request.method.as_str(), request.path()) {
        ("DELETE", _) => status(
            202,
            r#"{"task_id": "0a1b2c3d", "task_name": "vm.device_detach", "run_on": "hv1"}"#,
        ),
        ("GET", "/api/v1/tasks/0a1b2c3d") => {
            ok(r#"{"state": "SUCCESS", "current": 1, "total": 1, "status": "detached"}"#)
        }
        _ => cluster(request, before),
    });
    let output = User::of(&stub).run(&["-q", "vm", "network", "remove", "web1", "1001"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert_eq!(changes(&stub).len(), 2);
    let detached = stub.received().into_iter().find(|request| request.method == "DELETE").unwrap();
    assert!(detached.body.contains("52%3A54%3A00%3Aaa%3Abb%3Acc"), "{detached:?}");
    let stored = stub.received().into_iter().find(|request| request.method == "PUT").unwrap();
    assert!(!stored.body.contains("52%3A54%3A00%3Aaa%3Abb%3Acc"), "{stored:?}");
}

#[test]
fn a_device_that_the_guest_does_not_take_is_taken_back_from_the_definition() {
    let stub = Stub::start(|request, before| match (request.method.as_str(), request.path()) {
        ("POST", _) => status(
            202,
            r#"{"task_id": "0a1b2c3d", "task_name": "vm.device_attach", "run_on": "hv1"}"#,
        ),
        ("GET", "/api/v1/network/1001") => ok(r#"[{"vni": 1001}]"#),
        ("GET", "/api/v1/tasks/0a1b2c3d") => {
            ok(r#"{"state": "FAILURE", "current": 1, "total": 1, "status": "no such bridge"}"#)
        }
        _ => cluster(request, before),
    });
    let output = User::of(&stub).run(&[
        "-q",
        "vm",
        "network",
        "add",
        "web1",
        "1001",
        "-a",
        "52:54:00:11:22:33",
    ]);
    assert_eq!(code(&output), 1);
    assert!(
        err(&output).contains("no such bridge")
            && err(&output).contains("the definition is as it was"),
        "{output:?}"
    );
    let puts: Vec<Received> =
        stub.received().into_iter().filter(|request| request.method == "PUT").collect();
    assert!(puts[0].body.contains("52%3A54%3A00%3A11%3A22%3A33"), "{puts:?}");
    assert!(!puts[1].body.contains("52%3A54%3A00%3A11%3A22%3A33"), "{puts:?}");
}

#[test]
fn a_volume_that_there_is_is_added_to_the_definition() {
    let stub = Stub::start(|request, before| match request.path() {
        "/api/v1/storage/ceph/volume/vms/data" => ok(r#"[{"name": "data", "pool": "vms"}]"#),
        _ => cluster(request, before),
    });
    let user = User::of(&stub);
    let add = |volume| user.run(&["-q", "vm", "volume", "add", "web1", volume, "-L", "-R"]);
    let none = add("vms/none");
    assert_eq!(code(&none), 3, "{none:?}");
    assert!(
        err(&none).contains("error: no volume `vms/none`\nhint: `pvc storage volume add"),
        "{none:?}"
    );
    assert_eq!(changes(&stub), [""; 0]);
    assert_eq!(code(&add("vms/data")), 0);
    let stored = stub.received().into_iter().find(|request| request.method == "PUT").unwrap();
    assert!(stored.body.contains("vms%2Fdata"), "{stored:?}");
}

#[test]
fn a_modification_is_shown_before_it_is_made() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let file = user.home.path().join("web1.xml");
    let present = out(&user.run(&["-q", "vm", "dump", "web1"]));
    std::fs::write(&file, &present).unwrap();
    let path = file.to_str().unwrap();
    let same = user.run(&["-q", "vm", "modify", "web1", path]);
    assert_eq!((code(&same), out(&same).as_str()), (0, "Aborting with no modifications.\n"));
    std::fs::write(&file, present.replace("2048", "1024")).unwrap();
    let unconfirmed = user.run(&["-q", "vm", "modify", "web1", path]);
    assert_eq!(code(&unconfirmed), 1);
    assert_eq!(
        err(&unconfirmed).matches("warning: ").count(),
        1,
        "each is said once: {unconfirmed:?}"
    );
    assert!(
        out(&unconfirmed).contains(
            "-  <memory unit=\"MiB\">2048</memory>\n+  <memory unit=\"MiB\">1024</memory>"
        )
    );
    assert_eq!(changes(&stub), [""; 0]);
    assert_eq!(code(&user.run(&["-q", "vm", "modify", "web1", path, "-y"])), 0);
    assert_eq!(changes(&stub).len(), 1);
}

#[test]
fn a_modification_without_a_source_is_shown_both() {
    let output = User::without_connection().run(&["vm", "modify", "web1"]);
    assert_eq!(code(&output), 2);
    assert!(
        err(&output).contains("`pvc vm modify web1 --editor` edits the present one"),
        "{output:?}"
    );
    assert!(err(&output).contains("`pvc vm modify web1 FILE` takes it from a file"), "{output:?}");
}

#[test]
fn an_editor_can_make_the_modification() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub).with("EDITOR", "sed -i s/2048/512/");
    let output = user.run(&["-q", "vm", "modify", "web1", "--editor", "--yes"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(stub.received().last().unwrap().body.contains("512"));
    let user = User::of(&stub).with("EDITOR", "false");
    assert_eq!(code(&user.run(&["-q", "vm", "modify", "web1", "--editor", "--yes"])), 1);
    assert_eq!(changes(&stub).len(), 1);
}
