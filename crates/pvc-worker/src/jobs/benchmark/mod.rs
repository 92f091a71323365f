//! Measures a pool with a volume of its own.
//!
//! ```text
//!  begin ─ make ─ fill ─ seq_read ─ … ─ rand_write_4K_lowdepth ─▶ remove ─ finish
//! ```
//!
//! The record of the benchmark is the first that is there and the last that goes. The volume has a
//! name that no other job makes and nobody else is given; the record says which one it is, by its
//! identity: one that has taken its place is left alone. What was never written is not read from
//! the disks, so a part of the volume is written first, and the tests keep to that. When they are
//! done there is no way back: the volume is removed, and the result recorded.

mod fio;
mod sampling;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::NodeName;
use pvc_model::benchmark::{
    BenchmarkRecord, BenchmarkState, FILL_TIME, FORMAT, Test, bytes_to_fill, filled, next_number,
    outdated, volume_of,
};
use pvc_model::cluster::Cluster;
use pvc_model::job::JobId;
use pvc_model::storage::{PoolName, VolumeId};
use pvc_ops::{Kind as RefusalKind, Refusal, benchmark};
use pvc_ports::{Exec, ExecError, Host, MeasuredPlace, MeasuredVolume, StorageError};
use pvc_store::{Change, Changes};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use self::fio::FioError;
use crate::context::{Context, Unwritten};
use crate::kind::{Kind, read};

/// Things that a node measures its storage with.
#[derive(Clone)]
pub struct BenchmarkTools {
    pub exec: Arc<dyn Exec>,
    pub host: Arc<dyn Host>,
    pub settings: BenchmarkSettings,
}

#[derive(Debug, Clone)]
pub struct BenchmarkSettings {
    /// The interface to the storage, if it has one of its own.
    pub storage_interface: Option<String>,
    pub volume_bytes: u64,
    /// Time of each test.
    pub test_time: Duration,
}

pub(crate) struct BenchmarkStorage {
    pub pool: PoolName,
    pub name: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    Begin,
    /// Makes the volume. What a benchmark has left that came to no end is removed before.
    Make {
        bytes: u64,
    },
    /// Writes so many bytes from the beginning of the volume on, or those for which there is time.
    Fill {
        bytes: u64,
    },
    Test {
        test: String,
    },
    Remove,
    Finish,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fact {
    Done,
    /// Identity of the volume.
    Made(String),
    /// Bytes that were written, from the beginning of the volume on.
    Filled(u64),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchmarkError {
    #[error("the worker of node `{node}` cannot measure its storage")]
    NoTools { node: NodeName },
    #[error("volume `{volume}` is not the one that was made for the benchmark")]
    Replaced { volume: VolumeId },
    #[error("test `{test}` is not known to this version of PVC")]
    UnknownTest { test: String },
    #[error("the storage has not taken one block in {} s", .0.as_secs())]
    Unfilled(Duration),
    #[error("the test was stopped")]
    Stopped,
    #[error("`{what}` is missing in what is recorded of the job")]
    Incomplete { what: &'static str },
    #[error(transparent)]
    Fio(#[from] FioError),
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl Refusal for BenchmarkError {
    fn kind(&self) -> RefusalKind {
        match self {
            BenchmarkError::Stopped => RefusalKind::Unavailable,
            BenchmarkError::Storage(
                StorageError::TimedOut { .. }
                | StorageError::Io { .. }
                | StorageError::InUse { .. },
            ) => RefusalKind::Unavailable,
            _ => RefusalKind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            BenchmarkError::NoTools { .. } => {
                Some("is its PVC as new as this one? `pvc node list` shows the versions".to_owned())
            }
            BenchmarkError::Fio(FioError::NotRun(ExecError::Missing { .. })) => {
                Some("install the package `fio` on the node that measures".to_owned())
            }
            BenchmarkError::Storage(
                StorageError::NoRoom { .. } | StorageError::BeyondSafe { .. },
            ) => Some("`benchmark.volume_gib` in pvc.conf sets the size of its volume".to_owned()),
            _ => None,
        }
    }
}

type Result<T, E = Unwritten<BenchmarkError>> = std::result::Result<T, E>;

#[async_trait]
impl Kind for BenchmarkStorage {
    type Step = Step;
    type Fact = Fact;
    type Error = Unwritten<BenchmarkError>;

    async fn plan(&self, context: &Context) -> Result<Vec<Step>> {
        let bytes = tools(context)?.settings.volume_bytes;
        let pool = context.tools.storage.pool(&self.pool).await.map_err(BenchmarkError::from)?;
        pool.check_room(bytes, false).map_err(BenchmarkError::from)?;
        let tests = Test::ALL.map(|test| Step::Test { test: test.name().to_owned() });
        let fill = Step::Fill { bytes: bytes_to_fill(bytes) };
        let mut steps = vec![Step::Begin, Step::Make { bytes }, fill];
        steps.extend(tests);
        steps.extend([Step::Remove, Step::Finish]);
        Ok(steps)
    }

    fn doing(&self, step: &Step) -> String {
        let pool = &self.pool;
        match step {
            Step::Begin => format!("recording benchmark \"{}\"", self.name),
            Step::Make { bytes } => format!("making a volume of {bytes} bytes in pool {pool}"),
            Step::Fill { bytes } => format!("writing {bytes} bytes that can be read"),
            Step::Test { test } => format!("doing test {test}"),
            Step::Remove => format!("removing the volume from pool {pool}"),
            Step::Finish => "recording the result".to_owned(),
        }
    }

    async fn look(&self, context: &Context, step: &Step) -> Result<Option<Fact>> {
        match step {
            Step::Begin => {
                let view = context.tools.store.fresh().await.map_err(Unwritten::Store)?;
                Ok(own(&view, &context.job).map(|_| Fact::Done))
            }
            Step::Make { .. } => match present(context, &self.volume(context)).await? {
                Some(present) => {
                    record_made(context, &present.identity).await?;
                    Ok(Some(Fact::Made(present.identity)))
                }
                None => Ok(None),
            },
            // How far it came is not known.
            Step::Fill { .. } => Ok(None),
            // A test that was cut off has measured nothing.
            Step::Test { test } => {
                let view = context.tools.store.fresh().await.map_err(Unwritten::Store)?;
                let is_done = own(&view, &context.job)
                    .is_some_and(|record| record.reports.contains_key(test));
                Ok(is_done.then_some(Fact::Done))
            }
            Step::Remove => {
                let made = made(context)?;
                let present = present(context, &self.volume(context)).await?;
                let is_there = present.is_some_and(|present| present.identity == made);
                Ok((!is_there).then_some(Fact::Done))
            }
            Step::Finish => {
                let view = context.tools.store.fresh().await.map_err(Unwritten::Store)?;
                let is_done =
                    |record: &Arc<BenchmarkRecord>| record.state != BenchmarkState::Running;
                Ok(own(&view, &context.job).filter(|record| is_done(record)).map(|_| Fact::Done))
            }
        }
    }

    async fn run(&self, context: &Context, step: &Step) -> Result<Fact> {
        match step {
            Step::Begin => self.begin(context).await,
            Step::Make { bytes } => self.make(context, *bytes).await,
            Step::Fill { bytes } => Ok(Fact::Filled(self.fill(context, *bytes).await?)),
            Step::Test { test } => {
                let unknown = || BenchmarkError::UnknownTest { test: test.clone() };
                let test = Test::parse(test).ok_or_else(unknown)?;
                let report = self.measure(context, test).await?;
                record_report(context, test, &report).await?;
                Ok(Fact::Done)
            }
            Step::Remove => {
                remove(context, &self.volume(context), &made(context)?).await?;
                Ok(Fact::Done)
            }
            Step::Finish => self.finish(context).await,
        }
    }

    /// A volume that is removed does not come back; the tests are done by then.
    fn is_final(&self, step: &Step) -> bool {
        matches!(step, Step::Remove)
    }

    async fn undo(&self, context: &Context, step: &Step) -> Result<()> {
        match step {
            Step::Begin => forget(context).await,
            Step::Make { .. } => self.remove_made(context).await,
            Step::Fill { .. } | Step::Test { .. } | Step::Remove | Step::Finish => Ok(()),
        }
    }

    async fn make_good(&self, context: &Context, step: &Step) -> Result<()> {
        match step {
            Step::Make { .. } => self.remove_made(context).await,
            _ => Ok(()),
        }
    }

    fn result(&self, _: &Context, _: &[Fact]) -> String {
        format!("benchmark \"{}\" of pool \"{}\" is done", self.name, self.pool)
    }
}

impl BenchmarkStorage {
    fn volume(&self, context: &Context) -> VolumeId {
        VolumeId { pool: self.pool.clone(), volume: volume_of(&context.job) }
    }

    async fn begin(&self, context: &Context) -> Result<Fact> {
        let record = |number| BenchmarkRecord {
            number,
            name: self.name.clone(),
            job: context.job.clone(),
            volume: self.volume(context),
            made: None,
            format: FORMAT,
            state: BenchmarkState::Running,
            reports: BTreeMap::new(),
        };
        let decide = |cluster: &Cluster| {
            let mut changes = Changes::new();
            if own(cluster, &context.job).is_none() {
                changes.push(Change::PutBenchmark(record(next_number(cluster))));
            }
            Ok((changes, Fact::Done))
        };
        context.change(decide).await
    }

    async fn make(&self, context: &Context, bytes: u64) -> Result<Fact> {
        remove_left_behind(context).await?;
        let (storage, volume) = (&context.tools.storage, self.volume(context));
        match storage.create(&volume, bytes, false).await {
            // An earlier worker of this job, which was believed lost, has made it just now.
            Ok(()) | Err(StorageError::VolumeExists { .. }) => {}
            Err(error) => return Err(BenchmarkError::from(error).into()),
        }
        let measured = storage.measured(&volume).await.map_err(BenchmarkError::from)?;
        record_made(context, &measured.identity).await?;
        Ok(Fact::Made(measured.identity))
    }

    /// The place of the volume that was made.
    async fn place(&self, context: &Context) -> Result<MeasuredPlace, BenchmarkError> {
        let volume = self.volume(context);
        let measured = context.tools.storage.measured(&volume).await?;
        match measured.identity == made(context)? {
            true => Ok(measured.place),
            false => Err(BenchmarkError::Replaced { volume }),
        }
    }

    /// Returns how many bytes can be read.
    async fn fill(&self, context: &Context, bytes: u64) -> Result<u64, BenchmarkError> {
        let place = self.place(context).await?;
        let command = fio::fill(bytes, &place, FILL_TIME);
        let output = tokio::select! {
            biased;
            () = context.cancelled.cancelled() => return Err(BenchmarkError::Stopped),
            output = tools(context)?.exec.run(command) => output.map_err(FioError::from)?,
            () = sampling::watch_filling(context, bytes) => {
                unreachable!("it never ends by itself")
            }
        };
        filled(fio::written(&output)?, bytes).ok_or(BenchmarkError::Unfilled(FILL_TIME))
    }

    async fn measure(&self, context: &Context, test: Test) -> Result<String, BenchmarkError> {
        let tools = tools(context)?;
        let (place, bytes) = (self.place(context).await?, readable(context)?);
        let command = fio::test(test, bytes, &place, tools.settings.test_time);
        let mut samples = Vec::new();
        let output = tokio::select! {
            biased;
            () = context.cancelled.cancelled() => return Err(BenchmarkError::Stopped),
            output = tools.exec.run(command) => output.map_err(FioError::from)?,
            () = sampling::sample(context, tools, test, &mut samples) => {
                unreachable!("it never ends by itself")
            }
        };
        let load = pvc_model::benchmark::load(&samples);
        Ok(fio::report(test, &output, &load)?)
    }

    /// Removes what the job has made, whether or not it came to record which that is. Another that
    /// has taken its place is left alone.
    async fn remove_made(&self, context: &Context) -> Result<()> {
        let view = context.tools.store.fresh().await.map_err(Unwritten::Store)?;
        let volume = self.volume(context);
        let Some(present) = present(context, &volume).await? else { return Ok(()) };
        let recorded = own(&view, &context.job).and_then(|record| record.made.clone());
        let made = recorded.or_else(|| made(context).ok());
        if made.is_none_or(|made| made == present.identity) {
            remove(context, &volume, &present.identity).await?;
            context.log(format!("volume {volume} is removed"));
        }
        Ok(())
    }

    async fn finish(&self, context: &Context) -> Result<Fact> {
        let decide = |cluster: &Cluster| {
            let mut changes = Changes::new();
            let Some(record) = own(cluster, &context.job) else {
                return Err(BenchmarkError::Incomplete { what: "benchmark" });
            };
            let result = result(record)?;
            for number in outdated(cluster, record.number) {
                changes.push(Change::RemoveBenchmark(number));
            }
            let state = BenchmarkState::Done(result.as_str().into());
            let reports = BTreeMap::new();
            let done = BenchmarkRecord { made: None, state, reports, ..(**record).clone() };
            changes.push(Change::PutBenchmark(done));
            Ok((changes, Fact::Done))
        };
        context.change(decide).await
    }
}

fn tools(context: &Context) -> Result<&BenchmarkTools, BenchmarkError> {
    let no_tools = || BenchmarkError::NoTools { node: context.tools.node.clone() };
    context.tools.benchmarks.as_deref().ok_or_else(no_tools)
}

/// The record that this job has made.
fn own<'a>(cluster: &'a Cluster, job: &JobId) -> Option<&'a Arc<BenchmarkRecord>> {
    cluster.benchmarks.values().find(|record| record.job == *job)
}

/// Changes the record that this job has made.
async fn change_own(
    context: &Context,
    change: impl Fn(&BenchmarkRecord) -> BenchmarkRecord + Send + Sync,
) -> Result<()> {
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        let record = own(cluster, &context.job);
        let record = record.ok_or(BenchmarkError::Incomplete { what: "benchmark" })?;
        let changed = change(record);
        if changed != **record {
            changes.push(Change::PutBenchmark(changed));
        }
        Ok((changes, ()))
    };
    context.change(decide).await
}

/// Records which volume was made.
async fn record_made(context: &Context, identity: &str) -> Result<()> {
    let change = |record: &BenchmarkRecord| {
        let made = Some(identity.to_owned());
        BenchmarkRecord { made, ..record.clone() }
    };
    change_own(context, change).await
}

async fn record_report(context: &Context, test: Test, report: &str) -> Result<()> {
    let change = |record: &BenchmarkRecord| {
        let mut record = record.clone();
        record.reports.insert(test.name().to_owned(), report.into());
        record
    };
    change_own(context, change).await
}

/// The volume that has the name at present.
async fn present(
    context: &Context,
    volume: &VolumeId,
) -> Result<Option<MeasuredVolume>, BenchmarkError> {
    Ok(benchmark::volume_now(context.tools.storage.as_ref(), volume).await?)
}

/// Removes the volume with this identity, if it is there and has the name.
async fn remove(
    context: &Context,
    volume: &VolumeId,
    identity: &str,
) -> Result<(), BenchmarkError> {
    Ok(benchmark::remove_volume(context.tools.storage.as_ref(), volume, identity).await?)
}

/// Removes what benchmarks have left that have come to no end.
async fn remove_left_behind(context: &Context) -> Result<()> {
    let tools = &context.tools;
    let removed = benchmark::remove_left_behind(&tools.store, tools.storage.as_ref()).await;
    for volume in removed.map_err(|error| error.map_refused(BenchmarkError::from))? {
        context.log(format!("volume {volume}, which was left, is removed"));
    }
    Ok(())
}

/// Forgets the benchmark of this job.
async fn forget(context: &Context) -> Result<()> {
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        if let Some(record) = own(cluster, &context.job) {
            changes.push(Change::RemoveBenchmark(record.number));
        }
        Ok((changes, ()))
    };
    context.change(decide).await
}

/// The results of the steps that are done.
fn facts(context: &Context) -> Result<Vec<Fact>, BenchmarkError> {
    let facts = context.progress().steps.map(|steps| steps.facts).unwrap_or_default();
    let facts = facts.iter().map(|fact| read(fact)).collect();
    let unread = |_| BenchmarkError::Incomplete { what: "facts" };
    std::result::Result::map_err(facts, unread)
}

/// Identity of the volume that was made, as it is recorded with the job.
fn made(context: &Context) -> Result<String, BenchmarkError> {
    let made = facts(context)?.into_iter().find_map(|fact| match fact {
        Fact::Made(identity) => Some(identity),
        _ => None,
    });
    made.ok_or(BenchmarkError::Incomplete { what: "volume" })
}

/// Bytes of the volume that were written, as it is recorded with the job.
fn readable(context: &Context) -> Result<u64, BenchmarkError> {
    let filled = facts(context)?.into_iter().find_map(|fact| match fact {
        Fact::Filled(bytes) => Some(bytes),
        _ => None,
    });
    filled.ok_or(BenchmarkError::Incomplete { what: "filled" })
}

/// The reports of all tests, as one JSON object.
fn result(record: &BenchmarkRecord) -> Result<String, BenchmarkError> {
    let member = |test: Test| {
        let report = record.reports.get(test.name());
        let report = report.and_then(|text| RawValue::from_string(text.to_string()).ok());
        let report = report.ok_or(BenchmarkError::Incomplete { what: "reports" })?;
        Ok(format!("\"{}\":{report}", test.name()))
    };
    let members: Result<Vec<String>, BenchmarkError> = Test::ALL.into_iter().map(member).collect();
    Ok(format!("{{{}}}", members?.join(",")))
}
