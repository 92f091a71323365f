//! The whole benchmark, as small as it gets: every figure is made. Those of new VMs need a PVC with
//! its guests, and belong to the ring `standalone`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "nothing is simulated here")]

use std::process::Command;

use serde_json::Value;

/// Runs the benchmark on the embedded tree, and returns what it printed and what it wrote as JSON.
fn quick_run(arguments: &[&str]) -> (String, Value) {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("figures.json");
    let output = Command::new(env!("CARGO_BIN_EXE_pvc-bench"))
        .args(["--quick", "--tree", "embedded", "--json"])
        .arg(&json)
        .args(arguments)
        .output()
        .unwrap();
    let (printed, errors) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}");
    (printed, serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap())
}

fn figures(sections: &Value) -> Vec<&Value> {
    let sections = sections.as_array().unwrap();
    sections.iter().flat_map(|section| section["figures"].as_array().unwrap()).collect()
}

/// Asserts that every figure was measured and printed, and that there is one with each of these
/// beginnings.
#[track_caller]
fn assert_made(printed: &str, sections: &Value, begins: &[&str]) {
    let figures = figures(sections);
    for figure in &figures {
        assert!(figure["not_measured"].is_null(), "{figure}");
        assert!(
            printed.contains(figure["figure"].as_str().unwrap()),
            "{figure} is not in:\n{printed}"
        );
    }
    for begin in begins {
        let is_made = |figure: &Value| figure["figure"].as_str().unwrap().starts_with(begin);
        assert!(
            figures.iter().any(|figure| is_made(figure)),
            "no figure begins with `{begin}`:\n{printed}"
        );
    }
}

#[test]
fn a_quick_run_makes_every_figure() {
    // Any program that is quiet and succeeds will do: which it is, is not the question here.
    let sections = ["cache", "HTTP", "uploads", "keepalive", "command line"]
        .map(|section| ["--only", section]);
    let (printed, sections) =
        quick_run(&[&["--pvc", "/bin/true"], sections.as_flattened()].concat());
    let begins = [
        "cache: one VM of",
        "cache: name and state of",
        "cache filled",
        "memory of the cache",
        "list 2 VMs over HTTP",
        "list 16 VMs over HTTP",
        "list 16 VMs, for each VM",
        "one VM by name of 16",
        "list 8 volumes over HTTP",
        "list 16 volumes over HTTP",
        "cluster status, 8 VMs",
        "upload of 8.39 MB over HTTP",
        "peak memory of the API, uploads of 8.39 MB",
        "peak memory of the API, `.zst` uploads of 8.39 MB",
        "peak memory of the API, qcow2 uploads of 8.39 MB",
        "peak memory of the API, downloads of 8.39 MB",
        "metrics, 8 VMs",
        "list 8 VMs, while a quarter changes each second",
        "metrics, 8 VMs, while a quarter changes each second",
        "tree requests per API read",
        "memory of tree, cache and API in one process",
        "one change of a VM of 16",
        "requests per keepalive",
        "keepalive too late, beside definitions",
        "`pvc --help`",
        "`pvc vm list`, 2 VMs, without the request",
        "memory of `pvc --help`",
    ];
    assert_made(&printed, &sections, &begins);
}

#[test]
fn an_api_read_asks_nothing_of_the_tree() {
    let (_, sections) = quick_run(&["--pvc", "/bin/true", "--only", "HTTP"]);
    let figures = figures(&sections);
    let name = |figure: &Value| figure["figure"].as_str().unwrap().to_owned();
    let asked = figures.iter().find(|figure| name(figure).starts_with("tree requests")).unwrap();
    assert_eq!(asked["measured"]["count"], 0.0, "{asked}");
}

#[test]
fn what_cannot_be_measured_is_said_and_the_rest_is_measured() {
    let sections = ["command line", "daemon", "memory"].map(|section| ["--only", section]);
    let programs = ["--pvc", "/nowhere/pvc", "--pvcd", "/nowhere/pvcd"];
    let (printed, sections) = quick_run(&[&programs, sections.as_flattened()].concat());
    for program in ["pvc", "pvcd"] {
        assert!(
            printed.contains(&format!("not measured: `/nowhere/{program}` is not built")),
            "{printed}"
        );
    }
    let measured =
        figures(&sections).into_iter().filter(|figure| !figure["measured"].is_null()).count();
    assert!(measured > 0, "{printed}");
}

/// Figures that need root, QEMU, and the programs `pvcd` and `pvc` beside the benchmark.
mod standalone {
    use super::*;

    #[test]
    fn a_quick_run_makes_every_figure_of_new_vms() {
        let (printed, sections) = quick_run(&["--only", "new VMs"]);
        let begins =
            ["`pvc vm create --image`", "2 VMs of one profile, each", "2 VMs of one profile, all"];
        assert_made(&printed, &sections, &begins);
    }
}
