//! Benchmarks of the storage, held against what their jobs say: each is recorded with the figures
//! of all its tests or not at all, and nothing is left of it in the pool.

use pvc_model::benchmark::{BenchmarkRecord, BenchmarkState, Test, is_own_volume};
use pvc_model::cluster::Cluster as View;
use pvc_model::job::{Job, JobState, JobWork};
use pvc_testkit::MemoryVolumes;

/// The benchmarks that are recorded as under way, and whose jobs are over.
pub(crate) fn left_behind(view: &View) -> impl Iterator<Item = String> {
    let left = view.benchmarks.values().filter(|record| record.is_left_behind(view));
    left.map(|record| {
        format!("benchmark {} is recorded as under way, and its job is over", record.number)
    })
}

/// Records and storage, as far as benchmarks are concerned.
pub(crate) struct Benchmarks<'a> {
    pub view: &'a View,
    pub volumes: &'a MemoryVolumes,
}

impl Benchmarks<'_> {
    /// Finds what is wrong when each job has had time to end.
    pub fn wrong(&self) -> Option<String> {
        let view = self.view;
        let mut done = view.benchmarks.values().filter_map(|record| wrong_record(view, record));
        let of_records = left_behind(view).next().or_else(|| done.next());
        let of_jobs = || view.jobs.values().find_map(|job| without_result(view, job));
        of_records.or_else(of_jobs).or_else(|| self.left_in_pools())
    }

    /// A volume of a benchmark, all of which are over.
    fn left_in_pools(&self) -> Option<String> {
        let pools = self.volumes.pools().into_iter();
        let volumes = pools.flat_map(|pool| self.volumes.volumes(&pool.name));
        let left = volumes.flatten().find(|volume| is_own_volume(volume.id.volume.as_str()))?;
        Some(format!("{} is left of a benchmark", left.id))
    }
}

/// The fault of the record of a benchmark that is done, if there is one.
fn wrong_record(view: &View, record: &BenchmarkRecord) -> Option<String> {
    let BenchmarkState::Done(result) = &record.state else { return None };
    let number = record.number;
    let result: serde_json::Value = serde_json::from_str(result).unwrap_or_default();
    if let Some(test) = Test::ALL.iter().find(|test| result[test.name()].is_null()) {
        return Some(format!("benchmark {number} has no figures of {}", test.name()));
    }
    let state = view.jobs.get(&record.job).map(|job| job.progress.state)?;
    (state != JobState::Succeeded)
        .then(|| format!("benchmark {number} is done, and its job is {state:?}"))
}

/// A benchmark that was done, of which there is no result.
fn without_result(view: &View, job: &Job) -> Option<String> {
    let is_one = matches!(job.spec.work, JobWork::BenchmarkStorage { .. });
    let is_done = is_one && job.progress.state == JobState::Succeeded;
    let has_result = view.benchmarks.values().any(|record| record.job == job.spec.id);
    (is_done && !has_result).then(|| format!("job {} has measured nothing", job.spec.id))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use pvc_model::benchmark::{FORMAT, volume_of};
    use pvc_model::job::{JobId, JobProgress, JobSpec};
    use pvc_model::storage::{PoolName, VolumeId};

    use super::*;

    /// A benchmark whose job is in this state, with this record.
    fn view(job: JobState, record: Option<BenchmarkState>) -> View {
        let (id, pool) = (JobId::from_bits(1), PoolName::new("vms"));
        let volume = volume();
        let record = record.map(|state| BenchmarkRecord {
            number: 1,
            name: "b1".to_owned(),
            job: id.clone(),
            volume,
            made: None,
            format: FORMAT,
            state,
            reports: BTreeMap::new(),
        });
        let spec = JobSpec {
            id: id.clone(),
            work: JobWork::BenchmarkStorage { pool, name: "b1".to_owned() },
            node: "hv1".into(),
            run_on: "primary".to_owned(),
            submitter: String::new(),
            submitted_at: 0,
        };
        let progress = JobProgress { state: job, ..JobProgress::pending() };
        let job = Job { spec, progress, cancel_requested: false, claim: None };
        View {
            jobs: [(id, Arc::new(job))].into(),
            benchmarks: record.map(|record| (1, Arc::new(record))).into_iter().collect(),
            ..View::default()
        }
    }

    fn volume() -> VolumeId {
        VolumeId { pool: PoolName::new("vms"), volume: volume_of(&JobId::from_bits(1)) }
    }

    fn done(tests: &[Test]) -> BenchmarkState {
        let member = |test: &Test| (test.name().to_owned(), serde_json::json!({}));
        let members: serde_json::Map<_, _> = tests.iter().map(member).collect();
        BenchmarkState::Done(serde_json::Value::from(members).to_string().into())
    }

    fn wrong(view: &View, volumes: &MemoryVolumes) -> Option<String> {
        Benchmarks { view, volumes }.wrong()
    }

    #[test]
    fn a_benchmark_that_is_recorded_otherwise_than_it_ended_is_found() {
        for (job, record, wanted) in [
            (JobState::Succeeded, Some(done(&Test::ALL)), None),
            (JobState::Failed, None, None),
            (
                JobState::Failed,
                Some(BenchmarkState::Running),
                Some("benchmark 1 is recorded as under way, and its job is over"),
            ),
            (
                JobState::Succeeded,
                Some(done(&Test::ALL[1..])),
                Some("benchmark 1 has no figures of seq_read"),
            ),
            (
                JobState::Failed,
                Some(done(&Test::ALL)),
                Some("benchmark 1 is done, and its job is Failed"),
            ),
            (JobState::Succeeded, None, Some("job 00000001 has measured nothing")),
        ] {
            let view = view(job, record);
            let found = wrong(&view, &MemoryVolumes::default());
            assert_eq!(found.as_deref(), wanted);
        }
    }

    #[test]
    fn a_volume_that_a_benchmark_has_left_is_found() {
        let view = view(JobState::Cancelled, None);
        let mut volumes = MemoryVolumes::default();
        volumes.create_pool(&PoolName::new("vms")).expect("there is none");
        assert_eq!(wrong(&view, &volumes), None);
        volumes.insert(&volume());
        let left = wrong(&view, &volumes).expect("it is there");
        assert_eq!(left, "vms/pvcbenchmark-00000001 is left of a benchmark");
    }
}
