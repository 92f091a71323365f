//! An upload or a download under way is a task that others see and can cancel.

use std::process::{Child, Command, Stdio};

use pvc_standalone_tests::{Machine, eventually};
use serde_json::Value;

/// Shell that runs a script, in which `$PVC` is the client.
fn shell(machine: &Machine, script: &str) -> Child {
    let mut client = Command::new("sh");
    client.args(["-c", script]);
    machine.surround(&mut client);
    client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("there is a shell")
}

/// Client that sends a disk of 120 MB, 20 KB ten times a second: ten minutes' worth.
fn slow_client(machine: &Machine) -> Child {
    shell(
        machine,
        "for i in $(seq 1 6000); do head -c 20000 /dev/zero || exit; sleep 0.1; done \
         | $PVC -q storage volume upload -y --file-size 120000000 vms data -",
    )
}

/// Client that takes a disk of 200 MB, 200 KB ten times a second. It ends with the code of `pvc`.
fn slow_taker(machine: &Machine) -> Child {
    shell(
        machine,
        "{ $PVC -q storage volume download vms data -; echo $? >&2; } \
         | { while ! head -c 200000 | wc -c | grep -qx 0; do sleep 0.1; done; }",
    )
}

/// The transfer of this kind, once it is listed with its speed.
fn listed_transfer(machine: &Machine, name: &str) -> Value {
    eventually("the transfer is listed with its speed", 60, || {
        let tasks = listed(machine, "task list -f json");
        let transfer = tasks.into_iter().find(|task| task["name"] == name);
        transfer
            .filter(|task| task["transferred"]["bytes_per_second"].as_u64() > Some(0))
            .ok_or_else(|| "there is none yet".to_owned())
    })
}

/// Status with which the task that was cancelled is listed.
fn listed_end(machine: &Machine, id: &str) -> String {
    let ended = eventually("it has ended", 30, || {
        let all = listed(machine, "task list --all -f json");
        let ended = all.into_iter().find(|task| task["id"] == id && task["type"] == "cancelled");
        ended.ok_or_else(|| "it goes on".to_owned())
    });
    ended["status"].as_str().expect("it says how").to_owned()
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
    let task = listed_transfer(&machine, "storage.upload");
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
    let status = listed_end(&machine, id);
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

#[test]
fn a_slow_download_is_a_task_that_can_be_cancelled_in_its_midst_and_frees_the_volume() {
    let machine = Machine::start();
    machine.pvc(&["-q", "storage", "volume", "add", "vms", "data", "200M"]).ok();
    let client = slow_taker(&machine);
    let task = listed_transfer(&machine, "storage.download");
    assert_eq!(task["worker"], format!("pvcapid@{}", machine.node()), "{task}");
    assert_eq!(task["kwargs"]["volume"], "data", "{task}");
    assert_eq!(task["transferred"]["of"], 200 << 20, "{task}");
    assert!(task["transferred"]["seconds_left"].as_u64() > Some(0), "{task}");
    let id = task["id"].as_str().expect("it has one");
    machine.pvc(&["-q", "task", "list"]).says(&[id, "storage.download", " left"]);
    let before = task["transferred"]["bytes"].as_u64();
    eventually("it goes on", 30, || {
        let now = listed_transfer(&machine, "storage.download");
        match now["transferred"]["bytes"].as_u64() > before {
            true => Ok(()),
            false => Err(format!("{now}")),
        }
    });
    let busy = machine.pvc(&["-q", "storage", "volume", "resize", "-y", "-f", "vms", "data", "9M"]);
    let said = busy.fails_with_hint();
    assert!(said.contains(&format!("is being downloaded by `the test`, as task `{id}`")), "{said}");

    machine.pvc(&["-q", "task", "cancel", id]).ok();
    let ended = client.wait_with_output().expect("it can be waited for");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("the download broke off"), "{said}");
    assert!(said.ends_with("\n4\n"), "it looks whole to no script: {said}");
    // Whoever was told that it is over finds the volume free.
    machine.pvc(&["-q", "storage", "volume", "resize", "-y", "-f", "vms", "data", "9M"]).ok();
    let status = listed_end(&machine, id);
    assert!(status.starts_with("cancelled after "), "{status}");
    assert!(status.contains(" of 200M ("), "{status}");
}
