//! Pools, volumes and their snapshots are made, changed and removed.

use pvc_model::storage::SnapshotName;

use super::*;

fn message(reply: &serde_json::Value) -> &str {
    reply["message"].as_str().unwrap()
}

/// The VM `web`, off, with the volume `vms/data` of 1 MiB and its snapshot `before`.
async fn with_data() -> Arc<Api> {
    let api = with_web().await;
    api.post("/storage/ceph/volume/vms/data?size=1M").await.ok();
    api.post("/storage/ceph/snapshot/vms/data/before").await.ok();
    api
}

impl Api {
    async fn names(&self, path: &str) -> Vec<String> {
        let list = self.get(path).await.ok();
        let key = if path.contains("/snapshot") { "snapshot" } else { "name" };
        let names = list.as_array().unwrap().iter().map(|one| one[key].as_str().unwrap());
        names.map(str::to_owned).collect()
    }

    async fn size(&self, volume: &str) -> String {
        let found = self.get(&format!("/storage/ceph/volume/vms/{volume}")).await.ok();
        found[0]["stats"]["size"].to_string()
    }
}

#[tokio::test]
async fn a_pool_is_made_and_removed_with_what_is_in_it() {
    let api = with_web().await;
    let path = "/storage/ceph/pool?pool=fast&pgs=64&replcfg=copies=3,mincopies=2&tier=ssd";
    assert_eq!(message(&api.post(path).await.ok()), "Created pool \"fast\".");
    assert_eq!(api.names("/storage/ceph/pool").await, ["fast", "vms"]);
    assert_eq!(api.names("/storage/ceph/pool/fast").await, ["fast"]);
    assert_eq!(api.post(path).await.refused(400), "pool `fast` exists already");
    let words = api.put("/storage/ceph/pool/fast?pgs=128").await.refused(400);
    assert!(words.contains("placement groups are Ceph's"), "{words}");
    for volume in ["a", "b"] {
        api.post(&format!("/storage/ceph/volume/fast/{volume}?size=1M")).await.ok();
    }
    let words = api.delete("/storage/ceph/pool/fast").await.refused(400);
    assert!(words.contains("yes-i-really-mean-it"), "{words}");
    api.delete("/storage/ceph/pool/fast?yes-i-really-mean-it=no").await.refused(400);
    let gone = api.delete("/storage/ceph/pool/fast?yes-i-really-mean-it=yes").await.ok();
    assert_eq!(message(&gone), "Removed pool \"fast\" with 2 volumes.");
    assert_eq!(api.names("/storage/ceph/pool").await, ["vms"]);
    assert!(api.names("/storage/ceph/volume").await.is_empty());
    api.delete("/storage/ceph/pool/fast?yes-i-really-mean-it=yes").await.refused(404);
    api.get("/storage/ceph/pool/fast").await.refused(404);
}

#[tokio::test]
async fn what_makes_no_pool_is_refused() {
    let api = with_web().await;
    let copies = "replcfg=copies=3,mincopies=2";
    for (path, why) in [
        (format!("/a%20b?pgs=64&{copies}"), "a b"),
        (format!("/a%2Fb?pgs=64&{copies}"), "a/b"),
        (format!("/a%40b?pgs=64&{copies}"), "a@b"),
        (format!("/..?pgs=64&{copies}"), ".."),
        (format!("/{}?pgs=64&{copies}", "x".repeat(200)), "xxx"),
        (format!("/fast?pgs=63&{copies}"), "no power of two; 32 and 64 are"),
        (format!("/fast?pgs=0&{copies}"), "1 to 65536"),
        (format!("/fast?pgs=-1&{copies}"), "pgs"),
        (format!("/fast?pgs=64&{copies}&tier=tape"), "tier"),
        ("/fast?pgs=64".to_owned(), "replcfg"),
        ("/fast?pgs=64&replcfg=copies=2,mincopies=3".to_owned(), "more than there are"),
        ("/fast?pgs=64&replcfg=3,2".to_owned(), "does not say how many copies"),
    ] {
        let reply = api.post(&format!("/storage/ceph/pool{path}")).await;
        // A path with `..` or a slash is no name that the router knows.
        assert!([400, 404].contains(&reply.status.as_u16()), "{path}: {}", reply.text());
        assert!(reply.status == 404 || reply.text().contains(why), "{path}: {}", reply.text());
    }
    assert_eq!(api.names("/storage/ceph/pool").await, ["vms"]);
}

#[tokio::test]
async fn a_volume_has_its_whole_life() {
    let api = with_web().await;
    let created = api.post("/storage/ceph/volume?pool=vms&volume=data&size=1M").await.ok();
    assert_eq!(message(&created), "Created volume \"vms/data\".");
    assert_eq!(api.names("/storage/ceph/volume?pool=vms&limit=da").await, ["data"]);
    api.post("/storage/ceph/volume/vms/data?size=2M").await.refused(400);

    let resized = api.put("/storage/ceph/volume/vms/data?new_size=3M").await.ok();
    assert_eq!(message(&resized), "Resized volume \"vms/data\" from 1048576 to 3145728 bytes.");
    assert!(api.size("data").await.contains("3072K"), "{}", api.size("data").await);
    let words = api.put("/storage/ceph/volume/vms/data?new_size=2M").await.refused(400);
    assert!(words.contains("3145728") && words.contains("2097152"), "{words}");
    api.put("/storage/ceph/volume/vms/data?new_size=2M&force=true").await.ok();

    let renamed = api.put("/storage/ceph/volume/vms/data?new_name=more").await.ok();
    assert_eq!(message(&renamed), "Renamed volume \"vms/data\" to \"more\".");
    api.put("/storage/ceph/volume/vms/data?new_name=more").await.refused(404);
    let cloned = api.post("/storage/ceph/volume/vms/more/clone?new_volume=copy").await.ok();
    assert_eq!(message(&cloned), "Cloned volume \"vms/more\" as \"copy\" in pool \"vms\".");
    api.post("/storage/ceph/volume/vms/more/clone?new_volume=copy").await.refused(400);
    assert_eq!(api.names("/storage/ceph/volume").await, ["copy", "more"]);
    let removed = api.delete("/storage/ceph/volume/vms/copy").await.ok();
    assert!(message(&removed).starts_with("Removed volume \"vms/copy\". Until "), "{removed}");
    api.delete("/storage/ceph/volume/vms/copy").await.refused(404);
    assert_eq!(api.names("/storage/ceph/volume").await, ["more"]);
}

#[tokio::test]
async fn what_makes_no_volume_is_refused() {
    let api = with_data().await;
    for size in [
        "0",
        "-1",
        "10",
        "10Q",
        "",
        "%D9%A1%D9%A0G",
        "18446744073709551616",
        "G",
        "0.1",
        "1e3",
        "1.2.3",
    ] {
        for path in ["vms/new?size=", "vms/data?new_size="] {
            let path = format!("/storage/ceph/volume/{path}{size}");
            let is_new = path.contains("new?");
            let reply = if is_new { api.post(&path).await } else { api.put(&path).await };
            reply.refused(400);
        }
    }
    let words = api.post("/storage/ceph/volume/vms/new?size=9E").await.refused(400);
    assert!(words.ends_with("10376293541461622784 bytes are needed"), "{words}");
    let words = api.post("/storage/ceph/volume/vms/new?size=10").await.refused(400);
    assert!(words.contains("`10` would be 10 bytes: name the unit"), "{words}");
    let words = api.post("/storage/ceph/volume/vms/new?size=1.5T").await.refused(400);
    assert!(words.ends_with("1649267441664 bytes are needed"), "{words}");
    for name in ["a%20b", "a%2Fb", "a%40b", "..", "%00", &"x".repeat(200)] {
        for path in [
            format!("/storage/ceph/volume?pool=vms&volume={name}&size=1M"),
            format!("/storage/ceph/volume/vms/data/clone?new_volume={name}"),
            format!("/storage/ceph/snapshot?pool=vms&volume=data&snapshot={name}"),
        ] {
            api.post(&path).await.refused(400);
        }
        api.put(&format!("/storage/ceph/volume/vms/data?new_name={name}")).await.refused(400);
        let path = format!("/storage/ceph/snapshot/vms/data/before?new_name={name}");
        api.put(&path).await.refused(400);
    }
    for (path, status) in [("none/new?size=1M", 404), ("vms/new", 400)] {
        api.post(&format!("/storage/ceph/volume/{path}")).await.refused(status);
    }
    for (change, status) in [
        ("data", 400),
        ("data?new_size=2M&new_name=more", 400),
        ("none?new_size=2M", 404),
        ("data?new_name=data", 400),
    ] {
        api.put(&format!("/storage/ceph/volume/vms/{change}")).await.refused(status);
    }
    assert_eq!(api.names("/storage/ceph/volume").await, ["data"]);
    assert_eq!(api.names("/storage/ceph/snapshot").await, ["before"]);
}

#[tokio::test]
async fn a_snapshot_is_taken_renamed_rolled_back_to_and_removed() {
    let api = with_data().await;
    let all = "/storage/ceph/snapshot";
    let of = |name: &str| format!("/storage/ceph/snapshot/vms/data/{name}");
    api.post(&format!("{all}?pool=vms&volume=data&snapshot=after")).await.ok();
    assert_eq!(api.names(all).await, ["after", "before"]);
    assert_eq!(api.names(&format!("{all}?limit=aft&volume=data&pool=vms")).await, ["after"]);
    assert!(api.names(&format!("{all}?volume=none")).await.is_empty());
    api.post(&of("after")).await.refused(400);
    let renamed = api.put(&format!("{}?new_name=then", of("after"))).await.ok();
    assert_eq!(message(&renamed), "Renamed snapshot \"after\" of volume \"vms/data\" to \"then\".");
    assert_eq!(api.names(&of("then")).await, ["then"]);
    api.get(&of("after")).await.refused(404);
    api.put("/storage/ceph/volume/vms/data?new_size=2M").await.ok();
    let back = api.post(&format!("{}/rollback", of("then"))).await.ok();
    assert_eq!(message(&back), "Rolled volume \"vms/data\" back to snapshot \"then\".");
    assert!(api.size("data").await.contains("1024K"), "the size is that of then");
    api.post(&format!("{}/rollback", of("none"))).await.refused(404);
    let removed = api.delete(&of("then")).await.ok();
    assert_eq!(message(&removed), "Removed snapshot \"then\" of volume \"vms/data\".");
    api.delete(&of("then")).await.refused(404);
    api.put("/storage/ceph/volume/vms/data?new_name=more").await.ok();
    assert_eq!(
        api.names(&format!("{all}?volume=more")).await,
        ["before"],
        "it goes with its volume"
    );
}

#[tokio::test]
async fn what_a_snapshot_holds_is_shown_under_its_new_name_and_that_of_its_volume() {
    let api = with_data().await;
    let seen = json!({"volume": "data", "snapshot": "before", "held": 7, "own": 7, "at": 40});
    let record = json!({"at": 50, "unknown": 0, "largest": [seen]}).to_string();
    api.write("/pvcrs/snapshot-usage/vms", record).await;
    let shown = async || {
        let pools = api.get("/storage/ceph/fullness").await.ok();
        let row = &pools[0]["largest_snapshots"][0];
        json!([row["volume"], row["snapshot"], row["bytes"]])
    };
    assert_eq!(shown().await, json!(["data", "before", 7]));
    api.put("/storage/ceph/volume/vms/data?new_name=more").await.ok();
    assert_eq!(shown().await, json!(["more", "before", 7]));
    api.put("/storage/ceph/snapshot/vms/more/before?new_name=then").await.ok();
    assert_eq!(shown().await, json!(["more", "then", 7]));
}

#[tokio::test]
async fn what_a_vm_uses_is_not_changed_under_it() {
    let api = with_data().await;
    api.post("/vm/web/volumes?volume=vms/data").await.ok();
    let volume = "/storage/ceph/volume/vms/data";
    let pool = "/storage/ceph/pool/vms?yes-i-really-mean-it=yes";
    for words in [
        api.delete(volume).await.refused(400),
        api.put(&format!("{volume}?new_name=more")).await.refused(400),
        api.delete(pool).await.refused(400),
    ] {
        assert_eq!(words, "VM `web` uses volume `vms/data`");
    }
    // Off, its owner may do with it what he likes.
    api.post("/storage/ceph/snapshot/vms/data/before/rollback").await.ok();
    api.put(&format!("{volume}?new_size=512K&force=true")).await.ok();

    api.play("web", "start", true).await;
    for words in [
        api.delete(&format!("{volume}?force=true")).await.refused(400),
        api.put(&format!("{volume}?new_name=more&force=true")).await.refused(400),
        api.put(&format!("{volume}?new_size=256K&force=true")).await.refused(400),
        api.post("/storage/ceph/snapshot/vms/data/before/rollback").await.refused(400),
        api.delete(&format!("{pool}&force=true")).await.refused(400),
    ] {
        assert_eq!(words, "VM `web` uses volume `vms/data` and is not off");
    }
    let grown = api.put(&format!("{volume}?new_size=2M")).await.ok();
    assert!(
        message(&grown).ends_with("VMs that see it only when they are started again: web."),
        "{grown}"
    );
    api.post("/storage/ceph/snapshot/vms/data/after").await.ok();
    assert_eq!(api.names("/storage/ceph/volume").await, ["data"]);

    api.play("web", "stop", false).await;
    api.eventually("it is off", |view| view.vm("web").is_some_and(|vm| vm.state == VmState::Stop))
        .await;
    api.delete(&format!("{volume}?force=true")).await.ok();
    assert!(api.names("/storage/ceph/volume").await.is_empty());
}

#[tokio::test]
async fn records_follow_what_was_done_by_other_means() {
    let api = with_data().await;
    api.storage.insert("vms/by-hand");
    let words = api.post("/storage/ceph/volume/vms/by-hand?size=1M").await.refused(400);
    assert_eq!(words, "volume `vms/by-hand` exists already");
    assert_eq!(api.names("/storage/ceph/volume").await, ["by-hand", "data"], "it is known now");
    api.storage.insert("vms/found");
    let scanned = api.post("/storage/ceph/volume/vms/found/scan").await.ok();
    assert_eq!(message(&scanned), "Recorded how volume \"vms/found\" is.");
    assert_eq!(api.names("/storage/ceph/volume").await, ["by-hand", "data", "found"]);
    let data = pvc_model::storage::VolumeId::parse("vms/data").unwrap();
    pvc_ports::Storage::remove(&*api.storage, &data).await.unwrap();
    api.post("/storage/ceph/volume/vms/data/scan").await.ok();
    assert_eq!(api.names("/storage/ceph/volume").await, ["by-hand", "found"]);
    assert!(api.names("/storage/ceph/snapshot").await.is_empty());
    api.post("/storage/ceph/volume/vms/data/scan").await.refused(404);
    api.post("/storage/ceph/volume/none/data/scan").await.refused(404);
}

#[tokio::test]
async fn a_storage_that_does_not_answer_changes_nothing() {
    let api = with_data().await;
    let before = api.get("/backup?secrets=true").await.ok();
    api.storage.set_failing(true);
    api.post("/storage/ceph/volume/vms/new?size=1M").await.refused(503);
    api.put("/storage/ceph/volume/vms/data?new_size=2M").await.refused(503);
    api.put("/storage/ceph/volume/vms/data?new_name=more").await.refused(503);
    api.post("/storage/ceph/volume/vms/data/clone?new_volume=copy").await.refused(503);
    api.delete("/storage/ceph/volume/vms/data").await.refused(503);
    api.post("/storage/ceph/snapshot/vms/data/after").await.refused(503);
    api.post("/storage/ceph/snapshot/vms/data/before/rollback").await.refused(503);
    api.delete("/storage/ceph/snapshot/vms/data/before").await.refused(503);
    api.delete("/storage/ceph/pool/vms?yes-i-really-mean-it=yes").await.refused(503);
    assert_eq!(api.get("/backup?secrets=true").await.ok(), before);
    // The list is of the records, and is there all the same.
    assert_eq!(api.names("/storage/ceph/volume").await, ["data"]);
}

#[tokio::test]
async fn what_takes_long_goes_on_and_says_so() {
    let limits = Limits { change_time: Duration::from_millis(20), ..settings().limits };
    let api = start(&Shape::with_vms(0).dump(), ApiSettings { limits, ..settings() }).await;
    let gate = Gate::closing_at(1);
    api.storage.set_gate(gate.clone());
    let words = api.post("/storage/ceph/volume/vms/data?size=1M").await.refused(503);
    assert!(words.contains("and goes on"), "{words}");
    assert!(gate.is_closed());
    api.storage.set_gate(Gate::closing_at(u64::MAX));
    api.post("/storage/ceph/volume/vms/other?size=1M").await.ok();
}

/// A client that hung up and came again could fill the memory with bodies that were not counted.
#[tokio::test(start_paused = true)]
async fn a_body_counts_until_the_change_that_it_is_for_has_ended() {
    let limits = Limits { bodies_bytes: 1 << 20, ..settings().limits };
    let settings = ApiSettings { limits, ..settings() };
    let api = Arc::new(start(&Shape::with_vms(0).dump(), settings).await);
    let gate = Gate::closing_at(1);
    api.storage.set_gate(gate.clone());
    let large = "a".repeat(400 << 10);
    let client = tokio::spawn({
        let (api, large) = (api.clone(), large.clone());
        let path = "/storage/ceph/volume/vms/data?size=1M";
        async move { api.form(Method::POST, path, "unknown", &large).await }
    });
    let is_at_it = || gate.is_closed();
    pvc_testkit::eventually("the storage is at it", Duration::from_secs(20), is_at_it).await;
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    api.form(Method::POST, "/status", "unknown", &large).await.refused(503);
    gate.open();
    api.state.changes_done().await;
    api.form(Method::POST, "/status", "unknown", &large).await.refused(400);
    assert_eq!(api.names("/storage/ceph/volume").await, ["data"]);
}

#[tokio::test]
async fn a_removed_volume_is_listed_restored_and_purged() {
    let api = with_data().await;
    assert_eq!(api.get("/storage/ceph/trash").await.ok(), json!([]));
    let dry = api.delete("/storage/ceph/volume/vms/data?dry_run=true").await.ok();
    assert!(message(&dry).ends_with("It can be restored for 24 h."), "{dry}");
    let removed = api.delete("/storage/ceph/volume/vms/data").await.ok();
    let trash = api.get("/storage/ceph/trash?pool=vms").await.ok();
    let id = trash[0]["id"].as_str().unwrap().to_owned();
    assert_eq!((&trash[0]["name"], &trash[0]["pool"]), (&json!("data"), &json!("vms")));
    let until = trash[0]["kept_until"].as_u64().unwrap();
    assert_eq!(until - trash[0]["removed_at"].as_u64().unwrap(), 24 * 3600);
    let how = format!("`pvc storage trash restore vms {id}`.");
    assert!(message(&removed).ends_with(&how), "{removed}");
    assert!(message(&removed).contains(&pvc_model::utc(until)), "{removed}");

    let path = format!("/storage/ceph/trash/vms/{id}");
    let restored = api.post(&format!("{path}/restore?new_name=back")).await.ok();
    assert_eq!(message(&restored), "Restored volume \"vms/back\".");
    assert_eq!(api.names("/storage/ceph/volume").await, ["back"]);
    assert_eq!(api.names("/storage/ceph/snapshot").await, ["before"]);
    api.post(&format!("{path}/restore")).await.refused(404);

    api.delete("/storage/ceph/volume/vms/back").await.ok();
    let trash = api.get("/storage/ceph/trash").await.ok();
    let path = format!("/storage/ceph/trash/vms/{}", trash[0]["id"].as_str().unwrap());
    let dry = api.delete(&format!("{path}?dry_run=true")).await.ok();
    assert!(message(&dry).contains("Purged volume \"vms/back\" from the trash."), "{dry}");
    api.delete(&path).await.ok();
    assert_eq!(api.get("/storage/ceph/trash").await.ok(), json!([]));
    api.delete(&path).await.refused(404);
    for bad in ["none/ab", "vms/XYZ", "vms/..%2Fa"] {
        api.delete(&format!("/storage/ceph/trash/{bad}")).await.refused(404);
    }
    api.get("/storage/ceph/trash?pool=none").await.refused(404);
}

#[tokio::test(start_paused = true)]
async fn who_ask_for_the_trash_at_once_share_a_list_and_see_what_they_removed_before() {
    let api = with_data().await;
    let list = || {
        let api = api.clone();
        tokio::spawn(async move { api.get("/storage/ceph/trash?pool=vms").await })
    };
    // The storage lets one act pass: at its beginning and at its end.
    let one = Gate::closing_at(2);
    api.storage.set_gate(one.clone());
    let asked: Vec<_> = (0..20).map(|_| list()).collect();
    for list in asked {
        assert_eq!(list.await.unwrap().ok(), json!([]));
    }
    assert!(!one.is_closed());

    let stopped = Gate::closing_at(1);
    api.storage.set_gate(stopped.clone());
    let before = list();
    let is_listing = || stopped.is_closed();
    pvc_testkit::eventually("the list is under way", Duration::from_secs(60), is_listing).await;
    api.storage.set_gate(Gate::closing_at(u64::MAX));
    api.delete("/storage/ceph/volume/vms/data").await.ok();
    let after = list();
    stopped.open();
    assert_eq!(before.await.unwrap().ok(), json!([]));
    assert_eq!(after.await.unwrap().ok()[0]["name"], "data");
}

#[tokio::test]
async fn what_clones_of_others_stand_on_stays_and_the_refusal_says_how_it_can_go() {
    let api = with_data().await;
    let before = SnapshotName::new("before");
    api.storage.with_volumes(|volumes| volumes.protect(&before));
    let removal = "/storage/ceph/snapshot/vms/data/before";
    for path in [removal, "/storage/ceph/volume/vms/data"] {
        let refused = api.delete(path).await;
        assert_eq!(
            refused.refused(400),
            "snapshot `before` of volume `vms/data` is protected: other volumes may be clones of it"
        );
        let hint = refused.json()["hint"].to_string();
        assert!(hint.contains("flatten") && hint.contains("rbd snap unprotect"), "{hint}");
    }
    assert_eq!(api.names("/storage/ceph/snapshot").await, ["before"]);

    api.post("/storage/ceph/volume/vms/more?size=1M").await.ok();
    api.post("/storage/ceph/snapshot/vms/more/base").await.ok();
    api.delete("/storage/ceph/volume/vms/more").await.ok();
    api.storage.with_volumes(|volumes| volumes.protect(&SnapshotName::new("base")));
    let trash = api.get("/storage/ceph/trash").await.ok();
    let id = trash[0]["id"].as_str().unwrap();
    let refused = api.delete(&format!("/storage/ceph/trash/vms/{id}")).await;
    let words = format!(
        "volume `{id}` in the trash of pool `vms` cannot be purged: other volumes are clones of \
         its snapshot `base`"
    );
    assert_eq!(refused.refused(400), words);
    let hint = refused.json()["hint"].to_string();
    assert!(hint.contains("flatten") && hint.contains("rbd children"), "{hint}");
    assert_eq!(api.get("/storage/ceph/trash").await.ok(), trash);
}

#[tokio::test]
async fn a_volume_that_is_purged_at_once_is_not_in_the_trash() {
    let api = with_data().await;
    let removed = api.delete("/storage/ceph/volume/vms/data?purge=true").await.ok();
    assert_eq!(message(&removed), "Removed volume \"vms/data\".");
    assert_eq!(api.get("/storage/ceph/trash").await.ok(), json!([]));
    let stay = std::time::Duration::ZERO;
    let at_once = ApiSettings { removed_volumes_stay: stay, ..settings() };
    let api = start(&Shape::with_vms(0).dump(), at_once).await;
    api.post("/storage/ceph/volume/vms/data?size=1M").await.ok();
    let removed = api.delete("/storage/ceph/volume/vms/data").await.ok();
    assert_eq!(message(&removed), "Removed volume \"vms/data\".");
    assert_eq!(api.get("/storage/ceph/trash").await.ok(), json!([]));
}

#[tokio::test]
async fn a_clone_on_write_holds_its_volume_until_it_is_flattened() {
    let api = with_data().await;
    let clone = "/storage/ceph/volume/vms/data/clone?new_volume=copy&copy_on_write=true";
    let cloned = api.post(clone).await.ok();
    assert_eq!(message(&cloned), "Cloned volume \"vms/data\" as \"copy\" in pool \"vms\".");
    let words = api.delete("/storage/ceph/volume/vms/data").await.refused(400);
    assert!(words.contains("`vms/copy`"), "{words}");
    let flatten = "/storage/ceph/volume/vms/copy/flatten";
    let flattened = api.post(flatten).await.ok();
    assert_eq!(message(&flattened), "Flattened volume \"vms/copy\".");
    let flattened = api.post(flatten).await.ok();
    assert_eq!(message(&flattened), "Volume \"vms/copy\" depends on no other.");
    api.delete("/storage/ceph/volume/vms/data").await.ok();
    api.post("/storage/ceph/volume/vms/none/flatten").await.refused(404);
}
