//! VMs are defined, modified, renamed and removed.

use super::*;

#[tokio::test]
async fn a_vm_is_defined_with_all_that_is_said_about_it() {
    let api = with_vms(0).await;
    let query = "?node=pvchv2&limit=pvchv2,pvchv3&selector=vms&autostart=True&migration_method=live\
                 &migration_max_downtime=500&user_tags=a&user_tags=b&protected_tags=c";
    let message =
        api.define(query, &xml("web", UUID)).await.ok()["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("VM `web` was defined on node `pvchv2`"), "{message}");
    let vm = &api.get("/vm/web").await.ok()[0];
    assert_eq!(vm["uuid"], UUID);
    assert_eq!(vm["state"], "stop");
    assert_eq!(vm["node_limit"], json!(["pvchv2", "pvchv3"]));
    assert_eq!((&vm["node_selector"], &vm["migration_method"]), (&json!("vms"), &json!("live")));
    assert_eq!((&vm["node_autostart"], &vm["migration_max_downtime"]), (&json!(true), &json!(500)));
    let tags: Vec<(&str, bool)> = vm["tags"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tag| (tag["name"].as_str().unwrap(), tag["protected"].as_bool().unwrap()))
        .collect();
    assert_eq!(tags, [("a", false), ("b", false), ("c", true)]);
}

#[tokio::test]
async fn q19_what_is_not_said_has_its_documented_default() {
    let api = with_web().await;
    let vm = &api.get("/vm/web").await.ok()[0];
    assert_eq!(vm["migration_max_downtime"], 300);
    assert_eq!((&vm["node_autostart"], &vm["tags"]), (&json!(false), &json!([])));
}

#[tokio::test]
async fn q15_a_single_node_in_the_limit_is_kept() {
    let api = with_vms(0).await;
    api.define("?limit=pvchv3", &xml("web", UUID)).await.ok();
    let vm = &api.get("/vm/web").await.ok()[0];
    assert_eq!((&vm["node_limit"], &vm["node"]), (&json!(["pvchv3"]), &json!("pvchv3")));
}

#[tokio::test]
async fn bad_definitions_are_refused_with_a_reason_and_leave_nothing() {
    let api = with_vms(1).await;
    let good = xml("web", UUID);
    for (bad, part) in [
        (String::new(), ""),
        ("no xml at all".to_owned(), ""),
        (good.replace(&format!("<uuid>{UUID}</uuid>"), ""), "uuid"),
        (good.replace("<name>web</name>", "<name>we b</name>"), "space"),
        (good.replace("<name>web</name>", "<name>../../etc</name>"), "`/`"),
        (
            good.replace("<name>web</name>", &format!("<name>{}</name>", "x".repeat(300))),
            "300 characters",
        ),
        (format!("<!DOCTYPE d [<!ENTITY e 'x'>]>{good}"), ""),
        (
            good.replace(
                "<devices>",
                &format!("<!--{}--><devices>", "c".repeat(600_000).repeat(2)),
            ),
            "",
        ),
        (xml("vm00000", UUID), "vm00000"),
    ] {
        let reply = api.define("", &bad).await;
        assert!([400, 413].contains(&reply.status.as_u16()), "{}", reply.text());
        assert!(reply.message().contains(part), "{part}: {}", reply.message());
        assert_eq!(api.store.view().vms.len(), 1);
    }
    assert_eq!(api.post("/vm").await.refused(400), "xml: is required and was not given");
    assert_eq!(api.define("?node=nowhere", &good).await.status, 400);
    assert_eq!(api.define("?limit=nowhere", &good).await.status, 400);
    assert!(api.define("?selector=best", &good).await.refused(400).starts_with("selector: "));
}

#[tokio::test]
async fn q54_a_name_in_the_path_must_be_that_of_the_xml() {
    let api = with_vms(0).await;
    api.form(Method::POST, "/vm/other", "xml", &xml("web", UUID)).await.refused(400);
    api.form(Method::POST, "/vm/web", "xml", &xml("web", UUID)).await.ok();
}

#[tokio::test]
async fn q53_a_vm_is_modified_by_its_own_xml_only() {
    let api = with_web().await;
    let larger = xml("web", UUID).replace(">64<", ">128<");
    let reply = api.form(Method::PUT, "/vm/web?restart=no", "xml", &larger).await.ok();
    assert_eq!(reply["message"], "VM `web` was modified");
    assert_eq!(api.get("/vm/web").await.ok()[0]["memory"], 128);
    let other = xml("web", "7b1f8e1c-5d0f-4c2e-8a77-3f0b6a3e9d52");
    api.form(Method::PUT, "/vm/web", "xml", &other).await.refused(400);
    api.form(Method::PUT, "/vm/nothing", "xml", &larger).await.refused(404);
    let edited = api.get("/vm/web").await.ok()[0]["xml"].as_str().unwrap().to_owned();
    api.form(Method::PUT, "/vm/web", "xml", &edited).await.ok();
}

#[tokio::test]
async fn a_modification_can_be_judged_without_making_it() {
    let api = with_web().await;
    let larger = xml("web", UUID).replace(">64<", ">128<");
    let reply = api.form(Method::POST, "/vm/web/check", "xml", &larger).await.ok();
    assert_eq!(reply["message"], "VM `web` can be modified so");
    assert_eq!(api.get("/vm/web").await.ok()[0]["memory"], 64, "nothing is changed");
    let other = xml("web", "7b1f8e1c-5d0f-4c2e-8a77-3f0b6a3e9d52");
    let put = api.form(Method::PUT, "/vm/web", "xml", &other).await.refused(400);
    assert_eq!(api.form(Method::POST, "/vm/web/check", "xml", &other).await.refused(400), put);
    api.form(Method::POST, "/vm/nothing/check", "xml", &larger).await.refused(404);

    let take = |caller| api.state.checks().take(caller, "checks");
    let judged: Vec<_> = ["a", "b"].into_iter().flat_map(|one| (0..4).map(move |_| one)).collect();
    let judged: Vec<_> = judged.into_iter().map(|caller| take(caller).unwrap()).collect();
    let full = api.form(Method::POST, "/vm/web/check", "xml", &larger).await.refused(503);
    assert!(full.contains("8 checks are under way"), "{full}");
    drop(judged);
    api.form(Method::POST, "/vm/web/check", "xml", &larger).await.ok();
}

#[tokio::test]
async fn metadata_is_changed_member_by_member() {
    let api = with_web().await;
    api.post("/vm/web/meta?limit=pvchv1&autostart=yes&profile=small").await.ok();
    let vm = &api.get("/vm/web").await.ok()[0];
    assert_eq!(
        (&vm["node_limit"], &vm["node_autostart"], &vm["profile"]),
        (&json!(["pvchv1"]), &json!(true), &json!("small"))
    );
    api.post("/vm/web/meta?limit=&selector=none").await.ok();
    let vm = &api.get("/vm/web").await.ok()[0];
    assert_eq!((&vm["node_limit"], &vm["node_autostart"]), (&json!(null), &json!(true)));
    api.post("/vm/web/meta").await.refused(400);
    api.post("/vm/nothing/meta?autostart=yes").await.refused(404);
    api.post("/vm/web/meta?limit=nowhere").await.refused(400);
    for bad in ["migration_max_downtime=soon", "autostart=perhaps", "selector=x"] {
        api.post(&format!("/vm/web/meta?{bad}")).await.refused(400);
    }
}

#[tokio::test]
async fn q51_tags_are_checked_and_unprotected_unless_said_otherwise() {
    let api = with_web().await;
    api.post("/vm/web/tags?action=add&tag=daily").await.ok();
    api.post("/vm/web/tags?action=add&tag=kept&protected=True").await.ok();
    let tags = api.get("/vm/web/tags").await.ok();
    assert_eq!(tags["tags"][0], json!({"name": "daily", "type": "user", "protected": false}));
    api.post("/vm/web/tags?action=remove&tag=daily").await.ok();
    api.post("/vm/web/tags?action=remove&tag=daily").await.refused(404);
    api.post("/vm/web/tags?action=remove&tag=kept").await.refused(400);
    for bad in
        ["action=add", "tag=x", "action=add&tag=", "action=add&tag=a%2Fb", "action=paint&tag=x"]
    {
        api.post(&format!("/vm/web/tags?{bad}")).await.refused(400);
    }
    api.post("/vm/nothing/tags?action=add&tag=x").await.refused(404);
}

#[tokio::test]
async fn q03_a_vm_gets_another_name_or_a_refusal_that_can_be_read() {
    let api = with_web().await;
    assert_eq!(
        api.post("/vm/web/rename").await.refused(400),
        "new_name: is required and was not given"
    );
    for bad in ["we%20b", "..%2Fx", "", "web", UUID] {
        api.post(&format!("/vm/web/rename?new_name={bad}")).await.refused(400);
    }
    let refusal = api.post("/vm/web/rename?new_name=shop").await.refused(503);
    assert_eq!(refusal, "no worker runs that can rename VMs");
    api.start_worker("pvchv2");
    api.eventually("a worker is there", |view| !view.workers.is_empty()).await;
    let reply = api.post("/vm/web/rename?new_name=shop").await.ok();
    assert_eq!(reply["message"], "VM `web` is called `shop` now");
    assert_eq!(api.get("/vm/shop").await.ok()[0]["uuid"], UUID);
    api.get("/vm/web").await.refused(404);
    api.post("/vm/nothing/rename?new_name=x").await.refused(404);
}

#[tokio::test]
async fn a_vm_is_removed() {
    let api = with_web().await;
    let definition = format!(
        "Its definition, of UUID {UUID}, is only in backups of the records: \"One VM that was \
         removed\" in the manual says how it comes back."
    );
    assert_eq!(
        api.delete("/vm/web?delete_disks=true").await.ok()["message"],
        format!("VM `web` was removed. {definition}")
    );
    api.get("/vm/web").await.refused(404);
    api.delete("/vm/web").await.refused(404);

    api.post("/storage/ceph/volume/vms/web_sda?size=1M").await.ok();
    let disk = "<disk type='network' device='disk'><source protocol='rbd' name='vms/web_sda'/>\
                <target dev='sda' bus='scsi'/></disk></devices>";
    let tpm = "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm></devices>";
    let with_both = xml("web", UUID).replace("</devices>", disk).replace("</devices>", tpm);
    api.define("?node=pvchv1", &with_both).await.ok();
    let removed = api.delete("/vm/web?delete_disks=true").await.ok();
    let trash = api.get("/storage/ceph/trash?pool=vms").await.ok();
    let id = trash[0]["id"].as_str().unwrap();
    let until = pvc_model::utc(trash[0]["kept_until"].as_u64().unwrap());
    assert_eq!(
        removed["message"],
        format!(
            "VM `web` was removed with its volume. Until {until} it can be restored: `pvc storage \
             trash restore vms {id}`. {definition} Its TPM stays on nodes where it has run, if \
             it has: \"UEFI's variables and the TPM\" in the manual."
        )
    );
}
