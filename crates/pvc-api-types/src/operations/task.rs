//! Tasks: what the API calls jobs.

use crate::param::Added;
use crate::{TaskLog, TaskQueues, TaskStatus};

params! {
    /// Choice of the tasks to list.
    #[derive(Default)]
    pub struct TaskChoice {
        /// Whether ended tasks are listed as well, as `ended`.
        all: Added,
    }
}

operations! { "tasks":
    /// All tasks that have not ended, by daemon; with `all` those that have as well, the latest
    /// first: they are kept for a day, and 1000 at most.
    GetTasks { GET "/tasks", Reader, read(TaskChoice) -> TaskQueues }

    /// Progress of a task. A task that never was, or is forgotten, is not there.
    GetTasksTaskId { GET "/tasks/{task_id}", Reader, read -> TaskStatus }

    /// Record of a task: author, arguments, times, daemon, how far it is or what came of it, and
    /// the lines of its log.
    GetTasksTaskIdLog { GET "/tasks/{task_id}/log", Reader, read -> TaskLog }

    /// Asks a task to stop. One that waits ends at once, one at work at its next step, an upload or
    /// a download between two pieces, a copy or a flattening of a volume where it is. Other changes
    /// of the storage cannot be cancelled. One about an OSD whose node is fenced ends at once, as
    /// failed, if an administrator asks.
    DeleteTasksTaskId { DELETE "/tasks/{task_id}", Operator, change }
}
