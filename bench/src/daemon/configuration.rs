//! Configurations that touch nothing of this machine: no guest is to be started, no network and no
//! service.

use std::path::Path;

/// All roles in one process, on the tree in `directory`.
pub fn standalone(directory: &Path, api_port: u16, key: &str) -> String {
    let directory = directory.display();
    format!(
        "standalone:\n  state_directory: \"{directory}\"\nsubsystem:\n  enable_hypervisor: no\n{}",
        api(api_port, key)
    )
}

/// Writes the configuration of a cluster's node, on the ZooKeeper at `zookeeper_port` of this
/// machine. It is no coordinator: one would start ZooKeeper's service and others.
pub fn cluster(
    directory: &Path,
    host: &str,
    zookeeper_port: u16,
    api_port: u16,
    key: &str,
) -> String {
    let directory = directory.display();
    format!(
        "logging:\n  stdout_logging: yes\n  zookeeper_logging: \
         yes\npath:\n  plugin_directory: \"{directory}\"\n  dynamic_directory: \"{directory}\"\n  \
         system_log_directory: \"{directory}\"\n  console_log_directory: \"{directory}\"\n  \
         ceph_directory: \"{directory}\"\n\
         subsystem:\n  enable_hypervisor: no\n  enable_networking: no\n  enable_storage: \
         yes\n  enable_worker: no\n  \
         enable_api: no\n  enable_prometheus: yes\n\
         cluster:\n  name: synthetic\n  all_nodes: [\"{host}\", localhost]\n  coordinator_nodes: \
         [localhost]\n\
         database:\n  zookeeper:\n    port: {zookeeper_port}\n  keydb:\n    hostname: \
         localhost\n    port: 6379\n    path: /0\n  \
         postgres:\n    hostname: localhost\n    port: \
         5432\n    credentials:\n      api:\n        database: none\n        \
         username: none\n        password: none\n\
         fencing:\n  disable_on_ipmi_failure: no\n  intervals:\n    fence_intervals: \
         0\n  ipmi:\n    hostname: localhost\n    \
         username: none\n    password: none\n\
         ceph:\n  ceph_config_file: none\n  ceph_keyring_file: none\n  monitor_port: 6789\n  \
         secret_uuid: 00000000-0000-0000-0000-000000000001\n  monitor_hosts: [localhost]\n{}",
        api(api_port, key)
    )
}

fn api(port: u16, key: &str) -> String {
    format!(
        "api:\n  listen:\n    address: \"127.0.0.1\"\n    port: \
         {port}\n  authentication:\n    enabled: yes\n    \
         source: token\n  token:\n    - description: \"bench\"\n      token: \"{key}\"\n"
    )
}
