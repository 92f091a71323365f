//! Failures of what the nodes have in common: cables, a majority of ZooKeeper, Ceph's monitors.
//! Guests run on.

use std::time::Instant;

use pvc_lab_tests::{Lab, NODES};
use pvc_standalone_tests::{eventually, never_within};

#[test]
fn a_node_whose_cables_are_back_in_time_is_left_alone() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv3");
    let process = lab.processes_of("web1");
    lab.does(&["cut", "pvchv3", "cluster", "storage"]).ok();
    lab.suspected_by("pvchv3");
    lab.does(&["heal", "pvchv3"]).ok();
    lab.node_is("pvchv3", "run", "ready");
    // Until what was left of its time has passed.
    never_within("pvchv3 is cut off", 30, || match lab.processes_of("web1") {
        same if same == process => Ok(()),
        other => Err(format!("web1 was process {process:?} and is {other:?}")),
    });
    lab.was_not_fenced("pvchv3");
    lab.node_is("pvchv3", "run", "ready");
}

#[test]
fn a_node_whose_cables_are_back_too_late_returns_empty_and_gets_its_guests_when_it_is_ready() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv3");
    // It is to end its guests itself, long before it is cut off.
    lab.on("pvchv3", &resets_itself(0, 3)).ok();
    lab.node_is("pvchv3", "run", "ready");
    let client = lab.writer("web1");
    lab.does(&["cut", "pvchv3", "cluster", "storage"]).ok();
    eventually("pvchv3 has ended its guests itself", 26, || {
        match lab.running_on("web1").as_slice() {
            [] => Ok(()),
            nodes => Err(format!("web1 runs on {nodes:?}")),
        }
    });
    assert!(lab.fence("pvchv3").is_err(), "nobody has taken it for dead yet");
    let to = lab.recovered("web1", "pvchv3");
    lab.may_no_longer_write(&client);
    let fence = lab.proven_dead("pvchv3", "the power is off, after it was told to cut it");
    assert_eq!(fence["recovered"][0], format!("web1 on {to}"), "{fence}");
    lab.does(&["heal", "pvchv3"]).ok();
    lab.node_is("pvchv3", "run", "flushed");
    assert_eq!(lab.running_on("web1"), [to]);
    lab.on("pvchv3", &resets_itself(3, 0)).ok();
    lab.node_is("pvchv3", "run", "flushed");

    lab.pvc(&["node", "ready", "pvchv3", "--wait"]).ok();
    assert_eq!(lab.running_on("web1"), ["pvchv3"]);
    lab.hears("pvchv3", "web1", "boot 2");
}

/// Has a node's daemon start with another number of `suicide_intervals`.
fn resets_itself(before: u32, now: u32) -> String {
    format!(
        "grep -q 'suicide_intervals: {before}' /etc/pvc/pvc.conf &&
        sed -i 's/suicide_intervals: {before}/suicide_intervals: {now}/' /etc/pvc/pvc.conf && \
        systemctl restart pvcnoded"
    )
}

#[test]
fn without_a_majority_of_zookeeper_nobody_decides_and_every_guest_runs_on() {
    let lab = Lab::whole();
    lab.start_all(&[("web1", "pvchv1"), ("web3", "pvchv3")]);
    let guests = || ["web1", "web3"].map(|guest| lab.processes_of(guest));
    let (before, begun) = (guests(), Instant::now());
    for node in ["pvchv2", "pvchv3"] {
        lab.does(&["freeze", node, "zookeeper"]).ok();
    }
    eventually("nobody has the floating address", 60, || {
        match lab.holders_of_floating_addresses() {
            none if none.is_empty() => Ok(()),
            some => Err(some.join(", ")),
        }
    });
    // One that harms nobody: what becomes of it is unknown, and it may be carried out when the
    // store is back.
    let said = lab.pvc(&["vm", "tag", "add", "web1", "late"]).fails_with_hint();
    assert!(said.contains("ZooKeeper"), "{said}");
    let rest = 120 - begun.elapsed().as_secs().min(120);
    never_within("a guest is given up", rest, || match guests() {
        same if same == before => Ok(()),
        other => Err(format!("they were {before:?} and are {other:?}")),
    });

    for node in ["pvchv2", "pvchv3"] {
        lab.does(&["thaw", node, "zookeeper"]).ok();
    }
    eventually("orders are taken again", 30, || {
        let said = lab.pvc(&["vm", "migrate", "web1", "--target", "pvchv2", "--wait"]);
        if said.code == 0 { Ok(()) } else { Err(said) }
    });
    assert_eq!(lab.running_on("web1"), ["pvchv2"]);
    for node in NODES {
        lab.node_is(node, "run", "ready");
    }
    assert_eq!(lab.processes_of("web3"), before[1]);
    for node in NODES {
        assert!(lab.fence(node).is_err(), "somebody was taken for dead: {:?}", lab.fence(node));
    }
}

#[test]
fn while_the_monitors_of_ceph_hang_the_nodes_go_on_and_say_so() {
    let lab = Lab::whole();
    let primary = lab.primary();
    lab.start("web1", "pvchv2");
    let process = lab.processes_of("web1");
    for node in NODES {
        lab.does(&["freeze", node, &format!("ceph-mon@{node}")]).ok();
    }
    never_within("a node is silent, or a guest given up", 60, || {
        let nodes = lab.json(&["node", "list"])?;
        let all_run = nodes
            .as_array()
            .is_some_and(|all| all.iter().all(|node| node["daemon_state"] == "run"));
        if all_run && lab.processes_of("web1") == process { Ok(()) } else { Err(nodes.to_string()) }
    });
    lab.fault_says(
        &format!("CEPH_SILENT_{}", primary.to_uppercase()),
        "Ceph does not answer the primary",
    );
    for node in NODES {
        lab.does(&["thaw", node, &format!("ceph-mon@{node}")]).ok();
    }
    // It beats and writes as before, and others can be started.
    lab.start("web2", "pvchv3");
    assert_eq!(lab.processes_of("web1"), process);
    assert!(lab.fence("pvchv2").is_err());
}
