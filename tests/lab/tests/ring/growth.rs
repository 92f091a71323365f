//! A cluster grows by a node that is no coordinator.

use pvc_lab_tests::Lab;

#[test]
fn a_hypervisor_joins_takes_guests_does_not_become_primary_and_is_fenced_when_it_dies() {
    let lab = Lab::whole();
    lab.does(&["add"]).ok();
    lab.node_is("pvchv4", "run", "ready");
    lab.start("web1", "pvchv4");
    let client = lab.writer("web1");

    let primary = lab.primary();
    let said = lab.pvc(&["node", "primary", "pvchv4", "--wait"]).fails(1);
    assert!(said.contains("node `pvchv4` is no coordinator"), "{said}");
    assert_eq!(lab.primary(), primary);

    lab.does(&["power", "pvchv4", "off"]).ok();
    let to = lab.recovered("web1", "pvchv4");
    lab.may_no_longer_write(&client);
    lab.proven_dead("pvchv4", "its BMC said twice that the power is off");
    lab.hears(&to, "web1", "boot 2, counted on");
    lab.node_is("pvchv4", "run", "flushed");
    // A node goes with the whole lab alone.
    lab.begin_anew();
}
