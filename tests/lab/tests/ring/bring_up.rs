//! Three nodes come up by themselves, from packages and one configuration.

use pvc_lab_tests::{Lab, NODES};
use pvc_standalone_tests::eventually;

#[test]
fn three_nodes_come_up_and_one_of_them_is_primary() {
    let lab = Lab::whole();
    for node in NODES {
        lab.node_is(node, "run", "ready");
    }
    assert!(NODES.contains(&lab.primary().as_str()));
    // I12: one node holds the floating addresses, and it answers there.
    assert_eq!(lab.holders_of_floating_addresses(), [lab.primary()]);
    let asked =
        ["exec", "switch", "--", "curl", "--silent", "--fail", "http://10.99.0.250:7370/api/v1/"];
    lab.does(&asked).says(&["message"]);
    // What the lab's own commands show of it.
    lab.does(&["status"]).says(&["yes Ceph is clean"]);
    lab.does(&["logs", "-u", "pvcnoded", "-n", "1", "-o", "cat"]).ok();
    lab.does_with(&["shell", "pvchv1"], "pvc node list\nexit\n").says(&["pvchv3"]);
}

#[test]
fn no_service_of_a_node_has_failed() {
    let lab = Lab::whole();
    for node in NODES {
        let failed = lab.on(node, "systemctl --failed --plain --no-legend");
        assert_eq!(failed.ok().trim(), "", "on {node}");
    }
}

#[test]
fn a_guest_with_its_disk_in_ceph_starts_and_counts_its_boots() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv2");
    lab.hears("pvchv2", "web1", "boot 1, counted on");
    let locks = lab.on("pvchv1", "rbd lock list vms/web1_sda");
    locks.says(&["exclusive", "10.99.2.2"]);
    // What PVC publishes of Ceph, and of what it has a record.
    assert!(lab.key("/ceph/health").contains("HEALTH_"));
    // Known already, after another story.
    lab.pvc(&["storage", "pool", "add", "vms", "16"]);
    lab.pvc(&["storage", "volume", "scan", "vms", "web1_sda"]).ok();
    eventually("the pool is counted", 60, || {
        let status = lab.json(&["cluster", "status"])?;
        if status["pools"] == 1 && status["volumes"] == 1 {
            Ok(())
        } else {
            Err(status.to_string())
        }
    });
}

#[test]
fn a_whole_cluster_comes_back_after_a_power_cut() {
    let lab = Lab::whole();
    let begun = lab.on("pvchv3", "date +%s").ok().trim().to_owned();
    lab.start("web1", "pvchv3");
    // One is empty, and its operator wants it to take VMs after every boot.
    lab.on("pvchv2", "touch /etc/pvc/autoready").ok();
    lab.pvc(&["node", "flush", "pvchv2", "--wait"]).ok();
    lab.does(&["power", "all", "off"]).ok();
    // Nobody helps: their services start them.
    lab.does(&["power", "all", "on"]).ok();
    for node in NODES {
        lab.node_is(node, "run", "ready");
    }
    lab.on("pvchv2", "rm /etc/pvc/autoready").ok();
    eventually("web1 runs again, once", 240, || match lab.running_on("web1").as_slice() {
        [_] => Ok(()),
        other => Err(format!("it runs on {other:?}")),
    });
    for node in NODES {
        lab.was_not_fenced(node);
    }
    // Its node's own lock was still there.
    let freed = "journalctl --quiet -u pvcnoded -o cat --since";
    let freed = format!("{freed} @{begun} | grep 'freeing a lock that this node left behind'");
    lab.on("pvchv3", &freed).says(&["web1"]);
}

#[test]
fn the_password_of_a_bmc_is_neither_among_arguments_nor_in_a_log() {
    let lab = Lab::whole();
    // A slow BMC keeps `ipmitool` busy, long enough to be seen by whoever lists processes.
    lab.does(&["bmc", "pvchv3", "slow"]).ok();
    lab.does(&["power", "pvchv3", "off"]).ok();
    lab.could_not_be_fenced("pvchv3", "10.99.0.203");
    assert!(lab.has_seen_ipmitool());
    for node in ["pvchv1", "pvchv2"] {
        let logged = lab.on(node, "journalctl -o cat | grep -c \"o'[N]eil\"");
        assert_eq!(logged.stdout.trim(), "0", "{logged}");
    }
    let log = lab.pvc(&["node", "log", "pvchv1"]);
    assert!(!log.ok().contains("o'Neil"), "{log}");
    let faults = lab.pvc(&["cluster", "fault", "list", "--format", "long"]);
    assert!(!faults.ok().contains("o'Neil"), "{faults}");
}
