//! Every key of both formats, as data: what the reader accepts, what the checker knows, and what
//! the reference page (`docs/manual/configuration.md`) says are this one table.
//!
//! `{net}` stands for each of [`NETWORKS`], `[]` for the items of a list of sections.

use pvc_model::role::Role;
use pvc_model::vm::Selector;

use crate::kind::Kind;

pub(crate) const NETWORKS: [&str; 3] = ["upstream", "cluster", "storage"];

/// Condition under which a key must be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Wherever it belongs: an item of a list without it means nothing.
    Always,
    /// Needed in a cluster (not in standalone mode).
    Cluster,
    /// Needed in a cluster, if any of these flags is on.
    ClusterWith(&'static [&'static str]),
    /// Needed if this flag is on, in either mode.
    With(&'static str),
    Optional,
}

/// Place of the key in the older format, `pvcnoded.yaml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OldPlace {
    /// Nowhere: there it is written at its 1.0 place, beside `pvc:`, and always has a default.
    Same,
    /// Below `pvc:`, at the first of these; the others are accepted too.
    At(&'static [&'static str]),
    /// Same as [`OldPlace::At`], but it may be left out there.
    Maybe(&'static [&'static str]),
    /// Part of this key's value.
    Within(&'static str),
    /// Key that is there and not in pvc.conf; the key's path is the old one.
    Only,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    pub path: &'static str,
    /// Other spellings in pvc.conf, accepted alike.
    pub aliases: &'static [&'static str],
    /// Path in pvc.conf where earlier versions of this program wanted it and PVC 1.0.3 does not
    /// look: read, with a warning.
    pub former: &'static [&'static str],
    pub old: OldPlace,
    pub kind: Kind,
    pub need: Need,
    /// Default, as it would be written. `{node}` is this node's name.
    pub default: Option<&'static str>,
    /// The default in standalone mode, where it differs. `{state}/` begins a path in the state
    /// directory.
    pub alone: Option<&'static str>,
    /// Whether PVC 1.0.3 does not know the key; it passes over what it does not know.
    pub ours: bool,
    pub about: &'static str,
}

const fn key(path: &'static str, kind: Kind, about: &'static str) -> Key {
    Key {
        path,
        aliases: &[],
        former: &[],
        old: OldPlace::Same,
        kind,
        need: Need::Optional,
        default: None,
        alone: None,
        ours: false,
        about,
    }
}

impl Key {
    const fn alias(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    const fn former(mut self, places: &'static [&'static str]) -> Self {
        self.former = places;
        self
    }

    const fn old(mut self, places: &'static [&'static str]) -> Self {
        self.old = OldPlace::At(places);
        self
    }

    const fn old_optional(mut self, places: &'static [&'static str]) -> Self {
        self.old = OldPlace::Maybe(places);
        self
    }

    const fn old_within(mut self, place: &'static str) -> Self {
        self.old = OldPlace::Within(place);
        self
    }

    const fn old_only(mut self) -> Self {
        self.old = OldPlace::Only;
        self
    }

    const fn need(mut self, need: Need) -> Self {
        self.need = need;
        self
    }

    const fn default(mut self, text: &'static str) -> Self {
        self.default = Some(text);
        self
    }

    const fn alone(mut self, text: &'static str) -> Self {
        self.alone = Some(text);
        self
    }

    const fn ours(mut self) -> Self {
        self.ours = true;
        self
    }
}

pub(crate) const HYPERVISOR: &str = "subsystem.enable_hypervisor";
pub(crate) const NETWORKING: &str = "subsystem.enable_networking";
pub(crate) const STORAGE: &str = "subsystem.enable_storage";
pub(crate) const WORKER: &str = "subsystem.enable_worker";
pub(crate) const API: &str = "subsystem.enable_api";
pub(crate) const FIREWALL: &str = "cluster.firewall.enabled";
pub(crate) const TLS: &str = "api.ssl.enabled";
pub(crate) const ZOOKEEPER_PASSWORD: &str = "database.zookeeper.password";
pub(crate) const ZOOKEEPER_TLS: &str = "database.zookeeper.ssl.enabled";

const WITH_NETWORKING: Need = Need::ClusterWith(&[NETWORKING]);
const WITH_STORAGE: Need = Need::ClusterWith(&[STORAGE]);
const WITH_DATABASE: Need = Need::ClusterWith(&[NETWORKING, API, WORKER]);
const WITH_KEYDB: Need = Need::ClusterWith(&[API, WORKER]);

/// Choices for the VMs of a fenced node.
pub(crate) const FENCE_ACTIONS: &[&str] = &["migrate", "none"];

pub(crate) const KEYS: &[Key] = &[
    key(
        "node",
        Kind::NodeName,
        "Name of this node. In pvc.conf it is the short host \
                                 name.",
    )
    .old_only(),
    // path
    key("path.plugin_directory", Kind::Directory, "Plugins of the health daemon.")
        .old(&["system.configuration.directories.plugin_directory"])
        .default("/usr/share/pvc/plugins"),
    key(
        "path.dynamic_directory",
        Kind::Directory,
        "Files that need not survive a restart; holds `dnsmasq`, `pdns` and `nft`.",
    )
    .old(&["system.configuration.directories.dynamic_directory"])
    .need(Need::Cluster)
    .alone("{state}/run"),
    key(
        "path.system_log_directory",
        Kind::Directory,
        "Log files of the daemons; holds `dnsmasq`, `pdns` and `nft`.",
    )
    .old(&["system.configuration.directories.log_directory"])
    .need(Need::Cluster)
    .alone("{state}/log"),
    key("path.console_log_directory", Kind::Directory, "Serial console logs of the VMs.")
        .old(&["system.configuration.directories.console_log_directory"])
        .need(Need::Cluster)
        .alone("{state}/log/console"),
    key("path.ceph_directory", Kind::Directory, "Where the two files of section `ceph` are.")
        .need(WITH_STORAGE)
        .default("/etc/ceph"),
    // subsystem
    key(HYPERVISOR, Kind::Flag, "Run VMs here.")
        .old(&["functions.enable_hypervisor"])
        .default("true"),
    key(
        NETWORKING,
        Kind::Flag,
        "Manage the networks between the nodes and those of VMs; in standalone mode those of VMs.",
    )
    .old(&["functions.enable_networking"])
    .default("true"),
    key(
        STORAGE,
        Kind::Flag,
        "Manage Ceph. Standalone mode keeps volumes in a directory whatever \
                              this says.",
    )
    .old(&["functions.enable_storage"])
    .default("true")
    .alone("false"),
    key(WORKER, Kind::Flag, "Run long jobs here.").default("true"),
    key(API, Kind::Flag, "Serve the API here, if this node is a coordinator.")
        .old(&["functions.enable_api"])
        .default("true"),
    key(
        "subsystem.enable_prometheus",
        Kind::Flag,
        "Offer metrics under \
                                                    `/metrics`.",
    )
    .default("true"),
    // cluster
    key("cluster.name", Kind::Text, "Name of the cluster, shown everywhere.")
        .need(Need::Cluster)
        .alone("standalone"),
    key(
        "cluster.all_nodes",
        Kind::NodeNames,
        "Short names of all nodes; daemons on any other machine refuse to start. If not given, the \
         coordinators.",
    )
    .need(Need::Cluster)
    .alone("[\"{node}\"]"),
    key(
        "cluster.coordinator_nodes",
        Kind::NodeNames,
        "Short names of the coordinators, which run ZooKeeper: three or five.",
    )
    .old(&["cluster.coordinators"])
    .need(Need::Cluster)
    .alone("[\"{node}\"]"),
    // cluster.networks
    key("cluster.networks.{net}.domain", Kind::Domain, "Domain of the node names on this network.")
        .old(&["cluster.networks.{net}.domain"])
        .need(WITH_NETWORKING),
    key(
        "cluster.networks.{net}.device",
        Kind::Device,
        "Network device that carries it. Networks may share one.",
    )
    .old(&["system.configuration.networking.{net}.device"])
    .need(WITH_NETWORKING),
    key("cluster.networks.{net}.mtu", Kind::Mtu, "MTU of the device and its bridge.")
        .old(&["system.configuration.networking.{net}.mtu"])
        .need(WITH_NETWORKING),
    key("cluster.networks.{net}.ipv4.network_address", Kind::Ipv4, "Address of the network.")
        .old_within("cluster.networks.{net}.network")
        .need(WITH_NETWORKING),
    key(
        "cluster.networks.{net}.ipv4.netmask",
        Kind::Netmask,
        "Its mask, as a prefix length or \
                                                               dotted.",
    )
    .old_within("cluster.networks.{net}.network")
    .need(WITH_NETWORKING),
    key("cluster.networks.{net}.network", Kind::Network, "Network and mask.")
        .old_only()
        .need(WITH_NETWORKING),
    key(
        "cluster.networks.{net}.ipv4.floating_address",
        Kind::Ipv4,
        "Address held by the primary: a usable host of the network.",
    )
    .old_within("cluster.networks.{net}.floating_ip")
    .need(WITH_NETWORKING),
    key(
        "cluster.networks.{net}.floating_ip",
        Kind::AddressInNetwork,
        "Address held by the primary, with its mask.",
    )
    .old_only()
    .need(WITH_NETWORKING),
    key(
        "cluster.networks.{net}.ipv4.gateway_address",
        Kind::Ipv4,
        "Default gateway. Required for `upstream` when networking is on.",
    )
    .old(&["cluster.networks.{net}.gateway"]),
    key(
        "cluster.networks.{net}.node_ip_selection",
        Kind::Selection,
        "This node's address; `by-id` takes the host whose number ends the node's name. It stands \
         beside `ipv4`, not in it.",
    )
    .former(&["cluster.networks.{net}.ipv4.node_ip_selection"])
    .old_within("system.configuration.networking.{net}.address")
    .need(WITH_NETWORKING),
    key(
        "system.configuration.networking.{net}.address",
        Kind::OldSelection,
        "This node's address; `None` for none.",
    )
    .old_only()
    .need(WITH_NETWORKING),
    // cluster.firewall
    key(
        FIREWALL,
        Kind::Flag,
        "Keep everybody but the nodes off the ports that the nodes have for each other: see the \
         manual (security). Needs `subsystem.enable_networking`.",
    )
    .default("false")
    .ours(),
    key("cluster.firewall.allow", Kind::Sources, "Who else may reach them.").ours(),
    // database
    key("database.zookeeper.port", Kind::Port, "Port of ZooKeeper on the coordinators.")
        .need(Need::Cluster)
        .default("2181"),
    key(
        ZOOKEEPER_PASSWORD,
        Kind::Secret,
        "With which the cluster's records can be closed to everybody else: see the manual \
         (security). The same on every node.",
    )
    .ours(),
    key(ZOOKEEPER_TLS, Kind::Flag, "Speak TLS with ZooKeeper.").default("false").ours(),
    key(
        "database.zookeeper.ssl.port",
        Kind::Port,
        "Its `secureClientPort` on the \
                                                    coordinators.",
    )
    .default("2281")
    .ours(),
    key(
        "database.zookeeper.ssl.authority",
        Kind::File,
        "Who signs the certificates of the \
                                                         servers, PEM.",
    )
    .need(Need::ClusterWith(&[ZOOKEEPER_TLS]))
    .ours(),
    key(
        "database.zookeeper.ssl.certificate",
        Kind::File,
        "What this node shows to them, PEM. \
                                                           Needed where they ask for it.",
    )
    .ours(),
    key("database.zookeeper.ssl.private_key", Kind::File, "Its private key, PEM.").ours(),
    key(
        "database.keydb.hostname",
        Kind::Host,
        "Task queue of PVC 1.0.3; this one keeps jobs in ZooKeeper.",
    )
    .need(WITH_KEYDB),
    key("database.keydb.port", Kind::Port, "Its port.").need(WITH_KEYDB).default("6379"),
    key("database.keydb.path", Kind::Text, "Its path.").need(WITH_KEYDB).default("/0"),
    key(
        "database.postgres.hostname",
        Kind::Host,
        "PostgreSQL, usually the cluster network's floating address.",
    )
    .old(&["coordinator.metadata.database.host"])
    .need(WITH_DATABASE),
    key("database.postgres.port", Kind::Port, "Its port.")
        .old(&["coordinator.metadata.database.port"])
        .need(WITH_DATABASE)
        .default("5432"),
    key("coordinator.dns.database.host", Kind::Host, "PostgreSQL of the DNS aggregator.")
        .old_only()
        .need(WITH_NETWORKING),
    key("coordinator.dns.database.port", Kind::Port, "Its port.")
        .old_only()
        .need(WITH_NETWORKING)
        .default("5432"),
    key(
        "database.postgres.credentials.api.database",
        Kind::Text,
        "Database of the provisioner and the metadata service.",
    )
    .old(&["coordinator.metadata.database.name"])
    .need(WITH_DATABASE),
    key("database.postgres.credentials.api.username", Kind::Text, "User for it.")
        .old(&["coordinator.metadata.database.user"])
        .need(WITH_DATABASE),
    key("database.postgres.credentials.api.password", Kind::Secret, "Password for it.")
        .old(&["coordinator.metadata.database.pass"])
        .need(WITH_DATABASE),
    key(
        "database.postgres.credentials.dns.database",
        Kind::Text,
        "Database of the DNS aggregator.",
    )
    .old(&["coordinator.dns.database.name"])
    .need(WITH_NETWORKING),
    key("database.postgres.credentials.dns.username", Kind::Text, "User for it.")
        .old(&["coordinator.dns.database.user"])
        .need(WITH_NETWORKING),
    key("database.postgres.credentials.dns.password", Kind::Secret, "Password for it.")
        .old(&["coordinator.dns.database.pass"])
        .need(WITH_NETWORKING),
    // timer
    key(
        "timer.vm_shutdown_timeout",
        Kind::Seconds,
        "How long a VM may take to shut down before it is stopped.",
    )
    .default("180"),
    key("timer.keepalive_interval", Kind::Seconds, "Seconds from one keepalive to the next.")
        .old(&[
            "system.fencing.intervals.keepalive_interval",
            "system.intervals.keepalive_interval",
        ])
        .default("5"),
    key(
        "timer.monitoring_interval",
        Kind::Seconds,
        "Seconds from one run of the health plugins to the next.",
    )
    .default("15"),
    // fencing
    key(
        "fencing.disable_on_ipmi_failure",
        Kind::Flag,
        "Do not fence from a node whose own IPMI does not answer.",
    )
    .need(Need::Cluster)
    .default("false"),
    key(
        "fencing.intervals.fence_intervals",
        Kind::Count { min: 0, unit: "keepalive intervals" },
        "Missed keepalives after which a node is taken for dead; 0 means never.",
    )
    .old(&["system.fencing.intervals.fence_intervals", "system.intervals.fence_intervals"])
    .default("6"),
    key(
        "fencing.intervals.suicide_intervals",
        Kind::Count { min: 0, unit: "keepalive intervals" },
        "Missed keepalives after which a node with running VMs resets itself; 0 means never.",
    )
    .alias(&["fencing.intervals.suicide_interval"])
    .old(&[
        "system.fencing.intervals.suicide_intervals",
        "system.intervals.suicide_intervals",
        "system.fencing.intervals.suicide_interval",
    ])
    .default("0"),
    key(
        "fencing.actions.successful_fence",
        Kind::Choice(FENCE_ACTIONS),
        "What happens to the VMs of a node that was fenced.",
    )
    .old(&["system.fencing.actions.successful_fence"])
    .default("none"),
    key(
        "fencing.actions.failed_fence",
        Kind::Choice(FENCE_ACTIONS),
        "What happens to the VMs of a node that could not be fenced. `migrate` has no effect: \
         without a proof they stay down.",
    )
    .old(&["system.fencing.actions.failed_fence"])
    .default("none"),
    key(
        "fencing.ipmi.hostname",
        Kind::Text,
        "This node's IPMI controller; `{node_id}` stands for the number that ends the node's name.",
    )
    .old(&["system.fencing.ipmi.host"])
    .need(Need::Cluster),
    key("fencing.ipmi.username", Kind::Text, "User who may switch the power.")
        .old(&["system.fencing.ipmi.user"])
        .need(Need::Cluster),
    key("fencing.ipmi.password", Kind::Secret, "Password for it.")
        .old(&["system.fencing.ipmi.pass"])
        .need(Need::Cluster),
    // migration
    key(
        "migration.target_selector",
        Kind::Choice(Selector::WORDS),
        "How a VM's next node is chosen unless the VM says otherwise.",
    )
    .old(&["system.migration.target_selector"])
    .default("mem"),
    key(
        "migration.parallel",
        Kind::Count { min: 1, unit: "VMs" },
        "VMs that a flush moves or shuts down at once, and that `ready` brings back at once.",
    )
    .default("4")
    .ours(),
    key(
        "migration.tls",
        Kind::Flag,
        "Encrypt guests on their way. QEMU of every node needs its certificates for it \
         (`migrate_tls_x509_cert_dir` in `/etc/libvirt/qemu.conf`).",
    )
    .default("false")
    .ours(),
    key(
        "migration.libvirt_tls",
        Kind::Flag,
        "Give orders to the libvirt of other nodes over TLS (`qemu+tls`), with certificates on \
         both sides: see the manual (security).",
    )
    .default("false")
    .ours(),
    // logging
    key("logging.debug_logging", Kind::Flag, "Log every step.").old(&["debug"]).default("false"),
    key("logging.file_logging", Kind::Flag, "Log to files in `path.system_log_directory`.")
        .old(&["system.configuration.logging.file_logging"])
        .default("false")
        .alone("true"),
    key("logging.stdout_logging", Kind::Flag, "Log to the standard output, which systemd keeps.")
        .old(&["system.configuration.logging.stdout_logging"])
        .default("false"),
    key(
        "logging.zookeeper_logging",
        Kind::Flag,
        "Keep the last lines in ZooKeeper, for `pvc node \
                                                  log`.",
    )
    .default("false")
    .alone("true"),
    key("logging.log_colours", Kind::Flag, "Colour the lines.")
        .old(&["system.configuration.logging.log_colours"])
        .default("false"),
    key("logging.log_dates", Kind::Flag, "Begin lines with date and time.")
        .old(&["system.configuration.logging.log_dates"])
        .default("false")
        .alone("true"),
    key(
        "logging.log_keepalives",
        Kind::Flag,
        "Log each keepalive, and how long it took \
                                               (`took_ms`, in milliseconds).",
    )
    .old(&["system.configuration.logging.log_keepalives"])
    .default("false"),
    key("logging.log_cluster_details", Kind::Flag, "With each keepalive, the node's figures.")
        .old(&["system.configuration.logging.log_keepalive_cluster_details"])
        .default("false"),
    key(
        "logging.log_monitoring_details",
        Kind::Flag,
        "With each run of the health plugins, their \
                                                       results.",
    )
    .old(&[
        "system.configuration.logging.log_keepalive_plugin_details",
        "system.configuration.logging.log_keepalive_storage_details",
    ])
    .default("false"),
    key(
        "logging.console_log_lines",
        Kind::Count { min: 0, unit: "lines" },
        "Lines of each VM's console kept in ZooKeeper; 0 keeps none.",
    )
    .old(&["system.configuration.logging.console_log_lines"])
    .default("0")
    .alone("1000"),
    key(
        "logging.node_log_lines",
        Kind::Count { min: 0, unit: "lines" },
        "Lines of each node's log kept in ZooKeeper; 0 keeps none.",
    )
    .default("0")
    .alone("2000"),
    // guest_networking
    key(
        "guest_networking.bridge_device",
        Kind::Device,
        "Device that carries the VLANs of bridged \
                                                         networks.",
    )
    .old_optional(&["system.configuration.networking.bridge_device"])
    .need(WITH_NETWORKING),
    key(
        "guest_networking.metadata_token",
        Kind::Flag,
        "Whether a guest has to get a token before the metadata service tells it anything, as with \
         IMDSv2; the primary's setting counts.",
    )
    .default("false")
    .ours(),
    key("guest_networking.bridge_mtu", Kind::Mtu, "Largest MTU of a bridged network.")
        .old_optional(&["system.configuration.networking.bridge_mtu"])
        .need(WITH_NETWORKING),
    key(
        "guest_networking.dns.enabled",
        Kind::Flag,
        "Domains of managed networks are served by PowerDNS on the primary, at the floating \
         addresses: see the manual (networks for VMs). Off, names of guests are known in their \
         networks alone.",
    )
    .default("false")
    .ours(),
    key(
        "guest_networking.evpn.enabled",
        Kind::Flag,
        "PVC writes its part of `/etc/frr/frr.conf`, on this node: see the manual (networks for \
         VMs). Off, the file is the installation's, as with PVC 1.0.3.",
    )
    .default("false")
    .ours(),
    key(
        "guest_networking.evpn.asn",
        Kind::Count { min: 1, unit: "an autonomous system" },
        "Number of the cluster's autonomous system in BGP, the same on each node.",
    )
    .default("65500")
    .ours(),
    key(
        "guest_networking.evpn.routers",
        Kind::Sources,
        "Addresses of routers outside that managed networks are announced to.",
    )
    .ours(),
    key(
        "guest_networking.evpn.router_asn",
        Kind::Count { min: 1, unit: "an autonomous system" },
        "Number of the routers' autonomous system; if not given, the cluster's.",
    )
    .ours(),
    key(
        "guest_networking.sriov_enable",
        Kind::Flag,
        "Hand out virtual functions of network cards \
                                                      (SR-IOV).",
    )
    .old(&["system.configuration.networking.sriov_enable"])
    .default("false"),
    key(
        "guest_networking.sriov_device[].phy",
        Kind::Device,
        "Card whose functions are handed out.",
    )
    .alias(&["guest_networking.sriov_device[].device"])
    .old(&[
        "system.configuration.networking.sriov_device[].phy",
        "system.configuration.networking.sriov_device[].device",
    ])
    .need(Need::Always),
    key("guest_networking.sriov_device[].mtu", Kind::Mtu, "Its MTU; unchanged if not given.")
        .old(&["system.configuration.networking.sriov_device[].mtu"]),
    key(
        "guest_networking.sriov_device[].vfcount",
        Kind::Count { min: 0, unit: "virtual functions" },
        "How many functions it has.",
    )
    .old(&["system.configuration.networking.sriov_device[].vfcount"])
    .need(Need::Always),
    // ceph
    key(
        "ceph.ceph_config_file",
        Kind::FileName,
        "Configuration of Ceph, in `path.ceph_directory`.",
    )
    .need(WITH_STORAGE)
    .default("ceph.conf"),
    key(
        "ceph.ceph_keyring_file",
        Kind::FileName,
        "Keyring of its administrator, in \
                                                   `path.ceph_directory`.",
    )
    .need(WITH_STORAGE)
    .default("ceph.client.admin.keyring"),
    key("ceph.monitor_port", Kind::Port, "Port of the monitors, as VMs are told.")
        .need(WITH_STORAGE)
        .default("6789"),
    key(
        "ceph.secret_uuid",
        Kind::Uuid,
        "libvirt's secret with the key for \
                                         RBD.",
    )
    .need(WITH_STORAGE),
    key(
        "ceph.monitor_hosts",
        Kind::Hosts,
        "Monitors, as VMs are told. If not given, `<coordinator>.<domain of the storage network>`.",
    ),
    // api
    key(
        "api.listen.address",
        Kind::Address,
        "Where the API listens besides the loopback, usually the upstream network's floating \
         address.",
    )
    .need(Need::ClusterWith(&[API]))
    .default("127.0.0.1"),
    key("api.listen.port", Kind::Port, "Its port.").need(Need::ClusterWith(&[API])).default("7370"),
    key(
        "api.listen.names",
        Kind::Hosts,
        "Names by which clients without a token may reach the API over plain HTTP, beside those of \
         the nodes.",
    )
    .ours(),
    key(
        "api.refuse_memory_overcommit",
        Kind::Flag,
        "Refuse to start a VM when its node has not the memory for all VMs that are to run there; \
         otherwise it is said and done.",
    )
    .default("false")
    .ours(),
    key(
        "api.removed_volume_hours",
        Kind::Count { min: 0, unit: "hours" },
        "Time for which a volume that is removed is kept in the trash of its pool, from where `pvc \
         storage trash restore` brings it back; 0 removes it at once.",
    )
    .default("24")
    .ours(),
    key(
        "api.images.directory",
        Kind::Directory,
        "Where images of volumes are kept while they are read or made; made if it is not there. \
         See the manual (storage) for one below `/home`, `/root`, `/usr` or `/etc`.",
    )
    .default("/var/tmp")
    .ours(),
    key(
        "api.images.least_free_mib",
        Kind::Count { min: 0, unit: "MiB" },
        "Room that is left to others on the file system of that directory: an image that would \
         take more is refused. If not given, a tenth of it, but 512 MiB at least and 8 GiB at \
         most.",
    )
    .ours(),
    key(
        "api.authentication.enabled",
        Kind::Flag,
        "Ask for a token. In standalone mode a token is always asked for; where none is set, the \
         daemon makes one.",
    )
    .default("false"),
    key(
        "api.authentication.secret_key",
        Kind::Secret,
        "Signed the sessions of browsers. Without effect: sessions are random and kept by the API \
         that made them.",
    ),
    key(
        "api.authentication.source",
        Kind::Choice(&["token"]),
        "Where accounts come \
                                                                from.",
    )
    .default("token"),
    key("api.token[].description", Kind::Text, "Who has it.").default("\"\""),
    key("api.token[].token", Kind::Secret, "What clients send as `X-Api-Key`.").need(Need::Always),
    key(
        "api.token[].role",
        Kind::Choice(Role::OF_TOKENS),
        "What its holder may do; see the manual (security).",
    )
    .default("administrator")
    .ours(),
    key(TLS, Kind::Flag, "Serve HTTPS.").default("false"),
    key("api.ssl.certificate", Kind::File, "Certificate chain, PEM.").need(Need::With(TLS)),
    key("api.ssl.private_key", Kind::File, "Its private key, PEM.").need(Need::With(TLS)),
    // benchmark
    key(
        "benchmark.volume_gib",
        Kind::Count { min: 1, unit: "GiB" },
        "Size of the volume that `pvc storage benchmark run` makes.",
    )
    .default("64")
    .alone("8")
    .ours(),
    key("benchmark.test_seconds", Kind::Seconds, "How long each of its eight tests takes.")
        .default("75")
        .ours(),
    // provisioner
    key(
        "provisioner.vm_id_mode",
        Kind::Choice(&["trailing", "legacy"]),
        "The number of a VM for scripts: the digits at the end of its name, or 0 as in PVC 1.0.3.",
    )
    .default("trailing")
    .ours(),
    key(
        "provisioner.script_phase_seconds",
        Kind::Seconds,
        "How long one method of a script may take.",
    )
    .default("7200")
    .ours(),
    key("provisioner.script_seconds", Kind::Seconds, "How long all of them may take together.")
        .default("14400")
        .ours(),
    key(
        "provisioner.script_memory_mib",
        Kind::Count { min: 64, unit: "MiB" },
        "Memory that the processes of a script may use together, where the worker may limit it.",
    )
    .default("4096")
    .ours(),
    // jobs
    key("autobackup", Kind::Section, "Scheduled backups; none if empty or absent."),
    key(
        "automirror",
        Kind::Section,
        "Scheduled mirrors to another cluster; none if empty or \
                                      absent.",
    ),
    // standalone
    key(
        "standalone.state_directory",
        Kind::Directory,
        "Where standalone mode keeps everything. If not given, what `PVC_STATE` says, else \
         `/var/lib/pvc`.",
    )
    .ours(),
    key("standalone.volume_directory", Kind::Directory, "Where standalone mode keeps volumes.")
        .alone("{state}/volumes")
        .ours(),
    key(
        "standalone.libvirt_uri",
        Kind::Text,
        "Which libvirt to use; this machine's own if not \
                                               given.",
    )
    .ours(),
];

/// The sections and lists that mean something by being there, besides those that keys are in.
pub(crate) const STANDALONE: &str = "standalone";
pub(crate) const SRIOV_DEVICES: &str = "guest_networking.sriov_device";
pub(crate) const OLD_SRIOV_DEVICES: &str = "system.configuration.networking.sriov_device";
pub(crate) const TOKENS: &str = "api.token";

pub(crate) fn find(path: &str) -> &'static Key {
    KEYS.iter()
        .find(|key| key.path == path)
        .expect("every key that the code asks for is in the table")
}

/// The name in the middle of a path or the number of an item, for the keys that need one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct At {
    pub net: &'static str,
    pub item: usize,
}

impl At {
    pub fn fill(self, path: &str) -> String {
        path.replace("{net}", self.net).replace("[]", &format!("[{}]", self.item))
    }
}
