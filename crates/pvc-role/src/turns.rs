use std::time::Duration;

use pvc_model::cluster::Cluster;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::Context;

/// The turns of a role: one for each pass, and between two of them a rest. A pass works from the
/// present state and is not told what woke it.
pub struct Turns {
    context: Context,
    end: CancellationToken,
    changes: watch::Receiver<u64>,
    is_first: bool,
}

impl Turns {
    pub(crate) fn new(context: Context, end: CancellationToken) -> Self {
        let changes = context.store.changed();
        Turns { context, end, changes, is_first: true }
    }

    /// Waits for the next turn: `pause` long, for the first not at all. False once the role is to
    /// end.
    pub async fn next(&mut self, pause: Duration) -> bool {
        let goes_on = self.is_first || self.context.rest(pause, &self.end).await;
        self.begin();
        goes_on
    }

    /// Waits as [`next`](Turns::next) does, and no longer than until the store changes. What has
    /// changed since the last turn began counts.
    pub async fn next_change(&mut self, pause: Duration) -> bool {
        if !self.is_first {
            tokio::select! {
                biased;
                () = self.end.cancelled() => return false,
                Ok(()) = self.changes.changed() => {}
                () = self.context.sleep(pause) => {}
            }
        }
        self.begin();
        true
    }

    fn begin(&mut self) {
        self.is_first = false;
        self.changes.mark_unchanged();
    }
}

impl Context {
    /// Returns when `is_so` is true of the view of the store. A view that has stopped for good is
    /// waited for: whoever runs the daemon ends it then.
    pub async fn until(&self, is_so: impl FnMut(&Cluster) -> bool + Send) {
        if !self.becomes(is_so, &CancellationToken::new()).await {
            std::future::pending::<()>().await;
        }
    }

    /// Waits as [`until`](Context::until) does, for those who give up: false if `end` was cancelled
    /// before, or the view has stopped for good.
    pub async fn becomes(
        &self,
        mut is_so: impl FnMut(&Cluster) -> bool + Send,
        end: &CancellationToken,
    ) -> bool {
        let mut changes = self.store.changed();
        loop {
            changes.mark_unchanged();
            if is_so(&self.store.view()) {
                return true;
            }
            tokio::select! {
                biased;
                () = end.cancelled() => return false,
                changed = changes.changed() => if changed.is_err() { return false },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use pvc_store::{Changes, ConfigChange};

    use crate::tests::context;

    const HOUR: Duration = Duration::from_secs(3600);

    async fn change(context: &Context) {
        let decide = |cluster: &Cluster| {
            let mut changes = Changes::new();
            changes.config(ConfigChange::Maintenance(!cluster.config.maintenance));
            Ok::<_, std::convert::Infallible>((changes, ()))
        };
        context.store.change(decide).await.expect("an embedded tree takes it");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_turn_is_at_once_and_the_others_after_a_rest_until_the_end() {
        let (context, end) = (context().await, CancellationToken::new());
        let mut turns = context.turns(&end);
        assert!(turns.next(HOUR).await);
        assert_eq!(context.now(), Duration::ZERO);
        assert!(turns.next(HOUR).await);
        assert_eq!(context.now(), HOUR);
        end.cancel();
        assert!(!turns.next(HOUR).await && !turns.next_change(HOUR).await);
        assert_eq!(context.now(), HOUR);
    }

    #[tokio::test(start_paused = true)]
    async fn what_changes_during_a_pass_is_a_reason_for_the_next_one_and_for_no_more() {
        let (context, end) = (context().await, CancellationToken::new());
        let mut turns = context.turns(&end);
        assert!(turns.next_change(HOUR).await);
        change(&context).await;
        assert!(turns.next_change(HOUR).await);
        assert_eq!(context.now(), Duration::ZERO);
        assert!(turns.next_change(HOUR).await);
        assert_eq!(context.now(), HOUR, "nothing changed");
        change(&context).await;
        assert!(turns.next(HOUR).await, "a turn takes in what has changed before it");
        assert!(turns.next_change(HOUR).await);
        assert_eq!(context.now(), 3 * HOUR);
    }
}
