//! Benchmarks of the storage.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use pvc_api_types::Benchmark;
use pvc_api_types::operations::benchmark::{GetStorageCephBenchmark, PostStorageCephBenchmark};
use pvc_model::benchmark::{BenchmarkRecord, shown};
use pvc_ops::benchmark::run_benchmark;

use super::provisioner::late;
use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::refuse::not_provisioned;
use crate::state::ApiState;
use crate::table::{Ask, Table};
use crate::view;

/// Time that the database of the provisioner has: ours are not to wait for it.
const FORMER_WITHIN: Duration = Duration::from_secs(2);

pub fn add(table: Table) -> Table {
    table.add(get_storage_ceph_benchmark).add(post_storage_ceph_benchmark)
}

async fn get_storage_ceph_benchmark(
    ask: Ask<GetStorageCephBenchmark>,
) -> Result<Answer<GetStorageCephBenchmark>> {
    let (wanted, cluster) = (ask.params.job, ask.api.view());
    let is_wanted =
        |record: &&BenchmarkRecord| wanted.as_ref().is_none_or(|name| record.name == *name);
    let records = shown(&cluster).into_iter().map(AsRef::as_ref).filter(is_wanted);
    let mut found: Vec<Benchmark> = records.map(view::benchmark::benchmark).collect();
    match former(&ask.api, wanted.clone()).await {
        Ok(former) => found.extend(former.iter().cloned()),
        Err(error) if found.is_empty() => return Err(error),
        Err(error) => tracing::debug!(?error, "benchmarks of PVC 1.0.3 are left out"),
    }
    match (found.is_empty(), wanted) {
        (false, _) => Ok(Answer::json(&found)),
        (true, None) => Err(none("there are no benchmarks".to_owned())),
        (true, Some(name)) => {
            Err(none(format!("there is no benchmark `{}`", pvc_model::shown(&name))))
        }
    }
}

/// The benchmarks that PVC 1.0.3 has recorded in the database, where there is one; read once for
/// all who ask for the same.
async fn former(api: &ApiState, name: Option<String>) -> Result<Arc<Vec<Benchmark>>> {
    let Ok(provisioner) = api.provisioner().cloned() else { return Ok(Arc::default()) };
    let wanted = name.clone();
    let read = async move {
        let records = provisioner.former_benchmarks(wanted.as_deref()).await;
        let records = records.map_err(not_provisioned)?;
        let shown = move || records.into_iter().map(view::benchmark::former_benchmark).collect();
        let shown = tokio::task::spawn_blocking(shown).await;
        Ok::<Vec<Benchmark>, ApiError>(shown.expect("reading a text does not panic"))
    };
    let answer = api.former_benchmarks().answered(api.clock().clone(), name, read);
    let answer = tokio::time::timeout(FORMER_WITHIN, answer).await;
    answer.unwrap_or_else(|_| Err(late(FORMER_WITHIN, "")))
}

fn none(message: String) -> ApiError {
    let hint = "`pvc storage benchmark run` does one".to_owned();
    ApiError::new(StatusCode::NOT_FOUND, message).hint(Some(hint))
}

async fn post_storage_ceph_benchmark(
    ask: Ask<PostStorageCephBenchmark>,
) -> Result<Answer<PostStorageCephBenchmark>> {
    let (given, caller) = (ask.params, ask.caller);
    let submit = |api: ApiState| async move {
        let (clock, random) = (api.clock(), api.random());
        let name = given.name.as_deref();
        run_benchmark(
            api.store(),
            clock.as_ref(),
            random.as_ref(),
            &given.pool,
            name,
            &caller.description,
        )
        .await
    };
    let job = ask.api.carry_out(submit).await?;
    Ok(Answer::submitted(&job, ask.mode))
}
