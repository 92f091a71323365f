//! The project's benchmarks: each figure beside what it is set against, as a ratio.
//!
//! `docs/dev/benchmarks.md` says what each figure means.

mod child;
mod counting;
mod measure;
mod memory;
mod mirror;
mod place;
mod report;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;

use measure::Scale;
use memory::Held;
use place::{Kind, Place, Source};
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
    /// Also writes the figures as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What copies of this program do for it.
#[derive(Debug, clap::Subcommand)]
enum Role {
    /// Opens a tree, or a store on it, and keeps it open.
    #[command(hide = true)]
    Hold {
        #[arg(long)]
        source: Source,
        held: Held,
    },
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match arguments.role {
        Some(Role::Hold { source, held }) => memory::hold(&source, held),
        None => measure_all(&arguments),
    }
}

fn measure_all(arguments: &Arguments) -> Result<()> {
    let scale = if arguments.quick { Scale::QUICK } else { Scale::FULL };
    let kinds =
        if arguments.tree.is_empty() { &[Kind::Embedded, Kind::Zookeeper] } else { &arguments.tree[..] };
    let mut sections = Vec::new();
    for kind in kinds {
        let title = match kind {
            Kind::Embedded => "On the embedded tree",
            Kind::Zookeeper => "On ZooKeeper",
        };
        let figures = on(*kind, &scale)
            .unwrap_or_else(|error| vec![Figure::missing("everything", format!("{error:#}"))]);
        let section = Section { title: title.to_owned(), figures };
        print!("{}", report::table(std::slice::from_ref(&section)));
        sections.push(section);
    }
    if let Some(path) = &arguments.json {
        let text = format!("{:#}\n", report::to_json(&sections));
        std::fs::write(path, text).with_context(|| format!("`{}` cannot be written", path.display()))?;
    }
    Ok(())
}

fn on(kind: Kind, scale: &Scale) -> Result<Vec<Figure>> {
    let places = scale.vms.iter().map(|vms| Place::make(kind, *vms)).collect::<Result<Vec<_>>>()?;
    let [_, _, usual, large] = places.as_slice() else { unreachable!("a scale has four sizes") };
    let mut figures = mirror::figures(large, scale)?;
    figures.push(memory::mirror(usual)?);
    figures.push(memory::mirror(large)?);
    Ok(figures)
}
