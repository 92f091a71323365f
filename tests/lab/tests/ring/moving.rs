//! VMs move between nodes, and a node is drained and filled again.

use pvc_lab_tests::Lab;

#[test]
fn a_running_guest_moves_live_and_back_and_counts_on() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv1");
    lab.pvc(&["vm", "migrate", "web1", "--target", "pvchv3", "--wait"]).ok();
    assert_eq!(lab.running_on("web1"), ["pvchv3"]);
    // It was not booted again: the same boot goes on beating, on another node's console.
    lab.hears("pvchv3", "web1", "boot 1");
    lab.pvc(&["vm", "unmigrate", "web1", "--wait"]).ok();
    assert_eq!(lab.running_on("web1"), ["pvchv1"]);
    lab.hears("pvchv1", "web1", "boot 1");
}

#[test]
fn a_flushed_node_is_empty_and_gets_its_guests_back() {
    let lab = Lab::whole();
    for guest in ["web1", "web2"] {
        lab.start(guest, "pvchv1");
    }
    lab.pvc(&["node", "flush", "pvchv1", "--wait"]).ok();
    assert!(lab.guests()["pvchv1"].is_empty());
    lab.node_is("pvchv1", "run", "flushed");
    lab.pvc(&["node", "ready", "pvchv1", "--wait"]).ok();
    for guest in ["web1", "web2"] {
        assert_eq!(lab.running_on(guest), ["pvchv1"]);
        lab.hears("pvchv1", guest, "boot 1");
    }
}
