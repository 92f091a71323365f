//! Templates, userdata, scripts and profiles are kept, changed and removed.

use std::time::Duration;

use axum::body::Body;
use axum::http::Method;
use pvc_ports::{Database as _, Statement};
use sha2::{Digest as _, Sha256};

use super::*;
use crate::common::request;

/// Parameters of a profile of which all parts are called `small`.
pub const PARTS: &str = "profile_type=provisioner&system_template=small&network_template=small\
                         &storage_template=small&userdata=small&script=small";

/// Paths of what the provisioner keeps, list by list.
const LISTS: [&str; 6] = [
    "/provisioner/template/system",
    "/provisioner/template/network",
    "/provisioner/template/storage",
    "/provisioner/userdata",
    "/provisioner/script",
    "/provisioner/profile",
];

impl Api {
    /// Adds a template of each kind, userdata and a script of this name.
    pub async fn with_templates(&self, name: &str) {
        for path in [
            format!("template/system?name={name}&vcpus=1&vram=64&serial=True&vnc=False"),
            format!("template/network?name={name}&mac_template=%7Bprefix%7D:2f"),
            format!("template/network/{name}/net/1001"),
            format!("template/storage?name={name}"),
            format!("template/storage/{name}/disk/sda?pool=vms&disk_size=4"),
            format!("userdata?name={name}&data=%23cloud-config"),
            format!("script?name={name}&data=pass"),
        ] {
            self.post(&format!("/provisioner/{path}")).await.ok();
        }
    }

    /// Runs a statement on the provisioner's database, as another program would.
    async fn write_rows(&self, words: &'static str) {
        let mut transaction = self.database.begin().await.unwrap();
        transaction.run(Statement::new(words)).await.unwrap();
        transaction.commit().await.unwrap();
    }

    /// Everything that the provisioner keeps.
    pub async fn provisioned(&self) -> Vec<String> {
        let mut all = Vec::new();
        for path in LISTS.iter().chain(&["/provisioner/ova"]) {
            all.push(self.get(path).await.text());
        }
        all
    }
}

#[tokio::test]
async fn a_profile_is_made_of_parts_and_each_has_the_shape_of_pvc_1_0_3() {
    let api = with_vms(0).await;
    for path in LISTS {
        api.get(path).await.refused(404);
        api.get(&format!("{path}/small")).await.refused(404);
    }
    let none = json!({"system_templates": [], "network_templates": [], "storage_templates": []});
    assert_eq!(api.get("/provisioner/template").await.ok(), none);
    api.with_templates("small").await;
    api.post(&format!("/provisioner/profile/web?{PARTS}&arg=release=12&arg=packages=a,b"))
        .await
        .ok();
    let template = json!([{
        "id": 1, "name": "small", "vcpu_count": 1, "vram_mb": 64, "serial": true, "vnc": false,
        "vnc_bind": null, "node_limit": null, "node_selector": null, "node_autostart": false,
        "migration_method": null, "ova": null, "migration_max_downtime": 300
    }]);
    assert_eq!(api.get("/provisioner/template/system/small").await.ok(), template);
    let net = json!({"id": 1, "network_template": 1, "vni": "1001"});
    let networks = json!([
        {"id": 1, "name": "small", "mac_template": "{prefix}:2f", "ova": null, "networks": [net]}
    ]);
    assert_eq!(api.get("/provisioner/template/network/small").await.ok(), networks);
    assert_eq!(api.get("/provisioner/template/network/small/net").await.ok(), json!([net]));
    assert_eq!(api.get("/provisioner/template/network/small/net/1001").await.ok(), net);
    let disk = json!({
        "id": 1, "storage_template": 1, "pool": "vms", "disk_id": "sda", "source_volume": null,
        "disk_size_gb": 4, "mountpoint": null, "filesystem": null, "filesystem_args": ""
    });
    let disks = json!([{"id": 1, "name": "small", "ova": null, "disks": [disk]}]);
    assert_eq!(api.get("/provisioner/template/storage/small").await.ok(), disks);
    assert_eq!(api.get("/provisioner/template/storage/small/disk").await.ok(), json!([disk]));
    assert_eq!(api.get("/provisioner/template/storage/small/disk/sda").await.ok(), disk);
    let all = api.get("/provisioner/template").await.ok();
    assert_eq!(all["system_templates"], template);
    assert_eq!((&all["network_templates"], &all["storage_templates"]), (&networks, &disks));
    let userdata = json!([{"id": 1, "name": "small", "userdata": "#cloud-config"}]);
    assert_eq!(api.get("/provisioner/userdata/small").await.ok(), userdata);
    let script = json!([{"id": 1, "name": "small", "script": "pass"}]);
    assert_eq!(api.get("/provisioner/script").await.ok(), script);
    let profile = json!([{
        "id": 1, "name": "web", "type": "provisioner", "system_template": "small",
        "network_template": "small", "storage_template": "small", "userdata": "small",
        "script": "small", "ova": "N/A", "arguments": ["release=12", "packages=a,b"]
    }]);
    assert_eq!(api.get("/provisioner/profile/web").await.ok(), profile);
    let cleared = api.put("/provisioner/profile/web?userdata=&arg=").await.ok();
    assert_eq!(cleared["message"], "Changed profile \"web\".");
    let profile = api.get("/provisioner/profile").await.ok();
    assert_eq!((&profile[0]["userdata"], &profile[0]["arguments"]), (&json!("N/A"), &json!([""])));
}

#[tokio::test]
async fn a_list_is_limited_by_a_part_of_the_name_and_an_element_is_named_whole() {
    let api = with_vms(0).await;
    for name in ["web", "web_1", "db"] {
        api.with_templates(name).await;
    }
    let names = async |path: &str| {
        let reply = api.get(path).await;
        if reply.status == 404 {
            return Vec::new();
        }
        let list = reply.ok();
        list.as_array().unwrap().iter().map(|one| one["name"].to_string()).collect::<Vec<_>>()
    };
    for list in &LISTS[..5] {
        for (limit, count) in
            [("", 3), ("web", 2), ("%5Eweb", 2), ("b$", 2), ("%5Eweb$", 1), ("_", 1), ("%25", 0)]
        {
            let found = names(&format!("{list}?limit={limit}")).await;
            assert_eq!(found.len(), count, "{list} {limit}: {found:?}");
        }
        assert!(names(&format!("{list}/we")).await.is_empty(), "{list}");
        assert!(names(&format!("{list}/%25")).await.is_empty(), "q41: {list}");
    }
}

#[tokio::test]
async fn what_does_not_fit_is_refused_with_the_reason() {
    let api = with_vms(0).await;
    api.with_templates("small").await;
    api.post(&format!("/provisioner/profile?name=web&{PARTS}")).await.ok();
    let before = api.provisioned().await;
    for (method, path, status, words) in [
        ("DELETE", "template/system/small", 400, "is used by profile `web`"),
        ("DELETE", "script/small", 400, "is used by profile `web`"),
        ("DELETE", "template/system/none", 404, "there is no system template `none`"),
        ("PUT", "template/system/none?vcpus=1", 404, "there is no system template `none`"),
        ("PUT", "template/system/small?vcpus=many", 400, "vcpus: `many` is not a whole number"),
        ("PUT", "template/system/small?node_limit=hv9", 400, "there is no node `hv9`"),
        ("POST", "template/system?name=x", 400, "vcpus: is required"),
        ("POST", "template/storage/small", 400, "there is a storage template `small` already"),
        ("POST", "template/network/small/net/0", 400, "vni: `0` is neither a number"),
        ("POST", "template/network/small/net/1001", 400, "has network `1001` already"),
        ("POST", "template/network/none/net/1001", 404, "there is no network template `none`"),
        ("DELETE", "template/network/small/net/7", 404, "has no network `7`"),
        ("POST", "template/storage/small/disk/sdb?pool=vms", 400, "disk_size: is needed"),
        ("POST", "template/storage/small/disk/sdb?pool=x&disk_size=1", 400, "no pool `x`"),
        ("DELETE", "template/storage/small/disk/sdz", 404, "has no disk `sdz`"),
        ("POST", "userdata/x", 400, "data: is required"),
        ("POST", "script/a%20b?data=x", 400, "name: script name `a b` contains a space"),
        ("POST", "script/x?data=%00", 400, "data: contains a NUL byte"),
        ("POST", "profile/x?profile_type=y", 400, "profile_type: `y` is not one of"),
        ("PUT", "profile/web?userdata=none", 400, "userdata: there is no userdata `none`"),
        ("PUT", "profile/web?arg=x", 400, "arg: `x` is not `NAME=VALUE`"),
    ] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        for dry in ["", "dry_run=true"] {
            let mark = if path.contains('?') { "&" } else { "?" };
            let path = format!("/provisioner/{path}{mark}{dry}");
            let asked = request(method.clone(), &path).body(Body::empty()).unwrap();
            let message = api.send(asked).await.refused(status);
            assert!(message.contains(words), "{path}: {message}");
        }
    }
    assert_eq!(api.provisioned().await, before, "nothing was changed");
    api.post("/provisioner/template/network/small/net/1001?permit_duplicate=True").await.ok();
    let large = "x".repeat((256 << 10) + 1);
    let reply = api.form(Method::PUT, "/provisioner/userdata/small", "data", &large).await;
    assert!([400, 413].contains(&reply.status.as_u16()), "{}", reply.status);
}

#[tokio::test]
async fn a_text_comes_in_a_form_as_it_is() {
    let api = with_vms(0).await;
    let text = "Content-Type: multipart/mixed; boundary=\"x\"\nMIME-Version: 1.0\n\n--x\n\
                Content-Type: text/cloud-config\n\n#cloud-config\npackages: [ü, 'a&b=c']\n--x--\n";
    api.form(Method::POST, "/provisioner/userdata?name=parts", "data", text).await.ok();
    assert_eq!(api.get("/provisioner/userdata/parts").await.ok()[0]["userdata"], text);
    api.form(Method::PUT, "/provisioner/userdata/parts?name=parts", "data", "").await.ok();
    assert_eq!(api.get("/provisioner/userdata/parts").await.ok()[0]["userdata"], "");
}

#[tokio::test]
async fn without_its_database_the_provisioner_alone_is_away() {
    let api = with_web().await;
    api.with_templates("small").await;
    api.database.set_dead(true);
    for path in LISTS {
        let reply = api.get(path).await;
        let message = reply.refused(503);
        assert!(message.contains("the provisioner's database cannot be used: "), "{message}");
        let hint = reply.json()["hint"].as_str().unwrap().to_owned();
        assert!(hint.contains("patronictl list"), "{hint}");
    }
    api.delete("/provisioner/template/system/small").await.refused(503);
    api.get("/vm/web").await.ok();
    api.get("/status").await.ok();
    api.database.set_dead(false);
    api.delete("/provisioner/template/system/small").await.ok();
    // What may have been done is said to be so.
    api.database.set_lost_answers(1);
    let reply = api.delete("/provisioner/script/small").await;
    assert!(reply.refused(503).contains("it is not known whether"), "{}", reply.text());
    api.get("/provisioner/script/small").await.refused(404);
}

#[tokio::test]
async fn a_database_that_says_nothing_is_not_waited_for_for_ever() {
    let settings = ApiSettings {
        limits: Limits { change_time: Duration::from_millis(200), ..settings().limits },
        ..settings()
    };
    let api = start(&Shape::with_vms(0).dump(), settings).await;
    api.database.set_silent(true);
    let message = api.get("/provisioner/profile").await.refused(503);
    assert!(message.contains("database did not answer within"), "{message}");
}

/// An API with VM `web`, and a profile `web` whose worker would run its script.
async fn with_profile() -> std::sync::Arc<Api> {
    with_profile_in(with_web().await).await
}

async fn with_profile_in(api: std::sync::Arc<Api>) -> std::sync::Arc<Api> {
    api.with_templates("small").await;
    api.post("/network/1001?nettype=bridged&description=thousand").await;
    api.post(&format!("/provisioner/profile/web?{PARTS}&arg=a=1")).await.ok();
    let primary = api.store.view().config.primary.clone().expect("there is one");
    let kinds = ["provisioner.create".to_owned()].into();
    let worker = pvc_model::job::WorkerRecord { kinds };
    api.store.announce_worker(&primary, &worker).await.expect("the tree is open");
    api.eventually("the worker is there", |view| !view.workers.is_empty()).await;
    api
}

#[tokio::test]
async fn a_vm_of_a_profile_becomes_a_task_of_the_primary() {
    let api = with_profile().await;
    let ask = "/provisioner/create?name=new1&profile=web&define_vm=yes&start_vm=yes&arg=a=b=c";
    let would_be = api.post(&format!("{ask}&dry_run=true")).await;
    assert_eq!(would_be.status, 200, "{}", would_be.text());
    assert!(api.store.view().jobs.is_empty(), "that was dry");
    let reply = api.post(ask).await;
    assert_eq!(reply.status, 202, "{}", reply.text());
    let task: serde_json::Value = serde_json::from_str(&reply.text()).expect("JSON");
    assert_eq!(task["task_name"], "provisioner.create");
    let run_on = task["run_on"].as_str().expect("a text");
    assert!(run_on.ends_with(" (primary)"), "{run_on}");
    let log = api.get(&format!("/tasks/{}/log", task["task_id"].as_str().unwrap())).await.ok();
    assert_eq!(log["kwargs"]["vm_name"], "new1");
    assert!(!log.to_string().contains("b=c"), "arguments may be passwords: {log}");
    let refused = api.post(ask).await.refused(400);
    assert!(refused.contains("is being made by task"), "{refused}");
    let refused = api.define("", &xml("new1", UUID)).await.refused(400);
    assert!(refused.contains("VM `new1` is being made by task"), "{refused}");
    // Nor is another VM called so by its XML.
    let refused = api.form(Method::PUT, "/vm/web", "xml", &xml("new1", UUID)).await.refused(400);
    assert!(refused.contains("VM `new1` is being made by task"), "{refused}");
    let refused = api.form(Method::POST, "/vm/web/check", "xml", &xml("new1", UUID)).await;
    assert!(refused.text().contains("is being made by task"), "{}", refused.text());
}

#[tokio::test]
async fn a_vm_of_a_profile_is_defined_and_started_unless_said_otherwise() {
    use pvc_model::job::JobWork;
    for (given, expected) in [
        ("", (true, true)),
        ("&start_vm=no", (true, false)),
        ("&define_vm=no", (false, false)),
        ("&define_vm=yes&start_vm=yes", (true, true)),
    ] {
        let api = with_profile().await;
        let reply = api.post(&format!("/provisioner/create?name=new1&profile=web{given}")).await;
        assert_eq!(reply.status, 202, "{given}: {}", reply.text());
        api.eventually("the task is there", |view| !view.jobs.is_empty()).await;
        let view = api.store.view();
        let job = view.jobs.values().next().expect("it was submitted");
        let JobWork::Provision(wanted) = &job.spec.work else { panic!("{:?}", job.spec.work) };
        assert_eq!((wanted.define, wanted.start), expected, "{given}");
    }
}

#[tokio::test]
async fn what_keeps_a_vm_from_being_made_is_refused_before_there_is_a_task() {
    let api = with_profile().await;
    for (given, why) in [
        ("name=web&profile=web&define_vm=yes", "`web` exists already"),
        ("name=new1&profile=none&define_vm=yes", "there is no profile `none`"),
        ("name=new1&profile=web&define_vm=yes&arg=x", "`x` is not NAME=VALUE"),
        ("name=new1&profile=web&define_vm=no&start_vm=yes", "cannot be started"),
        ("name=image_x&profile=web&define_vm=yes", "as images are"),
        ("name=a%2Fb&profile=web&define_vm=yes", "contains a `/`"),
        ("profile=web&define_vm=yes", "name"),
    ] {
        let refused = api.post(&format!("/provisioner/create?{given}")).await;
        assert_eq!(refused.status, 400, "{given}: {}", refused.text());
        assert!(refused.text().contains(why), "{given}: {}", refused.text());
    }
    api.post("/provisioner/template/network/small/net/4242").await.ok();
    let refused = api.post("/provisioner/create?name=new1&profile=web&define_vm=yes").await;
    assert!(refused.text().contains("there is no network `4242`"), "{}", refused.text());
    api.delete("/provisioner/template/network/small/net/4242").await.ok();
    api.post("/provisioner/template/storage/small/disk/sdb?pool=vms&disk_size=900000").await.ok();
    let refused = api.post("/provisioner/create?name=new1&profile=web&define_vm=yes").await;
    assert!(refused.text().contains("bytes are needed"), "{}", refused.text());
    assert!(api.store.view().jobs.is_empty());
}

/// Parts of a template are checked when they are added. What they name may go after that, or was
/// never there if PVC 1.0.3 has kept them.
#[tokio::test]
async fn a_vm_of_a_template_that_names_what_is_not_there_is_no_task() {
    let api = with_profile().await;
    let ask = "/provisioner/create?name=new1&profile=web";
    let nodes = "`pvc provisioner template system modify` changes the nodes of the template";
    for (breaks, mends, status, why, hint) in [
        (
            "UPDATE system_template SET node_limit = 'gone'",
            "UPDATE system_template SET node_limit = NULL",
            400,
            "there is no node `gone`",
            Some(nodes),
        ),
        (
            "UPDATE storage SET pool = 'gone'",
            "UPDATE storage SET pool = 'vms'",
            404,
            "pool `gone` does not exist",
            None,
        ),
        (
            "UPDATE storage SET source_volume = 'gone', disk_size_gb = NULL",
            "UPDATE storage SET source_volume = NULL, disk_size_gb = 4",
            404,
            "volume `vms/gone` does not exist",
            Some("`pvc storage volume list` shows the volumes"),
        ),
    ] {
        api.write_rows(breaks).await;
        for ask in [ask.to_owned(), format!("{ask}&dry_run=true")] {
            let reply = api.post(&ask).await;
            assert!(reply.refused(status).contains(why), "{breaks}: {}", reply.text());
            if let Some(hint) = hint {
                assert_eq!(reply.json()["hint"], hint, "{breaks}");
            }
        }
        api.write_rows(mends).await;
    }
    assert!(api.store.view().jobs.is_empty());
    assert_eq!(api.post(&format!("{ask}&dry_run=true")).await.status, 200, "it is whole again");
}

#[tokio::test]
async fn a_vm_for_which_no_node_of_its_template_has_room_is_no_task() {
    let api = with_profile().await;
    let ask = "/provisioner/create?name=new1&profile=web";
    let full = "/nodes/pvchv2/memfree";
    api.write("/nodes/pvchv3/domainstate", "flushed").await;
    api.write(full, "100").await;
    api.eventually("the nodes are so", |view| {
        let node = |name| view.node(name).expect("it is there");
        let has_room = node("pvchv2").figures.memory_free_mib > 100;
        node("pvchv3").domain_state == DomainState::Flushed && !has_room
    })
    .await;
    let limited = "is not among the nodes the VM is limited to";
    for (template, refused) in [
        ("node_limit=pvchv3", Some("`pvchv3` is in domain state `flushed`, not `ready`")),
        ("node_limit=pvchv3", Some(limited)),
        ("node_limit=pvchv2&vram=200", Some("has 100 MiB of memory free, and the VM needs 200")),
        ("node_limit=pvchv2,pvchv1", None),
        // Whichever it is by which the best of them is chosen.
        ("node_selector=vms", None),
        ("node_selector=load&vram=2000000", Some("MiB of memory in all")),
    ] {
        api.put(&format!("/provisioner/template/system/small?{template}")).await.ok();
        let reply = api.post(&format!("{ask}&dry_run=true")).await;
        match refused {
            Some(why) => {
                let said = reply.refused(400);
                assert!(said.starts_with("no node can take the VM: "), "{template}: {said}");
                assert!(said.contains(why), "{template}: {said}");
                api.post(ask).await.refused(400);
            }
            None => assert_eq!(reply.status, 200, "{template}: {}", reply.text()),
        }
    }
    assert!(api.store.view().jobs.is_empty());
}

#[tokio::test]
async fn a_task_knows_whether_memory_may_be_overcommitted() {
    use pvc_model::job::JobWork;
    for refuses in [false, true] {
        let settings = ApiSettings { refuse_memory_overcommit: refuses, ..settings() };
        let api = std::sync::Arc::new(start(&Shape::with_vms(0).dump(), settings).await);
        let api = with_profile_in(api).await;
        assert_eq!(api.post("/provisioner/create?name=new1&profile=web").await.status, 202);
        api.eventually("the task is there", |view| !view.jobs.is_empty()).await;
        let view = api.store.view();
        let job = view.jobs.values().next().expect("it was submitted");
        let JobWork::Provision(wanted) = &job.spec.work else { panic!("{:?}", job.spec.work) };
        assert_eq!(wanted.refuse_memory_overcommit, refuses);
    }
}

#[tokio::test]
async fn the_log_says_who_has_a_vm_made_and_keeps_the_arguments() {
    let (log, _guard) = crate::security::logged(tracing::Level::INFO);
    let api = with_profile().await;
    let ask = "/provisioner/create?name=new1&profile=web&arg=root_password=hunter2";
    assert_eq!(api.post(ask).await.status, 202);
    let line = log.line("/api/v1/provisioner/create");
    for part in ["POST", "status=202", "caller=\"admin\"", "192.0.2.1"] {
        assert!(line.contains(part), "{part} in {line}");
    }
    log.assert_silent_about("hunter2");
}

#[tokio::test]
async fn the_log_says_who_has_changed_a_script_and_to_what() {
    let (log, _guard) = crate::security::logged(tracing::Level::INFO);
    let api = with_vms(0).await;
    let changed = "a provisioning script is changed";
    api.post("/provisioner/script?name=deb&data=print(1)&dry_run=true").await.ok();
    api.post("/provisioner/userdata?name=deb&data=print(0)").await.ok();
    assert_eq!(log.lines_with("provisioning script"), [""; 0], "nothing has been changed");
    for (method, path, action, text) in [
        (Method::POST, "/provisioner/script?name=deb&data=print(1)", "added", "print(1)"),
        (Method::PUT, "/provisioner/script/deb?data=print(2)", "changed", "print(2)"),
        (Method::DELETE, "/provisioner/script/deb", "removed", ""),
    ] {
        let request = request(method, path).body(Body::empty()).unwrap();
        api.send(request).await.ok();
        let line = log.lines_with(changed).pop().unwrap_or_default();
        let sha256: String =
            Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        let sha256 = format!("sha256=\"{sha256}\"");
        let action = format!("action=\"{action}\"");
        for part in [&*action, "script=\"deb\"", &*sha256, "caller=\"admin\""] {
            assert!(line.contains(part), "{part} in {line}");
        }
        log.assert_silent_about("print(");
    }
    assert_eq!(log.lines_with(changed).len(), 3);
    assert_eq!(log.lines_with("has failed"), [""; 0]);
    api.delete("/provisioner/script/deb").await.refused(404);
    let line = log.line("the change of a provisioning script has failed");
    for part in ["script=\"deb\"", "caller=\"admin\""] {
        assert!(line.contains(part), "{part} in {line}");
    }
}
