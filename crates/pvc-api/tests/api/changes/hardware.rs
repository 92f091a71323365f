//! A part of a VM's hardware is read and changed.

use super::*;

fn message(reply: &serde_json::Value) -> &str {
    reply["message"].as_str().unwrap()
}

#[tokio::test]
async fn memory_and_vcpus_are_read_and_set() {
    let api = with_web().await;
    assert_eq!(api.get("/vm/web/memory").await.ok(), json!({"name": "web", "memory": 64}));
    let reply = api.put("/vm/web/memory?memory=128").await.ok();
    assert_eq!(reply, json!({"message": "VM `web` was modified", "devices": []}));
    assert_eq!(api.get("/vm/web/memory").await.ok()["memory"], 128);

    let none = json!({"name": "web", "vcpus": 1, "sockets": null, "cores": null, "threads": null});
    assert_eq!(api.get("/vm/web/vcpus").await.ok(), none);
    api.put("/vm/web/vcpus?vcpus=4&sockets=2&cores=2").await.ok();
    let two = json!({"name": "web", "vcpus": 4, "sockets": 2, "cores": 2, "threads": 1});
    assert_eq!(api.get("/vm/web/vcpus").await.ok(), two);
    api.put("/vm/web/vcpus?vcpus=3").await.ok();
    assert_eq!(api.get("/vm/web/vcpus").await.ok()["cores"], 3);

    for (path, status) in [
        ("/vm/web/memory", 400),
        ("/vm/web/memory?memory=0", 400),
        ("/vm/web/memory?memory=-1", 400),
        ("/vm/web/memory?memory=99999999", 400),
        ("/vm/web/vcpus?vcpus=4&threads=3", 400),
        ("/vm/nothing/memory?memory=64", 404),
        ("/vm/nothing/vcpus?vcpus=1", 404),
    ] {
        api.put(path).await.refused(status);
    }
    api.get("/vm/nothing/memory").await.refused(404);
    api.get("/vm/nothing/vcpus").await.refused(404);
}

#[tokio::test]
async fn a_network_card_comes_and_goes_by_its_network_or_its_address() {
    let api = with_web().await;
    assert_eq!(api.get("/vm/web/networks").await.ok(), json!([]));
    let reply =
        api.post("/vm/web/networks?network=1001&mac=52:54:00:00:00:01&model=e1000").await.ok();
    assert_eq!(message(&reply), "VM `web` was modified");
    let device = reply["devices"][0].as_str().unwrap();
    assert!(device.starts_with("<interface type='bridge'>"), "{device}");
    api.post("/vm/web/networks?network=upstream").await.ok();
    let cards = api.get("/vm/web/networks").await.ok();
    assert_eq!((&cards[0]["vni"], &cards[0]["model"]), (&json!("1001"), &json!("e1000")));
    assert_eq!((&cards[1]["vni"], &cards[1]["model"]), (&json!("upstream"), &json!("virtio")));

    let words = api.post("/vm/web/networks?network=4242").await.refused(404);
    assert_eq!(words, "no network `4242` in the cluster");
    for path in [
        "/vm/web/networks",
        "/vm/web/networks?network=cluster",
        "/vm/web/networks?network=ens1f0v3&sriov=hostdev",
        "/vm/web/networks?network=ens1f0v3&sriov=macvtap",
        "/vm/web/networks?network=1001&mac=52:54:00:00:00:01",
        "/vm/web/networks?network=1001&mac=no",
        "/vm/web/networks?network=1001&sriov=yes",
    ] {
        api.post(path).await.refused(400);
    }
    api.post("/vm/web/networks?network=cluster&force=True").await.ok();
    api.post("/vm/nothing/networks?network=1001").await.refused(404);

    api.delete("/vm/web/networks").await.refused(400);
    api.delete("/vm/web/networks?network=4242").await.refused(404);
    let removed = api.delete("/vm/web/networks?mac=52:54:00:00:00:01").await.ok();
    assert_eq!(removed["devices"].as_array().unwrap().len(), 1);
    api.delete("/vm/web/networks?network=upstream").await.ok();
    assert_eq!(api.get("/vm/web/networks").await.ok()[0]["vni"], "cluster");
}

#[tokio::test]
async fn a_mac_address_of_another_vm_in_the_network_is_refused_unless_forced() {
    let api = with_web().await;
    let twin = xml("twin", "7b1f8e1c-5d0f-4c2e-8a77-3f0b6a3e9d52");
    api.define("?node=pvchv1", &twin).await.ok();
    let card = "networks?network=1001&mac=52:54:00:00:00:01";
    api.post(&format!("/vm/web/{card}")).await.ok();
    let words = api.post(&format!("/vm/twin/{card}")).await.refused(400);
    assert_eq!(words, "VM `web` has MAC address `52:54:00:00:00:01` in network `1001`, too");
    assert_eq!(api.get("/vm/twin/networks").await.ok(), json!([]));
    api.post(&format!("/vm/twin/{card}&force=True")).await.ok();
    api.post("/vm/twin/networks?network=1001").await.ok();
    assert_eq!(api.get("/vm/twin/networks").await.ok().as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_disk_comes_and_goes_and_its_volume_stays() {
    let api = with_vms(1).await;
    api.define("?node=pvchv1", &xml("web", UUID)).await.ok();
    let volume = format!("vms/{}_sda", Shape::vm_name(0));
    let reply = api.post(&format!("/vm/web/volumes?volume={volume}&bus=virtio")).await.ok();
    assert!(message(&reply).contains("is used by VM"), "{reply}");
    assert!(reply["devices"][0].as_str().unwrap().contains("dev='vda' bus='virtio'"), "{reply}");
    api.post("/vm/web/volumes?volume=/srv/a.iso&type=file&disk_id=hdc&bus=ide").await.ok();
    let disks = api.get("/vm/web/volumes").await.ok();
    assert_eq!((&disks[0]["name"], &disks[0]["type"]), (&json!(volume), &json!("rbd")));
    assert_eq!((&disks[1]["name"], &disks[1]["dev"]), (&json!("/srv/a.iso"), &json!("hdc")));

    assert_eq!(
        api.post("/vm/web/volumes?volume=vms/none").await.refused(404),
        "no volume `vms/none`"
    );
    for path in [
        "/vm/web/volumes".to_owned(),
        "/vm/web/volumes?volume=nothing".to_owned(),
        "/vm/web/volumes?volume=elsewhere/a".to_owned(),
        "/vm/web/volumes?volume=/srv/b.iso&type=file&disk_id=hdc".to_owned(),
        "/vm/web/volumes?volume=/srv/b.iso&type=tape".to_owned(),
        format!("/vm/web/volumes?volume={volume}"),
    ] {
        api.post(&path).await.refused(400);
    }
    api.delete("/vm/web/volumes?volume=sdz").await.refused(404);
    api.delete(&format!("/vm/web/volumes?volume={volume}")).await.ok();
    api.delete("/vm/web/volumes?volume=hdc").await.ok();
    assert_eq!(api.get("/vm/web/volumes").await.ok(), json!([]));
    api.get(&format!("/storage/ceph/volume/{volume}")).await.ok();
}

#[tokio::test]
async fn a_restart_with_a_change_is_of_a_started_vm_and_a_dry_run_makes_neither() {
    let api = with_web().await;
    let reply = api.put("/vm/web/memory?memory=96&restart=True").await.ok();
    assert_eq!(message(&reply), "VM `web` was modified", "it does not run");
    api.play("web", "start", true).await;
    let dry = api.put("/vm/web/memory?memory=128&restart=True&dry_run=True").await.ok();
    assert_eq!(
        message(&dry),
        "nothing was changed; without `dry_run` the answer is: VM `web` was modified and is being \
         restarted"
    );
    assert_eq!(api.get("/vm/web/memory").await.ok()["memory"], 96);
    assert_eq!(api.state("web"), VmState::Start);
    let reply = api.put("/vm/web/memory?memory=128&restart=True").await.ok();
    assert_eq!(message(&reply), "VM `web` was modified and is being restarted");
    assert_eq!(api.state("web"), VmState::Restart);
}
