//! The storage of one machine is measured, by `pvc`, with the real fio.

use std::path::Path;

use pvc_standalone_tests::{Machine, Output, Settings, eventually};
use serde_json::Value;

/// A machine whose tests take this long each.
fn machine(test_seconds: u32) -> Machine {
    let mut machine = Machine::prepared(Settings::default());
    let configuration = machine.configuration();
    let benchmark = format!("benchmark:\n  volume_gib: 1\n  test_seconds: {test_seconds}\n");
    machine.write_configuration(&(configuration + &benchmark));
    machine.libvirt().start();
    machine.start_daemons();
    machine.wait_until_running();
    machine
}

fn benchmark(machine: &Machine, line: &str) -> Output {
    let words: Vec<&str> =
        ["-q", "storage", "benchmark"].into_iter().chain(line.split(' ')).collect();
    machine.pvc(&words)
}

#[test]
fn the_storage_is_measured_and_the_result_is_shown_and_compared() {
    let machine = machine(1);
    benchmark(&machine, "run none -y").fails(3);
    benchmark(&machine, "info first").fails(3);
    benchmark(&machine, "run vms --name first --dry-run").ok();
    benchmark(&machine, "run vms --name first -y")
        .says(&["benchmark \"first\" of pool \"vms\" is done"]);
    machine.volumes_are(&[]);
    benchmark(&machine, "list").says(&["first", "Sequential (4M blocks)"]);
    let shown = benchmark(&machine, "info first").ok().to_owned();
    assert!(shown.contains('█') && shown.contains("Latency"), "{shown}");
    let json: Value =
        serde_json::from_str(benchmark(&machine, "info first -f json").ok()).expect("it is JSON");
    let test = &json[0]["benchmark_result"]["rand_write_4K_lowdepth"]["jobs"][0];
    assert!(test["write"]["iops"].as_f64().is_some_and(|iops| iops > 0.0), "{test}");
    benchmark(&machine, "run vms --name first -y").fails(1);
    benchmark(&machine, "run vms --name second -y").ok();
    benchmark(&machine, "info second --compare first").says(&["second", "first", "x"]);
    benchmark(&machine, "list -f raw").says(&["second\nfirst"]);
}

#[test]
fn a_benchmark_that_is_cancelled_leaves_neither_fio_nor_a_volume() {
    let machine = machine(600);
    let task = submitted(&machine);
    wait_for_test(&machine, &task, "seq_read");
    benchmark(&machine, "list").says(&["Running"]);
    benchmark(&machine, "run vms -y").fails_with_hint();
    machine.pvc(&["-q", "storage", "volume", "add", "vms", "pvcbenchmark", "1M"]).fails(1);
    let folder = machine.dir().join("volumes/vms").join(format!("pvcbenchmark-{task}"));
    assert!(folder.is_dir(), "it has a volume");
    assert!(!fio_at(&folder).is_empty(), "fio measures it");
    machine.pvc(&["task", "cancel", &task]).ok();
    eventually("it is gone", 60, || {
        let (left, listed) = (fio_at(&folder), benchmark(&machine, "list -f raw"));
        match folder.exists() || !left.is_empty() || !listed.ok().trim().is_empty() {
            true => Err(format!("{left:?}\n{listed}")),
            false => Ok(()),
        }
    });
}

#[test]
fn fio_ends_with_a_daemon_that_is_killed_and_the_next_one_brings_the_benchmark_to_its_end() {
    let mut machine = machine(4);
    let task = submitted(&machine);
    wait_for_test(&machine, &task, "rand_read_4M");
    let volumes = machine.dir().join("volumes/vms");
    assert!(!fio_at(&volumes).is_empty(), "fio measures it");
    machine.kill("standalone");
    eventually("fio has ended", 3, || {
        let left = fio_at(&volumes);
        if left.is_empty() { Ok(()) } else { Err(left.join("\n")) }
    });
    machine.spawn("standalone");
    machine.wait_until_running();
    machine.pvc(&["-q", "task", &task, "--wait"]).ok();
    machine.volumes_are(&[]);
    let shown = benchmark(&machine, "info of-task").ok().to_owned();
    assert!(!shown.contains("No result"), "{shown}");
}

/// The task of a benchmark that was begun.
fn submitted(machine: &Machine) -> String {
    let said = benchmark(machine, "run vms --name of-task -y --no-wait").ok().to_owned();
    said.split_whitespace().nth(2).expect("the task is named").to_owned()
}

fn wait_for_test(machine: &Machine, task: &str, test: &str) {
    eventually("the test is begun", 120, || {
        let log = machine.pvc(&["task", "log", task]);
        match log.ok().contains(&format!("doing test {test}")) {
            true => Ok(()),
            false => Err(log.to_string()),
        }
    });
}

/// The command lines of the processes of fio that measure there.
fn fio_at(folder: &Path) -> Vec<String> {
    let word = folder.display().to_string();
    let processes = std::fs::read_dir("/proc").expect("this is Linux");
    let lines = processes.filter_map(|process| {
        let line = std::fs::read(process.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| line.starts_with("fio ") && line.contains(&word)).collect()
}
