//! A cluster grows by a node that is no coordinator.

use pvc_lab_tests::Lab;
use pvc_standalone_tests::{eventually, exit};

use crate::guest_networks::{
    a_network_is_made, guest, has_the_network, plugged, reaches, web1_pings,
};

#[test]
fn a_hypervisor_joins_with_networks_and_guests_and_is_fenced_though_its_fencer_dies_too() {
    let lab = Lab::whole();
    // A node that was added goes with the whole lab alone.
    lab.goes_with_this_story();
    a_network_is_made(&lab);
    let (before, lasted) = session(&lab, "pvchv1", "10.99.1.2");
    lab.does(&["add"]).ok();
    lab.node_is("pvchv4", "run", "ready");
    // FRR of the coordinators has read of it, and their sessions went on.
    for node in ["pvchv1", "pvchv2"] {
        eventually(&format!("FRR of {node} lets pvchv4 in"), 60, || {
            let words = "vtysh -c 'show running-config' | grep 'bgp listen range 10.99.1.4/32'";
            let said = lab.on(node, words);
            if said.code == 0 { Ok(()) } else { Err(said) }
        });
    }
    let (now, lasts) = session(&lab, "pvchv1", "10.99.1.2");
    assert_eq!(now, before, "the session was established again");
    assert!(lasts > lasted, "it has lasted for {lasts} ms, and for {lasted} ms before");
    // It has the networks that were there before, and its guests reach those of the others.
    has_the_network(&lab, "pvchv4");
    plugged(&lab, "pvchv1", "10.20.1.21");
    plugged(&lab, "pvchv4", "10.20.1.24");
    reaches(&lab, "pvchv4", "10.20.1.21");
    reaches(&lab, "pvchv4", "10.20.1.1");
    // A VM there has an address of DHCP, and is reached from elsewhere as it reaches others.
    let web1 = guest(&lab, "web1", "pvchv4");
    reaches(&lab, "pvchv1", &web1);
    web1_pings(&lab, "pvchv4", "10.20.1.21", "to-pvchv1", true);
    let client = lab.writer("web1");

    let primary = lab.primary();
    let said = lab.pvc(&["node", "primary", "pvchv4", "--wait"]).fails(exit::FAILED);
    assert!(said.contains("node `pvchv4` is no coordinator"), "{said}");
    assert_eq!(lab.primary(), primary);

    // It dies, and who is about to fence it dies, too: two of three coordinators are left.
    lab.does(&["bmc", "pvchv4", "dead"]).ok();
    lab.does(&["power", "pvchv4", "off"]).ok();
    let fencer = lab.suspected_by("pvchv4");
    lab.does(&["power", &fencer, "off"]).ok();
    lab.does(&["bmc", "pvchv4", "ok"]).ok();
    let to = lab.recovered("web1", "pvchv4");
    lab.may_no_longer_write(&client);
    lab.hears(&to, "web1", "boot 2, counted on");
    let fence = lab.proven_dead("pvchv4", "its BMC said twice that the power is off");
    assert_ne!(fence["by"], fencer.as_str(), "{fence}");
    lab.proven_dead(&fencer, "its BMC said twice that the power is off");
    lab.node_is("pvchv4", "run", "flushed");
    lab.node_is(&fencer, "run", "flushed");

    // Both come back as from any boot, with the network.
    has_the_network(&lab, "pvchv4");
    plugged(&lab, "pvchv4", "10.20.1.24");
    reaches(&lab, "pvchv4", "10.20.1.1");
}

/// The BGP session of a node with a neighbour: how often it was established, and for how many
/// milliseconds it has been.
fn session(lab: &Lab, node: &str, neighbour: &str) -> (u64, u64) {
    let script = format!(
        "vtysh -c 'show bgp l2vpn evpn summary json' | jq -r '[.. | .[\"{neighbour}\"]? | objects] \
         | first | \"\\(.state) \\(.connectionsEstablished) \\(.peerUptimeMsec)\"'"
    );
    eventually(&format!("{node} has a session with {neighbour}"), 60, || {
        let said = lab.on(node, &script);
        let numbers = said.stdout.trim().strip_prefix("Established ");
        let numbers = numbers.and_then(|numbers| numbers.split_once(' '));
        let numbers = numbers.and_then(|(times, lasts)| {
            Some((times.parse::<u64>().ok()?, lasts.parse::<u64>().ok()?))
        });
        numbers.ok_or(said)
    })
}
