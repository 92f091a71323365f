//! A cluster on its way from PVC 1.0.3 to ours: one node still runs the legacy daemon, as its
//! specification has it.

use pvc_lab_tests::Lab;
use pvc_standalone_tests::eventually;

const LEGACY: &str = "pvchv3";

#[test]
fn guests_and_the_primary_role_go_to_a_node_of_1_0_3_and_come_back() {
    let lab = Lab::whole();
    lab.start_all(&[("web1", "pvchv1"), ("web2", LEGACY)]);
    lab.define("web3");
    lab.pvc(&["vm", "move", "web3", "--target", "pvchv2"]);
    lab.vm_is("web3", "/node", "pvchv2");
    let process = lab.processes_of("web2");

    // What it reads here when it begins it goes on saying.
    lab.downgrade(LEGACY);
    let list = format!("/nodes/{LEGACY}/runningdomains");
    lab.write_key(&list, &format!("{} {}", lab.key(&list), lab.vm("web3", "/uuid")));
    lab.begins_as_legacy(LEGACY);
    assert_eq!(lab.processes_of("web2"), process);
    lab.pvc(&["vm", "start", "web3", "--wait"]).ok();
    assert_eq!(lab.running_on("web3"), ["pvchv2"]);
    assert!(lab.key(&list).contains(&lab.vm("web3", "/uuid")));
    lab.is_in_order();

    lab.pvc(&["vm", "migrate", "web1", "--target", LEGACY, "--wait"]).ok();
    has_moved(&lab, "web1", LEGACY, "boot 1");
    lab.is_in_order();
    lab.pvc(&["vm", "unmigrate", "web1", "--wait"]).ok();
    has_moved(&lab, "web1", "pvchv1", "boot 1");
    lab.is_in_order();

    // Each side chooses and sends by itself here, and no API has the record locked meanwhile.
    lab.pvc(&["node", "flush", LEGACY, "--wait"]).ok();
    let elsewhere = lab.running_on("web2");
    assert_ne!(elsewhere, [LEGACY]);
    has_moved(&lab, "web2", &elsewhere[0], "boot 1");
    lab.is_in_order();
    lab.pvc(&["node", "ready", LEGACY, "--wait"]).ok();
    has_moved(&lab, "web2", LEGACY, "boot 1");
    lab.is_in_order();

    let ours = lab.primary();
    has_the_role(&lab, LEGACY);
    lab.is_in_order();
    has_the_role(&lab, &ours);
    lab.api_answers_within(3);
    lab.is_in_order();

    let process = lab.processes_of("web2");
    lab.upgrade(LEGACY);
    assert_eq!(lab.processes_of("web2"), process);
}

#[test]
fn a_primary_of_1_0_3_is_fenced_comes_back_and_is_upgraded_under_its_guests() {
    let lab = Lab::whole();
    lab.start("web1", LEGACY);
    lab.downgrade(LEGACY);
    // It has never been one of ours: nobody has said what its locks look like.
    for key in ["nodes", "working_on", "daemon"] {
        lab.delete_key(&format!("/pvcrs/{key}/{LEGACY}"));
    }
    lab.begins_as_legacy(LEGACY);
    has_the_role(&lab, LEGACY);

    lab.does(&["power", LEGACY, "off"]).ok();
    let elsewhere = lab.recovered("web1", LEGACY);
    lab.hears(&elsewhere, "web1", "boot 2, counted on");
    lab.proven_dead(LEGACY, "its BMC said twice that the power is off");
    lab.until_another_is_primary(LEGACY);

    // It is switched on again, still the legacy peer, and takes its guest back when it is told to.
    lab.node_is(LEGACY, "run", "flushed");
    assert_eq!(lab.running_on("web1"), [elsewhere]);
    lab.pvc(&["node", "ready", LEGACY, "--wait"]).ok();
    has_moved(&lab, "web1", LEGACY, "boot 2");
    lab.is_in_order();

    let process = lab.processes_of("web1");
    lab.upgrade(LEGACY);
    assert_eq!(lab.processes_of("web1"), process);
}

#[test]
fn a_node_of_ours_dies_and_its_guest_is_recovered_on_one_of_1_0_3() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv2");
    lab.pvc(&["vm", "meta", "web1", "--limit", &format!("pvchv2,{LEGACY}")]).ok();
    lab.downgrade(LEGACY);
    lab.begins_as_legacy(LEGACY);
    has_the_role(&lab, "pvchv2");
    lab.does(&["power", "pvchv2", "off"]).ok();
    assert_eq!(lab.recovered("web1", "pvchv2"), LEGACY);
    lab.hears(LEGACY, "web1", "boot 2, counted on");
    lab.until_another_is_primary("pvchv2");
    lab.node_is("pvchv2", "run", "flushed");
    lab.is_in_order();
}

#[test]
fn what_a_node_of_1_0_3_has_fenced_is_believed_and_comes_back() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv2");
    lab.downgrade(LEGACY);
    lab.begins_as_legacy(LEGACY);
    has_the_role(&lab, LEGACY);
    // Nobody else is there to do it. It believes only in a machine that does not come on again.
    lab.on("pvchv1", "systemctl stop pvcnoded").ok();
    lab.does(&["bmc", "pvchv2", "refuses-on"]).ok();
    lab.does(&["power", "pvchv2", "off"]).ok();
    lab.node_is("pvchv2", "fenced", "flushed");
    assert_eq!(lab.recovered("web1", "pvchv2"), LEGACY);
    lab.on("pvchv1", "systemctl start pvcnoded").ok();
    lab.node_is("pvchv1", "run", "ready");
    assert_eq!(lab.primary(), LEGACY);
    assert_eq!(lab.running_on("web1"), [LEGACY]);
    lab.does(&["bmc", "pvchv2", "ok"]).ok();
    lab.does(&["power", "pvchv2", "on"]).ok();
    lab.node_is("pvchv2", "run", "flushed");
    lab.pvc(&["node", "ready", "pvchv2", "--wait"]).ok();
    has_moved(&lab, "web1", "pvchv2", "boot 2");
    lab.is_in_order();
}

/// Has the role handed over, and waits until the floating address is there alone.
fn has_the_role(lab: &Lab, node: &str) {
    lab.pvc(&["node", "primary", node, "--wait"]).ok();
    lab.until_primary(node);
    eventually(&format!("the floating address is on {node}"), 30, || {
        match lab.holders_of_floating_addresses().as_slice() {
            [only] if only == node => Ok(()),
            holders => Err(format!("it is on {holders:?}")),
        }
    });
}

/// Asserts that the guest was moved and not booted again: the same boot goes on beating, on the
/// console of `node`.
fn has_moved(lab: &Lab, guest: &str, node: &str, boot: &str) {
    assert_eq!(lab.running_on(guest), [node]);
    lab.vm_is(guest, "/state", "start");
    // What an earlier boot has said there is older.
    lab.hears(node, guest, boot);
    let arrived = lab.beat(node, guest);
    lab.beats_on(node, guest, arrived);
}
