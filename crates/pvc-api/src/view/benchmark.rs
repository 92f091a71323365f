//! Benchmarks of the storage, on the wire.

use pvc_api_types as api;
use pvc_model::benchmark::{BenchmarkRecord, BenchmarkState};
use serde_json::{Map, Value};

/// A result that cannot be read is shown as an empty object, as PVC 1.0.3 does.
pub fn benchmark(record: &BenchmarkRecord) -> api::Benchmark {
    let benchmark_result = match &record.state {
        BenchmarkState::Running => Value::String("Running".to_owned()),
        BenchmarkState::Done(text) => {
            let read = serde_json::from_str(text).ok().filter(Value::is_object);
            read.unwrap_or_else(|| Value::Object(Map::new()))
        }
    };
    api::Benchmark {
        id: record.number,
        job: record.name.clone(),
        test_format: i64::from(record.format),
        benchmark_result,
    }
}
