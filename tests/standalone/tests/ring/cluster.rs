//! The same, in pieces: node, API and worker as processes of their own on a real ZooKeeper.

use std::os::unix::fs::OpenOptionsExt;

use nix::sys::signal::Signal;
use pvc_standalone_tests::{Machine, Outside, Settings, eventually, hello_uuid, never_within};

fn cluster() -> Machine {
    let machine = Machine::with(Settings { cluster: true, ..Settings::default() });
    machine.pvc(&["node", "ready", machine.node(), "--wait"]).ok();
    machine
}

#[test]
fn the_same_session_works_on_zookeeper_and_survives_each_daemon() {
    let mut machine = cluster();
    machine.pvc(&["status"]).says(&["Primary node", machine.node()]);
    machine.define_hello("hello");
    let qemu = machine.boot("hello");
    machine.pvc(&["vm", "list"]).says(&["hello", "start", machine.node()]);
    eventually("shown is the console", 30, || {
        let log = machine.pvc(&["vm", "log", "hello"]);
        if log.stdout.contains("heartbeat") { Ok(()) } else { Err(log) }
    });

    let second = machine.daemon_that_ends("node");
    assert_eq!(second.code, 1, "{second}");
    assert!(second.said.contains("another daemon") && second.said.contains("hint:"), "{second}");

    for role in ["api", "worker", "node"] {
        machine.kill(role);
        assert_eq!(machine.qemu("hello"), qemu);
        machine.spawn(role);
        machine.wait_until_running();
        assert_eq!(machine.qemu("hello"), qemu);
    }
    // An order given while the node's daemon is away is carried out when it is back.
    let ended = machine.stop("node");
    assert_eq!(ended.code, 0, "{ended}");
    machine.pvc(&["vm", "shutdown", "hello", "-y"]).ok();
    assert_eq!(machine.qemu("hello"), qemu);
    machine.spawn("node");
    machine.wait_until_running();
    machine.wait_for_state("hello", "stop", 90);
    machine.wait_until_off("hello", 10);
    for role in ["worker", "api", "node"] {
        let ended = machine.stop(role);
        assert_eq!(ended.code, 0, "{ended}");
    }
}

#[test]
fn a_poisoned_record_harms_nobody_else() {
    let mut machine = cluster();
    for name in ["calm", "junk", "empty", "odd", "bare"] {
        machine.define_hello(name);
    }
    let calm = machine.boot("calm");
    let junk = machine.boot("junk");
    let outside = Outside::connect(&machine.zookeeper().address());
    let record = |name: &str, key: &str| format!("/domains/{}{key}", hello_uuid(name));
    let binary: Vec<u8> = (0..=255).cycle().take(2000).collect();

    // A state that makes no sense is no order: what runs goes on, what is off stays off.
    outside.put(&record("junk", "/state"), &binary);
    outside.put(&record("empty", "/state"), b"");
    outside.put(&record("odd", "/state"), b"levitate");
    outside.delete_all(&record("bare", "/xml"));
    outside.put(&record("bare", "/state"), b"start");
    // Beside the VMs: records that a reader may meet anywhere.
    outside.put("/domains/not-a-uuid", b"what");
    outside.put("/domains/6f1d9c52-7a5e-4f0b-9d3d-ffffffffffff", b"");
    outside.put(&format!("/nodes/{}/staticdata", machine.node()), &binary);
    outside.put(&format!("/nodes/{}/memtotal", machine.node()), b"lots");
    outside.put("/nodes/ghost", &binary);
    outside.put("/faults/BROKEN", &binary);
    outside.put("/stray", b"left behind by an upgrade");
    outside.put("/tasks/junk", &binary);

    // A definition that takes long to read, in whichever way that is tried.
    let bomb = |attribute: &dyn Fn(usize) -> String| -> String {
        let declared = (0..2000).map(attribute).collect::<Vec<_>>().join(" ");
        let children = (0..2000).map(|n| format!("<a{n} {}/>", attribute(n)));
        format!("<domain {declared}>{}</domain>", children.collect::<String>())
    };
    let interfaces = "<interface type='bridge'><source bridge='vmbr1'/></interface>".repeat(9900);
    outside.put(&record("odd", "/xml"), bomb(&|n| format!("xmlns:a{n}='urn:{n}'")).as_bytes());
    outside.put(
        &record("bare", "/xml"),
        format!("<domain><devices>{interfaces}</devices></domain>").as_bytes(),
    );
    let stamp = || outside.get(&format!("/nodes/{}/keepalive", machine.node()));
    for _ in 0..2 {
        let before = stamp();
        eventually("the node's keepalive goes on", 20, || {
            if stamp() == before { Err("it stands still") } else { Ok(()) }
        });
    }

    never_within("others are not affected", 6, || {
        let pids = (machine.libvirt().qemu_pid("calm"), machine.libvirt().qemu_pid("junk"));
        if pids == (Some(calm), Some(junk)) { Ok(()) } else { Err(format!("{pids:?}")) }
    });
    machine.wait_until_running();
    machine.pvc(&["vm", "list"]).says(&["calm", "junk", "empty", "odd"]);
    machine.pvc(&["vm", "list", "-f", "json"]).ok();
    machine.pvc(&["vm", "info", "odd"]).ok();
    machine.pvc(&["vm", "info", "bare"]).ok();
    machine.pvc(&["status"]).ok();
    machine.pvc(&["node", "list"]).says(&[machine.node()]);
    for path in [
        "/status",
        "/node",
        "/vm",
        "/faults?sort_key=last_reported",
        "/metrics/health",
        "/metrics/resource",
        "/backup",
        "/tasks",
    ] {
        assert_eq!(machine.api().get(path).status, 200, "{path}");
    }
    // There is no Ceph here, and a ZooKeeper whose exporter does not run.
    for (path, status) in [("/metrics/ceph", 404), ("/metrics/zookeeper", 503)] {
        assert_eq!(machine.api().get(path).status, status, "{path}");
    }

    // The others are managed as before, also by a daemon that starts on such a tree.
    machine.pvc(&["vm", "shutdown", "calm", "--wait", "-y"]).ok();
    machine.boot("calm");
    machine.kill("node");
    machine.spawn("node");
    machine.wait_until_running();
    assert_eq!(machine.qemu("junk"), junk);
    machine.pvc(&["vm", "stop", "calm", "-y"]).ok();
    machine.wait_until_off("calm", 30);

    // And an operator can set them right.
    machine.pvc(&["vm", "start", "junk"]).ok();
    machine.wait_for_state("junk", "start", 10);
    assert_eq!(machine.qemu("junk"), junk);
    machine.pvc(&["vm", "start", "empty"]).ok();
    machine.booted("empty", 1);
    machine.pvc(&["vm", "stop", "odd", "-y"]).ok();
    machine.wait_for_state("odd", "stop", 30);
    machine.pvc(&["vm", "undefine", "bare", "-y"]).ok();
    let panics: Vec<_> =
        machine.log().lines().filter(|line| line.contains("panicked")).map(str::to_owned).collect();
    assert!(panics.is_empty(), "{panics:?}");
}

#[test]
fn guests_keep_running_whatever_zookeeper_does() {
    let mut machine = cluster();
    machine.define_hello("hello");
    machine.define_hello("other");
    let qemu = machine.boot("hello");
    its_records_make_a_simulated_cluster(&machine);
    it_freezes(&mut machine, qemu);
    it_stops_and_returns(&mut machine, qemu);
    it_returns_empty(&mut machine, qemu);
}

fn its_records_make_a_simulated_cluster(machine: &Machine) {
    let asked =
        machine.pvc(&["-q", "cluster", "what-if", "node", machine.node(), "--format", "json"]);
    let predicted: serde_json::Value = serde_json::from_str(asked.ok()).expect("it is JSON");
    assert_eq!(predicted["hindrances"][0], "nobody else is there to notice", "{predicted}");
    assert_eq!(predicted["not_simulated"], "", "{predicted}");
    assert_eq!(predicted["defects"], serde_json::json!([]), "{predicted}");
    assert_eq!(predicted["simulation"]["vms"][0]["name"], "hello", "{predicted}");
}

fn it_freezes(machine: &mut Machine, qemu: u32) {
    machine.zookeeper().stop().expect("it runs");
    never_within("reads are answered meanwhile", 3, || {
        let answer = machine.api().get("/vm/hello");
        if answer.status == 200 { Ok(()) } else { Err(format!("{answer:?}")) }
    });
    machine.zookeeper().cont().expect("it runs");
    eventually("written again is a tag", 30, || {
        let added = machine.pvc(&["vm", "tag", "add", "hello", "thawed"]);
        if added.code == 0 || added.stderr.contains("already") { Ok(()) } else { Err(added) }
    });
    assert_eq!(machine.qemu("hello"), qemu);
}

fn it_stops_and_returns(machine: &mut Machine, qemu: u32) {
    machine.zookeeper().kill().expect("it runs");
    machine.pvc(&["vm", "list"]).says(&["hello", "start"]);
    machine.pvc(&["status"]).ok();
    std::thread::scope(|scope| {
        let machine = &*machine;
        scope
            .spawn(|| machine.api().post("/vm/other/state", &[("state", "start")]).refused(&[503]));
        scope.spawn(|| {
            let said = machine.pvc(&["vm", "start", "other"]).fails_with_hint();
            assert!(said.contains("ZooKeeper"), "{said}");
        });
        // Longer than the session lives.
        never_within("guests keep running and nothing ends", 14, || {
            if machine.libvirt().qemu_pid("hello") == Some(qemu) {
                Ok(())
            } else {
                Err("QEMU is gone")
            }
        });
    });
    machine.all_daemons_run();
    machine.zookeeper().resume().expect("it starts again");
    machine.wait_until_running();
    eventually("started is the other", 60, || {
        let started = machine.pvc(&["vm", "start", "other"]);
        if started.code == 0 { Ok(()) } else { Err(started) }
    });
    machine.booted("other", 1);
    let stamp = machine.stamp();
    eventually("stamped again is the node", 30, || {
        if machine.stamp() == stamp { Err(stamp.clone()) } else { Ok(()) }
    });
    assert_eq!(machine.qemu("hello"), qemu);
}

fn it_returns_empty(machine: &mut Machine, qemu: u32) {
    let other = machine.qemu("other");
    let backup = machine.api().get("/backup").ok().text;
    machine.zookeeper().restart_empty().expect("it starts again");
    never_within("guests keep running on an empty store", 12, || {
        let pids = (machine.libvirt().qemu_pid("hello"), machine.libvirt().qemu_pid("other"));
        if pids == (Some(qemu), Some(other)) { Ok(()) } else { Err(format!("{pids:?}")) }
    });
    machine.all_daemons_run();
    let outside = Outside::connect(&machine.zookeeper().address());
    let top = outside.children("/");
    assert_eq!(top, ["zookeeper"], "nobody makes a cluster of nothing by himself");
    let logged = machine.log();
    assert!(
        logged.contains("holds no cluster") || logged.contains("empty"),
        "nobody says what happened: {}",
        machine.said()
    );
    let status = machine.pvc(&["vm", "start", "hello"]);
    status.fails_with_hint();

    // What an operator has kept brings it all back.
    let text: String = serde_json::from_str(&backup).expect("a string holds the backup");
    let file = machine.dir().join("backup.json");
    {
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&file)
            .expect("it can be written");
        file.write_all(text.as_bytes()).expect("there is room");
    }
    machine.pvc(&["cluster", "restore", "-f", &file.to_string_lossy(), "-y"]).ok();
    eventually("shown are the VMs", 30, || {
        let list = machine.pvc(&["vm", "list"]);
        if list.stdout.contains("hello") { Ok(()) } else { Err(list) }
    });
    machine.wait_until_running();
    assert_eq!(machine.qemu("hello"), qemu);
    assert_eq!(machine.qemu("other"), other);
    machine.pvc(&["vm", "shutdown", "hello", "--wait", "-y"]).ok();
    machine.wait_until_off("hello", 10);
    machine.daemon("node").signal(Signal::SIGHUP); // opens its log again
    machine.wait_until_running();
}
