//! Making a VM from a profile: asked for here, done by a worker.

use std::collections::BTreeMap;

use pvc_model::cluster::Cluster;
use pvc_model::job::provision::Provision;
use pvc_model::job::{JobId, JobSpec, JobVm, JobWork, has_worker_for};
use pvc_model::placement::{Need, NoPlace, Promises, place, selector_for};
use pvc_model::provisioner::{Catalog, ProvisionerRefusal, Recipe, Room, SystemTemplate};
use pvc_model::storage::PoolName;
use pvc_model::vm::{DEFAULT_MAX_DOWNTIME_MS, MigrationMethod, Selector, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_ports::{Clock, Random, Storage};
use pvc_store::{ChangeError, Changes, Expect, Store};

use crate::job::{JobRequest, submit};
use crate::refusal::{Kind, NoNode, Refusal};
use crate::storage::StorageRefusal;
use crate::vm::{
    Define, DefineRefusal, NewNameRefusal, check_new_name, check_new_vm, known_nodes,
    require_name_of_nobody,
};

/// A VM to make from a profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvisionAsk {
    pub name: String,
    pub profile: String,
    /// Whether it is recorded, as the script describes it.
    pub define: bool,
    /// Whether it is started at the end.
    pub start: bool,
    /// Arguments of the script, `NAME=VALUE` each.
    pub arguments: Vec<String>,
    /// Whether it is not started where that would take more memory than its node has.
    pub refuse_memory_overcommit: bool,
    pub submitter: String,
}

#[derive(Debug, thiserror::Error)]
pub enum ProvisionRefusal {
    #[error(transparent)]
    Name(#[from] NewNameRefusal),
    #[error("a VM that is not defined cannot be started")]
    StartedUndefined,
    #[error("there is no primary node, whose worker would do it")]
    NoPrimary,
    #[error("no worker of node `{node}` runs scripts of the provisioner")]
    NoWorker { node: NodeName },
    #[error(transparent)]
    Recipe(#[from] ProvisionerRefusal),
    #[error(transparent)]
    Node(#[from] NoNode),
    #[error(transparent)]
    Place(#[from] NoPlace),
    #[error(transparent)]
    Define(#[from] DefineRefusal),
    #[error(transparent)]
    Storage(#[from] StorageRefusal),
}

impl Refusal for ProvisionRefusal {
    fn kind(&self) -> Kind {
        match self {
            ProvisionRefusal::Name(why) => why.kind(),
            ProvisionRefusal::StartedUndefined => Kind::Invalid,
            ProvisionRefusal::NoPrimary
            | ProvisionRefusal::NoWorker { .. }
            | ProvisionRefusal::Place(_) => Kind::Conflict,
            ProvisionRefusal::Recipe(why) => why.kind(),
            ProvisionRefusal::Node(_) => Kind::Conflict,
            ProvisionRefusal::Define(why) => why.kind(),
            ProvisionRefusal::Storage(why) => why.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            ProvisionRefusal::Name(why) => why.hint(),
            ProvisionRefusal::NoWorker { .. } => Some(
                "does its worker run, is its PVC as new as this one, and does it reach the \
                 provisioner's database? `pvc node list` shows the versions"
                    .to_owned(),
            ),
            ProvisionRefusal::Recipe(why) => why.hint(),
            ProvisionRefusal::Node(_) => Some(
                "`pvc provisioner template system modify` changes the nodes of the template"
                    .to_owned(),
            ),
            ProvisionRefusal::Place(_) => Some(
                "`pvc node list` shows how much memory the nodes have; the system template may \
                 limit which of them are taken"
                    .to_owned(),
            ),
            ProvisionRefusal::Define(why) => why.hint(),
            ProvisionRefusal::Storage(why) => why.hint(),
            _ => None,
        }
    }
}

/// Has the worker of the primary make a VM by the script of a profile: all of it, or nothing. What
/// keeps it from being made now is refused here, before there is a task.
///
/// # Cancellation
/// May be dropped: what was submitted is done all the same.
pub async fn provision(
    store: &Store,
    clock: &dyn Clock,
    random: &dyn Random,
    storage: &dyn Storage,
    catalog: &Catalog,
    ask: &ProvisionAsk,
) -> Result<JobSpec, ChangeError<ProvisionRefusal>> {
    let recipe = check_words(catalog, ask).map_err(ChangeError::Refused)?;
    check_room(storage, &recipe).await.map_err(|why| ChangeError::Refused(why.into()))?;
    let wanted = Provision {
        vm: JobVm { name: ask.name.clone(), uuid: Some(random.uuid()) },
        profile: ask.profile.clone(),
        define: ask.define,
        start: ask.start,
        refuse_memory_overcommit: ask.refuse_memory_overcommit,
        arguments: ask.arguments.clone(),
    };
    submit(store, clock, random, |cluster| request(cluster, &recipe, &wanted, ask)).await
}

/// Refuses what would be wrong in every cluster.
fn check_words(catalog: &Catalog, ask: &ProvisionAsk) -> Result<Recipe, ProvisionRefusal> {
    check_new_vm(&ask.name)?;
    if ask.start && !ask.define {
        return Err(ProvisionRefusal::StartedUndefined);
    }
    Ok(Recipe::find(catalog, &ask.profile, &ask.arguments)?)
}

/// Refuses disks for which a pool has no room, all of them together.
///
/// # Errors
/// Those of the storage as well.
pub async fn check_room(storage: &dyn Storage, recipe: &Recipe) -> Result<(), StorageRefusal> {
    let mut needed: BTreeMap<PoolName, u64> = BTreeMap::new();
    for (pool, room) in recipe.room() {
        let bytes = match room {
            Room::Bytes(bytes) => bytes,
            Room::Of(volume) => storage.volume(&volume).await?.size_bytes,
        };
        let sum = needed.entry(pool).or_default();
        *sum = sum.saturating_add(bytes);
    }
    for (pool, bytes) in needed {
        // A script may exceed the 80 % that others keep to.
        storage.pool(&pool).await?.check_room(bytes, true)?;
    }
    Ok(())
}

/// Refuses a VM for which the cluster has no name, networks or node. `own` is the job that makes
/// it, if there is one already.
///
/// # Errors
/// The first reason.
pub fn check_cluster(
    cluster: &Cluster,
    recipe: &Recipe,
    wanted: &Provision,
    own: Option<&JobId>,
) -> Result<(), ProvisionRefusal> {
    require_name_of_nobody(cluster, &wanted.vm.name, own)?;
    check_new_name(cluster, &wanted.vm.name, wanted.vm.uuid.unwrap_or(Uuid::nil()))?;
    recipe.check_networks(cluster)?;
    let system = &recipe.system;
    let node_limit = known_nodes(cluster, &limit(system))?;
    let need = Need {
        memory_mib: u64::try_from(system.vram_mib).unwrap_or(0),
        vcpus: u32::try_from(system.vcpus).unwrap_or(1),
        node_limit: &node_limit,
        leaving: None,
        runs: true,
        nics: &[],
        vm: wanted.vm.uuid,
    };
    let selector = selector_for(selector(system).as_ref(), cluster);
    place(cluster, &selector, &need, &Promises::under_way(cluster))?;
    Ok(())
}

/// The VM as it is recorded while it is made; `xml` is what the script has returned.
pub fn definition_of_script(recipe: &Recipe, wanted: &Provision, xml: &str) -> Define {
    let system = &recipe.system;
    let method = system.migration_method.as_deref().map(MigrationMethod::from_record);
    let downtime = system.migration_max_downtime.and_then(|ms| u32::try_from(ms).ok());
    Define {
        expected: wanted.vm.uuid.map(|uuid| uuid.to_string()),
        node_limit: limit(system),
        selector: selector(system),
        autostart: system.node_autostart,
        migration_method: method,
        max_downtime_ms: downtime.unwrap_or(DEFAULT_MAX_DOWNTIME_MS),
        state: VmState::Provision,
        starts_later: true,
        profile: Some(recipe.profile.clone()),
        // Whoever wrote the template has named these networks.
        force: true,
        ..Define::new(xml)
    }
}

/// The nodes that a template limits its VMs to.
fn limit(system: &SystemTemplate) -> Vec<String> {
    let names = system.node_limit.as_deref().unwrap_or_default().split(',').map(str::trim);
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn selector(system: &SystemTemplate) -> Option<Selector> {
    system.node_selector.as_deref().map(Selector::from_record)
}

/// The job, if the VM may be made in this cluster, with what must not change until it is submitted.
fn request(
    cluster: &Cluster,
    recipe: &Recipe,
    wanted: &Provision,
    ask: &ProvisionAsk,
) -> Result<(JobRequest, Changes), ProvisionRefusal> {
    check_cluster(cluster, recipe, wanted, None)?;
    let node = cluster.config.primary.clone().ok_or(ProvisionRefusal::NoPrimary)?;
    let work = JobWork::Provision(Box::new(wanted.clone()));
    if !has_worker_for(cluster, &node, work.name()) {
        return Err(ProvisionRefusal::NoWorker { node });
    }
    let mut expected = Changes::new();
    // Of two requests at once the later one sees the other's task.
    expected.expect(Expect::VmNames);
    let (run_on, submitter) = ("primary".to_owned(), ask.submitter.clone());
    Ok((JobRequest { work, node, run_on, submitter }, expected))
}
