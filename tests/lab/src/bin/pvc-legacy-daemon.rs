//! The node daemon of PVC 1.0.3 as [`pvc_testkit::legacy`] plays it, on the adapters of a real
//! node, from the `pvc.conf` that ours reads. A story of the lab has it started in our daemon's
//! place: see `Lab::begins_as_legacy`.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "nothing is simulated here: real time passes")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use pvc_ceph::{CephOptions, RbdStorage};
use pvc_config::{Ceph, Config, FenceAction, Machine};
use pvc_libvirt::{LibvirtHypervisor, LibvirtOptions};
use pvc_linux::log::LogSettings;
use pvc_linux::{LinuxExec, LinuxHost, LinuxNetwork, OsRandom, SystemClock};
use pvc_model::link::IpNet;
use pvc_model::network_core::CoreNet;
use pvc_model::primary::handover::Duty;
use pvc_model::storage::RbdAccess;
use pvc_ports::Bmc;
use pvc_power::Ipmitool;
use pvc_testkit::legacy::{self, LegacyPeer, LegacyPorts, LegacySettings};
use pvc_zookeeper::{ZookeeperOptions, ZookeeperTree};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let config = Config::read_for(Path::new("/etc/pvc/pvc.conf"), &Machine::this()?)?;
    let _log = pvc_linux::log::start(&LogSettings {
        debug: true,
        colours: false,
        dates: false,
        file: None,
        stdout: true,
        store: false,
    })?;
    let settings = settings(&config)?;
    // What its unit and its first steps pause for: networks and services are up.
    tokio::time::sleep(legacy::BEFORE_THE_STORE).await;
    let ports = ports(&config).await?;
    let tree = ports.tree.clone();
    let mut terminate = signal(SignalKind::terminate())?;
    let asked_to_stop = async move {
        terminate.recv().await;
    };
    let ended = LegacyPeer::new(settings, ports).run(asked_to_stop).await;
    tree.close().await;
    match ended.as_str() {
        "stopped" => Ok(()),
        why => bail!("{why}"),
    }
}

fn settings(config: &Config) -> anyhow::Result<LegacySettings> {
    let networks = config.networks.as_ref().context("this machine is by itself")?;
    let ipmi = config.fencing.ipmi.as_ref().context("a node of a cluster has a BMC")?;
    let storage = networks.storage.address.context("a node has an address for its storage")?;
    // Each on the bridge of its name, whatever carries the network (`spec/startup.md` §3).
    let on = |duty, net: CoreNet, address| (duty, net.bridge().to_owned(), IpNet::V4(address));
    let metadata = (Duty::Metadata, "lo".to_owned(), "169.254.169.254/32".parse()?);
    Ok(LegacySettings {
        name: config.node.name.clone(),
        is_coordinator: config.is_coordinator(),
        cluster_name: config.cluster.name.clone().unwrap_or_default(),
        cluster_domain: networks.cluster.domain.clone(),
        storage_address: storage.addr().to_string(),
        floating: vec![
            on(Duty::Upstream, CoreNet::Upstream, networks.upstream.floating),
            on(Duty::Inner, CoreNet::Cluster, networks.cluster.floating),
            on(Duty::Inner, CoreNet::Storage, networks.storage.floating),
            metadata,
        ],
        bmc: Bmc {
            host: ipmi.hostname.clone(),
            user: ipmi.username.clone(),
            password: ipmi.password.reveal().to_owned(),
        },
        keepalive_interval: config.timers.keepalive_interval,
        fence_intervals: config.fencing.fence_intervals.map_or(0, |intervals| intervals.get()),
        vm_shutdown_timeout: config.timers.vm_shutdown_timeout,
        recovers_after_success: config.fencing.successful_fence == FenceAction::Migrate,
        recovers_after_failure: config.fencing.failed_fence == FenceAction::Migrate,
        selector: config.migration.target_selector.as_str().to_owned(),
        // The tree takes its own time.
        round_trip: Duration::ZERO,
        kazoo_28: true,
    })
}

async fn ports(config: &Config) -> anyhow::Result<LegacyPorts> {
    let ceph = config.ceph.as_ref().context("a cluster has Ceph")?;
    let servers = config.zookeeper_servers().join(",");
    let tree = ZookeeperTree::connect(&servers, ZookeeperOptions::default()).await?;
    let clock = Arc::new(SystemClock);
    Ok(LegacyPorts {
        tree: Arc::new(tree),
        hypervisor: Arc::new(LibvirtHypervisor::new(LibvirtOptions {
            uri: "qemu:///system".to_owned(),
            scratch: "/var/lib/pvc".into(),
            verdict: Some(config.paths.dynamic.join("kvm-verdict")),
            domain_type: None,
            target_uri: LibvirtOptions::TARGET_URI.to_owned(),
        })),
        storage: Arc::new(RbdStorage::new(ceph_options(ceph), Arc::new(LinuxExec))),
        network: Arc::new(LinuxNetwork::new()),
        power: Arc::new(Ipmitool::new(Arc::new(LinuxExec), clock.clone())),
        host: Arc::new(LinuxHost::new()),
        clock,
        random: Arc::new(OsRandom),
    })
}

fn ceph_options(ceph: &Ceph) -> CephOptions {
    CephOptions {
        config: ceph.config_file.clone(),
        keyring: ceph.keyring_file.clone(),
        user: "admin".to_owned(),
        access: RbdAccess {
            monitors: ceph.monitor_hosts.clone(),
            port: ceph.monitor_port,
            user: "libvirt".to_owned(),
            secret: ceph.secret_uuid.clone(),
        },
    }
}
