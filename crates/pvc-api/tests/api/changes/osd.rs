//! OSDs are made, moved and removed by tasks of their nodes; the monitors do the rest at once.

use pvc_model::NodeName;
use pvc_model::job::JobWork;
use pvc_model::osd::{BlockDevice, Device, LvmName, OsdFlag, OsdId};
use pvc_model::storage::RbdAccess;
use pvc_ports::Tree;
use pvc_testkit::{MemoryOsds, MemoryStorage, ScriptedCluster, SharedOsds};
use serde_json::Value;

use super::*;

use crate::common::start_with;

const NODE: &str = "pvchv1";
const GIB: u64 = 1 << 30;
const MEANT: &str = "yes-i-really-mean-it=yes";

/// A cluster whose storage is Ceph; node `pvchv1` has two empty disks and one with a partition
/// table.
async fn with_ceph() -> (Api, SharedOsds) {
    with_ceph_on(EmbeddedTree::in_memory().connect()).await
}

/// The same on this tree.
pub async fn with_ceph_on(tree: Arc<dyn Tree>) -> (Api, SharedOsds) {
    let mut osds = MemoryOsds::new();
    osds.add_blank(NODE, "/dev/sdb", 100 * GIB);
    osds.add_blank(NODE, "/dev/sdc", 20 * GIB);
    osds.add_blank(NODE, "/dev/sdd", 200 * GIB);
    osds.partition(NODE, &device("/dev/sdd")).unwrap();
    let osds = osds.shared();
    let monitors = vec![NODE.to_owned()];
    let access = RbdAccess { monitors, port: 6789, user: "libvirt".to_owned(), secret: None };
    let storage = MemoryStorage::of_cluster(Arc::new(ScriptedCluster::new(access)));
    let storage = storage.with_osds(osds.clone(), NODE);
    let api = start_with(tree, &Shape::with_vms(0).dump(), settings(), storage).await;
    (api, osds)
}

/// The same with a worker at work.
async fn at_work() -> (Api, SharedOsds) {
    let (api, osds) = with_ceph().await;
    api.start_worker(NODE);
    let is_there =
        |view: &pvc_model::cluster::Cluster| view.workers.contains_key(&NodeName::new(NODE));
    api.eventually("the worker is there", is_there).await;
    (api, osds)
}

/// The same with a worker that does nothing.
async fn at_rest() -> (Api, SharedOsds) {
    let (api, osds) = with_ceph().await;
    api.with_idle_worker().await;
    (api, osds)
}

fn device(name: &str) -> Device {
    Device::parse(name).unwrap()
}

impl Api {
    /// Waits for the end of the task that a request has become.
    async fn end(&self, submitted: Reply) -> Value {
        assert_eq!(submitted.status, 202, "{}", submitted.text());
        let id = submitted.json()["task_id"].as_str().unwrap().to_owned();
        self.eventually("the task has ended", |view| {
            view.jobs.values().all(|job| job.progress.state.is_over())
        })
        .await;
        self.get(&format!("/tasks/{id}/log")).await.ok()
    }

    async fn osds(&self) -> Vec<String> {
        let list = self.get("/storage/ceph/osd").await.ok();
        let name = |osd: &Value| {
            format!("{}:{}:{}", text(osd, "id"), text(osd, "node"), text(osd, "device"))
        };
        list.as_array().unwrap().iter().map(name).collect()
    }

    /// Records a worker of every kind of jobs, which does nothing.
    pub async fn with_idle_worker(&self) {
        let kinds = json!({ "kinds": JobWork::KINDS });
        self.write("/pvcrs/workers/pvchv1", kinds.to_string()).await;
    }

    /// Records an OSD that is on node `pvchv1`.
    pub async fn record_osd(&self, id: &str) {
        self.write(&format!("/ceph/osds/{id}"), "").await;
        self.write(&format!("/ceph/osds/{id}/node"), NODE).await;
        self.write(&format!("/ceph/osds/{id}/device"), "/dev/sdb").await;
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap()
}

#[tokio::test]
async fn an_osd_has_its_whole_life() {
    let (api, osds) = at_work().await;
    let add = "/storage/ceph/osd?node=pvchv1&device=/dev/sdb&weight=1";
    let planned = api.end(api.post(&format!("{add}&plan=true")).await).await;
    let lines: Vec<&str> =
        planned["log"].as_array().unwrap().iter().map(|l| l.as_str().unwrap()).collect();
    assert!(lines.contains(&"device /dev/sdb would be erased"), "{planned}");
    assert_eq!((text(&planned, "state"), api.osds().await.len()), ("SUCCESS", 0), "{planned}");

    let made = api.end(api.post(add).await).await;
    assert_eq!(text(&made, "status"), "made OSD 0 of device /dev/sdb of node \"pvchv1\"");
    assert_eq!(api.osds().await, ["0:pvchv1:/dev/sdb"]);
    let osd = api.get("/storage/ceph/osd/0").await.ok();
    assert_eq!((&osd[0]["is_split"], &osd[0]["stats"]["kb"]), (&json!(false), &json!("|")));
    let again = api.end(api.post(add).await).await;
    assert_eq!(text(&again, "state"), "FAILURE");
    assert!(
        text(&again, "status").contains("device `/dev/sdb` holds OSD 0 of this cluster"),
        "{again}"
    );

    let moved = format!("/storage/ceph/osd/0?new_device=/dev/sdc&{MEANT}");
    let moved = api.end(api.post(&moved).await).await;
    assert_eq!(text(&moved, "status"), "OSD 0 moved to device /dev/sdc", "{moved}");
    assert_eq!(api.osds().await, ["0:pvchv1:/dev/sdc"]);

    let taken_up = api.end(api.put("/storage/ceph/osd/0?device=/dev/sdc").await).await;
    assert_eq!(text(&taken_up, "state"), "SUCCESS", "{taken_up}");

    let removed = api.end(api.delete(&format!("/storage/ceph/osd/0?{MEANT}")).await).await;
    assert_eq!(text(&removed, "status"), "OSD 0 is removed", "{removed}");
    assert!(api.osds().await.is_empty());
    let mut osds = osds.lock().unwrap();
    assert!(osds.osd_states().is_empty() && osds.lost().is_empty());
}

#[tokio::test]
async fn a_volume_group_for_databases_is_made_and_used() {
    let (api, osds) = at_work().await;
    let group = "/storage/ceph/osddb?node=pvchv1&device=/dev/sdc";
    assert_eq!(text(&api.end(api.post(group).await).await, "state"), "SUCCESS");
    let again = api.end(api.post(group).await).await;
    assert!(text(&again, "status").contains("there is a volume group `osd-db` already"), "{again}");
    let add = "/storage/ceph/osd?node=pvchv1&device=/dev/sdb&weight=1&osd_count=2&ext_db_size=4G";
    let made = api.end(api.post(add).await).await;
    assert_eq!(text(&made, "state"), "SUCCESS", "{made}");
    let osd = api.get("/storage/ceph/osd/1").await.ok();
    assert_eq!((text(&osd[0], "db_device"), &osd[0]["is_split"]), ("osd-db/osd-1", &json!(true)));
    assert_eq!(osds.lock().unwrap().osd_states().len(), 2);
    assert_eq!(databases(&osds), [("osd-0".to_owned(), 4 * GIB), ("osd-1".to_owned(), 4 * GIB)]);
}

/// The volumes in the group for databases, with their bytes.
fn databases(osds: &SharedOsds) -> Vec<(String, u64)> {
    let group = osds.lock().unwrap().volume_group(NODE, &LvmName::db_group()).unwrap();
    group.volumes.iter().map(|(name, bytes)| (name.to_string(), *bytes)).collect()
}

#[tokio::test]
async fn a_database_of_a_part_of_the_disk_and_a_weight_are_what_the_task_makes() {
    let (api, osds) = at_work().await;
    osds.lock().unwrap().add_blank(NODE, "/dev/nvme0n1", 50 * GIB);
    let group = "/storage/ceph/osddb?node=pvchv1&device=/dev/sdc";
    assert_eq!(text(&api.end(api.post(group).await).await, "state"), "SUCCESS");
    let add = "/storage/ceph/osd?node=pvchv1&device=/dev/sdb&weight=1&ext_db_ratio=0.05";
    let made = api.end(api.post(add).await).await;
    assert_eq!(text(&made, "state"), "SUCCESS", "{made}");
    // 5 percent of 25,599 extents of 4 MiB.
    assert_eq!(databases(&osds), [("osd-0".to_owned(), 1279 << 22)]);
    assert_eq!(osds.lock().unwrap().place(OsdId(0)), Some((NODE.to_owned(), 1.0)));

    let moved = "/storage/ceph/osd/0?new_device=/dev/nvme0n1&weight=2.5&ext_db_ratio=0.2";
    let moved = api.end(api.post(&format!("{moved}&{MEANT}")).await).await;
    assert_eq!(text(&moved, "state"), "SUCCESS", "{moved}");
    assert_eq!(api.osds().await, ["0:pvchv1:/dev/nvme0n1"]);
    assert_eq!(osds.lock().unwrap().place(OsdId(0)), Some((NODE.to_owned(), 2.5)));
    // 20 percent of 12,799.
    assert_eq!(databases(&osds), [("osd-0".to_owned(), 2559 << 22)]);
}

#[tokio::test]
async fn a_disk_that_is_in_use_is_left_alone_and_the_task_says_why() {
    let (api, osds) = at_work().await;
    osds.lock().unwrap().add_link(NODE, "/dev/disk/by-id/loop", "/dev/disk/by-id/loop");
    let mounted_at = vec!["/srv".to_owned()];
    let mounted = BlockDevice { mounted_at, ..BlockDevice::blank(device("/dev/sde"), 50 * GIB) };
    osds.lock().unwrap().add_disk(NODE, mounted);
    for (device, why) in [
        ("/dev/sde", "is mounted at `/srv`"),
        ("/dev/sdd", "has a partition table of kind `gpt` with 1 partitions"),
        ("/dev/sdx", "device `/dev/sdx` does not exist"),
        ("/dev/disk/by-id/loop", "is a link that leads back to itself"),
        ("detect:NONE:1T:0", "no disk"),
    ] {
        for path in [
            format!("osd?node=pvchv1&device={device}&weight=1"),
            format!("osd?node=pvchv1&device={device}&weight=1&plan=true"),
            format!("osddb?node=pvchv1&device={device}"),
        ] {
            let ended = api.end(api.post(&format!("/storage/ceph/{path}")).await).await;
            assert_eq!(text(&ended, "state"), "FAILURE", "{path}: {ended}");
            assert!(text(&ended, "status").contains(why), "{path}: {ended}");
        }
    }
    assert!(osds.lock().unwrap().osd_states().is_empty() && api.osds().await.is_empty());
}

#[tokio::test]
async fn of_the_disks_that_match_the_numbered_one_is_taken_and_the_others_are_named() {
    let (api, osds) = at_work().await;
    for name in ["/dev/sde", "/dev/sdf"] {
        let disk = BlockDevice {
            model: "MZ7KH".to_owned(),
            serial: name.to_owned(),
            ..BlockDevice::blank(device(name), 960_000_000_000)
        };
        osds.lock().unwrap().add_disk(NODE, disk);
    }
    let add = |number: u32| {
        format!("/storage/ceph/osd?node=pvchv1&weight=1&device=detect:MZ7KH:960GB:{number}")
    };
    let all = "2 disks match: `/dev/sde`, `/dev/sdf`";
    let plan = api.end(api.post(&format!("{}&plan=true", add(1))).await).await;
    let log = plan["log"].to_string();
    assert!(log.contains("`detect:MZ7KH:960GB:1` is `/dev/sdf`") && log.contains(all), "{log}");
    let beyond = api.end(api.post(&add(2)).await).await;
    assert_eq!(text(&beyond, "state"), "FAILURE", "{beyond}");
    let why = "asks for number 2 of the disks that match, and there is no more than numbers 0 to \
               1: `/dev/sde`, `/dev/sdf`";
    assert!(text(&beyond, "status").contains(why), "{beyond}");
    let none = api.end(api.post(&add(0).replace("960GB", "1TB")).await).await;
    assert!(text(&none, "status").contains("no disk matches `detect:MZ7KH:1TB:0`"), "{none}");
    let hint = text(&none, "hint");
    assert!(hint.contains("`/dev/sde` MZ7KH of 960000000000 bytes"), "{none}");
    let made = api.end(api.post(&add(1)).await).await;
    assert_eq!(text(&made, "state"), "SUCCESS", "{made}");
    assert!(made["log"].to_string().contains(all), "{made}");
    assert_eq!(api.osds().await, ["0:pvchv1:/dev/sdf"], "the first that matches is untouched");
}

#[tokio::test]
async fn what_makes_no_task_is_refused() {
    let (api, _) = at_rest().await;
    api.record_osd("0").await;
    let add = "/storage/ceph/osd?node=pvchv1&weight=1&device=";
    let (long, sdb) = (format!("{add}/dev/{}", "x".repeat(300)), format!("{add}/dev/sdb"));
    for (path, why) in [
        (format!("{add}sdb"), "not below `/dev`"),
        (format!("{add}/etc/shadow"), "not below `/dev`"),
        (format!("{add}/dev/../etc/shadow"), "detour"),
        (format!("{add}--all"), "not below `/dev`"),
        (format!("{add}/dev/sd%20b"), "contains ` `"),
        (format!("{add}/dev/sd%0Ab"), "contains"),
        (format!("{add}/dev/sdb;reboot"), "contains `;`"),
        (long, "byte"),
        (format!("{add}detect:a"), "detect:"),
        (format!("{add}detect:a:b:0"), "detect:"),
        (format!("{add}detect:a:1T:-1"), "detect:"),
        (format!("{sdb}&osd_count=0"), "0"),
        (format!("{sdb}&osd_count=1000"), "1000"),
        (format!("{sdb}&weight=-1"), "weight"),
        (format!("{sdb}&weight=inf"), "weight"),
        (format!("{sdb}&ext_db_ratio=0.05&ext_db_size=4G"), "both"),
        (format!("{sdb}&ext_db_ratio=0"), "ratio"),
        (format!("{sdb}&ext_db_ratio=2"), "ratio"),
        ("/storage/ceph/osd?node=none&weight=1&device=/dev/sdb".to_owned(), "none"),
        ("/storage/ceph/osd?node=pvchv2&weight=1&device=/dev/sdb".to_owned(), "no worker"),
        ("/storage/ceph/osd?node=pvchv1&device=/dev/sdb".to_owned(), "weight"),
        ("/storage/ceph/osddb?node=pvchv1&device=sdb".to_owned(), "not below `/dev`"),
        ("/storage/ceph/osd/0?new_device=/dev/sdc".to_owned(), "yes-i-really-mean-it"),
        (format!("/storage/ceph/osd/0?new_device=sdc&{MEANT}"), "not below `/dev`"),
        (format!("/storage/ceph/osd/0?new_device=/dev/sdc&weight=-1&{MEANT}"), "weight"),
        (format!("/storage/ceph/osd/7?new_device=/dev/sdc&{MEANT}"), "there is no OSD `7`"),
    ] {
        let reply = api.post(&path).await;
        assert!([400, 404].contains(&reply.status.as_u16()), "{path}: {}", reply.text());
        assert!(reply.text().contains(why), "{path}: {}", reply.text());
    }
    for size in ["0", "-1", "10Q", "", "%D9%A1%D9%A0G", "9E9"] {
        api.post(&format!("{sdb}&ext_db_size={size}")).await.refused(400);
    }
    for id in ["7", "00", "-1", "+0", "%20", "0%00", "x", "4294967296"] {
        for rest in ["", "/state"] {
            api.get(&format!("/storage/ceph/osd/{id}{rest}")).await.refused(404);
        }
        api.delete(&format!("/storage/ceph/osd/{id}?{MEANT}")).await.refused(404);
        api.put(&format!("/storage/ceph/osd/{id}?device=/dev/sdb")).await.refused(404);
        api.post(&format!("/storage/ceph/osd/{id}/state?state=out")).await.refused(404);
    }
    for path in ["/storage/ceph/osd/0", "/storage/ceph/osd/0?yes-i-really-mean-it=no"] {
        api.delete(path).await.refused(400);
    }
    api.put("/storage/ceph/osd/0?device=sdb").await.refused(400);
    api.write("/nodes/pvchv1/daemonstate", "dead").await;
    let silent = api.put("/storage/ceph/osd/0?device=/dev/sdb").await.refused(400);
    assert!(silent.contains("node `pvchv1` is in state `dead`"), "{silent}");
    assert!(api.store.view().jobs.is_empty());
}

#[tokio::test]
async fn an_osd_of_a_dead_node_is_listed_as_it_is_and_of_a_fenced_one_removed_without_its_disk() {
    let (api, osds) = at_work().await;
    let add = "/storage/ceph/osd?node=pvchv1&device=/dev/sdb&weight=1";
    assert_eq!(text(&api.end(api.post(add).await).await, "state"), "SUCCESS");
    api.write("/nodes/pvchv1/daemonstate", "dead").await;
    osds.lock().unwrap().node_off(NODE);
    // As the primary node collects it.
    api.write("/ceph/osds/0/stats", r#"{"up": 0, "in": 1, "kb": 1024, "state": "exists"}"#).await;
    let listed = api.get("/storage/ceph/osd").await.ok();
    let stats = &listed[0]["stats"];
    assert_eq!(
        (text(&listed[0], "node"), &stats["up"], &stats["in"]),
        (NODE, &0.into(), &1.into())
    );
    let jobs = api.store.view().jobs.len();
    for refused in [
        api.post(&format!("/storage/ceph/osd/0?new_device=/dev/sdc&{MEANT}")).await,
        api.put("/storage/ceph/osd/0?device=/dev/sdb").await,
        api.post("/storage/ceph/osd?node=pvchv1&device=/dev/sdc&weight=1").await,
        api.post("/storage/ceph/osddb?node=pvchv1&device=/dev/sdc").await,
    ] {
        let said = refused.refused(400);
        assert!(said.contains("node `pvchv1` is in state `dead`"), "{said}");
        assert!(text(&refused.json(), "hint").contains("start `pvcnoded` there"), "{said}");
    }
    let remove = format!("/storage/ceph/osd/0?{MEANT}");
    for force in ["", "&force=true"] {
        let said = api.delete(&format!("{remove}{force}")).await.refused(400);
        assert!(said.contains("node `pvchv1` is in state `dead`"), "it may run: {said}");
    }
    api.write("/nodes/pvchv1/daemonstate", "fenced").await;
    let said = api.delete(&remove).await.refused(400);
    assert!(said.contains("node `pvchv1` is fenced, and no worker of another one"), "{said}");
    assert_eq!(api.store.view().jobs.len(), jobs, "nothing waits for it");
    // The map is the monitors': its data moves elsewhere, and comes back.
    for (state, is_in) in [("out", false), ("in", true)] {
        api.post(&format!("/storage/ceph/osd/0/state?state={state}")).await.ok();
        let known = osds.lock().unwrap().osd_states();
        assert_eq!((known[0].is_up, known[0].is_in), (false, is_in), "{state}");
    }
    api.start_worker("pvchv2");
    let is_there =
        |view: &pvc_model::cluster::Cluster| view.workers.contains_key(&NodeName::new("pvchv2"));
    api.eventually("another worker is there", is_there).await;
    let removed = api.end(api.delete(&remove).await).await;
    assert_eq!(text(&removed, "status"), "OSD 0 is removed", "{removed}");
    assert!(api.osds().await.is_empty());
    let mut osds = osds.lock().unwrap();
    assert!(osds.osd_states().is_empty());
    assert_eq!(osds.lvm_osds(NODE).unwrap().len(), 1, "nobody has erased it");
}

#[tokio::test]
async fn an_osd_that_a_task_changes_is_no_other_tasks() {
    let (api, _) = at_rest().await;
    api.record_osd("0").await;
    api.record_osd("1").await;
    api.write("/ceph/osds/2", "").await;
    let tried = api.delete(&format!("/storage/ceph/osd/0?{MEANT}&dry_run=true")).await;
    assert_eq!((tried.status.as_u16(), api.store.view().jobs.len()), (200, 0), "{}", tried.text());
    let first = api.delete(&format!("/storage/ceph/osd/0?{MEANT}&force=False")).await.json();
    let id = text(&first, "task_id");
    let queued = &api.get("/tasks").await.ok()["reserved"]["pvcworkerd@pvchv1"][0];
    assert_eq!(queued["kwargs"]["force_flag"], json!("False"), "{queued}");
    // The two share a disk.
    for osd in ["0", "1"] {
        let busy = api.put(&format!("/storage/ceph/osd/{osd}?device=/dev/sdb")).await.refused(400);
        assert!(busy.contains(&format!("is changed by task `{id}`")), "{busy}");
        let state = format!("/storage/ceph/osd/{osd}/state?state=in");
        let busy = api.post(&state).await.refused(400);
        assert!(busy.contains(&format!("is changed by task `{id}`")), "{busy}");
    }
    api.delete(&format!("/storage/ceph/osd/2?{MEANT}")).await.refused(404);
    assert_eq!(api.store.view().jobs.len(), 1);
}

#[tokio::test]
async fn an_osd_goes_in_and_out_and_options_are_set_at_once() {
    let (api, osds) = at_work().await;
    api.end(api.post("/storage/ceph/osd?node=pvchv1&device=/dev/sdb&weight=1").await).await;
    let is_in = || osds.lock().unwrap().osd_states()[0].is_in;
    let state = "/storage/ceph/osd/0/state?state=";
    api.post(&format!("{state}out&dry_run=true")).await.ok();
    assert!(is_in());
    let out = api.post(&format!("{state}out")).await.ok();
    assert_eq!((text(&out, "message"), is_in()), ("OSD `0` is out", false));
    api.post(&format!("{state}in")).await.ok();
    assert!(is_in());
    api.post(&format!("{state}sideways")).await.refused(400);

    let flags = || osds.lock().unwrap().flags().into_iter().collect::<Vec<_>>();
    let option = "/storage/ceph/option?option=";
    api.post(&format!("{option}noout&action=set&dry_run=true")).await.ok();
    assert!(flags().is_empty());
    api.post(&format!("{option}noout&action=set")).await.ok();
    assert_eq!(flags(), [OsdFlag::NoOut]);
    api.post(&format!("{option}noout&action=unset")).await.ok();
    assert!(flags().is_empty());
    for bad in ["full", "", "--help", "no%20out"] {
        api.post(&format!("{option}{bad}&action=set")).await.refused(400);
    }
    osds.lock().unwrap().osd_out(OsdId(0)).unwrap();
    let osd = api.get("/storage/ceph/osd/0/state").await.ok();
    assert_eq!(osd["id"], json!("0"));
}

#[tokio::test]
async fn a_cluster_without_ceph_has_no_osds() {
    let api = with_web().await;
    api.write("/pvcrs/workers/pvchv1", json!({ "kinds": JobWork::KINDS }).to_string()).await;
    api.record_osd("0").await;
    let refused = |reply: Reply| {
        let words = reply.refused(400);
        assert_eq!(words, "the storage of this cluster is not Ceph, and has no OSDs");
    };
    refused(api.post("/storage/ceph/osd?node=pvchv1&device=/dev/sdb&weight=1").await);
    refused(api.post("/storage/ceph/osddb?node=pvchv1&device=/dev/sdb").await);
    refused(api.put("/storage/ceph/osd/0?device=/dev/sdb").await);
    refused(api.delete(&format!("/storage/ceph/osd/0?{MEANT}")).await);
    refused(api.post(&format!("/storage/ceph/osd/0?new_device=/dev/sdb&{MEANT}")).await);
    refused(api.post("/storage/ceph/osd/0/state?state=out").await);
    refused(api.post("/storage/ceph/option?option=noout&action=set").await);
    assert!(api.store.view().jobs.is_empty());
}
