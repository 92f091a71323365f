//! The primary role moves, and there is never more than one.

use pvc_lab_tests::{GATEWAY, Lab, NODES};

use crate::guest_networks::{a_network_is_made, is_served_by};

#[test]
fn a_hand_over_loses_at_most_one_ping_to_the_floating_address() {
    let lab = Lab::whole_and_quiet();
    let from = lab.primary();
    let to = lab.witness(&from);
    let ping = lab.watch_floating_address();
    lab.pvc_on(to, &["node", "primary", to, "--wait"]).ok();
    lab.until_primary(to);
    let lost = ping.lost();
    lab.api_answers_within(3);
    assert!(lost <= 1, "{lost} pings were lost");
    assert_eq!(lab.holders_of_floating_addresses(), [to]);
}

#[test]
fn the_database_follows_the_primary() {
    let lab = Lab::whole();
    for to in NODES {
        lab.pvc_on(to, &["node", "primary", to, "--wait"]).ok();
        lab.until_primary(to);
        lab.until_database_leads_on(to);
    }
}

#[test]
fn a_primary_cut_from_the_cluster_gives_its_role_up_by_itself() {
    let lab = Lab::whole();
    a_network_is_made(&lab);
    let old = lab.primary();
    is_served_by(&lab, &old);
    // The BMC does not answer, so nobody can end it from outside: it has to let go.
    lab.does(&["bmc", &old, "dead"]).ok();
    lab.does(&["cut", &old, "cluster"]).ok();
    lab.until_another_is_primary(&old);
    let holders = lab.holders_of_floating_addresses();
    assert!(!holders.contains(&old));
    assert!(!lab.holders_of(GATEWAY).contains(&old), "guests beside it took it for their gateway");
    // The heir, as the devices have it: the API of the node that is cut off may be asked first.
    let [heir] = &holders[..] else { panic!("the floating address is on {holders:?}") };
    is_served_by(&lab, heir);
    lab.does(&["heal", &old]).ok();
    lab.does(&["bmc", &old, "ok"]).ok();
    lab.node_is(&old, "run", "ready");
}
