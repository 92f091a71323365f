//! Images, and VMs that are made of them.

use super::*;

async fn with_images() -> Arc<Api> {
    let api = with_web().await;
    for volume in ["image_debian", "image_rocky-9", "data"] {
        api.post(&format!("/storage/ceph/volume/vms/{volume}?size=1M")).await.ok();
    }
    // A worker that does nothing, so that tasks stay as they are.
    let kinds = json!({"kinds": ["vm.create"]});
    api.write("/pvcrs/workers/pvchv1", kinds.to_string()).await;
    api.eventually("the worker is there", |view| !view.workers.is_empty()).await;
    api
}

#[tokio::test]
async fn images_are_the_volumes_that_are_called_so() {
    let api = with_images().await;
    let debian = json!({"name": "debian", "pool": "vms", "volume": "image_debian",
        "size": "1024K", "size_bytes": 1 << 20});
    assert_eq!(api.get("/image?limit=^deb").await.ok(), json!([debian]));
    let names = |images: serde_json::Value| -> Vec<String> {
        let images = images.as_array().unwrap().clone();
        images.iter().map(|image| image["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(api.get("/image?pool=vms").await.ok()), ["debian", "rocky-9"]);
    assert_eq!(api.get("/image?limit=nothing").await.ok(), json!([]));
    api.get("/image?pool=nowhere").await.refused(400);
    api.get("/image?limit=(").await.refused(400);
}

#[tokio::test]
async fn a_vm_of_an_image_is_a_task_that_knows_all_that_it_needs() {
    let api = with_images().await;
    let keys = "%23%20mine%0Assh-ed25519%20AAAAC3NzaC1lZDI1NTE5AAAAIA%20me,%20here";
    let given = format!("image=debian&disk=8M&memory=128&vcpus=2&ssh_keys={keys}&start=true");
    let reply = api.post(&format!("/vm/new1/create?{given}&user_data=%23cloud-config")).await;
    assert_eq!((reply.status.as_u16(), &reply.json()["task_name"]), (202, &json!("vm.create")));
    let queues = api.get("/tasks").await.ok();
    let kwargs = &queues["reserved"]["pvcworkerd@pvchv1"][0]["kwargs"];
    assert_eq!(kwargs["domain"], "new1");
    assert_eq!(
        (&kwargs["image"], &kwargs["disk"]),
        (&json!("vms/image_debian"), &json!("vms/new1_sda"))
    );
    assert_eq!(
        (&kwargs["seed"], &kwargs["disk_bytes"]),
        (&json!("vms/new1_cidata"), &json!("8388608"))
    );
    assert_ne!(kwargs["user_data_key"], "#cloud-config", "passwords may be in it");
    let meta: serde_json::Value =
        serde_json::from_str(kwargs["meta_data"].as_str().unwrap()).unwrap();
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA me, here";
    assert_eq!(meta["public-keys"], json!([key]));
    // The metadata service has it from the definition.
    let xml = kwargs["xml"].as_str().unwrap();
    assert!(xml.contains(&format!("<pvc:ssh-key name='key'>{key}</pvc:ssh-key>")), "{xml}");
    let made = pvc_domain::summary(xml).unwrap();
    assert_eq!((made.memory_mib, made.vcpus), (128, 2));
    // The name is taken while the task is at work.
    api.post("/vm/new1/create?image=debian").await.refused(400);
}

#[tokio::test]
async fn a_vm_to_install_a_system_on_has_an_empty_disk_and_the_image_as_a_cd() {
    let api = with_images().await;
    let reply = api.post("/vm/new1/create?iso=debian&disk=8M&memory=128&start=true").await;
    assert_eq!(reply.status, 202, "{}", reply.text());
    let queues = api.get("/tasks").await.ok();
    let kwargs = &queues["reserved"]["pvcworkerd@pvchv1"][0]["kwargs"];
    assert_eq!(
        (&kwargs["image"], &kwargs["medium"], &kwargs["disk"], &kwargs["disk_bytes"]),
        (
            &json!("vms/image_debian"),
            &json!("vms/new1_iso"),
            &json!("vms/new1_sda"),
            &json!("8388608")
        )
    );
    assert_eq!(kwargs.get("seed"), None);
    let xml = kwargs["xml"].as_str().unwrap();
    assert!(xml.contains("device='cdrom'") && xml.contains("vms/new1_iso"), "{xml}");
}

#[tokio::test]
async fn what_cannot_be_made_is_refused_before_there_is_a_task() {
    let api = with_images().await;
    for (name, given, status) in [
        ("new1", "image=nothing", 404),
        ("new1", "image=..%2Fdebian", 404),
        ("new1", "image=vms/data", 404),
        ("web", "image=debian", 400),
        ("new1", "image=debian&disk=10", 400),
        ("new1", "image=debian&disk=1K", 400),
        ("new1", "image=debian&network=4711", 404),
        ("new1", "image=debian&node=nowhere", 400),
        ("new1", "image=debian&vcpus=0", 400),
        ("new1", "image=debian&memory=0", 400),
        ("new1", "image=debian&vcpus=many", 400),
        ("new1", "image=debian&machine=amiga", 400),
        ("new1", "image=debian&ssh_keys=secret", 400),
        ("new1", "image=debian&no_cloud_init=true&ssh_keys=ssh-rsa%20AAAA", 400),
        ("-", "image=debian", 400),
        ("image_x", "image=debian", 400),
        ("new1", "", 400),
        ("new1", "image=debian&iso=debian&disk=8M", 400),
        ("new1", "iso=debian", 400),
        ("new1", "iso=debian&disk=0", 400),
        ("new1", "iso=nothing&disk=8M", 404),
        ("new1", "iso=debian&disk=8M&user_data=%23cloud-config", 400),
    ] {
        let reply = api.post(&format!("/vm/{name}/create?{given}")).await;
        assert_eq!(reply.status.as_u16(), status, "{name} {given}: {}", reply.json());
    }
    assert!(api.store.view().jobs.is_empty());
}

#[tokio::test]
async fn a_vm_of_an_image_is_plugged_in_among_the_nodes_by_force_alone() {
    let api = with_images().await;
    let path = "/vm/new1/create?image=debian&memory=128&network=storage";
    let reply = api.post(path).await;
    let said = reply.refused(400);
    assert!(said.contains("plugged into `brstorage`"), "{said}");
    assert!(reply.text().contains("`--force`"), "{}", reply.text());
    assert!(api.store.view().jobs.is_empty());
    let forced = api.post(&format!("{path}&force=true")).await;
    assert_eq!(forced.status, 202, "{}", forced.text());
}

#[tokio::test]
async fn a_vm_of_a_name_that_is_taken_is_refused_for_the_name_and_not_for_its_volumes() {
    let api = with_images().await;
    for volume in ["web_sda", "new1_sda"] {
        api.post(&format!("/storage/ceph/volume/vms/{volume}?size=1M")).await.ok();
    }
    for asked in ["image=debian", "iso=debian&disk=8M"] {
        let refused = api.post(&format!("/vm/web/create?{asked}")).await.refused(400);
        assert_eq!(refused, "a VM called `web` exists already");
    }
    let refused = api.post("/vm/new1/create?image=debian").await.refused(400);
    assert_eq!(refused, "volume `vms/new1_sda` exists already");
    // One that a task makes has its volumes by and by.
    api.post("/vm/new2/create?image=debian").await;
    api.post("/storage/ceph/volume/vms/new2_sda?size=1M").await.ok();
    let refused = api.post("/vm/new2/create?image=debian").await.refused(400);
    assert!(refused.contains("VM `new2` is being made by task"), "{refused}");
}
