//! An upload under way is a task that others see and can cancel.

use std::process::{Child, Command, Stdio};

use pvc_standalone_tests::{Machine, eventually, program};
use serde_json::Value;

/// Client that sends a disk of 120 MB, 20 KB ten times a second: ten minutes' worth.
fn slow_client(machine: &Machine) -> Child {
    let pvc = program("pvc");
    let script = format!(
        "for i in $(seq 1 6000); do head -c 20000 /dev/zero || exit; sleep 0.1; done \
         | {} -q storage volume upload -y --file-size 120000000 vms data -",
        pvc.display()
    );
    let mut client = Command::new("sh");
    client.args(["-c", &script]);
    machine.surround(&mut client);
    client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("there is a shell")
}

/// Tasks of the list, as JSON.
fn listed(machine: &Machine, line: &str) -> Vec<Value> {
    let words: Vec<&str> = ["-q"].into_iter().chain(line.split(' ')).collect();
    let output = machine.pvc(&words);
    serde_json::from_str(output.ok()).expect("the list is JSON")
}

#[test]
fn a_slow_upload_is_a_task_with_its_progress_and_ends_when_that_is_cancelled() {
    let machine = Machine::start();
    machine.pvc(&["-q", "storage", "volume", "add", "vms", "data", "200M"]).ok();
    let client = slow_client(&machine);
    let task = eventually("the upload is listed with its speed", 60, || {
        let tasks = listed(&machine, "task list -f json");
        let upload = tasks.into_iter().find(|task| task["name"] == "storage.upload");
        upload
            .filter(|task| task["transferred"]["bytes_per_second"].as_u64() > Some(0))
            .ok_or_else(|| "there is none yet".to_owned())
    });
    assert_eq!(task["worker"], format!("pvcapid@{}", machine.node()), "{task}");
    assert_eq!(task["kwargs"]["volume"], "data", "{task}");
    assert_eq!(task["submitter"], "the test", "{task}");
    assert_eq!(task["transferred"]["of"], 120_000_000, "{task}");
    assert!(task["transferred"]["seconds_left"].as_u64() > Some(0), "{task}");
    let id = task["id"].as_str().expect("it has one");
    machine.pvc(&["-q", "task", "list"]).says(&[id, " left"]);
    let shown = machine.pvc(&["-q", "task", "show", id]);
    shown.says(&["storage.upload", "pool: vms", "volume: data", "the test", "RUNNING", "/s"]);

    machine.pvc(&["-q", "task", "cancel", id]).ok();
    let ended = client.wait_with_output().expect("it can be waited for");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("it was cancelled, as task `{id}`")), "{said}");
    let ended = eventually("it has ended", 30, || {
        let all = listed(&machine, "task list --all -f json");
        let ended = all.into_iter().find(|task| task["id"] == id && task["type"] == "cancelled");
        ended.ok_or_else(|| "it goes on".to_owned())
    });
    let status = ended["status"].as_str().expect("it says how");
    assert!(status.starts_with("cancelled after "), "{status}");
    machine.volumes_are(&["vms/data"]);
    let work = machine.dir().join("volumes/.work");
    eventually("nothing is left of what was begun", 30, || {
        match std::fs::read_dir(&work).expect("it is there").count() {
            0 => Ok(()),
            left => Err(format!("{left} in {}", work.display())),
        }
    });
}
