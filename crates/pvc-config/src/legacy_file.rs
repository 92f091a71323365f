//! Exchange of one file between PVC 1.0.3 and this program: what it wrote is read here, and what we
//! ship is read there.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::config::{AddressSelection, Config};
use crate::keys::{self, OldPlace};
use crate::yaml;

const LEGACY: &str = include_str!("../tests/legacy/pvc.conf");
const KEYS: &str = include_str!("../tests/legacy/keys.txt");
const MORE_KEYS: &str = include_str!("../tests/legacy/more-keys.txt");
const SAMPLE: &str = include_str!("../../../packaging/config/pvc.conf");
const LAB: &str = include_str!("../../../lab/node/files/etc/pvc/pvc.conf");

/// A key of PVC 1.0.3.
#[derive(Debug, PartialEq)]
struct Known {
    kind: &'static str,
    required: bool,
}

fn known(tables: &[&'static str]) -> BTreeMap<&'static str, Known> {
    let lines = tables.iter().flat_map(|table| table.lines()).filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (path, kind) = line.split_once(": ").expect("each line is `path: type`");
            let required = !path.ends_with('?');
            (path.trim_end_matches('?'), Known { kind, required })
        })
        .collect()
}

/// Whether only a file of ours has the key at this place. PVC 1.0.3 looks up the keys that it knows
/// and passes over others.
fn is_ours(place: &str) -> bool {
    let path = place.trim_end_matches("[]");
    keys::KEYS.iter().any(|key| key.ours && key.path == path)
}

/// Each value in a file with its place and its type to YAML 1.1; items of a list share a place.
fn found(text: &str) -> BTreeMap<String, &'static str> {
    let document = yaml::parse(text).unwrap_or_else(|fault| panic!("{}", fault.what));
    let mut all = BTreeMap::new();
    collect("", &document.root.to_json(), &mut all);
    all
}

fn collect(path: &str, value: &Value, all: &mut BTreeMap<String, &'static str>) {
    let kind = match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                collect(&path, value, all);
            }
            return;
        }
        Value::Array(items) => {
            items.iter().for_each(|item| collect(&format!("{path}[]"), item, all));
            return;
        }
        Value::Null => "nothing",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int",
        Value::Number(_) => "float",
        Value::String(_) => "str",
    };
    all.insert(path.to_owned(), kind);
}

/// The lab's file as a node gets it.
fn lab() -> String {
    LAB.replace("@NODES@", "hv1, hv2, hv3")
        .replace("@COORDINATORS@", "hv1, hv2, hv3")
        .replace("@MONITOR_HOSTS@", "hv1.storage.lab, hv2.storage.lab")
        .replace("@BMC_PASSWORD@", "a-password-of-the-lab")
        .replace("@SECRET@", "5f2c9a3e-0d2b-4a5e-9a55-5a8ab4a4c1aa")
}

#[test]
fn a_file_with_every_key_of_pvc_1_0_3_is_taken_as_it_is() {
    let written: BTreeMap<String, &str> = found(LEGACY);
    let all: BTreeMap<String, &str> =
        known(&[KEYS]).into_iter().map(|(path, known)| (path.to_owned(), known.kind)).collect();
    assert_eq!(written, all, "the file has each key of PVC 1.0.3, with its type, and no other");

    let config =
        Config::parse(LEGACY, "pvc.conf", "node2.example.com").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(config.warnings, [], "no key is ignored");
}

#[test]
fn what_a_file_of_pvc_1_0_3_says_holds() {
    let config =
        Config::parse(LEGACY, "pvc.conf", "node2.example.com").unwrap_or_else(|e| panic!("{e}"));
    let networks = config.networks.expect("networking is on");
    let own = [&networks.upstream, &networks.cluster, &networks.storage]
        .map(|network| network.address.unwrap());
    assert_eq!(own.map(|own| own.to_string()), ["192.0.2.12/24", "10.0.1.2/24", "10.0.2.2/24"]);
    assert_eq!(networks.storage.selection, AddressSelection::ById);
    assert_eq!(networks.storage.device, "bond1");
    assert_eq!(networks.upstream.gateway.unwrap().to_string(), "192.0.2.1");
    assert_eq!(config.timers.keepalive_interval.as_secs(), 7);
    assert_eq!(config.timers.vm_shutdown_timeout.as_secs(), 240);
    assert_eq!(config.fencing.fence_intervals.map(u32::from), Some(8));
    assert_eq!(config.fencing.ipmi.unwrap().hostname, "node2-ipmi.example.com");
    assert_eq!(config.migration.target_selector.as_str(), "memprov");
    assert_eq!(config.logging.console_log_lines, 1100);
    assert_eq!(config.guest_networking.sriov_devices[0].phy, "ens1f1");
    assert_eq!(config.database.dns.unwrap().database, "pvcdns");
    assert_eq!(config.ceph.unwrap().monitor_hosts[2], "node3.storage.local");
    assert_eq!(config.api.listen.to_string(), "192.0.2.250:7370");
    assert!(config.autobackup.is_some() && config.automirror.is_some());
}

#[test]
fn a_file_of_ours_is_read_by_pvc_1_0_3_as_well() {
    let known = known(&[KEYS, MORE_KEYS]);
    for (name, text) in [("packaging/config/pvc.conf", SAMPLE.to_owned()), ("the lab's", lab())] {
        let found = found(&text);
        for (path, kind) in found.iter().filter(|(path, _)| !is_ours(path)) {
            let there = known.get(path.as_str()).map(|known| known.kind);
            assert_eq!(there, Some(*kind), "{name}: `{path}`, as PVC 1.0.3 knows it and as it is");
        }
        for (path, known) in &known {
            assert!(
                !known.required || found.contains_key(*path),
                "{name}: PVC 1.0.3 needs `{path}`"
            );
        }
        assert!(
            Config::parse(&text, "pvc.conf", "hv1").is_ok() || name.starts_with("packaging"),
            "{name}"
        );
    }
}

#[test]
fn each_key_that_pvc_1_0_3_does_not_know_is_marked_as_one_of_ours_and_no_other() {
    let known = known(&[KEYS, MORE_KEYS]);
    let is_known = |path: &str| {
        let below = format!("{path}.");
        known.keys().any(|place| place.trim_end_matches("[]") == path || place.starts_with(&below))
    };
    for key in keys::KEYS.iter().filter(|key| key.old != OldPlace::Only) {
        let places = keys::NETWORKS.map(|net| key.path.replace("{net}", net));
        let is_known = places.iter().any(|place| is_known(place));
        assert_eq!(key.ours, !is_known, "`{}`", key.path);
        assert!(!key.ours || key.about.ends_with('.'), "`{}`: the page says it there", key.path);
    }
}

#[test]
fn where_earlier_versions_had_a_key_it_is_read_with_a_warning() {
    let beside = "      node_ip_selection: by-id\n    storage:";
    let within = "        node_ip_selection: by-id\n    storage:";
    assert!(
        SAMPLE.contains("      node_ip_selection: by-id\n    # Ceph's replication.\n    storage:")
    );
    let text = SAMPLE.replace("    # Ceph's replication.\n", "").replace(beside, within);
    let config =
        Config::parse(&text, "pvc.conf", "pvchv2").unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.networks.unwrap().cluster.address.unwrap().to_string(), "10.1.0.2/24");
    let [warning] = config.warnings.as_slice() else {
        panic!("one warning: {:?}", config.warnings)
    };
    let said = warning.to_string();
    assert!(
        said.contains("`cluster.networks.cluster.ipv4.node_ip_selection` is read here for now"),
        "{said}"
    );
    assert!(said.contains("move it to `cluster.networks.cluster.node_ip_selection`"), "{said}");
}

#[test]
fn the_two_places_of_a_key_must_not_disagree() {
    let beside = "      node_ip_selection: by-id  ";
    let both = SAMPLE.replace(beside, &format!("        node_ip_selection: 10.0.0.9\n{beside}"));
    let errors = Config::parse(&both, "pvc.conf", "pvchv2").expect_err("which holds?").to_string();
    assert!(errors.contains("with another value"), "{errors}");
}
