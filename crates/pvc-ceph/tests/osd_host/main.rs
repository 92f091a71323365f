//! The contract of the OsdHost port on the real adapter, whose programs are those of a machine in
//! memory; and the command lines that it runs.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod contract;
mod machine;

use std::sync::Arc;
use std::time::Duration;

use pvc_ceph::{CephOptions, CephVolume, RbdStorage};
use pvc_contracts::osds::{OsdHostFixture, osd_host_contract};
use pvc_model::Uuid;
use pvc_model::osd::{BlockDevice, Device, DeviceClass, LogicalVolume, LvmName, OsdId};
use pvc_model::storage::RbdAccess;
use pvc_ports::{Command, ExecError, OsdError, OsdHost, Output};
use pvc_testkit::{
    MemoryOsds, MemoryStorage, ScriptedCluster, ScriptedExec, ScriptedServices, SharedOsds,
};

use machine::{Machine, Units};

fn device(path: &str) -> Device {
    Device::parse(path).unwrap()
}

fn access() -> RbdAccess {
    let monitors = vec!["hv1".to_owned()];
    RbdAccess { monitors, port: 6789, user: "libvirt".to_owned(), secret: None }
}

fn node() -> SharedOsds {
    let mut osds = MemoryOsds::new();
    osds.add_blank("hv1", "/dev/sdb", 100 << 30);
    osds.add_blank("hv1", "/dev/nvme0n1", 20 << 30);
    let busy = BlockDevice::blank(device("/dev/sda"), 20 << 30);
    osds.add_disk("hv1", BlockDevice { mounted_at: vec!["/".to_owned()], ..busy });
    osds.add_link("hv1", "/dev/disk/by-id/b", "/dev/sdb");
    osds.add_link("hv1", "/dev/disk/by-id/loop", "/dev/disk/by-id/loop");
    osds.shared()
}

fn ceph_volume(osds: &SharedOsds) -> (CephVolume, Arc<Machine>) {
    let machine = Arc::new(Machine::new(osds.clone()));
    let units = Arc::new(Units(osds.clone()));
    (CephVolume::new(machine.clone(), units, "/etc/ceph/ceph.conf".into()), machine)
}

#[tokio::test]
async fn the_adapter_keeps_the_contract() {
    let osds = node();
    let (host, machine) = ceph_volume(&osds);
    let options = CephOptions {
        config: "/etc/ceph/ceph.conf".into(),
        keyring: "/etc/ceph/keyring".into(),
        user: "admin".to_owned(),
        access: access(),
    };
    let storage = RbdStorage::new(options, machine).with_osds(Arc::new(host));
    let cluster = MemoryStorage::of_cluster(Arc::new(ScriptedCluster::new(access())));
    let fixture = OsdHostFixture {
        storage: Arc::new(storage),
        cluster: Arc::new(cluster.with_osds(osds, "hv1")),
        disk: device("/dev/sdb"),
        link: device("/dev/disk/by-id/b"),
        looped: device("/dev/disk/by-id/loop"),
        db_disk: device("/dev/nvme0n1"),
        busy: device("/dev/sda"),
    };
    osd_host_contract(fixture).await;
}

#[tokio::test]
async fn the_programs_are_run_as_an_operator_would_run_them() {
    let (host, machine) = ceph_volume(&node());
    let (disk, group) = (device("/dev/disk/by-id/b"), LvmName::db_group());
    let ran = async |what: Result<(), OsdError>| {
        what.unwrap();
        machine.take_ran()
    };

    let zap = host.zap(&disk).await;
    assert_eq!(ran(zap).await, ["ceph-volume lvm zap --destroy /dev/disk/by-id/b"]);
    let made = host.prepare_all(&disk, DeviceClass::Ssd, 1).await;
    assert_eq!(
        ran(made).await,
        ["ceph-volume lvm batch --yes --prepare --bluestore --crush-device-class ssd \
          /dev/disk/by-id/b"]
    );
    let zap = host.zap(&disk).await;
    ran(zap).await;
    let made = host.prepare_all(&disk, DeviceClass::Nvme, 2).await;
    assert_eq!(
        ran(made).await,
        ["ceph-volume lvm batch --yes --prepare --bluestore --osds-per-device 2 \
          --crush-device-class nvme /dev/disk/by-id/b"]
    );
    let osd = host.lvm_osds().await.unwrap().remove(0);
    assert_eq!(machine.take_ran(), ["ceph-volume lvm list --format json"]);

    let part = host.partition(&device("/dev/nvme0n1")).await.unwrap();
    assert_eq!(part.as_str(), "/dev/nvme0n1p1");
    assert_eq!(
        machine.take_ran(),
        [
            "realpath --canonicalize-existing -- /dev/nvme0n1",
            "sgdisk --clear /dev/nvme0n1",
            "sgdisk --new 1:: --typecode 1:8e00 /dev/nvme0n1",
        ]
    );
    let made = host.create_volume_group(&group, &part).await;
    assert_eq!(
        ran(made).await,
        [
            "vgs --reportformat json --units b --nosuffix --options vg_name,vg_size,vg_free \
             --select vg_name=osd-db",
            "pvcreate --force --yes /dev/nvme0n1p1",
            "vgcreate --force --yes osd-db /dev/nvme0n1p1",
        ]
    );
    let db = LogicalVolume::db_of(osd.id);
    let made = host.create_volume(&db, 1 << 30).await;
    assert_eq!(ran(made).await, [format!("lvcreate -L 1024M -n osd-{} --yes osd-db", osd.id)]);
    let given = host.give_db(osd.id, osd.uuid, &db).await;
    let (id, uuid) = (osd.id, osd.uuid);
    assert_eq!(
        ran(given).await,
        [format!(
            "ceph-volume lvm new-db --osd-id {id} --osd-fsid {uuid} --target osd-db/osd-{id}"
        )]
    );
    let activated = host.activate(id, uuid).await;
    assert_eq!(ran(activated).await, [format!("ceph-volume lvm activate --bluestore {id} {uuid}")]);
    host.stop_daemon(id).await.unwrap();
    let removed = host.remove_volume(&db).await;
    assert_eq!(ran(removed).await, [format!("lvremove --yes --force osd-db/osd-{id}")]);

    let block = LogicalVolume::block_of(LvmName::block_group(Uuid::nil()), uuid);
    let line = format!(
        "ceph-volume lvm prepare --bluestore --osd-id {id} --osd-fsid {uuid} --data {block}"
    );
    host.prepare(id, uuid, &block, None).await.unwrap_err();
    assert_eq!(machine.take_ran(), [&*line]);
    host.prepare(id, uuid, &block, Some(&db)).await.unwrap_err();
    assert_eq!(machine.take_ran(), [format!("{line} --block.db {db}")]);
}

fn on(
    script: impl Fn(&Command) -> Result<Output, ExecError> + Send + Sync + 'static,
) -> CephVolume {
    let services = Arc::new(ScriptedServices::new());
    CephVolume::new(Arc::new(ScriptedExec::new(script)), services, "/etc/ceph/ceph.conf".into())
}

#[tokio::test]
async fn a_program_that_hangs_or_is_missing_or_babbles_is_named() {
    let late = on(|command| {
        let (program, deadline) = (command.program.clone(), command.deadline);
        Err(ExecError::TimedOut { program, deadline })
    });
    let error = late.zap(&device("/dev/sdb")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "`ceph-volume` did not end within 600 s while it was erasing device `/dev/sdb`"
    );
    assert!(error.hint().unwrap().contains("ceph-volume.log"));
    let error = late.devices().await.unwrap_err();
    assert!(matches!(error, OsdError::TimedOut { seconds, .. }
        if Duration::from_secs(seconds) <= Duration::from_secs(60)));

    let missing = on(|command| Err(ExecError::Missing { program: command.program.clone() }));
    let error = missing.activate(OsdId(1), Uuid::nil()).await.unwrap_err();
    assert!(error.hint().unwrap().contains("`ceph-volume` installed"), "{error}");

    let babbles = on(|_| Ok(ScriptedExec::success("Welcome!\n")));
    let error = babbles.lvm_osds().await.unwrap_err();
    assert!(error.to_string().starts_with("the answer of `ceph-volume` is not understood"));
    let error = babbles.device(&device("/dev/sdb")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "`/dev/sdb` is no disk: it is `Welcome!`, which is no block device"
    );
}

#[tokio::test]
async fn a_partition_table_that_only_the_disk_knows_of_is_seen() {
    let osds = node();
    let (host, _) = ceph_volume(&osds);
    assert_eq!(host.device(&device("/dev/sdb")).await.unwrap().partition_table, None);
    let disk = BlockDevice::blank(device("/dev/sdb"), 100 << 30);
    let disk = BlockDevice { partition_table: Some("dos".to_owned()), ..disk };
    osds.lock().unwrap().add_disk("hv1", disk);
    let found = host.device(&device("/dev/disk/by-id/b")).await.unwrap();
    assert_eq!(found.partition_table.as_deref(), Some("dos"));
}
