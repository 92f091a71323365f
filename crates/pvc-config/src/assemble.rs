//! From a document to a [`Config`]: one function per section, each with the checks that its keys
//! need of one another.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use pvc_model::role::Role;
use pvc_model::vm::Selector;

use crate::config::*;
use crate::keys::{self, At};
use crate::networks;
use crate::reader::Reader;
use crate::secret::{RawSection, Secret};

const HERE: At = At { net: "", item: 0 };

/// Tokens and passwords shorter than this can be guessed.
const SHORT_SECRET: usize = 16;

/// Reads the whole document. The value counts only if the reader noted no error.
pub(crate) fn config(reader: &mut Reader<'_>, node: NodeIdentity) -> Config {
    reader.survey();
    let paths = paths(reader);
    let subsystems = subsystems(reader);
    let (cluster, is_listed) = cluster(reader, &node);
    // Which address a machine would have that is no node of this cluster is no mistake of the file.
    let networks = networks::read(reader, is_listed.then_some(&node), &cluster.all_nodes);
    let addresses =
        |networks| networks::node_addresses(reader.format, networks, &cluster.all_nodes);
    let node_addresses = networks.as_ref().map(addresses).unwrap_or_default();
    let firewall = firewall(reader, networks.as_ref(), &node_addresses);
    Config {
        standalone: standalone(reader),
        node_addresses,
        firewall,
        database: database(reader),
        timers: timers(reader),
        fencing: fencing(reader, &node.id),
        migration: Migration {
            target_selector: target_selector(reader),
            parallel: reader.want("migration.parallel"),
            tls: reader.want("migration.tls"),
            libvirt_tls: reader.want("migration.libvirt_tls"),
        },
        logging: logging(reader),
        guest_networking: guest_networking(reader, subsystems),
        ceph: ceph(reader, &paths, subsystems, &cluster),
        api: api(reader),
        benchmark: Benchmark {
            volume_gib: reader.want("benchmark.volume_gib"),
            test_time: reader.want("benchmark.test_seconds"),
        },
        provisioner: Scripts {
            numbers_vms: reader.get::<String>("provisioner.vm_id_mode").as_deref()
                != Some("legacy"),
            phase_time: reader.want("provisioner.script_phase_seconds"),
            whole_time: reader.want("provisioner.script_seconds"),
            memory_mib: reader.want("provisioner.script_memory_mib"),
        },
        autobackup: section(reader, "autobackup"),
        automirror: section(reader, "automirror"),
        warnings: Vec::new(),
        node,
        paths,
        subsystems,
        cluster,
        networks,
    }
}

/// Peers that this node's packet filter lets in beside the nodes, if there is to be one.
fn firewall(
    reader: &mut Reader<'_>,
    networks: Option<&Networks>,
    addresses: &NodeAddresses,
) -> Option<Firewall> {
    let enabled: bool = reader.want(keys::FIREWALL);
    let allow: Vec<ipnet::IpNet> = reader.get("cluster.firewall.allow").unwrap_or_default();
    if !enabled || reader.standalone {
        return None;
    }
    if !reader.is_on(keys::NETWORKING) {
        let hint =
            "switch `subsystem.enable_networking` on, or filter with what manages the networks";
        reader.warn_at(
            keys::FIREWALL,
            HERE,
            "is on and networking is off: there is no filter",
            hint,
        );
        return None;
    }
    let Networks { upstream, cluster, storage } = networks?;
    let let_in = [("upstream", upstream), ("cluster", cluster), ("storage", storage)];
    let let_in = let_in.into_iter().skip(usize::from(!addresses.needs_upstream));
    let is_whole = |network: &ClusterNetwork| !networks::knows_nodes(reader.format, network);
    let whole = let_in.filter(|(_, network)| is_whole(network));
    let whole: Vec<String> = whole.map(|(name, _)| format!("the network `{name}`")).collect();
    if !whole.is_empty() {
        let found = format!(
            "lets all hosts of {} in: this file does not know each node's address",
            whole.join(", ")
        );
        let hint = "with `node_ip_selection: by-id` and `cluster.all_nodes` in a pvc.conf it does";
        reader.warn_at(keys::FIREWALL, HERE, found, hint);
    }
    Some(Firewall { allow: allow.into_iter().collect() })
}

/// The API's section alone, for a client on this machine.
pub(crate) fn api(reader: &mut Reader<'_>) -> Api {
    let ip = reader.get("api.listen.address").unwrap_or([127, 0, 0, 1].into());
    let authentication = authentication(reader);
    let makes_a_token = reader.standalone && !authentication.enabled;
    let api = Api {
        listen: SocketAddr::new(ip, reader.want("api.listen.port")),
        names: reader.get("api.listen.names").unwrap_or_default(),
        refuse_memory_overcommit: reader.want("api.refuse_memory_overcommit"),
        removed_volume_hours: reader.want("api.removed_volume_hours"),
        images: Images {
            directory: reader.want("api.images.directory"),
            least_free_mib: reader.get("api.images.least_free_mib"),
        },
        token_file: makes_a_token.then(|| reader.state.join("api-token")),
        authentication,
        tls: tls(reader),
    };
    warn_of_open_api(reader, &api);
    api
}

fn warn_of_open_api(reader: &mut Reader<'_>, api: &Api) {
    let is_open = !api.authentication.enabled && api.token_file.is_none();
    let open = reader.is_on(keys::API) && is_open && !api.listen.ip().is_loopback();
    if open {
        let hint = "set `enabled: true` and give at least one token under `api.token`";
        let found = "is off: whoever reaches the API's address commands the cluster";
        reader.warn_at("api.authentication.enabled", HERE, found, hint);
    }
    if reader.format == Format::PvcnodedYaml
        && reader.is_on(keys::API)
        && !reader.is_given("api.listen.address", HERE)
    {
        let hint = "copy the settings of the old pvcapid.yaml into an `api:` section beside `pvc:`";
        let found = "is missing: the API listens on 127.0.0.1 only";
        reader.warn_at("api.listen.address", HERE, found, hint);
    }
}

fn authentication(reader: &mut Reader<'_>) -> Authentication {
    let enabled = reader.want("api.authentication.enabled");
    let secret_key =
        reader.get::<Secret>("api.authentication.secret_key").filter(|key| !key.is_empty());
    reader.get::<String>("api.authentication.source");
    let tokens: Vec<_> =
        (0..reader.items(keys::TOKENS)).filter_map(|item| token(reader, item)).collect();
    if enabled && reader.items(keys::TOKENS) == 0 {
        let hint = "add an item with `description` and `token` under `api.token`, or switch \
                    authentication off";
        let found = "is on and there is no token: nobody could log in";
        reader.error_at("api.authentication.enabled", HERE, found, "", hint);
    }
    Authentication { enabled, secret_key, tokens }
}

fn token(reader: &mut Reader<'_>, item: usize) -> Option<Token> {
    let at = At { net: "", item };
    let description = reader.get_at("api.token[].description", at).unwrap_or_default();
    let token: Secret = reader.get_at("api.token[].token", at)?;
    check_secret(reader, "api.token[].token", at, &token);
    let role: String = reader.get_at("api.token[].role", at)?;
    Some(Token { description, token, role: Role::of_token(&role)? })
}

/// Whoever has it commands the cluster, and may try as often as he likes.
fn check_secret(reader: &mut Reader<'_>, key: &str, at: At, secret: &Secret) {
    let length = secret.reveal().chars().count();
    let hint = "use a long random text, for example from `openssl rand -hex 32`";
    if length == 0 {
        reader.error_at(
            key,
            at,
            "is empty text: it would let everybody in",
            "a long random text",
            hint,
        );
    } else if length < SHORT_SECRET {
        reader.warn_at(key, at, "is short enough to be guessed", hint);
    }
}

fn tls(reader: &mut Reader<'_>) -> Option<Tls> {
    let enabled: bool = reader.want(keys::TLS);
    let certificate: Option<PathBuf> = reader.get("api.ssl.certificate");
    let private_key: Option<PathBuf> = reader.get("api.ssl.private_key");
    enabled.then_some(())?;
    Some(Tls { certificate: certificate?, private_key: private_key? })
}

fn standalone(reader: &mut Reader<'_>) -> Option<Standalone> {
    let given: Option<PathBuf> = reader.get("standalone.state_directory");
    let libvirt_uri = reader.get::<String>("standalone.libvirt_uri").filter(|uri| !uri.is_empty());
    let volume_directory = reader.get("standalone.volume_directory");
    reader.standalone.then(|| Standalone {
        state_directory: given.unwrap_or_else(|| reader.state.clone()),
        volume_directory: volume_directory.unwrap_or_default(),
        libvirt_uri,
    })
}

fn paths(reader: &mut Reader<'_>) -> Paths {
    Paths {
        plugins: reader.want("path.plugin_directory"),
        dynamic: reader.want("path.dynamic_directory"),
        log: reader.want("path.system_log_directory"),
        console_log: reader.want("path.console_log_directory"),
        ceph: reader.want("path.ceph_directory"),
    }
}

fn subsystems(reader: &mut Reader<'_>) -> Subsystems {
    Subsystems {
        hypervisor: reader.want(keys::HYPERVISOR),
        networking: reader.want(keys::NETWORKING),
        storage: reader.want(keys::STORAGE),
        worker: reader.want(keys::WORKER),
        api: reader.want(keys::API),
        prometheus: reader.want("subsystem.enable_prometheus"),
    }
}

/// The cluster, and whether this machine is a node of it.
fn cluster(reader: &mut Reader<'_>, node: &NodeIdentity) -> (Cluster, bool) {
    const ALL: &str = "cluster.all_nodes";
    const COORDINATORS: &str = "cluster.coordinator_nodes";
    let name = reader.get::<String>("cluster.name").filter(|name| !name.is_empty());
    if name.is_none() && reader.is_given("cluster.name", HERE) {
        reader.error_at("cluster.name", HERE, "is empty text", "a name", "");
    }
    let coordinators: Vec<String> = reader.want(COORDINATORS);
    let all: Option<Vec<String>> = reader.get(ALL);
    for (path, nodes) in
        [(COORDINATORS, &coordinators), (ALL, all.as_ref().unwrap_or(&coordinators))]
    {
        check_node_list(reader, path, nodes);
    }
    if reader.standalone {
        if coordinators.iter().any(|name| *name != node.name) {
            let found = "names other nodes, and standalone mode has only this one";
            let hint = "leave it out, or remove the section `standalone` and run the node as part \
                        of the cluster";
            reader.error_at(COORDINATORS, HERE, found, "", hint);
        }
    } else if !coordinators.is_empty() && coordinators.len().is_multiple_of(2) {
        let found = format!(
            "has {} nodes: an even number survives no more failures than one fewer",
            coordinators.len()
        );
        reader.warn_at(COORDINATORS, HERE, found, "use three or five coordinators");
    }
    // The older format has no list of all nodes: there, any machine may be a hypervisor.
    let is_listed =
        all.as_ref().is_none_or(|all| check_membership(reader, node, all, &coordinators));
    (
        Cluster { name, all_nodes: all.unwrap_or_else(|| coordinators.clone()), coordinators },
        is_listed,
    )
}

fn check_node_list(reader: &mut Reader<'_>, path: &str, nodes: &[String]) {
    if nodes.is_empty()
        && reader.is_given(path, HERE)
        && reader.items(&reader.shown(path, HERE)) == 0
    {
        reader.error_at(path, HERE, "is an empty list", "at least one node", "");
    }
    let mut seen = BTreeSet::new();
    for name in nodes {
        if !seen.insert(name) && reader.is_given(path, HERE) {
            let hint = "name each node once; two servers with one name cannot be in a cluster";
            reader.error_at(path, HERE, format!("names `{name}` twice"), "", hint);
        }
    }
}

/// Whether the lists name this machine. One that they do not name would join the cluster without
/// anybody having meant it, as a clone of a server does that kept its configuration.
fn check_membership(
    reader: &mut Reader<'_>,
    node: &NodeIdentity,
    all: &[String],
    coordinators: &[String],
) -> bool {
    const ALL: &str = "cluster.all_nodes";
    for name in coordinators.iter().filter(|name| !all.contains(name)) {
        reader.warn_at(ALL, HERE, format!("lacks the coordinator `{name}`"), "add it");
    }
    let is_listed = all.contains(&node.name) || coordinators.contains(&node.name);
    if !is_listed {
        let found = format!("lacks this node, `{}`", node.name);
        let hint = match all.first() {
            Some(first) => format!(
                "add it if it is a new node; if this machine is one of those that are listed, give \
                 it that \
                 host name, as in `hostnamectl hostname {first}`"
            ),
            None => "add it".to_owned(),
        };
        reader.error_at(ALL, HERE, found, "", &hint);
    }
    is_listed
}

fn database(reader: &mut Reader<'_>) -> Database {
    let hostname = reader.get::<String>("database.postgres.hostname");
    let port = reader.get("database.postgres.port");
    let (dns_hostname, dns_port) = match reader.format {
        Format::PvcConf => (hostname.clone(), port),
        Format::PvcnodedYaml => (
            reader.get("coordinator.dns.database.host"),
            reader.get("coordinator.dns.database.port"),
        ),
    };
    Database {
        zookeeper: zookeeper(reader),
        keydb: keydb(reader),
        metadata: postgres(
            reader,
            hostname,
            port,
            ["api.database", "api.username", "api.password"],
        ),
        dns: postgres(
            reader,
            dns_hostname,
            dns_port,
            ["dns.database", "dns.username", "dns.password"],
        ),
    }
}

fn zookeeper(reader: &mut Reader<'_>) -> Zookeeper {
    let password = reader.get::<Secret>(keys::ZOOKEEPER_PASSWORD);
    if let Some(password) = &password {
        check_secret(reader, keys::ZOOKEEPER_PASSWORD, HERE, password);
        if !password.reveal().is_ascii() {
            let hint =
                "each ZooKeeper server reads it in the character set of its own locale; use ASCII";
            reader.error_at(keys::ZOOKEEPER_PASSWORD, HERE, "is not ASCII", "ASCII text", hint);
        }
    }
    let enabled: bool = reader.want(keys::ZOOKEEPER_TLS);
    let port = reader.want("database.zookeeper.ssl.port");
    let authority = reader.get("database.zookeeper.ssl.authority");
    let certificate = reader.get("database.zookeeper.ssl.certificate");
    let key = reader.get("database.zookeeper.ssl.private_key");
    if certificate.is_some() != key.is_some() {
        let hint = "give both, or neither where the servers do not ask for it";
        let found = "stands without the other of `certificate` and `private_key`";
        let given = if certificate.is_some() { "certificate" } else { "private_key" };
        reader.error_at(&format!("database.zookeeper.ssl.{given}"), HERE, found, "", hint);
    }
    let tls = authority.filter(|_| enabled).map(|authority| ZookeeperTls {
        port,
        authority,
        own: certificate.zip(key),
    });
    Zookeeper { port: reader.want("database.zookeeper.port"), password, tls }
}

fn keydb(reader: &mut Reader<'_>) -> Option<Keydb> {
    let hostname = reader.get("database.keydb.hostname");
    let (port, path) = (reader.want("database.keydb.port"), reader.want("database.keydb.path"));
    Some(Keydb { hostname: hostname?, port, path })
}

fn postgres(
    reader: &mut Reader<'_>,
    hostname: Option<String>,
    port: Option<u16>,
    keys: [&str; 3],
) -> Option<Postgres> {
    let [database, username, password] =
        keys.map(|key| format!("database.postgres.credentials.{key}"));
    let (database, username) = (reader.get(&database), reader.get(&username));
    let password = reader.get(&password);
    Some(Postgres {
        hostname: hostname?,
        port: port?,
        database: database?,
        username: username?,
        password: password?,
    })
}

fn timers(reader: &mut Reader<'_>) -> Timers {
    Timers {
        vm_shutdown_timeout: reader.want("timer.vm_shutdown_timeout"),
        keepalive_interval: reader.want("timer.keepalive_interval"),
        monitoring_interval: reader.want("timer.monitoring_interval"),
    }
}

fn fencing(reader: &mut Reader<'_>, id: &NodeId) -> Fencing {
    const FENCE: &str = "fencing.intervals.fence_intervals";
    const SUICIDE: &str = "fencing.intervals.suicide_intervals";
    let fence: Option<u32> = reader.get(FENCE);
    let suicide: Option<u32> = reader.get(SUICIDE);
    let fencing = Fencing {
        disable_on_ipmi_failure: reader.want("fencing.disable_on_ipmi_failure"),
        fence_intervals: fence.and_then(NonZeroU32::new),
        suicide_intervals: suicide.and_then(NonZeroU32::new),
        successful_fence: fence_action(reader, "fencing.actions.successful_fence"),
        failed_fence: fence_action(reader, "fencing.actions.failed_fence"),
        ipmi: ipmi(reader, id),
    };
    if fence == Some(0) {
        let found =
            "is 0: no node is ever taken for dead, and its VMs stay down until somebody acts";
        let hint = "6 is usual; daemons of PVC 1.0.3 do not know that 0 means never, and \
                    fence at once";
        reader.warn_at(FENCE, HERE, found, hint);
    }
    if fencing.failed_fence == FenceAction::Migrate {
        let found = "is `migrate`, which has no effect: without a proof that a node is dead its \
                     VMs could run twice";
        let hint =
            "use `none`; docs/manual/fencing.md says what helps when a node cannot be fenced";
        reader.warn_at("fencing.actions.failed_fence", HERE, found, hint);
    }
    if let (Some(fence), Some(suicide)) = (fencing.fence_intervals, fencing.suicide_intervals)
        && suicide > fence
    {
        let found =
            format!("is {suicide}: a node would reset itself only after others took it for dead");
        reader.warn_at(SUICIDE, HERE, found, &format!("use at most {fence}, the fence intervals"));
    }
    fencing
}

fn fence_action(reader: &mut Reader<'_>, path: &str) -> FenceAction {
    match reader.get::<String>(path).as_deref() {
        Some("migrate") => FenceAction::Migrate,
        _ => FenceAction::Nothing,
    }
}

fn ipmi(reader: &mut Reader<'_>, id: &NodeId) -> Option<Ipmi> {
    const HOSTNAME: &str = "fencing.ipmi.hostname";
    let hostname =
        reader.get::<String>(HOSTNAME).map(|template| template.replace("{node_id}", &id.text));
    let username = reader.get("fencing.ipmi.username");
    let password = reader.get("fencing.ipmi.password");
    let allowed =
        "a host name or address, with `{node_id}` for the number of the node if it is in it";
    let wrong = |found: &str, hint: &str, reader: &mut Reader<'_>| {
        reader.error_at(HOSTNAME, HERE, found, allowed, hint);
    };
    match hostname.as_deref() {
        Some("") => wrong("is empty text", "", reader),
        Some(name) if name.contains(['{', '}']) => {
            wrong(
                "has braces around something else than `node_id`",
                "`{node_id}` is the only placeholder",
                reader,
            );
        }
        Some(name) if name.contains(char::is_whitespace) => wrong("contains a space", "", reader),
        Some(_) | None => {}
    }
    Some(Ipmi { hostname: hostname?, username: username?, password: password? })
}

fn target_selector(reader: &mut Reader<'_>) -> Selector {
    let word = reader.get::<String>("migration.target_selector");
    word.map_or(Selector::Mem, |word| Selector::from_record(&word))
}

fn logging(reader: &mut Reader<'_>) -> Logging {
    let logging = Logging {
        debug: reader.want("logging.debug_logging"),
        file: reader.want("logging.file_logging"),
        stdout: reader.want("logging.stdout_logging"),
        zookeeper: reader.want("logging.zookeeper_logging"),
        colours: reader.want("logging.log_colours"),
        dates: reader.want("logging.log_dates"),
        keepalives: reader.want("logging.log_keepalives"),
        cluster_details: reader.want("logging.log_cluster_details"),
        monitoring_details: reader.want("logging.log_monitoring_details"),
        console_log_lines: reader.want("logging.console_log_lines"),
        node_log_lines: reader.want("logging.node_log_lines"),
    };
    if !logging.file && !logging.stdout && !logging.zookeeper {
        let hint = "switch on `file_logging`, `stdout_logging` or `zookeeper_logging`";
        let found = "is off, and so are the others: nothing is logged anywhere";
        reader.warn_at("logging.file_logging", HERE, found, hint);
    }
    if logging.zookeeper && logging.node_log_lines == 0 {
        let found = "keeps no lines while `zookeeper_logging` is on: `pvc node log` stays empty";
        reader.warn_at("logging.node_log_lines", HERE, found, "2000 is usual");
    }
    logging
}

fn guest_networking(reader: &mut Reader<'_>, subsystems: Subsystems) -> GuestNetworking {
    const ENABLE: &str = "guest_networking.sriov_enable";
    const PHY: &str = "guest_networking.sriov_device[].phy";
    let list = match reader.format {
        Format::PvcConf => keys::SRIOV_DEVICES.to_owned(),
        Format::PvcnodedYaml => format!("pvc.{}", keys::OLD_SRIOV_DEVICES),
    };
    let mut devices: Vec<SriovDevice> = Vec::new();
    for item in 0..reader.items(&list) {
        let at = At { net: "", item };
        let phy: Option<String> = reader.get_at(PHY, at);
        let mtu = reader.get_at("guest_networking.sriov_device[].mtu", at);
        let vfcount = reader.get_at("guest_networking.sriov_device[].vfcount", at);
        let (Some(phy), Some(vfcount)) = (phy, vfcount) else { continue };
        if devices.iter().any(|device| device.phy == phy) {
            reader.error_at(PHY, at, format!("is `{phy}` once more"), "", "name each card once");
        }
        devices.push(SriovDevice { phy, mtu, vfcount });
    }
    let sriov_enabled: bool = reader.want(ENABLE);
    if sriov_enabled && reader.items(&list) == 0 {
        reader.warn_at(
            ENABLE,
            HERE,
            "is on, but no card is named",
            "name the cards under `sriov_device`",
        );
    }
    if sriov_enabled && !subsystems.networking {
        reader.warn_at(
            ENABLE,
            HERE,
            "has no effect while networking is off",
            "switch networking on, or this off",
        );
    }
    GuestNetworking {
        dns_enabled: is_dns_enabled(reader, subsystems),
        evpn: evpn(reader, subsystems),
        bridge_device: reader.get("guest_networking.bridge_device"),
        bridge_mtu: reader.get("guest_networking.bridge_mtu"),
        metadata_token: reader.want("guest_networking.metadata_token"),
        sriov_enabled,
        sriov_devices: devices,
    }
}

/// Whether names of guests are served outside of their networks.
fn is_dns_enabled(reader: &mut Reader<'_>, subsystems: Subsystems) -> bool {
    const ENABLED: &str = "guest_networking.dns.enabled";
    let enabled: bool = reader.want(ENABLED);
    let has_effect = subsystems.networking && !reader.standalone;
    if enabled && !has_effect {
        let hint = "it serves at the floating addresses of a cluster with networking";
        reader.warn_at(ENABLED, HERE, "has no effect here", hint);
    }
    enabled && has_effect
}

/// BGP of the cluster, if PVC is to write it.
fn evpn(reader: &mut Reader<'_>, subsystems: Subsystems) -> Option<Evpn> {
    const ENABLED: &str = "guest_networking.evpn.enabled";
    const ROUTERS: &str = "guest_networking.evpn.routers";
    const ASN: &str = "guest_networking.evpn.asn";
    const ROUTER_ASN: &str = "guest_networking.evpn.router_asn";
    let enabled: bool = reader.want(ENABLED);
    let asn = reader.want(ASN);
    let router_asn = reader.get(ROUTER_ASN).unwrap_or(asn);
    let routers: Vec<ipnet::IpNet> = reader.get(ROUTERS).unwrap_or_default();
    for network in routers.iter().filter(|network| network.prefix_len() != network.max_prefix_len())
    {
        let found = format!("has the network `{network}`");
        reader.error_at(ROUTERS, HERE, found, "", "each router is one address");
    }
    if enabled && (!subsystems.networking || reader.standalone) {
        let hint = "it joins the nodes of a cluster with networking";
        reader.warn_at(ENABLED, HERE, "has no effect here", hint);
        return None;
    }
    let routers = routers.iter().map(ipnet::IpNet::addr).collect();
    enabled.then_some(Evpn { asn, routers, router_asn })
}

fn ceph(
    reader: &mut Reader<'_>,
    paths: &Paths,
    subsystems: Subsystems,
    cluster: &Cluster,
) -> Option<Ceph> {
    const HOSTS: &str = "ceph.monitor_hosts";
    let config_file: PathBuf = reader.want("ceph.ceph_config_file");
    let keyring_file: PathBuf = reader.want("ceph.ceph_keyring_file");
    let monitor_port = reader.want("ceph.monitor_port");
    let secret_uuid = reader.get("ceph.secret_uuid");
    let domain: Option<String> = networks::storage_domain(reader);
    let named: Option<Vec<String>> = reader.get(HOSTS);
    if !subsystems.storage {
        return None;
    }
    let derived = domain
        .map(|domain| cluster.coordinators.iter().map(|host| format!("{host}.{domain}")).collect());
    let monitor_hosts = named.or(derived).unwrap_or_else(|| {
        if !reader.is_given(HOSTS, HERE) && !reader.is_on(keys::NETWORKING) {
            let found =
                "is missing, and without a storage network it cannot be told from the coordinators";
            reader.error_at(HOSTS, HERE, found, "a list of host names or addresses", "");
        }
        Vec::new()
    });
    Some(Ceph {
        config_file: paths.ceph.join(config_file),
        keyring_file: paths.ceph.join(keyring_file),
        monitor_port,
        monitor_hosts,
        secret_uuid,
    })
}

fn section(reader: &mut Reader<'_>, path: &str) -> Option<RawSection> {
    reader.get(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KEYS;
    use crate::yaml;

    const ITEMS: &str = "[{phy: a, vfcount: 1}]";

    fn asked(text: &str, format: Format) -> BTreeSet<&'static str> {
        let document = yaml::parse(text).unwrap_or_else(|fault| panic!("{}", fault.what));
        let mut reader = Reader::new("test", &document.root, format);
        let node =
            NodeIdentity { name: "hv1".into(), domain: String::new(), id: NodeId::of("hv1") };
        config(&mut reader, node);
        reader.asked
    }

    #[test]
    fn the_table_has_no_key_that_nobody_reads() {
        let new =
            format!("api: {{token: [{{token: x}}]}}\nguest_networking: {{sriov_device: {ITEMS}}}");
        let old = format!(
            "pvc: {{system: {{configuration: {{networking: {{sriov_device: {ITEMS}}}}}}}}}"
        );
        let mut read = asked(&new, Format::PvcConf);
        read.extend(asked(&old, Format::PvcnodedYaml));
        // Read before the rest, with the node's name.
        read.insert("node");
        let all: BTreeSet<_> = KEYS.iter().map(|key| key.path).collect();
        assert_eq!(read, all);
    }
}
