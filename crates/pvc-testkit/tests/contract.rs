//! The doubles keep the contracts that the real things keep.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::any::Any;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use pvc_contracts::access_control::access_control_contract;
use pvc_contracts::block_devices::{BlockDevicesFixture, block_devices_contract};
use pvc_contracts::database::{DatabaseFixture, database_contract};
use pvc_contracts::database_cluster::{DatabaseClusterFixture, database_cluster_contract};
use pvc_contracts::exporters::{ExportersFixture, PAGE, exporters_contract};
use pvc_contracts::files::{FilesFixture, HostilePaths, files_contract};
use pvc_contracts::firewall::{FirewallFixture, firewall_contract};
use pvc_contracts::hypervisor::{
    HypervisorFixture, MigrationFixture, SPARE_MAC, hypervisor_contract, migration_contract,
};
use pvc_contracts::machine::{clock_contract, exec_contract, host_contract, random_contract};
use pvc_contracts::network::{ABLE, NetworkFixture, network_contract};
use pvc_contracts::osds::{OsdHostFixture, OsdMapFixture, osd_host_contract, osd_map_contract};
use pvc_contracts::power::{PowerFixture, power_contract};
use pvc_contracts::programs::{ProgramsFixture, programs_contract};
use pvc_contracts::services::{ServicesFixture, services_contract};
use pvc_contracts::sriov::{SriovFixture, sriov_contract};
use pvc_contracts::storage::{StorageFixture, storage_contract};
use pvc_contracts::storage_cluster::{StorageClusterFixture, storage_cluster_contract};
use pvc_contracts::volume_streams::volume_streams_contract;
use pvc_contracts::zone_transfers::{ZONE, ZoneTransfersFixture, hosts, zone_transfers_contract};
use pvc_database::SqliteDatabase;
use pvc_embedded::EmbeddedTree;
use pvc_model::Uuid;
use pvc_model::link::LinkAbilities;
use pvc_model::osd::{BlockDevice, Device, OsdId, OsdState};
use pvc_model::pool::Tier;
use pvc_model::storage::{RbdAccess, VolumeId};
use pvc_ports::{
    Bmc, Database as _, DatabaseError, FileAccess, FileOwner, Files as _, Program, ProgramEnd,
    Statement, Storage,
};
use pvc_testkit::{
    BmcManner, Closed, FakeHost, FlakyDatabase, FlakyTree, MemoryDevices, MemoryFiles,
    MemoryFirewall, MemoryNetwork, MemoryOsds, MemorySriov, MemoryStorage, PageManner,
    ProgramManner, Said, ScriptedCluster, ScriptedDatabaseCluster, ScriptedExec, ScriptedExporters,
    ScriptedHypervisor, ScriptedPower, ScriptedPrograms, ScriptedServices, ScriptedTransfers,
    SeededRandom, TokioClock, UnitManner, ZoneManner,
};

#[tokio::test(start_paused = true)]
async fn the_scripted_hypervisor_keeps_the_contract() {
    let fixture = HypervisorFixture {
        guest: Box::new(|uuid, name| {
            format!(
                "<domain><name>{name}</name><uuid>{uuid}</uuid><devices><disk><target \
                 dev='sda'/></disk></devices></domain>"
            )
        }),
        spare_disk: "<disk><target dev='sdb'/></disk>".to_owned(),
        spare_nic: format!(
            "<interface type='user'><mac address='{SPARE_MAC}'/><model type='virtio'/></interface>"
        ),
        time_limit: Duration::from_secs(10),
    };
    let hypervisor = ScriptedHypervisor::new();
    // Of a guest that is none of the suite's: agents are asked then.
    hypervisor.set_agent(Uuid::from_u128(1), None);
    hypervisor_contract(Arc::new(hypervisor), fixture).await;
}

#[tokio::test(start_paused = true)]
async fn guests_move_between_scripted_hypervisors_as_between_real_ones() {
    let (one, two) = (ScriptedHypervisor::new(), ScriptedHypervisor::new());
    one.add_peer("two", &two);
    two.add_peer("one", &one);
    let fixture = MigrationFixture {
        guest: Box::new(|uuid, name| {
            format!("<domain><name>{name}</name><uuid>{uuid}</uuid><devices></devices></domain>")
        }),
        hosts: ("two".to_owned(), "one".to_owned()),
        nobody: "nobody".to_owned(),
        time_limit: Duration::from_secs(10),
    };
    migration_contract(Arc::new(one), Arc::new(two), fixture).await;
}

#[tokio::test(start_paused = true)]
async fn the_network_in_memory_keeps_the_contract() {
    let unable = LinkAbilities { vlans: false, vxlans: false };
    for able in [ABLE, unable] {
        let network = MemoryNetwork::new().with_device("ens4");
        network.set_abilities(able);
        network_contract(Arc::new(network), NetworkFixture { device: "ens4".to_owned(), able })
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_cards_in_memory_keep_the_contract() {
    let cards = MemorySriov::new();
    cards.insert("lo", 0);
    cards.insert("ens1", 8);
    let fixture = SriovFixture { ordinary: "lo".to_owned(), card: Some(("ens1".to_owned(), 8)) };
    sriov_contract(Arc::new(cards), fixture).await;
}

#[tokio::test(start_paused = true)]
async fn the_scripted_bmcs_keep_the_contract() {
    let power = Arc::new(ScriptedPower::new());
    let bmc = |host: &str| Bmc {
        host: host.to_owned(),
        user: "admin".to_owned(),
        password: "secret".to_owned(),
    };
    let manners = [
        ("good", BmcManner { password: Some("secret".to_owned()), ..BmcManner::default() }),
        ("ignoring", BmcManner { ignores: true, ..BmcManner::default() }),
        ("lying", BmcManner { lies: true, ..BmcManner::default() }),
        ("absent", BmcManner { dead: true, ..BmcManner::default() }),
    ];
    for (host, manner) in manners {
        power.set_manner(host, manner);
    }
    let machine = power.clone();
    let fixture = PowerFixture {
        bmc: bmc("good"),
        is_really_on: Box::new(move || machine.is_really_on("good")),
        ignoring: bmc("ignoring"),
        lying: bmc("lying"),
        absent: bmc("absent"),
    };
    power_contract(power, fixture).await;
}

#[tokio::test(start_paused = true)]
async fn the_scripted_services_keep_the_contract() {
    let services = ScriptedServices::new()
        .with("good.service", UnitManner::RunsAfter(1))
        .with("hanging.service", UnitManner::Hangs)
        .with("failing.service", UnitManner::Fails);
    let fixture = ServicesFixture {
        good: "good.service".to_owned(),
        hanging: "hanging.service".to_owned(),
        failing: "failing.service".to_owned(),
    };
    services_contract(Arc::new(services), fixture).await;
}

#[tokio::test(start_paused = true)]
async fn the_scripted_database_cluster_keeps_the_contract() {
    let [good, refusing, absent] =
        [(); 3].map(|()| Arc::new(ScriptedDatabaseCluster::led_by("hv1")));
    refusing.set_refusals(u32::MAX);
    absent.set_dead(true);
    database_cluster_contract(DatabaseClusterFixture { good, refusing, absent }).await;
}

#[tokio::test(start_paused = true)]
async fn the_scripted_exporters_keep_the_contract() {
    let exporters = ScriptedExporters::new();
    let url = |name: &str| format!("http://{name}/metrics");
    for (name, manner) in [
        ("good", PageManner::Says(PAGE.to_owned())),
        ("refusing", PageManner::Refuses(503)),
        ("redirecting", PageManner::Refuses(302)),
        ("silent", PageManner::Silent),
        ("endless", PageManner::Endless),
        ("garbled", PageManner::Garbled),
    ] {
        exporters.set_manner(&url(name), manner);
    }
    let fixture = ExportersFixture {
        exporters: Arc::new(exporters),
        good: url("good"),
        refusing: url("refusing"),
        redirecting: url("redirecting"),
        silent: url("silent"),
        endless: url("endless"),
        garbled: url("garbled"),
        absent: url("absent"),
    };
    exporters_contract(fixture).await;
}

#[tokio::test(start_paused = true)]
async fn the_scripted_transfers_keep_the_contract() {
    let transfers = ScriptedTransfers::new();
    let servers = [1, 2, 3, 4].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let [good, refusing, silent, absent] = servers;
    let manners = [
        (good, ZoneManner::Gives(hosts())),
        (refusing, ZoneManner::Refuses),
        (silent, ZoneManner::Silent),
    ];
    for (server, manner) in manners {
        transfers.set_manner(server, ZONE, manner);
    }
    let transfers = Arc::new(transfers);
    zone_transfers_contract(ZoneTransfersFixture { transfers, good, refusing, silent, absent })
        .await;
}

struct Planted(Arc<MemoryFiles>);

impl HostilePaths for Planted {
    fn link(&self, path: &Path, to: &Path) {
        self.0.insert_link(path, to);
    }

    fn fifo(&self, path: &Path) {
        self.0.insert_fifo(path);
    }

    fn sparse(&self, path: &Path, length_bytes: u64) {
        self.0.insert_sparse(path, length_bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn the_files_in_memory_keep_the_contract() {
    let files = Arc::new(MemoryFiles::new());
    files.insert_user("pvc");
    let directory = Path::new("/var/lib/contract").to_owned();
    files.create_directory(&directory, &FileAccess::PUBLIC_DIRECTORY).await.unwrap();
    let fixture = FilesFixture {
        directory,
        hostile: Box::new(Planted(files.clone())),
        owner: FileOwner { user: "pvc".to_owned(), group: "pvc".to_owned() },
        files,
    };
    files_contract(fixture).await;
}

#[tokio::test(start_paused = true)]
async fn the_firewall_in_memory_keeps_the_contract() {
    let firewall = Arc::new(MemoryFirewall::new());
    firewall.set_refusing(|_, rules| rules.is_some_and(|rules| rules.contains("@nobody")));
    let fixture = FirewallFixture {
        firewall,
        tables: Box::new(|| "a table that nothing here could touch".to_owned()),
        refused: "chain input { ip saddr @nobody drop }".to_owned(),
    };
    firewall_contract(fixture).await;
}

#[tokio::test(start_paused = true)]
async fn the_scripted_programs_keep_the_contract() {
    let programs = ScriptedPrograms::new();
    let program = |name: &str, manner: ProgramManner| {
        programs.set_manner(name, manner);
        let (name, program) = (name.to_owned(), name.to_owned());
        Program { name, program, args: Vec::new(), env: Vec::new() }
    };
    let says = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
    let ready = || ProgramManner { says: says(&["ready"]), ..ProgramManner::default() };
    let exits = |status| Some(ProgramEnd::Exited(status));
    let hung_up = Some("reloaded".to_owned());
    let fixture = ProgramsFixture {
        steady: program("/steady", ProgramManner { says_when_hung_up: hung_up, ..ready() }),
        failing: program(
            "/failing",
            ProgramManner { says: says(&["one", "two"]), ends: exits(3), ..ready() },
        ),
        stubborn: program("/stubborn", ProgramManner { is_stubborn: true, ..ready() }),
        forking: program("/forking", ProgramManner { children: 1, ..ready() }),
        leaving: program("/leaving", ProgramManner { children: 1, ends: exits(0), ..ready() }),
        chatty: program(
            "/chatty",
            ProgramManner { says: says(&["x"; 10_000]), ends: exits(0), ..ready() },
        ),
        absent: program("/absent", ProgramManner { is_missing: true, ..ready() }),
        processes: {
            let programs = programs.clone();
            Box::new(move || programs.processes())
        },
        programs: Arc::new(programs.clone()),
    };
    programs_contract(fixture).await;
}

#[tokio::test(start_paused = true)]
async fn the_doubles_of_a_machine_keep_the_contracts() {
    clock_contract(&TokioClock::new()).await;
    host_contract(&FakeHost::new());
    random_contract(&SeededRandom::new(1));
    exec_contract(&ScriptedExec::without_programs()).await;
}

struct InMemory {
    storage: Arc<MemoryStorage>,
}

/// Somebody who has volumes open until this is dropped.
struct Guest(Arc<MemoryStorage>);

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.with_volumes(|volumes| volumes.close_all("a guest"));
    }
}

#[async_trait]
impl StorageFixture for InMemory {
    fn storage(&self) -> Arc<dyn Storage> {
        self.storage.clone()
    }

    async fn write(&self, volume: &VolumeId, offset: u64, bytes: &[u8]) {
        self.storage.with_volumes(|volumes| volumes.write(volume, offset, bytes)).unwrap();
    }

    async fn read(&self, volume: &VolumeId, offset: u64, length: usize) -> Vec<u8> {
        self.storage.with_volumes(|volumes| volumes.read(volume, offset, length)).unwrap()
    }

    async fn hold(&self, volume: &VolumeId) -> Box<dyn Any + Send> {
        self.storage.with_volumes(|volumes| volumes.open(volume, "a guest"));
        Box::new(Guest(self.storage.clone()))
    }
}

#[tokio::test(start_paused = true)]
async fn the_storage_in_memory_keeps_the_contract() {
    storage_contract(&InMemory { storage: Arc::new(MemoryStorage::new()) }).await;
}

#[tokio::test(start_paused = true)]
async fn the_streams_of_volumes_in_memory_keep_the_contract() {
    let storage = Arc::new(MemoryStorage::new());
    volume_streams_contract(&InMemory { storage }).await;
}

#[tokio::test(start_paused = true)]
async fn the_devices_in_memory_keep_the_contract() {
    let storage = Arc::new(MemoryStorage::new());
    let id = |text: &str| VolumeId::from_record(text).unwrap();
    let volumes = ["vms/a", "vms/b"];
    volumes.iter().for_each(|volume| storage.insert(volume));
    let (devices, processes) = (MemoryDevices::new(storage), AtomicUsize::new(1));
    let seen = devices.clone();
    let fixture = BlockDevicesFixture {
        process: Box::new(move || {
            Arc::new(devices.of_process(processes.fetch_add(1, Ordering::Relaxed), None))
        }),
        volumes: volumes.map(id),
        absent: id("vms/absent"),
        is_mapped: Box::new(move |volume| seen.mapped().contains(volume)),
    };
    block_devices_contract(fixture).await;
}

#[tokio::test(start_paused = true)]
async fn the_scripted_cluster_keeps_the_contract() {
    let access = RbdAccess {
        monitors: vec!["hv1".to_owned()],
        port: 6789,
        user: "libvirt".to_owned(),
        secret: None,
    };
    let cluster = Arc::new(ScriptedCluster::new(access));
    cluster.say(|said| *said = Said::default().with_osd_and_key());
    let storage = Arc::new(MemoryStorage::of_cluster(cluster));
    let silent = storage.clone();
    let fixture = StorageClusterFixture {
        storage,
        tier: Tier::Ssd,
        set_silent: Box::new(move |is_silent| silent.set_failing(is_silent)),
        time_limit: Duration::from_secs(20),
    };
    storage_cluster_contract(fixture).await;
}

/// A storage of node `hv1`, whose cluster has these OSDs.
fn with_osds(osds: MemoryOsds) -> Arc<MemoryStorage> {
    let access = RbdAccess {
        monitors: vec!["hv1".to_owned()],
        port: 6789,
        user: "libvirt".to_owned(),
        secret: None,
    };
    let cluster = Arc::new(ScriptedCluster::new(access));
    Arc::new(MemoryStorage::of_cluster(cluster).with_osds(osds.shared(), "hv1"))
}

fn device(name: &str) -> Device {
    Device::parse(name).unwrap()
}

#[tokio::test(start_paused = true)]
async fn disks_in_memory_keep_the_contract() {
    let mut osds = MemoryOsds::new();
    osds.add_blank("hv1", "/dev/sdb", 100 << 30);
    osds.add_blank("hv1", "/dev/sdc", 20 << 30);
    let busy = BlockDevice::blank(device("/dev/sda"), 20 << 30);
    osds.add_disk("hv1", BlockDevice { mounted_at: vec!["/".to_owned()], ..busy });
    osds.add_link("hv1", "/dev/disk/by-id/b", "/dev/sdb");
    osds.add_link("hv1", "/dev/disk/by-id/loop", "/dev/disk/by-id/loop");
    let storage = with_osds(osds);
    let fixture = OsdHostFixture {
        cluster: storage.clone(),
        storage,
        disk: device("/dev/sdb"),
        link: device("/dev/disk/by-id/b"),
        looped: device("/dev/disk/by-id/loop"),
        db_disk: device("/dev/sdc"),
        busy: device("/dev/sda"),
    };
    osd_host_contract(fixture).await;
}

#[tokio::test(start_paused = true)]
async fn a_map_in_memory_keeps_the_contract() {
    let [uuid, other] = [7, 8].map(Uuid::from_u128);
    let mut osds = MemoryOsds::new();
    osds.insert(OsdState {
        id: OsdId(0),
        uuid: Some(other),
        is_up: true,
        is_in: true,
        is_new: false,
    });
    osds.insert(OsdState {
        id: OsdId(1),
        uuid: Some(uuid),
        is_up: false,
        is_in: false,
        is_new: true,
    });
    osds.set_needed(OsdId(0), 5);
    let storage = with_osds(osds);
    let (new, only) = (OsdId(1), OsdId(0));
    osd_map_contract(OsdMapFixture { storage, new, uuid, only }).await;
}

#[tokio::test]
async fn a_flaky_database_keeps_the_contract_while_it_works() {
    let database = Arc::new(FlakyDatabase::new(Arc::new(SqliteDatabase::in_memory())));
    let absent = Arc::new(FlakyDatabase::new(Arc::new(SqliteDatabase::in_memory())));
    absent.set_dead(true);
    database_contract(DatabaseFixture { database, absent }).await;
}

#[tokio::test]
async fn a_flaky_database_loses_transactions_and_answers_as_a_real_one_can() {
    let database = FlakyDatabase::new(Arc::new(SqliteDatabase::in_memory()));
    let run = async |words| {
        let mut transaction = database.begin().await?;
        let rows = transaction.run(Statement::new(words)).await?;
        transaction.commit().await.map(|()| rows)
    };
    run("CREATE TABLE thing (at INTEGER)").await.unwrap();
    let count = async || run("SELECT at FROM thing").await.unwrap().rows.len();
    database.set_conflicts(1);
    let error = run("INSERT INTO thing VALUES (1)").await.unwrap_err();
    assert!(matches!(error, DatabaseError::Conflict), "{error}");
    assert_eq!(count().await, 0);
    database.set_lost_answers(1);
    let error = run("INSERT INTO thing VALUES (1)").await.unwrap_err();
    assert!(matches!(error, DatabaseError::Unknown { .. }), "{error}");
    assert_eq!(count().await, 1);
    let mut transaction = database.begin().await.unwrap();
    database.set_dead(true);
    for expected in ["nobody answers", "an earlier statement"] {
        let error = transaction.run(Statement::new("DELETE FROM thing")).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    drop(transaction);
    database.set_dead(false);
    assert_eq!(count().await, 1);
}

#[tokio::test]
async fn the_access_control_of_a_flaky_tree_keeps_the_contract() {
    let tree = EmbeddedTree::in_memory().connect();
    let tree = FlakyTree::with_password(tree, "secret", &Closed::default());
    access_control_contract(&*tree).await;
}
