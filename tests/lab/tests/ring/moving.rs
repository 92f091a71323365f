//! VMs move between nodes, and a node is drained and filled again.

use pvc_lab_tests::Lab;

#[test]
fn a_running_guest_moves_live_and_back_with_an_order_and_with_a_flush() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv1");
    lab.pvc(&["vm", "migrate", "web1", "--target", "pvchv3", "--wait"]).ok();
    assert_eq!(lab.running_on("web1"), ["pvchv3"]);
    // It was not booted again: the same boot goes on beating, on another node's console.
    lab.hears("pvchv3", "web1", "boot 1");
    lab.pvc(&["vm", "unmigrate", "web1", "--wait"]).ok();
    assert_eq!(lab.running_on("web1"), ["pvchv1"]);

    lab.pvc(&["node", "flush", "pvchv1", "--wait"]).ok();
    assert!(lab.guests()["pvchv1"].is_empty());
    lab.node_is("pvchv1", "run", "flushed");
    lab.pvc(&["node", "ready", "pvchv1", "--wait"]).ok();
    assert_eq!(lab.running_on("web1"), ["pvchv1"]);
    lab.hears("pvchv1", "web1", "boot 1");
}
