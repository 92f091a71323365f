//! The cluster's own database, under a real Patroni.

use pvc_lab_tests::{Lab, NODES};
use pvc_standalone_tests::{eventually, never_within};

/// What Patroni of a node says of itself: whether it leads, and how many seconds ago it heard of ZooKeeper.
const SAYS: &str = "curl -s 10.99.1.${HOSTNAME#pvchv}:8008/patroni |
    jq -r '.role, .state, (now - .dcs_last_seen | floor)' | tr '\\n' ' '";

#[test]
fn a_copy_whose_patroni_has_lost_zookeeper_is_a_fault_and_its_patroni_is_started_again_once() {
    let lab = Lab::whole();
    let replica = eventually("a copy follows", 120, || {
        let follows = |node: &&str| lab.on(node, SAYS).stdout.starts_with("replica running");
        NODES.into_iter().find(follows).ok_or_else(|| lab.on(NODES[0], SAYS))
    });
    let patroni = || lab.on(replica, "systemctl show -P MainPID patroni").ok().to_owned();
    let before = patroni();
    // It goes on and is heard: it reaches no ZooKeeper, as after a session that it has lost and does not make again.
    let chain = "add table inet story; add chain inet story output { type filter hook output priority 0; }";
    let rule = "add rule inet story output meta skuid postgres tcp dport 2181 drop";
    lab.on(replica, &format!("nft '{chain}; {rule}'")).ok();
    let fault = format!("DATABASE_MEMBER_{}", replica.to_uppercase());
    eventually("that is a fault", 240, || {
        let faults = lab.json(&["cluster", "fault", "list"])?.to_string();
        if faults.contains(&fault) && faults.contains("has not heard of ZooKeeper") {
            Ok(())
        } else {
            Err(faults)
        }
    });
    eventually("Patroni is started again", 180, || match patroni() {
        same if same == before => Err(same),
        _ => Ok(()),
    });
    let after = patroni();
    lab.open(replica);
    eventually("the copy follows", 120, || {
        let said = lab.on(replica, SAYS);
        let seconds: u64 =
            said.stdout.split_whitespace().nth(2).and_then(|text| text.parse().ok()).unwrap_or(999);
        if said.stdout.starts_with("replica running") && seconds < 30 { Ok(()) } else { Err(said) }
    });
    never_within("it is started once more", 30, || match patroni() {
        same if same == after => Ok(()),
        other => Err(other),
    });
}
