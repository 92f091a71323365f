//! Moments at which somebody is to stand still, so that faults can meet him there.

use tokio::sync::oneshot;

use crate::process::Gate;

/// The next who comes to this moment stands still there, alone, until he is told to go on.
pub(crate) struct StandStill<M> {
    stop: Option<M>,
    /// Lets him go on who stands still.
    standing: Option<oneshot::Sender<()>>,
}

impl<M> Default for StandStill<M> {
    fn default() -> Self {
        StandStill { stop: None, standing: None }
    }
}

impl<M: PartialEq> StandStill<M> {
    pub fn stop_at(&mut self, moment: M) {
        self.stop = Some(moment);
    }

    pub fn stands_still(&self) -> bool {
        self.standing.is_some()
    }

    pub fn go_on(&mut self) {
        if let Some(standing) = self.standing.take() {
            let _ = standing.send(()); // its process may have ended
        }
    }

    /// Nobody stands still any more, or will.
    pub fn heal(&mut self) {
        self.stop = None;
        self.go_on();
    }

    /// The end of the wait, if whoever comes here is to stand still.
    pub fn reach(&mut self, moment: M) -> Option<oneshot::Receiver<()>> {
        self.stop.take_if(|stop| *stop == moment)?;
        let (standing, released) = oneshot::channel();
        self.standing = Some(standing);
        Some(released)
    }
}

impl Gate {
    /// Waits until whoever stands still is told to go on. Returns whether he did stand still.
    pub async fn stand_still(&self, until: Option<oneshot::Receiver<()>>) -> bool {
        let Some(until) = until else { return false };
        let _ = until.await; // told to go on, or nobody can tell any more
        self.pass().await;
        true
    }
}
