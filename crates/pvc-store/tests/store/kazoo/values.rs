//! Records that Python writes and we read, and the other way round.

use std::sync::Arc;

use pvc_model::cluster::Cluster;
use pvc_model::node::{DaemonState, DomainState, NodeFigures, NodeRole};
use pvc_model::storage::VolumeId;
use pvc_model::vm::{MigrationMethod, Selector, Tag, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_store::{Change, Changes, ConfigChange, Ipmi, NewNode, NewVm, Report, Store, VmChange};
use pvc_testkit::{SeededRandom, TokioClock};
use serde_json::json;
use tokio::time::timeout;

use super::peer::{Kazoo, SOON, World};

const UUID: Uuid = Uuid::from_u128(0x2c2b8f4e_0d3e_4b6f_9d6d_0c9b6cf3f2a1);
const XML: &str = "<domain type='kvm'><name>größer</name>\
    <uuid>2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1</uuid>\
    <memory unit='MiB'>256</memory><vcpu>1</vcpu><os><type>hvm</type></os><devices/></domain>";

async fn store_on(world: &World) -> Store {
    let store = Store::open(
        world.tree().await,
        Arc::new(TokioClock::new()),
        Arc::new(SeededRandom::new(7)),
    );
    store.await.expect("the tree can be read")
}

async fn initialized(world: &World) -> Store {
    let store = store_on(world).await;
    store.initialize(false).await.expect("an empty tree can be initialized");
    store
}

/// Writes Python values, given as literals, the way PVC's Python does.
async fn write(kazoo: &Kazoo, values: &[(String, &str)]) {
    let failed = kazoo.ask(json!({"do": "write", "values": values})).await.expect("Python writes");
    assert_eq!(failed, json!([]), "every operation succeeds");
}

async fn read(kazoo: &Kazoo, paths: &[String]) -> Vec<Option<String>> {
    let values = kazoo.ask(json!({"do": "read_many", "paths": paths})).await.expect("Python reads");
    let values = values.as_array().expect("a list").iter();
    values.map(|value| value.as_str().map(str::to_owned)).collect()
}

/// Waits until the view of the store, fed by its watch alone, is as wanted.
async fn wait_for_view(store: &Store, wanted: impl Fn(&Cluster) -> bool) -> Arc<Cluster> {
    let mut changed = store.changed();
    let look = async {
        loop {
            let view = store.view();
            if wanted(&view) {
                return view;
            }
            changed.changed().await.expect("the store lives");
        }
    };
    timeout(SOON, look)
        .await
        .unwrap_or_else(|_| panic!("the view does not get there: {:?}", store.view()))
}

async fn change(store: &Store, build: impl Fn(&mut Changes) + Send + Sync) {
    let decide = |_: &Cluster| {
        let mut changes = Changes::new();
        build(&mut changes);
        Ok::<_, std::convert::Infallible>((changes, ()))
    };
    store.change(decide).await.expect("the change is made");
}

fn vm_record() -> Vec<(String, &'static str)> {
    let vm = |key: &str| format!("/domains/{UUID}{key}");
    let snapshot = |key: &str| vm(&format!("/snapshots/before{key}"));
    vec![
        (vm(""), "'größer'"),
        (vm("/xml"), XML_LITERAL),
        (vm("/state"), "'start'"),
        (vm("/profile"), "None"),
        (vm("/stats"), "'{}'"),
        (vm("/node"), "'hv1'"),
        (vm("/lastnode"), "''"),
        (vm("/failedreason"), "''"),
        (vm("/rbdlist"), "'vms/web1_sda,vms/web1_sdb'"),
        (vm("/consolelog"), "''"),
        (vm("/vnc"), "'127.0.0.1:5900'"),
        (vm("/node_autostart"), "True"),
        (vm("/migration_method"), "'live'"),
        (vm("/migration_max_downtime"), "500"),
        (vm("/node_selector"), "'none'"),
        (vm("/node_limit"), "'hv1,hv2'"),
        (vm("/tags"), "''"),
        (vm("/tags/daily"), "'daily'"),
        (vm("/tags/daily/type"), "'user'"),
        (vm("/tags/daily/protected"), "False"),
        (vm("/migrate_sync_lock"), "''"),
        (vm("/snapshots"), "''"),
        (snapshot(""), "'before'"),
        (snapshot("/timestamp"), "1720000000.123456"),
        (snapshot("/xml"), "'<domain/>'"),
        (snapshot("/rbdsnaplist"), "'vms/web1_sda@before'"),
    ]
}

/// [`XML`] as Python writes it down.
const XML_LITERAL: &str = "\"<domain type='kvm'><name>größer</name>\
    <uuid>2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1</uuid><memory unit='MiB'>256</memory><vcpu>1</vcpu>\
    <os><type>hvm</type></os><devices/></domain>\"";

fn node_record() -> Vec<(String, &'static str)> {
    let node = |key: &str| format!("/nodes/hv1{key}");
    vec![
        (node(""), "'coordinator'"),
        (node("/keepalive"), "1720000000"),
        (node("/daemonmode"), "'coordinator'"),
        (node("/activeschema"), "15"),
        (node("/latestschema"), "15"),
        (node("/staticdata"), "'16 6.1.0-18-amd64 GNU/Linux x86_64'"),
        (node("/pvcversion"), "'1.0.3'"),
        (node("/runningdomains"), "'2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1 0'"),
        (node("/domainscount"), "1"),
        (node("/daemonstate"), "'run'"),
        (node("/routerstate"), "'primary'"),
        (node("/domainstate"), "'ready'"),
        (node("/cpuload"), "0.5"),
        (node("/vcpualloc"), "1"),
        (node("/memtotal"), "64000"),
        (node("/memused"), "1000"),
        (node("/memfree"), "63000"),
        (node("/memalloc"), "256"),
        (node("/memprov"), "256"),
        (node("/monitoring_plugins"), "''"),
        (node("/monitoring_health"), "None"),
        (node("/network_stats"), "'{}'"),
    ]
}

pub async fn what_python_writes_is_what_the_store_shows(version: &str) {
    let world = World::new(version).await;
    let (store, kazoo) = (initialized(&world).await, world.kazoo().await);
    write(&kazoo, &node_record()).await;
    write(&kazoo, &vm_record()).await;
    let network = |key: &str| format!("/networks/100{key}");
    let unset = ["/domain", "/ip4_network", "/dhcp4_start", "/ip6_gateway"];
    let mut values = vec![
        (network(""), "'Büro'"),
        (network("/nettype"), "'managed'"),
        (network("/mtu"), "1500"),
    ];
    values.extend([(network("/dhcp4_flag"), "True"), (network("/dhcp6_flag"), "False")]);
    values.extend(unset.map(|key| (network(key), "None")));
    write(&kazoo, &values).await;
    write(
        &kazoo,
        &[("/config/primary_node".into(), "'hv1'"), ("/config/maintenance".into(), "'true'")],
    )
    .await;

    let view = wait_for_view(&store, |view| view.config.maintenance).await;
    let vm = view.vm("größer").expect("it is found by its name");
    assert_eq!(vm.defects, Vec::<String>::new());
    assert_eq!((vm.uuid, &vm.state, &*vm.xml), (UUID, &VmState::Start, XML));
    assert_eq!(vm.node, Some(NodeName::from("hv1")));
    assert_eq!((&vm.last_node, &vm.profile, &vm.selector), (&None, &None, &None));
    assert!(vm.autostart);
    assert_eq!((&vm.migration_method, vm.max_downtime_ms), (&Some(MigrationMethod::Live), 500));
    let volumes =
        ["vms/web1_sda", "vms/web1_sdb"].map(|id| VolumeId::from_record(id).expect("well formed"));
    assert_eq!(vm.recorded_volumes, volumes);
    assert_eq!(vm.node_limit, [NodeName::from("hv1"), NodeName::from("hv2")]);
    assert_eq!(vm.tags, [Tag { name: "daily".into(), kind: "user".into(), protected: false }]);
    let [snapshot] = &vm.snapshots[..] else { panic!("got {:?}", vm.snapshots) };
    assert_eq!(snapshot.timestamp, "1720000000.123456", "kept to the digit");
    assert_eq!(snapshot.volumes, ["vms/web1_sda@before"]);

    let node = view.primary().expect("the primary is known");
    assert_eq!(node.defects, Vec::<String>::new());
    assert_eq!((&node.role, &node.daemon_state), (&NodeRole::Coordinator, &DaemonState::Run));
    assert_eq!(node.domain_state, DomainState::Ready);
    assert_eq!((node.cpus, &*node.kernel, &*node.os), (16, "6.1.0-18-amd64", "GNU/Linux"));
    assert_eq!(node.running, [UUID], "a literal 0 among them is tolerated");
    assert_eq!(node.health, None);
    assert_eq!((node.figures.load, node.figures.memory_total_mib), (0.5, 64_000));

    let network = &view.networks["100"];
    assert_eq!(
        (&*network.description, &*network.mtu, &*network.dhcp4_flag),
        ("Büro", "1500", "True")
    );

    // The same word again is a request of its own.
    let before = vm.state_version;
    write(&kazoo, &[(format!("/domains/{UUID}/state"), "'start'")]).await;
    wait_for_view(&store, |view| view.vms[&UUID].state_version == before + 1).await;
}

pub async fn what_the_store_writes_is_what_python_reads(version: &str) {
    let world = World::new(version).await;
    let (store, kazoo) = (initialized(&world).await, world.kazoo().await);
    let node = NewNode {
        name: "hv1".into(),
        role: NodeRole::Hypervisor,
        cpus: 16,
        kernel: "6.1.0-18-amd64".into(),
        os: "GNU/Linux".into(),
        arch: "x86_64".into(),
        version: "0.2.0".into(),
        ipmi: Ipmi::default(),
        keepalive: 1_720_000_000,
    };
    let vm = NewVm {
        uuid: UUID,
        name: "größer".to_owned(),
        state: VmState::Stop,
        node: Some("hv1".into()),
        xml: XML.to_owned(),
        profile: None,
        volumes: ["vms/web1_sda", "vms/web1_sdb"]
            .map(|id| VolumeId::from_record(id).expect("good"))
            .into(),
        autostart: true,
        migration_method: None,
        max_downtime_ms: 300,
        selector: Some(Selector::Mem),
        node_limit: vec!["hv1".into(), "hv2".into()],
        tags: vec![Tag { name: "daily".into(), kind: "user".into(), protected: true }],
    };
    change(&store, |changes| {
        changes.push(Change::AddNode(Box::new(node.clone())));
        changes.push(Change::DefineVm(Box::new(vm.clone())));
        changes.config(ConfigChange::Maintenance(true));
    })
    .await;
    let figures = NodeFigures { memory_total_mib: 64_000, load: 1.25, ..NodeFigures::default() };
    let report = Report::Figures("hv1".into(), figures);
    store.report(vec![report]).await.expect("a report is taken");

    // The exact words that Python compares with, or converts without asking.
    let vm = |key: &str| format!("/domains/{UUID}{key}");
    let expected = [
        (vm(""), "größer"),
        (vm("/xml"), XML),
        (vm("/state"), "stop"),
        (vm("/profile"), "None"),
        (vm("/node"), "hv1"),
        (vm("/lastnode"), ""),
        (vm("/failedreason"), ""),
        (vm("/rbdlist"), "vms/web1_sda,vms/web1_sdb"),
        (vm("/node_autostart"), "True"),
        (vm("/migration_method"), "none"),
        (vm("/migration_max_downtime"), "300"),
        (vm("/node_selector"), "mem"),
        (vm("/node_limit"), "hv1,hv2"),
        (vm("/tags/daily"), "daily"),
        (vm("/tags/daily/type"), "user"),
        (vm("/tags/daily/protected"), "True"),
        (vm("/migrate_sync_lock"), ""),
        ("/nodes/hv1".to_owned(), "hypervisor"),
        ("/nodes/hv1/daemonmode".to_owned(), "hypervisor"),
        ("/nodes/hv1/keepalive".to_owned(), "1720000000"),
        ("/nodes/hv1/staticdata".to_owned(), "16 6.1.0-18-amd64 GNU/Linux x86_64"),
        ("/nodes/hv1/activeschema".to_owned(), "15"),
        ("/nodes/hv1/latestschema".to_owned(), "15"),
        ("/nodes/hv1/cpuload".to_owned(), "1.25"),
        ("/nodes/hv1/memtotal".to_owned(), "64000"),
        ("/config/maintenance".to_owned(), "true"),
        ("/schema/version".to_owned(), "15"),
    ];
    let paths: Vec<String> = expected.iter().map(|(path, _)| path.clone()).collect();
    for ((path, wanted), found) in expected.iter().zip(read(&kazoo, &paths).await) {
        assert_eq!(found.as_deref(), Some(*wanted), "of `{path}`");
    }
    change(&store, |changes| {
        changes.vm(UUID, VmChange::Autostart(false)).vm(UUID, VmChange::State(VmState::Start));
    })
    .await;
    let after = read(&kazoo, &[vm("/node_autostart"), vm("/state")]).await;
    assert_eq!(after, [Some("False".to_owned()), Some("start".to_owned())]);
}

/// Python writes between our look and our write: we look again.
pub async fn a_write_of_python_makes_our_decision_be_taken_again(version: &str) {
    let world = World::new(version).await;
    let (store, kazoo) = (initialized(&world).await, world.kazoo().await);
    write(&kazoo, &vm_record()).await;
    wait_for_view(&store, |view| view.vms.contains_key(&UUID)).await;
    let mut decisions = 0;
    let decide = |view: &Cluster| {
        decisions += 1;
        if decisions == 1 {
            // On a runtime of its own: this one may wait for the decision.
            let written = std::thread::scope(|scope| {
                let writing = scope.spawn(|| {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_all().build();
                    runtime.expect("a runtime").block_on(async {
                        let values = [(format!("/domains/{UUID}/state"), "'shutdown'")];
                        write(&world.kazoo().await, &values).await;
                    });
                });
                writing.join()
            });
            written.expect("Python writes");
        }
        let seen = view.vms[&UUID].state.clone();
        let mut changes = Changes::new();
        changes.vm(UUID, VmChange::State(VmState::Stop));
        Ok::<_, std::convert::Infallible>((changes, seen))
    };
    let decided_on = store.change(decide).await.expect("the change is made");
    assert_eq!(decided_on, VmState::Shutdown, "the decision that counts saw what Python wrote");
    assert_eq!(decisions, 2);
    assert_eq!(read(&kazoo, &[format!("/domains/{UUID}/state")]).await, [Some("stop".to_owned())]);
}
