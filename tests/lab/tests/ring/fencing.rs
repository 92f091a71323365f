//! Nodes die, are proven dead, and their VMs run elsewhere: once.

use pvc_lab_tests::Lab;
use pvc_standalone_tests::{eventually, never_within};

#[test]
fn the_guests_of_a_node_without_power_run_elsewhere() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv3");
    lab.does(&["power", "pvchv3", "off"]).ok();
    eventually("web1 elsewhere", 120, || match lab.running_on("web1").as_slice() {
        ["pvchv1" | "pvchv2"] => Ok(()),
        other => Err(format!("it runs on {other:?}")),
    });
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
    eventually("web1 elsewhere", 120, || match lab.running_elsewhere("web1", "pvchv2").as_slice() {
        [_] => Ok(()),
        other => Err(format!("it runs on {other:?}")),
    });
    lab.does(&["thaw", "pvchv2"]);
    never_within("web1 runs twice", 20, || match lab.running_on("web1").as_slice() {
        [] | [_] => Ok(()),
        twice => Err(format!("{twice:?}")),
    });
}

#[test]
fn nothing_is_recovered_from_a_node_whose_bmc_does_not_answer() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv3");
    lab.does(&["bmc", "pvchv3", "dead"]).ok();
    lab.does(&["cut", "pvchv3", "cluster", "storage"]).ok();
    never_within("web1 runs twice", 90, || match lab.running_on("web1").as_slice() {
        [] | [_] => Ok(()),
        twice => Err(format!("{twice:?}")),
    });
    lab.does(&["heal", "pvchv3"]).ok();
    lab.node_is("pvchv3", "run", "ready");
    // The order to cut its power that was on its way when it came back ends before its BMC hears again.
    never_within("web1 runs elsewhere", 30, || match lab.running_elsewhere("web1", "pvchv3").as_slice() {
        [] => Ok(()),
        other => Err(format!("{other:?}")),
    });
    lab.does(&["bmc", "pvchv3", "ok"]).ok();
    never_within("pvchv3 is cut off", 15, || match lab.running_on("web1").as_slice() {
        ["pvchv3"] => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

#[test]
fn a_clock_one_hour_off_gets_nobody_fenced() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv2");
    for offset in ["+1h", "-1h", "0"] {
        lab.does(&["clock", "pvchv2", offset]).ok();
        never_within("a node is given up", 45, || match lab.running_on("web1").as_slice() {
            ["pvchv2"] => Ok(()),
            other => Err(format!("web1 runs on {other:?}")),
        });
    }
    lab.node_is("pvchv2", "run", "ready");
}
