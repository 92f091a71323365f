//! Daemons end and begin again, as newer ones too, and neither guests nor the cluster take harm.

use pvc_lab_tests::{Lab, NODES};
use pvc_standalone_tests::eventually;

#[test]
fn a_daemon_that_is_restarted_loses_neither_guests_nor_its_node() {
    let lab = Lab::whole();
    let primary = lab.primary();
    let secondary = lab.witness(&primary).to_owned();
    for (guest, node) in [("web1", &primary), ("web2", &secondary)] {
        lab.start(guest, node);
    }
    let before = Before::of(&lab);
    for node in [&secondary, &primary] {
        let daemon = lab.on(node, "systemctl show --property=MainPID pvcnoded").ok().to_owned();
        lab.on(node, "systemctl restart pvcnoded").ok();
        assert_ne!(lab.on(node, "systemctl show --property=MainPID pvcnoded").ok(), daemon);
        before.holds(&lab, node);
    }
    // Nor does it harm a guest when all of PVC is stopped, and its programs are removed.
    lab.on(&secondary, "systemctl stop pvc.target && dpkg --remove pvc-daemon-node").ok();
    lab.node_is(&secondary, "stop", "ready");
    assert_eq!(lab.processes_of("web2"), before.processes_of("web2"));
    lab.installs(&secondary, &lab.packages());
    lab.on(&secondary, "systemctl start pvc.target").ok();
    before.holds(&lab, &secondary);
}

#[test]
fn a_cluster_is_upgraded_node_by_node_while_its_guests_run_on() {
    let lab = Lab::whole();
    let primary = lab.primary();
    let secondary = lab.witness(&primary);
    for (guest, node) in [("web1", primary.as_str()), ("web2", secondary)] {
        lab.start(guest, node);
    }
    let before = Before::of(&lab);
    let packages = lab.newer_packages();
    for node in NODES {
        let version = "dpkg-query --show --showformat='${Version}' pvc-daemon-node";
        let old = lab.on(node, version).ok().to_owned();
        lab.installs(node, &packages);
        assert_ne!(lab.on(node, version).ok(), old);
        before.holds(&lab, node);
        lab.on(node, "readlink /proc/$(systemctl show --property=MainPID --value pvcnoded)/exe")
            .says(&["/pvcd\n"]);
    }
}

/// State that must not change when a daemon begins again.
struct Before {
    guests: Vec<(&'static str, Vec<u32>)>,
    fences: Vec<serde_json::Value>,
}

impl Before {
    fn of(lab: &Lab) -> Before {
        let guests = ["web1", "web2"].map(|guest| (guest, lab.processes_of(guest))).to_vec();
        Before { guests, fences: fences(lab) }
    }

    fn processes_of(&self, guest: &str) -> Vec<u32> {
        self.guests
            .iter()
            .filter(|(name, _)| *name == guest)
            .flat_map(|(_, processes)| processes.clone())
            .collect()
    }

    /// Waits until `node` is back, and the API answers on the floating address.
    fn holds(&self, lab: &Lab, node: &str) {
        lab.api_answers_within(10);
        lab.node_is(node, "run", "ready");
        for (guest, processes) in &self.guests {
            assert_eq!(lab.processes_of(guest), *processes, "{guest}");
            assert_eq!(lab.vm(guest, "/state"), "start");
        }
        eventually("every guest is known to its node", 30, || {
            let known = lab.json(&["node", "list"])?;
            let counts = known.as_array().into_iter().flatten();
            let count: usize =
                counts.map(|node| node["running_domains"].as_array().map_or(0, Vec::len)).sum();
            if count == self.guests.len() { Ok(()) } else { Err(known.to_string()) }
        });
        assert_eq!(fences(lab), self.fences, "somebody was taken for dead");
        // Kept or handed over: somebody has the role, and its addresses.
        let primary = lab.primary();
        eventually("the primary holds the floating address", 30, || {
            match lab.holders_of_floating_addresses() {
                holders if holders == [primary.clone()] => Ok(()),
                holders => Err(format!("{primary} is primary, and {holders:?} hold it")),
            }
        });
    }
}

fn fences(lab: &Lab) -> Vec<serde_json::Value> {
    NODES
        .map(|node| {
            lab.json(&["node", "info", node]).expect("the cluster answers")["fence"].clone()
        })
        .to_vec()
}
