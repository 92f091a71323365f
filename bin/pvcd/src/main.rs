//! Every PVC daemon in one program: wiring only. Start reading in `standalone.rs`, the list of what
//! one machine needs, or `cluster.rs`, the same in pieces.

#![forbid(unsafe_code)]

mod args;
mod cluster;
mod dump;
mod lease;
mod ports;
mod report;
mod settings;
mod signals;
mod standalone;
mod supervise;
mod token;

use std::os::unix::process::CommandExt;
use std::sync::Arc;
use std::time::Duration;

use args::{Arguments, Role, StandaloneStart, Start};
use lease::LeaseCall;
use pvc_daemon::Shutdown;
use pvc_linux::SystemClock;
use pvc_node::Outcome;
use pvc_ports::Clock;

/// The threads that a daemon's tasks share on a machine of any size. They wait most of the time,
/// and each has a stack and caches of its own; what computes is the guests. On a small machine they
/// are as many: one may stand still.
const THREADS: usize = 4;

/// Interval at which a thread is woken to serve timers and sockets.
const WAKE_EVERY: Duration = Duration::from_millis(500);

/// Time that threads that wait for the system, the name of a server that nobody resolves for one,
/// may go on at the end.
const LAST_THREADS: Duration = Duration::from_secs(1);

/// Interval at which memory that is free goes back to the system: some milliseconds of work each
/// time.
const TIDY_EVERY: Duration = Duration::from_secs(30);

fn main() {
    pvc_linux::one_heap();
    // dnsmasq's words are no command line of ours.
    let ended = match LeaseCall::of_process() {
        Some(call) => call.report(),
        None => run(Arguments::from_process()),
    };
    let code = ended.unwrap_or_else(|error| {
        report::error(&error);
        1
    });
    pvc_linux::leave(code)
}

/// Returns the exit code.
fn run(arguments: Arguments) -> anyhow::Result<u8> {
    let start = match &arguments.role {
        Role::Node(start)
        | Role::Api(start)
        | Role::Worker(start)
        | Role::Standalone(StandaloneStart { start, .. }) => start,
    };
    if start.version {
        report::say(&format!("{} {}", args::program(), env!("CARGO_PKG_VERSION")));
        return Ok(0);
    }
    match &start.check_config {
        Some(file) => check_config(file),
        None => on_runtime(arguments.role),
    }
}

fn check_config(file: &std::path::Path) -> anyhow::Result<u8> {
    let machine = pvc_config::Machine::this()?;
    let checked = pvc_config::check(file, &machine.hostname);
    report::say(&checked.to_string());
    Ok(checked.exit_code())
}

fn on_runtime(role: Role) -> anyhow::Result<u8> {
    let runtime = runtime()?;
    runtime.spawn(give_memory_back());
    let shutdown = Shutdown::new(Arc::new(SystemClock));
    let ended = runtime.block_on(play(role, &shutdown));
    runtime.shutdown_timeout(shutdown.at_most(LAST_THREADS));
    ended
}

/// The runtime of all tasks, whose timers and sockets are served although one of its threads stands
/// still.
///
/// A thread that waits for timers and sockets for all others runs what it was woken for, and wakes
/// nobody else for a single task: if that stands still, in the kernel or on a file, all others wait
/// with it (tokio-rs/tokio#4730). A task that comes from outside wakes one, which serves them next.
/// It does not help the task that the one that stands still has woken last, which waits for its
/// thread; nor where all of them stand still.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new().name("waker".to_owned()).spawn(move || {
        loop {
            // Earlier now and then is as well.
            std::thread::park_timeout(WAKE_EVERY);
            drop(handle.spawn(async {}));
        }
    })?;
    Ok(runtime)
}

/// Gives memory back: what a start or a large reply needed for a moment is not this daemon's for
/// ever.
async fn give_memory_back() {
    loop {
        SystemClock.sleep(TIDY_EVERY).await;
        // Not on a thread that tasks wait for.
        let _ = tokio::task::spawn_blocking(pvc_linux::give_back_memory).await;
    }
}

async fn play(role: Role, shutdown: &Shutdown) -> anyhow::Result<u8> {
    // Once for the whole process, before anything speaks TLS. It fails only if it was done before.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    // Each on the heap: else this future, and with it the first thread's stack, which keeps what it
    // has once used, would be as large for every role as for the largest.
    let ended = match role {
        Role::Node(Start { config, .. }) => Box::pin(cluster::node(config, shutdown)).await?,
        Role::Api(Start { config, .. }) => Box::pin(cluster::api(config, shutdown)).await?,
        Role::Worker(Start { config, .. }) => Box::pin(cluster::worker(config, shutdown)).await?,
        Role::Standalone(StandaloneStart { start, recover }) => {
            Box::pin(standalone::run(start.config, recover, shutdown)).await?
        }
    };
    match ended {
        Outcome::Stopped => Ok(0),
        Outcome::Reexec => Err(execute_anew()),
    }
}

/// Replaces this process by a new run of the same program: same pid, same arguments. Returns only
/// if that failed.
fn execute_anew() -> anyhow::Error {
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_default();
    // The name under which it was called is its role; the file may have been replaced by an
    // upgrade.
    let error = std::process::Command::new(&name).arg0(&name).args(args).exec();
    anyhow::Error::new(error).context("the daemon could not be executed anew")
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc;

    use tokio::io::AsyncReadExt;

    use super::*;

    /// Whoever reads the socket is the one task that its thread is woken for, and stands still.
    #[test]
    fn a_task_that_stands_still_stops_no_timer_of_another() {
        let runtime = runtime().unwrap();
        let (mut near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let (tick, ticks) = mpsc::channel();
        let (rest, idle) = mpsc::channel();
        runtime.spawn(async move {
            loop {
                SystemClock.sleep(Duration::from_millis(20)).await;
                let _ = tick.send(());
                let _ = rest.send(());
            }
        });
        let (waits, waiting) = mpsc::channel();
        let stands_still = runtime.spawn(async move {
            let mut far = tokio::net::UnixStream::from_std(far).unwrap();
            waits.send(()).unwrap();
            far.read_u8().await.unwrap();
            ticks.try_iter().for_each(drop);
            (0..10).all(|_| ticks.recv_timeout(Duration::from_secs(20)).is_ok())
        });
        waiting.recv().unwrap();
        // All threads wait when it is woken.
        (0..2).for_each(|_| idle.recv().unwrap());
        near.write_all(&[1]).unwrap();
        assert!(runtime.block_on(stands_still).unwrap(), "the timers were not served");
        runtime.shutdown_background();
    }
}
