//! Benchmarks of the storage.

use axum::http::StatusCode;
use pvc_api_types::Benchmark;
use pvc_api_types::operations::benchmark::{GetStorageCephBenchmark, PostStorageCephBenchmark};
use pvc_model::benchmark::{BenchmarkRecord, shown};
use pvc_ops::benchmark::run_benchmark;

use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::table::{Ask, Table};
use crate::view;

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
    let found: Vec<Benchmark> = records.map(view::benchmark::benchmark).collect();
    match (found.is_empty(), wanted) {
        (false, _) => Ok(Answer::json(&found)),
        (true, None) => Err(none("there are no benchmarks".to_owned())),
        (true, Some(name)) => {
            Err(none(format!("there is no benchmark `{}`", pvc_model::shown(&name))))
        }
    }
}

fn none(message: String) -> ApiError {
    let hint = "`pvc storage benchmark run` does one".to_owned();
    ApiError::new(StatusCode::NOT_FOUND, message).hint(Some(hint))
}

async fn post_storage_ceph_benchmark(
    ask: Ask<PostStorageCephBenchmark>,
) -> Result<Answer<PostStorageCephBenchmark>> {
    let (given, caller) = (ask.params, ask.caller);
    let submit = |api: crate::state::ApiState| async move {
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
