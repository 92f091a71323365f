//! The adapters of this machine.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use pvc_ceph::{CephOptions, CephVolume, RbdStorage};
use pvc_config::{Ceph, Config, Postgres, Zookeeper, ZookeeperTls};
use pvc_daemon::{Profiles, ScriptTools};
use pvc_database::{PostgresDatabase, PostgresOptions, SqliteDatabase};
use pvc_directory::DirectoryStorage;
use pvc_dns::TcpTransfers;
use pvc_libvirt::{LibvirtHypervisor, LibvirtOptions};
use pvc_linux::{
    LinuxExec, LinuxFiles, LinuxHost, LinuxNetwork, LinuxPrograms, LinuxSriov, NftFirewall,
    OsRandom, SystemClock, Systemctl,
};
use pvc_model::storage::RbdAccess;
use pvc_node::Ports;
use pvc_patroni::Patroni;
use pvc_ports::{DatabaseCluster, DnsPorts, Firewall, Storage, Tree};
use pvc_power::Ipmitool;
use pvc_provisioner::Provisioner;
use pvc_scripts::{Home, LinuxBlockDevices, LinuxScripts};
use pvc_store::{Store, StoreError};
use pvc_zookeeper::{Tls, ZookeeperOptions, ZookeeperTree};

use crate::settings;

/// Hypervisor, storage and machine. Nothing is asked yet: whoever asks first waits for the answer.
pub fn machine(config: &Config) -> anyhow::Result<Ports> {
    Ok(Ports {
        hypervisor: Arc::new(LibvirtHypervisor::new(libvirt(config))),
        storage: storage(config)?,
        network: Arc::new(LinuxNetwork::new()),
        sriov: Arc::new(LinuxSriov::new()),
        services: Arc::new(Systemctl::new(Arc::new(LinuxExec))),
        host: Arc::new(LinuxHost::new()),
        power: Arc::new(Ipmitool::new(Arc::new(LinuxExec), Arc::new(SystemClock))),
        database_cluster: database_cluster(config),
        dns: dns(config),
        exec: Arc::new(LinuxExec),
        files: Arc::new(LinuxFiles),
        firewall: firewall(),
        programs: Arc::new(programs(config)?),
        clock: Arc::new(SystemClock),
        random: Arc::new(OsRandom),
    })
}

#[expect(clippy::disallowed_methods, reason = "before there are ports")]
/// Programs that run on, of this kind of daemon: what another kind has left is not ours to end.
fn programs(config: &Config) -> anyhow::Result<LinuxPrograms> {
    let owner = if config.standalone.is_some() { "pvc-standalone" } else { "pvcnoded" };
    let runtime = &config.paths.dynamic;
    std::fs::create_dir_all(runtime)
        .with_context(|| format!("the directory `{}` cannot be made", runtime.display()))?;
    Ok(LinuxPrograms::new(owner, runtime)?)
}

/// The packet filter of this machine.
pub fn firewall() -> Arc<dyn Firewall> {
    Arc::new(NftFirewall::new(Arc::new(LinuxExec)))
}

/// The database of a coordinator, where Patroni is among the services that PVC starts.
fn database_cluster(config: &Config) -> Option<Arc<dyn DatabaseCluster>> {
    let has_one =
        config.subsystems.networking && config.is_coordinator() && config.standalone.is_none();
    let address = config.networks.as_ref().filter(|_| has_one)?.cluster.address?;
    Some(Arc::new(Patroni::new(address.addr().into(), pvc_patroni::PORT)))
}

/// The world of the DNS aggregator, on nodes that may be primary.
fn dns(config: &Config) -> Option<DnsPorts> {
    let database = postgres(settings::dns_database(config)?);
    Some(DnsPorts { database: Arc::new(database), transfers: Arc::new(TcpTransfers) })
}

fn postgres(database: &Postgres) -> PostgresDatabase {
    PostgresDatabase::new(&PostgresOptions {
        host: database.hostname.clone(),
        port: database.port,
        database: database.database.clone(),
        user: database.username.clone(),
        password: Some(database.password.reveal().to_owned()),
    })
}

/// The provisioner's database: the cluster's, or a file of this machine alone.
#[expect(clippy::disallowed_methods, reason = "before there are ports")]
pub fn provisioner(config: &Config) -> anyhow::Result<Option<Provisioner>> {
    let Some(own) = &config.standalone else {
        let database = config.database.metadata.as_ref().map(postgres);
        return Ok(database.map(|database| Provisioner::new(Arc::new(database))));
    };
    // Userdata has passwords in it.
    let directory = own.state_directory.join("provisioner");
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .with_context(|| format!("the directory `{}` cannot be made", directory.display()))?;
    let database = SqliteDatabase::in_file(&directory.join("provisioner.sqlite"));
    Ok(Some(Provisioner::new(Arc::new(database))))
}

/// Means to run scripts of the provisioner, where that has a database, and to end what earlier
/// processes have left of them.
pub fn scripts(config: &Config, ports: &Ports) -> anyhow::Result<ScriptTools> {
    let provisioner = provisioner(config)?;
    let runtime = &config.paths.dynamic;
    let home = Home::make(runtime)
        .with_context(|| format!("no directory can be made in `{}`", runtime.display()))?;
    let (storage, exec) = (ports.storage.clone(), ports.exec.clone());
    Ok(ScriptTools {
        profiles: provisioner.map(|provisioner| Arc::new(provisioner) as Arc<dyn Profiles>),
        scripts: Arc::new(LinuxScripts::new(home.clone())),
        devices: Arc::new(LinuxBlockDevices::new(home, storage, exec)),
        files: ports.files.clone(),
        lists: pvc_api::script_list,
        settings: settings::scripts(config),
    })
}

/// Name that hypervisors have for Ceph in every PVC cluster.
const HYPERVISORS: &str = "libvirt";

/// The volumes of this machine's guests: the cluster's, or files of this machine alone.
pub fn storage(config: &Config) -> anyhow::Result<Arc<dyn Storage>> {
    if let Some(ceph) = config.ceph.as_ref().filter(|_| config.standalone.is_none()) {
        let exec = Arc::new(LinuxExec);
        let services = Arc::new(Systemctl::new(exec.clone()));
        let osds = CephVolume::new(exec.clone(), services, ceph.config_file.clone());
        let storage = RbdStorage::new(ceph_options(ceph), exec).with_osds(Arc::new(osds));
        return Ok(Arc::new(storage));
    }
    let volumes = settings::volume_directory(config);
    let storage = DirectoryStorage::open(&volumes)
        .with_context(|| format!("cannot open the volumes in `{}`", volumes.display()))?;
    Ok(Arc::new(storage))
}

fn ceph_options(ceph: &Ceph) -> CephOptions {
    CephOptions {
        config: ceph.config_file.clone(),
        keyring: ceph.keyring_file.clone(),
        user: "admin".to_owned(),
        access: RbdAccess {
            monitors: ceph.monitor_hosts.clone(),
            port: ceph.monitor_port,
            user: HYPERVISORS.to_owned(),
            secret: ceph.secret_uuid.clone(),
        },
    }
}

fn libvirt(config: &Config) -> LibvirtOptions {
    let own = config.standalone.as_ref();
    let uri =
        own.and_then(|own| own.libvirt_uri.clone()).unwrap_or_else(|| "qemu:///system".to_owned());
    let scratch =
        own.map_or_else(|| PathBuf::from("/var/lib/pvc"), |own| own.state_directory.clone());
    // Kept until the machine restarts: a probe takes seconds, and its answer changes with the
    // kernel only.
    let verdict = Some(config.paths.dynamic.join("kvm-verdict"));
    LibvirtOptions {
        uri,
        scratch,
        verdict,
        domain_type: None,
        target_uri: LibvirtOptions::target_uri(config.migration.libvirt_tls).to_owned(),
    }
}

/// A session with the cluster's ZooKeeper.
pub async fn zookeeper(config: &Config) -> anyhow::Result<Arc<ZookeeperTree>> {
    let servers = config.zookeeper_servers().join(",");
    let Zookeeper { password, tls, .. } = &config.database.zookeeper;
    tracing::info!(%servers, encrypted = tls.is_some(), "connecting to ZooKeeper");
    let own = tls.as_ref().and_then(|tls| tls.own.as_ref());
    let own = own.map(|(certificate, key)| (certificate.as_path(), key.as_path()));
    let load = |tls: &ZookeeperTls| Tls::load(&tls.authority, own);
    let options = ZookeeperOptions {
        password: password.as_ref().map(|password| Arc::from(password.reveal())),
        tls: tls.as_ref().map(load).transpose().context("TLS to ZooKeeper cannot be spoken")?,
        session_timeout: settings::SESSION_TIMEOUT,
        ..ZookeeperOptions::default()
    };
    Ok(Arc::new(ZookeeperTree::connect(&servers, options).await?))
}

/// The store on `tree`.
pub async fn store(tree: Arc<dyn Tree>) -> anyhow::Result<Store> {
    read(Store::open(tree, Arc::new(SystemClock), Arc::new(OsRandom))).await
}

/// The store on `tree` with its jobs alone in view.
pub async fn jobs(tree: Arc<dyn Tree>) -> anyhow::Result<Store> {
    read(Store::open_jobs(tree, Arc::new(SystemClock), Arc::new(OsRandom))).await
}

async fn read(store: impl Future<Output = Result<Store, StoreError>>) -> anyhow::Result<Store> {
    let store = store.await.context("cannot read the cluster's store")?;
    pvc_linux::give_back_memory(); // answers of a megabyte, of which the store kept the values
    Ok(store)
}
