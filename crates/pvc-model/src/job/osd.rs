//! Jobs about OSDs: their arguments, and which of them are in each other's way.

use super::course::Failure;
use super::{Job, JobId, JobWork};
use crate::NodeName;
use crate::cluster::Cluster;
use crate::osd::{BlockDevice, DbSize, DeviceSpec, OsdId};
use crate::refusal::Kind;
use crate::storage::OsdRecord;

/// Another disk for an OSD and for those that share its disk.
#[derive(Debug, Clone, PartialEq)]
pub struct OsdReplacement {
    pub osd: OsdId,
    pub device: DeviceSpec,
    /// The disk of before, if it has another name by now than the recorded one.
    pub old_device: Option<DeviceSpec>,
    /// Weight of each in the CRUSH map; `None` for the one it has.
    pub weight: Option<f64>,
    /// Size of the database of each in the volume group for those; `None` for that of before, if
    /// it has one there.
    pub db: Option<DbSize>,
    /// Does not wait until others hold the data.
    pub force: bool,
}

impl JobWork {
    /// The OSD that the job changes, beside those that share its disk.
    pub fn osd(&self) -> Option<OsdId> {
        match self {
            JobWork::ReplaceOsd(OsdReplacement { osd, .. })
            | JobWork::RefreshOsd { osd, .. }
            | JobWork::RemoveOsd { osd, .. } => Some(*osd),
            _ => None,
        }
    }
}

/// The records of an OSD and of those that share its disk, by number.
pub fn sharing<'a>(cluster: &'a Cluster, osd: &OsdRecord) -> Vec<&'a OsdRecord> {
    let shares = |other: &&OsdRecord| {
        let is_beside = other.node == osd.node && other.device == osd.device;
        other.id == osd.id || (is_beside && !osd.device.is_empty())
    };
    let mut all: Vec<&OsdRecord> =
        cluster.osds.values().map(AsRef::as_ref).filter(shares).collect();
    all.sort_by_key(|osd| osd.id.parse::<u64>().ok());
    all
}

/// The job that has not ended and changes the OSD, or one that shares its disk; not `own`. One that
/// has made it and is not done with it is such a job, too: what it has found out so far names the
/// OSD by its UUID.
pub fn changing_osd<'a>(
    cluster: &'a Cluster,
    osd: &OsdRecord,
    own: Option<&JobId>,
) -> Option<&'a Job> {
    let touched: Vec<&OsdRecord> = sharing(cluster, osd);
    let jobs = cluster.jobs.values().map(AsRef::as_ref);
    let others = jobs.filter(|job| !job.progress.state.is_over() && Some(&job.spec.id) != own);
    let touches = |job: &&Job| {
        let changed = job.spec.work.osd().map(|osd| osd.to_string());
        let is_changed = touched.iter().any(|osd| changed.as_ref() == Some(&osd.id));
        is_changed || touched.iter().any(|osd| has_made(job, osd))
    };
    others.into_iter().find(touches)
}

/// Whether the job is one that makes OSDs, and this is one of them.
fn has_made(job: &Job, osd: &OsdRecord) -> bool {
    let facts = job.progress.steps.iter().flat_map(|steps| &steps.facts);
    let makes = matches!(job.spec.work, JobWork::AddOsds(_)) && !osd.fsid.is_empty();
    makes && facts.into_iter().any(|fact| fact.contains(&osd.fsid))
}

/// Failure as which a job ends that is cancelled while its node is fenced and no worker has it:
/// nobody goes on with it, or takes it back, before that node is on again, which may never be, and
/// until then no other job could change its OSD. `None` if somebody may, and if no OSD that is
/// recorded is kept from others by it: what it has made would be in no list.
pub fn given_up(cluster: &Cluster, job: &Job) -> Option<Failure> {
    let Job { spec, claim, .. } = job;
    let node = cluster.nodes.get(&spec.node)?;
    let is_left = claim.is_none() && !cluster.workers.contains_key(&spec.node);
    let has_osd = spec.work.osd().is_some() || cluster.osds.values().any(|osd| has_made(job, osd));
    (node.is_fenced() && is_left && has_osd).then(|| failure_of_given_up(&spec.node))
}

/// Failure as which a job of `node` ends that is [given up](given_up).
pub fn failure_of_given_up(node: &NodeName) -> Failure {
    Failure {
        kind: Kind::Unavailable,
        why: format!(
            "it was cancelled while its node `{node}` was fenced; what it has done stays as it is"
        ),
        hint: Some(
            "`pvc storage osd list` shows the OSDs; one of a fenced node is removed by another"
                .to_owned(),
        ),
    }
}

/// The job that has not ended, is not `own`, and has decided to use the disk of this node: its
/// steps name the disk, or a volume group that they have made on it, which no other group is called
/// like.
pub fn using_disk<'a>(
    cluster: &'a Cluster,
    node: &NodeName,
    disk: &BlockDevice,
    own: &JobId,
) -> Option<&'a Job> {
    let mut words: Vec<String> = disk.groups.iter().map(ToString::to_string).collect();
    words.push(format!("\"name\":\"{}\"", disk.device));
    if !disk.serial.is_empty() {
        words.push(format!("\"serial\":\"{}\"", disk.serial));
    }
    let jobs = cluster.jobs.values().map(AsRef::as_ref);
    let names = |job: &&Job| {
        let steps = job.progress.steps.iter().flat_map(|steps| &steps.planned);
        steps.into_iter().any(|step| words.iter().any(|word| step.contains(word)))
    };
    let is_at_work = |job: &&Job| !job.progress.state.is_over() && job.spec.id != *own;
    jobs.filter(is_at_work).filter(|job| job.spec.node == *node).find(names)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Uuid;
    use crate::job::course::Course;
    use crate::job::{ClaimId, JobProgress, JobSpec, JobState, JobVm, Steps};
    use crate::node::{DaemonState, NodeRecord};
    use crate::osd::AddOsds;
    use crate::records;

    fn osd(id: &str, node: &str, device: &str) -> OsdRecord {
        OsdRecord {
            id: id.into(),
            node: node.into(),
            device: device.into(),
            ..OsdRecord::default()
        }
    }

    fn cluster(osds: &[OsdRecord]) -> Cluster {
        let osds = osds.iter().map(|osd| (osd.id.clone(), Arc::new(osd.clone()))).collect();
        Cluster { osds, ..Cluster::default() }
    }

    #[test]
    fn osds_that_share_a_disk_are_of_one_node_and_one_device() {
        let all = [
            osd("10", "hv1", "/dev/sdb"),
            osd("2", "hv1", "/dev/sdb"),
            osd("3", "hv2", "/dev/sdb"),
            osd("4", "hv1", "/dev/sdc"),
            osd("5", "hv1", ""),
            osd("6", "hv1", ""),
        ];
        let cluster = cluster(&all);
        let ids = |of: usize| -> Vec<&str> {
            sharing(&cluster, &all[of]).into_iter().map(|osd| osd.id.as_str()).collect()
        };
        assert_eq!(ids(0), ["2", "10"]);
        assert_eq!(ids(2), ["3"]);
        assert_eq!(ids(4), ["5"], "of no device nobody knows which it is");
    }

    #[test]
    fn a_job_that_has_made_an_osd_is_in_the_way_of_others_until_it_ends() {
        let uuid = "2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1".to_owned();
        let made = OsdRecord { fsid: uuid.clone(), ..osd("1", "hv1", "/dev/sdb") };
        let other = osd("2", "hv1", "/dev/sdc");
        let mut cluster = cluster(&[made.clone(), other.clone()]);
        let device = DeviceSpec::parse("/dev/sdb").expect("a device's name");
        let new = AddOsds { device, weight: 1.0, db: None, count: 1 };
        let spec = spec(JobWork::AddOsds(new));
        let steps = Steps {
            planned: vec!["\"make\"".to_owned(), "\"start\"".to_owned()],
            facts: vec![format!(r#"{{"made":{{"osds":[{{"id":"1","uuid":"{uuid}"}}]}}}}"#)],
            course: Course::Forward { done: 1 },
        };
        let progress = JobProgress { steps: Some(steps), ..JobProgress::pending() };
        let mut job = Job { spec, progress, cancel_requested: false, claim: None };
        cluster.jobs.insert(job.spec.id.clone(), Arc::new(job.clone()));
        assert_eq!(changing_osd(&cluster, &made, None).map(|job| &job.spec.id), Some(&job.spec.id));
        assert!(changing_osd(&cluster, &made, Some(&job.spec.id)).is_none(), "it is the job's own");
        assert!(
            changing_osd(&cluster, &other, None).is_none(),
            "others are free, also without a UUID"
        );
        job.progress.state = JobState::Succeeded;
        cluster.jobs.insert(job.spec.id.clone(), Arc::new(job));
        assert!(changing_osd(&cluster, &made, None).is_none());
    }

    #[test]
    fn a_job_is_in_the_way_of_those_about_the_osds_of_the_same_disk_until_it_ends() {
        let all =
            [osd("1", "hv1", "/dev/sdb"), osd("2", "hv1", "/dev/sdb"), osd("3", "hv2", "/dev/sdb")];
        let mut cluster = cluster(&all);
        let spec = spec(JobWork::RemoveOsd { osd: OsdId(2), force: false });
        let own = spec.id.clone();
        let mut job =
            Job { spec, progress: JobProgress::pending(), cancel_requested: false, claim: None };
        cluster.jobs.insert(own.clone(), Arc::new(job.clone()));
        let found = |cluster: &Cluster, of: usize, own: Option<&JobId>| {
            changing_osd(cluster, &all[of], own).map(|job| job.spec.id.clone())
        };
        assert_eq!(found(&cluster, 0, None), Some(own.clone()));
        assert_eq!(found(&cluster, 1, None), Some(own.clone()));
        assert_eq!(found(&cluster, 2, None), None);
        assert_eq!(found(&cluster, 1, Some(&own)), None);
        job.progress.state = JobState::Failed;
        cluster.jobs.insert(own, Arc::new(job));
        assert_eq!(found(&cluster, 1, None), None);
    }

    /// A job that node hv1 does.
    fn spec(work: JobWork) -> JobSpec {
        JobSpec {
            id: JobId::from_bits(7),
            work,
            node: "hv1".into(),
            run_on: "hv1".into(),
            submitter: String::new(),
            submitted_at: 0,
        }
    }

    /// A job of node hv1 that its worker has begun, and has found out `fact` so far.
    fn begun(work: JobWork, fact: &str) -> Job {
        let spec = spec(work);
        let steps = Steps {
            planned: vec!["\"make\"".to_owned(), "\"start\"".to_owned()],
            facts: vec![fact.to_owned()],
            course: Course::Forward { done: 1 },
        };
        let progress = JobProgress {
            state: JobState::Running,
            worker: Some("hv1".into()),
            steps: Some(steps),
            ..JobProgress::pending()
        };
        Job { spec, progress, cancel_requested: false, claim: None }
    }

    #[test]
    fn a_job_about_an_osd_is_given_up_only_if_nobody_can_go_on_with_it() {
        let uuid = Uuid::from_u128(7).to_string();
        let device = || DeviceSpec::parse("/dev/sdb").expect("a device's name");
        let recorded = OsdRecord { fsid: uuid.clone(), ..osd("1", "hv1", "/dev/sdb") };
        let of = |daemon_state: DaemonState| {
            let node = NodeRecord { daemon_state, ..records::node("hv1") };
            Cluster {
                nodes: [(NodeName::new("hv1"), Arc::new(node))].into(),
                ..cluster(std::slice::from_ref(&recorded))
            }
        };
        let removal = begun(JobWork::RemoveOsd { osd: OsdId(1), force: false }, "");
        let given_up = |cluster: &Cluster, job: &Job| given_up(cluster, job).is_some();
        assert!(given_up(&of(DaemonState::Fenced), &removal));
        for state in [DaemonState::Run, DaemonState::Dead, DaemonState::Init] {
            assert!(!given_up(&of(state.clone()), &removal), "{state}: it may be at work");
        }
        let held = Job { claim: Some(ClaimId(1)), ..removal.clone() };
        assert!(!given_up(&of(DaemonState::Fenced), &held));
        let mut is_back = of(DaemonState::Fenced);
        is_back.workers.insert("hv1".into(), Arc::default());
        assert!(!given_up(&is_back, &removal), "its worker takes it up at once");
        assert!(!given_up(&Cluster::default(), &removal), "nobody knows how that node is");

        let new = || AddOsds { device: device(), weight: 1.0, db: None, count: 1 };
        let made = begun(JobWork::AddOsds(new()), &uuid);
        assert!(given_up(&of(DaemonState::Fenced), &made));
        let mut is_unrecorded = of(DaemonState::Fenced);
        is_unrecorded.osds.clear();
        assert!(!given_up(&is_unrecorded, &made), "no command would find it any more");
        let vm = JobVm { name: "web1".into(), uuid: None };
        for work in [JobWork::FlushLocks { vm }, JobWork::AddDbGroup { device: device() }] {
            assert!(!given_up(&of(DaemonState::Fenced), &begun(work, "")), "it is about no OSD");
        }
    }
}
