//! A node that measures its storage with an fio that there is not.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{Command, Exec, ExecError, HostUsage, Output};
use pvc_testkit::{FakeHost, Gate, ScriptedExec};
use pvc_worker::{BenchmarkSettings, BenchmarkTools};

pub const VOLUME_BYTES: u64 = 1 << 20;
pub const TEST_TIME: Duration = Duration::from_secs(10);

/// Report of fio, as far as it is needed.
pub const REPORT: &str = r#"{"fio version":"fio-3.33","jobs":[{"error":0,"job_runtime":10000,
    "read":{"bw_bytes":1,"iops":2.5,"io_bytes":3},
    "write":{"bw_bytes":4,"iops":5.5,"io_bytes":1048576},
    "latency_us":{"100":0.0,"250":99.5}}]}"#;

/// Takes as long as the test does, and prints a report.
struct TimedFio(Arc<Gate>);

#[async_trait]
impl Exec for TimedFio {
    async fn run(&self, command: Command) -> Result<Output, ExecError> {
        assert_eq!(command.program, "fio");
        self.0.pass().await;
        tokio::time::sleep(TEST_TIME).await;
        self.0.pass().await;
        Ok(ScriptedExec::success(REPORT))
    }
}

/// Means of a node whose fio passes the gate before each test and after it.
pub fn tools(gate: Arc<Gate>) -> BenchmarkTools {
    with_exec(Arc::new(TimedFio(gate)))
}

pub fn with_exec(exec: Arc<dyn Exec>) -> BenchmarkTools {
    let host = FakeHost::new();
    host.set_usage_between_looks(HostUsage {
        cpu_busy: Duration::from_secs(1),
        cpu_total: Duration::from_secs(4),
        memory_total_mib: 1000,
        memory_used_mib: 500,
        ..HostUsage::default()
    });
    let settings = BenchmarkSettings {
        storage_interface: None,
        volume_bytes: VOLUME_BYTES,
        test_time: TEST_TIME,
    };
    BenchmarkTools { exec, host: Arc::new(host), settings }
}
