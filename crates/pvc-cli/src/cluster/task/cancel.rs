use clap::Args;
use pvc_api_types::operations::task::DeleteTasksTaskId;
use pvc_api_types::param::Nothing;

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Ask a task to stop
///
/// A task that waits ends at once, one at work at its next step; what it has done by then is
/// taken back where that is possible. An upload or a download breaks off; of an upload nothing
/// is left, unless all of it had come and the volume gets its contents already. `pvc task ID`
/// shows how it ended.
#[derive(Debug, Args)]
pub struct Cancel {
    /// The task
    #[arg(add = crate::completion::tasks())]
    task_id: String,
}

impl Cancel {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let message = pvc.client()?.change(DeleteTasksTaskId, [&self.task_id], &Nothing)?;
        pvc.done(message);
        Ok(())
    }
}
