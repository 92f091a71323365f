//! The cluster's own database, under a real Patroni.

use pvc_lab_tests::{Lab, NODES};
use pvc_standalone_tests::{eventually, never_within};

/// Question to the Patroni of a node: whether it leads, and how many seconds ago it heard of
/// ZooKeeper.
const SAYS: &str = "curl -s 10.99.1.${HOSTNAME#pvchv}:8008/patroni |
    jq -r '.role, .state, (now - .dcs_last_seen | floor)' | tr '\\n' ' '";

#[test]
fn a_copy_whose_patroni_has_lost_zookeeper_is_a_fault_and_its_patroni_is_started_again_once() {
    let lab = Lab::whole();
    let replica = eventually("two copies follow", 180, || {
        let follows = |node: &&str| lab.on(node, SAYS).stdout.starts_with("replica running");
        let all: Vec<_> = NODES.into_iter().filter(follows).collect();
        if let [_, replica] = all[..] { Ok(replica) } else { Err(format!("{all:?}")) }
    });
    // Its node has seen that: what was wrong while the database was made is another matter.
    never_within("the copy is lost", 25, || match lab.on(replica, SAYS) {
        said if said.stdout.starts_with("replica running") => Ok(()),
        said => Err(said),
    });
    let patroni = || lab.on(replica, "systemctl show -P MainPID patroni").ok().to_owned();
    let before = patroni();
    // It goes on and is heard: it reaches no ZooKeeper, as after a session that it has lost and
    // does not make again.
    let chain =
        "add table inet story; add chain inet story output { type filter hook output priority 0; }";
    let rule = "add rule inet story output meta skuid postgres tcp dport 2181 drop";
    lab.on(replica, &format!("nft '{chain}; {rule}'")).ok();
    eventually("Patroni is started again", 300, || match patroni() {
        same if same == before => Err(same),
        _ => Ok(()),
    });
    lab.fault_says(
        &format!("DATABASE_MEMBER_{}", replica.to_uppercase()),
        "Its Patroni is started again, once",
    );
    lab.open(replica);
    eventually("the copy follows", 120, || {
        let said = lab.on(replica, SAYS);
        let seconds: u64 =
            said.stdout.split_whitespace().nth(2).and_then(|text| text.parse().ok()).unwrap_or(999);
        if said.stdout.starts_with("replica running") && seconds < 30 { Ok(()) } else { Err(said) }
    });
    let after = patroni();
    never_within("it is started once more", 30, || match patroni() {
        same if same == after => Ok(()),
        other => Err(other),
    });
}
