//! libvirtd dies in the middle of things.

use pvc_standalone_tests::{Machine, eventually, host_name};

#[test]
fn every_vm_stays_manageable_when_libvirtd_is_killed_in_the_middle_of_anything() {
    let machine = Machine::start();
    for name in ["calm", "one", "two"] {
        machine.define_hello(name);
    }
    let calm = machine.boot("calm");
    machine.boot("two");

    // While it is away nobody is declared dead, and the node goes on saying that it lives.
    machine.libvirt().kill();
    machine.keepalives_until("alive is the node without libvirtd", 60, {
        let first = machine.stamp();
        let mut stamps = std::collections::BTreeSet::from([first]);
        let machine = &machine;
        move || {
            stamps.insert(machine.stamp());
            stamps.len() > 3
        }
    });
    assert_eq!(machine.vm_state("calm"), "start");
    machine.pvc(&["vm", "info", "calm"]).says(&["start"]);
    eventually("reported is the loss", 60, || {
        let log = machine.pvc(&["node", "log", &host_name()]);
        let faults = machine.faults();
        let is_fault = faults.iter().any(|fault| fault.contains("HYPERVISOR_UNREACHABLE"));
        let is_reported = log.stdout.contains("libvirt") && is_fault;
        if is_reported { Ok(()) } else { Err(format!("{faults:?} {log}")) }
    });
    let log = machine.pvc(&["node", "log", &host_name()]);
    assert!(!log.stdout.contains("route="), "the requests for the log are in the log: {log}");
    machine.libvirt().start();
    assert_eq!(machine.qemu("calm"), calm, "it was not started a second time");

    // In the middle of a start and of a stop.
    machine.pvc(&["vm", "start", "one"]).ok();
    machine.pvc(&["vm", "stop", "two", "-y"]).ok();
    machine.libvirt().kill();
    machine.libvirt().start();
    machine.booted("one", 1);
    machine.wait_for_state("one", "start", 60);
    machine.wait_until_off("two", 60);
    machine.wait_for_state("two", "stop", 60);

    // In the middle of a shutdown.
    machine.pvc(&["vm", "shutdown", "one", "-y"]).ok();
    machine.libvirt().kill();
    machine.libvirt().start();
    machine.wait_for_state("one", "stop", 90);
    machine.wait_until_off("one", 10);

    // While nobody listens the guest goes down by itself, and its disappearance is noticed.
    let first = machine.boot("two");
    machine.libvirt().kill();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(first.cast_signed()),
        nix::sys::signal::Signal::SIGKILL,
    )
    .expect("QEMU runs");
    machine.libvirt().start();
    machine.booted("two", 3);

    assert_eq!(machine.qemu("calm"), calm);
    machine.pvc(&["vm", "shutdown", "calm", "--wait", "-y"]).ok();
    machine.wait_until_off("calm", 10);
    machine.boot("calm");
}
