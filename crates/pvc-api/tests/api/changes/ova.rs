//! OVAs are added whole or not at all, and removed with all that came with them.

use axum::body::Body;
use futures::stream;
use pvc_model::storage::{PoolName, VolumeId};
use pvc_ports::Storage;
use pvc_testkit::ova::{ovf, tar, tar_file, tar_header};

use super::*;
use crate::common::request;

const MIB: u64 = 1 << 20;

impl Api {
    async fn with_ova_script(&self) {
        self.post("/provisioner/script?name=ova&data=pass").await.ok();
    }

    async fn add_ova(&self, name: &str, query: &str, body: impl Into<Body>) -> Reply {
        let path = format!("/provisioner/ova/{name}?pool=vms&{query}");
        let asked = request(Method::POST, &path).header("Content-Type", "application/octet-stream");
        self.send(asked.body(body.into()).unwrap()).await
    }

    async fn add_file(&self, name: &str, file: Vec<u8>) -> Reply {
        self.add_ova(name, &format!("ova_size={}", file.len()), file).await
    }

    /// The names of the volumes that the storage has, with those in the trash behind them.
    async fn volume_names(&self) -> Vec<String> {
        let pool = PoolName::new("vms");
        let there = self.storage.with_volumes(|volumes| volumes.volumes(&pool)).unwrap();
        let kept = self.storage.trashed(&pool).await.unwrap();
        let there = there.into_iter().map(|volume| volume.id.volume.to_string());
        there.chain(kept.into_iter().map(|entry| format!("trash {}", entry.name))).collect()
    }

    /// Nothing of an OVA is there, and nothing is under way.
    async fn has_nothing_of_an_ova(&self, before: &[String], what: &str) {
        assert_eq!(self.volume_names().await, before, "{what}");
        for path in ["ova", "template/system", "template/network", "profile"] {
            self.get(&format!("/provisioner/{path}")).await.refused(404);
        }
    }
}

fn volume(name: &str) -> VolumeId {
    VolumeId::parse(&format!("vms/{name}")).unwrap()
}

/// A disk whose first bytes are these, of a MiB.
fn disk(begin: &[u8]) -> Vec<u8> {
    let mut disk = begin.to_vec();
    disk.resize(MIB as usize, 0);
    disk
}

fn one_disk() -> Vec<u8> {
    tar(&[("o.ovf", ovf(&[("a.img", MIB)], &[]).as_bytes()), ("a.img", &disk(b"first"))])
}

#[tokio::test]
async fn an_ova_becomes_volumes_templates_and_a_profile() {
    let api = with_vms(0).await;
    api.with_ova_script().await;
    api.get("/provisioner/ova").await.refused(404);
    let file = tar(&[
        ("o.ovf", ovf(&[("a.img", MIB), ("b.img", 3 * MIB)], &[]).as_bytes()),
        ("b.img", &disk(b"second")),
        ("a.img", &disk(b"first")),
    ]);
    let said = api.add_file("o1", file.clone()).await.ok();
    let words = "Added OVA \"o1\" with 2 disks. Its profile and system template have the same name.";
    assert_eq!(said["message"], words);
    assert_eq!(said["file_bytes"], json!(file.len()));
    assert_eq!(said["crc32"], format!("{:08x}", crc32fast::hash(&file)));
    assert_eq!(said["disk_bytes"], json!(4 * MIB));
    let of = |id: &str| {
        json!({"pool": "vms", "volume_name": format!("ova_o1_{id}"), "volume_format": "raw",
               "disk_id": id, "disk_size_gb": 1})
    };
    let ova = json!([{"id": 1, "name": "o1", "volumes": [of("sda"), of("sdb")]}]);
    assert_eq!(api.get("/provisioner/ova").await.ok(), ova);
    assert_eq!(api.get("/provisioner/ova/o1").await.ok(), ova);
    for (name, begin, bytes) in [("ova_o1_sda", "first", MIB), ("ova_o1_sdb", "second", 3 * MIB)] {
        let read = |volumes: &mut pvc_testkit::MemoryVolumes| {
            (volumes.read(&volume(name), 0, begin.len()), volumes.volume(&volume(name)))
        };
        let (found, info) = api.storage.with_volumes(read);
        assert_eq!(found.unwrap(), begin.as_bytes());
        assert_eq!(info.unwrap().size_bytes, bytes);
        assert!(api.store.view().volumes.contains_key(&volume(name)));
    }
    let template = json!([{
        "id": 1, "name": "o1", "vcpu_count": 2, "vram_mb": 512, "serial": true, "vnc": false,
        "vnc_bind": null, "node_limit": null, "node_selector": null, "node_autostart": false,
        "migration_method": null, "ova": 1, "migration_max_downtime": 300
    }]);
    assert_eq!(api.get("/provisioner/template/system/o1").await.ok(), template);
    let profile = json!([{
        "id": 1, "name": "o1", "type": "ova", "system_template": "o1", "network_template": "N/A",
        "storage_template": "N/A", "userdata": "N/A", "script": "ova", "ova": "o1",
        "arguments": [""]
    }]);
    assert_eq!(api.get("/provisioner/profile/o1").await.ok(), profile);
}
