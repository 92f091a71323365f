use clap::Args;
use pvc_api_types::operations::task::GetTasksTaskIdLog;
use pvc_api_types::param::Nothing;

use super::log::details;
use crate::context::Pvc;
use crate::format::{MaybeJson, TextFormat};
use crate::outcome::Outcome;

/// Show a task: what it does, for whom and where, and how far it is
///
/// Of an upload or a download that is how many bytes have gone of how many, how fast, and for
/// how long yet. `pvc task log` shows the lines of its log as well. A task is kept for a day
/// after its end.
#[derive(Debug, Args)]
pub struct Show {
    /// The task
    #[arg(add = crate::completion::recorded_tasks())]
    task_id: String,

    #[arg(short, long, value_enum, default_value_t = TextFormat::Pretty, help = "How to print it")]
    format: TextFormat,
}

impl Show {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let answer = pvc.client()?.read(GetTasksTaskIdLog, [&self.task_id], &Nothing)?;
        if self.format.print_payload(pvc, &answer)? {
            return Ok(());
        }
        let task = answer.read()?;
        let details = details(&task, pvc.out.paint());
        pvc.out.text(details);
        Ok(())
    }
}
