//! The layout of the store changes under running daemons, as the last upgrade of a node makes it.

use std::fs;

use pvc_standalone_tests::{Machine, Outside, Settings, eventually};

const VERSION: &str = "/schema/version";
const ROLES: [&str; 3] = ["node", "api", "worker"];

/// Differs between two executions of a program in the same process: the kernel puts its tables
/// elsewhere.
fn execution(machine: &Machine, role: &str) -> Vec<u8> {
    fs::read(format!("/proc/{}/auxv", machine.daemon(role).pid())).unwrap_or_default()
}

/// Waits until the daemon of `role` is another execution than `before`, and still the same process.
fn executes_anew(machine: &mut Machine, role: &str, before: &[u8]) {
    eventually(&format!("executed anew is `{role}`"), 60, || {
        machine.all_daemons_run();
        let now = execution(machine, role);
        let is_reported =
            machine.daemon(role).said().contains("layout changed; the daemon starts anew");
        if is_reported && !now.is_empty() && now != before { Ok(()) } else { Err(machine.said()) }
    });
}

#[test]
fn daemons_execute_themselves_anew_in_place_when_the_layout_changes() {
    let mut machine = Machine::with(Settings { cluster: true, ..Settings::default() });
    machine.pvc(&["node", "ready", machine.node(), "--wait"]).ok();
    machine.define_hello("hello");
    let qemu = machine.boot("hello");
    let outside = Outside::connect(&machine.zookeeper().address());
    let version =
        || String::from_utf8_lossy(&outside.get(VERSION).unwrap_or_default()).into_owned();
    assert_eq!(version(), "15");

    // An older layout is raised by the last node that can do better, which is this one.
    let before = ROLES.map(|role| execution(&machine, role));
    outside.put(VERSION, b"14");
    for (role, before) in ROLES.iter().zip(&before) {
        executes_anew(&mut machine, role, before);
    }
    eventually("raised is the layout", 60, || {
        if version() == "15" { Ok(()) } else { Err(machine.said()) }
    });
    machine.wait_until_running();
    // What began at the older layout executes itself once more, and refuses what comes meanwhile.
    eventually("listed is the VM", 60, || {
        machine.all_daemons_run();
        let listed = machine.pvc(&["vm", "list"]);
        let is_whole = ["hello", "start"].iter().all(|word| listed.stdout.contains(word));
        if listed.code == 0 && is_whole { Ok(()) } else { Err(listed) }
    });
    assert_eq!(machine.qemu("hello"), qemu, "guests run on");

    // One that this program does not know stops every role: it would write what others cannot read.
    outside.put(VERSION, b"16");
    for role in ROLES {
        let ended = machine.wait_for_end(role);
        assert_eq!(ended.code, 1, "{ended}");
        assert!(ended.said.matches("starts anew").count() >= 2, "{ended}");
        assert!(ended.said.contains("hint: install the version of PVC"), "{ended}");
    }
    assert_eq!(machine.qemu("hello"), qemu, "guests run on");

    outside.put(VERSION, b"15");
    for role in ROLES {
        machine.spawn(role);
    }
    machine.wait_until_running();
    assert_eq!(machine.qemu("hello"), qemu, "guests are adopted");
}
