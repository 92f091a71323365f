//! OSDs: the disks that Ceph keeps its data on.

mod add;
mod create_db_vg;
mod info;
mod list;
mod option;
mod refresh;
mod remove;
mod replace;
mod state;

use clap::{Args, Subcommand};
use pvc_api_types::operation::Operation;
use pvc_api_types::{Message, Osd, TaskRef};
use serde_json::Value;

pub use self::create_db_vg::CreateDbVg;
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::task::{self, TaskWait};

/// Commands of the group `pvc storage osd`.
#[derive(Debug, Subcommand)]
pub enum Osds {
    Add(add::Add),
    CreateDbVg(CreateDbVg),
    In(state::In),
    Info(info::Info),
    List(list::List),
    Out(state::Out),
    Refresh(refresh::Refresh),
    Remove(remove::Remove),
    Replace(replace::Replace),
    Set(option::Set),
    Unset(option::Unset),
}

impl Osds {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Osds::Add(command) => command.run(pvc),
            Osds::CreateDbVg(command) => command.run(pvc),
            Osds::In(command) => command.run(pvc),
            Osds::Info(command) => command.run(pvc),
            Osds::List(command) => command.run(pvc),
            Osds::Out(command) => command.run(pvc),
            Osds::Refresh(command) => command.run(pvc),
            Osds::Remove(command) => command.run(pvc),
            Osds::Replace(command) => command.run(pvc),
            Osds::Set(command) => command.run(pvc),
            Osds::Unset(command) => command.run(pvc),
        }
    }
}

/// The OSD that a command is about.
#[derive(Debug, Args)]
struct Which {
    /// The OSD, by its number
    #[arg(value_name = "OSDID", add = crate::completion::osds())]
    osd: String,
}

/// The disk of a node that a command is about.
#[derive(Debug, Args)]
struct Disk {
    /// The node that the disk is in
    #[arg(add = crate::completion::nodes())]
    node: String,

    /// Absolute path of the disk, or detect:NAME:SIZE:ID
    device: String,
}

/// Place of the databases of OSDs.
#[derive(Debug, Args)]
struct Databases {
    /// Put each database into the volume group osd-db, as large as this part of its OSD
    #[arg(short = 'r', long, value_name = "RATIO", conflicts_with = "ext_db_size")]
    ext_db_ratio: Option<f64>,

    /// Put each database into the volume group osd-db, with this size, such as 40G
    #[arg(short = 's', long, value_name = "SIZE")]
    ext_db_size: Option<String>,
}

/// Options of every command that becomes a task.
#[derive(Debug, Clone, Copy, Args)]
struct Way {
    #[command(flatten)]
    wait: TaskWait,

    #[command(flatten)]
    yes: Yes,
}

impl Way {
    /// Asks `sentence` and starts the task. What the API would refuse nobody is asked about.
    fn submit<O, const N: usize>(
        self,
        pvc: &mut Pvc,
        (operation, at): (O, [&str; N]),
        params: &O::Params,
        sentence: &str,
    ) -> Outcome
    where
        O: Operation<At = [String; N], Reply = TaskRef, DryRun = Message> + Copy,
    {
        if !pvc.unasked(self.yes.yes) {
            pvc.client()?.dry_run(operation, at, params)?;
        }
        confirm::ask(pvc, self.yes, sentence)?;
        let task = pvc.client()?.submit(operation, at, params)?;
        task::finish(pvc, task, self.wait)
    }
}

/// A figure of an OSD; `N/A` where there is none yet.
fn figure(osd: &Osd, name: &str) -> String {
    match osd.stats.get(name) {
        Some(Value::String(text)) if text != PENDING => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => NONE.to_owned(),
    }
}

/// The same of a number, as `shown` has it.
fn number(osd: &Osd, name: &str, shown: impl Fn(f64) -> String) -> String {
    osd.stats.get(name).and_then(Value::as_f64).map_or_else(|| NONE.to_owned(), shown)
}

/// Whether the OSD is in the state: `up` or `in`.
fn is(osd: &Osd, state: &str) -> bool {
    osd.stats.get(state).and_then(Value::as_i64) == Some(1)
}

/// Value of all figures of an OSD that nobody has looked at yet.
const PENDING: &str = "|";
const NONE: &str = "N/A";
