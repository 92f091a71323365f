//! OVAs are added whole or not at all, and removed with all that came with them.

use axum::body::Body;
use futures::{StreamExt as _, stream};
use pvc_model::storage::{PoolName, VolumeId};
use pvc_ports::Storage;
use pvc_testkit::eventually;
use pvc_testkit::ova::{ovf, tar, tar_file, tar_header};

use super::*;
use crate::common::request;

const MIB: u64 = 1 << 20;

const LONG: Duration = Duration::from_secs(20);

impl Api {
    /// Adds an OVA with one disk.
    pub async fn with_ova(&self, name: &str) {
        self.with_ova_script().await;
        self.add_file(name, one_disk()).await.ok();
    }

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

    /// Nothing of an OVA is there.
    async fn has_nothing_of_an_ova(&self, before: &[String], what: &str) {
        assert!(self.store.fresh().await.unwrap().holds.is_empty(), "{what}");
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
    let words =
        "Added OVA \"o1\" with 2 disks. Its profile and system template have the same name.";
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

/// The same description as OVF 2 has it, where disks and interfaces are elements of their own.
fn ovf_2(disks: &[(&str, u64)], networks: &[&str]) -> String {
    let mut text = ovf(disks, networks).replace("envelope/1", "envelope/2");
    for (number, element, last) in [
        (100, "StorageItem", "</rasd:AddressOnParent>"),
        (1000, "EthernetPortItem", "</rasd:Connection>"),
    ] {
        let begin = format!("Item><rasd:InstanceID>{number}<");
        let (from, to) = (format!("<{begin}"), begin.replacen("Item", element, 1));
        assert_eq!(text.matches(&from).count(), 1, "{text}");
        text = text.replace(&from, &format!("<{to}"));
        text = text.replace(&format!("{last}</Item>"), &format!("{last}</{element}>"));
    }
    text
}

#[tokio::test]
async fn an_ova_of_the_second_version_of_its_format_is_taken_as_well() {
    let api = with_vms(0).await;
    api.with_ova_script().await;
    api.post("/network/1998?nettype=bridged&description=lan").await.ok();
    let text = ovf_2(&[("a.img", MIB)], &["lan"]);
    let file = tar(&[("o.ovf", text.as_bytes()), ("a.img", &disk(b"first"))]);
    let said = api.add_file("o1", file).await.ok();
    let words = "Added OVA \"o1\" with 1 disk. Its profile, system template and network template \
                 have the same name.";
    assert_eq!(said["message"], words);
    let read = |volumes: &mut pvc_testkit::MemoryVolumes| {
        volumes.read(&volume("ova_o1_sda"), 0, b"first".len())
    };
    assert_eq!(api.storage.with_volumes(read).unwrap(), b"first");
    let template = api.get("/provisioner/template/system/o1").await.ok();
    assert_eq!((&template[0]["vcpu_count"], &template[0]["vram_mb"]), (&json!(2), &json!(512)));
    let template = api.get("/provisioner/template/network/o1").await.ok();
    assert_eq!(template[0]["networks"][0]["vni"], "1998");
}

#[tokio::test]
async fn what_comes_in_a_form_is_taken_as_well() {
    let api = with_vms(0).await;
    api.with_ova_script().await;
    let file = one_disk();
    let head = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"filename\"\r\n\
                Content-Type: application/octet-stream\r\n\r\n";
    let form = [head.as_bytes(), &file, b"\r\n--b--\r\n"].concat();
    let path = format!("/provisioner/ova?pool=vms&name=o1&ova_size={}", file.len());
    let asked = request(Method::POST, &path)
        .header("Content-Type", "multipart/form-data; boundary=b")
        .header("Content-Length", form.len());
    let said = api.send(asked.body(Body::from(form)).unwrap()).await.ok();
    assert!(said["message"].as_str().unwrap().starts_with("Added OVA \"o1\" with 1 disk."));
}

/// An image that names another file for its contents.
fn with_backing_file() -> Vec<u8> {
    let mut image = b"QFI\xfb\0\0\0\x03".to_vec();
    image.resize(4096, 0);
    image[15] = 64;
    image[19] = 11;
    image[64..75].copy_from_slice(b"/etc/shadow");
    image
}

/// Files that are refused, each with a part of the reason.
fn bad() -> Vec<(&'static str, Vec<u8>)> {
    let ovf_of = |disks: &[(&str, u64)]| ovf(disks, &[]);
    let one = ovf_of(&[("a.img", MIB)]);
    let with = |files: &[(&str, &[u8])]| {
        let all: Vec<(&str, &[u8])> =
            std::iter::once(("o.ovf", one.as_bytes())).chain(files.iter().copied()).collect();
        tar(&all)
    };
    let only = |text: &str| tar(&[("o.ovf", text.as_bytes()), ("a.img", &disk(b"x"))]);
    let head = |header: [u8; 512]| [tar_file("o.ovf", one.as_bytes()), header.to_vec()].concat();
    let twice = ovf_of(&[("a.img", MIB), ("b.img", MIB)]);
    let many: Vec<(String, u64)> = (0..1000).map(|at| (format!("d{at}.img"), MIB)).collect();
    let many: Vec<(&str, u64)> = many.iter().map(|(name, size)| (name.as_str(), *size)).collect();
    let entities =
        one.replacen('\n', "\n<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/shadow'>]>", 1);
    let shadow = b"# Disk DescriptorFile\nRW 2048 FLAT \"/etc/shadow\" 0\n";
    let wrong = b"SHA256(o.ovf)= 00\n";
    let whole = with(&[("a.img", &disk(b"x"))]);
    vec![
        ("does not begin like a tar archive", b"no archive ".repeat(500)),
        ("does not begin like a tar archive", vec![]),
        ("does not begin like a tar archive", vec![0; 4096]),
        ("no description", tar(&[("o.cert", b"x")])),
        ("comes before the description", tar(&[("a.img", b"x"), ("o.ovf", one.as_bytes())])),
        ("two descriptions", with(&[("p.ovf", one.as_bytes())])),
        ("has `a.img` twice", with(&[("a.img", &disk(b"x")), ("a.img", &disk(b"x"))])),
        ("document type", only(&entities)),
        ("no XML", only("<Envelope")),
        ("no OVF 1 or 2", only("<Envelope/>")),
        ("1000 disks", only(&ovf_of(&many))),
        ("`../a.img` of a file is in a folder", only(&ovf_of(&[("../a.img", MIB)]))),
        ("is in a folder", with(&[("../a.img", b"x")])),
        ("is in a folder", with(&[("/etc/passwd", b"x")])),
        ("are left of what was said", head(tar_header("a.img", 1 << 32, b'0'))),
        ("a sparse file", head(tar_header("a.img", 512, b'S'))),
        ("a link", head(tar_header("a.img", 0, b'2'))),
        ("was cut", whole[..whole.len() - 2048].to_vec()),
        ("not in the archive", with(&[])),
        ("of more than the 1048576 bytes", with(&[("a.img", &disk(b"x").repeat(2))])),
        ("another checksum", with(&[("o.mf", wrong), ("a.img", &disk(b"x"))])),
        ("another checksum", with(&[("a.img", &disk(b"x")), ("o.mf", wrong)])),
        ("attached twice", only(&twice.replace("ovf:/disk/disk1", "ovf:/disk/disk0"))),
        ("the same file", only(&twice.replace("fileRef='file1'", "fileRef='file0'"))),
        ("data is in other files", with(&[("a.img", shadow)])),
        ("backing file", with(&[("a.img", &with_backing_file())])),
        ("0 bytes", with(&[("a.img", b"")])),
        ("one of bytes", only(&one.replace("byte * 2^20", "furlong"))),
        ("vram", only(&one.replace("byte * 2^20", "byte * 2^40"))),
        ("at most a PiB", only(&one.replace("capacity='", "capacity='9999999999"))),
    ]
}

#[tokio::test]
async fn what_is_no_good_ova_leaves_nothing() {
    let api = with_vms(0).await;
    api.with_ova_script().await;
    let before = api.volume_names().await;
    let mut others = Vec::new();
    for (why, file) in bad() {
        let size = file.len() + 4096;
        let words = api.add_ova("o1", &format!("ova_size={size}"), file).await.refused(400);
        if !words.contains(why) {
            others.push((why, words));
        }
        api.has_nothing_of_an_ova(&before, why).await;
    }
    assert!(others.is_empty(), "these have other reasons: {others:#?}");
    let file = one_disk();
    let words = api.add_ova("o1", "ova_size=1024", file.clone()).await.refused(400);
    assert!(words.contains("ova_size") || words.contains("left of what was said"), "{words}");
    api.has_nothing_of_an_ova(&before, "larger than was said").await;
    api.add_file("o1", file).await.ok();
}

#[tokio::test]
async fn what_is_known_beforehand_is_refused_before_a_byte_is_read() {
    let api = with_vms(0).await;
    let unread = || Body::from_stream(stream::pending::<Result<&'static str, std::io::Error>>());
    let words = api.add_ova("o1", "ova_size=4096", unread()).await.refused(400);
    assert!(words.contains("no script `ova` or `default_ova`"), "{words}");
    api.post("/provisioner/script?name=default_ova&data=pass").await.ok();
    api.with_templates("small").await;
    api.post("/storage/ceph/volume/vms/ova_left_sda?size=1M").await.ok();
    for (path, why) in [
        ("o1?pool=none&ova_size=4096", "no pool `none`"),
        ("o1?pool=vms&ova_size=0", "at least one byte"),
        ("o1?pool=vms&ova_size=-1", "ova_size"),
        ("o1?pool=vms", "ova_size"),
        ("o1?ova_size=4096", "pool"),
        ("o1?pool=vms&ova_size=99999999999999999", "vms"),
        ("small?pool=vms&ova_size=4096", "system template `small` already"),
        ("o%201?pool=vms&ova_size=4096", "name"),
        ("left?pool=vms&ova_size=4096", "ova_left_sda"),
    ] {
        for dry in ["", "&dry_run=true"] {
            let asked = request(Method::POST, &format!("/provisioner/ova/{path}{dry}"));
            let words = api.send(asked.body(unread()).unwrap()).await.refused(400);
            assert!(words.contains(why), "{path}: {words}");
        }
    }
    let said = api.add_ova("o1", "ova_size=4096&dry_run=true", unread()).await.ok();
    assert!(said["message"].as_str().unwrap().starts_with("nothing was changed"), "{said}");
    api.get("/provisioner/ova").await.refused(404);
}

/// The file in two pieces, with `between` done before the second.
fn halves(file: Vec<u8>, between: impl FnOnce() + Send + 'static) -> Body {
    let (first, second) = file.split_at(file.len() - 512);
    let (first, second) = (first.to_vec(), second.to_vec());
    let last = stream::once(async move {
        between();
        Ok::<_, std::io::Error>(second)
    });
    Body::from_stream(stream::iter([Ok(first)]).chain(last))
}

#[tokio::test]
async fn a_failure_at_the_end_leaves_nothing_and_a_database_that_comes_back_is_waited_for() {
    let api = with_vms(0).await;
    api.with_ova_script().await;
    let before = api.volume_names().await;
    let file = one_disk();
    let query = format!("ova_size={}", file.len());
    api.database.set_conflicts(1000);
    api.add_ova("o1", &query, file.clone()).await.refused(503);
    api.database.set_conflicts(0);
    api.has_nothing_of_an_ova(&before, "the database does not commit").await;
    let storage = api.storage.clone();
    let failing = halves(file.clone(), move || storage.set_failing(true));
    api.add_ova("o1", &query, failing).await.refused(503);
    api.storage.set_failing(false);
    api.has_nothing_of_an_ova(&before, "the storage is away").await;
    let storage = api.storage.clone();
    let taken = halves(file.clone(), move || {
        let made = storage.with_volumes(|all| all.create(&volume("ova_o1_sda"), MIB, false));
        made.expect("nothing has the name");
    });
    let words = api.add_ova("o1", &query, taken).await.refused(400);
    assert!(words.contains("ova_o1_sda"), "{words}");
    api.storage.with_volumes(|volumes| volumes.remove(&volume("ova_o1_sda"))).unwrap();
    api.has_nothing_of_an_ova(&before, "the name is taken").await;
    api.database.set_lost_answers(1);
    api.add_ova("o1", &query, file.clone()).await.ok();
    let listed = api.get("/provisioner/ova/o1").await.ok();
    assert_eq!(listed[0]["volumes"][0]["volume_name"], "ova_o1_sda");
    api.get("/provisioner/profile/o1").await.ok();
    api.database.set_dies_at_commit();
    let database = api.database.clone();
    let lives_again = async {
        let dies = || database.is_dead();
        pvc_testkit::eventually("the database dies", Duration::from_secs(60), dies).await;
        database.set_dead(false);
    };
    let (added, ()) = tokio::join!(api.add_ova("o2", &query, file), lives_again);
    added.ok();
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_nothing() {
    let api = Arc::new(with_vms(0).await);
    api.with_ova_script().await;
    let before = api.volume_names().await;
    let file = one_disk();
    let query = format!("ova_size={}", file.len());
    let begun = file[..file.len() / 2].to_vec();
    let broken = stream::iter([Ok(begun.clone()), Err(std::io::Error::other("gone"))]);
    let words = api.add_ova("o1", &query, Body::from_stream(broken)).await.refused(400);
    assert!(words.contains("ended before"), "{words}");
    api.has_nothing_of_an_ova(&before, "cut off").await;
    let (seen, is_seen) = tokio::sync::oneshot::channel();
    let then = stream::once(async move {
        seen.send(()).expect("it is waited for");
        std::future::pending::<Result<Vec<u8>, std::io::Error>>().await
    });
    let body = Body::from_stream(stream::iter([Ok(begun)]).chain(then));
    let of = api.clone();
    let asked = tokio::spawn(async move { of.add_ova("o1", &query, body).await });
    is_seen.await.unwrap();
    // A database in memory is gone with a connection that is given up while it is asked.
    eventually("its disk has begun", LONG, || api.storage.begun_uploads() == 2).await;
    asked.abort();
    assert!(asked.await.unwrap_err().is_cancelled());
    api.has_nothing_of_an_ova(&before, "gone").await;
    api.add_file("o1", file).await.ok();
}

#[tokio::test]
async fn disks_that_do_not_fill_their_capacity_and_checksums_are_taken() {
    let api = with_vms(0).await;
    api.with_ova_script().await;
    let description = ovf(&[("a.img", 4 * MIB), ("b.img", MIB)], &[]);
    let description = description.replace("ovf:fileRef='file1' ", "");
    let sums = |bytes: &[u8]| -> String {
        use sha2::{Digest as _, Sha256};
        Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let manifest = format!(
        "SHA256(o.ovf)= {}\nSHA256(a.img)= {}\n",
        sums(description.as_bytes()),
        sums(&disk(b"first"))
    );
    let [text, image] = [description.as_bytes(), &disk(b"first")];
    for (name, files) in [
        ("o1", [("o.ovf", text), ("o.mf", manifest.as_bytes()), ("a.img", image)]),
        ("o2", [("o.ovf", text), ("a.img", image), ("o.mf", manifest.as_bytes())]),
    ] {
        api.add_file(name, tar(&files)).await.ok();
        for (id, bytes, begin) in [("sda", 4 * MIB, &b"first"[..]), ("sdb", MIB, b"\0\0\0\0\0")] {
            let id = volume(&format!("ova_{name}_{id}"));
            let read = api.storage.with_volumes(|volumes| volumes.read(&id, 0, 5)).unwrap();
            assert_eq!(read, begin, "{id}");
            assert_eq!(api.storage.volume(&id).await.unwrap().size_bytes, bytes);
        }
    }
}

#[tokio::test]
async fn networks_are_found_by_their_names_and_others_are_named() {
    let api = with_vms(0).await;
    api.with_ova_script().await;
    for (vni, name) in [("1998", "lan"), ("1999", "dmz")] {
        api.post(&format!("/network/{vni}?nettype=bridged&description={name}")).await.ok();
    }
    let file = |networks: &[&str]| tar(&[("o.ovf", ovf(&[], networks).as_bytes())]);
    let said = api.add_file("o1", file(&["dmz", "VM Network", "1998", "lan"])).await.ok();
    let words = "Added OVA \"o1\" with 0 disks. Its profile, system template and network template \
                 have the same name. Left out are interfaces in `VM Network`, of which there is \
                 not exactly one network here.";
    assert_eq!(said["message"], words);
    let template = api.get("/provisioner/template/network/o1").await.ok();
    let vnis: Vec<_> = template[0]["networks"].as_array().unwrap().iter().collect();
    let vnis: Vec<_> = vnis.iter().map(|net| net["vni"].as_str().unwrap()).collect();
    assert_eq!((vnis, &template[0]["ova"]), (vec!["1999", "1998", "1998"], &json!(1)));
    assert_eq!(api.get("/provisioner/profile/o1").await.ok()[0]["network_template"], "o1");
    api.add_file("o2", file(&["VM Network"])).await.ok();
    api.get("/provisioner/template/network/o2").await.refused(404);
    assert_eq!(api.get("/provisioner/profile/o2").await.ok()[0]["network_template"], "N/A");
    for name in ["o1", "o2"] {
        let removed = api.delete(&format!("/provisioner/ova/{name}")).await.ok();
        assert_eq!(removed["message"], format!("Removed OVA \"{name}\"."));
    }
    api.has_nothing_of_an_ova(&[], "both are removed").await;
}

#[tokio::test]
async fn an_ova_goes_with_all_of_it_unless_something_else_uses_that() {
    let api = with_web().await;
    let before = api.volume_names().await;
    api.with_ova("o1").await;
    api.with_templates("small").await;
    let parts = provisioner::PARTS.replace("system_template=small", "system_template=o1");
    api.post(&format!("/provisioner/profile/other?{parts}")).await.ok();
    let words = api.delete("/provisioner/ova/o1").await.refused(400);
    assert!(words.contains("system template `o1` is used by profile `other`"), "{words}");
    api.delete("/provisioner/profile/other").await.ok();
    api.storage.with_volumes(|volumes| volumes.open(&volume("ova_o1_sda"), "somebody"));
    api.delete("/provisioner/ova/o1").await.refused(400);
    api.storage.with_volumes(|volumes| volumes.close_all("somebody"));
    api.get("/provisioner/ova/o1").await.ok();
    api.delete("/provisioner/ova/none").await.refused(404);
    // As after a removal that was cut off: the volume is gone, and the rows are not.
    api.delete("/storage/ceph/volume/vms/ova_o1_sda").await.ok();
    let said = api.delete("/provisioner/ova/o1?dry_run=true").await.ok();
    assert!(said["message"].as_str().unwrap().starts_with("nothing was changed"), "{said}");
    api.delete("/provisioner/ova/o1").await.ok();
    for path in ["ova", "profile", "template/system/o1"] {
        api.get(&format!("/provisioner/{path}")).await.refused(404);
    }
    let kept = "trash ova_o1_sda".to_owned();
    assert_eq!(api.volume_names().await, [before, vec![kept]].concat());
    api.add_file("o1", one_disk()).await.ok();
}

fn two_disks() -> Vec<u8> {
    let description = ovf(&[("a.img", MIB), ("b.img", MIB)], &[]);
    let files = [("a.img", disk(b"first")), ("b.img", disk(b"second"))];
    let [(first, a), (second, b)] = &files;
    tar(&[("o.ovf", description.as_bytes()), (first, a), (second, b)])
}

#[tokio::test]
async fn a_commit_that_is_done_late_is_no_reason_to_remove_its_volumes() {
    let api = with_vms(0).await;
    api.with_ova_script().await;
    // The look after it sees nothing, and the second try meets what the first has done.
    api.database.set_late_commit(1);
    api.add_file("o1", one_disk()).await.ok();
    assert!(!api.database.has_late_commit());
    api.get("/provisioner/ova/o1").await.ok();
    assert_eq!(api.volume_names().await, ["ova_o1_sda"]);
    // Nobody can tell, also when a second try is refused for another reason.
    api.database.set_late_commit(1000);
    api.database.set_conflicts(1000);
    let reply = api.add_file("o2", two_disks()).await;
    api.database.set_conflicts(0);
    assert!(reply.refused(503).contains("the connection was lost"), "{}", reply.text());
    let hint = reply.json()["hint"].as_str().unwrap().to_owned();
    assert!(hint.contains("its volumes stay: `vms/ova_o2_sda`, `vms/ova_o2_sdb`"), "{hint}");
    assert_eq!(api.volume_names().await, ["ova_o1_sda", "ova_o2_sda", "ova_o2_sdb"]);
}

#[tokio::test]
async fn each_disk_is_open_until_all_of_them_have_come() {
    let api = with_vms(0).await;
    api.with_ova_script().await;
    let storage = api.storage.clone();
    let at_the_end = halves(two_disks(), move || assert_eq!(storage.ended_uploads(), 0));
    api.add_ova("o1", &format!("ova_size={}", two_disks().len()), at_the_end).await.ok();
    assert_eq!(api.storage.ended_uploads(), 2);
}

/// Each that is open may take a program, and there were as many as an OVA has disks.
#[tokio::test]
async fn few_disks_of_an_ova_are_open_at_once_and_those_without_a_file_begin_at_its_end() {
    let api = Arc::new(with_vms(0).await);
    api.with_ova_script().await;
    let before = api.volume_names().await;
    let names: Vec<String> = (0..14).map(|at| format!("{at}.img")).collect();
    let disks: Vec<(&str, u64)> = names.iter().map(|name| (&**name, MIB)).collect();
    let mut description = ovf(&disks, &[]);
    for empty in 0..4 {
        description = description.replace(&format!(" ovf:fileRef='file{empty}'"), "");
    }
    let contents = disk(b"data");
    let mut parts = vec![("o.ovf", description.as_bytes())];
    parts.extend(names[4..].iter().map(|name| (&**name, &contents[..])));
    let file = tar(&parts);
    let query = format!("ova_size={}", file.len());
    // To the middle of the last disk.
    let begun = file[..file.len() - contents.len() / 2].to_vec();
    let still = stream::iter([Ok::<_, std::io::Error>(begun)]).chain(stream::pending());
    let of = api.clone();
    let asked =
        tokio::spawn(async move { of.add_ova("o1", &query, Body::from_stream(still)).await });
    let uploads = || (api.storage.begun_uploads(), api.storage.ended_uploads());
    eventually("the last disk has begun", LONG, || uploads() == (10, 1)).await;
    asked.abort();
    assert!(asked.await.unwrap_err().is_cancelled());
    api.has_nothing_of_an_ova(&before, "gone").await;
    api.add_file("o1", file).await.ok();
    assert_eq!((api.volume_names().await.len(), uploads().0), (before.len() + 14, 24));
}

#[tokio::test]
async fn no_disk_of_an_ova_goes_if_another_cannot() {
    let api = with_vms(0).await;
    api.with_ova_script().await;
    api.add_file("o1", two_disks()).await.ok();
    let (second, copy) = (volume("ova_o1_sdb"), volume("copy").volume);
    api.storage.with_volumes(|volumes| volumes.clone_on_write(&second, &copy)).unwrap();
    let before = api.volume_names().await;
    assert!(before.contains(&"copy".to_owned()), "{before:?}");
    for query in ["", "?dry_run=true"] {
        let reply = api.delete(&format!("/provisioner/ova/o1{query}")).await;
        assert!(reply.refused(400).contains("copy"), "{}", reply.text());
        assert_eq!(api.volume_names().await, before);
    }
    api.storage.with_volumes(|volumes| volumes.remove(&volume("copy"))).unwrap();
    api.delete("/provisioner/ova/o1").await.ok();
    assert_eq!(api.volume_names().await, ["trash ova_o1_sda", "trash ova_o1_sdb"]);
}

#[tokio::test]
async fn an_archive_in_another_order_is_refused_with_a_command_that_holds_large_disks() {
    let api = with_vms(0).await;
    api.with_ova_script().await;
    let reply = api.add_file("o1", tar(&[("a.img", b"x")])).await;
    reply.refused(400);
    assert!(reply.json()["hint"].as_str().unwrap().contains("tar --format=gnu "));
}

#[tokio::test]
async fn the_file_is_taken_while_the_storage_is_asked_and_what_is_slow_is_named() {
    let limits = Limits { change_time: Duration::from_secs(2), ..settings().limits };
    let api = start(&Shape::with_vms(0).dump(), ApiSettings { limits, ..settings() }).await;
    api.with_ova_script().await;
    api.storage.set_gate(Gate::closing_at(0));
    let (seen, is_seen) = tokio::sync::oneshot::channel();
    let body = stream::once(async move {
        seen.send(()).expect("it is waited for");
        std::future::pending::<Result<Vec<u8>, std::io::Error>>().await
    });
    let reply = api.add_ova("o1", "ova_size=4096", Body::from_stream(body)).await;
    let words = reply.refused(503);
    assert!(words.contains("the storage did not say within"), "{words}");
    is_seen.await.expect("the body was read before the answer");
}

#[tokio::test]
async fn a_client_that_stands_still_is_turned_away_and_leaves_nothing() {
    let api = Arc::new(with_vms(0).await);
    api.with_ova_script().await;
    let before = api.volume_names().await;
    let file = one_disk();
    let query = format!("ova_size={}", file.len());
    let begun = file[..file.len() / 2].to_vec();
    let still = stream::iter([Ok::<_, std::io::Error>(begun)]).chain(stream::pending());
    let of = api.clone();
    let asked =
        tokio::spawn(async move { of.add_ova("o1", &query, Body::from_stream(still)).await });
    // By then the database, which needs real time, has been asked.
    eventually("a disk has begun", LONG, || api.storage.begun_uploads() == 1).await;
    tokio::time::pause();
    let said = asked.await.unwrap().refused(408);
    tokio::time::resume();
    assert!(said.contains("120 s"), "{said}");
    api.has_nothing_of_an_ova(&before, "it stood still").await;
}

#[tokio::test]
async fn the_log_says_who_has_added_an_ova() {
    let (log, _guard) = crate::security::logged(tracing::Level::INFO);
    let api = with_vms(0).await;
    api.with_ova("o1").await;
    let line = log.line("/api/v1/provisioner/ova/o1");
    for part in ["POST", "status=200", "caller=\"admin\"", "192.0.2.1"] {
        assert!(line.contains(part), "{part} in {line}");
    }
}
