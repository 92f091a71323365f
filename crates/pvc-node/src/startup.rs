//! The start-up, in the order of `spec/startup.md` §2.
//!
//! Each step has a name and a condition; one that is skipped says why at debug level. Steps up to
//! the store are [`before_store`], because one of them starts ZooKeeper; the others are
//! [`after_store`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pvc_core_network::{filter, networks};
use pvc_guest_network::sriov;
use pvc_model::cluster::Cluster;
use pvc_model::node::{
    CoordinatorState, DaemonState, DomainState, HypervisorNote, NodeRecord, NodeRole,
};
use pvc_ports::{FileAccess, HostFacts, HypervisorError, HypervisorFacts, Ports};
use pvc_storage::secret;
use pvc_store::schema::{SCHEMA_VERSION, SchemaStep, schema_step};
use pvc_store::{
    Announced, Change, ChangeError, Changes, ConfigChange, NewNode, NodeChange, StoreError,
};
use tokio_util::sync::CancellationToken;

use crate::bmc;
use crate::keepalive;
use crate::node::{NodeError, Waiting};
use crate::primary;
use crate::services;
use crate::settings::NodeSettings;
use crate::shared::{Shared, id_of};

/// Time between two looks at something that is waited for.
const POLL: Duration = Duration::from_millis(500);

/// Time between two messages about what is waited for.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Time that the hypervisor may take to come up.
const HYPERVISOR_CEILING: Duration = Duration::from_secs(30);

/// Whether a step is to be taken, or why not.
enum When {
    Always,
    Skip(&'static str),
}

impl When {
    fn only_if(condition: bool, otherwise: &'static str) -> When {
        if condition { When::Always } else { When::Skip(otherwise) }
    }
}

/// Takes the step if it is to be taken.
async fn step<E>(
    name: &'static str,
    when: When,
    work: impl Future<Output = Result<(), E>>,
) -> Result<(), E> {
    match when {
        When::Skip(why) => {
            tracing::debug!(step = name, why, "skipped");
            Ok(())
        }
        When::Always => {
            tracing::debug!(step = name, "begins");
            work.await
        }
    }
}

/// The steps that make the store reachable: to be taken before it is opened. Once `shutdown` is
/// cancelled nothing is waited for any more; a step on the networks that has begun is finished, for
/// it may hold this machine's address.
///
/// # Errors
/// If a folder that the daemon needs cannot be made. A service that does not start is only logged.
pub async fn before_store(
    settings: &NodeSettings,
    ports: &Ports,
    shutdown: &CancellationToken,
) -> Result<(), NodeError> {
    let on = settings.subsystems;
    step("folders", When::Always, make_folders(settings, ports)).await?;
    let NodeSettings { name: node, version, role, .. } = settings;
    tracing::info!(%node, version, %role, "starting");
    step("core networks", When::only_if(on.networking, "networking is off"), async {
        if let Some(wanted) = &settings.core_networks {
            networks::bring_up(wanted, ports, shutdown).await;
        }
        Ok::<(), NodeError>(())
    })
    .await?;
    let cards = settings.cards();
    let has_cards = !cards.is_empty();
    step("SR-IOV", When::only_if(has_cards, "there are no SR-IOV cards"), async {
        let bring_up = sriov::bring_up(&cards, ports);
        shutdown.run_until_cancelled(bring_up).await;
        Ok::<(), NodeError>(())
    })
    .await?;
    // Before a service listens that trusts whoever reaches it.
    step("packet filter", When::only_if(on.networking, "networking is off"), async {
        let load = filter::apply(settings.host_filter.as_ref(), ports);
        shutdown.run_until_cancelled(load).await; // the kernel takes all of it, or nothing
        Ok::<(), NodeError>(())
    })
    .await?;
    let units = services::needed(settings);
    let start = async {
        shutdown.run_until_cancelled(services::start_all(ports, &units)).await;
        Ok(())
    };
    step(
        "services",
        When::only_if(settings.start_services, "services are not started by this daemon"),
        start,
    )
    .await
}

async fn make_folders(settings: &NodeSettings, ports: &Ports) -> Result<(), NodeError> {
    let console = settings.subsystems.hypervisor.then_some(&settings.console_log_directory);
    for path in settings.directories.iter().chain(console) {
        let made = ports.files.create_directory(path, &FileAccess::PUBLIC_DIRECTORY).await;
        made.map_err(|source| NodeError::Folder { path: path.clone(), source })?;
    }
    Ok(())
}

/// The steps with the store at hand, up to where the tasks begin.
pub(crate) async fn after_store(shared: &Arc<Shared>, waiting: &Waiting) -> Result<(), NodeError> {
    step("cluster", When::Always, require_cluster(shared, waiting)).await?;
    step("only daemon", When::Always, claim_name(shared)).await?;
    step("schema", When::Always, agree_on_schema(shared)).await?;
    step("addresses of the primary", When::Always, async {
        primary::find_what_is_left(shared).await;
        Ok::<(), NodeError>(())
    })
    .await?;
    step("node record", When::Always, async { set_up_node(shared).await.map_err(NodeError::from) })
        .await?;
    tokio::select! {
        biased;
        done = with_record(shared) => done,
        () = keepalive::while_starting(shared) => unreachable!("it stamps without an end"),
    }
}

/// The steps of a node that the others know to be starting.
async fn with_record(shared: &Arc<Shared>) -> Result<(), NodeError> {
    let settings = &shared.settings;
    let coordinator = settings.role == NodeRole::Coordinator;
    step(
        "cluster name",
        When::only_if(!settings.cluster_name.is_empty(), "it has no name"),
        name_cluster(shared),
    )
    .await?;
    step("primary", When::only_if(coordinator, "this node is no coordinator"), async {
        primary::claim_if_vacant(shared).await;
        Ok::<(), NodeError>(())
    })
    .await?;
    step("IPMI self-test", When::only_if(settings.ipmi.is_some(), "no BMC is configured"), async {
        bmc::test(shared).await;
        Ok::<(), NodeError>(())
    })
    .await?;
    let hypervisor = When::only_if(settings.subsystems.hypervisor, "the hypervisor is off");
    step("hypervisor", hypervisor, require_hypervisor(shared)).await?;
    let on = settings.subsystems;
    let volumes = When::only_if(on.storage && on.hypervisor, "storage or the hypervisor is off");
    step("key of volumes", volumes, async {
        secret::require(shared).await;
        Ok::<(), NodeError>(())
    })
    .await?;
    // The start may have taken longer than a right to addresses lasts that nobody renews.
    step("right to the addresses", When::Always, async {
        primary::drop_if_not_named(shared).await;
        Ok(())
    })
    .await
}

/// Waits until the store holds a cluster, for as long as it takes; where one machine is everything,
/// makes one.
async fn require_cluster(shared: &Shared, waiting: &Waiting) -> Result<(), NodeError> {
    let mut said: Option<Duration> = None;
    while !shared.store.is_initialized() {
        if shared.settings.standalone {
            match shared.store.initialize(false).await {
                Ok(()) => tracing::info!("the store was empty; it holds a new cluster now"),
                Err(StoreError::AlreadyInitialized) => {}
                Err(error) => return Err(error.into()),
            }
            continue;
        }
        if said.is_none() {
            let hint = StoreError::NotInitialized.hint().unwrap_or_default();
            tracing::error!("the store holds no cluster yet; waiting for one: {hint}");
        }
        if said.is_none_or(|said| shared.now().saturating_sub(said) >= SAY_EVERY) {
            waiting("waits: the store holds no cluster yet; `pvc cluster init` begins a new one");
            said = Some(shared.now());
        }
        shared.sleep(POLL).await;
    }
    Ok(())
}

/// Announces this process as the node's daemon. After a daemon that was killed, its session is
/// waited out.
pub(crate) async fn claim_name(shared: &Shared) -> Result<(), NodeError> {
    let until = shared.now() + shared.settings.session_timeout + Duration::from_secs(5);
    let mut said = false;
    loop {
        // If it ends meanwhile, the daemon is announced once more.
        let session = id_of(*shared.store.session().borrow()).unwrap_or_default();
        let by = match shared.store.announce_daemon(shared.name(), &shared.settings.process).await?
        {
            Announced::Now => {
                shared.announced_in.store(session, Ordering::Relaxed);
                return Ok(());
            }
            Announced::Taken { by } => by,
        };
        // After a lost session it is this process itself that is still announced.
        let is_other = by != shared.settings.process;
        if shared.now() >= until && is_other {
            return Err(NodeError::SecondDaemon {
                node: shared.name().clone(),
                holder: holder(by),
            });
        }
        if is_other && !std::mem::replace(&mut said, true) {
            tracing::warn!(
                holder = holder(by),
                "another daemon is announced for this node; if it was killed, its session ends \
                 within {} s",
                shared.settings.session_timeout.as_secs()
            );
        }
        shared.sleep(POLL).await;
    }
}

fn holder(said: String) -> String {
    if said.is_empty() { "a process that does not say who it is".to_owned() } else { said }
}

async fn agree_on_schema(shared: &Shared) -> Result<(), NodeError> {
    shared.store.advertise_schema(shared.name()).await?;
    match schema_step(&*shared.store.fresh().await?, shared.name()) {
        SchemaStep::Current => {}
        SchemaStep::Raise => {
            shared.store.raise_schema().await?;
            tracing::info!(
                version = SCHEMA_VERSION,
                "the store's layout was raised: this was the last node"
            );
            shared.store.advertise_schema(shared.name()).await?;
        }
        SchemaStep::Wait { behind } => {
            let nodes = behind.iter().map(|node| node.as_str()).collect::<Vec<_>>().join(", ");
            tracing::warn!(
                nodes,
                "the store has an older layout until these nodes are upgraded, too"
            );
        }
        SchemaStep::TooNew { found } => {
            return Err(NodeError::SchemaTooNew { found, known: SCHEMA_VERSION });
        }
        SchemaStep::NotInitialized => return Err(StoreError::NotInitialized.into()),
    }
    let created = shared.store.repair().await?;
    if created > 0 {
        tracing::info!(keys = created, "keys that were missing in the store were created");
    }
    Ok(())
}

/// Makes the node's record, or brings it up to date.
pub(crate) async fn set_up_node(shared: &Shared) -> Result<(), ChangeError<NoFacts>> {
    let facts = shared.ports.host.facts();
    let is_new = shared
        .store
        .change(|cluster| {
            let facts = facts.as_ref().map_err(|error| NoFacts(error.to_string()))?;
            let known = cluster.nodes.get(shared.name());
            let changes = match known {
                Some(known) => refreshed(&shared.settings, facts, known),
                None => new(shared, facts),
            };
            Ok((changes, known.is_none()))
        })
        .await?;
    if is_new {
        tracing::info!("this node is new to the cluster");
    }
    shared.store.advertise_schema(shared.name()).await?;
    shared.store.report(vec![shared.note()]).await?;
    Ok(())
}

/// Error for a machine that does not say what it is.
#[derive(Debug, thiserror::Error)]
#[error("this machine's facts cannot be read: {0}")]
pub struct NoFacts(String);

fn idle(role: &NodeRole) -> CoordinatorState {
    match role {
        NodeRole::Coordinator => CoordinatorState::Secondary,
        _ => CoordinatorState::Client,
    }
}

fn refreshed(settings: &NodeSettings, facts: &HostFacts, known: &NodeRecord) -> Changes {
    let HostFacts { cpus, kernel, os, arch } = facts.clone();
    let mut changes = Changes::new();
    for change in [
        NodeChange::Role(settings.role.clone()),
        NodeChange::Daemon(DaemonState::Init),
        NodeChange::Coordinator(idle(&settings.role)),
        NodeChange::StaticData { cpus, kernel, os, arch },
        NodeChange::Version(settings.version.clone()),
        NodeChange::Ipmi(settings.ipmi.clone().unwrap_or_default()),
    ] {
        changes.node(&settings.name, change);
    }
    // Nobody goes on with the recovery of a node whose daemon starts: the VMs that are left are its
    // own again.
    if known.domain_state == DomainState::FenceFlush {
        changes.node(&settings.name, NodeChange::Domain(DomainState::Flushed));
    }
    changes
}

fn new(shared: &Shared, facts: &HostFacts) -> Changes {
    let settings = &shared.settings;
    let HostFacts { cpus, kernel, os, arch } = facts.clone();
    let mut changes = Changes::new();
    changes.push(Change::AddNode(Box::new(NewNode {
        name: settings.name.clone(),
        role: settings.role.clone(),
        cpus,
        kernel,
        os,
        arch,
        version: settings.version.clone(),
        ipmi: settings.ipmi.clone().unwrap_or_default(),
        keepalive: shared.ports.clock.wall().as_secs(),
    })));
    // It takes no VMs until somebody says so; where there is no other node, that would be a riddle.
    if settings.standalone {
        changes.node(&settings.name, NodeChange::Domain(DomainState::Ready));
    }
    changes
}

async fn name_cluster(shared: &Shared) -> Result<(), NodeError> {
    let name = &shared.settings.cluster_name;
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        if cluster.config.name != *name {
            changes.config(ConfigChange::Name(name.clone()));
        }
        Ok::<_, NoFacts>((changes, ()))
    };
    Ok(shared.store.change(decide).await?)
}

/// Lets everybody see what guests run with here.
async fn note_hypervisor(shared: &Shared, facts: HypervisorFacts) {
    let note = HypervisorNote {
        accelerator: facts.domain_type,
        kvm_refused: facts.kvm_refused,
        libvirt_version: facts.libvirt_version,
        qemu_version: facts.qemu_version,
    };
    if shared.runs_with.set(note).is_ok()
        && let Err(error) = shared.store.report(vec![shared.note()]).await
    {
        tracing::debug!(%error, "what guests run with here is not in the store yet; it goes there \
                                 with the figures");
    }
}

/// Waits for the hypervisor to answer, for a while.
async fn require_hypervisor(shared: &Shared) -> Result<(), NodeError> {
    let until = shared.now() + HYPERVISOR_CEILING;
    let mut said = false;
    loop {
        let ping = shared.within(Duration::from_secs(5), shared.ports.hypervisor.ping()).await;
        let error = match ping.unwrap_or(Err(HypervisorError::TimedOut { seconds: 5 })) {
            Ok(()) => break,
            Err(error) => error,
        };
        if shared.now() >= until {
            return Err(NodeError::Hypervisor(error));
        }
        if !std::mem::replace(&mut said, true) {
            tracing::warn!(%error, "waiting for the hypervisor");
        }
        shared.sleep(POLL).await;
    }
    if let Ok(facts) = shared.ports.hypervisor.facts().await {
        let kvm = facts.kvm_refused.as_deref().unwrap_or("available");
        tracing::info!(
            libvirt = facts.libvirt_version,
            qemu = facts.qemu_version,
            accelerator = facts.domain_type,
            kvm,
            "the hypervisor answers"
        );
        note_hypervisor(shared, facts).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    use pvc_embedded::EmbeddedTree;
    use pvc_ports::{Clock as _, Tree};
    use pvc_store::Store;
    use pvc_testkit::{FlakyTree, Gate, SeededRandom, TokioClock, eventually, ports};

    #[tokio::test(start_paused = true)]
    async fn a_node_alone_is_ready_even_if_its_first_start_ends_as_soon_as_it_has_a_record() {
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let tree = EmbeddedTree::in_memory();
        let open = async |tree: Arc<dyn Tree>| {
            Store::open(tree, clock.clone(), random.clone()).await.unwrap()
        };
        let other = open(tree.connect()).await;
        other.initialize(false).await.unwrap();
        let connection = FlakyTree::new(tree.connect());
        let store = open(connection.clone()).await;
        let shared = Shared::new(crate::settings::tests::settings("hv1"), ports(), store);
        let gate = Gate::closing_at(1);
        connection.set_gate(gate.clone());
        tokio::spawn(async move { set_up_node(&shared).await });
        eventually("its first write is done", Duration::from_secs(60), || gate.is_closed()).await;
        clock.sleep(Duration::from_secs(1)).await;
        assert_eq!(other.view().nodes["hv1"].domain_state, DomainState::Ready);
    }
}
