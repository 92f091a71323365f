//! From the configuration to what each role wants to know.

#![allow(clippy::disallowed_methods, reason = "its tests look at files of their own")]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pvc_api::{ApiSettings, Names, Spool, TlsFiles, Token};
use pvc_config::{
    ClusterNetwork, Config, Evpn, FenceAction, Machine, Networks, NodeAddresses, Postgres,
    SriovDevice,
};
use pvc_daemon::{BenchmarkSettings, ScriptSettings};
use pvc_linux::OsRandom;
use pvc_linux::log::LogSettings;
use pvc_model::NodeName;
use pvc_model::certificate::CertificateUser;
use pvc_model::fence::Rules;
use pvc_model::guest_network::evpn::EvpnSettings;
use pvc_model::guest_network::plan::{Tunnels, Underlay};
use pvc_model::guest_network::request::Neighbour;
use pvc_model::guest_network::rules::TunnelSources;
use pvc_model::host_filter::HostFilter;
use pvc_model::link::IpNet;
use pvc_model::network_core::{CoreNet, CoreNetwork, CoreNetworks};
use pvc_model::node::NodeRole;
use pvc_model::primary::handover::Duty;
use pvc_model::role::Role;
use pvc_model::sriov::plan::Card;
use pvc_node::{
    DhcpSettings, DnsDatabase, DnsSettings, FloatingAddress, GuestNetworkSettings, LogSwitches,
    MigrationSettings, NodeSettings, Subsystems, WatchedCertificates,
};
use pvc_store::Ipmi;

use crate::token;

/// Time that ZooKeeper grants a client that asks for 10 s, as every PVC client does.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Address at which guests find their metadata.
const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

/// Places of certificates that PVC's configuration does not name: of ZooKeeper's servers by the
/// manual (security), and of libvirt by itself, for orders.
const ZOOKEEPER_SERVER: [&str; 2] = ["/etc/zookeeper/tls/server.pem", "/etc/zookeeper/tls/ca.pem"];
const LIBVIRT: [&str; 3] = [
    "/etc/pki/CA/cacert.pem",
    "/etc/pki/libvirt/servercert.pem",
    "/etc/pki/libvirt/clientcert.pem",
];

/// The directory that libvirt takes for moves, where it is there.
const QEMU_MOVES: &str = "/etc/pki/libvirt-migrate";

/// The same of libvirt for QEMU and guests on their way: the directory for these moves and, where
/// there is none, the one for all that QEMU does.
const QEMU: [&str; 6] = [
    "/etc/pki/libvirt-migrate/ca-cert.pem",
    "/etc/pki/libvirt-migrate/server-cert.pem",
    "/etc/pki/libvirt-migrate/client-cert.pem",
    "/etc/pki/qemu/ca-cert.pem",
    "/etc/pki/qemu/server-cert.pem",
    "/etc/pki/qemu/client-cert.pem",
];

/// Reads the configuration of a cluster's daemon.
pub fn cluster(file: Option<PathBuf>) -> anyhow::Result<Config> {
    let file = match file {
        Some(file) => file,
        None => Config::locate(|name| std::env::var_os(name))?,
    };
    let config = Config::read_for(&file, &Machine::this()?)?;
    match config.standalone {
        None => Ok(config),
        Some(_) => Err(IsStandalone { file }.into()),
    }
}

/// A cluster's daemon was started with the configuration of one machine by itself.
#[derive(Debug, thiserror::Error)]
#[error("`{}` is the configuration of one machine by itself, and this daemon is part of a \
         cluster", file.display())]
pub struct IsStandalone {
    file: PathBuf,
}

impl IsStandalone {
    pub fn hint(&self) -> String {
        format!("`pvc-standalone --config {}` runs everything in one process", self.file.display())
    }
}

/// Reads the configuration of standalone mode, which needs no file.
pub fn standalone(file: Option<PathBuf>) -> anyhow::Result<Config> {
    let machine = Machine::this()?.standalone();
    let named = || std::env::var_os("PVC_CONFIG_FILE").map(PathBuf::from);
    match file.or_else(named) {
        Some(file) => Ok(Config::read_for(&file, &machine)?),
        None => Ok(Config::standalone(&machine.state_directory, &machine.hostname)),
    }
}

pub fn log(config: &Config, daemon: &str, with_store: bool) -> LogSettings {
    let logging = config.logging;
    LogSettings {
        debug: logging.debug,
        colours: logging.colours,
        dates: logging.dates,
        file: logging.file.then(|| config.paths.log.join(format!("{daemon}.log"))),
        stdout: logging.stdout,
        store: with_store && logging.zookeeper && logging.node_log_lines > 0,
    }
}

/// Settings by which the worker measures the storage.
pub fn benchmarks(config: &Config) -> BenchmarkSettings {
    let networks = config.networks.as_ref();
    BenchmarkSettings {
        storage_interface: networks.map(|networks| networks.storage.device.clone()),
        volume_bytes: u64::from(config.benchmark.volume_gib) << 30,
        test_time: config.benchmark.test_time,
    }
}

/// Settings by which the worker runs scripts of the provisioner, and the figures of the cluster
/// that are handed to them.
pub fn scripts(config: &Config) -> ScriptSettings {
    let limits = &config.provisioner;
    let ceph = config.ceph.as_ref();
    ScriptSettings {
        phase_time: limits.phase_time,
        whole_time: limits.whole_time,
        memory_bytes: u64::from(limits.memory_mib) << 20,
        removed_volumes_stay: removed_volumes_stay(config),
        numbers_vms: limits.numbers_vms,
        architecture: std::env::consts::ARCH.to_owned(),
        monitors: ceph.map(|ceph| ceph.monitor_hosts.clone()).unwrap_or_default(),
        monitor_port: ceph.map_or(6789, |ceph| ceph.monitor_port),
        monitor_secret: ceph.and_then(|ceph| ceph.secret_uuid.clone()).unwrap_or_default(),
        config: flat(config),
    }
}

/// Time for which removed volumes are kept in the trash.
fn removed_volumes_stay(config: &Config) -> Duration {
    Duration::from_secs(u64::from(config.api.removed_volume_hours) * 3600)
}

/// The configuration by the flat names of PVC 1.0.3, as far as scripts look into it.
fn flat(config: &Config) -> serde_json::Map<String, serde_json::Value> {
    let (ceph, networks) = (config.ceph.as_ref(), config.networks.as_ref());
    let monitors = ceph.map(|ceph| ceph.monitor_hosts.clone()).unwrap_or_default();
    let database = config.database.metadata.as_ref();
    let flat = serde_json::json!({
        "cluster_name": config.cluster.name,
        "node": config.node.name,
        "node_hostname": config.node.name,
        "node_domain": config.node.domain,
        "all_nodes": config.cluster.all_nodes,
        "coordinators": config.cluster.coordinators,
        "storage_hosts": monitors,
        "upstream_domain": networks.map(|networks| networks.upstream.domain.clone()),
        "cluster_domain": networks.map(|networks| networks.cluster.domain.clone()),
        "storage_domain": networks.map(|networks| networks.storage.domain.clone()),
        "ceph_monitor_port": ceph.map(|ceph| ceph.monitor_port),
        "ceph_secret_uuid": ceph.and_then(|ceph| ceph.secret_uuid.clone()),
        "ceph_storage_secret_uuid": ceph.and_then(|ceph| ceph.secret_uuid.clone()),
        "ceph_config_file": ceph.map(|ceph| ceph.config_file.clone()),
        "api_postgresql_host": database.map(|database| database.hostname.clone()),
        "api_postgresql_port": database.map(|database| database.port),
        "api_postgresql_dbname": database.map(|database| database.database.clone()),
        "api_postgresql_user": database.map(|database| database.username.clone()),
        "api_postgresql_password": database.map(|database| database.password.reveal().to_owned()),
    });
    match flat {
        serde_json::Value::Object(flat) => flat,
        _ => unreachable!("it was written as an object"),
    }
}

pub fn node(config: &Config) -> NodeSettings {
    let standalone = config.standalone.is_some();
    let coordinator = standalone || config.is_coordinator();
    let on = config.subsystems;
    let cluster = config.networks.as_ref().map(|networks| &networks.cluster);
    let upstream = config.networks.as_ref().map(|networks| &networks.upstream);
    let storage = config.networks.as_ref().and_then(|networks| networks.storage.address);
    NodeSettings {
        name: config.node.name.as_str().into(),
        process: pvc_linux::this_process(),
        role: if coordinator { NodeRole::Coordinator } else { NodeRole::Hypervisor },
        cluster_name: config.cluster.name.clone().unwrap_or_default(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        subsystems: Subsystems {
            hypervisor: on.hypervisor,
            networking: on.networking,
            storage: on.storage,
            worker: on.worker,
            api: on.api,
        },
        keepalive_interval: config.timers.keepalive_interval,
        vm_shutdown_timeout: config.timers.vm_shutdown_timeout,
        session_timeout: SESSION_TIMEOUT,
        directories: config.paths.to_create(),
        console_log_directory: config.paths.console_log.clone(),
        console_log_lines: config.logging.console_log_lines as usize,
        node_log_lines: config.logging.node_log_lines as usize,
        core_networks: core_networks(config),
        host_filter: host_filter(config),
        storage_address: storage.map(|address| address.addr().to_string()),
        migration: MigrationSettings {
            domain: cluster.map(|network| network.domain.clone()).unwrap_or_default(),
            encrypted: config.migration.tls,
            at_once: config.migration.parallel as usize,
        },
        selector: Some(config.migration.target_selector.clone()),
        upstream_ip: upstream.map(|network| network.floating.to_string()),
        floating: floating(config),
        guest_networks: guest_networks(config),
        sriov_cards: sriov_cards(config),
        certificates: certificates(config),
        ipmi: config.fencing.ipmi.as_ref().map(|ipmi| Ipmi {
            hostname: ipmi.hostname.clone(),
            username: ipmi.username.clone(),
            password: ipmi.password.reveal().to_owned(),
        }),
        fencing: fencing(config),
        fence_only_with_own_bmc: config.fencing.disable_on_ipmi_failure,
        reset_after: reset_after(config),
        start_services: !standalone,
        standalone,
        log: LogSwitches {
            keepalives: config.logging.keepalives,
            cluster_details: config.logging.cluster_details,
            monitoring_details: config.logging.monitoring_details,
        },
    }
}

/// Files with the certificates of what is switched on: those that the configuration names, and
/// those at known places.
fn certificates(config: &Config) -> Vec<WatchedCertificates> {
    let on = config.subsystems;
    let is_alone = config.standalone.is_some();
    let mut all: Vec<WatchedCertificates> = Vec::new();
    let mut watch = |path: &Path, used_by: CertificateUser, is_named: bool| {
        // A file may serve several.
        if !all.iter().any(|other| other.path == path) {
            let is_of_qemu = used_by == CertificateUser::Qemu;
            let unless = (is_of_qemu && !path.starts_with(QEMU_MOVES)).then(|| QEMU_MOVES.into());
            all.push(WatchedCertificates { path: path.to_owned(), used_by, is_named, unless });
        }
    };
    let serves_api = is_alone || (on.api && config.is_coordinator());
    if let Some(tls) = config.api.tls.as_ref().filter(|_| serves_api) {
        watch(&tls.certificate, CertificateUser::Api, true);
    }
    if let Some(tls) = config.database.zookeeper.tls.as_ref().filter(|_| !is_alone) {
        watch(&tls.authority, CertificateUser::ZookeeperClient, true);
        if let Some((certificate, _)) = &tls.own {
            watch(certificate, CertificateUser::ZookeeperClient, true);
        }
        for path in ZOOKEEPER_SERVER.iter().filter(|_| config.is_coordinator()) {
            watch(Path::new(path), CertificateUser::ZookeeperServer, false);
        }
    }
    let has_guests = on.hypervisor && !is_alone;
    for path in LIBVIRT.iter().filter(|_| has_guests && config.migration.libvirt_tls) {
        watch(Path::new(path), CertificateUser::Libvirt, false);
    }
    for path in QEMU.iter().filter(|_| has_guests && config.migration.tls) {
        watch(Path::new(path), CertificateUser::Qemu, false);
    }
    all
}

/// Time without the store after which this node resets itself; `None` in a cluster that is one
/// machine: nobody else could start the VMs.
fn reset_after(config: &Config) -> Option<Duration> {
    let intervals = config.fencing.suicide_intervals.filter(|_| config.standalone.is_none())?;
    Some(config.timers.keepalive_interval * intervals.get())
}

/// A cluster that is one machine has nobody to fence.
fn fencing(config: &Config) -> Rules {
    let (interval, fencing) = (config.timers.keepalive_interval, &config.fencing);
    if config.standalone.is_some() {
        return Rules::never(interval);
    }
    Rules {
        keepalive_interval: interval,
        fence_intervals: fencing.fence_intervals.map_or(0, NonZeroU32::get),
        recover_after_success: fencing.successful_fence == FenceAction::Migrate,
    }
}

/// Whether the VMs of a node that an operator says is off are started elsewhere, which is done by
/// who fences.
fn recovers(rules: &Rules) -> bool {
    rules.fence_intervals > 0 && rules.recover_after_success
}

/// Addresses that go with the primary role, and on which links of this node, where networks are
/// PVC's to manage.
fn floating(config: &Config) -> Vec<FloatingAddress> {
    let mut floating: Vec<FloatingAddress> = Vec::new();
    let (core, networks) = (core_networks(config), config.networks.as_ref());
    let known = core.as_ref().zip(networks).into_iter().flat_map(|(core, networks)| {
        [
            (core, CoreNet::Upstream, Duty::Upstream, &networks.upstream),
            (core, CoreNet::Cluster, Duty::Inner, &networks.cluster),
            (core, CoreNet::Storage, Duty::Inner, &networks.storage),
        ]
    });
    for (core, net, duty, network) in known {
        let (link, address) = (core.bridge_of(net).to_owned(), IpNet::from(network.floating));
        // Networks that share a device may share the address, too.
        if !floating.iter().any(|other| (&other.link, other.address) == (&link, address)) {
            floating.push(FloatingAddress { duty, link, address });
        }
    }
    if config.subsystems.networking {
        let (link, address) = ("lo".to_owned(), IpNet::from(IpAddr::from(METADATA)));
        floating.push(FloatingAddress { duty: Duty::Metadata, link, address });
    }
    floating
}

/// The SR-IOV cards whose functions VMs are given.
fn sriov_cards(config: &Config) -> Vec<Card> {
    let networking = &config.guest_networking;
    let is_on = networking.sriov_enabled && config.subsystems.networking;
    let devices = networking.sriov_devices.iter().filter(|_| is_on);
    let card = |device: &SriovDevice| Card {
        name: device.phy.clone(),
        mtu: device.mtu,
        functions: device.vfcount,
    };
    devices.map(card).collect()
}

/// The networks of VMs, where this node carries them: those of a machine by itself do not leave it.
pub fn guest_networks(config: &Config) -> Option<GuestNetworkSettings> {
    if !config.subsystems.networking {
        return None;
    }
    let cluster = config.networks.as_ref().filter(|_| config.standalone.is_none());
    let ends = cluster.map(|networks| Tunnels {
        local: networks.cluster.address.map(|net| IpAddr::V4(net.addr())),
        mtu: networks.cluster.mtu,
    });
    let underlay = Underlay {
        tunnels: ends,
        bridge_device: config.guest_networking.bridge_device.clone(),
        bridge_mtu: config.guest_networking.bridge_mtu,
    };
    let mut nodes: BTreeSet<IpNet> = BTreeSet::new();
    if let Some(Networks { cluster, upstream, storage }) = cluster {
        nodes.extend([cluster.network, storage.network].map(IpNet::V4));
        // The rest of the upstream network is the guests' way out.
        let own = upstream.address.map(|net| net.addr());
        nodes.extend(
            own.into_iter().chain([upstream.floating.addr()]).map(|ip| IpNet::from(IpAddr::V4(ip))),
        );
        // A filter lets its nodes in by these addresses.
        let NodeAddresses { upstream, inner, .. } = &config.node_addresses;
        let others = upstream.iter().chain(inner).filter(|_| config.firewall.is_some());
        nodes.extend(others.filter(|net| net.prefix_len() == 32).copied().map(IpNet::V4));
    }
    let tunnels = cluster.map(|networks| TunnelSources {
        inner: [networks.cluster.network, networks.storage.network].map(IpNet::V4).into(),
        upstream: nets(&config.node_addresses.upstream).collect(),
        uses_upstream: networks.cluster.address.is_none(),
        outside: outside(config),
    });
    let directory = config.paths.dynamic.join("dnsmasq");
    let executable = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/usr/bin/pvcd"));
    let dhcp = DhcpSettings {
        socket: directory.join("leases.socket").display().to_string(),
        directory,
        executable: executable.display().to_string(),
    };
    let (dns, evpn) = (dns(config), evpn(config));
    Some(GuestNetworkSettings { underlay, nodes, tunnels, dhcp, dns, evpn })
}

/// The database of the DNS aggregator, where there is to be one, on nodes that may be primary.
pub fn dns_database(config: &Config) -> Option<&Postgres> {
    let has_one = config.guest_networking.dns_enabled
        && config.subsystems.networking
        && config.is_coordinator()
        && config.standalone.is_none();
    config.database.dns.as_ref().filter(|_| has_one)
}

/// The DNS aggregator, which answers at the floating addresses of the cluster and of the upstream
/// network.
fn dns(config: &Config) -> Option<DnsSettings> {
    let database = dns_database(config)?;
    let (core, networks) = (core_networks(config)?, config.networks.as_ref()?);
    let mut addresses: Vec<(String, IpNet)> = Vec::new();
    for (net, network) in
        [(CoreNet::Cluster, &networks.cluster), (CoreNet::Upstream, &networks.upstream)]
    {
        let address = (core.bridge_of(net).to_owned(), IpNet::from(network.floating));
        // Networks that share a device may share the address, too.
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Some(DnsSettings {
        directory: config.paths.dynamic.join("pdns"),
        addresses,
        upstream_domain: networks.upstream.domain.clone(),
        database: DnsDatabase {
            host: database.hostname.clone(),
            port: database.port,
            name: database.database.clone(),
            user: database.username.clone(),
            password: database.password.reveal().to_owned(),
        },
    })
}

/// FRR's configuration, where it is PVC's to write.
fn evpn(config: &Config) -> Option<EvpnSettings> {
    let Evpn { asn, routers, router_asn } = config.guest_networking.evpn.clone()?;
    let cluster = &config.networks.as_ref()?.cluster;
    let Some(own) = cluster.address else {
        tracing::warn!(
            "`guest_networking.evpn.enabled` has no effect: this node has no address on the \
             cluster network"
        );
        return None;
    };
    let all_nodes = config.cluster.all_nodes.iter();
    let configured = all_nodes
        .filter_map(|name| Some((NodeName::new(name.as_str()), cluster.address_of(name)?)));
    let coordinators = config.cluster.coordinators.iter();
    Some(EvpnSettings {
        asn,
        routers,
        router_asn,
        own: own.addr(),
        network: cluster.network.trunc(),
        coordinators: coordinators.map(|name| NodeName::new(name.as_str())).collect(),
        configured: configured.collect(),
        is_coordinator: config.is_coordinator(),
    })
}

/// The networks between the nodes, where they are PVC's to manage.
fn core_networks(config: &Config) -> Option<CoreNetworks> {
    let managed = config.subsystems.networking && config.standalone.is_none();
    let networks = config.networks.as_ref().filter(|_| managed)?;
    let network = |network: &ClusterNetwork| CoreNetwork {
        device: network.device.clone(),
        mtu: network.mtu,
        address: network.address,
        gateway: network.gateway,
    };
    Some(CoreNetworks {
        cluster: network(&networks.cluster),
        upstream: network(&networks.upstream),
        storage: network(&networks.storage),
    })
}

fn nets<T: Copy + Into<IpNet>>(nets: &BTreeSet<T>) -> impl Iterator<Item = IpNet> {
    nets.iter().copied().map(Into::into)
}

/// The links of the upstream network, where it is one by itself. Before its bridge has the device
/// as a port, packets come by that.
fn outside(config: &Config) -> BTreeSet<String> {
    let networks = config.networks.as_ref().filter(|_| config.node_addresses.is_upstream_apart);
    let links = |networks: &Networks| {
        [networks.upstream.device.clone(), CoreNet::Upstream.bridge().to_owned()]
    };
    networks.into_iter().flat_map(links).collect()
}

/// Rules about who may reach the ports that the nodes have for each other. Ports that the
/// configuration does not name are known.
fn host_filter(config: &Config) -> Option<HostFilter> {
    let firewall = config.firewall.as_ref()?;
    let database = &config.database;
    let zookeeper = &database.zookeeper;
    let moved = [zookeeper.port]
        .into_iter()
        .chain(zookeeper.tls.as_ref().map(|tls| tls.port))
        .chain(database.keydb.as_ref().map(|keydb| keydb.port))
        .chain(
            [&database.metadata, &database.dns].into_iter().flatten().map(|postgres| postgres.port),
        );
    let addresses = &config.node_addresses;
    let inner: BTreeSet<IpNet> = nets(&addresses.inner).collect();
    let upstream = nets(&addresses.upstream).filter(|_| addresses.needs_upstream);
    let nodes = inner.iter().copied().chain(upstream).collect();
    let filter = HostFilter::new(nodes, firewall.allow.clone(), moved)?;
    let filter = filter.closed_outside(&inner, outside(config));
    Some(filter.leaving_open(config.api.listen.port()))
}

/// # Errors
/// The token of a machine by itself can neither be read nor made.
pub fn api(config: &Config) -> anyhow::Result<ApiSettings> {
    let api = &config.api;
    let known = |token: &pvc_config::Token| Token {
        description: token.description.clone(),
        secret: token.token.reveal().to_owned(),
        role: token.role,
    };
    let tokens = match &api.token_file {
        Some(file) => {
            let secret = token::of_this_machine(file, &OsRandom)?;
            Some(vec![Token {
                description: "this machine".to_owned(),
                secret,
                role: Role::Administrator,
            }])
        }
        None => api
            .authentication
            .enabled
            .then(|| api.authentication.tokens.iter().map(known).collect()),
    };
    let files = |tls: &pvc_config::Tls| TlsFiles {
        certificate: tls.certificate.clone(),
        key: tls.private_key.clone(),
    };
    let is_listened_on = |floating: &FloatingAddress| floating.address.addr() == api.listen.ip();
    let coordinators = config.cluster.coordinators.iter();
    Ok(ApiSettings {
        floating: floating(config).iter().any(is_listened_on),
        tokens,
        names: names(config),
        tls: api.tls.as_ref().map(files),
        storage_is_near: config.standalone.is_some(),
        spool: Spool {
            directory: api.images.directory.clone(),
            least_free_bytes: api.images.least_free_mib.map(|mib| u64::from(mib) << 20),
        },
        recover_after_fence: recovers(&fencing(config)),
        nobody_fences: fencing(config).fence_intervals == 0,
        coordinators: coordinators.map(|name| NodeName::new(name.as_str())).collect(),
        refuse_memory_overcommit: api.refuse_memory_overcommit,
        removed_volumes_stay: removed_volumes_stay(config),
        core_networks: neighbours(config),
        lacks_bridge_device: lacks_bridge_device(config),
        largest_mtus: guest_networks(config)
            .map(|settings| settings.underlay.largest_mtus())
            .unwrap_or_default(),
        nodes: guest_networks(config).map(|settings| settings.nodes).unwrap_or_default(),
        own_addresses: own_addresses(config),
        floating_addresses: floating_addresses(config),
        metrics: config.subsystems.prometheus,
        ..ApiSettings::new(config.node.name.as_str().into(), api.listen, Vec::new())
    })
}

/// Whether bridged networks would be a fault of this machine, which is alone. Of other nodes their
/// own configurations say.
fn lacks_bridge_device(config: &Config) -> bool {
    config.standalone.is_some()
        && config.subsystems.networking
        && config.guest_networking.bridge_device.is_none()
}

/// Addresses of this node on the networks between the nodes.
fn own_addresses(config: &Config) -> BTreeSet<IpAddr> {
    let own = core_of(config).filter_map(|network| Some(network.address?.addr()));
    own.map(IpAddr::V4).collect()
}

/// Addresses that go with the primary role.
fn floating_addresses(config: &Config) -> BTreeSet<IpAddr> {
    core_of(config).map(|network| IpAddr::V4(network.floating.addr())).collect()
}

fn core_of(config: &Config) -> impl Iterator<Item = &ClusterNetwork> {
    let networks = config.networks.iter();
    networks.flat_map(|networks| [&networks.cluster, &networks.upstream, &networks.storage])
}

/// The networks between the nodes, whoever manages them.
fn neighbours(config: &Config) -> Vec<Neighbour> {
    let Some(networks) = &config.networks else { return Vec::new() };
    let named = [
        ("cluster", &networks.cluster),
        ("upstream", &networks.upstream),
        ("storage", &networks.storage),
    ];
    let neighbour = |(name, network): (&str, &ClusterNetwork)| Neighbour {
        network: IpNet::V4(network.network),
        name: format!("the {name} network"),
    };
    named.map(neighbour).into()
}

/// The names that this machine and the nodes have, as far as the configuration says them.
fn names(config: &Config) -> Names {
    let networks = config.networks.as_ref();
    let domains =
        networks.map(|networks| [&networks.upstream, &networks.cluster, &networks.storage]);
    let domains = domains.into_iter().flatten().map(|network| network.domain.clone());
    // The full name of the host, where it has one, is not the node's.
    let host = Machine::this().map(|machine| machine.hostname).ok();
    let own =
        host.into_iter().chain([config.node.name.clone()]).chain(config.api.names.iter().cloned());
    Names { own: own.collect(), domains: domains.collect() }
}

/// Directory of the volumes that belong to this machine alone.
pub fn volume_directory(config: &Config) -> PathBuf {
    match &config.standalone {
        Some(standalone) => standalone.volume_directory.clone(),
        None => Path::new("/var/lib/pvc/volumes").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use axum::body::{Body, to_bytes};
    use axum::extract::ConnectInfo;
    use axum::http::{Request, StatusCode};
    use pvc_api::ApiState;
    use pvc_embedded::EmbeddedTree;
    use pvc_linux::SystemClock;
    use pvc_model::guest_network::plan::LargestMtus;
    use pvc_model::node::NodeFigures;
    use pvc_model::vm::Selector;
    use pvc_store::synthetic::Shape;
    use pvc_store::{Report, Store};
    use tower::ServiceExt;

    use super::*;

    #[test]
    fn a_clusters_daemon_does_not_take_the_configuration_of_one_machine() {
        let file = std::env::temp_dir().join(format!("pvcd-settings-{}.conf", std::process::id()));
        std::fs::write(&file, "standalone:\n").unwrap();
        let refused = cluster(Some(file.clone())).unwrap_err();
        std::fs::remove_file(&file).unwrap();
        let refused = refused.downcast_ref::<IsStandalone>().unwrap();
        let shown = file.display();
        assert_eq!(
            refused.to_string(),
            format!(
                "`{shown}` is the configuration of one machine by itself, and this daemon is part \
                 of a cluster"
            )
        );
        assert_eq!(
            refused.hint(),
            format!("`pvc-standalone --config {shown}` runs everything in one process")
        );
    }

    /// The sample configuration, with `from` replaced in it.
    fn sample(from: &str, to: &str) -> NodeSettings {
        let text = include_str!("../../../packaging/config/pvc.conf");
        assert!(text.contains(from), "the sample configuration says `{from}`");
        node(&Config::parse(&text.replace(from, to), "pvc.conf", "pvchv1").unwrap())
    }

    #[test]
    fn the_filter_lets_all_nodes_and_floating_addresses_in_and_a_network_of_own_choices_whole() {
        let let_in = |settings: NodeSettings| {
            let filter = settings.host_filter.expect("the sample switches it on");
            let shown = |nets: &BTreeSet<IpNet>| -> Vec<String> {
                nets.iter().map(ToString::to_string).collect()
            };
            let outside: Vec<String> = filter.outside.into_iter().collect();
            (shown(&filter.nodes), shown(&filter.inner), outside.join(" "))
        };
        let of = |net: &str| [1, 2, 3, 250].map(|host| format!("{net}.{host}/32"));
        let inner = [of("10.1.0"), of("10.2.0")].concat();
        let nobody: Vec<String> = Vec::new();
        assert_eq!(
            let_in(sample("enabled: yes\n    allow", "enabled: yes\n    allow")),
            (nobody.clone(), inner.clone(), "brupstream ens4".to_owned()),
            "they reach each other without their upstream addresses"
        );
        let (by_id, chosen) =
            ("node_ip_selection: by-id\n    # Ceph's", "node_ip_selection: 10.1.0.1\n    # Ceph's");
        let some = [vec!["10.1.0.0/24".to_owned()], of("10.2.0").into()].concat();
        assert_eq!(
            let_in(sample(by_id, chosen)),
            (nobody.clone(), some, "brupstream ens4".to_owned()),
            "others may have any address there"
        );
        let (apart, shared) = ("device: ens4\n      mtu: 1500", "device: ens5\n      mtu: 9000");
        let all = [of("10.0.0").to_vec(), inner].concat();
        assert_eq!(let_in(sample(apart, shared)), (all, nobody, String::new()), "one device");
        let named =
            sample("allow: []", "allow: [192.0.2.7, 2001:db8::/48]").host_filter.unwrap().allowed;
        assert_eq!(named, ["192.0.2.7/32", "2001:db8::/48"].map(|net| net.parse().unwrap()).into());
        assert_eq!(sample("enabled: yes\n    allow", "enabled: no\n    allow").host_filter, None);
        assert_eq!(sample("enable_networking: yes", "enable_networking: no").host_filter, None);
    }

    #[test]
    fn tunnels_come_from_the_networks_between_the_nodes_and_not_by_the_upstream_device() {
        let tunnels = |from: &str, to: &str| {
            let networks = sample(from, to).guest_networks.expect("networking is on");
            networks.tunnels.expect("nodes of a cluster have tunnels")
        };
        let nets = |nets: &[&str]| -> BTreeSet<IpNet> {
            nets.iter().map(|net| net.parse().unwrap()).collect()
        };
        let apart = tunnels("device: ens6", "device: ens6");
        assert_eq!(apart.inner, nets(&["10.1.0.0/24", "10.2.0.0/24"]), "new nodes as well");
        let upstream = ["10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32", "10.0.0.250/32"];
        assert_eq!(apart.upstream, nets(&upstream));
        assert!(!apart.uses_upstream);
        assert_eq!(apart.outside, ["brupstream", "ens4"].map(str::to_owned).into());
        assert_eq!(tunnels("device: ens6", "device: ens4").outside, BTreeSet::new());
    }

    #[test]
    fn the_api_knows_the_networks_between_the_nodes_and_what_they_carry() {
        let text = include_str!("../../../packaging/config/pvc.conf");
        let settings = api(&Config::parse(text, "pvc.conf", "pvchv1").unwrap()).unwrap();
        let named =
            settings.core_networks.iter().map(|near| (near.network.to_string(), &*near.name));
        let expected = [
            ("10.1.0.0/24", "the cluster network"),
            ("10.0.0.0/24", "the upstream network"),
            ("10.2.0.0/24", "the storage network"),
        ];
        assert_eq!(named.collect::<Vec<_>>(), expected.map(|(net, name)| (net.to_owned(), name)));
        let largest = LargestMtus { managed: Some(8950), bridged: Some(1500) };
        assert_eq!(settings.largest_mtus, largest);
    }

    /// The API of the sample configuration with `line` added to what it says of the API, on a tree
    /// with a VM whose node has too little memory. What it answers to a start.
    async fn start_where_there_is_no_room(line: &str) -> (StatusCode, String) {
        let text = include_str!("../../../packaging/config/pvc.conf");
        let text = text.replace("\napi:\n", &format!("\napi:\n{line}"));
        let config = Config::parse(&text, "pvc.conf", "pvchv1").unwrap();
        let key = config.api.authentication.tokens[0].token.reveal().to_owned();
        let (clock, random) = (Arc::new(SystemClock), Arc::new(OsRandom));
        let tree = EmbeddedTree::in_memory();
        let store = Store::open(tree.connect(), clock.clone(), random.clone()).await.unwrap();
        store.load(&Shape::with_vms(1).dump()).await.unwrap();
        store.repair().await.unwrap();
        let node = store.view().vm("vm00000").unwrap().node.clone().unwrap();
        let figures = NodeFigures { memory_total_mib: 1, ..NodeFigures::default() };
        store.report(vec![Report::Figures(node, figures)]).await.unwrap();
        let state = ApiState::new(store, clock, random, None, None, api(&config).unwrap());
        let router = pvc_api::router(state);
        let ask = async |state: &str| {
            let path = format!("/api/v1/vm/vm00000/state?state={state}");
            let mut request =
                Request::post(path).header("X-Api-Key", &key).body(Body::empty()).unwrap();
            let remote = SocketAddr::from(([192, 0, 2, 1], 4711));
            request.extensions_mut().insert(ConnectInfo(remote));
            let response = router.clone().oneshot(request).await.unwrap();
            let status = response.status();
            let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
            (status, String::from_utf8(body.to_vec()).unwrap())
        };
        let (stopped, said) = ask("stop").await;
        assert!(stopped.is_success(), "{said}");
        ask("start").await
    }

    #[tokio::test]
    async fn a_machine_without_a_configuration_answers_whoever_has_read_its_token_alone() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config::standalone(directory.path(), "machine");
        let (clock, random) = (Arc::new(SystemClock), Arc::new(OsRandom));
        let tree = EmbeddedTree::in_memory();
        let store = Store::open(tree.connect(), clock.clone(), random.clone()).await.unwrap();
        store.load(&Shape::with_vms(1).dump()).await.unwrap();
        let state = ApiState::new(store, clock, random, None, None, api(&config).unwrap());
        let router = pvc_api::router(state);
        let token = std::fs::read_to_string(directory.path().join("api-token")).unwrap();
        for (key, expected) in [
            (None, StatusCode::UNAUTHORIZED),
            (Some("wrong"), StatusCode::UNAUTHORIZED),
            (Some(token.trim()), StatusCode::OK),
        ] {
            let mut request = Request::get("/api/v1/vm");
            if let Some(key) = key {
                request = request.header("X-Api-Key", key);
            }
            let mut request = request.body(Body::empty()).unwrap();
            let remote = SocketAddr::from(([127, 0, 0, 1], 4711));
            request.extensions_mut().insert(ConnectInfo(remote));
            let response = router.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status(), expected, "{key:?}");
        }
    }

    #[tokio::test]
    async fn a_start_that_takes_more_memory_than_there_is_is_refused_if_the_configuration_says_so()
    {
        for (line, is_refused) in [
            ("", false),
            ("  refuse_memory_overcommit: no\n", false),
            ("  refuse_memory_overcommit: yes\n", true),
        ] {
            let (status, said) = start_where_there_is_no_room(line).await;
            assert_eq!(!status.is_success(), is_refused, "{line}: {status} {said}");
            assert!(said.contains("1 MiB"), "it is said in either case: {said}");
        }
    }

    /// Scripts look into the configuration by the names that it had in PVC 1.0.3.
    #[test]
    fn scripts_have_the_limits_that_the_configuration_says_and_know_their_cluster_by_it() {
        let text = include_str!("../../../packaging/config/pvc.conf");
        let of = |text: &str| scripts(&Config::parse(text, "pvc.conf", "pvchv1").unwrap());
        let limits = |settings: &ScriptSettings| {
            let seconds = (settings.phase_time.as_secs(), settings.whole_time.as_secs());
            (seconds, settings.memory_bytes >> 20, settings.numbers_vms)
        };
        let usual = of(text);
        assert_eq!(limits(&usual), ((7200, 14400), 4096, true));
        let own = "provisioner:\n  script_phase_seconds: 60\n  script_seconds: 90\n  \
                   script_memory_mib: 512\n  vm_id_mode: legacy\n";
        assert_eq!(limits(&of(&format!("{text}\n{own}"))), ((60, 90), 512, false));

        let nodes = ["pvchv1", "pvchv2", "pvchv3"];
        let monitors = nodes.map(|node| format!("{node}.storage.local"));
        let secret = "2f6d7b2e-8f0c-4d53-9b0e-3c8a5c1f9a10";
        assert_eq!(usual.monitors, monitors);
        assert_eq!((usual.monitor_port, usual.monitor_secret.as_str()), (6789, secret));
        let expected = serde_json::json!({
            "cluster_name": "cluster1",
            "node": "pvchv1",
            "node_hostname": "pvchv1",
            "node_domain": "",
            "all_nodes": nodes,
            "coordinators": nodes,
            "storage_hosts": monitors,
            "upstream_domain": "mydomain.net",
            "cluster_domain": "pvc.local",
            "storage_domain": "storage.local",
            "ceph_monitor_port": 6789,
            "ceph_secret_uuid": secret,
            "ceph_storage_secret_uuid": secret,
            "ceph_config_file": "/etc/ceph/ceph.conf",
            "api_postgresql_host": "10.1.0.250",
            "api_postgresql_port": 5432,
            "api_postgresql_dbname": "pvcapi",
            "api_postgresql_user": "pvcapi",
            "api_postgresql_password": "change-this-password",
        });
        // Nothing else: neither the BMCs' passwords nor the tokens of the API.
        assert_eq!(serde_json::Value::Object(usual.config), expected);
    }

    #[test]
    fn what_the_configuration_says_of_fences_reaches_the_node() {
        let as_it_is = sample("fence_intervals: 6", "fence_intervals: 6");
        assert_eq!(as_it_is.fencing.fence_intervals, 6);
        assert!(as_it_is.fencing.recover_after_success);
        assert_eq!(as_it_is.reset_after, None);
        assert!(!as_it_is.fence_only_with_own_bmc);
        assert!(
            sample("disable_on_ipmi_failure: no", "disable_on_ipmi_failure: yes")
                .fence_only_with_own_bmc
        );
        assert!(
            !sample("successful_fence: migrate", "successful_fence: none")
                .fencing
                .recover_after_success
        );
        let nobody = sample("fence_intervals: 6", "fence_intervals: 0").fencing;
        assert_eq!(nobody.fence_intervals, 0);
        assert!(recovers(&as_it_is.fencing) && !recovers(&nobody), "nobody would give them away");
        let resets = sample("suicide_intervals: 0", "suicide_intervals: 3");
        assert_eq!(resets.reset_after, Some(3 * resets.keepalive_interval));
    }

    #[test]
    fn names_are_served_where_the_addresses_of_the_primary_may_come_if_that_is_switched_on() {
        let sample = include_str!("../../../packaging/config/pvc.conf");
        let (off, on) = ("  dns:\n    enabled: no", "  dns:\n    enabled: yes");
        assert!(sample.contains(off));
        let dns = |text: &str| {
            let config = Config::parse(text, "pvc.conf", "pvchv1").unwrap();
            let dns = guest_networks(&config).expect("the sample has networks of VMs").dns;
            assert_eq!(dns.is_some(), dns_database(&config).is_some());
            dns
        };
        assert_eq!(dns(sample), None);
        assert_eq!(dns(&sample.replace(off, "")), None, "off unless somebody asks for it");
        let text = &sample.replace(off, on);
        let own = dns(text).expect("the sample has a database for them");
        let networks = Config::parse(text, "pvc.conf", "pvchv1").unwrap().networks.unwrap();
        let addresses = [networks.cluster.floating, networks.upstream.floating].map(IpNet::from);
        assert_eq!(own.addresses.iter().map(|(_, ip)| *ip).collect::<Vec<_>>(), addresses);
        assert_eq!(own.upstream_domain, networks.upstream.domain);
        assert!(!format!("{own:?}").contains(&own.database.password), "{own:?}");
        let standalone = Config::standalone(Path::new("/var/lib/pvc"), "laptop");
        assert_eq!(guest_networks(&standalone).and_then(|networks| networks.dns), None);
    }

    #[test]
    fn a_floating_address_goes_to_the_bridge_that_carries_its_network() {
        let links = |settings: &NodeSettings| -> Vec<(String, String)> {
            let all = settings.floating.iter();
            all.map(|floating| (floating.address.addr().to_string(), floating.link.clone()))
                .collect()
        };
        let on = |address: &str, link: &str| (address.to_owned(), link.to_owned());
        let apart = links(&sample("device: ens6", "device: ens6"));
        assert!(apart.contains(&on("10.2.0.250", "brstorage")), "{apart:?}");
        let together = links(&sample("device: ens6", "device: ens5"));
        assert!(together.contains(&on("10.2.0.250", "brcluster")), "{together:?}");
        assert!(!together.iter().any(|(_, link)| link == "brstorage"), "{together:?}");
    }

    #[test]
    fn certificates_of_what_is_switched_on_are_watched() {
        let watched = |from: &str, to: &str| -> Vec<(String, bool)> {
            let all = sample(from, to).certificates.into_iter();
            all.map(|file| (file.path.display().to_string(), file.is_named)).collect()
        };
        let named = |path: &str| (path.to_owned(), true);
        let at = |paths: &[&str]| -> Vec<(String, bool)> {
            paths.iter().map(|path| ((*path).to_owned(), false)).collect()
        };
        assert!(watched("selector: mem ", "selector: mem ").is_empty());
        let api = "  ssl:\n    enabled: yes\n    certificate: /api.pem\n    private_key: /api.key";
        let off = "  ssl:\n    enabled: no\n    certificate: \"\"\n    private_key: \"\"";
        assert_eq!(watched(off, api), [named("/api.pem")]);
        let tls = "    port: 2181\n    ssl: {enabled: yes, authority: /ca.pem, certificate: \
                   /own.pem, private_key: /own.key}";
        let zookeeper = [vec![named("/ca.pem"), named("/own.pem")], at(&ZOOKEEPER_SERVER)].concat();
        assert_eq!(watched("    port: 2181", tls), zookeeper);
        let one = "    port: 2181\n    ssl: {enabled: yes, authority: /both.pem, certificate: \
                   /both.pem, private_key: /own.key}";
        let once = [vec![named("/both.pem")], at(&ZOOKEEPER_SERVER)].concat();
        assert_eq!(watched("    port: 2181", one), once, "a file is looked at once");
        assert_eq!(watched("#  tls: no", "  libvirt_tls: yes"), at(&LIBVIRT));
        assert_eq!(watched("#  tls: no", "  tls: yes"), at(&QEMU));
        let unless = |file: WatchedCertificates| file.unless.is_some();
        let fall_back: Vec<bool> =
            sample("#  tls: no", "  tls: yes").certificates.into_iter().map(unless).collect();
        assert_eq!(fall_back, [false, false, false, true, true, true]);
    }

    #[test]
    fn what_the_configuration_says_of_moves_reaches_the_node() {
        let as_it_is = sample("parallel: 4", "parallel: 4");
        assert_eq!((as_it_is.migration.encrypted, as_it_is.migration.at_once), (false, 4));
        assert_eq!(as_it_is.migration.domain, "pvc.local");
        assert_eq!(sample("#  parallel: 4", "  parallel: 7").migration.at_once, 7);
        assert!(sample("#  tls: no", "  tls: yes").migration.encrypted);
        let ports =
            |from: &str, to: &str| sample(from, to).host_filter.expect("the sample has one").ports;
        let tls = "    port: 2181\n    ssl: { enabled: yes, port: 2299, authority: /ca.pem }";
        assert!(
            ports("    port: 2181", tls).contains(&pvc_model::host_filter::Ports::one(2299)),
            "TLS is for nodes as well"
        );
        assert_eq!(sample("selector: mem ", "selector: vcpus ").selector, Some(Selector::Vcpus));
    }
}
