//! A network, its record in a store, and programs of this machine.

use std::convert::Infallible;
use std::process::Command;
use std::sync::Arc;

use pvc_embedded::EmbeddedTree;
use pvc_model::Uuid;
use pvc_model::network::NetworkRecord;
use pvc_model::vm::VmState;
use pvc_ports::{Clock, Random};
use pvc_store::{Change, Changes, NewVm, Store};

/// A network that gives its guests addresses.
pub fn record() -> NetworkRecord {
    NetworkRecord {
        dhcp4_flag: "True".to_owned(),
        dhcp4_start: "10.20.1.100".to_owned(),
        dhcp4_end: "10.20.1.199".to_owned(),
        ..without_dhcp()
    }
}

/// The same network, whose guests give themselves their addresses.
pub fn without_dhcp() -> NetworkRecord {
    NetworkRecord {
        vni: "1001".to_owned(),
        description: "net1".to_owned(),
        nettype: "managed".to_owned(),
        domain: "net1.example".to_owned(),
        ip4_network: "10.20.1.0/24".to_owned(),
        ip4_gateway: "10.20.1.1".to_owned(),
        ..NetworkRecord::default()
    }
}

/// The same network with IPv6 beside it.
pub fn dual() -> NetworkRecord {
    NetworkRecord {
        ip6_network: "2001:db8:1::/64".to_owned(),
        ip6_gateway: "2001:db8:1::1".to_owned(),
        dhcp6_flag: "True".to_owned(),
        ..record()
    }
}

/// MAC address of a card.
pub const CARD: &str = "52:54:00:aa:bb:01";

/// VM with a card in the network that has [`CARD`] for its MAC address.
pub fn vm_with_card() -> NewVm {
    let uuid = Uuid::from_u128(7);
    let xml = format!(
        "<domain type='kvm'><name>web1</name><uuid>{uuid}</uuid><memory \
         unit='MiB'>64</memory><vcpu>1</vcpu><os><type>hvm</type></os><devices><interface \
         type='bridge'><mac address='{CARD}'/><source bridge='vmbr1001'/></interface></devices>\
         </domain>"
    );
    NewVm {
        uuid,
        name: "web1".to_owned(),
        state: VmState::Stop,
        node: None,
        xml,
        profile: None,
        volumes: Vec::new(),
        autostart: false,
        migration_method: None,
        max_downtime_ms: 300,
        selector: None,
        node_limit: Vec::new(),
        tags: Vec::new(),
    }
}

/// A new store of a new cluster.
pub async fn new_store(clock: Arc<dyn Clock>, random: Arc<dyn Random>) -> Store {
    let store = Store::open(EmbeddedTree::in_memory().connect(), clock, random).await.unwrap();
    store.initialize(false).await.unwrap();
    store
}

/// Writes the change, whatever there is.
pub async fn write(store: &Store, change: Change) {
    let decide = |_: &_| {
        let mut changes = Changes::new();
        changes.push(change.clone());
        Ok::<_, Infallible>((changes, ()))
    };
    store.change(decide).await.unwrap();
}

pub async fn put(store: &Store, record: NetworkRecord) {
    write(store, Change::PutNetwork(Box::new(record))).await;
}

/// Runs a program, which has to succeed.
pub fn does(words: &str) {
    let mut parts = words.split_whitespace();
    let done = Command::new(parts.next().unwrap()).args(parts).output().unwrap();
    assert!(done.status.success(), "`{words}`: {}", String::from_utf8_lossy(&done.stderr));
}
