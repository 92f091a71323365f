//! The project's benchmarks: each figure beside what it is set against, as a ratio.
//!
//! `docs/dev/benchmarks.md` says what each figure means.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "nothing is simulated here")]

mod cache;
mod child;
mod cli;
mod counting;
mod daemon;
mod http;
mod keepalive;
mod measure;
mod memory;
mod new_vms;
mod place;
mod report;
mod statistics;
mod uploads;

use std::cell::OnceCell;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;

use measure::Scale;
use memory::Held;
use place::{Kind, Place, Source};
use pvc_store::synthetic::Shape;
use report::{Figure, Section};

#[derive(Debug, Parser)]
#[command(version, about = "Measures PVC and prints ratios")]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// Tiny clusters and few rounds: shows that every figure can be made, and no more.
    #[arg(long)]
    quick: bool,
    /// The trees to measure on; both unless one is named.
    #[arg(long, value_name = "KIND")]
    tree: Vec<Kind>,
    /// Only the sections whose title contains one of these words; all unless one is named.
    #[arg(long, value_name = "WORD")]
    only: Vec<String>,
    /// The command line to measure; the one beside this program unless named.
    #[arg(long, value_name = "FILE")]
    pvc: Option<PathBuf>,
    /// The daemon to measure; the one beside this program unless named.
    #[arg(long, value_name = "FILE")]
    pvcd: Option<PathBuf>,
    /// Also writes the figures as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Tasks of the copies of this program.
#[derive(Debug, clap::Subcommand)]
enum Role {
    /// Opens a tree, or a store on it, and keeps it open.
    #[command(hide = true)]
    Hold {
        #[arg(long)]
        source: Source,
        held: Held,
    },
    /// Serves the API of a tree.
    #[command(hide = true)]
    Serve {
        #[arg(long)]
        source: Source,
        /// Folder with the configuration and keyring of the Ceph that has the volumes.
        #[arg(long)]
        ceph: Option<PathBuf>,
    },
    /// Serves replies of any size that mean nothing.
    #[command(hide = true)]
    Plain,
    /// Starts programs in turn and says how long each took, and the most memory that any took.
    #[command(hide = true)]
    Start { rounds: usize, programs: String },
}

fn main() -> Result<()> {
    pvc_linux::one_heap(); // as the daemons do
    let arguments = Arguments::parse();
    match arguments.role {
        Some(Role::Hold { source, held }) => memory::hold(&source, held),
        Some(Role::Serve { source, ceph }) => http::serve(&source, ceph.as_deref()),
        Some(Role::Plain) => http::serve_plain(),
        Some(Role::Start { rounds, programs }) => cli::start(rounds, &programs),
        None => measure_all(&arguments),
    }
}

fn measure_all(arguments: &Arguments) -> Result<()> {
    let scale = if arguments.quick { Scale::QUICK } else { Scale::FULL };
    let beside = |name: &str| Ok::<_, anyhow::Error>(std::env::current_exe()?.with_file_name(name));
    let programs = Programs {
        pvc: arguments.pvc.clone().map_or_else(|| beside("pvc"), Ok)?,
        pvcd: arguments.pvcd.clone().map_or_else(|| beside("pvcd"), Ok)?,
    };
    let kinds = if arguments.tree.is_empty() {
        &[Kind::Embedded, Kind::Zookeeper]
    } else {
        &arguments.tree[..]
    };
    println!("{}; load average at the beginning: {}\n", machine(), load());
    let mut sections = Vec::new();
    for kind in kinds {
        measure_on(*kind, arguments, &programs, &scale, &mut sections);
    }
    println!("load average at the end: {}", load());
    if let Some(path) = &arguments.json {
        let text = format!("{:#}\n", report::to_json(&sections));
        std::fs::write(path, text)
            .with_context(|| format!("`{}` cannot be written", path.display()))?;
    }
    Ok(())
}

fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let profile = if cfg!(debug_assertions) { "a debug build" } else { "a release build" };
    format!("{profile} on {cpus} CPUs")
}

/// Load of the machine: when others work, too, the slowest hundredths are not ours.
fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or("unknown").to_owned()
}

/// The programs that are measured.
struct Programs {
    pvc: PathBuf,
    pvcd: PathBuf,
}

type Measurement<'a> = (&'static str, Box<dyn Fn() -> Result<Vec<Figure>> + 'a>);

/// Every wanted section on one kind of tree, printed as soon as it is measured. One that fails does
/// not keep the others from being measured.
fn measure_on(
    kind: Kind,
    arguments: &Arguments,
    programs: &Programs,
    scale: &Scale,
    sections: &mut Vec<Section>,
) {
    let wanted = |title: &str| {
        arguments.only.is_empty() || arguments.only.iter().any(|word| title.contains(word))
    };
    let mut finish = |title: &str, figures: Result<Vec<Figure>>| {
        if figures.as_ref().is_ok_and(Vec::is_empty) {
            return;
        }
        let failed = |error: anyhow::Error| {
            vec![Figure::missing(format!("all of: {title}"), format!("{error:#}"))]
        };
        let figures = figures.unwrap_or_else(failed);
        let section = Section { title: format!("{title}, {}", kind.title()), figures };
        println!("{}", report::table(std::slice::from_ref(&section)));
        sections.push(section);
    };
    let places = Places { kind, scale, made: OnceCell::new() };
    let size = |index: usize| Ok::<_, anyhow::Error>(&places.all()?[index]);
    let measurements: [Measurement<'_>; 8] = [
        ("cache", Box::new(|| cache::figures(size(3)?, scale))),
        (
            "memory of the cache",
            Box::new(|| Ok(vec![memory::cache(size(2)?)?, memory::cache(size(3)?)?])),
        ),
        ("HTTP", Box::new(|| http::figures(kind, places.all()?, scale))),
        ("uploads", Box::new(|| uploads::figures(kind, scale))),
        ("new VMs", Box::new(|| new_vms::figures(kind, scale))),
        ("keepalive", Box::new(|| keepalive::figures(kind, scale))),
        ("daemon", Box::new(|| daemon::figures(kind, &programs.pvcd, scale))),
        ("command line", Box::new(|| cli::figures(size(0)?, &programs.pvc, scale))),
    ];
    for (title, measure) in measurements.iter().filter(|(title, _)| wanted(title)) {
        finish(title, measure());
    }
}

/// Clusters of the four sizes of the scale, made when first asked for.
struct Places<'a> {
    kind: Kind,
    scale: &'a Scale,
    made: OnceCell<Vec<Place>>,
}

impl Places<'_> {
    fn all(&self) -> Result<&[Place]> {
        if let Some(places) = self.made.get() {
            return Ok(places);
        }
        let make = |vms: &usize| Place::make(self.kind, Shape::with_vms(*vms));
        let places = self.scale.vms.iter().map(make).collect::<Result<Vec<_>>>()?;
        Ok(self.made.get_or_init(|| places))
    }
}
