//! The daemons themselves, as they are installed: all roles in one process on one machine, and one
//! process for each role of a cluster's node.

mod configuration;
mod process;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pvc_contracts::tcp_port::free_port;
use pvc_linux::SystemClock;
use pvc_ports::Clock;
use pvc_store::synthetic::Shape;

use crate::http::{Client, KEY};
use crate::measure::{Scale, now};
use crate::place::{Kind, Place, Source, open_store, runtime};
use crate::report::{Budget, Figure, Quantity, grouped};
use crate::statistics;
use process::{Daemon, Memory};

/// The daemon makes this folder; it is removed again if it is empty.
const RUN: &str = "/run/pvc";

/// Memory that the daemons of a node may take in all, in a cluster of the usual size.
const BUDGET: Budget = Budget::Bytes(60_000_000);

/// A node's daemons in a cluster, by their roles.
const ROLES: [&str; 3] = ["node", "api", "worker"];

/// Time that the API may take until it answers.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Number of times that all VMs get new statistics before the memory counts.
const ROUNDS_OF_STATISTICS: usize = 5;

/// Memory that a daemon takes to begin, and after work.
struct Taken {
    fresh: Memory,
    used: Memory,
    /// Memory of each of several daemons after work, by its role.
    each: Vec<(&'static str, Memory)>,
}

/// The memory of the daemons with a cluster of the usual size, against that with a small one.
pub fn figures(kind: Kind, pvcd: &Path, scale: &Scale) -> Result<Vec<Figure>> {
    ensure!(
        pvcd.exists(),
        "`{}` is not built; `cargo build --release -p pvcd` makes it",
        pvcd.display()
    );
    let measure = |vms: usize| {
        let place = Place::make(kind, Shape::with_vms(vms))?;
        match kind {
            Kind::Embedded => standalone(pvcd, &place, scale),
            Kind::Zookeeper => cluster(pvcd, &place, scale),
        }
    };
    let (small, usual) = (measure(scale.small())?, measure(scale.usual())?);
    let vms = grouped(scale.usual());
    let figure = |what: String, usual: u64, small: u64| {
        Figure::new(what, Quantity::Bytes(usual))
            .against(format!("with {} VMs", scale.small()), Quantity::Bytes(small))
    };
    Ok(match kind {
        Kind::Embedded => {
            let name = |when: &str| format!("memory of `pvcd standalone`, {vms} VMs, {when}");
            vec![
                figure(name("just started"), usual.fresh.all, small.fresh.all).budget(BUDGET),
                figure(name("after lists and metrics"), usual.used.all, small.used.all)
                    .budget(BUDGET),
            ]
        }
        Kind::Zookeeper => {
            let name = |when: &str| format!("memory of a node's daemons, {vms} VMs, {when}");
            let alone = format!("{}, each as if it were alone", name("after changes and lists"));
            let each = usual.each.iter().map(|(role, memory)| {
                let what = format!("  of this: `pvcd {role}`, its share");
                Figure::new(what, Quantity::Bytes(memory.share))
                    .against("as if it were alone", Quantity::Bytes(memory.all))
            });
            let mut figures = vec![
                figure(name("just started"), usual.fresh.share, small.fresh.share).budget(BUDGET),
                figure(name("after changes and lists"), usual.used.share, small.used.share)
                    .budget(BUDGET),
                figure(alone, usual.used.all, small.used.all),
            ];
            figures.extend(each);
            figures
        }
    })
}

fn standalone(pvcd: &Path, place: &Place, scale: &Scale) -> Result<Taken> {
    let (directory, port) = (place.directory(), free_port());
    let config = directory.join("pvc.conf");
    std::fs::write(&config, configuration::standalone(directory, port, KEY))?;
    let _run = RunFolder::look();
    let mut daemon = Daemon::start(pvcd, "standalone", &config, directory)?;
    daemon.when_ready()?;
    let mut client = when_it_answers(port)?;
    let fresh = daemon.memory()?;
    ask(&mut client, scale)?;
    let used = daemon.memory()?;
    daemon.stop()?;
    Ok(Taken { fresh, used, each: Vec::new() })
}

fn cluster(pvcd: &Path, place: &Place, scale: &Scale) -> Result<Taken> {
    let Source::Zookeeper(zookeeper) = &place.source else {
        unreachable!("a cluster is on ZooKeeper")
    };
    let zookeeper_port = zookeeper.rsplit_once(':').context("ZooKeeper has no port")?.1.parse()?;
    let (directory, port) = (place.directory(), free_port());
    let host = nix::unistd::gethostname()?.to_string_lossy().into_owned();
    let config = directory.join("pvc.conf");
    std::fs::write(&config, configuration::cluster(directory, &host, zookeeper_port, port, KEY))?;
    let start = |role: &&str| Daemon::start(pvcd, role, &config, directory);
    let mut daemons = ROLES.iter().map(start).collect::<Result<Vec<_>>>()?;
    daemons.iter_mut().try_for_each(Daemon::when_ready)?;
    let mut client = when_it_answers(port)?;
    let fresh = together(&daemons)?;
    work(&place.source)?;
    ask(&mut client, scale)?;
    let used = together(&daemons)?;
    let each = ROLES.iter().zip(&daemons).map(|(role, daemon)| Ok((*role, daemon.memory()?)));
    let each = each.collect::<Result<_>>()?;
    daemons.into_iter().try_for_each(Daemon::stop)?;
    Ok(Taken { fresh, used, each })
}

fn together(daemons: &[Daemon]) -> Result<Memory> {
    daemons.iter().map(Daemon::memory).sum()
}

/// A connection to the API of a daemon, which listens a moment after it has said that it is ready.
fn when_it_answers(port: u16) -> Result<Client> {
    let deadline = now() + TIME_LIMIT;
    let runtime = runtime()?;
    loop {
        let answered = Client::connect(port).and_then(|mut client| {
            client.get("/api/v1/status")?;
            Ok(client)
        });
        match answered {
            Ok(client) => return Ok(client),
            Err(error) if now() > deadline => return Err(error.context("the API does not answer")),
            Err(_) => runtime.block_on(SystemClock.sleep(Duration::from_millis(50))),
        }
    }
}

/// Writes what the nodes of a cluster write all the time.
fn work(source: &Source) -> Result<()> {
    runtime()?.block_on(async {
        let tree = source.open().await?;
        let store = open_store(tree.clone()).await?;
        for round in 0..ROUNDS_OF_STATISTICS {
            statistics::renew(&store, usize::MAX, round).await?;
        }
        tree.close().await;
        Ok(())
    })
}

/// Asks the API what somebody asks who looks at everything.
fn ask(client: &mut Client, scale: &Scale) -> Result<()> {
    for path in ["/api/v1/vm", "/api/v1/status", "/api/v1/metrics", "/api/v1/node"] {
        for _ in 0..scale.requests.div_ceil(5) {
            client.get(path)?;
        }
    }
    Ok(())
}

/// Removes the folder that a daemon makes, unless it was there before or is in use.
struct RunFolder {
    was_there: bool,
}

impl RunFolder {
    fn look() -> RunFolder {
        RunFolder { was_there: Path::new(RUN).exists() }
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if !self.was_there {
            let _ = std::fs::remove_dir(RUN); // only if it is empty
        }
    }
}
