//! Routers outside of the cluster learn by BGP where managed networks are.

use std::collections::BTreeMap;

use pvc_lab_tests::{Lab, Router, number};
use pvc_standalone_tests::eventually;

use crate::guest_networks::{a_network_is_made, is_served_by};

/// Waits until `node` alone announces the network to the router, with itself as the next hop.
fn is_announced_by(router: &Router<'_>, node: &str) {
    let address = format!("10.99.0.{}", number(node));
    let wanted = BTreeMap::from([(address.clone(), address)]);
    eventually(&format!("the router has the network from {node} alone"), 60, || {
        let routes = router.routes("10.20.1.0/24");
        if routes == wanted { Ok(()) } else { Err(format!("it has it from {routes:?}")) }
    });
}

#[test]
fn a_router_outside_learns_a_network_from_the_primary_and_follows_the_role() {
    let lab = Lab::whole();
    let router = lab.router();
    a_network_is_made(&lab);
    let primary = lab.primary();
    is_served_by(&lab, &primary);
    is_announced_by(&router, &primary);

    let heir = lab.witness(&primary);
    lab.pvc(&["node", "primary", heir, "--wait"]).ok();
    lab.until_primary(heir);
    is_announced_by(&router, heir);

    lab.pvc(&["network", "remove", "1001"]).ok();
    eventually("the network is withdrawn", 60, || {
        let routes = router.routes("10.20.1.0/24");
        if routes.is_empty() { Ok(()) } else { Err(format!("{routes:?}")) }
    });
}
