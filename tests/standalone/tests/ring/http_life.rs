//! The life of a VM over HTTP, as a program would manage it that has never heard of `pvc`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, channel};

use pvc_standalone_tests::{Api, Machine, SerialLine, eventually, hello_uuid, never_within};
use serde_json::Value;

#[test]
fn a_vm_is_managed_over_http_alone() {
    let machine = Machine::start();
    let api = machine.api();
    let uuid = hello_uuid("hello");
    machine.make_disk("hello");
    machine.add_volume("extra", "64M");
    let events = Events::follow(api);

    assert!(machine.http_define(&machine.hello_xml("hello")).ok().message().contains("hello"));
    events
        .until("told is the new VM", |event| event["kind"] == "vm" && event["id"] == uuid.as_str());
    assert_eq!(api.get("/vm/hello/state").ok().json()["state"], "stop");
    a_reader_that_knows_the_answer_gets_none(&machine);

    let started = api.post("/vm/hello/state", &[("state", "start"), ("wait", "True")]);
    assert!(started.ok().message().contains("hello"));
    machine.booted("hello", 1);
    assert_eq!(api.get(&format!("/vm/{uuid}/state")).ok().json()["state"], "start");
    assert_eq!(api.get("/vm/hello/node").ok().json()["node"], machine.node());
    let console = eventually("shown is the console", 30, || {
        let answer = api.get("/vm/hello/console?lines=1000").ok().json();
        let text = answer["data"].as_str().unwrap_or_default().to_owned();
        if text.contains("hello: ready") { Ok(text) } else { Err(text) }
    });
    assert!(console.contains("Linux version"), "{console}");

    a_disk_is_plugged_in_and_out(&machine);

    api.post("/vm/hello/tags", &[("action", "add"), ("tag", "daily"), ("protected", "False")]).ok();
    assert_eq!(api.get("/vm?tag=daily").ok().json()[0]["name"], "hello");
    api.post("/vm/hello/meta", &[("profile", "tiny"), ("autostart", "yes")]).ok();
    assert_eq!(api.get("/vm/hello/meta").ok().json()["node_autostart"], "True");

    api.post("/vm/hello/state", &[("state", "restart"), ("wait", "true")]).ok();
    machine.booted("hello", 2);
    api.post("/vm/hello/state", &[("state", "shutdown"), ("wait", "true")]).ok();
    assert_eq!(machine.vm_state("hello"), "stop");
    machine.wait_until_off("hello", 10);

    let job = api.post("/vm/hello/locks", &[]);
    assert_eq!(job.status, 202, "{job:?}");
    assert_eq!(finished(api, &job.json())["state"], "SUCCESS");

    api.call("POST", "/vm/hello/rename", &[("new_name", "hallo")], &[]).ok();
    assert_eq!(api.get("/vm/hello").status, 404);
    api.call("DELETE", "/vm/hallo", &[("delete_disks", "True")], &[]).ok();
    assert_eq!(api.get("/vm/hallo").status, 404);
    machine.volumes_are(&["vms/extra"]);
    events.until("told is its end", |event| {
        event["id"] == uuid.as_str() && event["change"] == "removed"
    });
}

fn a_reader_that_knows_the_answer_gets_none(machine: &Machine) {
    let api = machine.api();
    let ask = |more: &str| {
        let head = format!(
            "GET /api/v1/vm/hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Api-Key: \
             {}\r\n{more}\r\n",
            api.token
        );
        let mut stream = TcpStream::connect(("127.0.0.1", api.port)).expect("it listens");
        stream.write_all(head.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    };
    let first = ask("");
    let tag = first.lines().find_map(|line| {
        line.to_lowercase().starts_with("etag:").then(|| line[5..].trim().to_owned())
    });
    let tag = tag.unwrap_or_else(|| panic!("no ETag: {first}"));
    let second = ask(&format!("If-None-Match: {tag}\r\n"));
    assert!(second.starts_with("HTTP/1.1 304"), "{second}");
    api.post("/vm/hello/meta", &[("profile", "other")]).ok();
    let third = ask(&format!("If-None-Match: {tag}\r\n"));
    assert!(third.starts_with("HTTP/1.1 200"), "{third}");
}

fn a_disk_is_plugged_in_and_out(machine: &Machine) {
    let api = machine.api();
    let disk = "<disk type='network' device='disk'><driver name='qemu' discard='unmap'/>\
                <source protocol='rbd' name='vms/extra'/><target dev='sdb' bus='scsi'/></disk>";
    let job = api.call("POST", "/vm/hello/device", &[], &[("xml", disk)]);
    assert_eq!(job.status, 202, "{job:?}");
    let end = finished(api, &job.json());
    assert_eq!(end["state"], "SUCCESS", "{end}\n{}", machine.said());
    eventually("seen by the guest is the disk", 30, || {
        let text = machine.console_text("hello");
        if text.contains("131072 512-byte logical blocks") { Ok(()) } else { Err(machine.said()) }
    });
    let listed = api.get("/tasks").ok().json();
    assert!(listed["active"].is_object() && listed["reserved"].is_object(), "{listed}");
    let again = api.call("POST", "/vm/hello/device", &[], &[("xml", disk)]);
    let end = finished(api, &again.json());
    assert_eq!(end["state"], "FAILURE", "the same disk twice: {end}");

    let job = api.call("DELETE", "/vm/hello/device", &[], &[("xml", disk)]);
    assert_eq!(finished(api, &job.json())["state"], "SUCCESS");
    let live = machine.libvirt().virsh(&["domblklist", "hello"]);
    assert!(!live.ok().contains("sdb"), "{live}");
    api.call("POST", "/vm/hello/device", &[], &[("xml", "<disk")]).refused(&[400]);
}

/// The end of a job, asked for as other clients do.
fn finished(api: &Api, job: &Value) -> Value {
    let id = job["task_id"].as_str().unwrap_or_else(|| panic!("no job: {job}"));
    eventually("finished is the job", 60, || {
        let task = api.get(&format!("/tasks/{id}")).ok().json();
        let is_over = !["PENDING", "RUNNING"].contains(&task["state"].as_str().unwrap_or_default());
        if is_over { Ok(task) } else { Err(task) }
    })
}

/// The server's events, read by a thread until the stream ends.
struct Events {
    data: Receiver<Value>,
}

impl Events {
    fn follow(api: &Api) -> Events {
        let mut stream = TcpStream::connect(("127.0.0.1", api.port)).expect("it listens");
        let head = format!(
            "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {}\r\nAccept: \
             text/event-stream\r\n\r\n",
            api.token
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        let mut lines = BufReader::new(stream).lines();
        let status = lines.next().expect("an answer").expect("an answer");
        assert!(status.contains("200"), "{status}");
        let (sender, data) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let event =
                    line.strip_prefix("data:").and_then(|data| serde_json::from_str(data).ok());
                if event.is_some_and(|event: Value| sender.send(event).is_err()) {
                    return;
                }
            }
        });
        Events { data }
    }

    #[track_caller]
    fn until(&self, what: &str, is_it: impl Fn(&Value) -> bool) {
        let mut seen = Vec::new();
        eventually(what, 20, || {
            seen.extend(self.data.try_iter());
            if seen.iter().any(&is_it) { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }
}

#[test]
fn whatever_a_guest_writes_its_console_stays_readable_and_bounded() {
    let machine = Machine::start();
    machine.define_hello("hello");
    let qemu = machine.boot("hello");
    let mut line = SerialLine::open(&machine.libvirt().console("hello"));
    line.say("run head -c 60000 /bin/busybox");
    line.say("run i=0; while [ $i -lt 3000 ]; do echo line $i of many; i=$((i+1)); done");
    line.say("ping");
    eventually("behind it all is the answer", 90, || {
        let length = line.hear().len();
        let log = machine.pvc(&["vm", "log", "hello", "-l", "5000"]);
        let is_there = log.ok().lines().any(|line| line.trim() == "pong");
        if is_there { Ok(()) } else { Err(format!("{length} bytes so far\n{}", machine.said())) }
    });
    let answer = machine.api().get("/vm/hello/console?lines=100000").ok().json();
    let text = answer["data"].as_str().expect("text");
    assert!(text.lines().count() <= 1000, "{} lines are kept", text.lines().count());
    assert!(text.contains("line 2999 of many"), "{text}");
    assert_eq!(
        machine.api().get("/vm/hello/console?lines=1").ok().json()["data"]
            .as_str()
            .map(|t| t.lines().count()),
        Some(1)
    );
    machine.pvc(&["vm", "list"]).says(&["hello", "start"]);
    never_within("all is well with the node", 2, || {
        let faults = machine.faults();
        if faults.is_empty() && machine.qemu("hello") == qemu {
            Ok(())
        } else {
            Err(format!("{faults:?}"))
        }
    });
}
