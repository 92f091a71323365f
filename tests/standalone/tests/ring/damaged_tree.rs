//! The file of the records is damaged.

use std::fs;

use pvc_standalone_tests::{Machine, eventually};

#[test]
fn a_damaged_file_stops_the_start_and_is_replaced_by_a_dump_when_requested_under_a_running_guest() {
    let mut machine = Machine::start();
    machine.define_hello("hello");
    let qemu = machine.boot("hello");
    let directory = machine.state().join("tree");
    // The next start takes a dump that has the VM in it.
    machine.stop("standalone");
    machine.start_daemons();
    eventually("a dump knows the VM", 60, || {
        let dumps = fs::read_dir(directory.join("dumps")).map_err(|error| error.to_string())?;
        let texts = dumps.flatten().filter_map(|dump| fs::read_to_string(dump.path()).ok());
        if texts.into_iter().any(|text| text.contains("hello")) {
            Ok(())
        } else {
            Err("not yet".to_owned())
        }
    });
    machine.kill("standalone");
    let file = directory.join("tree.redb");
    let damaged = vec![0x5a; 64 << 10];
    fs::write(&file, &damaged).expect("the test's directory can be written");

    let ended = machine.daemon_that_ends("standalone");
    assert_eq!(ended.code, 1, "{ended}");
    assert!(ended.said.contains("hint: ") && ended.said.contains("--recover"), "{ended}");
    assert_eq!(fs::read(&file).expect("it is there"), damaged, "what is left of it is left alone");

    machine.spawn_with("standalone", &["--recover"]);
    machine.wait_until_running();
    machine.wait_for_state("hello", "start", 30);
    assert_eq!(machine.qemu("hello"), qemu, "the guest has noticed nothing");
    let aside = fs::read_dir(&directory).expect("it is there").flatten();
    let aside = aside.filter(|entry| fs::read(entry.path()).is_ok_and(|bytes| bytes == damaged));
    assert_eq!(aside.count(), 1, "the damaged file is kept");
}
