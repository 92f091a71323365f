//! A cluster on its way from PVC 1.0.3 to ours: one node still runs the legacy daemon, as its
//! specification has it.

use pvc_lab_tests::{GATEWAY, Lab, NODES};
use pvc_standalone_tests::eventually;

use crate::guest_networks::{
    a_network_is_made, guest, has_the_network, plugged, reaches, unplugged,
};
use crate::leader::{leader, leads_again};

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
    another_leads_zookeeper(&lab, "pvchv2");
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

/// PVC 1.0.3 as it is played makes no network: what ours has made there stays, as that of 1.0.3
/// would.
#[test]
fn a_guest_keeps_its_network_on_a_hypervisor_of_1_0_3_and_through_its_upgrade() {
    let lab = Lab::whole();
    a_network_is_made(&lab);
    if lab.primary() == LEGACY {
        has_the_role(&lab, "pvchv1");
    }
    let web1 = guest(&lab, "web1", "pvchv1");
    plugged(&lab, "pvchv2", "10.20.1.20");
    reaches(&lab, "pvchv2", &web1);
    lab.downgrade(LEGACY);
    lab.begins_as_legacy(LEGACY);
    lab.pvc(&["vm", "migrate", "web1", "--target", LEGACY, "--wait"]).ok();
    has_moved(&lab, "web1", LEGACY, "boot 1");
    reaches(&lab, "pvchv2", &web1);
    lab.is_in_order();
    lab.upgrade(LEGACY);
    has_the_network(&lab, LEGACY);
    reaches(&lab, "pvchv2", &web1);
    lab.pvc(&["vm", "unmigrate", "web1", "--wait"]).ok();
    has_moved(&lab, "web1", "pvchv1", "boot 1");
    reaches(&lab, "pvchv2", &web1);
    unplugged(&lab, "pvchv2");
}

/// The story does for the primary of 1.0.3 what that does for networks.
#[test]
fn a_primary_of_1_0_3_gets_the_gateways_and_gives_them_back_with_its_leases() {
    let lab = Lab::whole();
    a_network_is_made(&lab);
    if lab.primary() == LEGACY {
        has_the_role(&lab, "pvchv1");
    }
    let ours = lab.primary();
    plugged(&lab, "pvchv2", "10.20.1.20");
    reaches(&lab, "pvchv2", GATEWAY);
    lab.downgrade(LEGACY);
    lab.begins_as_legacy(LEGACY);
    has_the_role(&lab, LEGACY);
    for node in ["pvchv1", "pvchv2"] {
        let look = format!("ip -o address show to {GATEWAY}; pgrep -f '[d]nsmasq.*vmbr1001'");
        eventually(&format!("{node} has let go of the network's gateway and server"), 60, || {
            let said = lab.on(node, &look);
            if said.stdout.trim().is_empty() { Ok(()) } else { Err(said.to_string()) }
        });
    }
    let gateway = |verb: &str| {
        let script = format!("ip address {verb} {GATEWAY}/24 dev vmbr1001");
        lab.on(LEGACY, &script).ok();
        // Nobody announces it.
        lab.on("pvchv2", "ip netns exec guest ip neigh flush all").ok();
    };
    gateway("add");
    reaches(&lab, "pvchv2", GATEWAY);
    let tomorrow = lab.on(LEGACY, "date -d tomorrow +%s").ok().trim().to_owned();
    let lease = "/networks/1001/dhcp4_leases/52:54:00:00:00:50";
    for (key, value) in [
        ("", ""),
        ("/ipaddr", "10.20.1.150"),
        ("/hostname", "older"),
        ("/expiry", tomorrow.as_str()),
        ("/clientid", "*"),
    ] {
        lab.write_key(&format!("{lease}{key}"), value);
    }
    gateway("del");
    has_the_role(&lab, &ours);
    reaches(&lab, "pvchv2", GATEWAY);
    let name = "ip netns exec guest getent ahostsv4 older.net1.example | cut -d' ' -f1 | head -1";
    eventually("our server knows the lease of 1.0.3 by its name", 60, || {
        let said = lab.on("pvchv2", name);
        if said.stdout.trim() == "10.20.1.150" { Ok(()) } else { Err(said.to_string()) }
    });
    unplugged(&lab, "pvchv2");
    lab.upgrade(LEGACY);
}

/// Has another server lead ZooKeeper. If the leader's node dies, the legacy peer is the first to
/// take it for dead, for it counts on through an election; and it recovers nothing from a node
/// that comes back on as it was told.
fn another_leads_zookeeper(lab: &Lab, node: &str) {
    if leader(lab, &[node]).is_none() {
        return;
    }
    lab.on(node, "systemctl restart zookeeper").ok();
    eventually("another server leads ZooKeeper", 60, || match leads_again(lab, node) {
        true => Ok(()),
        false => Err("none does"),
    });
    for node in NODES {
        lab.node_is(node, "run", "ready");
    }
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
