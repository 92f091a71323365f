//! Benchmarks of the storage.

use crate::Benchmark;

params! {
    /// Filter of the benchmarks to list.
    #[derive(Default)]
    pub struct BenchmarkFilter {
        /// Only the one with this name.
        job: Option<String>,
    }
}

params! {
    /// A benchmark to run.
    pub struct BenchmarkRun {
        /// The pool to measure.
        pool: String,
        /// Its name; without one the time, and the node that does it.
        name: Option<String>,
    }
}

operations! { "storage-benchmark":
    /// The benchmarks, the newest first: those that are done, and the one at work.
    GetStorageCephBenchmark {
        GET "/storage/ceph/benchmark", Reader, read(BenchmarkFilter) -> [Benchmark]
    }

    /// Measures a pool: makes a volume in it, has fio do eight tests on that, and removes it.
    ///
    /// Refused are a pool that is not there, and a second benchmark at the same time.
    PostStorageCephBenchmark {
        POST "/storage/ceph/benchmark", Administrator, task(BenchmarkRun)
    }
}
