//! Cost of a keepalive in requests to the tree: the real node role, over a played machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pvc_linux::{OsRandom, SystemClock};
use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::fence::Rules;
use pvc_model::node::NodeRole;
use pvc_model::vm::VmState;
use pvc_node::{LogSwitches, MigrationSettings, Node, NodeSettings, Ports, Subsystems};
use pvc_ports::{Clock, HostLoad};
use pvc_store::synthetic::Shape;
use pvc_store::{Changes, Store, VmChange};
use pvc_testkit::{
    FakeHost, MemoryFiles, MemoryFirewall, MemoryNetwork, MemorySriov, MemoryStorage, ScriptedExec,
    ScriptedHypervisor, ScriptedPower, ScriptedPrograms, ScriptedServices,
};
use tokio_util::sync::CancellationToken;

use crate::counting::{CountingTree, Requests};
use crate::measure::{Scale, now};
use crate::place::{Kind, Place, open_store, runtime};
use crate::report::{Budget, Figure, Quantity, Spread};

const INTERVAL: Duration = Duration::from_secs(1);

/// Time that the node may take to be up and at rest.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The keepalive of a node with many running VMs against that of one with few.
pub fn figures(kind: Kind, scale: &Scale) -> Result<Vec<Figure>> {
    let (few, many) = (scale.vms[0], scale.vms[1]);
    let keepalives = scale.keepalives;
    let of = |vms| {
        on_node(kind, vms, async |tree, store, name| count(tree, store, name, keepalives).await)
    };
    let [of_few, of_many] = [of(few)?, of(many)?];
    let [alone, beside] = on_node(kind, many, async |_, store, name| {
        let alone = lateness(store, name, keepalives).await?;
        let writes = tokio::spawn(write_dear(store.clone()));
        let beside = lateness(store, name, keepalives).await;
        writes.abort();
        Ok([alone, beside?])
    })?;
    let all = |asked: Requests| Quantity::Count(asked.all() as f64);
    let with_few = format!("with {few}");
    Ok(vec![
        Figure::new(format!("requests per keepalive, {many} running VMs"), all(of_many))
            .against(with_few.clone(), all(of_few))
            .budget(Budget::Count(3.0)),
        Figure::new("of these, writes", Quantity::Count(of_many.writes as f64))
            .against(with_few, Quantity::Count(of_few.writes as f64)),
        Figure::new("keepalive too late, beside definitions of 1 MB", Quantity::Time(beside))
            .against("without", Quantity::Time(alone))
            .budget(Budget::P99(Duration::from_millis(100))),
    ])
}

/// Runs the node role over a played machine that has so many VMs, and has `measure` measure it.
fn on_node<T>(
    kind: Kind,
    vms: usize,
    measure: impl AsyncFnOnce(&CountingTree, &Store, &NodeName) -> Result<T>,
) -> Result<T> {
    let place = Place::make(kind, Shape { nodes: 1, ..Shape::with_vms(vms) })?;
    runtime()?.block_on(async {
        let tree = Arc::new(CountingTree::new(place.source.open().await?));
        let store = open_store(tree.clone()).await?;
        let name =
            store.view().nodes.keys().next().context("the made-up cluster has no node")?.clone();
        start_all(&store).await?;
        let hypervisor = hypervisor(&store);
        let shutdown = CancellationToken::new();
        let host = Arc::new(FakeHost::new());
        let work = tokio::spawn(work(host.clone()));
        let node = Node::new(settings(&name), ports(hypervisor, host), store.clone())
            .run(shutdown.clone());
        let node = tokio::spawn(node);
        let measured = measure(&tree, &store, &name).await;
        shutdown.cancel();
        node.await??;
        work.abort();
        measured
    })
}

/// Counts while the node keeps itself alive `keepalives` times, each from the middle between two,
/// and gives the median: where others take the processor, what belongs together may be torn apart
/// once.
async fn count(
    tree: &CountingTree,
    store: &Store,
    name: &NodeName,
    keepalives: usize,
) -> Result<Requests> {
    at_rest(store, name).await?;
    let mut counted = Vec::new();
    let mut before = tree.requests();
    let begin = now();
    for keepalive in 1..=u32::try_from(keepalives)? {
        SystemClock.sleep((begin + INTERVAL * keepalive).saturating_sub(now())).await;
        let after = tree.requests();
        counted.push(after.since(before));
        before = after;
    }
    counted.sort_by_key(|asked| asked.all());
    Ok(counted[counted.len() / 2])
}

/// Time by which keepalives come later, or earlier, than an interval after the one before.
async fn lateness(store: &Store, name: &NodeName, keepalives: usize) -> Result<Spread> {
    at_rest(store, name).await?;
    let stamp = || store.view().nodes.get(name).map(|node| node.keepalives);
    let mut changes = store.changed();
    let mut seen = Vec::new();
    let mut before = stamp();
    let deadline = now() + TIME_LIMIT + INTERVAL * u32::try_from(keepalives)?;
    while seen.len() <= keepalives {
        if now() > deadline {
            bail!("{} keepalives of {keepalives} were seen", seen.len());
        }
        let _ = tokio::time::timeout(INTERVAL, changes.changed()).await;
        if stamp() != before {
            before = stamp();
            seen.push(now());
        }
    }
    let gaps = seen.windows(2).map(|two| (two[1] - two[0]).abs_diff(INTERVAL));
    Ok(Spread::of(gaps.collect()))
}

/// Writes definitions that take nearly as much reading as is allowed, ten each second.
async fn write_dear(store: Store) {
    let view = store.view();
    let interface = |number| {
        format!(
            "<interface type='bridge'>\
             <source bridge='vmbr{number}' note='{number:034}'/></interface>"
        )
    };
    let interfaces: String = (0..9_900).map(interface).collect();
    for (round, vm) in view.vms.values().cycle().enumerate() {
        let devices = format!("{interfaces}<!-- {round} --></devices>");
        let xml = vm.xml.replace("</devices>", &devices);
        let decide = |_: &Cluster| {
            let mut changes = Changes::new();
            changes.vm(vm.uuid, VmChange::Xml(xml.clone()));
            Ok::<_, std::convert::Infallible>((changes, ()))
        };
        if let Err(error) = store.change(decide).await {
            eprintln!("a definition was not written: {error}");
        }
        SystemClock.sleep(INTERVAL / 10).await;
    }
}

/// Returns in the middle between two keepalives, once all VMs are reported as running.
async fn at_rest(store: &Store, name: &NodeName) -> Result<()> {
    let deadline = now() + TIME_LIMIT;
    let stamp = || store.view().nodes.get(name).map(|node| node.keepalive);
    let reported = || store.view().nodes.get(name).map_or(0, |node| node.running.len());
    let mut changes = store.changed();
    let mut before = stamp();
    let mut quiet = 0;
    // The first keepalives follow the start-up, whose requests are not theirs.
    while quiet < 3 || reported() < store.view().vms.len() {
        if now() > deadline {
            bail!(
                "the node reports {} of {} VMs and does not come to rest",
                reported(),
                store.view().vms.len()
            );
        }
        let _ = tokio::time::timeout(INTERVAL, changes.changed()).await;
        if stamp() != before {
            before = stamp();
            quiet += 1;
        }
    }
    SystemClock.sleep(INTERVAL / 2).await;
    Ok(())
}

/// Makes every VM one that should run.
async fn start_all(store: &Store) -> Result<()> {
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        for vm in cluster.vms.values().filter(|vm| vm.state != VmState::Start) {
            changes.vm(vm.uuid, VmChange::State(VmState::Start));
        }
        Ok::<_, std::convert::Infallible>((changes, ()))
    };
    Ok(store.change(decide).await?)
}

/// All of the store's VMs run already, and work.
fn hypervisor(store: &Store) -> ScriptedHypervisor {
    let hypervisor = ScriptedHypervisor::new();
    let view = store.view();
    for vm in view.vms.values() {
        hypervisor.insert(vm.uuid, &vm.name);
    }
    hypervisor.set_busy();
    hypervisor
}

/// Changes the host's load all the time, so that no keepalive finds the figures of the last one.
async fn work(host: Arc<FakeHost>) {
    for round in 0_u32.. {
        let load = f64::from(round % 100) / 100.0;
        let (used, free) = (4096, 12288);
        host.set_load(HostLoad {
            memory_total_mib: used + free,
            memory_used_mib: used,
            memory_free_mib: free,
            load,
        });
        SystemClock.sleep(INTERVAL / 4).await;
    }
}

fn ports(hypervisor: ScriptedHypervisor, host: Arc<FakeHost>) -> Ports {
    Ports {
        hypervisor: Arc::new(hypervisor),
        storage: Arc::new(MemoryStorage::new()),
        network: Arc::new(MemoryNetwork::new()),
        sriov: Arc::new(MemorySriov::new()),
        services: Arc::new(ScriptedServices::new()),
        host,
        power: Arc::new(ScriptedPower::new()),
        database_cluster: None,
        dns: None,
        exec: Arc::new(ScriptedExec::without_programs()),
        files: Arc::new(MemoryFiles::new()),
        firewall: Arc::new(MemoryFirewall::new()),
        programs: Arc::new(ScriptedPrograms::new()),
        clock: Arc::new(SystemClock),
        random: Arc::new(OsRandom),
    }
}

fn settings(name: &NodeName) -> NodeSettings {
    NodeSettings {
        name: name.clone(),
        process: format!("process 1 of {name}"),
        role: NodeRole::Coordinator,
        cluster_name: "bench".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        subsystems: Subsystems {
            hypervisor: true,
            networking: false,
            storage: true,
            worker: false,
            api: false,
        },
        keepalive_interval: INTERVAL,
        vm_shutdown_timeout: Duration::from_secs(180),
        session_timeout: Duration::from_secs(10),
        directories: Vec::new(),
        console_log_directory: PathBuf::from("/nonexistent"),
        console_log_lines: 0,
        node_log_lines: 0,
        core_networks: None,
        host_filter: None,
        storage_address: None,
        migration: MigrationSettings::default(),
        selector: None,
        upstream_ip: None,
        floating: Vec::new(),
        guest_networks: None,
        sriov_cards: Vec::new(),
        certificates: Vec::new(),
        ipmi: None,
        fencing: Rules::never(INTERVAL),
        fence_only_with_own_bmc: false,
        reset_after: None,
        start_services: false,
        standalone: false,
        log: LogSwitches::default(),
    }
}
