//! Benchmarks of the storage.

use pvc_model::benchmark::{
    BenchmarkRecord, at_work, check_benchmark_name, shown as shown_benchmarks, volume_of,
};
use pvc_model::cluster::Cluster;
use pvc_model::job::{JobId, JobSpec, JobWork, has_worker_for};
use pvc_model::storage::{PoolName, VolumeId};
use pvc_model::{BadName, NodeName, shown};
use pvc_ports::{Clock, MeasuredVolume, Random, Storage, StorageError};
use pvc_store::{Change, ChangeError, Changes, Expect, Store, local_time};

use crate::job::{JobRequest, submit};
use crate::refusal::{Kind, Refusal};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BenchmarkRefusal {
    #[error("there is no pool `{pool}`")]
    NoPool { pool: String },
    #[error(transparent)]
    Name(#[from] BadName),
    #[error("there is a benchmark `{name}` already")]
    NameTaken { name: String },
    #[error("the storage is measured by task `{job}` at present, and two would measure each other")]
    AtWork { job: JobId },
    #[error("there is no primary node, whose worker would do it")]
    NoPrimary,
    #[error("no worker of node `{node}` knows tasks of the kind `{kind}`")]
    NoWorker { node: NodeName, kind: String },
}

impl Refusal for BenchmarkRefusal {
    fn kind(&self) -> Kind {
        match self {
            BenchmarkRefusal::NoPool { .. } => Kind::NotFound,
            BenchmarkRefusal::Name(_) => Kind::Invalid,
            _ => Kind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            BenchmarkRefusal::NoPool { .. } => {
                Some("`pvc storage pool list` shows the pools".to_owned())
            }
            BenchmarkRefusal::NameTaken { .. } => {
                Some("`pvc storage benchmark list` shows them; give another name".to_owned())
            }
            BenchmarkRefusal::AtWork { job } => Some(format!(
                "wait for it; `pvc task log {job}` shows how far it is, and `pvc task cancel \
                 {job}` stops it"
            )),
            BenchmarkRefusal::NoWorker { .. } => Some(
                "does its worker run, and is its PVC as new as this one? `pvc node list` shows the \
                 versions"
                    .to_owned(),
            ),
            BenchmarkRefusal::Name(_) | BenchmarkRefusal::NoPrimary => None,
        }
    }
}

/// Has the worker of the primary measure a pool. Without a `name` the benchmark is called after the
/// time of this node and the primary.
pub async fn run_benchmark(
    store: &Store,
    clock: &dyn Clock,
    random: &dyn Random,
    pool: &str,
    name: Option<&str>,
    submitter: &str,
) -> Result<JobSpec, ChangeError<BenchmarkRefusal>> {
    submit(store, clock, random, |cluster| {
        let pool = find_pool(cluster, pool)?;
        if let Some(job) = at_work(cluster) {
            return Err(BenchmarkRefusal::AtWork { job: job.spec.id.clone() });
        }
        let node = cluster.config.primary.clone().ok_or(BenchmarkRefusal::NoPrimary)?;
        let name = match name {
            Some(name) => name.to_owned(),
            None => format!("{}_{node}", local_time(clock.wall()).replace(' ', "T")),
        };
        check_benchmark_name(&name)?;
        if shown_benchmarks(cluster).iter().any(|record| record.name == name) {
            return Err(BenchmarkRefusal::NameTaken { name });
        }
        let work = JobWork::BenchmarkStorage { pool, name };
        if !has_worker_for(cluster, &node, work.name()) {
            let kind = work.name().to_owned();
            return Err(BenchmarkRefusal::NoWorker { node, kind });
        }
        let (run_on, submitter) = ("primary".to_owned(), submitter.to_owned());
        let mut changes = Changes::new();
        // Of two requests at once the later one sees the other's task.
        changes.expect(Expect::Benchmarks);
        Ok((JobRequest { work, node, run_on, submitter }, changes))
    })
    .await
}

/// Removes the volumes of benchmarks that have come to no end, and then their records: one ends so
/// that is cancelled while the storage does not remove its volume. Returns the volumes that were
/// there. Another volume that has taken the place of such a one stays.
///
/// # Errors
/// As a refusal, what the storage says of the first that it does not remove, after all others were
/// tried. What was not removed is still recorded.
pub async fn remove_left_behind(
    store: &Store,
    storage: &dyn Storage,
) -> Result<Vec<VolumeId>, ChangeError<StorageError>> {
    let view = store.fresh().await?;
    let (mut removed, mut failed) = (Vec::new(), None);
    for record in view.benchmarks.values().filter(|record| record.is_left_behind(&view)) {
        match remove_what_is_left(storage, record).await {
            Ok(volume) => removed.extend(volume),
            Err(error) => {
                failed.get_or_insert(error);
                continue;
            }
        }
        let decide = |cluster: &Cluster| {
            let mut changes = Changes::new();
            let now = cluster.benchmarks.get(&record.number);
            if now.is_some_and(|now| now.job == record.job && now.is_left_behind(cluster)) {
                changes.push(Change::RemoveBenchmark(record.number));
            }
            Ok((changes, ()))
        };
        store.change(decide).await?;
    }
    match failed {
        Some(error) => Err(ChangeError::Refused(error)),
        None => Ok(removed),
    }
}

/// Removes the volume of one; `None` if there is none, or one of somebody else.
async fn remove_what_is_left(
    storage: &dyn Storage,
    record: &BenchmarkRecord,
) -> Result<Option<VolumeId>, StorageError> {
    let volume = &record.volume;
    let Some(there) = volume_now(storage, volume).await? else { return Ok(None) };
    let is_made = match &record.made {
        Some(made) => *made == there.identity,
        None => volume.volume == volume_of(&record.job),
    };
    if !is_made {
        return Ok(None);
    }
    remove_volume(storage, volume, &there.identity).await?;
    Ok(Some(volume.clone()))
}

/// The volume that has the name of a benchmark's at present.
pub async fn volume_now(
    storage: &dyn Storage,
    volume: &VolumeId,
) -> Result<Option<MeasuredVolume>, StorageError> {
    match storage.measured(volume).await {
        Ok(measured) => Ok(Some(measured)),
        Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the volume of a benchmark with this identity, if it is there and has the name.
pub async fn remove_volume(
    storage: &dyn Storage,
    volume: &VolumeId,
    identity: &str,
) -> Result<(), StorageError> {
    if volume_now(storage, volume).await?.is_none_or(|now| now.identity != identity) {
        return Ok(());
    }
    match storage.remove(volume).await {
        Ok(()) | Err(StorageError::NoVolume { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The pool, which has to be recorded: Ceph may have others for other things.
fn find_pool(cluster: &Cluster, pool: &str) -> Result<PoolName, BenchmarkRefusal> {
    let name = PoolName::new(pool);
    match cluster.pools.contains_key(&name) {
        true => Ok(name),
        false => Err(BenchmarkRefusal::NoPool { pool: shown(pool) }),
    }
}
