//! The time that a role may work on a view of the store. The binaries and the simulation ask here,
//! so that a program ends for the same reasons in both.

use crate::Store;

impl Store {
    /// Runs `work` for as long as the view is kept up to date. `None` if the view froze: the
    /// process is better started anew.
    pub async fn while_alive<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.ended() => None,
        }
    }

    /// Runs a role until it ends, or until the layout of the store changes: then `stop` has to make
    /// it end. Also says whether that is why.
    pub async fn until_layout_changes<T>(
        &self,
        stop: impl FnOnce(),
        role: impl Future<Output = T>,
    ) -> (T, bool) {
        tokio::pin!(role);
        tokio::select! {
            biased;
            ended = &mut role => return (ended, false),
            () = self.layout_changed() => tracing::warn!("the store's layout changed; the daemon \
                                                          starts anew"),
        }
        stop();
        (role.await, true)
    }

    /// Returns when the layout is another than it was: this program was started for that one.
    async fn layout_changed(&self) {
        let mut known = self.view().config.schema;
        let mut changes = self.changed();
        loop {
            let found = self.view().config.schema;
            // An empty tree is no other layout, and neither is the first cluster in one.
            let is_other = known.is_some() && found.is_some() && found != known;
            if is_other || self.check_layout().is_err() {
                return;
            }
            known = found.or(known);
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
