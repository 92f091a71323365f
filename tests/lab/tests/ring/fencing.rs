//! Nodes die, are proven dead, and their VMs run elsewhere: once.

use pvc_lab_tests::Lab;
use pvc_standalone_tests::{eventually, never_within};

#[test]
fn the_guests_of_a_node_without_power_run_elsewhere() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv3");
    lab.does(&["power", "pvchv3", "off"]).ok();
    lab.recovered("web1", "pvchv3");
    lab.pvc(&["node", "info", "pvchv3"]).says(&["off"]);
    // It was switched on again afterwards and takes VMs when its operator says so, or by itself.
    eventually("pvchv3 has power again", 120, || {
        let status = lab.does(&["status"]);
        if status.stdout.lines().any(|line| line.starts_with("pvchv3  off")) {
            Err(status.to_string())
        } else {
            Ok(())
        }
    });
}

#[test]
fn a_node_that_hangs_is_cut_off_before_its_guests_run_elsewhere() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv2");
    lab.does(&["freeze", "pvchv2"]).ok();
    lab.recovered("web1", "pvchv2");
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
fn a_clock_one_hour_off_gets_nobody_fenced() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv2");
    for offset in ["+1h", "-1h", "0"] {
        lab.does(&["clock", "pvchv2", offset]).ok();
        never_within("a node is given up", 45, || match lab.running_on("web1").as_slice() {
            [only] if only == "pvchv2" => Ok(()),
            other => Err(format!("web1 runs on {other:?}")),
        });
    }
    lab.node_is("pvchv2", "run", "ready");
}
