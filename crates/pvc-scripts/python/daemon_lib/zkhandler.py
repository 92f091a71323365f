"""Reading of records: the handle that stands for PVC 1.0.3's connection to ZooKeeper."""

from pvc_runner import channel

# Paths of the key names that take a name or a UUID in place of `{}`, and of those that take none.
PATHS = {
    "base.config": "/config",
    "base.config.maintenance": "/config/maintenance",
    "base.config.migration_target_selector": "/config/migration_target_selector",
    "base.config.primary_node": "/config/primary_node",
    "base.config.upstream_ip": "/config/upstream_ip",
    "base.domain": "/domains",
    "base.network": "/networks",
    "base.node": "/nodes",
    "base.osd": "/ceph/osds",
    "base.pool": "/ceph/pools",
    "base.schema.version": "/schema/version",
    "base.storage": "/ceph",
    "base.storage.health": "/ceph/health",
    "base.storage.util": "/ceph/util",
    "base.volume": "/ceph/volumes",
    "domain": "/domains/{}",
    "domain.name": "/domains/{}",
    "domain.console.log": "/domains/{}/consolelog",
    "domain.console.vnc": "/domains/{}/vnc",
    "domain.failed_reason": "/domains/{}/failedreason",
    "domain.last_node": "/domains/{}/lastnode",
    "domain.meta.autostart": "/domains/{}/node_autostart",
    "domain.meta.migrate_max_downtime": "/domains/{}/migration_max_downtime",
    "domain.meta.migrate_method": "/domains/{}/migration_method",
    "domain.meta.node_limit": "/domains/{}/node_limit",
    "domain.meta.node_selector": "/domains/{}/node_selector",
    "domain.meta.tags": "/domains/{}/tags",
    "domain.node": "/domains/{}/node",
    "domain.profile": "/domains/{}/profile",
    "domain.snapshots": "/domains/{}/snapshots",
    "domain.state": "/domains/{}/state",
    "domain.stats": "/domains/{}/stats",
    "domain.storage.volumes": "/domains/{}/rbdlist",
    "domain.xml": "/domains/{}/xml",
    "network": "/networks/{}",
    "node": "/nodes/{}",
    "node.name": "/nodes/{}",
    "node.count.provisioned_domains": "/nodes/{}/domainscount",
    "node.cpu.load": "/nodes/{}/cpuload",
    "node.data.pvc_version": "/nodes/{}/pvcversion",
    "node.data.static": "/nodes/{}/staticdata",
    "node.keepalive": "/nodes/{}/keepalive",
    "node.memory.allocated": "/nodes/{}/memalloc",
    "node.memory.free": "/nodes/{}/memfree",
    "node.memory.provisioned": "/nodes/{}/memprov",
    "node.memory.total": "/nodes/{}/memtotal",
    "node.memory.used": "/nodes/{}/memused",
    "node.mode": "/nodes/{}/daemonmode",
    "node.monitoring.health": "/nodes/{}/monitoring_health",
    "node.network.stats": "/nodes/{}/network_stats",
    "node.running_domains": "/nodes/{}/runningdomains",
    "node.state.daemon": "/nodes/{}/daemonstate",
    "node.state.domain": "/nodes/{}/domainstate",
    "node.state.router": "/nodes/{}/routerstate",
    "node.vcpu.allocated": "/nodes/{}/vcpualloc",
    "osd": "/ceph/osds/{}",
    "osd.stats": "/ceph/osds/{}/stats",
    "pool": "/ceph/pools/{}",
    "pool.pgs": "/ceph/pools/{}/pgs",
    "pool.stats": "/ceph/pools/{}/stats",
    "pool.tier": "/ceph/pools/{}/tier",
    "snapshot": "/ceph/snapshots/{}",
    "snapshot.stats": "/ceph/snapshots/{}/stats",
    "volume": "/ceph/volumes/{}",
    "volume.stats": "/ceph/volumes/{}/stats",
}


class ZKHandler:
    """Handle on the cluster's records. What it reads, the worker reads for it."""

    def __init__(self, config, logger=None):
        self.config = config
        self.logger = logger

    def connect(self, persistent=False):
        """Does nothing: the worker is connected."""

    def disconnect(self, persistent=False):
        """Does nothing."""

    def read(self, key):
        """Returns the text of a key, and None if it is not there."""
        return channel.worker.call("zk.read", key=path(key))

    def exists(self, key):
        """Returns whether a key is there."""
        return channel.worker.call("zk.exists", key=path(key))

    def children(self, key):
        """Returns the names below a key, and None if it is not there."""
        return channel.worker.call("zk.children", key=path(key))

    def write(self, kvpairs):
        """Writes pairs of key and value. The worker refuses it, and says what to use instead."""
        pairs = [[path(key), str(value)] for key, value in kvpairs]
        return channel.worker.call("zk.write", pairs=pairs)

    def delete(self, keys, recursive=True):
        """Removes keys. The worker refuses it, and says what to use instead."""
        if not isinstance(keys, list):
            keys = [keys]
        return channel.worker.call("zk.delete", keys=[path(k) for k in keys], recursive=recursive)


def path(key):
    """Returns the path of a key: `/domains`, `"base.config"` or `("domain.state", UUID)`."""
    item, *names = (key,) if isinstance(key, str) else key
    if item.startswith("/") and not names:
        return item
    template = PATHS.get(item)
    if template is None:
        raise KeyError(f"`{item}` is no known key; give its path, such as `/domains`")
    if len(names) != template.count("{}"):
        raise KeyError(f"`{item}` takes {template.count('{}')} names, and {len(names)} were given")
    return template.format(*names)
