//! Requests that cannot be met are refused in words that say why and what to do, and what others
//! write into the tree breaks nothing.

use pvc_lab_tests::{Lab, NODES};
use pvc_standalone_tests::{eventually, exit, never_within};

#[test]
fn a_move_that_cannot_be_is_refused_and_the_guest_runs_on() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv1");
    let process = lab.processes_of("web1");
    let refused_with = |code: i32, target: &str, why: &str| {
        let said = lab.pvc(&["vm", "migrate", "web1", "--target", target, "--wait"]).fails(code);
        assert!(said.contains(why), "`{why}` is missing in: {said}");
        let planned =
            lab.pvc(&["vm", "migrate", "web1", "--target", target, "--dry-run"]).fails(code);
        assert!(planned.contains(why), "`{why}` is missing in the plan: {planned}");
    };
    let refused = |target: &str, why: &str| refused_with(1, target, why);
    refused_with(3, "pvchv9", "there is no node `pvchv9`");
    refused("pvchv1", "VM `web1` is on node `pvchv1` already");

    lab.pvc(&["vm", "meta", "web1", "--limit", "pvchv1,pvchv2"]).ok();
    refused("pvchv3", "node `pvchv3` is not among the nodes the VM is limited to");
    lab.pvc(&["vm", "meta", "web1", "--limit", ""]).ok();

    lab.pvc(&["node", "flush", "pvchv3", "--wait"]).ok();
    refused("pvchv3", "node `pvchv3` is in domain state `flushed`, not `ready`");
    lab.pvc(&["node", "ready", "pvchv3", "--wait"]).ok();

    // Nearly all that the node has: it counts from the guest's next start, wherever that is.
    let total = lab.json(&["node", "info", "pvchv3"]).unwrap()["memory"]["total"].as_u64().unwrap();
    let most = (total - 1).to_string();
    lab.pvc(&["vm", "memory", "set", "web1", &most, "--no-restart"]).ok();
    refused("pvchv3", &format!("and the VM needs {most} MiB"));
    let more = (total + 1).to_string();
    let said = lab.pvc(&["vm", "memory", "set", "web1", &more, "--no-restart"]).fails(exit::FAILED);
    assert!(said.contains(&format!("{total} MiB of memory in all")), "{said}");

    assert_eq!(lab.vm("web1", "/state"), "start");
    assert_eq!(lab.processes_of("web1"), process);
}

#[test]
fn a_primary_that_nobody_knows_is_replaced_by_one_of_the_cluster() {
    let lab = Lab::whole();
    lab.primary();
    lab.write_key("/config/primary_node", "pvchv9");
    eventually("a node of the cluster is primary again", 60, || {
        match lab.key("/config/primary_node") {
            name if NODES.contains(&name.as_str()) => Ok(()),
            name => Err(format!("`{name}` is named")),
        }
    });
    let primary = lab.primary();
    assert_eq!(lab.key("/config/primary_node"), primary);
    assert_eq!(lab.holders_of_floating_addresses(), [primary]);
}

#[test]
fn two_requests_for_the_primary_role_end_with_one_primary() {
    let lab = Lab::whole();
    let old = lab.primary();
    let others: Vec<&str> = NODES.into_iter().filter(|node| *node != old).collect();
    for node in &others {
        lab.pvc_on(node, &["node", "primary", node]).ok();
    }
    // The later one is the one that counts.
    lab.until_primary(others[1]);
    eventually("it holds the addresses, alone", 60, || match lab.holders_of_floating_addresses() {
        holders if holders == [others[1]] => Ok(()),
        holders => Err(format!("they are on {holders:?}")),
    });
    for node in NODES {
        let role = if node == others[1] { "primary" } else { "secondary" };
        eventually(&format!("{node} is {role}"), 60, || {
            let info = lab.json(&["node", "info", node])?;
            if info["coordinator_state"] == role { Ok(()) } else { Err(info.to_string()) }
        });
    }
}

#[test]
fn a_word_that_nobody_knows_in_a_record_harms_nobody() {
    let lab = Lab::whole();
    lab.pvc(&["node", "primary", "pvchv1", "--wait"]); // It may be that already.
    lab.until_primary("pvchv1");
    lab.start("web1", "pvchv2");
    let process = lab.processes_of("web1");
    let uuid = lab.vm("web1", "/uuid");
    lab.write_key(&format!("/domains/{uuid}/state"), "hovering");
    lab.write_key("/nodes/pvchv2/domainstate", "dozing");
    lab.write_key("/nodes/pvchv2/routerstate", "juggling");
    lab.vm_is("web1", "/state", "fail");
    assert_eq!(lab.vm("web1", "/failed_reason"), "the record has the unknown state `hovering`");
    lab.node_is("pvchv2", "run", "dozing");
    // Other VMs are as well as before, on that node too; it takes no new ones.
    lab.define("web2");
    lab.pvc(&["vm", "move", "web2", "--target", "pvchv3"]); // It may be there already.
    lab.pvc(&["vm", "start", "web2", "--wait"]).ok();
    let said = lab.pvc(&["vm", "migrate", "web2", "--target", "pvchv2"]).fails(exit::FAILED);
    assert!(said.contains("node `pvchv2` is in domain state `dozing`, not `ready`"), "{said}");
    never_within("web1 is ended, or its node falls silent", 15, || {
        let daemon = lab.json(&["node", "info", "pvchv2"])?["daemon_state"].clone();
        if lab.processes_of("web1") == process && daemon == "run" {
            Ok(())
        } else {
            Err(daemon.to_string())
        }
    });
    // Operators put it right with what they know.
    lab.pvc(&["vm", "start", "web1", "--wait"]).ok();
    lab.pvc(&["node", "ready", "pvchv2", "--wait"]).ok();
    assert_eq!(lab.processes_of("web1"), process);
    lab.node_is("pvchv2", "run", "ready");
}
