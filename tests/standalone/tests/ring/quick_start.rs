//! Commands that a new user types first, command by command.

use std::process::Command;

use nix::sys::signal::Signal;
use pvc_standalone_tests::{
    Machine, SerialLine, Settings, eventually, hello_image, host_name, repository, run,
};
use serde_json::Value;

use crate::networks::in_a_network_of_its_own;

#[test]
fn the_quick_start_works_as_it_is_written() {
    let machine = Machine::start();
    the_cluster_is_shown(&machine);
    the_guest_is_built_and_defined(&machine);
    it_starts_and_its_console_is_shown(&machine);
    it_is_listed_and_described(&machine);
    it_answers_on_its_serial_line(&machine);
    it_obeys_its_power_button_and_starts_again(&machine);
    nobody_is_asked_where_nobody_sits(&machine);
}

fn the_cluster_is_shown(machine: &Machine) {
    let node = host_name();
    let long = machine.pvc(&["cluster", "status"]);
    long.says(&["Primary node", &node, "PVC version", "Health", "Nodes", "VMs"]);
    machine.pvc(&["status"]).says(&["Primary node", &node, "Health"]);
    let short = machine.pvc(&["-q", "cluster", "status", "-f", "short"]);
    short.says(&["Health", "CPU", "Memory"]);
    assert_eq!(short.stderr, "", "`-q` is quiet");
    let json: Value = serde_json::from_str(
        machine.pvc(&["--quiet", "cluster", "status", "--format", "json"]).ok(),
    )
    .expect("JSON and nothing else");
    assert_eq!(json["primary_node"], node.as_str());
    assert_eq!(json["maintenance"], "false");

    eventually("ready is the node", 30, || {
        let list = machine.pvc(&["node", "list"]);
        let is_ready = list.ok().lines().any(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            words.first() == Some(&node.as_str())
                && ["run", "primary", "ready"].iter().all(|word| words.contains(word))
        });
        if is_ready { Ok(()) } else { Err(list) }
    });
    let info = machine.pvc(&["node", "info", &node]);
    info.says(&["Daemon State", "Domain State", "ready"]);
    // Scripts take the last word of the line that begins with this label.
    let state = info
        .stdout
        .lines()
        .find(|line| line.starts_with("Domain State"))
        .expect("the line is there");
    assert_eq!(state.split_whitespace().last(), Some("ready"));
    let accelerated = ["KVM", "TCG", "emulat"].iter().any(|word| info.stdout.contains(word));
    assert!(accelerated, "how guests run here is not shown: {info}");
    machine.pvc(&["node", "is-primary"]).ok();
}

fn the_guest_is_built_and_defined(machine: &Machine) {
    let mut build = Command::new(repository().join("examples/hello/build"));
    machine.surround(&mut build);
    run(&mut build, "").says(&["built ", "vms/hello_sda", "pvc vm define"]);
    let file = repository().join("examples/hello/hello.xml");
    machine.pvc(&["vm", "define", &file.to_string_lossy()]).says(&["hello"]);
    machine.pvc(&["vm", "list"]).says(&["hello", "stop"]);
    assert_eq!(machine.vm_state("hello"), "stop");
}

fn it_starts_and_its_console_is_shown(machine: &Machine) {
    machine.pvc(&["vm", "start", "hello", "--wait"]).says(&["hello"]);
    assert_eq!(machine.vm_state("hello"), "start");
    machine.qemu("hello");

    let follower = machine.pvc_running("follow", &["vm", "log", "hello", "-f"]);
    eventually("in the log are kernel lines and heartbeats", 90, || {
        let log = machine.pvc(&["vm", "log", "hello"]);
        let has = ["Linux version", "hello: ready", "hello: heartbeat 3,"]
            .iter()
            .all(|words| log.stdout.contains(words));
        if has { Ok(()) } else { Err(log) }
    });
    let heartbeats = |text: &str| -> Vec<u32> {
        let counts = text.lines().filter_map(|line| {
            line.split_once("hello: heartbeat ")?.1.split(',').next()?.parse().ok()
        });
        counts.collect()
    };
    let seen = heartbeats(&follower.said()).last().copied().unwrap_or(0);
    eventually("going on is what follows the console", 30, || {
        let now = heartbeats(&follower.said());
        if now.last() >= Some(&(seen + 4)) { Ok(()) } else { Err(follower.said()) }
    });
    let counts = heartbeats(&follower.said());
    let expected: Vec<u32> = (counts[0]..).take(counts.len()).collect();
    assert_eq!(counts, expected, "lines are lost or shown twice");
    follower.signal(Signal::SIGINT);
    let ended = follower.wait(10);
    assert!([0, 130].contains(&ended.code), "Ctrl-C ends the view: {ended}");
    assert_eq!(machine.pvc(&["vm", "log", "hello", "-l", "2"]).ok().lines().count(), 2);
}

fn it_is_listed_and_described(machine: &Machine) {
    let node = host_name();
    machine.pvc(&["vm", "list"]).says(&["hello", "start", &node]);
    machine.pvc(&["vm", "list", "-s", "start"]).says(&["hello"]);
    eventually("measured is the guest", 30, || {
        let vm = machine.vm("hello");
        if vm["vcpu_stats"]["cpu_time"].as_u64() > Some(0) {
            Ok(())
        } else {
            Err(vm["vcpu_stats"].clone())
        }
    });
    let info = machine.pvc(&["vm", "info", "hello", "-f", "long"]);
    info.says(&[
        "6f1d9c52-7a5e-4f0b-9d3c-68656c6c6f00",
        "State",
        "start",
        "Current",
        &node,
        "vms/hello_sda",
        "scsi",
    ]);
    let json = machine.pvc(&["-c", "local", "vm", "list", "-f", "json"]);
    let list: Value = serde_json::from_str(json.ok()).expect("JSON and nothing else");
    assert_eq!(list[0]["name"], "hello");
    assert_eq!(list[0]["state"], "start");
    assert_eq!(list[0]["memory"], 192);
    assert_eq!(list[0]["disks"][0]["name"], "vms/hello_sda");
    let vnc = &list[0]["vnc"];
    assert_eq!(vnc["listen"], "127.0.0.1", "{vnc}");
    assert!(vnc["port"].as_str().is_some_and(|port| port.parse::<u16>().is_ok()), "{vnc}");
}

fn it_answers_on_its_serial_line(machine: &Machine) {
    let mut line = SerialLine::open(&machine.libvirt().console("hello"));
    line.say("ping");
    eventually("answered is the ping", 30, || {
        let text = line.hear();
        if text.lines().any(|line| line.trim() == "pong") { Ok(()) } else { Err(text.to_owned()) }
    });
    eventually("in the console log is the answer too", 30, || {
        let log = machine.pvc(&["vm", "log", "hello"]);
        if log.ok().lines().any(|line| line.trim() == "pong") { Ok(()) } else { Err(log) }
    });
}

fn it_obeys_its_power_button_and_starts_again(machine: &Machine) {
    machine.pvc(&["vm", "shutdown", "hello", "--wait", "-y"]).ok();
    assert_eq!(machine.vm_state("hello"), "stop");
    machine.wait_until_off("hello", 10);
    assert!(
        machine.console_text("hello").contains("going down (poweroff)"),
        "it was not asked: {}",
        machine.console_text("hello")
    );

    machine.pvc(&["vm", "start", "hello"]).ok();
    machine.booted("hello", 2);
    let before = machine.qemu("hello");

    machine.pvc(&["vm", "restart", "hello", "--wait", "-y"]).ok();
    assert_eq!(machine.vm_state("hello"), "start");
    machine.booted("hello", 3);
    assert_ne!(machine.qemu("hello"), before, "a restart is a new instance");
    assert_eq!(
        machine.console_text("hello").matches("going down (poweroff)").count(),
        2,
        "a restart asks the guest"
    );

    machine.pvc(&["vm", "stop", "hello", "-y"]).ok();
    machine.wait_until_off("hello", 20);
    assert_eq!(machine.vm_state("hello"), "stop");
    assert_eq!(
        machine.console_text("hello").matches("going down").count(),
        2,
        "a stop does not ask"
    );

    machine.pvc(&["vm", "disable", "hello", "-y"]).ok();
    machine.wait_for_state("hello", "disable", 20);
    machine.boot("hello");
    machine.pvc(&["vm", "disable", "hello", "-y"]).ok();
    machine.wait_for_state("hello", "disable", 60);
    machine.wait_until_off("hello", 10);
    assert_eq!(
        machine.console_text("hello").matches("going down (poweroff)").count(),
        3,
        "disable asks the guest"
    );
}

fn nobody_is_asked_where_nobody_sits(machine: &Machine) {
    machine.boot("hello");
    let refused = machine.pvc(&["vm", "stop", "hello"]);
    assert_eq!(refused.code, 1, "{refused}");
    refused.fails_with_hint();
    assert_eq!(machine.vm_state("hello"), "start");
    machine.pvc(&["-u", "vm", "stop", "hello"]).ok();
    machine.wait_until_off("hello", 20);
}

/// The README's lines about networks, as a reader types them. The guest is off by then.
#[test]
fn the_network_of_the_readme_gives_the_guest_its_address() {
    hello_image(); // its parts come from outside
    in_a_network_of_its_own();
    let mut machine = Machine::with(Settings { networks: true, ..Settings::default() });
    machine.define_hello("hello");
    let readme = std::fs::read_to_string(repository().join("README.md")).expect("it is there");
    for begin in ["pvc network add ", "pvc vm network add "] {
        let mut typed = readme.lines().filter_map(|line| line.strip_prefix("$ "));
        let line = typed.find(|line| line.starts_with(begin));
        let line = line.unwrap_or_else(|| panic!("`{begin}` is not in the README"));
        for command in line.split(" # ").next().unwrap_or_default().split(" ; ") {
            let words: Vec<&str> = command.split_whitespace().skip(1).collect();
            machine.pvc(&words).ok();
        }
    }
    eventually("the guest has its address", 120, || {
        let text = machine.console_text("hello");
        if text.contains("eth0 has 10.20.1.1") { Ok(()) } else { Err(text) }
    });
    // The servers of the network end with a daemon that is asked to.
    machine.stop("standalone");
}
