use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Context;

/// Time for which a task that panicked rests before it is started again.
const AFTER_PANIC: Duration = Duration::from_secs(5);

/// Time that all of them may take to end.
const END: Duration = Duration::from_secs(20);

/// Tasks that run for as long as the daemon does, and end together.
pub struct Tasks {
    context: Context,
    tasks: JoinSet<()>,
    end: CancellationToken,
}

impl Tasks {
    pub fn new(context: &Context) -> Self {
        Tasks { context: context.clone(), tasks: JoinSet::new(), end: CancellationToken::new() }
    }

    /// Starts the role `name`, and starts it again whenever it panics; the node is called degraded
    /// meanwhile. The daemon must not die of it: a silent daemon gets a healthy host shot, and a
    /// record that panics this node would, after the failover, panic the next.
    pub fn supervise<With, Role>(
        &mut self,
        name: &'static str,
        with: &With,
        run: impl Fn(With, CancellationToken) -> Role + Send + 'static,
    ) where
        With: Clone + Send + 'static,
        Role: Future<Output = ()> + Send + 'static,
    {
        let (context, with, end) = (self.context.clone(), with.clone(), self.end.clone());
        self.tasks.spawn(async move {
            loop {
                let mut work = JoinSet::new();
                work.spawn(run(with.clone(), end.clone()));
                match work.join_next().await {
                    Some(Err(error)) if error.is_panic() => {
                        let said = said(&*error.into_panic());
                        degraded(&context, name, &said).await;
                    }
                    _ => return,
                }
                if end.is_cancelled() {
                    return;
                }
            }
        });
    }

    /// Starts a role that cannot be started twice. It has nothing in it that panics on input.
    pub fn start_once<Role>(&mut self, run: impl FnOnce(CancellationToken) -> Role)
    where
        Role: Future<Output = ()> + Send + 'static,
    {
        self.tasks.spawn(run(self.end.clone()));
    }

    /// Asks all of them to end and waits for it, for a while; then they are cut off. `what` names
    /// them together.
    pub async fn end(&mut self, what: &str) {
        self.end.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if self.context.within(END, all).await.is_none() {
            tracing::warn!("{what} did not end in time and is cut off");
            self.tasks.shutdown().await;
        }
    }
}

fn said(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

async fn degraded(context: &Context, task: &str, said: &str) {
    tracing::error!(
        task,
        panic = said,
        "a task failed by a bug of this program and is started again"
    );
    let node = context.name();
    let message = format!(
        "node {node}: task {task} failed by a bug of this program and was started again ({said}); \
         please report it with the node's log"
    );
    context.raise_own("NODE_DEGRADED", &message).await;
    context.sleep(AFTER_PANIC).await;
}

/// A panic of a piece of work, which is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it failed by a bug of this program")]
pub struct Panicked;

/// The outcome of `work` that does not take its task with it when it panics.
///
/// # Errors
/// If it panicked.
pub async fn caught<T>(work: impl Future<Output = T>) -> Result<T, Panicked> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|_| Panicked)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use pvc_testkit::eventually;

    use crate::tests::context;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_started_again_and_the_node_is_called_degraded() {
        let context = context().await;
        let mut tasks = Tasks::new(&context);
        let starts = Arc::new(AtomicUsize::new(0));
        let counted = starts.clone();
        tasks.supervise("odd", &context, move |_, end| {
            let turn = counted.fetch_add(1, Ordering::SeqCst);
            async move {
                assert!(turn >= 2, "a bad record");
                end.cancelled().await;
            }
        });
        eventually("it runs again", Duration::from_secs(60), || starts.load(Ordering::SeqCst) == 3)
            .await;
        let fault = context.store.view().faults["NODE_DEGRADED_HV1"].clone();
        assert!(
            fault.message.contains("task odd") && fault.message.contains("a bad record"),
            "{}",
            fault.message
        );
        tasks.end("the task").await;
        assert!(tasks.tasks.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_end_is_cut_off() {
        let context = context().await;
        let mut tasks = Tasks::new(&context);
        tasks.supervise("deaf", &context, |_, _| std::future::pending());
        tasks.end("the task").await;
        assert!(tasks.tasks.is_empty());
        assert_eq!(context.now(), END);
    }

    #[tokio::test]
    async fn work_that_panics_is_over_and_says_so() {
        assert_eq!(caught(async { 1 }).await, Ok(1));
        assert_eq!(caught(async { panic!("a bad record") }).await, Err::<(), _>(Panicked));
    }
}
