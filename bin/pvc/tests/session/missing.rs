//! Whatever a command names and does not exist is exit code 3.

use std::collections::BTreeSet;

use super::*;

/// A cluster that has nothing, and says so.
fn empty_cluster() -> Stub {
    Stub::start(|request, _| match request.path() {
        "/api/v1/openapi.json" => ok(DOCUMENT),
        "/api/v1/network" => ok("[]"),
        "/api/v1/tasks" => ok(r#"{"active": {}, "reserved": {}, "scheduled": {}}"#),
        _ => status(404, r#"{"message": "there is none of that name"}"#),
    })
}

/// Each command that names something, as far as its names go, and what else it takes.
const LINES: &[(&str, &str)] = &[
    ("cluster fault ack", "none"),
    ("cluster fault delete", "none -y"),
    ("cluster task", "ffffffff"),
    ("cluster task cancel", "ffffffff"),
    ("cluster task log", "ffffffff"),
    ("cluster task show", "ffffffff"),
    ("connection remove", "none"),
    ("image info", "none"),
    ("image remove", "none -y"),
    ("network acl add", "none --in -d x -r drop"),
    ("network acl remove", "none none -y"),
    ("network confirm", "none"),
    ("network dhcp add", "none 10.0.0.9 x 52:54:00:00:00:09"),
    ("network dhcp remove", "none 52:54:00:00:00:09 -y"),
    ("network info", "none"),
    ("network modify", "none -m 1400"),
    ("network remove", "none -y"),
    ("network sriov vf info", "none ens1v0"),
    ("network sriov vf set", "none ens1v0 --trust"),
    ("network trace", "none 10.0.0.1"),
    ("node confirm-off", "none -y"),
    ("node flush", "none"),
    ("node info", "none"),
    ("node log", "none"),
    ("node primary", "none"),
    ("node ready", "none"),
    ("node remove", "none -y"),
    ("node secondary", "none"),
    ("provisioner create", "none none"),
    ("provisioner ova remove", "none -y"),
    ("provisioner profile modify", "none -a x=1"),
    ("provisioner profile remove", "none -y"),
    ("provisioner script modify", "none /etc/hostname"),
    ("provisioner script remove", "none -y"),
    ("provisioner script show", "none"),
    ("provisioner template network remove", "none -y"),
    ("provisioner template network vni add", "none 1001"),
    ("provisioner template network vni remove", "none 1001 -y"),
    ("provisioner template storage disk add", "none sda -p vms -s 1"),
    ("provisioner template storage disk remove", "none sda -y"),
    ("provisioner template storage remove", "none -y"),
    ("provisioner template system modify", "none -u 1"),
    ("provisioner template system remove", "none -y"),
    ("provisioner userdata modify", "none /etc/hostname"),
    ("provisioner userdata remove", "none -y"),
    ("provisioner userdata show", "none"),
    ("storage benchmark info", "none"),
    ("storage benchmark run", "none -y"),
    ("storage create-db-vg", "none /dev/sdb -y"),
    ("storage osd add", "none /dev/sdb -y"),
    ("storage osd create-db-vg", "none /dev/sdb -y"),
    ("storage osd in", "7"),
    ("storage osd info", "7"),
    ("storage osd out", "7"),
    ("storage osd refresh", "7 /dev/sdb -y"),
    ("storage osd remove", "7 -y"),
    ("storage osd replace", "7 /dev/sdb -y"),
    ("storage pool info", "none"),
    ("storage pool remove", "none -y"),
    ("storage pool set-pgs", "none 8 -y"),
    ("storage trash list", "-p none"),
    ("storage trash purge", "none 0123456789ab -y"),
    ("storage trash restore", "none 0123456789ab"),
    ("storage volume add", "none data 1G"),
    ("storage volume clone", "vms none copy"),
    ("storage volume download", "vms none -"),
    ("storage volume flatten", "vms none"),
    ("storage volume info", "vms none"),
    ("storage volume remove", "vms none -y"),
    ("storage volume rename", "vms none other -y"),
    ("storage volume resize", "vms none 1G -y"),
    ("storage volume scan", "vms none"),
    ("storage volume snapshot add", "vms none before"),
    ("storage volume snapshot info", "vms none before"),
    ("storage volume snapshot remove", "vms none before -y"),
    ("storage volume snapshot rename", "vms none before after"),
    ("storage volume snapshot rollback", "vms none before -y"),
    ("storage volume upload", "vms none /etc/hostname -y"),
    ("task", "ffffffff"),
    ("task cancel", "ffffffff"),
    ("task log", "ffffffff"),
    ("task show", "ffffffff"),
    ("vm disable", "none -y"),
    ("vm dump", "none"),
    ("vm flush-locks", "none"),
    ("vm info", "none"),
    ("vm log", "none"),
    ("vm memory get", "none"),
    ("vm memory set", "none 1024 -y"),
    ("vm meta", "none -a"),
    ("vm migrate", "none"),
    ("vm modify", "none /nonexistent -y"),
    ("vm move", "none"),
    ("vm network add", "none upstream -y"),
    ("vm network get", "none"),
    ("vm network remove", "none upstream -y"),
    ("vm remove", "none -y"),
    ("vm rename", "none other -y"),
    ("vm restart", "none -y"),
    ("vm shutdown", "none -y"),
    ("vm start", "none"),
    ("vm stop", "none -y"),
    ("vm tag add", "none daily"),
    ("vm tag get", "none"),
    ("vm tag remove", "none daily"),
    ("vm undefine", "none -y"),
    ("vm unmigrate", "none"),
    ("vm create", "none -i none"),
    ("vm vcpu get", "none"),
    ("vm vcpu set", "none 2 -y"),
    ("vm volume add", "none vms/data -y"),
    ("vm volume get", "none"),
    ("vm volume remove", "none vms/data -y"),
];

/// Commands that name nothing which is there already, or whose answer is their code.
const OTHERS: &[&str] = &[
    "cluster fault list",
    "cluster what-if node",
    "completion",
    "connection add",
    "image add",
    "image list",
    "man",
    "network acl list",
    "network add",
    "network dhcp list",
    "network list",
    "network sriov pf list",
    "network sriov vf list",
    "node is-primary",
    "node list",
    "provisioner ova list",
    "provisioner ova upload",
    "provisioner profile add",
    "provisioner profile list",
    "provisioner script add",
    "provisioner script list",
    "provisioner template network add",
    "provisioner template network list",
    "provisioner template storage add",
    "provisioner template storage list",
    "provisioner template system add",
    "provisioner template system list",
    "provisioner userdata add",
    "provisioner userdata list",
    "storage benchmark list",
    "storage osd list",
    "storage osd set",
    "storage osd unset",
    "storage pool add",
    "storage pool list",
    "storage volume list",
    "storage volume snapshot list",
    "vm define",
    "vm list",
];

#[test]
fn what_does_not_exist_is_code_three_whatever_names_it() {
    let stub = empty_cluster();
    let user = User::of(&stub);
    let mut wrong = Vec::new();
    for (command, names) in LINES {
        let line = format!("-q {command} {names}");
        let output = user.run(&line.split(' ').collect::<Vec<_>>());
        if code(&output) != 3 || !err(&output).starts_with("error: ") {
            wrong.push(format!("{line}: {output:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_list_of_what_is_in_nothing_is_code_three_also_of_a_server_that_only_refuses_it() {
    for (line, path) in [
        ("network acl list none", "/api/v1/network/none"),
        ("network dhcp list none", "/api/v1/network/none"),
        ("network sriov pf list none", "/api/v1/node/none"),
        ("network sriov vf list none", "/api/v1/node/none"),
        ("storage volume list -p none", "/api/v1/storage/ceph/pool/none"),
        ("storage volume info none data", "/api/v1/storage/ceph/pool/none"),
        ("vm list -t none", "/api/v1/node/none"),
    ] {
        let is_there = |there: bool| {
            Stub::start(move |request, _| match (request.path() == path, there) {
                (true, true) => ok("[{}]"),
                (true, false) => status(404, r#"{"message": "there is none"}"#),
                _ => status(400, r#"{"message": "it is refused"}"#),
            })
        };
        for (there, exit) in [(false, 3), (true, 1)] {
            let stub = is_there(there);
            let words: Vec<&str> = ["-q"].into_iter().chain(line.split(' ')).collect();
            let output = User::of(&stub).run(&words);
            assert_eq!(code(&output), exit, "{line}: {output:?}");
            assert!(err(&output).starts_with("error: it is refused\n"), "{line}: {output:?}");
        }
    }
}

/// The words of a command and whether it names something.
fn described(line: &str) -> Option<(String, bool)> {
    let words: Vec<&str> = line.strip_prefix("pvc ")?.split(' ').collect();
    let is_word = |word: &&&str| word.starts_with(|c: char| c.is_ascii_lowercase());
    let command: Vec<&str> = words.iter().take_while(is_word).copied().collect();
    let names = words.get(command.len()).is_some_and(|word| !word.starts_with('-'));
    Some((command.join(" "), names))
}

#[test]
fn every_command_that_names_something_is_among_them() {
    let known: BTreeSet<&str> =
        LINES.iter().map(|(command, _)| *command).chain(OTHERS.iter().copied()).collect();
    let user = User::without_connection();
    for (command, names) in TREE.lines().filter_map(described) {
        if !names || known.contains(&*command) {
            continue;
        }
        let words: Vec<&str> = ["-q"].into_iter().chain(command.split(' ')).collect();
        assert_eq!(code(&user.run(&words)), 6, "`{command}` is of this release, and not tested");
    }
}
