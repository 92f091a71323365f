//! Benchmarks of the storage: which tests there are, what is recorded of them, and what the node
//! did meanwhile.
//!
//! A benchmark is a job that writes a volume of its own. Of what it has made it records the
//! identity, so that whoever cleans up behind it removes that and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::job::{Job, JobId, JobWork};
use crate::name::{BadName, check_name};
use crate::storage::{VolumeId, VolumeName};

/// Name of the volume of PVC 1.0.3, in the pool that is measured. Names of ours begin with it.
const VOLUME: &str = "pvcbenchmark";

/// Number of benchmarks that are kept, the latest.
pub const MOST_KEPT: usize = 20;

/// Format of the results that are recorded: the reports of fio with figures of the node.
pub const FORMAT: u32 = 2;

/// Largest number of bytes of the report of one test that are recorded.
pub const MOST_REPORT_BYTES: usize = 16 << 10;

/// Largest part of the volume that is written before it is measured, and that the tests keep to.
/// What was never written is read from nowhere.
pub const MOST_FILLED_BYTES: u64 = 16 << 30;

/// Time after which the tests make do with what was written until then.
pub const FILL_TIME: Duration = Duration::from_secs(300);

/// Largest block of the tests, in bytes. The part that is written is a multiple of it.
pub const LARGEST_BLOCK_BYTES: u64 = 4 << 20;

/// Processes of the storage whose load is measured.
pub const OSD_PROCESS: &str = "ceph-osd";
pub const MON_PROCESS: &str = "ceph-mon";

/// Time after the start of a test during which its load is not measured.
pub const SETTLING_TIME: Duration = Duration::from_secs(15);

/// Time between two looks at the load.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(2);

/// A test, in the order in which they are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Test {
    SeqRead,
    SeqWrite,
    RandRead4M,
    RandWrite4M,
    RandRead4K,
    RandWrite4K,
    RandRead4KLowDepth,
    RandWrite4KLowDepth,
}

impl Test {
    pub const ALL: [Test; 8] = [
        Test::SeqRead,
        Test::SeqWrite,
        Test::RandRead4M,
        Test::RandWrite4M,
        Test::RandRead4K,
        Test::RandWrite4K,
        Test::RandRead4KLowDepth,
        Test::RandWrite4KLowDepth,
    ];

    /// The name of the test in results.
    pub fn name(self) -> &'static str {
        match self {
            Test::SeqRead => "seq_read",
            Test::SeqWrite => "seq_write",
            Test::RandRead4M => "rand_read_4M",
            Test::RandWrite4M => "rand_write_4M",
            Test::RandRead4K => "rand_read_4K",
            Test::RandWrite4K => "rand_write_4K",
            Test::RandRead4KLowDepth => "rand_read_4K_lowdepth",
            Test::RandWrite4KLowDepth => "rand_write_4K_lowdepth",
        }
    }

    pub fn parse(name: &str) -> Option<Test> {
        Test::ALL.into_iter().find(|test| test.name() == name)
    }

    /// Size of what is read or written at once, as fio takes it.
    pub fn block(self) -> &'static str {
        match self {
            Test::SeqRead | Test::SeqWrite | Test::RandRead4M | Test::RandWrite4M => "4M",
            _ => "4K",
        }
    }

    /// Number of requests that are under way at once.
    pub fn depth(self) -> u32 {
        match self {
            Test::RandRead4KLowDepth | Test::RandWrite4KLowDepth => 1,
            _ => 64,
        }
    }

    /// Pattern of access, as fio calls it.
    pub fn pattern(self) -> &'static str {
        match self {
            Test::SeqRead => "read",
            Test::SeqWrite => "write",
            Test::RandRead4M | Test::RandRead4K | Test::RandRead4KLowDepth => "randread",
            Test::RandWrite4M | Test::RandWrite4K | Test::RandWrite4KLowDepth => "randwrite",
        }
    }

    pub fn is_read(self) -> bool {
        self.pattern().ends_with("read")
    }
}

/// State of a benchmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BenchmarkState {
    /// Its job is at work, or has ended without a word.
    Running,
    /// JSON text: an object with the report of each test by its name.
    Done(Arc<str>),
}

/// A benchmark as recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BenchmarkRecord {
    /// Grows from one benchmark to the next.
    pub number: u32,
    /// Name that it was given, by which it is found.
    pub name: String,
    pub job: JobId,
    pub volume: VolumeId,
    /// Identity of the volume that was made for it, while that is there.
    pub made: Option<String>,
    pub format: u32,
    pub state: BenchmarkState,
    /// While it runs: JSON text of the report of each test that is done, by the test's name.
    pub reports: BTreeMap<String, Arc<str>>,
}

impl BenchmarkRecord {
    /// Whether its job is at work. One whose job is over and that has no result has failed.
    pub fn is_under_way(&self, cluster: &Cluster) -> bool {
        self.state == BenchmarkState::Running
            && cluster.jobs.get(&self.job).is_some_and(|job| !job.progress.state.is_over())
    }

    /// Whether its job has ended, and has left it as it was.
    pub fn is_left_behind(&self, cluster: &Cluster) -> bool {
        self.state == BenchmarkState::Running && !self.is_under_way(cluster)
    }
}

/// Name of the volume that a job makes: no other job makes one of this name, and nobody else may.
pub fn volume_of(job: &JobId) -> VolumeName {
    VolumeName::new(format!("{VOLUME}-{job}"))
}

/// Whether a benchmark takes a volume of this name for its own: ours, or PVC 1.0.3's, which knows
/// it by the name alone.
pub fn is_own_volume(name: &str) -> bool {
    name.strip_prefix(VOLUME).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Bytes of a volume of this size that are to be written before it is measured.
pub fn bytes_to_fill(volume_bytes: u64) -> u64 {
    volume_bytes.min(MOST_FILLED_BYTES)
}

/// The part that the tests keep to, in bytes, if `written` of `wanted` were written in time: whole
/// blocks. `None` if there is not one.
pub fn filled(written: u64, wanted: u64) -> Option<u64> {
    if written >= wanted {
        return Some(wanted);
    }
    Some(written - written % LARGEST_BLOCK_BYTES).filter(|bytes| *bytes > 0)
}

/// Refuses a name that a benchmark cannot have: it is looked for in a query, and printed.
pub fn check_benchmark_name(name: &str) -> Result<(), BadName> {
    // The name that is made without one has the time of day in it.
    check_name("benchmark", &name.replace(':', "-"), 128)
}

/// The job that measures the storage at present, or waits to: there is one at a time.
pub fn at_work(cluster: &Cluster) -> Option<&Arc<Job>> {
    let is_one = |job: &&Arc<Job>| matches!(job.spec.work, JobWork::BenchmarkStorage { .. });
    cluster.jobs.values().filter(is_one).find(|job| !job.progress.state.is_over())
}

/// The benchmarks that can be shown, the newest first: those at work, and those with a result.
pub fn shown(cluster: &Cluster) -> Vec<&Arc<BenchmarkRecord>> {
    let records = cluster.benchmarks.values().filter(|record| !record.is_left_behind(cluster));
    let mut records: Vec<_> = records.collect();
    records.reverse();
    records
}

/// Number of the next benchmark.
pub fn next_number(cluster: &Cluster) -> u32 {
    cluster.benchmarks.keys().next_back().map_or(1, |last| last.saturating_add(1))
}

/// Numbers of the benchmarks that go when `new` is recorded: the oldest of too many that are done
/// or at work. One that was left behind says whose its volume is, until that was looked for.
pub fn outdated(cluster: &Cluster, new: u32) -> Vec<u32> {
    let is_kept =
        |number: u32, record: &BenchmarkRecord| number != new && !record.is_left_behind(cluster);
    let kept = cluster.benchmarks.iter().filter(|(number, record)| is_kept(**number, record));
    let surplus = (kept.clone().count() + 1).saturating_sub(MOST_KEPT);
    kept.take(surplus).map(|(number, _)| *number).collect()
}

/// Counters of a node at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// Time of the moment, by a clock that never steps.
    pub at: Duration,
    /// Time that all CPUs together have worked, and time that they have had.
    pub cpu_busy: Duration,
    pub cpu_total: Duration,
    pub memory_used_mib: u64,
    pub memory_total_mib: u64,
    /// Load of the processes of that name, all together.
    pub processes: BTreeMap<String, ProcessSample>,
    /// Bytes that the interface to the storage has received and sent.
    pub received_bytes: u64,
    pub sent_bytes: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ProcessSample {
    pub cpu: Duration,
    pub memory_mib: u64,
}

/// Average load of a node during a test. Shares are percent of all CPUs and of all memory.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Load {
    pub cpu_total: f64,
    pub cpu_mon: f64,
    pub cpu_osd: f64,
    pub memory_total: f64,
    pub memory_mon: f64,
    pub memory_osd: f64,
    /// Bits per second.
    pub sent_bps: f64,
    pub received_bps: f64,
}

/// Returns the average load from the first of these samples to the last: what counts up by what it
/// has grown, memory by its mean. All is 0 for fewer than two.
pub fn load(samples: &[Sample]) -> Load {
    let [first, .., last] = samples else { return Load::default() };
    let time = last.at.saturating_sub(first.at).as_secs_f64();
    let cpu_time = last.cpu_total.saturating_sub(first.cpu_total).as_secs_f64();
    let share = |part: f64, whole: f64| if whole > 0.0 { round(part / whole * 100.0) } else { 0.0 };
    let process = |sample: &Sample, name| sample.processes.get(name).copied().unwrap_or_default();
    let cpu = |name| {
        // A process that has ended took its time with it.
        let grown = process(last, name).cpu.saturating_sub(process(first, name).cpu);
        share(grown.as_secs_f64(), cpu_time)
    };
    let mean = |part: &dyn Fn(&Sample) -> u64| {
        let shares = samples.iter().map(|sample| {
            let whole = sample.memory_total_mib.max(1) as f64;
            part(sample) as f64 / whole * 100.0
        });
        round(shares.sum::<f64>() / samples.len() as f64)
    };
    let memory = |name: &'static str| mean(&move |sample| process(sample, name).memory_mib);
    let bps = |first: u64, last: u64| match time > 0.0 {
        true => round(last.saturating_sub(first) as f64 * 8.0 / time),
        false => 0.0,
    };
    Load {
        cpu_total: share(last.cpu_busy.saturating_sub(first.cpu_busy).as_secs_f64(), cpu_time),
        cpu_mon: cpu(MON_PROCESS),
        cpu_osd: cpu(OSD_PROCESS),
        memory_total: mean(&|sample| sample.memory_used_mib),
        memory_mon: memory(MON_PROCESS),
        memory_osd: memory(OSD_PROCESS),
        sent_bps: bps(first.sent_bytes, last.sent_bytes),
        received_bps: bps(first.received_bytes, last.received_bytes),
    }
}

/// The figure with two digits behind the point.
fn round(figure: f64) -> f64 {
    (figure * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobProgress, JobSpec, JobState};

    fn record(number: u32, state: BenchmarkState) -> Arc<BenchmarkRecord> {
        Arc::new(BenchmarkRecord {
            number,
            name: format!("b{number}"),
            job: JobId::from_bits(number),
            volume: VolumeId::parse("vms/pvcbenchmark-1").unwrap(),
            made: None,
            format: FORMAT,
            state,
            reports: BTreeMap::new(),
        })
    }

    fn job(bits: u32, state: JobState) -> Arc<Job> {
        let spec = JobSpec {
            id: JobId::from_bits(bits),
            work: JobWork::BenchmarkStorage {
                pool: crate::storage::PoolName::new("vms"),
                name: format!("b{bits}"),
            },
            node: "hv1".into(),
            run_on: "primary".into(),
            submitter: String::new(),
            submitted_at: 0,
        };
        let progress = JobProgress { state, ..JobProgress::pending() };
        Arc::new(Job { spec, progress, cancel_requested: false, claim: None })
    }

    fn done() -> BenchmarkState {
        BenchmarkState::Done("{}".into())
    }

    fn cluster(records: Vec<Arc<BenchmarkRecord>>, jobs: Vec<Arc<Job>>) -> Cluster {
        let benchmarks = records.into_iter().map(|record| (record.number, record)).collect();
        let jobs = jobs.into_iter().map(|job| (job.spec.id.clone(), job)).collect();
        Cluster { benchmarks, jobs, ..Cluster::default() }
    }

    #[test]
    fn each_test_is_found_by_its_name_and_reads_or_writes() {
        for test in Test::ALL {
            assert_eq!(Test::parse(test.name()), Some(test));
            assert_eq!(test.is_read(), test.name().contains("read"), "{test:?}");
            let deep = if test.name().ends_with("lowdepth") { 1 } else { 64 };
            assert_eq!(test.depth(), deep, "{test:?}");
            let is_small = test.name().contains("4K");
            assert_eq!(test.block(), if is_small { "4K" } else { "4M" }, "{test:?}");
        }
        assert_eq!(Test::parse("rand_trim_4K"), None);
    }

    #[test]
    fn a_benchmark_whose_job_is_over_is_shown_only_with_a_result() {
        let running = BenchmarkState::Running;
        let records = vec![
            record(1, done()),
            record(2, running.clone()),
            record(3, running.clone()),
            record(4, running),
        ];
        let jobs = vec![job(2, JobState::Failed), job(3, JobState::Running)];
        let cluster = cluster(records, jobs);
        let numbers: Vec<u32> = shown(&cluster).iter().map(|record| record.number).collect();
        assert_eq!(numbers, [3, 1], "the newest first; of 4 there is no job any more");
        assert_eq!(at_work(&cluster).map(|job| job.spec.id.clone()), Some(JobId::from_bits(3)));
        assert_eq!(outdated(&cluster, 3), [0; 0], "of 2 and 4 a volume may be left");
        assert_eq!(next_number(&cluster), 5);
    }

    #[test]
    fn the_oldest_of_too_many_go_when_another_is_recorded() {
        let records = (1..=MOST_KEPT as u32).map(|number| record(number, done())).collect();
        let cluster = cluster(records, Vec::new());
        let next = next_number(&cluster);
        assert_eq!(outdated(&cluster, next), [1]);
        assert_eq!(outdated(&cluster, 7), [0; 0], "it takes its own place");
        assert_eq!(next_number(&Cluster::default()), 1);
    }

    #[test]
    fn a_job_that_waits_is_at_work_and_one_that_is_over_is_not() {
        let at = |state| at_work(&cluster(Vec::new(), vec![job(1, state)])).is_some();
        assert!(at(JobState::Pending) && at(JobState::Running));
        assert!(!at(JobState::Succeeded) && !at(JobState::Failed) && !at(JobState::Cancelled));
    }

    #[test]
    fn names_of_benchmarks_may_have_a_time_in_them() {
        for name in ["2024-11-14T12:00:00_pvchv1", "20241114120000", "new-disks"] {
            assert!(check_benchmark_name(name).is_ok(), "{name}");
        }
        for name in ["", "a/b", "a b", "\u{1b}[31m", &"x".repeat(129)] {
            assert!(check_benchmark_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_volume_of_a_benchmark_is_known_by_its_name_and_no_other_job_has_the_same() {
        let of = |bits| volume_of(&JobId::from_bits(bits));
        assert_ne!(of(1), of(2));
        for name in [of(1).as_str(), "pvcbenchmark", "pvcbenchmark-"] {
            assert!(is_own_volume(name), "{name}");
        }
        for name in ["", "web1_sda", "pvcbenchmarks", "my-pvcbenchmark", "PVCBENCHMARK"] {
            assert!(!is_own_volume(name), "{name}");
        }
    }

    #[test]
    fn tests_keep_to_the_whole_blocks_that_were_written() {
        const BLOCK: u64 = LARGEST_BLOCK_BYTES;
        assert_eq!(bytes_to_fill(8 << 30), 8 << 30);
        assert_eq!(bytes_to_fill(64 << 30), MOST_FILLED_BYTES);
        assert_eq!(filled(10 * BLOCK, 10 * BLOCK), Some(10 * BLOCK));
        assert_eq!(filled(3 * BLOCK + 1, 10 * BLOCK), Some(3 * BLOCK));
        assert_eq!(filled(BLOCK - 1, 10 * BLOCK), None);
        assert_eq!(filled(4096, 4096), Some(4096), "a volume smaller than a block");
        assert_eq!(filled(0, 10 * BLOCK), None);
    }

    fn sample(seconds: u64, osd_memory_mib: u64) -> Sample {
        let osd = ProcessSample { cpu: Duration::from_secs(seconds), memory_mib: osd_memory_mib };
        Sample {
            at: Duration::from_secs(100 + seconds),
            cpu_busy: Duration::from_secs(2 * seconds),
            cpu_total: Duration::from_secs(8 * seconds),
            memory_used_mib: 250,
            memory_total_mib: 1000,
            processes: [(OSD_PROCESS.to_owned(), osd)].into(),
            received_bytes: 1000 * seconds,
            sent_bytes: 500 * seconds,
        }
    }

    #[test]
    fn the_load_is_what_counters_have_grown_by_and_the_mean_of_memory() {
        let load = load(&[sample(0, 100), sample(2, 200), sample(4, 300)]);
        let wanted = Load {
            cpu_total: 25.0,
            cpu_mon: 0.0,
            cpu_osd: 12.5,
            memory_total: 25.0,
            memory_mon: 0.0,
            memory_osd: 20.0,
            sent_bps: 4000.0,
            received_bps: 8000.0,
        };
        assert_eq!(load, wanted);
    }

    #[test]
    fn one_sample_or_counters_that_begin_anew_are_no_load() {
        assert_eq!(load(&[]), Load::default());
        assert_eq!(load(&[sample(3, 1)]), Load::default());
        let back = load(&[sample(4, 0), sample(0, 0)]);
        assert_eq!((back.cpu_total, back.cpu_osd, back.sent_bps), (0.0, 0.0, 0.0));
    }
}
