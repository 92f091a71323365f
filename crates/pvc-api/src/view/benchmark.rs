//! Benchmarks of the storage, on the wire.

use pvc_api_types as api;
use pvc_model::benchmark::{BenchmarkRecord, BenchmarkState};
use pvc_provisioner::FormerBenchmark;
use serde_json::{Map, Value};

const RUNNING: &str = "Running";

pub fn benchmark(record: &BenchmarkRecord) -> api::Benchmark {
    let benchmark_result = match &record.state {
        BenchmarkState::Running => Value::String(RUNNING.to_owned()),
        BenchmarkState::Done(text) => result(text),
    };
    api::Benchmark {
        id: record.number,
        job: record.name.clone(),
        test_format: i64::from(record.format),
        benchmark_result,
    }
}

/// A benchmark that PVC 1.0.3 has recorded.
pub fn former_benchmark(record: FormerBenchmark) -> api::Benchmark {
    let FormerBenchmark { id, job, format, result: text } = record;
    let benchmark_result = match text.as_str() {
        RUNNING => Value::String(text),
        text => result(text),
    };
    api::Benchmark {
        id: u32::try_from(id).unwrap_or_default(),
        job,
        test_format: format,
        benchmark_result,
    }
}

/// A result that cannot be read is shown as an empty object, as PVC 1.0.3 does.
fn result(text: &str) -> Value {
    let read = serde_json::from_str(text).ok().filter(Value::is_object);
    read.unwrap_or_else(|| Value::Object(Map::new()))
}
