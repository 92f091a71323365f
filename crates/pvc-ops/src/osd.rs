//! OSDs: the disks that Ceph keeps its data on.
//!
//! What touches a disk is a job of the worker of its node, refused before there is a job as far as
//! the records tell; what only the monitors do is done at once.

use std::sync::Arc;

use pvc_model::cluster::Cluster;
use pvc_model::job::osd::{OsdReplacement, changing_osd};
use pvc_model::job::{JobId, JobSpec, JobWork, has_worker_for};
use pvc_model::node::{DaemonState, NodeRecord};
use pvc_model::osd::{
    AddOsds, BadDbSize, BadDevice, BadFlag, DbSize, DeviceSpec, NoOsds, OsdFlag, OsdId,
    check_count, check_weight,
};
use pvc_model::size::{BadSize, parse_size};
use pvc_model::storage::OsdRecord;
use pvc_model::{NodeName, shown, with_causes};
use pvc_ports::{Clock, OsdError, Random, Storage, StorageCluster};
use pvc_store::{ChangeError, Changes, Store};

use crate::job::{JobRequest, submit, substitute};
use crate::refusal::{Kind, NoNode, Refusal, find_node};

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OsdRefusal {
    #[error("the storage of this cluster is not Ceph, and has no OSDs")]
    NoCeph,
    #[error(transparent)]
    NoNode(#[from] NoNode),
    #[error("node `{node}` is in state `{state}`: its disks cannot be worked on")]
    Silent { node: NodeName, state: DaemonState },
    #[error("no worker of node `{node}` knows tasks of the kind `{kind}`")]
    NoWorker { node: NodeName, kind: String },
    #[error("node `{node}` is fenced, and no worker of another one knows tasks of kind `{kind}`")]
    NoSubstitute { node: String, kind: String },
    #[error("there is no OSD `{osd}`")]
    NoOsd { osd: String },
    #[error("OSD `{osd}` is on node `{node}`")]
    Elsewhere { osd: OsdId, node: String },
    #[error("OSD `{osd}`, or one that shares its disk, is changed by task `{job}`")]
    Busy { osd: OsdId, job: JobId },
    #[error(transparent)]
    Device(#[from] BadDevice),
    #[error(transparent)]
    Size(#[from] BadSize),
    #[error(transparent)]
    Db(#[from] BadDbSize),
    #[error(transparent)]
    NoOsds(#[from] NoOsds),
    #[error(transparent)]
    Flag(#[from] BadFlag),
    #[error("{doing}: {why}")]
    Ceph { doing: String, why: String, kind: Kind, hint: Option<String> },
}

impl Refusal for OsdRefusal {
    fn kind(&self) -> Kind {
        match self {
            OsdRefusal::NoNode(error) => error.kind(),
            OsdRefusal::NoOsd { .. } => Kind::NotFound,
            OsdRefusal::NoCeph
            | OsdRefusal::Silent { .. }
            | OsdRefusal::NoWorker { .. }
            | OsdRefusal::NoSubstitute { .. }
            | OsdRefusal::Elsewhere { .. }
            | OsdRefusal::Busy { .. } => Kind::Conflict,
            OsdRefusal::Device(_)
            | OsdRefusal::Size(_)
            | OsdRefusal::Db(_)
            | OsdRefusal::NoOsds(_)
            | OsdRefusal::Flag(_) => Kind::Invalid,
            OsdRefusal::Ceph { kind, .. } => *kind,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            OsdRefusal::NoNode(error) => error.hint(),
            OsdRefusal::Silent { node, .. } => {
                Some(format!("start `pvcnoded` there; `pvc node info {node}` shows its state"))
            }
            OsdRefusal::NoWorker { .. } | OsdRefusal::NoSubstitute { .. } => Some(
                "does its worker run, and is its PVC as new as this one? `pvc node list` shows the \
                 versions"
                    .to_owned(),
            ),
            OsdRefusal::NoOsd { .. } => Some("`pvc storage osd list` shows the OSDs".to_owned()),
            OsdRefusal::Busy { job, .. } => Some(format!(
                "wait for it; `pvc task log {job}` shows how far it is, and `pvc task cancel \
                 {job}` stops it"
            )),
            OsdRefusal::Device(bad) => bad.hint(),
            OsdRefusal::NoOsds(why) => why.hint(),
            OsdRefusal::Ceph { hint, .. } => hint.clone(),
            OsdRefusal::NoCeph
            | OsdRefusal::Elsewhere { .. }
            | OsdRefusal::Size(_)
            | OsdRefusal::Db(_)
            | OsdRefusal::Flag(_) => None,
        }
    }
}

/// Kind of the refusal that an error of a disk, an OSD or Ceph is: whether it can be gone when it
/// is tried again, and may have come after a part of the effect.
pub fn osd_error_kind(error: &OsdError) -> Kind {
    match error {
        OsdError::NoDevice { .. }
        | OsdError::LinkLoop { .. }
        | OsdError::NotBlock { .. }
        | OsdError::NoGroup { .. }
        | OsdError::GroupExists { .. }
        | OsdError::VolumeExists { .. }
        | OsdError::NoVolume { .. }
        | OsdError::NoOsd { .. }
        | OsdError::NumberTaken { .. }
        | OsdError::NotSafe { .. } => Kind::Conflict,
        OsdError::Failed { .. }
        | OsdError::TimedOut { .. }
        | OsdError::NotRun { .. }
        | OsdError::NotUnderstood { .. }
        | OsdError::Services(_)
        | OsdError::Cluster(_) => Kind::Unavailable,
    }
}

/// Names and sizes of an ask, as the operator wrote them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DbAsk {
    pub ratio: Option<f64>,
    pub size: Option<String>,
}

impl DbAsk {
    fn read(&self) -> Result<Option<DbSize>, OsdRefusal> {
        // Both at once are refused whatever they are.
        if self.ratio.is_some() && self.size.is_some() {
            return Err(BadDbSize::Both.into());
        }
        let bytes = self.size.as_deref().map(parse_size).transpose()?;
        Ok(DbSize::of(self.ratio, bytes)?)
    }
}

/// OSDs to be made of a disk.
#[derive(Debug, Clone, PartialEq)]
pub struct AddAsk {
    pub node: String,
    pub device: String,
    pub weight: f64,
    pub db: DbAsk,
    pub count: u32,
    /// Only looks what it would come to.
    pub plan: bool,
}

/// Another disk for an OSD.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplaceAsk {
    pub device: String,
    pub old_device: Option<String>,
    pub weight: Option<f64>,
    pub db: DbAsk,
    pub force: bool,
}

/// Things that an ask for a job is carried out with.
pub struct Submission<'a> {
    pub store: &'a Store,
    pub clock: &'a dyn Clock,
    pub random: &'a dyn Random,
    /// The storage, where it is at hand.
    pub storage: Option<Arc<dyn Storage>>,
    /// Author of the request.
    pub submitter: &'a str,
}

impl Submission<'_> {
    async fn submit(
        &self,
        decide: impl Fn(&Cluster) -> Result<(JobWork, NodeName), OsdRefusal> + Send + Sync,
    ) -> Result<JobSpec, ChangeError<OsdRefusal>> {
        submit(self.store, self.clock, self.random, |cluster| {
            if self.storage.as_ref().is_some_and(|storage| storage.cluster().is_none()) {
                return Err(OsdRefusal::NoCeph);
            }
            let (work, node) = decide(cluster)?;
            check_worker(cluster, &node, &work)?;
            let (run_on, submitter) = (node.to_string(), self.submitter.to_owned());
            Ok((JobRequest { work, node, run_on, submitter }, Changes::new()))
        })
        .await
    }

    /// Has the worker of the node make OSDs of a disk, or say what that would come to.
    pub async fn add(&self, ask: &AddAsk) -> Result<JobSpec, ChangeError<OsdRefusal>> {
        self.submit(|cluster| {
            let node = living(cluster, &ask.node)?.name.clone();
            let new = AddOsds {
                device: DeviceSpec::parse(&ask.device)?,
                weight: ask.weight,
                db: ask.db.read()?,
                count: ask.count,
            };
            check_count(new.count)?;
            check_weight(new.weight)?;
            let work = if ask.plan { JobWork::PlanOsds } else { JobWork::AddOsds };
            Ok((work(new), node))
        })
        .await
    }

    /// Has the worker of the OSD's node move it to another disk.
    pub async fn replace(
        &self,
        osd: &str,
        ask: &ReplaceAsk,
    ) -> Result<JobSpec, ChangeError<OsdRefusal>> {
        self.submit(|cluster| {
            let (osd, node) = free(cluster, osd)?;
            let replacement = OsdReplacement {
                osd,
                device: DeviceSpec::parse(&ask.device)?,
                old_device: ask.old_device.as_deref().map(DeviceSpec::parse).transpose()?,
                weight: ask.weight,
                db: ask.db.read()?,
                force: ask.force,
            };
            replacement.weight.map(check_weight).transpose()?;
            Ok((JobWork::ReplaceOsd(replacement), node))
        })
        .await
    }

    /// Has the worker of the OSD's node take it up from a disk.
    pub async fn refresh(
        &self,
        osd: &str,
        device: &str,
    ) -> Result<JobSpec, ChangeError<OsdRefusal>> {
        self.submit(|cluster| {
            let (osd, node) = free(cluster, osd)?;
            Ok((JobWork::RefreshOsd { osd, device: DeviceSpec::parse(device)? }, node))
        })
        .await
    }

    /// Has the worker of the OSD's node remove it; if that node is fenced, the worker of another
    /// one has the cluster forget it, and its disk is left as it is.
    pub async fn remove(&self, osd: &str, force: bool) -> Result<JobSpec, ChangeError<OsdRefusal>> {
        self.submit(|cluster| {
            let (id, record) = find_osd(cluster, osd)?;
            check_free(cluster, id, record, None)?;
            let work = JobWork::RemoveOsd { osd: id, force };
            let node = match is_of_fenced_node(cluster, record) {
                true => substitute(cluster, &work).ok_or_else(|| {
                    let (node, kind) = (record.node.clone(), work.name().to_owned());
                    OsdRefusal::NoSubstitute { node, kind }
                })?,
                false => living(cluster, &record.node)?.name.clone(),
            };
            Ok((work, node))
        })
        .await
    }

    /// Has the worker of the node make the volume group for databases of a disk.
    pub async fn add_db_group(
        &self,
        node: &str,
        device: &str,
    ) -> Result<JobSpec, ChangeError<OsdRefusal>> {
        self.submit(|cluster| {
            let node = living(cluster, node)?.name.clone();
            Ok((JobWork::AddDbGroup { device: DeviceSpec::parse(device)? }, node))
        })
        .await
    }
}

/// The node, whose daemon has to be at work.
fn living<'a>(cluster: &'a Cluster, node: &str) -> Result<&'a NodeRecord, OsdRefusal> {
    let record = find_node(cluster, node)?;
    match record.daemon_state {
        DaemonState::Run => Ok(record),
        ref state => Err(OsdRefusal::Silent { node: record.name.clone(), state: state.clone() }),
    }
}

/// Whether the OSD's node is fenced: proven dead, so that the OSD does not run. One that is `dead`
/// may be silent alone.
pub fn is_of_fenced_node(cluster: &Cluster, record: &OsdRecord) -> bool {
    cluster.node(&record.node).is_some_and(|node| node.is_fenced())
}

fn check_worker(cluster: &Cluster, node: &NodeName, work: &JobWork) -> Result<(), OsdRefusal> {
    let kind = work.name();
    match has_worker_for(cluster, node, kind) {
        true => Ok(()),
        false => Err(OsdRefusal::NoWorker { node: node.clone(), kind: kind.to_owned() }),
    }
}

/// The OSD by its number.
pub fn find_osd<'a>(cluster: &'a Cluster, osd: &str) -> Result<(OsdId, &'a OsdRecord), OsdRefusal> {
    let no_osd = || OsdRefusal::NoOsd { osd: shown(osd) };
    let id = OsdId::parse(osd).map_err(|_| no_osd())?;
    cluster.osds.get(osd).map(|record| (id, record.as_ref())).ok_or_else(no_osd)
}

/// The OSD, which no other job than `own` may be changing, nor those that share its disk.
pub fn check_free(
    cluster: &Cluster,
    osd: OsdId,
    record: &OsdRecord,
    own: Option<&JobId>,
) -> Result<(), OsdRefusal> {
    match changing_osd(cluster, record, own) {
        Some(job) => Err(OsdRefusal::Busy { osd, job: job.spec.id.clone() }),
        None => Ok(()),
    }
}

/// The OSD, which nothing changes at present, and its node, whose daemon has to be at work.
fn free(cluster: &Cluster, osd: &str) -> Result<(OsdId, NodeName), OsdRefusal> {
    let (id, record) = find_osd(cluster, osd)?;
    let node = living(cluster, &record.node)?.name.clone();
    check_free(cluster, id, record, None)?;
    Ok((id, node))
}

/// Has the OSD hold data, or not.
///
/// # Errors
/// Those of Ceph as [`OsdRefusal::Ceph`].
pub async fn set_in(
    store: &Store,
    storage: &dyn Storage,
    osd: &str,
    is_in: bool,
) -> Result<OsdId, ChangeError<OsdRefusal>> {
    let ceph = ceph(storage)?;
    let view = store.view();
    let found = find_osd(&view, osd).and_then(|(id, record)| {
        // It may be what the job waits for, or has done.
        check_free(&view, id, record, None)?;
        Ok(id)
    });
    let id = found.map_err(ChangeError::Refused)?;
    if store.is_dry() {
        return Ok(id);
    }
    let (done, word) = match is_in {
        true => (ceph.osd_in(id).await, "in"),
        false => (ceph.osd_out(id).await, "out"),
    };
    done.map_err(|error| failed(format!("OSD `{id}` could not be taken {word}"), &error))?;
    Ok(id)
}

/// Sets a flag of all OSDs, or takes it back.
///
/// # Errors
/// As [`set_in`].
pub async fn set_flag(
    store: &Store,
    storage: &dyn Storage,
    flag: &str,
    is_set: bool,
) -> Result<OsdFlag, ChangeError<OsdRefusal>> {
    let ceph = ceph(storage)?;
    let flag = OsdFlag::parse(flag).map_err(|bad| ChangeError::Refused(bad.into()))?;
    if store.is_dry() {
        return Ok(flag);
    }
    let (done, word) = match is_set {
        true => (ceph.set_flag(flag).await, "set"),
        false => (ceph.unset_flag(flag).await, "unset"),
    };
    done.map_err(|error| failed(format!("option `{flag}` could not be {word}"), &error))?;
    Ok(flag)
}

fn ceph(storage: &dyn Storage) -> Result<&dyn StorageCluster, ChangeError<OsdRefusal>> {
    storage.cluster().ok_or(ChangeError::Refused(OsdRefusal::NoCeph))
}

fn failed(doing: String, error: &OsdError) -> ChangeError<OsdRefusal> {
    let (why, kind, hint) = (with_causes(error), osd_error_kind(error), error.hint());
    ChangeError::Refused(OsdRefusal::Ceph { doing, why, kind, hint })
}
