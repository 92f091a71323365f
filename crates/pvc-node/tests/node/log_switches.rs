//! Lines of regular work in the log, by the switches of the configuration.

use std::io::Write;
use std::sync::{Arc, Mutex};

use pvc_node::LogSwitches;
use tokio_util::sync::CancellationToken;

use crate::world::{INTERVAL, world};

const OFF: LogSwitches =
    LogSwitches { keepalives: false, cluster_details: false, monitoring_details: false };

/// Collects what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Log of a node in ten keepalives.
async fn log_with(switches: LogSwitches) -> String {
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let mut world = world().await;
    world.settings.log = switches;
    world.settings.start_services = true;
    let shutdown = CancellationToken::new();
    pvc_node::before_store(&world.settings, &world.ports(), &shutdown).await.unwrap();
    let daemon = world.running().await;
    world.pass(10 * INTERVAL.as_secs()).await;
    daemon.stop().await;
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("started"), "the log is heard: {text}");
    text
}

/// Numbers of lines of each kind a node logs in ten keepalives: keepalives, figures, looks at
/// guests.
async fn lines_with(switches: LogSwitches) -> [usize; 3] {
    let text = log_with(switches).await;
    let count = |words: &[&str]| {
        text.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    };
    [
        count(&["keepalive", "state=\"run\"", "role=", "domains=\"ready\""]),
        count(&[
            "VMs: 0",
            "load: ",
            "memory MiB: 16384 total",
            "vCPUs allocated: 0",
            "guest figures: ",
        ]),
        count(&["figures of guests read", "guests=0", "milliseconds="]),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_node_is_silent_about_its_regular_work_unless_asked() {
    assert_eq!(lines_with(OFF).await, [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn each_switch_brings_its_own_line_with_every_keepalive() {
    let each = |lines: usize| (8..=12).contains(&lines);
    let [keepalives, figures, looks] = lines_with(LogSwitches { keepalives: true, ..OFF }).await;
    assert!(each(keepalives) && figures == 0 && looks == 0, "{keepalives} {figures} {looks}");

    let with_figures = LogSwitches { keepalives: true, cluster_details: true, ..OFF };
    let [keepalives, figures, looks] = lines_with(with_figures).await;
    assert!(each(keepalives) && each(figures) && looks == 0, "{keepalives} {figures} {looks}");

    let [keepalives, figures, looks] =
        lines_with(LogSwitches { monitoring_details: true, ..OFF }).await;
    assert!(keepalives == 0 && figures == 0 && each(looks), "{keepalives} {figures} {looks}");
}

#[tokio::test(start_paused = true)]
async fn figures_come_with_keepalives_only() {
    assert_eq!(lines_with(LogSwitches { cluster_details: true, ..OFF }).await, [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn that_nobody_judges_the_health_of_a_node_is_said_once() {
    let log = log_with(OFF).await;
    assert_eq!(log.matches("the health of this node is not judged").count(), 1, "{log}");
}
