//! Benchmarks of the storage.

use serde_json::Value;

wire! {
    pub struct Benchmark {
        /// Grows from one benchmark to the next.
        pub id: u32,
        /// The name of the benchmark.
        pub job: String,
        /// Format of the result: 2 is that of this version and of PVC 1.0.3.
        pub test_format: i64,
        /// `Running`, or an object with a member for each test: the report of fio, with the load
        /// of the node beside it.
        #[schema(value_type = Object)]
        pub benchmark_result: Value,
    }
}
