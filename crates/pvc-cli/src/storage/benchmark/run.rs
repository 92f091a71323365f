use clap::Args;
use pvc_api_types::operations::benchmark::{BenchmarkRun, PostStorageCephBenchmark};

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::task::{self, TaskWait};

/// Measure a pool
///
/// The worker of the primary node makes a volume, writes a part of it, has fio do eight tests
/// on that, and removes it. That takes ten to fifteen minutes, in which VMs have less of the
/// storage. One benchmark runs at a time; `pvc task cancel` stops it and leaves nothing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage benchmark run vms
  pvc storage benchmark run vms --name new-disks --no-wait --yes")]
pub struct Run {
    /// The pool to measure
    #[arg(add = crate::completion::pools())]
    pool: String,

    /// Name of the benchmark; without it the time, and the node that does it
    #[arg(long)]
    name: Option<String>,

    #[command(flatten)]
    wait: TaskWait,

    #[command(flatten)]
    yes: Yes,
}

impl Run {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let sentence = format!(
            "Measure pool \"{}\" for some fifteen minutes, in which VMs have less of the storage",
            self.pool
        );
        let run = BenchmarkRun { pool: self.pool, name: self.name };
        // What the API would refuse nobody is asked about.
        if !pvc.unasked(self.yes.yes) {
            pvc.client()?.dry_run(PostStorageCephBenchmark, [], &run)?;
        }
        confirm::ask(pvc, self.yes, &sentence)?;
        let task = pvc.client()?.submit(PostStorageCephBenchmark, [], &run)?;
        task::finish(pvc, task, self.wait)
    }
}
