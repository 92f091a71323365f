//! Looks at the load of the node while a test is under way.

use std::time::Duration;

use pvc_model::benchmark::{
    FILL_TIME, MON_PROCESS, OSD_PROCESS, ProcessSample, SAMPLE_EVERY, SETTLING_TIME, Sample, Test,
};
use pvc_ports::{HostUsage, aside};

use super::BenchmarkTools;
use crate::context::Context;

/// Says how long the volume is being filled, for as long as it is asked to.
pub(super) async fn watch_filling(context: &Context, bytes: u64) {
    let clock = &context.tools.clock;
    let begun = clock.monotonic();
    loop {
        clock.sleep(SAMPLE_EVERY).await;
        let seconds = clock.monotonic().saturating_sub(begun).as_secs();
        context.edit(|progress| {
            progress.status = format!(
                "writing {bytes} bytes that can be read: {seconds} s of at most {} s",
                FILL_TIME.as_secs()
            );
        });
    }
}

/// Collects samples, and says how far the test is, for as long as it is asked to.
pub(super) async fn sample(
    context: &Context,
    tools: &BenchmarkTools,
    test: Test,
    samples: &mut Vec<Sample>,
) {
    let (clock, settings) = (&context.tools.clock, &tools.settings);
    let begun = clock.monotonic();
    // A short test settles in a part of it.
    let settled = SETTLING_TIME.min(settings.test_time / 5);
    let every = SAMPLE_EVERY.min(settings.test_time / 5).max(Duration::from_millis(100));
    loop {
        clock.sleep(every).await;
        let time = clock.monotonic().saturating_sub(begun);
        let (done, whole) = (time.as_secs(), settings.test_time.as_secs());
        context.edit(|progress| {
            progress.status =
                format!("doing test {}: {} s of {whole} s", test.name(), done.min(whole));
        });
        if time < settled || time > settings.test_time {
            continue;
        }
        // It goes through all processes.
        let (host, interface) = (tools.host.clone(), settings.storage_interface.clone());
        let looked =
            aside(move || host.usage(&[OSD_PROCESS, MON_PROCESS], interface.as_deref())).await;
        match looked {
            Ok(usage) => samples.push(taken(clock.monotonic(), usage)),
            Err(error) => tracing::debug!(%error, "the load of this node could not be looked at"),
        }
    }
}

fn taken(at: Duration, usage: HostUsage) -> Sample {
    let processes = usage.processes.into_iter().map(|(name, process)| {
        (name, ProcessSample { cpu: process.cpu, memory_mib: process.memory_mib })
    });
    Sample {
        at,
        cpu_busy: usage.cpu_busy,
        cpu_total: usage.cpu_total,
        memory_used_mib: usage.memory_used_mib,
        memory_total_mib: usage.memory_total_mib,
        processes: processes.collect(),
        received_bytes: usage.received_bytes,
        sent_bytes: usage.sent_bytes,
    }
}
