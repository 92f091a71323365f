//! Nodes are emptied and filled again, also when there is not room for all or somebody reverses it
//! on the way.

use pvc_lab_tests::{LIBVIRT, Lab};
use pvc_standalone_tests::{eventually, never_within};

#[test]
fn a_flush_that_is_taken_back_half_way_leaves_every_guest_where_it_belongs() {
    let lab = Lab::whole();
    for guest in ["web1", "web2"] {
        lab.start(guest, "pvchv1");
    }
    // web1 is faster than the operator's second thoughts, web2 is not.
    lab.on("pvchv1", "virsh --quiet migrate-setspeed web2 1").ok();
    let stays = lab.processes_of("web2");
    lab.pvc(&["node", "flush", "pvchv1"]).ok();
    eventually("web1 has left and web2 is on its way", 60, || {
        match (lab.running_on("web1").as_slice(), lab.vm("web2", "/migration/phase").as_str()) {
            ([only], "copying") if only != "pvchv1" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    lab.pvc(&["node", "ready", "pvchv1", "--wait"]).ok();
    assert_eq!(lab.processes_of("web2"), stays);
    for guest in ["web1", "web2"] {
        lab.vm_is(guest, "/state", "start");
        assert_eq!(lab.running_on(guest), ["pvchv1"]);
        assert_eq!(
            (lab.vm(guest, "/node"), lab.vm(guest, "/last_node")),
            ("pvchv1".into(), String::new())
        );
        // I9: nobody was stopped.
        lab.hears("pvchv1", guest, "boot 1, counted on");
        let before = lab.beat("pvchv1", guest);
        lab.beats_on("pvchv1", guest, before);
    }
}

#[test]
fn one_node_after_another_is_flushed_until_none_is_left_and_all_come_back() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv1");
    lab.start("web2", "pvchv2");
    // By the number of VMs: how much memory is free changes with every breath of this machine.
    lab.pvc(&["vm", "meta", "web1", "--node-selector", "vms"]).ok();
    // What becomes of each VM, and where it goes.
    let planned = |node: &str| {
        let said = lab.pvc(&["node", "flush", node, "--dry-run"]).ok().to_owned();
        let rows = said.lines().filter(|line| line.starts_with("web"));
        rows.map(|row| row.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
    };

    // What the plan says is what happens.
    let plan = planned("pvchv1");
    lab.pvc(&["node", "flush", "pvchv1", "--wait"]).ok();
    assert_eq!(plan, ["web1 move pvchv3"]);
    assert_eq!(lab.running_on("web1"), ["pvchv3"]);
    lab.pvc(&["node", "flush", "pvchv2", "--wait"]).ok();
    for guest in ["web1", "web2"] {
        assert_eq!(lab.running_on(guest), ["pvchv3"]);
    }

    // The last one has nobody to give its guests to.
    let plan = planned("pvchv3");
    assert_eq!(plan, ["web1 shutdown -", "web2 shutdown -"]);
    let said = lab.pvc(&["node", "flush", "pvchv3"]);
    said.says(&["VMs `web1`, `web2` are shut down, and started again when the node is ready"]);
    lab.node_is("pvchv3", "run", "flushed");
    for guest in ["web1", "web2"] {
        assert!(lab.running_on(guest).is_empty());
        assert_eq!(
            (lab.vm(guest, "/state"), lab.vm(guest, "/node_autostart")),
            ("stop".into(), "true".into())
        );
        lab.hears("pvchv3", guest, "going down (poweroff)");
    }

    for node in ["pvchv1", "pvchv2", "pvchv3"] {
        lab.pvc(&["node", "ready", node, "--wait"]).ok();
    }
    for (guest, home) in [("web1", "pvchv1"), ("web2", "pvchv2")] {
        eventually(&format!("{guest} runs at home"), 60, || {
            match lab.running_on(guest).as_slice() {
                [only] if only == home => Ok(()),
                other => Err(format!("it runs on {other:?}")),
            }
        });
        assert_eq!(lab.vm(guest, "/node_autostart"), "false");
        lab.hears(home, guest, "boot 2, counted on");
    }
}

#[test]
fn a_guest_that_may_not_be_shut_down_blocks_the_flush_by_name_until_it_can_leave() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv1");
    lab.pvc(&["vm", "meta", "web1", "--method", "live", "--limit", "pvchv1,pvchv2"]).ok();
    let process = lab.processes_of("web1");
    lab.shut("pvchv2", LIBVIRT);
    lab.pvc(&["node", "flush", "pvchv1"]).ok();
    lab.fault_says("FLUSH_BLOCKED_PVCHV1", "VM web1: it could not be moved to node `pvchv2`");
    assert_eq!(lab.processes_of("web1"), process);
    lab.node_is("pvchv1", "run", "flush");
    lab.open("pvchv2");
    lab.node_is("pvchv1", "run", "flushed");
    assert_eq!(lab.running_on("web1"), ["pvchv2"]);
    lab.hears("pvchv2", "web1", "heartbeat");
    lab.pvc(&["node", "ready", "pvchv1", "--wait"]).ok();
    assert_eq!(lab.running_on("web1"), ["pvchv1"]);
    lab.hears("pvchv1", "web1", "boot 1, counted on");
}

#[test]
fn nobody_is_fenced_while_the_cluster_is_in_maintenance() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv3");
    lab.pvc(&["cluster", "maintenance", "on"]).ok();
    let before = lab.json(&["node", "info", "pvchv3"]).unwrap()["fence"].clone();
    lab.does(&["power", "pvchv3", "off"]).ok();
    // Twice the silence after which a node is taken for dead.
    never_within("pvchv3 is taken for dead", 60, || {
        let info = lab.json(&["node", "info", "pvchv3"])?;
        let quiet = info["daemon_state"] == "run" && info["fence"] == before;
        if quiet && lab.running_on("web1").is_empty() { Ok(()) } else { Err(info.to_string()) }
    });
    lab.pvc(&["cluster", "maintenance", "off"]).ok();
    let node = lab.recovered("web1", "pvchv3");
    let fence = lab.json(&["node", "info", "pvchv3"]).unwrap()["fence"].clone();
    assert_ne!(fence, before);
    let recovered = fence["recovered"].to_string();
    assert!(recovered.contains(&format!("web1 on {node}")), "{fence}");
}
