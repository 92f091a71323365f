//! Dry runs: the outcome of a change is told without making it.

use axum::body::Body;
use pvc_model::Uuid;
use pvc_model::osd::{OsdId, OsdState};

use super::*;

use super::osd::with_ceph_on;
use super::provisioner::PARTS;
use crate::common::request;

const DEVICE: &str = "<interface type='bridge'><mac address='52:54:00:aa:bb:cc'/><source \
                      bridge='vmbr1000'/></interface>";

#[tokio::test]
async fn what_a_move_would_come_to_is_reported_without_making_it() {
    let api = with_vms(0).await;
    api.define("?node=pvchv1&limit=pvchv1,pvchv2", &xml("web", UUID)).await.ok();
    let plan = api.post("/vm/web/node?action=migrate&dry_run=true").await.ok();
    assert_eq!(plan["message"], "VM `web` would go to node `pvchv2`");
    assert_eq!(
        (&plan["from"], &plan["to"], &plan["method"]),
        (&json!("pvchv1"), &json!("pvchv2"), &json!("off"))
    );
    let reasons: Vec<&str> = plan["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["reason"].as_str().unwrap())
        .collect();
    assert_eq!(reasons[0], "is where the VM is now");
    assert!(
        reasons[1].starts_with("has ") && reasons[1].ends_with("MiB of memory free"),
        "{reasons:?}"
    );
    assert_eq!(reasons[2], "is not among the nodes the VM is limited to");
    assert_eq!(api.get("/vm/web/node").await.ok()["node"], "pvchv1", "nothing was changed");
    api.post("/vm/web/node?action=migrate&node=pvchv3&dry_run=true").await.refused(400);
    api.post("/vm/none/node?action=migrate&dry_run=true").await.refused(404);
}

#[tokio::test]
async fn what_a_flush_would_come_to_is_reported_without_making_it() {
    let api = with_vms(20).await;
    let before = api.get("/node/pvchv1/domain-state").await.ok();
    let plan = api.post("/node/pvchv1/domain-state?state=flush&dry_run=true").await.ok();
    assert!(
        plan["message"].as_str().unwrap().starts_with("a flush of node `pvchv1` would move "),
        "{plan}"
    );
    for step in plan["vms"].as_array().unwrap() {
        assert!(
            ["move", "shutdown", "wait", "blocked"].contains(&step["action"].as_str().unwrap()),
            "{step}"
        );
    }
    assert_eq!(api.get("/node/pvchv1/domain-state").await.ok(), before);
    let ready = api.post("/node/pvchv1/domain-state?state=ready&dry_run=true").await.ok();
    assert!(ready["message"].as_str().unwrap().starts_with("nothing was changed"), "{ready}");
    api.post("/node/nowhere/domain-state?state=flush&dry_run=true").await.refused(404);
}

#[tokio::test]
async fn whether_a_state_a_name_or_a_removal_is_refused_is_reported_without_a_change() {
    let api = with_web().await;
    let other = UUID.replace('2', "3");
    api.define("?node=pvchv1", &xml("db", &other)).await.ok();
    api.play("web", "start", true).await;
    api.eventually("it runs", |view| view.vm("web").is_some_and(|vm| vm.state == VmState::Start))
        .await;
    let message = |reply: Reply| async move { reply.ok()["message"].as_str().unwrap().to_owned() };
    let stop = message(api.post("/vm/web/state?state=stop&dry_run=true&wait=true").await).await;
    assert_eq!(stop, "VM `web` would be stopped");
    assert_eq!(message(api.get("/vm/web/removal").await).await, "VM `web` would be removed");
    let rename = message(api.post("/vm/db/rename?new_name=shop&dry_run=true").await).await;
    assert_eq!(rename, "VM `db` would be called `shop`");
    for (path, status) in [
        ("/vm/db/state?state=restart&dry_run=true", 400),
        ("/vm/none/state?state=stop&dry_run=true", 404),
        ("/vm/web/rename?new_name=shop&dry_run=true", 400),
        ("/vm/db/rename?new_name=web&dry_run=true", 400),
        ("/vm/db/rename?new_name=..%2fx&dry_run=true", 400),
    ] {
        let words = api.post(path).await.refused(status);
        let made = api.post(&path.replace("&dry_run=true", "")).await.refused(status);
        assert_eq!(words, made, "it is refused as the change would be: {path}");
    }
    api.get("/vm/none/removal").await.refused(404);
    api.write("/nodes/pvchv1/daemonstate", "dead".to_owned()).await;
    let silent = |reply: Reply| reply.refused(400).contains("whose daemon is in state `dead`");
    api.eventually("it is silent", |view| {
        view.node("pvchv1")
            .is_some_and(|node| node.daemon_state == pvc_model::node::DaemonState::Dead)
    })
    .await;
    assert!(silent(api.get("/vm/web/removal").await), "of the node nobody but the API knows");
    assert_eq!(api.state("web"), VmState::Start, "nothing was changed");
    assert_eq!(api.state("db"), VmState::Stop);
    let view = api.store.view();
    assert!(view.vm("shop").is_none() && view.jobs.is_empty());
}

/// Each operation that can be tried, with what it takes to be carried out.
const CHANGES: [(&str, &str, &str); 103] = [
    ("POST", "/status", "state=true"),
    ("POST", "/initialize", "yes-i-really-mean-it=yes&overwrite=true"),
    ("POST", "/restore", "yes-i-really-mean-it=yes&cluster_data=@backup"),
    ("POST", "/store/access", "access=members&force=true"),
    ("PUT", "/faults", ""),
    ("DELETE", "/faults", ""),
    ("PUT", "/faults/{fault_id}", ""),
    ("DELETE", "/faults/{fault_id}", ""),
    ("DELETE", "/tasks/{task_id}", ""),
    ("POST", "/node/{node}/coordinator-state", "state=primary"),
    ("POST", "/node/{node}/domain-state", "state=flush"),
    ("POST", "/node/{node}/confirm-off", ""),
    ("DELETE", "/node/{node}", ""),
    ("POST", "/vm", "xml=@new"),
    ("POST", "/vm/{vm}", "xml=@new"),
    ("PUT", "/vm/{vm}", "xml=@web"),
    ("DELETE", "/vm/{vm}", ""),
    ("POST", "/vm/{vm}/meta", "autostart=true"),
    ("POST", "/vm/{vm}/tags", "action=add&tag=daily"),
    ("POST", "/vm/{vm}/state", "state=start"),
    ("POST", "/vm/{vm}/node", "action=move&node=pvchv2"),
    ("POST", "/vm/{vm}/rename", "new_name=shop"),
    ("PUT", "/vm/{vm}/memory", "memory=128"),
    ("PUT", "/vm/{vm}/vcpus", "vcpus=2"),
    ("POST", "/vm/{vm}/networks", "network=1002"),
    ("DELETE", "/vm/{vm}/networks", "network=1001"),
    ("POST", "/vm/{vm}/volumes", "volume=/srv/a.iso&type=file"),
    ("DELETE", "/vm/{vm}/volumes", "volume=hdc"),
    ("POST", "/vm/{vm}/create", "image=debian&disk=2M"),
    ("POST", "/vm/{vm}/locks", ""),
    ("POST", "/vm/{vm}/device", "xml=@device"),
    ("DELETE", "/vm/{vm}/device", "xml=@device"),
    ("POST", "/network", "vni=auto&description=new&nettype=managed"),
    ("POST", "/network/{vni}", "description=new&nettype=bridged"),
    ("PUT", "/network/{vni}", "masquerade=true"),
    ("DELETE", "/network/{vni}", ""),
    ("POST", "/network/{vni}/confirm", ""),
    ("POST", "/network/{vni}/lease", "macaddress=52:54:00:00:00:02&ipaddress=10.20.1.11"),
    ("POST", "/network/{vni}/lease/{mac}", "ipaddress=10.20.1.11"),
    ("DELETE", "/network/{vni}/lease/{mac}", ""),
    ("POST", "/network/{vni}/acl", "description=new&rule=drop"),
    ("POST", "/network/{vni}/acl/{description}", "rule=drop"),
    ("DELETE", "/network/{vni}/acl/{description}", ""),
    ("PUT", "/sriov/vf/{node}/{vf}", "vlan_id=100"),
    ("POST", "/storage/ceph/pool", "pool=fast&pgs=8&replcfg=copies=3,mincopies=2"),
    ("POST", "/storage/ceph/pool/{pool}", "pgs=8&replcfg=copies=3,mincopies=2"),
    ("PUT", "/storage/ceph/pool/{pool}", "pgs=8"),
    ("DELETE", "/storage/ceph/pool/{pool}", "yes-i-really-mean-it=yes"),
    ("POST", "/storage/ceph/volume", "pool=vms&volume=more&size=1M"),
    ("POST", "/storage/ceph/volume/{pool}/{volume}", "size=1M"),
    ("PUT", "/storage/ceph/volume/{pool}/{volume}", "new_size=2M"),
    ("DELETE", "/storage/ceph/volume/{pool}/{volume}", ""),
    ("POST", "/storage/ceph/volume/{pool}/{volume}/scan", ""),
    ("POST", "/storage/ceph/volume/{pool}/{volume}/clone", "new_volume=copy"),
    ("POST", "/storage/ceph/volume/{pool}/{volume}/flatten", ""),
    ("POST", "/storage/ceph/volume/{pool}/{volume}/upload", "image_format=raw"),
    ("POST", "/storage/ceph/trash/{pool}/{id}/restore", "new_name=back"),
    ("DELETE", "/storage/ceph/trash/{pool}/{id}", ""),
    ("POST", "/storage/ceph/snapshot", "pool=vms&volume=data&snapshot=after"),
    ("POST", "/storage/ceph/snapshot/{pool}/{volume}/{snapshot}", ""),
    ("PUT", "/storage/ceph/snapshot/{pool}/{volume}/{snapshot}", "new_name=then"),
    ("DELETE", "/storage/ceph/snapshot/{pool}/{volume}/{snapshot}", ""),
    ("POST", "/storage/ceph/snapshot/{pool}/{volume}/{snapshot}/rollback", ""),
    ("POST", "/storage/ceph/osd", "node=pvchv1&device=/dev/sdb&weight=1"),
    ("POST", "/storage/ceph/osd/{osdid}", "new_device=/dev/sdc&yes-i-really-mean-it=yes"),
    ("PUT", "/storage/ceph/osd/{osdid}", "device=/dev/sdb"),
    ("DELETE", "/storage/ceph/osd/{osdid}", "yes-i-really-mean-it=yes"),
    ("POST", "/storage/ceph/osd/{osdid}/state", "state=out"),
    ("POST", "/storage/ceph/osddb", "node=pvchv1&device=/dev/sdb"),
    ("POST", "/storage/ceph/option", "option=noout&action=set"),
    ("POST", "/storage/ceph/benchmark", "pool=vms&name=new-disks"),
    ("POST", "/provisioner/create", "name=extra&profile=small&define_vm=yes"),
    ("POST", "/provisioner/template/system", "name=new&vcpus=1&vram=64&serial=yes&vnc=no"),
    ("POST", "/provisioner/template/system/{template}", "vcpus=1&vram=64&serial=yes&vnc=no"),
    ("PUT", "/provisioner/template/system/{template}", "vcpus=2"),
    ("DELETE", "/provisioner/template/system/{template}", ""),
    ("POST", "/provisioner/template/network", "name=new"),
    ("POST", "/provisioner/template/network/{template}", ""),
    ("DELETE", "/provisioner/template/network/{template}", ""),
    ("POST", "/provisioner/template/network/{template}/net", "vni=1002"),
    ("POST", "/provisioner/template/network/{template}/net/{vni}", ""),
    ("DELETE", "/provisioner/template/network/{template}/net/{vni}", ""),
    ("POST", "/provisioner/template/storage", "name=new"),
    ("POST", "/provisioner/template/storage/{template}", ""),
    ("DELETE", "/provisioner/template/storage/{template}", ""),
    ("POST", "/provisioner/template/storage/{template}/disk", "disk_id=sdb&pool=vms&disk_size=1"),
    ("POST", "/provisioner/template/storage/{template}/disk/{disk_id}", "pool=vms&disk_size=1"),
    ("DELETE", "/provisioner/template/storage/{template}/disk/{disk_id}", ""),
    ("POST", "/provisioner/userdata", "name=new&data=x"),
    ("POST", "/provisioner/userdata/{userdata}", "data=x"),
    ("PUT", "/provisioner/userdata/{userdata}", "data=x"),
    ("DELETE", "/provisioner/userdata/{userdata}", ""),
    ("POST", "/provisioner/script", "name=new&data=x"),
    ("POST", "/provisioner/script/{script}", "data=x"),
    ("PUT", "/provisioner/script/{script}", "data=x"),
    ("DELETE", "/provisioner/script/{script}", ""),
    ("POST", "/provisioner/profile", "name=new&@parts"),
    ("POST", "/provisioner/profile/{profile}", "@parts"),
    ("PUT", "/provisioner/profile/{profile}", "arg=a=b"),
    ("DELETE", "/provisioner/profile/{profile}", ""),
    ("POST", "/provisioner/ova", "pool=vms&name=new&ova_size=4096"),
    ("POST", "/provisioner/ova/{ova}", "pool=vms&ova_size=4096"),
    ("DELETE", "/provisioner/ova/{ova}", ""),
];

/// A cluster with something of everything that can be changed, and the names of what has none of
/// its own. The VM `web` is off, `live` runs, and `db` is there for a task.
async fn with_everything() -> (Api, [(&'static str, String); 2]) {
    let tree = EmbeddedTree::in_memory().connect();
    let member = FlakyTree::with_password(tree, "secret", &Closed::default());
    let (api, osds) = with_ceph_on(member).await;
    api.with_idle_worker().await;
    api.store.announce_daemon(&"pvchv1".into(), "a test").await.unwrap();
    api.record_osd("0").await;
    let (id, uuid) = (OsdId(0), Some(Uuid::from_u128(1)));
    let state = OsdState { id, uuid, is_up: true, is_in: true, is_new: false };
    osds.lock().unwrap().insert(state);
    api.with_fault("A_FAULT", "10", "2026-11-20 10:00:00").await;
    for (vm, digit) in [("web", "2"), ("live", "5"), ("db", "6")] {
        api.define("?node=pvchv1", &xml(vm, &UUID.replace('2', digit))).await.ok();
    }
    api.play("live", "start", true).await;
    api.post("/vm/web/networks?network=1001").await.ok();
    api.post("/vm/web/volumes?volume=/srv/b.iso&type=file&disk_id=hdc&bus=ide").await.ok();
    let task = api.post("/vm/db/locks").await.json()["task_id"].as_str().unwrap().to_owned();

    api.post("/storage/ceph/volume/vms/data?size=1M").await.ok();
    api.post("/storage/ceph/volume/vms/image_debian?size=1M").await.ok();
    api.post("/storage/ceph/snapshot/vms/data/before").await.ok();
    api.post("/storage/ceph/volume/vms/gone?size=1M").await.ok();
    api.delete("/storage/ceph/volume/vms/gone").await.ok();
    let trash = api.get("/storage/ceph/trash").await.ok();
    let trashed = trash[0]["id"].as_str().unwrap().to_owned();
    api.with_cards().await;
    let net = "nettype=managed&description=net&ip4_network=10.20.1.0/24";
    api.post(&format!("/network/1999?{net}")).await.ok();
    api.post("/network/1999/lease/52:54:00:00:00:01?ipaddress=10.20.1.10").await.ok();
    api.post("/network/1999/acl/last?rule=drop").await.ok();
    api.post("/network/1998?nettype=bridged&description=other").await.ok();
    api.put("/network/1998?mtu=1400&confirm=60").await.ok();
    api.with_templates("small").await;
    api.with_templates("used").await;
    let parts = PARTS.replace("small", "used");
    api.post(&format!("/provisioner/profile/small?{parts}")).await.ok();
    api.with_ova("box").await;
    api.daemon_state("pvchv3", DaemonState::Dead).await;
    api.write("/nodes/pvchv4", "hypervisor").await;
    api.store.repair().await.unwrap();
    api.daemon_state("pvchv4", DaemonState::Fenced).await;
    (api, [("{id}", trashed), ("{task_id}", task)])
}

/// The path with names of what is there, or of what is not where something is made of it.
fn of_something(method: &str, template: &str, names: &[(&str, String)]) -> String {
    let is_post = method == "POST";
    let vm = match template {
        "/vm/{vm}" | "/vm/{vm}/create" if is_post => "extra",
        "/vm/{vm}/device" => "live",
        _ => "web",
    };
    let vni = match template {
        "/network/{vni}" if is_post => "auto",
        "/network/{vni}/confirm" => "1998",
        _ if template.starts_with("/provisioner") && is_post => "1002",
        _ if template.starts_with("/provisioner") => "1001",
        _ => "1999",
    };
    let (pool, volume, snapshot) = match template {
        "/storage/ceph/pool/{pool}" if is_post => ("fast", "data", "before"),
        "/storage/ceph/volume/{pool}/{volume}" if is_post => ("vms", "more", "before"),
        "/storage/ceph/snapshot/{pool}/{volume}/{snapshot}" if is_post => ("vms", "data", "after"),
        // No snapshot of it is in the way of new contents.
        "/storage/ceph/volume/{pool}/{volume}/upload" => ("vms", "image_debian", "before"),
        _ => ("vms", "data", "before"),
    };
    let is_made = is_post && (template.ends_with("{template}") || !template.contains("/template/"));
    let part = if is_made { "extra" } else { "small" };
    let node = match template {
        "/node/{node}/confirm-off" => "pvchv3",
        "/node/{node}" => "pvchv4",
        _ => "pvchv1",
    };
    let own = names.iter().map(|(variable, name)| (*variable, name.as_str()));
    let names = own.chain([
        ("{vm}", vm),
        ("{vni}", vni),
        ("{node}", node),
        ("{fault_id}", "A_FAULT"),
        ("{pool}", pool),
        ("{volume}", volume),
        ("{snapshot}", snapshot),
        ("{osdid}", "0"),
        ("{vf}", "ens1f1v2"),
        ("{mac}", if is_post { "52:54:00:00:00:02" } else { "52:54:00:00:00:01" }),
        ("{description}", if is_post { "first" } else { "last" }),
        ("{template}", part),
        ("{userdata}", part),
        ("{script}", part),
        ("{profile}", part),
        ("{ova}", if is_made { "extra" } else { "box" }),
        ("{disk_id}", if is_post { "sdc" } else { "sda" }),
    ]);
    names.fold(template.to_owned(), |path, (variable, name)| path.replace(variable, name))
}

#[tokio::test]
async fn whatever_changes_something_can_be_tried_and_changes_nothing() {
    let (api, names) = with_everything().await;
    let trash = api.get("/storage/ceph/trash").await.ok();
    let document = serde_json::to_value(pvc_api::document()).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let mut described: Vec<(String, String)> = Vec::new();
    for (path, item) in paths {
        for (method, operation) in item.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let path = path.strip_prefix("/api/v1").unwrap();
            // Sessions are nobody else's, and a check changes nothing.
            let changes =
                method != "get" && !["/login", "/logout", "/vm/{vm}/check"].contains(&path);
            let tries = parameters.into_iter().any(|parameter| parameter["name"] == "dry_run");
            assert_eq!(tries, changes, "{method} {path}");
            if tries {
                described.push((method.to_uppercase(), path.to_owned()));
            }
        }
    }
    let known = |(method, path): &(String, String)| {
        CHANGES.iter().any(|(known, at, _)| known == method && at == path)
    };
    let missing: Vec<_> = described.iter().filter(|operation| !known(operation)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let before = api.get("/backup?secrets=true").await.ok();
    let provisioned = api.provisioned().await;
    let mut refused = Vec::new();
    for (method, template, given) in CHANGES {
        let path = of_something(method, template, &names);
        let new = UUID.replace('2', "4");
        let given = given
            .replace("@parts", PARTS)
            .replace("@new", &escaped(&xml("extra", &new)))
            .replace("@web", &escaped(&xml("web", UUID)))
            .replace("@device", &escaped(DEVICE))
            .replace("@backup", &escaped(&before.to_string()));
        let ways = [format!("{path}?dry_run=true&{given}"), format!("/dry-run{path}?{given}")];
        for way in ways {
            let as_method = Method::from_bytes(method.as_bytes()).unwrap();
            let asked = request(as_method, &way);
            let reply = api.send(asked.body(Body::empty()).unwrap()).await;
            if reply.status != 200 {
                refused.push(format!("{method} {way}: {} {}", reply.status, reply.text()));
            }
            let after = api.get("/backup?secrets=true").await.ok();
            assert_eq!(after, before, "{method} {way} changed something: {}", reply.text());
            assert_eq!(api.get("/storage/ceph/trash").await.ok(), trash, "{method} {way}");
            assert_eq!(api.provisioned().await, provisioned, "{method} {way}");
        }
    }
    assert!(refused.is_empty(), "{refused:#?}");
}

/// Operations that make what the end of their path names.
const MAKE: [(&str, &str); 10] = [
    ("POST", "/vm/{vm}"),
    ("POST", "/network/{vni}"),
    ("POST", "/storage/ceph/pool/{pool}"),
    ("POST", "/provisioner/template/system/{template}"),
    ("POST", "/provisioner/template/network/{template}"),
    ("POST", "/provisioner/template/storage/{template}"),
    ("POST", "/provisioner/userdata/{userdata}"),
    ("POST", "/provisioner/script/{script}"),
    ("POST", "/provisioner/profile/{profile}"),
    ("POST", "/provisioner/ova/{ova}"),
];

/// Reads of something that is in nothing: for clients of PVC 1.0.3 a list that is not found is an
/// empty one, and so is a volume of another cluster that copies VMs there.
const REFUSED: [&str; 5] = [
    "/network/{vni}/lease",
    "/network/{vni}/acl",
    "/sriov/pf/{node}",
    "/sriov/vf/{node}",
    "/storage/ceph/volume/{pool}/{volume}",
];

/// The path with names of what does not exist.
fn of_nothing(path: &str) -> String {
    let names = [
        ("{vm}", "none"),
        ("{node}", "nowhere"),
        ("{vni}", "4242"),
        ("{mac}", "52:54:00:00:00:99"),
        ("{description}", "none"),
        ("{pool}", "none"),
        ("{volume}", "none"),
        ("{snapshot}", "none"),
        ("{id}", "0123456789ab"),
        ("{osdid}", "4711"),
        ("{vf}", "none"),
        ("{task_id}", "ffffffff"),
        ("{fault_id}", "NONE"),
        ("{job}", "none"),
        ("{template}", "none"),
        ("{ova}", "none"),
        ("{disk_id}", "sdz"),
        ("{userdata}", "none"),
        ("{script}", "none"),
        ("{profile}", "none"),
    ];
    names.iter().fold(path.to_owned(), |path, (name, none)| path.replace(name, none))
}

#[tokio::test]
async fn what_does_not_exist_is_not_found_whatever_is_asked_of_it() {
    let api = with_web().await;
    api.with_cards().await;
    let fill = |given: &str| {
        let [new, web] = [UUID.replace('2', "4"), UUID.to_owned()];
        given
            .replace("@new", &escaped(&xml("extra", &new)))
            .replace("@web", &escaped(&xml("web", &web)))
            .replace("@device", &escaped(DEVICE))
    };
    let mut wrong = Vec::new();
    for (method, path, given) in CHANGES {
        // OSDs, of which this storage has none, have their own test.
        let is_of_osds = path.starts_with("/storage/ceph/osd");
        if !path.contains('{') || is_of_osds || MAKE.contains(&(method, path)) {
            continue;
        }
        let as_method = Method::from_bytes(method.as_bytes()).unwrap();
        for dry in ["dry_run=true&", ""] {
            let at = format!("{}?{dry}{}", of_nothing(path), fill(given));
            let reply =
                api.send(request(as_method.clone(), &at).body(Body::empty()).unwrap()).await;
            if reply.status != 404 {
                wrong.push(format!("{method} {path} {dry}: {} {}", reply.status, reply.text()));
            }
        }
    }
    for (method, at) in [
        ("POST", "/vm/web/node?action=move&node=nowhere"),
        ("POST", "/vm/web/volumes?volume=vms/none"),
        ("POST", "/storage/ceph/volume?pool=none&volume=x&size=1M"),
        ("POST", "/storage/ceph/snapshot?pool=none&volume=x&snapshot=y"),
        ("POST", "/storage/ceph/snapshot?pool=vms&volume=none&snapshot=y"),
        ("POST", "/storage/ceph/benchmark?pool=none"),
    ] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let reply = api.send(request(method.clone(), at).body(Body::empty()).unwrap()).await;
        if reply.status != 404 {
            wrong.push(format!("{method} {at}: {} {}", reply.status, reply.text()));
        }
    }
    let document = serde_json::to_value(pvc_api::document()).unwrap();
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path.strip_prefix("/api/v1").unwrap();
        // Of faults it is a search, as in PVC 1.0.3.
        if !path.contains('{') || item.get("get").is_none() || path == "/faults/{fault_id}" {
            continue;
        }
        let expected = if REFUSED.contains(&path) { 400 } else { 404 };
        let target = if path.ends_with("/trace") { "?target=10.0.0.1" } else { "" };
        let reply = api.get(&format!("{}{target}", of_nothing(path))).await;
        if reply.status != expected {
            wrong.push(format!("GET {path}: {} {}", reply.status, reply.text()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn escaped(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// Reads whose answer is the storage's: the contents of a volume, and its trash.
const ASK_THE_STORAGE: [&str; 2] =
    ["/storage/ceph/volume/{pool}/{volume}/download", "/storage/ceph/trash"];

#[tokio::test]
async fn no_read_asks_the_storage_but_for_contents_and_the_trash() {
    let (api, names) = with_everything().await;
    let document = serde_json::to_value(pvc_api::document()).unwrap();
    let described = document["paths"].as_object().unwrap().iter();
    let reads = described.filter(|(_, item)| item.get("get").is_some());
    let reads = reads.map(|(path, _)| path.strip_prefix("/api/v1").unwrap());
    // The stream of events has no end.
    let reads = reads.filter(|path| !ASK_THE_STORAGE.contains(path) && *path != "/events");
    let closed = Gate::closing_at(0);
    api.storage.set_gate(closed.clone());
    let mut paths: Vec<_> = reads.map(|path| of_something("GET", path, &names)).collect();
    paths.push("/storage/ceph/volume/vms/unknown".to_owned());
    assert!(paths.len() > 60, "{paths:?}");
    for path in paths {
        let reply = tokio::time::timeout(Duration::from_secs(20), api.get(&path)).await;
        assert!(!closed.is_closed(), "{path} asks the storage");
        reply.unwrap_or_else(|_| panic!("{path} waits for something"));
    }
}
