//! The cluster's own database, under a real Patroni.

use pvc_lab_tests::{Lab, NODES};
use pvc_standalone_tests::{Output, eventually, exit, never_within};

use crate::provisioner::{goes_with_its_volumes, line, with_profile};

/// Question to the Patroni of a node: whether it leads, and how many seconds ago it heard of
/// ZooKeeper.
const SAYS: &str = "curl -s 10.99.1.${HOSTNAME#pvchv}:8008/patroni |
    jq -r '.role, .state, (now - .dcs_last_seen | floor)' | tr '\\n' ' '";

#[test]
fn a_copy_whose_patroni_has_lost_zookeeper_is_a_fault_and_its_patroni_is_started_again_once() {
    let lab = Lab::whole();
    // It does not move to another copy later then.
    lab.until_database_leads_on(&lab.primary());
    lab.until_copies_follow();
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

#[test]
fn without_its_database_the_provisioner_alone_is_away_and_it_comes_back_with_all_it_keeps() {
    let lab = with_profile();
    lab.until_copies_follow();
    let primary = lab.primary();
    let kept = profiles(&lab).ok().to_owned();
    lab.start("web1", "pvchv2");
    let process = lab.processes_of("web1");

    lab.stop_database(&primary);
    for node in NODES {
        is_away(&lab.pvc_on(node, &["provisioner", "profile", "list"]).fails_with_hint());
    }
    let asked = over_http(&lab, "provisioner/profile");
    assert!(asked.ends_with("\n503"), "{asked}");
    is_away(&asked);
    is_away(&line(&lab, "provisioner create made4 web").fails_with_hint());
    lab.pvc(&["vm", "info", "made4"]).fails(exit::NOT_FOUND);
    everything_else_goes_on(&lab, &process);

    lab.start_database(&primary);
    let back = eventually("the provisioner answers", 60, || match profiles(&lab) {
        found if found.code == 0 => Ok(found.stdout),
        away => Err(away),
    });
    assert_eq!(back, kept, "it has what it had");
    line(&lab, "provisioner create made4 web").says(&["made4"]);
    goes_with_its_volumes(&lab, "pvchv1", "made4");
    eventually("all copies follow", 120, || {
        let runs = |node: &&str| lab.on(node, SAYS).stdout.contains("running");
        let all: Vec<_> = NODES.into_iter().filter(runs).collect();
        if all == NODES { Ok(()) } else { Err(format!("those of {all:?}")) }
    });
}

fn profiles(lab: &Lab) -> Output {
    line(lab, "provisioner profile list -f csv")
}

/// Body of what the API of the primary answers, and its status as the last line.
fn over_http(lab: &Lab, path: &str) -> String {
    let script = format!(
        "curl --silent --max-time 60 --write-out '\\n%{{http_code}}' \
         --header 'X-Api-Key: the-token-of-the-lab-which-nobody-else-reaches' \
         http://10.99.0.250:7370/api/v1/{path}"
    );
    lab.on("pvchv1", &script).ok().trim().to_owned()
}

/// Checks that it is the database that is said to be away, and where to look.
fn is_away(said: &str) {
    assert!(said.contains("the provisioner's database"), "{said}");
    assert!(said.contains("patronictl list"), "{said}");
}

/// Lists VMs, and stops and starts one that was running as `process` until now.
fn everything_else_goes_on(lab: &Lab, process: &[u32]) {
    assert_eq!(lab.processes_of("web1"), process, "the guest has noticed nothing");
    line(lab, "vm list").says(&["web1"]);
    line(lab, "vm stop web1 -y --wait").ok();
    assert!(lab.running_on("web1").is_empty(), "it is off");
    lab.start("web1", "pvchv3");
}
