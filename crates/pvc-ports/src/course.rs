use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// Course of an act on the storage that takes long: how far it is, and whether it is to stop.
/// Shared by who does it and who waits for it; cheap to clone.
#[derive(Debug, Clone)]
pub struct Course {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    stop: watch::Sender<bool>,
    bytes: AtomicU64,
    /// Bytes in all; 0 while nobody knows.
    of: AtomicU64,
}

impl Default for Course {
    /// Makes the course of an act of which nothing is done.
    fn default() -> Self {
        let (bytes, of) = (AtomicU64::new(0), AtomicU64::new(0));
        Course { state: Arc::new(State { stop: watch::Sender::new(false), bytes, of }) }
    }
}

impl Course {
    /// Says how many bytes there are to go through.
    pub fn announce(&self, bytes: u64) {
        self.state.of.store(bytes, Ordering::Relaxed);
    }

    /// Says how many of them are done.
    pub fn reach(&self, bytes: u64) {
        self.state.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Returns how many bytes are done.
    pub fn bytes(&self) -> u64 {
        self.state.bytes.load(Ordering::Relaxed)
    }

    /// Returns how many bytes there are in all, once that is known.
    pub fn of(&self) -> Option<u64> {
        Some(self.state.of.load(Ordering::Relaxed)).filter(|of| *of > 0)
    }

    /// Asks the act to stop. One that is nearly done may come to its end all the same.
    pub fn stop(&self) {
        self.state.stop.send_replace(true);
    }

    pub fn is_stopped(&self) -> bool {
        *self.state.stop.borrow()
    }

    /// Returns when the act is asked to stop.
    pub async fn stopped(&self) {
        let mut stop = self.state.stop.subscribe();
        stop.wait_for(|stop| *stop).await.expect("this course has the sender");
    }
}

#[cfg(test)]
mod tests {
    use super::Course;

    #[tokio::test]
    async fn who_waits_and_who_does_it_share_the_course() {
        let course = Course::default();
        assert_eq!((course.bytes(), course.of(), course.is_stopped()), (0, None, false));
        let doer = course.clone();
        doer.announce(8);
        doer.reach(3);
        assert_eq!((course.bytes(), course.of()), (3, Some(8)));
        let ((), ()) = tokio::join!(doer.stopped(), async { course.stop() });
        assert!(doer.is_stopped());
        doer.stopped().await;
    }
}
