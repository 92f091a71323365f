//! The daemon itself, with all roles in one process as it is installed on one machine.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pvc_linux::SystemClock;
use pvc_ports::Clock;
use pvc_store::synthetic::Shape;

use crate::child::memory_of;
use crate::http::{Client, KEY};
use crate::measure::{Scale, now};
use crate::place::{Kind, Place, runtime};
use crate::report::{Budget, Figure, Quantity, grouped};

/// How long the daemon may take until its API answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// The daemon makes this folder; it is removed again if it is empty.
const RUN: &str = "/run/pvc";

/// What it takes to begin, and what it takes after work.
struct Memory {
    fresh: u64,
    used: u64,
}

/// The memory of the daemon with a cluster of the usual size, against that with a small one.
pub fn figures(kind: Kind, pvcd: &Path, scale: &Scale) -> Result<Vec<Figure>> {
    if kind != Kind::Embedded {
        return Ok(Vec::new()); // Standalone mode has its tree in the process.
    }
    ensure!(pvcd.exists(), "`{}` is not built; `cargo build --release -p pvcd` makes it", pvcd.display());
    let small = measure(pvcd, scale.small(), scale)?;
    let usual = measure(pvcd, scale.usual(), scale)?;
    let vms = grouped(scale.usual());
    let with_few = format!("with {} VMs", scale.small());
    let figure = |what: &str, usual: u64, small: u64| {
        Figure::new(format!("memory of `pvcd standalone`, {vms} VMs, {what}"), Quantity::Bytes(usual))
            .against(with_few.clone(), Quantity::Bytes(small))
            .budget(Budget::Bytes(60_000_000))
    };
    Ok(vec![
        figure("just started", usual.fresh, small.fresh),
        figure("after lists and metrics", usual.used, small.used),
    ])
}

fn measure(pvcd: &Path, vms: usize, scale: &Scale) -> Result<Memory> {
    let place = Place::make(Kind::Embedded, Shape::with_vms(vms))?;
    let mut daemon = Daemon::start(pvcd, place.directory())?;
    let mut client = daemon.when_it_answers()?;
    let fresh = memory_of(daemon.child.id())?;
    for path in ["/api/v1/vm", "/api/v1/status", "/api/v1/metrics", "/api/v1/node"] {
        for _ in 0..scale.requests.div_ceil(5) {
            client.get(path)?;
        }
    }
    let used = memory_of(daemon.child.id())?;
    daemon.stop()?;
    Ok(Memory { fresh, used })
}

struct Daemon {
    child: Child,
    port: u16,
    log: PathBuf,
    made_run: bool,
}

impl Daemon {
    /// Starts a standalone PVC that keeps everything in `state`, and finds a filled tree there.
    fn start(pvcd: &Path, state: &Path) -> Result<Daemon> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let (config, log) = (state.join("pvc.conf"), state.join("output"));
        std::fs::write(&config, configuration(state, port))?;
        let output = File::create(&log)?;
        let made_run = !Path::new(RUN).exists();
        let child = Command::new(pvcd)
            .args(["standalone", "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("`{}` cannot be started", pvcd.display()))?;
        Ok(Daemon { child, port, log, made_run })
    }

    fn when_it_answers(&mut self) -> Result<Client> {
        let deadline = now() + PATIENCE;
        let runtime = runtime()?;
        loop {
            let answered = Client::connect(self.port).and_then(|mut client| {
                client.get("/api/v1/status")?;
                Ok(client)
            });
            let error = match answered {
                Ok(client) => return Ok(client),
                Err(error) => error,
            };
            if self.child.try_wait()?.is_some() || now() > deadline {
                let output = std::fs::read_to_string(&self.log).unwrap_or_default();
                bail!("`pvcd` does not answer: {error:#}; it said: {}", output.trim());
            }
            runtime.block_on(SystemClock.sleep(Duration::from_millis(50)));
        }
    }

    fn stop(mut self) -> Result<()> {
        kill(Pid::from_raw(i32::try_from(self.child.id())?), Signal::SIGTERM)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "`pvcd` ended badly: {status}");
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended already
        let _ = self.child.wait();
        if self.made_run {
            let _ = std::fs::remove_dir(RUN); // only if it is empty
        }
    }
}

/// Without a hypervisor: no guest is to be started, and none of this machine's is to be touched.
fn configuration(state: &Path, port: u16) -> String {
    let state = state.display();
    format!(
        "standalone:\n  state_directory: \"{state}\"\n\
         subsystem:\n  enable_hypervisor: no\n\
         api:\n  listen:\n    address: \"127.0.0.1\"\n    port: {port}\n  authentication:\n    enabled: yes\n    \
         source: token\n  token:\n    - description: \"bench\"\n      token: \"{KEY}\"\n"
    )
}
