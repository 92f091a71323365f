//! Guests on their way from node to node, what may go wrong there, and nodes that are drained.

use pvc_lab_tests::{GUESTS, LIBVIRT, Lab};
use pvc_standalone_tests::{eventually, exit};

/// Command that makes migrations so slow that a move of the small guest takes a minute, and
/// something can happen in the middle.
const SLOWLY: &str = "virsh --quiet migrate-setspeed web1 1";

#[test]
fn a_live_migration_costs_at_most_a_beat_and_few_pings() {
    let lab = Lab::whole();
    lab.define("web1");
    lab.pvc(&["vm", "network", "add", "web1", "upstream", "--no-live", "--no-restart"]).ok();
    lab.start("web1", "pvchv1");
    let up = "run ip link set eth0 up; ip address add 10.99.0.77/24 dev eth0; ip address show";
    lab.types("pvchv1", "web1", up, "inet 10.99.0.77/24");
    eventually("the guest answers pings", 120, || {
        let ping = lab.does(&["exec", "switch", "--", "ping", "-c", "1", "-W", "1", "10.99.0.77"]);
        if ping.code == 0 {
            return Ok(());
        }
        let knows = lab.does(&["exec", "switch", "--", "ip", "neighbour", "show", "10.99.0.77"]);
        let has = "bridge link; bridge fdb show; tail -n 20 /var/log/libvirt/web1.log";
        Err(format!("{ping}\n{knows}\n{}", lab.on("pvchv1", has)))
    });

    let ping = lab.watch_address("10.99.0.77");
    lab.pvc(&["vm", "migrate", "web1", "--target", "pvchv3", "--wait"]).ok();
    let arrived = lab.beat("pvchv3", "web1");
    lab.beats_on("pvchv3", "web1", arrived);
    let lost = ping.lost();

    assert_eq!(lab.running_on("web1"), ["pvchv3"]);
    // One that was being said at that moment is half on the one console and half on the other.
    let (left, came) = (lab.beat("pvchv1", "web1"), lab.first_beat("pvchv3", "web1"));
    assert!(came <= left + 2, "it beat {left} and then {came}");
    assert!(lost <= 40, "{lost} pings of 40 a second were lost");
    lab.vm_is("web1", "/migration/phase", "done");
}

#[test]
fn a_guest_that_may_only_move_by_a_shutdown_boots_on_the_other_node() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv1");
    // By the number of VMs: how much memory is free changes with every breath of this machine.
    lab.pvc(&["vm", "meta", "web1", "--method", "shutdown", "--node-selector", "vms"]).ok();
    let said = lab
        .pvc(&["vm", "migrate", "web1", "--target", "pvchv2", "--force-live"])
        .fails(exit::FAILED);
    assert!(
        said.contains("VM `web1` may only be moved by a shutdown, and live was asked for"),
        "{said}"
    );
    // What the plan says is what happens.
    lab.pvc(&["vm", "migrate", "web1", "--dry-run"]).says(&["node `pvchv2`", "by a shutdown"]);
    lab.pvc(&["vm", "migrate", "web1", "--wait"]).ok();
    assert_eq!(lab.running_on("web1"), ["pvchv2"]);
    lab.hears("pvchv1", "web1", "going down (poweroff)");
    lab.hears("pvchv2", "web1", "boot 2, counted on");
}

#[test]
fn a_move_that_does_not_work_live_leaves_the_guest_or_shuts_it_down_as_was_asked() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv1");
    let process = lab.processes_of("web1");
    // The other node's hypervisor is not to be reached; its daemon, on the same machine, notices
    // nothing.
    lab.shut("pvchv3", LIBVIRT);
    let said = lab
        .pvc(&["vm", "migrate", "web1", "--target", "pvchv3", "--force-live", "--wait"])
        .fails(exit::FAILED);
    assert!(said.contains("VM `web1` was not moved to node `pvchv3`: "), "{said}");
    assert_eq!(lab.processes_of("web1"), process);
    assert_eq!(
        (lab.vm("web1", "/state"), lab.vm("web1", "/node")),
        ("start".into(), "pvchv1".into())
    );
    assert_eq!(lab.vm("web1", "/last_node"), "");
    assert_eq!(lab.vm("web1", "/migration/phase"), "failed");
    lab.open("pvchv3");

    // Its hypervisor is well and would take the guest, but the guest does not get there.
    lab.shut("pvchv3", GUESTS);
    lab.pvc(&["vm", "migrate", "web1", "--target", "pvchv3", "--wait"]).ok();
    lab.open("pvchv3");
    assert_eq!(lab.running_on("web1"), ["pvchv3"]);
    lab.hears("pvchv3", "web1", "boot 2, counted on");
}

#[test]
fn a_guest_on_its_way_is_called_back_and_sent_elsewhere() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv1");
    let process = lab.processes_of("web1");
    lab.on("pvchv1", SLOWLY).ok();
    lab.pvc(&["vm", "migrate", "web1", "--target", "pvchv3"]).ok();
    lab.vm_is("web1", "/migration/phase", "copying");
    let said = lab.pvc(&["vm", "unmigrate", "web1", "--wait"]);
    said.ok();
    assert_eq!(lab.processes_of("web1"), process);
    lab.vm_is("web1", "/state", "start");

    lab.pvc(&["vm", "migrate", "web1", "--target", "pvchv3"]).ok();
    lab.vm_is("web1", "/migration/phase", "copying");
    lab.on("pvchv1", "virsh --quiet migrate-setspeed web1 1000").ok();
    lab.pvc(&["vm", "migrate", "web1", "--target", "pvchv2", "--force", "--wait"]).ok();
    assert_eq!(lab.running_on("web1"), ["pvchv2"]);
    lab.hears("pvchv2", "web1", "boot 1");
    assert_eq!(lab.vm("web1", "/last_node"), "pvchv1");
}

#[test]
fn a_guest_stays_when_the_node_that_it_moves_to_dies() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv1");
    let process = lab.processes_of("web1");
    lab.on("pvchv1", SLOWLY).ok();
    lab.pvc(&["vm", "migrate", "web1", "--target", "pvchv3", "--force-live"]).ok();
    lab.vm_is("web1", "/migration/phase", "copying");
    lab.does(&["power", "pvchv3", "off"]).ok();
    // It is settled as soon as the other node is known to be dead.
    lab.vm_is("web1", "/state", "start");
    assert_eq!(lab.processes_of("web1"), process);
    assert_eq!(lab.vm("web1", "/node"), "pvchv1");
    let before = lab.beat("pvchv1", "web1");
    lab.beats_on("pvchv1", "web1", before);
}

#[test]
fn a_guest_is_recovered_when_the_node_that_sends_it_dies() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv3");
    lab.on("pvchv3", SLOWLY).ok();
    lab.pvc(&["vm", "migrate", "web1", "--target", "pvchv1"]).ok();
    lab.vm_is("web1", "/migration/phase", "copying");
    lab.does(&["power", "pvchv3", "off"]).ok();
    let node = lab.recovered("web1", "pvchv3");
    // Half a guest has arrived by then: what runs is a whole one, from its disk.
    lab.hears(&node, "web1", "boot 2, counted on");
    lab.vm_is("web1", "/state", "start");
    lab.vm_is("web1", "/node", &node);
    lab.pvc(&["node", "info", "pvchv3"]).says(&["off"]);
}
