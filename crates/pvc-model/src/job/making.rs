//! Volumes that jobs make: their names until they are whole.

use super::JobId;
use crate::cluster::Cluster;
use crate::storage::VolumeName;

const BEGINNING: &str = "creating-";

/// The name of a volume that the job makes: no other job gives it.
pub fn name_in_the_making(job: &JobId, suffix: &str) -> VolumeName {
    VolumeName::new(format!("{BEGINNING}{job}_{suffix}"))
}

/// The job that gives this name to a volume that it makes.
pub fn maker_of(volume: &VolumeName) -> Option<JobId> {
    let (job, _) = volume.as_str().strip_prefix(BEGINNING)?.split_once('_')?;
    JobId::parse(job)
}

/// Whether a volume of this name is left of a job that is over, as by a worker that had lost the
/// job, has made it once more, and was ended before it could remove it.
///
/// A job whose progress this version cannot read is shown as failed, without its end: it may be at
/// work, as one that is not known may.
pub fn is_left_behind(cluster: &Cluster, volume: &VolumeName) -> bool {
    let Some(job) = maker_of(volume).and_then(|job| cluster.jobs.get(&job)) else { return false };
    job.claim.is_none() && job.progress.state.is_over() && job.progress.ended_at.is_some()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{ClaimId, Job, JobProgress, JobSpec, JobState, JobVm, JobWork};
    use super::*;

    #[test]
    fn what_a_job_makes_is_left_behind_when_the_job_is_over() {
        let (id, mut cluster) = (JobId::from_bits(0xf79c_6c18), Cluster::default());
        let volume = name_in_the_making(&id, "sda");
        assert_eq!(maker_of(&volume), Some(id.clone()));
        assert!(!is_left_behind(&cluster, &volume), "of no job that is known");
        for (state, ended_at, is_left) in [
            (JobState::Pending, None, false),
            (JobState::Running, None, false),
            (JobState::Succeeded, Some(1), true),
            (JobState::Failed, Some(1), true),
            (JobState::Cancelled, Some(1), true),
            // As one that cannot be read is shown.
            (JobState::Failed, None, false),
        ] {
            let vm = JobVm { name: "web".to_owned(), uuid: None };
            let spec = JobSpec {
                id: id.clone(),
                work: JobWork::FlushLocks { vm },
                node: "hv1".into(),
                run_on: "hv1".into(),
                submitter: String::new(),
                submitted_at: 0,
            };
            let progress = JobProgress { state, ended_at, ..JobProgress::pending() };
            let job = Job { spec, progress, cancel_requested: false, claim: None };
            let claimed = Job { claim: Some(ClaimId(1)), ..job.clone() };
            cluster.jobs.insert(id.clone(), Arc::new(claimed));
            assert!(!is_left_behind(&cluster, &volume), "{state:?}");
            cluster.jobs.insert(id.clone(), Arc::new(job));
            assert_eq!(is_left_behind(&cluster, &volume), is_left, "{state:?}");
        }
        for own in ["creating-web_sda", "creating-F79C6C18_sda", "creating-f79c6c18", "web_sda"] {
            assert_eq!(maker_of(&VolumeName::new(own)), None, "{own}");
        }
    }
}
