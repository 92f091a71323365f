//! Nodes die, are proven dead, and their VMs run elsewhere: once.

use pvc_lab_tests::{Lab, NODES};
use pvc_standalone_tests::{eventually, never_within};

#[test]
fn the_guests_of_a_secondary_without_power_run_elsewhere_as_predicted() {
    let lab = Lab::whole();
    let primary = lab.primary();
    let node = lab.witness(&primary);
    let others: Vec<&str> = NODES.into_iter().filter(|other| *other != node).collect();
    // `web1` is to go where fewest VMs are, `web3` may go to one node, and nobody has room for
    // `web4`.
    lab.start_all(&[("web1", node), ("web3", node), ("web4", node)]);
    lab.define("web2");
    lab.pvc(&["vm", "move", "web2", "--target", node]);
    lab.vm_is("web2", "/node", node);
    lab.define("web5");
    lab.pvc(&["vm", "move", "web5", "--target", others[0]]);
    lab.vm_is("web5", "/node", others[0]);
    lab.pvc(&["vm", "meta", "web1", "--node-selector", "vms"]).ok();
    lab.pvc(&["vm", "meta", "web3", "--limit", &format!("{node},{}", others[0])]).ok();
    let small = lab.vm("web4", "/memory");
    let total = lab.json(&["node", "info", node]).unwrap()["memory"]["total"].as_u64().unwrap();
    lab.pvc(&["vm", "memory", "set", "web4", &(total - 1).to_string(), "--no-restart"]).ok();

    let prediction = lab.predict(node);
    let places = [("web1", others[1]), ("web3", others[0]), ("web4", "")];
    assert_eq!(
        prediction.places(),
        places.map(|(vm, place)| (vm.to_owned(), place.to_owned())).into()
    );
    assert_eq!(prediction.says("/off"), r#"["web2"]"#);
    assert_eq!(prediction.says("/defects"), "[]");

    let client = lab.writer("web1");
    // Told as it happens, until the node is back.
    let followed = lab.does(&["power", node, "off", "--follow"]);
    followed.says(&[&format!("{node} is `dead`"), &format!("{node} is `run`")]);
    prediction.has_come_true(&lab, &followed);
    lab.may_no_longer_write(&client);
    let fence = lab.proven_dead(node, &prediction.says("/simulation/proof"));
    let mut recovered: Vec<String> = serde_json::from_value(fence["recovered"].clone()).unwrap();
    recovered.sort();
    assert_eq!(recovered, [format!("web1 on {}", others[1]), format!("web3 on {}", others[0])]);
    assert!(
        fence["stranded"][0].as_str().unwrap().starts_with("web4: no node can take the VM"),
        "{fence}"
    );
    // What was off stays where it was.
    assert_eq!(lab.vm("web2", "/node"), node);
    // It is switched on again and has nothing to do until an operator says that it is well.
    lab.node_is(node, "run", "flushed");
    assert!(lab.guests()[node].is_empty());
    assert_eq!(lab.primary(), primary);
    // Then it has its VMs back, the one that found no place among them.
    lab.pvc_on(&primary, &["vm", "memory", "set", "web4", &small, "--no-restart"]).ok();
    lab.pvc_on(&primary, &["node", "ready", node, "--wait"]).ok();
    eventually("its VMs are back", 60, || match lab.guests()[node].len() {
        3 => Ok(()),
        _ => Err(format!("{:?}", lab.guests())),
    });
}

#[test]
fn a_node_that_hangs_is_cut_off_before_its_guests_run_elsewhere() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv2");
    lab.does(&["freeze", "pvchv2"]).ok();
    lab.recovered("web1", "pvchv2");
    lab.proven_dead("pvchv2", "the power is off, after it was told to cut it");
    lab.does(&["thaw", "pvchv2"]);
    lab.node_is("pvchv2", "run", "flushed");
}

#[test]
fn nothing_is_recovered_from_a_node_whose_bmc_does_not_answer() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv3");
    lab.does(&["bmc", "pvchv3", "dead"]).ok();
    lab.does(&["cut", "pvchv3", "cluster", "storage"]).ok();
    eventually("a fault says that it cannot be fenced", 120, || {
        let faults = lab.pvc(&["cluster", "fault", "list"]);
        if faults.stdout.contains("FENCE_FAILED_PVCHV3") { Ok(()) } else { Err(faults.to_string()) }
    });
    assert_eq!(lab.running_on("web1"), ["pvchv3"]);
    // It comes back and its BMC too: an order to cut its power that is on its way is taken back.
    lab.does(&["heal", "pvchv3"]).ok();
    lab.node_is("pvchv3", "run", "ready");
    lab.does(&["bmc", "pvchv3", "ok"]).ok();
    never_within("pvchv3 is cut off", 15, || match lab.running_on("web1").as_slice() {
        [only] if only == "pvchv3" => Ok(()),
        other => Err(format!("web1 runs on {other:?}")),
    });
}

#[test]
fn a_clock_one_hour_off_gets_nobody_fenced_and_delays_no_fence() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv2");
    lab.set_clock("pvchv2", "-1h");
    lab.set_clock("pvchv3", "+1h");
    never_within("a node is given up", 35, || match lab.running_on("web1").as_slice() {
        [only] if only == "pvchv2" => Ok(()),
        other => Err(format!("web1 runs on {other:?}")),
    });
    for node in NODES {
        assert!(lab.fence(node).is_err(), "{node} was taken for dead");
    }
    // Nor does it matter whose clock is wrong when a node dies.
    lab.set_clock("pvchv1", "-1h");
    lab.set_clock("pvchv2", "+1h");
    lab.does(&["power", "pvchv2", "off"]).ok();
    lab.recovered("web1", "pvchv2");
    lab.proven_dead("pvchv2", "its BMC said twice that the power is off");
}
