//! Benchmarks of the storage.

use serde_json::Value;
use utoipa::openapi::Schema;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};

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
        #[schema(schema_with = text_or_object)]
        pub benchmark_result: Value,
    }
}

fn text_or_object() -> Schema {
    let of = |kind| ObjectBuilder::new().schema_type(kind);
    let either = OneOfBuilder::new().item(of(Type::String)).item(of(Type::Object));
    let description = "`Running`, or an object with a member for each test: the report of fio, \
                       with the load of the node beside it.";
    Schema::OneOf(either.description(Some(description)).build())
}
