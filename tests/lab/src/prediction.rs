//! Prediction of a node's death by `pvc cluster what-if`, held against that death.

use std::collections::{BTreeMap, BTreeSet};

use pvc_standalone_tests::Output;
use serde_json::Value;

use crate::{Lab, plain};

/// Prediction of the death of a node.
pub struct Prediction {
    node: String,
    answer: Value,
}

impl Lab {
    /// Has `pvc` predict what happens if `node` dies now, for people and for scripts, and sees to
    /// it that asking changes nothing.
    pub fn predict(&self, node: &str) -> Prediction {
        let asked = ["cluster", "what-if", "node", node];
        let before = (self.guests(), self.records());
        let answer = self.json(&asked).expect("it can be predicted");
        let shown = self.pvc(&asked);
        let after = (self.guests(), self.records());
        assert_eq!(before.0, after.0, "guests came, went or moved");
        assert_eq!(difference(&before.1, &after.1), [""; 0], "records were changed");
        let prediction = Prediction { node: node.to_owned(), answer };
        shown.says(&[
            &format!("If node `{node}` dies now: "),
            "In the simulated cluster:",
            "Assumed:",
        ]);
        for (vm, place) in prediction.places() {
            let (begin, then) =
                (format!("{vm} "), if place.is_empty() { "no place" } else { &place });
            let says_so = |line: &str| line.starts_with(&begin) && line.contains(then);
            assert!(
                shown.stdout.lines().any(says_so),
                "`{vm}` on `{place}` is missing in: {shown}"
            );
        }
        prediction
    }

    /// Every record of the cluster, but for what daemons write again and again to say how things
    /// are.
    fn records(&self) -> BTreeMap<String, String> {
        let backup = self.pvc(&["cluster", "backup"]);
        let mut records: BTreeMap<String, String> =
            serde_json::from_str(backup.ok()).expect("a backup is one object of texts");
        records.retain(|key, _| !is_a_report(key));
        records
    }
}

impl Prediction {
    /// A part of the answer by its JSON pointer, as people read it.
    pub fn says(&self, pointer: &str) -> String {
        self.answer.pointer(pointer).map_or_else(String::new, plain)
    }

    /// The VMs that run on the node, each with the node that it would run on then, or with nothing
    /// if no node can take it. The plan and the simulated cluster must agree.
    pub fn places(&self) -> BTreeMap<String, String> {
        let places = |list: &str, place: &str| -> BTreeMap<String, String> {
            let vms = self.answer.pointer(list).and_then(Value::as_array);
            vms.into_iter().flatten().map(|vm| (plain(&vm["name"]), plain(&vm[place]))).collect()
        };
        let planned = places("/vms", "to");
        assert_eq!(places("/simulation/vms", "node"), planned, "{}", self.answer);
        planned
    }

    /// The VMs run where it was prediction, and those for which there was no place do not run. How
    /// long it took is `told` by `lab power NODE off --follow`; that is printed beside what was
    /// prediction.
    pub fn has_come_true(&self, lab: &Lab, followed: &Output) {
        let node = &self.node;
        println!("After the death of {node}, predicted and measured:");
        self.shows_times(
            "/simulation/suspected_s",
            followed,
            &format!("{node}: taken for dead by "),
        );
        self.shows_times("/simulation/fenced_s", followed, &format!("{node}: proven dead: "));
        for (vm, place) in self.places() {
            let places: Vec<String> =
                Some(place.clone()).filter(|place| !place.is_empty()).into_iter().collect();
            assert_eq!(
                lab.running_on(&vm),
                places,
                "`{vm}` was to run on `{place}`: {}",
                self.answer
            );
            if !places.is_empty() {
                self.shows_times(&self.time_of(&vm), followed, &format!("{vm} runs on {place}"));
            }
        }
    }

    /// Place in the answer of the time at which `vm` runs.
    fn time_of(&self, vm: &str) -> String {
        let vms = self.answer.pointer("/simulation/vms").and_then(Value::as_array);
        let index = vms.and_then(|vms| vms.iter().position(|ran| ran["name"] == vm));
        format!("/simulation/vms/{}/seconds", index.expect("places() has found it there"))
    }

    /// Prints both times, for people: one machine that carries three nodes is slow, and when the
    /// death falls between two keepalives makes a difference of 5 s.
    fn shows_times(&self, pointer: &str, followed: &Output, what: &str) {
        let prediction = self.answer.pointer(pointer).and_then(Value::as_f64);
        let prediction =
            prediction.unwrap_or_else(|| panic!("no time for `{what}`: {}", self.answer));
        let measured = followed.stdout.lines().find_map(|line| {
            let (seconds, fact) = line.trim_start().split_once(" s  ")?;
            fact.starts_with(what).then(|| Some((seconds.parse::<f64>().ok()?, fact)))?
        });
        let (measured, fact) =
            measured.unwrap_or_else(|| panic!("nobody saw that {what}: {followed}"));
        println!("{prediction:>7.1} s {measured:>7.1} s  {fact}");
    }
}

/// The keys that are not in both, or have another value, each with what becomes of it.
fn difference(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let differs = |key: &&&String| before.get(**key) != after.get(**key);
    let changed =
        |key: &String| format!("{key}: {:?} is now {:?}", before.get(key), after.get(key));
    keys.iter().filter(differs).map(|key| changed(key)).collect()
}

/// Whether daemons write the key again and again, without anybody having asked for anything: a
/// node's stamp and figures, logs and consoles, statistics and when the storage answered, and when
/// a fault was last seen.
fn is_a_report(key: &str) -> bool {
    const FIGURES: [&str; 9] = [
        "keepalive",
        "memused",
        "memfree",
        "memalloc",
        "memprov",
        "vcpualloc",
        "cpuload",
        "network_stats",
        "monitoring_health",
    ];
    match key.split('/').skip(1).collect::<Vec<_>>().as_slice() {
        ["nodes", _, figure] => FIGURES.contains(figure),
        ["nodes", _, "monitoring_data", ..] => true,
        ["domains", _, "stats" | "consolelog"] | ["ceph", _, _, "stats"] => true,
        ["ceph"] | ["ceph", "health" | "util"] => true,
        ["logs" | "faults", ..] => true,
        ["pvcrs", "storage_answered" | "fullness" | "snapshot-usage", ..] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn an_order_is_no_report() {
        for key in [
            "/nodes/hv1/keepalive",
            "/nodes/hv1/memfree",
            "/ceph/osds/0/stats",
            "/logs/hv1/messages",
            "/pvcrs/storage_answered",
            "/pvcrs/fullness/vms",
            "/pvcrs/snapshot-usage/vms",
        ] {
            assert!(is_a_report(key), "{key}");
        }
        for key in [
            "/nodes/hv1/domainstate",
            "/domains/1/state",
            "/config/maintenance",
            "/tasks/1",
            "/ceph/osds/0",
            "/pvcrs/holds/vms",
        ] {
            assert!(!is_a_report(key), "{key}");
        }
    }

    #[test]
    fn what_came_went_or_changed_differs() {
        let before = records(&[("/a", "1"), ("/b", "1"), ("/c", "1")]);
        let after = records(&[("/a", "1"), ("/b", "2"), ("/d", "1")]);
        let lines = difference(&before, &after);
        let words = [
            "/b: Some(\"1\") is now Some(\"2\")",
            "/c: Some(\"1\") is now None",
            "/d: None is now Some(\"1\")",
        ];
        assert_eq!(lines, words);
        assert_eq!(difference(&before, &before), [""; 0]);
    }
}
