//! Changing what a VM is.

use std::fs;

use pvc_standalone_tests::{Machine, eventually, exit, hello_uuid};
use serde_json::Value;

#[test]
fn everything_about_a_vm_can_be_changed_and_read_back() {
    let machine = Machine::start();
    machine.define_hello("hello");
    its_definition_is_modified(&machine);
    its_figures_are_set(&machine);
    it_is_tagged(&machine);
    its_metadata_is_set(&machine);
    a_volume_is_added_and_removed(&machine);
    a_network_that_is_not_there_is_neither_added_nor_removed(&machine);
    it_boots_with_all_that(&machine);
    it_is_renamed_with_its_volume(&machine);
    it_is_undefined_and_its_volume_stays(&machine);
    it_is_removed_and_its_volume_goes(&machine);
}

fn its_definition_is_modified(machine: &Machine) {
    let file = machine.dir().join("dump.xml");
    let path = file.to_string_lossy().into_owned();
    machine.pvc(&["vm", "dump", "hello", "-f", &path]).ok();
    let text = fs::read_to_string(&file).expect("it was written");
    assert_eq!(machine.pvc(&["vm", "dump", "hello"]).ok().trim(), text.trim());
    assert!(text.contains("<name>hello</name>"), "{text}");

    let before = machine.entrusted();
    machine.pvc(&["vm", "modify", "hello", &path, "-y"]).ok();
    assert_eq!(machine.entrusted(), before, "what is no change changes nothing");

    let changed = text.replace(
        "<name>hello</name>",
        "<name>hello</name>\n  <description>says <hello></description>",
    );
    fs::write(&file, &changed).expect("it can be written");
    machine.pvc(&["vm", "modify", "hello", &path, "-y"]).fails(exit::FAILED);
    assert_eq!(machine.entrusted(), before, "bad XML changes nothing");

    let changed = text.replace(
        "<name>hello</name>",
        "<name>hello</name>\n  <description>says hello</description>",
    );
    fs::write(&file, &changed).expect("it can be written");
    let refused = machine.pvc(&["vm", "modify", "hello", &path]);
    refused.fails_with_hint();
    assert_eq!(machine.entrusted(), before, "nobody confirmed");
    let modified = machine.pvc(&["vm", "modify", "hello", &path, "-y"]);
    modified.ok();
    let said = format!("{}{}", modified.stdout, modified.stderr);
    assert!(
        said.lines().any(|line| line.starts_with('+') && line.contains("says hello")),
        "no diff: {modified}"
    );
    assert_eq!(machine.vm("hello")["description"], "says hello");
    // From the standard input, too.
    let stdin = changed.replace("says hello", "says hello twice");
    machine.pvc_with(&["vm", "modify", "hello", "-", "-y"], &stdin, |_| {}).ok();
    assert_eq!(machine.vm("hello")["description"], "says hello twice");
}

fn its_figures_are_set(machine: &Machine) {
    assert_eq!(machine.pvc(&["vm", "vcpu", "get", "hello", "-f", "raw"]).ok().trim(), "1");
    // Of two cores two are kept free.
    machine.pvc(&["vm", "vcpu", "set", "hello", "2", "-R", "-y"]).fails(exit::FAILED);
    assert_eq!(machine.pvc(&["vm", "vcpu", "get", "hello", "-f", "raw"]).ok().trim(), "1");
    machine.pvc(&["vm", "vcpu", "get", "hello"]).says(&["vCPUs", "Sockets"]);
    assert_eq!(machine.pvc(&["vm", "memory", "get", "hello", "-f", "raw"]).ok().trim(), "192");
    machine.pvc(&["vm", "memory", "set", "hello", "224", "-R", "-y"]).ok();
    assert_eq!(machine.pvc(&["vm", "memory", "get", "hello", "-f", "raw"]).ok().trim(), "224");
    assert_eq!(machine.vm("hello")["memory"], 224);
    machine.pvc(&["vm", "memory", "set", "hello", "99999999", "-R", "-y"]).fails(exit::FAILED);
    machine.pvc(&["vm", "memory", "set", "hello", "much", "-R", "-y"]).fails(exit::USAGE);
    assert_eq!(machine.vm("hello")["memory"], 224);
}

fn it_is_tagged(machine: &Machine) {
    machine.pvc(&["vm", "tag", "get", "hello"]).says(&["No tags"]);
    machine.pvc(&["vm", "tag", "add", "hello", "daily"]).ok();
    machine.pvc(&["vm", "tag", "add", "hello", "vital", "--protected"]).ok();
    let raw = machine.pvc(&["vm", "tag", "get", "hello", "-f", "raw"]);
    assert_eq!(raw.ok().split_whitespace().collect::<Vec<_>>(), ["daily", "vital"]);
    machine.pvc(&["vm", "tag", "get", "hello"]).says(&["daily", "vital", "True"]);
    machine.pvc(&["vm", "list", "-g", "vital"]).says(&["hello", "daily"]);
    machine.pvc(&["vm", "tag", "remove", "hello", "vital"]).fails(exit::FAILED);
    machine.pvc(&["vm", "tag", "remove", "hello", "daily"]).ok();
    machine.pvc(&["vm", "tag", "remove", "hello", "daily"]).fails_with_hint_or_word("daily");
    assert_eq!(machine.pvc(&["vm", "tag", "get", "hello", "-f", "raw"]).ok().trim(), "vital");
}

trait Refusal {
    fn fails_with_hint_or_word(&self, word: &str);
}

impl Refusal for pvc_standalone_tests::Output {
    /// Fails, and names what it is about.
    fn fails_with_hint_or_word(&self, word: &str) {
        assert_ne!(self.code, 0, "{self}");
        assert!(self.stderr.contains(word), "{self}");
    }
}

fn its_metadata_is_set(machine: &Machine) {
    machine
        .pvc(&[
            "vm",
            "meta",
            "hello",
            "-p",
            "tiny",
            "-m",
            "live",
            "-d",
            "500",
            "-s",
            "load",
            "--autostart",
        ])
        .ok();
    let vm = machine.vm("hello");
    assert_eq!(vm["profile"], "tiny");
    assert_eq!(vm["migration_method"], "live");
    assert_eq!(vm["migration_max_downtime"], 500);
    assert_eq!(vm["node_selector"], "load");
    assert_eq!(vm["node_autostart"], true);
    machine.pvc(&["vm", "meta", "hello", "-A"]).ok();
    let vm = machine.vm("hello");
    assert_eq!(vm["node_autostart"], false);
    assert_eq!(vm["migration_method"], "live", "only what was given is set");
    machine.pvc(&["vm", "meta", "hello", "-m", "teleport"]).fails(exit::USAGE);
    machine.pvc(&["vm", "info", "hello"]).says(&["tiny"]);
}

fn a_volume_is_added_and_removed(machine: &Machine) {
    machine.add_volume("extra", "64M");
    machine.volumes_are(&["vms/extra", "vms/hello_sda"]);
    machine.pvc(&["storage", "volume", "info", "vms", "extra"]).says(&["64M"]);
    machine.pvc(&["vm", "volume", "get", "hello"]).says(&["vms/hello_sda", "sda", "scsi"]);
    machine
        .pvc(&["vm", "volume", "add", "hello", "vms/none", "-L", "-R", "-y"])
        .fails_with_hint_or_word("vms/none");
    machine.pvc(&["vm", "volume", "add", "hello", "vms/extra", "-L", "-R", "-y"]).ok();
    let raw = machine.pvc(&["vm", "volume", "get", "hello", "-f", "raw"]);
    assert_eq!(raw.ok().trim(), "rbd:vms/hello_sda,rbd:vms/extra");
    let disks = machine.vm("hello")["disks"].clone();
    assert_eq!(disks[1]["dev"], "sdb", "{disks}");
    machine.pvc(&["vm", "volume", "remove", "hello", "vms/extra", "-L", "-R", "-y"]).ok();
    assert_eq!(
        machine.pvc(&["vm", "volume", "get", "hello", "-f", "raw"]).ok().trim(),
        "rbd:vms/hello_sda"
    );
    machine.volumes_are(&["vms/extra", "vms/hello_sda"]);
    machine.pvc(&["vm", "volume", "add", "hello", "vms/extra", "-L", "-R", "-y"]).ok();
}

fn a_network_that_is_not_there_is_neither_added_nor_removed(machine: &Machine) {
    let none = machine.pvc(&["vm", "network", "get", "hello", "-f", "json"]);
    let none: Value = serde_json::from_str(none.ok()).expect("JSON and nothing else");
    assert_eq!(none["networks"].as_array().map(Vec::len), Some(0), "{none}");
    let before = machine.entrusted();
    machine
        .pvc(&["vm", "network", "add", "hello", "1000", "-L", "-R", "-y"])
        .fails_with_hint_or_word("1000");
    machine
        .pvc(&["vm", "network", "remove", "hello", "1000", "-L", "-R", "-y"])
        .fails_with_hint_or_word("1000");
    assert_eq!(machine.entrusted(), before);
}

fn it_boots_with_all_that(machine: &Machine) {
    machine.boot("hello");
    let live = machine.libvirt().virsh(&["dumpxml", "hello"]);
    live.says(&["229376", "volumes/vms/extra"]);
    let disks = || machine.libvirt().virsh(&["domblklist", "hello"]).ok().lines().count();
    assert_eq!(disks(), 2);
    machine.pvc(&["vm", "volume", "remove", "hello", "vms/extra", "-y"]).ok();
    assert_eq!(disks(), 1, "without `-L` the running guest loses it at once");
    the_guest_has(machine, "65536");
    machine.pvc(&["vm", "volume", "add", "hello", "vms/extra", "-y"]).ok();
    assert_eq!(disks(), 2, "and gets it at once");
    the_guest_has(machine, "65536 131072");
    machine.pvc(&["storage", "volume", "resize", "vms", "extra", "80M", "-y"]).ok();
    the_guest_has(machine, "65536 163840");
    machine.pvc(&["cluster", "task"]).ok();
    machine.pvc(&["vm", "rename", "hello", "other", "-y"]).fails_with_hint_or_word("hello");
    machine.pvc(&["vm", "stop", "hello", "-y"]).ok();
    machine.wait_until_off("hello", 20);
}

/// The last that the guest said about its disks, for the first time when it has booted: their sizes
/// in blocks of 512 bytes.
fn the_guest_has(machine: &Machine, disks: &str) {
    let words = format!("disks now: {disks} (all)");
    eventually(&format!("the guest says `{words}`"), 30, || {
        let console = machine.console_text("hello");
        let last = console.lines().rfind(|line| line.contains("disks now: "));
        if last.is_some_and(|line| line.contains(&words)) { Ok(()) } else { Err(console) }
    });
}

fn it_is_renamed_with_its_volume(machine: &Machine) {
    machine.pvc(&["vm", "rename", "hello", "hallo", "-y"]).ok();
    machine.pvc(&["vm", "info", "hello"]).fails(exit::NOT_FOUND);
    let vm = machine.vm("hallo");
    assert_eq!(vm["uuid"], hello_uuid("hello"));
    assert_eq!(vm["disks"][0]["name"], "vms/hallo_sda");
    assert_eq!(vm["disks"][1]["name"], "vms/extra", "only what bears the name is renamed");
    machine.volumes_are(&["vms/extra", "vms/hallo_sda"]);
    machine.pvc(&["vm", "start", "hallo"]).ok();
    machine.booted("hallo", 2);
    machine.pvc(&["vm", "stop", "hallo", "-y"]).ok();
    machine.wait_until_off("hallo", 20);
}

fn it_is_undefined_and_its_volume_stays(machine: &Machine) {
    machine.pvc(&["vm", "undefine", "hallo", "-y"]).ok();
    assert_eq!(machine.api().get("/vm/hallo").status, 404);
    machine.volumes_are(&["vms/extra", "vms/hallo_sda"]);
    let file = machine.hello_file("hallo");
    machine.pvc(&["vm", "define", &file.to_string_lossy(), "-g", "again"]).ok();
    machine.pvc(&["vm", "start", "hallo"]).ok();
    machine.booted("hallo", 3);
}

fn it_is_removed_and_its_volume_goes(machine: &Machine) {
    // It runs: removing it ends it first.
    machine.pvc(&["vm", "remove", "hallo", "-y"]).ok();
    machine.wait_until_off("hallo", 20);
    assert_eq!(machine.api().get("/vm/hallo").status, 404);
    machine.volumes_are(&["vms/extra"]);
    let left = machine.entrusted();
    let traces: Vec<_> = left.keys().filter(|path| path.contains(&hello_uuid("hallo"))).collect();
    assert!(traces.is_empty(), "{traces:?}");
    eventually("empty is the list", 10, || {
        let list = machine.pvc(&["vm", "list"]);
        if list.stdout.contains("hallo") { Err(list) } else { Ok(()) }
    });
}
